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
use crate::protocol::election::{Candidate, NoteWait, Observed, elected_leader};
use crate::protocol::instant::Instant;
use crate::protocol::lease::observe_interval;
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
            observer: None,
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
    observer: Option<Observer>,
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

    /// Calls `observer` after every failed attempt to become the leader; see
    /// [`LockRequest::waiting`](crate::LockRequest::waiting).
    #[must_use]
    pub fn waiting(mut self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
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
        let has_fencing = self.redlock.core.coordinator.fencing;
        let needs_fencing = || AcquireError::from(BuildError::NeedsFencing("elections"));
        if !has_fencing {
            return Err(needs_fencing());
        }
        let mut request = self.redlock.lock(&self.name).note(note).announced();
        request = request.wait(self.wait);
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(observer) = self.observer.clone() {
            request = request.waiting(move |waiting| observer(waiting));
        }
        let guard = request.acquire().await?;
        let term = guard.fencing_token().ok_or_else(needs_fencing)?;
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
            announced: core.local_queues.watchers.begin(&key),
            poll_interval: observe_interval(self.ttl.unwrap_or(core.options.ttl)),
            poll_at: core.coordinator.now(),
            leader_known_until: core.coordinator.now(),
            observed: Observed::default(),
            note_wait: NoteWait::default(),
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

    /// Resigns: gives up the leadership, and the next candidate in the queue takes over. The call itself gives up the
    /// leadership, even if the future is never polled. A second call works as a second [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// As for [`LockGuard::release`].
    pub fn resign(&self) -> impl Future<Output = Released> + Send + use<> {
        self.guard.release()
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
const NOTE_TIMEOUT: Duration = Duration::from_millis(50);

/// If no majority answers, the observer asks the masters again after the usual interval divided by this number.
const RETRIES_PER_INTERVAL: u32 = 4;

/// An observer of an election; see [`Election::observe`].
pub struct Observation {
    redlock: Redlock,
    key: Arc<[u8]>,
    announced: Arc<Notify>,
    /// The longest interval between two requests to the masters.
    poll_interval: Duration,
    /// When the next request to the masters is due.
    poll_at: Instant,
    /// Until this time the observer keeps its last known leader, even if less than a majority of the masters answers.
    leader_known_until: Instant,
    observed: Observed,
    /// The wait for the note of a new leader.
    note_wait: NoteWait,
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
            self.wait_until_due().await;
            let search_result = self.find_leader().await;
            let term = match &search_result {
                LeaderSearch::Leader(_, leader) if self.is_early(leader) => continue,
                LeaderSearch::Leader(value, leader) => {
                    Some((*value, leader.term, leader.note.is_some()))
                }
                LeaderSearch::Nobody => None,
                LeaderSearch::Unknown => {
                    let now = self.redlock.core.coordinator.now();
                    self.poll_at = now + self.poll_interval / RETRIES_PER_INTERVAL;
                    if self.observed.is_led() && now < self.leader_known_until {
                        continue;
                    }
                    None
                }
            };
            if self.observed.update(term) {
                return match search_result {
                    LeaderSearch::Leader(_, leader) => Some(leader),
                    LeaderSearch::Nobody | LeaderSearch::Unknown => None,
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
    /// the lock was granted. The observer waits at most 50 ms for the note ([`NOTE_TIMEOUT`]).
    fn is_early(&mut self, leader: &Leader) -> bool {
        if leader.note.is_some() || !self.observed.is_new(leader.term) {
            return false;
        }
        let now = self.redlock.core.coordinator.now();
        let is_early = now < self.note_wait.ends_at(leader.term, now + NOTE_TIMEOUT);
        if is_early {
            self.poll_at = now + NOTE_TIMEOUT / 10;
        }
        is_early
    }

    /// Waits until the next request is due, or until an announcement of a new leader arrives.
    async fn wait_until_due(&mut self) {
        let coordinator = &self.redlock.core.coordinator;
        // Keep an announcement for the next call: this request follows in any case.
        if coordinator.now() >= self.poll_at {
            return;
        }
        let timer = coordinator.runtime.sleep_until(self.poll_at);
        let announcement = std::pin::pin!(self.announced.notified());
        futures::future::select(timer, announcement).await;
        // Make the next request due now. If the caller drops this future during the request, the next call then repeats
        // the request without waiting.
        self.poll_at = coordinator.now();
    }

    async fn find_leader(&mut self) -> LeaderSearch {
        let core = &self.redlock.core;
        let coordinator = &core.coordinator;
        if core.options.fair {
            // Subscribe before each request, because a master forgets the subscriptions of a broken connection.
            self.watch(true);
        }
        let key = self.key.clone();
        let answers = coordinator.key_states(Request::Status { key }).await;
        let now = coordinator.now();
        let numbered_answers = answers.iter().enumerate();
        let states_by_node =
            numbered_answers.filter_map(|(node, (state, _))| Some((node, state.as_ref().ok()?)));
        let (answering_nodes, states): (Vec<usize>, Vec<&KeyState>) = states_by_node.unzip();
        let unelected_values: Vec<_> = states
            .iter()
            .filter_map(|state| unelected_value(state))
            .collect();
        // Count the masters' votes for a value with a term, without holders that were never elected.
        let numbered_states = answering_nodes.iter().zip(&states);
        let candidates =
            numbered_states.filter_map(|(node, state)| Some((*node, self.candidate(state)?)));
        let votes: Vec<_> = candidates
            .filter(|(_, (value, _))| !unelected_values.contains(value))
            .collect();
        self.poll_at = now + self.poll_interval;
        let elected = elected_leader(&votes, coordinator.quorum)
            .filter(|(value, term)| !self.observed.was_of_another(*value, *term));
        let Some((value, term)) = elected else {
            return if coordinator
                .quorum
                .is_met_by(answering_nodes.into_iter().collect())
            {
                LeaderSearch::Nobody
            } else {
                LeaderSearch::Unknown
            };
        };
        // The leader is known until the latest of its keys expires.
        let states_of_leader = states
            .iter()
            .filter(|state| elected_value(state) == Some(value));
        let longest_ttl = states_of_leader
            .clone()
            .filter_map(|state| state.ttl_left)
            .max();
        let remaining = longest_ttl.unwrap_or(self.poll_interval);
        self.leader_known_until = now + remaining;
        // If the leader has crashed, its keys expire after this remaining TTL. Ask the masters again then.
        self.poll_at = self.poll_at.min(now + remaining + Duration::from_millis(1));
        let has_note_of_term =
            |state: &&&KeyState| state.note.is_some() && state.term == Some(term);
        let state_with_note = states_of_leader.clone().find(has_note_of_term);
        let note = state_with_note.and_then(|state| state.note.clone());
        LeaderSearch::Leader(value, Leader { term, note })
    }

    /// The leader's lock value and term, as one master shows them; `None` if one of the two is missing.
    ///
    /// A leader's term is its fencing token. It is taken from the first of these that exists:
    ///
    /// - the leader's note;
    /// - the lock's fencing counter;
    /// - an earlier observation of the same lock value.
    fn candidate(&self, state: &KeyState) -> Option<Candidate> {
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
fn unelected_value(state: &KeyState) -> Option<u128> {
    let has_note_without_term = state.note.is_some() && state.term.is_none();
    elected_value(state).filter(|_| has_note_without_term)
}

/// The masters' combined answer about the leader.
enum LeaderSearch {
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
        let was_last = core.local_queues.watchers.end(&self.key, &self.announced);
        if was_last && core.options.fair {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;

    use super::*;
    use crate::keys::Family;
    use crate::node::memory::intercepted::intercepted;
    use crate::node::memory::{Condition, Masters, MemoryNode};
    use crate::settings::Order;

    const TTL: Duration = Duration::from_secs(12);

    /// The lock value of holder `n`, as the masters store it.
    fn lock_value(n: u8) -> [u8; 32] {
        Token::from_bytes([n; 16]).to_hex()
    }

    /// The stored note of holder `n` with a text and a term. An empty text stands for a note that contains only a term.
    fn stored_note(n: u8, text: &str, term: u64) -> Vec<u8> {
        let pid = u32::from(!text.is_empty());
        let note = format!(" 1\t{pid}\thost\tprogram\t{text}\t{term}");
        [&lock_value(n)[..], note.as_bytes()].concat()
    }

    /// Stores a lock of holder `n` on one master, without a fencing counter and without a note.
    fn put_lock(master: &MemoryNode, n: u8, ttl: Duration) {
        master.with_master(|master, now| master.put_text(now, b"job", &lock_value(n), Some(ttl)));
    }

    fn put_counter(master: &MemoryNode, counter: u64) {
        assert!(master.with_master(|master, now| master.carry(now, b"job", counter)));
    }

    fn put_note(master: &MemoryNode, note: &[u8]) {
        let key = Family::Note.key_of(b"job");
        master.with_master(|master, now| master.put_text(now, &key, note, None));
    }

    /// The leader that the masters show now; `None` if they show no leader.
    async fn leader_now(observer: &mut Observation) -> Option<Leader> {
        match observer.find_leader().await {
            LeaderSearch::Leader(_, leader) => Some(leader),
            LeaderSearch::Nobody | LeaderSearch::Unknown => None,
        }
    }

    fn election(masters: &Masters) -> Election {
        let redlock = Redlock::builder().in_memory_on(masters).build();
        redlock.expect("good settings").election("job").ttl(TTL)
    }

    fn stop(masters: &Masters) {
        for master in masters.iter() {
            master.set_condition(Condition::Down);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn campaign_uses_the_ttl_and_the_observer_of_its_election() {
        let masters = Masters::new(3);
        let leadership = election(&masters).campaign("me").await.expect("free");
        assert_eq!(leadership.guard().held.ttl(), TTL);
        let attempt_count = Arc::new(AtomicUsize::new(0));
        let counter = attempt_count.clone();
        let candidate = election(&masters).wait(Wait::For(TTL)).waiting(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let refusal = candidate.campaign("other").await;
        assert!(
            matches!(refusal, Err(AcquireError::HeldByOther(_))),
            "{refusal:?}"
        );
        assert!(attempt_count.load(Ordering::SeqCst) > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn observer_asks_again_after_a_quarter_of_its_interval_if_no_majority_answers() {
        let masters = Masters::new(3);
        stop(&masters);
        let mut observer = election(&masters).observe().expect("a valid name");
        assert_eq!(observer.next().await, None);
        let now = observer.redlock.core.coordinator.now();
        let until_next_poll = observer.poll_at.saturating_since(now);
        assert_eq!(until_next_poll, TTL / 12);
    }

    #[tokio::test(start_paused = true)]
    async fn observer_keeps_its_leader_until_the_keys_expire_if_no_majority_answers() {
        let masters = Masters::new(3);
        let _leadership = election(&masters).campaign("me").await.expect("free");
        let mut observer = election(&masters).observe().expect("a valid name");
        assert!(observer.next().await.is_some());
        stop(&masters);
        let now = observer.redlock.core.coordinator.now();
        observer.poll_at = now;
        observer.leader_known_until = now + Duration::from_nanos(1);
        assert_eq!(observer.next().now_or_never(), None);
        observer.poll_at = now;
        observer.leader_known_until = now;
        assert_eq!(observer.next().now_or_never(), Some(None));
    }

    /// The caller can drop the request that follows the announcement. The next call must not wait before it asks again.
    #[tokio::test(start_paused = true)]
    async fn request_after_an_announcement_stays_due_until_it_was_answered() {
        let masters = Masters::new(3);
        let mut observer = election(&masters).observe().expect("a valid name");
        assert_eq!(observer.next().await, None);
        let now = observer.redlock.core.coordinator.now();
        assert!(observer.poll_at > now);
        observer.announced.notify_one();
        observer.wait_until_due().await;
        assert_eq!(observer.poll_at, now);
    }

    #[tokio::test(start_paused = true)]
    async fn observer_waits_50_ms_for_the_note_of_a_leader_that_it_has_not_reported() {
        let masters = Masters::new(3);
        let mut observer = election(&masters).observe().expect("a valid name");
        observer.observed.update(Some((1, 4, true)));
        let note = Note::read(&stored_note(7, "me", 5), &lock_value(7));
        assert!(note.is_some(), "the note must be readable");
        let nanosecond = Duration::from_nanos(1);
        for (passed, term, has_note, is_early) in [
            (Duration::ZERO, 4, false, false),
            (Duration::ZERO, 5, false, true),
            (Duration::ZERO, 5, true, false),
            (NOTE_TIMEOUT.saturating_sub(nanosecond), 5, false, true),
            (nanosecond, 5, false, false),
            (Duration::ZERO, 6, false, true),
        ] {
            tokio::time::advance(passed).await;
            let now = observer.redlock.core.coordinator.now();
            let note = note.clone().filter(|_| has_note);
            let leader = Leader { term, note };
            assert_eq!(observer.is_early(&leader), is_early, "{leader:?}");
            if is_early {
                assert_eq!(observer.poll_at.saturating_since(now), NOTE_TIMEOUT / 10);
            }
        }
    }

    /// The observer waits for the note of the leader, so it has not reported this leader yet.
    #[tokio::test(start_paused = true)]
    async fn observer_reports_at_once_that_it_knows_no_leader_if_no_majority_answers() {
        let masters = Masters::new(3);
        let _leadership = election(&masters).campaign(None).await.expect("free");
        let mut observer = election(&masters).observe().expect("a valid name");
        let started_at = tokio::time::Instant::now();
        let stop_soon = async {
            tokio::time::sleep(NOTE_TIMEOUT / 20).await;
            stop(&masters);
        };
        let (change, ()) = futures::join!(observer.next(), stop_soon);
        assert_eq!(change, None);
        assert!(
            started_at.elapsed() < NOTE_TIMEOUT,
            "{:?}",
            started_at.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn leader_is_known_until_its_own_last_key_expires_and_asked_for_right_afterwards() {
        let masters = Masters::new(3);
        let (first, last) = (Duration::from_secs(2), Duration::from_secs(3));
        assert!(last < observe_interval(TTL));
        for (master, ttl) in masters.iter().zip([first, last]) {
            put_lock(master, 1, ttl);
            put_counter(master, 5);
        }
        // The third master shows another holder, whose key expires later and who has a note of the same term.
        put_lock(&masters[2], 2, 10 * TTL);
        put_note(&masters[2], &stored_note(2, "other", 5));
        let mut observer = election(&masters).observe().expect("a valid name");
        let leader = leader_now(&mut observer).await;
        let expected = Leader {
            term: 5,
            note: None,
        };
        assert_eq!(leader, Some(expected));
        let now = observer.redlock.core.coordinator.now();
        assert_eq!(observer.leader_known_until, now + last);
        assert_eq!(
            observer.poll_at,
            now + last + Duration::from_millis(1),
            "the next request is due when all keys have expired"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn note_of_a_leader_is_one_with_a_text_that_was_written_in_its_term() {
        // For each master, the text and the term of the note; then the text of the leader's note.
        for (notes, text) in [
            ([None, None, Some(("me", 4))], None),
            ([Some(("", 5)), Some(("me", 5)), None], Some("me")),
            ([None, Some(("me", 5)), Some(("", 5))], Some("me")),
            ([Some(("", 5)), None, None], None),
        ] {
            let masters = Masters::new(3);
            for (master, note) in masters.iter().zip(notes) {
                put_lock(master, 1, TTL);
                put_counter(master, 5);
                if let Some((text, term)) = note {
                    put_note(master, &stored_note(1, text, term));
                }
            }
            let mut observer = election(&masters).observe().expect("a valid name");
            let leader = leader_now(&mut observer).await.expect("a leader");
            assert_eq!(leader.term, 5, "{notes:?}");
            let shown_text = leader.note.and_then(|note| note.text);
            assert_eq!(shown_text.as_deref(), text, "{notes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn term_of_a_reported_leader_stays_known_after_the_masters_have_lost_it() {
        let masters = Masters::new(3);
        for master in masters.iter() {
            put_lock(master, 1, TTL);
        }
        let mut observer = election(&masters).observe().expect("a valid name");
        assert_eq!(leader_now(&mut observer).await, None, "no term is known");
        let value = u128::from_be_bytes([1; 16]);
        observer.observed.update(Some((value, 5, true)));
        let leader = leader_now(&mut observer).await;
        assert_eq!(leader.map(|leader| leader.term), Some(5));
    }

    #[tokio::test(start_paused = true)]
    async fn leader_that_was_reported_without_its_note_is_reported_again_with_the_note() {
        let masters = Masters::new(3);
        for master in masters.iter() {
            put_lock(master, 1, TTL);
            put_counter(master, 5);
        }
        let mut observer = election(&masters).observe().expect("a valid name");
        let without_note = observer.next().await.expect("a leader");
        assert_eq!((without_note.term, without_note.note), (5, None));
        put_note(&masters[1], &stored_note(1, "me", 5));
        let with_note = observer.next().await.expect("the same leader");
        assert_eq!(with_note.term, 5);
        assert!(with_note.note.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn announcements_are_cancelled_by_the_last_observer_of_an_election() {
        for (order, cancelled_by_last) in [(Order::Fair, 3), (Order::Unordered, 0)] {
            let cancel_count = Arc::new(AtomicUsize::new(0));
            let counter = cancel_count.clone();
            let nodes = intercepted(&Masters::new(3), move |request, reply| {
                if matches!(request, Request::Watch { on: false, .. }) {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
                Some(reply)
            });
            let redlock = Redlock::builder().nodes(nodes).order(order).build();
            let election = redlock.expect("good settings").election("job");
            let [first, last] = [(); 2].map(|()| election.observe().expect("a valid name"));
            drop(first);
            assert_eq!(cancel_count.load(Ordering::SeqCst), 0, "{order:?}");
            drop(last);
            let count = cancel_count.load(Ordering::SeqCst);
            assert_eq!(count, cancelled_by_last, "{order:?}");
        }
    }
}
