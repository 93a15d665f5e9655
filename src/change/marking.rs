//! Writes the generation marker to masters that have never been replaced. A server without the marker can then be
//! recognised: it has lost its data, or it is another server than before (docs/protocol.md, "Generation markers").

use super::{ChangeError, Survey, none};
use crate::node::change::ClientKind;
use crate::protocol::marker::Marker;
use crate::redlock::Redlock;

impl Redlock {
    /// Writes the generation marker to all masters. From then on, a missing marker means that the master has lost its
    /// data, or that another server has taken the master's address. Clients ignore the votes of such a master for the
    /// longest ttl.
    ///
    /// Connected clients are not affected. This function may be called again to restore lost markers.
    ///
    /// # Errors
    ///
    /// - [`ChangeError::NothingToChange`] if the masters cannot store a marker.
    /// - [`ChangeError::Missing`] in four cases: a master has another marker, a client is configured with other
    ///   masters, [`next_masters`](crate::RedlockBuilder::next_masters) is set, or a master is down while no master has
    ///   a marker. No marker was written then, unless a master became unreachable during the call.
    pub async fn mark_masters(&self) -> Result<Survey, ChangeError> {
        let masters = self.masters_as_marked()?;
        let before = masters.look().await;
        // If no master has a marker, every master must be reachable. If only some masters got the marker, clients would
        // conclude that the masters without a marker have lost it. If any master has a marker, a missing marker is
        // restored.
        let restores = (before.masters.iter()).any(|master| master.marker().is_some());
        let mut missing = before.unmarkable();
        if !restores {
            missing.extend(before.faults());
        }
        none(missing)?;
        let after = masters.raise_where(0, |_| restores).await;
        let marked =
            after.those(|master| master.marker().is_some_and(|marker| after.is_own(marker)));
        let all = restores || marked == after.those(|_| true);
        let enough = all && after.quorum.is_met_by(marked);
        none(after.unless(
            enough,
            "not all masters have a generation marker: run the step mark again",
        ))?;
        Ok(after)
    }
}

impl Survey {
    /// Whether every master has a generation marker. [`mark_masters`](Redlock::mark_masters) writes the marker, and so
    /// does a replacement of the masters.
    pub fn is_marked(&self) -> bool {
        self.masters.iter().all(|master| master.marker().is_some())
    }

    /// The reasons why the marker must not be written to these masters, one line each.
    fn unmarkable(&self) -> Vec<String> {
        if self.configuration.has_next() {
            return vec![
                "next_masters is set: run the step begin, which also writes the generation markers"
                    .into(),
            ];
        }
        let mut missing = self.obstacles();
        for master in &self.masters {
            let strange = |marker: &Marker| {
                !self.is_own(*marker) && !self.is_of_others(*marker) && !self.is_later(*marker)
            };
            if let Some(marker) = master.marker().filter(strange) {
                missing.push(format!(
                    "{}: its generation marker {marker} is of another generation, or of a replacement in progress: set \
                     masters_generation, or finish the replacement",
                    master.node
                ));
            }
        }
        missing.extend(self.would_be_refused());
        missing
    }

    /// One line for each client that the masters would reject once they have the marker. Such a client is configured
    /// with other masters, or with another step of a replacement.
    fn would_be_refused(&self) -> Vec<String> {
        let own = self
            .configuration
            .print_at(self.configuration.first_marker());
        let own = own.map(|print| (self.configuration.step(), print.number()));
        let mut missing = Vec::new();
        for master in &self.masters {
            for client in &master.seen.clients {
                if let ClientKind::AtStep(step, print) = client.kind
                    && Some((step, print)) != own
                {
                    missing.push(format!(
                        "{}: {} at {} is configured with other masters, another generation or other names, and would be refused: \
                         configure that client with the hosts, ports and databases that are named here, or use the names of that client here",
                        master.node, client.name, client.address
                    ));
                }
            }
        }
        missing
    }

    fn is_own(&self, marker: Marker) -> bool {
        let own = self.configuration.first_marker();
        marker.number == own && self.configuration.print_at(own) == Some(marker.print)
    }
}
