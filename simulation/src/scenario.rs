//! What one run is made of. A scenario is plain data: drawn from a seed, written by hand, and taken apart
//! by the shrinker, which leaves parts out and runs it again.

use std::fmt;
use std::time::Duration;

use quorate::{Redlock, RedlockBuilder, RestartGuard, Retry};

use crate::change_plan::{ChangePlan, Named};
use crate::clock::MS;
use crate::kind::Kind;
use crate::rng::Rng;
use crate::store_plan::StorePlan;

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
    /// How long a period is of what is done once a period, in nanoseconds.
    pub period: u64,
    /// The settings of every client.
    pub settings: Settings,
    /// How the masters change, where they do.
    pub change: Option<ChangePlan>,
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
    /// It is a store, and not Redis.
    pub store: Option<StorePlan>,
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
    /// What kind of lock it takes.
    pub kind: Kind,
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
    /// How many of a million looks at a clock come late: the thread stands still before it.
    pub preempt_ppm: u32,
    /// How late at the most.
    pub preempt: u64,
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
    /// Somebody breaks a lock, on all masters.
    Break { resource: u8 },
    /// A stranger keeps a value of another type under the key of a lock, unless somebody has that.
    Stranger {
        master: u8,
        resource: u8,
        lasts: u64,
    },
    /// A client process stands still; its clock does not.
    Pause { client: u8, lasts: u64 },
    /// A client process dies and starts anew.
    Kill { client: u8, down: u64 },
    /// Nobody uses the masters for so long: all processes end, and start anew after `down`, when all clocks have gone on.
    Skip { by: u64, down: u64 },
    /// A client is told the masters of this step: its process is ended and started anew.
    Tell { client: u8, step: u8, down: u64 },
}

/// How a master refuses what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A script is running.
    Busy,
    /// There is no memory left.
    OutOfMemory,
    /// It cannot write to its disk.
    Misconf,
    /// It is a replica.
    ReadOnly,
    /// The user may not.
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
    /// No piece of a quota is handed out twice, and no period done twice. Rests on numbers that rise, and on
    /// nothing else.
    pub stock: bool,
    /// The restart guard can be measured: the masters' uptime is right.
    pub guard: bool,
    /// Clocks of masters do not jump: who has died in a line stays dead.
    pub steady: bool,
    /// The signal of a loss comes in time: tasks are never kept from running.
    pub punctual: bool,
    /// Who was in line on a majority first has the lock first: asked for, and nothing keeps a
    /// waiter from showing signs of life.
    pub order: bool,
    /// Nothing is lost, stands still, forgets or is late: no lock that is renewed is lost, and no key is
    /// left behind.
    pub calm: bool,
    /// Calm, but for locks that are broken: who had one hears of it at once.
    pub prompt: bool,
}

/// What periods are, where nothing else is said: longer than any run.
pub(crate) const PERIOD: u64 = 3_600_000 * MS;

/// How long the verb of an owner waits: what the settings say.
pub(crate) const COUNTED_WAIT: u64 = 30_000 * MS;

/// The lease's allowance for drift is 1 %: clocks of one run stay together within 0.8 %.
pub(crate) const WORST_PPM: i64 = 4_000;

/// Twice the slack of a proposal, in microseconds (docs/protocol.md, "Promises and assumptions").
const TWICE_SLACK_US: i64 = 2_000_000;

impl Scenario {
    /// A scenario in which nothing breaks and nobody does anything yet: equal clocks, a quiet
    /// network, defaults. To be filled by hand, for cases that are kept.
    pub fn quiet(seed: u64, masters: usize, clients: usize) -> Self {
        let mut rng = Rng::stream(seed, 2);
        let master = MasterPlan {
            offset_us: 0,
            ppm: 0,
            disk: Disk::None,
            store: None,
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
                preempt_ppm: 0,
                preempt: MS,
                cut_ppm: 0,
                leftover_ppm: 0,
                shuffle: false,
            },
            faults: Vec::new(),
            heal_at: 5_000 * MS,
            tasks: 1,
            period: PERIOD,
            settings: Settings {
                ttl: 1_000 * MS,
                max_ttl: 3_000 * MS,
                node_timeout: 50 * MS,
                retry_most: 50 * MS,
                fencing: true,
                fair: true,
                guard: true,
            },
            change: None,
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
        let jumps = self.has_jumps();
        let forgets = self.faults.iter().any(|fault| match fault.kind {
            FaultKind::Crash { master, .. } => {
                self.masters[usize::from(master)].disk != Disk::Always
            }
            _ => false,
        });
        let walls = self.clients.iter().map(|client| client.wall_us);
        // A store without a clock goes by those of its clients.
        let walls: Vec<i64> = walls.filter(|_| self.has_clockless()).collect();
        let offsets = || {
            let masters = self.masters.iter().map(|master| master.offset_us);
            masters.chain(walls.iter().copied())
        };
        let breaks = |fault: &Fault| matches!(fault.kind, FaultKind::Break { .. });
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
        let restarts_above =
            self.settings.guard && !jumps && max_ttl_us > TWICE_SLACK_US + apart + 1_000;
        Promises {
            exclusion: !jumps
                && (self.settings.guard || !forgets)
                && !self.faults.iter().any(breaks),
            tokens: self.settings.fencing && (!forgets || restarts_above && !self.is_ahead()),
            stock: self.settings.fencing && (!forgets || restarts_above && !self.is_ahead()),
            guard: self.settings.guard && !jumps,
            steady: !jumps,
            punctual: self.net.doze_ppm + self.net.preempt_ppm == 0,
            order: self.settings.fair
                && self.settings.fencing
                && self.is_quiet()
                && self.faults.is_empty()
                && !self.is_changed(),
            calm: self.is_quiet() && self.faults.is_empty() && !self.is_changed(),
            prompt: self.is_quiet() && self.faults.iter().all(breaks) && !self.is_changed(),
        }
    }

    /// Whether somebody changes masters.
    fn is_changed(&self) -> bool {
        self.change.as_ref().is_some_and(|plan| plan.operators > 0)
    }

    /// Whether fencing counters are ahead of the clocks.
    fn is_ahead(&self) -> bool {
        let ahead = self.change.as_ref().and_then(|plan| plan.ahead);
        ahead.is_some_and(|ahead| ahead > 0)
    }

    /// The masters of a client at a step, as it names them.
    pub(crate) fn named(&self, step: u8) -> Named {
        match &self.change {
            None => Named::all(self.masters.len()),
            Some(plan) => plan.named(step),
        }
    }

    pub(crate) fn is_operator(&self, client: usize) -> bool {
        let plan = self.change.as_ref();
        plan.is_some_and(|plan| plan.is_operator(client))
    }

    /// At which step a client is at the beginning.
    pub(crate) fn first_step(&self, client: usize) -> u8 {
        let steps = self.change.as_ref().and_then(|plan| plan.steps.get(client));
        steps.map_or(0, |(first, _)| *first)
    }

    /// How long the operators may take when all is well again: for each change until the next masters may vote, the
    /// wait, and what comes in between.
    fn change_bound(&self) -> u64 {
        let changes = self.change.as_ref().map_or(0, |plan| {
            u64::from(plan.changes()) * u64::from(plan.operators > 0)
        });
        // The verb of an owner waits by the settings, also for masters that have been stopped for good.
        let counted = self.takes(|kind| matches!(kind, Kind::Counted(_)));
        let waits = if counted { COUNTED_WAIT } else { 0 };
        changes * (4 * self.settings.max_ttl + 6_000 * MS + waits)
    }

    /// Which masters are stores, as bits.
    pub(crate) fn stores(&self) -> u16 {
        let masters = self.masters.iter().enumerate();
        let stores = masters.filter(|(_, plan)| plan.store.is_some());
        stores.fold(0, |all, (master, _)| all | 1 << master)
    }

    /// Whether some store has no clock of its own.
    pub(crate) fn has_clockless(&self) -> bool {
        let mut stores = self.masters.iter().filter_map(|plan| plan.store);
        stores.any(|plan| !plan.clocked)
    }

    /// The longest that a master may take to answer.
    pub(crate) fn slowest(&self) -> u64 {
        let stores = self.masters.iter().filter_map(|plan| plan.store);
        let slowest = stores.map(|plan| plan.timeout).max().unwrap_or(0);
        slowest.max(self.settings.node_timeout)
    }

    /// Whether a master's clock jumps.
    pub(crate) fn has_jumps(&self) -> bool {
        let jumps = |fault: &Fault| matches!(fault.kind, FaultKind::Jump { .. });
        self.faults.iter().any(jumps)
    }

    /// Whether there is more than the plain lock.
    pub(crate) fn is_mixed(&self) -> bool {
        self.takes(|kind| {
            !matches!(
                kind,
                Kind::Exclusive | Kind::Noted(_) | Kind::Lead(_) | Kind::Observe | Kind::Value(_)
            )
        })
    }

    /// Whether somebody says who holds.
    pub(crate) fn has_notes(&self) -> bool {
        self.takes(|kind| matches!(kind, Kind::Noted(_) | Kind::Lead(_) | Kind::Observe))
    }

    /// Whether some step is about the value under a lock.
    pub(crate) fn has_values(&self) -> bool {
        self.takes(|kind| matches!(kind, Kind::Value(_)))
    }

    /// Whether some step takes a lock of such a kind.
    pub(crate) fn takes(&self, such: impl Fn(Kind) -> bool) -> bool {
        let steps = || self.clients.iter().flat_map(|client| &client.steps);
        steps().any(|step| such(step.kind))
    }

    /// The same with plain locks alone.
    pub(crate) fn plain(&self) -> Self {
        let mut plain = self.clone();
        for client in &mut plain.clients {
            for step in &mut client.steps {
                step.kind = Kind::Exclusive;
            }
        }
        plain
    }

    /// Nothing is lost or late by itself.
    fn is_quiet(&self) -> bool {
        let Net {
            loss_ppm,
            duplicate_ppm,
            reset_ppm,
            doze_ppm,
            preempt_ppm,
            delay,
            jitter,
            ..
        } = self.net;
        let trips = if self.stores() == 0 { 3 } else { 12 } * (delay + jitter);
        loss_ppm + duplicate_ppm + reset_ppm + doze_ppm + preempt_ppm == 0
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
        // Who looks at a store without a clock waits once more for what was left behind.
        let seen_anew = if self.stores() == 0 {
            0
        } else {
            2 * ttl + 12 * self.slowest()
        };
        max_ttl
            + 4 * ttl
            + seen_anew
            + self.net.duplicate_late
            + self.net.doze
            + self.net.preempt
            + turns * (longest + 4 * self.net.again + 20 * retry_most)
            + self.change_bound()
            + 4_000 * MS
    }
}

impl Settings {
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
        let builder = quorate::testing::known_as(builder, "host", 1, "simulated");
        if self.fair {
            builder.order(quorate::Order::Fair)
        } else {
            builder.order(quorate::Order::Unordered)
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
            kind: Kind::Exclusive,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        let s = &self.settings;
        writeln!(
            f,
            "seed {}: {} masters, {} clients; ttl {} ms, max_ttl {} ms, node_timeout {} ms, fencing {}, fair {}, guard {}, period {} ms",
            self.seed,
            self.masters.len(),
            self.clients.len(),
            ms(s.ttl),
            ms(s.max_ttl),
            ms(s.node_timeout),
            s.fencing,
            s.fair,
            s.guard,
            ms(self.period)
        )?;
        writeln!(f, "promised: {:?}", self.promises())?;
        writeln!(f, "network: {:?}", self.net)?;
        for (n, master) in self.masters.iter().enumerate() {
            writeln!(f, "master {n}: {master:?}")?;
        }
        if let Some(change) = &self.change {
            writeln!(f, "{change:?}")?;
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
