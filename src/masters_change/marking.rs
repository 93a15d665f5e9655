//! Writes the generation marker to masters that have never been replaced. A missing marker then shows that a master has
//! lost its data, or that a different server has its address (docs/protocol.md, "Generation markers").

use super::{ChangeError, MastersChange, Survey, refuse_if_missing};
use crate::node::change::{ClientKind, MasterSeen};
use crate::protocol::marker::Marker;
use crate::redlock::Redlock;

impl Redlock {
    /// Writes the generation marker to all masters. From then on, a missing marker shows that a master has lost its
    /// data, or that another server has taken its address. Clients ignore the votes of such a master for `max_ttl`.
    ///
    /// Connected clients are not affected. Call this function again after `masters_name` was set, so that the markers
    /// bear the name: clients without a name ignore the name of a marker. To restore markers that masters have lost,
    /// call this function again.
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
    /// - No master has a marker, or none with the name in
    ///   [`masters_name`](crate::RedlockBuilder::masters_name), and at least one master cannot be reached.
    /// - The address of a master leads to several servers in turn. This function connects several times to find out.
    ///
    /// If a master fails during the call, other masters may already have the marker.
    pub async fn mark_masters(&self) -> Result<Survey, ChangeError> {
        self.masters_change()?.mark().await
    }
}

impl MastersChange<'_> {
    /// Does what [`Redlock::mark_masters`] describes.
    pub(super) async fn mark(&self) -> Result<Survey, ChangeError> {
        let survey_before = self.survey().await;
        // If any master has a marker, clients treat a missing marker as lost: restore it. If no master has a marker, or
        // none that bears the configured name, write the first markers.
        let has_any_marker = |is_selected: &dyn Fn(Marker) -> bool| {
            let mut markers = survey_before.masters.iter().filter_map(MasterSeen::marker);
            markers.any(is_selected)
        };
        let restores_markers = has_any_marker(&|_| true);
        let is_first = !has_any_marker(&|marker| survey_before.configuration.is_named_by(marker));
        let mut missing_conditions = survey_before.unmarkable();
        if is_first {
            missing_conditions.extend(survey_before.faults());
        }
        missing_conditions.extend(self.alternating_addresses(&survey_before).await);
        refuse_if_missing(missing_conditions)?;
        let survey_after = self.raise_markers_restoring(0, |_| restores_markers).await;
        // The address may have led to another server just now.
        refuse_if_missing(
            survey_before.alternating_addresses(std::slice::from_ref(&survey_after)),
        )?;
        refuse_if_missing(survey_after.missing_unless(
            survey_after.has_own_markers(is_first),
            "not all masters have a generation marker: run the step `mark` again",
        ))?;
        Ok(survey_after)
    }
}

impl Survey {
    /// Whether every master has a generation marker, which bears the name in
    /// [`masters_name`](crate::RedlockBuilder::masters_name) if one is set. [`mark_masters`](Redlock::mark_masters)
    /// writes the marker, and so does a replacement of the masters.
    pub fn is_marked(&self) -> bool {
        let is_named = |marker| self.configuration.is_named_by(marker);
        let mut masters = self.masters.iter();
        masters.all(|master| master.marker().is_some_and(is_named))
    }

    /// The reasons why the marker must not be written to these masters, one line each.
    fn unmarkable(&self) -> Vec<String> {
        if self.configuration.has_next() {
            return vec![
                "next_masters is set: run the step `begin`, which also writes the generation markers"
                    .into(),
            ];
        }
        let mut missing_conditions = self.obstacles();
        for master in &self.masters {
            let is_unfit = |marker: &Marker| {
                let name = self.configuration.name();
                let marker = &Marker { name, ..*marker };
                !self.is_own(*marker)
                    && !self.belongs_to_other_masters(*marker)
                    && !self.is_later(*marker)
            };
            if let Some(marker) = master.marker().filter(is_unfit) {
                missing_conditions.push(format!(
                    "{}: the generation marker {marker} of this master belongs to another generation or to an \
                     unfinished replacement: correct masters_generation, or finish the replacement",
                    master.node
                ));
            }
        }
        missing_conditions.extend(self.would_be_refused());
        missing_conditions
    }

    /// One line for each connected client that would be rejected once the masters have the marker. Such a client is
    /// configured with other masters, or with another step of a replacement.
    fn would_be_refused(&self) -> Vec<String> {
        let first_print = self
            .configuration
            .print_at(self.configuration.first_marker());
        let own_print = first_print.map(|print| (self.configuration.step(), print.number()));
        let mut missing_conditions = Vec::new();
        for master in &self.masters {
            for client in &master.seen.clients {
                if let ClientKind::AtStep(step, print) = client.kind
                    && Some((step, print)) != own_print
                {
                    missing_conditions.push(format!(
                        "{}: the client {} at {} is configured with other masters or another generation: use the same \
                         hosts, ports, databases and masters_generation as in this configuration",
                        master.node, client.name, client.address
                    ));
                }
            }
        }
        missing_conditions
    }

    /// Whether enough masters have the marker of this configuration. If the markers are the first ones (`is_first`),
    /// all masters must have it, otherwise a majority.
    fn has_own_markers(&self, is_first: bool) -> bool {
        let marked_masters =
            self.masters_where(|master| master.marker().is_some_and(|marker| self.is_own(marker)));
        let has_all = !is_first || marked_masters == self.masters_where(|_| true);
        has_all && self.quorum.is_met_by(marked_masters)
    }

    fn is_own(&self, marker: Marker) -> bool {
        let own_number = self.configuration.first_marker();
        marker.number == own_number
            && self.configuration.print_at(own_number) == Some(marker.print)
            && self.configuration.is_named_by(marker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masters_change::survey::tests::{
        NO, assert_lines, client, client_at, configuration, survey,
    };
    use crate::protocol::marker::{Configuration, Fingerprint};
    use crate::protocol::quorum::Quorum;

    fn masters_print() -> Option<Fingerprint> {
        configuration().print_at(0)
    }

    /// A configuration of the old masters at this generation, without next masters.
    fn without_next(generation: u64) -> Configuration {
        let print = masters_print().expect("the masters must have a fingerprint");
        Configuration::new(generation, print, None)
    }

    /// A survey by a client at this generation. The masters have these markers, which may bear a name.
    fn survey_at(generation: u64, marked: &[(u64, Option<Fingerprint>)]) -> Survey {
        let mut survey = survey([NO; 6]);
        survey.configuration = without_next(generation);
        survey.masters.truncate(marked.len());
        let print = masters_print().expect("the masters must have a fingerprint");
        for (master, (number, name)) in survey.masters.iter_mut().zip(marked) {
            let (number, name) = (*number, *name);
            master.seen.mark = Some(
                Marker {
                    number,
                    print,
                    name,
                }
                .to_string(),
            );
        }
        survey
    }

    #[test]
    fn masters_are_marked_if_each_has_a_marker_with_the_configured_name() {
        let shop = Some(Fingerprint::new(["shop"]));
        let is_marked = |marked: &[(u64, Option<Fingerprint>)], name| {
            let survey = survey_at(0, marked);
            let configuration = survey.configuration.named(name);
            Survey {
                configuration,
                ..survey
            }
            .is_marked()
        };
        assert!(is_marked(&[(0, None), (0, shop)], None));
        assert!(!is_marked(&[(0, None), (0, shop)], Some("shop")));
        assert!(is_marked(&[(0, shop), (0, shop)], Some("shop")));
        assert!(!survey([Some(0), NO, Some(0), Some(0), Some(0), Some(0)]).is_marked());
    }

    #[test]
    fn marker_is_not_written_to_masters_of_another_generation_or_an_unfinished_replacement() {
        assert!(survey([NO; 6]).is_change());
        assert!(survey([NO; 6]).unmarkable()[0].starts_with("next_masters is set"));
        assert!(!survey_at(1, &[(4, None); 3]).is_change());
        assert!(survey_at(1, &[(4, None); 3]).unmarkable().is_empty());
        // The marker number 3 is that of an unfinished replacement, which leads to generation 1.
        let unmarkable = survey_at(1, &[(4, None), (3, None), (4, None)]).unmarkable();
        assert_lines(&unmarkable, &["b: "], "belongs to another generation");
        // A marker of other masters, or of a later replacement, is reported once.
        let mut of_others = survey_at(1, &[(4, None), (4, None), (5, None)]);
        let marker = Marker {
            number: 4,
            print: Fingerprint::new(["x"]),
            name: None,
        };
        of_others.masters[1].seen.mark = Some(marker.to_string());
        assert_lines(
            &of_others.unmarkable(),
            &["b: ", "c: "],
            "belongs to other masters or a later replacement",
        );
        // A marker without the configured name can get the name. A marker that bears another name is an obstacle.
        let survey = survey_at(0, &[(0, None), (0, Some(Fingerprint::new(["other"])))]);
        let named = survey.configuration.named(Some("shop"));
        let survey = Survey {
            configuration: named,
            ..survey
        };
        assert_lines(
            &survey.unmarkable(),
            &["b: "],
            "bears a name, which is not the name",
        );
        assert!(!survey.is_own(Marker {
            number: 0,
            ..survey.masters[0].marker().unwrap()
        }));
    }

    #[test]
    fn marker_is_not_written_while_a_client_that_it_would_reject_is_connected() {
        let other_print = Some(Fingerprint::new(["x"]));
        let mut survey = survey_at(1, &[(4, None); 3]);
        survey.masters[0].seen.clients = vec![
            client_at(2, masters_print()),
            client(ClientKind::Untold),
            client(ClientKind::Unknown),
        ];
        assert!(survey.unmarkable().is_empty());
        survey.masters[1].seen.clients = vec![client_at(3, masters_print())];
        survey.masters[2].seen.clients = vec![client_at(2, other_print)];
        assert_lines(
            &survey.unmarkable(),
            &["b: ", "c: "],
            "or another generation",
        );
    }

    #[test]
    fn own_marker_has_the_number_and_the_masters_of_this_generation() {
        let print = masters_print().expect("the masters must have a fingerprint");
        let marker = Marker {
            number: 4,
            print,
            name: None,
        };
        let survey = survey_at(1, &[(4, None); 3]);
        assert!(survey.is_own(marker));
        assert!(!survey.is_own(Marker {
            number: 3,
            ..marker
        }));
        assert!(!survey.is_own(Marker {
            number: 5,
            ..marker
        }));
        let print = Fingerprint::new(["x"]);
        assert!(!survey.is_own(Marker { print, ..marker }));
    }

    #[test]
    fn first_markers_must_be_on_all_masters_and_later_ones_on_a_majority() {
        // For each master, the number of its marker. The configuration writes the number 4.
        for (numbers, enough_as_first, enough_as_later) in [
            ([4, 4, 4], true, true),
            ([4, 4, 3], false, true),
            ([4, 3, 3], false, false),
        ] {
            let mut survey = survey_at(1, &numbers.map(|number| (number, None)));
            survey.quorum = Quorum::new(3);
            let is_enough = [true, false].map(|is_first| survey.has_own_markers(is_first));
            assert_eq!(is_enough, [enough_as_first, enough_as_later], "{numbers:?}");
        }
    }
}
