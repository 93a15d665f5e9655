//! A request to a client, and its reply as data.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorate::{AtRisk, Inspection, Leader, Listing, LossCause, SemaphoreStatus, Status, Take};

use crate::client::Client;
use crate::error::CallError;
use crate::guard::Guard;

/// The result of a call that succeeded.
pub enum Answer {
    /// The call is done, and has no result.
    Done,
    /// The lock was acquired.
    Guard(Guard),
    /// The lock was not acquired by a single attempt, because another client holds it.
    NotAcquired,
    /// The work of this period is done. The time until the start of the next period.
    AlreadyDone(Duration),
    /// Whether something was the case.
    Flag(bool),
    /// A number of units that are left.
    Units(u64),
    /// The result of taking units from a quota.
    Take(Take),
    /// Why a lock ended; `None` if it has not ended within the time limit of the call.
    Loss(Option<LossCause>),
    /// The lock is still held, but may be lost soon.
    Risk(AtRisk),
    /// The leader of an election; `None` if there is none.
    Leader(Option<Leader>),
    /// The state of a lock.
    Status(Status),
    /// The state of the permits and of the queue of a semaphore.
    Semaphore(SemaphoreStatus),
    /// The locks that are held.
    Listing(Listing),
    /// The state of each master.
    Inspections(Vec<Inspection>),
    /// The start of the last period that is recorded as done, and the note of the record.
    Record(Option<SystemTime>, String),
}

/// The result of a call.
pub type Reply = Result<Answer, CallError>;

/// A request that has not been started, and the client that runs it. Nothing is sent before it is started.
pub struct Call {
    pub(crate) client: Arc<Client>,
    pub(crate) work: Work,
}

/// The work of a call.
pub(crate) enum Work {
    /// The reply is known already.
    Done(Reply),
    /// The reply of this future, which runs on the thread of the client.
    Future(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

impl Call {
    /// A call that runs this future on the thread of the client.
    pub fn new(client: &Arc<Client>, future: impl Future<Output = Reply> + Send + 'static) -> Self {
        Self {
            client: client.clone(),
            work: Work::Future(Box::pin(future)),
        }
    }

    /// A call whose reply is known already. It also succeeds after the client was closed.
    pub fn done(client: &Arc<Client>, reply: Reply) -> Self {
        Self {
            client: client.clone(),
            work: Work::Done(reply),
        }
    }
}
