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
use crate::lock::millis;
use crate::routes::answer;

/// The largest number of connections. If there is one more, the oldest connection that waits for a request is closed.
const MAX_CONNECTIONS: usize = 256;

/// How long a connection may take for the headers of a request, and may wait for the next request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest size of the headers of a request, in bytes.
const MAX_HEADERS: usize = 16 * 1024;

/// A connection whose client takes nothing for this long is closed.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// How often stalled connections are searched within the stall limit.
const SWEEPS_PER_LIMIT: u32 = 6;

/// How long to wait after a failed accept, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Connection {
    task: AbortHandle,
    progress: Progress,
}

/// Serves the page. Never returns. Dropping the future closes all connections. A connection whose client takes nothing
/// for `stall_limit` is closed.
pub(crate) async fn serve(
    listener: TcpListener,
    hub: Arc<Hub>,
    access: Arc<Access>,
    stall_limit: Duration,
) {
    let stall_limit_ms = millis(stall_limit);
    let mut tasks = JoinSet::new();
    let mut connections: VecDeque<Connection> = VecDeque::new();
    let mut sweep = tokio::time::interval(stall_limit / SWEEPS_PER_LIMIT);
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
            _ = sweep.tick() => close_stalled(&connections, now_ms(), stall_limit_ms),
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

fn close_stalled(connections: &VecDeque<Connection>, now_ms: u64, limit_ms: u64) {
    let stalled = connections
        .iter()
        .filter(|connection| connection.progress.is_stalled(now_ms, limit_ms));
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::page_state::PageState;

    #[tokio::test]
    async fn idle_connection_is_closed_before_a_busy_one() {
        let mut tasks = JoinSet::new();
        let mut connection = |is_busy: bool| {
            let progress = Progress::default();
            if is_busy {
                progress.record_now();
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
        close_stalled(&connections, now_ms() + 500, 1_000);
        tokio::task::yield_now().await;
        assert!(!connections[0].task.is_finished());
        close_stalled(&connections, now_ms() + 2_000, 1_000);
        while !connections[0].task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn viewer_that_reads_nothing_is_dropped_and_a_viewer_that_reads_stays() {
        // The names of the masters make each message large, so that the buffers of the system are soon full.
        let masters = (0..2_000).map(|number| format!("master-{number}-{}", "x".repeat(500)));
        let hub = Arc::new(Hub::new(PageState::new(
            masters.collect(),
            1_000,
            60_000,
            now_ms(),
        )));
        let access = Arc::new(Access {
            hosts: Vec::new(),
            password: None,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let limit = Duration::from_secs(1);
        let served = tokio::spawn(serve(listener, hub.clone(), access, limit));
        let watch = async || {
            let mut stream = TcpStream::connect(address).await.expect("accepted");
            let request = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request).await.expect("sent");
            stream
        };
        let _reads_nothing = watch().await;
        let mut reads = watch().await;
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 20];
            while reads.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {}
        });
        let started_at = std::time::Instant::now();
        while hub.viewers() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while hub.viewers() == 2 {
            let elapsed = started_at.elapsed();
            assert!(
                elapsed < Duration::from_secs(60),
                "the viewer is still there"
            );
            hub.publish();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(hub.viewers(), 1);
        assert!(!reader.is_finished(), "the other viewer must stay");
        // The page may have no news for longer than the limit.
        tokio::time::sleep(3 * limit).await;
        assert_eq!(hub.viewers(), 1);
        served.abort();
    }
}
