//! The operations on one master while the masters are replaced, and the state that the master then shows.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::name::NodeName;

/// A fencing counter: its full key and its value.
pub(crate) type Counter = (Vec<u8>, u64);

/// An operation of an operator on one master. The master's state is read after the operation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum ChangeOrder {
    /// Changes nothing: only reads the master's state.
    #[default]
    Look,
    /// Raises the generation marker to `number`, for the set of masters with the fingerprint `print`; never lowers it.
    /// Then ends the connections of clients whose step of the replacement is below `step`. Requests that these clients
    /// sent earlier are answered first. Afterwards the master refuses these clients when they connect again.
    Raise {
        /// The generation that the marker is raised to.
        number: u64,
        /// The fingerprint of the set of masters that the marker belongs to.
        print: Arc<str>,
        /// The lowest step of the replacement at which a client keeps its connections.
        step: u64,
        /// True if the master is known to have lost its marker: clients that connect within the longest TTL then ignore
        /// the master's votes. False if the masters get their first marker.
        restores: bool,
    },
    /// Reads the fencing counters that are ahead of the master's clock, or behind it by at most this duration.
    Counters(Duration),
    /// Reads the keys of the locks that have stored values.
    Values,
    /// Raises these fencing counters to these numbers. A counter is never lowered, and it is not raised while an owner
    /// holds the lock of the counter.
    Carry(Arc<[Counter]>),
}

/// The state of one master after an operation of an operator.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ChangeSeen {
    /// Why the master did not answer, or reported only a part of its state. `None` if the state is complete.
    pub fault: Option<Fault>,
    /// The generation marker as text: a generation number and a fingerprint of the masters.
    pub mark: Option<String>,
    /// The run id of the server.
    pub run_id: Option<String>,
    /// How long the server has been up.
    pub uptime: Option<Duration>,
    /// The eviction policy (`maxmemory-policy`), if the server has a memory limit.
    pub eviction: Option<String>,
    /// The server's clock minus this machine's clock, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// The connected clients that may take locks.
    pub clients: Vec<ClientSeen>,
    /// How many client connections the operation ended.
    pub ended: usize,
    /// The fencing counters, if the operation reads them.
    pub counters: Vec<Counter>,
    /// The counters that were not raised because an owner holds the lock: the key of each counter, and the value of its
    /// lock key.
    pub owned: Vec<(Vec<u8>, Vec<u8>)>,
    /// The number of stored values under locks; values beyond 1000 are not counted.
    pub values: usize,
    /// The keys of the locks that have stored values, if the operation reads them.
    pub names: Vec<Vec<u8>>,
}

/// A client's connection to a master, as the master lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientSeen {
    /// The client id that the server gave the connection.
    pub id: u64,
    /// The name that the client gave the connection.
    pub name: String,
    /// The client's address.
    pub address: String,
    /// The kind of client.
    pub kind: ClientKind,
}

/// The kind of a client that is connected to a master, with regard to generation markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A client of this library that is notified when its masters are closed. The numbers are the client's step of the
    /// replacement, and the fingerprint of its masters (or of the masters that replace them, if the client knows
    /// those).
    AtStep(u64, u64),
    /// A client of this library that is not notified when its masters are closed: it has an older version, or its user
    /// may not read the generation marker.
    Untold,
    /// An unknown client that runs scripts or sets keys. It may be another Redlock client that knows no generation
    /// markers.
    Stranger,
}

/// The beginnings of the names of the commands with which other Redlock clients take locks.
const TAKES: [&str; 4] = ["eval", "fcall", "set", "exec"];

/// Parses the part of a connection's name after `quorate/`: the client's step of the replacement, and the fingerprint
/// of its masters.
fn at_step(name: &str) -> Option<ClientKind> {
    let (step, rest) = name.split_once('/')?;
    let print = u64::from_str_radix(rest.split(':').next()?, 16).ok()?;
    Some(ClientKind::AtStep(step.parse().ok()?, print))
}

impl ClientSeen {
    /// Parses one line of `CLIENT LIST`. Returns `None` for a client that apparently takes no locks.
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
            // The connection has no name of this library. Its last command shows that it takes locks with scripts or
            // SET, or that it subscribes as waiters do.
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

/// Parses a whole `CLIENT LIST`, and returns the clients that take locks. For simulations.
#[cfg(any(test, feature = "testing"))]
pub fn clients(list: &str) -> Vec<ClientSeen> {
    list.lines().filter_map(ClientSeen::read).collect()
}

/// The name that an operator's connections have in `CLIENT LIST`.
pub(crate) const OPERATOR: &str = "quorate-operator";

/// One master and its state, as [`MastersChange`](crate::MastersChange) reports it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MasterSeen {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// Whether the master belongs to the old set of masters.
    pub is_old: bool,
    /// Whether the master belongs to the next set of masters.
    pub is_next: bool,
    /// The state of the master.
    pub seen: ChangeSeen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_take_locks_are_found_by_name_or_last_command() {
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
