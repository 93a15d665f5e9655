//! One connection attempt: stream, handshake, restart guard.

use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::time::Duration;

use futures::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, PushInfo, PushKind, RedisError, RedisResult, Value,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::Shared;
use super::wire::{Scripts, driver_fault, server_fault};
use crate::builder::RestartGuard;
use crate::node::Fault;
use crate::node::request::WAKE_PREFIX;
use crate::protocol::instant::Instant;

/// The driver of a connection: the actor polls it in its own task, so that a request costs no
/// task switch between actor and socket.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection that has been shaken hands on.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) driver: Driver,
    pub(super) scripts: Scripts,
    /// Until when this master's votes do not count.
    pub(super) quarantined_until: Instant,
}

/// Connects, loads the scripts and reads what the restart guard needs to know.
pub(super) async fn connect(shared: &Shared) -> Result<Link, Fault> {
    let limit = shared.options.connect_timeout;
    let outcome = tokio::time::timeout(limit, attempt(shared)).await;
    outcome.unwrap_or_else(|_| {
        let limit = humantime::format_duration(limit);
        Err(Fault::Down(format!("no connection within {limit}").into()))
    })
}

async fn attempt(shared: &Shared) -> Result<Link, Fault> {
    let (connection, driver) = dial(shared).await?;
    let mut link = Link {
        connection,
        driver,
        scripts: Scripts::default(),
        quarantined_until: Instant::from_nanos(0),
    };
    shake(shared, &mut link).await?;
    Ok(link)
}

async fn dial(shared: &Shared) -> Result<(MultiplexedConnection, Driver), Fault> {
    match shared.address.info.addr() {
        ConnectionAddr::Tcp(host, port) => {
            #[cfg(any(test, feature = "testing"))]
            if let Some(dial) = &shared.options.dial {
                let stream = dial(host, *port).await.map_err(io_fault)?;
                return greet(shared, stream).await;
            }
            let stream = TcpStream::connect((host.as_str(), *port))
                .await
                .map_err(io_fault)?;
            tune(&stream, shared.options.connect_timeout).map_err(io_fault)?;
            if shared.address.tls {
                return tls(shared, host, stream).await;
            }
            greet(shared, stream).await
        }
        ConnectionAddr::Unix(path) => {
            greet(shared, UnixStream::connect(path).await.map_err(io_fault)?).await
        }
        _ => Err(Fault::Down("this kind of address is not supported".into())),
    }
}

#[cfg(feature = "tls-rustls")]
async fn tls(
    shared: &Shared,
    host: &str,
    stream: TcpStream,
) -> Result<(MultiplexedConnection, Driver), Fault> {
    let Some(config) = shared.options.tls.clone() else {
        return Err(Fault::Down("TLS is not configured".into()));
    };
    let name = rustls::pki_types::ServerName::try_from(host.to_owned())
        .map_err(|_| Fault::Down("not a host name that TLS can check".into()))?;
    let connector = tokio_rustls::TlsConnector::from(config);
    greet(
        shared,
        connector.connect(name, stream).await.map_err(io_fault)?,
    )
    .await
}

#[cfg(not(feature = "tls-rustls"))]
#[expect(clippy::unused_async, reason = "the same shape as with the feature")]
async fn tls(_: &Shared, _: &str, _: TcpStream) -> Result<(MultiplexedConnection, Driver), Fault> {
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

/// HELLO with credentials, database, client name.
async fn greet<S>(shared: &Shared, stream: S) -> Result<(MultiplexedConnection, Driver), Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Deadlines are the actor's; the driver's own would cancel nothing.
    let mut config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None);
    if let Some(ear) = shared.ear.get().cloned() {
        config = config.set_push_sender(move |push: PushInfo| {
            if let (PushKind::Message, Some(Value::BulkString(key))) = (push.kind, push.data.get(1))
            {
                ear.sink.woken(ear.node, key);
            }
            Ok::<(), ()>(())
        });
    }
    let settings = shared.address.info.redis_settings();
    let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config)
        .await
        .map_err(down)?;
    Ok((connection, Box::pin(driver)))
}

/// One pipeline: who the server is, how long it has been up, and the scripts.
async fn shake(shared: &Shared, link: &mut Link) -> Result<(), Fault> {
    let mut hello = redis::pipe();
    hello.cmd("INFO").arg("server");
    for load in Scripts::load(shared.options.max_ttl) {
        hello.add_command(load);
    }
    hello.cmd("CLIENT").arg("ID");
    let replies = drive(&mut link.driver, async {
        link.connection
            .send_packed_commands(&hello, 0, hello.len())
            .await
    })
    .await
    .map_err(down)?;
    let Some((info, loads)) = replies.split_first() else {
        return Err(Fault::Server("an empty handshake".into()));
    };
    link.scripts = Scripts::loaded(loads)?;
    link.quarantined_until = quarantine(shared, info, Instant::now())?;
    bury_the_last(
        shared,
        link,
        field(info, "run_id"),
        loads.get(Scripts::COUNT),
    )
    .await?;
    if let Some(ear) = shared.ear.get() {
        let channel = format!("{WAKE_PREFIX}{}", ear.process);
        let heard = drive(&mut link.driver, link.connection.subscribe(channel)).await;
        // A user who may not subscribe still locks; waiters then go by their timers.
        match heard.map_err(down) {
            Err(Fault::Denied(why)) => {
                tracing::warn!(node = %shared.address.name(), %why, "no wake-ups, only timers");
            }
            Err(fault) => return Err(fault),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Closes the connection before this one at the server as well. What still lies in its buffers (the
/// master may have been stopped) must not be executed behind the releases that this one sends.
/// Only within one run of the server: after a restart its number may be somebody else's.
async fn bury_the_last(
    shared: &Shared,
    link: &mut Link,
    run: Option<&str>,
    id: Option<&Value>,
) -> Result<(), Fault> {
    // A user who may not ask for the number goes without; the ttl still ends what is left.
    let (Some(run), Some(Value::Int(id))) = (run, id) else {
        return Ok(());
    };
    let last = {
        let mut last = shared
            .last_link
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        last.replace((run.to_owned(), *id))
    };
    let Some((_, last)) = last.filter(|(known, _)| known == run) else {
        return Ok(());
    };
    let mut kill = redis::pipe();
    kill.cmd("CLIENT").arg("KILL").arg("ID").arg(last);
    let killed = drive(&mut link.driver, async {
        link.connection.send_packed_commands(&kill, 0, 1).await
    });
    killed.await.map(drop).map_err(down)
}

/// A field of the server's INFO.
fn field<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let info = match info {
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.as_str(),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
        _ => "",
    };
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Polls the connection's driver until `work` is done.
async fn drive<T>(
    driver: &mut Driver,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let work = std::pin::pin!(work);
    match select(work, driver).await {
        Either::Left((done, _)) => done,
        Either::Right(((), work)) => work.await,
    }
}

/// Until when this master may have forgotten a lock (protocol, section 5).
fn quarantine(shared: &Shared, info: &Value, answered: Instant) -> Result<Instant, Fault> {
    const NONE: Instant = Instant::from_nanos(0);
    if shared.options.restart_guard == RestartGuard::Off {
        return Ok(NONE);
    }
    if let Value::ServerError(error) = info {
        return Err(server_fault(error));
    }
    let (Some(run), Some(uptime)) = (
        field(info, "run_id"),
        field(info, "uptime_in_seconds").and_then(|text| text.parse::<u64>().ok()),
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

fn io_fault(error: std::io::Error) -> Fault {
    Fault::Down(error.to_string().into())
}

/// Before a connection stands, whatever went wrong, nothing was sent.
fn down(error: RedisError) -> Fault {
    driver_fault(&error)
}
