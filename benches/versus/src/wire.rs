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

use crate::floor::{RELEASE, unique_token};

/// The hand-written client, with one connection per master.
pub(crate) struct Wire {
    connections: Vec<Arc<MasterConnection>>,
    quorum: usize,
    /// The SHA-1 digest of the script that acquires the lock. `None` if the client acquires with `SET NX PX`.
    acquire: Option<String>,
    release: String,
}

/// The source texts of the two scripts with which `quorate` acquires and releases a lock in its default settings.
pub(crate) struct QuorateScripts {
    acquire: String,
    release: String,
}

impl QuorateScripts {
    /// Starts MONITOR on the first master, and then runs `connect`, which connects a `quorate` client. Reads the
    /// acquire and release scripts from the SCRIPT LOAD commands of this client.
    pub(crate) async fn record<T>(
        addresses: &[SocketAddr],
        connect: impl Future<Output = T>,
    ) -> Self {
        let new_connection =
            || Connection::tcp(addresses[0], ANSWER_LIMIT).expect("the connection must be made");
        let mut monitor = new_connection();
        assert!(
            monitor
                .command(&["MONITOR"])
                .expect("the master must answer")
                .is_ok()
        );
        connect.await;
        let echo = new_connection().command(&["ECHO", "seen"]);
        assert_eq!(echo.expect("the master must answer"), "seen".into());
        let (mut acquire, mut release) = (None, None);
        loop {
            let reply = monitor.receive().expect("MONITOR must print a line");
            let line = reply
                .text()
                .expect("the line of MONITOR must be text")
                .into_owned();
            if line.contains("\"ECHO\" \"seen\"") {
                break;
            }
            let Some((_, script)) = line.split_once("\"LOAD\" \"") else {
                continue;
            };
            let script = unescape(script.trim_end_matches('"'));
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

const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Removes the quotes and escapes of a text in the output of MONITOR.
fn unescape(quoted: &str) -> String {
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
struct MasterConnection {
    queue: Mutex<Queue>,
    task: AtomicWaker,
    closed: AtomicBool,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    requests: Vec<Arc<PendingRequest>>,
}

/// One request, which is sent to all masters. `votes` has two counts: its lower 16 bits count all answers, and its
/// upper bits count the masters that granted the request.
struct PendingRequest {
    votes: AtomicUsize,
    quorum: usize,
    masters: usize,
    caller: AtomicWaker,
}

const GRANTED: usize = 1 << 16;

impl PendingRequest {
    fn count_vote(&self, is_granted: bool) {
        let vote = if is_granted { GRANTED + 1 } else { 1 };
        let votes = self.votes.fetch_add(vote, Ordering::AcqRel) + vote;
        if votes / GRANTED == self.quorum || votes % GRANTED == self.masters {
            self.caller.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<bool> {
        self.caller.register(cx.waker());
        let votes = self.votes.load(Ordering::Acquire);
        if votes / GRANTED >= self.quorum {
            Poll::Ready(true)
        } else if votes % GRANTED >= self.masters {
            Poll::Ready(false)
        } else {
            Poll::Pending
        }
    }
}

impl Wire {
    /// Connects to all masters.
    pub(crate) async fn connect(
        addresses: &[SocketAddr],
        scripts: Option<&QuorateScripts>,
    ) -> Self {
        let mut connections = Vec::new();
        let (mut acquire, mut release) = (None, String::new());
        let source = scripts.map_or(RELEASE, |scripts| &scripts.release);
        for address in addresses {
            let stream = TcpStream::connect(address)
                .await
                .expect("the connection must be made");
            stream
                .set_nodelay(true)
                .expect("the socket must accept TCP_NODELAY");
            release = load_script(&stream, source)
                .await
                .expect("the script must load");
            if let Some(scripts) = scripts {
                acquire = Some(
                    load_script(&stream, &scripts.acquire)
                        .await
                        .expect("the script must load"),
                );
            }
            let connection = Arc::new(MasterConnection::default());
            tokio::spawn(serve(stream, connection.clone()));
            connections.push(connection);
        }
        let quorum = connections.len() / 2 + 1;
        Self {
            connections,
            quorum,
            acquire,
            release,
        }
    }

    /// Acquires the lock. Returns the value of the lock key, or `None` if no majority granted the lock.
    pub(crate) async fn acquire(&self, resource: &str, ttl: Duration) -> Option<String> {
        let token = unique_token();
        let ttl_ms = ttl.as_millis().to_string();
        let request = match &self.acquire {
            None => encode(&["SET", resource, &token, "NX", "PX", &ttl_ms]),
            Some(script) => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
                let proposal = since_epoch.unwrap_or_default().as_micros().to_string();
                encode(&["EVALSHA", script, "1", resource, &token, &ttl_ms, &proposal])
            }
        };
        if self.send_to_all(&request).await {
            return Some(token);
        }
        self.release(resource, &token).await;
        None
    }

    /// Releases the lock. Returns whether a majority executed the release script, even if the script found no key to
    /// delete.
    pub(crate) async fn release(&self, resource: &str, token: &str) -> bool {
        self.send_to_all(&encode(&["EVALSHA", &self.release, "1", resource, token]))
            .await
    }

    async fn send_to_all(&self, request: &[u8]) -> bool {
        let request_state = Arc::new(PendingRequest {
            votes: AtomicUsize::new(0),
            quorum: self.quorum,
            masters: self.connections.len(),
            caller: AtomicWaker::new(),
        });
        for connection in &self.connections {
            let mut queue = connection
                .queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let is_queue_empty = queue.requests.is_empty();
            queue.bytes.extend_from_slice(request);
            queue.requests.push(request_state.clone());
            drop(queue);
            if is_queue_empty {
                connection.task.wake();
            }
        }
        poll_fn(|cx| request_state.poll(cx)).await
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for connection in &self.connections {
            connection.closed.store(true, Ordering::Release);
            connection.task.wake();
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

async fn load_script(stream: &TcpStream, source: &str) -> io::Result<String> {
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
async fn serve(stream: TcpStream, connection: Arc<MasterConnection>) {
    let mut sending: Vec<u8> = Vec::new();
    let mut sent_length = 0;
    let mut new_requests: Vec<Arc<PendingRequest>> = Vec::new();
    let mut unanswered: VecDeque<Arc<PendingRequest>> = VecDeque::new();
    let mut received = vec![0; 1 << 16];
    let mut received_length = 0;
    poll_fn(|cx| {
        connection.task.register(cx.waker());
        if connection.closed.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        // Send all queued requests in one write.
        loop {
            if sent_length == sending.len() {
                sending.clear();
                sent_length = 0;
                let mut queue = connection
                    .queue
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(&mut sending, &mut queue.bytes);
                std::mem::swap(&mut new_requests, &mut queue.requests);
                drop(queue);
                unanswered.extend(new_requests.drain(..));
                if sending.is_empty() {
                    break;
                }
            }
            match stream.try_write(&sending[sent_length..]) {
                Ok(len) => sent_length += len,
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
            match stream.try_read(&mut received[received_length..]) {
                Ok(0) => return Poll::Ready(()),
                Ok(len) => {
                    received_length += len;
                    let mut start = 0;
                    while let Some(end) = received[start..received_length]
                        .iter()
                        .position(|b| *b == b'\n')
                    {
                        let reply = &received[start..=start + end];
                        if let Some(request) = unanswered.pop_front() {
                            request.count_vote(matches!(reply[0], b'+' | b':'));
                        }
                        start += end + 1;
                    }
                    received.copy_within(start..received_length, 0);
                    received_length -= start;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(()),
            }
        }
        Poll::Pending
    })
    .await;
}
