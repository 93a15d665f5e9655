//! What is done on one master while masters are changed, and what is seen there.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::name::NodeName;

/// A fencing counter: its key as it stands on the master, and its number.
pub(crate) type Counter = (Vec<u8>, u64);

/// What is to be done on a master, before it is looked at.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum ChangeOrder {
    /// Nothing.
    #[default]
    Look,
    /// The mark is raised to this number, for the masters of this fingerprint, and never lowered. Connections of
    /// clients at a step below are ended then: what they had sent is answered before, and who comes again is told.
    Raise {
        /// The number.
        number: u64,
        /// The masters that it stands for.
        print: Arc<str>,
        /// The lowest step whose connections stay.
        step: u64,
        /// A master without a mark has lost it: clients that connect within the longest ttl leave its votes out. Otherwise
        /// it is marked for the first time.
        restores: bool,
    },
    /// The fencing counters are read that are within so much of the master's clock, or ahead of it.
    Counters(Duration),
    /// The names of the values are read that are kept under locks.
    Values,
    /// Fencing counters are raised to these, and never lowered; not under an owner that holds the lock.
    Carry(Arc<[Counter]>),
}

/// What one master shows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ChangeSeen {
    /// Why it could not be asked, or not for everything.
    pub fault: Option<Fault>,
    /// What stands in the mark, as text: a number and a fingerprint.
    pub mark: Option<String>,
    /// The run of the server.
    pub run_id: Option<String>,
    /// How long it has been up.
    pub uptime: Option<Duration>,
    /// What it does when its memory is full, where it has a limit.
    pub eviction: Option<String>,
    /// How far its clock is ahead of ours.
    pub clock_offset_ms: Option<i64>,
    /// Who is connected and may take locks.
    pub clients: Vec<ClientSeen>,
    /// How many connections were ended.
    pub ended: usize,
    /// The counters, where they were asked for.
    pub counters: Vec<Counter>,
    /// The counters that were not raised, because an owner holds the lock: their keys, and what the lock key holds.
    pub owned: Vec<(Vec<u8>, Vec<u8>)>,
    /// The values that are kept under locks, at most 1000 counted.
    pub values: usize,
    /// The keys of the locks under which values are kept, where they were asked for.
    pub names: Vec<Vec<u8>>,
}

/// A connection to a master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientSeen {
    /// Its number at the server.
    pub id: u64,
    /// The name that it gave itself.
    pub name: String,
    /// Where it comes from.
    pub address: String,
    /// Who it is.
    pub kind: ClientKind,
}

/// Who is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A client at this step of a change, that is told when its masters are closed, with the fingerprint of the masters
    /// that it goes by, or is to go by.
    AtStep(u64, u64),
    /// A client of this library that cannot be told: of an older version, or of a user that may not read the mark.
    Untold,
    /// Somebody else who runs scripts, or sets keys: perhaps another Redlock client, which knows nothing of marks.
    Stranger,
}

/// What commands begin with by which other Redlock clients take locks.
const TAKES: [&str; 4] = ["eval", "fcall", "set", "exec"];

/// What stands behind `quorate/` in a name.
fn at_step(name: &str) -> Option<ClientKind> {
    let (step, rest) = name.split_once('/')?;
    let print = u64::from_str_radix(rest.split(':').next()?, 16).ok()?;
    Some(ClientKind::AtStep(step.parse().ok()?, print))
}

impl ClientSeen {
    /// One line of `CLIENT LIST`; none for who takes no locks, as far as one can see.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut words = line.split(' ');
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let name = field("name").unwrap_or_default();
        let command = field("cmd").unwrap_or_default();
        let kind = match name.strip_prefix("quorate/") {
            Some(rest) => at_step(rest).unwrap_or(ClientKind::Untold),
            None if name == OPERATOR => return None,
            None if name.starts_with("quorate:") => ClientKind::Untold,
            None if field("lib-name") == Some("quorate") => ClientKind::Untold,
            // Takes locks by scripts or by SET, or listens as those do who wait for locks.
            None if TAKES.iter().any(|takes| command.starts_with(takes)) => ClientKind::Stranger,
            None if name.is_empty() && field("sub").is_some_and(|count| count != "0") => {
                ClientKind::Stranger
            }
            None => return None,
        };
        Some(Self {
            id: field("id")?.parse().ok()?,
            name: name.to_owned(),
            address: field("addr").unwrap_or_default().to_owned(),
            kind,
        })
    }
}

/// What a `CLIENT LIST` tells of who takes locks, for simulations.
#[cfg(any(test, feature = "testing"))]
pub fn clients(list: &str) -> Vec<ClientSeen> {
    list.lines().filter_map(ClientSeen::read).collect()
}

/// What an operator's connection calls itself.
pub(crate) const OPERATOR: &str = "quorate-operator";

/// One master with what it shows, as [`MastersChange`](crate::MastersChange) tells it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MasterSeen {
    /// Its address, without credentials.
    pub node: NodeName,
    /// It is one of the masters that are.
    pub is_old: bool,
    /// It is one of those that will be.
    pub is_next: bool,
    /// What it shows.
    pub seen: ChangeSeen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_locks_is_known_by_its_name_or_by_its_last_command() {
        let kind = |line: &str| ClientSeen::read(line).map(|client| client.kind);
        let at = "id=7 addr=10.0.0.1:5 laddr=x fd=8 name=quorate/1/00aa:host:9 age=3 cmd=ping";
        assert_eq!(kind(at), Some(ClientKind::AtStep(1, 0xaa)));
        let client = ClientSeen::read(at).expect("a client");
        assert_eq!((client.id, client.address.as_str()), (7, "10.0.0.1:5"));
        let before = "id=7 addr=a name=quorate:host:9 cmd=evalsha";
        assert_eq!(kind(before), Some(ClientKind::Untold));
        let unnamed = "id=7 addr=a name= cmd=evalsha user=x lib-name=quorate lib-ver=0.1.0";
        assert_eq!(kind(unnamed), Some(ClientKind::Untold));
        let other = "id=7 addr=a name= cmd=evalsha user=x lib-name=other";
        assert_eq!(kind(other), Some(ClientKind::Stranger));
        let sets = "id=7 addr=a name=cache cmd=set";
        assert_eq!(kind(sets), Some(ClientKind::Stranger));
        let later = "id=7 addr=a name=quorate/later:host:9 cmd=ping";
        assert_eq!(kind(later), Some(ClientKind::Untold));
        let listens = "id=7 addr=a name= db=0 sub=1 psub=0 cmd=ping";
        assert_eq!(kind(listens), Some(ClientKind::Stranger));
        for nobody in [
            "id=7 addr=a name= sub=0 cmd=get",
            "id=7 addr=a name=quorate-operator cmd=eval",
            "",
        ] {
            assert_eq!(kind(nobody), None, "{nobody}");
        }
    }
}
