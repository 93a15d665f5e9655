//! The replies of all masters to one request, with their latencies.

use std::fmt;
use std::time::Duration;

use crate::node::{Answer, Fault, NodeName, Phase};
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};

/// The reply of one master to one request about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// The kind of the request, for example acquire or release.
    pub phase: Phase,
    /// The master's reply, or the fault.
    pub outcome: NodeOutcome,
    /// The time from the first request of the round to this master's reply; `None` if the master has not replied. In a
    /// round, the client sends one request to every master.
    pub latency: Option<Duration>,
    /// True if the reply came after the replies of other masters had decided the result.
    pub late: bool,
}

/// The reply of one master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// The master has not replied yet.
    Silent,
    /// The master agreed: the lock was granted, extended, confirmed or deleted.
    Yes,
    /// The master refused: another client holds the lock, this client does not hold the lock, or the lock was already
    /// gone.
    No,
    /// The master gave no usable reply.
    Fault(Fault),
    /// The master has no value (quota or once-per-period record) under this lock: none was created, or the master has
    /// lost it.
    NoValue,
    /// The master has a value (quota or once-per-period record) from before its last restart, which may be outdated.
    OldValue,
}

impl NodeOutcome {
    /// The reply as one word, for log fields and machine-readable output; stable across versions.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Yes => "yes",
            Self::No => "no",
            Self::Fault(fault) => fault.kind(),
            Self::NoValue => "no_value",
            Self::OldValue => "old_value",
        }
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, Reply(self))
    }
}

/// Displays the reply of a master without the master's name.
struct Reply<'a>(&'a NodeReport);

impl fmt::Display for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeReport {
            outcome,
            phase,
            late,
            ..
        } = self.0;
        match (outcome, phase) {
            (NodeOutcome::Silent, _) => f.write_str("no answer yet")?,
            (NodeOutcome::Yes, Phase::Acquire) => f.write_str("granted")?,
            (NodeOutcome::No, Phase::Acquire) => f.write_str("held by another")?,
            (NodeOutcome::Yes, Phase::Release) => f.write_str("released")?,
            (NodeOutcome::No, Phase::Release) => f.write_str("already gone")?,
            (NodeOutcome::No, Phase::Value) => f.write_str("has seen a later holder")?,
            (NodeOutcome::NoValue, _) => f.write_str("has no value")?,
            (NodeOutcome::OldValue, _) => f.write_str("has a value from before its restart")?,
            (NodeOutcome::Yes, _) => f.write_str("yes")?,
            (NodeOutcome::No, _) => f.write_str("not held by this client")?,
            (NodeOutcome::Fault(fault), _) => write!(f, "{fault}")?,
        }
        if *late {
            f.write_str(" (late)")
        } else {
            Ok(())
        }
    }
}

/// Receives the masters' replies that come in after a round of requests has been decided.
pub(crate) trait LateAnswers: Send + Sync + 'static {
    /// Called when the lock has been won, with all replies to the acquire that have come in until then.
    fn take_over(&self, replies: Replies);

    /// Records one reply that arrived after the lock was won.
    fn record(
        &self,
        node: usize,
        answer: &Result<Answer, Fault>,
        started: Instant,
        now: Instant,
        late: bool,
    );
}

/// The replies of all masters. A held lock keeps them for its whole life, so their form is compact.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replies {
    master_replies: Box<[MasterReply]>,
    /// Allocated only if a master reports a fault, because most rounds of requests have none.
    faults: Option<Box<Faults>>,
}

/// For each master whose reply is [`ReplyKind::Fault`]: its index, and the fault.
#[derive(Clone, Debug, Default)]
struct Faults(Vec<(usize, Fault)>);

/// The reply of one master, in 8 bytes of memory.
#[derive(Clone, Copy, Debug, Default)]
struct MasterReply {
    kind: ReplyKind,
    late: bool,
    /// Microseconds from the first request of the round to the reply, at most `u32::MAX` (about 71 minutes).
    micros: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReplyKind {
    #[default]
    Silent,
    Yes,
    No,
    Fault,
}

impl Replies {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            master_replies: vec![MasterReply::default(); nodes].into(),
            faults: None,
        }
    }

    /// Records the reply of the master with index `node`, replacing an earlier one.
    pub(crate) fn record(
        &mut self,
        node: usize,
        answer: &Result<Answer, Fault>,
        started: Instant,
        now: Instant,
        late: bool,
    ) {
        let Some(reply) = self.master_replies.get_mut(node) else {
            return;
        };
        let kind_before = reply.kind;
        reply.kind = match answer {
            Ok(
                Answer::Granted { .. }
                | Answer::Confirmed
                | Answer::Released(true)
                | Answer::Extended(_)
                | Answer::State(_),
            ) => ReplyKind::Yes,
            Ok(_) => ReplyKind::No,
            Err(_) => ReplyKind::Fault,
        };
        let micros = now.saturating_since(started).as_micros();
        reply.micros = u32::try_from(micros).unwrap_or(u32::MAX);
        reply.late = late;
        if let (ReplyKind::Fault, Some(faults)) = (kind_before, &mut self.faults) {
            faults.0.retain(|(index, _)| *index != node);
        }
        if let Err(fault) = answer {
            let faults = self.faults.get_or_insert_default();
            faults.0.push((node, fault.clone()));
        }
    }

    /// The masters with faults that an operator must fix.
    pub(crate) fn lasting_faults(&self) -> MasterSet {
        let faults = self.faults.iter().flat_map(|faults| &faults.0);
        let lasting = faults.filter(|(_, fault)| !fault.passes_by_itself());
        lasting.map(|(node, _)| *node).collect()
    }

    /// Converts the replies to public reports; `names` are the masters' names in order.
    pub(crate) fn reports<'a>(
        &self,
        names: impl Iterator<Item = &'a NodeName>,
        phase: Phase,
    ) -> Vec<NodeReport> {
        let replies = self.master_replies.iter().enumerate();
        names
            .zip(replies)
            .map(|(name, (node, reply))| self.report(node, *reply, name, phase))
            .collect()
    }

    fn report(&self, node: usize, reply: MasterReply, name: &NodeName, phase: Phase) -> NodeReport {
        let find_fault = || {
            let mut faults = self.faults.iter().flat_map(|faults| &faults.0);
            faults.find(|(index, _)| *index == node)
        };
        let outcome = match reply.kind {
            ReplyKind::Silent => NodeOutcome::Silent,
            ReplyKind::Yes => NodeOutcome::Yes,
            ReplyKind::No => NodeOutcome::No,
            ReplyKind::Fault => find_fault().map_or(NodeOutcome::Silent, |(_, fault)| {
                NodeOutcome::Fault(fault.clone())
            }),
        };
        let is_silent = reply.kind == ReplyKind::Silent;
        NodeReport {
            node: name.clone(),
            phase,
            outcome,
            latency: (!is_silent).then(|| Duration::from_micros(reply.micros.into())),
            late: reply.late,
        }
    }
}

/// The reports of masters that failed, sorted by fault. A request that this client withdrew is not a failure. The
/// order:
///
/// - faults that an operator must fix
/// - quarantine after a restart
/// - other faults that the master reported
/// - no connection or no reply in time
pub(crate) fn failures_by_importance(mut reports: Vec<NodeReport>) -> Vec<NodeReport> {
    reports.retain(NodeReport::has_failed);
    reports.sort_by_key(|report| match &report.outcome {
        NodeOutcome::Fault(fault) if !fault.passes_by_itself() => 0,
        NodeOutcome::Fault(Fault::Quarantined(_)) => 1,
        NodeOutcome::Fault(
            Fault::Down(_)
            | Fault::NoConnection(_)
            | Fault::Stalled
            | Fault::Overloaded
            | Fault::Timeout(_)
            | Fault::Disconnected(_),
        ) => 3,
        _ => 2,
    });
    reports
}

/// The masters that failed with a fault for which `is_wanted` returns true.
pub(crate) fn masters_failed_with(
    reports: &[NodeReport],
    is_wanted: impl Fn(&Fault) -> bool,
) -> MasterSet {
    let matches_fault = |report: &NodeReport| matches!(&report.outcome, NodeOutcome::Fault(fault) if is_wanted(fault));
    let failed = reports
        .iter()
        .enumerate()
        .filter(|(_, report)| matches_fault(report));
    failed.map(|(node, _)| node).collect()
}

impl NodeReport {
    /// Whether the master failed. A request that this client withdrew is not a failure.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(&self.outcome, NodeOutcome::Fault(fault) if *fault != Fault::Withdrawn)
    }

    /// Whether the master granted or refused the request.
    pub(crate) fn is_vote(&self) -> bool {
        !self.has_failed() && !self.is_silent()
    }

    /// Whether the master has not replied, or this client withdrew the request before it was sent.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(
            self.outcome,
            NodeOutcome::Silent | NodeOutcome::Fault(Fault::Withdrawn)
        )
    }
}

/// Displays reports on one line, for error texts. Masters with the same reply are grouped. Masters that agreed are left
/// out. Silent masters are also left out if the other replies already decide the round.
pub(crate) struct OneLine<'a>(pub(crate) &'a [NodeReport]);

impl OneLine<'_> {
    fn is_decided(&self) -> bool {
        let quorum = Quorum::new(self.0.len());
        let indices_of = |matches: fn(&NodeReport) -> bool| -> MasterSet {
            let matching = self
                .0
                .iter()
                .enumerate()
                .filter(|(_, report)| matches(report));
            matching.map(|(node, _)| node).collect()
        };
        let votes = indices_of(NodeReport::is_vote);
        quorum.is_met_by(votes) || !quorum.is_possible_without(indices_of(NodeReport::has_failed))
    }
}

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decided = self.is_decided();
        let shown_reports = self.0.iter().filter(|report| {
            report.outcome != NodeOutcome::Yes && !(decided && report.is_silent())
        });
        let mut replies: Vec<(Vec<&str>, String)> = Vec::new();
        for report in shown_reports {
            let reply = Reply(report).to_string();
            match replies
                .iter_mut()
                .find(|(_, known_text)| *known_text == reply)
            {
                Some((nodes, _)) => nodes.push(report.node.as_str()),
                None => replies.push((vec![report.node.as_str()], reply)),
            }
        }
        for (n, (nodes, reply)) in replies.iter().enumerate() {
            let separator = if n > 0 { "; " } else { "" };
            write!(f, "{separator}{}: {reply}", nodes.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_replaces_the_recorded_fault_of_its_master() {
        // The size matters, because every held lock keeps one reply of each master.
        assert_eq!(size_of::<MasterReply>(), 8);
        let names: Vec<NodeName> = ["a", "b"].into_iter().map(NodeName::new).collect();
        let at_ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut replies = Replies::new(2);
        replies.record(0, &Err(Fault::Stalled), at_ms(1), at_ms(3), false);
        replies.record(1, &Err(Fault::WrongType), at_ms(1), at_ms(2), false);
        replies.record(7, &Err(Fault::WrongType), at_ms(1), at_ms(2), false);
        let outcomes = |replies: &Replies| -> Vec<_> {
            let reports = replies.reports(names.iter(), Phase::Acquire);
            reports
                .into_iter()
                .map(|report| (report.outcome, report.late))
                .collect()
        };
        let wrong = (NodeOutcome::Fault(Fault::WrongType), false);
        let stalled = (NodeOutcome::Fault(Fault::Stalled), false);
        assert_eq!(outcomes(&replies), [stalled, wrong.clone()]);
        replies.record(0, &Ok(Answer::Confirmed), at_ms(1), at_ms(9), true);
        assert_eq!(outcomes(&replies), [(NodeOutcome::Yes, true), wrong]);
    }

    fn reports(outcomes: impl IntoIterator<Item = NodeOutcome>) -> Vec<NodeReport> {
        let report_with = |(n, outcome): (usize, NodeOutcome)| NodeReport {
            node: NodeName::new(format!("m{n}")),
            phase: Phase::Acquire,
            outcome,
            latency: None,
            late: false,
        };
        outcomes.into_iter().enumerate().map(report_with).collect()
    }

    #[test]
    fn master_not_needed_for_the_result_is_left_out_of_the_error_line() {
        use NodeOutcome::{Fault as Failed, No, Silent, Yes};
        let down_outcome = || Failed(Fault::Stalled);
        let withdrawn_outcome = || Failed(Fault::Withdrawn);
        for (outcomes, expected_text) in [
            (vec![No, No, Silent], "m0, m1: held by another"),
            (vec![No, withdrawn_outcome(), Yes], "m0: held by another"),
            (
                vec![down_outcome(), Silent, down_outcome()],
                "m0, m2: not answering",
            ),
            (
                vec![No, down_outcome(), Silent],
                "m0: held by another; m1: not answering; m2: no answer yet",
            ),
            (vec![Silent], "m0: no answer yet"),
            (vec![], ""),
        ] {
            assert_eq!(OneLine(&reports(outcomes)).to_string(), expected_text);
        }
    }

    #[test]
    fn most_informative_fault_is_reported_first() {
        let fault_reports = reports([
            NodeOutcome::Fault(Fault::Stalled),
            NodeOutcome::No,
            NodeOutcome::Fault(Fault::Loading),
            NodeOutcome::Silent,
            NodeOutcome::Fault(Fault::Withdrawn),
            NodeOutcome::Fault(Fault::Quarantined(Duration::from_secs(28))),
            NodeOutcome::Fault(Fault::Denied("NOPERM".into())),
        ]);
        let names = failures_by_importance(fault_reports)
            .into_iter()
            .map(|report| report.node);
        let names: Vec<_> = names.map(|name| name.to_string()).collect();
        assert_eq!(names, ["m6", "m5", "m2", "m0"]);
    }
}
