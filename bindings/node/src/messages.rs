//! The messages of the native threads, as objects of JavaScript.

use napi_derive::napi;
use quorate_bindings::call::{Answer, Reply};

use crate::bridge::Bridge;
use crate::guard::NativeGuard;
use crate::{answers, failure};

/// One message to JavaScript: the reply to a call, or the loss of the lock that the call acquired.
#[napi(object, object_from_js = false)]
pub struct NativeMessage {
    /// The number of the call.
    pub call: i64,
    /// The reply to a call that acquired a lock.
    pub guard: Option<NativeGuard>,
    /// The reply to any other call that succeeded, as JSON.
    pub value: Option<String>,
    /// The reply to a call that failed, as JSON.
    pub failure: Option<String>,
}

impl NativeMessage {
    fn new(call: u64, reply: Reply) -> Self {
        let mut message = Self {
            call: call.cast_signed(),
            guard: None,
            value: None,
            failure: None,
        };
        match reply {
            Ok(Answer::Guard(guard)) => message.guard = Some(NativeGuard::new(guard)),
            Ok(answer) => message.value = Some(answers::value(&answer).to_string()),
            Err(error) => message.failure = Some(failure::of_call(&error).to_string()),
        }
        message
    }
}

#[napi]
impl Bridge {
    /// Takes all messages.
    #[napi]
    pub fn take(&self) -> Vec<NativeMessage> {
        let replies = self.mailbox.take().into_iter();
        replies
            .map(|(call, reply)| NativeMessage::new(call, reply))
            .collect()
    }

    /// Takes all log records, as JSON.
    #[napi]
    pub fn take_logs(&self) -> Vec<String> {
        self.logs.take()
    }
}
