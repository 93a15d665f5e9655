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

use super::{HOLD, RESOURCE, Turn};

const RELEASE: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then redis.call('DEL',KEYS[1]) \
    redis.call('PUBLISH',ARGV[2],'free') return 1 end return 0";

/// Counts messages of one kind, and wakes the one task that waits for the count to reach a given number.
#[derive(Default)]
struct Tally {
    count: Cell<usize>,
    waker: Cell<Option<Waker>>,
}

impl Tally {
    fn more(&self, count: usize) {
        self.count.set(self.count.get() + count);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits until the count is at least `enough`. Does not reset the count.
    async fn reaches(&self, enough: usize) {
        poll_fn(|cx| {
            if self.count.get() >= enough {
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
    yes: Rc<Tally>,
    /// Counts release notifications: each master sends one when the other process has released the lock there.
    told: Rc<Tally>,
}

fn words(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let _ = write!(bytes, "${}\r\n{word}\r\n", word.len());
    }
    bytes
}

/// Starts a task that reads from `stream` until the connection ends. The task calls `count` for each chunk of bytes,
/// and adds the result to `tally`.
fn listen(stream: Rc<TcpStream>, tally: Rc<Tally>, count: fn(&[u8]) -> usize) {
    tokio::task::spawn_local(async move {
        let mut buffer = [0; 4096];
        loop {
            if stream.readable().await.is_err() {
                return;
            }
            match stream.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(len) => tally.more(count(&buffer[..len])),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    });
}

async fn connected(address: &str) -> Rc<TcpStream> {
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
        let (yes, told) = (Rc::<Tally>::default(), Rc::<Tally>::default());
        let mut masters = Vec::new();
        for address in addresses {
            let (orders, ear) = (connected(address).await, connected(address).await);
            listen(orders.clone(), yes.clone(), |came| {
                came.iter().filter(|b| **b == b'+' || **b == b':').count()
            });
            let subscribe = words(&["SUBSCRIBE", channel]);
            ear.try_write(&subscribe)
                .expect("the request must be written");
            // Each notification of a release contains the word `free` once, so count this word.
            listen(ear, told.clone(), |came| {
                came.windows(4).filter(|four| four == b"free").count()
            });
            masters.push(orders);
        }
        let quorum = masters.len() / 2 + 1;
        Self {
            masters,
            quorum,
            yes,
            told,
        }
    }

    /// Sends a request to all masters, and waits until a majority of the masters has replied positively.
    async fn ask(&self, request: &[u8]) {
        self.yes.count.set(0);
        for master in &self.masters {
            let len = master
                .try_write(request)
                .expect("the request must be written");
            assert_eq!(len, request.len());
        }
        self.yes.reaches(self.quorum).await;
    }
}

/// Acquires and releases the lock `turns` times as process `this` (0 or 1), alternately with the other process. Process
/// 0 begins. Returns the acquisitions of this process.
pub(super) async fn work(addresses: &[&str], this: usize, turns: usize) -> Vec<Turn> {
    let channel = |of: usize| format!("least:{of}");
    let process = Process::connect(addresses, &channel(this)).await;
    let load = words(&["SCRIPT", "LOAD", RELEASE]);
    // The reply to SCRIPT LOAD begins with neither `+` nor `:`, so the tally `yes` does not count it.
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
    let take = words(&["SET", RESOURCE, &token, "NX", "PX", "10000"]);
    let next = channel(1 - this);
    let give = words(&["EVAL", RELEASE, "1", RESOURCE, &token, &next]);
    let mut taken = Vec::new();
    for turn in 0..turns {
        if turn > 0 || this > 0 {
            process.told.reaches(process.quorum).await;
        }
        let asked = Instant::now().as_nanos();
        process.ask(&take).await;
        let obtained = Instant::now().as_nanos();
        tokio::time::sleep(HOLD).await;
        // Reset the count for the other process's next release. The last notifications arrived during `HOLD`.
        process.told.count.set(0);
        let releasing = Instant::now().as_nanos();
        process.ask(&give).await;
        taken.push(Turn {
            task: 0,
            granted_in: obtained - asked,
            obtained,
            releasing,
            order: (2 * turn + this) as u64,
        });
    }
    taken
}
