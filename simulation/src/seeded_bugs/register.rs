//! Seeded bugs in the handling of values under locks. Masters read or write values wrongly, or a small client counts
//! votes wrongly. The correct variant of the client must break no rule.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, NewValue, Node, Phase, Request, ServerRun};
use quorate::{Instant, LockGuard};

use super::Flaw;
use super::turn::Outcome;
use super::votes::{Answers, Votes};
use crate::locker::name;

/// The content of a once-per-period record before the work of any period was done.
const NEVER: &[u8] = b"once never";

/// Returns the reply of a faulty master to a request about a value; `None` if the flaw does not change the reply.
pub(crate) fn wrong_value(
    flaw: Flaw,
    memory: &mut Master,
    now: u64,
    request: &Request,
) -> Option<Outcome> {
    match (flaw, request) {
        (Flaw::ReadNoRaise, Request::Read { claim, .. }) => {
            let before = memory.peek(now, claim.key()).counter;
            let answer = memory.apply(now, request);
            if let (Ok(Answer::Value { .. }), Some(before)) = (&answer, before) {
                let fence = [b"quorate:fence:", claim.key()].concat();
                let day = Some(Duration::from_secs(86_400));
                memory.put_text(now, &fence, before.to_string().as_bytes(), day);
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
            let head = format!("{token} {} ", run.as_str());
            let text = [head.as_bytes(), bytes].concat();
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
    pub(crate) fn of(flaw: Flaw, nodes: Vec<Arc<dyn Node>>) -> Option<Self> {
        let of_client = matches!(
            flaw,
            Flaw::SoundRegister
                | Flaw::SmallerNumberRead
                | Flaw::MissingIsInitial
                | Flaw::NoRunStamp
                | Flaw::WriteElsewhere
                | Flaw::LateRefill
        );
        of_client.then_some(Self { flaw, nodes })
    }

    fn quorum(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn vote(&self, answer: &Answer) -> Option<Vote> {
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
                bytes: NEVER.to_vec(),
            }),
            _ => None,
        }
    }

    fn votes<'a>(&'a self, answers: &'a Answers) -> impl Iterator<Item = Vote> + 'a {
        let said = answers.iter().flatten().flatten();
        said.filter_map(|answer| self.vote(answer))
    }

    /// Reads the once-per-period record, and returns the content with the largest fencing token. Returns `None` if the
    /// lock has no fencing token, or if no majority of the masters has returned a usable content.
    pub(crate) async fn read<'a>(&'a self, resource: u8, guard: &LockGuard) -> Option<Known<'a>> {
        let token = guard.fencing_token()?;
        let claim = Claim::new("", name(resource).as_bytes(), guard.token(), true);
        let claim = Arc::new(claim);
        let votes = Votes::ask(&self.nodes, Phase::Value, |_| Request::Read {
            claim: claim.clone(),
            token,
        });
        let enough = |said: &Answers| {
            let found = self.votes(said).count() >= self.quorum();
            (found || said.iter().all(Option::is_some)).then(|| said.clone())
        };
        let read = votes.until(enough).await;
        let all = || self.votes(&read);
        if all().count() < self.quorum() {
            return None;
        }
        let known = if self.flaw == Flaw::SmallerNumberRead {
            all().min_by_key(|vote| vote.number)
        } else {
            all().max_by_key(|vote| vote.number)
        };
        Some(Known {
            register: self,
            claim,
            token,
            until: guard.valid_until(),
            bytes: known?.bytes,
            read,
        })
    }
}

/// A once-per-period record that the client has read and may write.
pub(crate) struct Known<'a> {
    register: &'a WrongRegister,
    claim: Arc<Claim>,
    token: u64,
    until: Instant,
    bytes: Vec<u8>,
    read: Answers,
}

impl Known<'_> {
    /// Records that the work of the period that began at `began_us` (microseconds) was done. Returns:
    ///
    /// - `None` if the record already contains this period or a later one, or if it is not a once-per-period record;
    /// - `Some(true)` if a majority of the masters has written the record;
    /// - `Some(false)` if no majority has written it.
    pub(crate) async fn record(self, began_us: u64) -> Option<bool> {
        let began = began_us / 1_000;
        let last = self.bytes.strip_prefix(b"once ")?;
        let last = std::str::from_utf8(last).ok()?.parse::<u64>();
        if last.is_ok_and(|last| began <= last) {
            return None;
        }
        let late = self.register.flaw == Flaw::LateRefill;
        let bytes: Arc<[u8]> = format!("once {began}").into_bytes().into();
        let nodes = &self.register.nodes;
        let votes = Votes::ask(nodes, Phase::Value, |node| Request::Write {
            claim: self.claim.clone(),
            token: self.token,
            value: Arc::new(NewValue {
                bytes: Some(bytes.clone()),
                until: if late {
                    self.until + Duration::from_secs(10)
                } else {
                    self.until
                },
                run: self.run(node).filter(|_| !late),
            }),
        });
        let written = |said: &Answers| {
            let counted = said.iter().enumerate().filter(|(node, said)| match said {
                Some(Ok(Answer::Written { run })) => self.counts(*node, run),
                _ => false,
            });
            let enough = counted.count() >= self.register.quorum();
            (enough || said.iter().all(Option::is_some)).then_some(enough)
        };
        Some(votes.until(written).await)
    }

    /// Returns the run id of the master's server process; `None` if the master returned no value.
    fn run(&self, node: usize) -> Option<ServerRun> {
        match &self.read[node] {
            Some(Ok(Answer::Value { run, .. })) => Some(run.clone()),
            _ => None,
        }
    }

    /// Whether the client counts the vote of this master for a write. `run` is the run id of the server process that
    /// executed the write.
    fn counts(&self, node: usize, run: &ServerRun) -> bool {
        if matches!(self.register.flaw, Flaw::WriteElsewhere | Flaw::LateRefill) {
            return true;
        }
        let said = self.read[node].as_ref();
        let voted = said.and_then(|said| self.register.vote(said.as_ref().ok()?));
        voted.is_some() && self.run(node).as_ref() == Some(run)
    }
}
