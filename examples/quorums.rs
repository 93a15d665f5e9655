//! Spreads locks over several quorums by their names, and adds a quorum while clients take locks.
//!
//! One quorum serves tens of thousands of locks per second, so few programs need this (docs/quorum-size.md).
//!
//! `cargo run -p quorate --features testing --example quorums`

use std::time::Duration;

use quorate::{LockGuard, Redlock, StatusVerdict};

/// A quorum, and the name by which locks choose it. All clients must use the same name for the same masters.
#[derive(Clone)]
pub(crate) struct Quorum {
    pub(crate) name: &'static str,
    pub(crate) redlock: Redlock,
}

/// The step that a client has reached while the list of quorums is changed. Clients may run at the same time if their
/// steps are equal or follow one another.
#[derive(Clone)]
pub(crate) enum Quorums {
    /// No change: the client knows one list.
    One(Vec<Quorum>),
    /// First step: the client takes a lock in its quorum of the old list, and passes on the token of that quorum.
    TokensOfOld { old: Vec<Quorum>, new: Vec<Quorum> },
    /// Second step: the client takes a lock in its quorums of both lists, and passes on the token of the new quorum.
    TokensOfNew { old: Vec<Quorum>, new: Vec<Quorum> },
}

/// A held lock. The lock is lost as soon as one of the guards is lost.
pub(crate) struct Held {
    pub(crate) guards: Vec<LockGuard>,
    /// The fencing token to pass on to the resource.
    pub(crate) token: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Chooses the quorum of a lock by rendezvous hashing: the quorum whose name, together with the name of the lock, has
/// the largest hash. An added quorum takes over some of the locks of each other quorum. No lock moves from one of the
/// other quorums to another.
pub(crate) fn chosen<'a>(quorums: &'a [Quorum], lock: &str) -> &'a Quorum {
    let largest = quorums.iter().max_by_key(|quorum| hash(quorum.name, lock));
    largest.expect("there must be at least one quorum")
}

/// The FNV-1a hash of both names, of which all bits are then mixed. The hash must be the same in all clients and all
/// versions, so the hasher of the standard library is not used.
fn hash(quorum: &str, lock: &str) -> u64 {
    let bytes = quorum.bytes().chain([0]).chain(lock.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

/// The fencing token of a guard.
fn token(guard: &LockGuard) -> Result<u64, Error> {
    Ok(guard.fencing_token().ok_or("fencing tokens are off")?)
}

/// The largest fencing counter of the lock on the masters of this quorum, or 0 if no master has one. Returns an error
/// if no majority of the masters answered.
async fn counter(quorum: &Quorum, lock: &str) -> Result<u64, Error> {
    let status = quorum.redlock.status(lock).await?;
    if status.verdict() == StatusVerdict::Unknown {
        return Err("no majority of the new quorum answered".into());
    }
    let states = status
        .nodes
        .iter()
        .filter_map(|node| node.state.as_ref().ok());
    let counters = states.filter_map(|state| state.counter);
    Ok(counters.max().unwrap_or(0))
}

impl Quorums {
    /// Takes the lock. While the list is changed, the token that a holder passes on to the resource must be larger than
    /// all tokens that earlier holders passed on, whichever quorum these came from:
    ///
    /// - In the first step, clients that know only the old list pass on tokens of the old quorum. So this client does
    ///   the same, unless a client of the second step has already passed on a larger token of the new quorum. That
    ///   client also held the lock in the old quorum, before this client got it there. So the fencing counters of the
    ///   new quorum contain its token when this client reads them.
    /// - In the second step, no client knows only the old list. This client passes on tokens of the new quorum. It
    ///   takes the lock in the new quorum repeatedly, until the token is larger than its token of the old quorum.
    pub(crate) async fn acquire(&self, lock: &str) -> Result<Held, Error> {
        let (old, new, is_first_step) = match self {
            Self::One(all) => (chosen(all, lock), chosen(all, lock), false),
            Self::TokensOfOld { old, new } => (chosen(old, lock), chosen(new, lock), true),
            Self::TokensOfNew { old, new } => (chosen(old, lock), chosen(new, lock), false),
        };
        let guard = old.redlock.acquire(lock).await?;
        let (token_of_old, mut guards) = (token(&guard)?, vec![guard]);
        if old.name == new.name || (is_first_step && counter(new, lock).await? < token_of_old) {
            let token = token_of_old;
            return Ok(Held { guards, token });
        }
        loop {
            let guard = new.redlock.acquire(lock).await?;
            let token = token(&guard)?;
            if token > token_of_old {
                guards.push(guard);
                return Ok(Held { guards, token });
            }
            // Tokens are times in microseconds, so a token that is drawn later is larger.
            guard.release().await;
            tokio::time::sleep(Duration::from_micros(token_of_old - token + 1)).await;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let all = ["red", "green", "blue", "white"].map(|name| Quorum {
        name,
        redlock: Redlock::in_memory(3),
    });
    let (three, four) = (all[..3].to_vec(), all.to_vec());
    let names: Vec<String> = (0..12_000).map(|n| format!("invoice-{n}")).collect();
    for quorum in &four {
        let locks = |quorums| {
            let chosen = |name: &&String| chosen(quorums, name.as_str()).name == quorum.name;
            names.iter().filter(chosen).count()
        };
        println!(
            "quorum {:>5}: {:>4} of 12,000 locks before the change, {:>4} after it",
            quorum.name,
            locks(&three[..]),
            locks(&four[..])
        );
    }

    // A lock that moves to the added quorum, and one client of each step. docs/quorum-size.md says when to change from
    // one step to the next.
    let moved = names
        .iter()
        .find(|name| chosen(&three, name).name != chosen(&four, name).name);
    let moved = moved.ok_or("no lock moves")?;
    let (old, new) = (three.clone(), four.clone());
    let steps = [
        ("only the old list", Quorums::One(three)),
        (
            "step 1",
            Quorums::TokensOfOld {
                old: old.clone(),
                new: new.clone(),
            },
        ),
        ("step 2", Quorums::TokensOfNew { old, new }),
        ("only the new list", Quorums::One(four)),
    ];
    for (step, client) in steps {
        let held = client.acquire(moved).await?;
        println!(
            "{step}: {moved} is held in {} quorums, token {}",
            held.guards.len(),
            held.token
        );
        for guard in held.guards {
            guard.release().await;
        }
    }
    Ok(())
}
