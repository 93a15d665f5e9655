//! Tests that start short chaos runs with real servers. They cover every kind of fault and every known-bad
//! implementation.
//!
//! Only one chaos run is active at a time, because all runs share this machine.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Run, chaos, kind, text};
use quorate_chaos::checks::Verdict;
use quorate_chaos::faults::Kind;
use quorate_chaos::node::NodeKind;

#[test]
fn lock_keeps_its_promises_under_mixed_faults_for_forty_seconds() {
    let run = Run::of("mixed", "--seed 30 --duration 40s --clients 5 --many 15");
    run.must_be_valid();
    for kind in Kind::mixed(&[NodeKind::REDIS]) {
        assert!(run.landed(kind) > 0, "the fault {kind} must be injected");
    }
    let page =
        std::fs::read_to_string(run.out.join("timeline.html")).expect("the page must be readable");
    assert!(
        page.contains("\"verdict\":\"valid\""),
        "timeline.html must contain the verdict"
    );
    assert!(
        !page.contains("http"),
        "timeline.html must not load anything from the network"
    );
    look_at(&run.out.join("timeline.html"), 500);
    let again = chaos(&format!("recheck {}", run.out.display()));
    assert!(again.status.success(), "{}", text(&again));
}

/// Opens the timeline page in a headless browser, and panics if the page draws `least` elements or fewer. Does nothing
/// if no browser is installed.
fn look_at(page: &Path, least: usize) {
    let profile = page.with_file_name("browser");
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find_map(|browser| {
            Command::new(browser)
                .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
                .args(["--window-size=1500,900", "--virtual-time-budget=3000"])
                .arg(format!("--user-data-dir={}", profile.display()))
                .arg(format!("file://{}", page.display()))
                .stdin(Stdio::null())
                .output()
                .ok()
        });
    let Some(seen) = browser.filter(|output| output.status.success()) else {
        return eprintln!("SKIPPED: there is no browser on this machine to show the page");
    };
    let dom = String::from_utf8_lossy(&seen.stdout);
    assert!(
        !dom.contains("data-error="),
        "the script of the timeline page must not fail"
    );
    let drawn = dom.split("data-drawn=\"").nth(1);
    let drawn = drawn.and_then(|rest| rest.split('"').next()?.parse::<usize>().ok());
    assert!(
        drawn > Some(least),
        "the timeline page must draw more than {least} elements, but drew {drawn:?}"
    );
    assert!(
        dom.contains("0 violations</h2>"),
        "the page must have the title of the list of violations"
    );
}

/// Makes a short chaos run with these faults. Panics if a checker finds a violation. If this machine supports all of
/// these faults, also panics if one of them was not injected.
fn survived(seed: u32, faults: &str) {
    let args = format!("--seed {seed} --duration 4s --masters 3 --clients 3 --many 5");
    let run = Run::of(faults, &format!("{args} --faults {faults}"));
    if faults
        .split(',')
        .any(|name| run.summary.unavailable.contains_key(name))
    {
        return assert_ne!(
            run.summary.verdict,
            Verdict::Invalid,
            "{}",
            text(&run.output)
        );
    }
    run.must_be_valid();
    for name in faults.split(',') {
        assert!(
            run.landed(kind(name)) > 0,
            "the fault {name} must be injected"
        );
    }
}

/// Makes a chaos run of one workload with these faults. Makes a second, longer run if a fault was not injected or the
/// verdict is "unknown". Panics if the last run is not valid or lacks one of these faults.
fn kept(workload: &str, seed: u32, faults: &str) -> Run {
    let args = format!("--seed {seed} --masters 3 --clients 3 --workload {workload}");
    let run = Run::until(
        workload,
        &format!("{args} --faults {faults}"),
        &[2, 6],
        |run| {
            let landed = faults.split(',').all(|name| run.landed(kind(name)) > 0);
            landed && run.summary.verdict != Verdict::Unknown
        },
    );
    run.must_be_valid();
    for name in faults.split(',') {
        assert!(
            run.landed(kind(name)) > 0,
            "the fault {name} must be injected"
        );
    }
    run
}

#[test]
#[ignore = "nightly"]
fn late_requests_and_paused_clients_do_not_change_the_total_balance_of_the_accounts() {
    kept("transfer", 21, "late-requests,client-sigstop");
}

#[test]
#[ignore = "nightly"]
fn readers_see_complete_writes_despite_kills_and_partitions() {
    kept("readers", 22, "client-sigkill,partition-minority");
}

#[test]
#[ignore = "nightly"]
fn semaphore_of_five_never_has_six_holders_despite_lost_data_and_dropped_futures() {
    let run = kept("permits", 23, "kill,client-drop");
    look_at(&run.out.join("timeline.html"), 50);
}

#[test]
#[ignore = "nightly"]
fn holds_of_two_owners_never_overlap_despite_killed_clients_and_connection_resets() {
    kept("owners", 24, "client-sigkill,reset");
}

#[test]
#[ignore = "nightly"]
fn quota_of_ten_never_gives_an_eleventh_unit_after_a_majority_lost_its_data() {
    kept("prizes", 25, "restart-majority,client-sigkill");
}

#[test]
#[ignore = "nightly"]
fn observers_see_one_leader_per_term_despite_pauses_and_masters_that_lose_data() {
    kept("leader", 26, "client-sigstop,kill");
}

#[test]
#[ignore = "nightly"]
fn lost_data_breaks_exclusion_but_no_quota_or_balance_if_the_restart_guard_is_off() {
    let run = Run::until(
        "kinds-amnesia",
        "--seed 27 --masters 3 --clients 4 --workload kinds --faults amnesia",
        &[3, 9],
        |run| run.summary.excused > 0,
    );
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
    for checker in ["fencing", "ledger", "prizes", "leaders"] {
        let finding = run
            .summary
            .findings
            .by(checker)
            .expect("the checker must have run");
        assert!(finding.violations.is_empty(), "{}", text(&run.output));
    }
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_one_master_has_a_wrong_clock() {
    survived(4, "clock-forward,clock-back,clock-drift");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_while_a_network_link_is_down() {
    survived(10, "netns-partition");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_after_flushall_on_a_master() {
    survived(7, "flushall");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_keeps_closing_new_connections() {
    survived(11, "flapping");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_sends_garbage() {
    survived(12, "garbage");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_sends_replies_that_belong_to_other_requests() {
    survived(13, "foreign-replies");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_address_leads_to_another_master() {
    // The fault `busy` makes a master answer `-BUSY`. Clients may also be misrouted to such a master.
    survived(14, "misrouted,busy");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_while_host_names_do_not_resolve() {
    survived(15, "dns-silence,dns-nowhere");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_clients_lose_a_permission_on_a_master() {
    survived(16, "restricted");
}

#[test]
#[ignore = "nightly"]
fn wrong_clocks_on_a_majority_break_exclusion_but_not_fencing() {
    let run = Run::until(
        "clock-majority",
        "--seed 5 --masters 3 --clients 3 --many 5 --faults clock-majority",
        &[3, 9],
        |run| run.summary.excused > 0 || !run.summary.unavailable.is_empty(),
    );
    if run.summary.unavailable.contains_key("clock-majority") {
        return assert_eq!(run.summary.verdict, Verdict::Unknown);
    }
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn lost_data_breaks_exclusion_but_not_fencing_if_the_restart_guard_is_off() {
    let run = Run::until(
        "amnesia",
        "--seed 6 --masters 3 --clients 3 --many 5 --faults amnesia",
        &[3, 9],
        |run| run.summary.excused > 0,
    );
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn waiters_are_served_in_order_and_leave_no_keys() {
    let looked = |run: &Run| {
        let order = run
            .summary
            .findings
            .by("order")
            .expect("the checker must have run");
        !order.looked_at.starts_with("0 acquisitions")
    };
    let run = Run::until(
        "order",
        "--seed 9 --masters 3 --clients 5 --many 5 --pause 30ms --faults none",
        &[7, 15, 30],
        looked,
    );
    run.must_be_valid();
    assert!(looked(&run), "{}", text(&run.output));
}

#[test]
fn checkers_catch_the_known_bad_clients_of_plain_locks() {
    for (locker, checker) in [
        ("half-quorum", "exclusion"),
        ("no-undo", "leftovers"),
        ("ignores-loss", "exclusion"),
        ("jumps-line", "order"),
    ] {
        let verdict = |run: &Run| {
            let finding = run.summary.findings.by(checker);
            finding.expect("the checker must have run").verdict
        };
        let run = Run::until(
            locker,
            &format!(
                "--seed 8 --masters 3 --clients 5 --pause 20ms --faults none \
                 --workload file,handover --locker {locker}"
            ),
            // The checker `order` ignores the first seconds of a run, so it needs longer runs than the other checkers.
            match locker {
                "jumps-line" => &[6, 15, 30],
                _ => &[2, 6, 12],
            },
            |run| verdict(run) == Verdict::Invalid,
        );
        assert_eq!(
            verdict(&run),
            Verdict::Invalid,
            "the checker {checker} did not catch {locker}:\n{}",
            text(&run.output)
        );
        assert_eq!(run.output.status.code(), Some(1));
    }
}

/// Runs the known-bad client `locker` with the workload `of`. Panics unless one run shows a violation for each pair in
/// `seen`.
///
/// - `seen`: pairs of a checker and a text that a violation of this checker contains
/// - `seconds`: the duration of each run. The first run that shows all these violations is the last.
fn caught(locker: &str, of: &str, seconds: &[u32], seen: &[(&str, &str)]) {
    let sees = |run: &Run, (checker, words): &(&str, &str)| {
        let finding = run
            .summary
            .findings
            .by(checker)
            .expect("the checker must have run");
        let mut seen = finding.violations.iter();
        finding.verdict == Verdict::Invalid && seen.any(|one| one.what.contains(words))
    };
    let run = Run::until(
        locker,
        &format!("--seed 8 --masters 3 --clients 5 --pause 20ms --locker {locker} --workload {of}"),
        seconds,
        |run| seen.iter().all(|what| sees(run, what)),
    );
    for what in seen {
        assert!(
            sees(&run, what),
            "no violation of {locker} matches {what:?}:\n{}",
            text(&run.output)
        );
    }
    assert_eq!(run.output.status.code(), Some(1));
}

#[test]
#[ignore = "nightly"]
fn known_bad_client_that_locks_several_resources_one_by_one_is_caught() {
    let left = (
        "leftovers",
        "keys that still exist after all clients released their locks",
    );
    caught("one-by-one", "transfer --faults none", &[2, 6, 12], &[left]);
    let both = ("exclusion", "both held \"transfer-");
    caught(
        "later-lease",
        "transfer --faults none",
        &[5, 10, 20],
        &[both],
    );
}

#[test]
fn known_bad_client_that_stores_only_the_number_of_readers_is_caught() {
    let both = ("exclusion", "both held \"readers\"");
    let half = ("views", "in \"readers\", but must read");
    caught(
        "counts-readers",
        "readers --faults none",
        &[3, 6, 12],
        &[both, half],
    );
}

#[test]
fn known_bad_client_that_lets_each_master_choose_a_permit_is_caught() {
    let six = ("permits", "but there are only 5 permits");
    let both = ("exclusion", "both held \"permits\", slot ");
    caught(
        "any-permit",
        "permits --faults none",
        &[2, 6, 12],
        &[six, both],
    );
}

#[test]
#[ignore = "nightly"]
fn known_bad_client_that_needs_only_one_master_to_reenter_a_lock_is_caught() {
    let both = ("exclusion", "both held \"owners\"");
    let mark = ("views", "in \"owners\", but must read");
    caught(
        "joins-by-one",
        "owners --faults none",
        &[2, 6, 12],
        &[both, mark],
    );
}

#[test]
fn known_bad_client_that_gives_holds_of_one_owner_separate_tokens_is_caught() {
    let numbers = ("owners", "hold one lock for the same owner");
    caught(
        "numbers-each",
        "owners --faults none",
        &[2, 6, 12],
        &[numbers],
    );
}

#[test]
fn known_bad_client_that_lets_each_master_count_a_quota_is_caught() {
    let twice = ("prizes", "both got prize");
    caught("counts-down", "prizes --faults none", &[2, 6, 12], &[twice]);
}

#[test]
fn known_bad_client_that_is_elected_leader_by_one_master_is_caught() {
    let two = ("exclusion", "both held \"leader\"");
    let told = ("leaders", "in term 1, ");
    // Without a partition, all clients would ask the same master first. It would elect only one of them.
    caught(
        "led-by-one",
        "leader --faults partition-one",
        &[5, 10, 20],
        &[two, told],
    );
}
