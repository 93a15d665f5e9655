//! Compares the overlapping holds of a run with what its scenario promises. `quorate_promises::Exclusion` has found the
//! overlaps.

use super::{Case, Finding, Verdict};
use crate::scenario::Exclusion as Promise;

pub(super) fn conclude(case: &Case<'_>, mut finding: Finding) -> Finding {
    let overlap_count = finding.violations.len();
    let promise = case.scenario.exclusion();
    let remark = match promise {
        Promise::Holds => "",
        Promise::MayBreak => ", which this scenario allows",
        Promise::MustBreak => ", which this scenario must cause",
    };
    finding.coverage = format!("{}, {overlap_count} overlaps{remark}", finding.coverage);
    if promise == Promise::MustBreak && overlap_count == 0 {
        // This scenario must cause overlapping holds. If the checker found none, either the faults or the checker did
        // not work.
        return finding.at_least(Verdict::Unknown);
    }
    finding
}
