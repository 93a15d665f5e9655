//! The simulated server at the other end of a connection. It executes the requests in commands. The library's server
//! half parses the commands, and writes the replies.

use quorate::node::{Answer, Fairness, Fault, Request};
use quorate::testing::Script;
use quorate::testing::server_half::{self, Received, received};

use super::words::{number, text};
use super::{Event, Stray, World, marks};
use crate::scenario::Refusal;
use crate::seeded_bugs::Flaw;

/// Returns the script with this simulated SHA; `None` if there is none.
fn script_of(sha: &[u8]) -> Option<Script> {
    let script = number(sha.last_chunk::<2>()?) as usize;
    Script::ALL.get(script).copied()
}

impl World {
    /// Executes all complete commands that the server has received on a connection, and sends the replies.
    pub(super) fn serve(&mut self, conn: usize) {
        let mut unread = std::mem::take(&mut self.conns[conn].unread);
        let mut at = 0;
        let mut out = Vec::with_capacity(128);
        while self.conns[conn].server {
            let Some((words, used)) = server_half::command(&unread[at..]) else {
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
            out.splice(0..0, odd[conn % odd.len()].bytes());
        }
        self.say_to_client(conn, out);
    }

    fn execute(&mut self, conn: usize, words: &[&[u8]], out: &mut Vec<u8>) {
        let master = self.conns[conn].master;
        match words {
            [b"HELLO", ..] => out.extend_from_slice(b"%1\r\n+proto\r\n:3\r\n"),
            [b"CLIENT", b"ID"] => server_half::number(conn as i64 + 1, out),
            [b"CLIENT", b"KILL", b"ID", id] => {
                let killed = self.kill_connection(master, number(id));
                server_half::number(i64::from(killed), out);
            }
            [b"INFO", ..] => {
                let uptime = self.uptime(master);
                let (version, run) = (self.version_with_deletion(master), self.shown_run(master));
                let info = format!(
                    "redis_version:7.4.0\r\n{version}run_id:{run}\r\nuptime_in_seconds:{uptime}\r\n",
                );
                server_half::bulk(Some(info.as_bytes()), out);
            }
            [b"SCRIPT", b"LOAD", source] => {
                // The first line of a script sets constants and checks the generation marker.
                let line = source.iter().position(|byte| *byte == b'\n').unwrap_or(0);
                let (line, source) = source.split_at(line);
                let script = Script::of_source(source.get(1..).unwrap_or_default());
                let script = script.map_or(Script::ALL.len(), |script| script as usize);
                let looks = self.looks_of(line);
                self.masters[master].learn(looks, script);
                let sha = format!("{looks:038}{script:02}");
                server_half::bulk(Some(sha.as_bytes()), out);
            }
            [b"SUBSCRIBE" | b"UNSUBSCRIBE", channel] => self.subscribe(conn, words, channel, out),
            [b"CLIENT", b"SETNAME", name] => {
                text(name).clone_into(&mut self.conns[conn].name);
                out.extend_from_slice(b"+OK\r\n");
            }
            [b"GET", b"quorate:masters"] => self.tell_mark(conn, out),
            [b"GET", b"quorate:masters:age"] => self.tell_age(conn, out),
            [b"PING"] => {
                self.watch.coverage.pings += 1;
                out.extend_from_slice(b"+PONG\r\n");
            }
            [b"EVALSHA" | b"SET" | b"DELIFEQ", ..] => self.scripted(conn, words, out),
            _ => out.extend_from_slice(b"+OK\r\n"),
        }
    }

    /// Begins or ends a subscription: to the new leaders of an election, or to the wake-ups of a process.
    fn subscribe(&mut self, conn: usize, words: &[&[u8]], channel: &[u8], out: &mut Vec<u8>) {
        let mut subscribes = true;
        if let Some(Received::One(Request::Watch { key, on })) = received(words, script_of) {
            self.watch_leaders(conn, &key, on);
            subscribes = on;
        } else {
            let process = text(channel).rsplit(':').next();
            self.conns[conn].subscriber = process.map(str::to_owned);
        }
        server_half::subscribed(subscribes, channel, out);
    }

    /// Executes a command that carries lock requests: a script, `SET` or `DELIFEQ`.
    fn scripted(&mut self, conn: usize, words: &[&[u8]], out: &mut Vec<u8>) {
        let master = self.conns[conn].master;
        let now = self.now;
        if let Some((until, how)) = self.masters[master].refusing
            && now < until
        {
            self.watch.coverage.refusals += 1;
            if how == Refusal::HangUp {
                return self.hang_up(conn);
            }
            return out.extend_from_slice(how.text().as_bytes());
        }
        let looks = match words {
            [b"EVALSHA", sha, ..] => match self.script_at_work(conn, sha) {
                Ok(looks) => looks,
                Err(refusal) => return out.extend_from_slice(refusal.as_bytes()),
            },
            _ => 0,
        };
        if let Some(refusal) = self.refused_deletion(conn, words) {
            return out.extend_from_slice(refusal.as_bytes());
        }
        let request = match received(words, script_of) {
            Some(Received::One(request)) => request,
            Some(Received::Many(requests)) => return self.many((conn, looks), &requests, out),
            Some(Received::Age(call)) => return self.raise_age(conn, &call, out),
            None => return out.extend_from_slice(b"-ERR unknown command\r\n"),
        };
        if let Request::Look { .. } = request {
            return self.look_at(master, &request, out);
        }
        self.one((conn, looks), &request, out);
    }

    /// Executes the requests of one command that carries many requests.
    fn many(&mut self, at: (usize, usize), requests: &[Request], out: &mut Vec<u8>) {
        let count = requests.len() as u64;
        match requests.first() {
            Some(Request::Release { .. }) => self.watch.coverage.released_together += count,
            _ => self.watch.coverage.acquired_together += count,
        }
        let mut each = Vec::with_capacity(requests.len());
        for request in requests {
            let mut reply = Vec::new();
            self.one(at, request, &mut reply);
            each.push(reply);
        }
        server_half::reply_to_many(requests, &each, out);
    }

    /// Executes one request, which arrived alone or as part of a command with many requests.
    fn one(&mut self, (conn, looks): (usize, usize), request: &Request, out: &mut Vec<u8>) {
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
            return out.extend_from_slice(refusal.as_bytes());
        }
        let answer = self.answer_to(conn, request);
        let note = self.note_of_refusal(master, request, &answer);
        server_half::reply(request, &answer, note.as_deref(), out);
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
        self.say_to_client(conn, server_half::wake_up(process, key));
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
