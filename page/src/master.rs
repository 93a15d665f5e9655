//! The state of one master, and the events that a new answer means.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quorate::{Fault, Inspection};
use serde::Serialize;

use crate::event::{Event, EventKind};
use crate::lock::{fault_text, millis};
use crate::verdict::{Level, MasterFacts};

/// How many round trips the page remembers for each master.
const MAX_ROUND_TRIPS: usize = 120;

/// A finding of `quorate doctor` about one master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the master; `None` if the finding is about several masters together.
    #[serde(skip)]
    pub master: Option<String>,
    /// `error` or `warning`.
    pub severity: &'static str,
    /// The problem.
    pub text: String,
    /// The recommended change.
    pub advice: String,
}

/// The state of one master.
#[derive(Clone, Debug)]
pub(crate) struct MasterRecord {
    pub(crate) name: Arc<str>,
    /// The last answer: `Ok` if the master votes. `None` before the first answer.
    answer: Option<Result<(), Fault>>,
    /// Round trips in milliseconds, the last one at the end; `None` for an answer that did not come.
    round_trips: VecDeque<Option<f32>>,
    inspection: Option<Inspection>,
    /// When the inspection was made.
    inspected_ms: u64,
    pub(crate) findings: Vec<Finding>,
    /// How often the master answered with a vote.
    pub(crate) answers: u64,
    /// How often the master gave no vote, by the kind of the fault.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) round_trip_seconds: f64,
}

/// A master as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownMaster<'a> {
    name: &'a str,
    votes: bool,
    state: &'static str,
    level: &'static str,
    text: String,
    server: Option<&'a str>,
    version: Option<&'a str>,
    role: Option<&'a str>,
    up_since_ms: Option<u64>,
    marked: Option<bool>,
    missing_rights: Vec<String>,
    round_trip_ms: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trips: Option<&'a VecDeque<Option<f32>>>,
    findings: &'a [Finding],
}

impl MasterRecord {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            answer: None,
            round_trips: VecDeque::new(),
            inspection: None,
            inspected_ms: 0,
            findings: Vec::new(),
            answers: 0,
            faults: BTreeMap::new(),
            round_trip_seconds: 0.0,
        }
    }

    /// Takes in an answer to a small request. `answer` is the fault if the master gave no vote.
    pub(crate) fn update(
        &mut self,
        answer: Result<(), Fault>,
        latency: Duration,
        now_ms: u64,
    ) -> Option<Event> {
        // The type of one key says nothing about the vote of the master.
        let answer = match answer {
            Err(Fault::WrongType) => Ok(()),
            other => other,
        };
        let round_trip = answer.is_ok().then_some(latency.as_secs_f32() * 1e3);
        if self.round_trips.len() >= MAX_ROUND_TRIPS {
            self.round_trips.pop_front();
        }
        self.round_trips
            .push_back(round_trip.map(|round_trip| (round_trip * 100.0).round() / 100.0));
        match &answer {
            Ok(()) => {
                self.answers += 1;
                self.round_trip_seconds += latency.as_secs_f64();
            }
            Err(fault) => *self.faults.entry(fault.kind()).or_default() += 1,
        }
        let previous_state = self.state();
        let previous = self.answer.replace(answer);
        let kind = match &self.answer {
            // The first answer of a master that votes is no news.
            Some(Ok(())) => previous
                .as_ref()
                .is_some_and(Result::is_err)
                .then_some(EventKind::MasterUp)?,
            Some(Err(Fault::Quarantined(_))) => EventKind::MasterGuarded,
            _ => EventKind::MasterDown,
        };
        let is_same = previous.is_some() && previous_state == self.state();
        (!is_same).then(|| self.event(kind, now_ms))
    }

    /// Takes in the result of an inspection. Returns an event if the server was restarted or replaced.
    pub(crate) fn inspect(&mut self, inspection: Inspection, now_ms: u64) -> Option<Event> {
        let is_other_run = self.inspection.as_ref().is_some_and(|previous| {
            let other_id = previous.run_id.is_some()
                && inspection.run_id.is_some()
                && previous.run_id != inspection.run_id;
            let is_younger = match (previous.uptime, inspection.uptime) {
                (Some(previous), Some(uptime)) => uptime + Duration::from_secs(1) < previous,
                _ => false,
            };
            other_id || is_younger
        });
        if inspection.fault.is_none() || self.inspection.is_none() {
            self.inspection = Some(inspection);
            self.inspected_ms = now_ms;
        }
        is_other_run.then(|| self.event(EventKind::MasterRestarted, now_ms))
    }

    fn event(&self, kind: EventKind, now_ms: u64) -> Event {
        Event {
            master: Some(self.name.clone()),
            detail: Some(self.text().into()),
            ..Event::new(kind, now_ms)
        }
    }

    pub(crate) fn votes(&self) -> bool {
        matches!(self.answer, Some(Ok(())))
    }

    /// The state as one or two words.
    fn state(&self) -> &'static str {
        match &self.answer {
            None => "not asked yet",
            Some(Ok(())) => "votes",
            Some(Err(fault)) => match fault {
                Fault::Down(_) | Fault::NoConnection(_) | Fault::Disconnected(_) => "down",
                Fault::Stalled | Fault::Timeout(_) => "no answer",
                Fault::Quarantined(_) => "restart guard",
                Fault::OtherMasters(_) => "wrong marker",
                Fault::Denied(_) => "missing right",
                Fault::Unprepared(_) => "not prepared",
                Fault::SameServer(_) => "same server twice",
                _ => "error",
            },
        }
    }

    fn text(&self) -> String {
        match &self.answer {
            Some(Err(fault)) => fault_text(fault),
            _ => String::new(),
        }
    }

    fn level(&self) -> Level {
        match &self.answer {
            Some(Ok(())) if self.findings.is_empty() => Level::Good,
            Some(Ok(()) | Err(Fault::Quarantined(_))) | None => Level::Warn,
            Some(Err(_)) => Level::Bad,
        }
    }

    pub(crate) fn facts(&self) -> MasterFacts {
        MasterFacts {
            name: self.name.to_string(),
            votes: self.votes(),
            text: match self.answer {
                None => "has not answered yet".to_owned(),
                Some(_) => self.text(),
            },
            is_guarded: matches!(self.answer, Some(Err(Fault::Quarantined(_)))),
        }
    }

    /// The last round trip in milliseconds; `None` if the last answer did not come.
    pub(crate) fn last_round_trip_ms(&self) -> Option<f32> {
        self.round_trips.back().copied().flatten()
    }

    /// The master as the page shows it. `whole`: with all round trips, not only the last one.
    pub(crate) fn shown(&self, whole: bool) -> ShownMaster<'_> {
        let inspection = self.inspection.as_ref();
        let uptime = inspection.and_then(|inspection| inspection.uptime);
        let missing = inspection.map_or(&[][..], |inspection| &inspection.missing);
        ShownMaster {
            name: &self.name,
            votes: self.votes(),
            state: self.state(),
            level: match self.level() {
                Level::Good => "good",
                Level::Warn => "warn",
                Level::Bad => "bad",
            },
            text: self.text(),
            server: inspection.and_then(|inspection| inspection.server.as_deref()),
            version: inspection.and_then(|inspection| inspection.version.as_deref()),
            role: inspection.and_then(|inspection| inspection.role.as_deref()),
            up_since_ms: uptime.map(|uptime| self.inspected_ms.saturating_sub(millis(uptime))),
            marked: inspection.and_then(|inspection| inspection.marked),
            missing_rights: missing.iter().map(ToString::to_string).collect(),
            round_trip_ms: self.last_round_trip_ms(),
            round_trips: whole.then_some(&self.round_trips),
            findings: &self.findings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_has_one_event_for_each_change_of_its_state() {
        let mut master = MasterRecord::new("m1");
        let round_trip = Duration::from_micros(420);
        let mut update = |answer| {
            master
                .update(answer, round_trip, 1_000)
                .map(|event| event.kind)
        };
        let down = || Err(Fault::Down("refused".into()));
        assert_eq!(update(Ok(())), None);
        assert_eq!(update(down()), Some(EventKind::MasterDown));
        assert_eq!(update(down()), None);
        assert_eq!(
            update(Err(Fault::Quarantined(round_trip))),
            Some(EventKind::MasterGuarded)
        );
        assert_eq!(update(Err(Fault::Quarantined(Duration::ZERO))), None);
        assert_eq!(update(Err(Fault::WrongType)), Some(EventKind::MasterUp));
        assert_eq!(master.last_round_trip_ms(), Some(0.42));
        assert!(master.votes());
        let mut absent = MasterRecord::new("m2");
        assert_eq!(
            absent.update(down(), round_trip, 0).map(|event| event.kind),
            Some(EventKind::MasterDown)
        );
    }

    #[test]
    fn restart_is_noticed_by_the_run_id_or_the_uptime() {
        let inspection = |run: Option<&str>, uptime| {
            let mut inspection = Inspection::new(quorate::NodeName::new("m1"));
            inspection.run_id = run.map(str::to_owned);
            inspection.uptime = Some(Duration::from_secs(uptime));
            inspection
        };
        let mut master = MasterRecord::new("m1");
        let mut kind = |inspection| master.inspect(inspection, 9).map(|event| event.kind);
        assert_eq!(kind(inspection(Some("a"), 100)), None);
        assert_eq!(kind(inspection(Some("a"), 115)), None);
        assert_eq!(
            kind(inspection(Some("b"), 130)),
            Some(EventKind::MasterRestarted)
        );
        assert_eq!(kind(inspection(None, 2)), Some(EventKind::MasterRestarted));
    }
}
