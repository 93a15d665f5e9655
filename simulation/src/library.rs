//! Acquires locks of all kinds with the real library.

use std::sync::Arc;

use quorate::{AcquireError, LockRequest, Note, Owner, Redlock, Waiting};

use crate::facts::Fact;
use crate::kind::Kind;
use crate::locker::{AcquireArgs, AcquireFailure, Hold, SEMAPHORES, key_of_place};
use crate::process::Process;

/// The real library, used by one client process.
pub(crate) struct Library {
    redlock: Redlock,
    owners: Vec<Owner>,
    process: Arc<Process>,
}

/// The number of different owners in a run.
const OWNER_COUNT: u8 = 3;

impl Library {
    pub(crate) fn new(redlock: Redlock, process: Arc<Process>) -> Self {
        let id_of = |number| format!("owner-{number}");
        let owner = |number| redlock.owner(id_of(number)).expect("the id must be valid");
        Self {
            owners: (0..OWNER_COUNT).map(owner).collect(),
            process,
            redlock,
        }
    }

    /// Acquires a lock for the owner with the number `number`. All tasks of this process share one hold of this lock.
    async fn acquire_shared_by_tasks(
        &self,
        number: u8,
        resource: u8,
    ) -> Result<Arc<Hold>, AcquireFailure> {
        let owner = &self.owners[usize::from(number)];
        let guard = owner
            .acquire(key_of_place(resource))
            .await
            .map_err(failure_of)?;
        Ok(Arc::new(Hold::Owner(guard)))
    }

    /// Waits until there is no leader, and then becomes the leader. The lock of a leader is always renewed.
    async fn lead(&self, args: &AcquireArgs) -> Result<Arc<Hold>, AcquireFailure> {
        let plain_election = self.redlock.election(key_of_place(args.resource));
        let note = args.kind.note().unwrap_or_default();
        let election = plain_election.waiting(self.on_waiting(args.resource));
        let leadership = election.wait(args.wait()).campaign(note).await;
        leadership
            .map(|leadership| Arc::new(Hold::Leader(leadership)))
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

impl Library {
    /// The library itself.
    pub(crate) fn redlock(&self) -> &Redlock {
        &self.redlock
    }

    pub(crate) async fn acquire(
        self: Arc<Self>,
        args: AcquireArgs,
    ) -> Result<Arc<Hold>, AcquireFailure> {
        if let Kind::OwnerOfProcess(number) = args.kind {
            return self.acquire_shared_by_tasks(number, args.resource).await;
        }
        if let Kind::Leader(_) = args.kind {
            return self.lead(&args).await;
        }
        let mut request = self.request(&args);
        if !args.renew {
            request = request.renewal(false);
        }
        request = request.wait(args.wait());
        let is_single_resource = args.kind.scope(args.resource).resources().count() == 1;
        if is_single_resource {
            request = request.waiting(self.on_waiting(args.resource));
        }
        let acquired = request.acquire().await;
        acquired
            .map(|guard| Arc::new(Hold::Lock(guard)))
            .map_err(|error| {
                if is_single_resource {
                    self.failure_with_note(args.resource, error)
                } else {
                    failure_of(error)
                }
            })
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
