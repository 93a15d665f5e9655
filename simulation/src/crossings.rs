//! Tables that show which combinations a simulation has tested. A row is a kind of lock or value. A column is a kind of
//! event that may interfere with it, e.g. a restart. If a cell is zero, this combination was never tested.

use std::fmt;

use quorate_promises::{ValueEvent, ValueResult};

use crate::check::Moment;
use crate::coverage::format_grouped;
use crate::facts::Fact;
use crate::happening::Happening;
use crate::kind::{Kind, ValueStep};
use crate::locker::PLACES;
use crate::scenario::Scenario;

/// The rows of the table: the kinds of locks, then the kinds of values under locks.
pub const LOCK_OR_VALUE_KINDS: [&str; 9] = [
    "plain", "several", "reader", "permit", "owner", "leader", "quota", "once", "register",
];

/// The index of the first row of values in [`LOCK_OR_VALUE_KINDS`].
const FIRST_VALUE_ROW: usize = 6;

/// The kinds of masters in a scenario. There is a separate table for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masters {
    /// All masters are Redis; none is a store.
    Redis,
    /// Some masters are stores (databases), and each store has a clock of its own.
    Clocked,
    /// Some masters are stores without a clock (like ZooKeeper).
    Clockless,
}

impl Masters {
    /// All kinds of masters, in the order of the tables.
    pub const ALL: [Self; 3] = [Self::Redis, Self::Clocked, Self::Clockless];

    /// The name of the table for these masters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Clocked => "stores with a clock",
            Self::Clockless => "stores without a clock",
        }
    }

    pub(crate) fn from_scenario(scenario: &Scenario) -> Self {
        match (scenario.store_masters(), scenario.has_clockless()) {
            (0, _) => Self::Redis,
            (_, false) => Self::Clocked,
            (_, true) => Self::Clockless,
        }
    }
}

/// One table. A cell counts how often a lock or value of one kind (the row) was checked after an event of one kind (the
/// column).
type Table = [[u64; Happening::ALL.len()]; LOCK_OR_VALUE_KINDS.len()];

/// One table for each kind of masters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crossings([Table; Masters::ALL.len()]);

impl Crossings {
    /// Adds the tables of another run to these tables.
    pub fn add(&mut self, other: &Self) {
        let cells = self.0.as_flattened_mut().as_flattened_mut();
        for (sum, cell) in cells.iter_mut().zip(other.0.as_flattened().as_flattened()) {
            *sum += cell;
        }
    }

    /// Returns every cell: the kind of masters, the row, the column, and the number of checks.
    pub fn cells(&self) -> impl Iterator<Item = (Masters, &'static str, Happening, u64)> {
        Masters::ALL
            .into_iter()
            .zip(&self.0)
            .flat_map(|(masters, table)| {
                LOCK_OR_VALUE_KINDS
                    .into_iter()
                    .zip(table)
                    .flat_map(move |(held, row)| {
                        let cells = Happening::ALL.into_iter().zip(row);
                        cells.map(move |(happening, count)| (masters, held, happening, *count))
                    })
            })
    }
}

impl fmt::Display for Crossings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (masters, table) in Masters::ALL.into_iter().zip(&self.0) {
            if table.as_flattened().iter().all(|count| *count == 0) {
                continue;
            }
            write!(f, "rules checked, {:<25}", masters.name())?;
            for happening in Happening::ALL {
                write!(f, "{:>11}", happening.name())?;
            }
            writeln!(f)?;
            for (held, row) in LOCK_OR_VALUE_KINDS.into_iter().zip(table) {
                write!(f, "  {held:<38}")?;
                for count in row {
                    write!(f, "{:>11}", format_grouped(*count))?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// A set of columns of the table (bit n is column n).
type Columns = u16;

/// Counts, during a run, the events that may interfere with locks and values:
///
/// - For a lock: events while the lock is held, or between two holds of the same resource.
/// - For a value: events between two uses of the value.
pub(crate) struct CrossingCounter {
    masters: Masters,
    pub(crate) crossings: Crossings,
    /// For each resource: the happenings since a lock on this resource was last obtained.
    columns_since_hold: [Columns; PLACES],
    /// For each resource and each kind of value (each row from [`FIRST_VALUE_ROW`] on): the happenings since a value of
    /// this kind was last used under the lock of this resource.
    columns_since_use: [[Columns; LOCK_OR_VALUE_KINDS.len() - FIRST_VALUE_ROW]; PLACES],
}

impl CrossingCounter {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            masters: Masters::from_scenario(scenario),
            crossings: Crossings::default(),
            columns_since_hold: [0; PLACES],
            columns_since_use: [[0; LOCK_OR_VALUE_KINDS.len() - FIRST_VALUE_ROW]; PLACES],
        }
    }

    pub(crate) fn count_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) {
        let counts_holds = moment.promises.exclusion || moment.promises.tokens;
        match fact {
            Fact::MasterRestarted {
                lost_data: true, ..
            } => self.record_happening(moment, Happening::DataLost, None, None),
            Fact::Happened {
                happening,
                client,
                resource,
            } => self.record_happening(moment, *happening, *client, *resource),
            Fact::LockObtained { believer } => {
                for resource in believer.scope.resources() {
                    let columns = std::mem::take(&mut self.columns_since_hold[resource]);
                    if counts_holds {
                        self.add_columns(row_of_lock(believer.kind), columns);
                    }
                }
            }
            Fact::Value {
                resource,
                operation: Some(operation),
                event: ValueEvent::Returned(_, result),
            } if moment.promises.stock && *result != ValueResult::NotChanged => {
                let row = row_of_value(*operation);
                let columns_since = &mut self.columns_since_use[*resource][row - FIRST_VALUE_ROW];
                let columns = std::mem::take(columns_since);
                self.add_columns(row, columns);
            }
            _ => {}
        }
    }

    fn record_happening(
        &mut self,
        moment: &Moment<'_>,
        happening: Happening,
        client: Option<usize>,
        resource: Option<usize>,
    ) {
        let column: Columns = 1 << happening as u32;
        for place in (0..PLACES).filter(|place| resource.is_none_or(|only| only == *place)) {
            // An event that concerns only one client affects only the locks that this client holds now. The loop over
            // `moment.believers` counts it.
            if client.is_none() {
                self.columns_since_hold[place] |= column;
            }
            for columns_since in &mut self.columns_since_use[place] {
                *columns_since |= column;
            }
        }
        if !moment.promises.exclusion && !moment.promises.tokens {
            return;
        }
        for believer in moment.believers {
            let mut resources = believer.scope.resources();
            let is_concerned = client.is_none_or(|only| only == believer.client)
                && resource.is_none_or(|only| resources.any(|resource| resource == only));
            if is_concerned {
                self.add_columns(row_of_lock(believer.kind), column);
            }
        }
    }

    fn add_columns(&mut self, row: usize, columns: Columns) {
        let row_cells = &mut self.crossings.0[self.masters as usize][row];
        for (column, count) in row_cells.iter_mut().enumerate() {
            *count += u64::from(columns >> column & 1);
        }
    }
}

fn row_of_value(verb: ValueStep) -> usize {
    FIRST_VALUE_ROW
        + match verb {
            ValueStep::Take(_) | ValueStep::ReadRemaining => 0,
            ValueStep::Create(units) => usize::from(units == 0),
            ValueStep::Remove { record } => usize::from(record),
            ValueStep::AtMostOnce | ValueStep::AtLeastOnce => 1,
            ValueStep::SeparateCalls => 2,
        }
}

fn row_of_lock(kind: Kind) -> usize {
    match kind {
        Kind::Exclusive | Kind::Downgraded | Kind::WithNote(_) | Kind::Observe => 0,
        Kind::Several(_) => 1,
        Kind::Shared => 2,
        Kind::Permit(_) => 3,
        Kind::Owner(_) | Kind::OwnerOfProcess(_) => 4,
        Kind::Leader(_) => 5,
        Kind::Value(_) => 8,
    }
}
