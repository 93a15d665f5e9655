//! Writes the generation marker to masters that have never been replaced. A missing marker then shows that a master has
//! lost its data, or that a different server has its address (docs/protocol.md, "Generation markers").

use super::{ChangeError, Survey, none};
use crate::node::change::ClientKind;
use crate::protocol::marker::Marker;
use crate::redlock::Redlock;

impl Redlock {
    /// Writes the generation marker to all masters. From then on, a missing marker shows that a master has lost its
    /// data, or that another server has taken its address. Clients ignore the votes of such a master for `max_ttl`.
    ///
    /// Connected clients are not affected. To restore markers that masters have lost, call this function again.
    ///
    /// # Errors
    ///
    /// - [`ChangeError::NothingToChange`] if the masters cannot store a marker.
    /// - [`ChangeError::Missing`] if at least one master cannot be marked. The error lists all problems.
    ///
    /// For example, this function writes no marker if one of these conditions is met:
    ///
    /// - A master already has a different marker.
    /// - A connected client uses a different set of masters.
    /// - [`next_masters`](crate::RedlockBuilder::next_masters) is set.
    /// - No master has a marker, and at least one master cannot be reached.
    ///
    /// If a master fails during the call, other masters may already have the marker.
    pub async fn mark_masters(&self) -> Result<Survey, ChangeError> {
        let masters = self.masters_as_marked()?;
        let before = masters.look().await;
        // If any master has a marker, clients treat a missing marker as lost: restore it. If no master has a marker,
        // write the first markers.
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
            "not all masters have a generation marker: run the step `mark` again",
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
                "next_masters is set: run the step `begin`, which also writes the generation markers"
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
                    "{}: the generation marker {marker} of this master belongs to another generation or to an \
                     unfinished replacement: correct masters_generation, or finish the replacement",
                    master.node
                ));
            }
        }
        missing.extend(self.would_be_refused());
        missing
    }

    /// One line for each connected client that would be rejected once the masters have the marker. Such a client is
    /// configured with other masters, or with another step of a replacement.
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
                        "{}: the client {} at {} is configured with other masters or another generation: use the same \
                         hosts, ports, databases and masters_generation as in this configuration",
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
