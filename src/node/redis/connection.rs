//! One connection: what is to be written, what has been read, and a stream under both.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::resp::{LARGEST, Malformed, Value, parse};

/// What a connection may run on: TCP, TLS, a Unix socket, a simulated network.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// The buffers that a connection starts with, and goes back to after a burst.
const BUFFER: usize = 16 << 10;

/// A connection to one master.
pub(super) struct Connection {
    socket: Box<dyn Socket>,
    out: Vec<u8>,
    /// How much of `out` the socket has.
    written: usize,
    /// The socket may hold some of it back (TLS does).
    unflushed: bool,
    input: Vec<u8>,
    /// What has come and was not read yet lies between these.
    start: usize,
    end: usize,
}

impl Connection {
    pub(super) fn new(socket: impl Socket + 'static) -> Self {
        Self {
            socket: Box::new(socket),
            out: Vec::with_capacity(BUFFER),
            written: 0,
            unflushed: false,
            input: vec![0; BUFFER],
            start: 0,
            end: 0,
        }
    }

    /// Where commands are written. They go out in this order.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// How many bytes wait for the socket.
    pub(super) fn backlog(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes what the socket takes. The task is woken when it takes more.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.backlog() > 0 {
            let rest = &self.out[self.written..];
            match Pin::new(&mut self.socket).poll_write(cx, rest) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if self.backlog() == 0 && self.written > 0 {
            self.out.clear();
            self.written = 0;
            self.out.shrink_to(4 * BUFFER);
        }
        if self.unflushed && Pin::new(&mut self.socket).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        Ok(())
    }

    /// Reads what has come, once; 0 at the end of the stream.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.make_room()?;
        let mut buffer = ReadBuf::new(&mut self.input[self.end..]);
        match Pin::new(&mut self.socket).poll_read(cx, &mut buffer) {
            Poll::Ready(Ok(())) => {
                let count = buffer.filled().len();
                self.end += count;
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.input.len() > 4 * BUFFER {
                self.input.truncate(BUFFER);
                self.input.shrink_to_fit();
            }
        }
        if self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.input.len() {
            if self.end >= LARGEST {
                return Err(io::Error::other("a reply that is too long"));
            }
            self.input.resize(2 * self.end, 0);
        }
        Ok(())
    }

    /// The next reply, if all of it is there.
    pub(super) fn next(&mut self) -> io::Result<Option<Value<'_>>> {
        match parse(&self.input[self.start..self.end]) {
            Ok(Some((value, len))) => {
                self.start += len;
                Ok(Some(value))
            }
            Ok(None) => Ok(None),
            Err(Malformed) => Err(io::Error::other("a reply that is not RESP")),
        }
    }

    /// Sends what has been written and hands the next `count` replies to `each`. Subscriptions are
    /// answered by a push; other pushes are passed over.
    pub(super) async fn exchange(
        &mut self,
        count: usize,
        mut each: impl FnMut(usize, Value<'_>),
    ) -> io::Result<()> {
        let mut seen = 0;
        std::future::poll_fn(|cx| {
            // What is wrong with writing is best said by what the other side said before.
            let wrote = self.poll_write(cx);
            loop {
                while seen < count
                    && let Some(value) = self.next()?
                {
                    if matches!(&value, Value::Push(push) if !subscribes(push)) {
                        continue;
                    }
                    each(seen, value);
                    seen += 1;
                }
                if seen == count {
                    return Poll::Ready(Ok(()));
                }
                match self.poll_read(cx)? {
                    Poll::Ready(0) => return Poll::Ready(Err(closed())),
                    Poll::Ready(_) => {}
                    Poll::Pending => break,
                }
            }
            match wrote {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }
}

fn subscribes(push: &[Value<'_>]) -> bool {
    push.first().and_then(Value::text) == Some(b"subscribe")
}

pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::node::redis::resp::Command;

    #[tokio::test]
    async fn replies_come_in_order_in_whatever_pieces_they_arrive() {
        let (ours, mut theirs) = duplex(7);
        let mut connection = Connection::new(ours);
        Command::words(connection.out(), &["PING"]);
        Command::words(connection.out(), &["ECHO", "abc"]);
        let server = async {
            let mut heard = vec![0; 14 + 23];
            theirs.read_exact(&mut heard).await.expect("commands");
            theirs
                .write_all(b">2\r\n+message\r\n+x\r\n+PONG\r\n$3\r\nabc\r\n")
                .await
                .expect("replies");
            heard
        };
        let mut said = Vec::new();
        let client = connection.exchange(2, |index, value| {
            said.push((index, value.text().map(<[u8]>::to_vec)));
        });
        let (heard, done) = futures::future::join(server, client).await;
        done.expect("two replies");
        assert_eq!(
            heard,
            b"*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$3\r\nabc\r\n"
        );
        assert_eq!(
            said,
            [(0, Some(b"PONG".to_vec())), (1, Some(b"abc".to_vec()))]
        );
    }

    #[tokio::test]
    async fn an_error_said_before_the_connection_closed_is_heard() {
        let (ours, mut theirs) = duplex(1 << 16);
        let mut connection = Connection::new(ours);
        Command::words(connection.out(), &["HELLO", "3"]);
        theirs
            .write_all(b"-ERR max number of clients reached\r\n")
            .await
            .expect("written");
        drop(theirs);
        let mut said = Vec::new();
        let ended = connection
            .exchange(2, |_, value| said.push(format!("{value:?}")))
            .await;
        assert!(ended.is_err());
        assert_eq!(said.len(), 1);
    }

    #[tokio::test]
    async fn a_reply_longer_than_the_buffer_is_read_and_the_buffer_shrinks_again() {
        let (ours, mut theirs) = duplex(1 << 12);
        let mut connection = Connection::new(ours);
        let long = "x".repeat(10 * BUFFER);
        let reply = format!("${}\r\n{long}\r\n+OK\r\n", long.len());
        let server = async { theirs.write_all(reply.as_bytes()).await.expect("sent") };
        let mut lengths = Vec::new();
        let client = connection.exchange(2, |_, value| {
            lengths.push(value.text().map_or(0, <[u8]>::len));
        });
        let ((), done) = futures::future::join(server, client).await;
        done.expect("two replies");
        assert_eq!(lengths, [10 * BUFFER, 2]);
        connection.make_room().expect("room");
        assert_eq!(connection.input.len(), BUFFER);
    }
}
