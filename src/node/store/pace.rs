//! Which wake-ups this process needs from one store. A listener uses this information to decide how to wait: one that
//! polls, and one that rests while nobody waits.

use std::sync::Arc;

use tokio::sync::watch;

/// The wake-ups that a process currently needs from one store. A [`Listener`](super::Listener) can read this
/// value to decide how to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// No waiter of this process is queued, and the process observes no election.
    Idle,
    /// The process only observes elections. The announcement of a new leader is not urgent.
    Observing,
    /// At least one waiter of this process is queued. The listener waits for wake-up messages.
    ///
    /// If exactly one waiter is queued, and waits for exactly one client, the value is [`Behind`](Self::Behind)
    /// instead.
    Waiting,
    /// One waiter of this process is queued, and waits for exactly one other client.
    Behind {
        /// The id of the waiter.
        waiter: Arc<str>,
        /// The [wait lock](super::WaitLock) that the client directly ahead holds. The listener gets it when that client
        /// leaves the queue or releases its lock.
        wait_lock: Arc<str>,
    },
}

/// A handle from which a [`Listener`](super::Listener) reads the current [`Pace`] of its process. Several threads may
/// use the handle at the same time.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<watch::Sender<Pace>>);

impl Default for Pacer {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Pace::Waiting)))
    }
}

impl Pacer {
    /// The current [`Pace`]: the wake-ups that this process needs now.
    pub fn pace(&self) -> Pace {
        self.0.borrow().clone()
    }

    /// Waits until the [`Pace`] of this process satisfies `is_awaited`.
    pub async fn until(&self, is_awaited: impl Fn(&Pace) -> bool + Send) {
        let mut paces = self.0.subscribe();
        // `wait_for` fails only after the sender was dropped, and `self` owns the sender.
        let _ = paces.wait_for(|pace| is_awaited(pace)).await;
    }

    pub(super) fn set(&self, pace: Pace) {
        self.0.send_if_modified(|current| {
            let changed = *current != pace;
            *current = pace;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_a_changed_pace_wakes_listeners() {
        let pacer = Pacer::default();
        let paces = pacer.0.subscribe();
        for (pace, is_changed) in [(Pace::Waiting, false), (Pace::Idle, true)] {
            pacer.set(pace);
            assert_eq!(paces.has_changed().ok(), Some(is_changed));
        }
    }

    #[test]
    fn wait_for_a_pace_ends_only_when_the_pace_is_reached() {
        let pacer = Pacer::default();
        let is_idle = |pace: &Pace| *pace == Pace::Idle;
        assert_eq!(pacer.until(is_idle).now_or_never(), None);
        pacer.set(Pace::Idle);
        assert_eq!(pacer.until(is_idle).now_or_never(), Some(()));
    }
}
