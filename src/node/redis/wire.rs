//! Requests as commands, replies as answers, errors as faults.

use std::sync::Arc;
use std::time::Duration;

use super::needs::Denied;
use super::raised::Raised;
use super::resp::{Command, Value};
use crate::node::{Answer, Claim, Extended, Fault, KeyState, Line, Order, Place, Request, Waiter};

/// How long a fencing counter outlives its last grant: a day, so that counters do not pile up.
const FENCE_TTL: Duration = Duration::from_secs(86_400);

/// The scripts, in the order of [`Script`].
pub(super) const SOURCES: [&str; 8] = [
    include_str!("../../scripts/acquire.lua"),
    include_str!("../../scripts/confirm.lua"),
    include_str!("../../scripts/release.lua"),
    include_str!("../../scripts/extend.lua"),
    include_str!("../../scripts/look.lua"),
    include_str!("../../scripts/break.lua"),
    include_str!("../../scripts/acquire_fair.lua"),
    include_str!("../../scripts/release_fair.lua"),
];

#[derive(Clone, Copy)]
enum Script {
    Acquire,
    Confirm,
    Release,
    Extend,
    Look,
    Break,
    AcquireFair,
    ReleaseFair,
}

impl Script {
    /// The script that a request runs; the classic acquire runs none.
    fn of(request: &Request) -> Option<Self> {
        let fair = |claim: &Claim| matches!(claim.order(), Order::Fair(_));
        Some(match request {
            Request::Acquire { claim, .. } if fair(claim) => Self::AcquireFair,
            Request::Acquire { claim, .. } if claim.fenced() => Self::Acquire,
            Request::Acquire { .. } => return None,
            Request::Confirm { .. } => Self::Confirm,
            Request::Release { claim, .. } if fair(claim) => Self::ReleaseFair,
            Request::Release { .. } => Self::Release,
            Request::Extend { .. } => Self::Extend,
            Request::Look { .. } => Self::Look,
            Request::Break { .. } => Self::Break,
        })
    }
}

/// The names under which a master knows the scripts.
#[derive(Clone, Default)]
pub(super) struct Scripts {
    shas: [Vec<u8>; SOURCES.len()],
}

impl Scripts {
    pub(super) const COUNT: usize = SOURCES.len();

    /// Writes the commands that load all scripts, with the deployment's constants in front of each.
    pub(super) fn load(max_ttl: Duration, out: &mut Vec<u8>) {
        for source in SOURCES {
            let source = format!(
                "local MAX_TTL, FENCE_TTL = {}, '{}'\n{source}",
                max_ttl.as_millis(),
                FENCE_TTL.as_millis()
            );
            Command::words(out, &["SCRIPT", "LOAD", &source]);
        }
    }

    /// Reads one reply to [`load`](Self::load).
    pub(super) fn loaded(&mut self, index: usize, reply: &Value<'_>) -> Result<(), Fault> {
        match reply {
            Value::Bulk(sha) => self.shas[index] = sha.to_vec(),
            Value::Error(error) => return Err(server_fault(error)),
            _ => return Err(odd()),
        }
        Ok(())
    }

    fn call<'a>(
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

    /// Writes one request as one command. False when nothing of it is left to send.
    pub(super) fn encode(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        if request.is_withdrawn() {
            return false;
        }
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => {
                if let Order::Fair(place) = claim.order() {
                    self.acquire_fair(claim, place.as_deref(), *ttl, *proposal, out);
                } else if claim.fenced() {
                    let mut command = self.call(Script::Acquire, 1, 3, out);
                    bid(&mut command, claim, *ttl, *proposal);
                } else {
                    let mut command = Command::of(out, 6);
                    command.arg("SET").arg(claim.key());
                    command.arg(claim.token().to_hex());
                    command.arg("NX").arg("PX").number(millis(*ttl));
                }
            }
            Request::Confirm { claim, token } => {
                let mut command = self.call(Script::Confirm, 1, 2, out);
                command.arg(claim.key()).arg(claim.token().to_hex());
                command.number(*token);
            }
            Request::Release { claim, leave } => self.release(claim, *leave, out),
            Request::Extend { items } => {
                let count = items.len();
                let mut command = self.call(Script::Extend, count, 2 * count, out);
                for item in items.iter() {
                    command.arg(item.claim.key());
                }
                for item in items.iter() {
                    // An extension behind a release would put the key back: a withdrawn one
                    // keeps its place, with nothing to do.
                    let wanted = !item.claim.is_withdrawn();
                    let ttl = if wanted { millis(item.ttl) } else { 0 };
                    command.arg(item.claim.token().to_hex()).number(ttl);
                }
            }
            Request::Look { key } => {
                self.call(Script::Look, 1, 0, out).arg(key);
            }
            Request::Break { key } => {
                self.call(Script::Break, 1, 0, out).arg(key);
            }
        }
        true
    }

    fn acquire_fair(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        ttl: Duration,
        proposal: u64,
        out: &mut Vec<u8>,
    ) {
        let extra = if place.is_some() { 3 } else { 0 };
        let mut command = self.call(Script::AcquireFair, 1, 3 + extra, out);
        bid(&mut command, claim, ttl, proposal);
        if let Some(place) = place {
            command.arg(&*place.waiter);
            command.number(place.ticket).number(millis(place.heartbeat));
        }
    }

    fn release(&self, claim: &Claim, leave: bool, out: &mut Vec<u8>) {
        let (script, place) = match claim.order() {
            Order::Fair(place) => (Script::ReleaseFair, place.as_deref()),
            Order::Unordered => (Script::Release, None),
        };
        let extra = if place.is_some() { 2 } else { 0 };
        let mut command = self.call(script, 1, 1 + extra, out);
        command.arg(claim.key()).arg(claim.token().to_hex());
        if let Some(place) = place {
            command.arg(&*place.waiter).number(u64::from(leave));
        }
    }
}

/// What every scripted acquire says.
fn bid(command: &mut Command<'_>, claim: &Claim, ttl: Duration, proposal: u64) {
    command.arg(claim.key()).arg(claim.token().to_hex());
    command.number(millis(ttl)).number(proposal);
}

/// Whole milliseconds, rounded up: a master must never keep a key for less than we count on.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What a reply means for its request.
pub(super) fn decode(request: &Request, value: &Value<'_>) -> Result<Answer, Fault> {
    if let Value::Error(error) = value {
        return Err(refused(request, error));
    }
    Ok(match (request, value) {
        (Request::Acquire { claim, .. }, Value::Int(counter)) if claim.fenced() => {
            Answer::Granted {
                counter: Some(counter.unsigned_abs()),
            }
        }
        (Request::Acquire { claim, .. }, Value::Array(refused)) => Answer::Refused {
            ttl_left: refused.first().and_then(as_millis),
            line: line(claim, refused),
        },
        (Request::Acquire { .. }, Value::Simple(b"OK")) => Answer::Granted { counter: None },
        (Request::Acquire { .. }, Value::Nil) => Answer::Refused {
            ttl_left: None,
            line: None,
        },
        (Request::Confirm { .. }, Value::Int(0)) => Answer::NotOurs,
        (Request::Confirm { .. }, Value::Int(1)) => Answer::Confirmed,
        (Request::Confirm { .. }, Value::Int(above)) => Answer::CounterAbove(above.unsigned_abs()),
        (Request::Release { .. }, Value::Int(deleted)) => Answer::Released(*deleted > 0),
        (Request::Extend { items }, Value::Bulk(said)) if said.len() == items.len() => {
            Answer::Extended(said.iter().copied().map(extended).collect())
        }
        (Request::Look { .. } | Request::Break { .. }, Value::Array(state)) => {
            Answer::State(key_state(state))
        }
        _ => return Err(odd()),
    })
}

fn extended(digit: u8) -> Extended {
    match digit {
        b'1' => Extended::Kept,
        b'2' => Extended::Restored,
        b'3' => Extended::Withdrawn,
        _ => Extended::NotOurs,
    }
}

/// What the reply to a claim in order says of the line.
fn line(claim: &Claim, refused: &[Value<'_>]) -> Option<Box<Line>> {
    let Order::Fair(_) = claim.order() else {
        return None;
    };
    let number = |index: usize| match refused.get(index) {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    };
    let holder = match refused.get(3) {
        Some(Value::Bulk(value)) if !value.is_empty() => Some(value.to_vec()),
        _ => None,
    };
    Some(Box::new(Line {
        ahead: number(1),
        ticket: number(2),
        holder,
    }))
}

fn key_state(state: &[Value<'_>]) -> KeyState {
    let bytes = |index: usize| match state.get(index) {
        Some(Value::Bulk(bytes)) => Some(*bytes),
        _ => None,
    };
    let counter = bytes(2).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let queue = match (state.get(3), state.get(4)) {
        (Some(Value::Array(line)), Some(Value::Array(lives))) => {
            line.iter().zip(lives).filter_map(waiter).collect()
        }
        _ => Vec::new(),
    };
    KeyState {
        holder: bytes(0).map(<[u8]>::to_vec),
        ttl_left: state.get(1).and_then(as_millis),
        counter,
        queue,
    }
}

fn waiter((id, lives): (&Value<'_>, &Value<'_>)) -> Option<Waiter> {
    let id = String::from_utf8_lossy(id.text()?).into_owned();
    Some(Waiter::new(id, as_millis(lives).unwrap_or_default()))
}

/// A PTTL reply; negative means no expiry, or no key.
fn as_millis(value: &Value<'_>) -> Option<Duration> {
    match value {
        Value::Int(ms) => u64::try_from(*ms).ok().map(Duration::from_millis),
        _ => None,
    }
}

fn odd() -> Fault {
    Fault::Server("a reply that does not fit the request".into())
}

/// Whether the master has lost its scripts, by a restart or a SCRIPT FLUSH.
pub(super) fn is_noscript(value: &Value<'_>) -> bool {
    matches!(value, Value::Error(error) if error.starts_with(b"NOSCRIPT"))
}

/// A broken stream as a fault. Before a connection stands nothing was sent; later, what is open is
/// answered with [`Fault::Disconnected`].
pub(super) fn down(error: std::io::Error) -> Fault {
    Fault::Down(error.to_string().into())
}

/// A server's error reply as a fault.
pub(super) fn server_fault(error: &[u8]) -> Fault {
    by_code(&String::from_utf8_lossy(error), None)
}

/// An error reply to `request` as a fault.
fn refused(request: &Request, error: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(error);
    match Script::of(request) {
        // The lock key alone is named in the command itself.
        _ if text.starts_with("NOPERM ") && Denied::of(&text) == Denied::Key => {
            Fault::Denied(brief(&format!("no right to use the lock key: {text}")))
        }
        script => by_code(&text, script.map(|script| SOURCES[script as usize])),
    }
}

/// Codes count where they stand in front, and nowhere else: behind it a server may quote anything.
fn by_code(text: &str, source: Option<&str>) -> Fault {
    let raised = Raised::read(text);
    let code = raised.text.split(' ').next().unwrap_or_default();
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

/// One short line: servers may put anything into an error text.
fn brief(text: &str) -> Arc<str> {
    let line = text.lines().next().unwrap_or_default().trim();
    line.chars().take(160).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
