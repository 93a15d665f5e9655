//! The services that a simulated client process provides to the library: clocks, timers, tasks, random bytes, and
//! connections to masters.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use quorate::node::{ChangeOrder, ChangeSeen, Fault, Node, NodeName, Reply, Request, Subscriber};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::testing::Driver;
use quorate::{Instant, RedlockBuilder};

use crate::change_plan::MASTER_NAMES;
use crate::clock::{Clock, EPOCH_US, READING_BITS, RUN_START};
use crate::rng::Rng;
use crate::store_node::WatchedStore;
use crate::store_plan::StorePlan;
use crate::world::{Event, Link, Shared};

/// One life of a client process: from its start until it is killed or its tasks have ended. A restart begins a new
/// life.
pub(crate) struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: usize,
    pub(crate) clock: Clock,
    wall_offset_us: Arc<AtomicI64>,
    random_state: AtomicU64,
    /// The state of the random generator that draws how long each clock reading takes.
    reading_state: AtomicU64,
    /// How often and for how long the process's thread is preempted before a clock reading: the probability in parts
    /// per million, and the longest duration in nanoseconds.
    preemption: (u32, u64),
    is_dead: AtomicBool,
}

impl Process {
    /// Starts a new life of `client`, with connections to all masters with which the client is configured.
    pub(crate) fn with_connections(
        shared: &Arc<Shared>,
        client: usize,
    ) -> (Arc<Self>, Vec<Arc<dyn Node>>) {
        let process = Self::without_connections(shared, client);
        let nodes = process.connect();
        (process, nodes)
    }

    /// Opens new connections to all masters with which this client is configured.
    fn connect(&self) -> Vec<Arc<dyn Node>> {
        self.connect_with(|settings| settings)
    }

    /// Opens new connections to all masters with which this client is configured. `configure` changes the settings of
    /// the connections.
    pub(crate) fn connect_with(
        &self,
        configure: impl FnOnce(RedlockBuilder) -> RedlockBuilder,
    ) -> Vec<Arc<dyn Node>> {
        let (shared, client) = (&self.shared, self.client);
        let mut world = shared.world();
        world.processes[client].first_request = None;
        let salt = (client as u64) << 32 | u64::from(world.processes[client].starts) << 8;
        let seed = world.scenario.seed;
        let first_link = world.links.len();
        let configuration = world.start_next_step(client);
        let masters = configuration.all_masters();
        let plans = world.scenario.masters.iter();
        let stores: Vec<Option<StorePlan>> = plans.map(|plan| plan.store).collect();
        let settings = world.scenario.settings;
        let builder = configure(configuration.configure(settings.builder()));
        let jitter = Rng::stream(seed, 3 << 48 | salt).draw();
        let drivers: Vec<Arc<Driver>> = quorate::testing::drivers(&builder, jitter)
            .expect("the addresses must be valid")
            .into_iter()
            .map(Arc::new)
            .collect();
        for (master, driver) in masters.iter().zip(&drivers) {
            let rng = Rng::stream(seed, 1 << 48 | salt | *master as u64);
            world
                .links
                .push(Link::new(client, *master, driver.clone(), rng));
        }
        drop(world);
        let node = |(index, &master): (usize, &usize)| {
            let link = first_link + index;
            match stores[master] {
                Some(plan) => {
                    let store = WatchedStore::new(
                        MASTER_NAMES[master],
                        plan,
                        shared,
                        (client, master, link),
                    );
                    Arc::new(store) as Arc<dyn Node>
                }
                None => Arc::new(SimNode {
                    driver: drivers[index].clone(),
                    shared: Arc::downgrade(shared),
                    link,
                }),
            }
        };
        let nodes: Vec<Arc<dyn Node>> = masters.iter().enumerate().map(node).collect();
        let store_nodes = masters
            .iter()
            .zip(&nodes)
            .filter(|(master, _)| stores[**master].is_some());
        let connections = store_nodes.map(|(master, node)| (client, *master, node.clone()));
        let previous = shared
            .world()
            .replace_store_connections(client, connections.collect());
        drop(previous);
        nodes
    }

    /// Starts a new life of `client`, without connections to masters.
    pub(crate) fn without_connections(shared: &Arc<Shared>, client: usize) -> Arc<Self> {
        let mut world = shared.world();
        let process = &mut world.processes[client];
        process.starts += 1;
        let (clock, wall_us) = (process.clock, process.wall_us.clone());
        let salt = (client as u64) << 32 | u64::from(process.starts) << 8;
        let seed = world.scenario.seed;
        let net = world.scenario.net;
        drop(world);
        Arc::new(Self {
            shared: shared.clone(),
            client,
            clock,
            wall_offset_us: wall_us,
            random_state: AtomicU64::new(Rng::stream(seed, 2 << 48 | salt).draw()),
            reading_state: AtomicU64::new(Rng::stream(seed, 4 << 48 | salt).draw()),
            preemption: (net.preempt_ppm, net.preempt),
            is_dead: AtomicBool::new(false),
        })
    }

    /// Ends this life of the process. After this call, `spawn` fails.
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    /// Whether this life has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }
}

/// The multiplier and the increment of Knuth's linear congruential generator. It draws a random number for each clock
/// reading.
const GENERATOR: (u64, u64) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);

impl Runtime for Process {
    fn now(&self) -> Instant {
        let previous = self.reading_state.load(Ordering::Relaxed);
        let random_bits = previous.wrapping_mul(GENERATOR.0).wrapping_add(GENERATOR.1);
        self.reading_state.store(random_bits, Ordering::Relaxed);
        let (ppm, longest) = self.preemption;
        // The low bits of this generator have short periods. So the middle bits decide whether to preempt, and the
        // highest bits give durations.
        if ppm > 0 && (random_bits >> 20) % 1_000_000 < u64::from(ppm) {
            self.shared
                .preempt(self.client, longest / 1_000 * (random_bits >> 54));
        }
        let now = self
            .shared
            .advance_clock(random_bits >> (64 - READING_BITS));
        Instant::from_nanos(self.clock.read(now))
    }

    fn wall_micros(&self) -> u64 {
        let elapsed = (self.shared.now() - RUN_START) / 1_000;
        (EPOCH_US + elapsed).saturating_add_signed(self.wall_offset_us.load(Ordering::Relaxed))
    }

    fn machine(&self) -> Option<u64> {
        // Each client has a machine of its own, whose clock runs on when the client's process starts again.
        Some(self.client as u64 + 1)
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        Box::pin(Sleep {
            shared: Arc::downgrade(&self.shared),
            client: self.client,
            fires_at: self.clock.time_of_reading(at.as_nanos()),
            timer_slot: None,
        })
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        if self.is_dead.load(Ordering::Relaxed) {
            return false;
        }
        self.shared.world().spawned_tasks.push((self.client, task));
        true
    }

    fn random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let mut rng = Rng::new(self.random_state.load(Ordering::Relaxed));
            let random_bytes = rng.draw().to_le_bytes();
            self.random_state
                .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            chunk.copy_from_slice(&random_bytes[..chunk.len()]);
        }
    }
}

/// A timer of a process. It fires when the process's clock shows a given time.
struct Sleep {
    shared: Weak<Shared>,
    client: usize,
    /// The true time at which the timer fires; `None` for never.
    fires_at: Option<u64>,
    timer_slot: Option<u32>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (Some(shared), Some(fires_at)) = (self.shared.upgrade(), self.fires_at) else {
            return Poll::Pending;
        };
        if shared.now() >= fires_at {
            return Poll::Ready(());
        }
        let mut world = shared.world();
        if let Some(index) = self.timer_slot {
            let timer_waker = &mut world.timers[index as usize].waker;
            match timer_waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                timer_waker => *timer_waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let index = world.free_timers.pop().unwrap_or_else(|| {
            world.timers.push(crate::world::TimerSlot::default());
            world.timers.len() as u32 - 1
        });
        let timer = &mut world.timers[index as usize];
        timer.waker = Some(cx.waker().clone());
        let (serial, client) = (timer.serial, self.client as u8);
        world.schedule(
            fires_at,
            Event::Timer {
                client,
                slot: index,
                serial,
            },
        );
        self.timer_slot = Some(index);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let (Some(shared), Some(index)) = (self.shared.upgrade(), self.timer_slot) else {
            return;
        };
        let mut world = shared.world();
        // After the end of a run, the world has no timers.
        if let Some(timer) = world.timers.get_mut(index as usize) {
            timer.serial += 1;
            let waker = timer.waker.take();
            world.free_timers.push(index);
            drop(world);
            drop(waker);
        }
    }
}

/// The `Node` of a Redis master in one client process.
struct SimNode {
    driver: Arc<Driver>,
    shared: Weak<Shared>,
    link: usize,
}

impl Node for SimNode {
    fn name(&self) -> &NodeName {
        self.driver.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        // After the end of a run, drop `reply`, so that the caller gets an error.
        if let Some(shared) = self.shared.upgrade() {
            shared.send(self.link, request, reply);
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.driver.subscribe(subscriber);
    }

    fn doubted_for(&self) -> Option<Duration> {
        self.driver.doubted_for()
    }

    fn idle(&self) -> BoxFuture<()> {
        self.driver.idle()
    }

    fn change(&self, order: ChangeOrder) -> BoxFuture<ChangeSeen> {
        let (change, shared) = (self.driver.change(order), self.shared.clone());
        Box::pin(async move {
            let seen = change.await;
            let is_unanswered =
                matches!(seen.fault, Some(Fault::Timeout(_) | Fault::NoConnection(_)));
            if let Some(shared) = shared.upgrade() {
                shared.world().observer.coverage.unanswered_commands += u64::from(is_unanswered);
            }
            seen
        })
    }
}
