//! Distributes locks over several sets of masters by the name of the lock. Adds a set while clients take locks.
//!
//! One set of masters serves tens of thousands of locks per second, so few programs need this (docs/quorum-size.md).
//!
//! `cargo run -p quorate --features testing --example quorums`

use std::time::Duration;

use quorate::{LockGuard, Redlock, StatusVerdict};

/// A set of masters. All clients must use the same name for this set, because [`quorum_of`] hashes the name.
#[derive(Clone)]
pub(crate) struct Quorum {
    pub(crate) name: &'static str,
    pub(crate) redlock: Redlock,
}

/// The state of a client while a set is added or removed. Each client goes through four states: `One` with the old
/// list, `TokensOfOld`, `TokensOfNew`, and `One` with the new list. Clients in the same state or in two successive
/// states can safely run at the same time.
#[derive(Clone)]
pub(crate) enum Quorums {
    /// No set is added or removed. The client knows one list of sets.
    One(Vec<Quorum>),
    /// First step: the client uses the token of the lock's old set, unless the new set's fencing counter has reached
    /// it.
    TokensOfOld { old: Vec<Quorum>, new: Vec<Quorum> },
    /// Second step: the client acquires a lock in its old set and in its new set, and uses the token of the new set.
    TokensOfNew { old: Vec<Quorum>, new: Vec<Quorum> },
}

/// A held lock, with one guard for each set that granted it. The lock is lost as soon as any of these guards is lost.
pub(crate) struct Held {
    pub(crate) guards: Vec<LockGuard>,
    /// The fencing token to pass on to the resource.
    pub(crate) token: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Chooses the set of masters for a lock by rendezvous hashing. If a set is added, a lock either keeps its set or moves
/// to the added set.
pub(crate) fn quorum_of<'a>(quorums: &'a [Quorum], lock: &str) -> &'a Quorum {
    let highest_hash = quorums.iter().max_by_key(|quorum| hash(quorum.name, lock));
    highest_hash.expect("there must be at least one set of masters")
}

/// The FNV-1a hash of both names, followed by a bit mixer. All clients must compute the same hash. The hasher of the
/// standard library does not guarantee this across versions.
fn hash(quorum: &str, lock: &str) -> u64 {
    let bytes = quorum.bytes().chain([0]).chain(lock.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

/// The fencing token of a guard.
fn token_of(guard: &LockGuard) -> Result<u64, Error> {
    Ok(guard.fencing_token().ok_or("fencing tokens are off")?)
}

/// Returns the largest fencing counter that a master of this set stores for the lock, or 0 if no master stores a
/// counter. Returns an error if no majority of the masters answered.
async fn counter(quorum: &Quorum, lock: &str) -> Result<u64, Error> {
    let status = quorum.redlock.status(lock).await?;
    if status.verdict() == StatusVerdict::Unknown {
        return Err("no majority of the masters in the new set answered".into());
    }
    let states = status
        .nodes
        .iter()
        .filter_map(|node| node.state.as_ref().ok());
    let counters = states.filter_map(|state| state.counter);
    Ok(counters.max().unwrap_or(0))
}

impl Quorums {
    /// Acquires the lock. Its token is larger than all earlier tokens of this lock.
    ///
    /// - If the lock's old set is also its new set, the client acquires the lock there.
    /// - In the state `TokensOfOld`, the client acquires the lock in the old set. If the token is larger than the new
    ///   set's fencing counter, the client uses this token.
    /// - In all other cases, the client acquires the lock in both sets, and uses the new set's token. It repeats the
    ///   acquire in the new set until this token is larger than the old set's token.
    pub(crate) async fn acquire(&self, lock: &str) -> Result<Held, Error> {
        let (old, new, is_first_step) = match self {
            Self::One(all) => (quorum_of(all, lock), quorum_of(all, lock), false),
            Self::TokensOfOld { old, new } => (quorum_of(old, lock), quorum_of(new, lock), true),
            Self::TokensOfNew { old, new } => (quorum_of(old, lock), quorum_of(new, lock), false),
        };
        let guard = old.redlock.acquire(lock).await?;
        let (token_of_old, mut guards) = (token_of(&guard)?, vec![guard]);
        if old.name == new.name || (is_first_step && counter(new, lock).await? < token_of_old) {
            let token = token_of_old;
            return Ok(Held { guards, token });
        }
        loop {
            let guard = new.redlock.acquire(lock).await?;
            let token = token_of(&guard)?;
            if token > token_of_old {
                guards.push(guard);
                return Ok(Held { guards, token });
            }
            // A new token is at least the current time in microseconds. So sleep as many microseconds as the new set's
            // token is too small.
            guard.release().await;
            tokio::time::sleep(Duration::from_micros(token_of_old - token + 1)).await;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let quorums = ["red", "green", "blue", "white"].map(|name| Quorum {
        name,
        redlock: Redlock::in_memory(3),
    });
    let (three, four) = (quorums[..3].to_vec(), quorums.to_vec());
    let names: Vec<String> = (0..12_000).map(|n| format!("invoice-{n}")).collect();
    for quorum in &four {
        let count_locks = |quorums| {
            let is_in_quorum =
                |name: &&String| quorum_of(quorums, name.as_str()).name == quorum.name;
            names.iter().filter(is_in_quorum).count()
        };
        println!(
            "set {:>5} has {:>4} of 12,000 locks if there are three sets of masters, {:>4} if there are four",
            quorum.name,
            count_locks(&three[..]),
            count_locks(&four[..])
        );
    }

    // Choose a lock that moves to the added set. Four clients acquire it, one after the other, each in another state.
    let moved_lock = names
        .iter()
        .find(|name| quorum_of(&three, name).name != quorum_of(&four, name).name);
    let moved_lock = moved_lock.ok_or("no lock moves")?;
    let (old, new) = (three.clone(), four.clone());
    let steps = [
        ("client with only the old list of sets", Quorums::One(three)),
        (
            "client of step 1",
            Quorums::TokensOfOld {
                old: old.clone(),
                new: new.clone(),
            },
        ),
        ("client of step 2", Quorums::TokensOfNew { old, new }),
        ("client with only the new list of sets", Quorums::One(four)),
    ];
    for (step, client) in steps {
        let held = client.acquire(moved_lock).await?;
        println!(
            "{step}: locks {moved_lock} in {} sets of masters, token {}",
            held.guards.len(),
            held.token
        );
        for guard in held.guards {
            guard.release().await;
        }
    }
    Ok(())
}
