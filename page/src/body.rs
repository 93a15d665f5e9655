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

/// The largest part of a text or a message that is handed to the connection at once. The next part waits until it is
/// sent, so a slow client makes progress while it reads.
const PART: usize = 64 * 1024;

/// When a connection last made progress, in milliseconds since 1970; 0 while it waits for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn record_now(&self) {
        self.0.store(now_ms(), Ordering::Relaxed);
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
        last_ms != 0 && now_ms.saturating_sub(last_ms) > limit_ms
    }
}

pub(crate) struct PageBody {
    content: Content,
    progress: Progress,
}

enum Content {
    Text(Bytes),
    Messages {
        messages: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
        /// The part of the last message that has not been handed to the connection yet.
        unsent: Bytes,
    },
}

impl PageBody {
    pub(crate) fn text(text: impl Into<Bytes>, progress: Progress) -> Self {
        Self {
            content: Content::Text(text.into()),
            progress,
        }
    }

    /// The messages to a viewer, until the viewer falls too far behind.
    pub(crate) fn messages(viewer: Viewer, progress: Progress) -> Self {
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
            },
            progress,
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
        self.progress.record_now();
        match &mut self.content {
            Content::Text(text) if text.is_empty() => Poll::Ready(None),
            Content::Text(text) => Poll::Ready(Some(Ok(next_part(text)))),
            Content::Messages { messages, unsent } => {
                if unsent.is_empty() {
                    match std::task::ready!(messages.as_mut().poll_next(context)) {
                        Some(message) => *unsent = message,
                        None => return Poll::Ready(None),
                    }
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
