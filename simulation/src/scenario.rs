//! The scenario of one run, as plain data. A seed or a test determines the scenario. If the run breaks a rule, the
//! shrinker removes parts of the scenario and plays it again.

use std::fmt;
use std::time::Duration;

use quorate::{Redlock, RedlockBuilder, RestartGuard, Retry};

use crate::change_plan::{ChangePlan, ClientMasters};
use crate::clock::MS;
use crate::kind::{Kind, ValueStep};
use crate::rng::Rng;
use crate::store_plan::{RunRule, StorePlan};

/// Everything that happens to the library in one run. Points in time are in nanoseconds of simulated time since the
/// beginning of the run, and durations are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of all random decisions during the run.
    pub seed: u64,
    /// The masters; 1 to 9.
    pub masters: Vec<MasterPlan>,
    /// The client processes, operators first.
    pub clients: Vec<ClientPlan>,
    /// The behaviour of the network.
    pub net: Net,
    /// The faults that happen, each with its time.
    pub faults: Vec<Fault>,
    /// The time at which all faults have ended and all masters are up again.
    pub heal_at: u64,
    /// The number of tasks of each client. The tasks of a client share the steps of its plan.
    pub tasks: u8,
    /// Clients do some work once in each period of this length, in nanoseconds.
    pub period: u64,
    /// The settings of every client.
    pub settings: Settings,
    /// How masters are replaced; `None` if no masters are replaced.
    pub change: Option<ChangePlan>,
    /// Whether a client process ends after each step, and a new process of this client takes the next step.
    pub one_step_per_process: bool,
}

/// The plan of one master.
#[derive(Clone, Copy, Debug)]
pub struct MasterPlan {
    /// The offset of the master's clock from the true time at the beginning of the run, in microseconds; positive if
    /// the clock is ahead.
    pub offset_us: i64,
    /// The rate error of the master's clock, in parts per million; positive if the clock is fast.
    pub ppm: i64,
    /// How much of the master's memory a restart preserves.
    pub disk: Disk,
    /// The plan of this master if it is a store (database or ZooKeeper); `None` for a Redis master.
    pub store: Option<StorePlan>,
}

/// How much of a master's memory a restart preserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// A restart loses everything.
    None,
    /// A restart restores an old state, from some time before the crash.
    Stale,
    /// A restart preserves everything.
    Always,
}

/// The plan of one client process: its clocks and its work.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// The reading of the client's monotonic clock at the beginning of the run, in nanoseconds.
    pub origin: u64,
    /// The rate error of the client's monotonic clock, in parts per million; positive if the clock is fast.
    pub ppm: i64,
    /// The offset of the client's wall clock from the true time, in microseconds; positive if the clock is ahead.
    pub wall_us: i64,
    /// The client's steps, in order.
    pub steps: Vec<Step>,
}

/// One acquire of a client, and what the client does with the lock.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The pause before the acquire, in nanoseconds.
    pub think: u64,
    /// The number of the resource on which the client takes the lock.
    pub resource: u8,
    /// The longest wait for the lock, in nanoseconds; zero means `try_acquire`.
    pub wait: u64,
    /// How long the client holds the lock, in nanoseconds.
    pub hold: u64,
    /// Whether the lock is renewed in the background.
    pub renew: bool,
    /// The TTL, in nanoseconds, of an explicit extension in the middle of the hold; `None` for no extension.
    pub extend: Option<u64>,
    /// If the future of the acquire is not ready after this number of polls, the client drops it; `None` for never.
    pub cut: Option<u8>,
    /// Whether the client drops the guard instead of releasing the lock.
    pub drop: bool,
    /// If the future of the release is not ready after this number of polls, the client drops it; `None` for never.
    pub cut_release: Option<u8>,
    /// The kind of lock that the client takes.
    pub kind: Kind,
}

/// The behaviour of the network, and how the threads and tasks of clients are delayed.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// The smallest delay of a packet in one direction, in nanoseconds.
    pub delay: u64,
    /// The largest additional delay of a packet in one direction, in nanoseconds.
    pub jitter: u64,
    /// The number of packets per million that are lost. TCP sends a lost packet again, and delivers later bytes only
    /// after this packet.
    pub loss_ppm: u32,
    /// The time until a lost packet is sent again, in nanoseconds.
    pub again: u64,
    /// The number of messages per million that a master executes a second time after a delay.
    pub duplicate_ppm: u32,
    /// The longest delay of a message's second execution, in nanoseconds.
    pub duplicate_late: u64,
    /// The number of messages per million that break their connection. Only a part of such a message may arrive.
    pub reset_ppm: u32,
    /// The number of wake-ups per million after which the woken task is delayed.
    pub doze_ppm: u32,
    /// The longest delay of a task after a wake-up, in nanoseconds.
    pub doze: u64,
    /// The number of preemptions of a client's thread per million clock readings. A preemption delays the reading.
    pub preempt_ppm: u32,
    /// The longest preemption of a thread, in nanoseconds.
    pub preempt: u64,
    /// The number of writes per million that are split into several packets, anywhere.
    pub cut_ppm: u32,
    /// The number of connections per million whose bytes in flight are still delivered after the connection has ended.
    pub leftover_ppm: u32,
    /// Whether ready tasks are polled in random order, and not in the order of their wake-ups.
    pub shuffle: bool,
}

/// One fault, with its time.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The time of the fault, in nanoseconds since the beginning of the run.
    pub at: u64,
    /// The kind of the fault.
    pub kind: FaultKind,
}

impl Fault {
    /// A fault at this time, in milliseconds since the beginning of the run.
    pub fn at_ms(ms: u64, kind: FaultKind) -> Self {
        Self { at: ms * MS, kind }
    }

    /// A master answers every write with `BUSY`, from one time to another, in milliseconds since the beginning of the
    /// run.
    pub fn busy(master: u8, from_ms: u64, to_ms: u64) -> Self {
        let (how, lasts) = (Refusal::Busy, (to_ms - from_ms) * MS);
        Self::at_ms(from_ms, FaultKind::Refuse { master, how, lasts })
    }
}

/// The kinds of faults. Masters and clients are given by their numbers, and durations are in nanoseconds.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "valid settings")]
pub enum FaultKind {
    /// A master crashes, and restarts after `down`. If its disk is stale, the restart restores the state from the time
    /// `age` before the crash.
    Crash { master: u8, down: u64, age: u64 },
    /// An event at a store whose run clients count, or number. The server is down for `down`, except after
    /// [`StoreEvent::EmptiedTable`]. If the event restores an earlier state, this is the state from the time `age` before
    /// the event.
    StoreEvent {
        master: u8,
        event: StoreEvent,
        down: u64,
        age: u64,
    },
    /// A master executes nothing for `lasts`, and then continues.
    Stall { master: u8, lasts: u64 },
    /// The clock of a master jumps by this many microseconds; backwards if negative.
    ClockJump { master: u8, by_us: i64 },
    /// A store without a clock elects another leader, which gives dates from then on. The leader's clock is ahead of
    /// the clock of the earlier leader by this many microseconds.
    LeaderChange { master: u8, by_us: i64 },
    /// The wall clock of a client process jumps by this many microseconds; backwards if negative.
    WallClockJump { client: u8, by_us: i64 },
    /// A partition between these clients and these masters, for the time `lasts`. In `clients` and `masters`, bit n is
    /// the client or master with the number n.
    ///
    /// - If `to` is true, packets to the masters are delayed.
    /// - If `from` is true, packets from the masters are delayed.
    ///
    /// Delayed packets arrive after the partition.
    Partition {
        clients: u16,
        masters: u16,
        to: bool,
        from: bool,
        lasts: u64,
    },
    /// All connections of one master are reset, even in the middle of a transfer.
    ResetConnections { master: u8 },
    /// A master forgets all its connections without notifying the clients. The clients keep half-open connections.
    ForgetConnections { master: u8 },
    /// A master refuses all lock requests for `lasts`.
    Refuse {
        master: u8,
        how: Refusal,
        lasts: u64,
    },
    /// For the time `lasts`, a master refuses all requests that need new memory for the lock of `resource`. It executes
    /// all other requests.
    OutOfMemory {
        master: u8,
        resource: u8,
        lasts: u64,
    },
    /// A master loses its cached Lua scripts.
    FlushScripts { master: u8 },
    /// On each connection of a master, the next reply is malformed.
    MalformReplies { master: u8 },
    /// The lock on this resource is force-released. The operator does not reach the masters whose bits are set in
    /// `missed`.
    ForceRelease { resource: u8, missed: u16 },
    /// Another program stores a value under the key of a lock, unless the key exists already.
    ForeignKey {
        master: u8,
        resource: u8,
        lasts: u64,
    },
    /// A client process pauses for `lasts`, while its clock continues.
    Pause { client: u8, lasts: u64 },
    /// A client process is killed and restarts after `down`.
    Kill { client: u8, down: u64 },
    /// Nobody uses the masters for the time `by`. First all client processes end, and all clocks advance by `by`. The
    /// processes start again `down` later.
    UnusedDays { by: u64, down: u64 },
    /// A client process stops, and starts again after `down`. It then uses the masters of step `step` (see
    /// `change_plan.rs`).
    Reconfigure { client: u8, step: u8, down: u64 },
}

/// An event at a store after which the store may have forgotten locks, or seems to have forgotten them. All events except
/// [`SetBack`](Self::SetBack) happen only to stores with [`RunRule::Counted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// One backend of the server crashes. All commits are kept, but the row of the run is lost. The time at which the
    /// server was started does not change.
    BackendCrash,
    /// The server is stopped and started. Nothing is lost.
    CleanRestart,
    /// A standby is promoted that lacks the last commits, and takes the address of the server. It has no row, and was
    /// started long ago.
    Promotion,
    /// The server is started with a copy of its files, which also contains the row.
    OldCopy,
    /// The table of records is emptied while the server runs. The records are then in another file.
    EmptiedTable,
    /// The server is set back to an earlier state, together with its memory: to a snapshot of its machine, or to a
    /// snapshot of its data under the same names. The numbers of its changes fall. This happens only if every running
    /// client process has seen a later change than the snapshot has, because no other process can notice it.
    SetBack,
}

impl StoreEvent {
    /// Whether commits may be lost.
    fn loses_commits(self) -> bool {
        !matches!(self, Self::BackendCrash | Self::CleanRestart)
    }
}

/// The reason for which a master refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The master is busy with a script.
    Busy,
    /// The master has no memory left.
    OutOfMemory,
    /// The master cannot write to its disk (`MISCONF`).
    Misconf,
    /// The master is a replica, which refuses writes.
    ReadOnly,
    /// The client's user lacks a permission.
    Denied,
    /// The master closes the connection at the first command after the handshake.
    HangUp,
}

impl Refusal {
    /// All reasons for which a master refuses requests.
    pub(crate) const ALL: [Self; 6] = [
        Self::Busy,
        Self::OutOfMemory,
        Self::Misconf,
        Self::ReadOnly,
        Self::Denied,
        Self::HangUp,
    ];

    /// The error reply with which the master refuses; empty if the master closes the connection instead.
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

/// The library settings, which are the same for every client.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The TTL with which locks are acquired, in nanoseconds.
    pub ttl: u64,
    /// The longest TTL that a client may use, in nanoseconds (the setting `max_ttl`).
    pub max_ttl: u64,
    /// How long a client waits for the reply of one master, in nanoseconds.
    pub node_timeout: u64,
    /// The longest pause between two attempts to acquire a lock, in nanoseconds.
    pub retry_most: u64,
    /// Whether locks get fencing tokens.
    pub fencing: bool,
    /// Whether waiters get the lock in the order in which they began to wait.
    pub fair: bool,
    /// Whether the restart guard is on.
    pub guard: bool,
}

/// The promises of the library that the checkers check in a run. A promise is false if the scenario violates one of its
/// assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// No two clients hold the same lock at the same time, unless they may share it. This requires:
    ///
    /// - No lock is force-released.
    /// - The masters' clocks do not jump; or all masters have generation markers, and a clock jumps forward only while
    ///   the master has no vote after a restart.
    /// - The restart guard is on. It may be off if every master keeps all its data when it restarts.
    pub exclusion: bool,
    /// After another client has acquired a force-released lock, the force-released holder renews its lock no more. The
    /// requirements are those of `exclusion`, but locks may be force-released. In addition:
    ///
    /// - All masters are Redis masters, and they are not replaced. The simulated operator does not coordinate the steps
    ///   of a force-release across Redis masters and stores, or across the old and the new masters.
    pub no_return: bool,
    /// Fencing tokens are unique, and later tokens are larger. The time L is 2 s plus the largest difference between
    /// any two clocks. This promise requires:
    ///
    /// - The setting `fencing` is on.
    /// - If a master's clock jumps forward by 20 hours or more, it does not jump back within L. Otherwise fencing
    ///   counters can expire too early.
    ///
    /// If masters lose data when they restart, this promise also requires:
    ///
    /// - The restart guard is on, and the masters' clocks do not jump.
    /// - At the beginning of the run, no fencing counter (roughly a time in microseconds) is ahead of the masters'
    ///   clocks.
    /// - `max_ttl` is longer than L.
    pub tokens: bool,
    /// No unit of a quota is taken twice, and the work of a period is done at most once. This requires the same as
    /// `tokens`.
    pub stock: bool,
    /// Restarted masters do not vote for the time `max_ttl`. This requires that the restart guard is on and that no
    /// master's clock jumps, because a jump changes the uptime that a master reports.
    pub guard: bool,
    /// On each master, waiters get a lock in the order of its queue. This requires that the masters' clocks do not
    /// jump. After a backward jump, a waiter whose heartbeat had expired could be in the queue again.
    pub steady: bool,
    /// Calls return by a deadline, and a holder is notified of a lost lock by a deadline. This requires that tasks are
    /// never preempted or delayed.
    pub punctual: bool,
    /// Waiters get a lock in the order in which a majority of the masters has queued them. This requires:
    ///
    /// - Ordered waiting and fencing tokens are on.
    /// - There are no faults, and operators replace no masters.
    /// - No message is lost, repeated or late.
    pub order: bool,
    /// No renewed lock is lost, and no key is leaked. This requires:
    ///
    /// - There are no faults.
    /// - No message is lost, repeated or late.
    /// - No masters are replaced.
    pub calm: bool,
    /// The holder of a force-released lock is notified as soon as a majority of the masters has reported the loss. This
    /// requires:
    ///
    /// - There are no faults except force-releases.
    /// - No message is lost, repeated or late.
    /// - No masters are replaced.
    pub prompt: bool,
}

/// The default length of a period of once-per-period work: one hour, which is longer than any run.
pub(crate) const PERIOD: u64 = 3_600_000 * MS;

/// How long a client waits for an owner's lock that all tasks of its process share ([`Kind::OwnerOfProcess`]): 30
/// seconds, the library's default.
pub(crate) const COUNTED_WAIT: u64 = 30_000 * MS;

/// The largest rate error of a clock, in parts per million. So the rates of two clocks differ by at most 0.8 %, and the
/// library allows for 1 %.
pub(crate) const WORST_PPM: i64 = 4_000;

/// A fencing counter is roughly a time in microseconds. Each master limits a proposed counter to within 1 s of its own
/// clock (docs/protocol.md, "Fencing tokens"). This constant is twice that limit, in microseconds.
const TWICE_COUNTER_SLACK_US: i64 = 2_000_000;

/// The largest offset of a right wall clock from the true time, in microseconds: 200 ms. The wall clocks of two clients
/// then differ by less than the slack with which clients judge the age of a lease.
pub(crate) const LARGEST_RIGHT_OFFSET_US: i64 = 200_000;

/// The smallest forward jump of a clock that counts as almost a day, in microseconds: 20 hours. Masters keep unused
/// fencing counters for about 24 hours, so smaller jumps are safe.
const NEARLY_A_DAY_US: i64 = 20 * 3_600 * 1_000_000;

impl Scenario {
    /// A scenario without faults and without steps, with equal clocks, a network that loses nothing, and default
    /// settings. Tests add their own faults and steps.
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
            one_step_per_process: false,
        }
    }

    /// The scenario for measuring speed: 5 masters, and 5 clients that acquire 10 locks each. The network loses one
    /// packet in a thousand, and masters execute one message in a thousand twice.
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

    /// The promises that hold in this scenario.
    pub fn promises(&self) -> Promises {
        let jumps = self.has_jumps();
        let loses_data = self.faults.iter().any(|fault| match fault.kind {
            FaultKind::Crash { master, .. } => {
                self.masters[usize::from(master)].disk != Disk::Always
            }
            FaultKind::StoreEvent { event, .. } => event.loses_commits(),
            _ => false,
        });
        let all_wall_offsets = self.clients.iter().map(|client| client.wall_us);
        // Only clients of a store without a clock depend on their wall clocks.
        let wall_offsets: Vec<i64> = all_wall_offsets.filter(|_| self.has_clockless()).collect();
        let offsets = || {
            let masters = self.masters.iter().map(|master| master.offset_us);
            masters.chain(wall_offsets.iter().copied())
        };
        let is_force_release = |fault: &Fault| matches!(fault.kind, FaultKind::ForceRelease { .. });
        // `largest_drift_us` is the largest drift between the clocks of two masters in 30 s, in microseconds.
        let largest_drift_us: i64 = self
            .masters
            .iter()
            .map(|master| master.ppm.abs())
            .max()
            .unwrap_or(0)
            * 60;
        let clock_difference_us =
            offsets().max().unwrap_or(0) - offsets().min().unwrap_or(0) + largest_drift_us;
        let max_ttl_us = (self.settings.max_ttl / 1_000) as i64;
        let has_safe_restarts = self.settings.guard
            && !jumps
            && max_ttl_us > TWICE_COUNTER_SLACK_US + clock_difference_us + 1_000;
        let tokens = self.settings.fencing
            && (!loses_data || has_safe_restarts && !self.has_counters_ahead())
            && !self.has_unnoticed_set_back()
            && !self.has_brief_jump_of_a_day(TWICE_COUNTER_SLACK_US + clock_difference_us);
        Promises {
            exclusion: (!jumps || self.are_jumps_harmless() || self.jumps_while_guarded())
                && (self.settings.guard || !loses_data)
                && !self.has_unnoticed_set_back()
                && !self.faults.iter().any(is_force_release),
            no_return: !jumps
                && (self.settings.guard || !loses_data)
                && self.masters.iter().all(|master| master.store.is_none())
                && !self.replaces_masters(),
            tokens,
            stock: tokens,
            guard: self.settings.guard && !jumps,
            steady: !jumps,
            punctual: self.net.doze_ppm + self.net.preempt_ppm == 0,
            order: self.settings.fair
                && self.settings.fencing
                && self.has_reliable_network()
                && self.faults.is_empty()
                && !self.replaces_masters()
                && !self.one_step_per_process,
            calm: self.has_reliable_network()
                && self.faults.is_empty()
                && !self.replaces_masters()
                && !self.one_step_per_process,
            prompt: self.has_reliable_network()
                && self.faults.iter().all(is_force_release)
                && !self.replaces_masters()
                && !self.one_step_per_process,
        }
    }

    /// Whether all masters have generation markers, and a clock jumps forward only while the master has no vote: from a
    /// crash until `max_ttl` after the restart. Keys that expire too early then belong to no vote that a client counts.
    /// A clock that jumps back makes keys expire late, which is safe.
    ///
    /// The restart guard lasts `max_ttl` on the clocks of clients, which may be fast, so subtract 3 %.
    pub(crate) fn jumps_while_guarded(&self) -> bool {
        let has_markers = |plan: &ChangePlan| {
            let is_unchanged = plan.steps.iter().all(|steps| *steps == (0, 0));
            is_unchanged && plan.operators == 0 && plan.initial_number == Some(0)
        };
        let is_guarded = |at: u64, jumping_master: u8| {
            self.faults.iter().any(|fault| match fault.kind {
                FaultKind::Crash { master, down, .. } if master == jumping_master => {
                    let end = fault.at + down + self.settings.max_ttl / 100 * 97;
                    (fault.at..end).contains(&at)
                }
                _ => false,
            })
        };
        self.settings.guard
            && self.change.as_ref().is_some_and(has_markers)
            && self.faults.iter().all(|fault| match fault.kind {
                FaultKind::ClockJump { master, by_us } => {
                    by_us <= 0 || is_guarded(fault.at, master)
                }
                _ => true,
            })
    }

    /// Whether a master's clock jumps forward by almost a day or more, and jumps back within `limit_us` microseconds.
    /// Fencing counters may expire in between.
    fn has_brief_jump_of_a_day(&self, limit_us: i64) -> bool {
        let jump_of = |fault: &Fault| match fault.kind {
            FaultKind::ClockJump { master, by_us } => Some((fault.at, usize::from(master), by_us)),
            _ => None,
        };
        let mut jumps: Vec<_> = self.faults.iter().filter_map(jump_of).collect();
        jumps.sort_by_key(|(at, ..)| *at);
        // For each master: how far its clock is ahead, in microseconds, and since when it is ahead by `NEARLY_A_DAY_US`
        // or more.
        let mut clocks_ahead = vec![(0, None); self.masters.len()];
        jumps.into_iter().any(|(at, master, by_us)| {
            let (ahead_us, ahead_since) = &mut clocks_ahead[master];
            *ahead_us += by_us;
            if *ahead_us >= NEARLY_A_DAY_US {
                ahead_since.get_or_insert(at);
                return false;
            }
            let duration_us = |ahead_since: u64| ((at - ahead_since) / 1_000) as i64;
            ahead_since
                .take()
                .is_some_and(|ahead_since| duration_us(ahead_since) <= limit_us)
        })
    }

    /// Whether operators replace masters in this scenario.
    fn replaces_masters(&self) -> bool {
        self.change.as_ref().is_some_and(|plan| plan.operators > 0)
    }

    /// Whether fencing counters (roughly times in microseconds) are ahead of the masters' clocks at the beginning of
    /// the run.
    fn has_counters_ahead(&self) -> bool {
        let counters_ahead = self.change.as_ref().and_then(|plan| plan.counters_ahead_us);
        counters_ahead.is_some_and(|ahead_us| ahead_us > 0)
    }

    /// Returns the masters that a client uses at step `step` (see `change_plan.rs`).
    pub(crate) fn masters_at(&self, step: u8) -> ClientMasters {
        match &self.change {
            None => ClientMasters::never_replaced(self.masters.len()),
            Some(plan) => plan.masters_at(step),
        }
    }

    pub(crate) fn is_operator(&self, client: usize) -> bool {
        let plan = self.change.as_ref();
        plan.is_some_and(|plan| plan.is_operator(client))
    }

    /// A client's step in the replacement of masters at the beginning of the run; 0 if no masters are replaced.
    pub(crate) fn first_step(&self, client: usize) -> u8 {
        let steps = self.change.as_ref().and_then(|plan| plan.steps.get(client));
        steps.map_or(0, |(first, _)| *first)
    }

    /// The longest time that the operators need for all changes after the faults have ended, in nanoseconds. In each
    /// change, they wait until the locks of the old masters' clients have expired.
    fn replacement_bound(&self) -> u64 {
        let changes = self.change.as_ref().map_or(0, |plan| {
            u64::from(plan.changes()) * u64::from(plan.operators > 0)
        });
        // An acquire of `Kind::OwnerOfProcess` may wait until its timeout if its masters were replaced and stopped.
        let has_shared_owner = self.has_kind(|kind| matches!(kind, Kind::OwnerOfProcess(_)));
        let longest_wait = if has_shared_owner { COUNTED_WAIT } else { 0 };
        changes * (4 * self.settings.max_ttl + 6_000 * MS + longest_wait)
    }

    /// The masters that are stores (bit n is master n).
    pub(crate) fn store_masters(&self) -> u16 {
        let masters = self.masters.iter().enumerate();
        let store_masters = masters.filter(|(_, plan)| plan.store.is_some());
        store_masters.fold(0, |set, (master, _)| set | 1 << master)
    }

    /// Whether some masters are stores without a clock.
    pub(crate) fn has_clockless(&self) -> bool {
        let mut store_masters = self.masters.iter().filter_map(|plan| plan.store);
        store_masters.any(|plan| !plan.clocked)
    }

    /// The longest time that a client waits for the answer of one master, in nanoseconds.
    pub(crate) fn slowest_answer(&self) -> u64 {
        let store_masters = self.masters.iter().filter_map(|plan| plan.store);
        let slowest_answer = store_masters.map(|plan| plan.timeout).max().unwrap_or(0);
        slowest_answer.max(self.settings.node_timeout)
    }

    /// Whether a store is set back while a client process may start later. Such a process has not seen a later state of
    /// the store.
    pub(crate) fn has_unnoticed_set_back(&self) -> bool {
        let starts_at = |fault: &Fault| match fault.kind {
            FaultKind::Kill { down, .. }
            | FaultKind::UnusedDays { down, .. }
            | FaultKind::Reconfigure { down, .. } => Some(fault.at + down),
            _ => None,
        };
        let last_start = self.faults.iter().filter_map(starts_at).max();
        let last_start = if self.one_step_per_process {
            Some(u64::MAX)
        } else {
            last_start
        };
        self.faults.iter().any(|fault| {
            let is_set_back = matches!(
                fault.kind,
                FaultKind::StoreEvent {
                    event: StoreEvent::SetBack,
                    ..
                }
            );
            is_set_back && last_start.is_some_and(|last_start| last_start >= fault.at)
        })
    }

    /// How long a process that takes one step stays connected at least, in nanoseconds. If clients count the age of some
    /// store's run, this is long enough to raise this age.
    pub(crate) fn min_connection_time(&self) -> u64 {
        let mut store_masters = self.masters.iter().filter_map(|plan| plan.store);
        if store_masters.any(|plan| plan.run == RunRule::Counted) {
            (self.settings.max_ttl / 32).min(1_000 * MS) + 150 * MS
        } else {
            0
        }
    }

    /// Whether the clock of any master jumps.
    pub(crate) fn has_jumps(&self) -> bool {
        let is_jump = |fault: &Fault| matches!(fault.kind, FaultKind::ClockJump { .. });
        self.faults.iter().any(is_jump)
    }

    /// Whether only clocks jump that no client believes alone: those of stores without a clock, while the wall clocks
    /// of all clients are right.
    fn are_jumps_harmless(&self) -> bool {
        let is_right = |client: &ClientPlan| client.wall_us.abs() <= LARGEST_RIGHT_OFFSET_US;
        self.clients.iter().all(is_right)
            && self.faults.iter().all(|fault| match fault.kind {
                FaultKind::ClockJump { master, .. } => {
                    let store = self.masters[usize::from(master)].store;
                    store.is_some_and(|plan| !plan.clocked)
                }
                FaultKind::WallClockJump { .. } => false,
                _ => true,
            })
    }

    /// Whether some step takes a lock of readers, of an owner or on several resources, takes a permit, or downgrades a
    /// lock.
    pub(crate) fn is_mixed(&self) -> bool {
        self.has_kind(|kind| {
            !matches!(
                kind,
                Kind::Exclusive
                    | Kind::WithNote(_)
                    | Kind::Leader(_)
                    | Kind::Observe
                    | Kind::Value(_)
            )
        })
    }

    /// Whether some step stores a note, acquires a leadership, or observes an election.
    pub(crate) fn has_notes(&self) -> bool {
        self.has_kind(|kind| matches!(kind, Kind::WithNote(_) | Kind::Leader(_) | Kind::Observe))
    }

    /// Whether some step uses a quota or a once-per-period record.
    pub(crate) fn has_values(&self) -> bool {
        self.has_kind(|kind| matches!(kind, Kind::Value(_)))
    }

    /// Whether some step takes a kind of lock for which `is_sought` returns true.
    pub(crate) fn has_kind(&self, is_sought: impl Fn(Kind) -> bool) -> bool {
        let steps = || self.clients.iter().flat_map(|client| &client.steps);
        steps().any(|step| is_sought(step.kind))
    }

    /// Whether the network neither loses nor repeats anything, tasks are not delayed, and several round trips fit into
    /// the node timeout.
    fn has_reliable_network(&self) -> bool {
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
        let trips = if self.store_masters() == 0 { 3 } else { 12 } * (delay + jitter);
        loss_ppm + duplicate_ppm + reset_ppm + doze_ppm + preempt_ppm == 0
            && trips < self.settings.node_timeout
    }

    /// The longest time, in nanoseconds, from [`heal_at`](Self::heal_at) until every waiter must have its lock. It
    /// includes:
    ///
    /// - `max_ttl`, because restarted masters do not vote for this time;
    /// - the time until the keys of ended clients have expired;
    /// - one hold for each task;
    /// - the time that operators need to finish their changes;
    /// - a reserve of 4 s.
    pub fn healing_bound(&self) -> u64 {
        let Settings {
            ttl,
            max_ttl,
            retry_most,
            ..
        } = self.settings;
        let holds = self.clients.len() as u64 * u64::from(self.tasks);
        let steps = self.clients.iter().flat_map(|client| &client.steps);
        let longest_hold = steps.map(|step| step.hold).max().unwrap_or(0);
        // A store may have no clock. Clients then need longer to detect that a dead client's lock has expired.
        let detection_time = if self.store_masters() == 0 {
            0
        } else {
            2 * ttl + 12 * self.slowest_answer()
        };
        max_ttl
            + 4 * ttl
            + detection_time
            + self.net.duplicate_late
            + self.net.doze
            + self.net.preempt
            + holds * (longest_hold + 4 * self.net.again + 20 * retry_most)
            + u64::from(self.one_step_per_process) * holds * (4 * ttl + 40 * self.slowest_answer())
            + self.replacement_bound()
            + 4_000 * MS
    }
}

impl Settings {
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl)
    }

    /// Returns a builder of the library with these settings.
    pub(crate) fn builder(&self) -> RedlockBuilder {
        let first_pause = Duration::from_millis(4);
        let restart_guard = if self.guard {
            RestartGuard::On
        } else {
            RestartGuard::Off
        };
        let settings = Redlock::builder()
            .ttl(self.ttl())
            .max_ttl(Duration::from_nanos(self.max_ttl))
            .node_timeout(Duration::from_nanos(self.node_timeout))
            .retry(Retry::new(
                first_pause,
                Duration::from_nanos(self.retry_most),
            ))
            .restart_guard(restart_guard)
            // Disable the default note. Its length differs from run to run, and would change the sizes of packets.
            .note(None)
            .fencing(self.fencing);
        let builder = quorate::testing::known_as(settings, "host", 1, "simulated");
        if self.fair {
            builder.order(quorate::Order::Fair)
        } else {
            builder.order(quorate::Order::Unordered)
        }
    }
}

impl Step {
    /// The resource of the step that [`of_record`](Self::of_record) returns.
    pub const RECORD_RESOURCE: u8 = 1;

    /// A [`plain`](Self::plain) step with another kind of lock.
    pub fn of_kind(kind: Kind) -> Self {
        Self {
            kind,
            ..Self::plain()
        }
    }

    /// A step that waits up to 5 s for the lock of a once-per-period record.
    pub fn of_record(kind: ValueStep) -> Self {
        Self {
            resource: Self::RECORD_RESOURCE,
            wait: 5_000 * MS,
            ..Self::of_kind(Kind::Value(kind))
        }
    }

    /// A step that waits up to 30 s for the first resource, holds it for 10 ms and releases it.
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
        let settings = &self.settings;
        writeln!(
            f,
            "seed {}: {} masters, {} clients; ttl {} ms, max_ttl {} ms, node_timeout {} ms, fencing {}, fair {}, \
             restart guard {}, period of once jobs {} ms",
            self.seed,
            self.masters.len(),
            self.clients.len(),
            ms(settings.ttl),
            ms(settings.max_ttl),
            ms(settings.node_timeout),
            settings.fencing,
            settings.fair,
            settings.guard,
            ms(self.period)
        )?;
        writeln!(f, "promised: {:?}", self.promises())?;
        writeln!(f, "network: {:?}", self.net)?;
        for (index, master) in self.masters.iter().enumerate() {
            writeln!(f, "master {index}: {master:?}")?;
        }
        if let Some(change) = &self.change {
            writeln!(f, "{change:?}")?;
        }
        for (index, client) in self.clients.iter().enumerate() {
            writeln!(
                f,
                "client {index}: its clock runs {} ppm too fast, its wall clock is {} us ahead",
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
            "all faults end at {} ms, and within {} ms after that every client must have acquired its last lock",
            ms(self.heal_at),
            ms(self.healing_bound())
        )
    }
}
