//! What a workload asks of a lock: the real library, or a canary in its place.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Node, Token};
use quorate::runtime::BoxFuture;
use quorate::{
    AcquireError, Instant, Leadership, LockGuard, LockRequest, OwnedGuard, Owner, Redlock, Wait,
};

use crate::canary::{CountedHolds, Flaw, WrongRegister};
use crate::kind::Kind;
pub(crate) use crate::place::{
    PERMITS, PLACES, RESOURCES, SEMAPHORES, is_line, name, place_of_slot, resource_of,
    semaphore_of, semaphore_of_key,
};

/// One acquire of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) resource: u8,
    /// `None` for as long as it takes.
    pub(crate) wait: Option<Duration>,
    pub(crate) renew: bool,
    pub(crate) kind: Kind,
}

impl Order {
    fn wait(&self) -> Wait {
        match self.wait {
            Some(Duration::ZERO) => Wait::None,
            Some(wait) => Wait::For(wait),
            None => Wait::Forever,
        }
    }
}

/// Why there is no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    HeldByOther,
    NoQuorum,
    TooLate,
}

/// Something that takes locks.
pub(crate) trait Locker: Send + Sync {
    fn acquire(&self, order: Order) -> BoxFuture<Result<Arc<dyn Hold>, Miss>>;

    /// The library, where it is behind it.
    fn redlock(&self) -> Option<&Redlock> {
        None
    }

    /// A canary: what reads and writes the values under locks in the library's place.
    fn register(&self) -> Option<&WrongRegister> {
        None
    }
}

/// A held lock.
pub(crate) trait Hold: Send + Sync {
    fn value(&self) -> Token;
    fn fencing(&self) -> Option<u64>;
    /// Which permit of a semaphore it is.
    fn slot(&self) -> Option<usize> {
        None
    }
    /// Until when it is valid; none once the holder, if it asked, would hear that it is over. A look
    /// that changes nothing.
    fn look(&self) -> Option<Instant>;
    /// Resolves when the holder is told that it is lost.
    fn lost(&self) -> BoxFuture<()>;
    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()>;
    fn release(self: Arc<Self>) -> BoxFuture<()>;
    /// Goes on as a reader; none where the lock was lost over it.
    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>>;
    /// The library's guard, where it is one.
    fn guard(&self) -> Option<&LockGuard> {
        None
    }
}

/// The library.
pub(crate) struct Library {
    redlock: Redlock,
    owners: Vec<Owner>,
    /// A canary: what each owner has here is counted, whether it is held or not.
    counted: Option<CountedHolds>,
    register: Option<WrongRegister>,
}

/// How many owners there are at the most.
const OWNERS: u8 = 3;

impl Library {
    pub(crate) fn new(redlock: Redlock, nodes: Vec<Arc<dyn Node>>, flaw: Option<Flaw>) -> Self {
        let id = |number| format!("owner-{number}");
        let owner = |number| redlock.owner(id(number)).expect("a good id");
        Self {
            owners: (0..OWNERS).map(owner).collect(),
            counted: (flaw == Some(Flaw::LocalCountAnswers)).then(CountedHolds::default),
            register: flaw.and_then(|flaw| WrongRegister::of(flaw, nodes)),
            redlock,
        }
    }

    /// A hold by what the process counts.
    async fn counted(&self, id: u8, resource: u8) -> Result<Arc<dyn Hold>, Miss> {
        let place = (id, resource);
        let counted = self.counted.as_ref();
        if let Some(known) = counted.and_then(|counted| counted.join(place)) {
            return Ok(known);
        }
        let owner = &self.owners[usize::from(id)];
        let held = owner.acquire(name(resource)).await.map_err(miss)?;
        let held: Arc<dyn Hold> = Arc::new(held);
        Ok(match counted {
            Some(counted) => counted.first(place, held),
            None => held,
        })
    }

    /// Leads, once nobody else does. It renews always.
    async fn leads(&self, order: &Order) -> Result<Arc<dyn Hold>, Miss> {
        let election = self.redlock.election(name(order.resource));
        let note = order.kind.note().unwrap_or_default();
        let leads = election.wait(order.wait()).campaign(note).await;
        leads
            .map(|leadership| Arc::new(leadership) as Arc<dyn Hold>)
            .map_err(miss)
    }

    fn request(&self, order: &Order) -> LockRequest<'_> {
        let resource = name(order.resource);
        match order.kind {
            Kind::Noted(_) => {
                let note = order.kind.note().unwrap_or_default();
                self.redlock.lock(resource).note(note)
            }
            Kind::Exclusive | Kind::Downgraded | Kind::Lead(_) | Kind::Observe | Kind::Value(_) => {
                self.redlock.lock(resource)
            }
            Kind::Several(_) => {
                let all = order.kind.scope(order.resource).resources();
                let others = all.filter(|other| *other != usize::from(order.resource));
                // Its own first, so that there is no common order.
                let names = others.map(|other| name(other as u8));
                self.redlock.lock_all([resource].into_iter().chain(names))
            }
            Kind::Shared => self.redlock.lock(resource).shared(),
            Kind::Owner(id) | Kind::Counted(id) => self.owners[usize::from(id)].lock(resource),
            Kind::Permit(permits) => {
                let name = name(order.resource % SEMAPHORES as u8);
                self.redlock.semaphore(name, permits.into())
            }
        }
    }
}

impl Locker for Arc<Library> {
    fn acquire(&self, order: Order) -> BoxFuture<Result<Arc<dyn Hold>, Miss>> {
        let library = self.clone();
        Box::pin(async move {
            if let Kind::Counted(id) = order.kind {
                return library.counted(id, order.resource).await;
            }
            if let Kind::Lead(_) = order.kind {
                return library.leads(&order).await;
            }
            let mut request = library.request(&order);
            if !order.renew {
                request = request.fixed_lease();
            }
            request = request.wait(order.wait());
            let held = request.acquire().await;
            held.map(|guard| Arc::new(guard) as Arc<dyn Hold>)
                .map_err(miss)
        })
    }

    fn redlock(&self) -> Option<&Redlock> {
        Some(&self.redlock)
    }

    fn register(&self) -> Option<&WrongRegister> {
        self.register.as_ref()
    }
}

fn miss(error: AcquireError) -> Miss {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => Miss::HeldByOther,
        AcquireError::NoQuorum(_) => Miss::NoQuorum,
        AcquireError::TooLate(_) => Miss::TooLate,
        error => panic!("a scenario with bad input: {error}"),
    }
}

impl Hold for LockGuard {
    fn value(&self) -> Token {
        self.token()
    }

    fn fencing(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn slot(&self) -> Option<usize> {
        LockGuard::slot(self)
    }

    fn look(&self) -> Option<Instant> {
        quorate::testing::look(self)
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = LockGuard::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = LockGuard::extend(&self, ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let guard = Arc::into_inner(self).expect("whoever looked at it has let go");
        Box::pin(async move {
            let _released = guard.release().await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        let guard = Arc::into_inner(self).expect("whoever looked at it has let go");
        Box::pin(async move {
            let reader = guard.downgrade().await.ok()?;
            Some(Arc::new(reader) as Arc<dyn Hold>)
        })
    }

    fn guard(&self) -> Option<&LockGuard> {
        Some(self)
    }
}

impl Hold for Leadership {
    fn value(&self) -> Token {
        self.guard().token()
    }

    fn fencing(&self) -> Option<u64> {
        Some(self.term())
    }

    fn look(&self) -> Option<Instant> {
        quorate::testing::look(self.guard())
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = Leadership::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = self.guard().extend(ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let leadership = Arc::into_inner(self).expect("whoever looked at it has let go");
        Box::pin(async move {
            let _resigned = leadership.resign().await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("a leader is no writer")
    }
}

impl Hold for OwnedGuard {
    fn value(&self) -> Token {
        self.token()
    }

    fn fencing(&self) -> Option<u64> {
        self.fencing_token()
    }

    fn look(&self) -> Option<Instant> {
        quorate::testing::look(self)
    }

    fn lost(&self) -> BoxFuture<()> {
        let lost = LockGuard::lost(self);
        Box::pin(async move {
            lost.await;
        })
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move {
            let _outcome = LockGuard::extend(&self, ttl).await;
        })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        let guard = Arc::into_inner(self).expect("whoever looked at it has let go");
        Box::pin(async move {
            let _released = guard.release().await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("an owner is no writer")
    }
}
