//! The kinds of locks.

use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, Shared};
use quorate::{ExtendError, LockRequest, LossCause, Order, Redlock, RedlockBuilder, Status};
use quorate::{OnceOutcome, Take, ValueError, Wait};
use tokio::sync::{mpsc, oneshot};

use super::kind::{Acquired, Held, Kind, LOCK_NAME};
use crate::support::secs;

/// A plain lock; waiters queue.
pub(crate) struct Fair;
/// A plain lock; waiters poll.
pub(crate) struct Unordered;
/// A plain lock without a fencing token.
pub(crate) struct Classic;
/// A lock on two resources. Its rival takes the second one.
pub(crate) struct Several;
/// A lock that readers share. Its rival is a writer.
pub(crate) struct Reader;
/// A lock that the holds of one owner share. Its rival is another owner.
pub(crate) struct Owner;
/// The only permit of a semaphore.
pub(crate) struct Permit;
/// The leadership of an election.
pub(crate) struct Leader;
/// A job that runs once per period. It holds its lock while it runs. No job is recorded as done.
pub(crate) struct Once;
/// A quota. Each acquire takes a unit. The rival is a plain lock.
pub(crate) struct Quota;

/// Makes the request of a lock, and sends it.
fn acquire(request: LockRequest, wait: Wait) -> BoxFuture<'static, Acquired> {
    Box::pin(async move {
        let outcome = request.wait(wait).acquire().await;
        let guard = outcome.map_err(ValueError::NotAcquired)?;
        Ok(Box::new(guard) as Box<dyn Held>)
    })
}

fn lock_of_owner(redlock: &Redlock, id: &str) -> LockRequest {
    redlock.owner(id).expect("a valid id").lock(LOCK_NAME)
}

impl Kind for Fair {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["Kind::Exclusive", "redlock.lock"]
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(redlock.lock(LOCK_NAME), wait)
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        None
    }
}

impl Kind for Unordered {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["Kind::Exclusive"]
    }

    fn settings(&self, builder: RedlockBuilder) -> RedlockBuilder {
        builder.order(Order::Unordered)
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        Fair.acquire(redlock, wait)
    }

    fn sees_foreign_values(&self) -> bool {
        false
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        None
    }
}

impl Kind for Classic {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["Kind::Exclusive"]
    }

    fn settings(&self, builder: RedlockBuilder) -> RedlockBuilder {
        builder.fencing(false)
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        Fair.acquire(redlock, wait)
    }

    fn sees_foreign_values(&self) -> bool {
        false
    }

    fn sees_foreign_types(&self) -> bool {
        // The command SET NX does not read the key.
        false
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        None
    }
}

impl Kind for Several {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["Kind::SeveralResources", "redlock.lock_all"]
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(redlock.lock_all(self.lock_keys()), wait)
    }

    fn acquire_as_rival(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(redlock.lock(self.queue()), wait)
    }

    fn lock_keys(&self) -> &'static [&'static str] {
        &[LOCK_NAME, "other"]
    }

    fn queue(&self) -> &'static str {
        "other"
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("several resources in one lock")
    }
}

impl Kind for Reader {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["Kind::Shared", "src/kinds/shared.rs", "redlock.lock.shared"]
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(redlock.lock(LOCK_NAME).shared(), wait)
    }

    fn acquire_as_rival(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        Fair.acquire(redlock, wait)
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("readers")
    }
}

impl Kind for Owner {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["Kind::Owner", "src/kinds/owner.rs", "redlock.owner"]
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(lock_of_owner(redlock, "boss"), wait)
    }

    fn acquire_as_rival(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(lock_of_owner(redlock, "clerk"), wait)
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("the holds of an owner")
    }
}

impl Kind for Permit {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &[
            "Kind::Semaphore",
            "src/kinds/semaphore.rs",
            "redlock.semaphore",
        ]
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        acquire(redlock.semaphore(LOCK_NAME, 1), wait)
    }

    fn force_release(&self, redlock: &Redlock) -> BoxFuture<'static, Status> {
        let redlock = redlock.clone();
        Box::pin(async move {
            redlock
                .break_permit(LOCK_NAME, 0)
                .await
                .expect("a valid name")
        })
    }

    fn lock_keys(&self) -> &'static [&'static str] {
        &["quorate:slot:0:job"]
    }

    fn queue(&self) -> &'static str {
        "quorate:slot:line:job"
    }

    fn sees_foreign_values(&self) -> bool {
        // The masters report which slots are free, and not the values of the slots.
        false
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("semaphores")
    }
}

impl Kind for Leader {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["src/kinds/election.rs", "redlock.election"]
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        let election = redlock.election(LOCK_NAME).wait(wait);
        Box::pin(async move {
            let outcome = election.campaign("10.0.0.1:9000").await;
            let leadership = outcome.map_err(ValueError::NotAcquired)?;
            Ok(Box::new(leadership) as Box<dyn Held>)
        })
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("elections")
    }
}

/// A period of ten years, which does not end during a test.
const PERIOD: Duration = secs(10 * 365 * 24 * 3600);

/// An extension that the body of a job must make, and the sender of its result.
type Extension = (Duration, oneshot::Sender<Result<(), ExtendError>>);

/// The result of a job whose body fails.
type JobResult = Result<OnceOutcome<Result<(), ()>>, ValueError>;

/// A job that runs. Its body waits for extensions until `extensions` is dropped, and then fails.
struct RunningJob {
    job: Shared<BoxFuture<'static, JobResult>>,
    token: Option<u64>,
    lost: Shared<BoxFuture<'static, LossCause>>,
    extensions: mpsc::UnboundedSender<Extension>,
}

impl Kind for Once {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["redlock.once"]
    }

    fn prepare(&self, redlock: &Redlock) -> BoxFuture<'static, ()> {
        let once = redlock.once(LOCK_NAME, PERIOD);
        Box::pin(async move { once.create().await.expect("a new record") })
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        let once = redlock.once(LOCK_NAME, PERIOD).wait(wait);
        let (start_sender, start_receiver) = oneshot::channel();
        let (extensions, mut extension_requests) = mpsc::unbounded_channel::<Extension>();
        let job_future = async move {
            let body = async |guard: &quorate::LockGuard| {
                let _ = start_sender.send((guard.fencing_token(), guard.lost().boxed().shared()));
                while let Some((ttl, result)) = extension_requests.recv().await {
                    let _ = result.send(guard.extend(ttl).await);
                }
                Err(())
            };
            once.at_least_once(body).await
        };
        let shared_job = job_future.boxed().shared();
        Box::pin(async move {
            match futures::future::select(shared_job, start_receiver).await {
                Either::Left((outcome, _)) => Err(outcome.expect_err("the body must run")),
                Either::Right((start_sender, shared_job)) => {
                    let (token, lost) = start_sender.expect("the body must run");
                    let running_job = RunningJob {
                        job: shared_job,
                        token,
                        lost,
                        extensions,
                    };
                    Ok(Box::new(running_job) as Box<dyn Held>)
                }
            }
        })
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("quotas and records")
    }
}

impl Held for RunningJob {
    fn token(&self) -> Option<u64> {
        self.token
    }

    fn is_valid(&self) -> bool {
        self.lost.clone().now_or_never().is_none()
    }

    fn lost(&self) -> BoxFuture<'static, LossCause> {
        self.lost.clone().boxed()
    }

    fn extend(&mut self, ttl: Duration) -> BoxFuture<'_, Result<(), ExtendError>> {
        Box::pin(async move {
            let (sender, result) = oneshot::channel();
            let _ = self.extensions.send((ttl, sender));
            match futures::future::select(self.job.clone(), result).await {
                Either::Left((Err(ValueError::Stopped { cause, .. }), _)) => {
                    Err(ExtendError::Lost(cause))
                }
                Either::Left((outcome, _)) => panic!("{outcome:?}"),
                Either::Right((result, _)) => result.expect("the body must answer"),
            }
        })
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        let Self {
            job, extensions, ..
        } = *self;
        drop(extensions);
        Box::pin(async move { drop(job.await) })
    }
}

/// A unit of a quota that was taken. The lock is free again.
struct TakenUnit;

impl Kind for Quota {
    fn parts_of_the_library(&self) -> &'static [&'static str] {
        &["redlock.quota"]
    }

    fn prepare(&self, redlock: &Redlock) -> BoxFuture<'static, ()> {
        let quota = redlock.quota(LOCK_NAME);
        Box::pin(async move { quota.create(10_000).await.expect("a new quota") })
    }

    fn acquire(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        let quota = redlock.quota(LOCK_NAME).wait(wait);
        Box::pin(async move {
            let take = quota.take(1).await?;
            assert!(matches!(take, Take::Taken { .. }), "{take:?}");
            Ok(Box::new(TakenUnit) as Box<dyn Held>)
        })
    }

    fn acquire_as_rival(&self, redlock: &Redlock, wait: Wait) -> BoxFuture<'static, Acquired> {
        Fair.acquire(redlock, wait)
    }

    fn needs_fencing(&self) -> Option<&'static str> {
        Some("quotas and records")
    }
}

impl Held for TakenUnit {
    fn token(&self) -> Option<u64> {
        None
    }

    fn is_valid(&self) -> bool {
        true
    }

    fn lost(&self) -> BoxFuture<'static, LossCause> {
        Box::pin(std::future::pending())
    }

    fn extend(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<(), ExtendError>> {
        panic!("a unit is not extended")
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
