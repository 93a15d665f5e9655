//! Short runs with MariaDB masters, or with a mix of Redis, MariaDB and ZooKeeper masters.
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
    let lack = kinds(nodes).iter().find_map(|node| node.lack());
    if let Some(why) = &lack {
        not_run(test, why);
    }
    lack.is_some()
}

#[test]
#[ignore = "nightly"]
fn chaos_run_on_redis_mysql_and_zookeeper_together_is_valid_despite_faults() {
    let test = "chaos_run_on_redis_mysql_and_zookeeper_together_is_valid_despite_faults";
    if is_missing(test, &["redis", "mysql", "zookeeper"]) {
        return;
    }
    let faults = "db-kill,db-row-held,zk-leader-kill,client-sigkill";
    let landed = |run: &Run| faults.split(',').all(|name| run.landed(kind(name)) > 0);
    let run = Run::until(
        "three-kinds",
        &format!(
            "--seed 31 --nodes redis,mysql,zookeeper --clients 3 --many 5 \
             --workload file,handover,register,permits --faults {faults}"
        ),
        &[11, 25],
        landed,
    );
    run.must_be_valid();
    assert!(landed(&run), "{}", text(&run.output));
}

#[test]
#[ignore = "nightly"]
fn databases_that_lose_recent_commits_in_a_crash_break_exclusion_but_not_fencing() {
    let test = "databases_that_lose_recent_commits_in_a_crash_break_exclusion_but_not_fencing";
    if is_missing(test, &["mysql-flush0"]) {
        return;
    }
    // The TTL must exceed the restart time, so that the master loses locks that are still valid.
    let run = Run::until(
        "flush0",
        "--seed 6 --nodes mysql-flush0 --ttl 3s --clients 3 --faults amnesia \
         --workload file,handover,register",
        &[5, 15, 30, 60, 60],
        |run| run.summary.excused > 0,
    );
    run.must_be_valid();
    assert!(run.summary.excused > 0, "{}", text(&run.output));
}

/// The master servers that run during a test of quotas.
struct Lottery {
    masters: Vec<Master>,
    urls: Vec<String>,
}

/// The results of all `take` requests of the clients to one quota.
#[derive(Debug, Default)]
struct Drawn {
    /// For each unit that was taken: the number of units left in the quota afterwards.
    left: Vec<u64>,
    /// The number of requests whose result is unknown.
    unknown: usize,
    lost: usize,
}

impl Lottery {
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

    fn player(&self) -> Redlock {
        let builder = locking::over(&self.urls).expect("the URLs must be valid");
        let builder = builder.ttl(Duration::from_secs(1));
        let builder = builder.max_ttl(Duration::from_secs(1));
        let builder = builder.wait(Wait::For(Duration::from_secs(30)));
        builder.build().expect("the settings must fit together")
    }

    /// Kills a master, and immediately starts it again.
    fn hurt(&self, master: usize) {
        let hurt = self.masters[master].restart();
        hurt.unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Takes units from the quota with this name until it is exhausted.
async fn take_all(player: Redlock, name: String) -> Drawn {
    let mut drawn = Drawn::default();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        match player.quota(&name).take(1).await {
            Ok(Take::Taken { left }) => drawn.left.push(left),
            Ok(Take::SoldOut { left: 0 }) => return drawn,
            Err(ValueError::Unknown(_)) => drawn.unknown += 1,
            Err(ValueError::Lost(_)) => {
                drawn.lost += 1;
                return drawn;
            }
            Err(ValueError::NoQuorum(_) | ValueError::LockLost(_) | ValueError::NotAcquired(_)) => {
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("all units must be taken within 60 s, but only these were: {drawn:?}");
}

/// Creates a quota of ten units. Repeats the attempt if it fails, because the restart guard may exclude a master that
/// has just restarted.
async fn open(operator: &Redlock, run: usize) -> String {
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
async fn draw(lottery: &Lottery, players: &[Redlock], run: usize) -> Drawn {
    let name = open(&players[0], run).await;
    let taking = players.iter().cloned();
    let taking: Vec<_> = taking
        .map(|player| tokio::spawn(take_all(player, name.clone())))
        .collect();
    let late = Duration::from_millis(rand::rng().random_range(0..40));
    tokio::time::sleep(late).await;
    tokio::task::block_in_place(|| lottery.hurt(run % lottery.masters.len()));
    let mut all = Drawn::default();
    for one in taking {
        let one = one.await.expect("the task must not panic");
        all.left.extend(one.left);
        all.unknown += one.unknown;
        all.lost += one.lost;
    }
    all
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
    let lottery = tokio::task::block_in_place(|| Lottery::of(&nodes));
    let players: Vec<Redlock> = (0..4).map(|_| lottery.player()).collect();
    let (mut taken, mut unknown, mut while_dying) = (0, 0, 0);
    for run in 0..runs {
        let mut drawn = draw(&lottery, &players, run).await;
        assert_eq!(
            drawn.lost, 0,
            "the quota must not be lost, but was lost in run {run}: {drawn:?}"
        );
        drawn.left.sort_unstable();
        let twice = drawn.left.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(
            !twice,
            "each prize must be given once, but one was given twice in run {run}: {drawn:?}"
        );
        assert!(drawn.left.iter().all(|left| *left < 10), "{drawn:?}");
        // Each missing unit must have been taken by a request whose result is unknown.
        let missing = 10 - drawn.left.len();
        assert!(
            missing <= drawn.unknown,
            "run {run}: each missing unit must belong to a request with an unknown result: {drawn:?}"
        );
        taken += drawn.left.len();
        unknown += drawn.unknown;
        while_dying += usize::from(drawn.unknown > 0);
    }
    println!(
        "{runs} quotas of 10 units, in each of which one of {} masters was killed: {taken} prizes given, none \
         twice, {unknown} answers unknown (in {while_dying} quotas)",
        nodes.len()
    );
    assert!(taken > 0);
}
