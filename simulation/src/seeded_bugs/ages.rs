//! Seeded bugs in the age of a server run, which decides when a restarted master votes again.

use crate::flaw::Flaw;

impl Flaw {
    /// The seeded bugs in the age of a server run. Only scenarios in which the clocks of restarted masters jump can
    /// reveal them.
    pub const CLOCK_BUGS: [Self; 3] = [
        Self::AgeFromUptime,
        Self::AgeOfEarlierRun,
        Self::RestoredMarkerIsOld,
    ];

    /// Whether this bug concerns the age of a server run.
    pub fn is_of_clocks(self) -> bool {
        Self::CLOCK_BUGS.contains(&self)
    }

    /// The name of a seeded bug in the age of a server run, for commands and tables.
    pub(crate) fn name_at_clocks(self) -> &'static str {
        match self {
            Self::AgeFromUptime => "age-from-uptime",
            Self::AgeOfEarlierRun => "age-of-earlier-run",
            _ => "restored-marker-is-old",
        }
    }
}
