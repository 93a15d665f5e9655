//! Short runs with MariaDB, PostgreSQL or etcd masters, or with a mix of masters of several kinds.
//!
//! If a server that a run needs is not installed on this machine, the run is reported as skipped.

use std::time::{Duration, Instant};

use crate::support::{Run, kind, text};
use quorate::{Redlock, Take, ValueError, Wait};
use quorate_chaos::locking;
use quorate_chaos::master::Master;
use quorate_chaos::node::{Login, NodeKind};
use quorate_testbed::{Persistence, ServerOptions, not_run};
use rand::RngExt;

fn kinds(names: &[&str]) -> Vec<NodeKind> {
    let kinds = names.iter().map(|name| name.parse());
    kinds.collect::<Result<_, _>>().expect("kinds of masters")
}

/// Returns true if a master of one of these kinds cannot be started on this machine, and reports the test as skipped.
fn is_missing(test: &str, nodes: &[&str]) -> bool {
    let missing_reason = kinds(nodes).iter().find_map(|node| node.missing_reason());
    if let Some(reason) = &missing_reason {
        not_run(test, reason);
    }
    missing_reason.is_some()
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_redis_mysql_and_zookeeper_together_is_valid_despite_faults() {
    let test = "chaos_run_on_redis_mysql_and_zookeeper_together_is_valid_despite_faults";
    if is_missing(test, &["redis", "mysql", "zookeeper"]) {
        return;
    }
    let faults = "db-kill,db-row-held,zk-leader-kill,client-sigkill";
    let all_landed = |run: &Run| {
        faults
            .split(',')
            .all(|name| run.landed_count(kind(name)) > 0)
    };
    let run = Run::until_enough(
        "three-kinds",
        &format!(
            "--seed 31 --nodes redis,mysql,zookeeper --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[11, 25],
        all_landed,
    );
    run.must_be_valid();
    assert!(all_landed(&run), "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn databases_that_lose_recent_commits_in_a_crash_break_exclusion_but_not_fencing() {
    let test = "databases_that_lose_recent_commits_in_a_crash_break_exclusion_but_not_fencing";
    if is_missing(test, &["mysql-flush0"]) {
        return;
    }
    // The TTL must exceed the restart time, so that the master loses locks that are still valid.
    let run = Run::until_enough(
        "flush0",
        "--seed 6 --nodes mysql-flush0 --ttl 3s --clients 3 --faults amnesia \
         --workload file,handover,register",
        &[5, 15, 30, 60, 60],
        |run| run.summary.excused > 0,
    );
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_redis_and_postgres_is_valid_despite_crashes_and_a_full_disk() {
    let test = "chaos_run_on_redis_and_postgres_is_valid_despite_crashes_and_a_full_disk";
    if is_missing(test, &["redis", "postgres-small"]) {
        return;
    }
    let faults = "pg-kill,pg-backend-crash,pg-row-held,pg-truncate,pg-disk-full";
    let all_landed = |run: &Run| {
        faults
            .split(',')
            .all(|name| run.landed_count(kind(name)) > 0)
    };
    let run = Run::until_enough(
        "redis-and-postgres",
        &format!(
            "--seed 32 --nodes redis,redis,postgres-small --ttl 2s --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[25, 50],
        all_landed,
    );
    run.must_be_valid();
    assert!(all_landed(&run), "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_postgres_is_valid_although_masters_continue_with_older_files() {
    let test = "chaos_run_on_postgres_is_valid_although_masters_continue_with_older_files";
    if is_missing(test, &["postgres"]) {
        return;
    }
    let faults = "pg-snapshot,pg-snapshot-majority,pg-cold-copy,pg-promotion";
    let all_landed = |run: &Run| {
        faults
            .split(',')
            .all(|name| run.landed_count(kind(name)) > 0)
    };
    let run = Run::until_enough(
        "older-files",
        &format!(
            "--seed 33 --nodes postgres,postgres,postgres --ttl 2s --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[40, 80],
        all_landed,
    );
    run.must_be_valid();
    assert!(all_landed(&run), "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn postgres_masters_with_older_files_break_exclusion_but_not_fencing_without_the_restart_guard() {
    let test = "postgres_masters_with_older_files_break_exclusion_but_not_fencing_without_the_restart_guard";
    if is_missing(test, &["postgres"]) {
        return;
    }
    // The TTL must exceed the restart time, so that the masters lose locks that are still valid.
    let run = Run::until_enough(
        "older-files-unguarded",
        "--seed 6 --nodes postgres,postgres,postgres --ttl 3s --clients 3 --faults pg-amnesia \
         --workload file,handover,register",
        &[15, 30, 60, 60],
        |run| run.summary.excused > 0,
    );
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_redis_and_etcd_is_valid_despite_lost_leaders_and_a_full_database() {
    let test = "chaos_run_on_redis_and_etcd_is_valid_despite_lost_leaders_and_a_full_database";
    if is_missing(test, &["redis", "etcd-cluster"]) {
        return;
    }
    let faults = "etcd-kill,etcd-leader-kill,etcd-leader-stop,etcd-follower-stop,etcd-leaderless,etcd-nospace";
    let all_landed = |run: &Run| {
        faults
            .split(',')
            .all(|name| run.landed_count(kind(name)) > 0)
    };
    let run = Run::until_enough(
        "redis-and-etcd",
        &format!(
            "--seed 34 --nodes redis,redis,etcd-cluster --ttl 2s --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[40, 80],
        all_landed,
    );
    run.must_be_valid();
    assert!(all_landed(&run), "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_etcd_is_valid_although_masters_restore_snapshots_or_lose_their_data() {
    let test = "chaos_run_on_etcd_is_valid_although_masters_restore_snapshots_or_lose_their_data";
    if is_missing(test, &["etcd"]) {
        return;
    }
    let faults = "etcd-restore,etcd-emptied,client-sigkill";
    let all_landed = |run: &Run| {
        faults
            .split(',')
            .all(|name| run.landed_count(kind(name)) > 0)
    };
    let run = Run::until_enough(
        "etcd-lost-data",
        &format!(
            "--seed 35 --nodes etcd,etcd,etcd --ttl 2s --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[40, 80],
        all_landed,
    );
    run.must_be_valid();
    assert!(all_landed(&run), "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_etcd_is_valid_although_a_majority_of_masters_restores_snapshots() {
    let test = "chaos_run_on_etcd_is_valid_although_a_majority_of_masters_restores_snapshots";
    if is_missing(test, &["etcd"]) {
        return;
    }
    let run = Run::until_enough(
        "etcd-restored",
        "--seed 36 --nodes etcd,etcd,etcd --ttl 3s --clients 3 --faults etcd-restore-majority \
         --workload file,handover,register,prizes",
        &[30, 60],
        |run| run.landed_count(kind("etcd-restore-majority")) > 1,
    );
    run.must_be_valid();
    assert!(
        run.landed_count(kind("etcd-restore-majority")) > 0,
        "{}",
        text(&run.output)
    );
}

#[test]
#[ignore = "nightly"]
fn emptied_etcd_masters_break_exclusion_but_not_fencing_without_the_restart_guard() {
    let test = "emptied_etcd_masters_break_exclusion_but_not_fencing_without_the_restart_guard";
    if is_missing(test, &["etcd"]) {
        return;
    }
    // The TTL must exceed the restart time, so that the masters lose locks that are still valid.
    let run = Run::until_enough(
        "etcd-emptied-unguarded",
        "--seed 6 --nodes etcd,etcd,etcd --ttl 6s --clients 3 --faults etcd-amnesia \
         --workload file,handover,register",
        &[30, 60, 60],
        |run| run.summary.excused > 0,
    );
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_redis_postgres_and_etcd_together_is_valid_despite_faults() {
    let test = "chaos_run_on_redis_postgres_and_etcd_together_is_valid_despite_faults";
    if is_missing(test, &["redis", "postgres", "etcd"]) {
        return;
    }
    let faults = "pg-kill,pg-snapshot,etcd-kill,etcd-restore,stop";
    let all_landed = |run: &Run| {
        faults
            .split(',')
            .all(|name| run.landed_count(kind(name)) > 0)
    };
    let run = Run::until_enough(
        "redis-postgres-etcd",
        &format!(
            "--seed 37 --nodes redis,postgres,etcd --ttl 2s --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[40, 80],
        all_landed,
    );
    run.must_be_valid();
    assert!(all_landed(&run), "{}", text(&run.output));
}

/// The master servers that run during a test of quotas.
struct QuotaMasters {
    masters: Vec<Master>,
    urls: Vec<String>,
}

/// The results of all `take` requests of the clients to one quota.
#[derive(Debug, Default)]
struct TakeResults {
    /// For each unit that was taken: the number of units left in the quota afterwards.
    left: Vec<u64>,
    /// The number of requests whose result is unknown.
    unknown: usize,
    lost: usize,
}

impl QuotaMasters {
    fn of(nodes: &[&str]) -> Self {
        let login = Login {
            user: "locker",
            password: "thrown-away",
        };
        let start = |kind: &NodeKind| {
            let options = ServerOptions::new().persistence(Persistence::AofAlways);
            Master::start(*kind, options, login).unwrap_or_else(|why| panic!("{kind}: {why:#}"))
        };
        let masters: Vec<Master> = kinds(nodes).iter().map(start).collect();
        let timeout = Duration::from_millis(250);
        let url = |master: &Master| {
            let store = master.store_url(&master.addrs(), login, timeout);
            store.unwrap_or_else(|| master.url(""))
        };
        let urls = masters.iter().map(url).collect();
        Self { masters, urls }
    }

    fn new_client(&self) -> Redlock {
        let builder = locking::builder_over(&self.urls).expect("the URLs must be valid");
        let builder = builder.ttl(Duration::from_secs(1));
        let builder = builder.max_ttl(Duration::from_secs(1));
        let builder = builder.wait(Wait::For(Duration::from_secs(30)));
        builder.build().expect("the settings must fit together")
    }

    /// Kills a master, and immediately starts it again.
    fn restart_master(&self, master: usize) {
        let outcome = self.masters[master].restart();
        outcome.unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Takes units from the quota with this name until it is exhausted.
async fn take_all(client: Redlock, name: String) -> TakeResults {
    let mut results = TakeResults::default();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        match client.quota(&name).take(1).await {
            Ok(Take::Taken { left }) => results.left.push(left),
            Ok(Take::SoldOut { left: 0 }) => return results,
            Err(ValueError::Unknown(_)) => results.unknown += 1,
            Err(ValueError::Lost(_)) => {
                results.lost += 1;
                return results;
            }
            Err(ValueError::NoQuorum(_) | ValueError::LockLost(_) | ValueError::NotAcquired(_)) => {
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("all units must be taken within 60 s, but only these were: {results:?}");
}

/// Creates a quota of ten units. Repeats the attempt if it fails, because the restart guard may exclude a master that
/// has just restarted.
async fn create_quota(operator: &Redlock, run: usize) -> String {
    for attempt in 0..1_000 {
        let name = format!("prizes-{run}-{attempt}");
        if operator.quota(&name).create(10).await.is_ok() {
            return name;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a quota must be created within 1,000 attempts");
}

/// Creates a quota of ten units, and kills a master while four clients take units from the quota.
async fn take_during_restart(
    quota_masters: &QuotaMasters,
    clients: &[Redlock],
    run: usize,
) -> TakeResults {
    let name = create_quota(&clients[0], run).await;
    let tasks = clients.iter().cloned();
    let tasks: Vec<_> = tasks
        .map(|new_client| tokio::spawn(take_all(new_client, name.clone())))
        .collect();
    let delay = Duration::from_millis(rand::rng().random_range(0..40));
    tokio::time::sleep(delay).await;
    tokio::task::block_in_place(|| quota_masters.restart_master(run % quota_masters.masters.len()));
    let mut total = TakeResults::default();
    for part in tasks {
        let part = part.await.expect("the task must not panic");
        total.left.extend(part.left);
        total.unknown += part.unknown;
        total.lost += part.lost;
    }
    total
}

/// The variable `QUORATE_PRIZE_RUNS` sets how many quotas this test creates, one after the other. The default is 3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly"]
async fn quota_on_redis_and_mysql_grants_each_unit_at_most_once_despite_kills() {
    let test = "quota_on_redis_and_mysql_grants_each_unit_at_most_once_despite_kills";
    let nodes = ["redis", "redis", "mysql"];
    if is_missing(test, &nodes) {
        return;
    }
    let runs = std::env::var("QUORATE_PRIZE_RUNS");
    let runs: usize = runs.map_or(3, |runs| {
        runs.parse().expect("QUORATE_PRIZE_RUNS must be a number")
    });
    let quota_masters = tokio::task::block_in_place(|| QuotaMasters::of(&nodes));
    let clients: Vec<Redlock> = (0..4).map(|_| quota_masters.new_client()).collect();
    let (mut taken_units, mut unknown_results, mut quotas_with_unknown) = (0, 0, 0);
    for run in 0..runs {
        let mut results = take_during_restart(&quota_masters, &clients, run).await;
        assert_eq!(
            results.lost, 0,
            "the quota must not be lost, but was lost in run {run}: {results:?}"
        );
        results.left.sort_unstable();
        let has_duplicate = results.left.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(
            !has_duplicate,
            "each prize must be given once, but one was given twice in run {run}: {results:?}"
        );
        assert!(results.left.iter().all(|left| *left < 10), "{results:?}");
        // Each missing unit must have been taken by a request whose result is unknown.
        let missing_units = 10 - results.left.len();
        assert!(
            missing_units <= results.unknown,
            "run {run}: each missing unit must belong to a request with an unknown result: {results:?}"
        );
        taken_units += results.left.len();
        unknown_results += results.unknown;
        quotas_with_unknown += usize::from(results.unknown > 0);
    }
    println!(
        "{runs} quotas of 10 units, in each of which one of {} masters was killed: {taken_units} prizes given, none \
         twice, {unknown_results} answers unknown (in {quotas_with_unknown} quotas)",
        nodes.len()
    );
    assert!(taken_units > 0);
}
