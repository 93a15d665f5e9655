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
pub(in crate::node) fn split_by_session(
    request: Request,
    reply: Reply,
    mut session_of: impl FnMut(&Claim) -> usize,
) -> Vec<Part> {
    match request {
        Request::Extend { items } => {
            // A lock on several keys gets a result for each key.
            let keys = |item: &ExtendItem| item.claim.keys().count();
            let sessions = group_by_session(&items, keys, |item| session_of(&item.claim));
            requests_of_sessions(sessions, reply, RequestKind::Extend, |items| {
                Request::Extend { items }
            })
        }
        Request::Note { items } => {
            let sessions =
                group_by_session(&items, |_| 1, |item: &NoteItem| session_of(&item.claim));
            requests_of_sessions(sessions, reply, RequestKind::Note, |items| Request::Note {
                items,
            })
        }
        request => vec![(None, request, reply)],
    }
}

/// The items of a request that one session sends:
///
/// - the index of the session;
/// - the positions of the items' results in the answer to the whole request;
/// - the items.
type SessionItems<T> = (usize, Vec<usize>, Vec<T>);

fn group_by_session<T: Clone>(
    items: &[T],
    answers: impl Fn(&T) -> usize,
    mut session_of: impl FnMut(&T) -> usize,
) -> Vec<SessionItems<T>> {
    let mut sessions: Vec<SessionItems<T>> = Vec::new();
    let mut next_position = 0;
    for item in items {
        let session = session_of(item);
        let item_positions = next_position..next_position + answers(item);
        next_position = item_positions.end;
        let entry = sessions.iter_mut().find(|(entry, ..)| *entry == session);
        match entry {
            Some((_, positions, items)) => {
                positions.extend(item_positions);
                items.push(item.clone());
            }
            None => sessions.push((session, item_positions.collect(), vec![item.clone()])),
        }
    }
    sessions
}

fn requests_of_sessions<T>(
    mut sessions: Vec<SessionItems<T>>,
    reply: Reply,
    kind: RequestKind,
    request: impl Fn(Arc<[T]>) -> Request,
) -> Vec<Part> {
    if sessions.len() <= 1 {
        let session = sessions.pop();
        let (session, items) = session.map_or((None, Vec::new()), |(session, _, items)| {
            (Some(session), items)
        });
        return vec![(session, request(items.into()), reply)];
    }
    let positions = sessions
        .iter()
        .map(|(_, positions, _)| positions.clone())
        .collect();
    let joined_reply = Arc::new(JoinedReply::new(kind, positions, reply));
    let part_request = |(part_index, (session, _, items)): (usize, SessionItems<T>)| {
        let reply = Reply::new(joined_reply.clone(), part_index, Phase::Extend);
        (Some(session), request(items.into()), reply)
    };
    sessions.into_iter().enumerate().map(part_request).collect()
}

#[derive(Clone, Copy)]
enum RequestKind {
    Extend,
    Note,
}

/// Combines the answers to the parts of a split request into the answer to the whole request.
struct JoinedReply {
    kind: RequestKind,
    /// For each part of the request, the positions of its results in the whole answer.
    positions: Vec<Vec<usize>>,
    state: Mutex<JoinState>,
}

struct JoinState {
    open_parts: usize,
    /// The results that have arrived, in the order of the whole answer. If a part of the request fails, its fault
    /// becomes the result of each lock of that part.
    extended: Vec<Extended>,
    noted: Vec<bool>,
    has_answer: bool,
    fault: Option<Fault>,
    reply: Option<Reply>,
}

impl JoinedReply {
    fn new(kind: RequestKind, positions: Vec<Vec<usize>>, reply: Reply) -> Self {
        let items = positions.iter().map(Vec::len).sum();
        let state = JoinState {
            open_parts: positions.len(),
            extended: vec![Extended::Withdrawn; items],
            noted: vec![false; items],
            has_answer: false,
            fault: None,
            reply: Some(reply),
        };
        Self {
            kind,
            positions,
            state: Mutex::new(state),
        }
    }
}

impl ReplySink for JoinedReply {
    fn answered(&self, part: usize, _: Phase, answer: Result<Answer, Fault>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let positions = self.positions.get(part).into_iter().flatten();
        match answer {
            Ok(Answer::Extended(results)) => {
                state.has_answer = true;
                for (position, result) in positions.zip(results) {
                    state.extended[*position] = result;
                }
            }
            Ok(Answer::Noted(results)) => {
                state.has_answer = true;
                for (position, result) in positions.zip(results) {
                    state.noted[*position] = result;
                }
            }
            Ok(_) => {}
            Err(fault) => {
                for position in positions.filter(|_| fault != Fault::Withdrawn) {
                    state.extended[*position] = Extended::Unknown(fault.clone());
                }
                state.fault = Some(fault);
            }
        }
        state.open_parts -= 1;
        if state.open_parts > 0 {
            return;
        }
        let reply = state.reply.take();
        let answer = match (state.has_answer, state.fault.take(), self.kind) {
            (false, Some(fault), _) => Err(fault),
            (_, _, RequestKind::Extend) => {
                Ok(Answer::Extended(std::mem::take(&mut state.extended)))
            }
            (_, _, RequestKind::Note) => Ok(Answer::Noted(std::mem::take(&mut state.noted))),
        };
        drop(state);
        if let Some(reply) = reply {
            reply.answer(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Token;

    /// Keeps the answer to a whole request.
    #[derive(Default)]
    struct WholeAnswer(Mutex<Option<Result<Answer, Fault>>>);

    impl ReplySink for WholeAnswer {
        fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
            *self.0.lock().expect("not poisoned") = Some(answer);
        }
    }

    /// Splits a request for the locks `a`, `b` and `c`: one session handles `a` and `c`, another one `b`. Answers the
    /// two parts, and returns the answer to the whole request.
    fn joined(
        request: impl Fn(Vec<Arc<Claim>>) -> Request,
        answers: [Result<Answer, Fault>; 2],
    ) -> Result<Answer, Fault> {
        let token = Token::from_bytes([1; 16]);
        let claim = |key: &[u8]| Arc::new(Claim::new("", key, token, true));
        let claims = [b"a", b"b", b"c"].map(|key| claim(key));
        let whole_answer = Arc::new(WholeAnswer::default());
        let reply = Reply::new(whole_answer.clone(), 0, Phase::Extend);
        let session_of = |claim: &Claim| usize::from(claim.key() == b"b");
        let parts = split_by_session(request(Vec::from(claims)), reply, session_of);
        assert_eq!(parts.len(), 2);
        for ((_, _, reply), answer) in parts.into_iter().zip(answers) {
            assert_eq!(*whole_answer.0.lock().expect("not poisoned"), None);
            reply.answer(answer);
        }
        let answer = whole_answer.0.lock().expect("not poisoned").take();
        answer.expect("all parts are answered")
    }

    #[test]
    fn results_of_a_split_note_request_are_in_the_order_of_its_locks() {
        let fault = || Err(Fault::OutOfMemory);
        for (answers, whole_answer) in [
            (
                [Ok(vec![true, false]), Ok(vec![true])],
                Ok([true, true, false]),
            ),
            ([Ok(vec![true, true]), fault()], Ok([true, false, true])),
            ([fault(), Ok(vec![true])], Ok([false, true, false])),
            ([Err(Fault::Stalled), fault()], Err(Fault::OutOfMemory)),
        ] {
            let request = |claims: Vec<Arc<Claim>>| {
                let item = |claim| NoteItem {
                    claim,
                    says: "x".into(),
                    since: 0,
                    announce: false,
                };
                Request::Note {
                    items: claims.into_iter().map(item).collect(),
                }
            };
            let case = format!("{answers:?}");
            let answers = answers.map(|answer| answer.map(Answer::Noted));
            let whole_answer = whole_answer.map(|noted| Answer::Noted(Vec::from(noted)));
            assert_eq!(joined(request, answers), whole_answer, "{case}");
        }
    }

    #[test]
    fn locks_of_a_failed_part_of_a_renewal_are_unknown_unless_they_were_withdrawn() {
        let unknown = || Extended::Unknown(Fault::OutOfMemory);
        let kept = || Ok(vec![Extended::Kept, Extended::NotOurs]);
        let fault = || Err(Fault::OutOfMemory);
        for (answers, whole_answer) in [
            (
                [kept(), Ok(vec![Extended::Restored])],
                Ok([Extended::Kept, Extended::Restored, Extended::NotOurs]),
            ),
            (
                [kept(), fault()],
                Ok([Extended::Kept, unknown(), Extended::NotOurs]),
            ),
            (
                [kept(), Err(Fault::Withdrawn)],
                Ok([Extended::Kept, Extended::Withdrawn, Extended::NotOurs]),
            ),
            (
                [fault(), Ok(vec![Extended::Kept])],
                Ok([unknown(), Extended::Kept, unknown()]),
            ),
            ([Err(Fault::Stalled), fault()], Err(Fault::OutOfMemory)),
        ] {
            let request = |claims: Vec<Arc<Claim>>| {
                let item = |claim| ExtendItem::new(claim, std::time::Duration::from_secs(1));
                Request::Extend {
                    items: claims.into_iter().map(item).collect(),
                }
            };
            let case = format!("{answers:?}");
            let answers = answers.map(|answer| answer.map(Answer::Extended));
            let whole_answer = whole_answer.map(|extended| Answer::Extended(Vec::from(extended)));
            assert_eq!(joined(request, answers), whole_answer, "{case}");
        }
    }

    fn extend_request(keys: &[&[u8]]) -> Request {
        let item = |key: &&[u8]| {
            let claim = Claim::new("", key, Token::from_bytes([1; 16]), true);
            ExtendItem::new(Arc::new(claim), std::time::Duration::from_secs(1))
        };
        Request::Extend {
            items: keys.iter().map(item).collect(),
        }
    }

    #[test]
    fn each_part_of_a_split_request_goes_to_the_session_of_its_locks() {
        let session_of = |claim: &Claim| if claim.key() == b"b" { 4 } else { 7 };
        for (keys, sessions) in [
            (&[&b"a"[..], b"b", b"c"][..], &[Some(7), Some(4)][..]),
            (&[b"b"], &[Some(4)]),
            (&[b"a", b"c"], &[Some(7)]),
            (&[], &[None]),
        ] {
            let parts = split_by_session(extend_request(keys), Reply::ignored(), session_of);
            let sessions_of_parts: Vec<_> = parts.iter().map(|(session, ..)| *session).collect();
            assert_eq!(sessions_of_parts, sessions, "{keys:?}");
        }
    }

    /// Not even an answer that no master gives is changed.
    #[test]
    fn answer_to_a_request_of_one_session_is_passed_on_unchanged() {
        let whole_answer = Arc::new(WholeAnswer::default());
        let reply = Reply::new(whole_answer.clone(), 0, Phase::Extend);
        let parts = split_by_session(extend_request(&[b"a", b"b"]), reply, |_| 0);
        assert_eq!(parts.len(), 1);
        for (_, _, reply) in parts {
            reply.answer(Ok(Answer::Watching));
        }
        let answer = whole_answer.0.lock().expect("not poisoned").take();
        assert_eq!(answer, Some(Ok(Answer::Watching)));
    }

    /// Receives a whole answer, and records whether another thread could use the joined reply at this moment.
    #[derive(Default)]
    struct LockObserver {
        joined: std::sync::OnceLock<Arc<JoinedReply>>,
        is_free: Mutex<Option<bool>>,
    }

    impl ReplySink for LockObserver {
        fn answered(&self, _: usize, _: Phase, _: Result<Answer, Fault>) {
            let joined = self.joined.get();
            let is_free = joined.map(|joined| joined.state.try_lock().is_ok());
            *self.is_free.lock().expect("not poisoned") = is_free;
        }
    }

    #[test]
    fn receiver_of_a_whole_answer_is_called_without_a_lock() {
        let observer = Arc::new(LockObserver::default());
        let reply = Reply::new(observer.clone(), 0, Phase::Extend);
        let joined = Arc::new(JoinedReply::new(RequestKind::Extend, vec![vec![0]], reply));
        assert!(observer.joined.set(joined.clone()).is_ok());
        let answer = Ok(Answer::Extended(vec![Extended::Kept]));
        joined.answered(0, Phase::Extend, answer);
        assert_eq!(*observer.is_free.lock().expect("not poisoned"), Some(true));
    }
}
