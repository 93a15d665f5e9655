//! Decides which fault a master has after a panic in the work for this master.

use std::time::Duration;

use super::back_off::STABLE_AGE;
use crate::node::Fault;
use crate::panics::{self, Panic};

/// How many panics in a row make the fault permanent: waiting does not help if each connection ends with a panic.
const PERMANENT_AFTER: u32 = 3;

/// The panics in the work for one master.
#[derive(Debug, Default)]
pub(in crate::node) struct PanicHistory {
    in_a_row: u32,
}

impl PanicHistory {
    /// The fault of the master after `panic`. `connection_age` is how long the connection lasted; `None` if there was
    /// none.
    pub(in crate::node) fn fault(
        &mut self,
        panic: &Panic,
        connection_age: Option<Duration>,
    ) -> Fault {
        if connection_age.is_some_and(|connection_age| connection_age >= STABLE_AGE) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let why = format!("internal failure of the client: {}", panics::text(panic));
        if self.in_a_row >= PERMANENT_AFTER {
            return permanent_fault(&why);
        }
        match connection_age {
            Some(_) => Fault::Disconnected(why.into()),
            None => Fault::Down(why.into()),
        }
    }
}

/// The fault of a master if every connection to it ends with a panic.
fn permanent_fault(why: &str) -> Fault {
    Fault::Unsupported(format!("{why}: report this, and use another server or version").into())
}

/// The fault that an inspection reports after a panic.
pub(in crate::node) fn inspection_fault(panic: &Panic) -> Fault {
    permanent_fault(&format!(
        "internal failure of the client: {}",
        panics::text(panic)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_permanent_only_after_three_panics_in_a_row() {
        let mut panic_history = PanicHistory::default();
        let panic: Panic = Box::new("odd weather");
        let (short, long) = (Some(Duration::ZERO), Some(STABLE_AGE));
        for (connection_age, kind) in [
            (None, "down"),
            (short, "disconnected"),
            (None, "unsupported"),
            (long, "disconnected"),
            (None, "down"),
            (None, "unsupported"),
        ] {
            let fault = panic_history.fault(&panic, connection_age);
            assert_eq!(fault.kind(), kind, "{connection_age:?}");
            assert!(fault.to_string().contains("odd weather"), "{fault}");
        }
    }
}
