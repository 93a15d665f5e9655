//! Decodes the driver's commands that carry many requests in one script call, and encodes their replies.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Claim, Fairness, Request};

use super::words::{millis, number, token};

fn claim(key: &[u8], value: &[u8], lines: bool) -> Option<Arc<Claim>> {
    let fairness = if lines {
        Fairness::Fair(None)
    } else {
        Fairness::Unordered
    };
    let claim = Claim::new("", key, token(value)?, true);
    Some(Arc::new(claim.with_fairness(fairness)))
}

/// Decodes the arguments of the script that acquires many locks.
pub(super) fn asked(keys: &[&[u8]], args: &[&[u8]]) -> Option<Vec<Request>> {
    let [ttl, lines, pairs @ ..] = args else {
        return None;
    };
    let (ttl, lines): (Duration, _) = (millis(ttl), *lines == b"1");
    let one = |(key, pair): (&&[u8], &[&[u8]])| {
        Some(Request::Acquire {
            claim: claim(key, pair[0], lines)?,
            ttl,
            proposal: number(pair[1]),
        })
    };
    keys.iter().zip(pairs.chunks_exact(2)).map(one).collect()
}

/// Decodes the arguments of the script that releases many locks.
pub(super) fn released(keys: &[&[u8]], args: &[&[u8]]) -> Option<Vec<Request>> {
    let lines = args.len() > keys.len();
    let one = |(key, value): (&&[u8], &&[u8])| {
        Some(Request::Release {
            claim: claim(key, value, lines)?,
            leave: true,
        })
    };
    keys.iter().zip(args).map(one).collect()
}

/// Writes the reply to a script call that contains many requests. `each` contains, for each request, the reply that
/// this request would get if it were sent alone.
pub(super) fn reply(requests: &[Request], each: &[String], out: &mut String) {
    let releases = matches!(requests.first(), Some(Request::Release { .. }));
    if releases {
        let sign = |said: &String| match said.as_str() {
            ":1\r\n" => '1',
            ":0\r\n" => '0',
            _ => '-',
        };
        let signs: String = each.iter().map(sign).collect();
        write!(out, "${}\r\n{signs}\r\n", signs.len()).expect("writing to a string cannot fail");
        return;
    }
    write!(out, "*{}\r\n", each.len()).expect("writing to a string cannot fail");
    for (request, said) in requests.iter().zip(each) {
        let proposed = match request {
            Request::Acquire { proposal, .. } => format!(":{proposal}\r\n"),
            _ => String::new(),
        };
        out.push_str(match said {
            said if said.starts_with('-') => ":0\r\n",
            said if *said == proposed => ":-1\r\n",
            said => said,
        });
    }
}
