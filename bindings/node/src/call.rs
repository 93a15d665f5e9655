//! A call from JavaScript whose reply is pending.

use std::sync::Arc;

use serde_json::Value;

use crate::failure;
use crate::mailbox::{Content, Mailbox};

/// A call from JavaScript. Each call gets exactly one reply, even if its task panics or is dropped.
pub(crate) struct Call {
    pub(crate) number: i64,
    mailbox: Arc<Mailbox>,
    is_answered: bool,
}

impl Call {
    pub(crate) fn new(number: i64, mailbox: Arc<Mailbox>) -> Self {
        Self {
            number,
            mailbox,
            is_answered: false,
        }
    }

    /// Sends the reply.
    pub(crate) fn reply(&mut self, content: Content) {
        self.is_answered = true;
        self.mailbox.put(self.number, content);
    }

    /// Sends the reply to a call that returns a value.
    pub(crate) fn reply_with(mut self, result: Result<Value, Value>) {
        self.reply(match result {
            Ok(value) => Content::Value(value),
            Err(failure) => Content::Failure(failure),
        });
    }

    /// Sends an event that belongs to this call.
    pub(crate) fn notify(&self, notice: Value) {
        self.mailbox.put(self.number, Content::Notice(notice));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_answered {
            self.reply(Content::Failure(failure::ended()));
        }
    }
}
