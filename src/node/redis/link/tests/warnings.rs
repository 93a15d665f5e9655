//! Tests of the warnings about a new connection: each reason why the votes of the master do not count is logged once.

use super::age_records::options_with;
use super::*;
use crate::node::redis::refusal::{admission_fault, server_fault};

/// The warnings among these texts that the link has logged by this time.
fn logged<'a>(bench: &Bench, texts: &[&'a str], now: u64) -> Vec<&'a str> {
    let repeats = &bench.shared.repeats;
    let is_logged = |text: &&&str| repeats.should_log(text, at(now)).is_none();
    texts.iter().filter(is_logged).copied().collect()
}

#[test]
fn only_the_reason_why_the_votes_of_a_master_are_ignored_is_logged() {
    let reasons = ["restarted", "clock", "young", "moved"];
    let info = |uptime: &str| format!("run_id:a\r\nuptime_in_seconds:{uptime}\r\n");
    let marker = own_marker(&Bench::new());
    for (uptime, marker, record, expected) in [
        ("99999999", "", "", None),
        ("0", "", "", Some("restarted")),
        ("-7200", "", "", Some("clock")),
        ("0", &*marker, "a 40000 x", None),
        ("0", &*marker, "a 20000 x", Some("young")),
    ] {
        let mut bench = Bench::new();
        greet_fully(&mut bench, &info(uptime), (marker, record), 0);
        let logged = logged(&bench, &reasons, 0);
        assert_eq!(logged, Vec::from_iter(expected), "{uptime} {record}");
    }
}

#[test]
fn refusal_is_logged_only_if_the_client_does_not_wait_for_the_next_masters() {
    let masters = Fingerprint::new(["master:6379"]);
    let first = Configuration::new(0, masters, None);
    let unnamed_marker = format!("0 {masters}");
    for (configuration, marker, is_logged) in [
        (first, &*unnamed_marker, false),
        (first, "1 0123456789abcdef", true),
        (first.named(Some("shop")), &*unnamed_marker, true),
        // The masters of this client are not opened yet.
        (
            Configuration::new(1, masters, None),
            "0 0123456789abcdef",
            false,
        ),
    ] {
        let options = options_with(configuration, Vec::new());
        let mut bench = Bench::at("redis://master", Arc::new(options));
        greet_aged(&mut bench, ("a", marker, "a 40000 x"), 0);
        let shown = Marker::read(marker.as_bytes());
        let fault = admission_fault(configuration, shown);
        let text = fault.map(|fault| fault.to_string()).unwrap_or_default();
        let expected = is_logged.then_some(&*text);
        assert_eq!(
            logged(&bench, &[&text], 0),
            Vec::from_iter(expected),
            "{marker}"
        );
    }
}

#[test]
fn missing_right_to_subscribe_is_logged() {
    let mut bench = Bench::awaiting_subscription();
    let refusal = "NOPERM No permissions to access a channel";
    bench.receive_bytes(format!("-{refusal}\r\n").as_bytes(), 1);
    let Fault::Denied(why) = server_fault(refusal.as_bytes()) else {
        panic!("the user has no right to the channel");
    };
    assert_eq!(logged(&bench, &[&*why], 1), [&*why]);
}
