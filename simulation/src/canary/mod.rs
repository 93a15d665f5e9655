//! Wrong lockers that the checkers must reject: a checker that lets one through is broken.
//!
//! Wrong scripts run under the real library: only the simulated masters, or the connection, do
//! something else than they should. Wrong clients are variants of one small locker of this crate,
//! [`WrongLocker`], whose sound variant must pass: so it is the flaw that is caught.

mod as_it_stands;
mod counted;
mod locker;
mod masters;
mod notes;
mod permits;
mod register;
mod scripts;
mod strangers;
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

/// What is wrong with a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing, in the small locker: the control.
    Sound,
    /// N / 2 votes are thought to be enough.
    HalfQuorum,
    /// A majority of the masters that answered is thought to be enough.
    ReachableQuorum,
    /// The validity is counted from the last answer.
    ValidityAfterReplies,
    /// Nothing is taken off for drift.
    NoDrift,
    /// All attempts of one acquire have one value.
    ReusedValue,
    /// The fencing token is the largest counter granted, without a second round.
    LargestCounter,
    /// An extension counts whenever its votes come.
    LateExtension,
    /// The validity of an extension is counted from its answers.
    ExtensionAfterReplies,
    /// The holder is told of a loss when the next renewal is due.
    LossAtTick,
    /// The release deletes whatever stands there.
    UnconditionalDelete,
    /// A counter above the token confirms it as well.
    ConfirmAtLeast,
    /// An extension sets the expiry also where it is later already.
    ShorteningExtend,
    /// Restarted masters vote at once.
    GuardOff,
    /// The uptime that the restart guard trusts is two seconds too high.
    UptimeAhead,
    /// Only the part of the ttl is taken off for drift, and nothing for whole milliseconds.
    NoFixedDrift,
    /// The validity is counted from a look at the clock right behind the send.
    ClockAfterSend,
    /// Who drops a lock or an acquire releases nothing.
    DropsWithoutRelease,
    /// Only a majority of the masters is released.
    ReleasesMajority,
    /// Only the first lock of a process is renewed.
    RenewsOnlyFirst,
    /// The holder of a lock that was taken away is told at the end of its validity.
    LossAtDeadline,
    /// An acquire waits for twice as long as it was asked to.
    OverstaysWait,
    /// Masters wake nobody when a lock becomes free.
    NobodyWoken,
    /// Masters tell of a largest ticket that is one too small.
    TicketNotRaised,
    /// Holds of a class are counted and not named.
    CountedHolds,
    /// A class stands as long as its newest hold.
    NewestExpiry,
    /// Readers leave no marker in the lock key.
    MarkerlessReaders,
    /// The first reader does not raise the counter.
    ReaderNoRaise,
    /// A counter above a reader's number confirms it as well.
    ReaderAtLeast,
    /// A reader that is put back does not raise the counter that has passed it.
    KeepNoRaise,
    /// An owner is put back although others have been there since.
    LateKeep,
    /// A writer that becomes a reader does not raise the counter.
    DowngradeNoRaise,
    /// A writer that becomes a reader writes until it is one.
    DowngradeWritesOn,
    /// Readers pass writers that wait.
    ReadersPassWriters,
    /// Writers pass readers that wait.
    WritersFirst,
    /// Who takes one resource passes who waits for several.
    SinglePassesMulti,
    /// Each of several resources counts for itself.
    MultiOwnCounter,
    /// One of several resources confirms the number.
    ConfirmAnyKey,
    /// A master that grants some of several resources counts.
    PartialGrantCounts,
    /// A further hold of an owner stands in line.
    OwnerInLine,
    /// A further hold of an owner confirms a number of its own.
    OwnerWritesBack,
    /// A hold of an owner counts whatever number the master shows.
    OwnerAnyNumber,
    /// A further hold of an owner is what the process counts, held or not.
    LocalCountAnswers,
    /// Whoever comes late writes its note beside the lock of another.
    NoteOfAnybody,
    /// A release leaves its note behind.
    NoteLeft,
    /// A refusal tells whatever note stands beside the lock as that of its holder.
    NoteOfLast,
    /// An observer of an election believes one master, and another one at the next look: terms fall.
    TermOfOne,
    /// Nothing, in the small client of values: the control.
    SoundRegister,
    /// A write looks at no number.
    BlindWrite,
    /// Masters say that they have removed a value, and keep it.
    RemovedNowhere,
    /// A read leaves no number.
    ReadNoRaise,
    /// The value of a read is that of the smallest number.
    SmallerNumberRead,
    /// A master without a value counts as one with the first.
    MissingIsInitial,
    /// What another run of a server wrote counts.
    NoRunStamp,
    /// A write goes out whenever a connection comes, to any run of a server, and counts there.
    LateRefill,
    /// A write counts on masters that were not read.
    WriteElsewhere,
    /// Each of several resources has a ticket of its own.
    TicketPerResource,
    /// A master writes over the keys of strangers that have another type.
    MgetWrongtype,
    /// Permits are counted and not named.
    CountToK,
    /// A master offers its own lowest free slot.
    MasterPicksSlot,
    /// Semaphores have no line.
    NoSemaphoreLine,
    /// The versions of a record come again after a few changes.
    VersionsAgain,
    /// A store removes what a session wrote when that ends.
    SessionIsLease,
    /// Who looks at a store without a clock does not wait for the end of a lease.
    EarlyEnd,
    /// What a lost session may still do is not made harmless.
    Unsoiled,
    /// Masters that are stores vote at once after a restart.
    StoreGuardOff,
    /// Leases are written by what the server's clock has certainly reached, and not by what it may have.
    NoSlack,
    /// A session that was given up is used again: each answer is read as that of the next question.
    KeptSession,
    /// Clients of two sets need a majority of all masters.
    JointUnion,
    /// Clients of two sets need a majority of the masters that are.
    JointOldOnly,
    /// Clients of two sets need a majority of those that will be.
    JointNextOnly,
    /// Masters refuse nobody.
    NextBesideOld,
    /// Who changes masters waits only where processes with the old ones are seen.
    LeftoverLock,
    /// The number is agreed on the masters that are.
    FenceOneSet,
    /// A counter above the number confirms it as well.
    ConfirmAtLeastJoint,
    /// Counters are not carried.
    NoCarry,
    /// Counters are read before the old masters are closed.
    CarryBeforeClose,
    /// Counters are read on one master.
    CarryMinority,
    /// Tickets are drawn from the masters that are.
    TicketOneSet,
    /// One old master is closed.
    CloseMinority,
    /// The next masters are opened at once.
    OpenWithoutWait,
    /// A closed master is open for clients of the next masters.
    ClosingOpens,
    /// Who is closed out may prolong.
    ExtendUnrefused,
    /// Connections of those who are closed out go on.
    MarkWithoutKill,
    /// Masters that are left over are started anew instead of stopped for good; marks do not survive that, and nobody gives
    /// them again.
    MarkLostOnRestart,
    /// A master that has died is replaced at once, by naming another one.
    ReplaceDeadAtOnce,
    /// A master that was replaced so comes back.
    DeadComesBack,
    /// Another server that has been up for long is taken for the one before.
    WarmSpare,
    /// Values stay where they are: who opens the next masters finds none.
    ValuesLeftBehind,
    /// Who carries values takes one that is shown for that of a majority.
    CarryOneShown,
    /// A counter is kept for a day, also where it is ahead of the clock.
    CounterForADay,
}

impl Flaw {
    /// Every canary that drawn worlds meet; the sound one is not among them, and one resource of several is
    /// lost in the moment of a confirmation in worlds that are made for it only.
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

    /// Those of masters that are stores, in worlds that have some.
    pub const OF_STORES: [Self; 7] = [
        Self::VersionsAgain,
        Self::SessionIsLease,
        Self::EarlyEnd,
        Self::Unsoiled,
        Self::StoreGuardOff,
        Self::NoSlack,
        Self::KeptSession,
    ];

    /// Whether it is wrong with stores.
    pub fn is_of_stores(self) -> bool {
        Self::OF_STORES.contains(&self)
    }

    /// What it breaks in the driver of stores.
    pub(crate) fn of_driver(self) -> Option<StoreFlaw> {
        match self {
            Self::EarlyEnd => Some(StoreFlaw::EarlyEnd),
            Self::Unsoiled => Some(StoreFlaw::Unsoiled),
            Self::NoSlack => Some(StoreFlaw::NoSlack),
            _ => None,
        }
    }

    /// Its name, for commands and tables.
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

    /// The same of those of stores.
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

    /// The canary of that name.
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

    /// Whether it takes the library's place.
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
    /// Whether it is wrong with the values under locks: it shows only where there are such.
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
    /// Whether it is wrong with what holders say of themselves.
    pub fn is_of_notes(self) -> bool {
        matches!(
            self,
            Self::NoteOfAnybody | Self::NoteLeft | Self::NoteOfLast | Self::TermOfOne
        )
    }
}

impl Flaw {
    /// Whether it is wrong with several resources, readers, owners or semaphores: it shows only where there are such.
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
    /// Whether it is wrong with semaphores.
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
