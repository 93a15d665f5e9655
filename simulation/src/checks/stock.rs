//! Values under locks, as their users see them (family, section 7): no piece of a quota is handed out twice, nor
//! one that was not there; a period is done at most once; what is left is never told too high, nor lower than
//! what was asked for can explain; what is lost hands out nothing any more.

use std::collections::HashMap;

use super::{Check, Moment};
use crate::facts::{Fact, Told};
use crate::kind::ValueStep;
use crate::scenario::Scenario;
use quorate::node::{Answer, Request};

#[derive(Default)]
pub(crate) struct Stock {
    /// By resource.
    quotas: HashMap<usize, Quota>,
    /// Who was given each piece, by what was left below it.
    taken: HashMap<(usize, u64), usize>,
    /// Who did each period, by what was written of it.
    done: HashMap<(usize, Vec<u8>), usize>,
    /// What was written on some master, by resource and number.
    written: HashMap<(usize, u64), Vec<u8>>,
    /// Values that were found lost or missing once they had been created.
    lost: HashMap<usize, u64>,
    created: HashMap<usize, u64>,
    /// What each task is at.
    asks: HashMap<usize, Ask>,
    judged: u64,
}

#[derive(Clone, Copy, Default)]
struct Quota {
    pieces: u64,
    /// How many were certainly taken.
    taken: u64,
    /// How many at the most: what was asked for, and not certainly left alone.
    asked: u64,
}

#[derive(Clone, Copy)]
struct Ask {
    verb: ValueStep,
    /// The event with which it began.
    began: u64,
    /// How many were certainly taken before.
    taken: u64,
}

impl Stock {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self::default()
    }

    fn asks(&mut self, began: u64, task: usize, resource: usize, verb: ValueStep) {
        let quota = self.quotas.entry(resource).or_default();
        let taken = quota.taken;
        match verb {
            ValueStep::Create(pieces) => quota.pieces = pieces.into(),
            ValueStep::Take(pieces) => quota.asked += u64::from(pieces),
            ValueStep::Left | ValueStep::Once | ValueStep::Turn => {}
        }
        self.asks.insert(task, Ask { verb, began, taken });
    }

    fn told(
        &mut self,
        now: u64,
        (client, resource): (usize, usize),
        ask: Ask,
        told: Told,
    ) -> Result<(), String> {
        let pieces = match ask.verb {
            ValueStep::Take(pieces) => u64::from(pieces),
            _ => 0,
        };
        let hands_out = matches!(told, Told::Taken(_) | Told::Due(_));
        let lost = self.lost.get(&resource);
        if hands_out && lost.is_some_and(|lost| *lost < ask.began) {
            return Err(format!(
                "client {client} is told {told:?} of r{resource}, which was lost before it asked"
            ));
        }
        let quota = self.quotas.entry(resource).or_default();
        if matches!(told, Told::Nothing | Told::Lost | Told::Left(_)) {
            quota.asked -= pieces;
        }
        match told {
            Told::Created => {
                self.created.insert(resource, now);
            }
            Told::Lost
                if self
                    .created
                    .get(&resource)
                    .is_some_and(|at| *at < ask.began) =>
            {
                self.lost.entry(resource).or_insert(now);
            }
            Told::Taken(left) => {
                quota.taken += pieces;
                self.took(client, resource, left, pieces)?;
                self.left(resource, ask, left + pieces)?;
            }
            Told::Left(left) => self.left(resource, ask, left)?,
            Told::Due(number) => self.did(client, resource, number)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether each piece is there and nobody's.
    fn took(
        &mut self,
        client: usize,
        resource: usize,
        left: u64,
        pieces: u64,
    ) -> Result<(), String> {
        self.judged += 1;
        let stock = self.quotas.get(&resource).map_or(0, |quota| quota.pieces);
        for piece in left..left + pieces {
            if piece >= stock {
                return Err(format!(
                    "client {client} took a piece of r{resource} that left {piece} of {stock}"
                ));
            }
            if let Some(other) = self.taken.insert((resource, piece), client) {
                return Err(format!(
                    "clients {other} and {client} both took the piece of r{resource} that left {piece}"
                ));
            }
        }
        Ok(())
    }

    /// Whether so many can have been left.
    fn left(&mut self, resource: usize, ask: Ask, left: u64) -> Result<(), String> {
        self.judged += 1;
        let quota = self.quotas.get(&resource).copied().unwrap_or_default();
        let most = quota.pieces.saturating_sub(ask.taken);
        let least = quota.pieces.saturating_sub(quota.asked);
        if left > most || left < least {
            return Err(format!(
                "{left} of r{resource} are said to be left, of {} of which {} had been taken and {} been asked for",
                quota.pieces, ask.taken, quota.asked
            ));
        }
        Ok(())
    }

    /// Whether a period is done for the first time.
    fn did(&mut self, client: usize, resource: usize, number: u64) -> Result<(), String> {
        self.judged += 1;
        let Some(period) = self.written.get(&(resource, number)) else {
            return Err(format!(
                "client {client} does r{resource} under {number}, which no master has written down"
            ));
        };
        let key = (resource, period.clone());
        match self.done.insert(key, client) {
            None => Ok(()),
            Some(other) => Err(format!(
                "clients {other} and {client} both do r{resource} in the period {:?}",
                String::from_utf8_lossy(period)
            )),
        }
    }
}

impl Check for Stock {
    const RULE: &'static str = "stock";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        if !at.promises.stock {
            return Ok(());
        }
        match fact {
            Fact::Asks {
                task,
                resource,
                verb,
            } => self.asks(at.event, *task, *resource, *verb),
            Fact::Told {
                client,
                task,
                resource,
                told,
            } => {
                if let Some(ask) = self.asks.remove(task) {
                    return self.told(at.event, (*client, *resource), ask, *told);
                }
            }
            Fact::Writes {
                resource,
                token,
                bytes,
            } => {
                self.written.insert((*resource, *token), bytes.to_vec());
            }
            Fact::Valued {
                resource,
                request: Request::Write { token, value, .. },
                answer: Ok(Answer::Written { .. }),
                ..
            } => {
                let bytes = value.bytes.as_deref().unwrap_or_default();
                self.written.insert((*resource, *token), bytes.to_vec());
            }
            _ => {}
        }
        Ok(())
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
