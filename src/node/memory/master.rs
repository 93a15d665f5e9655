//! The scripts' exact semantics without a server: a pure state machine over keys and a clock.

use std::collections::HashMap;
use std::time::Duration;

use crate::node::{Answer, Claim, ExtendItem, Extended, Fault, KeyState, Request};
use crate::protocol::fencing::PROPOSAL_SLACK_US;

/// How long a fencing counter outlives its last grant.
const FENCE_TTL_US: u64 = 86_400_000_000;

/// The keys of one master, and what each request does to them.
#[derive(Clone, Debug, Default)]
pub struct Master {
    keys: HashMap<Vec<u8>, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// Microseconds on the master's clock.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Vec<u8>),
    /// Any type that is not a string.
    Foreign,
}

type Outcome<T> = Result<T, Fault>;

impl Master {
    /// What the master answers to `request` when its clock shows `now` (microseconds).
    ///
    /// # Errors
    ///
    /// The fault that a real master's error would be, [`Fault::WrongType`] for example.
    pub fn apply(&mut self, now: u64, request: &Request) -> Outcome<Answer> {
        match request {
            Request::Acquire {
                claim,
                ttl,
                proposal,
            } => self.acquire(now, claim, *ttl, *proposal),
            Request::Confirm { claim, token } => self.confirm(now, claim, *token),
            Request::Release { claim } => self.release(now, claim),
            Request::Extend { items } => {
                let said = items.iter().map(|item| self.extend(now, item));
                Ok(Answer::Extended(said.collect()))
            }
            Request::Look { key } => Ok(Answer::State(self.look(now, key)?)),
            Request::Break { key } => {
                let was = self.look(now, key)?;
                self.keys.remove(&**key);
                Ok(Answer::State(was))
            }
        }
    }

    /// The number of keys that have not expired.
    pub fn len(&mut self, now: u64) -> usize {
        self.keys.retain(|_, entry| entry.lives(now));
        self.keys.len()
    }

    /// Whether no key is left.
    pub fn is_empty(&mut self, now: u64) -> bool {
        self.len(now) == 0
    }

    /// Puts a value of another type under `key`.
    pub fn put_foreign(&mut self, key: &[u8]) {
        self.keys.insert(
            key.to_vec(),
            Entry {
                value: Value::Foreign,
                expires: None,
            },
        );
    }

    /// Puts a string under `key`, as any other client might.
    pub fn put_text(&mut self, now: u64, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.set(now, key, value.to_vec(), ttl);
    }

    fn acquire(
        &mut self,
        now: u64,
        claim: &Claim,
        ttl: Duration,
        proposal: u64,
    ) -> Outcome<Answer> {
        if !claim.fenced() {
            // Literally SET NX PX: it does not look at what stands there.
            if self.entry(now, claim.key()).is_some() {
                return Ok(Answer::Refused { ttl_left: None });
            }
            self.set(now, claim.key(), claim.token().to_hex().to_vec(), Some(ttl));
            return Ok(Answer::Granted { counter: None });
        }
        let counter = self.counter(now, claim.key())?;
        match self.text(now, claim.key())? {
            Some(held) if held == claim.token().to_hex() => Ok(Answer::Granted {
                counter: Some(counter),
            }),
            Some(_) => Ok(Answer::Refused {
                ttl_left: self.ttl_left(now, claim.key()),
            }),
            None => {
                let slack = PROPOSAL_SLACK_US;
                let v = proposal
                    .clamp(now.saturating_sub(slack), now + slack)
                    .max(counter + 1);
                self.set_counter(now, claim.key(), v);
                self.set(now, claim.key(), claim.token().to_hex().to_vec(), Some(ttl));
                Ok(Answer::Granted { counter: Some(v) })
            }
        }
    }

    fn confirm(&mut self, now: u64, claim: &Claim, token: u64) -> Outcome<Answer> {
        if !self.is_ours(now, claim)? {
            return Ok(Answer::NotOurs);
        }
        let counter = self.counter(now, claim.key())?;
        if counter > token {
            return Ok(Answer::CounterAbove(counter));
        }
        self.set_counter(now, claim.key(), token);
        Ok(Answer::Confirmed)
    }

    fn release(&mut self, now: u64, claim: &Claim) -> Outcome<Answer> {
        let ours = self.is_ours(now, claim)?;
        if ours {
            self.keys.remove(claim.key());
        }
        Ok(Answer::Released(ours))
    }

    fn extend(&mut self, now: u64, item: &ExtendItem) -> Extended {
        let claim = &item.claim;
        if claim.is_withdrawn() {
            return Extended::Withdrawn;
        }
        match self.text(now, claim.key()) {
            Ok(Some(held)) if held == claim.token().to_hex() => {
                let left = self.ttl_left(now, claim.key());
                if left.is_none_or(|left| left < item.ttl) {
                    self.set(
                        now,
                        claim.key(),
                        claim.token().to_hex().to_vec(),
                        Some(item.ttl),
                    );
                }
                Extended::Kept
            }
            Ok(None) => {
                self.set(
                    now,
                    claim.key(),
                    claim.token().to_hex().to_vec(),
                    Some(item.ttl),
                );
                Extended::Restored
            }
            Ok(Some(_)) | Err(_) => Extended::NotOurs,
        }
    }

    fn look(&mut self, now: u64, key: &[u8]) -> Outcome<KeyState> {
        let holder = self.text(now, key)?.map(<[u8]>::to_vec);
        let ttl_left = self.ttl_left(now, key);
        let counter = self.text(now, &fence_key(key))?.and_then(parse);
        Ok(KeyState {
            holder,
            ttl_left,
            counter,
        })
    }

    fn is_ours(&mut self, now: u64, claim: &Claim) -> Outcome<bool> {
        Ok(self.text(now, claim.key())? == Some(&claim.token().to_hex()[..]))
    }

    fn counter(&mut self, now: u64, key: &[u8]) -> Outcome<u64> {
        Ok(self
            .text(now, &fence_key(key))?
            .and_then(parse)
            .unwrap_or(0))
    }

    fn set_counter(&mut self, now: u64, key: &[u8], value: u64) {
        let ttl = Some(Duration::from_micros(FENCE_TTL_US));
        self.set(now, &fence_key(key), value.to_string().into_bytes(), ttl);
    }

    fn set(&mut self, now: u64, key: &[u8], value: Vec<u8>, ttl: Option<Duration>) {
        let expires = ttl.map(|ttl| now + u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX / 2));
        self.keys.insert(
            key.to_vec(),
            Entry {
                value: Value::Text(value),
                expires,
            },
        );
    }

    fn entry(&mut self, now: u64, key: &[u8]) -> Option<&Entry> {
        if self.keys.get(key).is_some_and(|entry| !entry.lives(now)) {
            self.keys.remove(key);
        }
        self.keys.get(key)
    }

    fn text(&mut self, now: u64, key: &[u8]) -> Outcome<Option<&[u8]>> {
        match self.entry(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Foreign) => Err(Fault::WrongType),
        }
    }

    fn ttl_left(&mut self, now: u64, key: &[u8]) -> Option<Duration> {
        let expires = self.entry(now, key)?.expires?;
        Some(Duration::from_micros(expires.saturating_sub(now)))
    }
}

impl Entry {
    fn lives(&self, now: u64) -> bool {
        self.expires.is_none_or(|at| now < at)
    }
}

fn fence_key(key: &[u8]) -> Vec<u8> {
    [crate::node::request::FENCE_PREFIX, key].concat()
}

fn parse(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
