//! A request to a master with a seeded bug. The code of the bug answers the request.

use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, Fairness, Fault, Request, Ticket};

/// How long a master keeps a fencing counter after it has set the counter: one day.
const COUNTER_LIFETIME: Duration = Duration::from_secs(86_400);

pub(super) type Outcome = Result<Answer, Fault>;

/// One request to one master, with the master's memory. `now` is the reading of the master's clock in microseconds.
pub(super) struct RequestContext<'a> {
    pub(super) memory: &'a mut Master,
    pub(super) now: u64,
    pub(super) request: &'a Request,
}

pub(super) fn ticket_of(claim: &Claim) -> Option<&Ticket> {
    match claim.fairness() {
        Fairness::Fair(ticket) => ticket.as_deref(),
        Fairness::Unordered => None,
    }
}

impl RequestContext<'_> {
    pub(super) fn execute_correctly(&mut self) -> Outcome {
        self.memory.apply(self.now, self.request)
    }

    pub(super) fn holder(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.memory.peek(self.now, key).holder.map(<[u8]>::to_vec)
    }

    pub(super) fn counter(&self, key: &[u8]) -> u64 {
        self.memory.peek(self.now, key).counter.unwrap_or(0)
    }

    pub(super) fn set_counter(&mut self, key: &[u8], number: u64) {
        let fence = [b"quorate:fence:", key].concat();
        let text = number.to_string();
        self.memory
            .put_text(self.now, &fence, text.as_bytes(), Some(COUNTER_LIFETIME));
    }

    pub(super) fn put_value(&mut self, key: &[u8], value: &[u8], ttl: Duration) {
        self.memory.put_text(self.now, key, value, Some(ttl));
    }

    /// Removes the lock under this key from the master's memory.
    pub(super) fn delete_lock(&mut self, key: &[u8]) {
        self.put_value(key, b"", Duration::ZERO);
    }
}
