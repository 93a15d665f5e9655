//! The result of a run as text for the terminal.

use std::fmt::Write;

use super::summary::Summary;

/// The result of a run as a table, followed by the violations and the verdict.
pub fn table(summary: &Summary) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<24} {:>7} {:>7} {:>7}",
        "fault", "landed", "healed", "failed"
    );
    for (kind, count) in &summary.faults {
        let _ = writeln!(
            out,
            "{kind:<24} {:>7} {:>7} {:>7}",
            count.landed, count.healed, count.failed
        );
    }
    for (kind, why) in &summary.unavailable {
        let _ = writeln!(out, "{kind:<24} unavailable: {why}");
    }
    let counted = |counts: &std::collections::BTreeMap<String, usize>| {
        let parts: Vec<String> = counts
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        parts.join(", ")
    };
    let _ = writeln!(out, "\nobtained: {}", counted(&summary.obtained));
    let _ = writeln!(out, "missed:   {}", counted(&summary.missed));
    let _ = writeln!(out, "notified: {}\n", counted(&summary.notified));
    for finding in &summary.findings.findings {
        let _ = writeln!(
            out,
            "{:<12} {:<8} {}",
            finding.checker, finding.verdict, finding.looked_at
        );
    }
    let all = summary.findings.violations();
    for (title, excused) in [("violations", false), ("allowed by the scenario", true)] {
        let some: Vec<_> = all
            .iter()
            .filter(|one| one.excused.is_some() == excused)
            .collect();
        if some.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{title}: {}", some.len());
        for violation in some.iter().take(8) {
            let at = violation.from as f64 / 1e9;
            let _ = write!(
                out,
                "  {at:9.3} s  {}: {}",
                violation.checker, violation.what
            );
            let _ = match &violation.excused {
                Some(why) => writeln!(out, " ({why})"),
                None => writeln!(out),
            };
        }
        if some.len() > 8 {
            let _ = writeln!(out, "  and {} more", some.len() - 8);
        }
    }
    let _ = writeln!(out, "\nverdict: {}", summary.verdict);
    out
}
