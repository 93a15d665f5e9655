//! One connection attempt: stream, handshake, restart guard.

use std::sync::PoisonError;
use std::time::Duration;

use redis::ConnectionAddr;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};

use super::Shared;
use super::connection::Connection;
use super::resp::{Command, Value};
use super::wire::{Scripts, down, server_fault};
use crate::builder::RestartGuard;
use crate::node::Fault;
use crate::node::request::WAKE_PREFIX;
use crate::protocol::instant::Instant;

/// A connection that has been shaken hands on.
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) scripts: Scripts,
    /// Until when this master's votes do not count.
    pub(super) quarantined_until: Instant,
}

/// Connects, loads the scripts and reads what the restart guard needs to know.
pub(super) async fn connect(shared: &Shared) -> Result<Link, Fault> {
    in_time(shared, attempt(shared)).await
}

/// A connection on which nothing was said but who we are: for an inspection of a master that refuses
/// the rest of the greeting.
pub(super) async fn introduce(shared: &Shared) -> Result<Connection, Fault> {
    in_time(shared, async {
        let mut connection = dial(shared).await?;
        hello(shared, connection.out());
        let mut refused = None;
        let heard = connection.exchange(1, |_, value| {
            if let Value::Error(error) = value {
                refused = Some(hello_fault(error));
            }
        });
        heard.await.map_err(down)?;
        refused.map_or(Ok(connection), Err)
    })
    .await
}

async fn in_time<T>(
    shared: &Shared,
    outcome: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let limit = shared.options.connect_timeout;
    let outcome = tokio::time::timeout(limit, outcome).await;
    outcome.unwrap_or_else(|_| {
        let limit = humantime::format_duration(limit);
        Err(Fault::Down(format!("no connection within {limit}").into()))
    })
}

async fn attempt(shared: &Shared) -> Result<Link, Fault> {
    let connection = dial(shared).await?;
    shake(shared, connection).await
}

async fn dial(shared: &Shared) -> Result<Connection, Fault> {
    match shared.address.info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            #[cfg(any(test, feature = "testing"))]
            if let Some(dial) = &shared.options.dial {
                let stream = dial(host, *port).await.map_err(down)?;
                return Ok(Connection::new(stream));
            }
            let stream = TcpStream::connect((host.as_str(), *port))
                .await
                .map_err(down)?;
            tune(&stream, shared.options.connect_timeout).map_err(down)?;
            if shared.address.tls {
                return tls(shared, host, stream).await;
            }
            Ok(Connection::new(stream))
        }
        ConnectionAddr::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(down)?;
            Ok(Connection::new(stream))
        }
        _ => Err(Fault::Down("this kind of address is not supported".into())),
    }
}

#[cfg(feature = "tls-rustls")]
async fn tls(shared: &Shared, host: &str, stream: TcpStream) -> Result<Connection, Fault> {
    let Some(config) = shared.options.tls.clone() else {
        return Err(Fault::Down("TLS is not configured".into()));
    };
    let name = rustls::pki_types::ServerName::try_from(host.to_owned())
        .map_err(|_| Fault::Down("not a host name that TLS can check".into()))?;
    let connector = tokio_rustls::TlsConnector::from(config);
    let stream = connector.connect(name, stream).await.map_err(down)?;
    Ok(Connection::new(stream))
}

#[cfg(not(feature = "tls-rustls"))]
#[expect(clippy::unused_async, reason = "the same shape as with the feature")]
async fn tls(_: &Shared, _: &str, _: TcpStream) -> Result<Connection, Fault> {
    Err(Fault::Down("TLS is not built in".into()))
}

/// No delay for small messages, and an end to connections whose peer has silently gone.
fn tune(stream: &TcpStream, patience: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(patience.max(Duration::from_secs(1))))?;
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
    Ok(())
}

/// What the first message asks.
#[derive(Clone, Copy)]
enum Asked {
    Hello,
    Database,
    /// Names the library in CLIENT LIST: not every server knows it, not every user may.
    Courtesy,
    Info,
    Script(usize),
    Id,
}

/// What came back.
#[derive(Default)]
struct Greeting {
    scripts: Scripts,
    info: Vec<u8>,
    /// Why there is no `info`.
    untold: Option<Fault>,
    /// The number of this connection at the server, where the user may ask for it.
    id: Option<i64>,
    /// The first fault in the order of asking: those behind it are its consequences.
    fault: Option<Fault>,
}

impl Greeting {
    /// Writes the one message in which everything is asked.
    fn ask(shared: &Shared, out: &mut Vec<u8>) -> Vec<Asked> {
        hello(shared, out);
        let mut asked = vec![Asked::Hello];
        let database = shared.address.info.redis_settings().db();
        if database != 0 {
            Command::words(out, &["SELECT", &database.to_string()]);
            asked.push(Asked::Database);
        }
        for (what, value) in [
            ("LIB-NAME", "quorate"),
            ("LIB-VER", env!("CARGO_PKG_VERSION")),
        ] {
            Command::words(out, &["CLIENT", "SETINFO", what, value]);
            asked.push(Asked::Courtesy);
        }
        Command::words(out, &["INFO", "server"]);
        asked.push(Asked::Info);
        Scripts::load(shared.options.max_ttl, out);
        asked.extend((0..Scripts::COUNT).map(Asked::Script));
        Command::words(out, &["CLIENT", "ID"]);
        asked.push(Asked::Id);
        asked
    }

    fn note(&mut self, asked: Asked, value: &Value<'_>) {
        let fault = match (asked, value) {
            (Asked::Hello, Value::Error(error)) => Some(hello_fault(error)),
            (Asked::Database, Value::Error(error)) => Some(server_fault(error)),
            (Asked::Info, Value::Error(error)) => {
                self.untold = Some(server_fault(error));
                None
            }
            (Asked::Info, value) => {
                self.info = value.text().unwrap_or_default().to_vec();
                None
            }
            (Asked::Script(index), value) => self.scripts.loaded(index, value).err(),
            (Asked::Id, Value::Int(id)) => {
                self.id = Some(*id);
                None
            }
            (Asked::Hello | Asked::Database | Asked::Courtesy | Asked::Id, _) => None,
        };
        if self.fault.is_none() {
            self.fault = fault;
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let info = std::str::from_utf8(&self.info).unwrap_or_default();
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    }
}

/// Says which protocol we speak, and who we are.
fn hello(shared: &Shared, out: &mut Vec<u8>) {
    let settings = shared.address.info.redis_settings();
    if let Some(password) = settings.password() {
        let user = settings.username().unwrap_or("default");
        Command::words(out, &["HELLO", "3", "AUTH", user, password]);
    } else {
        Command::words(out, &["HELLO", "3"]);
    }
}

/// An old server quotes the words it does not know, and the password is among them: its own text
/// goes nowhere.
fn hello_fault(error: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(error);
    if text.starts_with("NOPROTO") || text.to_ascii_lowercase().contains("unknown command") {
        return Fault::Server("RESP3 is not supported: Redis 6 or Valkey is needed".into());
    }
    server_fault(error)
}

/// Two messages: who the server is, how long it has been up, and the scripts; then the end of the
/// last connection, and the wake-ups.
async fn shake(shared: &Shared, mut connection: Connection) -> Result<Link, Fault> {
    let asked = Greeting::ask(shared, connection.out());
    let mut greeting = Greeting::default();
    let heard = connection
        .exchange(asked.len(), |index, value| {
            greeting.note(asked[index], &value);
        })
        .await;
    // What the server said before it hung up explains more than that it did.
    if let Some(fault) = greeting.fault {
        return Err(fault);
    }
    heard.map_err(down)?;
    let quarantined_until = quarantine(shared, &greeting, Instant::now())?;
    take_over(shared, &greeting, &mut connection).await?;
    Ok(Link {
        connection,
        scripts: greeting.scripts,
        quarantined_until,
    })
}

/// Closes the connection before this one at the server as well, and asks for wake-ups.
///
/// What still lies in the buffers of the last connection (the master may have been stopped) must
/// not be executed behind the releases that this one sends.
async fn take_over(
    shared: &Shared,
    greeting: &Greeting,
    connection: &mut Connection,
) -> Result<(), Fault> {
    let mut replies = 0;
    if let Some(last) = last_link(shared, greeting) {
        Command::words(
            connection.out(),
            &["CLIENT", "KILL", "ID", &last.to_string()],
        );
        replies += 1;
    }
    let subscription = replies;
    if let Some(ear) = shared.ear.get() {
        let channel = format!("{WAKE_PREFIX}{}", ear.process);
        Command::words(connection.out(), &["SUBSCRIBE", &channel]);
        replies += 1;
    }
    let mut refused = None;
    connection
        .exchange(replies, |index, value| {
            if let (true, Value::Error(error)) = (index == subscription, value) {
                refused = Some(server_fault(error));
            }
        })
        .await
        .map_err(down)?;
    match refused {
        // A user who may not subscribe still locks; waiters then go by their timers.
        Some(Fault::Denied(why)) => {
            tracing::warn!(node = %shared.address.name(), %why, "no wake-ups, only timers");
            Ok(())
        }
        Some(fault) => Err(fault),
        None => Ok(()),
    }
}

/// The number of the last connection, and notes that of this one. Only within one run of the
/// server: after a restart the number may be somebody else's. A user who may not ask for numbers
/// goes without; the ttl still ends what is left.
fn last_link(shared: &Shared, greeting: &Greeting) -> Option<i64> {
    let (run, id) = (greeting.field("run_id")?, greeting.id?);
    let mut last = shared
        .last_link
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let (known, last) = last.replace((run.to_owned(), id))?;
    (known == run).then_some(last)
}

/// Until when this master may have forgotten a lock (protocol, section 5).
fn quarantine(shared: &Shared, greeting: &Greeting, answered: Instant) -> Result<Instant, Fault> {
    const NONE: Instant = Instant::from_nanos(0);
    if shared.options.restart_guard == RestartGuard::Off {
        return Ok(NONE);
    }
    if let Some(fault) = &greeting.untold {
        return Err(fault.clone());
    }
    let (Some(run), Some(uptime)) = (
        greeting.field("run_id"),
        greeting
            .field("uptime_in_seconds")
            .and_then(|text| text.parse::<u64>().ok()),
    ) else {
        return Err(Fault::Server(
            "INFO names no run_id and uptime for the restart guard".into(),
        ));
    };
    if shared.options.restart_guard == RestartGuard::AfterFirstContact {
        let mut first = shared
            .first_run
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if first.get_or_insert_with(|| run.to_owned()) == run {
            return Ok(NONE);
        }
    }
    // Counted from the answer: the master read its uptime after it was asked, and a slow
    // handshake may take longer than what a ttl allows for drift (found by the simulation).
    // Both ends of the uptime are cut to whole seconds, so it can be one too high.
    let up = Duration::from_secs(uptime.saturating_sub(1));
    let left = shared.options.max_ttl.saturating_sub(up);
    if left.is_zero() {
        return Ok(NONE);
    }
    tracing::warn!(
        node = %shared.address.name(),
        uptime_s = uptime,
        "master restarted lately and does not vote for a while (restart guard)"
    );
    Ok(answered + left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_resp3_is_named_and_does_not_get_to_quote_the_password() {
        let old =
            b"ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `u`, `s3cret`";
        for error in [&old[..], b"NOPROTO unsupported protocol version"] {
            let fault = hello_fault(error).to_string();
            assert!(fault.contains("Redis 6"), "{fault}");
            assert!(!fault.contains("s3cret"), "{fault}");
        }
        let denied = hello_fault(b"WRONGPASS invalid username-password pair");
        assert!(matches!(denied, Fault::Denied(_)));
    }

    #[test]
    fn the_first_fault_counts_and_courtesies_do_not() {
        let mut greeting = Greeting::default();
        greeting.note(Asked::Courtesy, &Value::Error(b"ERR unknown subcommand"));
        greeting.note(Asked::Id, &Value::Error(b"NOPERM no"));
        assert_eq!(greeting.fault, None);
        greeting.note(
            Asked::Database,
            &Value::Error(b"ERR DB index is out of range"),
        );
        greeting.note(Asked::Script(0), &Value::Error(b"NOPERM no"));
        assert!(matches!(greeting.fault, Some(Fault::Server(_))));
    }
}
