//! Measures parts of the library without a network: `cargo bench -p quorate-bench`.
//!
//! - The benchmark `core` uses nodes that grant every request at once, inside `Node::send`. It measures only the
//!   library's own work: sending the requests, counting the votes, creating the guard, and scheduling the renewal.
//! - The benchmark `actor` measures one node: its connection, and the task that owns the connection. Another task
//!   answers the node's requests over an in-memory pipe.

#![allow(
    missing_docs,
    reason = "the macros of criterion generate undocumented functions"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::FutureExt;
use quorate::node::{
    Answer, Claim, Dial, Extended, Fault, Node, NodeName, Phase, Reply, ReplySink, Request, Stream,
};
use quorate::runtime::BoxFuture;
use quorate::testing::connect;
use quorate::{LockGuard, Redlock, RedlockBuilder, Retry, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// A node that grants every request at once, inside `Node::send`. All nodes share one fencing counter.
struct GrantingNode {
    name: NodeName,
    counter: Arc<AtomicU64>,
    is_fenced: bool,
}

impl Node for GrantingNode {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: Reply) {
        reply.answer(Ok(match request {
            Request::Acquire { proposal, .. } => Answer::Granted {
                // All nodes answer one acquire with the same token: only the first answer can raise the shared counter.
                counter: self.is_fenced.then(|| {
                    self.counter
                        .fetch_max(proposal, Ordering::Relaxed)
                        .max(proposal)
                }),
            },
            Request::Confirm { .. } => Answer::Confirmed,
            Request::Extend { items } => Answer::Extended(vec![Extended::Kept; items.len()]),
            _ => Answer::Released(true),
        }));
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// A lock builder with `masters` nodes of the type `GrantingNode`.
fn granting_builder(masters: usize, is_fenced: bool) -> RedlockBuilder {
    let counter = Arc::new(AtomicU64::new(0));
    let new_node = |number| {
        Arc::new(GrantingNode {
            name: NodeName::new(format!("yes-{number}")),
            counter: counter.clone(),
            is_fenced,
        }) as Arc<dyn Node>
    };
    Redlock::builder()
        .nodes((0..masters).map(new_node).collect())
        // The TTL is so large that no lock is renewed during a measurement.
        .ttl(Duration::from_secs(3000))
        .max_ttl(Duration::from_secs(3000))
        .fencing(is_fenced)
}

fn new_runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the async runtime must start")
}

/// Acquires and releases one lock `times` times. Returns the elapsed time.
fn time_cycles(runtime: &Runtime, redlock: &Redlock, times: u64) -> Duration {
    runtime.block_on(async {
        let started_at = Instant::now();
        for _ in 0..times {
            let guard = redlock
                .acquire("bench")
                .await
                .expect("the lock must be granted");
            black_box(guard.release().await);
        }
        started_at.elapsed()
    })
}

fn bench_core(c: &mut Criterion) {
    let mut group =
        c.benchmark_group("acquire and release in the library, without network or servers");
    let runtime = new_runtime();
    for masters in [1, 3, 5, 9] {
        let settings = [
            ("classic", granting_builder(masters, false)),
            (
                "fenced",
                granting_builder(masters, true).order(quorate::Order::Unordered),
            ),
            ("default", granting_builder(masters, true)),
        ];
        for (setting, builder) in settings {
            let redlock = builder.build().expect("the settings must be valid");
            group.bench_function(BenchmarkId::new(setting, masters), |b| {
                b.iter_custom(|times| time_cycles(&runtime, &redlock, times));
            });
        }
    }
    group.finish();
}

/// Reads commands and answers each of them like a master. The answer depends only on the name of the command.
async fn serve(mut stream: DuplexStream) {
    let mut input = Vec::with_capacity(1 << 16);
    let mut replies = Vec::with_capacity(1 << 16);
    while let Ok(1..) = stream.read_buf(&mut input).await {
        let mut offset = 0;
        while let Some((name, len)) = parse_command(&input[offset..]) {
            replies.extend_from_slice(match name {
                b"HELLO" => b"%1\r\n+proto\r\n:3\r\n",
                b"INFO" => b"$38\r\nrun_id:a\r\nuptime_in_seconds:99999999\r\n\r\n",
                b"SCRIPT" => b"$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
                b"EVALSHA" | b"CLIENT" => b":1\r\n",
                b"GET" => b"_\r\n",
                _ => b"+OK\r\n",
            });
            offset += len;
        }
        input.drain(..offset);
        if stream.write_all(&replies).await.is_err() {
            return;
        }
        replies.clear();
    }
}

/// Returns the name of the first command and the length of the command in bytes. `None` if the command is incomplete.
fn parse_command(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let parse_number = |offset: usize| {
        let line = bytes.get(offset + 1..)?;
        let end = line.iter().position(|byte| *byte == b'\r')?;
        let number = std::str::from_utf8(&line[..end]).ok()?.parse().ok()?;
        Some((number, offset + 1 + end + 2))
    };
    let (word_count, mut offset): (usize, usize) = parse_number(0)?;
    let mut name = &bytes[..0];
    for word in 0..word_count {
        let (len, start): (usize, usize) = parse_number(offset)?;
        offset = start + len + 2;
        if word == 0 {
            name = bytes.get(start..start + len)?;
        }
    }
    (offset <= bytes.len()).then_some((name, offset))
}

/// Counts answers, and wakes the waiting task when the expected number of answers has arrived.
#[derive(Default)]
struct Tally {
    remaining: AtomicU64,
    all_answered: Notify,
}

impl ReplySink for Tally {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        black_box(&answer)
            .as_ref()
            .expect("the request must not fail");
        if self.remaining.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.all_answered.notify_one();
        }
    }
}

/// Measures pairs of an acquire and its release through one node. Another task answers every request over an in-memory
/// pipe. The measured time includes the work of the other task.
fn bench_actor(c: &mut Criterion) {
    let mut group = c.benchmark_group("acquire and release over one in-memory connection");
    let runtime = new_runtime();
    for (setting, is_fenced) in [("classic", false), ("fenced", true)] {
        for burst in [1_u64, 64, 512] {
            let dial: Dial = Arc::new(|_: &str, _: u16| {
                Box::pin(async {
                    let (client_end, server_end) = tokio::io::duplex(1 << 18);
                    tokio::spawn(serve(server_end));
                    Ok(Box::new(client_end) as Box<dyn Stream>)
                })
            });
            let settings = Redlock::builder().dial(dial);
            let node = connect("redis://pipe", &settings).expect("the settings must be valid");
            let tally = Arc::new(Tally::default());
            let mut n: u128 = 0;
            group.throughput(Throughput::Elements(burst));
            group.bench_function(BenchmarkId::new(setting, burst), |b| {
                b.iter(|| {
                    tally.remaining.store(2 * burst, Ordering::Relaxed);
                    runtime.block_on(async {
                        for _ in 0..burst {
                            n += 1;
                            let token = Token::from_bytes(n.to_be_bytes());
                            let claim = Arc::new(Claim::new("", b"bench", token, is_fenced));
                            let acquire = Request::Acquire {
                                claim: claim.clone(),
                                ttl: Duration::from_secs(10),
                                proposal: 1,
                            };
                            node.send(acquire, Reply::new(tally.clone(), 0, Phase::Acquire));
                            let release = Request::Release { claim, leave: true };
                            node.send(release, Reply::new(tally.clone(), 0, Phase::Release));
                        }
                        tally.all_answered.notified().await;
                    });
                });
            });
        }
    }
    group.finish();
}

fn bench_guard(c: &mut Criterion) {
    let mut group = c.benchmark_group("guard");
    let runtime = new_runtime();
    let redlock = granting_builder(5, true)
        .build()
        .expect("the settings must be valid");
    let guard = runtime.block_on(async {
        redlock
            .acquire("bench")
            .await
            .expect("the lock must be granted")
    });
    let _inside = runtime.enter();
    group.bench_function("is_valid", |b| b.iter(|| black_box(guard.is_valid())));
    group.bench_function("valid_until", |b| b.iter(|| black_box(guard.valid_until())));
    group.bench_function("report", |b| b.iter(|| black_box(guard.report())));
    group.bench_function("lost, polled once", |b| {
        b.iter(|| black_box(guard.lost().now_or_never()));
    });
    group.bench_function("extend", |b| {
        b.iter_custom(|times| {
            complete_in_one_poll(async {
                let started_at = Instant::now();
                for _ in 0..times {
                    guard
                        .extend(Duration::from_secs(10))
                        .await
                        .expect("the extension must succeed");
                }
                started_at.elapsed()
            })
        });
    });
    group.finish();
    drop(guard);
}

/// Polls the future once, without a runtime. The future is complete after this poll, because the nodes answer every
/// request at once.
fn complete_in_one_poll<T>(future: impl Future<Output = T>) -> T {
    future
        .now_or_never()
        .expect("the first poll must complete the future")
}

fn bench_held_locks(c: &mut Criterion) {
    let mut group = c.benchmark_group("acquire and release a lock while other locks are held");
    let runtime = new_runtime();
    for held_locks in [0, 1_000, 10_000, 100_000] {
        let redlock = granting_builder(5, true)
            .build()
            .expect("the settings must be valid");
        let guards: Vec<LockGuard> = runtime.block_on(async {
            let mut guards = Vec::with_capacity(held_locks);
            for n in 0..held_locks {
                guards.push(
                    redlock
                        .acquire(format!("held:{n}"))
                        .await
                        .expect("the lock must be granted"),
                );
            }
            guards
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("beside", held_locks), |b| {
            b.iter_custom(|times| time_cycles(&runtime, &redlock, times));
        });
        drop(guards);
    }
    group.finish();
}

fn bench_retry(c: &mut Criterion) {
    let retry = Retry::default();
    c.bench_function("retry: ten delays", |b| {
        b.iter(|| retry.delays(black_box(7)).take(10).sum::<Duration>());
    });
}

criterion_group!(
    parts,
    bench_core,
    bench_actor,
    bench_guard,
    bench_held_locks,
    bench_retry
);
criterion_main!(parts);
