//! Writes the notes of held locks to every master. Notes only inform people, so the caller does not wait for the
//! replies.

use std::sync::Arc;

use super::coordinator::Coordinator;
use crate::node::{NoteItem, Reply, Request};

impl Coordinator {
    /// Writes notes to every master in the background.
    pub(crate) fn note(&self, items: Vec<NoteItem>) {
        if items.is_empty() {
            return;
        }
        let items: Arc<[NoteItem]> = items.into();
        for node in &self.nodes {
            let items = items.clone();
            node.send(Request::Note { items }, Reply::ignored());
        }
    }
}
