//! The simulated server at the other end of a connection. It executes the requests in commands. The library's server
//! half parses the commands, and writes the replies.

use quorate::node::{Answer, Fairness, Fault, Request};
use quorate::testing::Script;
use quorate::testing::server_half::{self, Received, received};

use super::arguments::{as_text, parse_number};
use super::{DuplicateMessage, Event, World, markers};
use crate::flaw::Flaw;
use crate::scenario::Refusal;

/// Returns the script with this simulated SHA; `None` if there is none.
fn script_of(sha: &[u8]) -> Option<Script> {
    let index = parse_number(sha.last_chunk::<2>()?) as usize;
    Script::ALL.get(index).copied()
}

impl World {
    /// Executes all complete commands that the server has received on a connection, and sends the replies.
    pub(super) fn execute_received(&mut self, conn: usize) {
        let mut unread = std::mem::take(&mut self.conns[conn].unread);
        let mut read_bytes = 0;
        let mut out = Vec::with_capacity(128);
        while self.conns[conn].is_server_open {
            let Some((arguments, length)) = server_half::command(&unread[read_bytes..]) else {
                break;
            };
            read_bytes += length;
            if self.is_of_operator(conn) {
                self.execute_operator_command(conn, &arguments, &mut out);
            } else {
                self.execute_command(conn, &arguments, &mut out);
            }
        }
        unread.drain(..read_bytes);
        self.conns[conn].unread = unread;
        if std::mem::take(&mut self.conns[conn].is_next_reply_malformed) && !out.is_empty() {
            self.observer.coverage.garbage += 1;
            let malformed_replies = [
                "\r\n\0\0",
                "+PONG\r\n",
                ":-7\r\n",
                // An array whose first element is not a number: a malformed reply to two acquires.
                "*2\r\n+x\r\n-ERR x\r\n",
                "_junk\r\n",
            ];
            out.splice(
                0..0,
                malformed_replies[conn % malformed_replies.len()].bytes(),
            );
        }
        self.send_to_client(conn, out);
    }

    pub(super) fn execute_command(&mut self, conn: usize, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let master = self.conns[conn].master;
        match arguments {
            [b"HELLO", ..] => out.extend_from_slice(b"%1\r\n+proto\r\n:3\r\n"),
            [b"CLIENT", b"ID"] => server_half::number(conn as i64 + 1, out),
            [b"CLIENT", b"KILL", b"ID", id] => {
                let is_killed = self.kill_connection(master, parse_number(id));
                server_half::number(i64::from(is_killed), out);
            }
            [b"INFO", ..] => {
                let uptime = self.uptime(master);
                let (version, run_id) = (
                    self.version_with_deletion(master),
                    self.reported_run_id(master),
                );
                let info = format!(
                    "redis_version:7.4.0\r\n{version}run_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n",
                );
                server_half::bulk(Some(info.as_bytes()), out);
            }
            [b"SCRIPT", b"LOAD", source] => {
                // The first line of a script sets constants and checks the generation marker.
                let first_line_end = source.iter().position(|byte| *byte == b'\n').unwrap_or(0);
                let (line, body) = source.split_at(first_line_end);
                let script = Script::from_source(body.get(1..).unwrap_or_default());
                let script = script.map_or(Script::ALL.len(), |script| script as usize);
                let marker_check = self.marker_check_index(line);
                self.masters[master].record_loaded_script(marker_check, script);
                let sha = format!("{marker_check:038}{script:02}");
                server_half::bulk(Some(sha.as_bytes()), out);
            }
            [b"SUBSCRIBE" | b"UNSUBSCRIBE", channel] => {
                self.subscribe(conn, arguments, channel, out);
            }
            [b"CLIENT", b"SETNAME", name] => {
                as_text(name).clone_into(&mut self.conns[conn].name);
                out.extend_from_slice(b"+OK\r\n");
            }
            [b"GET", b"quorate:masters"] => self.reply_with_marker(conn, out),
            [b"GET", b"quorate:masters:age"] => self.reply_with_age(conn, out),
            [b"PING"] => {
                self.observer.coverage.pings += 1;
                out.extend_from_slice(b"+PONG\r\n");
            }
            [b"EVALSHA" | b"SET" | b"DELIFEQ", ..] => {
                self.execute_lock_command(conn, arguments, out);
            }
            _ => out.extend_from_slice(b"+OK\r\n"),
        }
    }

    /// Begins or ends a subscription: to the new leaders of an election, or to the wake-ups of a process.
    fn subscribe(&mut self, conn: usize, arguments: &[&[u8]], channel: &[u8], out: &mut Vec<u8>) {
        let mut subscribes = true;
        if let Some(Received::One(Request::Watch { key, on: is_begin })) =
            received(arguments, script_of)
        {
            self.watch_leaders(conn, &key, is_begin);
            subscribes = is_begin;
        } else {
            let process = as_text(channel).rsplit(':').next();
            self.conns[conn].subscriber = process.map(str::to_owned);
        }
        server_half::subscribed(subscribes, channel, out);
    }

    /// Executes a command that carries lock requests: a script, `SET` or `DELIFEQ`.
    fn execute_lock_command(&mut self, conn: usize, arguments: &[&[u8]], out: &mut Vec<u8>) {
        let master = self.conns[conn].master;
        let now = self.now;
        if let Some((until, how)) = self.masters[master].refusal
            && now < until
        {
            self.observer.coverage.refusals += 1;
            self.report_refusal(master);
            if how == Refusal::HangUp {
                return self.hang_up(conn);
            }
            return out.extend_from_slice(how.text().as_bytes());
        }
        let marker_check = match arguments {
            [b"EVALSHA", sha, ..] => match self.check_script(conn, sha) {
                Ok(marker_check) => marker_check,
                Err(refusal) => return out.extend_from_slice(refusal.as_bytes()),
            },
            _ => 0,
        };
        if let Some(refusal) = self.refused_deletion(conn, arguments) {
            return out.extend_from_slice(refusal.as_bytes());
        }
        let request = match received(arguments, script_of) {
            Some(Received::One(request)) => request,
            Some(Received::Many(requests)) => {
                return self.execute_many((conn, marker_check), &requests, out);
            }
            Some(Received::Age(call)) => return self.raise_age(conn, &call, out),
            None => return out.extend_from_slice(b"-ERR unknown command\r\n"),
        };
        if let Request::Status { .. } = request {
            return self.reply_with_lock_state(master, &request, out);
        }
        self.execute_one((conn, marker_check), &request, out);
    }

    /// Executes the requests of one command that carries many requests.
    fn execute_many(
        &mut self,
        conn_and_check: (usize, usize),
        requests: &[Request],
        out: &mut Vec<u8>,
    ) {
        let count = requests.len() as u64;
        match requests.first() {
            Some(Request::Release { .. }) => self.observer.coverage.released_together += count,
            _ => self.observer.coverage.acquired_together += count,
        }
        let mut replies = Vec::with_capacity(requests.len());
        for request in requests {
            let mut reply = Vec::new();
            self.execute_one(conn_and_check, request, &mut reply);
            replies.push(reply);
        }
        server_half::reply_to_many(requests, &replies, out);
    }

    /// Executes one request, which arrived alone or as part of a command with many requests.
    fn execute_one(
        &mut self,
        (conn, marker_check): (usize, usize),
        request: &Request,
        out: &mut Vec<u8>,
    ) {
        let (master, now) = (self.conns[conn].master, self.now);
        let is_first = self.conns[conn].served_requests == 0;
        self.conns[conn].served_requests += 1;
        let coverage = &mut self.observer.coverage;
        match request {
            Request::Release { .. } if is_first => coverage.pending_releases += 1,
            Request::Confirm { .. } => coverage.confirms += 1,
            Request::Extend { items } if items.len() > 1 => coverage.batches += 1,
            Request::Acquire { claim, .. } => {
                let is_queued = matches!(claim.fairness(), Fairness::Fair(Some(_)));
                coverage.queued_requests += u64::from(is_queued);
            }
            _ => {}
        }
        let net = self.scenario.net;
        let healed = self.faults_have_ended();
        let rng = &mut self.links[self.conns[conn].link].rng;
        if !healed && rng.chance(net.duplicate_ppm) {
            let late = now + rng.below(net.duplicate_late);
            self.schedule_duplicate(late, (conn, marker_check), request.clone());
        }
        if let Some(refusal) = self.refusal_except_of_extensions(conn, request) {
            return out.extend_from_slice(refusal.as_bytes());
        }
        let answer = self.answer(conn, request);
        let note = self.note_of_refusal(master, request, &answer);
        server_half::reply(request, &answer, note.as_deref(), out);
    }

    /// Returns an error reply if the script is not loaded, or if its check of the generation marker rejects the client.
    /// Otherwise returns the index of the script's check in the list `World::marker_checks`. The index 0 means that the
    /// script has no check.
    fn check_script(&mut self, conn: usize, sha: &[u8]) -> Result<usize, String> {
        let marker_check = markers::marker_check_in_sha(sha);
        let master = &self.masters[self.conns[conn].master];
        let loaded_script = script_of(sha)
            .filter(|script| master.has_loaded_script(marker_check, *script as usize));
        let Some(script) = loaded_script else {
            self.observer.coverage.forgotten_scripts += 1;
            return Err("-NOSCRIPT No matching script\r\n".to_owned());
        };
        let is_extension = matches!(script, Script::Extend | Script::Keep);
        if !script.checks_marker() || self.flaw == Some(Flaw::ExtendUnrefused) && is_extension {
            return Ok(0);
        }
        let Some(refusal) = self.refusal_by_marker(conn, marker_check) else {
            return Ok(marker_check);
        };
        self.observer.coverage.refused_by_mark += 1;
        Err(refusal)
    }

    /// Executes a request and returns the answer, which some seeded bugs falsify.
    fn answer(&mut self, conn: usize, request: &Request) -> Result<Answer, Fault> {
        let client = self.links[self.conns[conn].link].client;
        if self.flaw == Some(Flaw::CarryWithoutLock)
            && self.scenario.is_operator(client)
            && !self.is_operator_removing
            && let Some(answer) = self.answer_without_lock(self.conns[conn].master, request)
        {
            return Ok(answer);
        }
        let mut answer = self.apply_if_room(self.conns[conn].master, request);
        if self.flaw == Some(Flaw::CarryOneShown)
            && self.scenario.is_operator(client)
            && let (Request::Read { claim, .. }, Ok(Answer::Value { stored, .. })) =
                (request, &mut answer)
            && stored.is_none()
        {
            *stored = self.oldest_stored_value(claim.key());
        }
        answer
    }

    /// Closes the connection with this id at the server. Returns true if there was such a connection.
    pub(super) fn kill_connection(&mut self, master: usize, id: u64) -> bool {
        let conn = (id as usize).wrapping_sub(1);
        let restarts = self.masters[master].restarts;
        let is_open = self.conns.get(conn).is_some_and(|conn| {
            conn.master == master && conn.restarts == restarts && conn.is_server_open
        });
        if is_open {
            self.observer.coverage.killed_connections += 1;
            self.hang_up(conn);
        }
        is_open
    }

    /// Sends a wake-up from a master to a process, on the connection on which the process has subscribed to wake-ups.
    /// The wake-up arrives after earlier replies on that connection. Does nothing if there is no such connection.
    pub(super) fn send_wake_up(&mut self, master: usize, process: &str, key: &[u8]) {
        let Some(conn) = self.conns.iter().rposition(|conn| {
            conn.master == master && conn.is_open() && conn.subscriber.as_deref() == Some(process)
        }) else {
            return;
        };
        self.observer.coverage.woken_waiters += 1;
        self.send_to_client(conn, server_half::wake_up(process, key));
    }

    fn schedule_duplicate(
        &mut self,
        arrival: u64,
        (conn, marker_check): (usize, usize),
        request: Request,
    ) {
        let master = self.conns[conn].master;
        let restarts = self.masters[master].restarts;
        let index = self.duplicates.len() as u32;
        self.duplicates.push(Some(DuplicateMessage {
            master,
            restarts,
            conn,
            marker_check,
            request,
        }));
        self.schedule(arrival, Event::DuplicateReachesMaster(index));
    }

    /// Lets a master execute the delayed second copy of a message.
    pub(super) fn deliver_duplicate(&mut self, index: usize) {
        let Some(duplicate) = &self.duplicates[index] else {
            return;
        };
        let master = &self.masters[duplicate.master];
        if master.stalled_until > self.now {
            let stall_end = master.stalled_until;
            self.observer.coverage.stalls += 1;
            self.schedule(stall_end, Event::DuplicateReachesMaster(index as u32));
            return;
        }
        // The copy is lost if the server is down or has restarted, or if an operator has closed the connection.
        let is_read = master.up
            && master.restarts == duplicate.restarts
            && !self.conns[duplicate.conn].is_killed_by_operator;
        let is_refused = self
            .refusal_by_marker(duplicate.conn, duplicate.marker_check)
            .is_some();
        if let Some(duplicate) = self.duplicates[index]
            .take()
            .filter(|_| is_read && !is_refused)
        {
            let master = duplicate.master;
            self.trace_line(|| format!("master {master}: the second copy of a message arrives"));
            self.observer.coverage.duplicates += 1;
            let _unheard = self.execute_and_report(master, &duplicate.request, false);
        }
    }
}
