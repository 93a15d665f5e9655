//! Begins a session: reads the identity of the cluster, and tests the rights that a lock needs.

use quorate::node::Fault;
use quorate::node::ServerRun;
use quorate::node::store::Greeting;
use rand::RngExt as _;

use crate::fault::{Refusal, unprepared};
use crate::layout::{IDENTITY_NAME, Layout};
use crate::member::{Member, down, header, member_id};
use crate::txn;

/// The path of a transaction.
pub(crate) const TXN: &str = "/v3/kv/txn";
/// The line of the member's metrics with the time at which its process was started.
const START_TIME: &str = "process_start_time_seconds ";
/// The length of an identity in characters.
const IDENTITY_LENGTH: usize = 32;

/// The facts about a cluster at the beginning of a session.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    /// The random identity that `prepare` has written.
    pub(crate) identity: String,
    /// The number by which the members of the cluster recognise each other.
    pub(crate) cluster_id: u64,
    /// The date of the answer, in microseconds since 1970.
    pub(crate) date: Option<u64>,
}

impl Met {
    /// The name of the cluster: the same for all its members and prefixes.
    pub(crate) fn name(&self) -> String {
        name_of(self.cluster_id, &self.identity)
    }

    /// The facts that the session task needs. The run is the name of the cluster: a restart forgets no lock. Another
    /// identity means that the cluster was restored from a snapshot, or is a new one.
    pub(crate) fn greeting(&self) -> Greeting {
        let name = self.name();
        let greeting = Greeting::new(ServerRun::new(name.clone()));
        greeting.run_outlives_restarts().server(name)
    }
}

/// The name of a cluster. The number alone does not suffice: two clusters with equal settings have the same one.
pub(crate) fn name_of(cluster_id: u64, identity: &str) -> String {
    format!("etcd-{cluster_id:x}-{identity}")
}

/// Reads the identity of the cluster, and tests the rights that a lock needs. Changes nothing.
pub(crate) async fn greet(member: &mut Member) -> Result<Met, Fault> {
    let shared = member.shared.clone();
    // The name is known after the answer only, so take the floors of all clusters before the request.
    let floors = shared.seen.floors();
    let layout = shared.address.layout();
    let outcome = member.ask(TXN, &txn::probe(&layout)).await.map_err(down)?;
    let answer = outcome.map_err(|refusal| down(explain(&refusal, &layout)))?;
    let (cluster_id, revision) = header(&answer.body)?;
    let responses = crate::json::list(&answer.body, "responses");
    let value = txn::value(responses.first())?.ok_or_else(unprepared)?;
    let identity = parse_identity(value).ok_or_else(unprepared)?;
    let met = Met {
        identity,
        cluster_id,
        date: answer.date,
    };
    let name = met.name();
    let floor = floors.iter().find(|(cluster, _)| *cluster == name);
    let floor = floor.map_or(0, |(_, highest)| *highest);
    shared.seen.check(&name, floor, revision)?;
    Ok(met)
}

/// The fault of a refused probe. If a right is missing, the fault names the keys.
fn explain(refusal: &Refusal, layout: &Layout) -> Fault {
    match refusal.fault() {
        Fault::Denied(why) if refusal.code == 7 => {
            let prefix = layout.prefix();
            Fault::Denied(
                format!("{why}: read {IDENTITY_NAME}, and read and write {prefix}").into(),
            )
        }
        fault => fault,
    }
}

/// A new random identity.
pub(crate) fn random_identity() -> String {
    let mut rng: rand::rngs::StdRng = rand::make_rng();
    format!("{:032x}", rng.random::<u128>())
}

/// An identity as it is stored; `None` if the value is none.
pub(crate) fn parse_identity(value: Vec<u8>) -> Option<String> {
    let identity = String::from_utf8(value).ok()?;
    let is_identity =
        identity.len() == IDENTITY_LENGTH && identity.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_identity.then_some(identity)
}

/// Identifies the clock that gives the dates of a member: its process. If the member does not show when its process was
/// started, returns a random number, so that two sessions never compare their dates.
pub(crate) async fn era(member: &mut Member) -> Result<u64, Fault> {
    let id = member_id(&member.status).to_owned();
    let metrics = member.page("/metrics").await?;
    let start = metrics.as_deref().and_then(start_time);
    Ok(match start {
        Some(start) if !id.is_empty() => hash(&format!("{id} {start}")),
        _ => {
            let mut rng: rand::rngs::StdRng = rand::make_rng();
            rng.random()
        }
    })
}

/// The time at which the process was started, as the metrics show it.
fn start_time(metrics: &str) -> Option<&str> {
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix(START_TIME))?;
    let time: f64 = value.trim().parse().ok()?;
    (time > 0.0).then_some(value.trim())
}

/// A hash that is the same in all processes and versions (FNV-1a).
fn hash(text: &str) -> u64 {
    let begin = 0xcbf2_9ce4_8422_2325;
    text.bytes().fold(begin, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_random_identity_counts_as_an_identity() {
        let random = random_identity();
        assert_eq!(parse_identity(random.clone().into_bytes()), Some(random));
        assert_ne!(random_identity(), random_identity());
        for other in [&b""[..], b"abc", &[0xff; 32], &[b'x'; 32]] {
            assert_eq!(parse_identity(other.to_vec()), None, "{other:?}");
        }
    }

    #[test]
    fn start_time_of_the_process_is_read_from_the_metrics() {
        let metrics =
            "# HELP process_start_time_seconds Start\nprocess_start_time_seconds 1.7e+09\nx 1\n";
        assert_eq!(start_time(metrics), Some("1.7e+09"));
        for other in [
            "",
            "process_start_time_seconds x",
            "process_start_time_seconds 0",
        ] {
            assert_eq!(start_time(other), None, "{other}");
        }
        assert_ne!(hash("1 1.7e+09"), hash("2 1.7e+09"));
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
    }
}
