//! The simulated server at the other end of a connection. It reads commands, executes the requests in them, and writes
//! replies.

use std::fmt::Write as _;
use std::time::Duration;

use quorate::node::{Answer, Extended, Fairness, Fault, Permit, Request};
use quorate::testing::Script;

use super::asked::{Asked, asked, script_of};
use super::words::{number, text};
use super::{Event, Stray, World, many, marks, notes, register};
use crate::scenario::Refusal;
use crate::seeded_bugs::Flaw;

/// Parses the first command in `bytes`. Returns its words and its length in bytes; `None` if the command is incomplete.
fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let number = |at: usize| -> Option<(usize, usize)> {
        let line = bytes.get(at + 1..)?;
        let end = line.iter().position(|byte| *byte == b'\r')?;
        let next = at + 1 + end + 2;
        (next <= bytes.len()).then_some((number(&line[..end]) as usize, next))
    };
    let (count, mut at) = number(0)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, start) = number(at)?;
        words.push(bytes.get(start..start + len)?);
        at = start + len + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

/// Formats the free slots of a semaphore as text: one digit for each slot, `1` if the slot is free. Bit n of `free` is
/// set if slot n is free.
fn slots(free: u64, permits: u8) -> String {
    let digit = |slot| if free >> slot & 1 == 1 { '1' } else { '0' };
    (0..permits).map(digit).collect()
}

/// Writes the reply to an extension of several locks: one digit for each lock, in one string. If the master had no
/// memory left for some locks, the reply is an array, with an error for each of these locks.
fn extended(said: &[Extended], out: &mut String) -> std::fmt::Result {
    let digit = |said: &Extended| match said {
        Extended::Kept => '1',
        Extended::Restored => '2',
        Extended::Withdrawn => '3',
        Extended::NotOurs => '0',
        Extended::Unnoted => '4',
        Extended::Unknown(_) => '5',
    };
    let is_full = |said: &Extended| *said == Extended::Unknown(Fault::OutOfMemory);
    if !said.iter().any(is_full) {
        let digits: String = said.iter().map(digit).collect();
        return write!(out, "${}\r\n{digits}\r\n", digits.len());
    }
    write!(out, "*{}\r\n", said.len())?;
    for one in said {
        if is_full(one) {
            out.push_str(Refusal::OutOfMemory.text());
        } else {
            write!(out, "$1\r\n{}\r\n", digit(one))?;
        }
    }
    Ok(())
}

/// Writes the reply to a request. A refusal also contains `note`, the note of the client that holds the lock.
fn reply(request: &Request, answer: &Result<Answer, Fault>, note: Option<&[u8]>, out: &mut String) {
    let left = |ttl: Option<Duration>| ttl.map_or(-1, |ttl| ttl.as_millis() as i64);
    let written = match (request, answer) {
        (_, Ok(Answer::Granted { counter: None })) => write!(out, "+OK\r\n"),
        (_, Ok(Answer::Granted { counter: Some(v) } | Answer::CounterAbove(v))) => {
            write!(out, ":{v}\r\n")
        }
        (Request::Acquire { claim, .. }, Ok(Answer::Refused { ttl_left, line })) => {
            let left = left(*ttl_left);
            match (line, claim.fenced()) {
                (Some(line), _) if claim.permit().is_some() => {
                    let free = slots(line.free, claim.permit().map_or(0, Permit::permits));
                    let (len, ahead, ticket) = (free.len(), line.ahead, line.ticket);
                    write!(
                        out,
                        "*4\r\n${len}\r\n{free}\r\n:{left}\r\n:{ahead}\r\n:{ticket}\r\n"
                    )
                }
                (Some(line), _) => {
                    let holder = line.holder.as_deref().unwrap_or_default();
                    let (holder, len) = (text(holder), holder.len());
                    let (ahead, ticket) = (line.ahead, line.ticket);
                    // For a claim on several keys, a refusal also contains the index of a key that is not free. Clients
                    // ignore the index, so this simulated master always sends 1.
                    let (words, way) = match claim.group() {
                        Some(_) => (5, ":1\r\n"),
                        None => (4, ""),
                    };
                    let words = words + usize::from(note.is_some());
                    write!(
                        out,
                        "*{words}\r\n:{left}\r\n:{ahead}\r\n:{ticket}\r\n${len}\r\n{holder}\r\n{way}"
                    )
                    .and_then(|()| note.map_or(Ok(()), |note| notes::bulk(Some(note), out)))
                }
                (None, true) => write!(out, "*2\r\n:{left}\r\n:0\r\n"),
                (None, false) => write!(out, "_\r\n"),
            }
        }
        (_, Ok(Answer::NotAlone)) => write!(out, ":-1\r\n"),
        (_, Ok(Answer::Noted(each))) => notes::written(each, out),
        (_, Ok(answer @ Answer::Value { .. })) => register::found(answer, out),
        (_, Ok(Answer::Confirmed | Answer::Released(true) | Answer::Written { .. })) => {
            write!(out, ":1\r\n")
        }
        (_, Ok(Answer::NotOurs | Answer::Released(false))) => write!(out, ":0\r\n"),
        (_, Ok(Answer::Extended(said))) => extended(said, out),
        (_, Err(Fault::WrongType)) => write!(out, "-WRONGTYPE another type\r\n"),
        (_, Err(Fault::OutOfMemory)) => write!(out, "{}", Refusal::OutOfMemory.text()),
        (_, answer) => write!(out, "-ERR {answer:?}\r\n"),
    };
    written.expect("writing to a string cannot fail");
}

impl World {
    /// Executes all complete commands that the server has received on a connection, and sends the replies.
    pub(super) fn serve(&mut self, conn: usize) {
        let mut unread = std::mem::take(&mut self.conns[conn].unread);
        let mut at = 0;
        let mut out = String::with_capacity(128);
        while self.conns[conn].server {
            let Some((words, used)) = command(&unread[at..]) else {
                break;
            };
            at += used;
            self.execute(conn, &words, &mut out);
        }
        unread.drain(..at);
        self.conns[conn].unread = unread;
        if std::mem::take(&mut self.conns[conn].garbled) && !out.is_empty() {
            self.watch.coverage.garbage += 1;
            let odd = [
                "\r\n\0\0",
                "+PONG\r\n",
                ":-7\r\n",
                // An array whose first element is not a number: a malformed reply to two acquires.
                "*2\r\n+x\r\n-ERR x\r\n",
                "_junk\r\n",
            ];
            out.insert_str(0, odd[conn % odd.len()]);
        }
        self.say_to_client(conn, out.into_bytes());
    }

    fn execute(&mut self, conn: usize, words: &[&[u8]], out: &mut String) {
        let master = self.conns[conn].master;
        match words {
            [b"HELLO", ..] => out.push_str("%1\r\n+proto\r\n:3\r\n"),
            [b"CLIENT", b"ID"] => {
                write!(out, ":{}\r\n", conn + 1).expect("writing to a string cannot fail");
            }
            [b"CLIENT", b"KILL", b"ID", id] => {
                let killed = self.kill_connection(master, number(id));
                write!(out, ":{}\r\n", u8::from(killed)).expect("writing to a string cannot fail");
            }
            [b"INFO", ..] => {
                let uptime = self.uptime(master);
                let (version, run) = (self.version_with_deletion(master), self.shown_run(master));
                let info = format!(
                    "redis_version:7.4.0\r\n{version}run_id:{run}\r\nuptime_in_seconds:{uptime}\r\n",
                );
                write!(out, "${}\r\n{info}\r\n", info.len())
                    .expect("writing to a string cannot fail");
            }
            [b"SCRIPT", b"LOAD", source] => {
                // The first line of a script sets constants and checks the generation marker.
                let line = source.iter().position(|byte| *byte == b'\n').unwrap_or(0);
                let (line, source) = source.split_at(line);
                let script = Script::of_source(source.get(1..).unwrap_or_default());
                let script = script.map_or(Script::ALL.len(), |script| script as usize);
                let looks = self.looks_of(line);
                self.masters[master].learn(looks, script);
                write!(out, "$40\r\n{looks:038}{script:02}\r\n")
                    .expect("writing to a string cannot fail");
            }
            [kind @ (b"SUBSCRIBE" | b"UNSUBSCRIBE"), channel] if notes::is_of_leaders(channel) => {
                let on = *kind == b"SUBSCRIBE";
                let watches = &mut self.conns[conn].watches;
                watches.retain(|watched| watched != channel);
                watches.extend(on.then(|| channel.to_vec()));
                notes::subscribed(on, channel, out);
            }
            [b"SUBSCRIBE", channel] => {
                let channel = text(channel);
                self.conns[conn].subscriber = channel.rsplit(':').next().map(str::to_owned);
                write!(
                    out,
                    ">3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n",
                    channel.len()
                )
                .expect("writing to a string cannot fail");
            }
            [b"CLIENT", b"SETNAME", name] => {
                text(name).clone_into(&mut self.conns[conn].name);
                out.push_str("+OK\r\n");
            }
            [b"GET", b"quorate:masters"] => self.tell_mark(conn, out),
            [b"GET", b"quorate:masters:age"] => self.tell_age(conn, out),
            [b"PING"] => {
                self.watch.coverage.pings += 1;
                out.push_str("+PONG\r\n");
            }
            [b"EVALSHA" | b"SET" | b"DELIFEQ", ..] => self.scripted(conn, words, out),
            _ => out.push_str("+OK\r\n"),
        }
    }

    /// Executes a command that carries lock requests: a script, `SET` or `DELIFEQ`.
    fn scripted(&mut self, conn: usize, words: &[&[u8]], out: &mut String) {
        let master = self.conns[conn].master;
        let now = self.now;
        if let Some((until, how)) = self.masters[master].refusing
            && now < until
        {
            self.watch.coverage.refusals += 1;
            if how == Refusal::HangUp {
                return self.hang_up(conn);
            }
            return out.push_str(how.text());
        }
        let looks = match words {
            [b"EVALSHA", sha, ..] => match self.script_at_work(conn, sha) {
                Ok(looks) => looks,
                Err(refusal) => return out.push_str(&refusal),
            },
            _ => 0,
        };
        if let [b"EVALSHA", sha, b"0", args @ ..] = words
            && script_of(sha) == Some(Script::Age)
        {
            return self.raise_age(conn, args, out);
        }
        if let Some(refusal) = self.refused_deletion(conn, words) {
            return out.push_str(refusal);
        }
        let request = match asked(words) {
            Some(Asked::One(request)) => request,
            Some(Asked::Many(requests)) => return self.many((conn, looks), &requests, out),
            None => return out.push_str("-ERR unknown command\r\n"),
        };
        if let Request::Look { .. } = request {
            return self.look_at(master, &request, out);
        }
        self.one((conn, looks), &request, out);
    }

    /// Executes the requests of one command that carries many requests.
    fn many(&mut self, at: (usize, usize), requests: &[Request], out: &mut String) {
        let count = requests.len() as u64;
        match requests.first() {
            Some(Request::Release { .. }) => self.watch.coverage.released_together += count,
            _ => self.watch.coverage.acquired_together += count,
        }
        let mut each = Vec::with_capacity(requests.len());
        for request in requests {
            let mut said = String::new();
            self.one(at, request, &mut said);
            each.push(said);
        }
        many::reply(requests, &each, out);
    }

    /// Executes one request, which arrived alone or as part of a command with many requests.
    fn one(&mut self, (conn, looks): (usize, usize), request: &Request, out: &mut String) {
        let (master, now) = (self.conns[conn].master, self.now);
        let first = self.conns[conn].served == 0;
        self.conns[conn].served += 1;
        let coverage = &mut self.watch.coverage;
        match request {
            Request::Release { .. } if first => coverage.pending_releases += 1,
            Request::Confirm { .. } => coverage.confirms += 1,
            Request::Extend { items } if items.len() > 1 => coverage.batches += 1,
            Request::Acquire { claim, .. } => {
                let lined_up = matches!(claim.fairness(), Fairness::Fair(Some(_)));
                coverage.lined_up += u64::from(lined_up);
            }
            _ => {}
        }
        let net = self.scenario.net;
        let healed = self.healed();
        let rng = &mut self.links[self.conns[conn].link].rng;
        if !healed && rng.chance(net.duplicate_ppm) {
            let late = now + rng.below(net.duplicate_late);
            self.watch.coverage.duplicates += 1;
            self.stray_at(late, (conn, looks), request.clone());
        }
        if let Some(refusal) = self.refusal_but_of_extensions(conn, request) {
            return out.push_str(&refusal);
        }
        let answer = self.answer_to(conn, request);
        let note = self.note_of_refusal(master, request, &answer);
        reply(request, &answer, note.as_deref(), out);
    }

    /// Returns an error reply if the script is not loaded, or if its check of the generation marker rejects the client.
    /// Otherwise returns the index of the script's check in the list `World::looks`. The index 0 means that the script
    /// has no check.
    fn script_at_work(&mut self, conn: usize, sha: &[u8]) -> Result<usize, String> {
        let looks = marks::looks_in(sha);
        let master = &self.masters[self.conns[conn].master];
        let known = script_of(sha).filter(|script| master.knows(looks, *script as usize));
        let Some(script) = known else {
            self.watch.coverage.forgotten_scripts += 1;
            return Err("-NOSCRIPT No matching script\r\n".to_owned());
        };
        let extends = matches!(script, Script::Extend | Script::Keep);
        if !script.checks_marker() || self.flaw == Some(Flaw::ExtendUnrefused) && extends {
            return Ok(0);
        }
        let Some(refusal) = self.refusal_by_mark(conn, looks) else {
            return Ok(looks);
        };
        self.watch.coverage.refused_by_mark += 1;
        Err(refusal)
    }

    /// Executes a request and returns the answer, which some seeded bugs falsify.
    fn answer_to(&mut self, conn: usize, request: &Request) -> Result<Answer, Fault> {
        let wrong = self.flaw.filter(|flaw| flaw.is_of_changes());
        let wrong = wrong.filter(|_| self.is_next_of(conn));
        if wrong == Some(Flaw::FenceOneSet) && matches!(request, Request::Confirm { .. }) {
            return Ok(Answer::Confirmed);
        }
        let client = self.links[self.conns[conn].link].client;
        if self.flaw == Some(Flaw::CarryWithoutLock)
            && self.scenario.is_operator(client)
            && !self.is_dropping
            && let Some(answer) = self.answer_without_lock(self.conns[conn].master, request)
        {
            return Ok(answer);
        }
        let mut answer = self.apply_if_room(self.conns[conn].master, request);
        if let Some(flaw) = wrong {
            flaw.heard_of_next(request, &mut answer);
        }
        if self.flaw == Some(Flaw::CarryOneShown)
            && self.scenario.is_operator(client)
            && let (Request::Read { claim, .. }, Ok(Answer::Value { stored, .. })) =
                (request, &mut answer)
            && stored.is_none()
        {
            *stored = self.shown_elsewhere(claim.key());
        }
        answer
    }

    /// Closes the connection with this id at the server. Returns true if there was such a connection.
    pub(super) fn kill_connection(&mut self, master: usize, id: u64) -> bool {
        let conn = (id as usize).wrapping_sub(1);
        let run = self.masters[master].run;
        let there = self
            .conns
            .get(conn)
            .is_some_and(|conn| conn.master == master && conn.run == run && conn.server);
        if there {
            self.watch.coverage.kicked += 1;
            self.hang_up(conn);
        }
        there
    }

    /// Sends a wake-up from a master to a process, on the connection on which the process has subscribed to wake-ups.
    /// The wake-up arrives after earlier replies on that connection. Does nothing if there is no such connection.
    pub(super) fn publish(&mut self, master: usize, process: &str, key: &[u8]) {
        if self.flaw == Some(Flaw::NobodyWoken) {
            return;
        }
        let Some(conn) = self.conns.iter().rposition(|conn| {
            conn.master == master && conn.is_heard() && conn.subscriber.as_deref() == Some(process)
        }) else {
            return;
        };
        self.watch.coverage.woken += 1;
        let (channel, key) = (format!("quorate:wake:{process}"), text(key));
        let push = format!(
            ">3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n${}\r\n{key}\r\n",
            channel.len(),
            key.len()
        );
        self.say_to_client(conn, push.into_bytes());
    }

    fn stray_at(&mut self, at: u64, (conn, looks): (usize, usize), request: Request) {
        let master = self.conns[conn].master;
        let run = self.masters[master].run;
        let index = self.strays.len() as u32;
        self.strays.push(Some(Stray {
            master,
            run,
            conn,
            looks,
            request,
        }));
        self.at(at, Event::Stray(index));
    }

    /// Lets a master execute the delayed second copy of a message.
    pub(super) fn stray(&mut self, index: usize) {
        let Some(stray) = &self.strays[index] else {
            return;
        };
        let master = &self.masters[stray.master];
        if master.stalled_until > self.now {
            let at = master.stalled_until;
            self.at(at, Event::Stray(index as u32));
            return;
        }
        // The copy is lost if the server is down or has restarted, or if an operator has closed the connection.
        let readable = master.up && master.run == stray.run && !self.conns[stray.conn].ended;
        let refused = self.refusal_by_mark(stray.conn, stray.looks).is_some();
        let readable = readable && !refused;
        if let Some(stray) = self.strays[index].take().filter(|_| readable) {
            let master = stray.master;
            self.say(|| format!("master {master}: the second copy of a message arrives"));
            let _unheard = self.apply(master, &stray.request, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_server_parses_a_command_only_when_it_is_complete() {
        let bytes = b"*2\r\n$3\r\nSET\r\n$1\r\na\r\n*1\r\n";
        for cut in 0..20 {
            assert_eq!(command(&bytes[..cut]), None, "{cut} bytes of 20");
        }
        assert_eq!(command(bytes), Some((vec![&b"SET"[..], b"a"], 20)));
    }
}
