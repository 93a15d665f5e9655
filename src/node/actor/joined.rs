//! Splits a message about many locks: by session, or into single locks.

use std::sync::{Arc, Mutex, PoisonError};

use crate::node::{
    Answer, Claim, ExtendItem, Extended, Fault, NoteItem, Phase, Reply, ReplySink, Request,
};

/// A part of a message: the session to send it through (if known), the request, and where its answer goes.
type Part = (Option<usize>, Request, Reply);

/// Splits a message by session. A message about one lock, or about all locks, stays as it is.
pub(in crate::node) fn split(
    request: Request,
    reply: Reply,
    mut lane: impl FnMut(&Claim) -> usize,
) -> Vec<Part> {
    match request {
        Request::Extend { items } => {
            // For a lock of several keys there is a reply for each key.
            let keys = |item: &ExtendItem| item.claim.keys().count();
            let lanes = by_lane(&items, keys, |item| lane(&item.claim));
            parts(lanes, reply, Kind::Extend, |items| Request::Extend {
                items,
            })
        }
        Request::Note { items } => {
            let lanes = by_lane(&items, |_| 1, |item: &NoteItem| lane(&item.claim));
            parts(lanes, reply, Kind::Note, |items| Request::Note { items })
        }
        request => vec![(None, request, reply)],
    }
}

/// The items for one session, and the positions of their answers in the whole answer.
type OfLane<T> = (usize, Vec<usize>, Vec<T>);

fn by_lane<T: Clone>(
    items: &[T],
    answers: impl Fn(&T) -> usize,
    mut lane: impl FnMut(&T) -> usize,
) -> Vec<OfLane<T>> {
    let mut lanes: Vec<OfLane<T>> = Vec::new();
    let mut next = 0;
    for item in items {
        let lane = lane(item);
        let here = next..next + answers(item);
        next = here.end;
        let known = lanes.iter_mut().find(|(known, ..)| *known == lane);
        match known {
            Some((_, places, items)) => {
                places.extend(here);
                items.push(item.clone());
            }
            None => lanes.push((lane, here.collect(), vec![item.clone()])),
        }
    }
    lanes
}

fn parts<T>(
    mut lanes: Vec<OfLane<T>>,
    reply: Reply,
    kind: Kind,
    request: impl Fn(Arc<[T]>) -> Request,
) -> Vec<Part> {
    if lanes.len() <= 1 {
        let lane = lanes.pop();
        let (lane, items) = lane.map_or((None, Vec::new()), |(lane, _, items)| (Some(lane), items));
        return vec![(lane, request(items.into()), reply)];
    }
    let places = lanes.iter().map(|(_, places, _)| places.clone()).collect();
    let joined = Arc::new(Joined::new(kind, places, reply));
    let part = |(number, (lane, _, items)): (usize, OfLane<T>)| {
        let reply = Reply::new(joined.clone(), number, Phase::Extend);
        (Some(lane), request(items.into()), reply)
    };
    lanes.into_iter().enumerate().map(part).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Extend,
    Note,
}

/// Assembles the answers of the parts.
struct Joined {
    kind: Kind,
    /// The positions of each part's answers.
    places: Vec<Vec<usize>>,
    state: Mutex<State>,
}

struct State {
    open: usize,
    /// The reply for each item so far; the items of a failed part get its fault.
    extended: Vec<Extended>,
    noted: Vec<bool>,
    answered: bool,
    fault: Option<Fault>,
    reply: Option<Reply>,
}

impl Joined {
    fn new(kind: Kind, places: Vec<Vec<usize>>, reply: Reply) -> Self {
        let items = places.iter().map(Vec::len).sum();
        let state = State {
            open: places.len(),
            extended: vec![Extended::Withdrawn; items],
            noted: vec![false; items],
            answered: false,
            fault: None,
            reply: Some(reply),
        };
        Self {
            kind,
            places,
            state: Mutex::new(state),
        }
    }
}

impl ReplySink for Joined {
    fn answered(&self, part: usize, _: Phase, answer: Result<Answer, Fault>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let places = self.places.get(part).into_iter().flatten();
        match answer {
            Ok(Answer::Extended(said)) => {
                state.answered = true;
                for (place, said) in places.zip(said) {
                    state.extended[*place] = said;
                }
            }
            Ok(Answer::Noted(said)) => {
                state.answered = true;
                for (place, said) in places.zip(said) {
                    state.noted[*place] = said;
                }
            }
            Ok(_) => {}
            Err(fault) => {
                for place in places.filter(|_| fault != Fault::Withdrawn) {
                    state.extended[*place] = Extended::Unknown(fault.clone());
                }
                state.fault = Some(fault);
            }
        }
        state.open -= 1;
        if state.open > 0 {
            return;
        }
        let reply = state.reply.take();
        let answer = match (state.answered, state.fault.take(), self.kind) {
            (false, Some(fault), _) => Err(fault),
            (_, _, Kind::Extend) => Ok(Answer::Extended(std::mem::take(&mut state.extended))),
            (_, _, Kind::Note) => Ok(Answer::Noted(std::mem::take(&mut state.noted))),
        };
        drop(state);
        if let Some(reply) = reply {
            reply.answer(answer);
        }
    }
}
