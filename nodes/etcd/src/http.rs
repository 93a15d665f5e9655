//! An HTTP/1.1 connection to one member of a cluster.
//!
//! The connection has no task of its own: it works only while a request is awaited. So a dropped future leaves nothing
//! behind that somebody would have to end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes as Chunk, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HOST};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Method, Request, Response};
use quorate::node::Fault;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fault;
use crate::stream::Bytes;

/// The largest answer that is read, in bytes: 64 MiB.
const LONGEST_ANSWER: usize = 64 << 20;
/// How many bytes are read from the stream at a time.
const READ_SIZE: usize = 16_384;

/// The text of the last error of a stream. `hyper` does not report an error that it meets before the first request.
type LastError = Arc<Mutex<Option<String>>>;

/// A stream for `hyper`.
struct Io(Box<dyn Bytes>, LastError);

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut target: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut bytes = [0; READ_SIZE];
        let limit = target.remaining().min(READ_SIZE);
        let mut buffer = ReadBuf::new(&mut bytes[..limit]);
        let read = ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer));
        if let Err(error) = &read {
            let mut last = self.1.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(fault::plain(&error.to_string()));
        }
        read?;
        target.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The date of the member in microseconds since 1970, in whole seconds; `None` if the answer has none.
    pub(crate) date: Option<u64>,
    pub(crate) body: Vec<u8>,
}

/// The half of a connection that reads and writes.
type Driver = Pin<Box<Connection<Io, Full<Chunk>>>>;

/// An HTTP connection to one member.
pub(crate) struct Http {
    sender: SendRequest<Full<Chunk>>,
    /// `None` after the end of the connection: its part of an answer ends only when it is dropped.
    connection: Option<Driver>,
    /// Why the connection has ended; `None` while it is open.
    end: Option<Fault>,
    last_error: LastError,
    /// The value of the header `Host`.
    host: String,
}

impl Http {
    /// Begins to speak HTTP on a stream. `host` is the host and the port of the member.
    pub(crate) async fn open(stream: Box<dyn Bytes>, host: String) -> Result<Self, Fault> {
        let last_error = LastError::default();
        let opened = handshake(Io(stream, last_error.clone())).await;
        let (sender, connection) = opened.map_err(|error| fault::of_http(&error))?;
        Ok(Self {
            sender,
            connection: Some(Box::pin(connection)),
            end: None,
            last_error,
            host,
        })
    }

    /// Sends a request with a JSON body to this path, and reads the whole answer.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: String,
    ) -> Result<Reply, Fault> {
        let request = self.request(Method::POST, path, token, body)?;
        self.exchange(request).await
    }

    /// Reads a page.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Reply, Fault> {
        let request = self.request(Method::GET, path, None, String::new())?;
        self.exchange(request).await
    }

    /// Sends a request whose answer is a stream. Returns the status of the answer and its body.
    pub(crate) async fn post_stream(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: String,
    ) -> Result<(u16, Incoming), Fault> {
        let request = self.request(Method::POST, path, token, body)?;
        self.check_open()?;
        let Self {
            sender,
            connection,
            end,
            last_error,
            ..
        } = self;
        let response =
            alongside(connection, (end, last_error), sender.send_request(request)).await?;
        let (parts, body) = response.into_parts();
        Ok((parts.status.as_u16(), body))
    }

    /// Waits for the next piece of a stream. `None` if the stream has ended. It is safe to drop the future.
    pub(crate) async fn next_piece(&mut self, body: &mut Incoming) -> Result<Option<Chunk>, Fault> {
        let Self {
            connection,
            end,
            last_error,
            ..
        } = self;
        loop {
            let next = body.frame().map(Option::transpose);
            match alongside(connection, (end, last_error), next).await? {
                None => return Ok(None),
                Some(frame) => {
                    // Trailers are no data.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: String,
    ) -> Result<Request<Full<Chunk>>, Fault> {
        let builder = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json");
        let builder = match token {
            Some(token) => builder.header(AUTHORIZATION, token),
            None => builder,
        };
        let request = builder.body(Full::new(Chunk::from(body)));
        // A token that cannot be a header, or a strange host.
        request.map_err(|_| Fault::Server("the request cannot be written as HTTP".into()))
    }

    /// Returns a fault if the member has closed the connection. Nothing was sent then.
    fn check_open(&mut self) -> Result<(), Fault> {
        let ended = self.connection.as_mut().and_then(FutureExt::now_or_never);
        if let Some(result) = ended {
            self.connection = None;
            self.end = Some(end_of(result, &self.last_error));
        }
        match &self.end {
            None => Ok(()),
            Some(end) => Err(Fault::Down(fault::cause(end).into())),
        }
    }

    async fn exchange(&mut self, request: Request<Full<Chunk>>) -> Result<Reply, Fault> {
        self.check_open()?;
        let Self {
            sender,
            connection,
            end,
            last_error,
            ..
        } = self;
        let exchange = async {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, LONGEST_ANSWER).collect().await;
            Ok(Response::from_parts(parts, body))
        };
        let (parts, body) = alongside(connection, (end, last_error), exchange)
            .await?
            .into_parts();
        let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => fault::of_http(&error),
            Err(_) => Fault::Disconnected("an answer is longer than 64 MiB".into()),
        })?;
        let date = parts.headers.get(DATE).and_then(|date| date.to_str().ok());
        Ok(Reply {
            status: parts.status.as_u16(),
            date: date.and_then(micros_of_date),
            body: body.to_bytes().to_vec(),
        })
    }
}

/// Waits for `work`, and lets the connection read and write meanwhile. Fails if the connection ends first. `end`
/// becomes the reason of its end.
async fn alongside<T>(
    connection: &mut Option<Driver>,
    (end, last_error): (&mut Option<Fault>, &LastError),
    work: impl Future<Output = hyper::Result<T>>,
) -> Result<T, Fault> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if let Some(driver) = connection
            && let Poll::Ready(result) = driver.as_mut().poll(context)
        {
            *connection = None;
            *end = Some(end_of(result, last_error));
        }
        // The connection has perhaps ended after the answer.
        match (work.as_mut().poll(context), &*end) {
            (Poll::Ready(Ok(output)), _) => Poll::Ready(Ok(output)),
            (Poll::Ready(Err(_)) | Poll::Pending, Some(end)) => Poll::Ready(Err(end.clone())),
            (Poll::Ready(Err(error)), None) => Poll::Ready(Err(fault::of_http(&error))),
            (Poll::Pending, None) => Poll::Pending,
        }
    })
    .await
}

fn end_of(result: hyper::Result<()>, last_error: &LastError) -> Fault {
    let mut last = last_error.lock().unwrap_or_else(PoisonError::into_inner);
    match (result, last.take()) {
        (_, Some(text)) => Fault::Disconnected(text.into()),
        (Ok(()), None) => Fault::Disconnected("closed by the server".into()),
        (Err(error), None) => fault::of_http(&error),
    }
}

/// The header `Date` in microseconds since 1970; `None` if it is malformed or not after 1970.
fn micros_of_date(text: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(text).ok()?;
    let since = date.duration_since(std::time::UNIX_EPOCH).ok()?;
    let micros = u64::try_from(since.as_micros()).ok()?;
    (micros > 0).then_some(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_of_an_answer_is_read_in_whole_seconds() {
        let micros = micros_of_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(micros, Some(784_111_777_000_000));
        for malformed in ["", "yesterday", "Thu, 01 Jan 1970 00:00:00 GMT"] {
            assert_eq!(micros_of_date(malformed), None, "{malformed}");
        }
    }
}
