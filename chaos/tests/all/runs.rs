//! Tests that start short chaos runs with real servers. They cover every kind of fault. `scripts/seeded-bugs` makes chaos
//! runs of clients with bugs.
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
        assert!(
            run.landed_count(kind) > 0,
            "the fault {kind} must be injected"
        );
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
    check_page(&run.out.join("timeline.html"), 500);
    let recheck = chaos(&format!("recheck {}", run.out.display()));
    assert!(recheck.status.success(), "{}", text(&recheck));
}

/// Opens the timeline page in a headless browser, and panics if the page draws `min_elements` elements or fewer. Does
/// nothing if no browser is installed.
fn check_page(page: &Path, min_elements: usize) {
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
    let Some(browser_output) = browser.filter(|output| output.status.success()) else {
        return eprintln!("SKIPPED: there is no browser on this machine to show the page");
    };
    let dom = String::from_utf8_lossy(&browser_output.stdout);
    assert!(
        !dom.contains("data-error="),
        "the script of the timeline page must not fail"
    );
    let drawn_elements = dom.split("data-drawn=\"").nth(1);
    let drawn_elements =
        drawn_elements.and_then(|rest| rest.split('"').next()?.parse::<usize>().ok());
    assert!(
        drawn_elements > Some(min_elements),
        "the timeline page must draw more than {min_elements} elements, but drew {drawn_elements:?}"
    );
    assert!(
        dom.contains("0 violations</h2>"),
        "the page must have the title of the list of violations"
    );
}

/// Makes a short chaos run with these faults. Panics if a checker finds a violation. If this machine supports all of
/// these faults, also panics if one of them was not injected.
fn check_short_run(seed: u32, faults: &str) {
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
            run.landed_count(kind(name)) > 0,
            "the fault {name} must be injected"
        );
    }
}

/// Makes a chaos run of one workload with these faults. Makes a second, longer run if a fault was not injected or the
/// verdict is "unknown". Panics if the last run is not valid or lacks one of these faults.
fn check_workload_run(workload: &str, seed: u32, faults: &str) -> Run {
    let args = format!("--seed {seed} --masters 3 --clients 3 --workload {workload}");
    let run = Run::until_enough(
        workload,
        &format!("{args} --faults {faults}"),
        &[2, 6],
        |run| {
            let all_landed = faults
                .split(',')
                .all(|name| run.landed_count(kind(name)) > 0);
            all_landed && run.summary.verdict != Verdict::Unknown
        },
    );
    run.must_be_valid();
    for name in faults.split(',') {
        assert!(
            run.landed_count(kind(name)) > 0,
            "the fault {name} must be injected"
        );
    }
    run
}

#[test]
#[ignore = "nightly"]
fn late_requests_and_paused_clients_do_not_change_the_total_balance_of_the_accounts() {
    check_workload_run("transfer", 21, "late-requests,client-sigstop");
}

#[test]
#[ignore = "nightly"]
fn readers_see_complete_writes_despite_kills_and_partitions() {
    check_workload_run("readers", 22, "client-sigkill,partition-minority");
}

#[test]
#[ignore = "nightly"]
fn semaphore_of_five_never_has_six_holders_despite_lost_data_and_dropped_futures() {
    let run = check_workload_run("permits", 23, "kill,client-drop");
    check_page(&run.out.join("timeline.html"), 50);
}

#[test]
#[ignore = "nightly"]
fn holds_of_two_owners_never_overlap_despite_killed_clients_and_connection_resets() {
    check_workload_run("owners", 24, "client-sigkill,reset");
}

#[test]
#[ignore = "nightly"]
fn quota_of_ten_never_gives_an_eleventh_unit_after_a_majority_lost_its_data() {
    check_workload_run("prizes", 25, "restart-majority,client-sigkill");
}

#[test]
#[ignore = "nightly"]
fn observers_see_one_leader_per_term_despite_pauses_and_masters_that_lose_data() {
    check_workload_run("leader", 26, "client-sigstop,kill");
}

#[test]
#[ignore = "nightly"]
fn lost_data_breaks_exclusion_but_no_quota_or_balance_if_the_restart_guard_is_off() {
    let run = Run::until_enough(
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
            .of_checker(checker)
            .expect("the checker must have run");
        assert!(finding.violations.is_empty(), "{}", text(&run.output));
    }
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_one_master_has_a_wrong_clock() {
    check_short_run(4, "clock-forward,clock-back,clock-drift");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_while_a_network_link_is_down() {
    check_short_run(10, "netns-partition");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_after_flushall_on_a_master() {
    check_short_run(7, "flushall");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_keeps_closing_new_connections() {
    check_short_run(11, "flapping");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_sends_garbage() {
    check_short_run(12, "garbage");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_sends_replies_that_belong_to_other_requests() {
    check_short_run(13, "foreign-replies");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_a_master_address_leads_to_another_master() {
    // The fault `busy` makes a master answer `-BUSY`. Clients may also be misrouted to such a master.
    check_short_run(14, "misrouted,busy");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_while_host_names_do_not_resolve() {
    check_short_run(15, "dns-silence,dns-nowhere");
}

#[test]
#[ignore = "nightly"]
fn lock_keeps_its_promises_if_clients_lose_a_permission_on_a_master() {
    check_short_run(16, "restricted");
}

#[test]
#[ignore = "nightly"]
fn wrong_clocks_on_a_majority_break_exclusion_but_not_fencing() {
    let run = Run::until_enough(
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
    let run = Run::until_enough(
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
    let has_comparisons = |run: &Run| {
        let order = run
            .summary
            .findings
            .of_checker("order")
            .expect("the checker must have run");
        !order.coverage.starts_with("0 acquisitions")
    };
    let run = Run::until_enough(
        "order",
        "--seed 9 --masters 3 --clients 5 --many 5 --pause 30ms --faults none",
        &[7, 15, 30],
        has_comparisons,
    );
    run.must_be_valid();
    assert!(has_comparisons(&run), "{}", text(&run.output));
}
