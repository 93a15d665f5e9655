//! Work that runs once per period, as data.
//!
//! The work runs in the language, under a [`Guard`]. A task of the client keeps the period, until the language asks the
//! guard to record it as done.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quorate::{Due, LockGuard, Once, ValueError, Wait};
use tokio::sync::oneshot;

use crate::call::{Answer, Call};
use crate::client::Client;
use crate::error::CallError;
use crate::guard::Guard;
use crate::held::Hold;

/// The period in which work runs once.
#[derive(Clone, Debug)]
pub enum Period {
    /// The period of this length that contains the time of the call, counted from 1970 (UTC).
    Every(Duration),
    /// This period. Its start identifies it.
    One(Range<SystemTime>),
}

impl Period {
    /// The period of a call that is made now. It does not change while the call waits for the lock.
    fn now(&self) -> Self {
        let Self::Every(length) = self else {
            return self.clone();
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let Ok(length_ms @ 1..) = u64::try_from(length.as_millis()) else {
            // The library refuses this length.
            return self.clone();
        };
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(now_ms - now_ms % length_ms);
        match start.checked_add(Duration::from_millis(length_ms)) {
            Some(end) => Self::One(start..end),
            None => self.clone(),
        }
    }
}

/// Work that runs once per period across all machines.
#[derive(Clone, Debug)]
pub struct OnceOptions {
    /// The name of the record, and of the lock that protects it.
    pub name: Vec<u8>,
    /// The period in which the work runs once.
    pub period: Period,
    /// How long a call waits for the lock; `None` for that of the client.
    pub wait: Option<Wait>,
    /// A text to store with the record.
    pub note: String,
}

impl OnceOptions {
    fn once(&self, client: &Client) -> Once {
        let once = match &self.period {
            Period::Every(length) => client.redlock().once(&self.name, *length),
            Period::One(period) => client.redlock().once_in(&self.name, period.clone()),
        };
        match self.wait {
            Some(wait) => once.wait(wait),
            None => once,
        }
    }

    async fn lock(&self, client: &Client) -> Result<LockGuard, ValueError> {
        let mut request = client.redlock().lock(&self.name);
        if let Some(wait) = self.wait {
            request = request.wait(wait);
        }
        Ok(request.acquire().await?)
    }

    /// The call that creates an empty record. The answer is [`Answer::Done`].
    pub fn create(&self, client: &Arc<Client>) -> Call {
        let once = self.once(client);
        Call::new(client, async move {
            once.create().await?;
            Ok(Answer::Done)
        })
    }

    /// The call that removes the record from every master. The answer is [`Answer::Flag`]: whether there was one.
    pub fn remove(&self, client: &Arc<Client>) -> Call {
        let once = self.once(client);
        Call::new(client, async move {
            Ok(Answer::Flag(once.drop_record().await?))
        })
    }

    /// The call that reads the record. The answer is [`Answer::Record`].
    pub fn read(&self, client: &Arc<Client>) -> Call {
        let (options, owner) = (self.clone(), client.clone());
        Call::new(client, async move {
            let guard = options.lock(&owner).await?;
            let once = options.once(&owner);
            let read = once.record(&guard).await;
            let answer = read.map(|record| Answer::Record(record.last(), record.note().to_owned()));
            guard.release().await;
            Ok(answer?)
        })
    }

    /// The call that acquires the lock and records the period as done, before the work runs. The answer is
    /// [`Answer::Guard`], or [`Answer::AlreadyDone`] with the lock released.
    pub fn at_most_once(&self, client: &Arc<Client>) -> Call {
        let (options, owner) = (self.of_now(), client.clone());
        Call::new(client, async move {
            let guard = options.lock(&owner).await?;
            let once = options.once(&owner);
            let due = async {
                match once.due(&guard).await? {
                    Due::Now(turn) => turn.note(&options.note).record().await.map(|()| None),
                    Due::AlreadyDone { next } => {
                        once.refill(&guard).await?;
                        Ok(Some(next))
                    }
                }
            };
            let due = due.await;
            match due {
                Ok(None) => Ok(Answer::Guard(Guard::new(
                    &owner,
                    Arc::new(Hold::Lock(guard)),
                ))),
                Ok(Some(next)) => {
                    guard.release().await;
                    Ok(Answer::AlreadyDone(next))
                }
                Err(error) => {
                    guard.release().await;
                    Err(error.into())
                }
            }
        })
    }

    /// The call that acquires the lock, and returns it if the period is not done yet. After the work,
    /// [`Guard::record`] records the period as done. The answer is [`Answer::Guard`], or [`Answer::AlreadyDone`] with
    /// the lock released.
    pub fn at_least_once(&self, client: &Arc<Client>) -> Call {
        let (options, owner) = (self.of_now(), client.clone());
        Call::new(client, async move {
            let hold = Arc::new(Hold::Lock(options.lock(&owner).await?));
            let (due_sender, due) = oneshot::channel();
            let (record_request, record_requested) = oneshot::channel();
            let once = options.once(&owner);
            let period = keep_period(
                once,
                hold.clone(),
                options.note,
                due_sender,
                record_requested,
            );
            owner.spawn(period).map_err(|_| CallError::closed())?;
            match due.await {
                Ok(Ok(None)) => Ok(Answer::Guard(
                    Guard::new(&owner, hold).with_record(record_request),
                )),
                Ok(Ok(Some(next))) => {
                    hold.guard().release().await;
                    Ok(Answer::AlreadyDone(next))
                }
                Ok(Err(error)) => {
                    hold.guard().release().await;
                    Err(error.into())
                }
                Err(_) => Err(CallError::closed()),
            }
        })
    }

    /// These options for the period of a call that is made now.
    fn of_now(&self) -> Self {
        Self {
            period: self.period.now(),
            ..self.clone()
        }
    }
}

/// Reads whether the period is due, and reports it: the time until the next period if it is done, otherwise `None`. If
/// the period is due, waits until the language asks to record it, or drops its guard.
async fn keep_period(
    once: Once,
    hold: Arc<Hold>,
    note: String,
    due_sender: oneshot::Sender<Result<Option<Duration>, ValueError>>,
    record_requested: oneshot::Receiver<oneshot::Sender<Result<(), ValueError>>>,
) {
    let turn = match once.due(hold.guard()).await {
        Ok(Due::Now(turn)) => turn,
        Ok(Due::AlreadyDone { next }) => {
            let refilled = once.refill(hold.guard()).await;
            drop(hold);
            let _ = due_sender.send(refilled.map(|()| Some(next)));
            return;
        }
        Err(error) => {
            drop(hold);
            let _ = due_sender.send(Err(error));
            return;
        }
    };
    if due_sender.send(Ok(None)).is_err() {
        return;
    }
    if let Ok(result_sender) = record_requested.await {
        let recorded = turn.note(note).record().await;
        drop(hold);
        let _ = result_sender.send(recorded);
    }
}
