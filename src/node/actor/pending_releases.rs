//! Pending releases: releases that the master has not confirmed yet. They survive the loss of a connection, and are
//! sent before all other requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::mailbox::Queued;
use super::window::MAX_OUTSTANDING;
use crate::node::{Claim, Reply, Request};
use crate::protocol::instant::Instant;

/// The largest number of pending releases: twice the limit on outstanding requests. If a release exceeds this number,
/// it is dropped, and its lock expires with the TTL.
const MAX_PENDING: usize = 2 * MAX_OUTSTANDING;

/// The first pause (50 ms) after a master refused releases temporarily, because it is busy, is read-only or cannot
/// write to its disk. Later pauses are longer, because the master may stay in this state.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pending releases of one master.
pub(in crate::node) struct PendingReleases {
    queue: VecDeque<Release>,
    /// The length of the pause that begins when the master next refuses a release.
    pause: Duration,
    /// The end of the current pause, in which no pending release is sent; `None` if there is no pause.
    paused_until: Option<Instant>,
}

struct Release {
    claim: Arc<Claim>,
    leave: bool,
    /// For a release that the master has refused: the time by which the lock key has certainly expired. `None` for a
    /// release that was not refused.
    expires_at: Option<Instant>,
}

impl Release {
    fn from_queued(queued: &Queued) -> Option<Self> {
        let Request::Release { claim, leave } = &queued.request else {
            return None;
        };
        Some(Self {
            claim: claim.clone(),
            leave: *leave,
            expires_at: queued.expires_at,
        })
    }

    fn into_queued(self) -> Queued {
        let Self {
            claim,
            leave,
            expires_at,
        } = self;
        let mut queued = Queued::new(Request::Release { claim, leave }, Reply::ignored());
        queued.expires_at = expires_at;
        queued
    }
}

impl PendingReleases {
    pub(in crate::node) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            pause: FIRST_PAUSE,
            paused_until: None,
        }
    }

    pub(in crate::node) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(in crate::node) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Keeps a release that was not sent or not answered as a pending release. Other requests are ignored.
    pub(in crate::node) fn keep(&mut self, queued: &Queued) {
        // If the list is full, drop this release: its lock expires with the TTL.
        if self.queue.len() < MAX_PENDING {
            self.queue.extend(Release::from_queued(queued));
        }
    }

    /// Keeps a release that the master refused because of a temporary state, for example because it was busy. After
    /// `max_ttl` the lock key has expired, and the release is dropped.
    pub(in crate::node) fn postpone(&mut self, queued: &Queued, max_ttl: Duration, now: Instant) {
        let Some(mut release) = Release::from_queued(queued) else {
            return;
        };
        release.expires_at.get_or_insert(now + max_ttl);
        if self.queue.len() < MAX_PENDING {
            self.queue.push_back(release);
        }
        if self.paused_until.is_none() {
            self.paused_until = Some(now + self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }

    /// Resets the length of the next pause to the first pause, because the master accepts releases again.
    pub(in crate::node) fn reset_pause(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    /// The time at which the pause ends and pending releases can be sent again. `None` if none are pending, or if there
    /// is no pause.
    pub(in crate::node) fn wake_at(&self) -> Option<Instant> {
        self.paused_until.filter(|_| !self.is_empty())
    }

    /// Removes at most `limit` pending releases from the list, and returns them to be sent now. Returns none during a
    /// pause.
    pub(in crate::node) fn take(
        &mut self,
        limit: usize,
        now: Instant,
    ) -> impl Iterator<Item = Queued> {
        let is_paused = self.paused_until.is_some_and(|pause_end| now < pause_end);
        if !is_paused {
            self.paused_until = None;
        }
        let count = if is_paused { 0 } else { limit.min(self.len()) };
        let is_live =
            move |release: &Release| release.expires_at.is_none_or(|expires_at| now < expires_at);
        let due = self.queue.drain(..count).filter(is_live);
        due.map(Release::into_queued)
    }

    /// Receives `outstanding`, the outstanding requests of a broken connection, and returns them all. Also adds the
    /// releases among them to the front of the pending releases. If there are then more than [`MAX_PENDING`] pending
    /// releases, drops the last ones.
    pub(in crate::node) fn prepend(
        &mut self,
        outstanding: impl Iterator<Item = Queued>,
    ) -> Vec<Queued> {
        let mut older = std::mem::take(&mut self.queue);
        let mut returned = Vec::new();
        for queued in outstanding {
            self.keep(&queued);
            returned.push(queued);
        }
        older.truncate(MAX_PENDING - self.queue.len());
        self.queue.append(&mut older);
        returned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Token;

    fn release(resource: &str) -> Queued {
        let claim = Arc::new(Claim::new(
            "",
            resource.as_bytes(),
            Token::from_bytes([0; 16]),
            true,
        ));
        Queued::new(Request::Release { claim, leave: true }, Reply::ignored())
    }

    fn take_names(
        pending_releases: &mut PendingReleases,
        limit: usize,
        now: Instant,
    ) -> Vec<String> {
        pending_releases
            .take(limit, now)
            .map(|queued| match &queued.request {
                Request::Release { claim, .. } => String::from_utf8_lossy(claim.key()).into_owned(),
                other => panic!("only releases must be pending: {other:?}"),
            })
            .collect()
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn releases_of_a_broken_connection_are_sent_before_other_pending_releases() {
        let mut pending_releases = PendingReleases::new();
        pending_releases.keep(&release("later"));
        let outstanding =
            pending_releases.prepend([release("first"), release("second")].into_iter());
        assert_eq!(outstanding.len(), 2);
        assert_eq!(
            take_names(&mut pending_releases, 10, at(0)),
            ["first", "second", "later"]
        );
        assert!(pending_releases.is_empty());
    }

    #[test]
    fn refused_release_is_retried_with_growing_pauses_until_its_key_has_expired() {
        let ttl = Duration::from_secs(1);
        let mut pending_releases = PendingReleases::new();
        pending_releases.postpone(&release("a"), ttl, at(0));
        assert_eq!(pending_releases.wake_at(), Some(at(50)));
        for early in [0, 49] {
            assert!(take_names(&mut pending_releases, 10, at(early)).is_empty());
            assert_eq!(
                pending_releases.wake_at(),
                Some(at(50)),
                "a call before the end of the pause must not change the retry time"
            );
        }
        let again = pending_releases
            .take(10, at(50))
            .next()
            .expect("the refused release must be due");
        pending_releases.postpone(&again, ttl, at(50));
        assert_eq!(
            pending_releases.wake_at(),
            Some(at(150)),
            "the second pause must be twice as long as the first"
        );
        pending_releases.reset_pause();
        assert!(
            take_names(&mut pending_releases, 10, at(1_000)).is_empty(),
            "a release must not be sent after its key has expired"
        );
        assert!(pending_releases.is_empty());
    }

    #[test]
    fn refused_releases_are_sent_again_in_order() {
        let mut pending_releases = PendingReleases::new();
        for name in ["first", "second", "third"] {
            pending_releases.postpone(&release(name), Duration::from_secs(9), at(0));
        }
        assert_eq!(
            pending_releases.wake_at(),
            Some(at(50)),
            "one pause must apply to all refused releases"
        );
        assert_eq!(
            take_names(&mut pending_releases, 2, at(50)),
            ["first", "second"]
        );
        assert_eq!(take_names(&mut pending_releases, 2, at(50)), ["third"]);
        // However often the master refuses the release, it is sent again after at most `LONGEST_PAUSE`.
        for tried in 0..20 {
            pending_releases.postpone(&release("first"), Duration::from_secs(900), at(tried));
            let due = pending_releases
                .wake_at()
                .expect("there must be a wake-up time, because a release is pending");
            assert_eq!(take_names(&mut pending_releases, 1, due).len(), 1);
            assert!(due <= at(tried) + LONGEST_PAUSE);
        }
    }

    #[test]
    fn pending_releases_above_the_limit_are_dropped() {
        let mut pending_releases = PendingReleases::new();
        for _ in 0..MAX_PENDING + 10 {
            pending_releases.keep(&release("a"));
        }
        assert_eq!(pending_releases.len(), MAX_PENDING);
        let ttl = Duration::from_secs(1);
        pending_releases.postpone(&release("c"), ttl, at(0));
        assert_eq!(pending_releases.len(), MAX_PENDING);
        assert_eq!(pending_releases.wake_at(), Some(at(50)));
        pending_releases.prepend((0..10).map(|_| release("b")));
        assert_eq!(pending_releases.len(), MAX_PENDING);
        assert_eq!(
            take_names(&mut pending_releases, 11, at(50))[..],
            [&["b"; 10][..], &["a"]].concat()
        );
    }
}
