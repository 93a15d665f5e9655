//! Executes the requests about the notes of lock holders and about elections, and announces new leaders.

use std::sync::Arc;

use quorate::node::{Answer, Fault, Request};
use quorate::testing::server_half;

use super::World;
use super::words::text;
use crate::facts::Fact;
use crate::locker::resource_of;
use crate::seeded_bugs::Flaw;

impl World {
    /// Lets a master write notes, reports the notes to the checkers, and sends the announcements of new leaders.
    pub(super) fn apply_notes(&mut self, index: usize, request: &Request) -> Result<Answer, Fault> {
        let Request::Note { items } = request else {
            return Err(Fault::Server("no notes".into()));
        };
        let now = self.now;
        let master = &mut self.masters[index];
        let now_us = master.micros(now);
        let answer = master.execute(now_us, request, self.flaw);
        let announced = master.take_announced();
        self.watch.coverage.noted += 1;
        for item in items.iter() {
            let (value, says) = (item.claim.token().to_hex(), item.says.clone());
            let key = text(item.claim.key()).to_owned();
            let short = crate::facts::short(&value);
            self.say(|| {
                format!("master {index}: Note {says:?} for the lock value {short} on {key}; answer {answer:?}")
            });
            self.show_note(index, item.claim.key());
        }
        for key in announced {
            self.announce(index, &key);
        }
        answer
    }

    /// Lets a master execute the script LOOK, and writes the reply into `out`.
    pub(super) fn look_at(&mut self, index: usize, request: &Request, out: &mut Vec<u8>) {
        let Request::Look { key } = request else {
            return;
        };
        let now = self.now;
        self.watch.coverage.messages += 1;
        let master = &mut self.masters[index];
        let now_us = master.micros(now);
        let answer = master.execute(now_us, request, self.flaw);
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
        let (Request::Acquire { claim, .. }, Ok(Answer::Refused { line, .. })) = (request, answer)
        else {
            return None;
        };
        let holder = line.as_ref()?.holder.as_deref()?;
        let master = &self.masters[index];
        let now_us = master.micros(self.now);
        let mut keys = claim.keys();
        let way = keys.find(|key| master.holder(now_us, key) == Some(holder))?;
        let (mut note, _) = master.note(now_us, way)?;
        if self.flaw == Some(Flaw::NoteOfLast)
            && let (Some(whose), Ok(holder)) = (note.first_chunk_mut::<32>(), holder.try_into())
        {
            *whose = holder;
        }
        Some(note)
    }

    /// Reports to the checkers which note a master stores for a lock, if any.
    pub(super) fn show_note(&mut self, index: usize, key: &[u8]) {
        if !self.watch.has_notes {
            return;
        }
        let now = self.now;
        let master = &self.masters[index];
        let now_us = master.micros(now);
        let note = master.note(now_us, key);
        let until = note
            .as_ref()
            .and_then(|(_, until)| master.clock.when(until * 1_000));
        let lock = master.peek_key(now_us, key);
        let fact = Fact::StoredNote {
            master: index,
            resource: resource_of(key),
            note: note.as_ref().map(|(note, until)| (&note[..], *until)),
            lock,
            until: until.unwrap_or(0),
        };
        self.watch.fact(now, &fact);
    }

    /// Begins (`on` is true) or ends the subscription of a connection to the new leaders of the election with the lock
    /// `key`.
    pub(super) fn watch_leaders(&mut self, conn: usize, key: &Arc<[u8]>, on: bool) {
        let watches = &mut self.conns[conn].watches;
        watches.retain(|watched| watched != key);
        watches.extend(on.then(|| key.clone()));
    }

    /// Announces a new leader to the subscribers of a master.
    fn announce(&mut self, master: usize, key: &[u8]) {
        let hears = |conn: &super::Conn| {
            let watches = conn.watches.iter().any(|watched| **watched == *key);
            conn.master == master && conn.is_heard() && watches
        };
        let conns = self.conns.iter().enumerate();
        let heard: Vec<usize> = conns
            .filter(|(_, conn)| hears(conn))
            .map(|(n, _)| n)
            .collect();
        for conn in heard {
            self.watch.coverage.announced += 1;
            self.say_to_client(conn, server_half::announcement(key));
        }
    }
}
