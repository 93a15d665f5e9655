//! The names of the seeded bugs, and what each of them concerns. The code of the bugs is in `seeded_bugs/`, and at the
//! places that ask for a [`Flaw`].

use std::fmt;

use quorate::node::store::StoreFlaw;

/// A seeded bug. The comment of each variant describes the faulty behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No bug: the small client without a flaw. It must break no rule.
    Sound,
    /// A client accepts half of the masters as a majority.
    HalfQuorum,
    /// A client needs only a majority of the masters that have answered, instead of a majority of all masters.
    ReachableQuorum,
    /// A client counts the validity of a lock from the last reply instead of from the request.
    ValidityAfterReplies,
    /// A client does not shorten the validity of a lock to allow for clock drift.
    NoDrift,
    /// All attempts of one acquire use the same lock value, instead of a new random value for each attempt.
    ReusedValue,
    /// The largest counter among the grants becomes the fencing token, without the confirmation of a majority.
    LargestCounter,
    /// A client accepts an extension even if the votes for it arrive after the old validity has ended.
    LateExtension,
    /// A client counts the validity of an extended lock from the replies instead of from the request.
    ExtensionAfterReplies,
    /// When the validity ends, the holder is not notified immediately, but only at the time of the next renewal.
    LossAtTick,
    /// A holder gets no notice that its lock may be lost soon.
    NoRiskNotice,
    /// A holder gets the notice that its lock may be lost soon only when the lock is lost.
    RiskNoticeAtLoss,
    /// If the margin of a holder is longer than the TTL, the notice that its lock may be lost soon comes although all
    /// renewals succeed.
    RiskMarginUncapped,
    /// A release deletes the lock key even if the key contains another lock value.
    UnconditionalDelete,
    /// A master confirms a fencing token even if the master's fencing counter is above the token.
    ConfirmAtLeast,
    /// An extension sets the expiry of the key even if this shortens the lease.
    ShorteningExtend,
    /// Restarted masters vote immediately, because the restart guard is off.
    GuardOff,
    /// The restart guard receives an uptime that is two seconds longer than the master's real uptime.
    UptimeAhead,
    /// A client shortens the validity by a share of the TTL, but not by the fixed amount for rounding to milliseconds.
    NoFixedDrift,
    /// The client reads the clock after it has sent the request, and counts the validity from this reading. A correct
    /// client reads the clock before it sends the request.
    ClockAfterSend,
    /// Dropping a lock or an acquire future releases nothing.
    DropsWithoutRelease,
    /// A client sends a release to only a majority of the masters.
    ReleasesMajority,
    /// Only the first lock that a client acquires is renewed.
    RenewsOnlyFirst,
    /// The holder of a force-released lock is notified only when the validity ends.
    LossAtDeadline,
    /// An acquire waits for twice as long as requested.
    OverstaysWait,
    /// Masters send no wake-up when a lock becomes free.
    NobodyWoken,
    /// A refusal reports a number that is one below the largest ticket in the master's queue. So a new waiter may take
    /// a ticket that another waiter already has.
    TicketNotRaised,
    /// For a shared lock, a master stores only the number of holds, not the lock value of each hold.
    CountedHolds,
    /// The key of a shared lock expires with the hold that was granted or extended last. It should expire with the hold
    /// that ends last.
    NewestExpiry,
    /// Readers store no marker in the lock key, so the lock looks free to writers.
    MarkerlessReaders,
    /// The grant to the first reader of a lock does not raise the fencing counter.
    ReaderNoRaise,
    /// A master confirms a reader's fencing token even if the master's counter is above the token.
    ReaderAtLeast,
    /// When a master restores a reader's lost hold, it does not raise its fencing counter. It should raise a counter
    /// that is above the reader's fencing token.
    KeepNoRaise,
    /// A master restores a hold that an owner has lost, even if another client has held the lock since.
    LateKeep,
    /// A downgrade does not raise the fencing counter.
    DowngradeNoRaise,
    /// A writer that downgrades considers itself a writer until the downgrade is confirmed.
    DowngradeWritesOn,
    /// Readers overtake waiting writers.
    ReadersPassWriters,
    /// Writers overtake waiting readers.
    WritersFirst,
    /// A client that waits for one resource overtakes a client that waits for several resources.
    SinglePassesMulti,
    /// A master gives each resource of a lock on several resources its own counter value, instead of one value for all.
    MultiOwnCounter,
    /// A master confirms the fencing token of a lock on several resources, even if it has lost the lock on some of
    /// them.
    ConfirmAnyKey,
    /// A master that can grant only some of several resources replies as if it had granted all of them.
    PartialGrantCounts,
    /// An owner that already holds a lock, and acquires it again, waits in the queue behind other clients.
    OwnerInLine,
    /// A master confirms a larger fencing token for a new hold of an owner, although the owner already has a hold with
    /// a smaller token. All holds of an owner should have the same token.
    OwnerWritesBack,
    /// A master does not check the fencing token of an owner's hold when it extends or restores the hold.
    OwnerAnyNumber,
    /// A process that already has a hold of an owner does not ask the masters when the owner acquires the lock again.
    /// So it does not notice that the masters have lost the lock.
    LocalCountAnswers,
    /// A master accepts a note that a former holder sends late, and stores it as the note of the present holder.
    NoteOfAnybody,
    /// A release does not delete the note of the released lock.
    NoteLeft,
    /// A refusal contains the stored note even if an earlier holder wrote it.
    NoteOfLast,
    /// An observer of an election reports the reply of each single master, without a majority. So the reported terms
    /// can decrease.
    TermOfOne,
    /// No bug: the correct variant of the small client that reads and writes values under locks. It must break no rule.
    SoundRegister,
    /// A master accepts a write of a value although the master's fencing counter is above the writer's fencing token.
    BlindWrite,
    /// Masters report that they have removed a value, but keep it.
    RemovedNowhere,
    /// A read of a value does not raise the fencing counter.
    ReadNoRaise,
    /// A read returns the value with the smallest fencing token instead of the largest.
    SmallerNumberRead,
    /// A client treats a master without a value as if it had returned the initial value.
    MissingIsInitial,
    /// A client accepts values that a master stored before its last restart.
    NoRunStamp,
    /// A client counts a write even if the master has restarted since the client read the value from it.
    LateRefill,
    /// A client counts a write on a master from which it has not read the value.
    WriteElsewhere,
    /// Each resource of a lock on several resources has a ticket of its own, instead of one ticket for all.
    TicketPerResource,
    /// If another program's value under the lock key is not a string, a grant overwrites it.
    WrongTypeReadAsMissing,
    /// Masters only count the held permits of a semaphore, instead of assigning a slot to each permit.
    CountToK,
    /// Each master offers the client only one slot of the semaphore: the lowest slot that is free on this master.
    MasterPicksSlot,
    /// Semaphores have no queue.
    NoSemaphoreLine,
    /// The version number of a record in a store repeats after a few changes.
    VersionsAgain,
    /// When a session ends, the store removes the records that the session wrote.
    SessionIsLease,
    /// A client of a store without a clock considers another client's lease expired after a third of the lease time.
    EarlyEnd,
    /// A client has lost its session. It does not give new versions to the records that the session was changing, so a
    /// late commit of this session may still change them.
    Unsoiled,
    /// Masters that are stores vote immediately after a restart.
    StoreGuardOff,
    /// A client assumes that its estimate of a store's clock is exact. If the estimate is too low, a lease expires too
    /// early.
    NoSlack,
    /// If the store has no clock, a new process believes the age of a lease that the store's dates show, whatever the
    /// wall clocks show.
    StoreAlone,
    /// If the store has no clock, a new process believes the age of a lease that the wall clocks of the clients show,
    /// whatever the store's dates show.
    WallAlone,
    /// A client compares dates that different leaders of a store gave.
    AnyEra,
    /// A client that finds a lease of unknown age leaves no note of it in the record. So processes that try only once
    /// never get the lock.
    NoSightings,
    /// A client reuses a session after a request without an answer. When the late answer arrives, the client takes it
    /// for the answer to its next request.
    KeptSession,
    /// A client that meets a run of a store for the first time trusts it at once.
    NewRunTrusted,
    /// A client adds the time since its own start to the age of a store's run.
    OwnAgeAdded,
    /// A client takes the time since the start of a store's server, by the server's wall clock, for the age of the run.
    AgeFromServerDate,
    /// A client uses the row of a store's run, although the server was started at another time, or its records are in
    /// another file.
    OldCopyTrusted,
    /// A session notices neither that the table of records was emptied, nor that another run has begun.
    TableUnchecked,
    /// A client accepts a lower number of the latest change than it has seen.
    SetBackAccepted,
    /// The versions of a restored store do not contain the identity that an administrator gave it after the restore.
    VersionsWithoutIdentity,
    /// Clients that use the old and the new masters need a majority of the union, instead of a majority of each set.
    JointUnion,
    /// Clients that use the old and the new masters need only a majority of the old masters.
    JointOldOnly,
    /// Clients that use the old and the new masters need only a majority of the new masters.
    JointNextOnly,
    /// Masters ignore their generation markers. So they vote for clients of the old masters and for clients of the new
    /// masters at the same time.
    MarkersIgnored,
    /// If no connected client uses only the old masters, the operator lets the new masters vote immediately.
    /// Disconnected clients of the old masters may still hold locks.
    LeftoverLock,
    /// While masters are replaced, only the old masters decide the fencing token.
    FenceOneSet,
    /// While masters are replaced, a master confirms a fencing token even if the master's counter is above the token.
    ConfirmAtLeastJoint,
    /// Masters ignore the fencing counters that the operator copies to them.
    NoCarry,
    /// The operator reads the fencing counters for the new masters too early: the old masters still vote for their
    /// clients, and may still raise the counters.
    CarryBeforeClose,
    /// The operator reads the fencing counters for the new masters from only one old master.
    CarryMinority,
    /// While masters are replaced, waiters draw their tickets on the old masters only.
    TicketOneSet,
    /// The operator closes only one old master, but considers all old masters closed. (A closed master does not vote
    /// for clients that use only the old masters.)
    CloseMinority,
    /// The operator lets the new masters vote immediately, without waiting until the locks of the old masters' clients
    /// have expired.
    OpenWithoutWait,
    /// A master votes too early for clients that use only the new masters: as soon as it refuses clients that use only
    /// the old masters.
    ClosingOpens,
    /// A master extends the locks of a client even if the master no longer admits the client.
    ExtendUnrefused,
    /// The operator does not close the connections of clients that a master no longer admits.
    MarkWithoutKill,
    /// Replaced masters restart, although an operator should have stopped them. Restarted masters lose their generation
    /// markers for ever, so they vote for clients that use only the old masters.
    MarkLostOnRestart,
    /// A dead master is replaced immediately by reconfiguring the clients, without an operator.
    ReplaceDeadAtOnce,
    /// A dead master is replaced by reconfiguring the clients, without an operator. Later the dead master starts again.
    DeadComesBack,
    /// After a restart, a master reports its old run id, and an uptime that includes the time before the restart.
    WarmSpare,
    /// Masters report to the operator that they store no values. So the operator copies no values to the new masters.
    ValuesLeftBehind,
    /// The operator copies a value that it has read from a single master, instead of a value on which a majority
    /// agrees.
    CarryOneShown,
    /// The operator copies values without taking their locks, so clients may write while the operator copies.
    CarryWithoutLock,
    /// Masters delete an unused fencing counter after a day, even if the counter (roughly a time) is ahead of the
    /// master's clock.
    CounterForADay,
    /// A grant never renews the expiry of a fencing counter. So the counter expires although the lock is in use.
    CounterKeepsExpiry,
    /// A force-release writes break records only on the masters that have the lock key, and deletes the key at once.
    BreakWhereHeld,
    /// Clients use the uptime that a master computes from its wall clock, instead of the age that clients have counted.
    AgeFromUptime,
    /// Clients use the age record of a master even if it was written in an earlier run of the server.
    AgeOfEarlierRun,
    /// After a client has restored the generation marker of a master, the master votes immediately.
    RestoredMarkerIsOld,
}

impl Flaw {
    /// The seeded bugs that randomly drawn scenarios can reveal. This list does not contain:
    ///
    /// - the bugs in [`STORE_BUGS`](Self::STORE_BUGS), [`CHANGE_BUGS`](Self::CHANGE_BUGS) and
    ///   [`CLOCK_BUGS`](Self::CLOCK_BUGS);
    /// - `ConfirmAnyKey`, `LateRefill`, `WriteElsewhere` and `VersionsWithoutIdentity`, which only hand-written scenarios reveal
    ///   (`tests/all/kinds.rs`, `tests/all/values.rs`, `tests/all/stores.rs`).
    pub const REDIS_BUGS: [Self; 62] = [
        Self::HalfQuorum,
        Self::ReachableQuorum,
        Self::ValidityAfterReplies,
        Self::NoDrift,
        Self::ReusedValue,
        Self::LargestCounter,
        Self::LateExtension,
        Self::ExtensionAfterReplies,
        Self::LossAtTick,
        Self::NoRiskNotice,
        Self::RiskNoticeAtLoss,
        Self::RiskMarginUncapped,
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
        Self::WrongTypeReadAsMissing,
        Self::CountToK,
        Self::MasterPicksSlot,
        Self::NoSemaphoreLine,
        Self::CounterForADay,
        Self::CounterKeepsExpiry,
        Self::BreakWhereHeld,
    ];

    /// The seeded bugs in stores. Only scenarios with stores can reveal them.
    pub const STORE_BUGS: [Self; 13] = [
        Self::VersionsAgain,
        Self::SessionIsLease,
        Self::EarlyEnd,
        Self::Unsoiled,
        Self::StoreGuardOff,
        Self::NoSlack,
        Self::KeptSession,
        Self::NewRunTrusted,
        Self::OwnAgeAdded,
        Self::AgeFromServerDate,
        Self::OldCopyTrusted,
        Self::TableUnchecked,
        Self::SetBackAccepted,
    ];

    /// The seeded bugs in the rule by which a new process judges the age of a lease. Only scenarios with stores without
    /// a clock and with brief processes can reveal them.
    pub const SHORT_PROCESS_BUGS: [Self; 4] = [
        Self::StoreAlone,
        Self::WallAlone,
        Self::AnyEra,
        Self::NoSightings,
    ];

    /// Whether this bug is in the rule by which a new process judges the age of a lease.
    pub fn is_of_tries(self) -> bool {
        Self::SHORT_PROCESS_BUGS.contains(&self)
    }

    /// Whether this bug concerns stores.
    pub fn is_of_stores(self) -> bool {
        Self::STORE_BUGS.contains(&self) || self == Self::VersionsWithoutIdentity
    }

    /// The flaw in the library's driver for stores; `None` if this bug is elsewhere.
    pub(crate) fn driver_flaw(self) -> Option<StoreFlaw> {
        match self {
            Self::EarlyEnd => Some(StoreFlaw::EarlyEnd),
            Self::Unsoiled => Some(StoreFlaw::Unsoiled),
            Self::NoSlack => Some(StoreFlaw::NoSlack),
            Self::StoreAlone => Some(StoreFlaw::StoreAlone),
            Self::WallAlone => Some(StoreFlaw::WallAlone),
            Self::AnyEra => Some(StoreFlaw::AnyEra),
            Self::NoSightings => Some(StoreFlaw::NoSightings),
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
            Self::WrongTypeReadAsMissing => "mget-wrongtype",
            Self::CountToK => "count-to-k",
            Self::MasterPicksSlot => "master-picks-slot",
            Self::NoSemaphoreLine => "no-semaphore-line",
            Self::CounterForADay => "counter-for-a-day",
            Self::CounterKeepsExpiry => "counter-keeps-expiry",
            Self::BreakWhereHeld => "break-where-held",
            of_other_families => of_other_families.name_in_other_families(),
        }
    }

    /// The name of a seeded bug in the notice that a lock may be lost soon, or of one that only changes of masters,
    /// jumping clocks or stores reveal.
    fn name_in_other_families(self) -> &'static str {
        match self {
            of_changes if of_changes.is_of_changes() => of_changes.name_at_changes(),
            of_clocks if of_clocks.is_of_clocks() => of_clocks.name_at_clocks(),
            of_risks if of_risks.is_of_risk_notices() => of_risks.name_at_risk_notices(),
            of_stores => of_stores.name_at_stores(),
        }
    }

    /// The name of a seeded bug in stores, for commands and tables.
    fn name_at_stores(self) -> &'static str {
        match self {
            Self::VersionsAgain => "versions-again",
            Self::SessionIsLease => "session-is-lease",
            Self::EarlyEnd => "early-end",
            Self::Unsoiled => "unsoiled",
            Self::StoreGuardOff => "store-guard-off",
            Self::NoSlack => "no-slack",
            Self::StoreAlone => "store-alone",
            Self::WallAlone => "wall-alone",
            Self::AnyEra => "any-era",
            Self::NoSightings => "no-sightings",
            Self::NewRunTrusted => "new-run-trusted",
            Self::OwnAgeAdded => "own-age-added",
            Self::AgeFromServerDate => "age-from-server-date",
            Self::OldCopyTrusted => "old-copy-trusted",
            Self::TableUnchecked => "table-unchecked",
            Self::SetBackAccepted => "set-back-accepted",
            Self::VersionsWithoutIdentity => "versions-without-identity",
            _ => "kept-session",
        }
    }

    /// Returns the seeded bug with this name; `None` if there is none.
    pub fn by_name(name: &str) -> Option<Self> {
        let mut bugs = Self::REDIS_BUGS
            .into_iter()
            .chain(Self::STORE_BUGS)
            .chain(Self::SHORT_PROCESS_BUGS)
            .chain(Self::CHANGE_BUGS)
            .chain(Self::CLOCK_BUGS)
            .chain([
                Self::Sound,
                Self::ConfirmAnyKey,
                Self::SoundRegister,
                Self::LateRefill,
                Self::WriteElsewhere,
                Self::VersionsWithoutIdentity,
            ]);
        bugs.find(|flaw| flaw.name() == name)
    }

    /// Whether this bug is a variant of the small client `WrongLocker`, which then replaces the library.
    pub(crate) fn is_locker(self) -> bool {
        !self.is_of_kinds()
            && !self.is_of_values()
            && !self.is_of_notes()
            && !self.is_of_risk_notices()
            && !self.is_of_stores()
            && !self.is_of_tries()
            && !self.is_of_changes()
            && !self.is_of_clocks()
            && !matches!(
                self,
                Self::UnconditionalDelete
                    | Self::ConfirmAtLeast
                    | Self::ShorteningExtend
                    | Self::GuardOff
                    | Self::UptimeAhead
                    | Self::NobodyWoken
                    | Self::TicketNotRaised
                    | Self::BreakWhereHeld
            )
    }
}

impl Flaw {
    /// Whether this bug concerns quotas or once-per-period records. Only scenarios with such values can reveal it.
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
    /// Whether this bug concerns notes or elections. Only scenarios with notes or elections can reveal it.
    pub fn is_of_notes(self) -> bool {
        matches!(
            self,
            Self::NoteOfAnybody | Self::NoteLeft | Self::NoteOfLast | Self::TermOfOne
        )
    }
}

impl Flaw {
    /// Whether this bug concerns locks on several resources, readers, owners or semaphores. Only scenarios with such
    /// locks can reveal it.
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
                | Self::WrongTypeReadAsMissing
                | Self::CountToK
                | Self::MasterPicksSlot
                | Self::NoSemaphoreLine
        )
    }
}

impl Flaw {
    /// Whether this bug is in the notice that a held lock may be lost soon.
    pub(crate) fn is_of_risk_notices(self) -> bool {
        matches!(
            self,
            Self::NoRiskNotice | Self::RiskNoticeAtLoss | Self::RiskMarginUncapped
        )
    }

    /// The name of a seeded bug in the notice that a held lock may be lost soon, for commands and tables.
    fn name_at_risk_notices(self) -> &'static str {
        match self {
            Self::NoRiskNotice => "no-risk-notice",
            Self::RiskNoticeAtLoss => "risk-notice-at-loss",
            _ => "risk-margin-uncapped",
        }
    }
}

impl Flaw {
    /// Whether this bug concerns semaphores.
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
