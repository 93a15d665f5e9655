//! Raises the age record of one master, on one connection (docs/protocol.md, "Age records"). The same script restores a
//! lost generation marker.

use std::collections::VecDeque;
use std::time::Duration;

use super::buffers::Output;
use super::layout::{AGE_ARGS, write_age_call};
use super::loaded::Scripts;
use super::refusal::{is_noscript, server_fault};
use super::resp::Value;
use super::script::{Script, ScriptSet};
use super::sent::{SentCommand, SentMessage};
use super::shared::Shared;
use crate::node::age_call::AgeCall;
use crate::node::{Fault, ServerRun};
use crate::protocol::age::{AgeRecord, Watch};
use crate::protocol::instant::Instant;
use crate::protocol::marker::Marker;
use crate::repeats::warn_seldom;

/// The pause after a call of the script that the server refused: 1 s.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Ages {
    run: ServerRun,
    /// Must differ between clients: it determines the lives of new age records.
    seed: u64,
    /// For how long clients have watched this server run; `None` if this connection raises no age record.
    watch: Option<Watch>,
    /// Whether to call the script immediately, although no raise is due.
    is_call_requested: bool,
    /// The lost generation marker that the next call of the script restores.
    marker_to_restore: Option<Marker>,
    /// The number of outstanding replies: to `SCRIPT LOAD`, and to the script.
    outstanding_replies: u8,
    /// Whether the server has lost the script, so that it must be loaded again.
    has_lost_script: bool,
    /// The script is not called before this time.
    not_before: Instant,
}

impl Ages {
    pub(super) fn new(run: ServerRun, seed: u64, watch: Option<Watch>) -> Self {
        Self {
            run,
            seed,
            watch,
            is_call_requested: false,
            marker_to_restore: None,
            outstanding_replies: 0,
            has_lost_script: false,
            not_before: Instant::from_nanos(0),
        }
    }

    /// Requests a call of the script, which also restores `marker`.
    pub(super) fn request_restore(&mut self, marker: Option<Marker>) {
        self.is_call_requested = true;
        self.marker_to_restore = marker;
    }

    /// Requests a call of the script, which shows the present age record.
    pub(super) fn request_call(&mut self) {
        self.is_call_requested = true;
    }

    /// The time of the next command; `None` if none is due, or if the reply to the last one is outstanding.
    pub(super) fn due_at(&self, max_ttl: Duration) -> Option<Instant> {
        let raise_at = || self.watch.as_ref()?.raise_at(max_ttl);
        let due_at = if self.is_call_requested {
            Some(self.not_before)
        } else {
            raise_at().map(|due_at| due_at.max(self.not_before))
        };
        due_at.filter(|_| self.outstanding_replies == 0)
    }

    /// Writes the next command, if it is due: loads the script, or calls it.
    pub(super) fn write(
        &mut self,
        scripts: &Scripts,
        shared: &Shared,
        out: &mut Output,
        sent: &mut VecDeque<SentMessage>,
        now: Instant,
    ) {
        let max_ttl = shared.options.max_ttl;
        if self.due_at(max_ttl).is_none_or(|due_at| due_at > now) {
            return;
        }
        let is_loaded = scripts.has_loaded(ScriptSet::Age);
        if !is_loaded || std::mem::take(&mut self.has_lost_script) {
            self.outstanding_replies += 1;
            let to_sent = |script| SentMessage::alone(SentCommand::LoadScript(script), now);
            sent.extend(
                scripts
                    .load(ScriptSet::Age, max_ttl, out.commands())
                    .map(to_sent),
            );
        }
        if !is_loaded {
            return;
        }
        self.outstanding_replies += 1;
        self.is_call_requested = false;
        let watch = self.watch.as_ref();
        let age = watch.map_or(Duration::ZERO, |watch| watch.age(now));
        let life = watch.map_or("", Watch::life);
        let new_life = format!("{:016x}", shared.run_history.new_life(self.seed));
        let marker = self
            .marker_to_restore
            .map_or(String::new(), |marker| marker.to_string());
        let call = AgeCall {
            run: self.run.as_str(),
            life,
            age_ms: age.as_millis() as u64,
            new_life: &new_life,
            marker: &marker,
        };
        let mut command = scripts.begin_call(Script::Age, 0, AGE_ARGS, out.commands());
        write_age_call(&call, &mut command);
        sent.push_back(SentMessage::alone(SentCommand::RaiseAge, now));
    }

    /// Handles the reply to the command that loads the script.
    pub(super) fn handle_load_reply(&mut self, is_refused: bool, now: Instant) {
        self.outstanding_replies = self.outstanding_replies.saturating_sub(1);
        if is_refused {
            self.not_before = now + PAUSE;
        }
    }

    /// Handles the reply to the script. Returns for how long clients have watched this server run; `None` if the reply
    /// does not show it.
    pub(super) fn handle_reply(
        &mut self,
        shared: &Shared,
        value: &Value<'_>,
        now: Instant,
    ) -> Option<Watch> {
        // Scripts are loaded before the call, and the master answers in order. So no other reply is outstanding here.
        self.outstanding_replies = 0;
        match value {
            Value::Error(_) if is_noscript(value) => {
                (self.is_call_requested, self.has_lost_script) = (true, true);
            }
            Value::Error(error) => {
                self.is_call_requested |= self.marker_to_restore.is_some();
                self.not_before = now + PAUSE;
                if let fault @ Fault::Denied(_) = server_fault(error) {
                    let (node, text) = (shared.address.name(), fault.to_string());
                    warn_seldom!((shared.repeats, &text, now), %node, %fault, "cannot write the age record");
                }
            }
            value => {
                let record = value.text().and_then(AgeRecord::read);
                // The server has no generation marker: it never had one, or has lost it on this connection.
                self.watch = record.map(|record| {
                    let run = self.run.as_str();
                    shared.run_history.record_age(run, Some(record), now)
                });
                // If `request_restore` was called since the script was sent, that request is still open.
                if !self.is_call_requested {
                    self.marker_to_restore = None;
                }
                return self.watch.clone();
            }
        }
        None
    }
}
