//! The limit of the bytes that wait for their clients. Clients that read slowly, or not at all, cannot fill the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest size of all waiting answers together, in bytes: 128 MiB. The whole state of a page with many locks has
/// about 3 MB.
const MAX_UNSENT: usize = 128 << 20;

/// The size of all answers that wait for their clients.
#[derive(Debug, Default)]
pub(crate) struct Unsent(Arc<AtomicUsize>);

/// The share of one answer. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Unsent {
    /// Counts an answer; `None` if too many bytes wait already.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let add = |all: usize| all.checked_add(bytes).filter(|all| *all <= MAX_UNSENT);
        let added = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.ok().map(|_| Reserved {
            bytes,
            all: self.0.clone(),
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_room_again_after_others_were_sent() {
        let unsent = Unsent::default();
        let half = MAX_UNSENT / 2;
        let first = unsent.reserve(half);
        let second = unsent.reserve(half);
        assert!(first.is_some() && second.is_some());
        assert!(unsent.reserve(1).is_none());
        assert!(unsent.reserve(usize::MAX).is_none());
        drop(first);
        assert!(unsent.reserve(half).is_some());
    }
}
