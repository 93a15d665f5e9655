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
use crate::lane::{End, Lane};

type RulesView = watch::Receiver<Rules>;

/// Serves one proxied connection from the time it is accepted until it ends.
pub(crate) async fn serve(
    mut client: TcpStream,
    target: SocketAddr,
    born: Era,
    view: RulesView,
    stats: Arc<Stats>,
    seed: u64,
) {
    stats.open.fetch_add(1, Ordering::Relaxed);
    let _open = Decrement(&stats.open);
    let _ = client.set_nodelay(true);
    let mut server = None;
    let end = tokio::select! {
        biased;
        () = until(view.clone(), |rules| rules.era.reset > born.reset) => End::Reset,
        end = async {
            tokio::select! {
                biased;
                () = until(view.clone(), |rules| rules.era.severed > born.severed) => {}
                end = async {
                    server = connect(target).await.ok();
                    relay(&mut client, server.as_mut(), born, &view, &stats, seed).await
                } => return end,
            }
            server = None;
            orphan(&mut client, view.clone(), &stats).await
        } => end,
    };
    if matches!(end, End::Reset) {
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
    born: Era,
    view: &RulesView,
    stats: &Stats,
    seed: u64,
) -> End {
    let (client_in, client_out) = client.split();
    let (server_in, server_out) = server
        .map(|server| {
            let _ = server.set_nodelay(true);
            server.split()
        })
        .unzip();
    let up = Lane::new(Way::ToServer, &stats.to_server);
    let down = Lane::new(Way::ToClient, &stats.to_client);
    let (luck_up, luck_down) = (StdRng::seed_from_u64(seed), StdRng::seed_from_u64(!seed));
    tokio::select! {
        biased;
        end = up.deliver(server_out, &down, born, view.clone()) => end,
        end = down.deliver(Some(client_out), &up, born, view.clone()) => end,
        end = async {
            tokio::join!(up.take_in(Some(client_in), luck_up), down.take_in(server_in, luck_down));
            pending().await
        } => end,
    }
}

/// Handles a client whose connection to the server was closed by a `HalfOpen` fault. Discards the client's bytes. When
/// the fault is healed, resets the client's connection if bytes were discarded, otherwise at the client's next bytes.
async fn orphan(client: &mut TcpStream, mut view: RulesView, stats: &Stats) -> End {
    let mut buffer = vec![0; 4096];
    let mut has_sent = false;
    loop {
        let half_open = view.borrow_and_update().half_open;
        if has_sent && !half_open {
            return End::Reset;
        }
        tokio::select! {
            _ = view.changed() => {}
            read = client.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return End::Closed,
                Ok(n) => {
                    stats.to_server.received.fetch_add(n as u64, Ordering::Relaxed);
                    stats.to_server.dropped.fetch_add(n as u64, Ordering::Relaxed);
                    has_sent = true;
                }
            },
        }
    }
}

/// Waits until `so` returns true for the proxy's rules. Waits forever if the proxy has been dropped.
async fn until(mut view: RulesView, so: impl FnMut(&Rules) -> bool) {
    if view.wait_for(so).await.is_err() {
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
