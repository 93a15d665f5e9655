//! The lock implementation that clients of the simulation normally use: the real library.

use std::sync::Arc;

use quorate::node::Node;
use quorate::runtime::BoxFuture;
use quorate::{AcquireError, LockRequest, Note, Owner, Redlock, Waiting};

use crate::facts::Fact;
use crate::flaw::Flaw;
use crate::kind::Kind;
use crate::locker::{
    AcquireArgs, AcquireFailure, Hold, Locker, Register, SEMAPHORES, key_of_place,
};
use crate::process::Process;
use crate::seeded_bugs::counted_holds::CountedHolds;
use crate::seeded_bugs::wrong_register::WrongRegister;

/// The real library, used by one client process.
pub(crate) struct Library {
    redlock: Redlock,
    owners: Vec<Owner>,
    /// For the seeded bug `LocalCountAnswers`: the owners' holds in this process, which answer an acquire without
    /// asking the masters. `None` without this bug.
    counted_holds: Option<CountedHolds>,
    register: Option<WrongRegister>,
    process: Arc<Process>,
}

/// The number of different owners in a run.
const OWNER_COUNT: u8 = 3;

impl Library {
    pub(crate) fn new(
        redlock: Redlock,
        nodes: Vec<Arc<dyn Node>>,
        process: Arc<Process>,
        flaw: Option<Flaw>,
    ) -> Self {
        let id_of = |number| format!("owner-{number}");
        let owner = |number| redlock.owner(id_of(number)).expect("the id must be valid");
        Self {
            owners: (0..OWNER_COUNT).map(owner).collect(),
            counted_holds: (flaw == Some(Flaw::LocalCountAnswers)).then(CountedHolds::default),
            register: flaw.and_then(|flaw| WrongRegister::new(flaw, nodes)),
            process,
            redlock,
        }
    }

    /// Acquires a lock for the owner with the number `number`. All tasks of this process share one hold of this lock.
    async fn acquire_shared_by_tasks(
        &self,
        number: u8,
        resource: u8,
    ) -> Result<Arc<dyn Hold>, AcquireFailure> {
        let owner_and_place = (number, resource);
        let counted_holds = self.counted_holds.as_ref();
        if let Some(hold) =
            counted_holds.and_then(|counted_holds| counted_holds.join_existing(owner_and_place))
        {
            return Ok(hold);
        }
        let owner = &self.owners[usize::from(number)];
        let guard = owner
            .acquire(key_of_place(resource))
            .await
            .map_err(failure_of)?;
        let held: Arc<dyn Hold> = Arc::new(guard);
        Ok(match counted_holds {
            Some(counted_holds) => counted_holds.add_first(owner_and_place, held),
            None => held,
        })
    }

    /// Waits until there is no leader, and then becomes the leader. The lock of a leader is always renewed.
    async fn lead(&self, args: &AcquireArgs) -> Result<Arc<dyn Hold>, AcquireFailure> {
        let plain_election = self.redlock.election(key_of_place(args.resource));
        let note = args.kind.note().unwrap_or_default();
        let election = plain_election.waiting(self.on_waiting(args.resource));
        let leadership = election.wait(args.wait()).campaign(note).await;
        leadership
            .map(|leadership| Arc::new(leadership) as Arc<dyn Hold>)
            .map_err(|error| self.failure_with_note(args.resource, error))
    }

    /// Returns a callback for a waiting acquire. The callback reports the note of the present lock holder to the
    /// checkers.
    fn on_waiting(&self, resource: u8) -> impl Fn(&Waiting) + Send + Sync + 'static {
        let process = self.process.clone();
        move |waiting| {
            if let Some(note) = &waiting.note {
                report_refusal(&process, resource, waiting.holder.as_deref(), note);
            }
        }
    }

    fn failure_with_note(&self, resource: u8, error: AcquireError) -> AcquireFailure {
        if let AcquireError::HeldByOther(held) = &error
            && let Some(note) = &held.note
        {
            report_refusal(&self.process, resource, None, note);
        }
        failure_of(error)
    }

    fn request(&self, args: &AcquireArgs) -> LockRequest {
        let resource = key_of_place(args.resource);
        match args.kind {
            Kind::WithNote(_) => {
                let note = args.kind.note().unwrap_or_default();
                self.redlock.lock(resource).note(note)
            }
            Kind::Exclusive
            | Kind::Downgraded
            | Kind::Leader(_)
            | Kind::Observe
            | Kind::Value(_) => self.redlock.lock(resource),
            Kind::Several(_) => {
                let resources = args.kind.scope(args.resource).resources();
                let others = resources.filter(|other| *other != usize::from(args.resource));
                // Put `args.resource` first, to test that the library accepts resources in any order.
                let names = others.map(|other| key_of_place(other as u8));
                self.redlock.lock_all([resource].into_iter().chain(names))
            }
            Kind::Shared => self.redlock.lock(resource).shared(),
            Kind::Owner(number) | Kind::OwnerOfProcess(number) => {
                self.owners[usize::from(number)].lock(resource)
            }
            Kind::Permit(permits) => {
                let name = key_of_place(args.resource % SEMAPHORES as u8);
                self.redlock.semaphore(name, permits.into())
            }
        }
    }
}

impl Locker for Arc<Library> {
    fn acquire(&self, args: AcquireArgs) -> BoxFuture<Result<Arc<dyn Hold>, AcquireFailure>> {
        let library = self.clone();
        Box::pin(async move {
            if let Kind::OwnerOfProcess(number) = args.kind {
                return library.acquire_shared_by_tasks(number, args.resource).await;
            }
            if let Kind::Leader(_) = args.kind {
                return library.lead(&args).await;
            }
            let mut request = library.request(&args);
            if !args.renew {
                request = request.renewal(false);
            }
            request = request.wait(args.wait());
            let is_single_resource = args.kind.scope(args.resource).resources().count() == 1;
            if is_single_resource {
                request = request.waiting(library.on_waiting(args.resource));
            }
            let acquired = request.acquire().await;
            acquired
                .map(|guard| Arc::new(guard) as Arc<dyn Hold>)
                .map_err(|error| {
                    if is_single_resource {
                        library.failure_with_note(args.resource, error)
                    } else {
                        failure_of(error)
                    }
                })
        })
    }

    fn redlock(&self) -> Option<&Redlock> {
        Some(&self.redlock)
    }

    fn register(&self) -> Option<&dyn Register> {
        let register = self.register.as_ref()?;
        Some(register)
    }
}

fn report_refusal(process: &Process, resource: u8, holder: Option<&[u8]>, note: &Note) {
    let mut world = process.shared.world();
    let now = world.now;
    world.observer.coverage.named_refusals += u64::from(note.text.is_some());
    let fact = Fact::WaiterRefused {
        resource: resource.into(),
        holder,
        note: note.text.as_deref(),
    };
    world.observer.report_fact(now, &fact);
}

fn failure_of(error: AcquireError) -> AcquireFailure {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => AcquireFailure::HeldByOther,
        AcquireError::NoQuorum(_) | AcquireError::OtherMasters(_) => AcquireFailure::NoQuorum,
        AcquireError::TooLate(_) => AcquireFailure::TooLate,
        error => panic!("the scenario must not contain invalid input: {error}"),
    }
}
