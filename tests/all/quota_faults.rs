//! Tests a quota under every kind of injected fault. A random seed for each test run decides which faults occur.
//! Messages are lost, delayed and repeated, masters do not answer, calls are dropped, and masters lose their data or
//! restart with old data.
//!
//! The tests use tokio's clock, which advances only when no task can run. So a simulated minute takes milliseconds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{ms, secs};
use quorate::node::memory::Master;
use quorate::node::{Fault, Node, NodeName, Reply, Request, ServerRun};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{Instant, Redlock, Retry, Take, ValueError, Wait};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const NODE_TIMEOUT: Duration = ms(50);
const TTL: Duration = secs(1);
/// The longest TTL. Fencing tokens are only guaranteed to rise if it is longer than 2 s.
const MAX_TTL: Duration = secs(4);

/// A simple random generator. Its seed determines all random decisions of a test run.
#[derive(Clone)]
struct Dice(Arc<AtomicU64>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    fn roll(&self) -> u64 {
        let state = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// Returns true with probability 1 / `times`.
    fn once_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn up_to(&self, longest: Duration) -> Duration {
        Duration::from_micros(self.below(longest.as_micros() as u64 + 1))
    }
}

/// A runtime of the library for these tests: a clock and timers in tokio's time, and random numbers from a seed.
#[derive(Clone)]
struct SimulatedRuntime {
    started_at: tokio::time::Instant,
    dice: Dice,
}

impl SimulatedRuntime {
    fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }
}

impl Runtime for SimulatedRuntime {
    fn now(&self) -> Instant {
        Instant::from_nanos(1_000_000_000 + self.elapsed().as_nanos() as u64)
    }

    fn wall_micros(&self) -> u64 {
        1_700_000_000_000_000 + self.elapsed().as_micros() as u64
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let remaining = at.saturating_since(self.now());
        // Limit every timer to an hour. Otherwise tokio's clock could jump to the end of a very long timer.
        let wake_at = tokio::time::Instant::now() + remaining.min(secs(3600));
        Box::pin(tokio::time::sleep_until(wake_at))
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        tokio::spawn(task);
        true
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.dice.roll() as u8);
    }
}

/// A simulated server. `run` is the number of its restarts. Until the time `silent_until`, it refuses every request
/// that needs its vote.
struct Server {
    master: Master,
    run: u64,
    /// The data on the disk, which the server may load when it restarts.
    disk: Master,
    silent_until: Duration,
}

impl Server {
    fn run(&self) -> ServerRun {
        ServerRun::new(self.run.to_string())
    }

    fn restart(&mut self, data: Master, now: Duration) {
        self.master = data;
        self.run += 1;
        let run = self.run();
        self.master.set_run(run);
        self.silent_until = now + MAX_TTL;
    }
}

/// The time at which the network between one client and one server works again.
type BlockedUntil = Arc<Mutex<Duration>>;

/// The connection of one client to one server. Requests are executed in order. A request is lost if the server has
/// restarted since it was sent.
struct Connection {
    name: NodeName,
    request_sender: UnboundedSender<(Request, Reply)>,
}

impl Connection {
    fn new(
        name: &str,
        server: &Arc<Mutex<Server>>,
        runtime: &SimulatedRuntime,
        fault_interval: u64,
    ) -> (Self, BlockedUntil) {
        let (request_sender, mut queue) = unbounded_channel::<(Request, Reply)>();
        let (server, runtime) = (server.clone(), runtime.clone());
        let blocked_until = BlockedUntil::default();
        let end_of_block = blocked_until.clone();
        tokio::spawn(async move {
            while let Some((request, reply)) = queue.recv().await {
                if runtime.elapsed() < *end_of_block.lock().expect("no panic") {
                    reply.answer(Err(Fault::Down("the connection is cut".into())));
                } else {
                    deliver(&server, &runtime, request, reply, fault_interval).await;
                }
            }
        });
        let name = NodeName::new(name);
        (
            Self {
                name,
                request_sender,
            },
            blocked_until,
        )
    }
}

impl Node for Connection {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: Reply) {
        let _ = self.request_sender.send((request, reply));
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// Delivers one request to the server, with random faults. The server may execute the request never, once or twice, and
/// the client may get no answer. If `fault_interval` is 10, each kind of fault affects about every tenth request.
async fn deliver(
    server: &Arc<Mutex<Server>>,
    runtime: &SimulatedRuntime,
    request: Request,
    mut reply: Reply,
    fault_interval: u64,
) {
    let dice = &runtime.dice;
    let disconnected = || Err(Fault::Disconnected("cut".into()));
    // Refuse a request if the client has withdrawn it, its deadline has passed, or the server has restarted since.
    let run = {
        let server = server.lock().expect("no panic");
        let now = runtime.elapsed();
        let remaining_silence = server.silent_until.saturating_sub(now);
        if request.is_withdrawn() || request.is_void(runtime.now(), &server.run()) {
            return reply.answer(Err(Fault::Withdrawn));
        }
        if request.is_vote() && !remaining_silence.is_zero() {
            return reply.answer(Err(Fault::Quarantined(remaining_silence)));
        }
        server.run
    };
    let execute = {
        let (server, runtime) = (server.clone(), runtime.clone());
        move |request: &Request| {
            let mut server = server.lock().expect("no panic");
            let wall_micros = runtime.wall_micros();
            // A restart of the server ends the connection, so the server does not execute later requests of this
            // connection.
            (server.run == run).then(|| server.master.apply(wall_micros, request))
        }
    };
    tokio::time::sleep(dice.up_to(ms(2))).await;
    if dice.once_in(fault_interval) {
        return reply.answer(disconnected());
    }
    let execute_later = |longest: Duration| {
        let (execute, request, delay) = (execute.clone(), request.clone(), dice.up_to(longest));
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            execute(&request)
        })
    };
    if dice.once_in(fault_interval) {
        // The client gets a timeout. The server may still execute the request during the next three seconds.
        execute_later(secs(3));
        tokio::time::sleep(NODE_TIMEOUT).await;
        return reply.time_out(Fault::Timeout(NODE_TIMEOUT));
    }
    let answer = execute(&request);
    if dice.once_in(fault_interval) {
        execute_later(secs(6));
    }
    if dice.once_in(fault_interval) {
        return reply.answer(disconnected());
    }
    tokio::time::sleep(dice.up_to(ms(2))).await;
    reply.answer(answer.unwrap_or_else(disconnected));
}

/// The numbers of events in one test run.
#[derive(Debug, Default)]
struct Events {
    /// For each taken unit, the number of units that remained. A repeated number means that a unit was taken twice.
    units_left: Vec<u64>,
    unknown: u64,
    dropped: u64,
    restarts: u64,
    lost: u64,
    sold_out: u64,
}

const UNITS: u64 = 30;

/// Injects one random fault into a connection or a server. Returns true if a server was restarted.
fn inject_fault(
    runtime: &SimulatedRuntime,
    servers: &[Arc<Mutex<Server>>],
    blocked_until: &[BlockedUntil],
) -> bool {
    let (dice, now) = (&runtime.dice, runtime.elapsed());
    let random_index = |count: usize| dice.below(count as u64) as usize;
    if dice.once_in(2) {
        *blocked_until[random_index(blocked_until.len())]
            .lock()
            .expect("no panic") = now + dice.up_to(secs(10));
        return false;
    }
    let mut server = servers[random_index(servers.len())]
        .lock()
        .expect("no panic");
    match dice.below(4) {
        0 => server.restart(Master::default(), now),
        1 => {
            let disk = server.disk.clone();
            server.restart(disk, now);
        }
        _ => {
            server.disk = server.master.clone();
            return false;
        }
    }
    true
}

async fn simulate(seed: u64) -> Events {
    let dice = Dice::new(seed);
    let runtime = SimulatedRuntime {
        started_at: tokio::time::Instant::now(),
        dice: dice.clone(),
    };
    let masters = if dice.once_in(3) { 5 } else { 3 };
    let fault_interval = 6 + dice.below(60);
    let servers: Vec<_> = (0..masters)
        .map(|_| {
            let server = Server {
                master: Master::default(),
                run: 1,
                disk: Master::default(),
                silent_until: Duration::ZERO,
            };
            Arc::new(Mutex::new(server))
        })
        .collect();
    let mut all_blocked_until: Vec<BlockedUntil> = Vec::new();
    let mut new_client = |fault_interval: u64| {
        let connections = servers.iter().enumerate().map(|(n, server)| {
            let (connection, blocked_until) =
                Connection::new(&format!("m{n}"), server, &runtime, fault_interval);
            all_blocked_until.push(blocked_until);
            Arc::new(connection) as Arc<dyn Node>
        });
        let connections: Vec<_> = connections.collect();
        Redlock::builder()
            .nodes(connections)
            .runtime(Arc::new(runtime.clone()))
            .ttl(TTL)
            .max_ttl(MAX_TTL)
            .node_timeout(NODE_TIMEOUT)
            .retry(Retry::new(ms(5), ms(50)).seed(seed))
            .wait(Wait::For(secs(3)))
            .build()
            .expect("good settings")
    };
    new_client(u64::MAX)
        .quota("prizes")
        .create(UNITS)
        .await
        .expect("the quota must be created, because no fault is injected yet");
    let events = Arc::new(Mutex::new(Events::default()));
    let callers: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn(take_units_repeatedly(
                new_client(fault_interval).quota("prizes"),
                runtime.clone(),
                events.clone(),
            ))
        })
        .collect();
    // The longest pause between two injected faults.
    let interval = secs(1 + dice.below(8));
    let mut restarts = 0;
    while !callers.iter().all(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(dice.up_to(interval)).await;
        restarts += u64::from(inject_fault(&runtime, &servers, &all_blocked_until));
    }
    for caller in callers {
        caller.await.expect("no panic");
    }
    let mut events = std::mem::take(&mut *events.lock().expect("no panic"));
    events.restarts += restarts;
    events.assert_is_correct(seed);
    events
}

impl Events {
    /// Checks that no unit was taken twice, and that no more units were taken than were created.
    fn assert_is_correct(&self, seed: u64) {
        let mut counted_units = self.units_left.clone();
        counted_units.sort_unstable();
        counted_units.dedup();
        let taken_count = self.units_left.len();
        assert_eq!(
            counted_units.len(),
            taken_count,
            "seed {seed}: a quota unit was taken twice: {self:?}"
        );
        let all_were_there = counted_units.iter().all(|units| *units < UNITS);
        assert!(all_were_there, "seed {seed}: {self:?}");
    }
}

/// Takes units until no unit is left, the result of a call is unknown, or a minute has passed. Cancels some of the
/// calls before they end.
async fn take_units_repeatedly(
    quota: quorate::Quota,
    runtime: SimulatedRuntime,
    events: Arc<Mutex<Events>>,
) {
    let count_event = |what: fn(&mut Events)| what(&mut events.lock().expect("no panic"));
    while runtime.elapsed() < secs(60) {
        let dice = &runtime.dice;
        tokio::time::sleep(dice.up_to(ms(400))).await;
        let call_limit = if dice.once_in(4) {
            dice.up_to(ms(30))
        } else {
            secs(30)
        };
        match tokio::time::timeout(call_limit, quota.take(1)).await {
            Err(_) => count_event(|events| events.dropped += 1),
            Ok(Ok(Take::Taken { left: remaining })) => {
                events.lock().expect("no panic").units_left.push(remaining);
            }
            Ok(Ok(Take::SoldOut { .. })) => return count_event(|events| events.sold_out += 1),
            Ok(Err(ValueError::Unknown(_))) => count_event(|events| events.unknown += 1),
            Ok(Err(ValueError::Lost(_) | ValueError::Missing(_))) => {
                return count_event(|events| events.lost += 1);
            }
            Ok(Err(_)) => {}
        }
    }
}

#[test]
fn quota_hands_out_no_more_units_than_it_has_under_random_faults() {
    const RUNS: u64 = 30;
    let first = quorate_contract::seed();
    let mut total = Events::default();
    let mut taken_total = 0;
    for seed in first..first + RUNS {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let events = runtime.block_on(simulate(seed));
        taken_total += events.units_left.len() as u64;
        total.unknown += events.unknown;
        total.dropped += events.dropped;
        total.restarts += events.restarts;
        total.lost += events.lost;
        total.sold_out += events.sold_out;
    }
    println!("{RUNS} runs from seed {first}: {taken_total} units taken, {total:?}");
    let has_enough_events =
        taken_total > RUNS && total.unknown > RUNS / 4 && total.dropped > RUNS / 4;
    assert!(
        has_enough_events && total.restarts > RUNS && total.lost > 0 && total.sold_out > 0,
        "{total:?}"
    );
}
