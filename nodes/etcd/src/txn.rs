//! Writes the transactions of etcd, and reads their answers. No I/O.
//!
//! A batch of commits is one transaction, whose condition is the identity of the cluster. Each commit is a nested
//! transaction with its own conditions. So a stale commit does not prevent the others, and the whole batch costs one
//! round trip and one entry of the log.

use std::ops::Range;
use std::sync::Arc;

use quorate::node::Fault;
use quorate::node::store::{Change, Commit, Committed, NamedRecord, Record, encode_messages};
use serde_json::{Value, json};

use crate::fault::unreadable;
use crate::json;
use crate::layout::{IDENTITY_KEY, Layout};
use crate::versions::Versions;

/// The default of `--max-txn-ops`: the largest number of conditions or operations of a transaction, together with the
/// transactions inside it.
const MOST_OPERATIONS: usize = 128;
/// The largest size of a transaction in bytes, below the default of `--max-request-bytes` (1.5 MiB).
const MOST_BYTES: usize = 1_500_000;
/// The bytes that each key and value needs at most in addition.
const OVERHEAD: usize = 40;
/// The largest number of records that one transaction reads, changes or removes.
pub(crate) const MOST_RECORDS: usize = 64;

/// The condition that the cluster has this identity.
fn has_identity(identity: &str) -> Value {
    json!({
        "key": json::encode(IDENTITY_KEY),
        "target": "VALUE",
        "result": "EQUAL",
        "value": json::encode(identity.as_bytes()),
    })
}

/// A transaction that takes effect only if the cluster has this identity.
pub(crate) fn on_identity(identity: &str, operations: Vec<Value>) -> Value {
    json!({"compare": [has_identity(identity)], "success": operations})
}

/// The answers to the operations of [`on_identity`].
pub(crate) fn of_identity(answer: &Value) -> Result<&[Value], Fault> {
    if json::flag(answer, "succeeded") {
        return Ok(json::list(answer, "responses"));
    }
    Err(identity_changed())
}

fn identity_changed() -> Fault {
    Fault::Disconnected("the identity key of the cluster was changed or removed".into())
}

/// A transaction that changes nothing, but needs all rights that a lock needs. Its answer shows the identity key.
pub(crate) fn probe(layout: &Layout) -> Value {
    let records = layout.records();
    let put = |key: &[u8]| json!({"request_put": {"key": json::encode(key)}});
    json!({
        // A version is never negative, so the condition never holds.
        "compare": [{
            "key": json::encode(IDENTITY_KEY),
            "target": "VERSION",
            "result": "LESS",
            "version": "0",
        }],
        "success": [put(&records), put(&layout.wake_up(""))],
        "failure": [range(IDENTITY_KEY), page_range(&records, &layout.records_end(), 1)],
    })
}

/// Reads one key.
pub(crate) fn range(key: &[u8]) -> Value {
    json!({"request_range": {"key": json::encode(key)}})
}

/// Reads the first keys from `first` to before `end`.
pub(crate) fn page_range(first: &[u8], end: &[u8], limit: u32) -> Value {
    json!({"request_range": {
        "key": json::encode(first),
        "range_end": json::encode(end),
        "limit": limit.to_string(),
    }})
}

/// Reads the first keys from `first` to before `end`, without their values.
pub(crate) fn key_range(first: &[u8], end: &[u8], limit: u32) -> Value {
    let mut range = page_range(first, end, limit);
    range["request_range"]["keys_only"] = true.into();
    range
}

/// Removes a record if it still has this revision.
pub(crate) fn removal(key: &[u8], revision: u64) -> Value {
    json!({"request_txn": {
        "compare": [has_revision(key, revision)],
        "success": [{"request_delete_range": {"key": json::encode(key)}}],
    }})
}

fn has_revision(key: &[u8], revision: u64) -> Value {
    json!({
        "key": json::encode(key),
        "target": "MOD",
        "result": "EQUAL",
        "mod_revision": revision.to_string(),
    })
}

/// Writes messages to the wake-up key of a process, if it exists. The key keeps its lease.
fn wake_up(key: &[u8], data: &[u8]) -> Value {
    json!({"request_txn": {
        "compare": [{
            "key": json::encode(key),
            "target": "CREATE",
            "result": "GREATER",
            "create_revision": "0",
        }],
        "success": [{"request_put": {
            "key": json::encode(key),
            "value": json::encode(data),
            "ignore_lease": true,
        }}],
    }})
}

/// The messages to one process, and the commits that send them.
struct Message<'a> {
    process: &'a Arc<str>,
    words: Vec<&'a [u8]>,
    /// The first commit that sends a message to this process.
    commit: usize,
    /// Whether several commits send messages to this process.
    is_shared: bool,
}

impl Message<'_> {
    /// The operation that wakes the process.
    fn operation(&self, layout: &Layout) -> Value {
        let data = encode_messages(self.words.iter().copied());
        wake_up(&layout.wake_up(self.process), &data)
    }
}

fn messages_of(commits: &[Commit]) -> Vec<Message<'_>> {
    let mut messages: Vec<Message<'_>> = Vec::new();
    for (number, commit) in commits.iter().enumerate() {
        for wake in &commit.wakes {
            match messages
                .iter_mut()
                .find(|message| *message.process == wake.process)
            {
                Some(message) => {
                    message.words.push(&wake.word);
                    message.is_shared |= message.commit != number;
                }
                None => messages.push(Message {
                    process: &wake.process,
                    words: vec![&wake.word],
                    commit: number,
                    is_shared: false,
                }),
            }
        }
    }
    messages
}

/// The size of a commit in bytes.
fn size_of(commit: &Commit, prefix: usize) -> usize {
    let changes = commit.changes.iter().map(|change| {
        let state = change.state.as_ref().map_or(0, Vec::len);
        2 * (change.name.len() + prefix + OVERHEAD) + state
    });
    let wakes = commit
        .wakes
        .iter()
        .map(|wake| 2 * (wake.process.len() + prefix + OVERHEAD) + wake.word.len());
    changes.chain(wakes).sum()
}

/// The number of operations of a commit: its changes, and one for each process that it wakes.
fn width_of(commit: &Commit) -> usize {
    commit.changes.len() + messages_of(std::slice::from_ref(commit)).len()
}

/// Divides a batch into parts, each of which fits into one transaction.
///
/// Fails if one commit alone has too many bytes, or more than [`MOST_RECORDS`] records. The store declares this limit,
/// so the client sends no such commit.
pub(crate) fn parts(commits: &[Commit], layout: &Layout) -> Result<Vec<Range<usize>>, Fault> {
    let prefix = layout.records().len();
    let mut parts: Vec<Range<usize>> = Vec::new();
    let (mut bytes, mut width, mut processes) = (0, 0, 0);
    for (number, commit) in commits.iter().enumerate() {
        let own_bytes = size_of(commit, prefix);
        if own_bytes > MOST_BYTES {
            let why = format!(
                "a change of a lock has {own_bytes} bytes, and a transaction of etcd must have at most {MOST_BYTES}"
            );
            return Err(Fault::Server(why.into()));
        }
        let records = commit.changes.len();
        if records > MOST_RECORDS {
            let why = format!(
                "a commit has {records} records, and at most {MOST_RECORDS} fit into a transaction"
            );
            return Err(Fault::Server(why.into()));
        }
        let own_width = width_of(commit);
        let own_processes = own_width - commit.changes.len();
        let count = parts.last().map_or(0, Range::len) + 1;
        let operations = count + processes + own_processes + width.max(own_width) + 1;
        match parts.last_mut() {
            Some(part) if operations <= MOST_OPERATIONS && bytes + own_bytes <= MOST_BYTES => {
                part.end = number + 1;
                bytes += own_bytes;
                width = width.max(own_width);
                processes += own_processes;
            }
            _ => {
                parts.push(number..number + 1);
                (bytes, width, processes) = (own_bytes, own_width, own_processes);
            }
        }
    }
    Ok(parts)
}

/// The parts of one commit: its conditions, and its operations with the wake-ups in `messages` that only it sends.
fn of_commit(
    (number, commit): (usize, &Commit),
    messages: &[Message<'_>],
    layout: &Layout,
    versions: Versions,
) -> (Vec<Value>, Vec<Value>) {
    let key = |name: &[u8]| layout.record(name);
    let condition = |change: &Change| {
        let revision = versions.revision(change.version);
        has_revision(&key(&change.name), revision)
    };
    let put = |change: &Change| {
        let value = json::encode(change.state.as_deref()?);
        Some(json!({"request_put": {"key": json::encode(&key(&change.name)), "value": value}}))
    };
    let is_own = |message: &&Message<'_>| message.commit == number && !message.is_shared;
    // Wake-ups are only hints: leave out those for which there is no room.
    let room = MOST_OPERATIONS - 2 - commit.changes.len();
    let wakes = messages.iter().filter(is_own).take(room);
    let wakes = wakes.map(|message| message.operation(layout));
    let puts = commit.changes.iter().filter_map(put);
    let conditions = commit.changes.iter().map(condition).collect();
    (conditions, puts.chain(wakes).collect())
}

/// The transaction for a part of a batch.
///
/// A single commit is not nested, because etcd 3.4 does not count nested changes against the quota of the database. If
/// there are several commits, each of them is a nested transaction. The wake-ups that several commits send to one
/// process follow: a key must not be written twice in a transaction. They are also sent if all their commits are stale.
pub(crate) fn change(
    commits: &[Commit],
    layout: &Layout,
    versions: Versions,
    identity: &str,
) -> Value {
    let messages = messages_of(commits);
    if let [commit] = commits {
        let (mut conditions, operations) = of_commit((0, commit), &messages, layout, versions);
        conditions.insert(0, has_identity(identity));
        let otherwise = [range(IDENTITY_KEY)];
        return json!({"compare": conditions, "success": operations, "failure": otherwise});
    }
    let nested = commits.iter().enumerate().map(|commit| {
        let (conditions, operations) = of_commit(commit, &messages, layout, versions);
        json!({"request_txn": {"compare": conditions, "success": operations}})
    });
    let shared = messages.iter().filter(|message| message.is_shared);
    let shared = shared.map(|message| message.operation(layout));
    on_identity(identity, nested.chain(shared).collect())
}

/// The results of the commits of a part. `new_version` is the version of all records that the transaction has changed.
pub(crate) fn results(
    answer: &Value,
    commits: &[Commit],
    new_version: u64,
    identity: &str,
) -> Result<Vec<Committed>, Fault> {
    let version = |change: &Change| match change.state {
        Some(_) => new_version,
        None => change.version,
    };
    let done = |commit: &Commit| Committed::Done(commit.changes.iter().map(version).collect());
    if let [commit] = commits {
        if json::flag(answer, "succeeded") {
            return Ok(vec![done(commit)]);
        }
        let stored = value(json::list(answer, "responses").first())?;
        return if stored.as_deref() == Some(identity.as_bytes()) {
            Ok(vec![Committed::Stale])
        } else {
            Err(identity_changed())
        };
    }
    let responses = of_identity(answer)?;
    let result = |(number, commit): (usize, &Commit)| {
        let response = responses.get(number).ok_or_else(unreadable)?;
        let nested = response.get("response_txn").ok_or_else(unreadable)?;
        let is_done = json::flag(nested, "succeeded");
        Ok(if is_done {
            done(commit)
        } else {
            Committed::Stale
        })
    };
    commits.iter().enumerate().map(result).collect()
}

/// The value in the answer to the range of one key; `None` if the key does not exist.
pub(crate) fn value(response: Option<&Value>) -> Result<Option<Vec<u8>>, Fault> {
    let range = response.and_then(|response| response.get("response_range"));
    let pairs = json::list(range.ok_or_else(unreadable)?, "kvs");
    let value = |pair| json::bytes(pair, "value").ok_or_else(unreadable);
    pairs.first().map(value).transpose()
}

/// The keys in the answer to a range, with their records.
pub(crate) fn records(response: &Value, versions: Versions) -> Result<Vec<NamedRecord>, Fault> {
    let range = response.get("response_range").ok_or_else(unreadable)?;
    let record = |pair: &Value| {
        let key = json::bytes(pair, "key")?;
        let revision = json::number(pair, "mod_revision").filter(|revision| *revision > 0)?;
        let version = versions.of_revision(revision);
        Some((key, Record::new(version, json::bytes(pair, "value")?)))
    };
    let records: Option<Vec<NamedRecord>> = json::list(range, "kvs").iter().map(record).collect();
    records.ok_or_else(unreadable)
}

#[cfg(test)]
mod tests {
    use quorate::node::store::{Wake, decode_messages};

    use super::*;

    fn versions() -> Versions {
        Versions::new("00001")
    }

    fn layout() -> Layout {
        Layout::new("locks")
    }

    fn commit(names: &[&str], processes: &[&str]) -> Commit {
        let change = |name: &&str| Change {
            name: name.as_bytes().into(),
            version: 3,
            state: Some(b"state".to_vec()),
        };
        let wake = |process: &&str| Wake {
            process: (*process).into(),
            word: b"word".to_vec(),
        };
        Commit {
            changes: names.iter().map(change).collect(),
            wakes: processes.iter().map(wake).collect(),
            ..Commit::default()
        }
    }

    /// The largest number of conditions or operations of a transaction, with the transactions inside it.
    fn depth(transaction: &Value) -> usize {
        let operations = json::list(transaction, "success");
        let width = operations
            .len()
            .max(json::list(transaction, "compare").len());
        let inner = operations.iter().filter_map(|one| one.get("request_txn"));
        width + inner.map(depth).max().unwrap_or_default()
    }

    #[test]
    fn every_part_of_a_batch_fits_into_one_transaction() {
        let names: Vec<String> = (0..40).map(|number| format!("r{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for width in [1, 5, 40] {
            for processes in [0, 1, 30] {
                let commits: Vec<Commit> = (0..32)
                    .map(|_| commit(&names[..width], &names[..processes]))
                    .collect();
                let parts = parts(&commits, &layout()).expect("they fit");
                assert_eq!(parts.iter().map(Range::len).sum::<usize>(), 32);
                for part in parts {
                    let depth = depth(&change(&commits[part], &layout(), versions(), "x"));
                    assert!(depth <= MOST_OPERATIONS, "{width} {processes}: {depth}");
                }
            }
        }
        let one: Vec<Commit> = (0..32).map(|_| commit(&["a"], &["p"])).collect();
        assert_eq!(parts(&one, &layout()).expect("they fit").len(), 1);
    }

    #[test]
    fn commit_with_too_many_bytes_or_records_is_refused() {
        let mut large = commit(&["a"], &[]);
        large.changes[0].state = Some(vec![0; MOST_BYTES]);
        let fault = parts(&[large], &layout()).expect_err("too large");
        assert!(fault.to_string().contains("bytes"), "{fault}");
        let names: Vec<String> = (0..=MOST_RECORDS)
            .map(|number| number.to_string())
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(parts(&[commit(&names, &[])], &layout()).is_err());
        let processes: Vec<String> = (0..64).map(|number| format!("p{number}")).collect();
        let processes: Vec<&str> = processes.iter().map(String::as_str).collect();
        let widest = commit(&names[1..], &processes);
        let whole = std::iter::once(0..1).collect();
        assert_eq!(parts(std::slice::from_ref(&widest), &layout()), Ok(whole));
        assert!(depth(&change(&[widest], &layout(), versions(), "x")) <= MOST_OPERATIONS);
    }

    #[test]
    fn large_states_are_distributed_over_several_transactions() {
        let mut large = commit(&["a"], &[]);
        large.changes[0].state = Some(vec![0; MOST_BYTES / 2]);
        let commits = [large.clone(), commit(&["b"], &[]), large.clone(), large];
        assert_eq!(parts(&commits, &layout()), Ok(vec![0..2, 2..3, 3..4]));
        assert_eq!(parts(&[], &layout()), Ok(vec![]));
    }

    #[test]
    fn wake_up_of_a_process_is_written_once_in_a_transaction() {
        let commits = [commit(&["a"], &["p", "q"]), commit(&["b"], &["q"])];
        let whole = change(&commits, &layout(), versions(), "x");
        let operations = json::list(&whole, "success");
        assert_eq!(operations.len(), 3);
        let successes = |value: &Value| json::list(&value["request_txn"], "success").len();
        // The commits with their puts and the wake-up of `p`, then the wake-up of `q`.
        let counts: Vec<usize> = operations.iter().map(successes).collect();
        assert_eq!(counts, [2, 1, 1]);
        let put = &operations[2]["request_txn"]["success"][0]["request_put"];
        let data = json::bytes(put, "value").expect("base64");
        let words = decode_messages(&data).expect("messages");
        assert_eq!(words, [b"word", b"word"]);
        assert!(json::flag(put, "ignore_lease"));
    }

    #[test]
    fn versions_are_the_revision_of_the_transaction() {
        let mut both = commit(&["a", "b"], &[]);
        both.changes[1].state = None;
        let commits = [both, commit(&["c"], &[])];
        let answer = |succeeded: bool, responses: Value| json!({"succeeded": succeeded, "responses": responses});
        let nested = json!([{"response_txn": {"succeeded": true}}, {"response_txn": {}}]);
        let found = results(&answer(true, nested), &commits, 9, "x").expect("readable");
        assert_eq!(found, [Committed::Done(vec![9, 3]), Committed::Stale]);
        for malformed in [json!([]), json!([{}, {}])] {
            assert!(results(&answer(true, malformed), &commits, 9, "x").is_err());
        }
        // Another identity.
        assert!(results(&answer(false, json!([])), &commits, 9, "x").is_err());
        let single = &commits[..1];
        let found = results(&answer(true, json!([])), single, 9, "x");
        assert_eq!(found, Ok(vec![Committed::Done(vec![9, 3])]));
        let stored = |text: &[u8]| {
            let pair = json!({"value": json::encode(text)});
            answer(false, json!([{"response_range": {"kvs": [pair]}}]))
        };
        let found = results(&stored(b"x"), single, 9, "x");
        assert_eq!(found, Ok(vec![Committed::Stale]));
        assert!(results(&stored(b"y"), single, 9, "x").is_err());
    }

    #[test]
    fn records_are_read_from_the_answer_to_a_range() {
        let pair = json!({"key": "YQ==", "value": "eA==", "mod_revision": "7", "version": "2"});
        let found = records(
            &json!({"response_range": {"kvs": [pair], "count": "1"}}),
            versions(),
        );
        let record = Record::new(versions().of_revision(7), b"x".to_vec());
        assert_eq!(found, Ok(vec![(b"a".to_vec(), record)]));
        assert_eq!(
            records(&json!({"response_range": {}}), versions()),
            Ok(vec![])
        );
        let unversioned = json!({"response_range": {"kvs": [{"key": "YQ=="}]}});
        for malformed in [json!({}), unversioned] {
            assert!(records(&malformed, versions()).is_err());
        }
    }
}
