//! Marking masters before their first change, so that a server without the mark is known as one that has forgotten, or as
//! another server than before (docs/protocol.md, section 9).

use super::{ChangeError, Survey, none};
use crate::node::change::ClientKind;
use crate::protocol::mark::Mark;
use crate::redlock::Redlock;

impl Redlock {
    /// Writes the generation marker on all masters. Clients then leave out the votes of a master without it for the longest
    /// ttl. A server that was already running, and takes the place of a master behind its address, has none.
    ///
    /// Nothing changes for clients that are connected. The step can be taken again, which restores lost marks.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NothingToChange`] over masters that keep no mark, and [`ChangeError::Missing`] where a master has
    /// another mark, where a client names the masters otherwise, where
    /// [`next_masters`](crate::RedlockBuilder::next_masters) are named, and where a master is away while none is marked.
    /// Nothing was marked then, unless a master was lost meanwhile.
    pub async fn mark_masters(&self) -> Result<Survey, ChangeError> {
        let masters = self.masters_as_marked()?;
        let before = masters.look().await;
        // The masters that are marked first would make clients miss the marks of the others.
        let restores = (before.masters.iter()).any(|master| master.mark().is_some());
        let mut missing = before.unmarkable();
        if !restores {
            missing.extend(before.faults());
        }
        none(missing)?;
        let after = masters.raise_where(0, |_| restores).await;
        let marked = after.those(|master| master.mark().is_some_and(|mark| after.is_own(mark)));
        let all = restores || marked == after.those(|_| true);
        let enough = all && after.quorum.is_met_by(marked);
        none(after.unless(enough, "not all masters are marked: mark again"))?;
        Ok(after)
    }
}

impl Survey {
    /// Whether all masters have been marked, by this step or by a change of masters.
    pub fn is_marked(&self) -> bool {
        self.masters.iter().all(|master| master.mark().is_some())
    }

    /// What keeps these masters from being marked.
    fn unmarkable(&self) -> Vec<String> {
        if self.configuration.has_next() {
            return vec!["next_masters are named: prepare marks the masters of a change".into()];
        }
        let mut missing = self.strangers_to_the_change();
        for master in &self.masters {
            let strange = |mark: &Mark| {
                !self.is_own(*mark) && !self.is_of_others(*mark) && !self.is_later(*mark)
            };
            if let Some(mark) = master.mark().filter(strange) {
                missing.push(format!(
                    "{}: its mark {mark} is of another generation, or of a change that is under way: give masters_generation, \
                     or finish the change",
                    master.node
                ));
            }
        }
        missing.extend(self.would_be_refused());
        missing
    }

    /// Clients that the mark would close out: they name the masters otherwise, or are at another step.
    fn would_be_refused(&self) -> Vec<String> {
        let own = self.configuration.print_at(self.configuration.first_mark());
        let own = own.map(|print| (self.configuration.step(), print.number()));
        let mut missing = Vec::new();
        for master in &self.masters {
            for client in &master.seen.clients {
                if let ClientKind::AtStep(step, print) = client.kind
                    && Some((step, print)) != own
                {
                    missing.push(format!(
                        "{}: {} at {} names other masters or another generation, or the same masters otherwise, and would be \
                         refused: give it the hosts, ports and databases that are named here, or name its own here",
                        master.node, client.name, client.address
                    ));
                }
            }
        }
        missing
    }

    fn is_own(&self, mark: Mark) -> bool {
        let own = self.configuration.first_mark();
        mark.number == own && self.configuration.print_at(own) == Some(mark.print)
    }
}
