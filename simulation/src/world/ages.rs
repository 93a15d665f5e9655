//! The age records of the masters: for how long clients have watched the present run of each server.

use quorate::testing::server_half::{AgeCall, bulk};

use super::World;
use super::master::{SimMaster, run_id};
use super::words::{number, text};
use crate::seeded_bugs::Flaw;

/// The key of the age record.
const AGE: &[u8] = b"quorate:masters:age";

/// One day in milliseconds: clients stop raising the age at this value.
const DAY_MS: u64 = 86_400_000;

impl SimMaster {
    fn age_record(&self, now_us: u64) -> Option<&str> {
        self.memory.peek(now_us, AGE).holder.map(text)
    }

    fn set_age_record(&mut self, now_us: u64, record: &str) {
        self.memory.put_text(now_us, AGE, record.as_bytes(), None);
    }
}

impl World {
    /// Starts the age record of a master, as an operator does together with a generation marker that the master did not
    /// have. If the marker was not lost, the operator trusts the uptime of the server.
    pub(super) fn begin_age(&mut self, index: usize, lost: bool) {
        let secs = if lost {
            0
        } else {
            u64::try_from(self.uptime(index)).map_or(0, |secs| secs.saturating_sub(1))
        };
        self.put_age(index, 1_000 * secs, if lost { "lost-0" } else { "0" });
    }

    /// Returns the run id that a master reports.
    pub(super) fn shown_run(&self, index: usize) -> String {
        let warm = self.flaw == Some(Flaw::WarmSpare);
        run_id(index, if warm { 0 } else { self.masters[index].run })
    }

    fn put_age(&mut self, index: usize, age_ms: u64, life: &str) {
        let run = self.shown_run(index);
        let now_us = self.masters[index].micros(self.now);
        self.masters[index].set_age_record(now_us, &format!("{run} {age_ms} {life}"));
    }

    /// Returns the age record that a master shows; empty without a record. Some seeded bugs falsify it.
    fn shown_age(&self, index: usize) -> String {
        let (master, run) = (&self.masters[index], self.shown_run(index));
        let record = master.age_record(master.micros(self.now));
        match (self.flaw, record) {
            (Some(Flaw::AgeFromUptime), _) => format!("{run} {} 0", 1_000 * self.uptime(index)),
            (Some(Flaw::AgeOfEarlierRun), Some(record)) => {
                let (_, age) = record.split_once(' ').unwrap_or_default();
                format!("{run} {age}")
            }
            (_, record) => record.unwrap_or_default().to_owned(),
        }
    }

    /// Writes the reply to a client that reads the age record: the record, or null if the master has none.
    pub(super) fn tell_age(&self, conn: usize, out: &mut Vec<u8>) {
        let record = self.shown_age(self.conns[conn].master);
        let record = Some(record).filter(|record| !record.is_empty());
        bulk(record.as_deref().map(str::as_bytes), out);
    }

    /// Executes the script that raises the age record, and restores a lost generation marker.
    pub(super) fn raise_age(&mut self, conn: usize, call: &AgeCall<'_>, out: &mut Vec<u8>) {
        let AgeCall {
            run,
            life,
            age_ms: age,
            new_life,
            marker,
        } = *call;
        let index = self.conns[conn].master;
        let now_us = self.masters[index].micros(self.now);
        let lost = self.masters[index].mark(now_us).is_none();
        let never = self.flaw == Some(Flaw::MarkLostOnRestart);
        if lost && (marker.is_empty() || never) {
            return bulk(Some(b""), out);
        }
        let record = self.masters[index]
            .age_record(now_us)
            .unwrap_or_default()
            .to_owned();
        let words: Vec<&str> = record.split(' ').collect();
        let raised = match words[..] {
            _ if lost => {
                let trusted = self.flaw == Some(Flaw::RestoredMarkerIsOld);
                let age_ms = if trusted { DAY_MS } else { 0 };
                Some(format!("{run} {age_ms} lost-{new_life}"))
            }
            [of, shown, its] if of == run => {
                let higher = its == life && number(shown.as_bytes()) < age;
                higher.then(|| format!("{run} {age} {its}"))
            }
            _ => {
                let counted = if life.is_empty() { age } else { 0 };
                Some(format!("{run} {counted} {new_life}"))
            }
        };
        if let Some(raised) = raised {
            self.watch.coverage.aged += 1;
            self.masters[index].set_age_record(now_us, &raised);
        }
        if lost {
            self.restore_mark(index, marker);
        }
        let record = self.shown_age(index);
        bulk(Some(record.as_bytes()), out);
    }
}
