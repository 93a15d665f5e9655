//! The state of one lock on the masters.

use std::time::Duration;

use crate::node::{Fault, Hold, KeyState, NodeName, Note};
use crate::protocol::fencing::{ShownLock, TokenVerdict, token_verdict};
use crate::protocol::quorum::{MasterSet, Quorum};

/// The state of one lock on all masters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The lock's state on each master, in the order in which the masters were given to the builder.
    pub nodes: Vec<NodeStatus>,
    /// The smallest number of masters that can form a majority. While masters are being replaced, a lock needs a
    /// majority of the old masters and a majority of the new masters.
    pub quorum: usize,
    /// The rule that decides which sets of masters are a majority.
    pub(super) majority: Quorum,
    /// See [`deletion_was_sent`](Self::deletion_was_sent).
    pub(super) deletion_sent: bool,
}

/// The state of one lock on one master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// The lock's state on this master, or the fault if the master gave no answer.
    pub state: Result<KeyState, Fault>,
    /// Time from the request to this master's answer, or to its fault.
    pub latency: Duration,
}

/// The combined result of the masters' answers about one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatusVerdict {
    /// A majority of the masters shows the same holder. The bytes are the value of the lock key.
    Held(Vec<u8>),
    /// The lock is free on a majority of the masters.
    Free,
    /// A majority of the masters answered, but no holder has the lock on a majority, and the lock is free on too few
    /// masters.
    Split,
    /// Less than a majority of the masters answered. A master that restarted and may have forgotten the lock is treated
    /// as a master that did not answer ([`Fault::Quarantined`]).
    Unknown,
}

impl Status {
    /// Combines the masters' answers: whether the lock is held, free, split or unknown.
    pub fn verdict(&self) -> StatusVerdict {
        if !self.majority.is_met_by(self.masters_where(|_| true)) {
            return StatusVerdict::Unknown;
        }
        let states = self
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().ok());
        let mut holders = states.filter_map(|state| state.holder.as_deref());
        // While masters are replaced, some holders know only the old or only the next masters. So a majority of one of
        // these two sets is enough.
        let is_held_by = |value: &[u8]| {
            let holding_masters =
                self.masters_where(|state| state.holder.as_deref() == Some(value));
            self.majority.is_met_in_one_set(holding_masters)
        };
        match holders.find(|value| is_held_by(value)) {
            Some(value) => StatusVerdict::Held(value.to_vec()),
            None if self
                .majority
                .is_met_by(self.masters_where(|state| state.holder.is_none())) =>
            {
                StatusVerdict::Free
            }
            None => StatusVerdict::Split,
        }
    }

    /// Whether `token`, a fencing token of this lock, was still the token of the holder when the masters were read.
    ///
    /// **A check before a write is a race**: the lock can end between the check and the write. Only the resource can
    /// refuse a stale write (`docs/fencing.md`, [`Fence`](crate::Fence)). A check is good for saving work, and for
    /// finding out in an incident which client has acted without the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use quorate::TokenVerdict;
    ///
    /// # let redlock = quorate::Redlock::in_memory(3);
    /// let guard = redlock.acquire("report").await?;
    /// let token = guard.fencing_token().ok_or("fencing is off")?;
    /// assert_eq!(redlock.status("report").await?.check(token), TokenVerdict::Current);
    ///
    /// guard.release().await;
    /// assert_eq!(redlock.status("report").await?.check(token), TokenVerdict::Ended);
    ///
    /// let next = redlock.acquire("report").await?;
    /// assert_eq!(redlock.status("report").await?.check(token), TokenVerdict::Superseded);
    /// # let _ = next;
    /// # Ok(()) }
    /// ```
    pub fn check(&self, token: u64) -> TokenVerdict {
        let numbered_nodes = self.nodes.iter().enumerate();
        let shown_locks = numbered_nodes.filter_map(|(node, node_status)| {
            let state = node_status.state.as_ref().ok()?;
            Some(ShownLock {
                node,
                holder: state.holder.as_deref(),
                counter: state.counter,
            })
        });
        token_verdict(self.majority, token, shown_locks)
    }

    /// Whether [`break_lock`](crate::Redlock::break_lock) or [`break_permit`](crate::Redlock::break_permit) has sent
    /// the deletion of the lock to the masters. False in the status that another method returned.
    ///
    /// If true, a majority of the masters refuses from now on to renew the lock that was read. If the verdict is
    /// [`Unknown`](StatusVerdict::Unknown) nevertheless, less than a majority of the masters has confirmed the
    /// deletion: the lock key still exists on some masters, perhaps, until its TTL expires. Repeat the call to delete
    /// it.
    pub fn deletion_was_sent(&self) -> bool {
        self.deletion_sent
    }

    /// The masters that answered with a state for which `is_selected` returns true.
    fn masters_where(&self, is_selected: impl Fn(&KeyState) -> bool) -> MasterSet {
        let nodes = self.nodes.iter().enumerate();
        let selected = nodes.filter(|(_, node)| node.state.as_ref().is_ok_and(&is_selected));
        selected.map(|(node, _)| node).collect()
    }

    /// Whether any master shows a holder of the lock.
    pub(crate) fn is_held_anywhere(&self) -> bool {
        let mut states = self
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().ok());
        states.any(|state| state.holder.is_some())
    }

    /// The holds of a shared lock, with their notes: those of its readers, or those of its owner.
    ///
    /// The list contains only holds that a majority of the masters reports. It is sorted by remaining TTL, shortest
    /// first. The remaining TTL of a hold is the longest that any master reported for this hold.
    pub fn holds(&self) -> Vec<Hold> {
        let numbered_nodes = self.nodes.iter().enumerate();
        let states =
            numbered_nodes.filter_map(|(node, status)| Some((node, status.state.as_ref().ok()?)));
        let mut holds: Vec<(MasterSet, Hold)> = Vec::new();
        let holds_by_node =
            states.flat_map(|(node, state)| state.holds.iter().map(move |hold| (node, hold)));
        for (node, hold) in holds_by_node {
            match holds
                .iter_mut()
                .find(|(_, merged)| merged.value == hold.value)
            {
                Some((masters, merged)) => {
                    masters.add(node);
                    merged.lives = merged.lives.max(hold.lives);
                    merged.note = merged.note.take().or_else(|| hold.note.clone());
                }
                None => holds.push((MasterSet::single(node), hold.clone())),
            }
        }
        holds.retain(|(masters, _)| self.majority.is_met_in_one_set(*masters));
        holds.sort_by(|(_, a), (_, b)| (a.lives, &a.value).cmp(&(b.lives, &b.value)));
        holds.into_iter().map(|(_, hold)| hold).collect()
    }

    /// The note of the lock's holder. `None` if no majority of the masters reports the same holder, or if the holder
    /// has written no note.
    pub fn note(&self) -> Option<&Note> {
        let StatusVerdict::Held(holder) = self.verdict() else {
            return None;
        };
        let states = self
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().ok());
        states
            .filter(|state| state.holder.as_ref() == Some(&holder))
            .find_map(|state| state.note.as_ref())
    }
}
