//! The hand-written baseline: a client that sends the same commands as the redis-rs baseline, but with hand-written
//! RESP over plain TCP.
//!
//! This client has almost no overhead: the task of each connection sends all queued requests in one write. The client
//! can read only the replies to acquire and release.
//!
//! With `Name::WireDefault`, the client does not send the commands of the baseline. It calls the scripts that `quorate`
//! uses with default settings.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::task::AtomicWaker;
use quorate_testbed::Connection;
use tokio::net::TcpStream;

use crate::floor::{RELEASE, fresh_token};

/// The hand-written client, with one connection per master.
pub(crate) struct Wire {
    lines: Vec<Arc<Line>>,
    quorum: usize,
    /// The SHA-1 digest of the script that acquires the lock. `None` if the client acquires with `SET NX PX`.
    acquire: Option<String>,
    release: String,
}

/// The source texts of the two scripts with which `quorate` acquires and releases a lock in its default settings.
pub(crate) struct Asked {
    acquire: String,
    release: String,
}

impl Asked {
    /// Starts MONITOR on the first master, and then runs `connect`, which connects a `quorate` client. Reads the
    /// acquire and release scripts from the SCRIPT LOAD commands of this client.
    pub(crate) async fn by<T>(addresses: &[SocketAddr], connect: impl Future<Output = T>) -> Self {
        let connection =
            || Connection::tcp(addresses[0], PATIENCE).expect("the connection must be made");
        let mut monitor = connection();
        assert!(
            monitor
                .command(&["MONITOR"])
                .expect("the master must answer")
                .is_ok()
        );
        connect.await;
        let seen = connection().command(&["ECHO", "seen"]);
        assert_eq!(seen.expect("the master must answer"), "seen".into());
        let (mut acquire, mut release) = (None, None);
        loop {
            let line = monitor.receive().expect("MONITOR must print a line");
            let line = line
                .text()
                .expect("the line of MONITOR must be text")
                .into_owned();
            if line.contains("\"ECHO\" \"seen\"") {
                break;
            }
            let Some((_, script)) = line.split_once("\"LOAD\" \"") else {
                continue;
            };
            let script = plain(script.trim_end_matches('"'));
            if script.contains("local largest") {
                acquire = Some(script);
            } else if script.contains("left == 0 then") && script.contains("PUBLISH") {
                release = Some(script);
            }
        }
        Self {
            acquire: acquire.expect("the client must load a script that acquires a fair lock"),
            release: release.expect("the client must load a script that releases a lock"),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

/// Removes the quotes and escapes of a text in the output of MONITOR.
fn plain(quoted: &str) -> String {
    let mut text = String::with_capacity(quoted.len());
    let mut chars = quoted.chars();
    while let Some(char) = chars.next() {
        text.push(match (char, chars.as_str().chars().next()) {
            ('\\', Some(escaped)) => {
                chars.next();
                match escaped {
                    'n' => '\n',
                    other => other,
                }
            }
            (char, _) => char,
        });
    }
    text
}

/// The state of one connection: its queue of requests, which the callers fill and the connection's task empties.
#[derive(Default)]
struct Line {
    queue: Mutex<Queue>,
    task: AtomicWaker,
    closed: AtomicBool,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    rounds: Vec<Arc<Round>>,
}

/// One request, which is sent to all masters. `votes` has two counts: its lower 16 bits count all answers, and its
/// upper bits count the masters that granted the request.
struct Round {
    votes: AtomicUsize,
    quorum: usize,
    masters: usize,
    caller: AtomicWaker,
}

const YES: usize = 1 << 16;

impl Round {
    fn record(&self, yes: bool) {
        let vote = if yes { YES + 1 } else { 1 };
        let votes = self.votes.fetch_add(vote, Ordering::AcqRel) + vote;
        if votes / YES == self.quorum || votes % YES == self.masters {
            self.caller.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<bool> {
        self.caller.register(cx.waker());
        let votes = self.votes.load(Ordering::Acquire);
        if votes / YES >= self.quorum {
            Poll::Ready(true)
        } else if votes % YES >= self.masters {
            Poll::Ready(false)
        } else {
            Poll::Pending
        }
    }
}

impl Wire {
    /// Connects to all masters.
    pub(crate) async fn connect(addresses: &[SocketAddr], asked: Option<&Asked>) -> Self {
        let mut lines = Vec::new();
        let (mut acquire, mut release) = (None, String::new());
        let source = asked.map_or(RELEASE, |asked| &asked.release);
        for address in addresses {
            let stream = TcpStream::connect(address)
                .await
                .expect("the connection must be made");
            stream
                .set_nodelay(true)
                .expect("the socket must accept TCP_NODELAY");
            release = load(&stream, source).await.expect("the script must load");
            if let Some(asked) = asked {
                acquire = Some(
                    load(&stream, &asked.acquire)
                        .await
                        .expect("the script must load"),
                );
            }
            let line = Arc::new(Line::default());
            tokio::spawn(serve(stream, line.clone()));
            lines.push(line);
        }
        let quorum = lines.len() / 2 + 1;
        Self {
            lines,
            quorum,
            acquire,
            release,
        }
    }

    /// Acquires the lock. Returns the value of the lock key, or `None` if no majority granted the lock.
    pub(crate) async fn acquire(&self, resource: &str, ttl: Duration) -> Option<String> {
        let token = fresh_token();
        let ttl = ttl.as_millis().to_string();
        let request = match &self.acquire {
            None => encode(&["SET", resource, &token, "NX", "PX", &ttl]),
            Some(script) => {
                let proposal = SystemTime::now().duration_since(UNIX_EPOCH);
                let proposal = proposal.unwrap_or_default().as_micros().to_string();
                encode(&["EVALSHA", script, "1", resource, &token, &ttl, &proposal])
            }
        };
        if self.ask(&request).await {
            return Some(token);
        }
        self.release(resource, &token).await;
        None
    }

    /// Releases the lock. Returns whether a majority executed the release script, even if the script found no key to
    /// delete.
    pub(crate) async fn release(&self, resource: &str, token: &str) -> bool {
        self.ask(&encode(&["EVALSHA", &self.release, "1", resource, token]))
            .await
    }

    async fn ask(&self, request: &[u8]) -> bool {
        let round = Arc::new(Round {
            votes: AtomicUsize::new(0),
            quorum: self.quorum,
            masters: self.lines.len(),
            caller: AtomicWaker::new(),
        });
        for line in &self.lines {
            let mut queue = line.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let first = queue.rounds.is_empty();
            queue.bytes.extend_from_slice(request);
            queue.rounds.push(round.clone());
            drop(queue);
            if first {
                line.task.wake();
            }
        }
        poll_fn(|cx| round.poll(cx)).await
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for line in &self.lines {
            line.closed.store(true, Ordering::Release);
            line.task.wake();
        }
    }
}

fn encode(args: &[&str]) -> Vec<u8> {
    let mut request = Vec::with_capacity(160);
    let _ = write!(request, "*{}\r\n", args.len());
    for arg in args {
        let _ = write!(request, "${}\r\n{arg}\r\n", arg.len());
    }
    request
}

async fn load(stream: &TcpStream, source: &str) -> io::Result<String> {
    stream.writable().await?;
    let request = encode(&["SCRIPT", "LOAD", source]);
    assert_eq!(stream.try_write(&request)?, request.len());
    let mut reply = [0; 128];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut reply) {
            Ok(len) => {
                let text = String::from_utf8_lossy(&reply[..len]).into_owned();
                let sha = text.lines().nth(1).unwrap_or_default();
                assert_eq!(sha.len(), 40, "{text}");
                return Ok(sha.to_owned());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// The task of one connection. The task ends when the client is dropped or the connection ends.
async fn serve(stream: TcpStream, line: Arc<Line>) {
    let mut sending: Vec<u8> = Vec::new();
    let mut sent = 0;
    let mut gathered: Vec<Arc<Round>> = Vec::new();
    let mut waiting: VecDeque<Arc<Round>> = VecDeque::new();
    let mut received = vec![0; 1 << 16];
    let mut filled = 0;
    poll_fn(|cx| {
        line.task.register(cx.waker());
        if line.closed.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        // Send all queued requests in one write.
        loop {
            if sent == sending.len() {
                sending.clear();
                sent = 0;
                let mut queue = line.queue.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(&mut sending, &mut queue.bytes);
                std::mem::swap(&mut gathered, &mut queue.rounds);
                drop(queue);
                waiting.extend(gathered.drain(..));
                if sending.is_empty() {
                    break;
                }
            }
            match stream.try_write(&sending[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stream.poll_write_ready(cx).is_pending() {
                        break;
                    }
                }
                Err(_) => return Poll::Ready(()),
            }
        }
        // Receive the replies: every reply here is one line.
        while stream.poll_read_ready(cx).is_ready() {
            match stream.try_read(&mut received[filled..]) {
                Ok(0) => return Poll::Ready(()),
                Ok(len) => {
                    filled += len;
                    let mut start = 0;
                    while let Some(end) = received[start..filled].iter().position(|b| *b == b'\n') {
                        let reply = &received[start..=start + end];
                        if let Some(round) = waiting.pop_front() {
                            round.record(matches!(reply[0], b'+' | b':'));
                        }
                        start += end + 1;
                    }
                    received.copy_within(start..filled, 0);
                    filled -= start;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    })
    .await;
}
