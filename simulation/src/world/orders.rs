//! The commands of operators, as a simulated server executes them.
//!
//! The library's server half parses the commands, and executes them in the master's memory. This file adds the faults of
//! the server, and reports the changes to the checkers.

use quorate::node::Fault;
use quorate::testing::server_half::{self, OperatorCommand};
use quorate::testing::{OperatorScript, Script};

use super::World;
use super::arguments::parse_number;
use super::net::Conn;
use crate::clock::MS;
use crate::facts::LockState;
use crate::flaw::Flaw;
use crate::happening::Happening;
use crate::scenario::Refusal;

/// Returns the index of an operator's script in the list of the scripts that a master has loaded.
fn index_of(script: OperatorScript) -> usize {
    Script::ALL.len() + 1 + script as usize
}

impl World {
    /// Executes a command that an operator has sent on this connection.
    pub(super) fn execute_operator_command(
        &mut self,
        conn: usize,
        words: &[&[u8]],
        out: &mut Vec<u8>,
    ) {
        let master = self.conns[conn].master;
        if matches!(words, [b"EVALSHA" | b"SET", ..]) && self.refuses_operator(conn, out) {
            return;
        }
        let loaded = &self.masters[master];
        let script_of = |digest: &[u8]| {
            let script = OperatorScript::from_digest(digest);
            script.filter(|script| loaded.has_loaded_script(0, index_of(*script)))
        };
        if let Some(command) = OperatorCommand::parse(words, script_of) {
            return self.execute_order(conn, &command, out);
        }
        let has_script = |digest| script_of(digest).is_some();
        let is_malformed_call = matches!(words, [b"EVALSHA", digest, ..] if has_script(digest));
        assert!(
            !is_malformed_call,
            "the server half cannot parse this call of an operator's script: {}",
            words.concat().escape_ascii()
        );
        match words {
            [b"HELLO" | b"INFO", ..] | [b"CLIENT", b"SETNAME", _] => {
                self.execute_command(conn, words, out);
            }
            [b"CLIENT", b"LIST"] => {
                server_half::bulk(Some(self.client_list(master).as_bytes()), out);
            }
            [b"CLIENT", b"KILL", b"ID", id] => {
                let is_killed = self.kill_for_operator(master, parse_number(id));
                server_half::number(i64::from(is_killed), out);
            }
            [b"SCRIPT", b"LOAD", source] => match OperatorScript::from_source(source) {
                Some(script) => {
                    self.masters[master].record_loaded_script(0, index_of(script));
                    server_half::bulk(Some(script.digest().as_bytes()), out);
                }
                None => out.extend_from_slice(b"-ERR Error compiling script\r\n"),
            },
            [b"EVALSHA", ..] => out.extend_from_slice(b"-NOSCRIPT No matching script\r\n"),
            [kind @ (b"SUBSCRIBE" | b"UNSUBSCRIBE"), channel] => {
                server_half::subscribed(*kind == b"SUBSCRIBE", channel, out);
            }
            // An operator sends all other commands only to check its rights. They change nothing.
            _ => out.extend_from_slice(b"+OK\r\n"),
        }
    }

    /// Whether the master refuses scripts and writes at present. If so, writes the error reply or closes the connection.
    fn refuses_operator(&mut self, conn: usize, out: &mut Vec<u8>) -> bool {
        let refusal = self.masters[self.conns[conn].master].refusal;
        let Some((_, how)) = refusal.filter(|(until, _)| self.now < *until) else {
            return false;
        };
        match how {
            Refusal::HangUp => self.hang_up(conn),
            how => out.extend_from_slice(how.text().as_bytes()),
        }
        true
    }

    fn execute_order(&mut self, conn: usize, command: &OperatorCommand<'_>, out: &mut Vec<u8>) {
        let master = self.conns[conn].master;
        let now_us = self.masters[master].clock_us(self.now);
        match command {
            OperatorCommand::RaiseMarker { number, .. } => {
                let marker_before = self.masters[master].marker(now_us).map(str::to_owned);
                command.execute(&mut self.masters[master].memory, now_us, out);
                if self.masters[master].marker(now_us) != marker_before.as_deref() {
                    self.report_raised_marker(master, *number);
                }
            }
            OperatorCommand::RaiseCounters(counters) if !self.has_room_for(master, counters) => {
                self.observer.coverage.out_of_memory_refusals += 1;
                self.report_shortage(master);
                server_half::error(&Fault::OutOfMemory, out);
            }
            OperatorCommand::RaiseCounters(_) => self.raise_counters(master, command, out),
            _ => command.execute(&mut self.masters[master].memory, now_us, out),
        }
    }

    /// Closes a connection for an operator. Returns true if there was such a connection.
    fn kill_for_operator(&mut self, master: usize, id: u64) -> bool {
        if !self.kill_connection(master, id) {
            return false;
        }
        self.conns[id as usize - 1].is_killed_by_operator = true;
        self.observer.coverage.closed_outdated += 1;
        self.trace_line(|| format!("master {master}: connection {id} is closed"));
        true
    }

    /// Called when an operator has raised the generation marker of a master to this number.
    fn report_raised_marker(&mut self, index: usize, number: u64) {
        let coverage = &mut self.observer.coverage;
        match number % 4 {
            1 => coverage.closed_masters += 1,
            2 => coverage.opened_masters += 1,
            _ if number == 0 => coverage.begin_markers += 1,
            _ => coverage.finish_markers += 1,
        }
        self.record_marker(index, true);
        self.trace_line(|| format!("master {index}: its generation marker is raised to {number}"));
        self.report_happening(Happening::MastersChanged);
        self.update_outdated_markers(index);
        if self.flaw == Some(Flaw::MarkLostOnRestart) && number % 4 == 2 {
            self.restart_removed_masters(number / 4);
        }
    }

    /// For the seeded bug `MarkLostOnRestart`: restarts the masters that the change with the index `change` removes. In
    /// this restart they lose their generation markers.
    fn restart_removed_masters(&mut self, change: u64) {
        let plan = self.scenario.change.as_ref();
        let sets = plan.map(|plan| plan.masters_at(2 * change as u8 + 1).sets());
        let [old, next] = sets.unwrap_or_default();
        for master in (0..self.masters.len()).filter(|master| (old & !next) >> master & 1 == 1) {
            self.crash(master, 20 * MS);
        }
    }

    /// Returns the list of connections in the form in which a server reports it.
    fn client_list(&self, master: usize) -> String {
        let restarts = self.masters[master].restarts;
        let open_connections = self.conns.iter().enumerate().filter(|(_, conn)| {
            conn.is_server_open && (conn.master, conn.restarts) == (master, restarts)
        });
        let format_line = |(index, conn): (usize, &Conn)| {
            let client = self.links[conn.link].client;
            let subscriptions = u8::from(conn.subscriber.is_some());
            format!(
                "id={} addr=10.0.0.{client}:1 name={} db=0 sub={subscriptions} cmd=ping\n",
                index + 1,
                conn.name
            )
        };
        open_connections.map(format_line).collect()
    }

    fn raise_counters(&mut self, index: usize, command: &OperatorCommand<'_>, out: &mut Vec<u8>) {
        let master = &mut self.masters[index];
        let now_us = master.clock_us(self.now);
        master.record_all_lock_states(self.now);
        let states_before = master.lock_states;
        command.execute(&mut master.memory, now_us, out);
        master.record_all_lock_states(self.now);
        let states_after = master.lock_states;
        if let Some(history) = &mut self.observer.history {
            let states = [states_before, states_after];
            let [before, after] = states.map(|states| states.map(LockState::to_model));
            history.record_raised(self.now, index, &before, &after);
        }
        let states = states_before.iter().zip(&states_after);
        let raised = states.filter(|(before, after)| before.counter != after.counter);
        let raised = raised.count() as u64;
        self.observer.coverage.carried_counters += raised;
        self.trace_line(|| format!("master {index}: {raised} fencing counters are raised"));
    }
}
