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
    cache_and_time: Mutex<(RecordCache, StoreTime)>,
    /// The session of the last call; `None` before the first call.
    session: tokio::sync::Mutex<Option<S::Session>>,
    /// The runtime of the session, which a thread drives until `_stop_sender` is dropped.
    runtime: Handle,
    _stop_sender: oneshot::Sender<()>,
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
        let (stop_sender, stop_receiver) = oneshot::channel::<()>();
        std::thread::spawn(move || drop(runtime.block_on(stop_receiver)));
        Self {
            store,
            cache_and_time: Mutex::new((RecordCache::default(), time)),
            session: tokio::sync::Mutex::default(),
            runtime: handle,
            _stop_sender: stop_sender,
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
            let records = session
                .page(0, 10_000)
                .await
                .expect("the store must answer")
                .what;
            for (name, Record { version, .. }) in records {
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

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.runtime.block_on(future));
            thread.join().expect("the thread must not panic")
        })
    }

    async fn change<T>(&self, key: &[u8], mut change: impl FnMut(&mut Master, u64) -> T) -> T {
        let name = names::record_of_key(key);
        let mut slot = self.session.lock().await;
        let session = self.session(&mut slot).await;
        // Repeat until no other session has changed the record between the read and the commit.
        loop {
            let asked_at = Instant::now();
            let loaded = session.load(std::slice::from_ref(&name)).await;
            let loaded = loaded.expect("the store must answer");
            let (result, commit) = {
                let mut cache_and_time = self
                    .cache_and_time
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let (cache, time) = &mut *cache_and_time;
                let answered_at = Instant::now();
                time.learn(loaded.clock, asked_at, answered_at);
                let (now, slack) = time
                    .now(answered_at)
                    .expect("the store's time must be known after a read");
                assert!(
                    cache.read(&name, &loaded.what[0], now + slack),
                    "the record must be in quorate's format"
                );
                let (version, before) = cache
                    .get_all(std::slice::from_ref(&name))
                    .expect("the record must be cached after a read")[0];
                // Decide as a client does: put the items into a master in memory, change it, and take them out.
                let mut master = Master::default();
                for stored in before {
                    master.put(stored.item.clone());
                }
                let result = change(&mut master, now);
                let stored = StoredItem::updated(
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
                (result, commit)
            };
            // An unchanged record needs no commit.
            let is_unchanged = commit.changes[0].state.is_none();
            if is_unchanged
                || matches!(
                    &session
                        .commit(&[commit])
                        .await
                        .expect("the store must answer")
                        .what[..],
                    [Committed::Done(_)]
                )
            {
                return result;
            }
        }
    }
}
