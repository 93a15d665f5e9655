//! Decodes requests about the notes of lock holders and about elections. Encodes the replies, and the announcements of
//! new leaders.

use std::fmt::Write as _;
use std::sync::Arc;

use quorate::node::{Answer, Claim, Fault, KeyState, NoteItem, Request};

use super::World;
use super::words::{number, text, token};
use crate::facts::Fact;
use crate::locker::resource_of;
use crate::seeded_bugs::Flaw;

/// The prefix of the channel on which a new leader (the new holder of an election's lock) is announced.
const LEADER: &str = "quorate:leader:";

/// Decodes the arguments of the script NOTE; `None` if they are malformed.
pub(super) fn noted(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let (args, []) = args.as_chunks::<3>() else {
        return None;
    };
    let item = |(key, [value, note, announce]): (&&[u8], &[&[u8]; 3])| {
        let claim = Claim::new("", key, token(value)?, true);
        let dated = text(note).split_once('\t');
        let (since, says) = dated.unwrap_or_default();
        if dated.is_none() {
            claim.withdraw();
        }
        Some(NoteItem {
            claim: Arc::new(claim),
            says: says.into(),
            since: number(since.as_bytes()),
            announce: *announce == b"1",
        })
    };
    let items = keys.iter().zip(args).map(item);
    Some(Request::Note {
        items: items.collect::<Option<_>>()?,
    })
}

/// Decodes the arguments of the script LOOK.
pub(super) fn looked(key: &[u8]) -> Request {
    Request::Look { key: key.into() }
}

/// Writes the reply to NOTE: one digit for each note, `1` if it was written.
pub(super) fn written(each: &[bool], out: &mut String) -> std::fmt::Result {
    let digit = |written: &bool| if *written { '1' } else { '0' };
    let digits: String = each.iter().map(digit).collect();
    write!(out, "${}\r\n{digits}\r\n", digits.len())
}

pub(super) fn bulk(words: Option<&[u8]>, out: &mut String) -> std::fmt::Result {
    match words {
        Some(words) => write!(out, "${}\r\n{}\r\n", words.len(), text(words)),
        None => write!(out, "_\r\n"),
    }
}

/// Writes the reply to LOOK: the state of a lock, and the holder's note if there is one.
fn state(state: &KeyState, note: Option<&[u8]>, out: &mut String) -> std::fmt::Result {
    let words = 5 + usize::from(note.is_some());
    write!(out, "*{words}\r\n")?;
    bulk(state.holder.as_deref(), out)?;
    let left = state.ttl_left.map_or(-2, |left| left.as_millis() as i64);
    write!(out, ":{left}\r\n")?;
    let counter = state.counter.map(|counter| counter.to_string());
    bulk(counter.as_deref().map(str::as_bytes), out)?;
    write!(out, "*{}\r\n", state.queue.len())?;
    for waiter in &state.queue {
        bulk(Some(waiter.id.as_bytes()), out)?;
    }
    write!(out, "*{}\r\n", state.queue.len())?;
    for waiter in &state.queue {
        write!(out, ":{}\r\n", waiter.lives.as_millis())?;
    }
    note.map_or(Ok(()), |note| bulk(Some(note), out))
}

/// Writes the reply to a client that subscribes to a channel (`on` is true) or unsubscribes from it (`on` is false).
pub(super) fn subscribed(on: bool, channel: &[u8], out: &mut String) {
    let kind = if on { "subscribe" } else { "unsubscribe" };
    let (channel, len) = (text(channel), channel.len());
    write!(
        out,
        ">3\r\n${}\r\n{kind}\r\n${len}\r\n{channel}\r\n:1\r\n",
        kind.len()
    )
    .expect("writing to a string cannot fail");
}

/// Whether this is a channel on which leaders are announced.
pub(super) fn is_of_leaders(channel: &[u8]) -> bool {
    channel.starts_with(LEADER.as_bytes())
}

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
    pub(super) fn look_at(&mut self, index: usize, request: &Request, out: &mut String) {
        let Request::Look { key } = request else {
            return;
        };
        let now = self.now;
        self.watch.coverage.messages += 1;
        let master = &mut self.masters[index];
        let now_us = master.micros(now);
        let answer = master.execute(now_us, request, self.flaw);
        let note = master.note(now_us, key).map(|(note, _)| note);
        let Ok(Answer::State(found)) = answer else {
            return out.push_str("-ERR the simulated master returned no lock state\r\n");
        };
        state(&found, note.as_deref(), out).expect("writing to a string cannot fail");
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

    /// Announces a new leader to the subscribers of a master.
    fn announce(&mut self, master: usize, key: &[u8]) {
        let channel = [LEADER.as_bytes(), key].concat();
        let hears = |conn: &super::Conn| {
            conn.master == master && conn.is_heard() && conn.watches.contains(&channel)
        };
        let conns = self.conns.iter().enumerate();
        let heard: Vec<usize> = conns
            .filter(|(_, conn)| hears(conn))
            .map(|(n, _)| n)
            .collect();
        let (channel, key) = (text(&channel), text(key));
        let push = format!(
            ">3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n${}\r\n{key}\r\n",
            channel.len(),
            key.len()
        );
        for conn in heard {
            self.watch.coverage.announced += 1;
            self.say_to_client(conn, push.clone().into_bytes());
        }
    }
}
