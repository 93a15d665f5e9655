//! Tests of the steps of a replacement on masters in memory.

use std::sync::{Arc, Mutex, MutexGuard};

use super::*;
use crate::RedlockBuilder;
use crate::node::change::ChangeSeen;
use crate::node::memory::MemoryNode;
use crate::node::right::{MissingRight, Purpose};
use crate::node::{Fault, Node, NodeName, Reply, Request, Subscriber};
use crate::protocol::marker::Fingerprint;
use crate::runtime::BoxFuture;

#[tokio::test]
async fn rights_are_checked_a_second_time_only_if_none_is_missing_and_a_master_stores_a_value() {
    let job = || vec![b"job".to_vec()];
    let right = MissingRight::on_table("INSERT", "app", "quorate_locks", Purpose::Changing);
    for (stored, missing, order_count) in [
        (Vec::new(), Vec::new(), 1),
        (job(), Vec::new(), 2),
        (job(), vec![right], 1),
    ] {
        let masters = six_masters(&[]);
        masters[1].state().stored = stored;
        masters[2].state().missing = missing;
        let surveyed = redlock_on(&masters, 0).survey().await;
        surveyed.expect("the masters have markers");
        let orders = masters.iter().map(|master| master.order_count("Rights"));
        assert_eq!(orders.collect::<Vec<_>>(), [order_count; 6]);
    }
}

#[test]
fn wait_before_the_step_open_allows_for_clocks_that_drift_by_one_percent() {
    let redlock = Redlock::builder().masters(["redis://a", "redis://b", "redis://c"]);
    let redlock = redlock.next_masters(["redis://d", "redis://e", "redis://f"]);
    let redlock = redlock.max_ttl(Duration::from_secs(30)).build();
    let redlock = redlock.expect("good settings");
    let change = redlock.change().expect("next masters are set");
    assert_eq!(change.wait(), Duration::from_millis(30_302));
}

#[test]
fn change_of_masters_copies_fencing_counters_up_to_9_s_older_than_its_wait() {
    let hour = Duration::from_secs(3600);
    for wait in [Duration::from_secs(1), hour] {
        let limit = counter_age_limit(wait).saturating_sub(wait).as_secs();
        assert!((9..=10).contains(&limit), "{wait:?}: {limit}");
    }
}

/// A master in memory that executes the orders of an operator.
struct ChangedNode {
    memory: MemoryNode,
    state: Mutex<ChangeSeen>,
    /// The names of all orders, for example `Raise`, and `Acquire` for each attempt to acquire a lock.
    orders: Mutex<Vec<String>>,
    /// The steps in all orders to raise the marker. Clients below such a step are disconnected.
    steps: Mutex<Vec<u64>>,
    /// The name of the orders that fail; empty if none does. With `Release`, releases are not answered.
    failing: Mutex<&'static str>,
    /// The name of the orders for which the address leads to another server; empty if there are none.
    moved: Mutex<&'static str>,
    /// The receivers of answers that never come.
    unanswered: Mutex<Vec<Reply>>,
    /// The fault of every request that writes or removes a value; `None` if the master executes them.
    write_fault: Mutex<Option<Fault>>,
    /// The lock keys of the values that the master lists.
    names: Vec<Vec<u8>>,
}

impl ChangedNode {
    fn mark(&self) -> String {
        let mark = self.state().mark.clone().unwrap_or_default();
        mark.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Raises the number of the marker, and never lowers it.
    fn raise(&self, number: u64, print: &str) {
        let is_lower = self.mark().parse::<u64>().is_ok_and(|mark| number < mark);
        if !is_lower {
            self.state().mark = Some(format!("{number} {print}"));
        }
    }

    fn state(&self) -> MutexGuard<'_, ChangeSeen> {
        self.state.lock().expect("no test thread has panicked")
    }

    fn fail(&self, order: &'static str) {
        *self.failing.lock().expect("no test thread has panicked") = order;
    }

    fn move_for(&self, order: &'static str) {
        *self.moved.lock().expect("no test thread has panicked") = order;
    }

    fn order_count(&self, name: &str) -> usize {
        let orders = self.orders.lock().expect("no test thread has panicked");
        orders.iter().filter(|order| *order == name).count()
    }

    fn execute(&self, order: &ChangeOrder) -> ChangeSeen {
        let text = format!("{order:?}");
        let name = text.split([' ', '(']).next().unwrap_or_default().to_owned();
        let failing = *self.failing.lock().expect("no test thread has panicked");
        let fault = (name == failing).then_some(Fault::OutOfMemory);
        if let (
            ChangeOrder::Raise {
                number,
                print,
                step,
                ..
            },
            None,
        ) = (order, &fault)
        {
            self.raise(*number, print);
            let steps = self.steps.lock();
            steps.expect("no test thread has panicked").push(*step);
        }
        let lists_names = name == "Values";
        let has_moved = name == *self.moved.lock().expect("no test thread has panicked");
        let orders = self.orders.lock();
        orders.expect("no test thread has panicked").push(name);
        if fault.is_some() {
            return ChangeSeen {
                fault,
                ..ChangeSeen::default()
            };
        }
        let seen = self.state().clone();
        ChangeSeen {
            names: self.names.iter().filter(|_| lists_names).cloned().collect(),
            run_id: if has_moved {
                Some("run-of-another".into())
            } else {
                seen.run_id.clone()
            },
            ..seen
        }
    }
}

impl Node for ChangedNode {
    fn name(&self) -> &NodeName {
        self.memory.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if matches!(request, Request::Acquire { .. }) {
            let orders = self.orders.lock();
            let acquire = "Acquire".to_owned();
            orders.expect("no test thread has panicked").push(acquire);
        }
        let failing = *self.failing.lock().expect("no test thread has panicked");
        if failing == "Release" && matches!(request, Request::Release { .. }) {
            let unanswered = self.unanswered.lock();
            return unanswered.expect("no test thread has panicked").push(reply);
        }
        let write_fault = self.write_fault.lock();
        let write_fault = write_fault.expect("no test thread has panicked").clone();
        match write_fault.filter(|_| matches!(request, Request::Write { .. })) {
            Some(fault) => reply.answer(Err(fault)),
            None => self.memory.send(request, reply),
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.memory.subscribe(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.memory.idle()
    }

    fn change(&self, order: ChangeOrder) -> BoxFuture<ChangeSeen> {
        let seen = self.execute(&order);
        Box::pin(async move { seen })
    }
}

/// Three old masters and three next masters. Each master lists the values under these lock keys.
fn six_masters(names: &[&str]) -> Vec<Arc<ChangedNode>> {
    let master = |index: usize| ChangedNode {
        memory: MemoryNode::new(&format!("m{index}")),
        state: Mutex::new(ChangeSeen {
            run_id: Some(format!("run-{index}")),
            ..ChangeSeen::default()
        }),
        orders: Mutex::default(),
        steps: Mutex::default(),
        failing: Mutex::new(""),
        moved: Mutex::new(""),
        unanswered: Mutex::default(),
        write_fault: Mutex::default(),
        names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
    };
    (0..6).map(|index| Arc::new(master(index))).collect()
}

/// The settings of a client that uses the old masters, and no next masters.
fn settings_of_old(masters: &[Arc<ChangedNode>]) -> RedlockBuilder {
    let urls = (7000..7003).map(|port| format!("redis://m:{port}"));
    let nodes = masters.iter().map(|master| master.clone() as Arc<dyn Node>);
    Redlock::builder().masters(urls).nodes(nodes.collect())
}

/// The operations on the masters of a client that has no next masters.
fn without_replacement(redlock: &Redlock) -> MastersChange<'_> {
    let print = Fingerprint::new(["redis://m:7000"]);
    MastersChange {
        redlock,
        configuration: Configuration::new(0, print, None),
        allow_unknown_clients: false,
    }
}

/// The settings of a client that is configured to replace the old masters at this generation.
fn settings_on(masters: &[Arc<ChangedNode>], generation: u64) -> RedlockBuilder {
    let next_urls = (7003..7006).map(|port| format!("redis://m:{port}"));
    let settings = settings_of_old(masters).next_masters(next_urls);
    settings.masters_generation(generation)
}

/// A client that is configured to replace the old masters at this generation.
fn redlock_on(masters: &[Arc<ChangedNode>], generation: u64) -> Redlock {
    let settings = settings_on(masters, generation);
    settings.build().expect("good settings")
}

/// Creates a quota with this name on these masters only.
async fn create_quota(masters: &[Arc<ChangedNode>], name: &str) {
    let nodes = masters
        .iter()
        .map(|master| Arc::new(master.memory.clone()) as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(nodes.collect()).build();
    let redlock = redlock.expect("good settings");
    redlock
        .quota(name)
        .create(7)
        .await
        .expect("every master answers");
}

/// Lets every later request that writes or removes a value on these masters fail.
fn fail_writes(masters: &[Arc<ChangedNode>], fault: &Fault) {
    for master in masters {
        let write_fault = master.write_fault.lock();
        *write_fault.expect("no test thread has panicked") = Some(fault.clone());
    }
}

/// Executes the steps `begin`, `close` and `closed`, and waits until the step `open` may follow.
async fn close(change: &MastersChange<'_>) -> Survey {
    change.begin().await.expect("the next masters are ready");
    change.close().await.expect("all old masters answer");
    let closed = change.closed().await.expect("the old masters are closed");
    tokio::time::advance(change.wait()).await;
    closed
}

/// The text of the error of a step.
#[track_caller]
fn error_of(result: Result<Survey, ChangeError>) -> String {
    result
        .expect_err("a condition of the step is not met")
        .to_string()
}

fn marks(masters: &[Arc<ChangedNode>]) -> Vec<String> {
    masters.iter().map(|master| master.mark()).collect()
}

#[tokio::test(start_paused = true)]
async fn each_step_raises_the_markers_of_all_masters_once_the_steps_before_it_are_done() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    assert_eq!(marks(&masters), ["1"; 6]);
    for early in [change.open_again().await, change.finish().await] {
        let error = error_of(early);
        assert!(error.contains("the next masters are not open"), "{error}");
    }
    masters[5].fail("Raise");
    let opened = change
        .open(&closed)
        .await
        .expect("the other masters answer");
    assert_eq!(opened.stage(), ChangeStage::Open);
    assert_eq!(marks(&masters), ["2", "2", "2", "2", "2", "1"]);
    masters[5].fail("");
    change
        .open_again()
        .await
        .expect("the next masters are open");
    assert_eq!(marks(&masters), ["2"; 6]);
    for master in &masters[3..5] {
        master.fail("Raise");
    }
    let error = error_of(change.finish().await);
    let expected = "no majority of the next masters is marked as finished";
    assert!(error.contains(expected), "{error}");
    for master in &masters[3..5] {
        master.fail("");
    }
    let finished = change.finish().await.expect("the next masters are open");
    assert_eq!(finished.stage(), ChangeStage::Finished);
    assert_eq!(marks(&masters), ["4"; 6]);
    let orders = |name| {
        masters
            .iter()
            .map(|master| master.order_count(name))
            .sum::<usize>()
    };
    assert_eq!(orders("Counters"), 6);
    assert_eq!(orders("Carry"), 0, "there are no fencing counters to copy");
}

#[tokio::test(start_paused = true)]
async fn step_begin_copies_no_values_once_the_next_masters_are_open() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    let lists = || masters[0].order_count("Values");
    assert_eq!(lists(), 2, "the steps begin and close copy values");
    change.open(&closed).await.expect("all masters answer");
    assert_eq!(lists(), 3);
    let begun = change.begin().await.expect("all masters answer");
    assert_eq!((begun.stage(), lists()), (ChangeStage::Open, 3));
}

#[tokio::test(start_paused = true)]
async fn step_begin_waits_until_the_previous_replacement_has_opened_its_masters() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 1);
    let change = redlock.change().expect("next masters are set");
    let print = change.configuration.print_at(2).expect("the old masters");
    for (number, is_refused) in [(None, true), (Some(1), true), (Some(2), false)] {
        for master in &masters[..2] {
            master.state().mark = number.map(|number| format!("{number} {print}"));
        }
        let begun = change.begin().await;
        assert_eq!(begun.is_err(), is_refused, "{number:?}");
        if is_refused {
            let error = error_of(begun);
            let expected = "the previous replacement has not completed its step `open`";
            assert!(error.contains(expected), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn step_open_is_refused_if_old_masters_restarted_since_they_were_closed() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    for master in &masters[..2] {
        master.state().run_id = Some(format!("restarted-{}", master.name()));
    }
    let error = error_of(change.open(&closed).await);
    let expected = "too few of the old masters have stayed closed and running since";
    assert!(error.contains(expected), "{error}");
    assert_eq!(marks(&masters), ["1"; 6]);
}

#[tokio::test(start_paused = true)]
async fn failed_step_open_reports_the_values_that_it_has_removed() {
    for (lost, expected) in [
        (false, "no majority of the next masters is open"),
        (true, "\"partial\": lost"),
    ] {
        let masters = six_masters(&["stale", "partial"]);
        let redlock = redlock_on(&masters, 0);
        let change = redlock.change().expect("next masters are set");
        // No old master has this value.
        create_quota(&masters[3..], "stale").await;
        if lost {
            create_quota(&masters[..1], "partial").await;
        }
        let closed = close(&change).await;
        for master in &masters[3..5] {
            master.fail("Raise");
        }
        let error = error_of(change.open(&closed).await);
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("\"stale\": removed"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn step_open_says_why_a_value_was_not_copied_or_removed() {
    let denied = || Fault::Denied("NOPERM no right to SET".into());
    for (name, holders, fault, expected) in [
        (
            "prizes",
            0..3,
            Fault::OutOfMemory,
            "too few masters could store it",
        ),
        ("prizes", 0..3, denied(), "a right is missing"),
        (
            "stale",
            3..6,
            Fault::OutOfMemory,
            "too few masters could store it",
        ),
        ("stale", 3..6, denied(), "a right is missing"),
    ] {
        let masters = six_masters(&[name]);
        let redlock = redlock_on(&masters, 0);
        let change = redlock.change().expect("next masters are set");
        let closed = close(&change).await;
        create_quota(&masters[holders], name).await;
        fail_writes(&masters[3..], &fault);
        let error = error_of(change.open(&closed).await);
        assert!(error.contains(expected), "{name}: {error}");
        assert!(!error.contains("removed,"), "{name}: {error}");
        assert_eq!(marks(&masters), ["1"; 6], "no master was opened");
    }
}

#[tokio::test(start_paused = true)]
async fn step_begin_fails_without_a_right_but_not_if_a_value_cannot_be_copied_yet() {
    let denied = Fault::Denied("NOPERM no right to SET".into());
    for (fault, expected) in [
        (denied, Err("a right is missing")),
        (Fault::OutOfMemory, Ok("too few masters could store it")),
    ] {
        let masters = six_masters(&["prizes"]);
        let redlock = redlock_on(&masters, 0);
        let change = redlock.change().expect("next masters are set");
        create_quota(&masters[..3], "prizes").await;
        fail_writes(&masters[3..], &fault);
        let begun = change.begin().await;
        match expected {
            Ok(advice) => {
                let survey = begun.expect("the step must not fail");
                assert!(survey.advice()[0].contains(advice), "{:?}", survey.advice());
            }
            Err(text) => assert!(error_of(begun).contains(text)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn values_are_copied_together_with_one_look_at_the_markers() {
    let mut looks = Vec::new();
    for names in [&["prizes"][..], &["prizes", "tickets", "seats"]] {
        let masters = six_masters(names);
        let redlock = redlock_on(&masters, 0);
        for name in names {
            create_quota(&masters[..3], name).await;
        }
        let change = redlock.change().expect("next masters are set");
        let begun = change.begin().await.expect("the next masters are ready");
        assert_eq!(begun.carried.len(), names.len());
        looks.push(masters[0].order_count("ReadState"));
    }
    assert_eq!(looks[0], looks[1]);
}

#[tokio::test(start_paused = true)]
async fn only_the_step_open_waits_for_the_lock_of_a_value_and_only_once() {
    let masters = six_masters(&["prizes"]);
    create_quota(&masters[..3], "prizes").await;
    let holder = redlock_on(&masters, 0);
    let hold = || holder.acquire("prizes");
    let guard = hold().await.expect("free");
    let attempts = || masters[0].order_count("Acquire");
    let attempts_of_holder = attempts();
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    let attempts_of_steps = attempts() - attempts_of_holder;
    assert_eq!(attempts_of_steps, 2, "one attempt of each step");
    // The lock has expired, because the clock was advanced without a chance to renew it.
    assert!(!guard.is_valid());
    let _guard = hold().await.expect("free");
    let started_at = tokio::time::Instant::now();
    let error = error_of(change.open(&closed).await);
    assert!(error.contains("\"prizes\": not copied"), "{error}");
    let waited = started_at.elapsed();
    let waits = change.wait()..2 * change.wait();
    assert!(waits.contains(&waited), "{waited:?}");
}

#[test]
fn repeated_lines_of_an_error_are_shown_once() {
    let lines = ["a", "b", "a"].map(str::to_owned);
    let shown = ["a", "b"].map(str::to_owned);
    let refused = refuse_if_missing(Vec::from(lines));
    assert_eq!(refused, Err(ChangeError::Missing(Vec::from(shown))));
    assert_eq!(refuse_if_missing(Vec::new()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn every_step_is_refused_while_two_addresses_lead_to_one_server() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    masters[1].state().run_id = Some("run-0".into());
    for refused in [
        change.begin().await,
        change.close().await,
        change.closed().await,
        change.open(&closed).await,
        change.open_again().await,
        change.finish().await,
    ] {
        let error = error_of(refused);
        assert!(error.contains("is the same server as"), "{error}");
    }
    assert_eq!(marks(&masters), ["1"; 6]);
}

#[tokio::test(start_paused = true)]
async fn step_begin_needs_the_answers_of_all_next_masters_but_not_of_all_old_masters() {
    for (failing, is_refused) in [(0, false), (5, true)] {
        let masters = six_masters(&[]);
        let redlock = redlock_on(&masters, 0);
        let change = redlock.change().expect("next masters are set");
        masters[failing].fail("Rights");
        let begun = change.begin().await;
        assert_eq!(begun.is_err(), is_refused, "{begun:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn step_begin_connects_several_times_to_find_addresses_that_lead_to_several_servers() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    masters[2].move_for("Identify");
    let error = error_of(change.begin().await);
    assert!(error.contains("leads to 2 servers in turn"), "{error}");
    for master in &masters {
        let connection_count = master.order_count("Identify");
        assert_eq!(connection_count, IDENTIFYING_CONNECTIONS);
    }
    assert_eq!(marks(&masters), [""; 6]);
}

#[tokio::test(start_paused = true)]
async fn step_begin_is_refused_while_a_marker_lacks_the_configured_name() {
    let masters = six_masters(&[]);
    let settings = settings_on(&masters, 0).masters_name("shop");
    let redlock = settings.build().expect("good settings");
    let change = redlock.change().expect("next masters are set");
    let print = change.configuration.print_at(0).expect("the old masters");
    masters[0].state().mark = Some(format!("0 {print}"));
    let error = error_of(change.begin().await);
    let expected = "does not bear the name in masters_name";
    assert!(error.contains(expected), "{error}");
    assert_eq!(masters[3].mark(), "");
}

#[tokio::test(start_paused = true)]
async fn step_fails_if_too_few_masters_execute_one_of_its_orders() {
    let (old, next) = ([0, 1], [3, 4]);
    for (step, order, failing, expected) in [
        (
            "begin",
            "Raise",
            next,
            "too few old masters or too few next masters have the generation marker",
        ),
        (
            "close",
            "Raise",
            old,
            "no majority of the old masters is closed: run the step `close` again",
        ),
        (
            "open",
            "Counters",
            old,
            "have listed their fencing counters",
        ),
        (
            "open",
            "Carry",
            next,
            "no majority of the next masters accepted the fencing counters",
        ),
    ] {
        let masters = six_masters(&[]);
        masters[2].state().counters = vec![(b"quorate:fence:doc".to_vec(), 7)];
        let redlock = redlock_on(&masters, 0);
        let change = redlock.change().expect("next masters are set");
        let fail = || failing.map(|index| masters[index].fail(order));
        let result = match step {
            "begin" => {
                fail();
                change.begin().await
            }
            "close" => {
                change.begin().await.expect("the next masters are ready");
                fail();
                change.close().await
            }
            _ => {
                let closed = close(&change).await;
                fail();
                change.open(&closed).await
            }
        };
        let error = error_of(result);
        assert!(error.contains(expected), "{step}, {order}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn step_open_is_refused_if_the_clocks_of_the_masters_differ_too_much() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    for (master, offset_ms) in masters.iter().zip([0, 100_000_000]) {
        master.state().clock_offset_ms = Some(offset_ms);
    }
    let error = error_of(change.open(&closed).await);
    assert!(error.contains("the masters' clocks differ"), "{error}");
    assert_eq!(marks(&masters), ["1"; 6]);
}

#[tokio::test(start_paused = true)]
async fn step_open_accepts_only_a_result_of_the_steps_that_close_the_old_masters() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 0);
    let change = redlock.change().expect("next masters are set");
    close(&change).await;
    // The step `begin` does not disconnect the clients that know only the old masters.
    let begun = change.begin().await.expect("all masters answer");
    tokio::time::advance(change.wait()).await;
    let error = error_of(change.open(&begun).await);
    assert!(error.contains("must be closed for at least"), "{error}");
    assert_eq!(marks(&masters), ["1"; 6]);
}

#[tokio::test(start_paused = true)]
async fn each_step_disconnects_the_clients_that_do_not_know_its_masters() {
    let masters = six_masters(&[]);
    let redlock = redlock_on(&masters, 1);
    let change = redlock.change().expect("next masters are set");
    let print = change.configuration.print_at(2).expect("the old masters");
    for master in &masters[..3] {
        master.state().mark = Some(format!("2 {print}"));
    }
    let closed = close(&change).await;
    let opened = change.open(&closed).await;
    opened.expect("all masters answer");
    change.open_again().await.expect("all masters answer");
    change.finish().await.expect("all masters answer");
    // At generation 1, a client without next masters has the step 2, and one with next masters 3.
    for master in &masters {
        let steps = master.steps.lock().expect("no test thread has panicked");
        assert_eq!(*steps, [2, 3, 3, 3, 3, 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn survey_shows_next_masters_only_during_a_replacement() {
    let masters = six_masters(&[]);
    let sets = |survey: Survey| {
        let masters = survey.masters.iter();
        let sets = masters.map(|master| (master.is_old, master.is_next));
        sets.collect::<Vec<_>>()
    };
    let settings = settings_of_old(&masters[..3]);
    let redlock = settings.build().expect("good settings");
    let survey = without_replacement(&redlock).survey().await;
    assert_eq!(sets(survey), [(true, false); 3]);
    let redlock = redlock_on(&masters, 0);
    let survey = redlock.survey().await.expect("the masters have markers");
    let (old, next) = ([(true, false); 3], [(false, true); 3]);
    assert_eq!(sets(survey), [old, next].concat());
}

#[tokio::test(start_paused = true)]
async fn masters_are_marked_only_if_each_of_them_executes_the_order_at_its_address() {
    for (failing, moved, expected) in [
        ("", "", None),
        (
            "Raise",
            "",
            Some("not all masters have a generation marker"),
        ),
        ("", "Raise", Some("leads to 2 servers in turn")),
        ("", "Identify", Some("leads to 2 servers in turn")),
    ] {
        let masters = six_masters(&[]);
        masters[2].fail(failing);
        masters[2].move_for(moved);
        let settings = settings_of_old(&masters[..3]);
        let redlock = settings.build().expect("good settings");
        let marked = without_replacement(&redlock).mark().await;
        match expected {
            None => {
                marked.expect("all masters answer");
                assert_eq!(marks(&masters[..3]), ["0"; 3]);
            }
            Some(text) => {
                let error = error_of(marked);
                assert!(error.contains(text), "{failing}{moved}: {error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn step_begin_ends_after_the_lock_of_each_value_was_released() {
    for are_answered in [true, false] {
        let masters = six_masters(&["prizes"]);
        create_quota(&masters[..3], "prizes").await;
        for master in masters.iter().filter(|_| !are_answered) {
            master.fail("Release");
        }
        let redlock = redlock_on(&masters, 0);
        let change = redlock.change().expect("next masters are set");
        // The masters answer all other requests at once.
        let begun = tokio::time::timeout(Duration::from_millis(1), change.begin()).await;
        assert_eq!(begun.is_ok(), are_answered, "{begun:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn value_whose_lock_becomes_free_is_copied_while_another_lock_is_still_held() {
    let masters = six_masters(&["a", "b"]);
    for name in ["a", "b"] {
        create_quota(&masters[..3], name).await;
    }
    let settings = settings_on(&masters, 0).max_ttl(Duration::from_secs(120));
    let redlock = settings.build().expect("good settings");
    let change = redlock.change().expect("next masters are set");
    let closed = close(&change).await;
    let holder = redlock_on(&masters, 0);
    let first = holder.acquire("a").await.expect("free");
    let second = holder.acquire("b").await.expect("free");
    let pause = || tokio::time::sleep(Duration::from_secs(30));
    let release_both = async {
        pause().await;
        first.release().await;
        pause().await;
        let is_held = |key: &str| {
            let master = &masters[3].memory;
            master.with_master(|master, now| master.peek(now, key.as_bytes()).holder.is_some())
        };
        assert_eq!(["a", "b"].map(is_held), [false, true]);
        second.release().await;
    };
    let (opened, ()) = futures::join!(change.open(&closed), release_both);
    let opened = opened.expect("both locks became free");
    assert_eq!(opened.carried.len(), 2);
}
