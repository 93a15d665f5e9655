//! Executes the requests about the notes of lock holders and about elections, and announces new leaders.

use std::sync::Arc;

use quorate::node::{Answer, Fault, Request};
use quorate::testing::server_half;

use super::World;
use super::arguments::as_text;
use crate::facts::Fact;
use crate::locker::place_of_key;

impl World {
    /// Lets a master write notes, reports the notes to the checkers, and sends the announcements of new leaders.
    pub(super) fn apply_notes(&mut self, index: usize, request: &Request) -> Result<Answer, Fault> {
        let Request::Note { items } = request else {
            return Err(Fault::Server("no notes".into()));
        };
        let now = self.now;
        let master = &mut self.masters[index];
        let now_us = master.clock_us(now);
        let answer = master.memory.apply(now_us, request);
        let announced = master.take_announced();
        self.observer.coverage.notes_sent += 1;
        for item in items.iter() {
            let (value, text) = (item.claim.token().to_hex(), item.says.clone());
            let key = as_text(item.claim.key()).to_owned();
            let short_hex = crate::facts::short_hex(&value);
            self.trace_line(|| {
                format!("master {index}: Note {text:?} for the lock value {short_hex} on {key}; answer {answer:?}")
            });
            self.report_stored_note(index, item.claim.key());
        }
        for key in announced {
            self.announce_leader(index, &key);
        }
        answer
    }

    /// Lets a master execute the script STATUS, and writes the reply into `out`.
    pub(super) fn reply_with_lock_state(
        &mut self,
        index: usize,
        request: &Request,
        out: &mut Vec<u8>,
    ) {
        let Request::Status { key } = request else {
            return;
        };
        let now = self.now;
        self.observer.coverage.messages += 1;
        let master = &mut self.masters[index];
        let now_us = master.clock_us(now);
        let answer = master.memory.apply(now_us, request);
        let note = master.note(now_us, key).map(|(note, _)| note);
        server_half::reply(request, &answer, note.as_deref(), out);
    }

    /// If `answer` is a refusal, returns the note of the lock's holder. Returns `None` for other answers, or if the
    /// holder has stored no note.
    pub(super) fn note_of_refusal(
        &self,
        index: usize,
        request: &Request,
        answer: &Result<Answer, Fault>,
    ) -> Option<Vec<u8>> {
        let (Request::Acquire { claim, .. }, Ok(Answer::Refused { line: queue, .. })) =
            (request, answer)
        else {
            return None;
        };
        let holder = queue.as_ref()?.holder.as_deref()?;
        let master = &self.masters[index];
        let now_us = master.clock_us(self.now);
        let mut keys = claim.keys();
        let held_key = keys.find(|key| master.holder(now_us, key) == Some(holder))?;
        master.note(now_us, held_key).map(|(note, _)| note)
    }

    /// Reports to the checkers which note a master stores for a lock, if any.
    pub(super) fn report_stored_note(&mut self, index: usize, key: &[u8]) {
        if !self.observer.has_notes {
            return;
        }
        let now = self.now;
        let master = &self.masters[index];
        let now_us = master.clock_us(now);
        let note = master.note(now_us, key);
        let expires_at = note
            .as_ref()
            .and_then(|(_, expires_us)| master.clock.time_of_reading(expires_us * 1_000));
        let lock = master.lock_state(now_us, key);
        let fact = Fact::StoredNote {
            master: index,
            resource: place_of_key(key),
            note: note
                .as_ref()
                .map(|(note, expires_us)| (&note[..], *expires_us)),
            lock,
            expires_at: expires_at.unwrap_or(0),
        };
        self.observer.report_fact(now, &fact);
    }

    /// Begins (`is_begin` is true) or ends the subscription of a connection to the new leaders of the election with the
    /// lock `key`.
    pub(super) fn watch_leaders(&mut self, conn: usize, key: &Arc<[u8]>, is_begin: bool) {
        let elections = &mut self.conns[conn].watched_elections;
        elections.retain(|watched_key| watched_key != key);
        elections.extend(is_begin.then(|| key.clone()));
    }

    /// Announces a new leader to the subscribers of a master.
    fn announce_leader(&mut self, master: usize, key: &[u8]) {
        let is_subscribed = |conn: &super::Conn| {
            let is_watched = conn
                .watched_elections
                .iter()
                .any(|watched_key| **watched_key == *key);
            conn.master == master && conn.is_open() && is_watched
        };
        let conns = self.conns.iter().enumerate();
        let subscribers: Vec<usize> = conns
            .filter(|(_, conn)| is_subscribed(conn))
            .map(|(index, _)| index)
            .collect();
        for conn in subscribers {
            self.observer.coverage.leaders_announced += 1;
            self.send_to_client(conn, server_half::announcement(key));
        }
    }
}
