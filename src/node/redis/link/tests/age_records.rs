//! Tests of the script that raises the age record and restores a lost generation marker.

use super::*;
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
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, ""), 0);
    bench.link.tick(at(0));
    assert_eq!(bench.take_written().matches("LOAD").count(), 1);
    bench.receive_bytes(b"-NOPERM no right to load\r\n", 0);
    bench.link.tick(at(999));
    assert_eq!(bench.take_written(), "", "the pause has not ended");
    load_age(&mut bench, 1_000);
    assert_eq!(take_age_calls(&mut bench, 1_000).len(), 1);
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
    bench.link.take(at(1));
    assert!(bench.take_written().contains("EVALSHA"));
    let young = b"-ERR quorate: age record too young by 29500\r\n";
    bench.receive_bytes(young, 2);
    let quarantined = |number, left| (number, Err(Fault::Quarantined(ms(left))));
    assert_eq!(bench.recorded.take_all(), [quarantined(1, 29_500)]);
    // The votes do not count until then, so the next acquire is not sent.
    bench.push_request(2, acquire(2));
    bench.link.take(at(3));
    assert_eq!(bench.recorded.take_all(), [quarantined(2, 29_499)]);
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

/// The master has lost the first marker of a replacement: the marker that the step `begin` writes.
#[test]
fn first_marker_of_a_replacement_is_restored_on_old_masters_only() {
    let name = Bench::new().shared.address.name().clone();
    for (old_masters, is_restored) in [(vec![name], true), (Vec::new(), false)] {
        let plain = Arc::into_inner(options(roster(&Arc::default())));
        let plain = plain.expect("the options are not shared");
        let [old, next] = ["master:6379", "next:6379"].map(|name| Fingerprint::new([name]));
        let options = NodeOptions {
            configuration: Configuration::new(0, old, Some(next)),
            markers: GenerationMarkers::new(1, old_masters),
            ..plain
        };
        let mut bench = Bench::at("redis://master", Arc::new(options));
        let marker = find_lost_marker(&mut bench);
        assert!(marker.starts_with("0 "), "{marker}");
        bench.take_written();
        bench.receive_bytes(SHA.as_bytes(), 2);
        let restored = if is_restored { marker.as_str() } else { "" };
        let call = ["a", "", "0", restored].map(str::to_owned);
        assert_eq!(take_age_calls(&mut bench, 2), [call]);
    }
}
