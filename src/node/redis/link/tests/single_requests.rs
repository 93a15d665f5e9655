//! Tests of replies to single requests.

use super::*;

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
