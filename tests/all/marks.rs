//! Tests of a running server that takes over the address of a master. Whether a client counts the votes of this server
//! depends on the generation markers (docs/protocol.md, "Generation markers").

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ask_server, masters, ms, secs};
use quorate::{
    AcquireError, ChangeError, LockGuard, Redlock, RedlockBuilder, RestartGuard, TryAcquire,
};
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
        self.settings().build().expect("good settings")
    }

    fn settings(&self) -> RedlockBuilder {
        let at = |index: usize| self.servers[index].url_at(self.addresses[index].addr());
        Redlock::builder()
            .masters((0..3).map(at))
            .ttl(MAX_TTL)
            .max_ttl(MAX_TTL)
            .node_timeout(ms(500))
            .connect_timeout(secs(1))
            .restart_guard(RestartGuard::On)
    }

    /// A client that uses only masters whose generation marker bears the name `orders`.
    fn named_client(&self) -> Redlock {
        let named = self.settings().masters_name("orders");
        named.build().expect("good settings")
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

/// The address of the second master leads to two servers in turn. One connected client restores the marker of the
/// second server. After `MAX_TTL`, all markers look right, although the lock is held on the first server.
#[tokio::test]
async fn address_that_leads_to_two_servers_gets_two_votes_without_a_name() {
    let scene = Scene::start().await;
    scene.mark().await;
    let holder = scene.client();
    let away = scene.away(2);
    let first = holder.acquire("job").await.expect("the lock must be free");
    away.heal();
    // From now on, new connections lead to the other server. The connections of the holder stay where they are.
    let _turn = scene.addresses[1].inject(Fault::Detour(scene.servers[3].addr()));
    let notices = scene.client();
    let started = Instant::now();
    while ask_server(&scene.servers[3], &["GET", MARK])
        .text()
        .is_none()
    {
        let _ = notices.try_acquire("other").await;
        assert!(started.elapsed() < PATIENCE, "the marker must be restored");
    }
    let until = Instant::now() + MAX_TTL + MAX_TTL / 50;
    // The holder must not renew its lock on the third master: as if the link between them were down.
    ask_server(&scene.servers[2], &["DEL", "job"]);
    while Instant::now() < until {
        ask_server(&scene.servers[2], &["DEL", "job"]);
        tokio::time::sleep(ms(20)).await;
    }
    let other = scene.client();
    let mut granted = false;
    while !granted && started.elapsed() < PATIENCE {
        ask_server(&scene.servers[2], &["DEL", "job"]);
        granted = is_granted_beside(&other, &first).await;
    }
    assert!(granted);
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
    let away = scene.away(2);
    let first = holder.acquire("job").await.expect("the lock must be free");
    away.heal();
    let _turn = scene.addresses[1].inject(Fault::Detour(scene.servers[3].addr()));
    let nameless = scene.client();
    let until = Instant::now() + MAX_TTL + secs(1);
    while Instant::now() < until {
        // A client without a name restores the marker of the second server, but without the name.
        let _ = nameless.try_acquire("other").await;
        ask_server(&scene.servers[2], &["DEL", "job"]);
        let another = scene.named_client();
        assert!(!is_granted_beside(&another, &first).await);
    }
    let mark = ask_server(&scene.servers[3], &["GET", MARK]);
    let mark = mark.text().map(|mark| mark.split(' ').count());
    assert_eq!(mark, Some(2), "a number and a fingerprint, without a name");
}

/// A client with a name checks the marker with every request, so it notices that a master has lost its memory.
#[tokio::test]
async fn named_client_notices_at_once_that_a_connected_master_lost_its_marker() {
    let scene = Scene::start().await;
    let client = scene.named_client();
    client.mark_masters().await.expect("marked");
    let _away = scene.away(0);
    let guard = client.acquire("job").await.expect("two masters vote");
    guard.release().await;
    ask_server(&scene.servers[1], &["FLUSHALL"]);
    let refused = client.try_acquire("job").await;
    assert!(refused.is_err(), "{refused:?}");
    let text = ask_server(&scene.servers[1], &["GET", MARK]);
    assert_eq!(text.text(), None, "only an operator marks a master");
}

#[tokio::test]
async fn masters_are_not_marked_through_an_address_that_leads_to_several_servers() {
    let scene = Scene::start().await;
    let _turns = scene.addresses[1].inject(Fault::InTurn(scene.servers[3].addr()));
    for client in [scene.client(), scene.named_client()] {
        let refused = client.mark_masters().await;
        let Err(ChangeError::Missing(lines)) = refused else {
            panic!("{refused:?}");
        };
        let said = lines.join("\n");
        assert!(said.contains("leads to 2 servers in turn"), "{said}");
        for server in &scene.servers {
            let mark = ask_server(server, &["GET", MARK]);
            assert_eq!(mark.text(), None);
        }
    }
}

/// Masters that have markers already get the name, and clients without a name continue meanwhile.
#[tokio::test]
async fn name_can_be_added_to_marked_masters_while_clients_without_a_name_use_them() {
    let scene = Scene::start().await;
    scene.mark().await;
    let (nameless, named) = (scene.client(), scene.named_client());
    let guard = nameless.acquire("a").await.expect("free");
    assert!(named.try_acquire("b").await.is_err());
    assert!(named.mark_masters().await.expect("marked").is_marked());
    named.acquire("b").await.expect("free").release().await;
    guard.release().await;
    nameless.acquire("a").await.expect("free").release().await;
    let others = scene.settings().masters_name("another");
    let others = others.build().expect("good settings");
    for stranger in [others, scene.client()] {
        let refused = stranger.mark_masters().await;
        let said = refused.expect_err("another name").to_string();
        assert!(said.contains("masters_name"), "{said}");
    }
}
