//! The age records of the masters: for how long clients have watched the present run of each server.

use quorate::testing::server_half::{AgeCall, bulk, error};

use super::World;
use super::arguments::as_text;
use super::master::{SimMaster, run_id};
use crate::flaw::Flaw;

/// The key of the age record.
const AGE_KEY: &[u8] = b"quorate:masters:age";

impl SimMaster {
    fn age_record(&self, now_us: u64) -> Option<&str> {
        self.memory.peek(now_us, AGE_KEY).holder.map(as_text)
    }

    fn set_age_record(&mut self, now_us: u64, record: &str) {
        self.memory
            .put_text(now_us, AGE_KEY, record.as_bytes(), None);
    }
}

impl World {
    /// Starts the age record of a master, as an operator does together with a generation marker that the master did not
    /// have. If the marker was not lost, the operator trusts the uptime of the server.
    pub(super) fn start_age_record(&mut self, index: usize, is_marker_lost: bool) {
        let uptime_seconds = if is_marker_lost {
            0
        } else {
            u64::try_from(self.uptime(index))
                .map_or(0, |uptime_seconds| uptime_seconds.saturating_sub(1))
        };
        self.write_age_record(
            index,
            1_000 * uptime_seconds,
            if is_marker_lost { "lost-0" } else { "0" },
        );
    }

    /// Returns the run id that a master reports.
    pub(super) fn reported_run_id(&self, index: usize) -> String {
        run_id(index, self.masters[index].restarts)
    }

    fn write_age_record(&mut self, index: usize, age_ms: u64, life: &str) {
        let run = self.reported_run_id(index);
        let now_us = self.masters[index].clock_us(self.now);
        self.masters[index].set_age_record(now_us, &format!("{run} {age_ms} {life}"));
    }

    /// Returns the age record that a master shows; empty without a record.
    fn reported_age_record(&self, index: usize) -> String {
        let master = &self.masters[index];
        let record = master.age_record(master.clock_us(self.now));
        record.unwrap_or_default().to_owned()
    }

    /// Writes the reply to a client that reads the age record: the record, or null if the master has none.
    pub(super) fn reply_with_age(&self, conn: usize, out: &mut Vec<u8>) {
        let record = self.reported_age_record(self.conns[conn].master);
        let record = Some(record).filter(|record| !record.is_empty());
        bulk(record.as_deref().map(str::as_bytes), out);
    }

    /// Executes the script that raises the age record, and restores a lost generation marker.
    pub(super) fn raise_age(&mut self, conn: usize, call: &AgeCall<'_>, out: &mut Vec<u8>) {
        let index = self.conns[conn].master;
        let now_us = self.masters[index].clock_us(self.now);
        let master = &mut self.masters[index];
        let is_marker_lost = master.marker(now_us).is_none();
        if is_marker_lost && self.flaw == Some(Flaw::MarkLostOnRestart) {
            return bulk(Some(b""), out);
        }
        let record_before = master.age_record(now_us).map(str::to_owned);
        let reply = match master.memory.raise_age(now_us, call) {
            Ok(reply) => reply,
            Err(fault) => return error(&fault, out),
        };
        if reply.is_empty() {
            return bulk(Some(b""), out);
        }
        let is_written = master.age_record(now_us) != record_before.as_deref();
        self.observer.coverage.written_age_records += u64::from(is_written);
        if is_marker_lost {
            self.report_restored_marker(index, call.marker);
        }
        let record = self.reported_age_record(index);
        bulk(Some(record.as_bytes()), out);
    }
}
