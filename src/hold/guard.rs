//! The guard of a held lock.

use std::fmt;
use std::future::Future;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::Either;

use super::core::Core;
use super::extension;
use super::held::Held;
use super::released::Released;
use super::schedule::ScheduleId;
use crate::error::ExtendError;
use crate::limit::Limit;
use crate::node::{Group, Token};
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::report::NodeReport;

/// A held lock. While it lives and [`is_valid`](Self::is_valid), no other client that follows the
/// protocol holds the same resource.
///
/// Unless it was taken with a fixed lease, it is renewed in the background at a third of its ttl,
/// until it is released, dropped, lost, or `max_hold` is over. Work that must not go on without
/// the lock watches [`lost`](Self::lost), and hands [`fencing_token`](Self::fencing_token) to the
/// resource it writes to: that protects even against a process that was paused past its lease.
///
/// A lock is not re-entrant: who holds the guard and acquires the same resource again waits for
/// itself. Where several parts of a program need the lock, they share the guard.
///
/// Dropping it releases in the background: the releases are queued at once, and sent as long as
/// the runtime lives. Without a running runtime the keys expire with their ttl.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    pub(crate) held: Arc<Held>,
    pub(crate) core: Arc<Core>,
    pub(crate) id: ScheduleId,
    released: bool,
    /// It has written the value under it.
    wrote: AtomicBool,
}

impl LockGuard {
    pub(crate) fn new(held: Arc<Held>, core: Arc<Core>, id: ScheduleId) -> Self {
        Self {
            held,
            core,
            id,
            released: false,
            wrote: AtomicBool::new(false),
        }
    }

    /// Whether this is the first write under it: a second one would have the same number, and a late copy of the
    /// first would undo it.
    pub(crate) fn may_write(&self) -> bool {
        !self.wrote.swap(true, Ordering::Relaxed)
    }

    /// Runs `body` while the lock is held; it is dropped when the lock is lost. An error with the value of a body that
    /// has run to its end, but for which the lock did not last: this process may have stood still.
    pub(crate) async fn while_held<T>(
        &self,
        body: impl AsyncFnOnce(&Self) -> T,
    ) -> Result<T, (LossCause, Option<T>)> {
        let lost = std::pin::pin!(self.lost());
        let body = std::pin::pin!(body(self));
        // The body is polled first: what has finished is not thrown away.
        let value = match futures::future::select(body, lost).await {
            Either::Left((value, _)) => value,
            Either::Right((cause, _)) => return Err((cause, None)),
        };
        match self.ended() {
            None => Ok(value),
            Some(cause) => Err((cause, Some(value))),
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<LossCause> {
        self.held.ended(self.core.coordinator.now())
    }

    /// The resource that is locked, without the key prefix.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// println!("{} is ours", String::from_utf8_lossy(guard.resource()));
    /// # }
    /// ```
    pub fn resource(&self) -> &[u8] {
        self.held.claim.resource()
    }

    /// The random value of this lock, as it stands in the lock key on the masters.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// // As `GET nightly` shows it on a master, and `quorate status` to people.
    /// println!("{}", guard.token());
    /// # }
    /// ```
    pub fn token(&self) -> Token {
        self.held.claim.token()
    }

    /// The fencing number: larger than that of every earlier holder of this resource, agreed by a
    /// majority. Stays the same through renewals. `None` with `fencing(false)`.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// let fence = guard.fencing_token().unwrap_or_default();
    /// // What is written to refuses smaller numbers than the largest it has seen.
    /// let statement = format!("UPDATE report SET text = $1, fence = {fence} WHERE fence <= {fence}");
    /// # drop(statement);
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<u64> {
        self.held.fencing.map(NonZero::get)
    }

    /// All resources that are locked, without the key prefix; most locks have one.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let both = redlock.lock_all(["account:1", "account:2"]).acquire().await?;
    /// assert_eq!(both.resources().count(), 2);
    /// # Ok(()) }
    /// ```
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        let prefix = self.core.coordinator.prefix.len();
        let several = self
            .held
            .claim
            .group()
            .map(Group::parts)
            .unwrap_or_default();
        let alone = several.is_empty().then(|| self.resource());
        let parts = several.iter().map(move |part| &part.key[prefix..]);
        alone.into_iter().chain(parts)
    }

    /// Which permit of a semaphore this is, from 0.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let permit = redlock.semaphore("licence", 5).acquire().await?;
    /// let seat = permit.slot().expect("of a semaphore"); // 0 to 4
    /// # let _ = seat;
    /// # Ok(()) }
    /// ```
    pub fn slot(&self) -> Option<usize> {
        self.held.claim.permit().map(|permit| permit.slot().into())
    }

    /// Until when the lock may be counted on, if nothing renews it.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// let left = guard.valid_until().saturating_since(quorate::Instant::now());
    /// println!("{left:?}, unless it is renewed");
    /// # }
    /// ```
    pub fn valid_until(&self) -> Instant {
        self.held.valid_until()
    }

    /// How long the lock may still be counted on; zero once it has ended.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// # use std::time::Duration;
    /// if guard.remaining() < Duration::from_secs(2) {
    ///     println!("not enough for another step");
    /// }
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        let now = self.core.coordinator.now();
        match self.held.ended(now) {
            Some(_) => Duration::ZERO,
            None => self.held.valid_until().saturating_since(now),
        }
    }

    /// Whether the lock is held now. Look right before each step that needs it: a moment later
    /// the answer may be another, and only the fencing token protects against that.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// # async fn step(_: u32) {}
    /// for number in 0..10 {
    ///     if !guard.is_valid() {
    ///         break; // whoever holds it now goes on from here
    ///     }
    ///     step(number).await;
    /// }
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when the lock is no longer held, with the cause: at the deadline even when a
    /// renewal hangs, and at once when a majority of masters says that it is not ours.
    ///
    /// The future stands on its own: it may outlive the guard and then resolves to
    /// [`LossCause::Released`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing; call it again.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// # async fn work() {}
    /// tokio::select! {
    ///     () = work() => println!("done"),
    ///     cause = guard.lost() => println!("stopped: {cause}"),
    /// }
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = LossCause> + Send + use<> {
        let held = self.held.clone();
        let runtime = self.core.coordinator.runtime.clone();
        async move { held.lost(&*runtime).await }
    }

    /// Prolongs the lock to `ttl` from now, once; never shortens it. Renewal goes on beside it.
    /// The fencing token stays.
    ///
    /// # Errors
    ///
    /// [`ExtendError::Lost`] when the lock has ended, or ends before a majority has answered: it has
    /// been given back everywhere then, and [`report`](Self::report) says what each master said;
    /// [`ExtendError::NoQuorum`] when too few answered: the old validity stands, and it may be
    /// tried again; [`ExtendError::InvalidTtl`] when `ttl` is above the `max_ttl`, or so short
    /// that nothing would be left of it.
    ///
    /// # Cancel safety
    ///
    /// Dropped midway, masters may keep the key longer than the guard knows; the guard's
    /// validity is never wrong, and release works as ever.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) -> Result<(), quorate::ExtendError> {
    /// # use std::time::Duration;
    /// // Nobody renews a fixed lease: before a longer step it is prolonged by hand.
    /// guard.extend(Duration::from_secs(20)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.core
            .options
            .check_ttl(ttl)
            .map_err(ExtendError::InvalidTtl)?;
        extension::extend(&self.core, &self.held, self.id.get(), ttl).await
    }

    /// Gives the lock back, and waits until a majority of masters has let go: then the next
    /// holder can have it. The others are released in the background.
    ///
    /// Releasing a lock that has already expired is an outcome, not an error.
    ///
    /// # Cancel safety
    ///
    /// The releases are queued before the first await; dropping the future only drops the answer.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// let released = guard.release().await;
    /// if !released.was_valid {
    ///     println!("it had ended before: what was written may have been written by two");
    /// }
    /// # }
    /// ```
    pub async fn release(mut self) -> Released {
        let was_valid = self.is_valid();
        self.released = true;
        self.core.renewal.forget(&self.id);
        let fan_out = self.core.coordinator.release(&self.held.claim);
        self.held.end(LossCause::Released);
        // Where no majority ever answers, the ttl does it.
        let runtime = &*self.core.coordinator.runtime;
        let mut limit = Limit::new(runtime, runtime.now() + self.held.ttl());
        limit
            .wait(fan_out.until(|answers| answers.settled().then_some(())))
            .await;
        let (on, expired_on, unreachable) = fan_out.answers().counts();
        let pending = self.core.coordinator.quorum.nodes() - (on + expired_on + unreachable);
        let core = self.core.clone();
        let released = Released {
            was_valid,
            on,
            expired_on,
            unreachable,
            pending,
            round: fan_out,
            core,
        };
        tracing::debug!(
            resource = %String::from_utf8_lossy(self.resource()),
            on = released.on,
            expired_on = released.expired_on,
            unreachable = released.unreachable,
            "lock released"
        );
        released
    }

    /// What each master answered to the acquire, how fast, and who was late: answers that come
    /// after the verdict are added as they arrive.
    ///
    /// Once a renewal or an extension has not succeeded, what the masters said to that, or to the
    /// one after it: so after a loss it tells why. [`NodeReport::phase`] is `Extend` then.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// for master in guard.report() {
    ///     println!("{master} after {:?}", master.latency.unwrap_or_default());
    /// }
    /// # }
    /// ```
    pub fn report(&self) -> Vec<NodeReport> {
        self.held.reports(self.core.coordinator.names())
    }
}

/// Until when a lock is valid; none once it has ended. Unlike [`is_valid`](LockGuard::is_valid) it reads no
/// clock and changes nothing: a lock whose time is over has not ended before somebody notices.
#[cfg(any(test, feature = "testing"))]
pub fn look(guard: &LockGuard) -> Option<Instant> {
    guard.held.look()
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            self.core.renewal.forget(&self.id);
            self.core.coordinator.release_unheard(&self.held.claim);
            self.held.end(LossCause::Released);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("resource", &String::from_utf8_lossy(self.resource()))
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
