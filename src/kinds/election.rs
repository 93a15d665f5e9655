//! Leader election: a lock whose holder is announced to observers.
//!
//! The holder of the lock is the leader, and its fencing token is the term. Observers read the lock from all masters.
//! An observer accepts a leader if a majority of the masters shows the same lock value and the same term.

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
use crate::protocol::lease::observe_every;
use crate::redlock::Redlock;
use crate::resource::InvalidResource;
use crate::settings::Wait;
use crate::sync::Notify;
use crate::waiting::Waiting;

impl Redlock {
    /// The election with this name. It has at most one leader at a time, and observers see which client leads.
    ///
    /// The leader holds the lock with the same name. If a client takes this lock with [`acquire`](Self::acquire), no
    /// candidate can lead.
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
    /// How long a leader that has crashed keeps the leadership. Default: the builder's `ttl`.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long [`campaign`](Self::campaign) waits to become the leader. Default: no limit, even if the builder sets a
    /// `wait`.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Calls `waits` after every failed attempt to become the leader; see
    /// [`LockRequest::waiting`](crate::LockRequest::waiting).
    #[must_use]
    pub fn waiting(mut self, waits: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.waits = Some(Arc::new(waits));
        self
    }

    /// Waits until this client leads. Candidates become the leader in the order of their calls.
    ///
    /// Observers see `note` as soon as the client leads, together with the client's host, pid and process name. The
    /// note is a text of at most 1 KiB, for example the client's address. With `None` the leader has no note. Observers
    /// then report the leader with a delay of about 50 ms, because they wait for a note.
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::acquire`]; [`BuildError::NeedsFencing`] if the `Redlock` was built with `fencing(false)`.
    ///
    /// # Cancel safety
    ///
    /// As for [`Redlock::acquire`].
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

    /// Creates an observer of the election. It sends no request before the first call of [`Observation::next`].
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name of the election is not valid.
    pub fn observe(&self) -> Result<Observation, InvalidResource> {
        let key = self.redlock.key(&self.name)?;
        let core = &self.redlock.core;
        Ok(Observation {
            called: core.local_queues.watchers.begin(&key),
            every: observe_every(self.ttl.unwrap_or(core.options.ttl)),
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

/// The leadership that this client has won in an election. It ends when it is [resigned](Self::resign), dropped, or
/// lost.
///
/// A leader that was paused past its lease does not notice the loss at once. Pass the [term](Self::term) to every
/// system that the leader writes to, and let that system reject smaller terms.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: LockGuard,
    term: u64,
}

impl Leadership {
    /// The term: the fencing token of this leader, larger than that of every earlier leader.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The guard of the lock that this leader holds. It shows the lock's validity and the masters' replies.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Whether this client leads now; see [`LockGuard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Resolves when this client no longer leads; see [`LockGuard::lost`].
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        self.guard.lost()
    }

    /// Resigns: gives up the leadership, and the next candidate in the queue takes over.
    ///
    /// # Cancel safety
    ///
    /// As for [`LockGuard::release`].
    pub async fn resign(self) -> Released {
        self.guard.release().await
    }
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's term: its fencing token.
    pub term: u64,
    /// The leader's note, if the leader has written one.
    pub note: Option<Note>,
}

/// How long an observer waits for the note of a new leader. After this time it reports the leader without a note.
const NOTED_WITHIN: Duration = Duration::from_millis(50);

/// If no majority answers, the observer asks the masters again after the usual interval divided by this number.
const SOONER: u32 = 4;

/// An observer of an election; see [`Election::observe`].
pub struct Observation {
    redlock: Redlock,
    key: Arc<[u8]>,
    called: Arc<Notify>,
    /// The longest interval between two requests to the masters.
    every: Duration,
    /// When the next request to the masters is due.
    due: Instant,
    /// Until this time the observer keeps its last known leader, even if less than a majority of the masters answers.
    known_until: Instant,
    observed: Observed,
    /// The term of the leader whose note the observer waits for, and the end of this wait. `None` if the observer does
    /// not wait for a note.
    early: Option<(u64, Instant)>,
}

impl Observation {
    /// Waits until the leader changes, and returns the new leader with its term and note. Returns `None` if no leader
    /// is known any more. Terms never decrease.
    ///
    /// - The first call returns the current state without waiting for a change.
    /// - If a call returned a leader without its note, a later call returns the same leader with the note.
    ///
    /// The result can be outdated when it arrives. So compare the terms, not the identities of the leaders.
    ///
    /// The observer polls the masters three times within a ttl. It notices a new leader sooner if the masters announce
    /// the leader. Announcements need the default order [`Order::Fair`](crate::Order::Fair) and the right to subscribe
    /// to channels.
    ///
    /// If a client takes the election's lock with [`Redlock::acquire`], the observer can return this client as the
    /// leader for a short time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change. The next call repeats a request that was in progress.
    pub async fn next(&mut self) -> Option<Leader> {
        loop {
            self.wait().await;
            let found = self.find_leader().await;
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

    /// Converts the observer into a stream of changes, which never ends.
    pub fn into_stream(self) -> impl Stream<Item = Option<Leader>> + Send {
        futures::stream::unfold(self, |mut observer| async move {
            let change = observer.next().await;
            Some((change, observer))
        })
    }

    /// Whether to wait for the note of a new leader before reporting the leader. A leader writes its note shortly after
    /// the lock was granted. The observer waits at most 50 ms for the note ([`NOTED_WITHIN`]).
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

    /// Waits until the next request is due, or until an announcement of a new leader arrives.
    async fn wait(&mut self) {
        let coordinator = &self.redlock.core.coordinator;
        if coordinator.now() >= self.due {
            return;
        }
        let timer = coordinator.runtime.sleep_until(self.due);
        let called = std::pin::pin!(self.called.notified());
        futures::future::select(timer, called).await;
        // Make the next request due now. If the caller drops this future during the request, the next call then repeats
        // the request without waiting.
        self.due = coordinator.now();
    }

    async fn find_leader(&mut self) -> Found {
        let core = &self.redlock.core;
        let coordinator = &core.coordinator;
        if core.options.fair {
            // Subscribe before each request, because a master forgets the subscriptions of a broken connection.
            self.watch(true);
        }
        let key = self.key.clone();
        let answers = coordinator.key_states(Request::Look { key }).await;
        let now = coordinator.now();
        let states = answers.iter().enumerate();
        let states = states.filter_map(|(node, (state, _))| Some((node, state.as_ref().ok()?)));
        let (said, states): (Vec<usize>, Vec<&KeyState>) = states.unzip();
        let others: Vec<_> = states
            .iter()
            .filter_map(|state| never_elected(state))
            .collect();
        // Count the masters' votes for a value with a term, without holders that were never elected.
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
        // The leader is known until the latest of its keys expires.
        let elected = states.iter();
        let elected = elected.filter(|state| elected_value(state) == Some(value));
        let left = elected.clone().filter_map(|state| state.ttl_left).max();
        let left = left.unwrap_or(self.every);
        self.known_until = now + left;
        // If the leader has crashed, its keys expire after this remaining TTL. Ask the masters again then.
        self.due = self.due.min(now + left + Duration::from_millis(1));
        let says = |state: &&&KeyState| state.note.is_some() && state.term == Some(term);
        let note = elected.clone().find(says);
        let note = note.and_then(|state| state.note.clone());
        Found::Leader(value, Leader { term, note })
    }

    /// The leader's lock value and term, as one master shows them; `None` if one of the two is missing.
    ///
    /// A leader's term is its fencing token. It is taken from the first of these that exists:
    ///
    /// - the leader's note;
    /// - the lock's fencing counter;
    /// - an earlier observation of the same lock value.
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

/// The lock value of the holder that one master shows; `None` if the key's value is not a lock token.
fn elected_value(state: &KeyState) -> Option<u128> {
    let token = Token::from_hex(state.holder.as_deref()?)?;
    Some(u128::from_be_bytes(token.to_bytes()))
}

/// Returns the lock value of a holder whose note has no term: this holder took the lock without an election. Returns
/// `None` for other holders.
///
/// Observers ignore this lock value on all masters, because another master may have lost the note.
fn never_elected(state: &KeyState) -> Option<u128> {
    let says = state.note.is_some() && state.term.is_none();
    elected_value(state).filter(|_| says)
}

/// The masters' combined answer about the leader.
enum Found {
    /// A majority of the masters shows this leader. The number is the leader's lock value.
    Leader(u128, Leader),
    /// A majority of the masters answered and shows no leader.
    Nobody,
    /// Less than a majority of the masters answered.
    Unknown,
}

impl Drop for Observation {
    fn drop(&mut self) {
        let core = &self.redlock.core;
        let last = core.local_queues.watchers.end(&self.key, &self.called);
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
