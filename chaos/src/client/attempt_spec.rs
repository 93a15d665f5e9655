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
pub(super) struct AttemptSpec {
    pub(super) workload: Workload,
    pub(super) resource: String,
    /// Further resources, which one lock covers together with `resource`.
    pub(super) further_resources: Vec<String>,
    pub(super) claim: Claim,
    /// Whether the attempt is for a hold that is nested in another hold of the same owner.
    pub(super) is_nested: bool,
    /// If this attempt changes a writer's hold into a reader's hold: the number of the attempt that acquired the
    /// writer's hold, and the text that the writer left in the file `readers-1`. Otherwise `None`.
    pub(super) continued_hold: Option<(u64, String)>,
}

impl AttemptSpec {
    /// Draws the next attempt of this workload at random.
    pub(super) fn draw(workload: Workload, resource: &str) -> Self {
        let mut spec = Self {
            workload,
            resource: resource.to_owned(),
            further_resources: Vec::new(),
            claim: Claim::Alone,
            is_nested: false,
            continued_hold: None,
        };
        let mut rng = rand::rng();
        match workload {
            Workload::Transfer => {
                // Draw two accounts in a random order, to test that a lock accepts its resources in any order.
                let mut accounts: Vec<usize> = (1..=ACCOUNTS).collect();
                accounts.shuffle(&mut rng);
                spec.resource = format!("{resource}-{}", accounts[0]);
                spec.further_resources = vec![format!("{resource}-{}", accounts[1])];
            }
            Workload::Readers => {
                if !rng.random_bool(WRITERS) {
                    spec.claim = Claim::Reader;
                }
            }
            Workload::Permits => spec.claim = Claim::Permit(PERMITS),
            Workload::Owners => {
                let order = rng.random_range(1..=OWNERS);
                spec.claim = Claim::Owner(format!("order-{order}"));
            }
            // An exclusive lock on one resource.
            Workload::File
            | Workload::Register
            | Workload::Stock
            | Workload::Handover
            | Workload::Many
            | Workload::Run
            | Workload::Prizes
            | Workload::Leader => {}
        }
        spec
    }

    /// A nested attempt by the owner of this attempt, for the same resource.
    pub(super) fn nested(&self) -> Self {
        Self {
            is_nested: true,
            ..self.clone()
        }
    }

    /// The attempt that continues this writer's hold as a reader. `op` is the number of the writer's attempt.
    /// `written_text` is the content of the file `readers-1`.
    pub(super) fn as_reader(&self, op: u64, written_text: String) -> Self {
        Self {
            claim: Claim::Reader,
            continued_hold: Some((op, written_text)),
            ..self.clone()
        }
    }

    /// All resources of the attempt.
    pub(super) fn resources(&self) -> Vec<&str> {
        let further_resources = self.further_resources.iter().map(String::as_str);
        std::iter::once(self.resource.as_str())
            .chain(further_resources)
            .collect()
    }

    /// The event that the client records before it sends the first request of this attempt.
    pub(super) fn wait_event(&self, op: u64) -> Event {
        Event::Wait {
            op,
            resource: self.resource.clone(),
            further_resources: self.further_resources.clone(),
            claim: self.claim.clone(),
            continued_hold: self.continued_hold.as_ref().map(|(op, _)| *op),
        }
    }
}
