//! Accepts connections, with limits on their number, their headers and their time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::access::Access;
use crate::body::Progress;
use crate::hub::{Hub, now_ms};
use crate::routes::answer;

/// The largest number of connections. If there is one more, the oldest connection that waits for a request is closed.
const MAX_CONNECTIONS: usize = 256;

/// How long a connection may take for the headers of a request, and may wait for the next request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest size of the headers of a request, in bytes.
const MAX_HEADERS: usize = 16 * 1024;

/// A connection whose client takes nothing for this long is closed.
const STALL_LIMIT_MS: u64 = 30_000;

/// How often stalled connections are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How long to wait after a failed accept, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Connection {
    task: AbortHandle,
    progress: Progress,
}

/// Serves the page. Never returns. Dropping the future closes all connections.
pub(crate) async fn serve(listener: TcpListener, hub: Arc<Hub>, access: Arc<Access>) {
    let mut tasks = JoinSet::new();
    let mut connections: VecDeque<Connection> = VecDeque::new();
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                connections.retain(|connection| !connection.task.is_finished());
                if connections.len() >= MAX_CONNECTIONS && !close_idle(&mut connections) {
                    continue;
                }
                let progress = Progress::default();
                let connection = serve_connection(stream, hub.clone(), access.clone(), progress.clone());
                connections.push_back(Connection { task: tasks.spawn(connection), progress });
            }
            _ = sweep.tick() => close_stalled(&connections, now_ms()),
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Closes the oldest connection that waits for a request. Returns false if there is none.
fn close_idle(connections: &mut VecDeque<Connection>) -> bool {
    let idle = connections
        .iter()
        .position(|connection| connection.progress.is_idle());
    let Some(connection) = idle.and_then(|index| connections.remove(index)) else {
        return false;
    };
    connection.task.abort();
    true
}

fn close_stalled(connections: &VecDeque<Connection>, now_ms: u64) {
    let stalled = connections
        .iter()
        .filter(|connection| connection.progress.is_stalled(now_ms, STALL_LIMIT_MS));
    stalled.for_each(|connection| connection.task.abort());
}

async fn serve_connection(
    stream: TcpStream,
    hub: Arc<Hub>,
    access: Arc<Access>,
    progress: Progress,
) {
    let service = service_fn(|request| {
        let response = answer(&request, &hub, &access, &progress);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    // The client closed the connection, or sent something that is not HTTP. No error can be reported to it.
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_connection_is_closed_before_a_busy_one() {
        let mut tasks = JoinSet::new();
        let mut connection = |is_busy: bool| {
            let progress = Progress::default();
            if is_busy {
                progress.note();
            }
            Connection {
                task: tasks.spawn(std::future::pending::<()>()),
                progress,
            }
        };
        let mut connections: VecDeque<Connection> =
            [connection(true), connection(false), connection(false)].into();
        assert!(close_idle(&mut connections) && connections.len() == 2);
        assert!(close_idle(&mut connections) && connections.len() == 1);
        assert!(!close_idle(&mut connections), "the last one is busy");
        close_stalled(&connections, now_ms() + STALL_LIMIT_MS / 2);
        tokio::task::yield_now().await;
        assert!(!connections[0].task.is_finished());
        close_stalled(&connections, now_ms() + STALL_LIMIT_MS + 1_000);
        while !connections[0].task.is_finished() {
            tokio::task::yield_now().await;
        }
    }
}
