//! Operations on one master that an operator uses to replace masters, and the state of the master after each operation.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::name::NodeName;
use super::right::MissingRight;
use super::scope::Scope;

/// The key of a fencing counter, including the prefix, and the value of the counter.
pub(crate) type Counter = (Vec<u8>, u64);

/// One operation on one master during a replacement of the masters. After each operation, the client reads the state of
/// the master ([`ChangeSeen`]).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum ChangeOrder {
    /// Changes nothing: only reads the master's state.
    #[default]
    ReadState,
    /// Connects, and reads only the run id.
    Identify,
    /// Finds the rights that the user lacks for a replacement of the masters. Changes no lock and no value.
    ///
    /// - If `keys` is `None`: tries every command on unused keys. If no right is missing, also lists the keys of all
    ///   values and fencing counters.
    /// - Otherwise: checks the rights to read and write `keys`.
    Rights {
        /// The settings of the locks (prefix, fencing, order of waiters) that the user must be able to take.
        scope: Scope,
        /// Keys of values and fencing counters that exist on at least one master. `None` in the first `Rights` order of
        /// a check, which lists these keys.
        keys: Option<Arc<[Vec<u8>]>>,
    },
    /// Writes `number` and the fingerprint `print` into the generation marker; never lowers the number. Then closes the
    /// connections of clients that are configured for a step before `step` of the replacement of masters. The master
    /// rejects these clients when they connect again.
    Raise {
        /// The new number in the generation marker. If `g` is the current generation, a replacement raises the number
        /// from `4 * g` to `4 * (g + 1)`, in several operations.
        number: u64,
        /// The fingerprint of the set of masters that is written into the marker.
        print: Arc<str>,
        /// Clients whose step of the replacement is lower than this lose their connections.
        step: u64,
        /// Whether a missing marker was lost. If true, clients ignore this master's votes for `max_ttl` after the
        /// marker is written again. If false, the new marker is the master's first one. Not used if the master has a
        /// marker.
        restores: bool,
    },
    /// Reads the fencing counters, except counters that are behind the master's clock by more than this duration. The
    /// value of a counter is a time in microseconds since 1970.
    Counters(Duration),
    /// Reads the keys of the locks that have a stored value.
    Values,
    /// Raises each of these fencing counters to the value in its pair; never lowers a counter. Skips the counter of a
    /// lock that an owner holds.
    Carry(Arc<[Counter]>),
}

/// The state of one master after a [`ChangeOrder`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ChangeSeen {
    /// Why the state is missing or incomplete; `None` if it is complete.
    pub fault: Option<Fault>,
    /// The rights on this master that the steps of a replacement need but the configured user lacks. Only
    /// [`ChangeOrder::Rights`] fills the list. If the list is not empty, [`fault`](Self::fault) names these rights too.
    pub missing: Vec<MissingRight>,
    /// The keys of all values (quotas and once-per-period records) and fencing counters on this master. Only
    /// [`ChangeOrder::Rights`] with `keys: None` fills the list.
    pub stored: Vec<Vec<u8>>,
    /// The generation marker as text: its number, and the fingerprint of the set of masters to which the number
    /// belongs; `None` if the master has no marker.
    pub mark: Option<String>,
    /// The run id of the server, which changes at a restart; `None` if unknown.
    pub run_id: Option<String>,
    /// The time since the server was started; `None` if unknown. Zero if the server reports an impossible time.
    pub uptime: Option<Duration>,
    /// Whether the server reports an impossible time since its start, for example a negative one: its clock was set
    /// after the start.
    pub is_uptime_impossible: bool,
    /// The eviction policy (`maxmemory-policy`); `None` if the server has no memory limit, or if the policy is
    /// unknown.
    pub eviction: Option<String>,
    /// The server's clock minus this machine's clock, in milliseconds; `None` if unknown.
    pub clock_offset_ms: Option<i64>,
    /// The connections of this library's clients, and of unknown clients that seem to take locks.
    pub clients: Vec<ClientSeen>,
    /// The number of client connections that the operation closed.
    pub ended: usize,
    /// The fencing counters that the operation [`ChangeOrder::Counters`] read.
    pub counters: Vec<Counter>,
    /// The fencing counters that [`ChangeOrder::Carry`] did not raise, because an owner holds the lock. Each pair is
    /// the key of the counter and the value of the lock key.
    pub owned: Vec<(Vec<u8>, Vec<u8>)>,
    /// The number of values (quotas and once-per-period records) that the master stores; at most 1000 are counted.
    pub values: usize,
    /// The keys of the locks that protect the values (quotas and once-per-period records) on this master. Only
    /// [`ChangeOrder::Values`] fills the list.
    pub names: Vec<Vec<u8>>,
}

/// A client's connection to a master, as the master lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientSeen {
    /// The id that the server gave the connection.
    pub id: u64,
    /// The name that the client gave the connection.
    pub name: String,
    /// The host on which the client runs, from the connection's name; `None` if this library did not choose the name.
    pub host: Option<String>,
    /// The client's process id on that host, from the connection's name; `None` if this library did not choose the
    /// name.
    pub pid: Option<u32>,
    /// The client's address.
    pub address: String,
    /// Whether the client notices a replacement of the masters.
    pub kind: ClientKind,
}

/// Whether a client that is connected to a master notices a replacement of the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A client of this library that reads the generation marker, and so notices a replacement.
    ///
    /// - The first field is the step for which the client is configured: twice its `masters_generation`, plus 1 if it
    ///   has `next_masters`.
    /// - The second field is the fingerprint of the client's `next_masters`, or of its `masters` if it has no
    ///   `next_masters`.
    AtStep(u64, u64),
    /// A client of this library that does not read the generation marker, and so does not notice a replacement. Either
    /// its version is too old, or its user has no right to read the marker.
    Untold,
    /// An unknown client that runs scripts or sets keys. It may be another Redlock client that ignores generation
    /// markers.
    Unknown,
}

/// Prefixes of the names of commands with which other Redlock clients take locks.
const TAKING_COMMANDS: [&str; 4] = ["eval", "fcall", "set", "exec"];

/// Parses the part of a connection's name after `quorate/`: the client's step of the replacement, and the fingerprint
/// of its masters. `None` if the part has another form.
fn at_step(name: &str) -> Option<ClientKind> {
    let (step, rest) = name.split_once('/')?;
    let print = u64::from_str_radix(rest.split(':').next()?, 16).ok()?;
    Some(ClientKind::AtStep(step.parse().ok()?, print))
}

/// Parses host and process id from the name of a connection: `quorate/STEP/FINGERPRINT:HOST:PID` or `quorate:HOST:PID`.
/// `None` for a name of another form.
fn host_and_pid(name: &str) -> Option<(&str, u32)> {
    let (_, process) = name.strip_prefix("quorate")?.split_once(':')?;
    let (host, pid) = process.rsplit_once(':')?;
    Some((host, pid.parse().ok()?))
}

impl ClientSeen {
    /// Parses one line of `CLIENT LIST`. Returns `None` for a client that does not seem to take locks.
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
            // This arm finds clients of other libraries: the last command of their connection can take a lock. The next
            // arm finds waiters of other libraries: unnamed connections with subscriptions.
            None if TAKING_COMMANDS
                .iter()
                .any(|prefix| command.starts_with(prefix)) =>
            {
                ClientKind::Unknown
            }
            None if name.is_empty() && field("sub").is_some_and(|count| count != "0") => {
                ClientKind::Unknown
            }
            None => return None,
        };
        let process = host_and_pid(name);
        Some(Self {
            id: field("id")?.parse().ok()?,
            name: name.to_owned(),
            host: process.map(|(host, _)| host.to_owned()),
            pid: process.map(|(_, pid)| pid),
            address: field("addr").unwrap_or_default().to_owned(),
            kind,
        })
    }
}

/// The name that an operator's connections have in `CLIENT LIST`.
pub(crate) const OPERATOR: &str = "quorate-operator";

/// A master and its state, as [`MastersChange`](crate::MastersChange) reports it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MasterSeen {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// Whether the master belongs to the old set of masters, which is being replaced.
    pub is_old: bool,
    /// Whether the master belongs to the new set of masters, which replaces the old one.
    pub is_next: bool,
    /// The state of the master.
    pub seen: ChangeSeen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_process_id_are_read_from_the_connection_name() {
        let process_named = |name: &str| {
            let line = format!("id=7 addr=a name={name} cmd=evalsha");
            let client = ClientSeen::read(&line).expect("the line must be parsed as a client");
            client.host.zip(client.pid)
        };
        let of_web = Some(("web-1.local".to_owned(), 9));
        assert_eq!(process_named("quorate/1/00aa:web-1.local:9"), of_web);
        assert_eq!(process_named("quorate:web-1.local:9"), of_web);
        for other in ["cache:web:9", "quorate/1/00aa", "quorate:web:x", ""] {
            assert_eq!(process_named(other), None, "{other}");
        }
    }

    #[test]
    fn client_kind_is_read_from_the_connection_name_and_the_last_command() {
        let kind_on_line = |line: &str| ClientSeen::read(line).map(|client| client.kind);
        let client_line =
            "id=7 addr=10.0.0.1:5 laddr=x fd=8 name=quorate/1/00aa:host:9 age=3 cmd=ping";
        assert_eq!(kind_on_line(client_line), Some(ClientKind::AtStep(1, 0xaa)));
        let client = ClientSeen::read(client_line).expect("the line must be parsed as a client");
        assert_eq!((client.id, client.address.as_str()), (7, "10.0.0.1:5"));
        let unversioned_line = "id=7 addr=a name=quorate:host:9 cmd=evalsha";
        assert_eq!(kind_on_line(unversioned_line), Some(ClientKind::Untold));
        let unnamed = "id=7 addr=a name= cmd=evalsha user=x lib-name=quorate lib-ver=0.1.0";
        assert_eq!(kind_on_line(unnamed), Some(ClientKind::Untold));
        let unnamed_line = "id=7 addr=a name= cmd=evalsha user=x lib-name=other";
        assert_eq!(kind_on_line(unnamed_line), Some(ClientKind::Unknown));
        let cache_line = "id=7 addr=a name=cache cmd=set";
        assert_eq!(kind_on_line(cache_line), Some(ClientKind::Unknown));
        let later = "id=7 addr=a name=quorate/later:host:9 cmd=ping";
        assert_eq!(kind_on_line(later), Some(ClientKind::Untold));
        let listens = "id=7 addr=a name= db=0 sub=1 psub=0 cmd=ping";
        assert_eq!(kind_on_line(listens), Some(ClientKind::Unknown));
        for nobody in [
            "id=7 addr=a name= sub=0 cmd=get",
            "id=7 addr=a name=cache sub=1 cmd=get",
            "id=7 addr=a name=quorate-operator cmd=eval",
            "",
        ] {
            assert_eq!(kind_on_line(nobody), None, "{nobody}");
        }
    }
}
