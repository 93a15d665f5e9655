//! Requests as commands, replies as answers, errors as faults.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, ServerError, Value};

use crate::node::{Answer, Claim, Extended, Fault, KeyState, Line, Order, Place, Request, Waiter};

/// How long a fencing counter outlives its last grant: a day, so that counters do not pile up.
const FENCE_TTL: Duration = Duration::from_secs(86_400);

/// The scripts, in the order of [`Script`].
const SOURCES: [&str; 8] = [
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

/// The names under which a master knows the scripts.
#[derive(Clone, Default)]
pub(super) struct Scripts {
    shas: [Vec<u8>; SOURCES.len()],
}

impl Scripts {
    pub(super) const COUNT: usize = SOURCES.len();

    /// The commands that load all scripts, with the deployment's constants in front of each.
    pub(super) fn load(max_ttl: Duration) -> impl Iterator<Item = Cmd> {
        SOURCES.iter().map(move |source| {
            let mut cmd = redis::cmd("SCRIPT");
            cmd.arg("LOAD").arg(format!(
                "local MAX_TTL, FENCE_TTL = {}, '{}'\n{source}",
                max_ttl.as_millis(),
                FENCE_TTL.as_millis()
            ));
            cmd
        })
    }

    /// Reads the replies to [`load`](Self::load).
    pub(super) fn loaded(replies: &[Value]) -> Result<Self, Fault> {
        let mut scripts = Self::default();
        for (sha, reply) in scripts.shas.iter_mut().zip(replies) {
            match reply {
                Value::BulkString(bytes) => sha.clone_from(bytes),
                Value::ServerError(error) => return Err(server_fault(error)),
                _ => return Err(odd()),
            }
        }
        Ok(scripts)
    }

    fn call(&self, script: Script, keys: usize, args: usize) -> Cmd {
        let mut cmd = Cmd::with_capacity(3 + keys + args, 96 + 64 * (keys + args));
        cmd.arg("EVALSHA")
            .arg(&self.shas[script as usize][..])
            .arg(keys);
        cmd
    }

    /// One request as one command. `None` when nothing of it is left to send.
    pub(super) fn encode(&self, request: &Request) -> Option<Cmd> {
        if request.is_withdrawn() {
            return None;
        }
        Some(match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => {
                if let Order::Fair(place) = claim.order() {
                    self.acquire_fair(claim, place.as_ref(), *ttl, *proposal)
                } else if claim.fenced() {
                    self.acquire(Script::Acquire, claim, *ttl, *proposal)
                } else {
                    let mut cmd = Cmd::with_capacity(6, 64 + claim.key().len());
                    cmd.arg("SET")
                        .arg(claim.key())
                        .arg(&claim.token().to_hex()[..]);
                    cmd.arg("NX").arg("PX").arg(millis(*ttl));
                    cmd
                }
            }
            Request::Confirm { claim, token } => {
                let mut cmd = self.call(Script::Confirm, 1, 2);
                cmd.arg(claim.key())
                    .arg(&claim.token().to_hex()[..])
                    .arg(*token);
                cmd
            }
            Request::Release { claim, leave } => self.release(claim, *leave),
            Request::Extend { items } => {
                let count = items.len();
                let mut cmd = self.call(Script::Extend, count, 2 * count);
                for item in items.iter() {
                    cmd.arg(item.claim.key());
                }
                for item in items.iter() {
                    // An extension behind a release would put the key back: a withdrawn one
                    // keeps its place, with nothing to do.
                    let wanted = !item.claim.is_withdrawn();
                    let ttl = if wanted { millis(item.ttl) } else { 0 };
                    cmd.arg(&item.claim.token().to_hex()[..]).arg(ttl);
                }
                cmd
            }
            Request::Look { key } => self.look(Script::Look, key),
            Request::Break { key } => self.look(Script::Break, key),
        })
    }

    fn acquire(&self, script: Script, claim: &Claim, ttl: Duration, proposal: u64) -> Cmd {
        let mut cmd = self.call(script, 1, 6);
        cmd.arg(claim.key())
            .arg(&claim.token().to_hex()[..])
            .arg(millis(ttl))
            .arg(proposal);
        cmd
    }

    fn acquire_fair(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        ttl: Duration,
        proposal: u64,
    ) -> Cmd {
        let mut cmd = self.acquire(Script::AcquireFair, claim, ttl, proposal);
        if let Some(place) = place {
            cmd.arg(&*place.waiter)
                .arg(place.ticket)
                .arg(millis(place.heartbeat));
        }
        cmd
    }

    fn release(&self, claim: &Claim, leave: bool) -> Cmd {
        let (script, place) = match claim.order() {
            Order::Fair(place) => (Script::ReleaseFair, place.as_ref()),
            Order::Unordered => (Script::Release, None),
        };
        let mut cmd = self.call(script, 1, 3);
        cmd.arg(claim.key()).arg(&claim.token().to_hex()[..]);
        if let Some(place) = place {
            cmd.arg(&*place.waiter).arg(u8::from(leave));
        }
        cmd
    }

    fn look(&self, script: Script, key: &[u8]) -> Cmd {
        let mut cmd = self.call(script, 1, 0);
        cmd.arg(key);
        cmd
    }
}

/// Whole milliseconds, rounded up: a master must never keep a key for less than we count on.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What a reply means for its request.
pub(super) fn decode(request: &Request, value: Value) -> Result<Answer, Fault> {
    if let Value::ServerError(error) = &value {
        return Err(server_fault(error));
    }
    Ok(match (request, value) {
        (Request::Acquire { claim, .. }, Value::Int(counter)) if claim.fenced() => {
            Answer::Granted {
                counter: Some(counter.unsigned_abs()),
            }
        }
        (Request::Acquire { claim, .. }, Value::Array(refused)) => {
            let ttl_left = refused.first().and_then(as_millis);
            Answer::Refused {
                ttl_left,
                line: line(claim, &refused),
            }
        }
        (Request::Acquire { .. }, Value::Okay) => Answer::Granted { counter: None },
        (Request::Acquire { .. }, Value::Nil) => Answer::Refused {
            ttl_left: None,
            line: None,
        },
        (Request::Confirm { .. }, Value::Int(0)) => Answer::NotOurs,
        (Request::Confirm { .. }, Value::Int(1)) => Answer::Confirmed,
        (Request::Confirm { .. }, Value::Int(above)) => Answer::CounterAbove(above.unsigned_abs()),
        (Request::Release { .. }, Value::Int(deleted)) => Answer::Released(deleted > 0),
        (Request::Extend { items }, Value::BulkString(said)) if said.len() == items.len() => {
            Answer::Extended(said.into_iter().map(extended).collect())
        }
        (Request::Look { .. } | Request::Break { .. }, Value::Array(state)) => {
            Answer::State(key_state(&state))
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
fn line(claim: &Claim, refused: &[Value]) -> Option<Box<Line>> {
    let Order::Fair(_) = claim.order() else {
        return None;
    };
    let number = |index: usize| match refused.get(index) {
        Some(Value::Int(number)) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    };
    let holder = match refused.get(3) {
        Some(Value::BulkString(value)) if !value.is_empty() => Some(value.clone()),
        _ => None,
    };
    Some(Box::new(Line {
        ahead: number(1),
        ticket: number(2),
        holder,
    }))
}

fn key_state(state: &[Value]) -> KeyState {
    let bytes = |index: usize| match state.get(index) {
        Some(Value::BulkString(bytes)) => Some(bytes.clone()),
        _ => None,
    };
    let counter = bytes(2).and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
    let queue = match (state.get(3), state.get(4)) {
        (Some(Value::Array(line)), Some(Value::Array(lives))) => {
            line.iter().zip(lives).filter_map(waiter).collect()
        }
        _ => Vec::new(),
    };
    KeyState {
        holder: bytes(0),
        ttl_left: state.get(1).and_then(as_millis),
        counter,
        queue,
    }
}

fn waiter((id, lives): (&Value, &Value)) -> Option<Waiter> {
    let Value::BulkString(id) = id else {
        return None;
    };
    let id = String::from_utf8_lossy(id).into_owned();
    Some(Waiter::new(id, as_millis(lives).unwrap_or_default()))
}

/// A PTTL reply; negative means no expiry, or no key.
fn as_millis(value: &Value) -> Option<Duration> {
    match value {
        Value::Int(ms) => u64::try_from(*ms).ok().map(Duration::from_millis),
        _ => None,
    }
}

fn odd() -> Fault {
    Fault::Server("a reply that does not fit the request".into())
}

/// Whether the master has lost its scripts, by a restart or a SCRIPT FLUSH.
pub(super) fn is_noscript(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// A server's error reply as a fault.
pub(super) fn server_fault(error: &ServerError) -> Fault {
    by_code(error.code(), error.details().unwrap_or_default())
}

/// An error of the driver as a fault: of the connection, or what the server said in a handshake.
pub(super) fn driver_fault(error: &RedisError) -> Fault {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            Fault::Denied(brief(error.detail().unwrap_or("authentication failed")))
        }
        ErrorKind::RESP3NotSupported => {
            Fault::Server("RESP3 is not supported: Redis 6 or Valkey is needed".into())
        }
        _ => match error.code() {
            Some(code) => by_code(code, error.detail().unwrap_or_default()),
            None => Fault::Down(brief(&error.to_string())),
        },
    }
}

fn by_code(code: &str, details: &str) -> Fault {
    // Before Redis 7 an error inside a script is wrapped in an ERR with the code in its text.
    let is = |wanted: &str| code == wanted || details.contains(&format!("{wanted} "));
    let denied = ["NOAUTH", "WRONGPASS", "NOPERM"];
    if is("WRONGTYPE") {
        Fault::WrongType
    } else if is("LOADING") {
        Fault::Loading
    } else if is("READONLY") {
        Fault::ReadOnly
    } else if is("OOM") {
        Fault::OutOfMemory
    } else if is("MISCONF") {
        Fault::Misconf
    } else if is("BUSY") {
        Fault::Busy
    } else if denied.iter().any(|code| is(code)) {
        Fault::Denied(brief(&format!("{code} {details}")))
    } else {
        Fault::Server(brief(&format!("{code} {details}")))
    }
}

/// One short line: servers may put anything into an error text.
fn brief(text: &str) -> Arc<str> {
    let line = text.lines().next().unwrap_or_default().trim();
    line.chars().take(160).collect::<String>().into()
}
