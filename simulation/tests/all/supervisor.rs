//! Tests the real Redis driver over simulated TCP connections: partitions, resets in the middle of a reply, half-open
//! connections, slow handshakes.
//!
//! The server supports only the RESP commands that one lock needs. Tests let it stay silent, answer late, or send only
//! a part of a reply.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::node::{Answer, Claim, Fault, Node, Phase, Reply, ReplySink, Request, Stream, Token};
use quorate::{Redlock, RedlockBuilder, RestartGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::sleep;
use turmoil::net::{TcpListener, TcpStream};

const PORT: u16 = 6379;
const NODE_TIMEOUT: Duration = Duration::from_millis(200);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The state of the server: its behaviour, its keys, and the commands that it has received. Tests change the behaviour
/// while the server runs.
#[derive(Default)]
struct ServerState {
    /// Whether the server accepts connections and reads commands, but never replies.
    is_mute: bool,
    /// The delay before each reply of the handshake.
    handshake_delay: Duration,
    /// Whether the server answers the next SET with half a reply and closes the connection.
    cut_next: bool,
    /// The keys that the server stores.
    keys: HashMap<Vec<u8>, Vec<u8>>,
    /// Every command that the server received after a handshake, in order.
    commands: Vec<String>,
    /// The number of connections that the server has accepted.
    connections: usize,
}

type Shared = Arc<Mutex<ServerState>>;

fn change(shared: &Shared, change: impl FnOnce(&mut ServerState)) {
    change(
        &mut shared
            .lock()
            .expect("the mutex must not be poisoned by a panicked thread"),
    );
}

fn commands(shared: &Shared) -> Vec<String> {
    shared
        .lock()
        .expect("the mutex must not be poisoned by a panicked thread")
        .commands
        .clone()
}

async fn serve(shared: Shared) -> turmoil::Result {
    let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        change(&shared, |state| state.connections += 1);
        let shared = shared.clone();
        tokio::spawn(async move {
            let _gone = converse(stream, shared).await;
        });
    }
}

async fn converse(mut stream: TcpStream, shared: Shared) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        while let Some((command, length)) = parse(&bytes) {
            bytes.drain(..length);
            let (is_mute, handshake_delay) = {
                let state = shared
                    .lock()
                    .expect("the mutex must not be poisoned by a panicked thread");
                (state.is_mute, state.handshake_delay)
            };
            if is_mute {
                continue;
            }
            let verb = String::from_utf8_lossy(&command[0]).to_uppercase();
            if matches!(&*verb, "HELLO" | "INFO") {
                sleep(handshake_delay).await;
            }
            let (reply, close) = answer(&verb, &command, &shared);
            stream.write_all(&reply).await?;
            if close {
                return Ok(());
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

/// Parses one command, an array of bulk strings. Returns the command and its length in bytes; `None` if it is
/// incomplete.
fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    fn length_prefix(bytes: &[u8], position: usize) -> Option<(usize, usize)> {
        let end = bytes[position..]
            .windows(2)
            .position(|two| two == b"\r\n")?
            + position;
        let number = std::str::from_utf8(&bytes[position + 1..end])
            .ok()?
            .parse()
            .ok()?;
        Some((number, end + 2))
    }
    if bytes.is_empty() {
        return None;
    }
    let (count, mut position) = length_prefix(bytes, 0)?;
    let mut command = Vec::new();
    for _ in 0..count {
        if position >= bytes.len() {
            return None;
        }
        let (length, start) = length_prefix(bytes, position)?;
        command.push(bytes.get(start..start + length)?.to_vec());
        position = start + length + 2;
        if position > bytes.len() {
            return None;
        }
    }
    Some((command, position))
}

/// Returns the reply to a command, and whether the server closes the connection after the reply.
fn answer(verb: &str, command: &[Vec<u8>], shared: &Shared) -> (Vec<u8>, bool) {
    let mut state = shared
        .lock()
        .expect("the mutex must not be poisoned by a panicked thread");
    let reply: &[u8] = match verb {
        "HELLO" => b"%1\r\n$5\r\nproto\r\n:3\r\n",
        "CLIENT" if command[1] == b"ID" => b":1\r\n",
        "INFO" => b"$37\r\nrun_id:abc\r\nuptime_in_seconds:86400\r\n\r\n",
        "GET" => b"_\r\n",
        "SCRIPT" => b"$40\r\n0123456789012345678901234567890123456789\r\n",
        "SET" => {
            state.commands.push("acquire".to_owned());
            if std::mem::take(&mut state.cut_next) {
                return (b"+O".to_vec(), true);
            }
            if state.keys.contains_key(&command[1]) {
                b"_\r\n"
            } else {
                state.keys.insert(command[1].clone(), command[2].clone());
                b"+OK\r\n"
            }
        }
        // For a lock without ordered waiting and fencing tokens, the client uses only one script: the release, which
        // compares and deletes.
        "EVALSHA" => {
            state.commands.push("release".to_owned());
            if state.keys.get(&command[3]) == Some(&command[4]) {
                state.keys.remove(&command[3]);
                b":1\r\n"
            } else {
                b":0\r\n"
            }
        }
        _ => b"+OK\r\n",
    };
    (reply.to_vec(), false)
}

/// The settings of a client that connects over the simulated network.
fn settings() -> RedlockBuilder {
    Redlock::builder()
        .ttl(Duration::from_secs(10))
        .node_timeout(NODE_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .restart_guard(RestartGuard::Off)
        .dial(Arc::new(|host, port| {
            let host = host.to_owned();
            Box::pin(async move {
                let stream = TcpStream::connect((host, port)).await?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            })
        }))
}

struct AnswerSender(Mutex<Option<oneshot::Sender<Result<Answer, Fault>>>>);

impl ReplySink for AnswerSender {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        let sender = self
            .0
            .lock()
            .expect("the mutex must not be poisoned by a panicked thread")
            .take();
        sender
            .expect("a request must be answered only once")
            .send(answer)
            .expect("the client must still wait for the answer");
    }
}

/// Sends a request and waits for the answer. Returns the answer, and the simulated time until it arrived.
async fn ask(node: &Arc<dyn Node>, request: Request) -> (Result<Answer, Fault>, Duration) {
    let (sender, answer) = oneshot::channel();
    let started_at = turmoil::elapsed();
    let sink = Arc::new(AnswerSender(Mutex::new(Some(sender))));
    node.send(request, Reply::new(sink, 0, Phase::Acquire));
    let answer = answer.await.expect("the request must be answered");
    (answer, turmoil::elapsed().saturating_sub(started_at))
}

fn claim(number: u8) -> Arc<Claim> {
    Arc::new(Claim::new(
        "",
        b"job",
        Token::from_bytes([number; 16]),
        false,
    ))
}

fn acquire(claim: &Arc<Claim>) -> Request {
    Request::Acquire {
        claim: claim.clone(),
        ttl: Duration::from_secs(10),
        proposal: 0,
    }
}

fn release(claim: &Arc<Claim>) -> Request {
    Request::Release {
        claim: claim.clone(),
        leave: false,
    }
}

const GRANTED: Result<Answer, Fault> = Ok(Answer::Granted { counter: None });

/// Starts the simulated server and a node that connects to it. Runs `test` with this node, and with the state that
/// controls the server.
fn run_simulation<F>(test: impl FnOnce(Arc<dyn Node>, Shared) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let mut sim = turmoil::Builder::new()
        .rng_seed(7)
        .simulation_duration(Duration::from_secs(60))
        .build();
    let shared = Shared::default();
    let server_state = shared.clone();
    sim.host("server", move || serve(server_state.clone()));
    sim.client("client", async move {
        let node = quorate::testing::connect("redis://server:6379", &settings())
            .expect("the URL must be valid");
        test(node, shared).await;
        Ok(())
    });
    sim.run().expect("the simulated test must pass");
}

#[test]
fn release_of_an_interrupted_acquire_is_sent_first_on_the_next_connection() {
    run_simulation(|node, shared| async move {
        let (first, second) = (claim(1), claim(2));
        change(&shared, |state| state.cut_next = true);
        let (answer, _) = ask(&node, acquire(&first)).await;
        let fault = answer.expect_err("half a reply must not count as an answer");
        assert!(
            !fault.left_nothing(),
            "the fault must say that the request may have been executed: {fault}"
        );
        first.withdraw();
        let (_, elapsed) = ask(&node, release(&first)).await;
        assert!(
            elapsed <= 2 * NODE_TIMEOUT,
            "the release must be answered within two node timeouts: {elapsed:?}"
        );
        sleep(ms(500)).await;
        assert_eq!(ask(&node, acquire(&second)).await.0, GRANTED);
        assert_eq!(commands(&shared), ["acquire", "release", "acquire"]);
    });
}

#[test]
fn release_that_failed_in_a_partition_is_sent_first_after_the_partition() {
    run_simulation(|node, shared| async move {
        let claim = claim(1);
        assert_eq!(ask(&node, acquire(&claim)).await.0, GRANTED);
        turmoil::partition("client", "server");
        let (answer, elapsed) = ask(&node, release(&claim)).await;
        assert!(
            answer.is_err() && elapsed <= NODE_TIMEOUT + ms(50),
            "the release must fail after the node timeout: {answer:?} after {elapsed:?}"
        );
        for _ in 0..3 {
            let (answer, elapsed) = ask(&node, acquire(&self::claim(2))).await;
            let fault =
                answer.expect_err("the acquire must fail, because the server cannot be reached");
            assert!(
                fault.left_nothing() && elapsed < ms(50),
                "the acquire must fail immediately, and send nothing: {fault} after {elapsed:?}"
            );
        }
        sleep(Duration::from_secs(3)).await;
        turmoil::repair("client", "server");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(ask(&node, acquire(&self::claim(3))).await.0, GRANTED);
        let commands = commands(&shared);
        assert_eq!(commands.first().map(String::as_str), Some("acquire"));
        assert_eq!(commands.last().map(String::as_str), Some("acquire"));
        assert!(
            commands[1..commands.len() - 1]
                .iter()
                .all(|command| command == "release"),
            "only releases may be sent between the acquires: {commands:?}"
        );
        assert!(
            commands.len() >= 3,
            "the release must be delivered: {commands:?}"
        );
    });
}

#[test]
fn connect_to_a_silent_server_fails_after_the_connect_timeout() {
    run_simulation(|node, shared| async move {
        change(&shared, |state| state.is_mute = true);
        let (answer, elapsed) = ask(&node, acquire(&claim(1))).await;
        let fault = answer.expect_err("the acquire must fail, because the server does not answer");
        assert!(
            fault.left_nothing(),
            "the fault must say that nothing was sent: {fault}"
        );
        assert!(
            elapsed <= CONNECT_TIMEOUT + ms(50),
            "the acquire must fail after the connect timeout: {elapsed:?}"
        );
        change(&shared, |state| state.is_mute = false);
        sleep(2 * CONNECT_TIMEOUT).await;
        assert_eq!(ask(&node, acquire(&claim(2))).await.0, GRANTED);
    });
}

#[test]
fn connection_on_which_the_server_stops_replying_is_replaced_by_a_new_connection() {
    run_simulation(|node, shared| async move {
        let first = claim(1);
        assert_eq!(ask(&node, acquire(&first)).await.0, GRANTED);
        change(&shared, |state| state.is_mute = true);
        first.withdraw();
        let (answer, elapsed) = ask(&node, release(&first)).await;
        assert!(
            matches!(answer, Err(Fault::Timeout(_))),
            "the release must time out: {answer:?}"
        );
        assert!(
            elapsed <= NODE_TIMEOUT + ms(50),
            "the release must fail after the node timeout: {elapsed:?}"
        );
        // The old connection stays open, but the server never replies on it. The server replies only on new
        // connections.
        change(&shared, |state| state.is_mute = false);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(ask(&node, acquire(&claim(2))).await.0, GRANTED);
        let connections = shared
            .lock()
            .expect("the mutex must not be poisoned by a panicked thread")
            .connections;
        assert!(
            connections >= 2,
            "the client must connect again: {connections} connections"
        );
        assert_eq!(commands(&shared), ["acquire", "release", "acquire"]);
    });
}

#[test]
fn first_request_waits_for_a_slow_handshake() {
    run_simulation(|node, shared| async move {
        change(&shared, |state| state.handshake_delay = ms(300));
        let (answer, elapsed) = ask(&node, acquire(&claim(1))).await;
        assert_eq!(answer, GRANTED);
        assert!(
            elapsed >= ms(300) && elapsed < CONNECT_TIMEOUT,
            "the acquire must wait for the handshake: {elapsed:?}"
        );
    });
}
