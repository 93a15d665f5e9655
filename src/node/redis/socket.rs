//! The byte stream of a connection: TCP, TLS, a Unix socket, or a simulated network.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffers::{Input, Output};

/// A stream that a link can use.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

pub(super) struct Socket {
    stream: Box<dyn Stream>,
    /// Whether the stream may have buffered bytes without sending them, as TLS streams do.
    is_unflushed: bool,
}

impl Socket {
    pub(super) fn new(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            is_unflushed: false,
        }
    }

    /// Writes as many bytes of `out` as the stream accepts. If bytes remain, the task is woken when the stream accepts
    /// more.
    pub(super) fn poll_write(&mut self, out: &mut Output, cx: &mut Context<'_>) -> io::Result<()> {
        while !out.unwritten().is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, out.unwritten()) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    out.mark_written(count);
                    self.is_unflushed = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if self.is_unflushed && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready() {
            self.is_unflushed = false;
        }
        Ok(())
    }

    /// Reads once from the stream. The end of the stream is an error.
    pub(super) fn poll_read(
        &mut self,
        input: &mut Input,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffer = ReadBuf::new(input.room()?);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Ready(Ok(())) => {
                let count = buffer.filled().len();
                if count == 0 {
                    return Poll::Ready(Err(closed_error()));
                }
                input.add_received(count);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed")
}
