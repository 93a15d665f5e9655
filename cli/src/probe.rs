//! Asks one master about itself, for `doctor`, over a connection of its own.
//!
//! It opens its own connection because it asks what no lock ever asks: the whole `INFO`, parts of the
//! configuration, the clock, and what the user may run. It changes nothing on a master: the only
//! write it tries is one that cannot take effect.

use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{Client, ClientTlsConfig, ErrorKind, RedisError, ServerErrorKind, TlsCertificates};

use crate::config::{MasterOptions, Order};
use crate::findings::Facts;

/// How often clock and latency are measured; the fastest answer counts.
const SAMPLES: usize = 5;
/// For masters that answer, but do not say how long connecting may take.
const DEFAULT_PATIENCE: Duration = Duration::from_millis(500);
/// How long all questions together may take.
const INTERVIEW: Duration = Duration::from_secs(2);

/// What a probe brings home.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    /// The facts.
    pub(crate) facts: Facts,
    /// The fastest of several round trips.
    pub(crate) latency: Duration,
}

/// Everything that is known about reaching the masters.
pub(crate) struct Prober {
    certificates: Option<TlsCertificates>,
    patience: Duration,
    prefix: String,
    fair: bool,
}

impl Prober {
    /// Reads the certificates. The library has read them before, so failures have been told.
    pub(crate) fn new(options: &MasterOptions) -> Self {
        let read = |path: &Option<std::path::PathBuf>| {
            path.as_ref().and_then(|path| std::fs::read(path).ok())
        };
        let certificates = TlsCertificates {
            root_cert: read(&options.ca_file),
            client_tls: read(&options.client_cert)
                .zip(read(&options.client_key))
                .map(|(client_cert, client_key)| ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
        };
        let any = certificates.root_cert.is_some() || certificates.client_tls.is_some();
        Self {
            certificates: any.then_some(certificates),
            patience: options.connect_timeout.unwrap_or(DEFAULT_PATIENCE),
            prefix: options.prefix.clone().unwrap_or_default(),
            fair: options.order != Some(Order::Unordered) && options.fencing != Some(false),
        }
    }

    /// Asks one master.
    ///
    /// # Errors
    ///
    /// A line for people, when it cannot be reached or does not answer.
    pub(crate) async fn ask(&self, url: &str) -> Result<Probe, String> {
        let client = self.client(url).map_err(|error| told(&error))?;
        let connection = client.get_multiplexed_async_connection();
        let mut connection = tokio::time::timeout(self.patience, connection)
            .await
            .map_err(|_| {
                format!(
                    "no connection within {}",
                    crate::output::human(self.patience)
                )
            })?
            .map_err(|error| told(&error))?;
        tokio::time::timeout(INTERVIEW, self.interview(&mut connection))
            .await
            .map_err(|_| format!("no answer within {}", crate::output::human(INTERVIEW)))?
            .map_err(|error| told(&error))
    }

    fn client(&self, url: &str) -> Result<Client, RedisError> {
        match &self.certificates {
            Some(certificates) if url.starts_with("rediss://") => {
                Client::build_with_tls(url, certificates.clone())
            }
            _ => Client::open(url),
        }
    }

    async fn interview(&self, connection: &mut MultiplexedConnection) -> Result<Probe, RedisError> {
        let (latency, clock_ms) = clock(connection).await?;
        let info: String = match redis::cmd("INFO").query_async(connection).await {
            Ok(info) => info,
            Err(error) if is_denial(&error) => String::new(),
            Err(error) => return Err(error),
        };
        let mut facts = Facts {
            clock_ms,
            ..Facts::from_info(&info)
        };
        facts.fsync = setting(connection, "appendfsync").await;
        facts.snapshots = setting(connection, "save")
            .await
            .map(|save| !save.is_empty());
        facts.denied = self.denied(connection).await?;
        Ok(Probe { facts, latency })
    }

    /// Tries what locking needs, on keys that do not exist and in ways that change nothing.
    async fn denied(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<String>, RedisError> {
        let lock = format!("{}quorate-doctor-{}", self.prefix, std::process::id());
        let fence = format!("quorate:fence:{lock}");
        let plain: &[(&str, &[&str])] = &[
            ("INFO", &["server"]),
            ("SCRIPT", &["LOAD", "return 1"]),
            (
                "EVALSHA",
                &["e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"],
            ), // return 1
            ("EXISTS", &[&lock]),
            ("GET", &[&lock]),
            ("GET", &[&fence]),
            ("SET", &[&lock, "x", "XX", "PX", "1"]), // only if it existed, and it does not
            ("SET", &[&fence, "x", "XX", "PX", "1"]),
            ("PTTL", &[&lock]),
            ("PEXPIRE", &[&lock, "1"]),
            ("DEL", &[&lock]),
            ("TIME", &[]),
        ];
        let queue = format!("quorate:queue:{lock}");
        let in_line: &[(&str, &[&str])] = &[
            ("ZADD", &[&queue, "XX", "1", "x"]), // as above
            ("ZCARD", &[&queue]),
            ("ZRANGE", &[&queue, "0", "0"]),
            ("ZRANGEBYSCORE", &[&queue, "0", "0"]),
            ("ZRANK", &[&queue, "x"]),
            ("ZREM", &[&queue, "x"]),
            ("ZSCORE", &[&queue, "x"]),
        ];
        let in_line = if self.fair { in_line } else { &[] };
        let mut denied: Vec<String> = Vec::new();
        for (name, args) in plain.iter().chain(in_line) {
            let outcome = redis::cmd(name)
                .arg(*args)
                .query_async::<redis::Value>(connection)
                .await;
            let Err(error) = outcome else { continue };
            if error.is_io_error() {
                return Err(error);
            }
            if is_denial(&error) {
                let mut what = (*name).to_owned();
                if told(&error).contains(" key") {
                    let _ = write!(what, " on keys like '{}'", args[0]);
                }
                if !denied.contains(&what) {
                    denied.push(what);
                }
            }
        }
        Ok(denied)
    }
}

/// The fastest round trip, and the master's clock minus ours as of the middle of it.
async fn clock(
    connection: &mut MultiplexedConnection,
) -> Result<(Duration, Option<i64>), RedisError> {
    let mut best = (Duration::MAX, None);
    for _ in 0..SAMPLES {
        let wall = SystemTime::now();
        let sent = Instant::now();
        let answer = redis::cmd("TIME")
            .query_async::<(i64, i64)>(connection)
            .await;
        let took = sent.elapsed();
        let offset = match answer {
            Ok((secs, micros)) => {
                let ours = (wall + took / 2)
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                Some(secs * 1000 + micros / 1000 - ours.as_millis() as i64)
            }
            Err(error) if is_denial(&error) => None,
            Err(error) => return Err(error),
        };
        if took < best.0 {
            best = (took, offset);
        }
    }
    Ok(best)
}

/// One setting, where it may be read.
async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    redis::cmd("CONFIG")
        .arg("GET")
        .arg(name)
        .query_async::<Vec<String>>(connection)
        .await
        .ok()?
        .into_iter()
        .nth(1)
}

fn is_denial(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) || error.code() == Some("NOPERM")
}

/// An error for people, in one line.
fn told(error: &RedisError) -> String {
    let text = error.to_string().replace(['\n', '\r'], " ");
    crate::output::redact(&text).into_owned()
}

impl Facts {
    /// Reads what `INFO` says.
    pub(crate) fn from_info(info: &str) -> Self {
        let value = |name: &str| {
            info.lines()
                .filter_map(|line| line.trim().split_once(':'))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
        };
        let (server, version) = match value("valkey_version") {
            Some(version) => (Some("valkey".to_owned()), Some(version)),
            None => (
                value("redis_version").map(|_| "redis".to_owned()),
                value("redis_version"),
            ),
        };
        Self {
            server,
            version,
            role: value("role"),
            cluster: value("cluster_enabled").map(|on| on == "1"),
            run_id: value("run_id"),
            uptime: value("uptime_in_seconds")
                .and_then(|secs| secs.parse().ok())
                .map(Duration::from_secs),
            aof: value("aof_enabled").map(|on| on == "1"),
            fsync: None,
            snapshots: None,
            eviction: value("maxmemory_policy"),
            denied: Vec::new(),
            clock_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read() {
        let facts = Facts::from_info(
            "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.8\r\nrun_id:abc\r\n\
             uptime_in_seconds:61\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\n\
             cluster_enabled:0\r\n",
        );
        assert_eq!(facts.server.as_deref(), Some("valkey"));
        assert_eq!(facts.version.as_deref(), Some("8.1.8"));
        assert_eq!(facts.run_id.as_deref(), Some("abc"));
        assert_eq!(facts.uptime, Some(Duration::from_secs(61)));
        assert_eq!((facts.aof, facts.cluster), (Some(false), Some(false)));
        assert_eq!(facts.role.as_deref(), Some("master"));
        assert_eq!(Facts::from_info("").version, None);
    }
}
