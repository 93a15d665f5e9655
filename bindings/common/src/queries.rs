//! Calls about locks of all clients, and about the masters.

use std::sync::Arc;

use crate::call::{Answer, Call};
use crate::client::Client;

/// The call that reads the state of a lock. The answer is [`Answer::Status`].
pub fn status(client: &Arc<Client>, name: Vec<u8>) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        Ok(Answer::Status(redlock.status(name).await?))
    })
}

/// The call that reads the state of the permits and of the queue of a semaphore. The answer is [`Answer::Semaphore`].
pub fn semaphore_status(client: &Arc<Client>, name: Vec<u8>) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        Ok(Answer::Semaphore(redlock.semaphore_status(name).await?))
    })
}

/// The call that lists the locks that are held and whose names begin with `prefix`. The answer is [`Answer::Listing`].
pub fn list(client: &Arc<Client>, prefix: Vec<u8>) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        Ok(Answer::Listing(redlock.list(prefix).await))
    })
}

/// The call that examines every master. The answer is [`Answer::Inspections`].
pub fn inspect(client: &Arc<Client>) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        Ok(Answer::Inspections(redlock.inspect().await))
    })
}

/// The call that deletes a lock, no matter which client holds it. The answer is [`Answer::Status`]: the state before
/// the deletion.
pub fn break_lock(client: &Arc<Client>, name: Vec<u8>) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        Ok(Answer::Status(redlock.break_lock(name).await?))
    })
}

/// The call that deletes the permit `slot` of a semaphore, no matter which client holds it. The answer is
/// [`Answer::Status`]: the state before the deletion.
pub fn break_permit(client: &Arc<Client>, name: Vec<u8>, slot: usize) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        Ok(Answer::Status(redlock.break_permit(name, slot).await?))
    })
}

/// The call that waits until no request is outstanding. The answer is [`Answer::Done`].
pub fn flush(client: &Arc<Client>) -> Call {
    let redlock = client.redlock().clone();
    Call::new(client, async move {
        redlock.flush().await;
        Ok(Answer::Done)
    })
}
