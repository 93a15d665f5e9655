//! Streams: simulated connections whose bytes the library's code for operators reads and writes itself
//! (`src/node/redis/change.rs`). Each order of an operator opens a stream of its own.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use quorate::node::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client_end::{ClientEnd, StreamState};
use super::link::Link;
use super::{Shared, World};
use crate::rng::Rng;

impl World {
    /// Begins to open a stream, and returns the index of its link.
    fn open_stream(&mut self, client: usize, master: usize) -> usize {
        let index = self.links.len();
        let rng = Rng::stream(self.scenario.seed, 6 << 48 | index as u64);
        let end = ClientEnd::Stream(StreamState::default());
        self.links.push(Link::with_end(client, master, end, rng));
        self.open_connection(index);
        index
    }

    /// Whether an operator uses the connection.
    pub(super) fn is_of_operator(&self, conn: usize) -> bool {
        matches!(self.links[self.conns[conn].link].end, ClientEnd::Stream(_))
    }

    /// The state of a stream; `None` if the run has ended.
    fn stream(&mut self, index: usize) -> Option<&mut StreamState> {
        match &mut self.links.get_mut(index)?.end {
            ClientEnd::Stream(stream) => Some(stream),
            ClientEnd::Driver(_) => None,
        }
    }
}

/// Opens a stream from a client to a master.
pub(crate) async fn open_stream(
    shared: Weak<Shared>,
    client: usize,
    master: usize,
) -> io::Result<Box<dyn Stream>> {
    let link = {
        let shared = shared.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        shared.world().open_stream(client, master)
    };
    let stream = SimStream { shared, link };
    std::future::poll_fn(|cx| {
        stream.with_state(|state| match state.error() {
            None if state.is_connected => Poll::Ready(Ok(())),
            None => state.wait(cx),
            Some(error) => Poll::Ready(Err(error)),
        })
    })
    .await?;
    Ok(Box::new(stream))
}

/// A stream as the library uses it. The connection is closed when the stream is dropped.
struct SimStream {
    shared: Weak<Shared>,
    link: usize,
}

impl SimStream {
    fn shared(&self) -> io::Result<Arc<Shared>> {
        let shared = self.shared.upgrade();
        shared.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn with_state<T>(
        &self,
        poll: impl FnOnce(&mut StreamState) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let shared = self.shared()?;
        let mut world = shared.world();
        let state = world.stream(self.link);
        state.map_or_else(
            || Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            poll,
        )
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.with_state(|state| {
            let length = state.received.len().min(buffer.remaining());
            if length == 0 {
                return state
                    .error()
                    .map_or_else(|| state.wait(cx), |error| Poll::Ready(Err(error)));
            }
            buffer.put_slice(&state.received[..length]);
            state.received.drain(..length);
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let shared = self.shared()?;
        let mut world = shared.world();
        let conn = world.links.get(self.link).and_then(|link| link.conn);
        if let Some(error) = world.stream(self.link).and_then(|state| state.error()) {
            return Poll::Ready(Err(error));
        }
        if let Some(conn) = conn {
            world.send_to_master(conn, bytes.to_vec());
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut world = shared.world();
            // After the end of a run, the world has no links.
            if self.link < world.links.len() {
                world.close_link(self.link);
            }
        }
    }
}
