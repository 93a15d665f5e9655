//! Tests of the script that raises the age record and restores a lost generation marker.

use super::*;
use crate::node::actor::markers::LostMarker;
use crate::node::redis::refusal::server_fault;

/// A connection to a master that has lost its generation marker. The call that restores the marker was sent at time 2.
fn bench_that_restores() -> (Bench, [String; 4]) {
    let mut bench = Bench::new();
    let marker = find_lost_marker(&mut bench);
    bench.take_written();
    bench.receive_bytes(SHA.as_bytes(), 2);
    let restore = ["a", "", "0", &marker].map(str::to_owned);
    assert_eq!(
        take_age_calls(&mut bench, 2),
        std::slice::from_ref(&restore)
    );
    (bench, restore)
}

#[test]
fn lost_marker_is_restored_again_if_the_server_refused_the_first_call() {
    let (mut bench, restore) = bench_that_restores();
    bench.receive_bytes(b"-OOM command not allowed\r\n", 3);
    assert_eq!(take_age_calls(&mut bench, 1_002), [[""; 4]; 0]);
    assert_eq!(
        take_age_calls(&mut bench, 1_003),
        std::slice::from_ref(&restore)
    );
    // The server has lost the script: load it again, together with the call.
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 1_004);
    bench.link.tick(at(1_004));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 1, "{written}");
    assert_eq!(age_calls(&written), [restore]);
    bench.receive_bytes(format!("{SHA}{}", bulk("a 0 lost-x")).as_bytes(), 1_005);
    assert_eq!(bench.link.stage(), Stage::Transfer);
    assert_eq!(take_age_calls(&mut bench, 1_006), [[""; 4]; 0]);
}

#[test]
fn script_of_the_age_record_that_the_server_refused_is_loaded_again_after_a_pause() {
    let mut bench = bench_without_age_record();
    bench.link.tick(at(0));
    assert_eq!(bench.take_written().matches("LOAD").count(), 1);
    bench.receive_bytes(b"-NOPERM no right to load\r\n", 0);
    bench.link.tick(at(999));
    assert_eq!(bench.take_written(), "", "the pause has not ended");
    load_age(&mut bench, 1_000);
    assert_eq!(take_age_calls(&mut bench, 1_000).len(), 1);
}

#[test]
fn age_record_is_raised_again_only_after_the_reply_to_a_script_that_was_lost_and_loaded_again() {
    let mut bench = bench_without_age_record();
    load_age(&mut bench, 0);
    assert_eq!(take_age_calls(&mut bench, 2).len(), 1);
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 3);
    bench.link.tick(at(3));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 1, "{written}");
    assert_eq!(age_calls(&written).len(), 1);
    bench.receive_bytes(SHA.as_bytes(), 4);
    assert_eq!(take_age_calls(&mut bench, 4), [[""; 4]; 0]);
    bench.receive_bytes(bulk("a 0 x").as_bytes(), 5);
    assert_eq!(take_age_calls(&mut bench, 1_000).len(), 1);
}

#[test]
fn link_wakes_up_to_raise_the_age_record_unless_another_deadline_is_earlier() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, "a 20000 x"), 0);
    let raise_at = bench.link.wake_at().expect("the link is connected");
    assert!(raise_at > at(1 + NODE_TIMEOUT) && raise_at < at(2_000));
    bench.push_request(1, release(1));
    bench.link.take(at(1));
    assert_eq!(bench.link.wake_at(), Some(at(1 + NODE_TIMEOUT)));
}

#[test]
fn missing_right_to_the_age_record_is_logged() {
    for (refusal, is_logged) in [
        ("NOPERM No permissions to access a key", true),
        ("OOM command not allowed", false),
    ] {
        let mut bench = Bench::new();
        let marker = own_marker(&bench);
        greet_aged(&mut bench, ("a", &marker, "a 20000 x"), 0);
        load_age(&mut bench, 1_000);
        assert_eq!(take_age_calls(&mut bench, 1_000).len(), 1);
        bench.receive_bytes(format!("-{refusal}\r\n").as_bytes(), 1_001);
        let text = server_fault(refusal.as_bytes()).to_string();
        let would_log_now = bench.shared.repeats.should_log(&text, at(1_001)).is_some();
        assert_eq!(!would_log_now, is_logged, "{refusal}");
    }
}

#[test]
fn age_record_is_read_at_once_after_a_script_found_it_too_young() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    // The age is one day, so the client does not raise it.
    greet_aged(&mut bench, ("a", &marker, "a 86400000 x"), 0);
    bench.push_request(1, acquire(1));
    bench.push_request(2, acquire(2));
    bench.link.take(at(1));
    assert!(bench.take_written().contains("EVALSHA"));
    let young = "-ERR quorate: age record too young by";
    // The script rounds the time, so the second answer may name an earlier end. The latest end counts.
    bench.receive_bytes(format!("{young} 29500\r\n{young} 29499\r\n").as_bytes(), 2);
    let quarantined = |number, left| (number, Err(Fault::Quarantined(ms(left))));
    let refused = [quarantined(1, 29_500), quarantined(2, 29_499)];
    assert_eq!(bench.recorded.take_all(), refused);
    // The votes do not count until then, so the next acquire is not sent.
    bench.push_request(3, acquire(3));
    bench.link.take(at(3));
    assert_eq!(bench.recorded.take_all(), [quarantined(3, 29_499)]);
    load_age(&mut bench, 2);
    assert_eq!(take_age_calls(&mut bench, 2).len(), 1);
}

#[test]
fn age_of_a_connection_counts_from_its_handshake() {
    let mut bench = Bench::new();
    assert_eq!(bench.link.connection_age(at(3)), None);
    bench.greet(5);
    assert_eq!(bench.link.connection_age(at(12)), Some(ms(7)));
    bench.link.cut(Fault::Down("reset".into()), at(13));
    assert_eq!(bench.link.connection_age(at(14)), None);
}

#[test]
fn abandoned_link_has_ended() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.link.abandon();
    assert_eq!(bench.link.stage(), Stage::End);
    assert_eq!(bench.link.wake_at(), None);
}

/// Options of a client with this configuration. `old_masters` are the masters that a replacement removes.
pub(super) fn options_with(
    configuration: Configuration,
    old_masters: Vec<NodeName>,
) -> NodeOptions {
    let plain = Arc::into_inner(options(roster(&Arc::default())));
    NodeOptions {
        configuration,
        markers: GenerationMarkers::new(1, old_masters),
        ..plain.expect("the options are not shared")
    }
}

/// A link of a client with three masters.
fn bench_of_three_masters() -> Bench {
    let masters = Fingerprint::new(["master:6379"]);
    let options = NodeOptions {
        markers: GenerationMarkers::new(3, Vec::new()),
        ..options_with(Configuration::new(0, masters, None), Vec::new())
    };
    Bench::at("redis://master", Arc::new(options))
}

/// Connects a link to a master without a marker, while another master has the marker `text`. Returns the kinds of the
/// answers to an acquire, and the marker that the link restores.
fn restored_marker(options: NodeOptions, text: &str) -> (Vec<&'static str>, String) {
    let mut bench = Bench::at("redis://master", Arc::new(options));
    greet_as(&mut bench, "a", "", 0);
    show_marker(&bench, "other", text);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    let kinds = bench.recorded.kinds();
    assert!(bench.take_written().contains("LOAD"), "{text}");
    bench.receive_bytes(SHA.as_bytes(), 2);
    let mut calls = take_age_calls(&mut bench, 2).into_iter();
    let [.., restored] = calls.next().expect("the link must call the script");
    (kinds, restored)
}

#[test]
fn lost_marker_is_restored_only_by_a_client_without_a_name_that_it_admits() {
    let [old, next] = ["master:6379", "next:6379"].map(|name| Fingerprint::new([name]));
    let own_name = Bench::new().shared.address.name().clone();
    let step_0 = Configuration::new(0, old, None);
    let step_1 = Configuration::new(0, old, Some(next));
    let named = step_0.named(Some("shop"));
    let shop = named.name().expect("the name was set");
    for (configuration, old_masters, marker, restored) in [
        (step_0, vec![], format!("0 {old}"), Some(format!("0 {old}"))),
        // The name of a marker is left out.
        (
            step_0,
            vec![],
            format!("0 {old} {shop}"),
            Some(format!("0 {old}")),
        ),
        (named, vec![], format!("0 {old} {shop}"), None),
        // The masters have been replaced, so this marker does not admit the client.
        (step_0, vec![], format!("4 {next}"), None),
        // Only the old masters have had the first marker of a replacement, which the step `begin` writes.
        (step_1, vec![], format!("0 {old}"), None),
        (
            step_1,
            vec![own_name],
            format!("0 {old}"),
            Some(format!("0 {old}")),
        ),
        (
            step_1,
            vec![],
            format!("1 {next}"),
            Some(format!("1 {next}")),
        ),
    ] {
        let options = options_with(configuration, old_masters);
        let (kinds, text) = restored_marker(options, &marker);
        assert_eq!(kinds, ["quarantined"], "{configuration:?} {marker}");
        assert_eq!(
            text,
            restored.unwrap_or_default(),
            "{configuration:?} {marker}"
        );
    }
}

#[test]
fn lost_marker_is_restored_without_a_quarantine_if_the_restart_guard_is_off() {
    let masters = Fingerprint::new(["master:6379"]);
    let options = NodeOptions {
        restart_guard: RestartGuard::Off,
        ..options_with(Configuration::new(0, masters, None), Vec::new())
    };
    let marker = format!("0 {masters}");
    let (kinds, restored) = restored_marker(options, &marker);
    assert_eq!((kinds, restored), (Vec::new(), marker));
}

#[test]
fn lost_marker_is_restored_once_when_enough_masters_show_which_one_it_is() {
    let mut bench = bench_of_three_masters();
    let marker = own_marker(&bench);
    greet_as(&mut bench, "a", "", 0);
    let ask = |bench: &mut Bench, now| {
        bench.push_request(1, acquire(1));
        bench.link.take(at(now));
        assert_eq!(bench.recorded.kinds(), ["quarantined"]);
    };
    show_marker(&bench, "b", &marker);
    ask(&mut bench, 1);
    assert_eq!(bench.take_written().matches("LOAD").count(), 1);
    bench.receive_bytes(SHA.as_bytes(), 2);
    let call = |restored: &str| ["a", "", "0", restored].map(str::to_owned);
    assert_eq!(take_age_calls(&mut bench, 2), [call("")]);
    assert!(bench.shared.doubted_for().is_some());
    // The server has neither a marker nor an age record.
    bench.receive_bytes(b"$0\r\n\r\n", 3);
    ask(&mut bench, 4);
    assert_eq!(bench.take_written(), "", "nothing new is known");
    show_marker(&bench, "c", &marker);
    ask(&mut bench, 5);
    assert_eq!(age_calls(&bench.take_written()), [call(&marker)]);
    bench.receive_bytes(bulk("a 0 lost-x").as_bytes(), 6);
    ask(&mut bench, 7);
    assert_eq!(bench.take_written(), "", "the marker is restored");
    let raise = ["a", "lost-x", "994", ""].map(str::to_owned);
    assert_eq!(take_age_calls(&mut bench, 1_000), [raise]);
}

#[test]
fn restore_that_is_requested_during_a_call_of_the_script_follows_its_reply() {
    let mut bench = bench_of_three_masters();
    let marker = own_marker(&bench);
    greet_as(&mut bench, "a", "", 0);
    let call = |restored: &str| ["a", "", "0", restored].map(str::to_owned);
    for (name, now) in [("b", 1), ("c", 3)] {
        show_marker(&bench, name, &marker);
        bench.push_request(1, acquire(1));
        bench.link.take(at(now));
        let written = bench.take_written();
        if name == "b" {
            assert!(written.contains("LOAD"), "{written}");
            bench.receive_bytes(SHA.as_bytes(), 2);
            assert_eq!(take_age_calls(&mut bench, 2), [call("")]);
        } else {
            assert_eq!(written, "", "the first call is not answered yet");
        }
    }
    bench.receive_bytes(b"$0\r\n\r\n", 4);
    assert_eq!(take_age_calls(&mut bench, 4), [call(&marker)]);
}

#[test]
fn master_that_got_its_first_marker_after_the_handshake_is_trusted_at_once() {
    let (mut bench, _) = bench_that_restores();
    assert!(bench.shared.doubted_for().is_some());
    bench.receive_bytes(bulk("a 40000 x").as_bytes(), 3);
    assert!(bench.shared.doubted_for().is_none());
}

#[test]
fn votes_count_again_after_the_longest_of_two_waits() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, "a 20000 x"), 0);
    bench.push_request(1, release(1));
    bench.link.take(at(1));
    bench.receive_bytes(b"-ERR quorate: age record too young by 5\r\n", 2);
    bench.recorded.take_all();
    bench.push_request(2, acquire(2));
    bench.link.take(at(3));
    let quarantined = Err(Fault::Quarantined(ms(9_997)));
    assert_eq!(bench.recorded.take_all(), [(2, quarantined)]);
}

#[test]
fn handshake_records_whether_the_marker_of_a_master_admits_this_client() {
    let own = Bench::new();
    for (marker, lost) in [
        (own_marker(&own), LostMarker::Unknown),
        ("9 0123456789abcdef".to_owned(), LostMarker::Nothing),
    ] {
        let mut bench = bench_of_three_masters();
        greet_as(&mut bench, "a", &marker, 0);
        assert_eq!(bench.shared.options.markers.lost_marker(), lost, "{marker}");
    }
}

#[test]
fn votes_that_are_ignored_after_the_loss_of_a_marker_are_logged() {
    for (reply, now, is_logged) in [
        ("-OOM command not allowed\r\n", 29_999, true),
        ("-OOM command not allowed\r\n", 30_000, false),
        ("$10\r\na 0 lost-x\r\n", 3, true),
        // An operator wrote the marker after the handshake, so the votes count.
        ("$9\r\na 40000 x\r\n", 3, false),
    ] {
        let (mut bench, _) = bench_that_restores();
        bench.receive_bytes(reply.as_bytes(), now);
        let would_log_now = bench.shared.repeats.should_log("marker", at(now)).is_some();
        assert_eq!(!would_log_now, is_logged, "{reply} {now}");
    }
    // The age record is young, but the master has not lost its marker.
    let mut bench = bench_without_age_record();
    load_age(&mut bench, 0);
    assert_eq!(take_age_calls(&mut bench, 1).len(), 1);
    bench.receive_bytes(bulk("a 1 x").as_bytes(), 2);
    assert!(bench.shared.repeats.should_log("marker", at(2)).is_some());
}
