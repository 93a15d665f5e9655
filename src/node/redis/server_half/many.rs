//! Parses the calls of scripts that execute many requests, and writes the replies.

use super::arguments::{arc_claim, fenced_claim, flag, millis};
use super::write::{bulk, number, write_array};
use crate::node::numbers::parse_whole;
use crate::node::redis::layout::{AS_PROPOSED, DELETED, NOT_OURS, NOT_RELEASED, NOT_TRIED};
use crate::node::{Fairness, Request};

fn fairness(queues: bool) -> Fairness {
    if queues {
        Fairness::Fair(None)
    } else {
        Fairness::Unordered
    }
}

pub(super) fn acquire(keys: &[&[u8]], args: &[&[u8]]) -> Option<Vec<Request>> {
    let [ttl, queues, pairs @ ..] = args else {
        return None;
    };
    let (ttl, fairness) = (millis(ttl)?, fairness(flag(queues)?));
    let (pairs, []) = pairs.as_chunks::<2>() else {
        return None;
    };
    let to_request = |(key, [value, proposal]): (&&[u8], &[&[u8]; 2])| {
        Some(Request::Acquire {
            claim: arc_claim(fenced_claim(key, value, fairness.clone())?, false),
            ttl,
            proposal: parse_whole(proposal)?,
        })
    };
    keys.iter().zip(pairs).map(to_request).collect()
}

pub(super) fn release(keys: &[&[u8]], args: &[&[u8]]) -> Option<Vec<Request>> {
    let fairness = match args.get(keys.len()) {
        None => Fairness::Unordered,
        Some(queues) => fairness(flag(queues).filter(|queues| *queues)?),
    };
    let to_request = |(key, value): (&&[u8], &&[u8])| {
        Some(Request::Release {
            claim: arc_claim(fenced_claim(key, value, fairness.clone())?, false),
            leave: true,
        })
    };
    keys.iter().zip(args).map(to_request).collect()
}

/// Writes the reply to a command with many requests. `replies` contains, for each request, the reply that this request
/// would get if it were sent alone. The client sends a request with an error again, alone.
pub fn reply_to_many(requests: &[Request], replies: &[Vec<u8>], out: &mut Vec<u8>) {
    if let Some(Request::Release { .. }) = requests.first() {
        let sign_of_reply = |reply: &Vec<u8>| match reply.as_slice() {
            b":1\r\n" => DELETED,
            b":0\r\n" => NOT_OURS,
            _ => NOT_RELEASED,
        };
        let signs: Vec<u8> = replies.iter().map(sign_of_reply).collect();
        return bulk(Some(&signs), out);
    }
    write_array(replies.len(), out);
    for (request, reply) in requests.iter().zip(replies) {
        let proposed = match request {
            Request::Acquire { proposal, .. } => format!(":{proposal}\r\n"),
            _ => String::new(),
        };
        if reply.starts_with(b"-") {
            number(NOT_TRIED, out);
        } else if *reply == proposed.into_bytes() {
            number(AS_PROPOSED, out);
        } else {
            out.extend_from_slice(reply);
        }
    }
}
