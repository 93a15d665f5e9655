//! The baseline of the contention benchmark: the minimal cost of moving a quorum lock from one process to another and
//! back.
//!
//! A process acquires the lock with `SET NX PX`, and releases it with a script. If the key holds the value of this
//! process, the script deletes the key and publishes a notification for the other process.
//!
//! All requests go over plain TCP.
//!
//! The baseline has no queue, no fencing token and no timeout. It does not detect that a lock is lost.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::Write;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use quorate::Instant;
use tokio::net::TcpStream;

use super::{Acquisition, HOLD, RESOURCE};

const RELEASE: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then redis.call('DEL',KEYS[1]) \
    redis.call('PUBLISH',ARGV[2],'free') return 1 end return 0";

/// Counts messages of one kind, and wakes the one task that waits for the count to reach a given number.
#[derive(Default)]
struct MessageCount {
    count: Cell<usize>,
    waker: Cell<Option<Waker>>,
}

impl MessageCount {
    fn add(&self, count: usize) {
        self.count.set(self.count.get() + count);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits until the count is at least `target`. Does not reset the count.
    async fn wait_for(&self, target: usize) {
        poll_fn(|cx| {
            if self.count.get() >= target {
                return Poll::Ready(());
            }
            self.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

/// One of the two processes that hold the lock alternately.
struct Process {
    masters: Vec<Rc<TcpStream>>,
    quorum: usize,
    /// The number of masters that have replied positively (`+OK` or `:1`) to the latest command of this process.
    positive_replies: Rc<MessageCount>,
    /// Counts release notifications: each master sends one when the other process has released the lock there.
    release_notifications: Rc<MessageCount>,
}

fn encode_command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let _ = write!(bytes, "${}\r\n{word}\r\n", word.len());
    }
    bytes
}

/// Starts a task that reads from `stream` until the connection ends. The task calls `count_messages` for each chunk of
/// bytes, and adds the result to `counter`.
fn listen(stream: Rc<TcpStream>, counter: Rc<MessageCount>, count_messages: fn(&[u8]) -> usize) {
    tokio::task::spawn_local(async move {
        let mut buffer = [0; 4096];
        loop {
            if stream.readable().await.is_err() {
                return;
            }
            match stream.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => counter.add(count_messages(&buffer[..length])),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    });
}

async fn open_connection(address: &str) -> Rc<TcpStream> {
    let stream = TcpStream::connect(address)
        .await
        .expect("the master must accept a connection");
    stream
        .set_nodelay(true)
        .expect("the socket must accept TCP_NODELAY");
    Rc::new(stream)
}

impl Process {
    async fn connect(addresses: &[&str], channel: &str) -> Self {
        let (positive_replies, release_notifications) =
            (Rc::<MessageCount>::default(), Rc::<MessageCount>::default());
        let mut masters = Vec::new();
        for address in addresses {
            let (command_stream, listening_stream) = (
                open_connection(address).await,
                open_connection(address).await,
            );
            listen(command_stream.clone(), positive_replies.clone(), |bytes| {
                bytes.iter().filter(|b| **b == b'+' || **b == b':').count()
            });
            let subscribe = encode_command(&["SUBSCRIBE", channel]);
            listening_stream
                .try_write(&subscribe)
                .expect("the request must be written");
            // Each notification of a release contains the word `free` once, so count this word.
            listen(listening_stream, release_notifications.clone(), |bytes| {
                bytes.windows(4).filter(|window| window == b"free").count()
            });
            masters.push(command_stream);
        }
        let quorum = masters.len() / 2 + 1;
        Self {
            masters,
            quorum,
            positive_replies,
            release_notifications,
        }
    }

    /// Sends a request to all masters, and waits until a majority of the masters has replied positively.
    async fn send_to_all(&self, request: &[u8]) {
        self.positive_replies.count.set(0);
        for master in &self.masters {
            let length = master
                .try_write(request)
                .expect("the request must be written");
            assert_eq!(length, request.len());
        }
        self.positive_replies.wait_for(self.quorum).await;
    }
}

/// Acquires and releases the lock `turns` times as process `process_index` (0 or 1), alternately with the other
/// process. Process 0 begins. Returns the acquisitions of this process.
pub(super) async fn run_process(
    addresses: &[&str],
    process_index: usize,
    turns: usize,
) -> Vec<Acquisition> {
    let channel_of = |process: usize| format!("least:{process}");
    let process = Process::connect(addresses, &channel_of(process_index)).await;
    let load = encode_command(&["SCRIPT", "LOAD", RELEASE]);
    // The reply to SCRIPT LOAD begins with neither `+` nor `:`, so `positive_replies` does not count it.
    for master in &process.masters {
        master
            .try_write(&load)
            .expect("the request must be written");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("ready");
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("the worker must read the start command from stdin");
    let token = format!("{:032}", std::process::id());
    let acquire_command = encode_command(&["SET", RESOURCE, &token, "NX", "PX", "10000"]);
    let next_channel = channel_of(1 - process_index);
    let release_command = encode_command(&["EVAL", RELEASE, "1", RESOURCE, &token, &next_channel]);
    let mut acquisitions = Vec::new();
    for turn in 0..turns {
        if turn > 0 || process_index > 0 {
            process.release_notifications.wait_for(process.quorum).await;
        }
        let sent_at = Instant::now().as_nanos();
        process.send_to_all(&acquire_command).await;
        let acquired_at = Instant::now().as_nanos();
        tokio::time::sleep(HOLD).await;
        // Reset the count for the other process's next release. The last notifications arrived during `HOLD`.
        process.release_notifications.count.set(0);
        let released_at = Instant::now().as_nanos();
        process.send_to_all(&release_command).await;
        acquisitions.push(Acquisition {
            task: 0,
            granted_in: acquired_at - sent_at,
            acquired_at,
            released_at,
            order: (2 * turn + process_index) as u64,
        });
    }
    acquisitions
}
