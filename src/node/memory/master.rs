//! A master in memory as a state machine. Its replies are the same as those of the Lua scripts on a Redis server. The
//! caller supplies the time.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::keys::{self, Family};
use crate::node::numbers::{self, LARGEST_COUNTER};
use crate::node::{
    Answer, Claim, ExtendItem, Extended, Fairness, Fault, KeyState, QueueInfo, Request, ServerRun,
    Shape, Ticket, Waiter,
};
use crate::protocol::fencing::{COUNTER_PERIOD_US, COUNTER_TTL_US, PROPOSAL_SLACK_US};

/// The length of a process id in bytes. Every waiter id begins with a process id.
pub(super) const PROCESS_LEN: usize = 16;

/// The largest number of bytes of a lock value that a master returns to other clients. No lock value of this library is
/// longer.
const MAX_VALUE_SHOWN: usize = 96;

/// The keys of one in-memory master. [`apply`](Self::apply) executes requests with the same results as the Lua scripts
/// on a Redis server.
#[derive(Clone, Debug, Default)]
pub struct Master {
    keys: HashMap<Vec<u8>, Entry, PlainHash>,
    pub(super) queues: HashMap<Vec<u8>, WaiterQueue, PlainHash>,
    /// The holds of readers or of an owner for each shared lock, by lock key.
    pub(super) holds: HashMap<Vec<u8>, Vec<Member>, PlainHash>,
    published: Vec<(Arc<str>, Vec<u8>)>,
    pub(super) announced: Vec<Vec<u8>>,
    run: Run,
    dates: Dates,
}

/// The clock from which fencing numbers are derived. On databases and other stores, it can differ from the clock by
/// which keys expire.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(any(test, feature = "node")), allow(dead_code))]
pub(in crate::node) enum Dates {
    /// The clock by which keys expire on this master.
    #[default]
    Own,
    /// A clock other than the one by which keys expire. It now shows this many microseconds since 1970.
    Shown(u64),
    /// The date is unknown, so the clock of the client process is used. Fencing counters never expire, because with a
    /// slow clock, a new counter could start below an expired one.
    Unknown,
}

/// The id of the server run that the master reports in its answers.
#[derive(Clone, Debug)]
struct Run(ServerRun);

impl Default for Run {
    fn default() -> Self {
        Self(ServerRun::new("1"))
    }
}

/// A fast hash without a random seed. Simulations send millions of requests a second, and must be repeatable.
pub(super) type PlainHash = BuildHasherDefault<PlainHasher>;

#[derive(Clone, Debug, Default)]
pub(super) struct PlainHasher(u64);

impl Hasher for PlainHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        const PRIME: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut rest = bytes;
        while let Some((eight, behind)) = rest.split_first_chunk::<8>() {
            self.0 = (self.0.rotate_left(23) ^ u64::from_le_bytes(*eight)).wrapping_mul(PRIME);
            rest = behind;
        }
        for byte in rest {
            self.0 = (self.0.rotate_left(23) ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    }
}

/// The queue of one lock: the data that a real master keeps in the lock's keys `{queue}`, `{alive}` and `{ticket}`.
#[derive(Clone, Debug, Default)]
pub(super) struct WaiterQueue {
    /// The waiters, sorted by ticket and then by id, as in a sorted set.
    pub(super) queue: BTreeSet<(u64, Arc<str>)>,
    /// When the place of each waiter expires, in milliseconds on the master's clock.
    pub(super) alive: HashMap<Arc<str>, u64>,
    /// The value of the ticket key; 0 if the key does not exist.
    pub(super) ticket: u64,
    /// When the ticket key expires, in milliseconds on the master's clock. The ticket key stays when the queue is
    /// empty.
    pub(super) expires: u64,
    /// When the keys `{queue}` and `{alive}` expire, in milliseconds on the master's clock; 0 if the queue has no
    /// waiters.
    pub(super) queue_expires: u64,
}

/// The state of a lock on a [`Master`]. Reading this state does not change the master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peek<'a> {
    /// The value of the lock key; `None` if the lock is free, or if its key does not have the type string.
    pub holder: Option<&'a [u8]>,
    /// When the lock key expires, in microseconds on the master's clock; `None` if the lock is free or its key has no
    /// expiry.
    pub expires: Option<u64>,
    /// The value of the lock's fencing counter; `None` if the counter does not exist.
    pub counter: Option<u64>,
    /// When the key of the fencing counter expires, in microseconds on the master's clock; `None` if the counter does
    /// not exist or has no expiry.
    pub counter_expires: Option<u64>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// When the key expires, in microseconds on the master's clock; `None` for no expiry.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Vec<u8>),
    /// A value of another type than string.
    Foreign,
}

/// One of the holds that share a lock: its value, and when it expires, in milliseconds on the master's clock.
pub(super) type Member = ([u8; 32], u64);

impl Master {
    /// Executes `request` at the time `now` (microseconds on the master's clock), and returns the answer.
    ///
    /// # Errors
    ///
    /// The fault that a real master would report, for example [`Fault::WrongType`].
    pub fn apply(&mut self, now: u64, request: &Request) -> Result<Answer, Fault> {
        let shape = request.shape();
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => match shape {
                Shape::Plain => self.acquire(now, claim, *ttl, *proposal),
                Shape::Group(group) => self.claim(now, claim, group, *ttl, *proposal),
                Shape::Permit(permit) => self.permit(now, claim, permit, *ttl, *proposal),
            },
            Request::Confirm { claim, token } => match shape {
                Shape::Plain | Shape::Permit(_) => self.confirm(now, claim, *token),
                Shape::Group(group) => self.confirm_group(now, claim, group, *token),
            },
            Request::Release { claim, leave } => match shape {
                Shape::Plain => self.release(now, claim, *leave),
                Shape::Group(group) => self.unclaim(now, claim, group, *leave),
                Shape::Permit(permit) => self.release_permit(now, claim, permit, *leave),
            },
            Request::Extend { items } => {
                // If one of the locks is a group (several keys, readers or an owner), a server executes the request
                // with the script KEEP. KEEP renews no notes, not even those of plain locks.
                let renews_notes = shape.renewal_keeps_note();
                let mut results = Vec::with_capacity(items.len());
                for item in items.iter() {
                    match item.claim.shape() {
                        Shape::Plain | Shape::Permit(_) => {
                            results.push(self.extend(now, item, renews_notes));
                        }
                        Shape::Group(group) => {
                            results.extend(self.extend_group(now, &item.claim, group, item.ttl));
                        }
                    }
                }
                Ok(Answer::Extended(results))
            }
            Request::Status { key } => Ok(Answer::State(self.key_state(now, key)?)),
            Request::Break { key, ended, delete } => {
                let state = self.key_state(now, key)?;
                let state = self.break_lock(now, key, ended, *delete, state)?;
                Ok(Answer::State(state))
            }
            Request::Read { claim, token } => self.read_value(now, claim, *token),
            Request::Write {
                claim,
                token,
                value,
            } => self.write_value(now, claim, *token, value.bytes.as_deref()),
            Request::Note { items } => {
                let results = items.iter().map(|item| self.note(now, item));
                Ok(Answer::Noted(results.collect()))
            }
            Request::List { page } => Ok(self.list(now, &page.pattern)),
            Request::Watch { .. } => Ok(Answer::Watching),
        }
    }

    /// The state of the lock `key`, for observers that must not change the master.
    pub fn peek(&self, now: u64, key: &[u8]) -> Peek<'_> {
        let unexpired = |key: &[u8]| self.keys.get(key).filter(|entry| entry.lives(now));
        let lock_entry = unexpired(key);
        let counter_entry = unexpired(&Family::Fence.key_of(key));
        Peek {
            holder: lock_entry.and_then(Entry::text),
            expires: lock_entry.and_then(|entry| entry.expires),
            counter: counter_entry.and_then(Entry::text).and_then(parse_number),
            counter_expires: counter_entry.and_then(|entry| entry.expires),
        }
    }

    /// The holds of the shared lock `key`: those of its readers, or those of its owner. The list can contain expired
    /// holds.
    ///
    /// Each entry is a hold's random value and its time of expiry, in milliseconds on the master's clock.
    pub fn standing(&self, key: &[u8]) -> &[([u8; 32], u64)] {
        self.holds.get(key).map_or(&[], Vec::as_slice)
    }

    /// The number of unexpired keys on this master. The queue of a lock counts as one key.
    pub fn len(&mut self, now: u64) -> usize {
        self.keys.retain(|_, entry| entry.lives(now));
        self.queues.retain(|_, queue| now / 1000 < queue.expires);
        self.keys.len() + self.queues.len()
    }

    /// Whether the master has no unexpired key.
    pub fn is_empty(&mut self, now: u64) -> bool {
        self.len(now) == 0
    }

    /// Simulates a restart of the server: the server run `run` begins. Later answers mark values from earlier runs as
    /// untrusted (the field `trusted` of [`StoredValue`](crate::node::StoredValue) is false).
    pub fn set_run(&mut self, run: ServerRun) {
        self.run = Run(run);
    }

    /// The id of the current run of the server.
    pub fn run(&self) -> &ServerRun {
        &self.run.0
    }

    /// Deletes the key that stores the last ticket number in the queue of the lock `lock`. Simulates an eviction of
    /// this key.
    pub fn forget_ticket(&mut self, lock: &[u8]) {
        if let Some(queue) = self.queues.get_mut(lock) {
            queue.ticket = 0;
            queue.expires = queue.queue_expires;
        }
    }

    /// Sets the clock from which fencing numbers are derived.
    #[cfg(any(test, feature = "node"))]
    pub(in crate::node) fn set_dates(&mut self, dates: Dates) {
        self.dates = dates;
    }

    /// Raises the fencing counter of the lock `key` to `number` and returns true. If the counter is `number` or higher,
    /// changes nothing and returns false.
    pub fn carry(&mut self, now: u64, key: &[u8], number: u64) -> bool {
        let is_below = self.peek(now, key).counter.unwrap_or(0) < number;
        if is_below {
            self.set_counter(now, key, number);
        }
        is_below
    }

    /// Stores a value that is not a string under `key`.
    pub fn put_foreign(&mut self, key: &[u8]) {
        self.keys.insert(
            key.to_vec(),
            Entry {
                value: Value::Foreign,
                expires: None,
            },
        );
    }

    /// Stores the string `value` under `key`, as another program might. The key expires after `ttl`; `None` means no
    /// expiry.
    pub fn put_text(&mut self, now: u64, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.set(now, key, value.to_vec(), ttl);
    }

    fn acquire(
        &mut self,
        now: u64,
        claim: &Claim,
        ttl: Duration,
        proposal: u64,
    ) -> Result<Answer, Fault> {
        if let Fairness::Fair(ticket) = claim.fairness() {
            return self.acquire_fair(now, claim, ticket.as_deref(), ttl, proposal);
        }
        if !claim.fenced() {
            // Refuse if the key exists, whatever its type, as `SET NX PX` does.
            if self.entry(now, claim.key()).is_some() {
                return Ok(Answer::Refused {
                    ttl_left: None,
                    line: None,
                });
            }
            self.set(now, claim.key(), claim.token().to_hex().to_vec(), Some(ttl));
            return Ok(Answer::Granted { counter: None });
        }
        let counter = self.counter(now, claim.key())?;
        match self.text(now, claim.key())? {
            Some(held) if held == claim.token().to_hex() => grant_again(claim.key(), counter),
            Some(_) => {
                let ttl_left = self.ttl_left(now, claim.key());
                Ok(Answer::Refused {
                    ttl_left,
                    line: None,
                })
            }
            None => Ok(self.grant(now, claim, ttl, proposal, counter)),
        }
    }

    fn grant(
        &mut self,
        now: u64,
        claim: &Claim,
        ttl: Duration,
        proposal: u64,
        counter: u64,
    ) -> Answer {
        let number = self.raise_counter(now, claim.key(), proposal, counter);
        self.set(now, claim.key(), claim.token().to_hex().to_vec(), Some(ttl));
        Answer::Granted {
            counter: Some(number),
        }
    }

    fn acquire_fair(
        &mut self,
        now: u64,
        claim: &Claim,
        ticket: Option<&Ticket>,
        ttl: Duration,
        proposal: u64,
    ) -> Result<Answer, Fault> {
        let ms = now / 1000;
        let own_id = ticket.map(|ticket| &ticket.waiter);
        if let Some(ticket) = ticket {
            self.queue_of(ms, claim.key()).keep_place(ticket, ms);
        }
        // Remove dead waiters, unless this client is the first. Then nobody ahead can be dead.
        let queue = self.queue_of(ms, claim.key());
        if queue.head() != own_id {
            queue.purge(ms);
        }
        let (head, largest_ticket) = (queue.head().cloned(), queue.ticket);
        let ahead = queue.ahead(own_id);
        let head_expires = head
            .as_ref()
            .and_then(|head| queue.alive.get(head))
            .copied();
        let counter = self.counter(now, claim.key())?;
        // A key of another type than string is not free. Reading the holder below then returns the error.
        let is_free = matches!(self.text(now, claim.key()), Ok(None));
        self.drop_empty_queue(claim.key());
        // Grant a free lock to the first waiter, or to anybody if the queue is empty.
        if is_free && head.as_ref().is_none_or(|head| Some(head) == own_id) {
            return Ok(self.grant(now, claim, ttl, proposal, counter));
        }
        let holder = self.text(now, claim.key())?.map(shown_value);
        if holder.as_deref() == Some(&claim.token().to_hex()) {
            return grant_again(claim.key(), counter);
        }
        // Refuse, and say when to ask again: at the end of the lease, or when the first waiter's heartbeat is overdue.
        let note = self.note_of(now, claim.key(), holder.as_deref());
        let ttl_left = match holder {
            Some(_) => self.ttl_left(now, claim.key()),
            None => Some(Duration::from_millis(
                head_expires.unwrap_or(ms).saturating_sub(ms),
            )),
        };
        let queue_info = Some(Box::new(QueueInfo {
            ahead,
            ticket: largest_ticket,
            holder,
            free: 0,
            note,
        }));
        Ok(Answer::Refused {
            ttl_left,
            line: queue_info,
        })
    }

    /// The queue of the lock `key`; empty if the keys of the queue have expired.
    pub(super) fn queue_of(&mut self, ms: u64, key: &[u8]) -> &mut WaiterQueue {
        let queue = self.queues.entry(key.to_vec()).or_default();
        if queue.expires <= ms {
            *queue = WaiterQueue::default();
        } else if queue.queue_expires <= ms {
            queue.queue.clear();
            queue.alive.clear();
        }
        queue
    }

    /// Drops the queue of the lock `key` if the queue has neither waiters nor a ticket.
    pub(super) fn drop_empty_queue(&mut self, key: &[u8]) {
        if self
            .queues
            .get(key)
            .is_some_and(|queue| queue.queue.is_empty() && queue.ticket == 0)
        {
            self.queues.remove(key);
        }
    }

    /// Removes and returns the wake-up messages that the master published since the last call. Each pair is the id of
    /// the process to wake, and the key of the lock that may be free.
    pub fn take_published(&mut self) -> Vec<(Arc<str>, Vec<u8>)> {
        std::mem::take(&mut self.published)
    }

    /// Removes and returns the announcements that the master published since the last call. Each announcement is the
    /// lock key of an election that has a new leader.
    pub fn take_announced(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.announced)
    }

    fn confirm(&mut self, now: u64, claim: &Claim, token: u64) -> Result<Answer, Fault> {
        if !self.is_ours(now, claim)? {
            return Ok(Answer::NotOurs);
        }
        let counter = self.counter(now, claim.key())?;
        if counter > token {
            return Ok(Answer::CounterAbove(counter));
        }
        self.set_counter(now, claim.key(), token);
        Ok(Answer::Confirmed)
    }

    fn release(&mut self, now: u64, claim: &Claim, leave: bool) -> Result<Answer, Fault> {
        let was_ours = self.is_ours(now, claim)?;
        if was_ours {
            if claim.is_noted() {
                self.drop_note(now, claim.key());
            }
            self.keys.remove(claim.key());
        }
        if let Fairness::Fair(ticket) = claim.fairness() {
            let own_id = ticket.as_ref().map(|ticket| ticket.waiter.clone());
            self.leave_and_wake(now, claim.key(), own_id, leave, was_ours);
        }
        Ok(Answer::Released(was_ours))
    }

    fn leave_and_wake(
        &mut self,
        now: u64,
        key: &[u8],
        own_id: Option<Arc<str>>,
        leave: bool,
        was_ours: bool,
    ) {
        let ms = now / 1000;
        let queue = self.queue_of(ms, key);
        let has_left = leave && own_id.as_ref().is_some_and(|own_id| queue.remove(own_id));
        if (was_ours || has_left) && queue.head().is_some() && queue.head() != own_id.as_ref() {
            queue.purge(ms);
            let first_waiter = queue.head().cloned();
            let lock_value = self.text(now, key).ok().flatten();
            if lock_value == Some(keys::SHARED_LOCK_VALUE.as_bytes()) {
                self.wake_next(key);
            } else if let (Some(first_waiter), None) = (first_waiter, lock_value) {
                self.publish(&first_waiter, key);
            }
        }
        self.drop_empty_queue(key);
    }

    fn extend(&mut self, now: u64, item: &ExtendItem, renews_notes: bool) -> Extended {
        let claim = &item.claim;
        if claim.is_withdrawn() {
            return Extended::Withdrawn;
        }
        let is_broken_lock = self.is_broken(now, claim.key(), &claim.token().to_hex());
        match self.text(now, claim.key()) {
            Ok(Some(_)) if is_broken_lock == Ok(true) => Extended::NotOurs,
            Ok(Some(held)) if held == claim.token().to_hex() => {
                let ttl_left = self.ttl_left(now, claim.key());
                if ttl_left.is_none_or(|ttl_left| ttl_left < item.ttl) {
                    self.set(
                        now,
                        claim.key(),
                        claim.token().to_hex().to_vec(),
                        Some(item.ttl),
                    );
                }
                if renews_notes && item.note && !self.keep_note(now, claim) {
                    return Extended::Unnoted;
                }
                Extended::Kept
            }
            Ok(None) if is_broken_lock.is_err() => Extended::strange(),
            Ok(None) if is_broken_lock == Ok(true) => Extended::NotOurs,
            Ok(None) => {
                self.set(
                    now,
                    claim.key(),
                    claim.token().to_hex().to_vec(),
                    Some(item.ttl),
                );
                Extended::Restored
            }
            Ok(Some(_)) | Err(_) => Extended::NotOurs,
        }
    }

    fn key_state(&mut self, now: u64, key: &[u8]) -> Result<KeyState, Fault> {
        let holder = self.text(now, key)?.map(shown_value);
        let ttl_left = self.ttl_left(now, key);
        let counter = self
            .text(now, &Family::Fence.key_of(key))?
            .and_then(parse_number);
        let ms = now / 1000;
        let queue_name = keys::queue_name_of(key);
        let queue_keys = self.queue_of(ms, &queue_name);
        let place_ttl = |id: &Arc<str>| {
            Duration::from_millis(
                queue_keys
                    .alive
                    .get(id)
                    .map_or(0, |expires| expires.saturating_sub(ms)),
            )
        };
        let queue = queue_keys.queue.iter().take(100);
        let queue = queue
            .map(|(_, id)| Waiter::new(id.to_string(), place_ttl(id)))
            .collect();
        self.drop_empty_queue(&queue_name);
        let note = self.note_of(now, key, holder.as_deref());
        let term = self.term_of(now, key, holder.as_deref());
        let holds = self.holds_of(now, key, holder.as_deref());
        Ok(KeyState {
            holder,
            ttl_left,
            counter,
            queue,
            note,
            term,
            holds,
        })
    }

    /// Lists all matching lock keys in one page. `pattern` is a prefix followed by `*`.
    fn list(&mut self, now: u64, pattern: &[u8]) -> Answer {
        let matching = self.entries_matching(now, pattern);
        let strings = matching.filter(|(_, entry)| entry.text().is_some());
        let keys = strings.map(|(key, _)| key.clone()).collect();
        Answer::Keys { cursor: 0, keys }
    }

    /// The unexpired keys of any type that match `pattern`, which is a prefix followed by `*`.
    fn entries_matching(
        &self,
        now: u64,
        pattern: &[u8],
    ) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
        let pattern = pattern.strip_suffix(b"*").unwrap_or(pattern);
        let mut bytes = pattern.iter().copied();
        let unescaped = std::iter::from_fn(|| match bytes.next()? {
            b'\\' => bytes.next(),
            byte => Some(byte),
        });
        let prefix: Vec<u8> = unescaped.collect();
        let entries = self.keys.iter();
        entries.filter(move |(key, entry)| key.starts_with(&prefix) && entry.lives(now))
    }

    /// The names of the unexpired keys of any type that match `pattern`, which is a prefix followed by `*`.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::node) fn keys_matching(&self, now: u64, pattern: &[u8]) -> Vec<Vec<u8>> {
        let matching = self.entries_matching(now, pattern);
        matching.map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn publish(&mut self, waiter: &str, key: &[u8]) {
        let process = waiter.get(..PROCESS_LEN).unwrap_or(waiter).into();
        self.published.push((process, key.to_vec()));
    }

    pub(super) fn is_ours(&mut self, now: u64, claim: &Claim) -> Result<bool, Fault> {
        Ok(self.text(now, claim.key())? == Some(&claim.token().to_hex()[..]))
    }

    pub(super) fn counter(&mut self, now: u64, key: &[u8]) -> Result<u64, Fault> {
        match self
            .text(now, &Family::Fence.key_of(key))?
            .map(parse_number)
        {
            None => Ok(0),
            Some(Some(counter @ ..LARGEST_COUNTER)) => Ok(counter),
            Some(_) => Err(Fault::Server("no number to count on".into())),
        }
    }

    /// The time on the clock from which fencing numbers are derived, in microseconds since 1970.
    pub(super) fn date(&self, now: u64) -> u64 {
        match self.dates {
            Dates::Shown(date) => date,
            Dates::Own | Dates::Unknown => now,
        }
    }

    /// The time on the master's clock, in microseconds since 1970. `None` if the master has no clock, or if its clock
    /// shows an impossible time.
    pub(super) fn clock(&self, now: u64) -> Option<u64> {
        match self.dates {
            Dates::Own | Dates::Shown(_) => numbers::clock(i64::try_from(self.date(now)).ok()?),
            Dates::Unknown => None,
        }
    }

    /// Raises the counter of a lock that is being taken, and returns the new value ([`raised_counter`]). `counter` is
    /// the current value, and `proposal` is the number that the client proposes.
    pub(super) fn raise_counter(
        &mut self,
        now: u64,
        key: &[u8],
        proposal: u64,
        counter: u64,
    ) -> u64 {
        let number = raised_counter(self.date(now), proposal, counter);
        // On Redis, only the first number of each period (`COUNTER_PERIOD_US`) sets the counter's expiry, to save time.
        // If fencing numbers and expiries use different clocks, every number sets it.
        let keeps_expiry =
            matches!(self.dates, Dates::Own) && counter >= number - number % COUNTER_PERIOD_US;
        let counter_key = Family::Fence.key_of(key);
        match self.keys.get_mut(&counter_key).filter(|_| keeps_expiry) {
            Some(entry) => entry.value = Value::Text(number.to_string().into_bytes()),
            None => self.set_counter(now, key, number),
        }
        number
    }

    /// Stores a fencing counter and sets its expiry, as `fence/lives.lua` does.
    pub(super) fn set_counter(&mut self, now: u64, key: &[u8], number: u64) {
        let ahead = number.saturating_sub(self.date(now));
        let ahead = if ahead > PROPOSAL_SLACK_US { ahead } else { 0 };
        let ttl_us = COUNTER_TTL_US + ahead.min(LARGEST_COUNTER);
        let ttl_us = match self.dates {
            Dates::Own => Some(ttl_us + COUNTER_PERIOD_US + PROPOSAL_SLACK_US),
            Dates::Shown(_) => Some(ttl_us),
            Dates::Unknown => None,
        };
        let ttl = ttl_us.map(Duration::from_micros);
        let text = number.to_string().into_bytes();
        self.set(now, &Family::Fence.key_of(key), text, ttl);
    }

    pub(super) fn set(&mut self, now: u64, key: &[u8], value: Vec<u8>, ttl: Option<Duration>) {
        let expires = ttl.map(|ttl| now + u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX / 2));
        let value = Value::Text(value);
        let entry = Entry { value, expires };
        match self.keys.get_mut(key) {
            Some(existing) => *existing = entry,
            None => {
                self.keys.insert(key.to_vec(), entry);
            }
        }
    }

    /// Every key with its string (`None` for a value of another type), and its expiry in microseconds (`None` for no
    /// expiry).
    #[cfg(any(test, feature = "node"))]
    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>, Option<u64>)> {
        let entries = self.keys.iter();
        entries.map(|(key, entry)| (&key[..], entry.text(), entry.expires))
    }

    /// Stores the string `text` under a key, or a value of another type if `text` is `None`. `expires` is in
    /// microseconds; `None` for no expiry.
    #[cfg(any(test, feature = "node"))]
    pub(super) fn put_until(&mut self, key: &[u8], text: Option<Vec<u8>>, expires: Option<u64>) {
        let value = text.map_or(Value::Foreign, Value::Text);
        self.keys.insert(key.to_vec(), Entry { value, expires });
    }

    fn entry(&mut self, now: u64, key: &[u8]) -> Option<&Entry> {
        if self.keys.get(key).is_some_and(|entry| !entry.lives(now)) {
            self.keys.remove(key);
        }
        self.keys.get(key)
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    /// Sets the expiry of an existing key to `expires`, in microseconds on the master's clock.
    pub(super) fn expire_at(&mut self, key: &[u8], expires: u64) {
        if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = Some(expires);
        }
    }

    pub(in crate::node) fn text(&mut self, now: u64, key: &[u8]) -> Result<Option<&[u8]>, Fault> {
        match self.entry(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Foreign) => Err(Fault::WrongType),
        }
    }

    /// Whether a key of any type exists and has not expired.
    pub(super) fn exists(&mut self, now: u64, key: &[u8]) -> bool {
        self.entry(now, key).is_some()
    }

    pub(super) fn ttl_left(&mut self, now: u64, key: &[u8]) -> Option<Duration> {
        let expires = self.entry(now, key)?.expires?;
        Some(Duration::from_micros(expires.saturating_sub(now)))
    }
}

impl WaiterQueue {
    /// Adds a waiter to the queue, or renews its place.
    pub(super) fn keep_place(&mut self, ticket: &Ticket, ms: u64) {
        let heartbeat_ms =
            u64::try_from(ticket.heartbeat.as_nanos().div_ceil(1_000_000)).unwrap_or(0);
        let was_queued = self
            .alive
            .insert(ticket.waiter.clone(), ms + heartbeat_ms)
            .is_some();
        if !was_queued {
            self.queue.insert((ticket.number, ticket.waiter.clone()));
        }
        self.queue_expires = self.queue_expires.max(ms + heartbeat_ms);
        if self.ticket == 0 {
            // Without a ticket key, this is the first waiter, or the key was deleted or evicted. Set the key to the
            // largest ticket of the queue.
            self.ticket = self.queue.last().map_or(0, |(number, _)| *number);
            self.expires = self.queue_expires;
        } else if !was_queued {
            self.ticket = self.ticket.max(ticket.number);
        }
        self.expires = self.expires.max(ms + heartbeat_ms);
    }

    fn head(&self) -> Option<&Arc<str>> {
        self.queue.first().map(|(_, waiter)| waiter)
    }

    /// The waiters ahead of the waiter `own_id`; all waiters of the queue if `own_id` is not queued.
    pub(super) fn waiters_before(
        &self,
        own_id: Option<&Arc<str>>,
    ) -> impl Iterator<Item = &Arc<str>> {
        let queued_waiters = self.queue.iter().map(|(_, waiter)| waiter);
        queued_waiters.take_while(move |waiter| Some(*waiter) != own_id)
    }

    fn ahead(&self, own_id: Option<&Arc<str>>) -> u64 {
        self.waiters_before(own_id).count() as u64
    }

    pub(super) fn purge(&mut self, ms: u64) {
        let alive = &mut self.alive;
        alive.retain(|_, until| *until > ms);
        self.queue.retain(|(_, waiter)| alive.contains_key(waiter));
        self.forget_empty_queue();
    }

    pub(super) fn remove(&mut self, waiter: &Arc<str>) -> bool {
        let was_queued = self.alive.remove(waiter).is_some();
        if was_queued {
            self.queue.retain(|(_, other)| other != waiter);
            self.forget_empty_queue();
        }
        was_queued
    }

    /// Sets the expiry of the keys `{queue}` and `{alive}` to 0 if no waiter is left. On a server, an empty queue does
    /// not have these keys.
    fn forget_empty_queue(&mut self) {
        if self.queue.is_empty() {
            self.queue_expires = 0;
        }
    }
}

impl Entry {
    fn lives(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    fn text(&self) -> Option<&[u8]> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Foreign => None,
        }
    }
}

/// The first `MAX_VALUE_SHOWN` bytes of a lock value.
pub(super) fn shown_value(value: &[u8]) -> Vec<u8> {
    value[..value.len().min(MAX_VALUE_SHOWN)].to_vec()
}

/// Returns the new counter of a lock that is being taken: `proposal`, moved to at most one second before or after
/// `now`. If this number is not larger than `counter`, returns `counter + 1`.
pub(super) fn raised_counter(now: u64, proposal: u64, counter: u64) -> u64 {
    let slack = PROPOSAL_SLACK_US;
    proposal
        .clamp(now.saturating_sub(slack), now + slack)
        .max(counter + 1)
}

/// Returns the answer to a repeated acquire of a lock that the client already holds: granted, with the current fencing
/// counter. If the counter does not exist, returns an error.
pub(super) fn grant_again(key: &[u8], counter: u64) -> Result<Answer, Fault> {
    if counter == 0 {
        let counter_key = Family::Fence.key_of(key);
        let why = format!(
            "ERR quorate: {} is gone",
            String::from_utf8_lossy(&counter_key)
        );
        return Err(Fault::Server(why.into()));
    }
    let counter = Some(counter);
    Ok(Answer::Granted { counter })
}

pub(super) fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
