//! The result of inspecting one master.

use std::time::{Duration, Instant, SystemTime};

use super::fault::Fault;
use super::name::NodeName;
use super::numbers;
use super::right::MissingRight;
use super::text::sanitize;

/// The result of [`Redlock::inspect`](crate::Redlock::inspect) for one master. A field is `None` if the server does not
/// report its value, or if the user has no right to read the value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// Why this master cannot be used for locks, for example because there is no connection. `None` if no such fault
    /// was found. Other fields can be set even if there is a fault.
    pub fault: Option<Fault>,
    /// The time that connecting took, including the handshake; `None` if it failed.
    pub connecting: Option<Duration>,
    /// The shortest of several measured round trips; `None` if no round trip was measured.
    pub round_trip: Option<Duration>,
    /// The name of the server software: `redis`, `valkey`, `mysql`, `mariadb`, `postgresql`, `zookeeper`, `etcd`,
    /// or the name of another server that uses the protocol of Redis. `None` if unknown.
    pub server: Option<String>,
    /// The server's version; `None` if unknown.
    pub version: Option<String>,
    /// The server's role; `None` if unknown.
    ///
    /// - Redis: `master` or `slave`.
    /// - Databases: `master`, `slave` or `read-only`.
    /// - ZooKeeper and etcd: `leader`, `follower` or `standalone`. ZooKeeper has more modes.
    pub role: Option<String>,
    /// Whether the server is a node of a Redis cluster; `None` if unknown.
    pub cluster: Option<bool>,
    /// The id of this run of the server process, which changes at a restart; `None` if unknown.
    pub run_id: Option<String>,
    /// A permanent id of the server, which is the same at every address of the server and after a restart. `None` if
    /// this kind of server has no such id.
    pub identity: Option<String>,
    /// True for databases and ZooKeeper: the server neither expires nor evicts the records of locks. False for servers
    /// with the protocol of Redis.
    pub records: bool,
    /// The answer timeout of this kind of server; `None` means [`node_timeout`](crate::RedlockBuilder::node_timeout).
    pub timeout: Option<Duration>,
    /// The settings that were read from a database or ZooKeeper, as pairs of name and value. Empty for servers with the
    /// protocol of Redis: their settings are in other fields.
    pub settings: Vec<(String, String)>,
    /// The facts about the server that could not be read. Each entry names a fact, and the right or setting that is
    /// needed to read it.
    pub unseen: Vec<String>,
    /// The time since the server was started, in whole seconds; `None` if unknown. Zero if the server reports an
    /// impossible time.
    pub uptime: Option<Duration>,
    /// Whether the server reports an impossible time since its start, for example a negative one: its clock was set
    /// after the start.
    pub is_uptime_impossible: bool,
    /// The eviction policy: the setting `maxmemory-policy`; `None` if unknown.
    pub maxmemory_policy: Option<String>,
    /// Whether the server keeps an append-only file; `None` if unknown.
    pub append_only: Option<bool>,
    /// How often the append-only file is synced: the setting `appendfsync`; `None` if unknown.
    pub append_fsync: Option<String>,
    /// Whether the server takes snapshots; `None` if unknown.
    pub snapshots: Option<bool>,
    /// The server's clock minus this machine's clock, in milliseconds; `None` if unknown. The measurement error is at
    /// most one round trip.
    pub clock_offset_ms: Option<i64>,
    /// The rights that locks need and that the client's user lacks.
    pub missing: Vec<MissingRight>,
    /// Whether the server can notify a waiting client when a lock becomes free. Also false if the client uses no queues
    /// ([`Order::Unordered`](crate::Order::Unordered)). Without notifications, waiting clients poll.
    pub wake_ups: bool,
    /// How long the restart guard still excludes the server's votes; `None` if the votes count now.
    pub quarantined: Option<Duration>,
    /// Whether the server has a generation marker (`docs/protocol.md`, "Generation markers"). A server without a marker
    /// may have lost its data. `None` if this kind of server has no markers, or if the marker could not be read.
    pub marked: Option<bool>,
}

/// The beginning of a round trip to a server, see [`Inspection::add_round_trip`].
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    sent_at: Instant,
    wall: SystemTime,
}

impl RoundTrip {
    /// Call this function before a request is sent.
    pub fn begin() -> Self {
        Self {
            sent_at: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}

impl Inspection {
    /// Creates an inspection that contains no results and no faults yet.
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
            is_uptime_impossible: false,
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

    /// Creates an inspection that found nothing but this fault.
    pub(crate) fn failed(node: NodeName, fault: Fault) -> Self {
        Self {
            fault: Some(fault),
            ..Self::new(node)
        }
    }

    /// Records a round trip that has just ended. `server_micros` is the server's clock during the round trip, in
    /// microseconds since 1970; `None` if the reply did not contain it.
    ///
    /// Only the fastest round trip counts: the server may have read its clock at any time between the request and the
    /// reply, so the measurement error is at most half of the round trip.
    pub fn add_round_trip(&mut self, round_trip: RoundTrip, server_micros: Option<i64>) {
        let elapsed = round_trip.sent_at.elapsed();
        let middle = (round_trip.wall + elapsed / 2).duration_since(SystemTime::UNIX_EPOCH);
        let middle_micros = i64::try_from(middle.unwrap_or_default().as_micros());
        self.add_measurement(elapsed, middle_micros.unwrap_or(i64::MAX), server_micros);
    }

    fn add_measurement(&mut self, elapsed: Duration, own_micros: i64, server_micros: Option<i64>) {
        if self.round_trip.is_none_or(|fastest| elapsed < fastest) {
            self.round_trip = Some(elapsed);
            self.clock_offset_ms =
                server_micros.map(|server_micros| server_micros.saturating_sub(own_micros) / 1000);
        }
    }

    /// The value of the server's setting called `name`; `None` if the setting was not read.
    pub fn setting(&self, name: &str) -> Option<&str> {
        let setting = self.settings.iter().find(|(other, _)| other == name);
        setting.map(|(_, value)| value.as_str())
    }

    /// Fills in the fields that the reply to `INFO` contains.
    pub(crate) fn read(&mut self, info: &str) {
        let field = |name: &str| {
            info.lines()
                .filter_map(|line| line.trim().split_once(':'))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| server_text(value))
        };
        let flag = |name: &str| field(name).map(|value| value == "1");
        // Compatible servers report a Redis version in addition to their own version, so look for `redis` last.
        let server_kinds = ["valkey", "dragonfly", "garnet", "redis"];
        let kind = server_kinds
            .into_iter()
            .find_map(|kind| Some((kind, field(&format!("{kind}_version"))?)));
        if let Some((kind, version)) = kind {
            self.server = Some(kind.to_owned());
            self.version = Some(version);
        }
        self.role = field("role");
        self.cluster = flag("cluster_enabled");
        self.run_id = field("run_id");
        let uptime = field("uptime_in_seconds").and_then(|secs| numbers::uptime(&secs));
        self.uptime = uptime.map(|uptime| uptime.at_least);
        self.is_uptime_impossible = uptime.is_some_and(|uptime| !uptime.is_credible);
        self.append_only = flag("aof_enabled");
        self.maxmemory_policy = field("maxmemory_policy");
    }
}

/// Makes text from a server safe for terminals and logs: keeps only the first 160 characters, and replaces each control
/// character by `U+FFFD`.
pub(crate) fn server_text(text: &str) -> String {
    sanitize(text, 160)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_of_the_fastest_round_trip_is_reported() {
        let mut inspection = Inspection::new(NodeName::new("m"));
        let mut offset_after = |elapsed_ms, server_micros| {
            inspection.add_measurement(Duration::from_millis(elapsed_ms), 5_000_000, server_micros);
            (
                inspection.round_trip.map(|time| time.as_millis()),
                inspection.clock_offset_ms,
            )
        };
        assert_eq!(offset_after(9, Some(5_007_999)), (Some(9), Some(7)));
        // A slower or an equally fast round trip changes nothing.
        assert_eq!(offset_after(9, Some(8_000_000)), (Some(9), Some(7)));
        assert_eq!(offset_after(10, Some(8_000_000)), (Some(9), Some(7)));
        assert_eq!(offset_after(4, Some(4_996_000)), (Some(4), Some(-4)));
        // The fastest reply contained no clock, so the difference is unknown.
        assert_eq!(offset_after(3, None), (Some(3), None));
        let far_ahead = i64::MAX / 1000 - 5_000;
        assert_eq!(offset_after(2, Some(i64::MAX)), (Some(2), Some(far_ahead)));
    }

    #[test]
    fn own_clock_is_read_in_the_middle_of_a_round_trip() {
        let mut inspection = Inspection::new(NodeName::new("m"));
        let two_seconds_ago = Instant::now().checked_sub(Duration::from_secs(2));
        let round_trip = RoundTrip {
            sent_at: two_seconds_ago.expect("the machine must run for longer than two seconds"),
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(100),
        };
        inspection.add_round_trip(round_trip, Some(101_000_000));
        let offset_ms = inspection.clock_offset_ms.expect("an offset");
        // The round trip took two seconds, plus the time that this test needs.
        assert!((-5_000..=0).contains(&offset_ms), "{offset_ms}");
        assert!(inspection.round_trip >= Some(Duration::from_secs(2)));
    }

    #[test]
    fn server_text_is_truncated_and_stripped_of_control_characters() {
        assert_eq!(
            server_text("a\u{1b}[2J\r\nb"),
            "a\u{fffd}[2J\u{fffd}\u{fffd}b"
        );
        assert_eq!(server_text(&"x".repeat(10_000)).len(), 160);
    }

    #[test]
    fn facts_in_the_info_reply_are_stored_in_the_inspection() {
        let mut inspection = Inspection::new(NodeName::new("m"));
        inspection.read(
            "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.8\r\nrun_id:abc\r\n\
             uptime_in_seconds:61\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\n\
             cluster_enabled:0\r\n",
        );
        assert_eq!(inspection.server.as_deref(), Some("valkey"));
        assert_eq!(inspection.version.as_deref(), Some("8.1.8"));
        assert_eq!(inspection.run_id.as_deref(), Some("abc"));
        assert_eq!(inspection.uptime, Some(Duration::from_secs(61)));
        assert_eq!(
            (inspection.append_only, inspection.cluster),
            (Some(false), Some(false))
        );
        assert_eq!(inspection.role.as_deref(), Some("master"));
        inspection.read("uptime_in_seconds:-7200\r\n");
        assert_eq!(inspection.uptime, Some(Duration::ZERO));
        assert!(inspection.is_uptime_impossible);
        inspection.read("role:\u{1b}[2Jmaster\r\n");
        assert_eq!(inspection.role.as_deref(), Some("\u{fffd}[2Jmaster"));
        let mut empty_inspection = Inspection::new(NodeName::new("m"));
        empty_inspection.read("");
        assert_eq!(empty_inspection, Inspection::new(NodeName::new("m")));
    }
}
