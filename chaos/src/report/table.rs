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
    let counts_text = |counts: &std::collections::BTreeMap<String, usize>| {
        let named_counts: Vec<String> = counts
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        named_counts.join(", ")
    };
    let _ = writeln!(out, "\nobtained: {}", counts_text(&summary.obtained));
    let _ = writeln!(out, "missed:   {}", counts_text(&summary.missed));
    let _ = writeln!(out, "notified: {}\n", counts_text(&summary.notified));
    for finding in &summary.findings.findings {
        let _ = writeln!(
            out,
            "{:<12} {:<8} {}",
            finding.checker, finding.verdict, finding.coverage
        );
    }
    let violations = summary.findings.violations();
    for (title, excused) in [("violations", false), ("allowed by the scenario", true)] {
        let of_title: Vec<_> = violations
            .iter()
            .filter(|violation| violation.excused.is_some() == excused)
            .collect();
        if of_title.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{title}: {}", of_title.len());
        for violation in of_title.iter().take(8) {
            let begin = violation.from as f64 / 1e9;
            let _ = write!(
                out,
                "  {begin:9.3} s  {}: {}",
                violation.checker, violation.description
            );
            let _ = match &violation.excused {
                Some(why) => writeln!(out, " ({why})"),
                None => writeln!(out),
            };
        }
        if of_title.len() > 8 {
            let _ = writeln!(out, "  and {} more", of_title.len() - 8);
        }
    }
    let _ = writeln!(out, "\nverdict: {}", summary.verdict);
    out
}
