//! Direct access to the records of a store, for tests that act as another client.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::cache::RecordCache;
use super::codec::StoredItem;
use super::contract::{Change, Commit, Committed, Record, Session, Store};
use super::names;
use super::time::StoreTime;
use crate::clock;
use crate::node::memory::Master;
use crate::protocol::instant::Instant;

/// Reads and changes the records of a store directly, without a master. For tests.
///
/// All calls use one session, because a session is expensive: ZooKeeper, for example, writes each session to its log.
pub struct RecordAccess<S: Store> {
    store: S,
    known: Mutex<(RecordCache, StoreTime)>,
    /// The session of the last call; `None` before the first call.
    session: tokio::sync::Mutex<Option<S::Session>>,
    /// The runtime of the session, which a thread drives until `_ends` is dropped.
    runtime: Handle,
    _ends: oneshot::Sender<()>,
}

impl<S: Store> RecordAccess<S> {
    /// Opens direct access to this store.
    pub fn new(store: S) -> Self {
        let time = StoreTime::new(clock::wall_micros(), Instant::now(), None);
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime
            .enable_all()
            .build()
            .expect("the runtime must be created");
        let handle = runtime.handle().clone();
        let (ends, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || drop(runtime.block_on(ended)));
        Self {
            store,
            known: Mutex::new((RecordCache::default(), time)),
            session: tokio::sync::Mutex::default(),
            runtime: handle,
            _ends: ends,
        }
    }

    /// The session in `slot`, which is opened first if there is none.
    async fn session<'a>(&self, slot: &'a mut Option<S::Session>) -> &'a mut S::Session {
        match slot {
            Some(session) => session,
            none => {
                let connected = self.store.connect().await;
                none.insert(connected.expect("the store must accept the connection").0)
            }
        }
    }

    /// Reads or changes the record to which the lock key `key` belongs, and writes the record back if it has changed.
    /// The calling thread is blocked until a temporary thread has done the work. So this function also works inside a
    /// Tokio runtime.
    pub fn with_record<T: Send>(
        &self,
        key: &[u8],
        change: impl FnMut(&mut Master, u64) -> T + Send,
    ) -> T {
        self.block_on(self.change(key, change))
    }

    /// The number of keys in all records. A queue counts as one key.
    pub fn keys(&self) -> usize {
        let names = self.block_on(async {
            let mut slot = self.session.lock().await;
            let session = self.session(&mut slot).await;
            session
                .page(0, 10_000)
                .await
                .expect("the store must answer")
                .what
        });
        let mut count = 0;
        for (name, _) in names {
            count += self.with_record(&name, Master::len);
        }
        count
    }

    /// Deletes all records.
    pub fn clear(&self) {
        self.block_on(async {
            let mut slot = self.session.lock().await;
            let session = self.session(&mut slot).await;
            let all = session
                .page(0, 10_000)
                .await
                .expect("the store must answer")
                .what;
            for (name, Record { version, .. }) in all {
                let changes = vec![Change {
                    name: name.into(),
                    version,
                    state: Some(Vec::new()),
                }];
                let commit = Commit {
                    changes,
                    ..Commit::default()
                };
                session
                    .commit(&[commit])
                    .await
                    .expect("the store must answer");
            }
        });
    }

    fn block_on<T: Send>(&self, what: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.runtime.block_on(what));
            thread.join().expect("the thread must not panic")
        })
    }

    async fn change<T>(&self, key: &[u8], mut change: impl FnMut(&mut Master, u64) -> T) -> T {
        let name = names::of_key(key);
        let mut slot = self.session.lock().await;
        let session = self.session(&mut slot).await;
        // Repeat until no other session has changed the record between the read and the commit.
        loop {
            let asked = Instant::now();
            let said = session.load(std::slice::from_ref(&name)).await;
            let said = said.expect("the store must answer");
            let (done, commit) = {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                let (cache, time) = &mut *known;
                let answered = Instant::now();
                time.learn(said.clock, asked, answered);
                let (now, slack) = time
                    .now(answered)
                    .expect("the store's time must be known after a read");
                assert!(
                    cache.read(&name, &said.what[0], now + slack),
                    "the record must be in quorate's format"
                );
                let (version, before) = cache
                    .all(std::slice::from_ref(&name))
                    .expect("the record must be cached after a read")[0];
                // Decide as a client does: put the items into a master in memory, change it, and take them out.
                let mut master = Master::default();
                for stored in before {
                    master.put(stored.item.clone());
                }
                let done = change(&mut master, now);
                let stored = StoredItem::after(
                    before,
                    master.items(now),
                    now,
                    time.clock(slack, clock::wall_micros(), None),
                    &[],
                );
                let state = (stored != before).then(|| StoredItem::write(&stored));
                let changes = vec![Change {
                    name: name.clone(),
                    version,
                    state,
                }];
                let commit = Commit {
                    changes,
                    ..Commit::default()
                };
                (done, commit)
            };
            // An unchanged record needs no commit.
            let done_so = commit.changes[0].state.is_none();
            if done_so
                || matches!(
                    &session
                        .commit(&[commit])
                        .await
                        .expect("the store must answer")
                        .what[..],
                    [Committed::Done(_)]
                )
            {
                return done;
            }
        }
    }
}
