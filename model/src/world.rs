//! The world of the search: a few masters, a few attempts to take one lock, and requests that may arrive at any time, or
//! never.
//!
//! Time passes in ticks. The time that a state stores is the time that is left, so it stays small.

use crate::rules::{LockKey, Masters, Sets, StoredLock};

/// The largest number of masters in a case.
pub(crate) const MASTERS: usize = 5;

/// The largest number of attempts in a case.
pub(crate) const ATTEMPTS: usize = 4;

/// The sizes of one search.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name of the case, for reports.
    pub name: &'static str,
    /// The old masters and the next masters. Without a change of masters, the two sets are equal.
    pub sets: Sets,
    /// The steps of the clients: 0 for clients of the old masters, 1 for clients of both sets, 2 for clients of the next
    /// masters.
    pub steps: &'static [u8],
    /// The number of attempts to take the lock. All of them may run at the same time.
    pub attempts: u8,
    /// The TTL, in ticks.
    pub ttl: u8,
    /// The drift allowance, in ticks. A key on a master may expire earlier by this time.
    pub drift: u8,
    /// The longest TTL, in ticks.
    pub max_ttl: u8,
    /// The TTL of a short extension, in ticks; zero for none.
    pub short_ttl: u8,
    /// The number of extensions.
    pub extensions: u8,
    /// The number of restarts of masters.
    pub restarts: u8,
    /// The number of requests that a master executes twice.
    pub duplicates: u8,
    /// Whether clients get fencing tokens.
    pub fencing: bool,
    /// The number of ticks after which the time stands still, for a case in which fencing counters start from a clock.
    /// Zero if counters start from zero; time is then not limited.
    pub ticks: u8,
    /// By how many ticks the number that a client proposes may be ahead of the masters' clocks, or behind them.
    pub slack: u8,
}

/// The phase of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The attempt has not begun.
    #[default]
    Unused,
    /// The client waits for the votes of the masters.
    Asking,
    /// The client waits for the confirmations of its fencing token.
    Confirming,
    /// The client holds the lock.
    Holding,
    /// The client has given up, has released the lock, or has lost it.
    Ended,
    /// Only for the changed rule `late-extension`: the validity has ended while an extension was under way.
    Overdue,
}

/// The requests of one attempt to one master, and the votes that the client may count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Exchange {
    /// The requests that may still arrive (constants below).
    pub(crate) in_flight: u8,
    /// The votes (constants below).
    pub(crate) votes: u8,
    /// The fencing number that the master has granted.
    pub(crate) number: u8,
}

/// A request in flight, or a vote: to take the lock.
pub(crate) const ACQUIRE: u8 = 1;
/// A request in flight, or a vote: to confirm the token.
pub(crate) const CONFIRM: u8 = 2;
/// A request in flight, or a vote: to extend the lock.
pub(crate) const EXTEND: u8 = 4;
/// A request in flight of an earlier extension. Its answer no longer counts.
pub(crate) const EARLIER_EXTEND: u8 = 8;

/// One master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Master {
    /// The value of the lock key; zero if there is no key.
    pub(crate) value: u8,
    /// The ticks until the key expires.
    pub(crate) left: u8,
    pub(crate) counter: u8,
    /// The ticks until the restart guard ends.
    pub(crate) guard: u8,
    /// The number in the generation marker.
    pub(crate) marker: u8,
    /// Whether the operator has copied the fencing counter to this master (0 or 1).
    pub(crate) is_raised: u8,
    pub(crate) exchanges: [Exchange; ATTEMPTS],
}

impl Master {
    pub(crate) fn stored(&self) -> StoredLock {
        let key = LockKey {
            value: self.value.into(),
            expires: self.left.into(),
        };
        StoredLock {
            key: (self.value > 0).then_some(key),
            counter: self.counter.into(),
        }
    }

    pub(crate) fn store(&mut self, stored: StoredLock) {
        self.value = stored.key.map_or(0, |key| key.value as u8);
        self.left = stored.key.map_or(0, |key| key.expires as u8);
        self.counter = u8::try_from(stored.counter).expect("counters of a case are small");
    }
}

/// One attempt of a client to take the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Attempt {
    pub(crate) phase: Phase,
    pub(crate) step: u8,
    /// The random value, from 1.
    pub(crate) value: u8,
    /// The ticks since the client sent its first request; at most the TTL.
    pub(crate) age: u8,
    /// The ticks until the validity ends.
    pub(crate) left: u8,
    /// The ticks since the last extension began, plus one; zero if there is no extension.
    pub(crate) extending: u8,
    /// The TTL of the last extension.
    pub(crate) extended_ttl: u8,
    /// The token that the client has, or wants to have confirmed.
    pub(crate) token: u8,
    /// Whether the client has held the lock (0 or 1).
    pub(crate) had_lock: u8,
    /// Whether another client has got the lock since the validity ended (0 or 1), for `late-extension`.
    pub(crate) is_overtaken: u8,
    /// The largest token that any client had when the attempt began.
    pub(crate) floor: u8,
    /// The number that the client proposes.
    pub(crate) proposal: u8,
}

/// A promise of docs/promises.md that a step has broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Broken {
    #[default]
    Nothing,
    OneHolder,
    RisingTokens,
    NoticeOfLoss,
}

/// One state of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    pub(crate) masters: [Master; MASTERS],
    pub(crate) attempts: [Attempt; ATTEMPTS],
    pub(crate) extensions: u8,
    pub(crate) restarts: u8,
    pub(crate) duplicates: u8,
    /// The ticks since the beginning, if fencing counters start from the clock; otherwise zero.
    pub(crate) now: u8,
    /// The largest token that any client had.
    pub(crate) largest_token: u8,
    /// The ticks since a majority of the old masters was closed; at most the wait of the operator.
    pub(crate) closed_for: u8,
    /// The counter that the operator has read, plus one; zero if it has not read the counters.
    pub(crate) copied: u8,
    pub(crate) broken: Broken,
}

/// All fields are bytes, and their lengths are fixed, so the bytes in a row identify the state.
impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        for master in &self.masters {
            for byte in [
                master.value,
                master.left,
                master.counter,
                master.guard,
                master.marker,
                master.is_raised,
            ] {
                hasher.write_u8(byte);
            }
            for exchange in &master.exchanges {
                hasher.write_u8(exchange.in_flight << 4 | exchange.votes);
                hasher.write_u8(exchange.number);
            }
        }
        for attempt in &self.attempts {
            for byte in [
                attempt.phase as u8,
                attempt.step << 6
                    | attempt.had_lock << 5
                    | attempt.is_overtaken << 4
                    | attempt.value,
                attempt.age << 4 | attempt.left,
                attempt.extending << 4 | attempt.extended_ttl,
                attempt.token,
                attempt.floor,
                attempt.proposal,
            ] {
                hasher.write_u8(byte);
            }
        }
        for byte in [
            self.extensions << 4 | self.restarts,
            self.duplicates << 4 | self.broken as u8,
            self.now,
            self.largest_token,
            self.closed_for,
            self.copied,
        ] {
            hasher.write_u8(byte);
        }
    }
}

impl World {
    /// The masters for which a condition is true.
    pub(crate) fn masters_where(&self, is_true: impl Fn(&Master) -> bool) -> Masters {
        let masters = self.masters.iter().enumerate();
        masters.fold(0, |set, (index, master)| {
            set | u16::from(is_true(master)) << index
        })
    }

    /// Ends an attempt. Its votes no longer count, but its requests may still arrive.
    pub(crate) fn end(&mut self, attempt: usize) {
        let ended = &mut self.attempts[attempt];
        ended.phase = Phase::Ended;
        (ended.age, ended.left, ended.extending, ended.floor) = (0, 0, 0, 0);
        for master in &mut self.masters {
            (
                master.exchanges[attempt].votes,
                master.exchanges[attempt].number,
            ) = (0, 0);
        }
    }

    /// Sets the fields of attempts to zero that no later step reads, so that equal states are recognised.
    pub(crate) fn forget_unneeded(&mut self) {
        for (index, attempt) in self.attempts.iter_mut().enumerate() {
            let requests = self.masters.iter();
            let requests = requests.map(|master| master.exchanges[index].in_flight);
            let in_flight = requests.fold(0, |all, request| all | request);
            if in_flight & ACQUIRE == 0 {
                attempt.proposal = 0;
            }
            if in_flight & EXTEND == 0 && attempt.extending == 0 {
                attempt.extended_ttl = 0;
            }
            let is_ended = attempt.phase == Phase::Ended;
            if is_ended && in_flight & CONFIRM == 0 && attempt.had_lock == 0 {
                attempt.token = 0;
            }
        }
    }

    /// Describes the state for a reader of a schedule.
    pub(crate) fn describe(&self, used: Masters, fencing: bool) -> String {
        let value = |value: u8| char::from(b'A' + value - 1);
        let masters = members(used).map(|index| {
            let master = &self.masters[index];
            let key = match master.value {
                0 => "[ ]".to_owned(),
                held => format!("[{}] for {}", value(held), master.left),
            };
            let parts = [
                (true, key),
                (fencing, format!("#{}", master.counter)),
                (master.guard > 0, format!("no vote for {}", master.guard)),
                (master.marker > 0, format!("marker {}", master.marker)),
            ];
            let parts = parts.into_iter().filter(|(is_shown, _)| *is_shown);
            let parts: Vec<String> = parts.map(|(_, part)| part).collect();
            format!("m{}: {}", index + 1, parts.join(" "))
        });
        let holding = self.attempts.iter().enumerate();
        let holding = holding.filter(|(_, attempt)| attempt.phase == Phase::Holding);
        let holding = holding.map(|(index, attempt)| {
            let token = if fencing {
                format!(" with token {}", attempt.token)
            } else {
                String::new()
            };
            let client = char::from(b'A' + index as u8);
            format!("{client} HOLDS for {}{token}", attempt.left)
        });
        masters.chain(holding).collect::<Vec<_>>().join("; ")
    }
}

impl Attempt {
    /// Whether the client has held the lock.
    pub(crate) fn has_lock(&self) -> bool {
        self.had_lock > 0
    }
}

/// The indexes of the masters in a set.
pub(crate) fn members(set: Masters) -> impl Iterator<Item = usize> + Clone {
    (0..MASTERS).filter(move |master| set >> master & 1 == 1)
}

/// The subsets of a set of masters, except the empty one.
pub(crate) fn subsets(set: Masters) -> impl Iterator<Item = Masters> {
    (1..=set).filter(move |subset| subset & !set == 0)
}
