//! Sends many requests in one call of a script, and decodes the reply into an answer to each of them.

use std::time::Duration;

use super::decode::{NoAnswer, acquired, counter};
use super::encode::millis;
use super::layout::{AS_PROPOSED, DELETED, NOT_OURS, NOT_RELEASED, NOT_TRIED};
use super::loaded::Scripts;
use super::refusal::refused;
use super::resp::Value;
use super::runs::{Kind, Member, Placed};
use super::script::Script;
use crate::node::actor::mailbox::Queued;
use crate::node::{Answer, Claim, Fairness, Fault, Request};

/// The smallest number of acquires for which one combined call is faster than single calls. The number is larger for
/// old Redis versions (before 7), because their calls with many arguments are slower.
pub(super) fn least_acquires(version: Option<&str>) -> usize {
    let major = version.and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 7) {
        3
    } else {
        8
    }
}

/// The claim of a request if it is for a plain lock, otherwise `None`. A combined call can take and release only plain
/// locks.
fn plain(request: &Request) -> Option<&Claim> {
    match request {
        Request::Acquire { claim, .. }
        | Request::Confirm { claim, .. }
        | Request::Release { claim, .. }
        | Request::Read { claim, .. }
        | Request::Write { claim, .. } => claim.shape().is_plain().then_some(claim),
        Request::Extend { .. }
        | Request::Look { .. }
        | Request::Break { .. }
        | Request::Note { .. }
        | Request::List { .. }
        | Request::Watch { .. } => None,
    }
}

/// Whether the plain lock of this claim has a queue. `None` if a combined call cannot contain requests of this claim:
/// the claim has already queued with a ticket, or uses neither a queue nor a fencing counter.
fn lines(claim: &Claim) -> Option<bool> {
    match claim.fairness() {
        Fairness::Fair(None) => Some(true),
        Fairness::Unordered if claim.fenced() => Some(false),
        Fairness::Fair(Some(_)) | Fairness::Unordered => None,
    }
}

impl Member for Queued {
    fn kind(&self) -> Kind {
        let claim = plain(&self.request).filter(|_| !self.apart);
        let Some(lines) = claim.and_then(lines) else {
            return Kind::Single;
        };
        match &self.request {
            Request::Acquire { ttl, .. } => Kind::Acquire { lines, ttl: *ttl },
            Request::Release { claim, .. } if !claim.is_noted() => Kind::Release { lines },
            _ => Kind::Single,
        }
    }

    fn key(&self) -> Option<&[u8]> {
        match &self.request {
            Request::Look { key } | Request::Break { key, .. } => Some(key),
            request => plain(request).map(Claim::key),
        }
    }
}

impl Scripts {
    /// Writes the requests in `run` as one command. They are of one kind and for different locks.
    pub(super) fn encode_many(&self, run: &[Placed<Queued>], out: &mut Vec<u8>) {
        // Write a command even if `is_noted` has become true since the release was queued: a reply will be expected.
        let before = out.len();
        match run.first().map(|first| &first.member.request) {
            Some(Request::Acquire { claim, ttl, .. }) => {
                self.acquire_many(run, lines(claim).unwrap_or(false), *ttl, out);
            }
            Some(Request::Release { claim, .. }) => {
                self.release_many(run, lines(claim).unwrap_or(false), out);
            }
            _ => {}
        }
        debug_assert!(out.len() > before, "a command was written");
    }

    fn acquire_many(&self, run: &[Placed<Queued>], lines: bool, ttl: Duration, out: &mut Vec<u8>) {
        let count = run.len();
        let mut command = self.call(Script::AcquireMany, count, 2 + 2 * count, out);
        for key in run.iter().filter_map(|one| one.member.key()) {
            command.arg(key);
        }
        command.number(millis(ttl)).number(u64::from(lines));
        for one in run {
            if let Request::Acquire {
                claim, proposal, ..
            } = &one.member.request
            {
                command.arg(claim.token().to_hex()).number(*proposal);
            }
        }
    }

    fn release_many(&self, run: &[Placed<Queued>], lines: bool, out: &mut Vec<u8>) {
        let count = run.len();
        let args = count + usize::from(lines);
        let mut command = self.call(Script::ReleaseMany, count, args, out);
        for key in run.iter().filter_map(|one| one.member.key()) {
            command.arg(key);
        }
        for one in run {
            if let Request::Release { claim, .. } = &one.member.request {
                command.arg(claim.token().to_hex());
            }
        }
        if lines {
            command.number(1);
        }
    }
}

/// The answer to one request of a combined call. `None` if the script did not execute this request. The client then
/// sends the request as a separate command.
pub(super) type Each = Option<Result<Answer, Fault>>;

/// Writes the answer to each request of a combined call to `into`. Returns a fault if the reply is malformed; then the
/// content of `into` must not be used.
pub(super) fn decode_many(
    run: &[Queued],
    value: &Value<'_>,
    into: &mut Vec<Each>,
) -> Result<(), Fault> {
    into.clear();
    match value {
        // The user lacks the right to a key in the call. Send each request as a separate command, so that requests for
        // other keys do not fail too.
        Value::Error(error) if error.starts_with(b"NOPERM ") => {
            into.extend(run.iter().map(|_| None));
        }
        Value::Error(error) => into.extend(run.iter().map(|one| {
            let script = match one.request {
                Request::Release { .. } => Script::ReleaseMany,
                _ => Script::AcquireMany,
            };
            Some(Err(refused(Some(script), error)))
        })),
        Value::Bulk(signs) if signs.len() == run.len() => {
            for (one, sign) in run.iter().zip(signs.chunks(1)) {
                into.push(said(&one.request, &Value::Bulk(sign))?);
            }
        }
        Value::Array(values) if values.len() == run.len() => {
            for (one, value) in run.iter().zip(values) {
                into.push(said(&one.request, value)?);
            }
        }
        _ => return Err(malformed()),
    }
    Ok(())
}

fn said(request: &Request, value: &Value<'_>) -> Result<Each, Fault> {
    match request {
        Request::Acquire {
            claim, proposal, ..
        } => taken(claim, *proposal, value),
        Request::Release { .. } => released(value),
        _ => Err(malformed()),
    }
}

fn malformed() -> Fault {
    Fault::Server("the reply does not fit the requests".into())
}

fn released(value: &Value<'_>) -> Result<Each, Fault> {
    Ok(match value {
        Value::Bulk([DELETED]) => Some(Ok(Answer::Released(true))),
        Value::Bulk([NOT_OURS]) => Some(Ok(Answer::Released(false))),
        Value::Bulk([NOT_RELEASED]) => None,
        Value::Error(error) => Some(Err(refused(Some(Script::ReleaseMany), error))),
        _ => return Err(malformed()),
    })
}

fn taken(claim: &Claim, proposal: u64, value: &Value<'_>) -> Result<Each, Fault> {
    let answer = match value {
        Value::Int(NOT_TRIED) => return Ok(None),
        Value::Int(AS_PROPOSED) => {
            let proposed = i64::try_from(proposal).unwrap_or(i64::MAX);
            counter(proposed).map(|number| Answer::Granted {
                counter: Some(number),
            })
        }
        Value::Error(error) => Err(NoAnswer::Fault(refused(Some(Script::AcquireMany), error))),
        value => acquired(claim, value),
    };
    match answer {
        Ok(answer) => Ok(Some(Ok(answer))),
        Err(NoAnswer::Fault(fault)) => Ok(Some(Err(fault))),
        Err(NoAnswer::Malformed(fault)) => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::redis::runs::Runs;
    use crate::node::{Reply, Token};

    #[test]
    fn combined_release_still_contains_each_lock_if_one_lock_gets_a_note() {
        let claims = [1, 2].map(|n| {
            let claim = Claim::new("", &[b'r', n], Token::from_bytes([n; 16]), true);
            std::sync::Arc::new(claim)
        });
        let (mut runs, mut placed) = (Runs::new(3), Vec::new());
        for claim in &claims {
            let claim = claim.clone();
            let request = Request::Release { claim, leave: true };
            runs.add(Queued::new(request, Reply::ignored()), &mut placed);
        }
        runs.close(&mut placed);
        assert_eq!(placed[0].along, 1);
        // The claim gets a note after its release was queued, as if another thread wrote the note.
        claims[0].take_note();
        let mut out = Vec::new();
        Scripts::default().encode_many(&placed, &mut out);
        let written = String::from_utf8_lossy(&out);
        assert!(
            written.contains(
                str::from_utf8(&claims[1].token().to_hex()).expect("the digits must be text")
            ),
            "{written}"
        );
    }
}
