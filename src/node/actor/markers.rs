//! Detects masters that have lost their generation marker. Compares the markers that this client last saw on all
//! masters of one `Redlock`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::node::NodeName;
use crate::protocol::marker::Marker;

/// The generation markers of all masters, as the last handshake with each master showed them.
#[derive(Debug, Default)]
pub(crate) struct GenerationMarkers {
    masters: usize,
    /// During a replacement of masters, the masters that are removed: they are in the old set of masters but not in the
    /// next set.
    old_masters: Vec<NodeName>,
    records: Mutex<MarkerRecords>,
    /// The number of masters that show a marker. If it is 0, no marker can be missing, and `records` is not read.
    marked_count: AtomicUsize,
}

/// The knowledge of this client about the lost generation marker of a master that shows no marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum LostMarker {
    /// This client knows of no lost marker.
    Nothing,
    /// A marker was lost, but its generation number is unknown, because no majority of the masters shows markers. The
    /// marker is not restored yet: a marker with too low a number would admit outdated clients.
    Unknown,
    /// This marker was lost. A majority of the masters shows markers, and this marker has the largest number among
    /// them.
    Known(Marker),
}

#[derive(Debug, Default)]
struct MarkerRecords {
    /// The masters that show a marker, each with the marker and a flag that is true if the marker admits this client.
    markers: HashMap<NodeName, (Marker, bool)>,
    /// The masters that showed no marker at their last handshake and are not trusted yet
    /// ([`GenerationMarkers::trust`]).
    unmarked: HashSet<NodeName>,
}

impl GenerationMarkers {
    /// Creates an empty list of markers for this number of masters. `old_masters` lists the masters that a replacement
    /// removes.
    pub(crate) fn new(masters: usize, old_masters: Vec<NodeName>) -> Self {
        Self {
            masters,
            old_masters,
            ..Self::default()
        }
    }

    /// Whether `name` is one of the old masters.
    pub(in crate::node) fn is_old(&self, name: &NodeName) -> bool {
        self.old_masters.contains(name)
    }

    /// Stores the marker that the master `name` shows. `admits` is true if masters with this marker admit this client.
    pub(in crate::node) fn record_marker(&self, name: &NodeName, marker: Marker, admits: bool) {
        let mut records = self.records();
        records.unmarked.remove(name);
        records.markers.insert(name.clone(), (marker, admits));
        self.marked_count
            .store(records.markers.len(), Ordering::Relaxed);
    }

    /// Records that the master `name` shows no marker.
    pub(in crate::node) fn record_no_marker(&self, name: &NodeName) {
        let mut records = self.records();
        records.markers.remove(name);
        records.unmarked.insert(name.clone());
        self.marked_count
            .store(records.markers.len(), Ordering::Relaxed);
    }

    /// Records that the master `name` is trusted although it showed no marker. There are two possible reasons:
    ///
    /// - An operator wrote the master's first marker after the handshake, so the master had no marker to lose.
    /// - `max_ttl` has passed since the client found no marker. Every lock that the master may have forgotten has
    ///   expired by then.
    pub(in crate::node) fn trust(&self, name: &NodeName) {
        self.records().unmarked.remove(name);
    }

    /// The marker that a master without a marker should have. Such a master has lost its marker, or is a new server at
    /// the same address.
    pub(in crate::node) fn lost_marker(&self) -> LostMarker {
        if self.marked_count.load(Ordering::Relaxed) == 0 {
            return LostMarker::Nothing;
        }
        self.records().lost_marker(self.masters)
    }

    /// Whether the master `name` has lost its marker. If so, its earlier votes no longer count, because it may also
    /// have forgotten locks.
    pub(in crate::node) fn has_lost_marker(&self, name: &NodeName) -> bool {
        if self.marked_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let records = self.records();
        records.unmarked.contains(name) && records.lost_marker(self.masters) != LostMarker::Nothing
    }

    fn records(&self) -> MutexGuard<'_, MarkerRecords> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MarkerRecords {
    /// Which marker a master without a marker has lost:
    ///
    /// - If a majority of the masters shows markers, the lost marker is the one with the largest number.
    /// - If only a minority shows markers, and one of these admits this client, the lost marker is unknown.
    /// - Otherwise no marker counts as lost. If only a minority shows markers, and none of these admits this client,
    ///   the markers may be mistakes of an operator.
    fn lost_marker(&self, masters: usize) -> LostMarker {
        let markers = self.markers.values();
        let largest = markers.clone().max_by_key(|(marker, _)| marker.number);
        match largest {
            Some((marker, _)) if self.markers.len() > masters / 2 => LostMarker::Known(*marker),
            _ if markers.clone().any(|(_, admits)| *admits) => LostMarker::Unknown,
            _ => LostMarker::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(number: u64) -> Marker {
        let text = format!("{number} 0123456789abcdef");
        Marker::read(text.as_bytes()).expect("the text must be a marker")
    }

    fn names() -> [NodeName; 3] {
        ["a", "b", "c"].map(NodeName::new)
    }

    #[test]
    fn only_the_masters_that_a_replacement_removes_are_old() {
        let [a, b, c] = names();
        let markers = GenerationMarkers::new(3, vec![a.clone(), b.clone()]);
        assert_eq!(
            [a, b, c].map(|name| markers.is_old(&name)),
            [true, true, false]
        );
    }

    #[test]
    fn marker_that_rejects_the_client_is_ignored_if_most_masters_show_no_marker() {
        let markers = GenerationMarkers::new(3, Vec::new());
        let [a, b, c] = names();
        markers.record_marker(&a, marker(2), false);
        markers.record_no_marker(&c);
        assert_eq!(markers.lost_marker(), LostMarker::Nothing);
        assert!(!markers.has_lost_marker(&c));
        markers.record_marker(&b, marker(1), false);
        assert_eq!(markers.lost_marker(), LostMarker::Known(marker(2)));
        assert!(markers.has_lost_marker(&c));
        markers.record_no_marker(&a);
        assert_eq!(
            markers.lost_marker(),
            LostMarker::Nothing,
            "missed() must be Nothing if the only marker on three masters does not admit the client"
        );
    }

    #[test]
    fn missing_marker_counts_as_lost_if_another_master_has_a_marker() {
        let markers = GenerationMarkers::new(3, Vec::new());
        let [a, b, c] = names();
        markers.record_marker(&b, marker(5), false);
        markers.record_marker(&a, marker(0), true);
        assert_eq!(markers.lost_marker(), LostMarker::Known(marker(5)));
        markers.record_no_marker(&b);
        assert_eq!(markers.lost_marker(), LostMarker::Unknown);
        assert!(markers.has_lost_marker(&b));
        assert!(
            !markers.has_lost_marker(&a) && !markers.has_lost_marker(&c),
            "doubts() must be false for a master that showed a marker or was never reached"
        );
        markers.trust(&b);
        assert!(!markers.has_lost_marker(&b));
    }

    #[test]
    fn number_of_a_lost_marker_is_known_only_if_a_majority_shows_markers() {
        let markers = GenerationMarkers::new(5, Vec::new());
        let [a, b, c] = names();
        for name in [&a, &b] {
            markers.record_marker(name, marker(2), true);
        }
        assert_eq!(markers.lost_marker(), LostMarker::Unknown);
        markers.record_no_marker(&c);
        assert!(markers.has_lost_marker(&c));
        markers.record_marker(&c, marker(1), true);
        assert_eq!(markers.lost_marker(), LostMarker::Known(marker(2)));
        assert!(!markers.has_lost_marker(&c), "the marker was restored");
    }

    /// Every request of every connection asks this question.
    #[test]
    fn connections_do_not_wait_for_each_other_while_no_master_has_a_marker() {
        let markers = std::sync::Arc::new(GenerationMarkers::new(3, Vec::new()));
        let [a, ..] = names();
        markers.record_no_marker(&a);
        let records = markers.records();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (asked, name) = (markers.clone(), a.clone());
        std::thread::spawn(move || {
            let answers = (asked.has_lost_marker(&name), asked.lost_marker());
            sender.send(answers)
        });
        let answers = receiver.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(answers, Ok((false, LostMarker::Nothing)));
        drop(records);
    }

    #[test]
    fn missing_marker_does_not_count_as_lost_if_no_master_has_a_marker() {
        let markers = GenerationMarkers::new(3, Vec::new());
        let [a, b, _] = names();
        for name in [&a, &b] {
            markers.record_no_marker(name);
        }
        assert!(!markers.has_lost_marker(&a));
    }
}
