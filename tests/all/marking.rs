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

const MARKER_KEY: &str = "quorate:masters";

const AGE_KEY: &str = "quorate:masters:age";

fn builder_for(servers: &Masters, indices: &[usize]) -> RedlockBuilder {
    let urls = servers.urls();
    settings(indices.iter().map(|index| urls[*index].clone()))
        .ttl(MAX_TTL)
        .max_ttl(MAX_TTL)
        .node_timeout(ms(250))
}

fn client_of(servers: &Masters, indices: &[usize]) -> Redlock {
    builder_for(servers, indices)
        .build()
        .expect("good settings")
}

fn generation(server: &Server) -> Option<String> {
    let reply = ask_server(server, &["GET", MARKER_KEY]);
    let marker = reply.text()?.into_owned();
    Some(marker.split(' ').next()?.to_owned())
}

fn generations(servers: &Masters) -> Vec<String> {
    servers
        .iter()
        .map(|server| generation(server).unwrap_or_default())
        .collect()
}

/// The age record of a server: the age in milliseconds, and whether the record was started after the loss of a
/// generation marker. `None` if the server has no record of its present run.
fn age(server: &Server) -> Option<(u64, bool)> {
    let reply = ask_server(server, &["INFO", "server"]);
    let info = reply.text()?.into_owned();
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    let record_reply = ask_server(server, &["GET", AGE_KEY]);
    let record_text = record_reply.text()?.into_owned();
    let words: Vec<&str> = record_text.split(' ').collect();
    let [run_of_record, age, lifetime] = words[..] else {
        panic!("an age record must have three words: {record_text:?}")
    };
    let age = age.parse().expect("the age must be a number");
    (run_of_record == run_id.trim()).then_some((age, lifetime.starts_with("lost-")))
}

fn is_lost(server: &Server) -> Option<bool> {
    age(server).map(|(_, lost)| lost)
}

fn missing_conditions(step: Result<Survey, ChangeError>) -> String {
    match step {
        Err(ChangeError::Missing(missing_conditions)) => missing_conditions.join("\n"),
        other_client => {
            panic!(
                "the step must fail and list the missing conditions, but returned: {other_client:?}"
            )
        }
    }
}

async fn assert_can_lock(redlock: &Redlock) {
    let guard = redlock.acquire("job").await;
    guard
        .expect("the acquire must succeed, because a majority of the masters can be reached")
        .release()
        .await;
}

#[tokio::test]
async fn age_record_begins_with_the_uptime_only_for_the_first_generation_marker() {
    let servers = masters(3);
    let client = client_of(&servers, &[0, 1, 2]);
    for _ in 0..2 {
        let survey = client
            .mark_masters()
            .await
            .expect("mark_masters must succeed, because all masters can be reached");
        assert!(survey.is_marked());
        assert_eq!(generations(&servers), ["0"; 3]);
        assert!(servers.iter().all(|server| is_lost(server) == Some(false)));
    }
    assert_can_lock(&client_of(&servers, &[0, 1, 2])).await;
    ask_server(&servers[1], &["DEL", MARKER_KEY]);
    assert!(!client.survey().await.expect("a survey").is_marked());
    client
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    assert_eq!(generations(&servers), ["0"; 3]);
    assert_eq!(age(&servers[1]), Some((0, true)));
    assert_eq!(is_lost(&servers[0]), Some(false));
}

/// Tests that markers are written only while all masters are reachable. Otherwise a master that gets its marker later
/// would be mistaken for a master that lost its marker.
#[tokio::test]
async fn no_generation_marker_is_written_while_one_master_is_unreachable() {
    let servers = masters(3);
    servers[2].kill().expect("killed");
    let client = client_of(&servers, &[0, 1, 2]);
    let missing_conditions = missing_conditions(client.mark_masters().await);
    assert!(
        missing_conditions.contains(&servers[2].port().to_string()),
        "{missing_conditions}"
    );
    assert!(
        servers
            .iter()
            .take(2)
            .all(|server| generation(server).is_none())
    );
}

/// One master is down, and another has lost its marker. So only one of the three masters has a marker until
/// `mark_masters` restores the lost one.
#[tokio::test]
async fn lost_generation_marker_can_be_restored_while_another_master_is_down() {
    let servers = masters(3);
    let client = client_of(&servers, &[0, 1, 2]);
    client
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    servers[2].kill().expect("killed");
    ask_server(&servers[0], &["DEL", MARKER_KEY]);
    client
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because a majority of the masters can be reached");
    assert_eq!(age(&servers[0]), Some((0, true)));
}

/// Tests two clients: `client_of_two` uses only two of the three masters, and `later_client` uses another generation. The masters
/// would refuse these clients after `mark_masters`. So `mark_masters` must write no marker while one of them is
/// connected.
#[tokio::test]
async fn masters_cannot_be_marked_while_a_client_with_different_settings_is_connected() {
    let servers = masters(3);
    let client = client_of(&servers, &[0, 1, 2]);
    let client_of_two = client_of(&servers, &[0, 1]);
    let builder = builder_for(&servers, &[0, 1, 2]).masters_generation(1);
    let later_client = builder.build().expect("good settings");
    assert_can_lock(&client_of_two).await;
    assert!(later_client.try_acquire("job").await.is_err());
    let started_at = Instant::now();
    loop {
        let missing_conditions = missing_conditions(client.mark_masters().await);
        let builder_for = |step: &str| missing_conditions.contains(&format!("quorate/{step}/"));
        if builder_for("0") && builder_for("2") {
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{missing_conditions}");
    }
    assert_eq!(generations(&servers), [""; 3]);
    drop((client_of_two, later_client));
    while let Err(error) = client.mark_masters().await {
        assert!(started_at.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn masters_cannot_be_marked_if_one_has_a_different_generation_marker() {
    let servers = masters(4);
    let client = client_of(&servers, &[0, 1, 2]);
    for other_client in [
        "not a mark",
        "0 0123456789abcdef",
        "1 0123456789abcdef",
        "4 0123456789abcdef",
    ] {
        ask_server(&servers[2], &["SET", MARKER_KEY, other_client]);
        let missing_conditions = missing_conditions(client.mark_masters().await);
        assert!(
            missing_conditions.contains(&servers[2].port().to_string()),
            "{missing_conditions}"
        );
        assert_eq!(generations(&servers)[..2], [""; 2]);
    }
    // Write the markers of generation 0. From then on, the masters refuse every client of generation 1, so its
    // `mark_masters` must fail.
    ask_server(&servers[2], &["DEL", MARKER_KEY]);
    client
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    drop(client);
    let builder = builder_for(&servers, &[0, 1, 2]).masters_generation(1);
    let later_client = builder.build().expect("good settings");
    let missing_list = missing_conditions(later_client.mark_masters().await);
    assert!(
        missing_list.contains("another generation"),
        "{missing_list}"
    );
    // A client with `next_masters` must refuse `mark_masters`: the step `begin` writes the markers instead.
    let next_builder =
        builder_for(&servers, &[0, 1, 2]).next_masters(vec![servers.urls()[3].clone()]);
    let next = next_builder.build().expect("good settings");
    let missing_text = missing_conditions(next.mark_masters().await);
    assert!(
        missing_text.contains("run the step `begin`"),
        "{missing_text}"
    );
}

#[tokio::test]
async fn marking_the_masters_writes_the_marker_of_the_configured_generation() {
    let servers = masters(3);
    let builder = builder_for(&servers, &[0, 1, 2]).masters_generation(1);
    let first = builder.build().expect("good settings");
    assert!(
        first.try_acquire("job").await.is_err(),
        "a client of generation 1 must be refused by masters without markers"
    );
    first
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    assert_eq!(generations(&servers), ["4"; 3]);
    assert_can_lock(&first).await;
    let outcome = client_of(&servers, &[0, 1, 2]).try_acquire("job").await;
    assert!(
        matches!(outcome, Err(AcquireError::OtherMasters(_))),
        "{outcome:?}"
    );
}

/// Tests a client that connects after the loss. An existing connection has already read the marker, so it does not
/// notice the loss.
#[tokio::test]
async fn new_client_ignores_the_vote_of_a_master_that_lost_its_generation_marker() {
    let servers = masters(3);
    client_of(&servers, &[0, 1, 2])
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    ask_server(&servers[0], &["FLUSHALL"]);
    // This client does not check the uptime of a server. Only the missing marker can make it ignore the server's vote.
    let builder = builder_for(&servers, &[0, 1, 2]).restart_guard(RestartGuard::AfterFirstContact);
    let new = builder.build().expect("good settings");
    let started_at = Instant::now();
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
        assert!(started_at.elapsed() < PATIENCE, "{report:?}");
    }
    assert!(
        generation(&servers[0]).is_some(),
        "the generation marker of the master must be restored"
    );
    assert_eq!(is_lost(&servers[0]), Some(true));
}

/// Tests two changes in a row. The second change reverses the first change.
#[tokio::test]
async fn old_masters_can_be_reinstated_by_a_second_change_of_masters() {
    let servers = masters(5);
    client_of(&servers, &[0, 1, 2])
        .mark_masters()
        .await
        .expect("mark_masters must succeed, because all masters can be reached");
    for (generation, old, next) in [(0, [0, 1, 2], [2, 3, 4]), (1, [2, 3, 4], [0, 1, 2])] {
        let builder_of_generation = |indices: &[usize], generation| {
            let builder_of_generation =
                builder_for(&servers, indices).masters_generation(generation);
            builder_of_generation.build().expect("good settings")
        };
        let before = builder_of_generation(&old, generation);
        assert_can_lock(&before).await;
        let urls = servers.urls();
        let builder = builder_for(&servers, &old)
            .masters_generation(generation)
            .next_masters(next.map(|index| urls[index].clone()));
        let both = builder.build().expect("good settings");
        let change = both.change().expect("a change");
        let started_at = Instant::now();
        while let Err(error) = change.begin().await {
            assert!(started_at.elapsed() < PATIENCE, "{error}");
            tokio::time::sleep(ms(100)).await;
        }
        assert_can_lock(&before).await;
        assert_can_lock(&both).await;
        change.close().await.expect("closed");
        let closed = change.closed().await.expect("closed");
        tokio::time::sleep(change.wait()).await;
        let open = change.open(&closed).await.expect("open");
        assert_eq!(open.stage(), ChangeStage::Open);
        assert_can_lock(&builder_of_generation(&next, generation + 1)).await;
        change.finish().await.expect("finished");
        assert!(before.try_acquire("job").await.is_err());
    }
    assert_eq!(generations(&servers), ["8"; 5]);
}

/// Tests two concurrent operators. One operator's request to write the first marker reaches a master late: the other
/// operator has already written a marker with a higher generation there.
#[tokio::test]
async fn delayed_write_of_the_first_marker_does_not_overwrite_a_later_marker() {
    let servers = masters(1);
    let (marker, fingerprint) = ("3 0123456789abcdef", "fedcba9876543210");
    ask_server(&servers[0], &["SET", MARKER_KEY, marker]);
    let script = include_str!("../../src/scripts/masters/raise.lua").replace("{age}", AGE_KEY);
    let command = [
        "EVAL",
        &script,
        "1",
        MARKER_KEY,
        "0",
        fingerprint,
        "run 5 life",
    ];
    let reply = ask_server(&servers[0], &command);
    assert_eq!(reply.text().as_deref(), Some(marker));
    let stored = ask_server(&servers[0], &["GET", MARKER_KEY]);
    assert_eq!(stored.text().as_deref(), Some(marker));
    assert_eq!(ask_server(&servers[0], &["GET", AGE_KEY]).text(), None);
}

/// Calls the script that raises the age record. The arguments are the run id, the life and the age that the client has
/// watched, the life of a new record, and the marker to restore.
fn raise_age_record(server: &Server, args: [&str; 5]) -> String {
    let script = include_str!("../../src/scripts/age.lua");
    let script = script
        .replace("{age}", AGE_KEY)
        .replace("{masters}", MARKER_KEY);
    let call = ["EVAL", &script, "0"];
    let raise_reply = ask_server(server, &[&call[..], &args].concat());
    raise_reply
        .text()
        .expect("the script must reply with a text")
        .into_owned()
}

#[tokio::test]
async fn age_record_is_raised_only_for_the_same_server_run_and_life() {
    let servers = masters(1);
    let server = &servers[0];
    assert_eq!(raise_age_record(server, ["r", "", "9", "n1", ""]), "");
    assert_eq!(
        ask_server(server, &["EXISTS", AGE_KEY, MARKER_KEY]).int(),
        Some(0)
    );
    for (args, record) in [
        // The client restores the marker, so the age is zero, whatever the client has counted.
        (["r", "x", "9", "n1", "0 abc"], "r 0 lost-n1"),
        (["r", "lost-n1", "5", "n2", ""], "r 5 lost-n1"),
        (["r", "lost-n1", "3", "n3", ""], "r 5 lost-n1"),
        // This client has counted before the server lost its memory.
        (["r", "x", "99", "n4", "0 abc"], "r 5 lost-n1"),
        (["r", "", "99", "n5", ""], "r 5 lost-n1"),
        // A new run of the server, which this client has watched for 7 ms without a record.
        (["s", "", "7", "n6", ""], "s 7 n6"),
        (["s", "n6", "1000", "n7", ""], "s 1000 n6"),
        // A new run, but this client has watched a record of it that is gone.
        (["t", "x", "9", "n8", ""], "t 0 n8"),
    ] {
        assert_eq!(raise_age_record(server, args), record, "{args:?}");
        let stored = ask_server(server, &["GET", AGE_KEY]);
        assert_eq!(stored.text().as_deref(), Some(record), "{args:?}");
    }
    // A value of another type is overwritten.
    ask_server(server, &["DEL", AGE_KEY]);
    ask_server(server, &["RPUSH", AGE_KEY, "x"]);
    assert_eq!(
        raise_age_record(server, ["t", "n8", "10", "n9", ""]),
        "t 0 n9"
    );
    assert_eq!(
        ask_server(server, &["GET", MARKER_KEY]).text().as_deref(),
        Some("0 abc")
    );
}
