//! The result of inspecting one master.

use std::time::Duration;

use super::fault::Fault;
use super::name::NodeName;
use super::right::MissingRight;
use super::text::sanitize;

/// The result of [`Redlock::inspect`](crate::Redlock::inspect) for one master. A field is `None` if the server does not
/// report it, or may not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// Why locks get no connection to this master, or no answer in time; `None` if they do. If the master refused a
    /// part of the handshake, the other fields still have what it reported.
    pub fault: Option<Fault>,
    /// How long connecting took, handshake included.
    pub connecting: Option<Duration>,
    /// The fastest of several round trips.
    pub round_trip: Option<Duration>,
    /// The kind of server: `redis`, `valkey` or another one with their protocol, `mysql`, `mariadb`, `zookeeper`.
    pub server: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The role: `master` or `slave`; for a database also `read-only`, for ZooKeeper the role that it reports.
    pub role: Option<String>,
    /// Whether it is a node of a cluster.
    pub cluster: Option<bool>,
    /// The id of this run of the server process.
    pub run_id: Option<String>,
    /// An id of the server, if its kind has one: the same through every address, and after a restart.
    pub identity: Option<String>,
    /// Whether it keeps locks in records, which neither expire by themselves nor are evicted.
    pub records: bool,
    /// How long it may take to answer, if that differs from the builder's node timeout.
    pub timeout: Option<Duration>,
    /// Its settings, by the server's own names.
    pub settings: Vec<(String, String)>,
    /// The facts that could not be read, and what is needed to read them.
    pub unseen: Vec<String>,
    /// How long it has been up, in whole seconds.
    pub uptime: Option<Duration>,
    /// `maxmemory-policy`.
    pub maxmemory_policy: Option<String>,
    /// Whether it keeps an append-only file.
    pub append_only: Option<bool>,
    /// `appendfsync`.
    pub append_fsync: Option<String>,
    /// Whether it takes snapshots.
    pub snapshots: Option<bool>,
    /// Its clock minus ours in milliseconds, as exact as the round trip allows.
    pub clock_offset_ms: Option<i64>,
    /// The rights that these locks need and its user lacks.
    pub missing: Vec<MissingRight>,
    /// Whether it can wake waiters. Waiters rely on timers if it cannot, or if no client uses fair order.
    pub wake_ups: bool,
    /// How much longer its votes do not count because of the restart guard; `None` if they count.
    pub quarantined: Option<Duration>,
    /// Whether it has the generation marker of its masters. `None` if its kind has no markers, or its user may not read
    /// them.
    pub marked: Option<bool>,
}

impl Inspection {
    /// An inspection without results or faults.
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            fault: None,
            connecting: None,
            round_trip: None,
            server: None,
            version: None,
            role: None,
            cluster: None,
            run_id: None,
            identity: None,
            records: false,
            timeout: None,
            settings: Vec::new(),
            unseen: Vec::new(),
            uptime: None,
            maxmemory_policy: None,
            append_only: None,
            append_fsync: None,
            snapshots: None,
            clock_offset_ms: None,
            missing: Vec::new(),
            wake_ups: false,
            quarantined: None,
            marked: None,
        }
    }

    /// The value of one of its settings.
    pub fn setting(&self, name: &str) -> Option<&str> {
        let found = self.settings.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Takes over the reply to `INFO`.
    pub(crate) fn read(&mut self, info: &str) {
        let value = |name: &str| {
            info.lines()
                .filter_map(|line| line.trim().split_once(':'))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| plain(value))
        };
        let on = |name: &str| value(name).map(|on| on == "1");
        // Compatible servers also report a Redis version, so check their own names first.
        let kinds = ["valkey", "dragonfly", "garnet", "redis"];
        let kind = kinds
            .into_iter()
            .find_map(|kind| Some((kind, value(&format!("{kind}_version"))?)));
        if let Some((kind, version)) = kind {
            self.server = Some(kind.to_owned());
            self.version = Some(version);
        }
        self.role = value("role");
        self.cluster = on("cluster_enabled");
        self.run_id = value("run_id");
        self.uptime = value("uptime_in_seconds")
            .and_then(|secs| secs.parse().ok())
            .map(Duration::from_secs);
        self.append_only = on("aof_enabled");
        self.maxmemory_policy = value("maxmemory_policy");
    }
}

/// Text from a server goes to terminals and logs: it is cut to a few characters, and control characters are replaced
/// visibly.
pub(crate) fn plain(text: &str) -> String {
    sanitize(text, 160)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_text_is_truncated_and_stripped_of_control_characters() {
        assert_eq!(plain("a\u{1b}[2J\r\nb"), "a\u{fffd}[2J\u{fffd}\u{fffd}b");
        assert_eq!(plain(&"x".repeat(10_000)).len(), 160);
    }

    #[test]
    fn info_reply_fills_the_inspection() {
        let mut one = Inspection::new(NodeName::new("m"));
        one.read(
            "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.8\r\nrun_id:abc\r\n\
             uptime_in_seconds:61\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\n\
             cluster_enabled:0\r\n",
        );
        assert_eq!(one.server.as_deref(), Some("valkey"));
        assert_eq!(one.version.as_deref(), Some("8.1.8"));
        assert_eq!(one.run_id.as_deref(), Some("abc"));
        assert_eq!(one.uptime, Some(Duration::from_secs(61)));
        assert_eq!((one.append_only, one.cluster), (Some(false), Some(false)));
        assert_eq!(one.role.as_deref(), Some("master"));
        one.read("role:\u{1b}[2Jmaster\r\n");
        assert_eq!(one.role.as_deref(), Some("\u{fffd}[2Jmaster"));
        let mut none = Inspection::new(NodeName::new("m"));
        none.read("");
        assert_eq!(none, Inspection::new(NodeName::new("m")));
    }
}
