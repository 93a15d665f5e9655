//! Splits a request for several locks into several requests: one for each session that handles some of these locks. If
//! one lock makes the whole request fail, the request is split again: one request for each lock.

use std::sync::{Arc, Mutex, PoisonError};

use crate::node::{
    Answer, Claim, ExtendItem, Extended, Fault, NoteItem, Phase, Reply, ReplySink, Request,
};

/// One part of a request: the index of the session that sends it, the request, and the receiver of its answer. The
/// index is `None` if any session can send the request.
type Part = (Option<usize>, Request, Reply);

/// Splits an `Extend` or `Note` request into one request for each session with the master. `session_of` returns the
/// index of the session that handles a lock. Other requests are returned unchanged.
pub(in crate::node) fn split(
    request: Request,
    reply: Reply,
    mut session_of: impl FnMut(&Claim) -> usize,
) -> Vec<Part> {
    match request {
        Request::Extend { items } => {
            // A lock on several keys gets a result for each key.
            let keys = |item: &ExtendItem| item.claim.keys().count();
            let sessions = by_session(&items, keys, |item| session_of(&item.claim));
            parts(sessions, reply, Kind::Extend, |items| Request::Extend {
                items,
            })
        }
        Request::Note { items } => {
            let sessions = by_session(&items, |_| 1, |item: &NoteItem| session_of(&item.claim));
            parts(sessions, reply, Kind::Note, |items| Request::Note { items })
        }
        request => vec![(None, request, reply)],
    }
}

/// The items of a request that one session sends:
///
/// - the index of the session;
/// - the positions of the items' results in the answer to the whole request;
/// - the items.
type OfSession<T> = (usize, Vec<usize>, Vec<T>);

fn by_session<T: Clone>(
    items: &[T],
    answers: impl Fn(&T) -> usize,
    mut session_of: impl FnMut(&T) -> usize,
) -> Vec<OfSession<T>> {
    let mut sessions: Vec<OfSession<T>> = Vec::new();
    let mut next = 0;
    for item in items {
        let session = session_of(item);
        let here = next..next + answers(item);
        next = here.end;
        let known = sessions.iter_mut().find(|(known, ..)| *known == session);
        match known {
            Some((_, places, items)) => {
                places.extend(here);
                items.push(item.clone());
            }
            None => sessions.push((session, here.collect(), vec![item.clone()])),
        }
    }
    sessions
}

fn parts<T>(
    mut sessions: Vec<OfSession<T>>,
    reply: Reply,
    kind: Kind,
    request: impl Fn(Arc<[T]>) -> Request,
) -> Vec<Part> {
    if sessions.len() <= 1 {
        let session = sessions.pop();
        let (session, items) = session.map_or((None, Vec::new()), |(session, _, items)| {
            (Some(session), items)
        });
        return vec![(session, request(items.into()), reply)];
    }
    let places = sessions
        .iter()
        .map(|(_, places, _)| places.clone())
        .collect();
    let joined = Arc::new(Joined::new(kind, places, reply));
    let part = |(number, (session, _, items)): (usize, OfSession<T>)| {
        let reply = Reply::new(joined.clone(), number, Phase::Extend);
        (Some(session), request(items.into()), reply)
    };
    sessions.into_iter().enumerate().map(part).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Extend,
    Note,
}

/// Combines the answers to the parts of a split request into the answer to the whole request.
struct Joined {
    kind: Kind,
    /// For each part of the request, the positions of its results in the whole answer.
    places: Vec<Vec<usize>>,
    state: Mutex<State>,
}

struct State {
    open: usize,
    /// The results that have arrived, in the order of the whole answer. If a part of the request fails, its fault
    /// becomes the result of each lock of that part.
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
