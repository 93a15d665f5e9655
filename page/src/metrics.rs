//! `/metrics`: the state of the masters and of the locks, in the text format of Prometheus.

use std::fmt::Write;

use crate::page_state::PageState;

/// All metrics. The names that the library has as well have the same meaning.
pub(crate) fn metrics(page_state: &PageState, now_ms: u64, viewers: usize) -> String {
    let facts = page_state.facts(now_ms);
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: f64| {
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}"
        );
    };
    let votes = facts.masters.iter().filter(|master| master.votes).count();
    gauge(
        "quorate_page_quorum",
        "1 if a majority of the masters answers, else 0",
        f64::from(u8::from(facts.has_quorum == Some(true))),
    );
    gauge(
        "quorate_page_masters",
        "The number of masters",
        facts.masters.len() as f64,
    );
    gauge(
        "quorate_page_masters_voting",
        "The number of masters that vote",
        votes as f64,
    );
    gauge(
        "quorate_page_locks_held",
        "Locks that are held by any client",
        facts.held as f64,
    );
    gauge(
        "quorate_page_locks_overdue",
        "Locks that their holders have not renewed in time",
        facts.locks.iter().filter(|lock| lock.is_overdue).count() as f64,
    );
    gauge(
        "quorate_page_waiters",
        "Clients that wait for a lock",
        facts.waiters as f64,
    );
    gauge(
        "quorate_page_longest_wait_seconds",
        "The longest wait at the moment",
        facts.longest_wait_ms as f64 / 1e3,
    );
    gauge(
        "quorate_page_jobs_late",
        "Jobs that have not recorded their present period",
        facts.values.iter().filter(|value| value.is_late).count() as f64,
    );
    gauge(
        "quorate_page_watching",
        "1 while the page asks the masters, else 0",
        f64::from(u8::from(page_state.is_watching)),
    );
    gauge(
        "quorate_page_viewers",
        "Browsers that watch the page",
        viewers as f64,
    );
    gauge(
        "quorate_page_events",
        "Events in memory",
        page_state.ring.len() as f64,
    );
    gauge(
        "quorate_page_history_failed",
        "1 if the history file cannot be written, else 0",
        f64::from(u8::from(page_state.file_error().is_some())),
    );
    text += "# HELP quorate_node_replies_total The results of requests to a master\n# TYPE quorate_node_replies_total counter\n";
    for master in &page_state.masters {
        let node = label(&master.name);
        let faults = master.faults.iter().map(|(kind, count)| (*kind, *count));
        for (outcome, count) in std::iter::once(("ok", master.answers)).chain(faults) {
            let _ = writeln!(
                text,
                "quorate_node_replies_total{{node=\"{node}\",phase=\"look\",outcome=\"{outcome}\"}} {count}"
            );
        }
    }
    text += "# HELP quorate_node_reply_seconds How long a master took to answer\n# TYPE quorate_node_reply_seconds summary\n";
    for master in &page_state.masters {
        let node = label(&master.name);
        let _ = writeln!(
            text,
            "quorate_node_reply_seconds_sum{{node=\"{node}\",phase=\"look\"}} {}",
            master.round_trip_seconds
        );
        let _ = writeln!(
            text,
            "quorate_node_reply_seconds_count{{node=\"{node}\",phase=\"look\"}} {}",
            master.answers
        );
    }
    text
}

/// Escapes the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master::MasterRecord;

    #[test]
    fn answers_of_a_master_have_the_outcomes_of_the_library() {
        let mut page_state = PageState::new(Vec::new(), 1_000, 60_000, 1);
        let mut master = MasterRecord::new("a\"b");
        let round_trip = std::time::Duration::from_millis(250);
        for answer in [Ok(()), Ok(()), Err(quorate::Fault::Stalled)] {
            master.update(answer, round_trip, 1);
        }
        page_state.masters = vec![master];
        let text = metrics(&page_state, 2, 0);
        for line in [
            r#"quorate_node_replies_total{node="a\"b",phase="look",outcome="ok"} 2"#,
            r#"quorate_node_replies_total{node="a\"b",phase="look",outcome="stalled"} 1"#,
            r#"quorate_node_reply_seconds_sum{node="a\"b",phase="look"} 0.5"#,
            "quorate_page_masters 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
