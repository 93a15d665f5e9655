//! The metrics of one `quorate run`, for the textfile collector of the Prometheus node exporter and for statsd.

use std::time::Duration;

/// Every outcome of a `quorate run`: the possible values of the label `outcome`.
const OUTCOMES: [&str; 7] = [
    OK,
    "failed",
    "not_due",
    "held_by_other",
    "no_quorum",
    "lost",
    "error",
];

/// The outcome if the command ran and ended with exit code 0.
const OK: &str = "ok";

/// The metric with the end time of the last successful run. An unsuccessful run copies the value from the old metrics
/// file.
const LAST_SUCCESS: &str = "quorate_run_last_success_time_seconds";

/// The metrics of one `quorate run`, while it runs or after its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunMetrics {
    pub(crate) resource: String,
    /// When the `quorate run` started, in seconds since 1970-01-01 UTC. All points in time in this struct have this
    /// unit.
    pub(crate) started_at: f64,
    pub(crate) waited: Duration,
    /// True from the start of the command under the lock until the end of the command.
    pub(crate) is_running: bool,
    pub(crate) fencing_token: Option<u64>,
    pub(crate) held_for: Option<Duration>,
    /// Outcome, exit code and end time of the `quorate run`; `None` until it has ended.
    pub(crate) end: Option<(&'static str, u8, f64)>,
    pub(crate) last_success: Option<f64>,
}

impl RunMetrics {
    /// Records that the `quorate run` has ended at the time `at`.
    pub(crate) fn set_end(&mut self, outcome: &'static str, code: u8, ended_at: f64) {
        debug_assert!(
            OUTCOMES.contains(&outcome),
            "the outcome {outcome:?} must be in OUTCOMES"
        );
        self.is_running = false;
        self.end = Some((outcome, code, ended_at));
        if outcome == OK {
            self.last_success = Some(ended_at);
        }
    }

    /// The metrics in the text format of Prometheus.
    pub(crate) fn prometheus(&self) -> String {
        let mut text = String::new();
        let resource = format!("resource=\"{}\"", escape_label(&self.resource));
        let mut metric = |name: &str, help: &str, samples: &[(String, f64)]| {
            if samples.is_empty() {
                return;
            }
            text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
            for (labels, value) in samples {
                text += &format!("{name}{{{resource}{labels}}} {value}\n");
            }
        };
        let samples_of = |value: Option<f64>| -> Vec<(String, f64)> {
            value
                .map(|value| (String::new(), value))
                .into_iter()
                .collect()
        };
        metric(
            "quorate_run_running",
            "1 while the command of the last run is running, else 0",
            &samples_of(Some(f64::from(u8::from(self.is_running)))),
        );
        metric(
            "quorate_run_start_time_seconds",
            "When the last run started to wait for the lock",
            &samples_of(Some(self.started_at)),
        );
        metric(
            "quorate_run_wait_seconds",
            "How long the last run waited for the lock",
            &samples_of(Some(self.waited.as_secs_f64())),
        );
        metric(
            "quorate_run_hold_seconds",
            "How long the last run held the lock",
            &samples_of(self.held_for.map(|held_for| held_for.as_secs_f64())),
        );
        metric(
            "quorate_run_fencing_number",
            "The fencing token of the last run",
            &samples_of(self.fencing_token.map(|fencing_token| fencing_token as f64)),
        );
        let end = self.end.as_ref();
        let outcomes = end.map(|(outcome, ..)| {
            let sample_of = |name: &str| f64::from(u8::from(name == *outcome));
            OUTCOMES.map(|name| (format!(",outcome=\"{name}\""), sample_of(name)))
        });
        metric(
            "quorate_run_outcome",
            "How the last run ended: its outcome has the value 1, all other outcomes have 0",
            outcomes.as_ref().map_or(&[], |all| &all[..]),
        );
        metric(
            "quorate_run_exit_code",
            "The exit code of the last run",
            &samples_of(end.map(|(_, code, _)| f64::from(*code))),
        );
        metric(
            "quorate_run_end_time_seconds",
            "When the last run ended",
            &samples_of(end.map(|(.., at)| *at)),
        );
        metric(
            LAST_SUCCESS,
            "When the last successful run on this machine ended (exit code 0)",
            &samples_of(self.last_success),
        );
        text
    }

    /// The metrics in the format of statsd, as the content of one datagram.
    pub(crate) fn statsd(&self) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = self.resource.replace(|c| !is_plain(c), "_");
        let wait = self.waited.as_millis();
        let mut lines = vec![format!("quorate.run.{name}.wait:{wait}|ms")];
        if let Some(held_for) = self.held_for {
            lines.push(format!(
                "quorate.run.{name}.hold:{}|ms",
                held_for.as_millis()
            ));
        }
        if let Some((outcome, code, _)) = &self.end {
            lines.push(format!("quorate.run.{name}.{outcome}:1|c"));
            lines.push(format!("quorate.run.{name}.exit_code:{code}|g"));
        }
        lines.join("\n")
    }

    /// Reads the time of the last successful run under this resource from `earlier_text`, the text of the old metrics
    /// file. Keeps this time if it is later than `self.last_success`.
    pub(crate) fn merge_last_success(&mut self, earlier_text: &str) {
        let series = format!(
            "{LAST_SUCCESS}{{resource=\"{}\"}} ",
            escape_label(&self.resource)
        );
        let mut values = earlier_text
            .lines()
            .filter_map(|line| line.strip_prefix(&series));
        let earlier_text: Option<f64> = values.next().and_then(|value| value.parse().ok());
        self.last_success = match (self.last_success, earlier_text) {
            (Some(own), Some(earlier_text)) => Some(own.max(earlier_text)),
            (own, earlier_text) => own.or(earlier_text),
        };
    }
}

/// Escapes the value of a label for the text format of Prometheus.
fn escape_label(text: &str) -> String {
    text.replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended_run(outcome: &'static str, code: u8) -> RunMetrics {
        let mut metrics = RunMetrics {
            resource: "a \"b\"\\c:1".to_owned(),
            started_at: 1000.5,
            waited: Duration::from_millis(250),
            is_running: true,
            fencing_token: Some(7),
            held_for: Some(Duration::from_secs(3)),
            ..RunMetrics::default()
        };
        metrics.set_end(outcome, code, 1004.0);
        metrics
    }

    #[test]
    fn metrics_of_run_are_formatted_for_prometheus_and_statsd() {
        let text = ended_run("failed", 3).prometheus();
        for line in [
            r#"quorate_run_running{resource="a \"b\"\\c:1"} 0"#,
            r#"quorate_run_wait_seconds{resource="a \"b\"\\c:1"} 0.25"#,
            r#"quorate_run_outcome{resource="a \"b\"\\c:1",outcome="failed"} 1"#,
            r#"quorate_run_outcome{resource="a \"b\"\\c:1",outcome="ok"} 0"#,
            r#"quorate_run_exit_code{resource="a \"b\"\\c:1"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains(LAST_SUCCESS), "{text}");
        assert_eq!(
            ended_run("ok", 0).statsd(),
            "quorate.run.a__b__c_1.wait:250|ms\nquorate.run.a__b__c_1.hold:3000|ms\n\
             quorate.run.a__b__c_1.ok:1|c\nquorate.run.a__b__c_1.exit_code:0|g"
        );
    }

    #[test]
    fn time_of_the_last_success_is_kept_in_the_metrics_after_a_failure() {
        let first = ended_run("ok", 0).prometheus();
        let mut second = ended_run("lost", 74);
        second.merge_last_success(&first);
        assert_eq!(second.last_success, Some(1004.0));
        let mut another_run = RunMetrics {
            resource: "another".to_owned(),
            ..RunMetrics::default()
        };
        another_run.merge_last_success(&first);
        assert_eq!(another_run.last_success, None);
    }
}
