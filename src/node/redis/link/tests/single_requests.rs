//! Tests of requests that are sent one by one, and of requests that wait before they are sent.

use super::*;
use crate::keys::LEADER_CHANNEL_PREFIX;
use crate::node::{ExtendItem, Page};

/// Sends a release, and lets the master answer with `reply`. Returns the fault that the caller gets.
fn fault_of_release(bench: &mut Bench, reply: &str, now: u64) -> Fault {
    bench.push_request(1, release(1));
    bench.link.take(at(now));
    assert!(bench.take_written().contains(&*hex(1)));
    bench.receive_bytes(reply.as_bytes(), now + 1);
    let answers = bench.recorded.take_all();
    let fault = answers.into_iter().find_map(|(_, answer)| answer.err());
    fault.expect("the caller must get a fault")
}

#[test]
fn release_with_a_malformed_reply_is_sent_again_on_the_next_connection() {
    let mut bench = Bench::new();
    bench.greet(0);
    let fault = fault_of_release(&mut bench, "+PONG\r\n", 1);
    let why = "the reply does not fit the request";
    assert!(fault.to_string().contains(why), "{fault}");
    assert_ne!(bench.link.stage(), Stage::Transfer);
    let now = bench.greet_again(2);
    bench.link.take(at(now));
    assert!(bench.take_written().contains(&*hex(1)));
}

#[test]
fn request_whose_script_the_master_has_lost_twice_is_sent_only_twice() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    assert!(bench.take_written().contains("EVALSHA"));
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 2);
    bench.link.take(at(3));
    assert!(bench.take_written().contains("EVALSHA"));
    bench.receive_bytes(SHA.repeat(8).as_bytes(), 4);
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 4);
    assert_eq!(bench.recorded.kinds(), ["server_error"]);
    bench.link.take(at(5));
    assert_eq!(bench.take_written(), "");
}

#[test]
fn marker_in_the_error_of_a_script_says_why_the_master_refuses_the_client() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    bench.greet(0);
    for (now, marker, expected) in [
        (1, "4 0123456789abcdef", "this master is at generation 1"),
        (3, "-", "sent a generation marker that admits this client"),
        (5, &*marker, "sent a generation marker that admits"),
    ] {
        let refusal = format!("-ERR quorate: masters {marker}\r\n");
        let fault = fault_of_release(&mut bench, &refusal, now);
        assert!(fault.to_string().contains(expected), "{marker}: {fault}");
    }
}

/// A release of a lock on a group of keys. Its scripts are loaded before it is sent.
fn release_of_a_group(n: u8) -> Request {
    let part = Part {
        key: claim(n).shared_key().clone(),
        mode: Mode::Class(Class::Shared),
    };
    let fresh = Claim::new("", &[b'r', n], Token::from_bytes([n; 16]), true);
    Request::Release {
        claim: Arc::new(fresh.with_group(Group::new(vec![part]))),
        leave: true,
    }
}

/// A bench with two releases of groups that wait until their scripts are loaded.
fn bench_that_loads_scripts() -> Bench {
    let mut bench = Bench::new();
    bench.greet(0);
    for n in [1, 2] {
        bench.push_request(n.into(), release_of_a_group(n));
    }
    bench.link.take(at(1));
    bench.link.take(at(1));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 4, "{written}");
    assert!(!written.contains("EVALSHA"), "{written}");
    bench
}

#[test]
fn request_that_waits_for_its_scripts_times_out_and_keeps_the_link_alive() {
    let mut bench = bench_that_loads_scripts();
    bench.shared.mailbox.close();
    bench.link.settle(at(2));
    assert_eq!(bench.link.stage(), Stage::Transfer);
    bench.tick_through(2, NODE_TIMEOUT + 1);
    assert_eq!(bench.recorded.kinds(), ["timeout", "timeout"]);
}

#[test]
fn release_that_waits_for_its_scripts_is_sent_on_the_next_connection() {
    let mut bench = bench_that_loads_scripts();
    bench.link.cut(Fault::Down("reset".into()), at(2));
    assert_eq!(bench.recorded.kinds(), ["disconnected", "disconnected"]);
    let now = bench.greet_again(2);
    bench.link.take(at(now));
    bench.link.take(at(now));
    bench.take_written();
    bench.receive_bytes(SHA.repeat(4).as_bytes(), now);
    bench.link.take(at(now));
    let written = bench.take_written();
    assert!(written.contains(&*hex(1)) && written.contains(&*hex(2)));
}

#[test]
fn idle_link_with_a_dropped_handle_does_not_wait_for_the_reply_to_its_ping() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.link.tick(at(2_000));
    assert!(bench.take_written().contains("PING"));
    bench.shared.mailbox.close();
    bench.link.settle(at(2_001));
    assert_eq!(bench.link.stage(), Stage::End);
}

#[test]
fn ping_may_be_answered_with_a_text_or_an_error() {
    for (reply, is_accepted) in [
        ("+PONG\r\n", true),
        ("$4\r\nPONG\r\n", true),
        ("-NOPERM no right to ping\r\n", true),
        (":1\r\n", false),
    ] {
        let mut bench = Bench::new();
        bench.greet(0);
        bench.link.tick(at(2_000));
        bench.receive_bytes(reply.as_bytes(), 2_001);
        let is_kept = bench.link.stage() == Stage::Transfer;
        assert_eq!(is_kept, is_accepted, "{reply}");
    }
}

#[test]
fn lost_scripts_are_loaded_after_all_outstanding_answers() {
    let mut bench = Bench::new();
    bench.greet(0);
    for n in [1, 2] {
        bench.push_request(n.into(), acquire(n));
    }
    bench.link.take(at(1));
    bench.take_written();
    let lost = b"-NOSCRIPT No matching script.\r\n";
    bench.receive_bytes(lost, 2);
    assert!(!bench.link.take(at(3)));
    assert_eq!(bench.take_written(), "", "one answer is outstanding");
    bench.receive_bytes(lost, 4);
    bench.link.take(at(5));
    let written = bench.take_written();
    assert!(written.contains("LOAD") && written.find(&*hex(1)) < written.find(&*hex(2)));
}

#[test]
fn requests_denied_in_a_combined_call_time_out_and_keep_the_link_alive() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 2, 2);
    bench.push_request(3, acquire(3));
    bench.link.take(at(2));
    bench.take_written();
    bench.receive_bytes(b"-NOPERM No permissions to access a key\r\n", 3);
    bench.tick_through(4, 2 + NODE_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["timeout"; 3]);
    bench.shared.mailbox.close();
    bench.receive_bytes(b":5\r\n", 60);
    bench.link.settle(at(60));
    assert_eq!(bench.link.stage(), Stage::Transfer, "two releases wait");
}

#[test]
fn extension_of_several_locks_is_split_only_if_a_key_is_denied() {
    for (refusal, calls, kinds) in [
        ("-NOPERM No permissions to access a key\r\n", 2, 0),
        ("-NOPERM no right to run the 'evalsha' command\r\n", 0, 1),
        ("-BUSY a script\r\n", 0, 1),
    ] {
        let mut bench = Bench::new();
        bench.greet(0);
        let items = [1, 2].map(|n| ExtendItem::new(claim(n), Duration::from_secs(1)));
        bench.push_request(
            1,
            Request::Extend {
                items: items.into(),
            },
        );
        bench.link.take(at(1));
        assert_eq!(combined_key_counts(&bench.take_written()), [2]);
        bench.receive_bytes(refusal.as_bytes(), 2);
        assert_eq!(bench.recorded.take_all().len(), kinds, "{refusal}");
        bench.link.take(at(3));
        let sent_counts = combined_key_counts(&bench.take_written());
        assert_eq!(sent_counts, vec![1; calls], "{refusal}");
        if calls > 0 {
            // A single extension is not split.
            bench.receive_bytes(refusal.repeat(calls).as_bytes(), 4);
            bench.link.take(at(5));
            assert_eq!(bench.take_written(), "");
        }
    }
}

#[test]
fn split_requests_wait_while_the_window_is_full() {
    let mut bench = Bench::new();
    bench.greet(0);
    for first in [1, 51] {
        let items = (first..first + 50).map(|n| ExtendItem::new(claim(n), Duration::from_secs(1)));
        let request = Request::Extend {
            items: items.collect(),
        };
        bench.push_request(1, request);
        bench.link.take(at(1));
    }
    for _ in 0..1_000 {
        bench.push_request(1, acquire(200));
    }
    while bench.link.take(at(1)) {}
    bench.take_written();
    let denied = b"-NOPERM No permissions to access a key\r\n";
    // The fifty parts of the first extension leave more requests outstanding than the window allows.
    bench.receive_bytes(denied, 2);
    bench.link.take(at(3));
    assert_eq!(combined_key_counts(&bench.take_written()), [1; 50]);
    bench.receive_bytes(denied, 4);
    assert!(!bench.link.take(at(5)), "the window must be full");
    assert_eq!(bench.take_written(), "");
}

#[test]
fn no_request_is_taken_while_many_bytes_are_unwritten() {
    let mut bench = Bench::new();
    bench.greet(0);
    let long_key = vec![b'x'; 300 << 10];
    let request = Request::Status {
        key: long_key.into(),
    };
    bench.push_request(1, request);
    bench.link.take(at(1));
    bench.push_request(2, acquire(2));
    assert!(!bench.link.take(at(1)));
    assert!(!bench.take_written().contains(&*hex(2)));
    assert!(bench.link.take(at(2)));
    assert!(bench.take_written().contains(&*hex(2)));
}

#[test]
fn pending_releases_and_new_requests_fill_the_window_together() {
    let mut bench = Bench::new();
    bench.link.cut(Fault::Down("refused".into()), at(0));
    for _ in 0..1_000 {
        bench.push_request(0, release(1));
    }
    bench.link.tick(at(0));
    let now = bench.greet_again(0);
    for _ in 0..1_000 {
        bench.push_request(1, acquire(2));
    }
    bench.link.take(at(now));
    let written = bench.take_written();
    let sent_count = |n| written.matches(&*hex(n)).count();
    assert_eq!(sent_count(1) + sent_count(2), 512, "the first window");
    assert!(sent_count(1) > 0 && sent_count(2) > 0);
}

#[test]
fn queued_requests_are_refused_as_soon_as_the_master_stalls() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    bench.push_request(2, acquire(2));
    bench.link.tick(at(1 + NODE_TIMEOUT));
    assert_eq!(bench.recorded.kinds(), ["timeout", "stalled"]);
}

#[test]
fn messages_of_elections_and_wake_ups_are_not_taken_for_answers() {
    let mut bench = Bench::awaiting_subscription();
    bench.receive_bytes(b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n", 0);
    let key = b"job".as_slice();
    let push = |kind: &str, channel: &str| format!(">3\r\n+{kind}\r\n+{channel}\r\n+job\r\n");
    let leader_channel = format!("{LEADER_CHANNEL_PREFIX}job");
    let (woken, watching) = (Ok(Answer::Released(true)), Ok(Answer::Watching));
    for (on, kind) in [(true, "subscribe"), (false, "unsubscribe")] {
        let key = key.into();
        bench.push_request(1, Request::Watch { key, on });
        bench.link.take(at(1));
        assert!(bench.take_written().contains(&leader_channel));
        for (message, expected) in [
            (push("message", "x"), Some((5, woken.clone()))),
            (
                push("message", &leader_channel),
                Some((5, watching.clone())),
            ),
            (push("pmessage", "x"), None),
            (push(kind, &leader_channel), Some((1, watching.clone()))),
        ] {
            bench.receive_bytes(message.as_bytes(), 2);
            let received: Vec<_> = expected.into_iter().collect();
            assert_eq!(bench.recorded.take_all(), received, "{message}");
        }
    }
}

#[test]
fn only_an_unfenced_acquire_of_a_client_that_checks_markers_loads_another_script() {
    let unfenced = || Request::Acquire {
        claim: Arc::new(Claim::new("", b"r", Token::from_bytes([1; 16]), false)),
        ttl: Duration::from_secs(10),
        proposal: 0,
    };
    let list = || Request::List {
        page: Arc::new(Page {
            cursor: 0,
            pattern: b"*".as_slice().into(),
            count: 10,
        }),
    };
    let masters = Fingerprint::new(["master:6379"]);
    for (generation, request, load_count) in [
        (0, unfenced(), 0),
        (1, unfenced(), 1),
        (0, list(), 0),
        (1, list(), 0),
    ] {
        let mut changed = options(roster(&Arc::default()));
        Arc::get_mut(&mut changed)
            .expect("the options must not be shared yet")
            .configuration = Configuration::new(generation, masters, None);
        let mut bench = Bench::at("redis://master", changed);
        let marker = own_marker(&bench);
        greet_aged(&mut bench, ("a", &marker, "a 86400000 x"), 0);
        let case = format!("{generation} {request:?}");
        bench.push_request(1, request);
        bench.link.take(at(1));
        bench.link.take(at(1));
        let written = bench.take_written();
        assert!(!written.is_empty(), "{case}");
        assert_eq!(written.matches("LOAD").count(), load_count, "{case}");
    }
}

#[test]
fn combined_call_leaves_out_releases_with_notes_and_questions_about_other_locks() {
    let mut bench = bench_with_combined_scripts();
    let noted = release(2);
    if let Request::Release { claim, .. } = &noted {
        claim.take_note();
    }
    let key = claim(4).shared_key().clone();
    let status = Request::Status { key };
    for (number, request) in [release(1), noted, status, release(3)]
        .into_iter()
        .enumerate()
    {
        bench.push_request(number, request);
    }
    bench.link.take(at(2));
    assert_eq!(combined_key_counts(&bench.take_written()), [1, 1, 2]);
}
