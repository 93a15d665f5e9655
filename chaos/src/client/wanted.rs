//! The resources that one attempt locks, and its mode: exclusive or shared.

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::bank::ACCOUNTS;
use crate::claim::Claim;
use crate::event::Event;
use crate::workload::Workload;

/// The number of permits of the semaphore.
const PERMITS: usize = 5;
/// The number of owners that compete for the reentrant lock.
const OWNERS: u32 = 3;
/// The share of attempts in the workload `readers` that are writers, from 0 to 1.
const WRITERS: f64 = 0.3;

/// The resources that one attempt locks, and its mode: exclusive or shared.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) workload: Workload,
    pub(super) resource: String,
    /// Further resources, which one lock covers together with `resource`.
    pub(super) also: Vec<String>,
    pub(super) claim: Claim,
    /// Whether the attempt is for a hold that is nested in another hold of the same owner.
    pub(super) is_inner: bool,
    /// If this attempt changes a writer's hold into a reader's hold: the number of the attempt that acquired the
    /// writer's hold, and the text that the writer left in the file `readers-1`. Otherwise `None`.
    pub(super) goes_on: Option<(u64, String)>,
}

impl Wanted {
    /// Draws the next attempt of this workload at random.
    pub(super) fn draw(workload: Workload, resource: &str) -> Self {
        let mut wanted = Self {
            workload,
            resource: resource.to_owned(),
            also: Vec::new(),
            claim: Claim::Alone,
            is_inner: false,
            goes_on: None,
        };
        let mut rng = rand::rng();
        match workload {
            Workload::Transfer => {
                // Draw two accounts in a random order, to test that a lock accepts its resources in any order.
                let mut accounts: Vec<usize> = (1..=ACCOUNTS).collect();
                accounts.shuffle(&mut rng);
                wanted.resource = format!("{resource}-{}", accounts[0]);
                wanted.also = vec![format!("{resource}-{}", accounts[1])];
            }
            Workload::Readers if !rng.random_bool(WRITERS) => wanted.claim = Claim::Reader,
            Workload::Permits => wanted.claim = Claim::Permit(PERMITS),
            Workload::Owners => {
                let order = rng.random_range(1..=OWNERS);
                wanted.claim = Claim::Owner(format!("order-{order}"));
            }
            _ => {}
        }
        wanted
    }

    /// A nested attempt by the owner of this attempt, for the same resource.
    pub(super) fn inner(&self) -> Self {
        Self {
            is_inner: true,
            ..self.clone()
        }
    }

    /// The attempt that continues this writer's hold as a reader. `op` is the number of the writer's attempt. `left` is
    /// the content of the file `readers-1`.
    pub(super) fn reader(&self, op: u64, left: String) -> Self {
        Self {
            claim: Claim::Reader,
            goes_on: Some((op, left)),
            ..self.clone()
        }
    }

    /// All resources of the attempt.
    pub(super) fn resources(&self) -> Vec<&str> {
        let also = self.also.iter().map(String::as_str);
        std::iter::once(self.resource.as_str())
            .chain(also)
            .collect()
    }

    /// The event that the client records before it sends the first request of this attempt.
    pub(super) fn wait(&self, op: u64) -> Event {
        Event::Wait {
            op,
            resource: self.resource.clone(),
            also: self.also.clone(),
            claim: self.claim.clone(),
            goes_on: self.goes_on.as_ref().map(|(op, _)| *op),
        }
    }
}
