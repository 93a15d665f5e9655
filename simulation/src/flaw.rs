//! Bugs of the simulated world: options of a run that make masters, stores or operators wrong. Other seeded bugs are
//! changes of the code (`mutants/seeded.toml`, which lists the bugs of both sorts with the rules that catch them).

/// Defines the enum of the bugs, with their names.
macro_rules! flaws {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A bug of the simulated world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flaw {
            $($(#[$doc])* $variant,)*
        }

        impl Flaw {
            /// Returns the bug with this name; `None` if there is none.
            pub fn by_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

flaws! {
    /// A client reuses a session after a request without an answer. When the late answer arrives, the client takes it
    /// for the answer to its next request.
    KeptSession = "kept-session",
    /// When a session ends, the store removes the records that the session wrote.
    SessionIsLease = "session-is-lease",
    /// Masters ignore their generation markers. So they vote for clients of the old masters and for clients of the new
    /// masters at the same time.
    MarkersIgnored = "markers-ignored",
    /// A master votes too early for clients that use only the new masters: as soon as it refuses clients that use only
    /// the old masters.
    ClosingOpens = "closing-opens",
    /// A master extends the locks of a client even if the master no longer admits the client.
    ExtendUnrefused = "extend-unrefused",
    /// Replaced masters restart, although an operator should have stopped them. Restarted masters lose their generation
    /// markers for ever, so they vote for clients that use only the old masters.
    MarkLostOnRestart = "mark-lost-on-restart",
    /// If no connected client uses only the old masters, the operator lets the new masters vote immediately.
    /// Disconnected clients of the old masters may still hold locks.
    LeftoverLock = "leftover-lock",
    /// A dead master is replaced immediately by reconfiguring the clients, without an operator.
    ReplaceDeadAtOnce = "replace-dead-at-once",
    /// A dead master is replaced by reconfiguring the clients, without an operator. Later the dead master starts again.
    DeadComesBack = "dead-comes-back",
    /// The operator copies a value that it has read from a single master, instead of a value on which a majority
    /// agrees.
    CarryOneShown = "carry-one-shown",
    /// The operator copies values without taking their locks, so clients may write while the operator copies.
    CarryWithoutLock = "carry-without-lock",
}

impl Flaw {
    /// Whether, with this bug, a master is replaced only by reconfiguring the clients, without an operator.
    pub(crate) fn replaces_without_operator(self) -> bool {
        matches!(self, Self::ReplaceDeadAtOnce | Self::DeadComesBack)
    }
}
