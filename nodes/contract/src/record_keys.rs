//! Direct access to the keys of the memory master and of stores, through the state of the memory master.

use std::time::Duration;

use quorate::node::memory::{Master, MemoryNode};
use quorate::node::store::{RecordAccess, Store};
use quorate::node::{Answer, Fault, KeyState};

use crate::fixtures::counter_key;
use crate::key_access::KeyAccess;
use crate::requests;

/// The keys of a master that can be changed as the keys of a [`Master`].
pub(crate) trait Records: Send + Sync {
    /// Changes the record that contains `key`. `change` receives the keys and the current time in microseconds.
    fn change(&self, key: &[u8], change: &mut (dyn FnMut(&mut Master, u64) + Send));
    /// The number of keys in all records.
    fn count(&self) -> usize;
    /// Deletes all records.
    fn clear(&self);
}

impl Records for MemoryNode {
    fn change(&self, _: &[u8], change: &mut (dyn FnMut(&mut Master, u64) + Send)) {
        self.with_master(change);
    }

    fn count(&self) -> usize {
        self.with_master(Master::len)
    }

    fn clear(&self) {
        self.forget();
    }
}

impl<S: Store> Records for RecordAccess<S> {
    fn change(&self, key: &[u8], change: &mut (dyn FnMut(&mut Master, u64) + Send)) {
        self.with_record(key, change);
    }

    fn count(&self) -> usize {
        self.keys()
    }

    fn clear(&self) {
        RecordAccess::clear(self);
    }
}

/// [`KeyAccess`] to the keys in [`Records`].
pub(crate) struct RecordKeys<R>(pub(crate) R);

impl<R: Records> RecordKeys<R> {
    /// The answer to a status request for `key`.
    fn status(&self, key: &[u8]) -> Result<KeyState, Fault> {
        let mut reply = Err(Fault::Loading);
        self.0.change(key, &mut |master, now| {
            // Send the status request to a copy of the master in which the fencing counter is 0. With a malformed
            // counter, the request would fail.
            let mut copy = master.clone();
            copy.put_text(now, &counter_key(key), b"0", None);
            reply = copy.apply(now, &requests::status(key));
        });
        match reply? {
            Answer::State(state) => Ok(state),
            other => panic!("{other:?}"),
        }
    }
}

impl<R: Records> KeyAccess for RecordKeys<R> {
    fn put(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.0.change(key, &mut |master, now| {
            master.put_text(now, key, value, ttl);
        });
    }

    fn put_foreign(&self, key: &[u8]) {
        self.0.change(key, &mut |master, _| master.put_foreign(key));
    }

    fn delete(&self, key: &[u8]) {
        // A TTL of zero deletes the key.
        self.put(key, b"", Some(Duration::ZERO));
    }

    fn delete_ticket(&self, lock: &[u8]) {
        self.0
            .change(lock, &mut |master, _| master.forget_ticket(lock));
    }

    fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.read_with_ttl(key).0
    }

    fn ttl(&self, key: &[u8]) -> Option<Duration> {
        self.status(key).ok()?.ttl_left
    }

    /// Reads both at once, which takes half the time.
    fn read_with_ttl(&self, key: &[u8]) -> (Option<Vec<u8>>, Option<Duration>) {
        match self.status(key) {
            Ok(state) => (state.holder, state.ttl_left),
            Err(Fault::WrongType) => (Some(b"foreign".to_vec()), None),
            Err(fault) => panic!("{fault}"),
        }
    }

    fn count(&self) -> usize {
        self.0.count()
    }

    fn clear(&self) {
        self.0.clear();
    }
}
