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

/// The largest part of a text that is handed to the connection at once. The next part waits until it is sent.
const PART: usize = 64 * 1024;

/// When a connection last made progress, in milliseconds since 1970; 0 while it waits for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn note(&self) {
        self.0.store(now_ms(), Ordering::Relaxed);
    }

    fn end(&self) {
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
    Messages(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
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
            content: Content::Messages(Box::pin(messages)),
            progress,
        }
    }
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.progress.note();
        match &mut self.content {
            Content::Text(text) if text.is_empty() => Poll::Ready(None),
            Content::Text(text) => {
                let part = text.split_to(text.len().min(PART));
                Poll::Ready(Some(Ok(Frame::data(part))))
            }
            Content::Messages(messages) => {
                let message = std::task::ready!(messages.as_mut().poll_next(context));
                Poll::Ready(message.map(|message| Ok(Frame::data(message))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Text(text) if text.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
            Content::Messages(_) => SizeHint::default(),
        }
    }
}

impl Drop for PageBody {
    fn drop(&mut self) {
        self.progress.end();
    }
}
