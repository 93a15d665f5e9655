//! Tests of replies that end a handshake.

use super::*;

/// Sends `replies` to the link as the replies to the handshake. Returns the fault that ends the handshake; empty if
/// none does.
fn fault_of_handshake(bench: &mut Bench, replies: &str, now: u64) -> String {
    bench.push_request(1, acquire(1));
    bench.receive_bytes(replies.as_bytes(), now);
    bench.link.tick(at(now));
    let answers = bench.recorded.take_all();
    assert_eq!(
        answers.is_empty(),
        bench.link.stage() == Stage::Transfer,
        "the request must fail together with the handshake: {answers:?}"
    );
    let faults = answers.into_iter().filter_map(|(_, answer)| answer.err());
    faults.map(|fault| fault.to_string()).collect()
}

/// The replies to the first message of a handshake, with another reply at `index`.
fn greeting_with(index: usize, reply: &str) -> String {
    let mut replies = GREETING;
    replies[index] = reply;
    replies.concat()
}

#[test]
fn handshake_ends_with_a_fault_that_names_the_bad_reply() {
    let push = ">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n";
    for (replies, expected) in [
        (push.to_owned(), "before the client subscribed"),
        (greeting_with(0, "+OK\r\n"), "HELLO"),
        (greeting_with(4, ":1\r\n"), "request Info is malformed"),
        (
            greeting_with(4, "-ERR unknown command 'INFO', with args\r\n"),
            "does not have the command INFO",
        ),
        (greeting_with(4, "-LOADING x\r\n"), "loading"),
        (
            greeting_with(4, &bulk("run_id:\r\nuptime_in_seconds:9\r\n")),
            "INFO does not contain run_id",
        ),
        (greeting_with(5, ":1\r\n"), "generation marker is malformed"),
        (greeting_with(6, ":1\r\n"), "is not a SHA1"),
        (greeting_with(6, "$3\r\nabc\r\n"), "is not a SHA1"),
        (greeting_with(14, "+OK\r\n"), "request Id is malformed"),
    ] {
        let mut bench = Bench::new();
        bench.link.dialed(at(0));
        bench.take_written();
        let fault = fault_of_handshake(&mut bench, &replies, 1);
        assert!(
            fault.contains(expected),
            "the fault must contain {expected:?}: {fault:?}"
        );
    }
}

#[test]
fn unreadable_age_record_ends_the_handshake_unless_another_program_wrote_the_key() {
    let no_right = format!("no right to the age record (ACL SETUSER <user> ~{AGE_KEY})");
    for (reply, expected) in [
        ("-WRONGTYPE Operation against a key\r\n", ""),
        ("-NOPERM No permissions to access a key\r\n", &*no_right),
        ("-LOADING x\r\n", "loading"),
        (":5\r\n", "age record is malformed"),
    ] {
        let mut bench = Bench::new();
        let marker = own_marker(&bench);
        bench.link.dialed(at(0));
        bench.take_written();
        bench.receive_bytes(greeting_with(5, &bulk(&marker)).as_bytes(), 0);
        assert!(bench.take_written().contains(AGE_KEY));
        let fault = fault_of_handshake(&mut bench, reply, 1);
        assert_eq!(fault.is_empty(), expected.is_empty(), "{reply}: {fault}");
        assert!(fault.contains(expected), "{reply}: {fault}");
        if expected.is_empty() {
            // A record of another type counts as no record.
            bench.link.take(at(2));
            assert_eq!(bench.recorded.kinds(), ["quarantined"]);
        }
    }
}

#[test]
fn server_that_closed_a_connection_is_probed_before_the_next_handshake() {
    for (reply, expected) in [
        ("_\r\n", ""),
        ("-NOPERM No permissions to access a key\r\n", ""),
        ("-NOAUTH Authentication required.\r\n", ""),
        (
            "-ERR max number of clients reached\r\n",
            "max number of clients reached",
        ),
    ] {
        let mut bench = Bench::new();
        bench.link.dialed(at(0));
        bench
            .link
            .cut(Fault::Down("connection closed".into()), at(1));
        let now = bench.redial(1);
        bench.take_written();
        bench.link.dialed(at(now));
        let probe = bench.take_written();
        assert!(probe.contains("GET") && !probe.contains("HELLO"), "{probe}");
        bench.receive_bytes(reply.as_bytes(), now);
        let is_continued = bench.take_written().contains("HELLO");
        assert_eq!(is_continued, expected.is_empty(), "{reply}");
        bench.push_request(1, acquire(1));
        bench.link.tick(at(now));
        let answers = bench.recorded.take_all();
        let fault = answers.into_iter().find_map(|(_, answer)| answer.err());
        let fault = fault.expect("requests are refused until the handshake is complete");
        assert!(fault.to_string().contains(expected), "{reply}: {fault}");
    }
}

/// A bench of a client whose masters have been replaced once, so all its scripts check the generation marker.
fn bench_at_generation_1() -> Bench {
    let mut changed = options(roster(&Arc::default()));
    let masters = Fingerprint::new(["master:6379"]);
    Arc::get_mut(&mut changed)
        .expect("the options must not be shared yet")
        .configuration = Configuration::new(1, masters, None);
    Bench::at("redis://master", changed)
}

#[test]
fn requests_of_a_client_whose_masters_are_not_opened_yet_are_left_to_the_scripts() {
    let mut bench = bench_at_generation_1();
    greet_aged(&mut bench, ("a", "0 0123456789abcdef", "a 40000 x"), 0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    assert_eq!(bench.recorded.kinds(), [""; 0]);
    assert!(bench.take_written().contains("EVALSHA"));
}

#[test]
fn client_without_the_right_to_read_the_marker_is_refused_only_if_it_must_check_the_marker() {
    let denied_marker = greeting_with(5, "-NOPERM No permissions to access a key\r\n");
    let mut bench = bench_at_generation_1();
    bench.link.dialed(at(0));
    bench.take_written();
    let fault = fault_of_handshake(&mut bench, &denied_marker, 1);
    assert!(fault.contains("NOPERM"), "{fault}");
    // The plain name shows operators that this client does not check the marker.
    let mut bench = Bench::new();
    bench.link.dialed(at(0));
    let plain_name = format!("\r\n{}\r\n", bench.shared.options.plain_name());
    assert!(!bench.take_written().contains(&plain_name));
    bench.receive_bytes(denied_marker.as_bytes(), 1);
    let written = bench.take_written();
    assert!(written.contains(&plain_name), "{written}");
    bench.receive_bytes(b"-NOPERM no name\r\n", 2);
    bench.push_request(1, acquire(1));
    assert!(bench.link.take(at(3)));
}

#[test]
fn scripts_that_check_the_marker_are_not_loaded_again_for_a_connection_without_a_name() {
    let mut bench = bench_at_generation_1();
    let marker = own_marker(&bench);
    bench.link.dialed(at(0));
    assert!(bench.take_written().contains("LOAD"));
    let mut replies = GREETING.map(str::to_owned);
    replies[3] = "-NOPERM no name\r\n".to_owned();
    replies[5] = bulk(&marker);
    bench.receive_bytes(replies.concat().as_bytes(), 1);
    let written = bench.take_written();
    assert!(
        written.contains(AGE_KEY) && !written.contains("LOAD"),
        "{written}"
    );
}
