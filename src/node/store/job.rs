//! Groups requests to a store into jobs. The requests of a job share records, so one commit executes all of them.

use std::sync::Arc;
use std::time::Duration;

use super::age::Reading;
use super::cache::RecordCache;
use super::codec::{PromisedLease, Since, StoredItem};
use super::contract::{Change, Commit, WaitLock, Wake};
use super::micros::micros;
use super::names::{self, Name};
use super::time::StoreTime;
use super::wait_lock;
use crate::node::actor::mailbox::Queued;
use crate::node::memory::Master;
use crate::node::memory::items::{Item, ItemId, ItemKind};
use crate::node::{Answer, Claim, Fault, Mode, Request, ServerRun};
use crate::protocol::fencing::COUNTER_TTL_US;
use crate::protocol::instant::Instant;

/// How long an observer of an election stays subscribed if it does not renew its subscription: 60 s.
pub(super) const SUBSCRIPTION_TIME: std::time::Duration = std::time::Duration::from_secs(60);

/// The first byte of a wake-up message. The lock key follows this byte.
pub(super) const WAKE_UP: u8 = b'w';

/// The first byte of a message that announces a new leader. The lock key follows this byte.
pub(super) const LEADER: u8 = b'l';

/// Requests that share records. One commit executes all of them.
pub(super) struct Job {
    pub(super) names: Vec<Name>,
    pub(super) requests: Vec<JobRequest>,
    /// Whether the cached records of the job may be outdated and must be read again.
    pub(super) is_stale: bool,
}

/// A request with its answer. `answer` is `None` until the request has been decided.
pub(super) struct JobRequest {
    pub(super) queued: Queued,
    pub(super) answer: Option<Result<Answer, Fault>>,
}

impl JobRequest {
    /// The leases that the answer grants or extends, one for each lock key. `now` is the current time in microseconds.
    fn promised_leases(&self, now: u64) -> Vec<PromisedLease> {
        let is_extension = matches!(self.queued.request, Request::Extend { .. });
        let leases_of = |claim: &Claim, ttl: Duration| -> Vec<PromisedLease> {
            let since = |mode: &Mode| match (is_extension, mode.class()) {
                (true, _) => Since::Extended,
                (false, Some(_)) => Since::Joined,
                (false, None) => Since::Before,
            };
            let promised = |(key, mode): (&Name, &Mode)| PromisedLease {
                key: key.clone(),
                value: claim.token().to_hex(),
                until: now + micros(ttl),
                since: since(mode),
            };
            claim.keys().zip(claim.modes()).map(promised).collect()
        };
        match (&self.queued.request, &self.answer) {
            (Request::Acquire { claim, ttl, .. }, Some(Ok(Answer::Granted { .. }))) => {
                leases_of(claim, *ttl)
            }
            (Request::Extend { items }, Some(Ok(Answer::Extended(results)))) => {
                // The answer has one result for each key of each lock, and `leases_of` returns one lease for each key.
                let leases = items
                    .iter()
                    .flat_map(|item| leases_of(&item.claim, item.ttl));
                let kept_leases = leases.zip(results).filter(|(_, result)| result.is_kept());
                kept_leases.map(|(promised, _)| promised).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The result of deciding a job.
pub(super) enum Decision {
    /// The requests change no record, so nothing is committed and they are answered immediately.
    NoChange,
    /// The commit to send, and for each of its records the items after the commit.
    Change(Commit, Vec<Vec<StoredItem>>),
    /// The records, or the store's clock, must be read before the job can be decided.
    NeedsRead,
}

/// The inputs for deciding a job, in addition to the cached records.
pub(super) struct DecisionInput<'a> {
    pub(super) time: &'a StoreTime,
    pub(super) now: Instant,
    /// The number that all items of this decision are stored with. In a store without a clock, a changed stamp shows
    /// other clients that an item was written again.
    pub(super) stamp: u64,
    /// The times on several clocks at `now` or a little later; `None` if the store has a clock.
    pub(super) reading: Option<Reading>,
    pub(super) run: &'a ServerRun,
    /// The id under which this process receives wake-ups; `None` if it needs no wake-ups from this node.
    pub(super) process: Option<&'a Arc<str>>,
    /// Whether commits must take and release wait locks ([`WaitLock`]). True if the store's listener polls.
    pub(super) wait_locks: bool,
}

impl Job {
    /// Whether [`add_to`](Self::add_to) can add the request, so that the changed job has at most `max_records` records.
    /// True if the request shares no record with a job.
    pub(super) fn has_room(jobs: &[Self], request: &Request, max_records: usize) -> bool {
        if max_records == usize::MAX {
            return true;
        }
        let mut names = names::records_of_request(request);
        let shares_record = |job: &&Self| job.names.iter().any(|name| names.contains(name));
        let merged: Vec<&Self> = jobs.iter().filter(shares_record).collect();
        if merged.is_empty() {
            return true;
        }
        names.extend(merged.iter().flat_map(|job| job.names.iter().cloned()));
        names.sort_unstable();
        names.dedup();
        names.len() <= max_records
    }

    /// Adds the request to the job with which it shares a record. If there is no such job, appends a new job.
    pub(super) fn add_to(jobs: &mut Vec<Self>, queued: Queued) {
        let names = names::records_of_request(&queued.request);
        let shares_record = |job: &Self| job.names.iter().any(|name| names.contains(name));
        let answer = None;
        let requests = vec![JobRequest { queued, answer }];
        let Some(first) = jobs.iter().position(shares_record) else {
            let is_stale = false;
            jobs.push(Self {
                names,
                requests,
                is_stale,
            });
            return;
        };
        // If the request shares records with several jobs, merge them into the first of these jobs. All other jobs keep
        // their order.
        let mut later_jobs = jobs.split_off(first + 1);
        let merged = &mut jobs[first];
        merged.names.extend(names.iter().cloned());
        later_jobs.retain_mut(|job| {
            let shares_record = job.names.iter().any(|name| names.contains(name));
            if shares_record {
                merged.names.append(&mut job.names);
                merged.requests.append(&mut job.requests);
            }
            !shares_record
        });
        merged.names.sort_unstable();
        merged.names.dedup();
        merged.requests.extend(requests);
        jobs.append(&mut later_jobs);
    }

    /// Decides all requests of the job, based on the cached state of its records.
    pub(super) fn decide(&mut self, cache: &RecordCache, input: &DecisionInput<'_>) -> Decision {
        let Some((now, slack)) = input.time.now(input.now) else {
            return Decision::NeedsRead;
        };
        let Some(cached_records) = cache.get_all(&self.names) else {
            return Decision::NeedsRead;
        };
        let mut master = Master::default();
        master.set_run(input.run.clone());
        master.set_dates(input.time.dates(input.now));
        let earliest_date = input.time.earliest_date(input.now);
        let mut watchers: Vec<Item> = Vec::new();
        for stored in cached_records.iter().flat_map(|(_, stored)| stored.iter()) {
            let mut item = stored.item.clone();
            match item.id.kind {
                // Keep an expired fencing counter for another day if it is still needed by the date of the store.
                ItemKind::Text if !item.lives(now) && is_needed_counter(earliest_date, &item) => {
                    item.until = Some(now + COUNTER_TTL_US);
                    master.put(item);
                }
                ItemKind::Watcher => watchers.push(item),
                _ => master.put(item),
            }
        }
        let mut wakes = Vec::new();
        for job_request in &mut self.requests {
            job_request.answer = Some(execute_request(
                &mut master,
                &mut watchers,
                job_request,
                now,
                input,
            ));
            wakes.extend(wakes_of_last_request(&mut master, &watchers, now));
        }
        watchers.retain(|watcher| watcher.lives(now));
        let mut items = master.items(now);
        items.append(&mut watchers);
        self.build_decision(&cached_records, items, (now, slack), input, (cache, wakes))
    }

    fn build_decision(
        &self,
        cached_records: &[(u64, &[StoredItem])],
        mut items: Vec<Item>,
        (now, slack): (u64, u64),
        input: &DecisionInput<'_>,
        (cache, wakes): (&RecordCache, Vec<Wake>),
    ) -> Decision {
        let mut changes = Vec::new();
        let mut items_after = Vec::new();
        let mut has_changed = false;
        let promised: Vec<PromisedLease> = self
            .requests
            .iter()
            .flat_map(|request| request.promised_leases(now))
            .collect();
        // For each record, compute the new items with their leases, and find out whether it must be written.
        for (name, (version, before)) in self.names.iter().zip(cached_records) {
            let (own_items, other_items) = items
                .into_iter()
                .partition(|item| self.names.len() == 1 || belongs_to(&item.id, name));
            items = other_items;
            let clock = input.time.clock(slack, input.stamp, input.reading);
            let mut stored = StoredItem::updated(before, own_items, now, clock, &promised);
            if let Some(reading) = input.reading.filter(|_| self.has_acquire()) {
                for stored in &mut stored {
                    stored.add_sighting(&reading);
                }
            }
            let unexpired_before = before.iter().filter(|stored| stored.item.lives(now));
            let is_same = stored
                .iter()
                .filter(|stored| stored.item.lives(now))
                .eq(unexpired_before);
            // If a waiter must be woken, write the record even if its unexpired items are unchanged: wake-ups are sent
            // only with a commit.
            let must_write = !is_same || !wakes.is_empty() || cache.is_dirty(name);
            has_changed |= must_write;
            changes.push(Change {
                name: name.clone(),
                version: *version,
                state: must_write.then(|| StoredItem::write(&stored)),
            });
            items_after.push(if must_write { stored } else { before.to_vec() });
        }
        // A commit checks the versions of the records. A refusal, or an answer without a commit, needs fresh records.
        let is_doubtful = self.is_stale || !cache.are_fresh(&self.names);
        if is_doubtful && (!has_changed || self.has_refusal()) {
            Decision::NeedsRead
        } else if has_changed {
            let wait_locks = if input.wait_locks {
                self.wait_locks(items_after.iter().flatten())
            } else {
                Vec::new()
            };
            let commit = Commit {
                changes,
                wakes,
                wait_locks,
            };
            Decision::Change(commit, items_after)
        } else {
            Decision::NoChange
        }
    }

    /// The wait locks that the session must take or release after this job. `after` are the items that the records of
    /// the job then contain.
    pub(super) fn wait_locks<'a>(
        &self,
        after: impl Iterator<Item = &'a StoredItem>,
    ) -> Vec<WaitLock> {
        let items_after: Vec<&StoredItem> = after.collect();
        let requests = self
            .requests
            .iter()
            .map(|job_request| &job_request.queued.request);
        requests
            .flat_map(|request| wait_lock::lock_changes(request, &items_after))
            .collect()
    }

    /// Whether at least one request of the job acquires a lock. A client that joins the holds of an owner or of readers
    /// is granted the lock, but a dead hold can still keep its fencing token from a majority.
    fn has_acquire(&self) -> bool {
        let is_acquire = |job_request: &JobRequest| {
            matches!(job_request.queued.request, Request::Acquire { .. })
        };
        self.requests.iter().any(is_acquire)
    }

    /// Whether at least one request of the job is refused.
    ///
    /// If so, the job's cached records may be outdated, and must be read again.
    fn has_refusal(&self) -> bool {
        let is_refused = |job_request: &JobRequest| {
            matches!(job_request.answer, Some(Ok(Answer::Refused { .. })))
        };
        self.requests.iter().any(is_refused)
    }
}

/// Whether the item is a fencing counter that this client must keep. Without it, the next fencing number could be
/// smaller than an earlier one.
fn is_needed_counter(date: Option<u64>, item: &Item) -> bool {
    date.is_some_and(|date| item.is_counter_needed_at(date))
}

/// Executes one request on the items in `master` at the time `now`, and returns its answer.
fn execute_request(
    master: &mut Master,
    watchers: &mut Vec<Item>,
    job_request: &JobRequest,
    now: u64,
    input: &DecisionInput<'_>,
) -> Result<Answer, Fault> {
    let request = &job_request.queued.request;
    if request.is_withdrawn() || request.is_void(input.now, input.run) {
        return Err(Fault::Withdrawn);
    }
    if let (Request::Watch { key, on }, Some(process)) = (request, input.process) {
        let id = ItemId::new(ItemKind::Watcher, key, process.as_bytes());
        let index = watchers.iter().position(|watcher| watcher.id == id);
        // Renew the subscription if less than half of its lifetime is left.
        let is_fresh =
            index.is_some_and(|index| watchers[index].lives(now + micros(SUBSCRIPTION_TIME) / 2));
        if !is_fresh || !on {
            watchers.retain(|watcher| watcher.id != id);
        }
        if !is_fresh && *on {
            let (value, until) = (Vec::new(), Some(now + micros(SUBSCRIPTION_TIME)));
            watchers.push(Item { id, value, until });
        }
    }
    // A request for a subscription is answered like every other request. The master itself keeps no subscriptions.
    master.apply(now, request)
}

/// The wake-ups that the last executed request caused, for waiters and for observers of elections.
fn wakes_of_last_request(master: &mut Master, watchers: &[Item], now: u64) -> Vec<Wake> {
    let message_about = |kind: u8, key: &[u8]| [&[kind], key].concat();
    let published = master.take_published();
    let published = published.into_iter().map(|(process, key)| Wake {
        process,
        word: message_about(WAKE_UP, &key),
    });
    let announced = master.take_announced();
    let announced = announced.iter().flat_map(|key| {
        let watchers_of_key = watchers
            .iter()
            .filter(|watcher| watcher.id.key == *key && watcher.lives(now));
        watchers_of_key.map(|watcher| Wake {
            process: String::from_utf8_lossy(&watcher.id.member).into(),
            word: message_about(LEADER, key),
        })
    });
    published.chain(announced).collect()
}

/// Whether an item belongs to the record with this name.
fn belongs_to(id: &ItemId, name: &Name) -> bool {
    match id.kind {
        ItemKind::Text | ItemKind::Foreign => names::record_of_key(&id.key) == *name,
        ItemKind::Queue | ItemKind::Place => id.key == **name,
        ItemKind::Hold | ItemKind::Watcher => names::record_of_lock(&id.key) == *name,
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::Date;
    use super::*;
    use crate::keys::Family;
    use crate::node::{Class, ExtendItem, Extended, Group, NoteItem, Part, Reply, Token};

    fn item(keys: &[&[u8]], token: u8) -> ExtendItem {
        let part = |key: &&[u8]| Part {
            key: (*key).into(),
            mode: Mode::Exclusive,
        };
        let group = Group::new(keys.iter().map(part).collect());
        let claim = Claim::new("", keys[0], Token::from_bytes([token; 16]), true);
        let claim = if keys.len() > 1 {
            claim.with_group(group)
        } else {
            claim
        };
        ExtendItem::new(claim.into(), Duration::from_secs(5))
    }

    #[test]
    fn answer_to_an_extension_promises_a_lease_only_for_extended_keys() {
        use Extended::{Kept, NotOurs, Restored, Unnoted, Withdrawn};
        let unknown = || Extended::Unknown(Fault::OutOfMemory);
        let items = vec![
            item(&[b"a", b"b"], 1),
            item(&[b"c"], 2),
            item(&[b"d"], 3),
            item(&[b"e", b"f"], 4),
        ];
        let kept_keys = |results: [Extended; 6]| -> String {
            let request = Request::Extend {
                items: items.clone().into(),
            };
            let job_request = JobRequest {
                queued: Queued::new(request, Reply::ignored()),
                answer: Some(Ok(Answer::Extended(results.into()))),
            };
            let promised_leases = job_request.promised_leases(7);
            assert!(
                promised_leases
                    .iter()
                    .all(|lease| lease.until == 7 + 5_000_000)
            );
            promised_leases
                .iter()
                .map(|lease| char::from(lease.key[0]))
                .collect()
        };
        assert_eq!(
            kept_keys([Kept, NotOurs, Unnoted, Kept, Restored, unknown()]),
            "acde"
        );
        assert_eq!(
            kept_keys([NotOurs, Kept, Withdrawn, NotOurs, unknown(), Unnoted]),
            "bf"
        );
    }

    #[test]
    fn subscription_of_a_process_is_stored_once_and_removed_when_it_ends() {
        let (time, run) = (
            StoreTime::new(0, Instant::from_nanos(0), None),
            ServerRun::new("1"),
        );
        let process: Arc<str> = "process".into();
        let mut input = DecisionInput {
            time: &time,
            now: Instant::from_nanos(0),
            stamp: 1,
            reading: None,
            run: &run,
            process: Some(&process),
            wait_locks: false,
        };
        let of_other = ItemId::new(ItemKind::Watcher, b"boss", b"another process");
        let mut watchers = vec![Item {
            id: of_other.clone(),
            value: Vec::new(),
            until: Some(9),
        }];
        let lifetime = micros(SUBSCRIPTION_TIME);
        // The subscription is renewed when half of its lifetime is left. It ends when the process asks for its end.
        for (now, on, until) in [
            (100, true, Some(100 + lifetime)),
            (99 + lifetime / 2, true, Some(100 + lifetime)),
            (
                100 + lifetime / 2,
                true,
                Some(100 + lifetime / 2 + lifetime),
            ),
            (200 + lifetime / 2, false, None),
            (
                300 + lifetime / 2,
                true,
                Some(300 + lifetime / 2 + lifetime),
            ),
            (300 + lifetime, false, None),
        ] {
            input.now = Instant::from_nanos(now * 1000);
            let request = Request::Watch {
                key: b"boss"[..].into(),
                on,
            };
            let queued = Queued::new(request, Reply::ignored());
            let job_request = JobRequest {
                queued,
                answer: None,
            };
            let mut master = Master::default();
            let answer = execute_request(&mut master, &mut watchers, &job_request, now, &input);
            assert_eq!(answer, Ok(Answer::Watching));
            let (others, own): (Vec<&Item>, Vec<&Item>) =
                watchers.iter().partition(|watcher| watcher.id == of_other);
            assert_eq!(others.len(), 1);
            let own: Vec<_> = own.iter().map(|watcher| watcher.until).collect();
            assert_eq!(own, Vec::from_iter(until.map(Some)), "at {now}");
        }
    }

    /// The time of the store's clock in these tests, in microseconds since 1970.
    const NOW: u64 = 1_700_000_000_000_000;

    /// An item of the lock `boss` that expires at `until`.
    fn item_until(kind: ItemKind, key: &[u8], member: &[u8], value: &str, until: u64) -> Item {
        Item {
            id: ItemId::new(kind, key, member),
            value: value.into(),
            until: Some(until),
        }
    }

    /// The items of the record `boss` after its lock was extended at [`NOW`]. `items` are its items before. The store has
    /// no clock, but gives dates.
    fn items_after_extension(items: Vec<Item>) -> Vec<Item> {
        let start = Instant::from_nanos(0);
        let mut time = StoreTime::new(NOW, start, None);
        time.learn(None, start, start);
        time.learn_date(Some(Date::new(NOW, 1)), start, start);
        let mut jobs = Vec::new();
        Job::add_to(&mut jobs, extend(&[b"boss"], 1));
        let clock = time.clock(0, 1, None);
        let mut cache = RecordCache::default();
        cache.note_written(
            &jobs[0].names[0],
            1,
            StoredItem::updated(&[], items, NOW - 1, clock, &[]),
        );
        let decision = jobs[0].decide(
            &cache,
            &DecisionInput {
                time: &time,
                now: start,
                stamp: 2,
                reading: None,
                run: &ServerRun::new("1"),
                process: None,
                wait_locks: false,
            },
        );
        let Decision::Change(_, stored) = decision else {
            panic!("the extension must restore the lock");
        };
        let stored_items = stored.into_iter().flatten();
        stored_items.map(|stored| stored.item).collect()
    }

    #[test]
    fn expired_fencing_counter_is_kept_for_a_day_if_the_date_of_the_store_still_needs_it() {
        let key = Family::Fence.key_of(b"boss");
        for (number, kept_until) in [
            (NOW, Some(NOW + COUNTER_TTL_US)),
            (NOW - COUNTER_TTL_US, None),
        ] {
            let counter = item_until(ItemKind::Text, &key, b"", &number.to_string(), NOW);
            let items = items_after_extension(vec![counter]);
            let counters = items.iter().filter(|item| item.is_counter());
            let expiries: Vec<_> = counters.map(|counter| counter.until).collect();
            assert_eq!(expiries, Vec::from_iter(kept_until.map(Some)), "{number}");
        }
    }

    #[test]
    fn expired_subscription_is_removed_with_the_next_change_of_its_record() {
        let subscription =
            |process: &[u8], until| item_until(ItemKind::Watcher, b"boss", process, "", until);
        let unexpired = subscription(b"another process", NOW + 1);
        let items = items_after_extension(vec![subscription(b"process", NOW), unexpired.clone()]);
        let subscriptions = items.into_iter();
        let subscriptions = subscriptions.filter(|item| item.id.kind == ItemKind::Watcher);
        assert_eq!(subscriptions.collect::<Vec<_>>(), [unexpired]);
    }

    #[test]
    fn new_leader_is_announced_to_the_unexpired_subscriptions_to_its_election() {
        let subscription = |key: &[u8], process: &[u8], until| {
            item_until(ItemKind::Watcher, key, process, "", until)
        };
        let watchers = [
            subscription(b"boss", b"expired", NOW),
            subscription(b"boss", b"unexpired", NOW + 1),
            subscription(b"other", b"of another election", NOW + 1),
        ];
        let claim = Claim::new("", b"boss", Token::from_bytes([1; 16]), true);
        let claim = Arc::new(claim);
        let acquire = Request::Acquire {
            claim: claim.clone(),
            ttl: Duration::from_secs(5),
            proposal: NOW,
        };
        let note = NoteItem {
            claim,
            says: "of the leader".into(),
            since: NOW / 1000,
            announce: true,
        };
        let items = [note].into();
        let mut master = Master::default();
        let acquired = master.apply(NOW, &acquire);
        assert!(matches!(acquired, Ok(Answer::Granted { .. })));
        assert_eq!(wakes_of_last_request(&mut master, &watchers, NOW), []);
        let noted = master.apply(NOW, &Request::Note { items });
        assert_eq!(noted, Ok(Answer::Noted(vec![true])));
        let announcement = Wake {
            process: "unexpired".into(),
            word: b"lboss".to_vec(),
        };
        let wakes = wakes_of_last_request(&mut master, &watchers, NOW);
        assert_eq!(wakes, [announcement]);
    }

    /// Redis and the memory master keep the expiry of an exclusive key when an acquire is repeated.
    #[test]
    fn repeated_acquire_of_an_exclusive_and_a_shared_key_lengthens_only_a_new_shared_hold() {
        let part = |key: &[u8], mode| Part {
            key: key.into(),
            mode,
        };
        let group = Group::new(vec![
            part(b"a", Mode::Exclusive),
            part(b"b", Mode::Class(Class::Shared)),
        ]);
        let claim = Claim::new("", b"a", Token::from_bytes([1; 16]), true).with_group(group);
        let request = Request::Acquire {
            claim: claim.into(),
            ttl: Duration::from_secs(5),
            proposal: 1,
        };
        let job_request = JobRequest {
            queued: Queued::new(request, Reply::ignored()),
            answer: Some(Ok(Answer::Granted { counter: Some(1) })),
        };
        let leases = job_request.promised_leases(7);
        let since_of_keys: Vec<_> = leases
            .iter()
            .map(|lease| (lease.key.to_vec(), lease.since))
            .collect();
        assert_eq!(
            since_of_keys,
            [
                (b"a".to_vec(), Since::Before),
                (b"b".to_vec(), Since::Joined)
            ]
        );
    }

    fn extend(keys: &[&[u8]], token: u8) -> Queued {
        let items = vec![item(keys, token)].into();
        Queued::new(Request::Extend { items }, Reply::ignored())
    }

    #[test]
    fn request_has_room_if_the_job_that_it_enlarges_has_at_most_the_largest_number_of_records() {
        let mut jobs = Vec::new();
        Job::add_to(&mut jobs, extend(&[b"a", b"b"], 1));
        Job::add_to(&mut jobs, extend(&[b"c", b"d"], 2));
        let has_room = |keys: &[&[u8]], max_records: usize| {
            Job::has_room(&jobs, &extend(keys, 3).request, max_records)
        };
        assert!(has_room(&[b"a", b"b"], 2) && has_room(&[b"a", b"e"], 3));
        assert!(!has_room(&[b"a", b"e"], 2));
        assert!(has_room(&[b"a", b"c"], 4) && !has_room(&[b"a", b"c"], 3));
        assert!(has_room(&[b"e", b"f", b"g"], 2), "it shares no record");
        assert!(has_room(&[b"a", b"c", b"e"], usize::MAX));
    }

    #[test]
    fn request_that_needs_records_of_several_jobs_merges_these_jobs() {
        let mut jobs = Vec::new();
        let key_lists: [&[&[u8]]; 5] = [
            &[b"c"],
            &[b"a", b"b"],
            &[b"d"],
            &[b"e"],
            &[b"c", b"b", b"f"],
        ];
        for (token, keys) in (1..).zip(key_lists) {
            Job::add_to(&mut jobs, extend(keys, token));
        }
        let names_and_tokens = |job: &Job| {
            let names: Vec<u8> = job.names.iter().map(|name| name[0]).collect();
            let tokens = job
                .requests
                .iter()
                .map(|request| match &request.queued.request {
                    Request::Extend { items } => items[0].claim.token().to_bytes()[0],
                    other => panic!("every request must be an extension: {other:?}"),
                });
            (
                String::from_utf8(names).expect("the names must be letters"),
                tokens.collect::<Vec<_>>(),
            )
        };
        let names_and_tokens: Vec<_> = jobs.iter().map(names_and_tokens).collect();
        let expected_job = |names: &str, tokens: &[u8]| (names.to_owned(), tokens.to_vec());
        assert_eq!(
            names_and_tokens,
            [
                expected_job("abcf", &[1, 2, 5]),
                expected_job("d", &[3]),
                expected_job("e", &[4])
            ]
        );
    }
}
