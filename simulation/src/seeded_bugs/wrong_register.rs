//! Seeded bugs in the handling of values under locks. Masters read or write values wrongly, or a small client counts
//! votes wrongly. The correct variant of the client must break no rule.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, NewValue, Node, Phase, Request, ServerRun};
use quorate::{Instant, LockGuard};

use super::request_context::Outcome;
use super::votes::{Answers, Votes};
use crate::flaw::Flaw;
use crate::locker::{LocalFuture, ReadRecord, Register, key_of_place};

/// The content of a once-per-period record before the work of any period was done.
const EMPTY_RECORD: &[u8] = b"once never";

/// Returns the reply of a faulty master to a request about a value; `None` if the flaw does not change the reply.
pub(crate) fn execute_value_wrongly(
    flaw: Flaw,
    memory: &mut Master,
    now: u64,
    request: &Request,
) -> Option<Outcome> {
    match (flaw, request) {
        (Flaw::ReadNoRaise, Request::Read { claim, .. }) => {
            let counter_before = memory.peek(now, claim.key()).counter;
            let answer = memory.apply(now, request);
            if let (Ok(Answer::Value { .. }), Some(counter_before)) = (&answer, counter_before) {
                let counter_key = [b"quorate:fence:", claim.key()].concat();
                let day = Some(Duration::from_secs(86_400));
                memory.put_text(
                    now,
                    &counter_key,
                    counter_before.to_string().as_bytes(),
                    day,
                );
            }
            Some(answer)
        }
        (
            Flaw::BlindWrite,
            Request::Write {
                claim,
                token,
                value,
            },
        ) => {
            let answer = memory.apply(now, request);
            let (Ok(Answer::CounterAbove(_)), Some(bytes)) = (&answer, &value.bytes) else {
                return Some(answer);
            };
            let key = [b"quorate:value:", claim.key()].concat();
            let run = memory.run().clone();
            let prefix = format!("{token} {} ", run.as_str());
            let text = [prefix.as_bytes(), bytes].concat();
            memory.put_text(now, &key, &text, None);
            Some(Ok(Answer::Written { run }))
        }
        (Flaw::RemovedNowhere, Request::Write { value, .. }) if value.bytes.is_none() => {
            let run = memory.run().clone();
            Some(Ok(Answer::Written { run }))
        }
        _ => None,
    }
}

/// A small client that reads and writes the once-per-period record under a lock that the library holds.
pub(crate) struct WrongRegister {
    flaw: Flaw,
    nodes: Vec<Arc<dyn Node>>,
}

/// The value that one master has returned, and the fencing token under which it was written.
struct Vote {
    number: u64,
    bytes: Vec<u8>,
}

impl WrongRegister {
    pub(crate) fn new(flaw: Flaw, nodes: Vec<Arc<dyn Node>>) -> Option<Self> {
        let is_client_flaw = matches!(
            flaw,
            Flaw::SoundRegister
                | Flaw::SmallerNumberRead
                | Flaw::MissingIsInitial
                | Flaw::NoRunStamp
                | Flaw::WriteElsewhere
                | Flaw::LateRefill
        );
        is_client_flaw.then_some(Self { flaw, nodes })
    }

    fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn vote_of(&self, answer: &Answer) -> Option<Vote> {
        let Answer::Value { stored, .. } = answer else {
            return None;
        };
        match stored {
            Some(stored) if stored.trusted || self.flaw == Flaw::NoRunStamp => Some(Vote {
                number: stored.number,
                bytes: stored.bytes.clone(),
            }),
            None if self.flaw == Flaw::MissingIsInitial => Some(Vote {
                number: 0,
                bytes: EMPTY_RECORD.to_vec(),
            }),
            _ => None,
        }
    }

    fn usable_votes<'a>(&'a self, answers: &'a Answers) -> impl Iterator<Item = Vote> + 'a {
        answers
            .iter()
            .flatten()
            .flatten()
            .filter_map(|answer| self.vote_of(answer))
    }
}

impl Register for WrongRegister {
    fn read<'a>(
        &'a self,
        resource: u8,
        guard: &'a LockGuard,
    ) -> LocalFuture<'a, Option<Box<dyn ReadRecord + 'a>>> {
        Box::pin(async move {
            let token = guard.fencing_token()?;
            let claim = Arc::new(Claim::new(
                "",
                key_of_place(resource).as_bytes(),
                guard.token(),
                true,
            ));
            let read_votes = Votes::ask(&self.nodes, Phase::Value, |_| Request::Read {
                claim: claim.clone(),
                token,
            });
            let decided = |answers: &Answers| {
                let has_quorum = self.usable_votes(answers).count() >= self.quorum();
                (has_quorum || answers.iter().all(Option::is_some)).then(|| answers.clone())
            };
            let read = read_votes.wait_until(decided).await;
            let votes = || self.usable_votes(&read);
            if votes().count() < self.quorum() {
                return None;
            }
            let chosen = if self.flaw == Flaw::SmallerNumberRead {
                votes().min_by_key(|vote| vote.number)
            } else {
                votes().max_by_key(|vote| vote.number)
            };
            let record: Box<dyn ReadRecord + 'a> = Box::new(RecordUnderLock {
                register: self,
                claim,
                token,
                valid_until: guard.valid_until(),
                bytes: chosen?.bytes,
                answers: read,
            });
            Some(record)
        })
    }
}

/// A once-per-period record that this client has read.
struct RecordUnderLock<'a> {
    register: &'a WrongRegister,
    claim: Arc<Claim>,
    token: u64,
    valid_until: Instant,
    bytes: Vec<u8>,
    answers: Answers,
}

impl ReadRecord for RecordUnderLock<'_> {
    fn write_period<'a>(self: Box<Self>, period_start_us: u64) -> LocalFuture<'a, Option<bool>>
    where
        Self: 'a,
    {
        Box::pin(async move {
            let period_start = period_start_us / 1_000;
            let recorded = self.bytes.strip_prefix(b"once ")?;
            let last_period = std::str::from_utf8(recorded).ok()?.parse::<u64>();
            if last_period.is_ok_and(|last_period| period_start <= last_period) {
                return None;
            }
            let is_late = self.register.flaw == Flaw::LateRefill;
            let bytes: Arc<[u8]> = format!("once {period_start}").into_bytes().into();
            let nodes = &self.register.nodes;
            let votes = Votes::ask(nodes, Phase::Value, |node| Request::Write {
                claim: self.claim.clone(),
                token: self.token,
                value: Arc::new(NewValue {
                    bytes: Some(bytes.clone()),
                    until: if is_late {
                        self.valid_until + Duration::from_secs(10)
                    } else {
                        self.valid_until
                    },
                    run: self.run_id_of(node).filter(|_| !is_late),
                }),
            });
            let decided = |answers: &Answers| {
                let counted_votes =
                    answers
                        .iter()
                        .enumerate()
                        .filter(|(node, answer)| match answer {
                            Some(Ok(Answer::Written { run })) => self.counts_vote(*node, run),
                            _ => false,
                        });
                let has_quorum = counted_votes.count() >= self.register.quorum();
                (has_quorum || answers.iter().all(Option::is_some)).then_some(has_quorum)
            };
            Some(votes.wait_until(decided).await)
        })
    }
}

impl RecordUnderLock<'_> {
    /// Returns the run id of the master's server process; `None` if the master returned no value.
    fn run_id_of(&self, node: usize) -> Option<ServerRun> {
        match &self.answers[node] {
            Some(Ok(Answer::Value { run, .. })) => Some(run.clone()),
            _ => None,
        }
    }

    /// Whether the client counts the vote of this master for a write. `run` is the run id of the server process that
    /// executed the write.
    fn counts_vote(&self, node: usize, run: &ServerRun) -> bool {
        if matches!(self.register.flaw, Flaw::WriteElsewhere | Flaw::LateRefill) {
            return true;
        }
        let answers = self.answers[node].as_ref();
        let voted = answers.and_then(|answers| self.register.vote_of(answers.as_ref().ok()?));
        voted.is_some() && self.run_id_of(node).as_ref() == Some(run)
    }
}
