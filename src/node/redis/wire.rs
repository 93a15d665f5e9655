//! Requests as commands, replies as answers, errors as faults.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::needs::Denied;
use super::raised::Raised;
use super::resp::{Command, Value};
use crate::keys::{self, LEADER, MASTERS};
use crate::node::actor::trust::Memory;
use crate::node::inspection::plain;
use crate::node::note::{NOTE_LIVES, NOTE_TOLD, dated};
use crate::node::{
    Answer, Claim, ExtendItem, Extended, Fairness, Fault, Group, Hold, KeyState, Mode, Note,
    NoteItem, Page, Permit, QueueInfo, Request, ServerRun, StoredValue, Ticket, Waiter,
};
use crate::protocol::mark::{Admission, Configuration, Mark};

/// How long a fencing counter outlives its last grant: a day, so that counters do not pile up. One that is ahead of the
/// master's clock is kept for as much longer as it is ahead: `scripts/fence/lives.lua`.
const FENCE_TTL: Duration = Duration::from_secs(86_400);

/// The scripts, in the order of [`Script`].
const SOURCES: [&str; 20] = [
    include_str!("../../scripts/acquire.lua"),
    include_str!("../../scripts/confirm.lua"),
    include_str!("../../scripts/release.lua"),
    include_str!("../../scripts/extend.lua"),
    include_str!("../../scripts/look.lua"),
    include_str!("../../scripts/break.lua"),
    include_str!("../../scripts/acquire_fair.lua"),
    include_str!("../../scripts/release_fair.lua"),
    include_str!("../../scripts/claim.lua"),
    include_str!("../../scripts/confirm_group.lua"),
    include_str!("../../scripts/unclaim.lua"),
    include_str!("../../scripts/keep.lua"),
    include_str!("../../scripts/read.lua"),
    include_str!("../../scripts/write.lua"),
    include_str!("../../scripts/permit.lua"),
    include_str!("../../scripts/release_permit.lua"),
    include_str!("../../scripts/note.lua"),
    include_str!("../../scripts/classic.lua"),
    include_str!("../../scripts/acquire_many.lua"),
    include_str!("../../scripts/release_many.lua"),
];

macro_rules! part {
    ($name:literal) => {
        (
            concat!("--+ ", $name, "\n"),
            include_str!(concat!("../../scripts/", $name)),
        )
    };
}

/// What several scripts share, put in where a line asks for it: a function would cost each call.
const PARTS: [(&str, &str); 20] = [
    part!("fence/read.lua"),
    part!("fence/again.lua"),
    // Has a part itself, which therefore comes behind it.
    part!("fence/raise.lua"),
    part!("fence/next.lua"),
    part!("fence/lives.lua"),
    part!("line/join.lua"),
    // As well.
    part!("line/first.lua"),
    part!("line/purge.lua"),
    // As well.
    part!("line/refused.lua"),
    // How many wait before it: all, where it stands in no line itself.
    part!("line/ahead.lua"),
    part!("many/call.lua"),
    part!("many/each.lua"),
    part!("many/lines.lua"),
    part!("many/seen.lua"),
    part!("mark/has.lua"),
    part!("mark/class.lua"),
    part!("note/forget.lua"),
    part!("note/said.lua"),
    part!("wake/readers.lua"),
    part!("value/read.lua"),
];

/// The scripts with their parts put in, in the order of [`Script`].
pub(super) fn sources() -> &'static [String; SOURCES.len()] {
    static WHOLE: LazyLock<[String; SOURCES.len()]> = LazyLock::new(|| SOURCES.map(with_parts));
    &WHOLE
}

pub(super) fn with_parts(source: &str) -> String {
    let put_in = |text: String, (line, part): &(&str, &str)| text.replace(line, part);
    keys::put_in(&PARTS.iter().fold(source.to_owned(), put_in))
}

#[derive(Clone, Copy)]
pub(super) enum Script {
    Acquire,
    Confirm,
    Release,
    Extend,
    Look,
    Break,
    AcquireFair,
    ReleaseFair,
    Claim,
    ConfirmGroup,
    Unclaim,
    Keep,
    Read,
    Write,
    Permit,
    ReleasePermit,
    Note,
    Classic,
    AcquireMany,
    ReleaseMany,
}

impl Script {
    /// The script that a request runs; the classic acquire and the commands of the server run none.
    fn of(request: &Request) -> Option<Self> {
        let fair = |claim: &Claim| matches!(claim.fairness(), Fairness::Fair(_));
        let grouped = |claim: &Claim| claim.group().is_some();
        Some(match request {
            Request::Acquire { claim, .. } if claim.permit().is_some() => Self::Permit,
            Request::Release { claim, .. } if claim.permit().is_some() => Self::ReleasePermit,
            Request::Acquire { claim, .. } if grouped(claim) => Self::Claim,
            Request::Confirm { claim, .. } if grouped(claim) => Self::ConfirmGroup,
            Request::Release { claim, .. } if grouped(claim) => Self::Unclaim,
            Request::Extend { items } if has_groups(items) => Self::Keep,
            Request::Acquire { claim, .. } if fair(claim) => Self::AcquireFair,
            Request::Acquire { claim, .. } if claim.fenced() => Self::Acquire,
            Request::Acquire { .. } | Request::List { .. } | Request::Watch { .. } => return None,
            Request::Confirm { .. } => Self::Confirm,
            Request::Release { claim, .. } if fair(claim) => Self::ReleaseFair,
            Request::Release { .. } => Self::Release,
            Request::Extend { .. } => Self::Extend,
            Request::Look { .. } => Self::Look,
            Request::Break { .. } => Self::Break,
            Request::Read { .. } => Self::Read,
            Request::Write { .. } => Self::Write,
            Request::Note { .. } => Self::Note,
        })
    }
}

/// The scripts that look at the mark of the masters: those that vote, and the one that writes a value.
const MARKED: [usize; 11] = [
    Script::Acquire as usize,
    Script::Confirm as usize,
    Script::Extend as usize,
    Script::AcquireFair as usize,
    Script::Claim as usize,
    Script::ConfirmGroup as usize,
    Script::Keep as usize,
    Script::Permit as usize,
    Script::Classic as usize,
    Script::AcquireMany as usize,
    Script::Write as usize,
];

/// The names under which a master knows the scripts.
#[derive(Clone, Default)]
pub(super) struct Scripts {
    shas: [Vec<u8>; SOURCES.len()],
    /// What the scripts of [`MARKED`] look at first, where they do.
    check: String,
}

/// The scripts that are loaded together, in the order of [`Script`]: those of the plain lock with every
/// connection, the others when they are first needed.
const SETS: [Range<usize>; 7] = [
    0..8,
    8..12,
    12..14,
    14..16,
    16..17,
    17..18,
    18..SOURCES.len(),
];

/// How the scripts say that a master is not for these clients.
const OTHER_MASTERS: &str = "quorate: masters ";

/// What stands in front of a script that votes, where the mark has to be one of those that admit this client. In a
/// connection that lasts, and behind a proxy, it is what stops a client that was admitted when it came.
fn check(configuration: Configuration) -> String {
    let mut wrong = String::from(if configuration.needs_no_mark() {
        "mark"
    } else {
        "true"
    });
    for mark in configuration.marks() {
        let _ = write!(wrong, " and mark ~= '{mark}'");
    }
    format!(
        "local mark = redis.call('GET', '{MASTERS}') if {wrong} then \
         return redis.error_reply('ERR {OTHER_MASTERS}' .. (mark or '-')) end "
    )
}

impl Scripts {
    /// Those of a client of masters that were never changed look at nothing: these clients are told by their handshake,
    /// and who closes their masters ends their connections. Nobody pays who never changes masters.
    pub(super) fn of(configuration: Configuration) -> Self {
        if configuration.step() == 0 {
            Self::default()
        } else {
            Self::checked(configuration)
        }
    }

    /// Those that look at the mark, whatever the step.
    pub(super) fn checked(configuration: Configuration) -> Self {
        Self {
            check: check(configuration),
            ..Self::default()
        }
    }

    /// The set that every connection begins with.
    pub(super) const PLAIN: usize = 0;

    /// The set for many requests at once.
    pub(super) const MANY: usize = 6;

    /// Writes the commands that load a set, with the deployment's constants in front of each script; says
    /// which scripts these are.
    pub(super) fn load(&self, set: usize, max_ttl: Duration, out: &mut Vec<u8>) -> Range<usize> {
        for script in SETS[set].clone() {
            let check = if MARKED.contains(&script) {
                &*self.check
            } else {
                ""
            };
            let source = &sources()[script];
            let source = format!(
                "{check}local MAX_TTL, FENCE_TTL, NOTE_LIVES, NOTE_TOLD = {}, '{}', {NOTE_LIVES}, {NOTE_TOLD}\n{source}",
                max_ttl.as_millis(),
                FENCE_TTL.as_millis()
            );
            Command::words(out, &["SCRIPT", "LOAD", &source]);
        }
        SETS[set].clone()
    }

    /// The set that a request needs and this connection has not loaded.
    pub(super) fn lacks(&self, request: &Request) -> Option<usize> {
        let script = self.script(request)? as usize;
        let missing = self.shas[script].is_empty();
        missing.then(|| SETS.iter().position(|set| set.contains(&script)))?
    }

    /// The script that a request runs on this connection.
    fn script(&self, request: &Request) -> Option<Script> {
        let classic = matches!(request, Request::Acquire { .. }) && !self.check.is_empty();
        Script::of(request).or(classic.then_some(Script::Classic))
    }

    pub(super) fn is_of_many(script: usize) -> bool {
        SETS[Self::MANY].contains(&script)
    }

    /// Whether this connection has loaded a set.
    pub(super) fn has(&self, set: usize) -> bool {
        self.shas[SETS[set].clone()]
            .iter()
            .all(|sha| !sha.is_empty())
    }

    /// The sets that this connection has loaded.
    pub(super) fn loaded_sets(&self) -> impl Iterator<Item = usize> {
        (0..SETS.len()).filter(|set| self.has(*set))
    }

    /// Reads one reply to [`load`](Self::load).
    pub(super) fn loaded(&mut self, index: usize, reply: &Value<'_>) -> Result<(), Fault> {
        match reply {
            Value::Bulk(sha) if sha.len() == 40 => self.shas[index] = sha.to_vec(),
            Value::Error(error) => return Err(server_fault(error)),
            _ => return Err(Fault::Server("no name for a script that was loaded".into())),
        }
        Ok(())
    }

    pub(super) fn call<'a>(
        &self,
        script: Script,
        keys: usize,
        args: usize,
        out: &'a mut Vec<u8>,
    ) -> Command<'a> {
        let mut command = Command::of(out, 3 + keys + args);
        command
            .arg("EVALSHA")
            .arg(&self.shas[script as usize])
            .number(keys as u64);
        command
    }

    /// Writes one request as one command, to this run of the server.
    pub(super) fn encode(&self, request: &Request, run: &ServerRun, out: &mut Vec<u8>) {
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => self.acquire(claim, *ttl, *proposal, out),
            Request::Confirm { claim, token } => {
                if let Some(group) = claim.group() {
                    return self.confirm_group(claim, group, *token, out);
                }
                let mut command = self.call(Script::Confirm, 1, 2, out);
                command.arg(claim.key()).arg(claim.token().to_hex());
                command.number(*token);
            }
            Request::Release { claim, leave } => self.release(claim, *leave, out),
            Request::Extend { items } if has_groups(items) => self.keep(items, out),
            Request::Extend { items } => self.extend(items, out),
            Request::Look { key } => self.look(Script::Look, key, out),
            Request::Break { key } => self.look(Script::Break, key, out),
            Request::Read { claim, token } => {
                let mut command = self.call(Script::Read, 1, 2, out);
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

    /// A look, or a break: of a slot with what names the line of its semaphore.
    fn look(&self, script: Script, key: &[u8], out: &mut Vec<u8>) {
        match keys::line_of(key) {
            Cow::Borrowed(_) => self.call(script, 1, 0, out).arg(key),
            Cow::Owned(line) => self.call(script, 1, 1, out).arg(key).arg(line),
        };
    }

    fn acquire(&self, claim: &Claim, ttl: Duration, proposal: u64, out: &mut Vec<u8>) {
        if let Some(permit) = claim.permit() {
            self.permit(claim, permit, ttl, proposal, out);
        } else if let Some(group) = claim.group() {
            self.claim(claim, group, ttl, proposal, out);
        } else if let Fairness::Fair(ticket) = claim.fairness() {
            self.acquire_fair(claim, ticket.as_deref(), ttl, proposal, out);
        } else if claim.fenced() {
            let mut command = self.call(Script::Acquire, 1, 3, out);
            bid(&mut command, claim, ttl, proposal);
        } else if !self.check.is_empty() {
            let mut command = self.call(Script::Classic, 1, 2, out);
            command.arg(claim.key()).arg(claim.token().to_hex());
            command.number(millis(ttl));
        } else {
            let mut command = Command::of(out, 6);
            command.arg("SET").arg(claim.key());
            command.arg(claim.token().to_hex());
            command.arg("NX").arg("PX").number(millis(ttl));
        }
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
        let mut command = self.call(Script::Write, 1, args, out);
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
        let extra = if ticket.is_some() { 3 } else { 0 };
        let mut command = self.call(Script::AcquireFair, 1, 3 + extra, out);
        bid(&mut command, claim, ttl, proposal);
        if let Some(ticket) = ticket {
            stand(&mut command, ticket);
        }
    }

    /// A script over all keys of a group, up to the value; `args` are its arguments but the modes.
    fn call_group<'a>(
        &self,
        script: Script,
        claim: &Claim,
        group: &Group,
        args: usize,
        out: &'a mut Vec<u8>,
    ) -> Command<'a> {
        let parts = group.parts();
        let mut command = self.call(script, parts.len(), args + parts.len(), out);
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
            None => command.arg(""),
        };
        match claim.ticket() {
            Some(ticket) => stand(&mut command, ticket),
            None => command.arg("").number(0).number(0),
        };
        modes(&mut command, group);
    }

    fn confirm_group(&self, claim: &Claim, group: &Group, token: u64, out: &mut Vec<u8>) {
        let mut command = self.call_group(Script::ConfirmGroup, claim, group, 2, out);
        command.number(token);
        modes(&mut command, group);
    }

    fn unclaim(&self, claim: &Claim, group: &Group, leave: bool, out: &mut Vec<u8>) {
        let mut command = self.call_group(Script::Unclaim, claim, group, 3, out);
        command.arg(claim.ticket().map_or("", |ticket| &ticket.waiter));
        command.number(u64::from(leave) + 2 * u64::from(claim.is_noted()));
        modes(&mut command, group);
    }

    fn keep(&self, items: &[ExtendItem], out: &mut Vec<u8>) {
        let count = items.iter().map(|item| item.claim.keys().count()).sum();
        let mut command = self.call(Script::Keep, count, 4 * count, out);
        for key in items.iter().flat_map(|item| item.claim.keys()) {
            command.arg(key);
        }
        for item in items {
            let claim = &item.claim;
            // As in EXTEND: a withdrawn one keeps its place, with nothing to do.
            let ttl = if claim.is_withdrawn() {
                0
            } else {
                millis(item.ttl)
            };
            let group = claim.group();
            let number = group.map_or(0, Group::number);
            let parts = group.map_or(&[][..], Group::parts);
            let modes = parts.iter().map(|part| mode(&part.mode));
            for mode in modes.chain(group.is_none().then(|| b"x".to_vec())) {
                command.arg(claim.token().to_hex()).number(ttl);
                command.arg(mode).number(number);
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
        let extra = if ticket.is_some() { 3 } else { 0 };
        let mut command = self.call(Script::Permit, 1, 5 + extra, out);
        command.arg(permit.name()).arg(claim.token().to_hex());
        command.number(millis(ttl)).number(proposal);
        command.number(permit.slot().into());
        command.number(permit.permits().into());
        if let Some(ticket) = ticket {
            stand(&mut command, ticket);
        }
    }

    fn release_permit(&self, claim: &Claim, permit: &Permit, leave: bool, out: &mut Vec<u8>) {
        let (ticket, noted) = (claim.ticket(), claim.is_noted());
        // The note is named behind a place.
        let place = (ticket.is_some() || noted).then(|| match ticket {
            Some(ticket) => (&*ticket.waiter, leave),
            None => ("", false),
        });
        let extra = 2 * usize::from(place.is_some()) + usize::from(noted);
        let mut command = self.call(Script::ReleasePermit, 1, 2 + extra, out);
        command.arg(permit.name()).arg(claim.token().to_hex());
        command.number(permit.slot().into());
        if let Some((waiter, leave)) = place {
            command.arg(waiter).number(u64::from(leave));
        }
        if noted {
            command.number(1);
        }
    }

    fn release(&self, claim: &Claim, leave: bool, out: &mut Vec<u8>) {
        if let Some(permit) = claim.permit() {
            return self.release_permit(claim, permit, leave, out);
        }
        if let Some(group) = claim.group() {
            return self.unclaim(claim, group, leave, out);
        }
        let (script, ticket) = match claim.fairness() {
            Fairness::Fair(ticket) => (Script::ReleaseFair, Some(ticket.as_deref())),
            Fairness::Unordered => (Script::Release, None),
        };
        let noted = claim.is_noted();
        let place = match ticket {
            Some(Some(ticket)) => Some((&*ticket.waiter, u64::from(leave))),
            // The note is named behind a place.
            Some(None) if noted => Some(("", 0)),
            _ => None,
        };
        let extra = 2 * usize::from(place.is_some()) + usize::from(noted);
        let mut command = self.call(script, 1, 1 + extra, out);
        command.arg(claim.key()).arg(claim.token().to_hex());
        if let Some((waiter, leave)) = place {
            command.arg(waiter).number(leave);
        }
        if noted {
            command.number(1);
        }
    }

    fn extend(&self, items: &[ExtendItem], out: &mut Vec<u8>) {
        let count = items.len();
        let mut command = self.call(Script::Extend, count, 2 * count, out);
        for item in items {
            command.arg(item.claim.key());
        }
        for item in items {
            // An extension behind a release would put the key back: a withdrawn one keeps its place, with
            // nothing to do.
            let wanted = !item.claim.is_withdrawn();
            let ttl = if wanted { millis(item.ttl) } else { 0 };
            command.arg(item.claim.token().to_hex());
            if wanted && item.note {
                command.arg(format!("-{ttl}"));
            } else {
                command.number(ttl);
            }
        }
    }

    fn note(&self, items: &[NoteItem], out: &mut Vec<u8>) {
        let count = items.iter().map(|item| item.claim.keys().count()).sum();
        let mut command = self.call(Script::Note, count, 3 * count, out);
        for key in items.iter().flat_map(|item| item.claim.keys()) {
            command.arg(key);
        }
        for item in items {
            // One behind a release would not be taken; it keeps its place, with nothing to do.
            let note = if item.claim.is_withdrawn() {
                String::new()
            } else {
                dated(item.since, &item.says)
            };
            for _ in item.claim.keys() {
                command.arg(item.claim.token().to_hex()).arg(&note);
                command.number(u64::from(item.announce));
            }
        }
    }
}

fn watch(key: &[u8], on: bool, out: &mut Vec<u8>) {
    let mut command = Command::of(out, 2);
    command.arg(if on { "SUBSCRIBE" } else { "UNSUBSCRIBE" });
    command.arg([LEADER.as_bytes(), key].concat());
}

fn scan(page: &Page, out: &mut Vec<u8>) {
    let mut command = Command::of(out, 8);
    command.arg("SCAN").number(page.cursor);
    command.arg("MATCH").arg(&page.pattern);
    command.arg("COUNT").number(u64::from(page.count));
    command.arg("TYPE").arg("string");
}

/// What a waiter says of its place in line.
fn stand<'a, 'b>(command: &'a mut Command<'b>, ticket: &Ticket) -> &'a mut Command<'b> {
    let heartbeat = millis(ticket.heartbeat);
    command
        .arg(&*ticket.waiter)
        .number(ticket.number)
        .number(heartbeat)
}

/// Whether some of these are not one key held exclusively.
fn has_groups(items: &[ExtendItem]) -> bool {
    items.iter().any(|item| item.claim.group().is_some())
}

/// How each key of a group is held.
fn modes(command: &mut Command<'_>, group: &Group) {
    for part in group.parts() {
        command.arg(mode(&part.mode));
    }
}

fn mode(mode: &Mode) -> Vec<u8> {
    match mode {
        Mode::Exclusive => b"x".to_vec(),
        Mode::Class(class) => class.marker(),
    }
}

/// What every scripted acquire says.
fn bid(command: &mut Command<'_>, claim: &Claim, ttl: Duration, proposal: u64) {
    command.arg(claim.key()).arg(claim.token().to_hex());
    command.number(millis(ttl)).number(proposal);
}

/// Whole milliseconds, rounded up: a master must never keep a key for less than we count on.
pub(super) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Why a reply is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The master said so.
    Fault(Fault),
    /// It cannot be the reply to this request, so what comes behind it may be off by one as well: the
    /// connection is of no more use.
    Odd(Fault),
}

impl NoAnswer {
    pub(super) fn odd() -> Self {
        Self::Odd(Fault::Server(
            "a reply that does not fit the request".into(),
        ))
    }
}

/// What a reply of a server with this memory means for its request.
pub(super) fn decode(
    request: &Request,
    value: &Value<'_>,
    memory: &Memory,
) -> Result<Answer, NoAnswer> {
    if let Value::Error(error) = value {
        return Err(NoAnswer::Fault(refused(Script::of(request), error)));
    }
    Ok(match (request, value) {
        (Request::Acquire { claim, .. }, value) => acquired(claim, value)?,
        (Request::Confirm { .. } | Request::Read { .. }, Value::Int(0)) => Answer::NotOurs,
        (Request::Confirm { .. }, Value::Int(1)) => Answer::Confirmed,
        (Request::Confirm { claim, .. }, Value::Int(-1)) if claim.group().is_some() => {
            Answer::NotAlone
        }
        (Request::Confirm { .. }, Value::Int(above)) => Answer::CounterAbove(counter(*above)?),
        (Request::Release { claim, .. }, Value::Int(deleted @ 0..))
            if usize::try_from(*deleted).is_ok_and(|deleted| deleted <= claim.keys().count()) =>
        {
            Answer::Released(*deleted > 0)
        }
        (Request::Extend { items }, Value::Bulk(said))
            if said.len() == items.iter().map(|item| item.claim.keys().count()).sum() =>
        {
            let said = said.iter().copied().map(extended).collect::<Option<_>>();
            Answer::Extended(said.ok_or_else(NoAnswer::odd)?)
        }
        (Request::Extend { items }, Value::Array(said))
            if said.len() == items.iter().map(|item| item.claim.keys().count()).sum() =>
        {
            let each = |said: &Value<'_>| match said {
                Value::Bulk([digit]) => extended(*digit),
                Value::Error(error) => Some(Extended::Unknown(refused(Script::of(request), error))),
                _ => None,
            };
            let said = said.iter().map(each).collect::<Option<_>>();
            Answer::Extended(said.ok_or_else(NoAnswer::odd)?)
        }
        (Request::Look { .. } | Request::Break { .. }, Value::Array(state)) => {
            Answer::State(key_state(state).ok_or_else(NoAnswer::odd)?)
        }
        (Request::Read { .. }, Value::Array(found)) => {
            let run = memory.run.clone();
            let stored = stored(found, memory)?;
            Answer::Value { run, stored }
        }
        (Request::Write { .. }, Value::Int(1)) => {
            let run = memory.run.clone();
            Answer::Written { run }
        }
        (Request::Read { .. } | Request::Write { .. }, Value::Int(above)) => {
            Answer::CounterAbove(counter(*above)?)
        }
        (Request::Note { items }, Value::Bulk(said)) => {
            noted(items, said).ok_or_else(NoAnswer::odd)?
        }
        (Request::List { .. }, Value::Array(page)) => listed(page).ok_or_else(NoAnswer::odd)?,
        (Request::Watch { .. }, Value::Push(_)) => Answer::Watching,
        _ => return Err(NoAnswer::odd()),
    })
}

/// The answer to an acquire: each kind of claim has its own.
pub(super) fn acquired(claim: &Claim, value: &Value<'_>) -> Result<Answer, NoAnswer> {
    let in_line = matches!(claim.fairness(), Fairness::Fair(_));
    if let Some(permit) = claim.permit() {
        return permitted(permit, value);
    }
    if claim.group().is_some() {
        return claimed(value);
    }
    match value {
        Value::Int(granted) if claim.fenced() || in_line => {
            let counter = Some(counter(*granted)?);
            return Ok(Answer::Granted { counter });
        }
        Value::Array(refused) if in_line => {
            if let [
                ttl @ Value::Int(_),
                Value::Int(_),
                Value::Int(_),
                Value::Bulk(_),
                // The note, where there is one.
                ..,
            ] = &refused[..]
                && refused.len() <= 5
            {
                let (ttl_left, line) = (as_millis(ttl), Some(Box::new(line(refused))));
                return Ok(Answer::Refused { ttl_left, line });
            }
        }
        Value::Array(refused) if claim.fenced() => {
            if let [ttl @ Value::Int(_), Value::Int(_)] = &refused[..] {
                let (ttl_left, line) = (as_millis(ttl), None);
                return Ok(Answer::Refused { ttl_left, line });
            }
        }
        Value::Simple(b"OK") if !claim.fenced() && !in_line => {
            return Ok(Answer::Granted { counter: None });
        }
        Value::Nil if !claim.fenced() && !in_line => {
            let (ttl_left, line) = (None, None);
            return Ok(Answer::Refused { ttl_left, line });
        }
        _ => {}
    }
    Err(NoAnswer::odd())
}

/// The answer to a claim of a slot.
fn permitted(permit: &Permit, value: &Value<'_>) -> Result<Answer, NoAnswer> {
    match value {
        Value::Int(granted) => {
            let counter = Some(counter(*granted)?);
            Ok(Answer::Granted { counter })
        }
        Value::Array(refused) => {
            let [
                Value::Bulk(free),
                ttl @ Value::Int(_),
                Value::Int(ahead @ 0..),
                Value::Int(ticket @ 0..),
            ] = &refused[..]
            else {
                return Err(NoAnswer::odd());
            };
            let line = QueueInfo {
                ahead: ahead.unsigned_abs(),
                ticket: ticket.unsigned_abs(),
                holder: None,
                free: free_slots(permit, free).ok_or_else(NoAnswer::odd)?,
                note: None,
            };
            let (ttl_left, line) = (as_millis(ttl), Some(Box::new(line)));
            Ok(Answer::Refused { ttl_left, line })
        }
        _ => Err(NoAnswer::odd()),
    }
}

/// The free slots as bits, from a digit of each.
fn free_slots(permit: &Permit, digits: &[u8]) -> Option<u64> {
    if digits.len() != usize::from(permit.permits()) {
        return None;
    }
    let bit = |(slot, digit): (usize, &u8)| match digit {
        b'0' => Some(0),
        b'1' => 1_u64.checked_shl(u32::try_from(slot).ok()?),
        _ => None,
    };
    digits.iter().enumerate().map(bit).sum()
}

/// The answer to a claim of a group.
fn claimed(value: &Value<'_>) -> Result<Answer, NoAnswer> {
    match value {
        Value::Int(granted) => {
            let counter = Some(counter(*granted)?);
            Ok(Answer::Granted { counter })
        }
        Value::Array(refused)
            if matches!(
                &refused[..],
                [
                    Value::Int(_),
                    Value::Int(_),
                    Value::Int(_),
                    Value::Bulk(_),
                    Value::Int(1..),
                    // The note, where there is one.
                    ..
                ]
            ) && refused.len() <= 6 =>
        {
            let (ttl_left, line) = (as_millis(&refused[0]), Some(Box::new(line(refused))));
            Ok(Answer::Refused { ttl_left, line })
        }
        _ => Err(NoAnswer::odd()),
    }
}

/// The largest counter that the scripts can count on: beyond it two neighbours are one number to
/// them, and two holders would get the same token.
const LARGEST_COUNTER: u64 = 1 << 53;

/// A fencing counter as a master says it. What cannot be one never becomes a token, and is no answer of
/// a script of ours (the simulation found two clients with one number behind it).
pub(super) fn counter(said: i64) -> Result<u64, NoAnswer> {
    let counter = u64::try_from(said).ok();
    let possible = counter.filter(|counter| (1..=LARGEST_COUNTER).contains(counter));
    possible.ok_or_else(|| {
        let why = format!("a fencing counter of {said}, which cannot be");
        NoAnswer::Odd(Fault::Server(why.into()))
    })
}

/// The value under a lock: `NUMBER RUN BYTES`, the bytes as they are.
fn stored(found: &[Value<'_>], memory: &Memory) -> Result<Option<StoredValue>, NoAnswer> {
    let text = match found {
        [Value::Nil] => return Ok(None),
        [Value::Bulk(text)] => text,
        _ => return Err(NoAnswer::odd()),
    };
    let mut parts = text.splitn(3, |byte| *byte == b' ');
    let (Some(number), Some(run), Some(bytes)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(NoAnswer::odd());
    };
    let number = std::str::from_utf8(number).ok();
    let number = number.and_then(|number| number.parse().ok());
    Ok(Some(StoredValue {
        number: counter(number.ok_or_else(NoAnswer::odd)?)?,
        bytes: bytes.to_vec(),
        vouched: memory.vouches_for(run),
    }))
}

fn extended(digit: u8) -> Option<Extended> {
    Some(match digit {
        b'0' => Extended::NotOurs,
        b'1' => Extended::Kept,
        b'2' => Extended::Restored,
        b'3' => Extended::Withdrawn,
        b'4' => Extended::Unnoted,
        b'5' => Extended::strange(),
        _ => return None,
    })
}

/// What the reply to a claim in order says of the line.
fn line(refused: &[Value<'_>]) -> QueueInfo {
    let number = |index: usize| match refused.get(index) {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    };
    let holder = match refused.get(3) {
        Some(Value::Bulk(value)) if !value.is_empty() => Some(value.to_vec()),
        _ => None,
    };
    QueueInfo {
        ahead: number(1),
        ticket: number(2),
        note: note(refused.get(4..).and_then(<[_]>::last), holder.as_deref()),
        holder,
        free: 0,
    }
}

/// What stands beside the lock of `holder`, where it is the holder's.
fn note(note: Option<&Value<'_>>, holder: Option<&[u8]>) -> Option<Note> {
    match note {
        Some(Value::Bulk(note)) => Note::read(note, holder?),
        _ => None,
    }
}

/// Which notes were written: of a lock on several keys all or none.
fn noted(items: &[NoteItem], mut said: &[u8]) -> Option<Answer> {
    let mut written = Vec::with_capacity(items.len());
    for item in items {
        let (digits, rest) = said.split_at_checked(item.claim.keys().count())?;
        written.push(digits.iter().all(|digit| *digit == b'1'));
        said = rest;
    }
    said.is_empty().then_some(Answer::Noted(written))
}

/// A page of keys, and where to go on.
fn listed(page: &[Value<'_>]) -> Option<Answer> {
    let [cursor, Value::Array(keys)] = page else {
        return None;
    };
    let cursor = std::str::from_utf8(cursor.text()?).ok()?.parse().ok()?;
    let keys = keys.iter().map(|key| Some(key.text()?.to_vec()));
    Some(Answer::Keys {
        cursor,
        keys: keys.collect::<Option<_>>()?,
    })
}

fn key_state(state: &[Value<'_>]) -> Option<KeyState> {
    let (holder, ttl, counter, line, lives, said) = match state {
        [
            holder,
            ttl,
            counter,
            Value::Array(line),
            Value::Array(lives),
            said @ ..,
        ] => (holder, ttl, counter, &line[..], &lives[..], said),
        // A break tells no line.
        [holder, ttl, counter, said @ ..] => (holder, ttl, counter, &[][..], &[][..], said),
        _ => return None,
    };
    if said.len() > 1 {
        return None;
    }
    let text = |value: &Value<'_>| match value {
        Value::Nil => Some(None),
        Value::Bulk(bytes) => Some(Some(bytes.to_vec())),
        _ => None,
    };
    let (holder, counter) = (text(holder)?, text(counter)?);
    let holds = match said.first() {
        Some(Value::Array(said)) => said.chunks(3).map(hold).collect::<Option<_>>()?,
        _ => Vec::new(),
    };
    Some(KeyState {
        note: note(said.first(), holder.as_deref()),
        term: said.first().and_then(|said| term(said, holder.as_deref())),
        holds,
        holder,
        ttl_left: as_millis(ttl),
        counter: counter.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()),
        queue: line.iter().zip(lives).map(waiter).collect::<Option<_>>()?,
    })
}

/// The term of an elected holder.
fn term(said: &Value<'_>, holder: Option<&[u8]>) -> Option<u64> {
    match said {
        Value::Bulk(note) => Note::term(note, holder?),
        _ => None,
    }
}

/// One hold of a class.
fn hold(said: &[Value<'_>]) -> Option<Hold> {
    let [Value::Bulk(value), lives @ Value::Int(_), said] = said else {
        return None;
    };
    Some(Hold {
        value: value.to_vec(),
        lives: as_millis(lives).unwrap_or_default(),
        note: note(Some(said), Some(value)),
    })
}

fn waiter((id, lives): (&Value<'_>, &Value<'_>)) -> Option<Waiter> {
    let id = String::from_utf8_lossy(id.text()?).into_owned();
    Some(Waiter::new(
        plain(&id),
        as_millis(lives).unwrap_or_default(),
    ))
}

/// A PTTL reply; negative means no expiry, or no key.
fn as_millis(value: &Value<'_>) -> Option<Duration> {
    match value {
        Value::Int(ms) => u64::try_from(*ms).ok().map(Duration::from_millis),
        _ => None,
    }
}

/// Whether the master has lost its scripts, by a restart or a SCRIPT FLUSH.
pub(super) fn is_noscript(value: &Value<'_>) -> bool {
    matches!(value, Value::Error(error) if error.starts_with(b"NOSCRIPT"))
}

/// A broken stream as a fault. Before a connection stands nothing was sent; later, what is open is
/// answered with [`Fault::Disconnected`].
pub(super) fn down(error: std::io::Error) -> Fault {
    Fault::Down(brief(&error.to_string()))
}

/// A server's error reply as a fault.
pub(super) fn server_fault(error: &[u8]) -> Fault {
    by_code(&String::from_utf8_lossy(error), None)
}

/// Whether the user may not use a key that the command itself names: the lock keys alone are.
pub(super) fn is_denied_key(error: &[u8]) -> bool {
    let text = String::from_utf8_lossy(error);
    text.starts_with("NOPERM ") && Denied::of(&text) == Denied::Key
}

/// An error reply to what ran this script as a fault.
pub(super) fn refused(script: Option<Script>, error: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(error);
    match script {
        _ if is_denied_key(error) => {
            Fault::Denied(brief(&format!("no right to use the lock key: {text}")))
        }
        script => by_code(&text, script.map(|script| &*sources()[script as usize])),
    }
}

/// Codes count where they stand in front, and nowhere else: behind it a server may quote anything.
fn by_code(text: &str, source: Option<&str>) -> Fault {
    let raised = Raised::read(text);
    let (code, rest) = raised.text.split_once(' ').unwrap_or((raised.text, ""));
    if let ("ERR", Some(mark)) = (code, rest.strip_prefix(OTHER_MASTERS)) {
        return Fault::OtherMasters(brief(mark));
    }
    match code {
        "WRONGTYPE" => Fault::WrongType,
        "LOADING" => Fault::Loading,
        "READONLY" => Fault::ReadOnly,
        "OOM" => Fault::OutOfMemory,
        "MISCONF" => Fault::Misconf,
        "BUSY" => Fault::Busy,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Fault::Denied(brief(raised.text)),
        _ => match raised.denied(source) {
            Some(why) => Fault::Denied(brief(&why)),
            None => Fault::Server(brief(text)),
        },
    }
}

/// Why a master with this mark gives no votes to this client, and what to do; none where it does.
pub(super) fn not_admitted(configuration: Configuration, mark: Option<Mark>) -> Option<Fault> {
    let at = match mark {
        Some(mark) => format!("at mark {}", mark.number),
        None => "without a mark".to_owned(),
    };
    let step = configuration.step();
    let why = match configuration.admission(mark) {
        Admission::Admitted => return None,
        Admission::Outdated => format!(
            "the masters have been changed: this one is {at}, and a client at step {step} has no votes there; name the \
             masters and the generation that are in force, see quorate masters status"
        ),
        Admission::Early => format!(
            "these masters are not open yet: this one is {at}, and a client at step {step} has no votes there; \
             quorate masters open opens them"
        ),
        Admission::Other => format!(
            "this one is {at} for other masters than this client was told: compare masters, next_masters and \
             masters_generation"
        ),
    };
    Some(Fault::OtherMasters(why.into()))
}

/// One short line: servers may put anything into an error text.
pub(super) fn brief(text: &str) -> Arc<str> {
    plain(text.lines().next().unwrap_or_default().trim()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Token;
    use crate::protocol::mark::Fingerprint;

    #[test]
    fn scripts_that_vote_or_write_look_at_the_mark_first_while_masters_change_and_never_else() {
        let print = |name| Fingerprint::of([name]);
        let loaded = |configuration: Configuration| {
            let (scripts, mut out) = (Scripts::of(configuration), Vec::new());
            for set in 0..SETS.len() {
                scripts.load(set, Duration::from_secs(30), &mut out);
            }
            String::from_utf8(out).expect("text")
        };
        let never = loaded(Configuration::new(0, print("a"), None));
        assert!(!never.contains(MASTERS), "{never}");
        let both = loaded(Configuration::new(0, print("a"), Some(print("b"))));
        assert_eq!(
            both.matches("if mark and mark ~= '0 ").count(),
            MARKED.len()
        );
        let next = loaded(Configuration::new(1, print("b"), None));
        assert_eq!(
            next.matches("if true and mark ~= '2 ").count(),
            MARKED.len()
        );
    }

    #[test]
    fn what_a_script_says_of_other_masters_is_known_again() {
        let error = b"ERR quorate: masters 2 0123456789abcdef";
        let said = Fault::OtherMasters("2 0123456789abcdef".into());
        assert_eq!(server_fault(error), said);
        assert!(matches!(
            server_fault(b"ERR x quorate: masters 2"),
            Fault::Server(_)
        ));
    }

    #[test]
    fn every_part_of_a_script_is_put_in() {
        let mut out = Vec::new();
        for set in 0..SETS.len() {
            Scripts::default().load(set, Duration::from_secs(30), &mut out);
        }
        let text = String::from_utf8(out).expect("text");
        assert!(!text.contains("--+"), "{text}");
        assert_eq!(text.matches("local fence = ").count(), 10);
        assert!(
            !text.contains("{fence}") && !text.contains("{shared}"),
            "{text}"
        );
        assert!(SETS.iter().flat_map(Clone::clone).eq(0..SOURCES.len()));
    }

    fn memory() -> Memory {
        Memory::of(Some("run"), false)
    }

    #[test]
    fn a_value_is_read_as_it_stands_and_nothing_else_is_taken_for_one() {
        let claim = Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true));
        let read = Request::Read { claim, token: 9 };
        let said = |text: &[u8]| decode(&read, &Value::Array(vec![Value::Bulk(text)]), &memory());
        let value = |number, bytes: &[u8], vouched| {
            let bytes = bytes.to_vec();
            let stored = Some(StoredValue {
                number,
                bytes,
                vouched,
            });
            let run = memory().run;
            Ok(Answer::Value { run, stored })
        };
        assert_eq!(said(b"7 run quota 3"), value(7, b"quota 3", true));
        assert_eq!(said(b"7 old \xff \r\n"), value(7, b"\xff \r\n", false));
        assert_eq!(said(b"7 run "), value(7, b"", true));
        for odd in [
            &b""[..],
            b"7",
            b"7 run",
            b"x run y",
            b"0 run y",
            b"-7 run y",
        ] {
            assert!(matches!(said(odd), Err(NoAnswer::Odd(_))), "{odd:?}");
        }
        let nothing = decode(&read, &Value::Array(vec![Value::Nil]), &memory());
        let run = memory().run;
        let stored = None;
        assert_eq!(nothing, Ok(Answer::Value { run, stored }));
    }

    fn claims() -> [Request; 3] {
        let claim = |fenced, order| {
            let claim = Claim::new("", b"job", Token::from_bytes([1; 16]), fenced);
            Request::Acquire {
                claim: Arc::new(claim.with_fairness(order)),
                ttl: Duration::from_secs(1),
                proposal: 7,
            }
        };
        [
            claim(false, Fairness::Unordered),
            claim(true, Fairness::Unordered),
            claim(true, Fairness::Fair(None)),
        ]
    }

    #[test]
    fn a_counter_that_cannot_be_is_no_answer_and_not_a_token() {
        let [_, fenced, fair] = claims();
        for request in [&fenced, &fair] {
            for odd in [0, -1, (1 << 53) + 1, i64::MAX, i64::MIN] {
                let said = decode(request, &Value::Int(odd), &memory());
                assert!(matches!(said, Err(NoAnswer::Odd(_))), "{odd}: {said:?}");
            }
            for counter in [1, 1 << 53] {
                let said = decode(request, &Value::Int(counter), &memory());
                let counter = Some(counter.unsigned_abs());
                assert_eq!(said, Ok(Answer::Granted { counter }));
            }
        }
    }

    #[test]
    fn the_answer_to_another_question_is_no_answer() {
        let [classic, fenced, fair] = claims();
        let error = Value::Error(b"ERR");
        let (ok, text) = (Value::Simple(b"OK"), Value::Bulk(b"1"));
        let two = Value::Array(vec![Value::Int(5), Value::Int(6)]);
        let four = Value::Array(vec![
            Value::Int(5),
            Value::Int(0),
            Value::Int(1),
            Value::Bulk(b"x"),
        ]);
        let nested = Value::Array(vec![Value::Int(5), error.clone()]);
        let key: Arc<[u8]> = b"job".as_slice().into();
        let look = Request::Look { key };
        for (request, wrong) in [
            (&classic, vec![&Value::Int(1), &text, &two, &nested]),
            (&fenced, vec![&Value::Nil, &ok, &text, &four, &nested]),
            (&fair, vec![&Value::Nil, &ok, &text, &two, &nested]),
            (&look, vec![&Value::Nil, &ok, &Value::Int(1), &two, &four]),
        ] {
            for value in wrong {
                let said = decode(request, value, &memory());
                assert_eq!(said, Err(NoAnswer::odd()), "{request:?}: {value:?}");
            }
            let said = decode(request, &error, &memory());
            assert!(matches!(said, Err(NoAnswer::Fault(_))), "{said:?}");
        }
        for (request, right) in [(&classic, &Value::Nil), (&fenced, &two), (&fair, &four)] {
            let said = decode(request, right, &memory());
            assert!(matches!(said, Ok(Answer::Refused { .. })), "{said:?}");
        }
    }

    #[test]
    fn what_a_server_says_does_not_reach_a_terminal_as_it_is() {
        let fault = server_fault(b"ERR \x1b[31mred\x07 \xc2\x9b2J\rover").to_string();
        assert!(!fault.chars().any(char::is_control), "{fault:?}");
        assert!(fault.contains("red"), "{fault:?}");
    }

    #[test]
    fn a_code_counts_in_front_of_an_error_and_nowhere_else() {
        for (text, kind) in [
            ("WRONGTYPE Operation against a key", "wrong_type"),
            (
                "OOM command not allowed script: 1, on @user_script:8.",
                "out_of_memory",
            ),
            (
                "NOPERM User u has no permissions to run the 'evalsha' command",
                "denied",
            ),
            (
                "ERR somebody's key is called NOPERM and WRONGTYPE x",
                "server_error",
            ),
            ("ERR quorate: ttl above max_ttl", "server_error"),
            (
                "BUSYGROUP Consumer Group name already exists",
                "server_error",
            ),
            ("", "server_error"),
            // Redis 6.2 wraps what a script raised, and that alone.
            (
                "ERR Error running script (call to f_1): @user_script:8: @user_script: 8: -READONLY You can't write",
                "read_only",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:8: WRONGTYPE Operation",
                "wrong_type",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:8: a value with OOM in it",
                "server_error",
            ),
        ] {
            assert_eq!(server_fault(text.as_bytes()).kind(), kind, "{text}");
        }
    }

    #[test]
    fn refused_permit_needs_one_digit_of_each_slot_and_reads_them_as_bits() {
        let permit = Permit::new(b"pool"[..].into(), 0, 3);
        let refused = |free: &'static [u8]| {
            let said = Value::Array(vec![
                Value::Bulk(free),
                Value::Int(250),
                Value::Int(2),
                Value::Int(7),
            ]);
            permitted(&permit, &said)
        };
        let line = QueueInfo {
            ahead: 2,
            ticket: 7,
            holder: None,
            free: 0b101,
            note: None,
        };
        let ttl_left = Some(Duration::from_millis(250));
        let line = Some(Box::new(line));
        assert_eq!(refused(b"101"), Ok(Answer::Refused { ttl_left, line }));
        for odd in [&b"10"[..], b"1010", b"1x1", b""] {
            assert_eq!(refused(odd), Err(NoAnswer::odd()), "{odd:?}");
        }
    }

    #[test]
    fn look_with_more_behind_it_than_one_note_is_no_answer() {
        let key: Arc<[u8]> = b"job".as_slice().into();
        let look = |said: &[Value<'static>]| {
            let none = || Value::Array(Vec::new());
            let mut state = vec![Value::Nil, Value::Int(-2), Value::Nil, none(), none()];
            state.extend_from_slice(said);
            let key = key.clone();
            decode(&Request::Look { key }, &Value::Array(state), &memory())
        };
        assert!(matches!(look(&[]), Ok(Answer::State(_))));
        assert!(matches!(look(&[Value::Nil]), Ok(Answer::State(_))));
        assert_eq!(look(&[Value::Nil, Value::Nil]), Err(NoAnswer::odd()));
    }
}
