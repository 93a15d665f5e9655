//! Direct access to the keys of a master.

use std::time::Duration;

use crate::fixtures::counter_key;

/// Direct access to the keys of a master under test, as another client or an operator has it. The functions do not use
/// the node that sends the requests of the tests.
///
/// [`TestedMaster::store`](crate::TestedMaster::store) implements this trait for every store.
pub trait KeyAccess: Send + Sync {
    /// Writes a string to a key, as another client would. `None` means that the key has no expiry.
    fn put(&self, key: &[u8], value: &[u8], ttl: Option<Duration>);

    /// Replaces a key with a key of another data type.
    fn put_foreign(&self, key: &[u8]);

    /// Deletes a key, if it exists.
    fn delete(&self, key: &[u8]);

    /// Deletes the ticket key of a lock's queue, like a server that evicts keys to free memory.
    fn delete_ticket(&self, lock: &[u8]);

    /// The string under `key`. A value of another data type reads as `foreign`.
    fn read(&self, key: &[u8]) -> Option<Vec<u8>>;

    /// The remaining time of `key`; `None` if the key has no expiry or does not exist.
    fn ttl(&self, key: &[u8]) -> Option<Duration>;

    /// The string under `key`, as [`read`](Self::read) returns it, and the remaining time of the key.
    fn read_with_ttl(&self, key: &[u8]) -> (Option<Vec<u8>>, Option<Duration>) {
        (self.read(key), self.ttl(key))
    }

    /// The fencing counter of a lock; `None` if the lock has no counter.
    fn counter(&self, lock: &[u8]) -> Option<u64> {
        let text = self.read(&counter_key(lock))?;
        Some(String::from_utf8(text).ok()?.parse().expect("digits"))
    }

    /// The number of keys on the master.
    fn count(&self) -> usize;

    /// Deletes all keys.
    fn clear(&self);
}
