//! Seeded bugs that the checkers must catch. If a bug is not caught, a checker is wrong.
//!
//! Faulty scripts run under the real library: only the simulated masters, or the connection, behave wrongly. Faulty
//! clients are variants of one small client of this package, [`WrongLocker`]. Its correct variant must break no rule,
//! so that only the flaw is caught.

mod as_it_stands;
mod counted;
mod locker;
mod masters;
mod mget;
mod notes;
mod permits;
mod register;
mod scripts;
mod tickets;
mod turn;
mod votes;

use std::fmt;

use quorate::node::store::StoreFlaw;

pub(crate) use as_it_stands::AsItStands;
pub(crate) use counted::CountedHolds;
pub(crate) use locker::WrongLocker;
pub(crate) use notes::wrong_note;
pub(crate) use permits::counted_place;
pub(crate) use register::{WrongRegister, wrong_value};
pub(crate) use scripts::WrongScripts;

/// A seeded bug. The comment of each variant says what the faulty client or master does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The small client has no flaw. This is the control.
    Sound,
    /// Half of the masters are taken for a majority.
    HalfQuorum,
    /// A majority of the masters that answered is taken for a majority of all.
    ReachableQuorum,
    /// The validity of a lock is counted from the last reply instead of from the send.
    ValidityAfterReplies,
    /// Nothing is subtracted from the validity for clock drift.
    NoDrift,
    /// All attempts of one acquire use the same lock value, instead of a random one each.
    ReusedValue,
    /// The fencing token is the largest counter that any master granted, and is not confirmed by a majority.
    LargestCounter,
    /// An extension is counted even if its votes arrive after the old validity has ended.
    LateExtension,
    /// The validity of an extension is counted from its replies instead of from the send.
    ExtensionAfterReplies,
    /// The holder is notified of a loss only when the next renewal would be due.
    LossAtTick,
    /// A release deletes the lock key even if it holds another value.
    UnconditionalDelete,
    /// A master confirms a fencing token even if its counter is above the token.
    ConfirmAtLeast,
    /// An extension sets the expiry of the key even if this shortens the lease.
    ShorteningExtend,
    /// Restarted masters vote at once, because the restart guard is off.
    GuardOff,
    /// The uptime that the restart guard uses is two seconds too high.
    UptimeAhead,
    /// Only a share of the TTL is subtracted for clock drift, and not the fixed amount for rounding to milliseconds.
    NoFixedDrift,
    /// The validity is counted from a clock reading after the send instead of before it.
    ClockAfterSend,
    /// Dropping a lock or an acquire future releases nothing.
    DropsWithoutRelease,
    /// A release is sent to only a majority of the masters.
    ReleasesMajority,
    /// Only the first lock of a process is renewed.
    RenewsOnlyFirst,
    /// The holder of a lock that was taken away is notified only when the validity ends.
    LossAtDeadline,
    /// An acquire waits for twice as long as requested.
    OverstaysWait,
    /// Masters send no wake-up when a lock becomes free.
    NobodyWoken,
    /// Masters report a largest ticket that is too small by one.
    TicketNotRaised,
    /// Masters count the holds of a class instead of identifying them by their values.
    CountedHolds,
    /// The marker of a class expires with its newest hold, even if an older hold lives longer.
    NewestExpiry,
    /// Readers leave no class marker in the lock key.
    MarkerlessReaders,
    /// The first reader does not raise the fencing counter.
    ReaderNoRaise,
    /// A counter above a reader's fencing token confirms the token as well.
    ReaderAtLeast,
    /// Restoring a reader does not raise a counter that is above the reader's fencing token.
    KeepNoRaise,
    /// A lost hold of an owner is restored although other clients have held the lock since.
    LateKeep,
    /// A downgrade does not raise the fencing counter.
    DowngradeNoRaise,
    /// A writer that downgrades keeps writing until the downgrade is confirmed.
    DowngradeWritesOn,
    /// Readers overtake waiting writers.
    ReadersPassWriters,
    /// Writers overtake waiting readers.
    WritersFirst,
    /// A client that wants one resource overtakes a client that waits for several.
    SinglePassesMulti,
    /// Each resource of a lock on several resources keeps its own counter.
    MultiOwnCounter,
    /// One of several resources is enough to confirm the fencing token.
    ConfirmAnyKey,
    /// A master that grants only some of several resources counts as a vote.
    PartialGrantCounts,
    /// A further hold of an owner waits in the queue behind other clients.
    OwnerInLine,
    /// A further hold of an owner confirms a fencing token of its own, although the owner has another token already.
    OwnerWritesBack,
    /// A hold of an owner is counted whatever fencing token the master shows.
    OwnerAnyNumber,
    /// A further hold of an owner succeeds by a local count, even if the masters have lost the owner's lock.
    LocalCountAnswers,
    /// A client that is late writes its note next to the lock of another client.
    NoteOfAnybody,
    /// A release leaves the note of the released lock.
    NoteLeft,
    /// A refusal returns whatever note is next to the lock, even if it is not the holder's.
    NoteOfLast,
    /// An observer of an election believes one master at each read, and a different one each time, so the terms fall.
    TermOfOne,
    /// The small client of values has no flaw. This is the control.
    SoundRegister,
    /// A master accepts a write of a value although its counter is above the writer's fencing token.
    BlindWrite,
    /// Masters report that they have removed a value, but keep it.
    RemovedNowhere,
    /// A read of a value does not raise the fencing counter.
    ReadNoRaise,
    /// A read returns the value with the smallest fencing token instead of the largest.
    SmallerNumberRead,
    /// A master without a value is counted as if it had the initial value.
    MissingIsInitial,
    /// Values that were written in an earlier run of a server are counted.
    NoRunStamp,
    /// A write is sent whenever a connection is made, even if the server has restarted since the read, and is counted.
    LateRefill,
    /// A write is counted even on masters that were not read before.
    WriteElsewhere,
    /// Each resource of a lock on several resources has a ticket of its own.
    TicketPerResource,
    /// A master overwrites foreign keys of another type.
    MgetWrongtype,
    /// Masters count the permits instead of identifying them by their slots.
    CountToK,
    /// Each master offers only its own lowest free slot.
    MasterPicksSlot,
    /// Semaphores have no queue.
    NoSemaphoreLine,
    /// The version numbers of a record repeat after a few changes.
    VersionsAgain,
    /// A store removes what a session wrote when that session ends.
    SessionIsLease,
    /// A client of a store without a clock does not wait until a lease has certainly ended.
    EarlyEnd,
    /// Commits of a lost session that are still outstanding can take effect later.
    Unsoiled,
    /// Masters that are stores vote at once after a restart.
    StoreGuardOff,
    /// A lease is written with the time that the server's clock has certainly reached, instead of the latest time that
    /// it may have reached.
    NoSlack,
    /// A session that was given up is used again: each reply is taken for the reply to the next request.
    KeptSession,
    /// Clients of both sets need a majority of all masters together, instead of a majority of each set.
    JointUnion,
    /// Clients of both sets need only a majority of the old masters.
    JointOldOnly,
    /// Clients of both sets need only a majority of the new masters.
    JointNextOnly,
    /// Masters refuse no client, whatever their generation marker is.
    NextBesideOld,
    /// The operator waits before it opens the new masters only if it sees clients that use only the old masters.
    LeftoverLock,
    /// The fencing token is agreed on by the old masters only.
    FenceOneSet,
    /// A counter above the fencing token confirms the token while masters are replaced.
    ConfirmAtLeastJoint,
    /// Counters are not carried over to the new masters.
    NoCarry,
    /// Counters are read for the new masters before the old masters are closed.
    CarryBeforeClose,
    /// Counters are read for the new masters on only one old master.
    CarryMinority,
    /// Tickets are drawn on the old masters only.
    TicketOneSet,
    /// Only one old master is closed, and the operator takes the other masters for closed.
    CloseMinority,
    /// The operator opens the new masters at once, without waiting until old leases have ended.
    OpenWithoutWait,
    /// A closed master already admits clients of the new masters.
    ClosingOpens,
    /// A client that a master no longer admits may still extend its locks there.
    ExtendUnrefused,
    /// Connections of clients that a master no longer admits are not closed.
    MarkWithoutKill,
    /// Masters that are no longer used are restarted instead of stopped for good. They lose their generation markers,
    /// and no client restores the markers.
    MarkLostOnRestart,
    /// A dead master is replaced at once by reconfiguring the clients with another master.
    ReplaceDeadAtOnce,
    /// A dead master was replaced by reconfiguring the clients, and then comes back.
    DeadComesBack,
    /// A restarted master reports its old run id and uptime, so clients do not notice the restart.
    WarmSpare,
    /// Values are not carried over: clients of the new masters find no values.
    ValuesLeftBehind,
    /// The operator takes a value that one master shows for the value of a majority.
    CarryOneShown,
    /// A counter is kept for only a day, even if it is ahead of the clock.
    CounterForADay,
}

impl Flaw {
    /// Every seeded bug that drawn scenarios can show. `Sound` is no bug. `ConfirmAnyKey` shows only if one of several
    /// resources is lost during a confirmation, so hand-written scenarios show it.
    pub const ALL: [Self; 57] = [
        Self::HalfQuorum,
        Self::ReachableQuorum,
        Self::ValidityAfterReplies,
        Self::NoDrift,
        Self::ReusedValue,
        Self::LargestCounter,
        Self::LateExtension,
        Self::ExtensionAfterReplies,
        Self::LossAtTick,
        Self::UnconditionalDelete,
        Self::ConfirmAtLeast,
        Self::ShorteningExtend,
        Self::GuardOff,
        Self::UptimeAhead,
        Self::NoFixedDrift,
        Self::ClockAfterSend,
        Self::DropsWithoutRelease,
        Self::ReleasesMajority,
        Self::RenewsOnlyFirst,
        Self::LossAtDeadline,
        Self::OverstaysWait,
        Self::NobodyWoken,
        Self::TicketNotRaised,
        Self::CountedHolds,
        Self::NewestExpiry,
        Self::MarkerlessReaders,
        Self::ReaderNoRaise,
        Self::ReaderAtLeast,
        Self::KeepNoRaise,
        Self::LateKeep,
        Self::DowngradeNoRaise,
        Self::DowngradeWritesOn,
        Self::ReadersPassWriters,
        Self::WritersFirst,
        Self::SinglePassesMulti,
        Self::MultiOwnCounter,
        Self::PartialGrantCounts,
        Self::OwnerInLine,
        Self::OwnerWritesBack,
        Self::OwnerAnyNumber,
        Self::LocalCountAnswers,
        Self::BlindWrite,
        Self::ReadNoRaise,
        Self::SmallerNumberRead,
        Self::MissingIsInitial,
        Self::NoRunStamp,
        Self::RemovedNowhere,
        Self::NoteOfAnybody,
        Self::NoteLeft,
        Self::NoteOfLast,
        Self::TermOfOne,
        Self::TicketPerResource,
        Self::MgetWrongtype,
        Self::CountToK,
        Self::MasterPicksSlot,
        Self::NoSemaphoreLine,
        Self::CounterForADay,
    ];

    /// The seeded bugs of stores. Only scenarios with stores show them.
    pub const OF_STORES: [Self; 7] = [
        Self::VersionsAgain,
        Self::SessionIsLease,
        Self::EarlyEnd,
        Self::Unsoiled,
        Self::StoreGuardOff,
        Self::NoSlack,
        Self::KeptSession,
    ];

    /// Whether the bug is one of stores.
    pub fn is_of_stores(self) -> bool {
        Self::OF_STORES.contains(&self)
    }

    /// The flaw that the driver for stores simulates for this bug; `None` if the driver is not involved.
    pub(crate) fn of_driver(self) -> Option<StoreFlaw> {
        match self {
            Self::EarlyEnd => Some(StoreFlaw::EarlyEnd),
            Self::Unsoiled => Some(StoreFlaw::Unsoiled),
            Self::NoSlack => Some(StoreFlaw::NoSlack),
            _ => None,
        }
    }

    /// The name of the bug, for commands and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::HalfQuorum => "half-quorum",
            Self::ReachableQuorum => "reachable-quorum",
            Self::ValidityAfterReplies => "validity-after-replies",
            Self::NoDrift => "no-drift",
            Self::ReusedValue => "reused-value",
            Self::LargestCounter => "largest-counter",
            Self::LateExtension => "late-extension",
            Self::ExtensionAfterReplies => "extension-after-replies",
            Self::LossAtTick => "loss-at-tick",
            Self::UnconditionalDelete => "unconditional-delete",
            Self::ConfirmAtLeast => "confirm-at-least",
            Self::ShorteningExtend => "shortening-extend",
            Self::GuardOff => "guard-off",
            Self::UptimeAhead => "uptime-ahead",
            Self::NoFixedDrift => "no-fixed-drift",
            Self::ClockAfterSend => "clock-after-send",
            Self::DropsWithoutRelease => "drops-without-release",
            Self::ReleasesMajority => "releases-majority",
            Self::RenewsOnlyFirst => "renews-only-first",
            Self::LossAtDeadline => "loss-at-deadline",
            Self::OverstaysWait => "overstays-wait",
            Self::NobodyWoken => "nobody-woken",
            Self::TicketNotRaised => "ticket-not-raised",
            Self::CountedHolds => "counted-holds",
            Self::NewestExpiry => "newest-expiry",
            Self::MarkerlessReaders => "markerless-readers",
            Self::ReaderNoRaise => "reader-no-raise",
            Self::ReaderAtLeast => "reader-at-least",
            Self::KeepNoRaise => "keep-no-raise",
            Self::LateKeep => "late-keep",
            Self::DowngradeNoRaise => "downgrade-no-raise",
            Self::DowngradeWritesOn => "downgrade-writes-on",
            Self::ReadersPassWriters => "readers-pass-writers",
            Self::WritersFirst => "writers-first",
            Self::SinglePassesMulti => "single-passes-multi",
            Self::MultiOwnCounter => "multi-own-counter",
            Self::ConfirmAnyKey => "confirm-any-key",
            Self::PartialGrantCounts => "partial-grant-counts",
            Self::OwnerInLine => "owner-in-line",
            Self::OwnerWritesBack => "owner-writes-back",
            Self::OwnerAnyNumber => "owner-any-number",
            Self::LocalCountAnswers => "local-count-answers",
            Self::NoteOfAnybody => "note-of-anybody",
            Self::NoteLeft => "note-left",
            Self::NoteOfLast => "note-of-last",
            Self::TermOfOne => "term-of-one",
            Self::SoundRegister => "sound-register",
            Self::BlindWrite => "blind-write",
            Self::RemovedNowhere => "removed-nowhere",
            Self::ReadNoRaise => "read-no-raise",
            Self::SmallerNumberRead => "smaller-number-read",
            Self::MissingIsInitial => "missing-is-initial",
            Self::NoRunStamp => "no-run-stamp",
            Self::LateRefill => "late-refill",
            Self::WriteElsewhere => "write-elsewhere",
            Self::TicketPerResource => "ticket-per-resource",
            Self::MgetWrongtype => "mget-wrongtype",
            Self::CountToK => "count-to-k",
            Self::MasterPicksSlot => "master-picks-slot",
            Self::NoSemaphoreLine => "no-semaphore-line",
            Self::CounterForADay => "counter-for-a-day",
            of_changes if of_changes.is_of_changes() => of_changes.name_at_changes(),
            of_stores => of_stores.name_at_stores(),
        }
    }

    /// The name of a bug of stores.
    fn name_at_stores(self) -> &'static str {
        match self {
            Self::VersionsAgain => "versions-again",
            Self::SessionIsLease => "session-is-lease",
            Self::EarlyEnd => "early-end",
            Self::Unsoiled => "unsoiled",
            Self::StoreGuardOff => "store-guard-off",
            Self::NoSlack => "no-slack",
            _ => "kept-session",
        }
    }

    /// Returns the seeded bug with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let all = Self::ALL.into_iter().chain(Self::OF_STORES);
        let all = all.chain(Self::OF_CHANGES).chain([
            Self::Sound,
            Self::ConfirmAnyKey,
            Self::SoundRegister,
            Self::LateRefill,
            Self::WriteElsewhere,
        ]);
        all.into_iter().find(|flaw| flaw.name() == name)
    }

    /// Whether the bug is one of the small client, which then replaces the library.
    pub(crate) fn is_locker(self) -> bool {
        !self.is_of_kinds()
            && !self.is_of_values()
            && !self.is_of_notes()
            && !self.is_of_stores()
            && !self.is_of_changes()
            && !matches!(
                self,
                Self::UnconditionalDelete
                    | Self::ConfirmAtLeast
                    | Self::ShorteningExtend
                    | Self::GuardOff
                    | Self::UptimeAhead
                    | Self::NobodyWoken
                    | Self::TicketNotRaised
            )
    }
}

impl Flaw {
    /// Whether the bug is one of values under locks. Only scenarios with values show it.
    pub fn is_of_values(self) -> bool {
        matches!(
            self,
            Self::SoundRegister
                | Self::BlindWrite
                | Self::RemovedNowhere
                | Self::ReadNoRaise
                | Self::SmallerNumberRead
                | Self::MissingIsInitial
                | Self::NoRunStamp
                | Self::LateRefill
                | Self::WriteElsewhere
        )
    }
}

impl Flaw {
    /// Whether the bug is one of notes. Only scenarios with notes show it.
    pub fn is_of_notes(self) -> bool {
        matches!(
            self,
            Self::NoteOfAnybody | Self::NoteLeft | Self::NoteOfLast | Self::TermOfOne
        )
    }
}

impl Flaw {
    /// Whether the bug is one of several resources, readers, owners or semaphores. Only scenarios with such locks show
    /// it.
    pub fn is_of_kinds(self) -> bool {
        matches!(
            self,
            Self::CountedHolds
                | Self::NewestExpiry
                | Self::MarkerlessReaders
                | Self::ReaderNoRaise
                | Self::ReaderAtLeast
                | Self::KeepNoRaise
                | Self::LateKeep
                | Self::DowngradeNoRaise
                | Self::DowngradeWritesOn
                | Self::ReadersPassWriters
                | Self::WritersFirst
                | Self::SinglePassesMulti
                | Self::MultiOwnCounter
                | Self::ConfirmAnyKey
                | Self::PartialGrantCounts
                | Self::OwnerInLine
                | Self::OwnerWritesBack
                | Self::OwnerAnyNumber
                | Self::LocalCountAnswers
                | Self::TicketPerResource
                | Self::MgetWrongtype
                | Self::CountToK
                | Self::MasterPicksSlot
                | Self::NoSemaphoreLine
        )
    }
}

impl Flaw {
    /// Whether the bug is one of semaphores.
    pub(crate) fn is_of_permits(self) -> bool {
        matches!(
            self,
            Self::CountToK | Self::MasterPicksSlot | Self::NoSemaphoreLine
        )
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
