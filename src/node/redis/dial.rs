//! Opens a stream to a master: tries the addresses of its host name, and sets up TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};

use super::address::Endpoint;
#[cfg(feature = "tls-rustls")]
use super::connecting::{ConnectEvent, broken};
use super::refusal::connection_fault;
use super::shared::Shared;
use super::socket::Socket;
use crate::node::{Fault, Protocol, other_protocol};

/// How long a connection attempt waits for one address before it also tries the next address: 100 ms. This is a fifth
/// of the default connect timeout, so several addresses can be tried.
const STAGGER: Duration = Duration::from_millis(100);

/// The largest number of addresses that are tried for one host name.
const MAX_ADDRESSES: usize = 8;

/// The lower limit of the TCP user timeout: 1 s. The kernel closes a connection if sent data stays unacknowledged for
/// the TCP user timeout.
///
/// This timeout is equal to the connect timeout, raised to this limit or lowered to [`MAX_UNACKNOWLEDGED`].
const MIN_UNACKNOWLEDGED: Duration = Duration::from_secs(1);
/// The upper limit of the TCP user timeout: 60 s.
const MAX_UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// Connects to the master. Dropping the future cancels the attempt, except for a running name lookup. The lookup
/// continues, and the next attempt to connect waits for its result.
pub(super) async fn dial(shared: Arc<Shared>) -> Result<Socket, Fault> {
    match &shared.address.target.endpoint {
        Endpoint::Tcp(host, port) => {
            #[cfg(any(test, feature = "testing"))]
            if let Some(dial) = &shared.options.dial {
                let stream = dial(host, *port).await.map_err(connection_fault)?;
                return Ok(Socket::new(stream));
            }
            let addresses = if let Ok(ip) = host.parse::<IpAddr>() {
                vec![SocketAddr::new(ip, *port)]
            } else {
                let name = (host.clone(), *port);
                alternate_families(
                    shared
                        .lookup
                        .addresses(name)
                        .await
                        .map_err(connection_fault)?,
                )
            };
            let stream = connect_to_first(addresses)
                .await
                .map_err(connection_fault)?;
            tune_socket(&stream, shared.options.connect_timeout).map_err(connection_fault)?;
            if shared.address.tls {
                return tls_socket(&shared, host, stream).await;
            }
            if shared.may_be_of_another_kind() {
                check_kind(&shared, &stream).await?;
            }
            Ok(Socket::new(stream))
        }
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(connection_fault)?;
            Ok(Socket::new(stream))
        }
    }
}

/// Sorts the addresses so that IPv4 and IPv6 alternate. If only one of the two protocols works, one of the first two
/// addresses uses it.
fn alternate_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_ipv6_first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == is_ipv6_first);
    first.reverse();
    second.reverse();
    let mut ordered = Vec::new();
    while ordered.len() < MAX_ADDRESSES && !(first.is_empty() && second.is_empty()) {
        ordered.extend(first.pop());
        ordered.extend(second.pop());
    }
    ordered
}

/// Connects to several addresses in turn, and returns the first stream that is established. The next address is tried
/// when the previous address has failed, or has not answered for [`STAGGER`].
async fn connect_to_first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut untried_addresses = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut last_error = None;
    attempts.extend(untried_addresses.next().map(TcpStream::connect));
    loop {
        if attempts.is_empty() {
            let no_address = || io::Error::new(io::ErrorKind::NotFound, "no address");
            return Err(last_error.unwrap_or_else(no_address));
        }
        let next_attempt = if untried_addresses.len() == 0 {
            attempts.next().await
        } else {
            tokio::time::timeout(STAGGER, attempts.next())
                .await
                .unwrap_or_default()
        };
        match next_attempt {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => last_error = Some(error),
            None => {}
        }
        attempts.extend(untried_addresses.next().map(TcpStream::connect));
    }
}

/// Fails if the server of this connection speaks another protocol than Redis: a ZooKeeper server, for example, closes
/// the connection when it receives a command. Takes at most a quarter of the connect timeout.
async fn check_kind(shared: &Shared, stream: &TcpStream) -> Result<(), Fault> {
    let address = stream.peer_addr().map_err(connection_fault)?;
    let probe_timeout = shared.options.connect_timeout / 4;
    let probed =
        tokio::time::timeout(probe_timeout, other_protocol(address, Protocol::Redis)).await;
    match probed {
        Ok(Some(text)) => Err(Fault::Unsupported(text.into())),
        _ => Ok(()),
    }
}

#[cfg(feature = "tls-rustls")]
async fn tls_socket(shared: &Shared, host: &str, stream: TcpStream) -> Result<Socket, Fault> {
    let Some(files) = &shared.options.tls else {
        return Err(Fault::Down("TLS is not configured".into()));
    };
    let name = rustls::pki_types::ServerName::try_from(host.to_owned())
        .map_err(|_| Fault::Down("TLS cannot check a host name of this form".into()))?;
    // The certificates may have been replaced since the last connection.
    let connector = tokio_rustls::TlsConnector::from(files.current().await);
    let had_connection = shared.run_history.has_connected();
    let address = stream.peer_addr();
    let handshake = connector.connect(name, stream);
    tokio::pin!(handshake);
    let mut handshake_result =
        tokio::time::timeout(shared.options.connect_timeout / 2, &mut handshake).await;
    if let (Err(_), Ok(address), false) = (&handshake_result, address, had_connection) {
        // A Redis without TLS takes the client's first message for the beginning of a long line, and stays silent.
        handshake_result = tokio::select! {
            biased;
            handshake_result = &mut handshake => Ok(handshake_result),
            true = answers_without_tls(address) => return Err(ConnectEvent::NoTls.fault(None)),
        };
    }
    let handshake_result = match handshake_result {
        Ok(handshake_result) => handshake_result,
        Err(_) => handshake.await,
    };
    let stream = handshake_result.map_err(|error| broken(error, had_connection))?;
    Ok(Socket::new(stream))
}

/// Whether the server answers a PING that is not encrypted, as a Redis without TLS does. The caller limits the time.
#[cfg(feature = "tls-rustls")]
async fn answers_without_tls(address: SocketAddr) -> bool {
    let first_byte = async {
        let stream = TcpStream::connect(address).await?;
        // A new connection accepts six bytes at once.
        stream.writable().await?;
        stream.try_write(b"PING\r\n")?;
        let mut first_byte = [0];
        stream.readable().await?;
        stream.try_read(&mut first_byte)?;
        io::Result::Ok(first_byte[0])
    };
    // The answer is `+PONG`, or an error such as `-NOAUTH`.
    matches!(first_byte.await, Ok(b'+' | b'-'))
}

#[cfg(not(feature = "tls-rustls"))]
#[expect(
    clippy::unused_async,
    reason = "the signature is the same as with the feature `tls-rustls`"
)]
async fn tls_socket(_: &Shared, _: &str, _: TcpStream) -> Result<Socket, Fault> {
    Err(Fault::Down("TLS is not built in".into()))
}

/// Makes TCP send small messages without delay, and turns on keepalive. On Linux, the kernel also ends a connection if
/// the server does not acknowledge sent data for `patience` (at least 1 s, at most 60 s).
fn tune_socket(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(patience.clamp(MIN_UNACKNOWLEDGED, MAX_UNACKNOWLEDGED)))?;
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// An address that neither accepts nor refuses connections, because its backlog is full.
    fn black_hole() -> (SocketAddr, impl Sized) {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("the socket must be created");
        let any_port: SocketAddr = "127.0.0.1:0".parse().expect("the address must be valid");
        socket
            .bind(&any_port.into())
            .expect("the socket must be bound");
        socket.listen(0).expect("the socket must listen");
        let listener = TcpListener::from(socket);
        let address = listener
            .local_addr()
            .expect("the listener must have an address");
        let patience = Duration::from_millis(100);
        let mut connections = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, patience) {
            connections.push(stream);
        }
        (address, (listener, connections))
    }

    #[tokio::test]
    async fn next_address_is_tried_if_an_address_does_not_answer_within_100_ms() {
        let (silent, _held) = black_hole();
        let listening = TcpListener::bind("127.0.0.1:0").expect("the listener must be bound");
        let listening = listening
            .local_addr()
            .map(|address| (address, listening))
            .expect("the listener must have an address");
        let closed = SocketAddr::from(([127, 0, 0, 1], 1));
        // The time limit of each attempt is far longer than `STAGGER`, after which the next address is tried.
        let test_timeout = Duration::from_secs(5);
        for addresses in [
            vec![silent, listening.0],
            vec![silent, closed, listening.0],
            vec![closed, listening.0],
        ] {
            let stream =
                tokio::time::timeout(test_timeout, connect_to_first(addresses.clone())).await;
            let stream = stream
                .expect("the connection attempts must end within the limit")
                .expect("one of the addresses must accept the connection");
            assert_eq!(stream.peer_addr().ok(), Some(listening.0), "{addresses:?}");
        }
        let refused = connect_to_first(vec![closed])
            .await
            .expect_err("the connection must be refused, because no server listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn resolved_addresses_alternate_between_ipv6_and_ipv4() {
        let address =
            |text: &str| -> SocketAddr { text.parse().expect("the address must be valid") };
        let resolved = [
            "[::1]:1",
            "[::2]:1",
            "127.0.0.1:1",
            "127.0.0.2:1",
            "127.0.0.3:1",
        ];
        let ordered = alternate_families(resolved.map(address).to_vec());
        let expected = [
            "[::1]:1",
            "127.0.0.1:1",
            "[::2]:1",
            "127.0.0.2:1",
            "127.0.0.3:1",
        ];
        assert_eq!(ordered, expected.map(address));
    }
}
