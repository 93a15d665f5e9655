//! Spreads locks over several quorums by their names, and adds a quorum while clients take locks.
//!
//! One quorum serves tens of thousands of locks per second, so few programs need this (docs/quorum-size.md).
//!
//! `cargo run -p quorate --features testing --example quorums`

use quorate::{AcquireError, LockGuard, Redlock};

/// A quorum, and the name by which locks choose it. All clients must use the same name for the same masters.
#[derive(Clone)]
pub(crate) struct Quorum {
    pub(crate) name: &'static str,
    pub(crate) redlock: Redlock,
}

/// A client of several quorums. While the list of quorums changes, `next` is the new list, and `now` the old one.
#[derive(Clone)]
pub(crate) struct Quorums {
    pub(crate) now: Vec<Quorum>,
    pub(crate) next: Option<Vec<Quorum>>,
}

/// The quorum of a lock by rendezvous hashing: the quorum with the largest hash of both names. A quorum that is added
/// gets its share of the locks from each of the others, and no other lock moves.
pub(crate) fn chosen<'a>(quorums: &'a [Quorum], lock: &str) -> &'a Quorum {
    let largest = quorums.iter().max_by_key(|quorum| hash(quorum.name, lock));
    largest.expect("there must be at least one quorum")
}

/// The FNV-1a hash of both names, then a mix of all bits. The hash must be the same in all clients and all versions, so
/// the hasher of the standard library is not used.
fn hash(quorum: &str, lock: &str) -> u64 {
    let bytes = quorum.bytes().chain([0]).chain(lock.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

impl Quorums {
    /// Takes the lock in its quorum. While the list changes, a lock that moves is taken in its old quorum first, and
    /// then in its new quorum. So this client excludes clients that know only the old list as well as clients that know
    /// only the new one. All clients take the two locks in the same order, so these clients cannot block each other.
    /// The fencing token of the first guard is the one to pass on.
    pub(crate) async fn acquire(&self, lock: &str) -> Result<Vec<LockGuard>, AcquireError> {
        let old = chosen(&self.now, lock);
        let mut guards = vec![old.redlock.acquire(lock).await?];
        let next = self.next.as_ref().map(|next| chosen(next, lock));
        if let Some(next) = next.filter(|next| next.name != old.name) {
            guards.push(next.redlock.acquire(lock).await?);
        }
        Ok(guards)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
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

    // Step 1: give every client both lists, one client after the other. Step 2: when no client without the new list is
    // left, give every client only the new list.
    let both = Quorums {
        now: three.clone(),
        next: Some(four),
    };
    let moved = names.iter().find(|name| {
        let next = both.next.as_deref().unwrap_or(&[]);
        chosen(&three, name).name != chosen(next, name).name
    });
    let guards = both.acquire(moved.ok_or("no lock moves")?).await?;
    println!(
        "during the change, a lock that moves to another quorum is held in {} quorums",
        guards.len()
    );
    for guard in guards {
        guard.release().await;
    }
    Ok(())
}
