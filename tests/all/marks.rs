//! Tests of a running server that takes over the address of a master. Whether a client counts the votes of this server
//! depends on the generation markers (docs/protocol.md, "Generation markers").

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ask_server, masters, ms, secs};
use quorate::{LockGuard, Redlock, RestartGuard, TryAcquire};
use quorate_testbed::{Fault, Injected, Masters, Proxy};

/// The longest lease that the clients of these tests may use, and the TTL of the lock that a test acquires first.
const MAX_TTL: Duration = secs(5);

const MARK: &str = "quorate:masters";

/// Three masters, each behind a proxy. The proxy of the second master can be redirected to a fourth server.
struct Scene {
    servers: Masters,
    addresses: Vec<Proxy>,
}

impl Scene {
    /// Starts the servers, and waits until the uptime of each is longer than the restart guard requires.
    async fn start() -> Self {
        let servers = masters(4);
        let address = |server: &quorate_testbed::Server| Proxy::start(server.addr());
        let addresses: Result<_, _> = servers.iter().take(3).map(address).collect();
        let scene = Self {
            addresses: addresses.expect("proxies"),
            servers,
        };
        let started = Instant::now();
        while scene.servers.iter().any(|server| uptime(server) < 7) {
            assert!(
                started.elapsed() < PATIENCE,
                "the servers must reach the uptime that this test needs"
            );
            tokio::time::sleep(ms(100)).await;
        }
        scene
    }

    fn client(&self) -> Redlock {
        let at = |index: usize| self.servers[index].url_at(self.addresses[index].addr());
        Redlock::builder()
            .masters((0..3).map(at))
            .ttl(MAX_TTL)
            .max_ttl(MAX_TTL)
            .node_timeout(ms(500))
            .connect_timeout(secs(1))
            .restart_guard(RestartGuard::On)
            .build()
            .expect("good settings")
    }

    /// Makes the master at this index unreachable until the returned fault is healed.
    fn away(&self, index: usize) -> Injected {
        let away = self.addresses[index].inject(Fault::Refuse);
        self.addresses[index].reset_all();
        away
    }

    /// Redirects the address of the second master to the fourth server, until the returned fault is healed.
    fn replace(&self) -> Injected {
        let spare = Fault::Detour(self.servers[3].addr());
        let replaced = self.addresses[1].inject(spare);
        self.addresses[1].reset_all();
        replaced
    }

    /// Writes generation markers to the masters with `mark_masters`, as an operator would.
    async fn mark(&self) {
        let marked = self.client().mark_masters().await;
        assert!(
            marked
                .expect("mark_masters must succeed, because all masters can be reached")
                .is_marked()
        );
    }
}

fn uptime(server: &quorate_testbed::Server) -> u64 {
    let info = ask_server(server, &["INFO", "server"]);
    let info = info.text().unwrap_or_default().into_owned();
    let field = |line: &str| line.strip_prefix("uptime_in_seconds:")?.trim().parse().ok();
    info.lines().find_map(field).unwrap_or(0)
}

/// Acquires a lock while the third master is unreachable, so only the first two masters have its key. The lock is not
/// renewed, because a renewal would write the key to the third master.
async fn held_by_two(scene: &Scene, client: &Redlock) -> LockGuard {
    let away = scene.away(2);
    let lock = client.lock("job").renewal(false);
    let guard = lock
        .acquire()
        .await
        .expect("the acquire must succeed, because a majority of the masters can be reached");
    away.heal();
    guard
}

/// Makes one attempt with `client` while `first` still holds the lock. Returns true if `client` gets the lock as well.
async fn is_granted_beside(client: &Redlock, first: &LockGuard) -> bool {
    let second = client.try_acquire("job").await;
    assert!(
        first.is_valid(),
        "the lease of the first holder has ended too early: the machine is too slow for this test"
    );
    matches!(second, Ok(TryAcquire::Acquired(_)))
}

/// Without markers, a client detects a replacement server only by its short uptime. The server of this test has been
/// running for long enough, so its vote counts.
#[tokio::test]
async fn vote_of_a_replacement_server_counts_immediately_without_generation_markers() {
    let scene = Scene::start().await;
    let first = held_by_two(&scene, &scene.client()).await;
    let _replaced = scene.replace();
    assert!(is_granted_beside(&scene.client(), &first).await);
}

#[tokio::test]
async fn vote_of_a_replacement_server_is_ignored_if_masters_have_generation_markers() {
    let scene = Scene::start().await;
    scene.mark().await;
    let first = held_by_two(&scene, &scene.client()).await;
    let _replaced = scene.replace();
    for _ in 0..5 {
        assert!(!is_granted_beside(&scene.client(), &first).await);
    }
}

/// The second client reaches only the replacement server and one master with a marker. This marker must be enough to
/// ignore the vote of the replacement server.
#[tokio::test]
async fn replacement_server_has_no_vote_if_only_one_reachable_master_has_a_marker() {
    let scene = Scene::start().await;
    scene.mark().await;
    let first = held_by_two(&scene, &scene.client()).await;
    let _replaced = scene.replace();
    let _away = scene.away(0);
    for _ in 0..5 {
        assert!(!is_granted_beside(&scene.client(), &first).await);
    }
}

/// The first client that finds a server without a marker writes the marker immediately. For [`MAX_TTL`] after that, all
/// clients must still ignore the votes of this server.
#[tokio::test]
async fn vote_of_a_server_that_just_got_its_marker_counts_only_after_the_longest_lease() {
    let scene = Scene::start().await;
    scene.mark().await;
    let notices = scene.client();
    let first = held_by_two(&scene, &notices).await;
    let replaced = scene.replace();
    let started = Instant::now();
    while ask_server(&scene.servers[3], &["GET", MARK])
        .text()
        .is_none()
    {
        let _ = notices.try_acquire("other").await;
        assert!(
            started.elapsed() < PATIENCE,
            "the client must write the generation marker to the new server"
        );
    }
    assert!(!is_granted_beside(&scene.client(), &first).await);
    // After `MAX_TTL`, the vote of the new server counts like that of any other master.
    tokio::time::sleep(MAX_TTL + MAX_TTL / 50).await;
    drop(first);
    let _away = scene.away(0);
    for client in [scene.client(), notices] {
        let granted = client.acquire("job").await;
        granted
            .expect("the vote of the new server must count after the longest lease")
            .release()
            .await;
    }
    drop(replaced);
}
