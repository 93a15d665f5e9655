//! Tests of the beginning and the end of a connection.

use super::*;

fn bench_with_guard(restart_guard: RestartGuard) -> Bench {
    let mut changed = options(roster(&Arc::default()));
    Arc::get_mut(&mut changed)
        .expect("the options must not be shared yet")
        .restart_guard = restart_guard;
    Bench::at("redis://master", changed)
}

fn closed_fault() -> Fault {
    Fault::Down("connection closed".into())
}

#[test]
fn first_message_names_the_library_the_database_and_the_user_of_the_url() {
    for (url, select, hello) in [
        ("redis://master", None, "$5\r\nHELLO\r\n$1\r\n3\r\n*"),
        ("redis://master/3", Some("SELECT\r\n$1\r\n3\r\n"), "HELLO"),
        (
            "redis://:secret@master",
            None,
            "AUTH\r\n$7\r\ndefault\r\n$6\r\nsecret\r\n",
        ),
        (
            "redis://me:secret@master",
            None,
            "AUTH\r\n$2\r\nme\r\n$6\r\nsecret\r\n",
        ),
    ] {
        let mut bench = Bench::at(url, options(roster(&Arc::default())));
        bench.link.dialed(at(0));
        let written = bench.take_written();
        assert!(written.contains(hello), "{url}: {written}");
        assert!(written.contains("LIB-NAME\r\n$7\r\nquorate\r\n"));
        assert_eq!(written.contains("SELECT"), select.is_some(), "{written}");
        assert!(written.contains(select.unwrap_or_default()), "{written}");
    }
}

#[test]
fn link_reports_whether_the_received_bytes_complete_a_reply() {
    let mut bench = Bench::new();
    let receive = |bench: &mut Bench, bytes: &str| {
        let input = bench.link.input();
        let room = input.room().expect("the input buffer must have room");
        room[..bytes.len()].copy_from_slice(bytes.as_bytes());
        input.add_received(bytes.len());
        bench.link.receive(at(1))
    };
    bench.link.dialed(at(0));
    bench.take_written();
    let (first, rest) = GREETING[0].split_at(4);
    assert!(!receive(&mut bench, first));
    assert!(receive(&mut bench, rest));
    assert!(receive(&mut bench, &GREETING[1..].concat()));
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    assert!(!receive(&mut bench, ":"));
    assert!(receive(&mut bench, "5\r\n"));
    // The actor must find out at once that the connection was lost.
    assert!(receive(&mut bench, "not the protocol of Redis\r\n"));
    assert_ne!(bench.link.stage(), Stage::Transfer);
}

#[test]
fn three_acquires_are_combined_only_on_a_server_from_redis_7_on() {
    for (version, counts) in [("7.2.0", &[3][..]), ("6.2.1", &[1, 1, 1])] {
        let mut bench = Bench::new();
        let info = format!("redis_version:{version}\r\nrun_id:a\r\nuptime_in_seconds:99999999");
        greet_with(&mut bench, &info, "", 0);
        for n in [1, 2] {
            bench.push_request(n.into(), release(n));
        }
        bench.link.take(at(1));
        bench.take_written();
        bench.receive_bytes([SHA, SHA, ":1\r\n:1\r\n"].concat().as_bytes(), 1);
        for n in [1, 2, 3] {
            bench.push_request(n.into(), acquire(n));
        }
        bench.link.take(at(2));
        let written = bench.take_written();
        assert_eq!(combined_key_counts(&written), counts, "{version}");
    }
}

#[test]
fn first_run_of_a_server_votes_at_once_if_restarts_count_from_the_first_contact() {
    let young = |run: &str| format!("run_id:{run}\r\nuptime_in_seconds:0\r\n");
    let kinds_of = |bench: &mut Bench, now| {
        bench.push_request(1, acquire(1));
        bench.link.take(at(now));
        bench.recorded.kinds()
    };
    let mut bench = bench_with_guard(RestartGuard::On);
    greet_with(&mut bench, &young("a"), "", 0);
    assert_eq!(kinds_of(&mut bench, 1), ["quarantined"]);
    let mut bench = bench_with_guard(RestartGuard::AfterFirstContact);
    greet_with(&mut bench, &young("a"), "", 0);
    assert_eq!(kinds_of(&mut bench, 1), [""; 0]);
    bench.receive_bytes(b":5\r\n", 2);
    bench.link.cut(closed_fault(), at(3));
    let now = bench.redial(3);
    bench.recorded.take_all();
    greet_with(&mut bench, &young("b"), "", now);
    assert_eq!(kinds_of(&mut bench, now), ["quarantined"]);
    // A master with a generation marker has an age record, so its uptime is not used.
    let mut bench = bench_with_guard(RestartGuard::On);
    let marker = own_marker(&bench);
    greet_fully(&mut bench, &young("a"), (&marker, "a 40000 x"), 0);
    assert_eq!(kinds_of(&mut bench, 1), [""; 0]);
}

#[test]
fn age_record_is_not_read_if_the_restart_guard_is_off() {
    for (guard, reads_age) in [(RestartGuard::On, true), (RestartGuard::Off, false)] {
        let mut bench = bench_with_guard(guard);
        let marker = own_marker(&bench);
        let second_message = greet_aged(&mut bench, ("a", &marker, "a 40000 x"), 0);
        assert_eq!(second_message.contains(AGE_KEY), reads_age, "{guard:?}");
    }
}

/// An inspection uses another clock than the link, so it cannot know since when the run is known.
#[test]
fn additional_connection_votes_at_once_only_in_the_first_run_of_the_server() {
    let young = |run: &str| format!("run_id:{run}\r\nuptime_in_seconds:0\r\n");
    for (is_restarted, kinds) in [(false, &[][..]), (true, &["quarantined"])] {
        let mut bench = bench_with_guard(RestartGuard::AfterFirstContact);
        greet_with(&mut bench, &young("a"), "", 0);
        let run = if is_restarted { "b" } else { "a" };
        if is_restarted {
            bench.link.cut(closed_fault(), at(1));
            let now = bench.redial(1);
            greet_with(&mut bench, &young(run), "", now);
        }
        let shared = Arc::new(bench.shared.for_another_connection());
        let mut other = Bench {
            link: Link::new(shared.clone(), 7, at(60_000)),
            shared,
            recorded: Arc::default(),
        };
        greet_with(&mut other, &young(run), "", 60_000);
        other.push_request(1, acquire(1));
        other.link.take(at(60_001));
        assert_eq!(other.recorded.kinds(), kinds, "{run}");
    }
}

/// After a change of the run, the address may lead to a different server.
#[test]
fn old_age_record_does_not_shorten_the_wait_after_a_change_of_the_run() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, "a 40000 x"), 0);
    bench.link.cut(closed_fault(), at(3));
    let now = bench.redial(3);
    greet_aged(&mut bench, ("b", &marker, "b 29000 x"), now);
    for (later, kinds) in [(29_000, &["quarantined"][..]), (30_000, &[])] {
        bench.push_request(1, acquire(1));
        bench.link.take(at(now + later));
        assert_eq!(bench.recorded.kinds(), kinds, "after {later} ms");
    }
}

#[test]
fn message_in_place_of_the_reply_to_the_subscription_ends_the_handshake() {
    let mut bench = Bench::awaiting_subscription();
    bench.receive_bytes(b">3\r\n+message\r\n$1\r\nx\r\n$3\r\njob\r\n", 1);
    bench.push_request(1, acquire(1));
    bench.link.tick(at(1));
    assert_eq!(bench.recorded.kinds(), ["server_error"]);
}

#[test]
fn server_is_not_probed_again_after_a_completed_handshake() {
    let mut bench = Bench::new();
    bench.link.dialed(at(0));
    bench.link.cut(closed_fault(), at(1));
    let now = bench.redial(1);
    bench.take_written();
    bench.link.dialed(at(now));
    assert!(!bench.take_written().contains("HELLO"), "this is a probe");
    bench.receive_bytes(b"_\r\n", now);
    assert!(bench.take_written().contains("HELLO"));
    bench.receive_bytes(GREETING.concat().as_bytes(), now);
    bench.link.cut(closed_fault(), at(now + 2_000));
    let now = bench.redial(now + 2_000);
    bench.greet(now);
}

#[test]
fn lost_connection_is_reported_once_and_a_crash_loses_it_as_well() {
    let mut bench = Bench::new();
    bench.link.cut(closed_fault(), at(0));
    let wake_at = bench.link.wake_at();
    assert_eq!(bench.link.stage(), Stage::Pause);
    bench.link.cut(closed_fault(), at(1));
    assert_eq!(bench.link.wake_at(), wake_at, "the pause continues");
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    bench.link.crash(closed_fault(), at(2));
    assert_eq!(bench.recorded.kinds(), ["disconnected"]);
    bench.link.abandon();
    bench.link.crash(closed_fault(), at(3));
    assert_eq!(bench.link.stage(), Stage::End);
}

#[test]
fn next_link_continues_with_the_unanswered_releases_and_the_queued_requests() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, release(1));
    bench.link.take(at(1));
    bench.push_request(2, acquire(2));
    let pending = bench.link.hand_over().expect("a release is pending");
    assert_eq!(pending.len(), 1);
    let why = "the connection to the master was shut down";
    let answers = [(1, Err(Fault::Disconnected(why.into())))];
    assert_eq!(bench.recorded.take_all(), answers);
    bench.link = Link::new(bench.shared.clone(), 8, at(2)).continuing(pending);
    assert_eq!(bench.recorded.kinds(), [""; 0], "the acquire still waits");
    let now = bench.greet_again(2);
    bench.link.take(at(now));
    let written = bench.take_written();
    let release_position = written.find(&*hex(1));
    assert!(release_position.is_some() && release_position < written.find(&*hex(2)));
}

#[test]
fn link_is_continued_while_a_release_is_pending_or_the_handle_exists() {
    for (is_pending, is_closed) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bench = Bench::new();
        bench.greet(0);
        if is_pending {
            bench.push_request(1, release(1));
            bench.link.take(at(1));
        }
        if is_closed {
            bench.shared.mailbox.close();
            bench.shared.mailbox.mark_idle();
        }
        let is_continued = bench.link.hand_over().is_some();
        assert_eq!(is_continued, is_pending || !is_closed);
    }
}

#[test]
fn value_of_an_earlier_run_is_trusted_only_if_the_restart_guard_is_off() {
    for (guard, is_trusted) in [(RestartGuard::On, false), (RestartGuard::Off, true)] {
        let mut bench = bench_with_guard(guard);
        let claim = claim(1);
        take_write(&mut bench, Request::Read { claim, token: 7 });
        bench.link.take(at(3));
        assert!(bench.take_written().contains("EVALSHA"));
        bench.receive_bytes(b"*2\r\n$7\r\n7 old x\r\n:5\r\n", 4);
        let answers = bench.recorded.take_all();
        let [(1, Ok(Answer::Value { stored, .. }))] = &answers[..] else {
            panic!("the master sent a value: {answers:?}")
        };
        let stored = stored.as_ref().expect("a value is stored");
        assert_eq!(stored.trusted, is_trusted, "{guard:?}");
    }
}
