//! What clients do, who locks for them, and in which order they wait.

use serde::{Deserialize, Serialize};

/// What a client does, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Read, change and write a file under the lock: lost updates show.
    File,
    /// Write to a register that refuses smaller fencing tokens, without looking at the lock again.
    Register,
    /// Take something from a stock in a file under the lock: what is taken twice shows.
    Stock,
    /// Take and give back as fast as it goes, everybody the same lock.
    Handover,
    /// Hold many locks for a long time.
    Many,
    /// A child process under `quorate run`.
    Run,
    /// Move money between two accounts, both locked at once: what gets lost shows in the sum.
    Transfer,
    /// Write the two halves of something, and read them beside others: half a write shows.
    Readers,
    /// Work in one of five slots: a sixth at work shows.
    Permits,
    /// Several processes and nested holds for one owner at a time: another one's mark shows.
    Owners,
    /// Take prizes from quotas of ten, and do jobs that are done once: an eleventh prize and a second time show.
    Prizes,
    /// Lead for a while, and follow whoever leads: two terms at once show.
    Leader,
}

/// The names that stand for several: what plain locks are for, the other kinds side by side, and everything.
pub const GROUPS: [(&str, &[Workload]); 3] = [
    ("lock", &Workload::LOCK),
    ("kinds", &Workload::KINDS),
    ("all", &Workload::ALL),
];

impl Workload {
    /// What plain exclusive locks are for.
    pub const LOCK: [Self; 6] = [
        Self::File,
        Self::Register,
        Self::Stock,
        Self::Handover,
        Self::Many,
        Self::Run,
    ];

    /// One for each of the other kinds of locks.
    pub const KINDS: [Self; 6] = [
        Self::Transfer,
        Self::Readers,
        Self::Permits,
        Self::Owners,
        Self::Prizes,
        Self::Leader,
    ];

    /// All of them.
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

    /// Its name. Its resources are called like that, some with a number behind: `transfer-2`.
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

    /// What this name stands for: one, or several.
    pub fn named(name: &str) -> Option<Vec<Self>> {
        let group = GROUPS.iter().find(|(group, _)| *group == name);
        if let Some((_, all)) = group {
            return Some(all.to_vec());
        }
        let one = Self::ALL.into_iter().find(|one| one.name() == name);
        one.map(|one| vec![one])
    }

    /// The shortest name for these.
    pub fn name_of(some: &[Self]) -> String {
        let group = GROUPS.iter().find(|(_, all)| *all == some);
        if let Some((name, _)) = group {
            return (*name).to_owned();
        }
        let names: Vec<_> = some.iter().map(|one| one.name()).collect();
        names.join(",")
    }

    /// Whether everybody gets on with it, once nothing is wrong: of many each client has its own.
    pub fn is_shared(self) -> bool {
        self != Self::Many
    }

    /// Whether plain exclusive locks are taken again and again, so that a lock that breaks for certain is seen to.
    pub fn shows_breaks(self) -> bool {
        matches!(
            self,
            Self::File | Self::Register | Self::Stock | Self::Handover
        )
    }
}

/// The workload that a resource belongs to, by its name: `transfer` of `transfer-2`.
pub fn family(resource: &str) -> &str {
    resource.split('-').next().unwrap_or(resource)
}

/// Who locks: the library, or one that is wrong on purpose and must be caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locker {
    /// The library.
    Quorate,
    /// Content with half of the masters.
    HalfQuorum,
    /// Leaves the grants of a lost round where they are.
    NoUndo,
    /// Works on when its lock has ended.
    IgnoresLoss,
    /// Does not stand in line where everybody does.
    JumpsLine,
    /// Locks one resource after the other, and keeps the first where the next is not to be had.
    OneByOne,
    /// Locks one after the other, and believes in all of them for as long as in the last.
    LaterLease,
    /// Has readers as a number, and not by name.
    CountsReaders,
    /// Has a majority that gave permits, each of them another one.
    AnyPermit,
    /// Joins its owner where one master says that it is there.
    JoinsByOne,
    /// Gives each hold of an owner a number of its own.
    NumbersEach,
    /// Has a quota as a number on each master.
    CountsDown,
    /// Leads by the word of one master.
    LedByOne,
}

impl Locker {
    /// The wrong ones.
    pub const CANARIES: [Self; 12] = [
        Self::HalfQuorum,
        Self::NoUndo,
        Self::IgnoresLoss,
        Self::JumpsLine,
        Self::OneByOne,
        Self::LaterLease,
        Self::CountsReaders,
        Self::AnyPermit,
        Self::JoinsByOne,
        Self::NumbersEach,
        Self::CountsDown,
        Self::LedByOne,
    ];

    /// Whether the library does the asking, so that masters of every kind are asked.
    pub fn is_the_library(self) -> bool {
        matches!(self, Self::Quorate | Self::IgnoresLoss | Self::JumpsLine)
    }

    /// What it knows how to lock.
    pub fn workloads(self) -> &'static [Workload] {
        match self {
            Self::Quorate => &Workload::ALL,
            Self::HalfQuorum | Self::NoUndo | Self::IgnoresLoss | Self::JumpsLine => {
                &Workload::LOCK
            }
            Self::OneByOne | Self::LaterLease => &[Workload::Transfer],
            Self::CountsReaders => &[Workload::Readers],
            Self::AnyPermit => &[Workload::Permits],
            Self::JoinsByOne | Self::NumbersEach => &[Workload::Owners],
            Self::CountsDown => &[Workload::Prizes],
            Self::LedByOne => &[Workload::Leader],
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorate => "quorate",
            Self::HalfQuorum => "half-quorum",
            Self::NoUndo => "no-undo",
            Self::IgnoresLoss => "ignores-loss",
            Self::JumpsLine => "jumps-line",
            Self::OneByOne => "one-by-one",
            Self::LaterLease => "later-lease",
            Self::CountsReaders => "counts-readers",
            Self::AnyPermit => "any-permit",
            Self::JoinsByOne => "joins-by-one",
            Self::NumbersEach => "numbers-each",
            Self::CountsDown => "counts-down",
            Self::LedByOne => "led-by-one",
        }
    }
}

impl std::str::FromStr for Locker {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [&[Self::Quorate], &Self::CANARIES[..]].concat();
        let named = all.iter().find(|locker| locker.name() == name);
        named.copied().ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|locker| locker.name()).collect();
            format!("one of {}", names.join(", "))
        })
    }
}

/// How waiters of one lock are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// First come, first served.
    Fair,
    /// Whoever retries at the right moment.
    Unordered,
}

impl Order {
    /// Its name on the command line.
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
            _ => Err("fair or unordered".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_found_by_its_name_and_so_are_the_groups() {
        for one in Workload::ALL {
            assert_eq!(Workload::named(one.name()), Some(vec![one]));
            assert_eq!(family(&format!("{}-3", one.name())), one.name());
        }
        assert_eq!(Workload::named("lock"), Some(Workload::LOCK.to_vec()));
        assert_eq!(Workload::name_of(&Workload::KINDS), "kinds");
        assert_eq!(
            Workload::name_of(&[Workload::File, Workload::Run]),
            "file,run"
        );
        assert_eq!(Workload::named("locks"), None);
        let both = [Workload::LOCK, Workload::KINDS].concat();
        assert_eq!(both, Workload::ALL);
    }

    #[test]
    fn every_kind_of_lock_has_a_wrong_locker_which_is_found_by_its_name() {
        for locker in Locker::CANARIES {
            assert_eq!(locker.name().parse(), Ok(locker));
        }
        for kind in Workload::KINDS {
            let mut wrong = Locker::CANARIES.iter();
            assert!(
                wrong.any(|locker| locker.workloads() == [kind]),
                "{}",
                kind.name()
            );
        }
        assert!("right".parse::<Locker>().is_err());
    }
}
