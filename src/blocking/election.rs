//! Leader election for callers without a runtime.

use std::fmt;
use std::time::Duration;

use super::on_runtime::OnRuntime;
use super::runtime_thread::RuntimeThread;
use crate::error::{AcquireError, CannotBlock};
use crate::hold::guard::LockGuard;
use crate::hold::released::Released;
use crate::kinds::election::{self, Leader};
use crate::node::note::NoteText;
use crate::outcome::LossCause;
use crate::resource::InvalidResource;
use crate::settings::Wait;
use crate::waiting::Waiting;

/// An election; the blocking version of [`quorate::Election`](crate::Election).
#[derive(Clone)]
pub struct Election {
    election: election::Election,
    runtime_thread: RuntimeThread,
}

/// The leadership that this client has won in an election; the blocking version of
/// [`quorate::Leadership`](crate::Leadership).
#[must_use = "dropping this value resigns the leadership"]
pub struct Leadership {
    inner: OnRuntime<election::Leadership>,
}

/// An observer of an election; the blocking version of [`quorate::Observation`](crate::Observation).
pub struct Observation {
    inner: OnRuntime<election::Observation>,
}

/// The result of [`Observation::next_within`]: a new leader, no leader, or no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This leader was elected. It need not be this client.
    Leads(Leader),
    /// No leader is known any more: the masters show none, or too few masters answer.
    Nobody,
    /// The leader did not change within the time limit.
    Unchanged,
}

impl Election {
    pub(super) fn new(election: election::Election, runtime_thread: &RuntimeThread) -> Self {
        let runtime_thread = runtime_thread.clone();
        Self {
            election,
            runtime_thread,
        }
    }

    /// How long a leader that has crashed keeps the leadership. Default: the builder's `ttl`.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        let election = self.election.ttl(ttl);
        Self { election, ..self }
    }

    /// How long [`campaign`](Self::campaign) waits to become the leader. Default: no limit.
    #[must_use]
    pub fn wait(self, wait: Wait) -> Self {
        let election = self.election.wait(wait);
        Self { election, ..self }
    }

    /// Calls `observer` after every failed attempt to become the leader while another client leads.
    #[must_use]
    pub fn waiting(self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        let election = self.election.waiting(observer);
        Self { election, ..self }
    }

    /// Waits until this client leads; see [`quorate::Election::campaign`](crate::Election::campaign).
    ///
    /// # Errors
    ///
    /// Those of [`quorate::Election::campaign`](crate::Election::campaign), and [`AcquireError::CannotBlock`] on a
    /// thread of a Tokio runtime.
    pub fn campaign(&self, note: impl Into<NoteText>) -> Result<Leadership, AcquireError> {
        let leadership = self.runtime_thread.wait(self.election.campaign(note));
        let leadership = leadership.map_err(AcquireError::from)??;
        Ok(Leadership {
            inner: OnRuntime::new(leadership, &self.runtime_thread),
        })
    }

    /// Creates an observer of the election. The observer sends no request before the first call of
    /// [`Observation::next`] or [`Observation::next_within`].
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name of the election is not valid.
    pub fn observe(&self) -> Result<Observation, InvalidResource> {
        Ok(Observation {
            inner: OnRuntime::new(self.election.observe()?, &self.runtime_thread),
        })
    }
}

impl Leadership {
    /// The term: the fencing token of this leader, larger than that of every earlier leader.
    pub fn term(&self) -> u64 {
        self.inner.get().term()
    }

    /// The guard of the lock that this leader holds. It shows the lock's validity and the masters' replies.
    pub fn guard(&self) -> &LockGuard {
        self.inner.get().guard()
    }

    /// Whether this client leads now.
    pub fn is_valid(&self) -> bool {
        self.inner.get().is_valid()
    }

    /// Waits at most for `within` until the leadership is lost. Returns `None` if this client still leads at the end of
    /// that time.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn wait_lost(&self, within: Duration) -> Result<Option<LossCause>, CannotBlock> {
        let loss = self.inner.get().lost();
        self.inner.runtime_thread.wait_for(within, loss)
    }

    /// Resigns: gives up the leadership, and the next candidate in the queue takes over.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime. The leadership is then given up in the background.
    pub fn resign(&self) -> Result<Released, CannotBlock> {
        self.inner.release_with(election::Leadership::resign)
    }
}

impl Observation {
    /// Waits for the next change of the leader, without a time limit. Returns the leader, or `None` when no leader is
    /// known any more; see [`quorate::Observation::next`](crate::Observation::next).
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    #[expect(
        clippy::should_implement_trait,
        reason = "named like the async method; not an `Iterator`, because a call can return an error"
    )]
    pub fn next(&mut self) -> Result<Option<Leader>, CannotBlock> {
        let (observation, runtime_thread) = self.inner.parts();
        runtime_thread.wait(observation.next())
    }

    /// Waits until the leader changes, but at most for `within`. Returns [`Change::Unchanged`] if the leader did not
    /// change in that time.
    ///
    /// # Errors
    ///
    /// [`CannotBlock`] on a thread of a Tokio runtime.
    pub fn next_within(&mut self, within: Duration) -> Result<Change, CannotBlock> {
        let (observation, runtime_thread) = self.inner.parts();
        Ok(match runtime_thread.wait_for(within, observation.next())? {
            Some(Some(leader)) => Change::Leads(leader),
            Some(None) => Change::Nobody,
            None => Change::Unchanged,
        })
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.election, f)
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.inner.get(), f)
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.inner.get(), f)
    }
}
