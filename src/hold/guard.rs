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
use super::risk::{self, AtRisk, RiskWatch};
use super::schedule::ScheduleId;
use crate::error::ExtendError;
use crate::node::Token;
use crate::outcome::LossCause;
use crate::protocol::instant::Instant;
use crate::report::NodeReport;

/// A held lock. While the guard exists and [`is_valid`](Self::is_valid) returns true, no other client that follows the
/// protocol holds the same resource.
///
/// The library renews the lock in the background, each time a third of the ttl has passed. The renewal stops when the
/// lock is released, dropped, lost, or held for `max_hold`. A lock requested with `renewal(false)` is not renewed.
///
/// If your work must stop when the lock is lost, watch [`lost`](Self::lost). Pass
/// [`fencing_token`](Self::fencing_token) to every system that you write to. The token protects even against a process
/// that was paused past its lease.
///
/// Locks are not re-entrant: if a task that holds the guard acquires the same resource again, it waits for its own
/// lock. If several parts of a program need the lock, share the guard.
///
/// Dropping the guard releases the lock in the background, even if the runtime is shut down. If the process ends before
/// the releases are sent, the keys expire with their ttl. [`Redlock::flush`](crate::Redlock::flush) waits until all
/// releases are sent.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    pub(crate) held: Arc<Held>,
    pub(crate) core: Arc<Core>,
    pub(crate) id: ScheduleId,
    /// Whether the releases have been queued. If so, dropping the guard sends nothing.
    is_released: AtomicBool,
    /// Whether this guard has already written the lock's value (quota or record).
    has_written: AtomicBool,
}

impl LockGuard {
    pub(crate) fn new(held: Arc<Held>, core: Arc<Core>, id: ScheduleId) -> Self {
        Self {
            held,
            core,
            id,
            is_released: AtomicBool::new(false),
            has_written: AtomicBool::new(false),
        }
    }

    /// Returns true only at the first call, so that a guard writes the lock's value (quota or record) only once. Two
    /// writes with the same fencing token could reach a master in the wrong order.
    pub(crate) fn may_write(&self) -> bool {
        !self.has_written.swap(true, Ordering::Relaxed)
    }

    /// Runs `body` while the lock is held. When the lock is lost, drops `body` and returns an error. If `body` returns
    /// its value before it is dropped, but after the loss, the error contains this value.
    pub(crate) async fn while_held<T>(
        &self,
        body: impl AsyncFnOnce(&Self) -> T,
    ) -> Result<T, (LossCause, Option<T>)> {
        let lost_cause = std::pin::pin!(self.lost());
        let body = std::pin::pin!(body(self));
        // `select` polls `body` first. If both futures are ready, the value of `body` is kept.
        let value = match futures::future::select(body, lost_cause).await {
            Either::Left((value, _)) => value,
            Either::Right((cause, _)) => return Err((cause, None)),
        };
        match self.loss() {
            None => Ok(value),
            Some(cause) => Err((cause, Some(value))),
        }
    }

    /// Whether this process was forked from the one that holds the lock.
    fn is_forked(&self) -> bool {
        self.core.coordinator.process.is_not_current()
    }

    /// The name of the locked resource, without the key prefix. For a lock on several resources: the name of the first
    /// resource.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// println!("{} is ours", String::from_utf8_lossy(guard.resource()));
    /// # }
    /// ```
    pub fn resource(&self) -> &[u8] {
        self.held.claim.resource()
    }

    /// The random value of this lock, which the masters store in the lock key.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// // `GET nightly` on a master and `quorate status` show the same text.
    /// println!("{}", guard.token());
    /// # }
    /// ```
    pub fn token(&self) -> Token {
        self.held.claim.token()
    }

    /// The fencing token: a number that is larger than the token of every earlier holder of this resource. Renewals do
    /// not change the token. `None` with `fencing(false)`.
    ///
    /// ```no_run
    /// # fn example(guard: quorate::LockGuard) -> Result<(), &'static str> {
    /// // Never replace a missing token by 0: the database would then check nothing.
    /// let fence = guard.fencing_token().ok_or("turn fencing on")?;
    /// // The database rejects every write whose token is smaller than the largest token that it has seen.
    /// let statement = format!("UPDATE report SET text = $1, fence = {fence} WHERE fence <= {fence}");
    /// # drop(statement);
    /// # Ok(()) }
    /// ```
    pub fn fencing_token(&self) -> Option<u64> {
        self.held.fencing.map(NonZero::get)
    }

    /// The names of all locked resources, without the key prefix. Most locks have a single resource.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let both = redlock.lock_all(["account:1", "account:2"]).acquire().await?;
    /// assert_eq!(both.resources().count(), 2);
    /// # Ok(()) }
    /// ```
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        self.held.claim.resources()
    }

    /// The number of the slot, from 0, if this lock is a permit of a semaphore; `None` for other locks.
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

    /// The time until which the lock is valid if no further renewal succeeds.
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

    /// Resolves when a renewal or an extension has extended the validity after this call. May also resolve when the
    /// lock ends. The call itself registers for the notification, so no extension after it is missed.
    ///
    /// Use it to pass the new end of the validity to another process at once, without asking
    /// [`remaining`](Self::remaining) again and again. To wait for the end of the lock, use [`lost`](Self::lost).
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// loop {
    ///     let extended = guard.extended();
    ///     println!("the lock is valid for {:?} more", guard.remaining());
    ///     tokio::select! {
    ///         () = extended => {}
    ///         cause = guard.lost() => return println!("{cause}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn extended(&self) -> impl Future<Output = ()> + Send {
        self.held.validity_change()
    }

    /// The remaining validity; zero once the lock has ended.
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
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        let now = self.core.coordinator.now();
        self.held.valid_until().saturating_since(now)
    }

    /// Whether the lock is held now. Check it right before each step that needs the lock. The lock can end a moment
    /// later, and only the fencing token protects against that.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// # async fn step(_: u32) {}
    /// for number in 0..10 {
    ///     if !guard.is_valid() {
    ///         break; // the next holder goes on from here
    ///     }
    ///     step(number).await;
    /// }
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Why the lock ended; `None` while it is held. This call does not wait, and works on any thread, also outside of a
    /// runtime. [`lost`](Self::lost) waits for the end of the lock.
    ///
    /// ```no_run
    /// # fn example(guard: quorate::LockGuard) {
    /// if let Some(cause) = guard.loss() {
    ///     println!("stopped: {cause}");
    /// }
    /// # }
    /// ```
    pub fn loss(&self) -> Option<LossCause> {
        if self.is_forked() {
            return Some(LossCause::Forked);
        }
        self.held.end_cause(self.core.coordinator.now())
    }

    /// Resolves with the cause when the lock is no longer held:
    ///
    /// - at the end of the validity, even if a renewal hangs;
    /// - earlier if a majority of the masters reports that this client does not hold the lock.
    ///
    /// The future does not borrow the guard. If the guard is released or dropped first, the future resolves to
    /// [`LossCause::Released`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing; call `lost` again.
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
        let process = self.core.coordinator.process;
        async move {
            if process.is_not_current() {
                return LossCause::Forked;
            }
            held.lost(&*runtime).await
        }
    }

    /// Watches for the notice that the lock may be lost soon: no more than `margin` of its validity is left, because it
    /// was not extended in time. The notice says why, with the replies of the masters to the last renewal. The holder
    /// can then save its work, or start nothing new, while the lock is still held. [`RiskWatch::next`] waits for it.
    ///
    /// - The notice comes at most once per episode, and again if the lock recovers and gets into trouble later.
    /// - The time is measured on this process's own monotonic clock, as for [`is_valid`](Self::is_valid).
    /// - A lock whose renewals are answered in time is never at risk. For this, a larger `margin` counts as about half
    ///   of the ttl: three quarters of the validity that is left when a renewal is due (49 % of the ttl for the default
    ///   drift), or less if the node timeout is longer than a sixth of the ttl.
    /// - A renewal is due each third of the ttl, and a failed one is repeated each fifteenth. With a `margin` of a
    ///   third of the ttl, several attempts have failed before the notice.
    /// - With a `margin` of zero there is no notice before the loss.
    /// - For a lock with `renewal(false)`, the notice comes when `margin` is left, however large it is.
    /// - Before a lock ends at its `max_hold`, the notice comes as well.
    /// - A lock that is taken away (for example, force-released) is lost without a notice before.
    ///
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use quorate::RiskReason;
    /// # let redlock = quorate::Redlock::in_memory(3);
    /// let guard = redlock.lock("r").renewal(false).acquire().await?;
    /// let mut risks = guard.at_risk(Duration::from_secs(2));
    /// match risks.next().await {
    ///     Ok(risk) => {
    ///         println!("{risk}"); // the lock is lost in 2s unless it is extended: ..
    ///         assert_eq!(risk.reason, RiskReason::NotRenewed);
    ///     }
    ///     Err(cause) => println!("lost without a notice: {cause}"),
    /// }
    /// # Ok(()) }
    /// # #[cfg(not(feature = "testing"))]
    /// # fn main() {}
    /// ```
    pub fn at_risk(&self, margin: Duration) -> RiskWatch {
        RiskWatch::new(self.held.clone(), self.core.coordinator.clone(), margin)
    }

    /// Whether the lock is at risk now: `None` if more than `margin` of its validity is left. This call does not wait,
    /// and works on any thread, also outside of a runtime. [`at_risk`](Self::at_risk) describes `margin`.
    ///
    /// # Errors
    ///
    /// The cause if the lock has ended: a lost lock is not at risk any more.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// # use std::time::Duration;
    /// match guard.risk(Duration::from_secs(2)) {
    ///     Ok(None) => println!("enough time for another step"),
    ///     Ok(Some(risk)) => eprintln!("{}", risk.details()),
    ///     Err(cause) => println!("stopped: {cause}"),
    /// }
    /// # }
    /// ```
    pub fn risk(&self, margin: Duration) -> Result<Option<AtRisk>, LossCause> {
        if self.is_forked() {
            return Err(LossCause::Forked);
        }
        let coordinator = &self.core.coordinator;
        risk::risk_of(&self.held, coordinator, margin, coordinator.now())
    }

    /// Extends the lock once, to `ttl` from now; never shortens it. The background renewal continues. The fencing token
    /// stays the same.
    ///
    /// # Errors
    ///
    /// - [`ExtendError::Lost`] if the lock has ended, or ends before a majority has answered. The library then releases
    ///   the lock's remaining keys in the background, and [`report`](Self::report) shows each master's reply.
    /// - [`ExtendError::NoQuorum`] if too few masters answered. The lock is still held until its previous validity
    ///   ends. Until then, the call can be repeated.
    /// - [`ExtendError::InvalidTtl`] if `ttl` is above `max_ttl`, or so short that no validity would be left.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, masters may keep the key for longer than the guard's validity. The validity stays
    /// correct, and release works as usual.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) -> Result<(), quorate::ExtendError> {
    /// # use std::time::Duration;
    /// // A fixed lease is not renewed: extend it before a longer step.
    /// guard.extend(Duration::from_secs(20)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn extend(&self, ttl: Duration) -> Result<(), ExtendError> {
        if self.is_forked() {
            return Err(ExtendError::Lost(LossCause::Forked));
        }
        self.core
            .options
            .check_ttl(ttl)
            .map_err(ExtendError::InvalidTtl)?;
        extension::extend(&self.core, &self.held, self.id.get(), ttl).await
    }

    /// Releases the lock, and waits until a majority of the masters has released it, so that the next client can
    /// acquire it. The other masters are released in the background. If no majority answers, the future resolves when
    /// every master has answered or failed, at the latest after the lock's ttl.
    ///
    /// Releasing a lock that has already expired is not an error: see [`Released::was_valid`].
    ///
    /// The call itself ends the lock and queues the releases, so the lock is released even if the future is never
    /// polled. The future does not borrow the guard. Dropping the guard later sends nothing more.
    ///
    /// - An [`extend`](Self::extend) that still waits for its answers ends with [`ExtendError::Lost`].
    /// - A second release asks the masters again, and waits in the same way. Its result has `was_valid` false.
    /// - If the body of a [`scope`](crate::Redlock::scope) releases the lock of this scope, the scope drops the body, and
    ///   returns [`ScopeError::Lost`](crate::ScopeError::Lost) with [`LossCause::Released`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released all the same; only the result is lost.
    ///
    /// ```no_run
    /// # async fn example(guard: quorate::LockGuard) {
    /// let released = guard.release().await;
    /// if !released.was_valid {
    ///     println!("the lock had ended before the release: another client may have written since");
    /// }
    /// # }
    /// ```
    pub fn release(&self) -> impl Future<Output = Released> + Send + use<> {
        let was_valid = self.is_valid();
        self.is_released.store(true, Ordering::Relaxed);
        if !self.is_forked() {
            self.core.renewal.forget(&self.id);
        }
        let round = self.core.coordinator.release(&self.held.claim);
        if !self.is_forked() {
            self.held.end(LossCause::Released);
        }
        Released::after(round, self.held.clone(), self.core.clone(), was_valid)
    }

    /// Releases the lock in the background, unless [`release`](Self::release) was called before.
    pub(crate) fn release_in_background(&self) {
        if self.is_forked() || self.is_released.swap(true, Ordering::Relaxed) {
            return;
        }
        self.core.renewal.forget(&self.id);
        self.core
            .coordinator
            .release_in_background(&self.held.claim);
        self.held.end(LossCause::Released);
    }

    /// The reply of each master to the acquire, with its latency. Replies that arrive after the acquire has returned
    /// are added later.
    ///
    /// After a renewal or an extension has failed, the report contains the masters' replies to the latest renewal or
    /// extension, and [`NodeReport::phase`] is `Extend`. So after a loss the report shows the reason.
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

/// The time until which a lock is valid; `None` if the library already treats the lock as ended. For tests.
///
/// Unlike [`is_valid`](LockGuard::is_valid), this function reads no clock and changes nothing. So the returned time can
/// be in the past.
#[cfg(any(test, feature = "testing"))]
pub fn end_of_validity(guard: &LockGuard) -> Option<Instant> {
    guard.held.end_of_validity()
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.is_forked() {
            // The lock belongs to the parent process. Leak what the fields refer to: dropping it may need a mutex that
            // another thread of the parent held during the fork.
            std::mem::forget((self.held.clone(), self.core.clone()));
        } else {
            self.release_in_background();
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::redlock::Redlock;
    use crate::testing::Masters;

    const TTL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn lock_of_a_dropped_guard_is_not_renewed_any_more() {
        let redlock = Redlock::in_memory(3);
        let guard = redlock.acquire("r").await.expect("free");
        let core = redlock.core.clone();
        let next_renewal = || core.renewal.schedule().next_wake_at(core.coordinator.now());
        assert!(next_renewal().is_some());
        drop(guard);
        assert_eq!(next_renewal(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn guard_of_the_parent_process_counts_as_lost_and_is_leaked_in_a_forked_process() {
        let masters = Masters::new(3);
        let client = |masters| Redlock::builder().in_memory_on(masters).ttl(TTL).build();
        let parent = client(&masters).expect("good settings");
        let child = client(&masters)
            .expect("good settings")
            .seen_by_another_process();
        let guard = parent.acquire("r").await.expect("free");
        let copy = LockGuard::new(
            guard.held.clone(),
            child.core.clone(),
            ScheduleId::default(),
        );
        assert_eq!(copy.loss(), Some(LossCause::Forked));
        assert_eq!(copy.lost().now_or_never(), Some(LossCause::Forked));
        assert_eq!(copy.risk(TTL), Err(LossCause::Forked));
        let notice = copy.at_risk(TTL).next().now_or_never();
        assert_eq!(notice, Some(Err(LossCause::Forked)));
        let extended = copy.extend(TTL).await;
        assert_eq!(extended, Err(ExtendError::Lost(LossCause::Forked)));
        let references = |guard: &LockGuard| {
            let held = Arc::strong_count(&guard.held);
            (held, Arc::strong_count(&child.core))
        };
        let count_before = references(&guard);
        drop(copy);
        assert_eq!(
            references(&guard),
            count_before,
            "the fields must be leaked"
        );
        assert!(guard.is_valid(), "the parent still holds the lock");
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_validity_is_known_until_the_lock_ends() {
        let redlock = Redlock::in_memory(3);
        let guard = redlock.acquire("r").await.expect("free");
        assert_eq!(end_of_validity(&guard), Some(guard.valid_until()));
        guard.release().await;
        assert_eq!(end_of_validity(&guard), None);
    }
}
