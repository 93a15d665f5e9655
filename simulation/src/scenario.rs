//! What one run is made of: drawn from a seed, and small enough to be taken apart again.
//!
//! Swarm testing: each seed first draws which kinds of faults are on at all and how strong they
//! are, so that rare combinations come up. A scenario is plain data: the shrinker leaves parts
//! out and runs it again.

use std::fmt;
use std::time::Duration;

use quorate::{Redlock, RedlockBuilder, RestartGuard, Retry};

use crate::clock::MS;
use crate::rng::Rng;

/// Everything that happens from outside in one run. Times are nanoseconds of simulated time,
/// counted from the beginning of the run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Draws everything that is left to chance while it runs.
    pub seed: u64,
    /// The masters; 1 to 9.
    pub masters: Vec<MasterPlan>,
    /// The client processes.
    pub clients: Vec<ClientPlan>,
    /// How messages travel.
    pub net: Net,
    /// What breaks, and when.
    pub faults: Vec<Fault>,
    /// When the faults are over and the masters are all there again.
    pub heal_at: u64,
    /// How many tasks of each client share its work, side by side.
    pub tasks: u8,
    /// The settings of every client.
    pub settings: Settings,
}

/// One master.
#[derive(Clone, Copy, Debug)]
pub struct MasterPlan {
    /// How far its clock stands from the true time, in microseconds.
    pub offset_us: i64,
    /// How much its clock gains, in millionths.
    pub ppm: i64,
    /// What a restart leaves.
    pub disk: Disk,
}

/// What a restart leaves of a master's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Nothing.
    None,
    /// What stood there a while before the crash.
    Stale,
    /// Everything.
    Always,
}

/// One client process: its clocks and its work.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Where its monotonic clock stands at the beginning, in nanoseconds.
    pub origin: u64,
    /// How much its monotonic clock gains, in millionths.
    pub ppm: i64,
    /// How far its wall clock stands from the true time, in microseconds.
    pub wall_us: i64,
    /// What it does, one after another.
    pub steps: Vec<Step>,
}

/// One acquire and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The pause before it.
    pub think: u64,
    /// The number of the resource.
    pub resource: u8,
    /// How long it is waited for; zero for a single attempt.
    pub wait: u64,
    /// How long the lock is kept.
    pub hold: u64,
    /// Whether it is renewed in the background.
    pub renew: bool,
    /// An extension by hand in the middle, to this ttl.
    pub extend: Option<u64>,
    /// The acquire is dropped when it has been polled this often and is not ready.
    pub cut: Option<u8>,
    /// Dropped instead of released.
    pub drop: bool,
    /// The release, too, is dropped after this many polls.
    pub cut_release: Option<u8>,
}

/// How messages travel.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// One way, at the least, in nanoseconds.
    pub delay: u64,
    /// What comes on top, at the most.
    pub jitter: u64,
    /// How many of a million packets are lost: TCP sends them again, all others wait behind.
    pub loss_ppm: u32,
    /// How long it takes to notice a lost packet.
    pub again: u64,
    /// How many of a million messages are executed a second time, later.
    pub duplicate_ppm: u32,
    /// How late a duplicate may come.
    pub duplicate_late: u64,
    /// How many of a million messages end their connection.
    pub reset_ppm: u32,
    /// How many of a million wake-ups of a task come late: it is paused at an await.
    pub doze_ppm: u32,
    /// How late at the most.
    pub doze: u64,
    /// How many of a million writes are cut into several packets, anywhere.
    pub cut_ppm: u32,
    /// How many of a million broken connections still deliver what was on its way.
    pub leftover_ppm: u32,
    /// Ready tasks are polled in any order.
    pub shuffle: bool,
}

/// One thing that breaks.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When.
    pub at: u64,
    /// What.
    pub kind: FaultKind,
}

/// What can break. Masters and clients are named by their numbers, durations are nanoseconds.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum FaultKind {
    /// A master dies and comes back after `down`. A stale disk is as old as `age`.
    Crash { master: u8, down: u64, age: u64 },
    /// A master stands still.
    Stall { master: u8, lasts: u64 },
    /// A master's clock jumps, by microseconds.
    Jump { master: u8, by_us: i64 },
    /// No packet passes between some clients and some masters (bit masks).
    Partition {
        clients: u16,
        masters: u16,
        to: bool,
        from: bool,
        lasts: u64,
    },
    /// All connections of one master are reset, in the middle of whatever was said.
    Reset { master: u8 },
    /// All connections of one master are forgotten, and nobody is told.
    Forget { master: u8 },
    /// A master refuses all requests of a lock for a while.
    Refuse {
        master: u8,
        how: Refusal,
        lasts: u64,
    },
    /// A master loses its scripts.
    Flush { master: u8 },
    /// A master says something else next, on each connection.
    Garble { master: u8 },
    /// A client process stands still; its clock does not.
    Pause { client: u8, lasts: u64 },
    /// A client process dies and starts anew.
    Kill { client: u8, down: u64 },
}

/// How a master refuses what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Busy,
    OutOfMemory,
    Misconf,
    ReadOnly,
    Denied,
    /// It closes the connection at the first question behind the handshake.
    HangUp,
}

impl Refusal {
    /// Every way to refuse.
    pub(crate) const ALL: [Self; 6] = [
        Self::Busy,
        Self::OutOfMemory,
        Self::Misconf,
        Self::ReadOnly,
        Self::Denied,
        Self::HangUp,
    ];

    /// The reply.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Busy => "-BUSY Redis is busy running a script.\r\n",
            Self::OutOfMemory => "-OOM command not allowed\r\n",
            Self::Misconf => "-MISCONF Errors writing to the disk\r\n",
            Self::ReadOnly => "-READONLY You can't write\r\n",
            Self::Denied => "-NOPERM this user has no permissions\r\n",
            Self::HangUp => "",
        }
    }
}

/// The settings of every client.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the masters are told, in nanoseconds.
    pub ttl: u64,
    /// The longest ttl of the deployment.
    pub max_ttl: u64,
    /// How long one master may take.
    pub node_timeout: u64,
    /// The longest pause between two attempts.
    pub retry_most: u64,
    /// Fencing tokens.
    pub fencing: bool,
    /// First come, first served.
    pub fair: bool,
    /// The restart guard.
    pub guard: bool,
}

/// What must hold in a run, given what its scenario does to the assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// At most one believer. Needs clocks that do not jump and drift within the allowance, and
    /// masters that forget nothing, or a restart guard.
    pub exclusion: bool,
    /// Unique and rising fencing tokens. Needs counters that are kept, or a restart guard with a
    /// `max_ttl` above twice the slack and the largest difference of clocks. Never needs clocks
    /// otherwise.
    pub tokens: bool,
    /// The restart guard can be measured: the masters' uptime is right.
    pub guard: bool,
    /// Clocks of masters do not jump: who has died in a line stays dead.
    pub steady: bool,
    /// The signal of a loss comes in time: tasks are never kept from running.
    pub punctual: bool,
    /// Who was in line on a majority first has the lock first: asked for, and nothing keeps a
    /// waiter from showing signs of life.
    pub order: bool,
}

/// The lease's allowance for drift is 1 %: clocks of one run stay together within 0.8 %.
const WORST_PPM: i64 = 4_000;

/// Twice the slack of a proposal, in microseconds (protocol, section 5).
const TWICE_SLACK_US: i64 = 2_000_000;

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 1);
        let rng = &mut rng;
        let n = usize::from(rng.pick(&[1u8, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7, 9]));
        let c = rng.range(2, 5) as usize;
        let resources = rng.pick(&[1u8, 1, 1, 2, 5, 20]);
        let tasks = rng.pick(&[1u8, 1, 1, 2, 3, 6]);
        // A third of all seeds has a kind of fault on.
        let mut on = |ppm: u32| rng.chance(ppm);
        let (skewed, drifting, jumping) = (on(400_000), on(400_000), on(80_000));
        let (crashing, stalling, cutting) = (on(350_000), on(250_000), on(350_000));
        let (resetting, pausing, killing) = (on(250_000), on(350_000), on(250_000));
        let (losing, doubling, dozing) = (on(250_000), on(300_000), on(200_000));
        let (dropping, slow, shuffle) = (on(400_000), on(250_000), on(300_000));
        let (leftovers, drippy) = (on(500_000), on(150_000));
        let (torn, forgetting, refusing) = (on(400_000), on(200_000), on(250_000));
        let (flushing, garbling) = (on(150_000), on(200_000));

        let settings = Settings::draw(rng);
        let ttl = settings.ttl;
        let heal_at = rng.range(2_000, 5_000) * MS;
        let masters = (0..n)
            .map(|_| MasterPlan {
                offset_us: if skewed {
                    rng.around(350_000)
                } else {
                    rng.around(500)
                },
                ppm: if drifting { rng.around(WORST_PPM) } else { 0 },
                disk: rng.pick(&[Disk::None, Disk::None, Disk::Stale, Disk::Always]),
            })
            .collect();
        let steps = rng.range(4, 14) * (1 + u64::from(tasks) / 2);
        let clients: Vec<ClientPlan> = (0..c)
            .map(|_| ClientPlan {
                origin: rng.range(1, 1 << 50),
                ppm: if drifting { rng.around(WORST_PPM) } else { 0 },
                wall_us: if skewed {
                    rng.around(5_000_000)
                } else {
                    rng.around(2_000)
                },
                steps: (0..steps)
                    .map(|_| Step::draw(rng, resources, ttl, dropping))
                    .collect(),
            })
            .collect();
        let net = Net {
            delay: rng.range(50_000, if slow { 8 * MS } else { MS }),
            jitter: rng.range(10_000, if slow { 30 * MS } else { MS }),
            loss_ppm: if losing {
                rng.range(1_000, 50_000) as u32
            } else {
                0
            },
            again: rng.range(5, 200) * MS,
            duplicate_ppm: if doubling {
                rng.range(1_000, 60_000) as u32
            } else {
                0
            },
            duplicate_late: rng.range(1, 2 * ttl / MS) * MS,
            reset_ppm: if drippy {
                rng.range(500, 10_000) as u32
            } else {
                0
            },
            doze_ppm: if dozing {
                rng.range(1_000, 80_000) as u32
            } else {
                0
            },
            doze: rng.range(1, 2 * ttl / MS) * MS,
            cut_ppm: if torn { 300_000 } else { 0 },
            leftover_ppm: if leftovers { 700_000 } else { 0 },
            shuffle,
        };
        let mut faults = Faults {
            rng,
            heal_at,
            list: Vec::new(),
        };
        let (n, c) = (n as u8, c as u8);
        if crashing {
            faults.add(4, |rng, left| FaultKind::Crash {
                master: rng.below(n.into()) as u8,
                down: rng.range(1, 1_500).min(left) * MS,
                age: rng.range(1, 1_000) * MS,
            });
        }
        if stalling {
            faults.add(5, |rng, left| FaultKind::Stall {
                master: rng.below(n.into()) as u8,
                lasts: rng.range(1, 1_200).min(left) * MS,
            });
        }
        if jumping {
            faults.add(3, |rng, _| FaultKind::Jump {
                master: rng.below(n.into()) as u8,
                by_us: rng.around(2_000_000),
            });
        }
        if cutting {
            faults.add(6, |rng, left| {
                let way = rng.below(4);
                FaultKind::Partition {
                    clients: rng.draw() as u16,
                    masters: rng.draw() as u16,
                    to: way != 1,
                    from: way != 2,
                    lasts: rng.range(1, 1_500).min(left) * MS,
                }
            });
        }
        if resetting {
            faults.add(8, |rng, _| FaultKind::Reset {
                master: rng.below(n.into()) as u8,
            });
        }
        if forgetting {
            faults.add(4, |rng, _| FaultKind::Forget {
                master: rng.below(n.into()) as u8,
            });
        }
        if refusing {
            faults.add(5, |rng, left| FaultKind::Refuse {
                master: rng.below(n.into()) as u8,
                how: rng.pick(&Refusal::ALL),
                lasts: rng.range(1, 1_000).min(left) * MS,
            });
        }
        if flushing {
            faults.add(4, |rng, _| FaultKind::Flush {
                master: rng.below(n.into()) as u8,
            });
        }
        if garbling {
            faults.add(6, |rng, _| FaultKind::Garble {
                master: rng.below(n.into()) as u8,
            });
        }
        if pausing {
            let most = 3 * ttl / MS;
            faults.add(8, |rng, left| FaultKind::Pause {
                client: rng.below(c.into()) as u8,
                lasts: rng.range(1, most).min(left) * MS,
            });
        }
        if killing {
            faults.add(4, |rng, left| FaultKind::Kill {
                client: rng.below(c.into()) as u8,
                down: rng.range(1, 500).min(left) * MS,
            });
        }
        let mut faults = faults.list;
        faults.sort_by_key(|fault| fault.at);
        Self {
            seed,
            masters,
            clients,
            net,
            faults,
            heal_at,
            tasks,
            settings,
        }
    }

    /// A scenario in which nothing breaks and nobody does anything yet: equal clocks, a quiet
    /// network, defaults. To be filled by hand, for cases that are kept.
    pub fn quiet(seed: u64, masters: usize, clients: usize) -> Self {
        let mut rng = Rng::stream(seed, 2);
        let master = MasterPlan {
            offset_us: 0,
            ppm: 0,
            disk: Disk::None,
        };
        let mut client = || ClientPlan {
            origin: rng.range(1, 1 << 50),
            ppm: 0,
            wall_us: 0,
            steps: Vec::new(),
        };
        Self {
            seed,
            masters: vec![master; masters],
            clients: (0..clients).map(|_| client()).collect(),
            net: Net {
                delay: 200_000,
                jitter: 300_000,
                loss_ppm: 0,
                again: 50 * MS,
                duplicate_ppm: 0,
                duplicate_late: 200 * MS,
                reset_ppm: 0,
                doze_ppm: 0,
                doze: MS,
                cut_ppm: 0,
                leftover_ppm: 0,
                shuffle: false,
            },
            faults: Vec::new(),
            heal_at: 5_000 * MS,
            tasks: 1,
            settings: Settings {
                ttl: 1_000 * MS,
                max_ttl: 3_000 * MS,
                node_timeout: 50 * MS,
                retry_most: 50 * MS,
                fencing: true,
                fair: true,
                guard: true,
            },
        }
    }

    /// The scenario of the speed figure: 5 masters, 5 clients, 10 acquires each, waited for in
    /// order, a network that loses and repeats a message now and then.
    pub fn bench(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 2);
        let mut scenario = Self::quiet(seed, 5, 5);
        (scenario.net.loss_ppm, scenario.net.duplicate_ppm) = (1_000, 1_000);
        for client in &mut scenario.clients {
            client.steps = (0..10)
                .map(|_| Step {
                    think: rng.range(1, 60) * MS,
                    hold: rng.range(1, 10) * MS,
                    ..Step::plain()
                })
                .collect();
        }
        scenario
    }

    /// What must hold in it.
    pub fn promises(&self) -> Promises {
        let jumps = self
            .faults
            .iter()
            .any(|fault| matches!(fault.kind, FaultKind::Jump { .. }));
        let forgets = self.faults.iter().any(|fault| match fault.kind {
            FaultKind::Crash { master, .. } => {
                self.masters[usize::from(master)].disk != Disk::Always
            }
            _ => false,
        });
        let offsets = || self.masters.iter().map(|master| master.offset_us);
        // Rates move clocks apart too: 0.4 % of half a minute, both ways.
        let rates: i64 = self
            .masters
            .iter()
            .map(|master| master.ppm.abs())
            .max()
            .unwrap_or(0)
            * 60;
        let apart = offsets().max().unwrap_or(0) - offsets().min().unwrap_or(0) + rates;
        let max_ttl_us = (self.settings.max_ttl / 1_000) as i64;
        let restarts_above = self.settings.guard && !jumps && max_ttl_us > TWICE_SLACK_US + apart;
        Promises {
            exclusion: !jumps && (self.settings.guard || !forgets),
            tokens: self.settings.fencing && (!forgets || restarts_above),
            guard: self.settings.guard && !jumps,
            steady: !jumps,
            punctual: self.net.doze_ppm == 0,
            order: self.settings.fair && self.settings.fencing && self.is_calm(),
        }
    }

    /// Nothing is lost, stands still, forgets or is late.
    fn is_calm(&self) -> bool {
        let Net {
            loss_ppm,
            duplicate_ppm,
            reset_ppm,
            doze_ppm,
            delay,
            jitter,
            ..
        } = self.net;
        let trips = 3 * (delay + jitter);
        self.faults.is_empty()
            && loss_ppm + duplicate_ppm + reset_ppm + doze_ppm == 0
            && trips < self.settings.node_timeout
    }

    /// How long after [`heal_at`](Self::heal_at) the last waiter may still be without its lock.
    ///
    /// Masters that restarted last are quarantined for `max_ttl`; what was left behind lives for
    /// another ttl; a late duplicate can take one more; then the waiters take turns.
    pub fn bound(&self) -> u64 {
        let Settings {
            ttl,
            max_ttl,
            retry_most,
            ..
        } = self.settings;
        let turns = self.clients.len() as u64 * u64::from(self.tasks);
        let steps = self.clients.iter().flat_map(|client| &client.steps);
        let longest = steps.map(|step| step.hold).max().unwrap_or(0);
        max_ttl
            + 4 * ttl
            + self.net.duplicate_late
            + self.net.doze
            + turns * (longest + 4 * self.net.again + 20 * retry_most)
            + 4_000 * MS
    }
}

impl Settings {
    fn draw(rng: &mut Rng) -> Self {
        let ttl = rng.range(200, 1_200) * MS;
        Self {
            ttl,
            max_ttl: rng
                .pick(&[3_200 * MS, 3_200 * MS, 4_000 * MS, 1_500 * MS])
                .max(ttl),
            node_timeout: rng.range(8, (ttl / MS / 8).min(60)) * MS,
            retry_most: rng.range(10, 60) * MS,
            fencing: !rng.chance(60_000),
            guard: !rng.chance(80_000),
            fair: !rng.chance(300_000),
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl)
    }

    /// The library's settings.
    pub(crate) fn builder(&self) -> RedlockBuilder {
        let first = Duration::from_millis(4);
        let guard = if self.guard {
            RestartGuard::On
        } else {
            RestartGuard::Off
        };
        let builder = Redlock::builder()
            .ttl(self.ttl())
            .max_ttl(Duration::from_nanos(self.max_ttl))
            .node_timeout(Duration::from_nanos(self.node_timeout))
            .retry(Retry::new(first, Duration::from_nanos(self.retry_most)))
            .restart_guard(guard)
            // Nothing is decided by a note, and its length differs from run to run.
            .note(None)
            .fencing(self.fencing);
        if self.fair {
            builder.fair()
        } else {
            builder.unordered()
        }
    }
}

impl Step {
    /// Takes the first resource, waits for it as long as it takes, holds it for 10 ms and
    /// releases it.
    pub fn plain() -> Self {
        Self {
            think: MS,
            resource: 0,
            wait: 30_000 * MS,
            hold: 10 * MS,
            renew: true,
            extend: None,
            cut: None,
            drop: false,
            cut_release: None,
        }
    }

    fn draw(rng: &mut Rng, resources: u8, ttl: u64, dropping: bool) -> Self {
        let long = rng.chance(150_000);
        Self {
            think: rng.below(120 * MS),
            resource: rng.below(resources.into()) as u8,
            wait: if rng.chance(200_000) {
                0
            } else {
                rng.range(10, 1_500) * MS
            },
            hold: rng.below(if long { 2 * ttl } else { 60 * MS }),
            renew: !rng.chance(300_000),
            extend: rng
                .chance(150_000)
                .then(|| ttl / MS * rng.range(5, 10) / 10 * MS),
            cut: (dropping && rng.chance(250_000)).then(|| rng.range(1, 8) as u8),
            drop: rng.chance(200_000),
            cut_release: (dropping && rng.chance(150_000)).then_some(1),
        }
    }
}

struct Faults<'a> {
    rng: &'a mut Rng,
    heal_at: u64,
    list: Vec<Fault>,
}

impl Faults<'_> {
    /// Up to `most` faults of one kind, told how many milliseconds are left until the healing.
    fn add(&mut self, most: u64, mut kind: impl FnMut(&mut Rng, u64) -> FaultKind) {
        for _ in 0..self.rng.range(1, most) {
            let at = self.rng.below(self.heal_at - 10 * MS);
            let kind = kind(self.rng, (self.heal_at - at) / MS);
            self.list.push(Fault { at, kind });
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        let s = &self.settings;
        writeln!(
            f,
            "seed {}: {} masters, {} clients; ttl {} ms, max_ttl {} ms, node_timeout {} ms, fencing {}, fair {}, guard {}",
            self.seed,
            self.masters.len(),
            self.clients.len(),
            ms(s.ttl),
            ms(s.max_ttl),
            ms(s.node_timeout),
            s.fencing,
            s.fair,
            s.guard
        )?;
        writeln!(f, "promised: {:?}", self.promises())?;
        writeln!(f, "network: {:?}", self.net)?;
        for (n, master) in self.masters.iter().enumerate() {
            writeln!(f, "master {n}: {master:?}")?;
        }
        for (n, client) in self.clients.iter().enumerate() {
            writeln!(
                f,
                "client {n}: {} ppm, wall clock {} us off",
                client.ppm, client.wall_us
            )?;
            for step in &client.steps {
                writeln!(f, "    {step:?}")?;
            }
        }
        for fault in &self.faults {
            writeln!(f, "at {:.3} ms: {:?}", ms(fault.at), fault.kind)?;
        }
        write!(
            f,
            "healed at {} ms, bound {} ms",
            ms(self.heal_at),
            ms(self.bound())
        )
    }
}
