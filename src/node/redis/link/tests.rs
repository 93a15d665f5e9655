//! Tests that call a link directly, without a socket, a clock or a task.

mod age_records;
mod connections;
mod handshake_faults;
mod single_requests;
mod warnings;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::keys::AGE_KEY;
use crate::node::GenerationMarkers;
use crate::node::actor::trust::Roster;
use crate::node::redis::address::Address;
use crate::node::redis::shared::NodeOptions;
use crate::node::{
    Answer, Claim, Class, Group, Mode, NewValue, NodeName, Part, Phase, Reply, ReplySink, Request,
    ServerRun, Subscriber, Token, WakeSink,
};
use crate::protocol::marker::{Admission, Configuration, Fingerprint, Marker};
use crate::runtime::Tokio;
use crate::settings::RestartGuard;

const NODE_TIMEOUT: u64 = 50;
const CONNECT_TIMEOUT: u64 = 500;

fn at(ms: u64) -> Instant {
    Instant::from_nanos((1_000 + ms) * 1_000_000)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Records the answers that callers get, in the order of arrival. Each entry has the number of the caller.
#[derive(Default)]
struct RecordedAnswers(Mutex<Vec<(usize, Result<Answer, Fault>)>>);

impl RecordedAnswers {
    fn record(&self, number: usize, answer: Result<Answer, Fault>) {
        let mut answers = self.0.lock().expect("the mutex must not be poisoned");
        answers.push((number, answer));
    }

    fn take_all(&self) -> Vec<(usize, Result<Answer, Fault>)> {
        std::mem::take(&mut *self.0.lock().expect("the mutex must not be poisoned"))
    }

    /// Takes the recorded answers. Returns the kind of each fault, for example `timeout`, or `answer` for a success.
    fn kinds(&self) -> Vec<&'static str> {
        let answer_kind =
            |answer: Result<Answer, Fault>| answer.err().map_or("answer", |f| f.kind());
        self.take_all()
            .into_iter()
            .map(|(_, answer)| answer_kind(answer))
            .collect()
    }
}

impl ReplySink for RecordedAnswers {
    fn answered(&self, number: usize, _: Phase, answer: Result<Answer, Fault>) {
        self.record(number, answer);
    }
}

impl WakeSink for RecordedAnswers {
    fn woken(&self, node: usize, _: &[u8]) {
        self.record(node, Ok(Answer::Released(true)));
    }

    fn announced(&self, node: usize, _: &[u8]) {
        self.record(node, Ok(Answer::Watching));
    }
}

/// A link under test. The test acts as the callers of the requests, and as the master at the other end of the
/// connection.
struct Bench {
    link: Link,
    shared: Arc<Shared>,
    recorded: Arc<RecordedAnswers>,
}

/// A roster whose clock shows the time at `ms` milliseconds.
fn roster(ms: &Arc<AtomicU64>) -> Roster {
    let ms = ms.clone();
    Roster::new(
        move || at(ms.load(Ordering::Relaxed)),
        Duration::from_secs(30),
    )
}

fn options(roster: Roster) -> Arc<NodeOptions> {
    Arc::new(NodeOptions {
        name: "host:1".into(),
        configuration: Configuration::new(0, Fingerprint::new(["master:6379"]), None),
        markers: GenerationMarkers::new(1, Vec::new()),
        node_timeout: ms(NODE_TIMEOUT),
        connect_timeout: ms(CONNECT_TIMEOUT),
        max_ttl: Duration::from_secs(30),
        restart_guard: RestartGuard::On,
        roster: roster.into(),
        runtime: Arc::new(Tokio::default()),
        dial: None,
        #[cfg(feature = "tls-rustls")]
        tls: None,
    })
}

impl Bench {
    fn new() -> Self {
        Self::at("redis://master", options(roster(&Arc::default())))
    }

    /// A link whose master has the number 5, and which passes wake-ups on.
    fn with_subscriber() -> Self {
        let bench = Self::new();
        let subscriber = Subscriber {
            process: "0123456789abcdef".into(),
            node: 5,
            sink: bench.recorded.clone(),
        };
        assert!(bench.shared.subscriber.set(subscriber).is_ok());
        bench
    }

    /// The same link after it has written its subscription, at time 0.
    fn awaiting_subscription() -> Self {
        let mut bench = Self::with_subscriber();
        bench.link.dialed(at(0));
        bench.take_written();
        bench.receive_bytes(GREETING.concat().as_bytes(), 0);
        bench
    }

    fn at(url: &str, options: Arc<NodeOptions>) -> Self {
        let address =
            Address::parse(url).unwrap_or_else(|bad| panic!("the address must be valid: {bad:?}"));
        let shared = Arc::new(Shared::new(address, options));
        Self {
            link: Link::new(shared.clone(), 7, at(0)),
            shared,
            recorded: Arc::default(),
        }
    }

    fn push_request(&self, number: usize, request: Request) {
        let reply = Reply::new(self.recorded.clone(), number, Phase::Acquire);
        let pushed = self.shared.mailbox.push(Queued::new(request, reply));
        assert!(pushed.is_ok(), "the mailbox must have room");
    }

    fn receive_bytes(&mut self, bytes: &[u8], now: u64) {
        let input = self.link.input();
        let room = input.room().expect("the input buffer must have room");
        room[..bytes.len()].copy_from_slice(bytes);
        input.add_received(bytes.len());
        self.link.receive(at(now));
    }

    /// Takes all bytes that the link wants to write, as a socket would do.
    fn take_written(&mut self) -> String {
        let output = self.link.output();
        let text = String::from_utf8_lossy(output.unwritten()).into_owned();
        output.mark_written(text.len());
        text
    }

    fn greet(&mut self, now: u64) {
        self.greet_with_replies(&GREETING, now);
    }

    fn greet_with_replies(&mut self, greeting: &[&str], now: u64) {
        assert_eq!(self.link.stage(), Stage::Dial);
        self.link.dialed(at(now));
        let written = self.take_written();
        let command = |line: &&str| {
            line.strip_prefix('*')
                .is_some_and(|n| n.parse::<u8>().is_ok())
        };
        let command_count = written.split("\r\n").filter(command).count();
        assert_eq!(
            command_count,
            greeting.len(),
            "the handshake must send one request for each reply of the greeting"
        );
        self.receive_bytes(greeting.concat().as_bytes(), now);
        // The link had a connection before, and closes that connection at the server with CLIENT KILL.
        if self.take_written().contains("KILL") {
            self.receive_bytes(b":0\r\n", now);
        }
    }

    /// Lets time pass from `now` until the link wants to connect, and completes the handshake of the new connection.
    /// Returns the time at which the handshake was completed.
    fn greet_again(&mut self, now: u64) -> u64 {
        let now = self.redial(now);
        self.greet(now);
        now
    }

    /// Lets time pass until the link wants to connect, and returns that time in milliseconds.
    fn redial(&mut self, mut now: u64) -> u64 {
        while self.link.stage() != Stage::Dial {
            now += 1;
            self.link.tick(at(now));
        }
        now
    }

    /// Calls `tick` for each millisecond from `from` to `to`.
    fn tick_through(&mut self, from: u64, to: u64) {
        for now in from..=to {
            self.link.tick(at(now));
        }
    }
}

const SHA: &str = "$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";

/// The server's replies to the first message of a handshake. The last reply is the client id.
const GREETING: [&str; 15] = [
    "%1\r\n+proto\r\n:3\r\n",
    "-ERR unknown subcommand\r\n",
    "-ERR unknown subcommand\r\n",
    "+OK\r\n",
    "$38\r\nrun_id:a\r\nuptime_in_seconds:99999999\r\n\r\n",
    "_\r\n",
    SHA,
    SHA,
    SHA,
    SHA,
    SHA,
    SHA,
    SHA,
    SHA,
    ":1\r\n",
];

fn claim(n: u8) -> Arc<Claim> {
    Arc::new(Claim::new("", &[b'r', n], Token::from_bytes([n; 16]), true))
}

fn acquire(n: u8) -> Request {
    Request::Acquire {
        claim: claim(n),
        ttl: Duration::from_secs(10),
        proposal: 1,
    }
}

fn release(n: u8) -> Request {
    Request::Release {
        claim: claim(n),
        leave: true,
    }
}

#[test]
fn requests_are_sent_in_order_and_answers_reach_their_callers() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.push_request(2, release(1));
    assert!(bench.link.take(at(1)));
    let written = bench.take_written();
    assert_eq!(written.matches("EVALSHA").count(), 2, "{written}");
    bench.receive_bytes(b":5\r\n:", 2);
    bench.receive_bytes(b"1\r\n", 3);
    let counter = Some(5);
    let granted_answer = (1, Ok(Answer::Granted { counter }));
    assert_eq!(
        bench.recorded.take_all(),
        [granted_answer, (2, Ok(Answer::Released(true)))]
    );
}

#[test]
fn request_answered_with_noscript_is_sent_again_together_with_the_scripts() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, release(1));
    assert!(bench.link.take(at(1)));
    bench.take_written();
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 2);
    // The master has lost its scripts. Send the request directly after the SCRIPT LOAD commands: while the link waited
    // for their replies, the master could lose the scripts a second time.
    bench.link.take(at(3));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 8, "{written}");
    assert_eq!(written.matches("EVALSHA").count(), 1, "{written}");
    bench.receive_bytes(SHA.repeat(8).as_bytes(), 4);
    bench.receive_bytes(b":1\r\n", 4);
    assert_eq!(bench.recorded.take_all(), [(1, Ok(Answer::Released(true)))]);
}

#[test]
fn scripts_that_plain_locks_do_not_need_are_loaded_on_first_use() {
    let mut bench = Bench::new();
    bench.greet(0);
    let part = Part {
        key: claim(1).shared_key().clone(),
        mode: Mode::Class(Class::Shared),
    };
    let fresh = Claim::new("", b"r", Token::from_bytes([1; 16]), true);
    let claim = Arc::new(fresh.with_group(Group::new(vec![part])));
    bench.push_request(
        1,
        Request::Release {
            claim: claim.clone(),
            leave: true,
        },
    );
    bench.link.take(at(1));
    bench.link.take(at(1));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 4, "{written}");
    assert!(
        !written.contains("EVALSHA"),
        "the request must wait until the server has returned the SHA1 names of the scripts"
    );
    bench.receive_bytes(SHA.repeat(4).as_bytes(), 2);
    bench.link.take(at(2));
    assert_eq!(bench.take_written().matches("EVALSHA").count(), 1);
    bench.receive_bytes(b":1\r\n", 3);
    bench.push_request(2, Request::Release { claim, leave: true });
    bench.link.take(at(4));
    assert!(
        !bench.take_written().contains("LOAD"),
        "the scripts must be loaded only once per connection"
    );
}

#[test]
fn only_the_first_request_to_an_unreachable_master_waits_for_the_connect_timeout() {
    let mut bench = Bench::new();
    bench.push_request(1, acquire(1));
    bench.tick_through(0, CONNECT_TIMEOUT - 1);
    assert_eq!(bench.recorded.kinds(), [""; 0]);
    bench.tick_through(CONNECT_TIMEOUT, CONNECT_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["down"]);
    for now in 0..4 {
        bench.push_request(2, acquire(2));
        bench.link.tick(at(CONNECT_TIMEOUT + now));
        assert_eq!(bench.recorded.kinds(), ["down"]);
    }
}

#[test]
fn server_is_taken_for_another_kind_until_a_connection_cannot_be_opened_for_another_reason() {
    let mut bench = Bench::new();
    let closed = || Fault::Down("connection closed".into());
    // The server closes the connection without an answer to the handshake.
    bench.link.dialed(at(0));
    bench.link.cut(closed(), at(1));
    assert!(bench.shared.may_be_of_another_kind());
    // The driver finds out that the server is of another kind, and must find out again at the next attempt.
    let now = bench.redial(1);
    let other_kind = Fault::Unsupported("a server of another kind".into());
    bench.link.cut(other_kind, at(now));
    assert!(bench.shared.may_be_of_another_kind());
    let now = bench.redial(now);
    bench.link.cut(closed(), at(now));
    assert!(!bench.shared.may_be_of_another_kind());
}

#[test]
fn connection_is_at_work_with_one_outstanding_request_and_out_of_room_with_two() {
    let mut bench = Bench::new();
    let work = |bench: &Bench| (bench.link.is_at_work(), bench.link.is_out_of_room());
    assert_eq!(work(&bench), (false, false), "without a connection");
    bench.greet(0);
    assert_eq!(work(&bench), (false, false));
    for (number, is_out_of_room) in [(1, false), (2, true)] {
        bench.push_request(number.into(), acquire(number));
        bench.link.take(at(1));
        assert_eq!(work(&bench), (true, is_out_of_room));
    }
}

#[test]
fn link_is_connecting_until_its_handshake_is_complete() {
    let mut bench = Bench::new();
    assert!(bench.link.is_connecting());
    bench.link.dialed(at(0));
    assert!(bench.link.is_connecting());
    bench.receive_bytes(GREETING.concat().as_bytes(), 0);
    assert!(!bench.link.is_connecting());
    bench.link.cut(Fault::Down("reset".into()), at(1));
    assert_eq!(bench.link.stage(), Stage::Pause);
    assert!(!bench.link.is_connecting(), "the link pauses");
}

#[test]
fn handshake_that_the_master_does_not_complete_times_out() {
    let mut bench = Bench::new();
    bench.push_request(1, acquire(1));
    bench.link.dialed(at(400));
    bench.receive_bytes(b"%1\r\n+proto\r\n:3\r\n", 450);
    bench.tick_through(450, 400 + CONNECT_TIMEOUT - 1);
    assert_eq!(bench.link.stage(), Stage::Transfer);
    bench.tick_through(400 + CONNECT_TIMEOUT, 400 + CONNECT_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["down"]);
    assert_eq!(bench.link.stage(), Stage::Pause);
}

/// Regression test: one connect timeout covered opening the connection and the whole handshake. On a busy machine,
/// clients reported masters as down although they were up.
#[test]
fn slow_handshake_that_makes_progress_does_not_time_out() {
    let mut bench = Bench::new();
    bench.push_request(1, acquire(1));
    // The task of the link first runs long after the link was created.
    bench.link.dialing(at(800));
    bench.tick_through(800, 1_200);
    bench.greet(1_200);
    assert_eq!(bench.recorded.kinds(), [""; 0]);
    assert!(bench.link.take(at(1_200)));
    assert!(bench.take_written().contains("EVALSHA"));

    let mut bench = Bench::with_subscriber();
    bench.push_request(1, acquire(1));
    bench.link.dialed(at(400));
    bench.tick_through(400, 800);
    bench.receive_bytes(GREETING.concat().as_bytes(), 800);
    assert!(bench.take_written().contains("SUBSCRIBE"));
    bench.tick_through(800, 800 + CONNECT_TIMEOUT - 1);
    assert_eq!(bench.recorded.kinds(), [""; 0]);
    bench.tick_through(800 + CONNECT_TIMEOUT, 800 + CONNECT_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["down"]);
}

#[test]
fn requests_end_within_the_node_timeout_if_the_master_disconnects_after_each_handshake() {
    let mut bench = Bench::new();
    let mut connections = 0;
    let mut worst = 0;
    let mut asked_at = None;
    for now in 0..4_000 {
        bench.link.tick(at(now));
        if bench.link.stage() == Stage::Dial {
            connections += 1;
            bench.greet(now);
            bench.link.take(at(now));
            bench
                .link
                .cut(Fault::Down("connection closed".into()), at(now + 1));
        }
        match asked_at {
            None => {
                bench.push_request(1, acquire(1));
                asked_at = Some(now);
                bench.link.tick(at(now));
            }
            Some(since) if !bench.recorded.take_all().is_empty() => {
                worst = worst.max(now - since);
                asked_at = None;
            }
            Some(_) => {}
        }
    }
    assert!(
        (10..60).contains(&connections),
        "the link must make 10 to 59 connections, but made {connections}"
    );
    assert!(
        worst <= NODE_TIMEOUT + 2,
        "a request may wait for one node timeout, but one waited for {worst} ms"
    );
}

#[test]
fn pending_releases_never_starve_requests() {
    let mut bench = Bench::new();
    // The link has no connection, so the 3,000 releases become pending.
    bench.link.cut(Fault::Down("refused".into()), at(0));
    for _ in 0..3_000 {
        bench.push_request(0, release(1));
    }
    bench.link.tick(at(0));
    assert_eq!(bench.recorded.kinds().len(), 3_000);
    let mut now = 0;
    for attempt in 0..5 {
        now = bench.greet_again(now);
        bench.push_request(1, acquire(2));
        bench.link.take(at(now));
        let written = bench.take_written();
        let proposals = written.matches("10000\r\n").count();
        assert_eq!(
            proposals, 1,
            "the acquire must be sent exactly once on connection {attempt}"
        );
        let release_position = written
            .find(&*hex(1))
            .expect("the releases must be sent as well");
        let acquire_position = written
            .find(&*hex(2))
            .expect("the acquire must be sent as well");
        assert!(
            release_position < acquire_position,
            "pending releases must be sent first"
        );
        bench
            .link
            .cut(Fault::Down("connection closed".into()), at(now));
        assert_eq!(bench.recorded.kinds(), ["disconnected"]);
    }
}

fn hex(n: u8) -> String {
    format!("{n:02x}").repeat(16)
}

#[test]
fn stalled_master_is_sent_nothing_until_it_answers() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(0));
    bench.take_written();
    bench.tick_through(1, NODE_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["timeout"]);
    bench.push_request(2, acquire(2));
    bench.link.take(at(60));
    assert_eq!(bench.recorded.kinds(), ["stalled"]);
    bench.receive_bytes(b":5\r\n", 70);
    bench.push_request(3, acquire(3));
    assert!(
        bench.link.take(at(71)),
        "the link must send requests after the stalled master has answered"
    );
    bench.tick_through(72, 121);
    assert_eq!(bench.recorded.kinds(), ["timeout"]);
    bench.tick_through(122, 620);
    assert_eq!(
        bench.link.stage(),
        Stage::Transfer,
        "the link must keep the same connection"
    );
    bench.tick_through(621, 622);
    assert_ne!(
        bench.link.stage(),
        Stage::Transfer,
        "the stalled connection must be abandoned"
    );
}

#[test]
fn stalled_master_is_sent_requests_again_when_no_answer_is_overdue() {
    for (answers, caught_up) in [(60, true), (89, true), (90, false)] {
        let mut bench = Bench::new();
        bench.greet(0);
        for (number, asked) in [(1, 0), (2, 40)] {
            bench.push_request(number.into(), acquire(number));
            bench.link.take(at(asked));
        }
        bench.tick_through(41, NODE_TIMEOUT);
        assert_eq!(bench.recorded.kinds(), ["timeout", "timeout"]);
        bench.receive_bytes(b":5\r\n", answers);
        bench.push_request(3, acquire(3));
        assert_eq!(
            bench.link.take(at(answers)),
            caught_up,
            "after an answer at {answers} ms"
        );
        let recorded: &[&str] = if caught_up { &[] } else { &["stalled"] };
        assert_eq!(
            bench.recorded.kinds(),
            recorded,
            "after an answer at {answers} ms"
        );
    }
}

#[test]
fn release_refused_with_a_temporary_error_is_sent_again() {
    for (says, again) in [
        ("-BUSY Redis is busy running a script\r\n", true),
        ("-LOADING Redis is loading the dataset in memory\r\n", true),
        ("-ERR something that will not change\r\n", false),
    ] {
        let mut bench = Bench::new();
        bench.greet(0);
        bench.push_request(1, release(1));
        bench.link.take(at(1));
        assert!(bench.take_written().contains(&*hex(1)));
        bench.receive_bytes(says.as_bytes(), 2);
        assert_eq!(bench.recorded.kinds().len(), 1);
        let mut sent_text = String::new();
        for now in 3..1_500 {
            bench.link.tick(at(now));
            bench.link.take(at(now));
            sent_text += &bench.take_written();
        }
        assert_eq!(
            sent_text.contains(&*hex(1)),
            again,
            "whether the release is sent again after {says}"
        );
    }
}

#[test]
fn requests_queued_for_too_long_are_refused_as_overloaded() {
    let mut bench = Bench::new();
    bench.greet(0);
    for _ in 0..1_000 {
        bench.push_request(
            1,
            Request::Status {
                key: b"job".as_slice().into(),
            },
        );
    }
    bench.link.take(at(0));
    bench.take_written();
    let refused_kinds = |bench: &Bench| {
        let kinds = bench.recorded.kinds();
        kinds.iter().filter(|kind| **kind == "overloaded").count()
    };
    let mut overloaded = 0;
    let mut gone_by = None;
    for now in 1..2_000 {
        // The master answers one request every 20 ms. This is too slow for 1,000 queued requests.
        if now % 20 == 0 && now < 1_000 {
            bench.receive_bytes(b"*3\r\n_\r\n:0\r\n_\r\n", now);
        }
        bench.link.take(at(now));
        bench.link.tick(at(now));
        overloaded += refused_kinds(&bench);
        if overloaded > 0 && gone_by.is_none() {
            gone_by = Some(now);
        }
    }
    // If the link refuses requests as overloaded, it must begin by `limit`: twice the longest wait in the queue.
    let queue_limit_ms = 2 * u64::from(MAX_QUEUE_TIMEOUTS) * NODE_TIMEOUT;
    assert!(
        gone_by.is_none_or(|by| by <= queue_limit_ms),
        "requests must be refused by {queue_limit_ms} ms, but were at {gone_by:?}"
    );
    let mut left_requests = Vec::new();
    bench.shared.mailbox.take(usize::MAX, &mut left_requests);
    assert!(
        left_requests.is_empty(),
        "every request must be answered, but {} are not",
        left_requests.len()
    );
}

#[test]
fn unexpected_or_malformed_reply_ends_the_connection() {
    for malformed in [
        &b"+PONG\r\n"[..],
        b"*2\r\n:1\r\n-ERR x\r\n",
        b"_\r\n",
        b"_junk\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ] {
        let mut bench = Bench::new();
        bench.greet(0);
        bench.push_request(1, acquire(1));
        bench.push_request(2, release(9));
        bench.link.take(at(0));
        bench.receive_bytes(malformed, 1);
        assert_ne!(
            bench.link.stage(),
            Stage::Transfer,
            "{}",
            malformed.escape_ascii()
        );
        let recorded = bench.recorded.take_all();
        assert!(
            recorded.iter().all(|(_, answer)| answer.is_err()),
            "every request must get a fault: {recorded:?}"
        );
        assert_eq!(recorded.len(), 2);
    }
}

#[test]
fn reply_without_an_outstanding_request_ends_the_connection() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.receive_bytes(b":1\r\n", 1);
    assert_ne!(bench.link.stage(), Stage::Transfer);
}

#[test]
fn extra_reply_in_a_handshake_ends_the_connection() {
    let mut bench = Bench::new();
    bench.link.dialed(at(0));
    bench.receive_bytes(format!("{}:1\r\n", GREETING.concat()).as_bytes(), 1);
    assert_ne!(bench.link.stage(), Stage::Transfer);
    bench.push_request(1, acquire(1));
    bench.link.tick(at(2));
    assert_eq!(bench.recorded.kinds(), ["server_error"]);
}

#[test]
fn silent_connection_is_pinged_and_closed_if_the_ping_is_not_answered() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.tick_through(0, 1_999);
    assert_eq!(bench.take_written(), "");
    bench.tick_through(2_000, 2_001);
    assert_eq!(bench.take_written(), "*1\r\n$4\r\nPING\r\n");
    bench.receive_bytes(b"+PONG\r\n", 2_010);
    bench.tick_through(2_010, 4_009);
    assert_eq!(bench.take_written(), "", "the reply ends the idle time");
    bench.tick_through(4_010, 4_100);
    assert_eq!(bench.take_written(), "*1\r\n$4\r\nPING\r\n");
    bench.tick_through(4_100, 4_800);
    assert_ne!(
        bench.link.stage(),
        Stage::Transfer,
        "a connection whose PING is not answered must be abandoned"
    );
}

#[test]
fn wake_ups_between_replies_reach_the_subscriber() {
    let mut bench = Bench::awaiting_subscription();
    let written = bench.take_written();
    assert!(
        written.contains("quorate:wake:0123456789abcdef"),
        "the link must subscribe to the channel of its process: {written}"
    );
    // The first wake-up may arrive directly after the reply to the subscription.
    bench.receive_bytes(
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n>3\r\n+message\r\n$1\r\nx\r\n$3\r\njob\r\n",
        1,
    );
    assert_eq!(bench.recorded.take_all(), [(5, Ok(Answer::Released(true)))]);
    bench.push_request(1, release(1));
    bench.link.take(at(2));
    bench.receive_bytes(b">3\r\n+message\r\n$1\r\nx\r\n$3\r\njob\r\n:0\r\n", 3);
    assert_eq!(bench.recorded.take_all().len(), 2);
}

fn write(until: u64, run: Option<&str>) -> Request {
    Request::Write {
        claim: claim(1),
        token: 7,
        value: Arc::new(NewValue {
            bytes: Some(Arc::from(&b"3"[..])),
            until: at(until),
            run: run.map(ServerRun::new),
        }),
    }
}

/// Queues a write, lets the link take it from the mailbox, and loads the two scripts for stored values.
fn take_write(bench: &mut Bench, request: Request) {
    bench.greet(0);
    bench.push_request(1, request);
    assert!(
        bench.link.take(at(1)),
        "`take` must return true: more requests may be queued"
    );
    bench.link.take(at(1));
    assert!(bench.take_written().contains("LOAD"));
    bench.receive_bytes(SHA.repeat(2).as_bytes(), 2);
}

#[test]
fn outstanding_write_is_never_sent_again() {
    let mut bench = Bench::new();
    take_write(&mut bench, write(10_000, Some("a")));
    bench.link.take(at(3));
    // The stored text consists of the fencing number 7, the server run `a`, and the bytes `3`.
    let written = bench.take_written();
    assert!(
        written.ends_with("\r\n7\r\n$1\r\na\r\n$1\r\n3\r\n"),
        "the write must be sent: {written}"
    );
    bench.link.cut(Fault::Down("closed".into()), at(4));
    assert_eq!(bench.recorded.kinds(), ["disconnected"]);
    let now = bench.greet_again(4);
    bench.link.take(at(now));
    assert_eq!(bench.take_written(), "");
}

#[test]
fn value_write_whose_deadline_has_passed_is_not_sent() {
    let mut bench = Bench::new();
    take_write(&mut bench, write(3, None));
    bench.link.take(at(3));
    assert_eq!(bench.take_written(), "");
    assert_eq!(bench.recorded.kinds(), ["withdrawn"]);
}

#[test]
fn value_write_is_not_sent_if_the_server_restarted_after_the_read() {
    for (run, withdrawn, sent) in [
        (Some("a"), false, true),
        // The write names the server run of the preceding read. It is sent even if its claim was withdrawn.
        (Some("a"), true, true),
        (Some("b"), false, false),
        (None, false, true),
        (None, true, false),
    ] {
        let mut bench = Bench::new();
        let request = write(10_000, run);
        if let (Request::Write { claim, .. }, true) = (&request, withdrawn) {
            claim.withdraw();
        }
        take_write(&mut bench, request);
        bench.link.take(at(3));
        assert_eq!(
            !bench.take_written().is_empty(),
            sent,
            "{run:?} {withdrawn}"
        );
        assert_eq!(
            bench.recorded.kinds().is_empty(),
            sent,
            "{run:?} {withdrawn}"
        );
    }
}

#[test]
fn second_address_of_the_same_server_is_refused() {
    let options = options(roster(&Arc::default()));
    let mut first_bench = Bench::at("redis://127.0.0.1", options.clone());
    let mut second_bench = Bench::at("redis://[::1]", options);
    first_bench.greet(0);
    second_bench.push_request(1, acquire(1));
    second_bench.greet(0);
    let recorded = second_bench.recorded.take_all();
    let same_server = Fault::SameServer("127.0.0.1:6379".into());
    assert_eq!(recorded, [(1, Err(same_server.clone()))]);
    assert!(
        same_server.to_string().contains("127.0.0.1:6379"),
        "the fault must name the first address: {same_server}"
    );
    // The first connection is lost, but the link to the second address is still refused. The server may already have
    // voted at its first address, and must not vote twice.
    first_bench
        .link
        .cut(Fault::Down("connection closed".into()), at(1));
    let now = second_bench.greet_again(1);
    second_bench.push_request(2, acquire(1));
    second_bench.link.tick(at(now));
    assert_eq!(second_bench.recorded.take_all(), [(2, Err(same_server))]);
}

#[test]
fn exchanged_addresses_of_two_masters_vote_again_after_max_ttl() {
    let clock = Arc::new(AtomicU64::new(0));
    let options = options(roster(&clock));
    let mut first_bench = Bench::at("redis://127.0.0.1", options.clone());
    let mut second_bench = Bench::at("redis://[::1]", options);
    let connection_closed = || Fault::Down("connection closed".into());
    greet_as(&mut first_bench, "a", "", 0);
    greet_as(&mut second_bench, "b", "", 0);
    // The proxies in front of both masters are exchanged. The first address connects before the second one has noticed.
    first_bench.link.cut(connection_closed(), at(1));
    let mut now = first_bench.redial(1);
    greet_as(&mut first_bench, "b", "", now);
    first_bench.push_request(1, acquire(1));
    first_bench.link.tick(at(now));
    assert_eq!(first_bench.recorded.kinds(), ["same_server"]);
    second_bench.link.cut(connection_closed(), at(now));
    now = second_bench.redial(now);
    clock.store(now, Ordering::Relaxed);
    greet_as(&mut second_bench, "a", "", now);
    second_bench.push_request(1, acquire(1));
    second_bench.link.take(at(now));
    assert_eq!(
        second_bench.recorded.kinds(),
        ["quarantined"],
        "the server a must not vote twice"
    );
    let repeats = &second_bench.shared.repeats;
    assert!(repeats.should_log("moved", at(now)).is_none());
    now = first_bench.redial(now);
    clock.store(now, Ordering::Relaxed);
    greet_as(&mut first_bench, "b", "", now);
    first_bench.push_request(2, acquire(2));
    first_bench.link.take(at(now));
    assert_eq!(
        first_bench.recorded.kinds(),
        ["quarantined"],
        "the server b must not vote twice"
    );
    for bench in [&mut first_bench, &mut second_bench] {
        bench.take_written();
        bench.push_request(3, acquire(3));
        bench.link.take(at(now + 30_000));
        assert!(
            bench.take_written().contains("EVALSHA"),
            "both masters must vote again after max_ttl: {:?}",
            bench.recorded.kinds()
        );
    }
}

/// The uptime of a Redis server is negative after its clock was set back.
#[test]
fn master_with_a_negative_uptime_votes_max_ttl_after_the_first_contact() {
    let mut bench = Bench::new();
    let info = "run_id:a\r\nuptime_in_seconds:-7200\r\n";
    greet_with(&mut bench, info, "", 0);
    bench.push_request(1, acquire(1));
    bench.push_request(2, release(1));
    bench.link.take(at(1));
    let recorded = bench.recorded.take_all();
    let [(1, Err(Fault::Quarantined(left)))] = &recorded[..] else {
        panic!("the vote must be withheld, but the release must be sent: {recorded:?}");
    };
    assert_eq!(*left, ms(29_999));
    assert!(bench.take_written().contains("EVALSHA"));
    bench.receive_bytes(b":1\r\n", 2);
    // A later connection to the same run of the server does not begin the time again.
    bench
        .link
        .cut(Fault::Down("connection closed".into()), at(20_000));
    let now = bench.redial(20_000);
    greet_with(&mut bench, info, "", now);
    bench.recorded.take_all();
    bench.push_request(3, acquire(3));
    bench.link.take(at(29_999));
    assert_eq!(bench.recorded.kinds(), ["quarantined"]);
    bench.push_request(4, acquire(4));
    bench.link.take(at(30_000));
    assert!(
        bench.take_written().contains("EVALSHA"),
        "the votes must count again"
    );
    assert!(bench.recorded.kinds().is_empty());
    // After a restart, the time begins again.
    bench
        .link
        .cut(Fault::Down("connection closed".into()), at(40_000));
    let now = bench.redial(40_000);
    greet_with(
        &mut bench,
        "run_id:b\r\nuptime_in_seconds:-7200\r\n",
        "",
        now,
    );
    bench.recorded.take_all();
    bench.push_request(5, acquire(5));
    bench.link.take(at(now + 29_999));
    assert_eq!(bench.recorded.kinds(), ["quarantined"]);
}

#[test]
fn link_with_a_dropped_handle_ends_after_the_answer_to_its_pending_release() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, release(1));
    bench.shared.mailbox.close();
    bench.link.take(at(0));
    bench.link.settle(at(0));
    assert_eq!(
        bench.link.stage(),
        Stage::Transfer,
        "the link must wait for the answer to the release"
    );
    bench.receive_bytes(b":1\r\n", 1);
    bench.link.settle(at(1));
    assert_eq!(bench.link.stage(), Stage::End);
    assert_eq!(bench.link.wake_at(), None);
}

#[test]
fn link_whose_handle_was_dropped_ends_after_one_second_without_a_connection() {
    let mut bench = Bench::new();
    bench.link.cut(Fault::Down("refused".into()), at(0));
    bench.push_request(1, release(1));
    bench.shared.mailbox.close();
    bench.tick_through(0, 999);
    assert_ne!(
        bench.link.stage(),
        Stage::End,
        "the link must not end while a release is pending"
    );
    bench.tick_through(1_000, 1_001);
    assert_eq!(bench.link.stage(), Stage::End);
}

#[test]
fn dropped_link_answers_outstanding_and_queued_requests_with_a_fault() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    bench.push_request(2, acquire(2));
    drop(bench.link);
    let why = "the connection to the master was shut down";
    let outstanding_answer = (1, Err(Fault::Disconnected(why.into())));
    let queued_answer = (2, Err(Fault::Down(why.into())));
    assert_eq!(
        bench.recorded.take_all(),
        [outstanding_answer, queued_answer]
    );
}

#[test]
fn subscription_error_ends_the_handshake_unless_the_client_can_poll_instead() {
    for (refusal, continues) in [
        ("-NOPERM No permissions to access a channel\r\n", true),
        ("-ERR unknown command 'SUBSCRIBE', with args\r\n", true),
        ("-ERR something else\r\n", false),
    ] {
        let mut bench = Bench::awaiting_subscription();
        bench.receive_bytes(refusal.as_bytes(), 1);
        bench.push_request(1, acquire(1));
        assert_eq!(
            bench.link.take(at(2)),
            continues,
            "whether the link works after {refusal}"
        );
    }
}

#[test]
fn link_wakes_up_at_its_next_deadline() {
    let mut bench = Bench::new();
    assert_eq!(bench.link.wake_at(), Some(at(CONNECT_TIMEOUT)));
    bench.greet(0);
    assert_eq!(
        bench.link.wake_at(),
        Some(at(2_000)),
        "the link must wake up for the next PING"
    );
    for (number, asked) in [(1, 10), (2, 20)] {
        bench.push_request(number.into(), acquire(number));
        bench.link.take(at(asked));
    }
    assert_eq!(bench.link.wake_at(), Some(at(10 + NODE_TIMEOUT)));
    bench.receive_bytes(b":5\r\n", 30);
    assert_eq!(bench.link.wake_at(), Some(at(20 + NODE_TIMEOUT)));
    bench.link.tick(at(70));
    assert_eq!(
        bench.link.wake_at(),
        Some(at(70 + 500)),
        "the link must wake up in time to abandon the stalled connection"
    );
    bench.link.tick(at(569));
    assert_eq!(bench.link.stage(), Stage::Transfer);
    bench.link.tick(at(570));
    assert_eq!(bench.link.stage(), Stage::Pause);
    let retry_pause = bench
        .link
        .wake_at()
        .expect("the link must wake up after a pause");
    assert!(retry_pause > at(570) && retry_pause <= at(570 + 150));
    // If the master refuses a release with BUSY, the link wakes up to send the release again before the next PING.
    let mut busy_bench = Bench::new();
    busy_bench.greet(0);
    busy_bench.push_request(1, release(1));
    busy_bench.link.take(at(1));
    busy_bench.receive_bytes(b"-BUSY Redis is busy running a script\r\n", 2);
    let again = busy_bench
        .link
        .wake_at()
        .expect("the link must wake up to send the refused release again");
    assert!(again > at(2) && again < at(2_002));
}

#[test]
fn link_wakes_up_at_most_one_second_after_its_handle_was_dropped() {
    let mut bench = Bench::new();
    bench.link.cut(Fault::Down("refused".into()), at(0));
    bench.push_request(1, release(1));
    bench.shared.mailbox.close();
    bench.tick_through(0, 990);
    let woken = bench
        .link
        .wake_at()
        .expect("a link with a pending release must have a wake-up time");
    assert!(
        woken > at(990) && woken <= at(1_001),
        "the link must wake up one second after its handle was dropped, not at {woken:?}"
    );
}

#[test]
fn requests_wait_for_a_reconnect_only_if_no_wait_began_in_the_last_second() {
    let mut bench = Bench::new();
    bench.greet(0);
    // Requests began to wait for a connection at time 0, less than a second ago. So a new request does not wait.
    bench.link.cut(Fault::Down("reset".into()), at(999));
    bench.push_request(1, acquire(1));
    bench.link.tick(at(999));
    assert_eq!(bench.recorded.kinds(), ["down"]);
    let mut bench = Bench::new();
    bench.greet(0);
    bench.link.cut(Fault::Down("reset".into()), at(1_000));
    // The link opens a new connection immediately. The master never accepts it.
    assert_eq!(bench.link.stage(), Stage::Dial);
    bench.push_request(2, acquire(2));
    bench.tick_through(1_000, 1_000 + NODE_TIMEOUT - 1);
    assert_eq!(bench.recorded.kinds(), [""; 0]);
    assert_eq!(bench.link.wake_at(), Some(at(1_000 + NODE_TIMEOUT)));
    bench.tick_through(1_000 + NODE_TIMEOUT, 1_000 + NODE_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["down"]);
    // The connection was closed because an answer was overdue: requests do not wait for the next connection.
    let mut bench = Bench::new();
    bench.greet(0);
    bench.link.cut(Fault::Stalled, at(1_000));
    bench.push_request(3, acquire(3));
    bench.link.tick(at(1_000));
    assert_eq!(bench.recorded.kinds(), ["stalled"]);
}

/// Regression test: the master accepted connections and never answered, and each new request waited for a whole connect
/// timeout.
#[test]
fn request_during_a_long_handshake_is_refused_within_its_node_timeout() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.link.cut(Fault::Down("reset".into()), at(1_000));
    bench.link.dialed(at(1_001));
    assert_eq!(bench.link.stage(), Stage::Transfer);
    let given_up_at = 1_000 + NODE_TIMEOUT;
    bench.link.tick(at(given_up_at));
    bench.push_request(1, acquire(1));
    bench.link.take(at(given_up_at + 1));
    assert_eq!(bench.recorded.kinds(), ["down"]);
}

#[test]
fn outstanding_requests_never_exceed_the_window() {
    let mut bench = Bench::new();
    bench.greet(0);
    for _ in 0..3_000 {
        bench.push_request(1, acquire(1));
    }
    let mut sent_count = 0;
    while bench.link.take(at(1)) {
        sent_count += bench.take_written().matches("EVALSHA").count();
    }
    assert!(
        (1..3_000).contains(&sent_count),
        "some requests must be sent, but not all: {sent_count}"
    );
    assert!(!bench.link.take(at(1)));
    assert_eq!(bench.take_written(), "");
    bench.receive_bytes(b":5\r\n:5\r\n", 2);
    while bench.link.take(at(2)) {}
    // Each answer makes room for one more request. A fast answer also raises the limit on outstanding requests.
    let more = bench.take_written().matches("EVALSHA").count();
    assert_eq!(more, 4);
    // The same applies to the requests of a combined call.
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 3, 2);
    bench.receive_bytes(b"$3\r\n111\r\n", 3);
    for _ in 0..3_000 {
        bench.push_request(1, acquire(1));
    }
    while bench.link.take(at(4)) {}
    let widened_count = bench.take_written().matches("EVALSHA").count();
    assert_eq!(widened_count, sent_count + 2 + 3);
}

#[test]
fn stalled_connection_with_a_long_node_timeout_is_replaced_after_four_node_timeouts() {
    let mut slow = options(roster(&Arc::default()));
    Arc::get_mut(&mut slow)
        .expect("the options must not be shared yet")
        .node_timeout = ms(200);
    let mut bench = Bench::at("redis://master", slow);
    bench.greet(0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(0));
    bench.link.tick(at(200));
    assert_eq!(bench.link.wake_at(), Some(at(200 + 4 * 200)));
    bench.link.tick(at(999));
    assert_eq!(bench.link.stage(), Stage::Transfer);
    bench.link.tick(at(1_000));
    assert_ne!(bench.link.stage(), Stage::Transfer);
}

/// Requests left in an old connection must not be executed after requests of a new connection.
#[test]
fn new_connection_kills_the_previous_connection_by_client_id() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.link.cut(Fault::Down("reset".into()), at(2_000));
    bench.link.dialed(at(2_001));
    bench.take_written();
    bench.receive_bytes(GREETING.concat().as_bytes(), 2_002);
    let written = bench.take_written();
    let words: Vec<&str> = written.split("\r\n").collect();
    let kill_index = words.iter().position(|word| *word == "KILL");
    let kill_position = kill_index.unwrap_or_else(|| panic!("the link must send KILL: {written}"));
    assert_eq!(
        (words[kill_position + 2], words[kill_position + 4]),
        ("ID", "1"),
        "{written}"
    );
    // The server must answer KILL before the link takes requests from the mailbox.
    bench.push_request(1, acquire(1));
    assert!(!bench.link.take(at(2_003)));
    bench.receive_bytes(b":1\r\n", 2_004);
    assert!(bench.link.take(at(2_005)));
}

/// Completes a handshake with a server whose run id is `run`, whose generation marker is `marker`, and whose uptime is
/// long. The server has no age record.
fn greet_as(bench: &mut Bench, run: &str, marker: &str, now: u64) {
    let info = format!("run_id:{run}\r\nuptime_in_seconds:99999999\r\n");
    greet_with(bench, &info, marker, now);
}

/// Completes a handshake with a server that replies to INFO with `info`, and whose generation marker is `marker`.
fn greet_with(bench: &mut Bench, info: &str, marker: &str, now: u64) {
    greet_fully(bench, info, (marker, ""), now);
}

/// Completes a handshake with a server whose uptime is long. Returns the second message of the handshake.
fn greet_aged(bench: &mut Bench, (run, marker, record): (&str, &str, &str), now: u64) -> String {
    let info = format!("run_id:{run}\r\nuptime_in_seconds:99999999\r\n");
    greet_fully(bench, &info, (marker, record), now)
}

/// Completes a handshake with a server that replies to INFO with `info`, and that has this generation marker and this age
/// record. Returns the second message of the handshake.
fn greet_fully(bench: &mut Bench, info: &str, (marker, record): (&str, &str), now: u64) -> String {
    bench.link.dialed(at(now));
    bench.take_written();
    let info = format!("${}\r\n{info}\r\n", info.len());
    let mut replies = GREETING.map(str::to_owned);
    (replies[4], replies[5]) = (info, bulk(marker));
    bench.receive_bytes(replies.concat().as_bytes(), now);
    let written = bench.take_written();
    if written.contains(AGE_KEY) {
        bench.receive_bytes(bulk(record).as_bytes(), now);
    }
    if written.contains("KILL") {
        bench.receive_bytes(b":0\r\n", now);
    }
    written
}

/// A bulk string as the server writes it; null for an empty text.
fn bulk(text: &str) -> String {
    match text {
        "" => "_\r\n".to_owned(),
        text => format!("${}\r\n{text}\r\n", text.len()),
    }
}

/// The generation marker that admits the client of a bench.
fn own_marker(bench: &Bench) -> String {
    let mut markers = bench.shared.options.configuration.markers();
    markers.next().expect("a marker").to_string()
}

/// A bench that is connected to a server without an age record.
fn bench_without_age_record() -> Bench {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, ""), 0);
    bench
}

/// The arguments of the calls of the script that raises the age record, in the written bytes. The new life is left out.
fn age_calls(written: &str) -> Vec<[String; 4]> {
    let calls = written.split("EVALSHA\r\n").skip(1);
    let arguments = calls.map(|call| {
        let words: Vec<&str> = call.split("\r\n").collect();
        // The words are the digest, the number of keys, and the arguments, each after its length.
        let word_at = |at: usize| words[2 * at + 1].to_owned();
        assert_eq!(word_at(1), "0", "the script takes no key: {call}");
        assert_eq!(word_at(5).len(), 16, "the new life: {call}");
        [word_at(2), word_at(3), word_at(4), word_at(6)]
    });
    arguments.collect()
}

/// Lets the link load the script that raises the age record, which is due at `now`.
fn load_age(bench: &mut Bench, now: u64) {
    bench.link.tick(at(now));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 1, "{written}");
    bench.receive_bytes(SHA.as_bytes(), now);
}

fn take_age_calls(bench: &mut Bench, now: u64) -> Vec<[String; 4]> {
    bench.link.tick(at(now));
    age_calls(&bench.take_written())
}

#[test]
fn master_with_a_marker_votes_after_clients_have_watched_its_run_for_the_longest_ttl() {
    for (record, left) in [
        ("", 30_000),
        ("other 86400000 x", 30_000),
        ("a 0 x", 30_000),
        ("a 20000 x", 10_000),
        ("a 20000 lost-x", 10_000),
        ("a 30000 x", 0),
        ("junk", 30_000),
    ] {
        let mut bench = Bench::new();
        let marker = own_marker(&bench);
        let asked = greet_aged(&mut bench, ("a", &marker, record), 0);
        assert!(asked.contains("GET"), "{asked}");
        if left > 0 {
            bench.push_request(1, acquire(1));
            bench.link.take(at(left - 1));
            assert_eq!(bench.recorded.kinds(), ["quarantined"], "{record}");
        }
        bench.push_request(2, acquire(1));
        bench.link.take(at(left));
        assert_eq!(bench.recorded.take_all(), [], "{record}");
    }
}

#[test]
fn connected_client_raises_the_age_record_to_the_time_that_it_has_watched() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, ""), 0);
    load_age(&mut bench, 0);
    let age_call = |attempt: &str, age: &str| ["a", attempt, age, ""].map(str::to_owned);
    assert_eq!(take_age_calls(&mut bench, 2), [age_call("", "2")]);
    bench.receive_bytes(bulk("a 2 x").as_bytes(), 3);
    // A thirty-second part of 30 s later.
    assert_eq!(take_age_calls(&mut bench, 3 + 937), [[""; 4]; 0]);
    assert_eq!(take_age_calls(&mut bench, 3 + 938), [age_call("x", "940")]);
    // Another client has raised the age further.
    bench.receive_bytes(bulk("a 40000 x").as_bytes(), 1_000);
    assert_eq!(take_age_calls(&mut bench, 10_999), [[""; 4]; 0]);
    assert_eq!(take_age_calls(&mut bench, 11_000), [age_call("x", "50000")]);
    bench.receive_bytes(bulk("a 50000 x").as_bytes(), 11_000);
    // The client counts on if it connects to the same run again.
    bench.link.cut(Fault::Down("reset".into()), at(12_000));
    let now = bench.redial(12_000);
    greet_aged(&mut bench, ("a", &marker, "a 50000 x"), now);
    load_age(&mut bench, 60_000);
    assert_eq!(take_age_calls(&mut bench, 60_000), [age_call("x", "99000")]);
    bench.receive_bytes(bulk("a 86400000 x").as_bytes(), 60_000);
    for hour in 1..100 {
        let now = 60_000 + hour * 3_600_000;
        assert_eq!(
            take_age_calls(&mut bench, now),
            [[""; 4]; 0],
            "no age above one day"
        );
        bench.receive_bytes(b"+PONG\r\n", now);
    }
}

/// Somebody has emptied the server without restarting it. Another client has restored the marker and started a new age
/// record.
#[test]
fn client_counts_from_the_new_age_record_of_a_server_that_was_emptied() {
    let mut bench = Bench::new();
    let marker = own_marker(&bench);
    greet_aged(&mut bench, ("a", &marker, "a 40000 x"), 0);
    load_age(&mut bench, 10_000);
    assert_eq!(take_age_calls(&mut bench, 10_000)[0][1..3], ["x", "50000"]);
    bench.receive_bytes(bulk("a 5 lost-y").as_bytes(), 10_000);
    bench.push_request(1, acquire(1));
    bench.link.take(at(10_001));
    assert_eq!(bench.recorded.kinds(), ["quarantined"]);
    assert_eq!(
        take_age_calls(&mut bench, 11_000)[0][1..3],
        ["lost-y", "1005"]
    );
    // The server has no marker at all: the next handshake notices this.
    bench.receive_bytes(b"$0\r\n\r\n", 11_000);
    assert_eq!(take_age_calls(&mut bench, 12_999), [[""; 4]; 0]);
}

#[test]
fn refused_raise_of_the_age_record_is_repeated_after_a_pause() {
    let mut bench = bench_without_age_record();
    load_age(&mut bench, 0);
    assert_eq!(take_age_calls(&mut bench, 0).len(), 1);
    bench.receive_bytes(b"-OOM command not allowed\r\n", 1);
    assert!(bench.link.wake_at() >= Some(at(1_001)));
    assert_eq!(take_age_calls(&mut bench, 1_000).len(), 0);
    assert_eq!(take_age_calls(&mut bench, 1_001).len(), 1);
    // The server has lost the script: load it again, together with the call.
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 1_001);
    bench.link.tick(at(1_001));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 1, "{written}");
    assert_eq!(written.matches("EVALSHA").count(), 1, "{written}");
    bench.receive_bytes(format!("{SHA}{}", bulk("a 1001 x")).as_bytes(), 1_002);
    assert_eq!(bench.link.stage(), Stage::Transfer);
    assert_eq!(take_age_calls(&mut bench, 1_010).len(), 0);
    bench.link.tick(at(1_950));
    let written = bench.take_written();
    assert_eq!(age_calls(&written).len(), 1, "the next raise is due");
    assert!(!written.contains("LOAD"), "{written}");
}

/// The handshake with the master `name` shows this marker.
fn show_marker(bench: &Bench, name: &str, text: &str) {
    let options = &bench.shared.options;
    let marker = Marker::read(text.as_bytes()).expect("a marker");
    let admits = options.configuration.admission(Some(marker)) == Admission::Admitted;
    let name = NodeName::new(name);
    options.markers.record_marker(&name, marker, admits);
}

/// Connects the link to a master that has lost its generation marker, and lets an acquire find out at time 1. Returns the
/// text of the marker.
fn find_lost_marker(bench: &mut Bench) -> String {
    let marker = own_marker(bench);
    greet_as(bench, "a", "", 0);
    show_marker(bench, "other", &marker);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    assert_eq!(bench.recorded.kinds(), ["quarantined"]);
    marker
}

#[test]
fn lost_generation_marker_is_restored_together_with_a_new_age_record() {
    let mut bench = Bench::new();
    let marker = find_lost_marker(&mut bench);
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 1, "{written}");
    bench.receive_bytes(SHA.as_bytes(), 2);
    assert_eq!(
        take_age_calls(&mut bench, 2),
        [["a", "", "0", &marker].map(str::to_owned)]
    );
    bench.receive_bytes(bulk("a 0 lost-x").as_bytes(), 3);
    bench.push_request(2, acquire(1));
    bench.link.take(at(30_002));
    assert_eq!(bench.recorded.kinds(), ["quarantined"]);
    bench.push_request(3, acquire(1));
    bench.link.take(at(30_003));
    assert_eq!(bench.recorded.take_all(), []);
    assert!(bench.shared.doubted_for().is_none());
}

fn refusing_the_name() -> String {
    let mut replies = GREETING;
    replies[3] = "-NOPERM no name\r\n";
    replies.concat()
}

/// `quorate masters close` finds the connections of clients by their names. It does not find a connection without a
/// name, so the scripts of such a connection must check the generation marker.
#[test]
fn connection_without_a_name_loads_scripts_that_check_the_generation_marker() {
    let mut bench = Bench::new();
    bench.link.dialed(at(0));
    assert!(
        bench
            .take_written()
            .matches("redis.call('GET', 'quorate:masters')")
            .count()
            == 0
    );
    bench.receive_bytes(refusing_the_name().as_bytes(), 0);
    let loaded = bench.take_written();
    assert_eq!(
        loaded
            .matches("redis.call('GET', 'quorate:masters')")
            .count(),
        4,
        "{loaded}"
    );
    bench.receive_bytes(SHA.repeat(8).as_bytes(), 1);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    bench.receive_bytes(b"-ERR quorate: masters 1 0123456789abcdef\r\n", 2);
    assert_eq!(bench.recorded.kinds(), ["other_masters"]);
}

#[test]
fn new_server_at_a_known_address_is_quarantined_despite_its_long_uptime() {
    let mut bench = Bench::new();
    greet_as(&mut bench, "a", "", 0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    assert!(bench.take_written().contains("EVALSHA"));
    bench.receive_bytes(b":5\r\n", 2);
    bench.link.cut(Fault::Down("led elsewhere".into()), at(3));
    let now = bench.redial(3);
    greet_as(&mut bench, "b", "", now);
    bench.recorded.take_all();
    bench.push_request(2, acquire(2));
    bench.push_request(3, release(1));
    bench.link.take(at(now + 1));
    assert_eq!(bench.recorded.kinds(), ["quarantined"]);
    assert!(
        bench.take_written().contains("EVALSHA"),
        "releases must be sent to a quarantined master"
    );
    bench.push_request(4, acquire(3));
    bench.link.take(at(now + 30_000));
    assert!(
        bench.take_written().contains("EVALSHA"),
        "acquires must be sent again when the quarantine has lasted for the longest TTL"
    );
}

#[test]
fn master_with_a_mismatched_generation_marker_receives_only_releases() {
    let mut bench = Bench::new();
    greet_as(&mut bench, "a", "1 0123456789abcdef", 0);
    bench.push_request(1, acquire(1));
    bench.link.take(at(1));
    assert_eq!(bench.recorded.kinds(), ["other_masters"]);
    assert_eq!(bench.take_written(), "");
    bench.push_request(2, release(1));
    bench.link.take(at(2));
    assert!(bench.take_written().contains("EVALSHA"));
}

/// Returns the number of keys of each script call in the written bytes.
fn combined_key_counts(written: &str) -> Vec<usize> {
    let commands = written.split("EVALSHA\r\n").skip(1);
    let keys = commands.map(|rest| rest.split("\r\n").nth(3)?.parse().ok());
    keys.map(|keys| keys.expect("the number of keys must be parsed"))
        .collect()
}

/// A bench whose master has loaded the scripts that execute many requests in one call.
fn bench_with_combined_scripts() -> Bench {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, release(1));
    bench.push_request(2, release(2));
    bench.link.take(at(1));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 2, "{written}");
    assert_eq!(
        combined_key_counts(&written),
        [1, 1],
        "requests must not wait until the batch scripts are loaded"
    );
    bench.receive_bytes([SHA, SHA, ":1\r\n:1\r\n"].concat().as_bytes(), 1);
    assert_eq!(bench.recorded.take_all().len(), 2);
    bench
}

#[test]
fn requests_are_sent_one_by_one_if_scripts_for_combined_calls_cannot_be_loaded() {
    let mut bench = Bench::new();
    bench.greet(0);
    bench.push_request(1, release(1));
    bench.push_request(2, release(2));
    bench.link.take(at(1));
    assert_eq!(bench.take_written().matches("LOAD").count(), 2);
    bench.receive_bytes(b"-BUSY a script\r\n-BUSY a script\r\n:1\r\n:1\r\n", 1);
    assert_eq!(bench.recorded.kinds(), ["answer"; 2]);
    assert_eq!(bench.link.stage(), Stage::Transfer);
    bench.push_request(3, release(3));
    bench.push_request(4, release(4));
    bench.link.take(at(2));
    let written = bench.take_written();
    assert_eq!(
        combined_key_counts(&written),
        [1, 1],
        "each release must be sent as a separate call"
    );
    assert!(!written.contains("LOAD"), "the scripts are loaded once");
}

/// Queues `count` releases. The link sends all of them in one combined call.
fn ask_releases(bench: &mut Bench, count: u8, now: u64) {
    for n in 1..=count {
        bench.push_request(n.into(), release(n));
    }
    bench.link.take(at(now));
    assert_eq!(
        combined_key_counts(&bench.take_written()),
        [usize::from(count)]
    );
}

#[test]
fn queued_requests_are_sent_in_one_call_and_answered_one_by_one() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 3, 2);
    bench.receive_bytes(b"$3\r\n101\r\n", 3);
    let released = |number, ours| (number, Ok(Answer::Released(ours)));
    assert_eq!(
        bench.recorded.take_all(),
        [released(1, true), released(2, false), released(3, true)]
    );
    for n in 1..=8 {
        bench.push_request(n.into(), acquire(n));
    }
    bench.link.take(at(4));
    assert_eq!(combined_key_counts(&bench.take_written()), [8]);
    bench.receive_bytes(b"*8\r\n:-1\r\n:7\r\n*2\r\n:5\r\n:6\r\n", 5);
    bench.receive_bytes(b":9\r\n-WRONGTYPE x\r\n:9\r\n:9\r\n:9\r\n", 6);
    let granted_answer = |number, counter| {
        let counter = Some(counter);
        (number, Ok(Answer::Granted { counter }))
    };
    let (ttl_left, line) = (Some(ms(5)), None);
    let refused_answer = (3, Ok(Answer::Refused { ttl_left, line }));
    let mut expected = vec![
        granted_answer(1, 1),
        granted_answer(2, 7),
        refused_answer,
        granted_answer(4, 9),
    ];
    expected.push((5, Err(Fault::WrongType)));
    expected.extend([
        granted_answer(6, 9),
        granted_answer(7, 9),
        granted_answer(8, 9),
    ]);
    assert_eq!(bench.recorded.take_all(), expected);
}

#[test]
fn single_request_is_not_sent_as_a_combined_call() {
    let mut bench = bench_with_combined_scripts();
    bench.push_request(1, release(7));
    bench.link.take(at(2));
    assert_eq!(combined_key_counts(&bench.take_written()), [1]);
    bench.receive_bytes(b":1\r\n", 3);
    assert_eq!(bench.recorded.take_all(), [(1, Ok(Answer::Released(true)))]);
}

#[test]
fn error_of_a_combined_call_reaches_each_request() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 2, 2);
    bench.receive_bytes(b"-BUSY a script\r\n", 3);
    assert_eq!(bench.recorded.kinds(), ["busy", "busy"]);
    bench.link.take(at(400));
    assert_eq!(
        combined_key_counts(&bench.take_written()),
        [2],
        "the pending releases must be sent in one command"
    );
}

#[test]
fn combined_call_denied_by_the_acl_is_sent_again_as_single_requests() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 3, 2);
    bench.receive_bytes(b"-NOPERM No permissions to access a key\r\n", 3);
    assert_eq!(bench.recorded.take_all(), []);
    bench.link.take(at(4));
    assert_eq!(combined_key_counts(&bench.take_written()), [1, 1, 1]);
    bench.receive_bytes(b":1\r\n-NOPERM No permissions to access a key\r\n:1\r\n", 5);
    assert_eq!(bench.recorded.kinds(), ["answer", "denied", "answer"]);
}

#[test]
fn request_skipped_by_a_combined_call_is_sent_again_before_later_requests() {
    let mut bench = bench_with_combined_scripts();
    let claims: Vec<_> = (1..=8).map(claim).collect();
    for (number, claim) in claims.iter().enumerate() {
        let request = Request::Acquire {
            claim: claim.clone(),
            ttl: Duration::from_secs(10),
            proposal: 1,
        };
        bench.push_request(number, request);
    }
    bench.link.take(at(2));
    assert_eq!(combined_key_counts(&bench.take_written()), [8]);
    bench.receive_bytes(b"*8\r\n:9\r\n:0\r\n:0\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n", 3);
    assert_eq!(bench.recorded.take_all().len(), 6);
    claims[1].withdraw();
    bench.push_request(11, release(2));
    bench.push_request(12, release(3));
    bench.link.take(at(4));
    assert_eq!(bench.recorded.take_all(), [(1, Err(Fault::Withdrawn))]);
    let written = bench.take_written();
    assert_eq!(combined_key_counts(&written), [1, 2]);
    assert!(
        written.contains("10000"),
        "the acquire of the split call must be sent again: {written}"
    );
}

#[test]
fn combined_call_whose_script_the_master_has_lost_is_sent_again_after_a_reload() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 3, 2);
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 3);
    bench.link.take(at(4));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 10, "{written}");
    assert_eq!(combined_key_counts(&written), [3]);
    bench.receive_bytes(SHA.repeat(10).as_bytes(), 5);
    bench.receive_bytes(b"-NOSCRIPT No matching script.\r\n", 5);
    assert_eq!(
        bench.recorded.kinds(),
        ["server_error"; 3],
        "a call must not be sent a third time after its scripts were lost twice"
    );
    // The callers got an error, but the link must still deliver their releases.
    bench.link.tick(at(5 + 50));
    bench.link.take(at(5 + 50));
    let written = bench.take_written();
    assert!(
        written.contains("EVALSHA"),
        "the link must send the releases again after a pause: {written:?}"
    );
}

#[test]
fn malformed_reply_to_a_combined_call_ends_the_connection() {
    for malformed in [
        "$2\r\n11\r\n",
        "$4\r\n1111\r\n",
        "$3\r\n1x1\r\n",
        "*3\r\n:1\r\n:1\r\n:1\r\n",
        "*2\r\n$1\r\n1\r\n$1\r\n1\r\n",
        "*3\r\n$1\r\n1\r\n*0\r\n$1\r\n1\r\n",
        ":1\r\n",
        "+OK\r\n",
        "_\r\n",
    ] {
        let mut bench = bench_with_combined_scripts();
        ask_releases(&mut bench, 3, 2);
        bench.receive_bytes(malformed.as_bytes(), 3);
        assert_eq!(bench.recorded.kinds(), ["server_error"; 3], "{malformed:?}");
        assert_ne!(bench.link.stage(), Stage::Transfer, "{malformed:?}");
        let now = bench.greet_again(4);
        bench.link.take(at(now));
        assert_eq!(
            combined_key_counts(&bench.take_written()),
            [1; 3],
            "the releases must be sent again after the malformed reply {malformed:?}"
        );
    }
    for malformed in [
        "*7\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n",
        "*8\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:-2\r\n",
        "*8\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n:9\r\n*1\r\n:1\r\n",
        "$8\r\n11111111\r\n",
        ":9\r\n",
    ] {
        let mut bench = bench_with_combined_scripts();
        for n in 1..=8 {
            bench.push_request(n.into(), acquire(n));
        }
        bench.link.take(at(2));
        assert_eq!(combined_key_counts(&bench.take_written()), [8]);
        bench.receive_bytes(malformed.as_bytes(), 3);
        assert_eq!(bench.recorded.kinds(), ["server_error"; 8], "{malformed:?}");
        assert_ne!(bench.link.stage(), Stage::Transfer, "{malformed:?}");
    }
}

#[test]
fn each_request_of_an_overdue_combined_call_times_out() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 3, 2);
    bench.tick_through(3, 2 + NODE_TIMEOUT);
    assert_eq!(bench.recorded.kinds(), ["timeout"; 3]);
    bench.receive_bytes(b"$3\r\n111\r\n", 60);
    assert_eq!(
        bench.recorded.take_all(),
        [],
        "callers must not get a second answer"
    );
    bench.link.take(at(61));
    assert_eq!(
        combined_key_counts(&bench.take_written()),
        [0_usize; 0],
        "releases that a late reply confirmed must not be sent again"
    );
}

#[test]
fn unanswered_releases_of_a_combined_call_are_sent_on_the_next_connection() {
    let mut bench = bench_with_combined_scripts();
    ask_releases(&mut bench, 3, 2);
    bench.link.cut(Fault::Down("reset".into()), at(3));
    assert_eq!(bench.recorded.kinds(), ["disconnected"; 3]);
    let now = bench.greet_again(4);
    bench.link.take(at(now));
    let written = bench.take_written();
    assert_eq!(combined_key_counts(&written), [1; 3], "{written}");
}

/// Counts in the written bytes the calls of the built-in command DELIFEQ, and the calls of scripts.
fn releases(written: &str) -> (usize, usize) {
    let count_of = |word: &str| written.matches(word).count();
    (count_of("DELIFEQ"), count_of("EVALSHA"))
}

/// A bench whose server executes releases with the built-in delete command, because the trial of the command was
/// successful.
fn bench_with_deletion() -> Bench {
    let mut bench = bench_before_trial();
    try_deletion(&mut bench, ":0\r\n", 0);
    bench
}

fn bench_before_trial() -> Bench {
    let mut bench = Bench::new();
    greet_with_deletion(&mut bench, 0);
    bench
}

/// Sends a release. After it, the link sends a trial of the built-in delete command. The master answers the trial with
/// `reply`.
fn try_deletion(bench: &mut Bench, reply: &str, now: u64) {
    bench.push_request(9, withdrawn(9));
    bench.link.take(at(now));
    let written = bench.take_written();
    assert_eq!(releases(&written), (1, 1), "{written}");
    assert!(written.find("EVALSHA") < written.find("DELIFEQ"));
    bench.receive_bytes(format!(":1\r\n{reply}").as_bytes(), now);
    assert_eq!(bench.recorded.take_all(), [(9, Ok(Answer::Released(true)))]);
}

fn greet_with_deletion(bench: &mut Bench, now: u64) {
    let info =
        "redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nrun_id:a\r\nuptime_in_seconds:99999999\r\n";
    let info = format!("${}\r\n{info}\r\n", info.len());
    let mut greeting = GREETING;
    greeting[4] = &info;
    bench.greet_with_replies(&greeting, now);
}

/// A release after a call of `Claim::withdraw`, which comes before every release. No acquire is sent after this call.
fn withdrawn(n: u8) -> Request {
    let request = release(n);
    if let Request::Release { claim, .. } = &request {
        claim.withdraw();
    }
    request
}

#[test]
fn single_release_uses_the_conditional_delete_command_of_the_server() {
    let mut bench = bench_with_deletion();
    for (now, reply, deleted) in [(1, b":1\r\n", true), (3, b":0\r\n", false)] {
        bench.push_request(1, withdrawn(1));
        bench.link.take(at(now));
        assert_eq!(releases(&bench.take_written()), (1, 0));
        bench.receive_bytes(reply, now + 1);
        assert_eq!(
            bench.recorded.take_all(),
            [(1, Ok(Answer::Released(deleted)))]
        );
    }
    // For several queued releases, the link sends one script call instead of built-in delete commands.
    bench.push_request(1, withdrawn(1));
    bench.push_request(2, withdrawn(2));
    bench.link.take(at(5));
    let written = bench.take_written();
    assert_eq!(written.matches("LOAD").count(), 2, "{written}");
    bench.receive_bytes([SHA, SHA, ":1\r\n:1\r\n"].concat().as_bytes(), 6);
    bench.push_request(1, withdrawn(1));
    bench.push_request(2, withdrawn(2));
    bench.link.take(at(7));
    assert_eq!(combined_key_counts(&bench.take_written()), [2]);
}

#[test]
fn releases_use_the_script_if_the_server_denies_or_lacks_the_delete_command() {
    for refusal in [
        "-NOPERM User u has no permissions to run the 'delifeq' command\r\n",
        "-NOPERM No permissions to access a key\r\n",
        "-ERR unknown command 'DELIFEQ', with args beginning with: 'a' 'b' \r\n",
        "-ERR unsupported command\r\n",
        "-PROXY what is that\r\n",
    ] {
        let mut bench = bench_with_deletion();
        bench.push_request(1, withdrawn(1));
        bench.link.take(at(1));
        bench.push_request(2, withdrawn(2));
        bench.link.take(at(1));
        assert_eq!(releases(&bench.take_written()), (2, 0));
        bench.receive_bytes(refusal.repeat(2).as_bytes(), 2);
        assert_eq!(bench.recorded.take_all(), [], "{refusal}");
        // The link sends the two refused releases again as separate script calls. The new acquire follows them.
        bench.push_request(3, acquire(1));
        bench.link.take(at(3));
        let written = bench.take_written();
        assert_eq!(releases(&written), (0, 3), "{refusal}");
        assert!(
            written.rfind("10000") > written.rfind(&hex(2)),
            "the acquire must be sent after both releases: {written}"
        );
        bench.receive_bytes(b":1\r\n:1\r\n:5\r\n", 4);
        let answers = bench.recorded.take_all();
        let deleted = Ok(Answer::Released(true));
        assert_eq!(answers[..2], [(1, deleted.clone()), (2, deleted)]);
        bench.push_request(4, withdrawn(4));
        bench.link.take(at(5));
        assert_eq!(
            releases(&bench.take_written()),
            (0, 1),
            "the delete command must not be tried again after it was refused"
        );
    }
}

#[test]
fn release_is_denied_if_the_server_denies_both_delete_command_and_script() {
    let mut bench = bench_with_deletion();
    bench.push_request(1, withdrawn(1));
    bench.link.take(at(1));
    bench.take_written();
    let refusal = b"-NOPERM No permissions to access a key\r\n";
    bench.receive_bytes(refusal, 2);
    bench.link.take(at(3));
    assert_eq!(releases(&bench.take_written()), (0, 1));
    bench.receive_bytes(refusal, 4);
    assert_eq!(bench.recorded.kinds(), ["denied"]);
    bench.link.take(at(5));
    assert_eq!(bench.take_written(), "");
}

#[test]
fn wrong_type_error_of_the_delete_command_ends_the_release_without_a_retry() {
    let mut bench = bench_with_deletion();
    bench.push_request(1, withdrawn(1));
    bench.link.take(at(1));
    bench.take_written();
    bench.receive_bytes(b"-WRONGTYPE Operation against a key\r\n", 2);
    assert_eq!(bench.recorded.kinds(), ["wrong_type"]);
    bench.link.take(at(3));
    assert_eq!(bench.take_written(), "");
}

#[test]
fn release_that_a_read_only_server_refuses_is_sent_again_as_a_script() {
    for reply in [
        "-READONLY You can't write\r\n",
        "-NOREPLICAS Not enough good replicas\r\n",
        "-MISCONF Errors writing to the disk\r\n",
    ] {
        let mut bench = bench_with_deletion();
        bench.push_request(1, withdrawn(1));
        bench.link.take(at(1));
        bench.take_written();
        bench.receive_bytes(reply.as_bytes(), 2);
        bench.link.take(at(3));
        assert_eq!(releases(&bench.take_written()), (0, 1), "{reply}");
        bench.receive_bytes(b":0\r\n", 4);
        assert_eq!(
            bench.recorded.take_all(),
            [(1, Ok(Answer::Released(false)))]
        );
    }
}

#[test]
fn delete_command_whose_test_call_failed_is_not_used_for_releases() {
    for reply in [
        "-NOPERM User u has no permissions to run the 'delifeq' command\r\n",
        "-ERR unknown command 'DELIFEQ'\r\n",
        "+OK\r\n",
        "$-1\r\n",
    ] {
        let mut bench = bench_before_trial();
        try_deletion(&mut bench, reply, 0);
        for now in [1, 3] {
            bench.push_request(1, withdrawn(1));
            bench.link.take(at(now));
            assert_eq!(releases(&bench.take_written()), (0, 1), "{reply}");
            bench.receive_bytes(b":1\r\n", now + 1);
            assert_eq!(bench.recorded.take_all(), [(1, Ok(Answer::Released(true)))]);
        }
    }
}

#[test]
fn delete_command_unanswered_before_a_disconnect_is_not_used_again() {
    let mut bench = bench_before_trial();
    bench.push_request(1, withdrawn(1));
    bench.link.take(at(1));
    assert_eq!(releases(&bench.take_written()), (1, 1));
    bench.receive_bytes(b":1\r\n", 2);
    assert_eq!(bench.recorded.take_all(), [(1, Ok(Answer::Released(true)))]);
    // Until the trial is answered, releases use the script.
    bench.push_request(2, withdrawn(2));
    bench.link.take(at(3));
    assert_eq!(releases(&bench.take_written()), (0, 1));
    bench.link.cut(Fault::Down("reset".into()), at(4));
    let now = bench.redial(4);
    greet_with_deletion(&mut bench, now);
    bench.link.take(at(now));
    assert_eq!(
        releases(&bench.take_written()),
        (0, 1),
        "the pending release must be sent with the script"
    );
    // The same applies to the connection after the next one.
    bench.link.cut(Fault::Down("reset".into()), at(now + 1));
    let now = bench.redial(now + 1);
    greet_with_deletion(&mut bench, now);
    bench.link.take(at(now));
    assert_eq!(releases(&bench.take_written()), (0, 1));
}

#[test]
fn failed_delete_command_is_replaced_by_the_script_if_the_lock_got_a_note() {
    let mut bench = bench_with_deletion();
    let request = withdrawn(1);
    let Request::Release { claim, .. } = &request else {
        panic!("the request must be a release")
    };
    let claim = claim.clone();
    bench.push_request(1, request);
    bench.link.take(at(1));
    assert_eq!(releases(&bench.take_written()), (1, 0));
    claim.take_note();
    bench.receive_bytes(b"-ERR unknown command\r\n", 2);
    bench.link.take(at(3));
    assert_eq!(releases(&bench.take_written()), (0, 1));
    bench.receive_bytes(b":1\r\n", 4);
    assert_eq!(bench.recorded.take_all(), [(1, Ok(Answer::Released(true)))]);
}

#[test]
fn release_whose_delete_command_failed_is_sent_again_on_the_next_connection() {
    let mut bench = bench_with_deletion();
    bench.push_request(1, withdrawn(1));
    bench.link.take(at(1));
    bench.take_written();
    bench.receive_bytes(b"-NOPERM the 'delifeq' command\r\n", 2);
    bench
        .link
        .cut(Fault::Down("connection closed".into()), at(3));
    assert_eq!(bench.recorded.kinds(), ["disconnected"]);
    let now = bench.redial(3);
    greet_with_deletion(&mut bench, now);
    bench.link.take(at(now));
    let written = bench.take_written();
    assert_eq!(releases(&written), (1, 1), "{written}");
    assert!(written.contains(&hex(1)));
}

#[test]
fn release_uses_the_script_while_its_acquire_can_still_be_sent() {
    let mut bench = bench_with_deletion();
    let claim = claim(1);
    let (ttl, proposal) = (Duration::from_secs(10), 1);
    let acquire = |claim| Request::Acquire {
        claim,
        ttl,
        proposal,
    };
    let release = |claim| Request::Release { claim, leave: true };
    bench.push_request(1, acquire(claim.clone()));
    bench.push_request(2, release(claim.clone()));
    bench.link.take(at(1));
    assert_eq!(
        releases(&bench.take_written()),
        (0, 2),
        "the acquire and the release must both call scripts"
    );
    bench.receive_bytes(&b"-NOSCRIPT No matching script.\r\n".repeat(2), 2);
    bench.link.take(at(3));
    bench.receive_bytes(SHA.repeat(8).as_bytes(), 4);
    let written = bench.take_written();
    assert_eq!(releases(&written), (0, 2), "{written}");
    assert!(
        written.find("10000") < written.rfind(&hex(1)),
        "the acquire must be sent before the release: {written}"
    );
    bench.receive_bytes(b":5\r\n:1\r\n", 5);
    assert_eq!(bench.recorded.kinds(), ["answer"; 2]);
    // After the claim is withdrawn, its acquire is not sent again. So the acquire cannot arrive after the release.
    claim.withdraw();
    bench.push_request(1, acquire(claim.clone()));
    bench.push_request(2, release(claim));
    bench.link.take(at(6));
    assert_eq!(releases(&bench.take_written()), (1, 0));
}
