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
    /// Take a prize from a stock under the lock: prizes given twice show.
    Prizes,
    /// Take and give back as fast as it goes, everybody the same lock.
    Handover,
    /// Hold many locks for a long time.
    Many,
    /// A child process under `quorate run`.
    Run,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::File,
        Self::Register,
        Self::Prizes,
        Self::Handover,
        Self::Many,
        Self::Run,
    ];

    /// Its name, which is also that of its resource.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Register => "register",
            Self::Prizes => "prizes",
            Self::Handover => "handover",
            Self::Many => "many",
            Self::Run => "run",
        }
    }
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
}

impl Locker {
    /// The wrong ones.
    pub const CANARIES: [Self; 4] = [
        Self::HalfQuorum,
        Self::NoUndo,
        Self::IgnoresLoss,
        Self::JumpsLine,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorate => "quorate",
            Self::HalfQuorum => "half-quorum",
            Self::NoUndo => "no-undo",
            Self::IgnoresLoss => "ignores-loss",
            Self::JumpsLine => "jumps-line",
        }
    }
}

impl std::str::FromStr for Locker {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [&[Self::Quorate], &Self::CANARIES[..]]
            .concat()
            .into_iter()
            .find(|locker| locker.name() == name)
            .ok_or_else(|| "quorate, half-quorum, no-undo, ignores-loss or jumps-line".to_owned())
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
