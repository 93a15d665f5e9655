//! Tests of `mark_masters`, which an operator calls before the first replacement of masters. It writes generation
//! markers to the masters (docs/operations.md, "Generation markers").

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ask_server, masters, ms, secs, settings};
use quorate::{
    AcquireError, ChangeError, ChangeStage, Fault, NodeOutcome, Redlock, RedlockBuilder,
    RestartGuard, Survey,
};
use quorate_testbed::{Masters, Server};

const MAX_TTL: Duration = secs(1);

const MARK: &str = "quorate:masters";

fn named(servers: &Masters, which: &[usize]) -> RedlockBuilder {
    let urls = servers.urls();
    settings(which.iter().map(|at| urls[*at].clone()))
        .ttl(MAX_TTL)
        .max_ttl(MAX_TTL)
        .node_timeout(ms(250))
}

fn client(servers: &Masters, which: &[usize]) -> Redlock {
    named(servers, which).build().expect("good settings")
}

fn number(server: &Server) -> Option<String> {
    let mark = ask_server(server, &["GET", MARK]);
    let mark = mark.text()?.into_owned();
    Some(mark.split(' ').next()?.to_owned())
}

fn numbers(servers: &Masters) -> Vec<String> {
    servers
        .iter()
        .map(|server| number(server).unwrap_or_default())
        .collect()
}

/// The reply to `PTTL` for the generation marker: its remaining lifetime in milliseconds, -1 if the marker never
/// expires, or -2 if there is no marker. `None` if the reply is not an integer.
fn lifetime(server: &Server) -> Option<i64> {
    ask_server(server, &["PTTL", MARK]).int()
}

fn missing(step: Result<Survey, ChangeError>) -> String {
    match step {
        Err(ChangeError::Missing(missing)) => missing.join("\n"),
        other => {
            panic!("the step must fail and list the missing conditions, but returned: {other:?}")
        }
    }
}

async fn locks(redlock: &Redlock) {
    let guard = redlock.acquire("job").await;
    guard
        .expect("the acquire must succeed, because a majority of the masters can be reached")
        .release()
        .await;
}

#[tokio::test]
async fn only_restored_generation_markers_have_an_expiry() {
    let servers = masters(3);
    let all = client(&servers, &[0, 1, 2]);
    for _ in 0..2 {
        let survey = all
            .mark_masters()
            .await
            .expect("mark_masters must succeed, because all masters can be reached");
        assert!(survey.is_marked());
        assert_eq!(numbers(&servers), ["0"; 3]);
        assert!(servers.iter().all(|server| lifetime(server) == Some(-1)));
    }
    locks(&client(&servers, &[0, 1, 2])).await;
    ask_server(&servers[1], &["DEL", MARK]);
    assert!(!all.survey().await.expect("a survey").is_marked());
    all.mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    assert_eq!(numbers(&servers), ["0"; 3]);
    assert!(lifetime(&servers[1]) > Some(0));
    assert_eq!(lifetime(&servers[0]), Some(-1));
}

/// Tests that markers are written only while all masters are reachable. Otherwise a master that gets its marker later
/// would be mistaken for a master that lost its marker.
#[tokio::test]
async fn no_generation_marker_is_written_while_one_master_is_unreachable() {
    let servers = masters(3);
    servers[2].kill().expect("killed");
    let all = client(&servers, &[0, 1, 2]);
    let missing = missing(all.mark_masters().await);
    assert!(
        missing.contains(&servers[2].port().to_string()),
        "{missing}"
    );
    assert!(
        servers
            .iter()
            .take(2)
            .all(|server| number(server).is_none())
    );
}

/// One master is down, and another has lost its marker. So only one of the three masters has a marker until
/// `mark_masters` restores the lost one.
#[tokio::test]
async fn lost_generation_marker_can_be_restored_while_another_master_is_down() {
    let servers = masters(3);
    let all = client(&servers, &[0, 1, 2]);
    all.mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    servers[2].kill().expect("killed");
    ask_server(&servers[0], &["DEL", MARK]);
    all.mark_masters()
        .await
        .expect("mark_masters must succeed, because a majority of the masters can be reached");
    assert!(lifetime(&servers[0]) > Some(0));
}

/// Tests two clients: `fewer` uses only two of the three masters, and `later` uses another generation. The masters
/// would refuse these clients after `mark_masters`. So `mark_masters` must write no marker while one of them is
/// connected.
#[tokio::test]
async fn masters_cannot_be_marked_while_a_client_with_different_settings_is_connected() {
    let servers = masters(3);
    let all = client(&servers, &[0, 1, 2]);
    let fewer = client(&servers, &[0, 1]);
    let later = named(&servers, &[0, 1, 2]).masters_generation(1);
    let later = later.build().expect("good settings");
    locks(&fewer).await;
    assert!(later.try_acquire("job").await.is_err());
    let started = Instant::now();
    loop {
        let missing = missing(all.mark_masters().await);
        let named = |step: &str| missing.contains(&format!("quorate/{step}/"));
        if named("0") && named("2") {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{missing}");
    }
    assert_eq!(numbers(&servers), [""; 3]);
    drop((fewer, later));
    while let Err(error) = all.mark_masters().await {
        assert!(started.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn masters_cannot_be_marked_if_one_has_a_different_generation_marker() {
    let servers = masters(4);
    let all = client(&servers, &[0, 1, 2]);
    for other in [
        "not a mark",
        "0 0123456789abcdef",
        "1 0123456789abcdef",
        "4 0123456789abcdef",
    ] {
        ask_server(&servers[2], &["SET", MARK, other]);
        let missing = missing(all.mark_masters().await);
        assert!(
            missing.contains(&servers[2].port().to_string()),
            "{missing}"
        );
        assert_eq!(numbers(&servers)[..2], [""; 2]);
    }
    // Write the markers of generation 0. From then on, the masters refuse every client of generation 1, so its
    // `mark_masters` must fail.
    ask_server(&servers[2], &["DEL", MARK]);
    all.mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    drop(all);
    let later = named(&servers, &[0, 1, 2]).masters_generation(1);
    let later = later.build().expect("good settings");
    let said = missing(later.mark_masters().await);
    assert!(said.contains("another generation"), "{said}");
    // A client with `next_masters` must refuse `mark_masters`: the step `begin` writes the markers instead.
    let next = named(&servers, &[0, 1, 2]).next_masters(vec![servers.urls()[3].clone()]);
    let next = next.build().expect("good settings");
    let said = missing(next.mark_masters().await);
    assert!(said.contains("run the step `begin`"), "{said}");
}

#[tokio::test]
async fn marking_the_masters_writes_the_marker_of_the_configured_generation() {
    let servers = masters(3);
    let first = named(&servers, &[0, 1, 2]).masters_generation(1);
    let first = first.build().expect("good settings");
    assert!(
        first.try_acquire("job").await.is_err(),
        "a client of generation 1 must be refused by masters without markers"
    );
    first
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    assert_eq!(numbers(&servers), ["4"; 3]);
    locks(&first).await;
    let forgotten = client(&servers, &[0, 1, 2]).try_acquire("job").await;
    assert!(
        matches!(forgotten, Err(AcquireError::OtherMasters(_))),
        "{forgotten:?}"
    );
}

/// Tests a client that connects after the loss. An existing connection has already read the marker, so it does not
/// notice the loss.
#[tokio::test]
async fn new_client_ignores_the_vote_of_a_master_that_lost_its_generation_marker() {
    let servers = masters(3);
    client(&servers, &[0, 1, 2])
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    ask_server(&servers[0], &["FLUSHALL"]);
    // This client does not check the uptime of a server. Only the missing marker can make it ignore the server's vote.
    let new = named(&servers, &[0, 1, 2]).restart_guard(RestartGuard::AfterFirstContact);
    let new = new.build().expect("good settings");
    let started = Instant::now();
    loop {
        let guard = new
            .acquire("job")
            .await
            .expect("the acquire must succeed, because a majority of the masters can be reached");
        let report = guard.report();
        guard.release().await;
        let outcome = &report[0].outcome;
        if matches!(outcome, NodeOutcome::Fault(Fault::Quarantined(_))) {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{report:?}");
    }
    assert!(
        lifetime(&servers[0]) > Some(0),
        "the generation marker of the master must be restored"
    );
}

/// Tests two changes in a row. The second change reverses the first change.
#[tokio::test]
async fn old_masters_can_be_reinstated_by_a_second_change_of_masters() {
    let servers = masters(5);
    client(&servers, &[0, 1, 2])
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    for (generation, old, next) in [(0, [0, 1, 2], [2, 3, 4]), (1, [2, 3, 4], [0, 1, 2])] {
        let told = |which: &[usize], generation| {
            let told = named(&servers, which).masters_generation(generation);
            told.build().expect("good settings")
        };
        let before = told(&old, generation);
        locks(&before).await;
        let urls = servers.urls();
        let both = named(&servers, &old)
            .masters_generation(generation)
            .next_masters(next.map(|at| urls[at].clone()));
        let both = both.build().expect("good settings");
        let change = both.change().expect("a change");
        let started = Instant::now();
        while let Err(error) = change.begin().await {
            assert!(started.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(ms(100)).await;
        }
        locks(&before).await;
        locks(&both).await;
        change.close().await.expect("closed");
        let closed = change.closed().await.expect("closed");
        tokio::time::sleep(change.wait()).await;
        let open = change.open(&closed).await.expect("open");
        assert_eq!(open.stage(), ChangeStage::Open);
        locks(&told(&next, generation + 1)).await;
        change.finish().await.expect("finished");
        assert!(before.try_acquire("job").await.is_err());
    }
    assert_eq!(numbers(&servers), ["8"; 5]);
}

/// Tests two concurrent operators. One operator's request to write the first marker reaches a master late: the other
/// operator has already written a marker with a higher generation there.
#[tokio::test]
async fn delayed_write_of_the_first_marker_does_not_overwrite_a_later_marker() {
    let servers = masters(1);
    let (raised, print) = ("3 0123456789abcdef", "fedcba9876543210");
    ask_server(&servers[0], &["SET", MARK, raised]);
    let script = include_str!("../../src/scripts/masters/raise.lua");
    let said = ask_server(&servers[0], &["EVAL", script, "1", MARK, "0", print, "0"]);
    assert_eq!(said.text().as_deref(), Some(raised));
    let mark = ask_server(&servers[0], &["GET", MARK]);
    assert_eq!(mark.text().as_deref(), Some(raised));
}
