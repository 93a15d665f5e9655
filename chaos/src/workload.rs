//! The workloads of the clients, and the orders in which waiters get a lock.

use serde::{Deserialize, Serialize};

/// The work that a client repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Read, change and write a file under the lock: detects lost updates.
    File,
    /// Write to a shared register twice, without checking the lock before the second write. The register refuses a
    /// token that is smaller than an earlier token: detects fencing tokens that decrease.
    Register,
    /// Take an item from a stock in a file under the lock: detects items that are taken twice.
    Stock,
    /// Acquire and release one lock as fast as possible, in all clients.
    Handover,
    /// Hold many locks for a long time.
    Many,
    /// Work in a child process under `quorate run`: detects lost updates of a file.
    Run,
    /// Move money between two accounts under a lock on both accounts: detects lost transfers, because they change the
    /// sum.
    Transfer,
    /// Update two files as a writer, or read both as a reader: detects reads of an incomplete update.
    Readers,
    /// Work with one of five semaphore permits: detects a sixth holder.
    Permits,
    /// Several holders share a lock as one owner, in one or several processes: detects two different owners at the same
    /// time.
    Owners,
    /// Take units from quotas of ten, and run jobs once: detects an eleventh unit and a second run of a job.
    Prizes,
    /// Lead for a while, and follow the leader: detects two leaders at the same time.
    Leader,
}

/// Groups of workloads, each with its name on the command line: `lock` (plain locks), `kinds` (all other kinds of
/// locks) and `all`.
pub const GROUPS: [(&str, &[Workload]); 3] = [
    ("lock", &Workload::LOCK),
    ("kinds", &Workload::KINDS),
    ("all", &Workload::ALL),
];

impl Workload {
    /// The workloads of plain exclusive locks.
    pub const LOCK: [Self; 6] = [
        Self::File,
        Self::Register,
        Self::Stock,
        Self::Handover,
        Self::Many,
        Self::Run,
    ];

    /// The workloads of all kinds of locks except plain exclusive locks, one workload per kind.
    pub const KINDS: [Self; 6] = [
        Self::Transfer,
        Self::Readers,
        Self::Permits,
        Self::Owners,
        Self::Prizes,
        Self::Leader,
    ];

    /// All workloads.
    pub const ALL: [Self; 12] = [
        Self::File,
        Self::Register,
        Self::Stock,
        Self::Handover,
        Self::Many,
        Self::Run,
        Self::Transfer,
        Self::Readers,
        Self::Permits,
        Self::Owners,
        Self::Prizes,
        Self::Leader,
    ];

    /// The name of the workload. The names of its locks begin with it, e.g. `transfer-2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Register => "register",
            Self::Stock => "stock",
            Self::Handover => "handover",
            Self::Many => "many",
            Self::Run => "run",
            Self::Transfer => "transfer",
            Self::Readers => "readers",
            Self::Permits => "permits",
            Self::Owners => "owners",
            Self::Prizes => "prizes",
            Self::Leader => "leader",
        }
    }

    /// The workloads that this name on the command line stands for; `None` if the name is unknown.
    pub fn by_name(name: &str) -> Option<Vec<Self>> {
        let group = GROUPS.iter().find(|(group, _)| *group == name);
        if let Some((_, workloads)) = group {
            return Some(workloads.to_vec());
        }
        let workload = Self::ALL
            .into_iter()
            .find(|workload| workload.name() == name);
        workload.map(|workload| vec![workload])
    }

    /// The shortest name on the command line for these workloads.
    pub fn group_name(workloads: &[Self]) -> String {
        let group = GROUPS.iter().find(|(_, members)| *members == workloads);
        if let Some((name, _)) = group {
            return (*name).to_owned();
        }
        let names: Vec<_> = workloads.iter().map(|workload| workload.name()).collect();
        names.join(",")
    }

    /// Whether all clients compete for the same locks. False for `many`, in which each client has its own locks.
    pub fn is_shared(self) -> bool {
        self != Self::Many
    }

    /// Whether clients often compete for the same plain exclusive lock. Only then are two simultaneous holders likely.
    pub fn shows_breaks(self) -> bool {
        matches!(
            self,
            Self::File | Self::Register | Self::Stock | Self::Handover
        )
    }
}

/// The name of the workload that a resource belongs to: `transfer` for `transfer-2`.
pub fn workload_name(resource: &str) -> &str {
    resource.split('-').next().unwrap_or(resource)
}

/// The order of the waiters of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First come, first served.
    Fair,
    /// Whichever waiter's retry succeeds first gets the lock.
    Unordered,
}

impl Order {
    /// The name of the order on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Unordered => "unordered",
        }
    }
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fair" => Ok(Self::Fair),
            "unordered" => Ok(Self::Unordered),
            _ => Err("expected fair or unordered".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_and_group_of_workloads_is_found_by_its_name() {
        for workload in Workload::ALL {
            assert_eq!(Workload::by_name(workload.name()), Some(vec![workload]));
            assert_eq!(
                workload_name(&format!("{}-3", workload.name())),
                workload.name()
            );
        }
        assert_eq!(Workload::by_name("lock"), Some(Workload::LOCK.to_vec()));
        assert_eq!(Workload::group_name(&Workload::KINDS), "kinds");
        assert_eq!(
            Workload::group_name(&[Workload::File, Workload::Run]),
            "file,run"
        );
        assert_eq!(Workload::by_name("locks"), None);
        let all = [Workload::LOCK, Workload::KINDS].concat();
        assert_eq!(all, Workload::ALL);
    }
}
