//! The changes of the rules that the search must refuse: for each of them, it must find a schedule that breaks a
//! promise.

use std::fmt;

macro_rules! changed_rules {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// A change of one rule of the protocol. If a seeded bug of the simulation breaks the same rule, the two have
        /// the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ChangedRule {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl ChangedRule {
            /// All changes, in the order of the headings of docs/protocol.md.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name of the change, as in docs/protocol.md.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

changed_rules! {
    /// Half of the masters are enough.
    HalfQuorum = "half-quorum",
    /// A majority of the masters that answered is enough.
    ReachableQuorum = "reachable-quorum",
    /// A master grants a lock that another client holds.
    AcquireOverwrites = "acquire-overwrites",
    /// The validity is counted from the answers.
    ValidityAfterReplies = "validity-after-replies",
    /// The validity is as long as the TTL.
    NoDrift = "no-drift",
    /// The second attempt of a client uses the value of its first attempt.
    ReusedValue = "reused-value",
    /// A release deletes the lock key of any client.
    UnconditionalDelete = "unconditional-delete",
    /// The largest number that a master granted is the token.
    LargestCounter = "largest-counter",
    /// A master confirms a token that is below its counter.
    ConfirmAtLeast = "confirm-at-least",
    /// A master confirms a token although the lock key does not hold the client's value.
    ConfirmWithoutCompare = "confirm-without-compare",
    /// A grant does not raise the fencing counter.
    CounterNotRaised = "counter-not-raised",
    /// A new fencing counter starts at zero instead of the master's clock.
    CounterStartsAtZero = "counter-starts-at-zero",
    /// An extension counts although a majority answers only after the old validity has ended.
    LateExtension = "late-extension",
    /// The extended validity is counted from the answers.
    ExtensionAfterReplies = "extension-after-replies",
    /// An extension moves the expiry of a lock key to an earlier time.
    ShorteningExtend = "shortening-extend",
    /// A master confirms the extension of a lock that another client holds.
    ExtendWithoutCompare = "extend-without-compare",
    /// A restarted master votes at once.
    GuardOff = "guard-off",
    /// A restarted master votes after half of the longest TTL.
    GuardTooShort = "guard-too-short",
    /// A client of both sets needs a majority of all their masters together.
    JointUnion = "joint-union",
    /// A client of both sets needs a majority of the old masters only.
    JointOldOnly = "joint-old-only",
    /// A client of both sets needs a majority of the next masters only.
    JointNextOnly = "joint-next-only",
    /// A client of both sets needs equal counters on a majority of the old masters only.
    FenceOneSet = "fence-one-set",
    /// Masters vote whatever their generation markers say: the masters are replaced in a single step.
    MarkersIgnored = "markers-ignored",
    /// A closed master votes for clients of the next masters at once.
    ClosingOpens = "closing-opens",
    /// A closed master still extends locks of clients of the old masters.
    ExtendUnrefused = "extend-unrefused",
    /// The operator closes one old master, and takes all of them to be closed.
    CloseMinority = "close-minority",
    /// The operator opens the next masters without waiting for the longest TTL.
    OpenWithoutWait = "open-without-wait",
    /// The operator copies no fencing counters to the next masters.
    NoCarry = "no-carry",
    /// The operator reads the fencing counters before a majority of the old masters is closed.
    CarryBeforeClose = "carry-before-close",
    /// The operator reads the fencing counters of one old master.
    CarryMinority = "carry-minority",
}

impl fmt::Display for ChangedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
