//! One proxied connection: its two sockets, a queue of bytes for each direction, and the ways in which it can end.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::counters::Stats;
use crate::fault::{Era, Rules, Way};
use crate::lane::{ConnectionEnd, Lane};

type RulesView = watch::Receiver<Rules>;

/// Serves one proxied connection from the time it is accepted until it ends.
pub(crate) async fn serve(
    mut client: TcpStream,
    target: SocketAddr,
    accepted_in: Era,
    rules_view: RulesView,
    stats: Arc<Stats>,
    seed: u64,
) {
    stats.open.fetch_add(1, Ordering::Relaxed);
    let _open_count = Decrement(&stats.open);
    let _ = client.set_nodelay(true);
    let mut server = None;
    let connection_end = tokio::select! {
        biased;
        () = wait_until(rules_view.clone(), |rules| rules.era.reset > accepted_in.reset) => ConnectionEnd::Reset,
        connection_end = async {
            tokio::select! {
                biased;
                () = wait_until(rules_view.clone(), |rules| rules.era.severed > accepted_in.severed) => {}
                connection_end = async {
                    server = connect(target).await.ok();
                    relay(&mut client, server.as_mut(), accepted_in, &rules_view, &stats, seed).await
                } => return connection_end,
            }
            server = None;
            discard_client_bytes(&mut client, rules_view.clone(), &stats).await
        } => connection_end,
    };
    if matches!(connection_end, ConnectionEnd::Reset) {
        for socket in [Some(client), server].into_iter().flatten() {
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        }
    }
}

async fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = match target {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // If this future is dropped during `connect`, the socket is closed with a reset. So a server that has already
    // accepted the connection notices the end as well.
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
    let stream = socket.connect(target).await?;
    SockRef::from(&stream).set_linger(None)?;
    Ok(stream)
}

/// Carries bytes in both directions. If `server` is `None`, the client gets a reset, as from a server that refuses
/// connections.
async fn relay(
    client: &mut TcpStream,
    server: Option<&mut TcpStream>,
    accepted_in: Era,
    rules_view: &RulesView,
    stats: &Stats,
    seed: u64,
) -> ConnectionEnd {
    let (client_in, client_out) = client.split();
    let (server_in, server_out) = server
        .map(|server| {
            let _ = server.set_nodelay(true);
            server.split()
        })
        .unzip();
    let requests = Lane::new(Way::ToServer, &stats.to_server);
    let replies = Lane::new(Way::ToClient, &stats.to_client);
    let (rng_up, rng_down) = (StdRng::seed_from_u64(seed), StdRng::seed_from_u64(!seed));
    tokio::select! {
        biased;
        connection_end = requests.deliver(server_out, &replies, accepted_in, rules_view.clone()) => connection_end,
        connection_end = replies.deliver(Some(client_out), &requests, accepted_in, rules_view.clone()) => connection_end,
        connection_end = async {
            tokio::join!(requests.read_from_sender(Some(client_in), rng_up), replies.read_from_sender(server_in, rng_down));
            pending().await
        } => connection_end,
    }
}

/// Handles a client whose connection to the server was closed by a `HalfOpen` fault. Discards the client's bytes. When
/// the fault is healed, resets the client's connection if bytes were discarded, otherwise at the client's next bytes.
async fn discard_client_bytes(
    client: &mut TcpStream,
    mut rules_view: RulesView,
    stats: &Stats,
) -> ConnectionEnd {
    let mut buffer = vec![0; 4096];
    let mut has_sent = false;
    loop {
        let half_open = rules_view.borrow_and_update().half_open;
        if has_sent && !half_open {
            return ConnectionEnd::Reset;
        }
        tokio::select! {
            _ = rules_view.changed() => {}
            read_bytes = client.read(&mut buffer) => match read_bytes {
                Ok(0) | Err(_) => return ConnectionEnd::Closed,
                Ok(n) => {
                    stats.to_server.received.fetch_add(n as u64, Ordering::Relaxed);
                    stats.to_server.dropped.fetch_add(n as u64, Ordering::Relaxed);
                    has_sent = true;
                }
            },
        }
    }
}

/// Waits until `condition` returns true for the proxy's rules. Waits forever if the proxy has been dropped.
async fn wait_until(mut rules_view: RulesView, condition: impl FnMut(&Rules) -> bool) {
    if rules_view.wait_for(condition).await.is_err() {
        pending::<()>().await;
    }
}

/// Decrements a counter when it is dropped, so that the counter is correct however the task ends.
struct Decrement<'a>(&'a AtomicU64);

impl Drop for Decrement<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
