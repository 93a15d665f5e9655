//! Groups requests to a store into jobs. The requests of a job share records, so one commit executes all of them.

use std::sync::Arc;
use std::time::Duration;

use super::age::Reading;
use super::cache::RecordCache;
use super::codec::{Promised, Since, StoredItem};
use super::contract::{Change, Commit, WaitLock, Wake};
use super::micros::micros;
use super::names::{self, Name};
use super::time::StoreTime;
use super::wait_lock;
use crate::node::actor::mailbox::Queued;
use crate::node::memory::items::{Id, Item, Kind};
use crate::node::memory::{Dates, Master};
use crate::node::{Answer, Claim, Fault, Request, ServerRun};
use crate::protocol::fencing::COUNTER_TTL_US;
use crate::protocol::instant::Instant;

/// How long an observer of an election stays subscribed if it does not renew its subscription: 60 s.
pub(super) const WATCHED: std::time::Duration = std::time::Duration::from_secs(60);

/// The first byte of a wake-up message. The lock key follows this byte.
pub(super) const FREE: u8 = b'w';

/// The first byte of a message that announces a new leader. The lock key follows this byte.
pub(super) const LEADER: u8 = b'l';

/// Requests that share records. One commit executes all of them.
pub(super) struct Job {
    pub(super) names: Vec<Name>,
    pub(super) asked: Vec<Asked>,
    /// Whether the cached records of the job may be outdated and must be read again.
    pub(super) stale: bool,
}

/// A request with its answer. `answer` is `None` until the request has been decided.
pub(super) struct Asked {
    pub(super) queued: Queued,
    pub(super) answer: Option<Result<Answer, Fault>>,
}

impl Asked {
    /// The leases that the answer grants or extends, one for each lock key. `now` is the current time in microseconds.
    fn promises(&self, now: u64) -> Vec<Promised> {
        let extended = matches!(self.queued.request, Request::Extend { .. });
        let of = |claim: &Claim, ttl: Duration| -> Vec<Promised> {
            let since = match (extended, claim.shape().shares_keys()) {
                (true, _) => Since::Extended,
                (false, true) => Since::Joined,
                (false, false) => Since::Before,
            };
            let promised = |key: &Name| Promised {
                key: key.clone(),
                value: claim.token().to_hex(),
                until: now + micros(ttl),
                since,
            };
            claim.keys().map(promised).collect()
        };
        match (&self.queued.request, &self.answer) {
            (Request::Acquire { claim, ttl, .. }, Some(Ok(Answer::Granted { .. }))) => {
                of(claim, *ttl)
            }
            (Request::Extend { items }, Some(Ok(Answer::Extended(said)))) => {
                // The answer has one result for each key of each lock, and `of` returns one lease for each key.
                let asked = items.iter().flat_map(|item| of(&item.claim, item.ttl));
                let kept = asked.zip(said).filter(|(_, said)| said.is_kept());
                kept.map(|(promised, _)| promised).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The result of deciding a job.
pub(super) enum Decision {
    /// The requests change no record, so nothing is committed and they are answered immediately.
    Same,
    /// The commit to send, and for each of its records the items after the commit.
    Change(Commit, Vec<Vec<StoredItem>>),
    /// The records, or the store's clock, must be read before the job can be decided.
    Unsure,
}

/// The inputs for deciding a job, in addition to the cached records.
pub(super) struct Setting<'a> {
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
    /// Adds the request to the job with which it shares a record. If there is no such job, appends a new job.
    pub(super) fn sort(all: &mut Vec<Self>, queued: Queued) {
        let names = names::of_request(&queued.request);
        let meets = |job: &Self| job.names.iter().any(|name| names.contains(name));
        let answer = None;
        let asked = vec![Asked { queued, answer }];
        let Some(first) = all.iter().position(meets) else {
            let stale = false;
            all.push(Self {
                names,
                asked,
                stale,
            });
            return;
        };
        // If the request shares records with several jobs, merge them into the first of these jobs. All other jobs keep
        // their order.
        let mut rest = all.split_off(first + 1);
        let joined = &mut all[first];
        joined.names.extend(names.iter().cloned());
        rest.retain_mut(|job| {
            let meets = job.names.iter().any(|name| names.contains(name));
            if meets {
                joined.names.append(&mut job.names);
                joined.asked.append(&mut job.asked);
            }
            !meets
        });
        joined.names.sort_unstable();
        joined.names.dedup();
        joined.asked.extend(asked);
        all.append(&mut rest);
    }

    /// Decides all requests of the job, based on the cached state of its records.
    pub(super) fn decide(&mut self, cache: &RecordCache, setting: &Setting<'_>) -> Decision {
        let Some((now, slack)) = setting.time.now(setting.now) else {
            return Decision::Unsure;
        };
        let Some(known) = cache.all(&self.names) else {
            return Decision::Unsure;
        };
        let mut master = Master::default();
        master.set_run(setting.run.clone());
        let dates = setting.time.dates(setting.now);
        master.set_dates(dates);
        let mut watchers: Vec<Item> = Vec::new();
        for stored in known.iter().flat_map(|(_, stored)| stored.iter()) {
            let mut item = stored.item.clone();
            match item.id.kind {
                // Keep an expired fencing counter for another day if it is still needed by the date that `dates` shows.
                Kind::Text if !item.lives(now) && needs(dates, &item) => {
                    item.until = Some(now + COUNTER_TTL_US);
                    master.put(item);
                }
                Kind::Watcher => watchers.push(item),
                _ => master.put(item),
            }
        }
        let mut wakes = Vec::new();
        for asked in &mut self.asked {
            asked.answer = Some(apply(&mut master, &mut watchers, asked, now, setting));
            wakes.extend(wakes_of_last_request(&mut master, &watchers, now));
        }
        watchers.retain(|watcher| watcher.lives(now));
        let mut items = master.items(now);
        items.append(&mut watchers);
        self.compare(&known, items, (now, slack), setting, (cache, wakes))
    }

    fn compare(
        &self,
        known: &[(u64, &[StoredItem])],
        mut items: Vec<Item>,
        (now, slack): (u64, u64),
        setting: &Setting<'_>,
        (cache, wakes): (&RecordCache, Vec<Wake>),
    ) -> Decision {
        let mut changes = Vec::new();
        let mut after = Vec::new();
        let mut changed = false;
        let promised: Vec<Promised> = self
            .asked
            .iter()
            .flat_map(|one| one.promises(now))
            .collect();
        // For each record, compute the new items with their leases, and find out whether it must be written.
        for (name, (version, before)) in self.names.iter().zip(known) {
            let (here, others) = items
                .into_iter()
                .partition(|item| self.names.len() == 1 || is_in(&item.id, name));
            items = others;
            let clock = setting.time.clock(slack, setting.stamp, setting.reading);
            let mut stored = StoredItem::after(before, here, now, clock, &promised);
            if let Some(reading) = setting.reading.filter(|_| self.acquires()) {
                for stored in &mut stored {
                    stored.sight(&reading);
                }
            }
            let lived = before.iter().filter(|stored| stored.item.lives(now));
            let same = stored
                .iter()
                .filter(|stored| stored.item.lives(now))
                .eq(lived);
            // If a waiter must be woken, write the record even if its unexpired items are unchanged: wake-ups are sent
            // only with a commit.
            let write = !same || !wakes.is_empty() || cache.is_dirty(name);
            changed |= write;
            changes.push(Change {
                name: name.clone(),
                version: *version,
                state: write.then(|| StoredItem::write(&stored)),
            });
            after.push(if write { stored } else { before.to_vec() });
        }
        // A commit checks the versions of the records. A refusal, or an answer without a commit, needs fresh records.
        let doubtful = self.stale || !cache.are_fresh(&self.names);
        if doubtful && (!changed || self.refuses()) {
            Decision::Unsure
        } else if changed {
            let wait_locks = if setting.wait_locks {
                self.wait_locks(after.iter().flatten())
            } else {
                Vec::new()
            };
            let commit = Commit {
                changes,
                wakes,
                wait_locks,
            };
            Decision::Change(commit, after)
        } else {
            Decision::Same
        }
    }

    /// The wait locks that the session must take or release after this job. `after` are the items that the records of
    /// the job then contain.
    pub(super) fn wait_locks<'a>(
        &self,
        after: impl Iterator<Item = &'a StoredItem>,
    ) -> Vec<WaitLock> {
        let after: Vec<&StoredItem> = after.collect();
        let requests = self.asked.iter().map(|asked| &asked.queued.request);
        requests
            .flat_map(|request| wait_lock::changes(request, &after))
            .collect()
    }

    /// Whether at least one request of the job acquires a lock. A client that joins the holds of an owner or of readers
    /// is granted the lock, but a dead hold can still keep its fencing token from a majority.
    fn acquires(&self) -> bool {
        let acquires = |asked: &Asked| matches!(asked.queued.request, Request::Acquire { .. });
        self.asked.iter().any(acquires)
    }

    /// Whether at least one request of the job is refused.
    ///
    /// If so, the job's cached records may be outdated, and must be read again.
    fn refuses(&self) -> bool {
        let refused = |asked: &Asked| matches!(asked.answer, Some(Ok(Answer::Refused { .. })));
        self.asked.iter().any(refused)
    }
}

/// Whether the item is a fencing counter that this client must keep. Without it, the next fencing number could be
/// smaller than an earlier one.
fn needs(dates: Dates, item: &Item) -> bool {
    matches!(dates, Dates::Shown(date) if item.is_counter_needed_at(date))
}

/// Executes one request on the items in `master` at the time `now`, and returns its answer.
fn apply(
    master: &mut Master,
    watchers: &mut Vec<Item>,
    asked: &Asked,
    now: u64,
    setting: &Setting<'_>,
) -> Result<Answer, Fault> {
    let request = &asked.queued.request;
    if request.is_withdrawn() || request.is_void(setting.now, setting.run) {
        return Err(Fault::Withdrawn);
    }
    if let (Request::Watch { key, on }, Some(process)) = (request, setting.process) {
        let id = Id::of(Kind::Watcher, key, process.as_bytes());
        let known = watchers.iter().position(|watcher| watcher.id == id);
        // Renew the subscription if less than half of its lifetime is left.
        let fresh = known.is_some_and(|at| watchers[at].lives(now + micros(WATCHED) / 2));
        if !fresh || !on {
            watchers.retain(|watcher| watcher.id != id);
        }
        if !fresh && *on {
            let (what, until) = (Vec::new(), Some(now + micros(WATCHED)));
            watchers.push(Item { id, what, until });
        }
        return Ok(Answer::Watching);
    }
    master.apply(now, request)
}

/// The wake-ups that the last executed request caused, for waiters and for observers of elections.
fn wakes_of_last_request(master: &mut Master, watchers: &[Item], now: u64) -> Vec<Wake> {
    let word = |kind: u8, key: &[u8]| [&[kind], key].concat();
    let published = master.take_published();
    let published = published.into_iter().map(|(process, key)| Wake {
        process,
        word: word(FREE, &key),
    });
    let announced = master.take_announced();
    let announced = announced.iter().flat_map(|key| {
        let watching = watchers
            .iter()
            .filter(|watcher| watcher.id.key == *key && watcher.lives(now));
        watching.map(|watcher| Wake {
            process: String::from_utf8_lossy(&watcher.id.member).into(),
            word: word(LEADER, key),
        })
    });
    published.chain(announced).collect()
}

/// Whether an item belongs to the record with this name.
fn is_in(id: &Id, name: &Name) -> bool {
    match id.kind {
        Kind::Text | Kind::Foreign => names::of_key(&id.key) == *name,
        Kind::Line | Kind::Place => id.key == **name,
        Kind::Hold | Kind::Watcher => names::of_lock(&id.key) == *name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{ExtendItem, Extended, Group, Mode, Part, Reply, Token};

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
        ExtendItem {
            claim: claim.into(),
            ttl: Duration::from_secs(5),
            note: false,
        }
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
        let promised = |said: [Extended; 6]| -> String {
            let request = Request::Extend {
                items: items.clone().into(),
            };
            let asked = Asked {
                queued: Queued::new(request, Reply::ignored()),
                answer: Some(Ok(Answer::Extended(said.into()))),
            };
            let promises = asked.promises(7);
            assert!(promises.iter().all(|one| one.until == 7 + 5_000_000));
            promises.iter().map(|one| char::from(one.key[0])).collect()
        };
        assert_eq!(
            promised([Kept, NotOurs, Unnoted, Kept, Restored, unknown()]),
            "acde"
        );
        assert_eq!(
            promised([NotOurs, Kept, Withdrawn, NotOurs, unknown(), Unnoted]),
            "bf"
        );
    }

    #[test]
    fn request_that_needs_records_of_several_jobs_merges_these_jobs() {
        let extend = |keys: &[&[u8]], token: u8| {
            let items = vec![item(keys, token)].into();
            Queued::new(Request::Extend { items }, Reply::ignored())
        };
        let mut jobs = Vec::new();
        let asked: [&[&[u8]]; 5] = [&[b"c"], &[b"a", b"b"], &[b"d"], &[b"e"], &[b"c", b"b"]];
        for (token, keys) in (1..).zip(asked) {
            Job::sort(&mut jobs, extend(keys, token));
        }
        let shown = |job: &Job| {
            let names: Vec<u8> = job.names.iter().map(|name| name[0]).collect();
            let tokens = job.asked.iter().map(|asked| match &asked.queued.request {
                Request::Extend { items } => items[0].claim.token().to_bytes()[0],
                other => panic!("every request must be an extension: {other:?}"),
            });
            (
                String::from_utf8(names).expect("the names must be letters"),
                tokens.collect::<Vec<_>>(),
            )
        };
        let shown: Vec<_> = jobs.iter().map(shown).collect();
        let one = |names: &str, tokens: &[u8]| (names.to_owned(), tokens.to_vec());
        assert_eq!(
            shown,
            [one("abc", &[1, 2, 5]), one("d", &[3]), one("e", &[4])]
        );
    }
}
