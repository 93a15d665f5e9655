//! The body of a response: a text, or the messages to a viewer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body::{Body, Frame, SizeHint};

use crate::hub::{Viewer, now_ms};
use crate::unsent::Reserved;

/// The largest part of a text or a message that is handed to the connection at once. The next part waits until it is
/// sent, so a slow client makes progress while it reads.
const PART: usize = 64 * 1024;

/// The time of a connection that waits for the page: its client has taken everything.
const WAITS: u64 = u64::MAX;

/// When a connection last made progress, in milliseconds since 1970; 0 while it waits for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn record_now(&self) {
        self.0.store(now_ms(), Ordering::Relaxed);
    }

    fn record_wait(&self) {
        self.0.store(WAITS, Ordering::Relaxed);
    }

    fn record_end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether the connection is busy, and has made no progress for this long.
    pub(crate) fn is_stalled(&self, now_ms: u64, limit_ms: u64) -> bool {
        let last_ms = self.0.load(Ordering::Relaxed);
        last_ms != 0 && last_ms != WAITS && now_ms.saturating_sub(last_ms) > limit_ms
    }
}

pub(crate) struct PageBody {
    content: Content,
    progress: Progress,
    /// The share of a text, or of the first message, in the limit of unsent bytes.
    reserved: Option<Reserved>,
}

enum Content {
    Text(Bytes),
    Messages {
        messages: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
        /// The part of the last message that has not been handed to the connection yet.
        unsent: Bytes,
        /// Whether the first message was begun.
        has_begun: bool,
    },
}

impl PageBody {
    pub(crate) fn text(text: impl Into<Bytes>, progress: Progress) -> Self {
        Self {
            content: Content::Text(text.into()),
            progress,
            reserved: None,
        }
    }

    /// The text, with its share in the limit of unsent bytes.
    pub(crate) fn with_reserved(mut self, reserved: Reserved) -> Self {
        self.reserved = Some(reserved);
        self
    }

    /// The messages to a viewer, until the viewer falls too far behind.
    pub(crate) fn messages(mut viewer: Viewer, progress: Progress) -> Self {
        let reserved = viewer.reserved.take();
        let messages = futures::stream::unfold(viewer, |mut viewer| async move {
            let message = match viewer.first.take() {
                Some(first) => first,
                None => viewer.messages.recv().await.ok()?,
            };
            Some((message, viewer))
        });
        Self {
            content: Content::Messages {
                messages: Box::pin(messages),
                unsent: Bytes::new(),
                has_begun: false,
            },
            progress,
            reserved,
        }
    }
}

/// Takes the next part of a text.
fn next_part(text: &mut Bytes) -> Frame<Bytes> {
    Frame::data(text.split_to(text.len().min(PART)))
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self {
            content,
            progress,
            reserved,
        } = &mut *self;
        progress.record_now();
        match content {
            Content::Text(text) if text.is_empty() => Poll::Ready(None),
            Content::Text(text) => Poll::Ready(Some(Ok(next_part(text)))),
            Content::Messages {
                messages,
                unsent,
                has_begun,
            } => {
                if unsent.is_empty() {
                    if *has_begun {
                        // The first message was sent.
                        *reserved = None;
                    }
                    match messages.as_mut().poll_next(context) {
                        Poll::Ready(Some(message)) => *unsent = message,
                        Poll::Ready(None) => return Poll::Ready(None),
                        Poll::Pending => {
                            progress.record_wait();
                            return Poll::Pending;
                        }
                    }
                    *has_begun = true;
                }
                Poll::Ready(Some(Ok(next_part(unsent))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Text(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
            Content::Messages { .. } => SizeHint::default(),
        }
    }
}

impl Drop for PageBody {
    fn drop(&mut self) {
        self.progress.record_end();
    }
}
