//! Tests of `inspect`, which reports the settings and the state of each master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{
    self, ask_server, count_connections, eventually, masters, ms, secs, settings,
};
use quorate::node::{Dial, Stream};
use quorate::{Fault, Inspection, MissingRight, Redlock, StatusVerdict};
use quorate_testbed::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

#[tokio::test]
async fn inspection_reports_the_settings_and_the_state_of_each_server() {
    let masters = masters(3);
    let redlock = Redlock::builder()
        .masters(masters.urls())
        .node_timeout(secs(2))
        .connect_timeout(secs(10))
        .ttl(secs(20))
        .build()
        .expect("good settings");
    let inspections = redlock.inspect().await;
    for (inspection, url) in inspections.iter().zip(masters.urls()) {
        assert_eq!(inspection.fault, None, "{inspection:?}");
        assert!(url.ends_with(inspection.node.as_str()), "{inspection:?}");
        assert!(inspection.server.is_some() && inspection.version.is_some());
        assert_eq!(inspection.role.as_deref(), Some("master"));
        assert_eq!(inspection.cluster, Some(false));
        assert_eq!(inspection.run_id.as_deref().map(str::len), Some(40));
        assert_eq!(inspection.maxmemory_policy.as_deref(), Some("noeviction"));
        assert_eq!(inspection.append_only, Some(false));
        assert_eq!(inspection.snapshots, Some(false));
        let offset = inspection
            .clock_offset_ms
            .expect("the inspection must report a clock offset");
        assert!(
            offset.abs() < 30_000,
            "the clock offset of a master on this machine must be less than 30 s, but is {offset} ms"
        );
        assert!(inspection.connecting.is_some() && inspection.round_trip.is_some());
        // This master has just started. So the restart guard, in its default setting, does not count the votes of this
        // master yet.
        assert!(
            inspection
                .quarantined
                .is_some_and(|remaining| remaining > Duration::ZERO)
        );
        assert!(inspection.uptime.is_some_and(|uptime| uptime < secs(600)));
    }
    masters[1].kill().expect("killed");
    masters[2].stop().expect("stopped");
    let hasty = Redlock::builder()
        .masters(masters.urls())
        .connect_timeout(Duration::from_millis(700))
        .build()
        .expect("good settings");
    let hasty_inspections = hasty.inspect().await;
    masters[2].cont().expect("continued");
    for inspection in &hasty_inspections[1..] {
        assert_eq!(inspection.fault.as_ref().map(Fault::kind), Some("down"));
        assert_eq!((&inspection.version, inspection.uptime), (&None, None));
    }
}

#[tokio::test]
async fn inspection_does_not_close_the_connections_that_locks_use() {
    let masters = masters(3);
    let redlock = support::redlock(&masters);
    let guard = redlock.acquire("job").await.expect("free");
    let connection_id = |server: &Server| {
        let reply = ask_server(server, &["CLIENT", "LIST"]);
        let list = reply.text().expect("text").into_owned();
        let our_line = list.lines().find(|line| line.contains("addr=127.0.0.1"));
        our_line
            .and_then(|line| line.split(' ').next())
            .map(str::to_owned)
    };
    // Let the client connect to all masters, and wait until the test's own connections to them are closed.
    redlock.status("job").await.expect("the name must be valid");
    let has_one_connection_each = || masters.iter().all(|master| count_connections(master) == 1);
    eventually(
        "each master must have one connection of the client",
        has_one_connection_each,
    )
    .await;
    let connections_before: Vec<_> = masters.iter().map(connection_id).collect();
    redlock.inspect().await;
    guard
        .extend(secs(30))
        .await
        .expect("the extension must succeed, because the lock is still held");
    eventually(
        "the inspection must have closed its own connections",
        has_one_connection_each,
    )
    .await;
    let connections_after: Vec<_> = masters.iter().map(connection_id).collect();
    assert_eq!(connections_before, connections_after);
}

#[tokio::test]
async fn memory_masters_can_be_inspected() {
    let redlock = Redlock::in_memory(3);
    let inspections = redlock.inspect().await;
    assert_eq!(inspections.len(), 3);
    assert!(
        inspections
            .iter()
            .all(|inspection| inspection.fault.is_none())
    );
}

/// Plays a master that answers the handshake correctly, and every later command with `answer`. If `answer` is `None`,
/// it does not answer later commands.
async fn serve_hostile(mut stream: DuplexStream, answer: Option<&'static [u8]>) {
    const INFO_REPLY: &[u8] = b"$35\r\nrun_id:a\r\nuptime_in_seconds:99999\r\n\r\n";
    let mut input = Vec::new();
    let mut is_greeted = false;
    while let Ok(1..) = stream.read_buf(&mut input).await {
        // Collect the names of the commands that this master has not answered yet.
        let text = String::from_utf8_lossy(&input).into_owned();
        let lines: Vec<&str> = text.split("\r\n").collect();
        let command_names: Vec<&str> = lines
            .windows(3)
            .filter(|lines| lines[0].starts_with('*') && lines[1].starts_with('$'))
            .map(|lines| lines[2])
            .collect();
        // The handshake is answered as soon as `CLIENT ID`, its last command, has arrived.
        if !is_greeted && !text.ends_with("ID\r\n") {
            continue;
        }
        input.clear();
        for name in command_names {
            let answer = match (is_greeted, name) {
                (false, "INFO") => INFO_REPLY,
                (false, "CLIENT") => b":1\r\n",
                (false, "HELLO") => b"%1\r\n+proto\r\n:3\r\n",
                (false, "GET") => b"_\r\n",
                (false, "SCRIPT") => b"$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
                (false, _) => b"+OK\r\n",
                (true, _) => match answer {
                    Some(answer) => answer,
                    None => continue,
                },
            };
            if stream.write_all(answer).await.is_err() {
                return;
            }
        }
        is_greeted = true;
    }
}

async fn inspect_hostile(answer: Option<&'static [u8]>) -> Inspection {
    let dial: Dial = Arc::new(move |_, _| {
        let (our_line, theirs) = duplex(1 << 16);
        tokio::spawn(serve_hostile(theirs, answer));
        Box::pin(async move { Ok(Box::new(our_line) as Box<dyn Stream>) })
    });
    let redlock = Redlock::builder()
        .master("redis://hostile")
        .dial(dial)
        .node_timeout(ms(300))
        .connect_timeout(ms(600))
        .build()
        .expect("good settings");
    redlock.inspect().await.remove(0)
}

#[tokio::test]
async fn inspection_of_a_master_that_stops_answering_ends_with_a_timeout() {
    let started_at = Instant::now();
    let inspection = inspect_hostile(None).await;
    assert_eq!(
        inspection.fault,
        Some(Fault::Timeout(ms(300))),
        "{inspection:?}"
    );
    assert!(inspection.connecting.is_some());
    // The inspection must end after the first request that times out (300 ms). The limit of 5 s allows for a busy
    // machine.
    assert!(started_at.elapsed() < secs(5), "{:?}", started_at.elapsed());
}

#[tokio::test]
async fn malformed_answers_to_an_inspection_are_not_reported_as_missing_rights() {
    let answers: [&'static [u8]; 8] = [
        b"+OK\r\n",
        b"*2\r\n$20\r\n99999999999999999999\r\n$1\r\n0\r\n",
        b"*2\r\n$19\r\n9223372036854775807\r\n$2\r\n-1\r\n",
        b"*0\r\n",
        b"_\r\n",
        b"$-1\r\n",
        b"-\r\n",
        b"%1\r\n+a\r\n*1\r\n:1\r\n",
    ];
    for answer in answers {
        let inspection = inspect_hostile(Some(answer)).await;
        assert_eq!(inspection.fault, None, "{inspection:?}");
        assert!(
            inspection.missing.is_empty() && !inspection.wake_ups,
            "{inspection:?}"
        );
        assert_eq!(inspection.clock_offset_ms, None, "{inspection:?}");
    }
    let inspection = inspect_hostile(Some(b"!!\r\n")).await;
    let kind = inspection.fault.as_ref().map(Fault::kind);
    assert_eq!(kind, Some("down"), "{inspection:?}");
    let denied_inspection = inspect_hostile(Some(b"-NOPERM no\r\n")).await;
    let rules: Vec<&str> = denied_inspection
        .missing
        .iter()
        .map(MissingRight::rule)
        .collect();
    assert!(
        rules.contains(&"+evalsha") && rules.contains(&"+time"),
        "{rules:?}"
    );
}

/// Without an early end, the call would wait for the time limit of the masters, which is a minute here.
#[tokio::test]
async fn status_returns_as_soon_as_all_masters_have_answered() {
    let masters = masters(3);
    let builder = settings(masters.urls()).ttl(secs(600)).max_ttl(secs(600));
    let builder = builder.node_timeout(secs(60));
    let redlock = builder.build().expect("good settings");
    let status = tokio::time::timeout(secs(30), redlock.status("job")).await;
    let status = status
        .expect("the call must not wait longer")
        .expect("a name");
    assert!(
        matches!(status.verdict(), StatusVerdict::Free),
        "{status:?}"
    );
}
