//! Decides which fault a master has after a panic in the work for this master.

use std::time::Duration;

use super::back_off::STEADY;
use crate::node::Fault;
use crate::panics::{self, Panic};

/// How many panics in a row make the fault permanent: waiting does not help if each connection ends with a panic.
const IN_A_ROW: u32 = 3;

/// The panics in the work for one master.
#[derive(Debug, Default)]
pub(in crate::node) struct Panicked {
    in_a_row: u32,
}

impl Panicked {
    /// The fault of the master after `panic`. `lived` is how long the connection lasted; `None` if there was none.
    pub(in crate::node) fn fault(&mut self, panic: &Panic, lived: Option<Duration>) -> Fault {
        if lived.is_some_and(|lived| lived >= STEADY) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        let why = format!("internal failure of the client: {}", panics::text(panic));
        if self.in_a_row >= IN_A_ROW {
            return of_every_connection(&why);
        }
        match lived {
            Some(_) => Fault::Disconnected(why.into()),
            None => Fault::Down(why.into()),
        }
    }
}

/// The fault of a master if every connection to it ends with a panic.
fn of_every_connection(why: &str) -> Fault {
    Fault::Unsupported(format!("{why}: report this, and use another server or version").into())
}

/// The fault that an inspection reports after a panic.
pub(in crate::node) fn while_inspecting(panic: &Panic) -> Fault {
    of_every_connection(&format!(
        "internal failure of the client: {}",
        panics::text(panic)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_permanent_only_after_three_panics_in_a_row() {
        let mut panicked = Panicked::default();
        let panic: Panic = Box::new("odd weather");
        let (short, long) = (Some(Duration::ZERO), Some(STEADY));
        for (lived, kind) in [
            (None, "down"),
            (short, "disconnected"),
            (None, "unsupported"),
            (long, "disconnected"),
            (None, "down"),
            (None, "unsupported"),
        ] {
            let fault = panicked.fault(&panic, lived);
            assert_eq!(fault.kind(), kind, "{lived:?}");
            assert!(fault.to_string().contains("odd weather"), "{fault}");
        }
    }
}
