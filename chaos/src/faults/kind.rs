//! The kinds of faults, and what each of them means for the promises of a run.

use std::fmt;
use std::str::FromStr;

use quorate_testbed::Persistence;
use serde::{Deserialize, Serialize};

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SIGKILL to a master, which comes back empty.
    Kill,
    /// SIGKILL to a master, which comes back from an append-only file that lost nothing.
    RestartAofAlways,
    /// SIGKILL to a master, which comes back from an append-only file without its last moments, as
    /// after a power cut with `appendfsync everysec`.
    RestartAofEverysec,
    /// SIGKILL to a master, which comes back from an old snapshot.
    RestartRdb,
    /// SIGKILL to a majority at once, which comes back empty at once: what the restart guard is for.
    RestartMajority,
    /// The same where nothing guards against it.
    Amnesia,
    /// SIGSTOP to a master, then SIGCONT.
    Stop,
    /// A master takes its time to load its data set: `-LOADING`.
    Loading,
    /// One master cannot be reached by anybody.
    PartitionOne,
    /// A minority cannot be reached.
    PartitionMinority,
    /// A majority cannot be reached.
    PartitionMajority,
    /// One client can reach no master.
    PartitionClient,
    /// Requests to a master get lost, replies do not.
    PartitionRequests,
    /// Replies of a master get lost, requests do not.
    PartitionReplies,
    /// Requests to a master are held back, and delivered late.
    LateRequests,
    /// Everything to and from a master is late.
    Latency,
    /// Everything to and from a master is late by a different time.
    Jitter,
    /// A few bytes in a second.
    Trickle,
    /// Connections are reset in the middle of a reply.
    Reset,
    /// Connections of which only one side knows that they are dead.
    HalfOpen,
    /// Connections are refused.
    Refuse,
    /// The link to a master is down: packets vanish, not even a connect is answered. Needs root, or
    /// namespaces for everybody.
    NetnsPartition,
    /// The clock of one master jumps forward, and later back.
    ClockForward,
    /// The clock of one master jumps back, and later forward.
    ClockBack,
    /// The clock of one master runs at a wrong speed.
    ClockDrift,
    /// The clocks of a majority jump forward past every ttl.
    ClockMajority,
    /// A master has become a replica: `-READONLY`.
    Readonly,
    /// A master is out of memory: `-OOM`.
    Oom,
    /// A master is running somebody's endless script: `-BUSY`.
    Busy,
    /// A master cannot save: `-MISCONF`.
    Misconf,
    /// FLUSHALL on a master.
    Flushall,
    /// SCRIPT FLUSH on a master.
    ScriptFlush,
    /// CLIENT KILL on a master, for all its clients.
    ClientKill,
    /// A master takes no more clients.
    Maxclients,
    /// The password of a master was changed.
    Password,
    /// SIGKILL to a client, which comes back as a new process.
    ClientSigkill,
    /// SIGSTOP to a client for longer than the ttl.
    ClientSigstop,
    /// A client drops its futures midway and its guards without a release.
    ClientDrop,
    /// All worker threads of a client are blocked for longer than the ttl.
    ClientStarve,
}

/// How a fault is brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Signals to and restarts of masters.
    Process,
    /// The proxies between clients and masters.
    Network,
    /// The links to masters in network namespaces of their own.
    Link,
    /// The masters' wall clocks.
    Clock,
    /// Commands to masters.
    Server,
    /// Signals and commands to clients.
    Client,
}

/// How many it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One master.
    One,
    /// As many masters as leave a majority.
    Minority,
    /// As few masters as are a majority.
    Majority,
    /// One client.
    Client,
}

impl Kind {
    /// All of them, in the order in which they are explained.
    pub const ALL: [Self; 39] = [
        Self::Kill,
        Self::RestartAofAlways,
        Self::RestartAofEverysec,
        Self::RestartRdb,
        Self::RestartMajority,
        Self::Amnesia,
        Self::Stop,
        Self::Loading,
        Self::PartitionOne,
        Self::PartitionMinority,
        Self::PartitionMajority,
        Self::PartitionClient,
        Self::PartitionRequests,
        Self::PartitionReplies,
        Self::LateRequests,
        Self::Latency,
        Self::Jitter,
        Self::Trickle,
        Self::Reset,
        Self::HalfOpen,
        Self::Refuse,
        Self::NetnsPartition,
        Self::ClockForward,
        Self::ClockBack,
        Self::ClockDrift,
        Self::ClockMajority,
        Self::Readonly,
        Self::Oom,
        Self::Busy,
        Self::Misconf,
        Self::Flushall,
        Self::ScriptFlush,
        Self::ClientKill,
        Self::Maxclients,
        Self::Password,
        Self::ClientSigkill,
        Self::ClientSigstop,
        Self::ClientDrop,
        Self::ClientStarve,
    ];

    /// Those that leave all promises standing and go together on any machine: the default of a run.
    pub fn mixed() -> Vec<Self> {
        let fits = |kind: &Self| {
            !kind.breaks_exclusion(true)
                && *kind != Self::Amnesia
                && !matches!(kind.family(), Family::Clock | Family::Link)
        };
        Self::ALL.into_iter().filter(fits).collect()
    }

    /// Its name on the command line and in the history.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::RestartAofAlways => "restart-aof-always",
            Self::RestartAofEverysec => "restart-aof-everysec",
            Self::RestartRdb => "restart-rdb",
            Self::RestartMajority => "restart-majority",
            Self::Amnesia => "amnesia",
            Self::Stop => "stop",
            Self::Loading => "loading",
            Self::PartitionOne => "partition-one",
            Self::PartitionMinority => "partition-minority",
            Self::PartitionMajority => "partition-majority",
            Self::PartitionClient => "partition-client",
            Self::PartitionRequests => "partition-requests",
            Self::PartitionReplies => "partition-replies",
            Self::LateRequests => "late-requests",
            Self::Latency => "latency",
            Self::Jitter => "jitter",
            Self::Trickle => "trickle",
            Self::Reset => "reset",
            Self::HalfOpen => "half-open",
            Self::Refuse => "refuse",
            Self::NetnsPartition => "netns-partition",
            Self::ClockForward => "clock-forward",
            Self::ClockBack => "clock-back",
            Self::ClockDrift => "clock-drift",
            Self::ClockMajority => "clock-majority",
            Self::Readonly => "readonly",
            Self::Oom => "oom",
            Self::Busy => "busy",
            Self::Misconf => "misconf",
            Self::Flushall => "flushall",
            Self::ScriptFlush => "script-flush",
            Self::ClientKill => "client-kill",
            Self::Maxclients => "maxclients",
            Self::Password => "password",
            Self::ClientSigkill => "client-sigkill",
            Self::ClientSigstop => "client-sigstop",
            Self::ClientDrop => "client-drop",
            Self::ClientStarve => "client-starve",
        }
    }

    /// How it is brought about.
    pub fn family(self) -> Family {
        match self {
            Self::Kill
            | Self::RestartAofAlways
            | Self::RestartAofEverysec
            | Self::RestartRdb
            | Self::RestartMajority
            | Self::Amnesia
            | Self::Stop
            | Self::Loading => Family::Process,
            Self::PartitionOne
            | Self::PartitionMinority
            | Self::PartitionMajority
            | Self::PartitionClient
            | Self::PartitionRequests
            | Self::PartitionReplies
            | Self::LateRequests
            | Self::Latency
            | Self::Jitter
            | Self::Trickle
            | Self::Reset
            | Self::HalfOpen
            | Self::Refuse => Family::Network,
            Self::NetnsPartition => Family::Link,
            Self::ClockForward | Self::ClockBack | Self::ClockDrift | Self::ClockMajority => {
                Family::Clock
            }
            Self::Readonly
            | Self::Oom
            | Self::Busy
            | Self::Misconf
            | Self::Flushall
            | Self::ScriptFlush
            | Self::ClientKill
            | Self::Maxclients
            | Self::Password => Family::Server,
            Self::ClientSigkill | Self::ClientSigstop | Self::ClientDrop | Self::ClientStarve => {
                Family::Client
            }
        }
    }

    /// How many it is done to.
    pub fn reach(self) -> Reach {
        match self {
            Self::PartitionMinority => Reach::Minority,
            Self::PartitionMajority
            | Self::ClockMajority
            | Self::RestartMajority
            | Self::Amnesia => Reach::Majority,
            _ if self.family() == Family::Client || self == Self::PartitionClient => Reach::Client,
            _ => Reach::One,
        }
    }

    /// Whether the master has started anew when it is over.
    pub fn restarts(self) -> bool {
        matches!(
            self,
            Self::Kill
                | Self::RestartAofAlways
                | Self::RestartAofEverysec
                | Self::RestartRdb
                | Self::RestartMajority
                | Self::Amnesia
                | Self::Loading
        )
    }

    /// Whether Redlock cannot promise mutual exclusion around it: masters that forget without a
    /// restart that could be seen, or whose clocks are wrong by more than the drift that is
    /// allowed for; and forgetful restarts where nothing guards against them. One such master is enough: it may be
    /// the one that two majorities have in common.
    pub fn breaks_exclusion(self, guarded: bool) -> bool {
        match self {
            Self::Flushall
            | Self::ClockForward
            | Self::ClockBack
            | Self::ClockDrift
            | Self::ClockMajority
            | Self::Amnesia => true,
            Self::Kill | Self::RestartMajority | Self::RestartAofEverysec | Self::RestartRdb => {
                !guarded
            }
            _ => false,
        }
    }

    /// Whether it takes the lock from a holder for certain, so that a run that saw no broken
    /// exclusion was not looking.
    pub fn must_break(self) -> bool {
        matches!(self, Self::Amnesia | Self::ClockMajority)
    }

    /// What the master must keep on disk for it to make sense; `None`: whatever it is. A majority
    /// that comes back empty has lost its disk as well.
    pub fn persistence(self) -> Option<Persistence> {
        match self {
            Self::Kill => Some(Persistence::None),
            Self::RestartAofAlways => Some(Persistence::AofAlways),
            Self::RestartAofEverysec => Some(Persistence::AofEverySec),
            Self::RestartRdb | Self::Loading => Some(Persistence::Rdb),
            _ => None,
        }
    }

    /// Whether it is over in the moment in which it happens.
    pub fn is_momentary(self) -> bool {
        matches!(
            self,
            Self::Flushall
                | Self::ScriptFlush
                | Self::ClientKill
                | Self::RestartMajority
                | Self::Amnesia
        )
    }

    /// Whether a process of that many masters can have it at all.
    pub fn fits(self, masters: usize) -> bool {
        self.reach() != Reach::Minority || masters > 2
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
                format!(
                    "no fault is called {name:?}; there are {}",
                    names.join(", ")
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_listed_once_and_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""), "one spelling everywhere");
        }
        let mut all = Kind::ALL.to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), Kind::ALL.len());
    }
}
