//! The server half of the wire: parses the commands that the client half (`encode.rs`) writes, and writes the replies
//! that the client half (`decode.rs`) reads. The simulated server uses it.
//!
//! A test passes random requests and answers through both halves. The tests in `tests/contract/` compare the client half
//! with real servers.

mod arguments;
mod group;
mod many;
mod operator;
mod plain;
mod reply;
mod write;

pub use crate::node::age_call::AgeCall;
pub use many::reply_to_many;
pub use operator::OperatorCommand;
pub use reply::{error, reply};
pub use write::{announcement, bulk, number, subscribed, wake_up};

use super::layout::parse_age_call;
use super::resp::{self, Value};
use super::script::Script;
use crate::keys::LEADER_CHANNEL_PREFIX;
use crate::node::Request;
use crate::node::numbers::parse_whole;

/// The content of one command of a client.
#[derive(Clone, Debug)]
pub enum Received<'a> {
    /// One request.
    One(Request),
    /// Several acquires or several releases, in one call of a script. [`reply_to_many`] writes the reply.
    Many(Vec<Request>),
    /// A call of the script that raises the age record.
    Age(AgeCall<'a>),
}

/// Splits the first command in `bytes` into words. Returns the words, and the length of the command in bytes. `None` if
/// the command is incomplete or malformed.
pub fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let Ok(Some((Value::Array(words), len))) = resp::parse(bytes) else {
        return None;
    };
    let words = words.iter().map(Value::text).collect::<Option<_>>()?;
    Some((words, len))
}

/// Parses the words of a command. `script_of` returns the script that the server has loaded with a SHA1 digest. `None`
/// if the client half writes no such command for a request.
///
/// A parsed request contains only the parts that the command carries. For example, the prefix of each claim is empty.
pub fn received<'a>(
    words: &[&'a [u8]],
    script_of: impl FnOnce(&[u8]) -> Option<Script>,
) -> Option<Received<'a>> {
    let request = match words {
        [b"EVALSHA", sha, keys, rest @ ..] => {
            let keys = usize::try_from(parse_whole(keys)?).ok()?;
            let (keys, args) = rest.split_at_checked(keys)?;
            let script = script_of(sha)?;
            let is_accepted = script.accepts(keys.len(), args.len());
            return is_accepted.then(|| call(script, keys, args))?;
        }
        [b"SET", key, value, b"NX", b"PX", ttl] => plain::classic(key, &[value, ttl])?,
        [b"DELIFEQ", key, value] => plain::release(key, &[value])?,
        [b"SCAN", cursor, b"MATCH", pattern, b"COUNT", count, ..] => {
            plain::list(cursor, pattern, count)?
        }
        [kind @ (b"SUBSCRIBE" | b"UNSUBSCRIBE"), channel] => Request::Watch {
            key: channel
                .strip_prefix(LEADER_CHANNEL_PREFIX.as_bytes())?
                .into(),
            on: *kind == b"SUBSCRIBE",
        },
        _ => return None,
    };
    Some(Received::One(request))
}

/// Parses the keys and arguments of a script; `None` if they are malformed.
fn call<'a>(script: Script, keys: &[&[u8]], args: &[&'a [u8]]) -> Option<Received<'a>> {
    let key = keys.first().copied().unwrap_or_default();
    let request = match script {
        Script::Acquire => plain::acquire(key, args),
        Script::Classic => plain::classic(key, args),
        Script::AcquireFair => plain::acquire_fair(key, args),
        Script::Confirm => plain::confirm(key, args),
        Script::Release => plain::release(key, args),
        Script::ReleaseFair => plain::release_fair(key, args),
        Script::Extend => plain::extend(keys, args),
        Script::Status => plain::status(key, args),
        Script::Break => plain::force_release(key, args),
        Script::Note => plain::note(keys, args),
        Script::Read => plain::read(key, args),
        Script::Write => plain::write(key, args),
        Script::Claim => group::claim(keys, args),
        Script::ConfirmGroup => group::confirm(keys, args),
        Script::Unclaim => group::release(keys, args),
        Script::Keep => group::keep(keys, args),
        Script::Permit => plain::permit(key, args),
        Script::ReleasePermit => plain::release_permit(key, args),
        Script::AcquireMany => return many::acquire(keys, args).map(Received::Many),
        Script::ReleaseMany => return many::release(keys, args).map(Received::Many),
        Script::Age => return parse_age_call(args).map(Received::Age),
    };
    request.map(Received::One)
}

#[cfg(test)]
mod tests;
