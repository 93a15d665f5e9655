//! Sends many requests in one call of a script, and decodes the reply into an answer to each of them.

use std::time::Duration;

use super::decode::{NoAnswer, acquire_answer, counter};
use super::encode::millis;
use super::layout::{AS_PROPOSED, DELETED, NOT_OURS, NOT_RELEASED, NOT_TRIED};
use super::loaded::Scripts;
use super::refusal::reply_fault;
use super::resp::Value;
use super::runs::{Member, PlacedRequest, RunKind};
use super::script::Script;
use crate::node::actor::mailbox::Queued;
use crate::node::{Answer, Claim, Fairness, Fault, Request};

/// The smallest number of acquires for which one combined call is faster than single calls. The number is larger for
/// old Redis versions (before 7), because their calls with many arguments are slower.
pub(super) fn min_acquires(version: Option<&str>) -> usize {
    let major = version.and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 7) {
        3
    } else {
        8
    }
}

/// The claim of a request if it is for a plain lock, otherwise `None`. A combined call can take and release only plain
/// locks.
fn plain_claim(request: &Request) -> Option<&Claim> {
    match request {
        Request::Acquire { claim, .. }
        | Request::Confirm { claim, .. }
        | Request::Release { claim, .. }
        | Request::Read { claim, .. }
        | Request::Write { claim, .. } => claim.shape().is_plain().then_some(claim),
        Request::Extend { .. }
        | Request::Status { .. }
        | Request::Break { .. }
        | Request::Note { .. }
        | Request::List { .. }
        | Request::Watch { .. } => None,
    }
}

/// Whether the plain lock of this claim has a queue. `None` if a combined call cannot contain requests of this claim:
/// the claim has already queued with a ticket, or uses neither a queue nor a fencing counter.
fn has_queue(claim: &Claim) -> Option<bool> {
    match claim.fairness() {
        Fairness::Fair(None) => Some(true),
        Fairness::Unordered if claim.fenced() => Some(false),
        Fairness::Fair(Some(_)) | Fairness::Unordered => None,
    }
}

impl Member for Queued {
    fn kind(&self) -> RunKind {
        let claim = plain_claim(&self.request).filter(|_| !self.needs_own_call);
        let Some(has_queue) = claim.and_then(has_queue) else {
            return RunKind::Single;
        };
        match &self.request {
            Request::Acquire { ttl, .. } => RunKind::Acquire {
                has_queue,
                ttl: *ttl,
            },
            Request::Release { claim, .. } if !claim.is_noted() => RunKind::Release { has_queue },
            _ => RunKind::Single,
        }
    }

    fn key(&self) -> Option<&[u8]> {
        match &self.request {
            Request::Status { key } | Request::Break { key, .. } => Some(key),
            request => plain_claim(request).map(Claim::key),
        }
    }
}

impl Scripts {
    /// Writes the requests in `run` as one command. They are of one kind and for different locks.
    pub(super) fn encode_many(&self, placed_run: &[PlacedRequest<Queued>], out: &mut Vec<u8>) {
        // Write a command even if `is_noted` has become true since the release was queued: a reply will be expected.
        let before = out.len();
        if let [first, ..] = placed_run {
            match &first.member.request {
                Request::Acquire { claim, ttl, .. } => {
                    self.acquire_many(placed_run, claim.is_fair(), *ttl, out);
                }
                Request::Release { claim, .. } => {
                    self.release_many(placed_run, claim.is_fair(), out);
                }
                _ => {}
            }
        }
        debug_assert!(out.len() > before, "a command was written");
    }

    fn acquire_many(
        &self,
        run: &[PlacedRequest<Queued>],
        has_queue: bool,
        ttl: Duration,
        out: &mut Vec<u8>,
    ) {
        let count = run.len();
        let mut command = self.begin_call(Script::AcquireMany, count, 2 + 2 * count, out);
        for key in run.iter().filter_map(|placed| placed.member.key()) {
            command.arg(key);
        }
        command.number(millis(ttl)).number(u64::from(has_queue));
        for placed in run {
            if let Request::Acquire {
                claim, proposal, ..
            } = &placed.member.request
            {
                command.arg(claim.token().to_hex()).number(*proposal);
            }
        }
    }

    fn release_many(&self, run: &[PlacedRequest<Queued>], has_queue: bool, out: &mut Vec<u8>) {
        let count = run.len();
        let args = count + usize::from(has_queue);
        let mut command = self.begin_call(Script::ReleaseMany, count, args, out);
        for key in run.iter().filter_map(|placed| placed.member.key()) {
            command.arg(key);
        }
        for placed in run {
            if let Request::Release { claim, .. } = &placed.member.request {
                command.arg(claim.token().to_hex());
            }
        }
        if has_queue {
            command.number(1);
        }
    }
}

/// The answer to one request of a combined call. `None` if the script did not execute this request. The client then
/// sends the request as a separate command.
pub(super) type EachAnswer = Option<Result<Answer, Fault>>;

/// Writes the answer to each request of a combined call to `into`. Returns a fault if the reply is malformed; then the
/// content of `into` must not be used.
pub(super) fn decode_many(
    run: &[Queued],
    value: &Value<'_>,
    into: &mut Vec<EachAnswer>,
) -> Result<(), Fault> {
    into.clear();
    match value {
        // The user lacks the right to a key in the call. Send each request as a separate command, so that requests for
        // other keys do not fail too.
        Value::Error(error) if error.starts_with(b"NOPERM ") => {
            into.extend(run.iter().map(|_| None));
        }
        Value::Error(error) => into.extend(run.iter().map(|queued| {
            let script = match queued.request {
                Request::Release { .. } => Script::ReleaseMany,
                _ => Script::AcquireMany,
            };
            Some(Err(reply_fault(Some(script), error)))
        })),
        Value::Bulk(signs) if signs.len() == run.len() => {
            for (queued, sign) in run.iter().zip(signs.chunks(1)) {
                into.push(decode_reply(&queued.request, &Value::Bulk(sign))?);
            }
        }
        Value::Array(values) if values.len() == run.len() => {
            for (queued, value) in run.iter().zip(values) {
                into.push(decode_reply(&queued.request, value)?);
            }
        }
        _ => return Err(malformed_fault()),
    }
    Ok(())
}

fn decode_reply(request: &Request, value: &Value<'_>) -> Result<EachAnswer, Fault> {
    match request {
        Request::Acquire {
            claim, proposal, ..
        } => acquire_result(claim, *proposal, value),
        Request::Release { .. } => release_result(value),
        _ => Err(malformed_fault()),
    }
}

fn malformed_fault() -> Fault {
    Fault::Server("the reply does not fit the requests".into())
}

fn release_result(value: &Value<'_>) -> Result<EachAnswer, Fault> {
    Ok(match value {
        Value::Bulk([DELETED]) => Some(Ok(Answer::Released(true))),
        Value::Bulk([NOT_OURS]) => Some(Ok(Answer::Released(false))),
        Value::Bulk([NOT_RELEASED]) => None,
        Value::Error(error) => Some(Err(reply_fault(Some(Script::ReleaseMany), error))),
        _ => return Err(malformed_fault()),
    })
}

fn acquire_result(claim: &Claim, proposal: u64, value: &Value<'_>) -> Result<EachAnswer, Fault> {
    let answer = match value {
        Value::Int(NOT_TRIED) => return Ok(None),
        Value::Int(AS_PROPOSED) => {
            let proposed = i64::try_from(proposal).unwrap_or(i64::MAX);
            counter(proposed).map(|number| Answer::Granted {
                counter: Some(number),
            })
        }
        Value::Error(error) => Err(NoAnswer::Fault(reply_fault(
            Some(Script::AcquireMany),
            error,
        ))),
        value => acquire_answer(claim, value),
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
    use crate::node::redis::runs::RequestRuns;
    use crate::node::{Reply, Token};

    /// Decodes an error about one of two requests, which a line of the script raised. Returns the other answer, and for
    /// each line of the script whether the fault names the command in this line.
    fn faults_by_line(
        run: &[Queued],
        script: Script,
        other: &Value<'_>,
    ) -> (EachAnswer, Vec<bool>) {
        let mut answers = Vec::new();
        let is_named = named_lines(script, |error| {
            let values = vec![Value::Error(error), other.clone()];
            decode_many(run, &Value::Array(values), &mut answers).expect("two well-formed replies");
            answers[0].clone()
        });
        (answers.pop().flatten(), is_named)
    }

    /// Does the same for an error that ends the whole call. All requests get the same fault.
    fn lines_named_for_all(run: &[Queued], script: Script) -> Vec<bool> {
        let mut answers = Vec::new();
        named_lines(script, |error| {
            decode_many(run, &Value::Error(error), &mut answers).expect("an error is well-formed");
            assert_eq!(answers, vec![answers[0].clone(); run.len()]);
            answers[0].clone()
        })
    }

    /// Decodes an error that each line of the script may raise. Returns for each line whether the fault names the command
    /// in this line.
    fn named_lines(script: Script, mut decode: impl FnMut(&[u8]) -> EachAnswer) -> Vec<bool> {
        let lines = 1..=script.row().source.lines().count() + 1;
        let is_named = lines.map(|line| {
            let error =
                format!("ERR Unknown Redis command called from script, on @user_script:{line}.");
            let fault = decode(error.as_bytes()).and_then(Result::err);
            let fault = fault.expect("the reply is an error").to_string();
            fault.contains("does not have the command ")
        });
        is_named.collect()
    }

    #[test]
    fn fault_of_one_request_in_a_combined_call_names_the_command_that_the_server_lacks() {
        let claim = Claim::new("", b"r", Token::from_bytes([1; 16]), true);
        let claim = std::sync::Arc::new(claim);
        let acquire = || Request::Acquire {
            claim: claim.clone(),
            ttl: Duration::from_secs(1),
            proposal: 7,
        };
        let release = || Request::Release {
            claim: claim.clone(),
            leave: true,
        };
        let run_of = |request: &dyn Fn() -> Request| {
            [(); 2].map(|()| Queued::new(request(), Reply::ignored()))
        };
        let (run, counter) = (run_of(&acquire), Some(9));
        let (other, is_named) = faults_by_line(&run, Script::AcquireMany, &Value::Int(9));
        assert_eq!(other, Some(Ok(Answer::Granted { counter })));
        assert!(is_named.contains(&true) && is_named.contains(&false));
        assert_eq!(lines_named_for_all(&run, Script::AcquireMany), is_named);
        let run = run_of(&release);
        let (other, is_named) =
            faults_by_line(&run, Script::ReleaseMany, &Value::Bulk(&[NOT_OURS]));
        assert_eq!(other, Some(Ok(Answer::Released(false))));
        assert!(is_named.contains(&true) && is_named.contains(&false));
        assert_eq!(lines_named_for_all(&run, Script::ReleaseMany), is_named);
    }

    #[test]
    fn combined_release_still_contains_each_lock_if_one_lock_gets_a_note() {
        let claims = [1, 2].map(|n| {
            let claim = Claim::new("", &[b'r', n], Token::from_bytes([n; 16]), true);
            std::sync::Arc::new(claim)
        });
        let (mut runs, mut placed) = (RequestRuns::new(3), Vec::new());
        for claim in &claims {
            let claim = claim.clone();
            let request = Request::Release { claim, leave: true };
            runs.add(Queued::new(request, Reply::ignored()), &mut placed);
        }
        runs.close(&mut placed);
        assert_eq!(placed[0].followers, 1);
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
