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

/// The compact form that a held lock keeps: 16 bytes a master.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    said: Said,
    late: bool,
    /// Microseconds from the first send; saturates after an hour.
    micros: u32,
    fault: Option<Box<Fault>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    #[default]
    Silent,
    Yes,
    No,
    Fault,
}

impl Slot {
    pub(crate) fn note(
        &mut self,
        answer: &Result<Answer, Fault>,
        started: Instant,
        now: Instant,
        late: bool,
    ) {
        self.said = match answer {
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
        self.fault = answer.as_ref().err().map(|fault| Box::new(fault.clone()));
        let micros = now.saturating_since(started).as_micros();
        self.micros = u32::try_from(micros).unwrap_or(u32::MAX);
        self.late = late;
    }

    fn report(&self, node: &NodeName, phase: Phase) -> NodeReport {
        let outcome = match (self.said, &self.fault) {
            (Said::Fault, Some(fault)) => NodeOutcome::Fault((**fault).clone()),
            (Said::Yes, _) => NodeOutcome::Yes,
            (Said::No, _) => NodeOutcome::No,
            _ => NodeOutcome::Silent,
        };
        let latency =
            (self.said != Said::Silent).then(|| Duration::from_micros(self.micros.into()));
        NodeReport {
            node: node.clone(),
            phase,
            outcome,
            latency,
            late: self.late,
        }
    }
}

/// The slots of all masters as public reports.
pub(crate) fn reports<'a>(
    names: impl Iterator<Item = &'a NodeName>,
    slots: &[Slot],
    phase: Phase,
) -> Vec<NodeReport> {
    names
        .zip(slots)
        .map(|(name, slot)| slot.report(name, phase))
        .collect()
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
