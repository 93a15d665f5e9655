//! Tests of replacing masters while clients use them, on real servers. Three groups of clients run at the same time:
//! clients of the old masters, clients of the next masters (which replace the old ones), and clients of both sets
//! (docs/protocol.md, "Replacing masters").

mod values;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{
    self, PATIENCE, ask_server, eventually, has_key, larger_token, masters, ms, secs, settings,
};
use quorate::{
    AcquireError, ChangeError, ChangeStage, Fault, LossCause, MastersChange, NodeOutcome,
    NodeReport, NodeStatus, Redlock, RedlockBuilder, RestartGuard, StatusVerdict, TryAcquire, Wait,
};
use quorate_contract::wall_clock::WallClock;
use quorate_testbed::{Masters, Proxy};

/// The longest lease that the clients of these tests may use. Each change of the masters has to wait for this time.
const MAX_TTL: Duration = secs(1);

const MARKER_KEY: &str = "quorate:masters";

/// Five servers. The first three are the old masters, and the last three are the next masters. So the third server is
/// in both sets.
struct Scene {
    servers: Masters,
}

impl Scene {
    fn start() -> Self {
        let servers = masters(5);
        Self { servers }
    }

    fn urls(&self, indices: std::ops::Range<usize>) -> Vec<String> {
        self.servers.urls()[indices].to_vec()
    }

    fn settings(&self, indices: std::ops::Range<usize>) -> RedlockBuilder {
        settings(self.urls(indices))
            .max_ttl(MAX_TTL)
            .ttl(MAX_TTL)
            .node_timeout(ms(250))
    }

    fn old_client(&self) -> Redlock {
        self.settings(0..3).build().expect("old")
    }

    fn joint_client(&self) -> Redlock {
        let next_urls = self.urls(2..5);
        self.settings(0..3)
            .next_masters(next_urls)
            .build()
            .expect("both")
    }

    fn next_client(&self) -> Redlock {
        self.settings(2..5)
            .masters_generation(1)
            .build()
            .expect("next")
    }

    fn generations(&self) -> Vec<String> {
        let marker_of = |server| {
            ask_server(server, &["GET", MARKER_KEY])
                .text()
                .map(std::borrow::Cow::into_owned)
        };
        let fencing_token_of_job = |marker: Option<String>| {
            marker.and_then(|marker| Some(marker.split(' ').next()?.to_owned()))
        };
        let generations = self.servers.iter().map(marker_of);
        generations
            .map(|marker| fencing_token_of_job(marker).unwrap_or_default())
            .collect()
    }
}

/// Begins the change of the masters, as soon as the uptime of the next masters is long enough.
async fn begin(change: &MastersChange<'_>) {
    let started_at = Instant::now();
    while let Err(error) = change.begin().await {
        assert!(started_at.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(ms(100)).await;
    }
}

async fn close_and_wait(change: &MastersChange<'_>) {
    change.close().await.expect("closed");
    let closed = change.closed().await.expect("closed");
    tokio::time::sleep(change.wait()).await;
    let open_survey = change.open(&closed).await.expect("open");
    assert_eq!(open_survey.stage(), ChangeStage::Open);
}

/// Returns true if the masters refuse this client because of its generation. Repeats an attempt that fails because a
/// master has just closed the client's connection.
async fn is_refused_for_generation(redlock: &Redlock) -> bool {
    let started_at = Instant::now();
    loop {
        match redlock.try_acquire("job").await {
            Err(AcquireError::OtherMasters(missed)) => {
                let names_generation = |answer: &NodeReport| {
                    matches!(&answer.outcome, NodeOutcome::Fault(Fault::OtherMasters(_)))
                };
                assert!(missed.reports.iter().any(names_generation), "{missed:?}");
                assert!(!missed.passes_by_itself());
                return true;
            }
            Ok(_) => return false,
            Err(AcquireError::NoQuorum(missed)) => {
                assert!(started_at.elapsed() < PATIENCE, "{missed:?}");
                tokio::time::sleep(ms(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Acquires and releases the lock `job`, and returns its fencing token.
async fn fencing_token_of_job(redlock: &Redlock) -> u64 {
    let guard = redlock
        .acquire("job")
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let fencing_token_of_job = guard.fencing_token().expect("a number");
    guard.release().await;
    fencing_token_of_job
}

/// Acquires the lock with each client in turn, and checks that each fencing token is larger than the one before,
/// beginning with `last_token`. Returns the last token.
async fn assert_rising_tokens(mut last_token: u64, redlocks: &[&Redlock]) -> u64 {
    for redlock in redlocks {
        last_token = larger_token(Some(fencing_token_of_job(redlock).await), last_token);
    }
    last_token
}

async fn is_held(redlock: &Redlock) -> bool {
    matches!(redlock.try_acquire("job").await, Ok(TryAcquire::Held(_)))
}

#[tokio::test]
async fn clients_of_old_and_next_masters_exclude_each_other_during_the_change_of_masters() {
    let scene = Scene::start();
    let (old_client, joint_client, next_client) = (
        scene.old_client(),
        scene.joint_client(),
        scene.next_client(),
    );
    let mut last_token = fencing_token_of_job(&old_client).await;
    let change = joint_client.change().expect("a change");
    assert_eq!(change.survey().await.stage(), ChangeStage::Untouched);
    assert!(
        matches!(change.close().await, Err(ChangeError::Missing(_))),
        "step `close` must fail before step `begin`"
    );
    begin(&change).await;
    assert_eq!(change.survey().await.stage(), ChangeStage::Begun);
    // A client of the old masters holds the lock, and a client of both sets asks for it.
    let guard = old_client.acquire("job").await.expect("free");
    assert!(is_held(&joint_client).await);
    assert!(
        is_refused_for_generation(&next_client).await,
        "clients of the next masters must be refused before step `open`"
    );
    guard.release().await;
    let guard = joint_client.acquire("job").await.expect("free");
    assert!(is_held(&old_client).await);
    guard.release().await;
    last_token = assert_rising_tokens(last_token, &[&old_client, &joint_client, &old_client]).await;
    let closed = change.close().await.expect("closed");
    // Only the client of the old masters has an earlier step, and it is connected to these three masters only.
    let has_ended = |master: &quorate::MasterSeen| master.seen.ended > 0;
    let has_ended: Vec<bool> = closed.masters.iter().map(has_ended).collect();
    assert_eq!(has_ended, [true, true, true, false, false]);
    assert!(
        is_refused_for_generation(&old_client).await
            && is_refused_for_generation(&next_client).await
    );
    assert!(
        matches!(change.open_again().await, Err(ChangeError::Missing(_))),
        "masters must not be opened again before step `open`"
    );
    assert!(is_refused_for_generation(&next_client).await);
    assert!(fencing_token_of_job(&joint_client).await > last_token);
    close_and_wait(&change).await;
    // A client of both sets holds the lock, and a client of the next masters asks for it.
    let guard = joint_client.acquire("job").await.expect("free");
    assert!(is_held(&next_client).await);
    guard.release().await;
    let guard = next_client.acquire("job").await.expect("free");
    assert!(is_held(&joint_client).await);
    guard.release().await;
    last_token =
        assert_rising_tokens(last_token, &[&next_client, &joint_client, &next_client]).await;
    change.finish().await.expect("finished");
    assert!(
        is_refused_for_generation(&joint_client).await
            && is_refused_for_generation(&old_client).await
    );
    assert!(fencing_token_of_job(&next_client).await > last_token);
    assert_eq!(scene.generations(), ["4"; 5]);
}

#[tokio::test]
async fn held_lock_can_be_released_but_not_extended_on_closed_masters() {
    let scene = Scene::start();
    let (old_client, joint_client) = (scene.old_client(), scene.joint_client());
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    let kept_guard = old_client.acquire("job").await.expect("free");
    let released_guard = old_client.acquire("other").await.expect("free");
    change.close().await.expect("closed");
    released_guard.release().await;
    eventually("every master must have released the lock", || {
        scene.servers.iter().all(|server| !has_key(server, "other"))
    })
    .await;
    let lost_result = tokio::time::timeout(PATIENCE, kept_guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::Expired));
    assert!(is_refused_for_generation(&old_client).await);
    // After `change.close()`, the masters refused the renewals of `kept_guard`. Its report must show this.
    let report_text = format!("{:?}", kept_guard.report());
    assert!(report_text.contains("OtherMasters"), "{report_text}");
}

#[tokio::test]
async fn client_of_the_old_masters_cannot_list_or_force_release_locks_after_step_close() {
    let scene = Scene::start();
    let (old_client, joint_client) = (scene.old_client(), scene.joint_client());
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    old_client
        .acquire("job")
        .await
        .expect("free")
        .release()
        .await;
    change.close().await.expect("closed");
    assert!(is_refused_for_generation(&old_client).await);
    let held_guard = joint_client.acquire("job").await.expect("free");
    for answer in [
        old_client.status("job").await,
        old_client.break_lock("job").await,
    ] {
        let status = answer.expect("the name must be valid");
        assert_eq!(status.verdict(), StatusVerdict::Unknown, "{status:?}");
        let names_generation =
            |node: &NodeStatus| matches!(node.state, Err(Fault::OtherMasters(_)));
        assert!(status.nodes.iter().all(names_generation), "{status:?}");
    }
    let listing = old_client.list("").await;
    assert_eq!((listing.locks.len(), listing.faults.len()), (0, 3));
    assert!(
        is_held(&joint_client).await,
        "the force-release of a refused client must have no effect"
    );
    assert_eq!(joint_client.list("").await.locks.len(), 1);
    held_guard.release().await;
}

#[tokio::test]
async fn step_open_fails_if_closed_masters_lost_their_data_in_a_restart() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    assert!(
        matches!(change.closed().await, Err(ChangeError::Missing(_))),
        "the check `closed` must fail before step `close`"
    );
    change.close().await.expect("closed");
    let closed = change.closed().await.expect("closed");
    let missing = missing_conditions(change.open(&closed).await);
    assert!(
        missing.iter().all(|line| line.contains("wait longer")),
        "{missing:?}"
    );
    tokio::time::sleep(change.wait()).await;
    // Restart two of the three old masters without data, after `closed` has checked them. So `open` must refuse the
    // result of `closed`, even after a second `close`.
    for server in scene.servers.iter().take(2) {
        server.restart_empty().expect("restarted");
    }
    change.close().await.map(|_| ()).unwrap_or_default();
    let missing = missing_conditions(change.open(&closed).await);
    assert!(
        missing.iter().any(|line| line.contains("close")),
        "{missing:?}"
    );
}

#[tokio::test]
async fn masters_are_not_confirmed_as_closed_while_a_client_without_marker_checks_is_connected() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    change.close().await.expect("closed");
    // Imitate a connection of an older version of the library, which does not know generation markers.
    let mut connection = scene.servers[0].connect(secs(2)).expect("a connection");
    connection
        .command(&["CLIENT", "SETNAME", "quorate:host:1"])
        .expect("named");
    let missing = missing_conditions(change.closed().await);
    assert!(
        missing.iter().any(|line| line.contains("quorate:host:1")),
        "{missing:?}"
    );
    drop(connection);
    eventually("the connection of the old client must be closed", || {
        let client_list = ask_server(&scene.servers[0], &["CLIENT", "LIST"]);
        !client_list
            .text()
            .unwrap_or_default()
            .contains("quorate:host:1")
    })
    .await;
    // Another client, which is not quorate, runs scripts on this master.
    let mut other_connection = scene.servers[1].connect(secs(2)).expect("a connection");
    other_connection
        .command(&["EVAL", "return 1", "0"])
        .expect("run");
    assert!(matches!(
        change.closed().await,
        Err(ChangeError::Missing(_))
    ));
    let change = joint_client
        .change()
        .expect("a change")
        .allow_unknown_clients(true);
    change
        .closed()
        .await
        .expect("the check `closed` must succeed, because the operator has declared unknown clients harmless");
}

#[tokio::test]
async fn vote_of_a_master_that_lost_its_marker_during_a_change_is_ignored() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    change.close().await.expect("closed");
    let next_urls = scene.urls(2..5);
    let guarded_builder = scene
        .settings(0..3)
        .next_masters(next_urls)
        .restart_guard(RestartGuard::AfterFirstContact);
    let guarded_client = guarded_builder.build().expect("both");
    guarded_client
        .acquire("job")
        .await
        .expect("free")
        .release()
        .await;
    // Delete the master's data, including the marker. Then close the client's connection: only a new connection reads
    // the marker again.
    ask_server(&scene.servers[0], &["FLUSHALL"]);
    ask_server(&scene.servers[0], &["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("the client must have connected to the master again", || {
        support::count_connections(&scene.servers[0]) > 0
    })
    .await;
    let started_at = Instant::now();
    loop {
        let guard = guarded_client
            .acquire("job")
            .await
            .expect("the client must get the lock, because it reaches a majority of both sets");
        let reports = guard.report();
        guard.release().await;
        let quarantined = |report: &NodeReport| {
            matches!(report.outcome, NodeOutcome::Fault(Fault::Quarantined(_)))
        };
        if reports.iter().any(quarantined) {
            let status = guarded_client
                .status("job")
                .await
                .expect("the name must be valid");
            let state = &status.nodes[0].state;
            assert!(matches!(state, Err(Fault::Quarantined(_))), "{state:?}");
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{reports:?}");
    }
    eventually(
        "the generation marker of the master must be restored",
        || scene.generations()[0] == "1",
    )
    .await;
    assert!(is_refused_for_generation(&scene.old_client()).await);
}

#[tokio::test]
async fn fencing_counter_ahead_of_the_clock_is_copied_to_the_next_masters() {
    let scene = Scene::start();
    let (joint_client, next_client) = (scene.joint_client(), scene.next_client());
    let change = joint_client.change().expect("a change");
    // Set the fencing counter an hour ahead, as a client with a wrong clock would. The next masters can get this value
    // only from the change of masters.
    let hour_ahead = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("a date")
        .as_micros()
        + 3_600_000_000;
    for server in scene.servers.iter().take(2) {
        ask_server(
            server,
            &["SET", "quorate:fence:job", &hour_ahead.to_string()],
        );
    }
    begin(&change).await;
    close_and_wait(&change).await;
    assert!(u128::from(fencing_token_of_job(&next_client).await) > hour_ahead);
}

#[tokio::test]
async fn client_configured_with_wrong_masters_is_refused_after_a_change_of_masters() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    close_and_wait(&change).await;
    let five_masters = scene
        .settings(1..4)
        .masters_generation(1)
        .build()
        .expect("odd");
    assert!(
        is_refused_for_generation(&five_masters).await,
        "a client that is configured with other masters must be refused"
    );
    let classic_client = scene
        .settings(2..5)
        .masters_generation(1)
        .fencing(false)
        .build()
        .expect("classic");
    assert!(!is_refused_for_generation(&classic_client).await);
    let classic_client = scene
        .settings(0..3)
        .fencing(false)
        .build()
        .expect("classic");
    assert!(is_refused_for_generation(&classic_client).await);
}

/// Tests two clients:
///
/// - `client_without_keys` has no right to read the generation marker. `close` must fail while `client_without_keys` is connected.
/// - `client_without_setname` has no right to name its connections. `close` cannot find them, but the masters must refuse `client_without_setname`.
#[tokio::test]
async fn step_close_fails_while_a_connected_client_cannot_read_the_generation_marker() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let client_of_user = |name: &str, rights: &[&str]| {
        for server in &scene.servers {
            let mut words = vec!["ACL", "SETUSER", name, "on", "nopass", "~*", "&*", "+@all"];
            words.extend(rights);
            assert!(ask_server(server, &words).is_ok());
        }
        let url = |url: &String| url.replace("redis://", &format!("redis://{name}:x@"));
        let urls: Vec<String> = scene.urls(0..3).iter().map(url).collect();
        settings(urls)
            .max_ttl(MAX_TTL)
            .ttl(MAX_TTL)
            .node_timeout(ms(250))
            .build()
            .expect("good settings")
    };
    let client_without_keys = client_of_user("unread", &["resetkeys", "~job", "~quorate:*:*"]);
    let client_without_setname = client_of_user("unnamed", &["-client|setname"]);
    for redlock in [&client_without_keys, &client_without_setname] {
        redlock.acquire("job").await.expect("free").release().await;
    }
    let change = joint_client
        .change()
        .expect("a change")
        .allow_unknown_clients(true);
    begin(&change).await;
    let missing = missing_conditions(change.close().await);
    assert!(
        missing.iter().any(|line| line.contains("quorate:")),
        "{missing:?}"
    );
    client_without_keys
        .acquire("job")
        .await
        .expect("the lock must be free")
        .release()
        .await;
    drop(client_without_keys);
    let started_at = Instant::now();
    while let Err(error) = change.close().await {
        assert!(started_at.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(ms(50)).await;
    }
    // `close` finds connections by name, so `client_without_setname` keeps its connection. The masters must still refuse `client_without_setname`.
    assert!(is_refused_for_generation(&client_without_setname).await);
    while let Err(error) = change.closed().await {
        assert!(started_at.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(ms(50)).await;
    }
}

/// Tests a client that is configured with only two of the three masters. If `begin` wrote generation markers, the
/// masters would refuse this client. So `begin` must fail.
#[tokio::test]
async fn step_begin_fails_while_a_client_is_configured_with_only_some_masters() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    let fewer = scene
        .settings(0..2)
        .build()
        .expect("the settings with two of the masters must be valid");
    fewer.acquire("job").await.expect("free").release().await;
    let started_at = Instant::now();
    loop {
        let missing = missing_conditions(change.begin().await);
        if missing
            .iter()
            .all(|line| line.contains("is configured with other masters"))
        {
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{missing:?}");
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(scene.generations(), [""; 5]);
    drop(fewer);
    begin(&change).await;
}

/// Two addresses of one server would give it two votes.
#[tokio::test]
async fn step_begin_fails_if_two_of_the_next_masters_are_one_server() {
    let scene = Scene::start();
    let proxy = Proxy::start(scene.servers[3].addr()).expect("a proxy");
    let mut next_urls = scene.urls(2..4);
    next_urls.push(format!("redis://{}", proxy.addr()));
    let joint_client = scene.settings(0..3).next_masters(next_urls).build();
    let joint_client = joint_client.expect("both");
    let change = joint_client.change().expect("a change");
    let started_at = Instant::now();
    loop {
        // Until the next masters have run for long enough, the step also fails for this reason.
        let missing = missing_conditions(change.begin().await);
        if let [line] = &missing[..]
            && line.contains("is the same server as")
        {
            assert!(line.contains(&proxy.addr().to_string()), "{line}");
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{missing:?}");
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(scene.generations(), [""; 5]);
}

/// Counts the acquires of all clients. Collects a text for each acquire that violates mutual exclusion or the order of
/// the fencing tokens.
#[derive(Default)]
struct AcquireRecords {
    /// The end of the validity of the current lock. `None` if the lock is free.
    held_until: Mutex<Option<Instant>>,
    last_token: Mutex<u64>,
    violations: Mutex<Vec<String>>,
    /// For each client, how often it has acquired the lock.
    acquire_counts: [AtomicUsize; 5],
}

impl AcquireRecords {
    /// Acquires the lock once with this client, checks that no other client holds it, and releases it. If the acquire
    /// fails, waits 20 ms and returns.
    async fn hold(&self, client: usize, redlock: &Redlock) {
        let lock = redlock.lock("job").renewal(false).wait(Wait::For(ms(300)));
        let Ok(guard) = lock.acquire().await else {
            tokio::time::sleep(ms(20)).await;
            return;
        };
        let fencing_token_of_job = guard.fencing_token().expect("a number");
        let valid_until = Instant::now() + guard.remaining();
        if let Some(other) = self
            .held_until
            .lock()
            .expect("no panic")
            .replace(valid_until)
            && Instant::now() < other
        {
            let mut violations = self.violations.lock().expect("no panic");
            violations.push(format!(
                "client {client} got the lock while a lock of another client was valid"
            ));
        }
        let last_token = std::mem::replace(
            &mut *self.last_token.lock().expect("no panic"),
            fencing_token_of_job,
        );
        if fencing_token_of_job <= last_token {
            let mut violations = self.violations.lock().expect("no panic");
            violations.push(format!(
                "client {client} got the fencing token {fencing_token_of_job}, which does not exceed the preceding token {last_token}"
            ));
        }
        self.acquire_counts[client].fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(ms(2)).await;
        *self.held_until.lock().expect("no panic") = None;
        guard.release().await;
    }

    fn acquire_counts(&self) -> Vec<usize> {
        let acquire_counts = self.acquire_counts.iter();
        acquire_counts
            .map(|count| count.load(Ordering::Relaxed))
            .collect()
    }
}

/// Replaces three masters with five, and then the five with another three. Each set has one client that uses only this
/// set. Each change has one client that uses both the old and the new set. One old master is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_stay_exclusive_across_two_consecutive_changes_of_masters() {
    let servers = masters(7);
    let urls = |indices: std::ops::Range<usize>| servers.urls()[indices].to_vec();
    let sets = [urls(0..3), urls(0..5), urls(4..7)];
    let builder_of_set = |set: usize| {
        let settings = settings(sets[set].clone()).node_timeout(ms(250));
        let max_ttl = secs(2);
        settings
            .max_ttl(max_ttl)
            .ttl(max_ttl)
            .masters_generation(set as u64)
    };
    let joint_builder_of_set = |set: usize| builder_of_set(set).next_masters(sets[set + 1].clone());
    let (single, joint) = (builder_of_set, joint_builder_of_set);
    let client_settings = [single(0), joint(0), single(1), joint(1), single(2)];
    let clients = client_settings.map(|settings| settings.build().expect("good settings"));
    let records = Arc::new(AcquireRecords::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let start_client = |(client, redlock): (usize, &Redlock)| {
        let (redlock, records, is_over) = (redlock.clone(), records.clone(), is_over.clone());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                records.hold(client, &redlock).await;
            }
        })
    };
    let client_tasks: Vec<_> = clients.iter().enumerate().map(start_client).collect();
    let all_acquire = async |clients: &[usize]| {
        let before = records.acquire_counts();
        let what = format!("each of the clients {clients:?} must acquire the lock again");
        eventually(&what, || {
            let now = records.acquire_counts();
            let has_acquired = |client: &usize| now[*client] > before[*client] + 3;
            clients.iter().all(has_acquired)
        })
        .await;
    };
    for (set, joint) in [(0, &clients[1]), (1, &clients[3])] {
        let (old_client, step) = (2 * set, 2 * set + 1);
        let change = joint.change().expect("a change");
        begin(&change).await;
        all_acquire(&[old_client, step]).await;
        change.close().await.expect("closed");
        if set == 1 {
            servers[0].kill().expect("killed");
        }
        all_acquire(&[step]).await;
        let closed = change.closed().await.expect("closed");
        tokio::time::sleep(change.wait()).await;
        change.open(&closed).await.expect("open");
        all_acquire(&[step, step + 1]).await;
        change.finish().await.expect("finished");
        all_acquire(&[step + 1]).await;
    }
    let final_counts = records.acquire_counts();
    all_acquire(&[4]).await;
    is_over.store(true, Ordering::Relaxed);
    for client in client_tasks {
        client.await.expect("no panic");
    }
    assert_eq!(
        *records.violations.lock().expect("no panic"),
        [] as [String; 0]
    );
    assert_eq!(
        records.acquire_counts()[..4],
        final_counts[..4],
        "clients that the masters refuse must acquire nothing"
    );
}

fn missing_conditions(answer: Result<quorate::Survey, ChangeError>) -> Vec<String> {
    match answer {
        Err(ChangeError::Missing(missing)) => missing,
        other => {
            panic!("the step must fail and list the missing conditions, but returned: {other:?}")
        }
    }
}

/// Tests a client whose list of next masters contains a mistyped address, which leads to an unrelated server. The
/// client must not write a marker to that server. Otherwise the server would permanently refuse the clients that use it
/// as a master.
#[tokio::test]
async fn client_with_a_mistyped_next_master_writes_no_marker_to_that_server() {
    let servers = masters(6);
    let urls = |indices: &[usize]| -> Vec<String> {
        indices
            .iter()
            .map(|at| servers.urls()[*at].clone())
            .collect()
    };
    let settings_of = |indices: &[usize]| {
        let builder = settings(urls(indices)).max_ttl(MAX_TTL).ttl(MAX_TTL);
        builder.node_timeout(ms(250))
    };
    let builder = settings_of(&[0, 1, 2]).next_masters(urls(&[2, 3, 4]));
    let joint_client = builder.build().expect("both");
    begin(&joint_client.change().expect("a change")).await;
    let another_builder = settings_of(&[0, 1, 2]).next_masters(urls(&[2, 3, 5]));
    let another_client = another_builder.build().expect("another one");
    for _ in 0..5 {
        another_client
            .acquire("job")
            .await
            .expect("free")
            .release()
            .await;
    }
    assert!(
        ask_server(&servers[5], &["GET", MARKER_KEY])
            .text()
            .is_none()
    );
    let foreign = settings_of(&[5]).build().expect("the client must be built");
    assert!(!is_refused_for_generation(&foreign).await);
}

/// A client of a different database does not read the generation markers of the change. So the masters could not refuse
/// this client.
#[tokio::test]
async fn step_begin_fails_while_a_client_uses_a_different_database_of_the_same_servers() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    let urls = scene.urls(0..3);
    let other_database_builder = settings(urls.iter().map(|url| format!("{url}/2")));
    let other_database_builder = other_database_builder.max_ttl(MAX_TTL).ttl(MAX_TTL);
    let build_result = other_database_builder.node_timeout(ms(250)).build();
    let other_database_builder = build_result.expect("good settings");
    other_database_builder
        .acquire("job")
        .await
        .expect("free")
        .release()
        .await;
    let started_at = Instant::now();
    loop {
        let missing = missing_conditions(change.begin().await);
        if missing
            .iter()
            .all(|line| line.contains("is configured with other masters"))
        {
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{missing:?}");
        tokio::time::sleep(ms(100)).await;
    }
    // The third server is an old master in database 0, and a next master in database 1. The builder must reject this.
    let next_client = scene.urls(2..5).into_iter().map(|url| format!("{url}/1"));
    let mixed_client = scene.settings(0..3).next_masters(next_client).build();
    assert!(
        matches!(mixed_client, Err(quorate::BuildError::SameMasterTwice(_))),
        "{mixed_client:?}"
    );
}

#[tokio::test]
async fn step_close_fails_while_a_client_without_generation_marker_checks_is_connected() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    let mut connection = scene.servers[0].connect(secs(2)).expect("a connection");
    connection
        .command(&["CLIENT", "SETNAME", "quorate:host:1"])
        .expect("named");
    let missing = missing_conditions(change.close().await);
    assert!(missing.iter().any(|line| line.contains("quorate:host:1")));
    assert_eq!(scene.generations(), ["0"; 5]);
}

/// Tests a foreign client that uses the classic Redlock algorithm. It acquires a lock with `SET`, and not with a
/// script.
#[tokio::test]
async fn masters_are_not_confirmed_as_closed_while_a_foreign_client_locks_with_set_nx() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    change.close().await.expect("closed");
    let mut other_connection = scene.servers[0].connect(secs(2)).expect("a connection");
    other_connection
        .command(&["SET", "job", "x", "NX", "PX", "100"])
        .expect("set");
    missing_conditions(change.closed().await);
    let allowing_change = joint_client
        .change()
        .expect("a change")
        .allow_unknown_clients(true);
    allowing_change
        .closed()
        .await
        .expect("the check `closed` must succeed, because the operator has declared unknown clients harmless");
}

#[tokio::test]
async fn step_open_fails_if_run_too_soon_after_masters_were_confirmed_as_closed() {
    let scene = Scene::start();
    let (joint_client, next_client) = (scene.joint_client(), scene.next_client());
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    change.close().await.expect("closed");
    // `open` must refuse the result of `survey`, because `survey` closes no connection of a client.
    let survey = change.survey().await;
    let closed = change.closed().await.expect("closed");
    missing_conditions(change.open(&closed).await);
    tokio::time::sleep(change.wait()).await;
    missing_conditions(change.open(&survey).await);
    assert!(is_refused_for_generation(&next_client).await);
    change.open(&closed).await.expect("open");
}

#[tokio::test]
async fn step_begin_fails_if_a_next_master_has_not_been_up_for_max_ttl() {
    let scene = Scene::start();
    let builder = scene.settings(0..3).max_ttl(secs(600));
    let operator = builder
        .next_masters(scene.urls(2..5))
        .build()
        .expect("both");
    let change = operator.change().expect("a change");
    let conditions = missing_conditions(change.begin().await);
    let too_young = conditions
        .iter()
        .filter(|text| text.contains("has been up for only"));
    // The third next master is an old master as well, and so votes already.
    assert_eq!(too_young.count(), 2, "{conditions:?}");
}

/// The masters' clocks may differ by one second in this scene. The pause must not count as such a difference.
#[tokio::test]
async fn step_begin_succeeds_after_a_pause_of_the_operator_while_it_reads_the_masters_clocks() {
    let scene = Scene::start();
    let pauses = Arc::new(AtomicBool::new(false));
    let pauses_next = pauses.clone();
    let runtime = WallClock(move |micros| {
        if pauses_next.swap(false, Ordering::Relaxed) {
            std::thread::sleep(secs(2));
        }
        micros
    });
    let builder = scene.settings(0..3).runtime(Arc::new(runtime));
    let operator = builder
        .next_masters(scene.urls(2..5))
        .build()
        .expect("both");
    let change = operator.change().expect("a change");
    begin(&change).await;
    pauses.store(true, Ordering::Relaxed);
    change.begin().await.expect("the clocks do not differ");
    assert!(
        !pauses.load(Ordering::Relaxed),
        "the operator must have been paused"
    );
}

/// Two operators replace the same old masters, each with different next masters. The second operator overwrites the
/// markers of the first. So the first operator's change must go back to the stage before `begin`.
#[tokio::test]
async fn change_of_masters_overwritten_by_a_competing_change_is_reported_as_not_begun() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    let first_survey = change.survey().await;
    for server in &scene.servers {
        ask_server(server, &["SET", MARKER_KEY, "1 0123456789abcdef"]);
    }
    let second_survey = change.survey().await;
    assert_eq!(first_survey.stage(), ChangeStage::Begun);
    assert_eq!(second_survey.stage(), ChangeStage::Untouched);
}

#[tokio::test]
async fn step_begin_fails_if_the_configured_old_masters_differ_from_the_masters_in_use() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    close_and_wait(&change).await;
    drop(joint_client);
    // After the first change, the masters in use are the servers with the indexes 2 to 4. By mistake, the settings
    // of `wrong_client` name the servers 1 to 3 as the old masters.
    let builder = scene.settings(1..4).masters_generation(1);
    let wrong_client = builder
        .next_masters(scene.urls(0..3))
        .build()
        .expect("good settings");
    let change = wrong_client.change().expect("a change");
    let answer = missing_conditions(change.begin().await);
    assert!(
        answer
            .iter()
            .any(|line| line.contains("belongs to other masters")),
        "{answer:?}"
    );
    assert_eq!(scene.generations(), ["2"; 5]);
}
