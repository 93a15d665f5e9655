//! The lock implementation that clients of the simulation normally use: the real library.

use std::sync::Arc;

use quorate::node::Node;
use quorate::runtime::BoxFuture;
use quorate::{AcquireError, LockRequest, Note, Owner, Redlock, Waiting};

use crate::facts::Fact;
use crate::kind::Kind;
use crate::locker::{Hold, Locker, Miss, Order, SEMAPHORES, name};
use crate::process::Process;
use crate::seeded_bugs::{CountedHolds, Flaw, WrongRegister};

/// The real library, used by one client process.
pub(crate) struct Library {
    redlock: Redlock,
    owners: Vec<Owner>,
    /// For the seeded bug `LocalCountAnswers`: the owners' holds in this process, which answer an acquire without
    /// asking the masters. `None` without this bug.
    counted: Option<CountedHolds>,
    register: Option<WrongRegister>,
    process: Arc<Process>,
}

/// The number of different owners in a run.
const OWNERS: u8 = 3;

impl Library {
    pub(crate) fn new(
        redlock: Redlock,
        nodes: Vec<Arc<dyn Node>>,
        process: Arc<Process>,
        flaw: Option<Flaw>,
    ) -> Self {
        let id = |number| format!("owner-{number}");
        let owner = |number| redlock.owner(id(number)).expect("the id must be valid");
        Self {
            owners: (0..OWNERS).map(owner).collect(),
            counted: (flaw == Some(Flaw::LocalCountAnswers)).then(CountedHolds::default),
            register: flaw.and_then(|flaw| WrongRegister::of(flaw, nodes)),
            process,
            redlock,
        }
    }

    /// Acquires a lock for the owner with the number `id`. All tasks of this process share one hold of this lock.
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

    /// Waits until there is no leader, and then becomes the leader. The lock of a leader is always renewed.
    async fn leads(&self, order: &Order) -> Result<Arc<dyn Hold>, Miss> {
        let election = self.redlock.election(name(order.resource));
        let note = order.kind.note().unwrap_or_default();
        let election = election.waiting(self.shown(order.resource));
        let leads = election.wait(order.wait()).campaign(note).await;
        leads
            .map(|leadership| Arc::new(leadership) as Arc<dyn Hold>)
            .map_err(|error| self.missed(order.resource, error))
    }

    /// Returns a callback for a waiting acquire. The callback reports the note of the present lock holder to the
    /// checkers.
    fn shown(&self, resource: u8) -> impl Fn(&Waiting) + Send + Sync + 'static {
        let process = self.process.clone();
        move |seen| {
            if let Some(note) = &seen.note {
                tell_refusal(&process, resource, seen.holder.as_deref(), note);
            }
        }
    }

    fn missed(&self, resource: u8, error: AcquireError) -> Miss {
        if let AcquireError::HeldByOther(missed) = &error
            && let Some(note) = &missed.note
        {
            tell_refusal(&self.process, resource, None, note);
        }
        miss(error)
    }

    fn request(&self, order: &Order) -> LockRequest {
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
                // Put `order.resource` first, to test that the library accepts resources in any order.
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
                request = request.renewal(false);
            }
            request = request.wait(order.wait());
            let alone = order.kind.scope(order.resource).resources().count() == 1;
            if alone {
                request = request.waiting(library.shown(order.resource));
            }
            let held = request.acquire().await;
            let held = held.map(|guard| Arc::new(guard) as Arc<dyn Hold>);
            held.map_err(|error| {
                if alone {
                    library.missed(order.resource, error)
                } else {
                    miss(error)
                }
            })
        })
    }

    fn redlock(&self) -> Option<&Redlock> {
        Some(&self.redlock)
    }

    fn register(&self) -> Option<&WrongRegister> {
        self.register.as_ref()
    }
}

fn tell_refusal(process: &Process, resource: u8, holder: Option<&[u8]>, note: &Note) {
    let mut world = process.shared.world();
    let now = world.now;
    world.watch.coverage.named_refusals += u64::from(note.text.is_some());
    let refused = Fact::Refused {
        resource: resource.into(),
        holder,
        note: note.text.as_deref(),
    };
    world.watch.fact(now, &refused);
}

fn miss(error: AcquireError) -> Miss {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => Miss::HeldByOther,
        AcquireError::NoQuorum(_) | AcquireError::OtherMasters(_) => Miss::NoQuorum,
        AcquireError::TooLate(_) => Miss::TooLate,
        error => panic!("the scenario must not contain invalid input: {error}"),
    }
}
