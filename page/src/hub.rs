//! The state that the survey and the requests share, and the messages to the viewers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::{Notify, broadcast};

use crate::lock::unix_ms;
use crate::page_state::PageState;
use crate::state_json::Query;
use crate::unsent::{Reserved, Unsent};

/// The largest number of viewers at a time.
pub(crate) const MAX_VIEWERS: usize = 64;

/// A viewer that is this many messages behind is dropped. Its browser connects again, and gets the whole state.
const MAX_BEHIND: usize = 16;

pub(crate) struct Hub {
    page_state: Mutex<PageState>,
    messages: broadcast::Sender<Bytes>,
    viewers: AtomicUsize,
    pub(crate) unsent: Unsent,
    /// Wakes the survey when the first viewer comes.
    pub(crate) arrived: Notify,
}

/// One viewer. It is counted until it is dropped.
pub(crate) struct Viewer {
    pub(crate) first: Option<Bytes>,
    /// The share of the first message in the limit of unsent bytes; `None` if there is no room for it.
    pub(crate) reserved: Option<Reserved>,
    pub(crate) messages: broadcast::Receiver<Bytes>,
    hub: Arc<Hub>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.hub.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The time, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    unix_ms(SystemTime::now())
}

impl Hub {
    pub(crate) fn new(page_state: PageState) -> Self {
        Self {
            page_state: Mutex::new(page_state),
            messages: broadcast::channel(MAX_BEHIND).0,
            viewers: AtomicUsize::new(0),
            unsent: Unsent::default(),
            arrived: Notify::new(),
        }
    }

    /// The state of the page. Never hold it across an await.
    pub(crate) fn page_state(&self) -> MutexGuard<'_, PageState> {
        self.page_state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn viewers(&self) -> usize {
        self.viewers.load(Ordering::Relaxed)
    }

    /// Whether anybody needs the survey: a viewer, or the history file.
    pub(crate) fn is_watched(&self) -> bool {
        self.viewers() > 0 || self.page_state().has_file()
    }

    /// Adds a viewer; `None` if there are too many. Its first message is the whole state.
    pub(crate) fn join(self: &Arc<Self>) -> Option<Viewer> {
        let add = |viewers| (viewers < MAX_VIEWERS).then_some(viewers + 1);
        let before = self
            .viewers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()?;
        // Hold the lock for both, so that no change between them is lost.
        let page_state = self.page_state();
        let messages = self.messages.subscribe();
        let state = page_state.full_state_json(&Query::all(), now_ms(), before + 1);
        drop(page_state);
        self.arrived.notify_one();
        let first = message("state", &state);
        Some(Viewer {
            reserved: self.unsent.reserve(first.len()),
            first: Some(first),
            messages,
            hub: self.clone(),
        })
    }

    /// Sends all viewers what has changed. Never waits for a viewer.
    pub(crate) fn publish(&self) {
        let viewers = self.viewers();
        let mut page_state = self.page_state();
        if viewers == 0 {
            page_state.changed.clear();
            page_state.sent_seq = page_state.ring.last_seq();
            return;
        }
        let change = page_state.change_json(now_ms(), viewers);
        let _ = self.messages.send(message("change", &change));
    }
}

/// A message of server-sent events. JSON has no line break, so one line of data is enough.
fn message(event: &str, json: &str) -> Bytes {
    format!("event: {event}\ndata: {json}\n\n").into()
}
