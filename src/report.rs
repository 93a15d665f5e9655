//! What each master said, how fast, and who was late.

use std::fmt;
use std::time::Duration;

use crate::node::{Answer, Fault, NodeName, Phase};
use crate::protocol::instant::Instant;

/// What one master said in one phase of a lock's life.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// What it was asked.
    pub phase: Phase,
    /// What it said.
    pub outcome: NodeOutcome,
    /// From the first send of the round to its answer; `None` while it is silent.
    pub latency: Option<Duration>,
    /// Whether the answer came only after the verdict had fallen.
    pub late: bool,
}

/// What one master said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// Nothing yet.
    Silent,
    /// Yes: granted, kept, confirmed or deleted.
    Yes,
    /// No: held by another, not ours, or already gone.
    No,
    /// No usable answer.
    Fault(Fault),
}

impl NodeOutcome {
    /// A word for fields and machine-readable output; stable across versions.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Yes => "yes",
            Self::No => "no",
            Self::Fault(fault) => fault.kind(),
        }
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.node)?;
        match (&self.outcome, self.phase) {
            (NodeOutcome::Silent, _) => f.write_str("no answer yet")?,
            (NodeOutcome::Yes, Phase::Acquire) => f.write_str("granted")?,
            (NodeOutcome::No, Phase::Acquire) => f.write_str("held by another")?,
            (NodeOutcome::Yes, Phase::Release) => f.write_str("released")?,
            (NodeOutcome::No, Phase::Release) => f.write_str("already gone")?,
            (NodeOutcome::Yes, _) => f.write_str("yes")?,
            (NodeOutcome::No, _) => f.write_str("not ours")?,
            (NodeOutcome::Fault(fault), _) => write!(f, "{fault}")?,
        }
        if self.late {
            f.write_str(" (late)")
        } else {
            Ok(())
        }
    }
}

/// What every master said, in the compact form that a held lock keeps for as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    each: Box<[Slot]>,
    /// Apart, because most rounds meet none.
    faults: Option<Box<Faults>>,
}

/// The faults behind the slots that say so, by node.
#[derive(Debug, Default)]
struct Faults(Vec<(usize, Fault)>);

/// What one master said: 8 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    said: Said,
    late: bool,
    /// Microseconds from the first send; saturates after an hour.
    micros: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    #[default]
    Silent,
    Yes,
    No,
    Fault,
}

impl Slots {
    pub(crate) fn of(nodes: usize) -> Self {
        Self {
            each: vec![Slot::default(); nodes].into(),
            faults: None,
        }
    }

    /// Notes what `node` said, in place of what it had said before.
    pub(crate) fn note(
        &mut self,
        node: usize,
        answer: &Result<Answer, Fault>,
        started: Instant,
        now: Instant,
        late: bool,
    ) {
        let Some(slot) = self.each.get_mut(node) else {
            return;
        };
        let before = slot.said;
        slot.said = match answer {
            Ok(
                Answer::Granted { .. }
                | Answer::Confirmed
                | Answer::Released(true)
                | Answer::Extended(_)
                | Answer::State(_),
            ) => Said::Yes,
            Ok(_) => Said::No,
            Err(_) => Said::Fault,
        };
        let micros = now.saturating_since(started).as_micros();
        slot.micros = u32::try_from(micros).unwrap_or(u32::MAX);
        slot.late = late;
        if let (Said::Fault, Some(faults)) = (before, &mut self.faults) {
            faults.0.retain(|(of, _)| *of != node);
        }
        if let Err(fault) = answer {
            let faults = self.faults.get_or_insert_default();
            faults.0.push((node, fault.clone()));
        }
    }

    /// As public reports, given the masters' names in order.
    pub(crate) fn reports<'a>(
        &self,
        names: impl Iterator<Item = &'a NodeName>,
        phase: Phase,
    ) -> Vec<NodeReport> {
        let slots = self.each.iter().enumerate();
        names
            .zip(slots)
            .map(|(name, (node, slot))| self.report(node, *slot, name, phase))
            .collect()
    }

    fn report(&self, node: usize, slot: Slot, name: &NodeName, phase: Phase) -> NodeReport {
        let fault = || {
            let mut faults = self.faults.iter().flat_map(|faults| &faults.0);
            faults.find(|(of, _)| *of == node)
        };
        let outcome = match slot.said {
            Said::Silent => NodeOutcome::Silent,
            Said::Yes => NodeOutcome::Yes,
            Said::No => NodeOutcome::No,
            Said::Fault => fault().map_or(NodeOutcome::Silent, |(_, fault)| {
                NodeOutcome::Fault(fault.clone())
            }),
        };
        let silent = slot.said == Said::Silent;
        NodeReport {
            node: name.clone(),
            phase,
            outcome,
            latency: (!silent).then(|| Duration::from_micros(slot.micros.into())),
            late: slot.late,
        }
    }
}

/// Reports on one line, for error texts: only those that did not simply say yes.
pub(crate) struct Line<'a>(pub(crate) &'a [NodeReport]);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self
            .0
            .iter()
            .filter(|report| report.outcome != NodeOutcome::Yes);
        if let Some(first) = rest.next() {
            write!(f, "{first}")?;
        }
        rest.try_for_each(|report| write!(f, "; {report}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_small_and_a_late_answer_takes_the_place_of_the_fault() {
        // Every held lock keeps one per master.
        assert_eq!(size_of::<Slot>(), 8);
        let names: Vec<NodeName> = ["a", "b"].into_iter().map(NodeName::new).collect();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut slots = Slots::of(2);
        slots.note(0, &Err(Fault::Stalled), at(1), at(3), false);
        slots.note(1, &Err(Fault::WrongType), at(1), at(2), false);
        slots.note(7, &Err(Fault::WrongType), at(1), at(2), false);
        let said = |slots: &Slots| -> Vec<_> {
            let reports = slots.reports(names.iter(), Phase::Acquire);
            let said = reports.into_iter();
            said.map(|report| (report.outcome, report.late)).collect()
        };
        let wrong = (NodeOutcome::Fault(Fault::WrongType), false);
        let stalled = (NodeOutcome::Fault(Fault::Stalled), false);
        assert_eq!(said(&slots), [stalled, wrong.clone()]);
        slots.note(0, &Ok(Answer::Confirmed), at(1), at(9), true);
        assert_eq!(said(&slots), [(NodeOutcome::Yes, true), wrong]);
    }
}
