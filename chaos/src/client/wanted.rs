//! What one attempt is to lock, and how.

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::bank::ACCOUNTS;
use crate::claim::Claim;
use crate::event::Event;
use crate::workload::Workload;

/// How many may be at work at once where permits are needed.
const PERMITS: usize = 5;
/// How many owners there are.
const OWNERS: u32 = 3;
/// How many of those who want the two halves want to change them.
const WRITERS: f64 = 0.3;

/// What one attempt is to lock, and how.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) workload: Workload,
    pub(super) resource: String,
    /// What is to be locked with it.
    pub(super) also: Vec<String>,
    pub(super) claim: Claim,
    /// Whether it stands inside another hold of its owner.
    pub(super) is_inner: bool,
    /// The attempt whose hold it goes on from, and what that has left to be found.
    pub(super) goes_on: Option<(u64, String)>,
}

impl Wanted {
    /// The next one of this workload.
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
                // In either order: who names them must not matter.
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

    /// A further hold of the same owner.
    pub(super) fn inner(&self) -> Self {
        Self {
            is_inner: true,
            ..self.clone()
        }
    }

    /// The reader that a writer goes on as.
    pub(super) fn reader(&self, op: u64, left: String) -> Self {
        Self {
            claim: Claim::Reader,
            goes_on: Some((op, left)),
            ..self.clone()
        }
    }

    /// Everything that is to be locked.
    pub(super) fn resources(&self) -> Vec<&str> {
        let also = self.also.iter().map(String::as_str);
        std::iter::once(self.resource.as_str())
            .chain(also)
            .collect()
    }

    /// What is written down before anything is sent.
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
