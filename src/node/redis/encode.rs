//! Encodes requests as commands of the server.

use std::borrow::Cow;
use std::time::Duration;

use super::layout::{ABSENT, LEAVES_QUEUES_FLAG, NOTED_FLAG, WITH_NOTE, WITHDRAWN_TTL};
use super::loaded::Scripts;
use super::resp::Command;
use super::script::Script;
use crate::keys::{self, LEADER_CHANNEL_PREFIX};
use crate::node::note::with_start;
use crate::node::{
    Claim, Ended, ExtendItem, Fairness, Group, NoteItem, Page, Permit, Request, ServerRun, Shape,
    Ticket,
};

impl Scripts {
    /// Writes one request as one command. `run` is the id of the current server run. A write of a value under a lock
    /// stores this id with the value.
    pub(super) fn encode(&self, request: &Request, run: &ServerRun, out: &mut Vec<u8>) {
        let shape = request.shape();
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => match shape {
                Shape::Plain => self.acquire(claim, *ttl, *proposal, out),
                Shape::Group(group) => self.claim(claim, group, *ttl, *proposal, out),
                Shape::Permit(permit) => self.permit(claim, permit, *ttl, *proposal, out),
            },
            Request::Confirm { claim, token } => match shape {
                Shape::Plain | Shape::Permit(_) => self.confirm(claim, *token, out),
                Shape::Group(group) => self.confirm_group(claim, group, *token, out),
            },
            Request::Release { claim, leave } => match shape {
                Shape::Plain => self.release(claim, *leave, out),
                Shape::Group(group) => self.unclaim(claim, group, *leave, out),
                Shape::Permit(permit) => self.release_permit(claim, permit, *leave, out),
            },
            Request::Extend { items } => match shape {
                Shape::Plain | Shape::Permit(_) => self.extend(items, out),
                Shape::Group(_) => self.keep(items, out),
            },
            Request::Status { key } => self.key_state(key, out),
            Request::Break { key, ended, delete } => self.force_release(key, ended, *delete, out),
            Request::Read { claim, token } => {
                let mut command = self.begin_call(Script::Read, 1, 2, out);
                command.arg(claim.key()).arg(claim.token().to_hex());
                command.number(*token);
            }
            Request::Write {
                claim,
                token,
                value,
            } => self.write(claim, *token, value.bytes.as_deref(), run, out),
            Request::Note { items } => self.note(items, out),
            Request::List { page } => scan(page, out),
            Request::Watch { key, on } => watch(key, *on, out),
        }
    }

    /// Writes a call of STATUS. If the lock is a slot of a semaphore, the call also names the queue of the semaphore.
    fn key_state(&self, key: &[u8], out: &mut Vec<u8>) {
        match keys::queue_name_of(key) {
            Cow::Borrowed(_) => self.begin_call(Script::Status, 1, 0, out).arg(key),
            Cow::Owned(queue) => self
                .begin_call(Script::Status, 1, 1, out)
                .arg(key)
                .arg(queue),
        };
    }

    fn force_release(&self, key: &[u8], ended: &[Ended], delete: bool, out: &mut Vec<u8>) {
        let mut command = self.begin_call(Script::Break, 1, 2 + 2 * ended.len(), out);
        command.arg(key).arg(keys::queue_name_of(key));
        command.number(u64::from(delete));
        for ended_lock in ended {
            command.arg(&ended_lock.value).arg(&ended_lock.record);
        }
    }

    fn acquire(&self, claim: &Claim, ttl: Duration, proposal: u64, out: &mut Vec<u8>) {
        if let Fairness::Fair(ticket) = claim.fairness() {
            self.acquire_fair(claim, ticket.as_deref(), ttl, proposal, out);
        } else if claim.fenced() {
            let mut command = self.begin_call(Script::Acquire, 1, 3, out);
            write_acquire_args(&mut command, claim, ttl, proposal);
        } else if self.is_checked() {
            let mut command = self.begin_call(Script::Classic, 1, 2, out);
            command.arg(claim.key()).arg(claim.token().to_hex());
            command.number(millis(ttl));
        } else {
            let mut command = Command::new(out, 6);
            command.arg("SET").arg(claim.key());
            command.arg(claim.token().to_hex());
            command.arg("NX").arg("PX").number(millis(ttl));
        }
    }

    fn confirm(&self, claim: &Claim, token: u64, out: &mut Vec<u8>) {
        let mut command = self.begin_call(Script::Confirm, 1, 2, out);
        command.arg(claim.key()).arg(claim.token().to_hex());
        command.number(token);
    }

    fn write(
        &self,
        claim: &Claim,
        token: u64,
        bytes: Option<&[u8]>,
        run: &ServerRun,
        out: &mut Vec<u8>,
    ) {
        let args = 2 + usize::from(bytes.is_some());
        let mut command = self.begin_call(Script::Write, 1, args, out);
        command.arg(claim.key()).number(token).arg(run.as_str());
        if let Some(bytes) = bytes {
            command.arg(bytes);
        }
    }

    fn acquire_fair(
        &self,
        claim: &Claim,
        ticket: Option<&Ticket>,
        ttl: Duration,
        proposal: u64,
        out: &mut Vec<u8>,
    ) {
        let optional_args = if ticket.is_some() { 3 } else { 0 };
        let mut command = self.begin_call(Script::AcquireFair, 1, 3 + optional_args, out);
        write_acquire_args(&mut command, claim, ttl, proposal);
        if let Some(ticket) = ticket {
            write_ticket(&mut command, ticket);
        }
    }

    /// Begins the call of a script for a group: writes the keys and the claim's token. `args` is the number of
    /// arguments, the token included. The caller adds one more argument per key: its mode (exclusive, shared, or
    /// owned).
    fn call_group<'a>(
        &self,
        script: Script,
        claim: &Claim,
        group: &Group,
        args: usize,
        out: &'a mut Vec<u8>,
    ) -> Command<'a> {
        let parts = group.parts();
        let mut command = self.begin_call(script, parts.len(), args + parts.len(), out);
        for part in parts {
            command.arg(&part.key);
        }
        command.arg(claim.token().to_hex());
        command
    }

    fn claim(&self, claim: &Claim, group: &Group, ttl: Duration, proposal: u64, out: &mut Vec<u8>) {
        let mut command = self.call_group(Script::Claim, claim, group, 7, out);
        command.number(millis(ttl)).number(proposal);
        match group.instead() {
            Some(instead) => command.arg(instead.to_hex()),
            None => command.arg(ABSENT),
        };
        match claim.ticket() {
            Some(ticket) => write_ticket(&mut command, ticket),
            None => command.arg(ABSENT).number(0).number(0),
        };
        write_modes(&mut command, group);
    }

    fn confirm_group(&self, claim: &Claim, group: &Group, token: u64, out: &mut Vec<u8>) {
        let mut command = self.call_group(Script::ConfirmGroup, claim, group, 2, out);
        command.number(token);
        write_modes(&mut command, group);
    }

    fn unclaim(&self, claim: &Claim, group: &Group, leave: bool, out: &mut Vec<u8>) {
        let mut command = self.call_group(Script::Unclaim, claim, group, 3, out);
        command.arg(claim.ticket().map_or(ABSENT, |ticket| &ticket.waiter));
        command.number(
            LEAVES_QUEUES_FLAG * u64::from(leave) + NOTED_FLAG * u64::from(claim.is_noted()),
        );
        write_modes(&mut command, group);
    }

    fn keep(&self, items: &[ExtendItem], out: &mut Vec<u8>) {
        let count = items.iter().map(|item| item.claim.keys().count()).sum();
        let mut command = self.begin_call(Script::Keep, count, 4 * count, out);
        for key in items.iter().flat_map(|item| item.claim.keys()) {
            command.arg(key);
        }
        for item in items {
            let claim = &item.claim;
            // If the claim was withdrawn, its release may already have been sent, and an extension would restore the
            // lock. So send the TTL 0: the script then skips this lock.
            let ttl = if claim.is_withdrawn() {
                WITHDRAWN_TTL
            } else {
                millis(item.ttl)
            };
            for mode in claim.modes() {
                command.arg(claim.token().to_hex()).number(ttl);
                command.arg(mode.encoded()).number(claim.number());
            }
        }
    }

    fn permit(
        &self,
        claim: &Claim,
        permit: &Permit,
        ttl: Duration,
        proposal: u64,
        out: &mut Vec<u8>,
    ) {
        let ticket = claim.ticket();
        let optional_args = if ticket.is_some() { 3 } else { 0 };
        let mut command = self.begin_call(Script::Permit, 1, 5 + optional_args, out);
        command.arg(permit.name()).arg(claim.token().to_hex());
        command.number(millis(ttl)).number(proposal);
        command.number(permit.slot().into());
        command.number(permit.permits().into());
        if let Some(ticket) = ticket {
            write_ticket(&mut command, ticket);
        }
    }

    fn release_permit(&self, claim: &Claim, permit: &Permit, leave: bool, out: &mut Vec<u8>) {
        let (ticket, has_note) = (claim.ticket(), claim.is_noted());
        // The optional arguments are positional: the waiter id, whether to leave the queue, whether a note was written.
        // If the third is needed, write all three.
        let queue_args = (ticket.is_some() || has_note).then(|| match ticket {
            Some(ticket) => (&*ticket.waiter, leave),
            None => (ABSENT, false),
        });
        let optional_args = 2 * usize::from(queue_args.is_some()) + usize::from(has_note);
        let mut command = self.begin_call(Script::ReleasePermit, 1, 2 + optional_args, out);
        command.arg(permit.name()).arg(claim.token().to_hex());
        command.number(permit.slot().into());
        if let Some((waiter, leave)) = queue_args {
            command.arg(waiter).number(u64::from(leave));
        }
        if has_note {
            command.number(1);
        }
    }

    fn release(&self, claim: &Claim, leave: bool, out: &mut Vec<u8>) {
        let (script, ticket) = match claim.fairness() {
            Fairness::Fair(ticket) => (Script::ReleaseFair, Some(ticket.as_deref())),
            Fairness::Unordered => (Script::Release, None),
        };
        let has_note = claim.is_noted();
        let queue_args = match ticket {
            Some(Some(ticket)) => Some((&*ticket.waiter, u64::from(leave))),
            // The optional arguments are positional: the waiter id, whether to leave the queue, whether a note was
            // written. If the third is needed, write all three.
            Some(None) if has_note => Some((ABSENT, 0)),
            _ => None,
        };
        let optional_args = 2 * usize::from(queue_args.is_some()) + usize::from(has_note);
        let mut command = self.begin_call(script, 1, 1 + optional_args, out);
        command.arg(claim.key()).arg(claim.token().to_hex());
        if let Some((waiter, leave)) = queue_args {
            command.arg(waiter).number(leave);
        }
        if has_note {
            command.number(1);
        }
    }

    fn extend(&self, items: &[ExtendItem], out: &mut Vec<u8>) {
        let count = items.len();
        let mut command = self.begin_call(Script::Extend, count, 2 * count, out);
        for item in items {
            command.arg(item.claim.key());
        }
        for item in items {
            // If the claim was withdrawn, its release may already have been sent, and an extension would restore the
            // lock. So send the TTL 0: the script then skips this lock.
            let is_active = !item.claim.is_withdrawn();
            let ttl = if is_active {
                millis(item.ttl)
            } else {
                WITHDRAWN_TTL
            };
            command.arg(item.claim.token().to_hex());
            if is_active && item.note {
                command.arg(format!("{WITH_NOTE}{ttl}"));
            } else {
                command.number(ttl);
            }
        }
    }

    fn note(&self, items: &[NoteItem], out: &mut Vec<u8>) {
        let count = items.iter().map(|item| item.claim.keys().count()).sum();
        let mut command = self.begin_call(Script::Note, count, 3 * count, out);
        for key in items.iter().flat_map(|item| item.claim.keys()) {
            command.arg(key);
        }
        for item in items {
            // If the claim was withdrawn, send an empty note: the script then writes no note after the release.
            let note = if item.claim.is_withdrawn() {
                ABSENT.to_owned()
            } else {
                with_start(item.since, &item.says)
            };
            for _ in item.claim.keys() {
                command.arg(item.claim.token().to_hex()).arg(&note);
                command.number(u64::from(item.announce));
            }
        }
    }
}

fn watch(key: &[u8], on: bool, out: &mut Vec<u8>) {
    let mut command = Command::new(out, 2);
    command.arg(if on { "SUBSCRIBE" } else { "UNSUBSCRIBE" });
    command.arg([LEADER_CHANNEL_PREFIX.as_bytes(), key].concat());
}

fn scan(page: &Page, out: &mut Vec<u8>) {
    let mut command = Command::new(out, 8);
    command.arg("SCAN").number(page.cursor);
    command.arg("MATCH").arg(&page.pattern);
    command.arg("COUNT").number(u64::from(page.count));
    command.arg("TYPE").arg("string");
}

/// Writes the arguments about a queued waiter: id, ticket and heartbeat.
fn write_ticket<'a, 'b>(command: &'a mut Command<'b>, ticket: &Ticket) -> &'a mut Command<'b> {
    let heartbeat = millis(ticket.heartbeat);
    command
        .arg(&*ticket.waiter)
        .number(ticket.number)
        .number(heartbeat)
}

fn write_modes(command: &mut Command<'_>, group: &Group) {
    for part in group.parts() {
        command.arg(part.mode.encoded());
    }
}

/// Writes the first arguments of every fenced acquire: the key, the value, the TTL and the proposed fencing number.
fn write_acquire_args(command: &mut Command<'_>, claim: &Claim, ttl: Duration, proposal: u64) {
    command.arg(claim.key()).arg(claim.token().to_hex());
    command.number(millis(ttl)).number(proposal);
}

/// Converts a TTL to milliseconds, rounded up: a master must not delete a key earlier than the client assumes.
pub(super) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
