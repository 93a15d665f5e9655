//! Tests of a running server that takes over the address of a master, and of a master that restarts while its clock is
//! wrong. Whether a client counts the votes of this server depends on the generation markers and the age records
//! (docs/protocol.md, "Generation markers" and "Age records").

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ask_server, masters, ms, secs};
use quorate::{
    AcquireError, ChangeError, LockGuard, Redlock, RedlockBuilder, RestartGuard, TryAcquire,
};
use quorate_testbed::{
    ClockShim, Fault, Injected, Masters, OffsetFile, Persistence, Proxy, ServerOptions, Skew,
};

/// The longest lease that the clients of these tests may use, and the TTL of the lock that a test acquires first.
const MAX_TTL: Duration = secs(5);

const MARKER_KEY: &str = "quorate:masters";

const AGE_KEY: &str = "quorate:masters:age";

const HOUR: Duration = secs(3600);

/// Three masters, each behind a proxy. The proxy of the second master can be redirected to a fourth server.
struct Scene {
    servers: Masters,
    proxies: Vec<Proxy>,
}

impl Scene {
    fn new(servers: Masters) -> Self {
        let start_proxy_before = |server: &quorate_testbed::Server| Proxy::start(server.addr());
        let proxies: Result<_, _> = servers.iter().take(3).map(start_proxy_before).collect();
        Self {
            proxies: proxies.expect("proxies"),
            servers,
        }
    }

    /// Starts the servers, and waits until the uptime of each is longer than the restart guard requires.
    async fn start() -> Self {
        let scene = Self::new(masters(4));
        let started_at = Instant::now();
        while scene.servers.iter().any(|server| uptime(server) < 7) {
            assert!(
                started_at.elapsed() < PATIENCE,
                "the servers must reach the uptime that this test needs"
            );
            tokio::time::sleep(ms(100)).await;
        }
        scene
    }

    fn client(&self) -> Redlock {
        self.settings().build().expect("good settings")
    }

    fn settings(&self) -> RedlockBuilder {
        let url_at = |index: usize| self.servers[index].url_at(self.proxies[index].addr());
        Redlock::builder()
            .masters((0..3).map(url_at))
            .ttl(MAX_TTL)
            .max_ttl(MAX_TTL)
            .node_timeout(ms(500))
            .connect_timeout(secs(1))
            .restart_guard(RestartGuard::On)
    }

    /// A client that uses only masters whose generation marker bears the name `orders`.
    fn named_client(&self) -> Redlock {
        let named_client = self.settings().masters_name("orders");
        named_client.build().expect("good settings")
    }

    /// Makes the master at this index unreachable until the returned fault is healed.
    fn make_unreachable(&self, index: usize) -> Injected {
        let make_unreachable = self.proxies[index].inject(Fault::Refuse);
        self.proxies[index].reset_all();
        make_unreachable
    }

    /// Redirects the address of the second master to the fourth server, until the returned fault is healed.
    fn replace_second_master(&self) -> Injected {
        let spare = Fault::Detour(self.servers[3].addr());
        let builder = self.proxies[1].inject(spare);
        self.proxies[1].reset_all();
        builder
    }

    /// Writes generation markers to the masters with `mark_masters`, as an operator would.
    async fn mark_masters(&self) {
        let marked = self.client().mark_masters().await;
        assert!(
            marked
                .expect("mark_masters must succeed, because all masters can be reached")
                .is_marked()
        );
    }
}

fn uptime(server: &quorate_testbed::Server) -> u64 {
    let reply = ask_server(server, &["INFO", "server"]);
    let info = reply.text().unwrap_or_default().into_owned();
    let parse_uptime = |line: &str| line.strip_prefix("uptime_in_seconds:")?.trim().parse().ok();
    info.lines().find_map(parse_uptime).unwrap_or(0)
}

/// Acquires a lock while the third master is unreachable, so only the first two masters have its key. The lock is not
/// renewed, because a renewal would write the key to the third master.
async fn acquire_on_two_masters(scene: &Scene, client: &Redlock) -> LockGuard {
    let make_unreachable = scene.make_unreachable(2);
    let lock = client.lock("job").renewal(false);
    let guard = lock
        .acquire()
        .await
        .expect("the acquire must succeed, because a majority of the masters can be reached");
    make_unreachable.heal();
    guard
}

/// Makes one attempt with `client` while `first` still holds the lock. Returns true if `client` gets the lock as well.
async fn can_acquire_while_held(client: &Redlock, first: &LockGuard) -> bool {
    let second_attempt = client.try_acquire("job").await;
    assert!(
        first.is_valid(),
        "the lease of the first holder has ended too early: the machine is too slow for this test"
    );
    matches!(second_attempt, Ok(TryAcquire::Acquired(_)))
}

/// Without markers, a client detects a replacement server only by its short uptime. The server of this test has been
/// running for long enough, so its vote counts.
#[tokio::test]
async fn vote_of_a_replacement_server_counts_immediately_without_generation_markers() {
    let scene = Scene::start().await;
    let first_guards = acquire_on_two_masters(&scene, &scene.client()).await;
    let _replaced = scene.replace_second_master();
    assert!(can_acquire_while_held(&scene.client(), &first_guards).await);
}

#[tokio::test]
async fn vote_of_a_replacement_server_is_ignored_if_masters_have_generation_markers() {
    let scene = Scene::start().await;
    scene.mark_masters().await;
    let first_guards = acquire_on_two_masters(&scene, &scene.client()).await;
    let _replaced = scene.replace_second_master();
    for _ in 0..5 {
        assert!(!can_acquire_while_held(&scene.client(), &first_guards).await);
    }
}

/// The second client reaches only the replacement server and one master with a marker. This marker must be enough to
/// ignore the vote of the replacement server.
#[tokio::test]
async fn replacement_server_has_no_vote_if_only_one_reachable_master_has_a_marker() {
    let scene = Scene::start().await;
    scene.mark_masters().await;
    let first_guards = acquire_on_two_masters(&scene, &scene.client()).await;
    let _replaced = scene.replace_second_master();
    let _away = scene.make_unreachable(0);
    for _ in 0..5 {
        assert!(!can_acquire_while_held(&scene.client(), &first_guards).await);
    }
}

/// The first client that finds a server without a marker writes the marker immediately. For [`MAX_TTL`] after that, all
/// clients must still ignore the votes of this server.
#[tokio::test]
async fn vote_of_a_server_that_just_got_its_marker_counts_only_after_the_longest_lease() {
    let scene = Scene::start().await;
    scene.mark_masters().await;
    let observing_client = scene.client();
    let first_guards = acquire_on_two_masters(&scene, &observing_client).await;
    let builder = scene.replace_second_master();
    wait_until_marked(&scene, 3, &observing_client).await;
    assert!(!can_acquire_while_held(&scene.client(), &first_guards).await);
    // After `MAX_TTL`, the vote of the new server counts like that of any other master.
    tokio::time::sleep(MAX_TTL + MAX_TTL / 50).await;
    drop(first_guards);
    let _away = scene.make_unreachable(0);
    for client in [scene.client(), observing_client] {
        let acquire_result = client.acquire("job").await;
        acquire_result
            .expect("the vote of the new server must count after the longest lease")
            .release()
            .await;
    }
    drop(builder);
}

/// The address of the second master leads to two servers in turn. One connected client restores the marker of the
/// second server. After `MAX_TTL`, all markers look right, although the lock is held on the first server.
#[tokio::test]
async fn address_that_leads_to_two_servers_gets_two_votes_without_a_name() {
    let scene = Scene::start().await;
    scene.mark_masters().await;
    let holder = scene.client();
    let make_unreachable = scene.make_unreachable(2);
    let first_guard = holder.acquire("job").await.expect("the lock must be free");
    make_unreachable.heal();
    // From now on, new connections lead to the other server. The connections of the holder stay where they are.
    let _turn = scene.proxies[1].inject(Fault::Detour(scene.servers[3].addr()));
    let observing_client = scene.client();
    let started_at = Instant::now();
    while ask_server(&scene.servers[3], &["GET", MARKER_KEY])
        .text()
        .is_none()
    {
        let _ = observing_client.try_acquire("other").await;
        assert!(
            started_at.elapsed() < PATIENCE,
            "the marker must be restored"
        );
    }
    let deadline = Instant::now() + MAX_TTL + MAX_TTL / 50;
    // The holder must not renew its lock on the third master: as if the link between them were down.
    ask_server(&scene.servers[2], &["DEL", "job"]);
    while Instant::now() < deadline {
        ask_server(&scene.servers[2], &["DEL", "job"]);
        tokio::time::sleep(ms(20)).await;
    }
    let other_client = scene.client();
    let mut is_granted = false;
    while !is_granted && started_at.elapsed() < PATIENCE {
        ask_server(&scene.servers[2], &["DEL", "job"]);
        is_granted = can_acquire_while_held(&other_client, &first_guard).await;
    }
    assert!(is_granted);
}

/// The same with a name: only an operator writes a marker that bears the name, so the second server never votes.
#[tokio::test]
async fn server_without_the_name_of_the_masters_never_votes_for_a_named_client() {
    let scene = Scene::start().await;
    let holder = scene.named_client();
    let unmarked = holder.try_acquire("job").await;
    assert!(
        matches!(&unmarked, Err(AcquireError::OtherMasters(_))),
        "{unmarked:?}"
    );
    let marked = holder.mark_masters().await.expect("marked");
    assert!(marked.is_marked());
    // The client that was refused gets votes without connecting again.
    let make_unreachable = scene.make_unreachable(2);
    let first_guard = holder.acquire("job").await.expect("the lock must be free");
    make_unreachable.heal();
    let _turn = scene.proxies[1].inject(Fault::Detour(scene.servers[3].addr()));
    let nameless_client = scene.client();
    let deadline = Instant::now() + MAX_TTL + secs(1);
    while Instant::now() < deadline {
        // A client without a name restores the marker of the second server, but without the name.
        let _ = nameless_client.try_acquire("other").await;
        ask_server(&scene.servers[2], &["DEL", "job"]);
        let another_client = scene.named_client();
        assert!(!can_acquire_while_held(&another_client, &first_guard).await);
    }
    let reply = ask_server(&scene.servers[3], &["GET", MARKER_KEY]);
    let marker_field_count = reply.text().map(|reply| reply.split(' ').count());
    assert_eq!(
        marker_field_count,
        Some(2),
        "a number and a fingerprint, without a name"
    );
}

/// A client with a name checks the marker with every request, so it notices that a master has lost its memory.
#[tokio::test]
async fn named_client_notices_at_once_that_a_connected_master_lost_its_marker() {
    let scene = Scene::start().await;
    let client = scene.named_client();
    client.mark_masters().await.expect("marked");
    let _away = scene.make_unreachable(0);
    let guard = client.acquire("job").await.expect("two masters vote");
    guard.release().await;
    ask_server(&scene.servers[1], &["FLUSHALL"]);
    let refused_acquire = client.try_acquire("job").await;
    assert!(refused_acquire.is_err(), "{refused_acquire:?}");
    let text = ask_server(&scene.servers[1], &["GET", MARKER_KEY]);
    assert_eq!(text.text(), None, "only an operator marks a master");
}

/// Somebody empties a master, and an operator marks it again. A client with a name that has been connected all the time,
/// and has sent nothing meanwhile, must not count the votes of this master at once: the master has forgotten a lock.
#[tokio::test]
async fn connected_named_client_ignores_an_emptied_master_after_it_was_marked_again() {
    let scene = Scene::start().await;
    let connected_client = scene.named_client();
    connected_client.mark_masters().await.expect("marked");
    let guard = connected_client.acquire("other").await.expect("free");
    guard.release().await;
    let first_guards = acquire_on_two_masters(&scene, &scene.named_client()).await;
    ask_server(&scene.servers[1], &["FLUSHALL"]);
    let operator = scene.named_client().mark_masters().await;
    assert!(operator.expect("marked again").is_marked());
    for _ in 0..3 {
        assert!(!can_acquire_while_held(&connected_client, &first_guards).await);
    }
}

/// Tests clients whose masters were replaced before, and which have no name: each script checks the generation marker,
/// which another client restores.
#[tokio::test]
async fn connected_client_ignores_an_emptied_master_whose_marker_another_client_has_restored() {
    let scene = Scene::start().await;
    scene.mark_masters().await;
    for server in scene.servers.iter().take(3) {
        let reply = ask_server(server, &["GET", MARKER_KEY]);
        let mark_masters = reply.text().expect("a marker").replacen("0 ", "4 ", 1);
        ask_server(server, &["SET", MARKER_KEY, &mark_masters]);
    }
    let client_of_generation = || {
        let builder = scene.settings().masters_generation(1);
        builder.build().expect("good settings")
    };
    let connected_client = client_of_generation();
    let guard = connected_client.acquire("other").await.expect("free");
    guard.release().await;
    let first_guards = acquire_on_two_masters(&scene, &client_of_generation()).await;
    ask_server(&scene.servers[1], &["FLUSHALL"]);
    wait_until_marked(&scene, 1, &client_of_generation()).await;
    let restored_at = Instant::now();
    for _ in 0..3 {
        assert!(!can_acquire_while_held(&connected_client, &first_guards).await);
    }
    first_guards.release().await;
    // The connected client also raises the age record, so the master votes again after `max_ttl`.
    let _away = scene.make_unreachable(0);
    loop {
        if let Ok(TryAcquire::Acquired(_)) = connected_client.try_acquire("job").await {
            break;
        }
        let age_reply = ask_server(&scene.servers[1], &["GET", AGE_KEY]);
        assert!(restored_at.elapsed() < PATIENCE, "{age_reply:?}");
        tokio::time::sleep(MAX_TTL / 20).await;
    }
    // The marker was restored a moment before `restored_at`.
    let elapsed = restored_at.elapsed();
    assert!(elapsed + secs(1) > MAX_TTL, "{elapsed:?}");
}

#[tokio::test]
async fn masters_are_not_marked_through_an_address_that_leads_to_several_servers() {
    let scene = Scene::start().await;
    let _turns = scene.proxies[1].inject(Fault::InTurn(scene.servers[3].addr()));
    for client in [scene.client(), scene.named_client()] {
        let refused_marking = client.mark_masters().await;
        let Err(ChangeError::Missing(lines)) = refused_marking else {
            panic!("{refused_marking:?}");
        };
        let expected_text = lines.join("\n");
        assert!(
            expected_text.contains("leads to 2 servers in turn"),
            "{expected_text}"
        );
        for server in &scene.servers {
            let marker_reply = ask_server(server, &["GET", MARKER_KEY]);
            assert_eq!(marker_reply.text(), None);
        }
    }
}

/// Masters that have markers already get the name, and clients without a name continue meanwhile.
#[tokio::test]
async fn name_can_be_added_to_marked_masters_while_clients_without_a_name_use_them() {
    let scene = Scene::start().await;
    scene.mark_masters().await;
    let (nameless_client, named_client) = (scene.client(), scene.named_client());
    let guard = nameless_client.acquire("a").await.expect("free");
    assert!(named_client.try_acquire("b").await.is_err());
    assert!(
        named_client
            .mark_masters()
            .await
            .expect("marked")
            .is_marked()
    );
    named_client
        .acquire("b")
        .await
        .expect("free")
        .release()
        .await;
    guard.release().await;
    nameless_client
        .acquire("a")
        .await
        .expect("free")
        .release()
        .await;
    let builder = scene.settings().masters_name("another");
    let other_client = builder.build().expect("good settings");
    for foreign_client in [other_client, scene.client()] {
        let refused_marking = foreign_client.mark_masters().await;
        let error_text = refused_marking.expect_err("another name").to_string();
        assert!(error_text.contains("masters_name"), "{error_text}");
    }
}

/// Three masters whose wall clocks a test can set.
struct SceneWithClocks {
    scene: Scene,
    offset_files: Vec<OffsetFile>,
}

impl SceneWithClocks {
    /// Starts the masters while their clocks are an hour behind, and then corrects the clocks. So each master reports an
    /// uptime of an hour. Returns `None` if this machine cannot shift a clock.
    fn start(persistence: Persistence) -> Option<Self> {
        let shim = match ClockShim::build() {
            Ok(shim) => shim,
            Err(error) => {
                eprintln!(
                    "SKIPPED: this machine cannot build the library that shifts a clock: {error}"
                );
                return None;
            }
        };
        let offset = |_| {
            let offset = shim.offset_file().expect("the offset file must be created");
            offset.set(HOUR, Skew::Behind).expect("set");
            offset
        };
        let offset_files: Vec<OffsetFile> = (0..3).map(offset).collect();
        let options = |n: usize| {
            ServerOptions::new()
                .clock(&shim, &offset_files[n])
                .persistence(persistence)
        };
        let servers = Masters::start_with(3, options).expect("three masters");
        let scene_with_clocks = Self {
            scene: Scene::new(servers),
            offset_files,
        };
        for offset in &scene_with_clocks.offset_files {
            offset.clear().expect("cleared");
        }
        assert!((0..3).all(|master| uptime(&scene_with_clocks.scene.servers[master]) >= 3600));
        Some(scene_with_clocks)
    }

    fn set_clock_back(&self, master: usize) {
        self.offset_files[master]
            .set(HOUR, Skew::Behind)
            .expect("set");
    }

    /// Corrects the clock of a master, which then reports an uptime of an hour.
    fn correct_clock(&self, master: usize) {
        self.offset_files[master].clear().expect("cleared");
        assert!(uptime(&self.scene.servers[master]) >= 3600);
    }
}

/// Makes `client` take other locks until the server at this index has a generation marker.
async fn wait_until_marked(scene: &Scene, index: usize, client: &Redlock) {
    let started_at = Instant::now();
    while ask_server(&scene.servers[index], &["GET", MARKER_KEY])
        .text()
        .is_none()
    {
        let _ = client.try_acquire("other").await;
        assert!(
            started_at.elapsed() < PATIENCE,
            "the client must write the generation marker to the server"
        );
    }
}

/// After the restart, the clock of the second master is corrected. Then its uptime is an hour, and its marker has been
/// restored, so nothing but the age record shows that it may have forgotten a lock.
#[tokio::test]
async fn master_restarted_empty_with_a_wrong_clock_has_no_vote_after_its_marker_is_restored() {
    let Some(scene_with_clocks) = SceneWithClocks::start(Persistence::None) else {
        return;
    };
    let scene = &scene_with_clocks.scene;
    scene.mark_masters().await;
    let connected_client = scene.client();
    let first_guards = acquire_on_two_masters(scene, &connected_client).await;
    scene_with_clocks.set_clock_back(1);
    scene.servers[1].restart_empty().expect("restarted");
    wait_until_marked(scene, 1, &connected_client).await;
    scene_with_clocks.correct_clock(1);
    let _away = scene.make_unreachable(0);
    for _ in 0..3 {
        assert!(!can_acquire_while_held(&scene.client(), &first_guards).await);
    }
}

/// The second master keeps its data, so it has a marker after the restart, but it has lost the last write.
#[tokio::test]
async fn master_that_keeps_its_data_has_no_vote_after_a_restart_with_a_wrong_clock() {
    let Some(scene_with_clocks) = SceneWithClocks::start(Persistence::AofAlways) else {
        return;
    };
    let scene = &scene_with_clocks.scene;
    scene.mark_masters().await;
    let first_guards = acquire_on_two_masters(scene, &scene.client()).await;
    scene_with_clocks.set_clock_back(1);
    ask_server(&scene.servers[1], &["DEL", "job"]);
    scene.servers[1].restart().expect("restarted");
    scene_with_clocks.correct_clock(1);
    assert!(
        ask_server(&scene.servers[1], &["GET", MARKER_KEY])
            .text()
            .is_some()
    );
    let _away = scene.make_unreachable(0);
    for _ in 0..3 {
        assert!(!can_acquire_while_held(&scene.client(), &first_guards).await);
    }
}

/// A service of short-lived processes: no process watches the master for the longest lease, but together they do. The
/// clock of the master stays wrong, and its uptime is negative.
#[tokio::test]
async fn short_lived_clients_together_give_a_restarted_master_its_vote() {
    let Some(scene_with_clocks) = SceneWithClocks::start(Persistence::None) else {
        return;
    };
    let scene = &scene_with_clocks.scene;
    scene.mark_masters().await;
    scene.servers[1].restart_empty().expect("restarted");
    let connected = scene.client();
    wait_until_marked(scene, 1, &connected).await;
    drop(connected);
    let _away = scene.make_unreachable(0);
    let restarted_at = Instant::now();
    loop {
        let client = scene.client();
        if let Ok(TryAcquire::Acquired(guard)) = client.try_acquire("job").await {
            assert!(
                restarted_at.elapsed() > MAX_TTL,
                "{:?}",
                restarted_at.elapsed()
            );
            guard.release().await;
            break;
        }
        tokio::time::sleep(MAX_TTL / 10).await;
        let age_reply = ask_server(&scene.servers[1], &["GET", AGE_KEY]);
        assert!(restarted_at.elapsed() < PATIENCE, "{age_reply:?}");
    }
}
