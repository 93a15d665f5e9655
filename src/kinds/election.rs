//! Electing a leader: a lock whose holder is told to those who watch.
//!
//! Leading is holding the lock, and the term is its fencing number. Observations ask the masters: a leader
//! is one whose value and number a majority has.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;

use crate::acquire::acquire_loop::Observer;
use crate::error::{AcquireError, BuildError};
use crate::hold::guard::LockGuard;
use crate::hold::released::Released;
use crate::node::note::NoteText;
use crate::node::{KeyState, Note, Reply, Request, Token};
use crate::outcome::LossCause;
use crate::protocol::election::{Observed, Standing, leader};
use crate::protocol::instant::Instant;
use crate::redlock::Redlock;
use crate::resource::InvalidResource;
use crate::settings::Wait;
use crate::sync::Notify;
use crate::waiting::Waiting;

impl Redlock {
    /// The election of that name: one leader at a time, and everybody can see who. It is the lock of the
    /// same name: whoever takes that with [`acquire`](Self::acquire) keeps leaders out.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// let election = redlock.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:9000").await?;
    /// println!("leading, term {}", leadership.term());
    /// leadership.resign().await;
    /// # Ok(()) }
    /// ```
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election {
            redlock: self.clone(),
            name: name.as_ref().into(),
            ttl: None,
            wait: Wait::Forever,
            waits: None,
        }
    }
}

/// An election; see [`Redlock::election`].
#[derive(Clone)]
pub struct Election {
    redlock: Redlock,
    name: Box<[u8]>,
    ttl: Option<Duration>,
    wait: Wait,
    waits: Option<Observer>,
}

impl Election {
    /// How long a leader that has died is still taken for one. Default: the builder's ttl.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long [`campaign`](Self::campaign) waits to lead. Default: for ever, whatever the builder says.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Calls `waits` while another leads: as [`LockRequest::waiting`](crate::LockRequest::waiting).
    #[must_use]
    pub fn waiting(mut self, waits: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.waits = Some(Arc::new(waits));
        self
    }

    /// Waits until it leads, first come, first served. Observations see `note` at once: an address, a name,
    /// at most 1 KiB, beside host, pid and process. With `None` they see a term without a note, a moment later.
    ///
    /// # Errors
    ///
    /// As [`Redlock::acquire`]; [`BuildError::NeedsFencing`] with the classic protocol.
    ///
    /// # Cancel safety
    ///
    /// As [`Redlock::acquire`].
    pub async fn campaign(&self, note: impl Into<NoteText>) -> Result<Leadership, AcquireError> {
        let fenced = self.redlock.core.coordinator.fencing;
        let needs = || AcquireError::from(BuildError::NeedsFencing("elections"));
        if !fenced {
            return Err(needs());
        }
        let mut request = self.redlock.lock(&self.name).note(note).announced();
        request = request.wait(self.wait);
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(waits) = self.waits.clone() {
            request = request.waiting(move |seen| waits(seen));
        }
        let guard = request.acquire().await?;
        let term = guard.fencing_token().ok_or_else(needs)?;
        Ok(Leadership { guard, term })
    }

    /// Watches who leads. Nothing is sent before the first [`Observation::next`].
    ///
    /// # Errors
    ///
    /// Only for a name that cannot be locked.
    pub fn observe(&self) -> Result<Observation, InvalidResource> {
        let key = self.redlock.key(&self.name)?;
        let core = &self.redlock.core;
        Ok(Observation {
            called: core.lines.watchers.begin(&key),
            every: (self.ttl.unwrap_or(core.options.ttl) / LOOKS).max(SHORTEST),
            due: core.coordinator.now(),
            known_until: core.coordinator.now(),
            observed: Observed::default(),
            early: None,
            redlock: self.redlock.clone(),
            key,
        })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &String::from_utf8_lossy(&self.name))
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Being the leader, until it [resigns](Self::resign), is dropped, or loses.
///
/// A leader that is paused past its lease goes on believing for a moment: hand the
/// [term](Self::term) to what it writes to, and let that refuse smaller ones.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: LockGuard,
    term: u64,
}

impl Leadership {
    /// The fencing number: larger than that of every earlier leader.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The lock underneath: its validity, its report, its extension.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Whether it leads now; see [`LockGuard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Resolves when it leads no more; see [`LockGuard::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.guard.lost()
    }

    /// Leads no more; the next candidate in line does.
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::release`].
    pub async fn resign(self) -> Released {
        self.guard.release().await
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its fencing number.
    pub term: u64,
    /// What it says of itself, where it did.
    pub note: Option<Note>,
}

/// So often within a ttl an observer looks that nobody wakes.
const LOOKS: u32 = 3;

/// An observer that nobody wakes leaves at least so much between its looks, whatever ttl it was given.
const SHORTEST: Duration = Duration::from_millis(10);

/// So long a new leader's note is waited for before the leader is told without.
const NOTED_WITHIN: Duration = Duration::from_millis(50);

/// Where no majority answers it looks again sooner, by so much.
const SOONER: u32 = 4;

/// Watches an election; see [`Election::observe`].
pub struct Observation {
    redlock: Redlock,
    key: Arc<[u8]>,
    called: Arc<Notify>,
    /// The longest time between two looks.
    every: Duration,
    /// When the next look is due.
    due: Instant,
    /// Until when the leader that was told may be taken for one without being seen.
    known_until: Instant,
    observed: Observed,
    /// A leader that has been seen without a note, and until when that is waited for.
    early: Option<(u64, Instant)>,
}

impl Observation {
    /// The next change: a leader with its term and note, or `None` when no leader is known any more. The
    /// first one is told at once, whatever it is. Terms never fall.
    ///
    /// It is woken by the announcement of a new leader, and looks three times within a ttl all the same;
    /// without wake-ups ([`Order::Unordered`](crate::Order::Unordered), or a user who may not
    /// subscribe) that is all.
    ///
    /// Who holds the lock of that name without having campaigned for it is not told as a leader once its
    /// note is seen.
    ///
    /// What it says is a hint, out of date when it comes: act on the term, and not on who leads.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing that was seen, but a look that is under way begins anew: whoever drops it each time
    /// before a slow master can have answered hears nothing.
    pub async fn next(&mut self) -> Option<Leader> {
        loop {
            self.wait().await;
            let found = self.look().await;
            let term = match &found {
                Found::Leader(_, leader) if self.is_early(leader) => continue,
                Found::Leader(value, leader) => Some((*value, leader.term, leader.note.is_some())),
                Found::Nobody => None,
                Found::Unknown => {
                    let now = self.redlock.core.coordinator.now();
                    self.due = now + self.every / SOONER;
                    if self.observed.is_led() && now < self.known_until {
                        continue;
                    }
                    None
                }
            };
            if self.observed.takes(term) {
                return match found {
                    Found::Leader(_, leader) => Some(leader),
                    Found::Nobody | Found::Unknown => None,
                };
            }
        }
    }

    /// The changes as a stream, which never ends.
    pub fn into_stream(self) -> impl Stream<Item = Option<Leader>> + Send {
        futures::stream::unfold(self, |mut observer| async move {
            let change = observer.next().await;
            Some((change, observer))
        })
    }

    /// Whether a new leader is seen before its note, which comes right behind its grant: then it is told
    /// a moment later, together with that.
    fn is_early(&mut self, leader: &Leader) -> bool {
        if leader.note.is_some() || !self.observed.is_new(leader.term) {
            return false;
        }
        let now = self.redlock.core.coordinator.now();
        let waited_for = self.early.filter(|(term, _)| *term == leader.term);
        let (_, until) = waited_for.unwrap_or((leader.term, now + NOTED_WITHIN));
        self.early = Some((leader.term, until));
        let early = now < until;
        if early {
            self.due = now + NOTED_WITHIN / 10;
        }
        early
    }

    /// Waits until the next look is due, or an announcement comes.
    async fn wait(&mut self) {
        let coordinator = &self.redlock.core.coordinator;
        if coordinator.now() >= self.due {
            return;
        }
        let timer = coordinator.runtime.sleep_until(self.due);
        let called = std::pin::pin!(self.called.notified());
        futures::future::select(timer, called).await;
        // Noted before anything is awaited: the call is not heard twice.
        self.due = coordinator.now();
    }

    async fn look(&mut self) -> Found {
        let core = &self.redlock.core;
        let coordinator = &core.coordinator;
        if core.options.fair {
            // Each time: a connection that was lost has lost its subscriptions.
            self.watch(true);
        }
        let key = self.key.clone();
        let answers = coordinator.look(Request::Look { key }).await;
        let now = coordinator.now();
        let states = answers.iter().enumerate();
        let states = states.filter_map(|(node, (state, _))| Some((node, state.as_ref().ok()?)));
        let (said, states): (Vec<usize>, Vec<&KeyState>) = states.unzip();
        let others: Vec<_> = states
            .iter()
            .filter_map(|state| never_elected(state))
            .collect();
        let votes = said.iter().zip(&states);
        let votes = votes.filter_map(|(node, state)| Some((*node, self.standing(state)?)));
        let votes = votes.filter(|(_, (value, _))| !others.contains(value));
        let votes: Vec<_> = votes.collect();
        self.due = now + self.every;
        let elected = leader(&votes, coordinator.quorum);
        let elected = elected.filter(|(value, term)| !self.observed.was_of_another(*value, *term));
        let Some((value, term)) = elected else {
            return if coordinator.quorum.is_met_by(said.into_iter().collect()) {
                Found::Nobody
            } else {
                Found::Unknown
            };
        };
        let elected = states.iter();
        let elected = elected.filter(|state| elected_value(state) == Some(value));
        let left = elected.clone().filter_map(|state| state.ttl_left).max();
        let left = left.unwrap_or(self.every);
        self.known_until = now + left;
        // Should it have died, that is seen as soon as its keys are gone.
        self.due = self.due.min(now + left + Duration::from_millis(1));
        let says = |state: &&&KeyState| state.note.is_some() && state.term == Some(term);
        let note = elected.clone().find(says);
        let note = note.and_then(|state| state.note.clone());
        Found::Leader(value, Leader { term, note })
    }

    /// What a master says of who leads. The term is the holder's own word where there is one: the counter lives for a
    /// day, a leader may lead for longer.
    fn standing(&self, state: &KeyState) -> Option<Standing> {
        let value = elected_value(state)?;
        let term = state
            .term
            .or(state.counter)
            .or_else(|| self.observed.term_of(value));
        Some((value, term?))
    }

    fn watch(&self, on: bool) {
        for node in self.redlock.core.coordinator.nodes() {
            let key = self.key.clone();
            node.send(Request::Watch { key, on }, Reply::ignored());
        }
    }
}

/// The value of who may have been elected: of ours, and not of another client that holds the key.
fn elected_value(state: &KeyState) -> Option<u128> {
    let token = Token::from_hex(state.holder.as_deref()?)?;
    Some(u128::from_be_bytes(token.to_bytes()))
}

/// The value of who says of itself that it was not: its note has no term. What a counter shows may be
/// another's term, where a renewal came late and put back a lock that had gone.
fn never_elected(state: &KeyState) -> Option<u128> {
    let says = state.note.is_some() && state.term.is_none();
    elected_value(state).filter(|_| says)
}

/// What a look found.
enum Found {
    /// With the value of its lock.
    Leader(u128, Leader),
    /// A majority answered, and agrees on nobody.
    Nobody,
    /// Fewer than a majority answered.
    Unknown,
}

impl Drop for Observation {
    fn drop(&mut self) {
        let core = &self.redlock.core;
        let last = core.lines.watchers.end(&self.key, &self.called);
        if last && core.options.fair {
            self.watch(false);
        }
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("observed", &self.observed)
            .finish_non_exhaustive()
    }
}
