//! Receives the wake-ups of one process.
//!
//! The process has a wake-up key with an etcd lease. Clients that release a lock write to this key, and the listener
//! watches it. The lease only removes the keys of dead processes: no lock depends on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use quorate::node::Fault;
use quorate::node::store::{Listener, decode_messages};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use crate::fault::{Refusal, unreadable};
use crate::json;
use crate::member::{Member, Shared, down, header};

/// The lease of the wake-up key in seconds. The key of a dead process remains for this time.
const LEASE_SECONDS: u64 = 15;
/// The time between two renewals of the lease.
const RENEWAL: Duration = Duration::from_secs(4);
/// The time limit of a renewal, and of opening a new watch after a break.
const LIMIT: Duration = Duration::from_secs(4);
/// A watch that ends sooner after its begin was refused, or a proxy has ended it.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// How many such watches may follow each other. After one more, the listener fails, and the client opens another one
/// after a pause.
const MOST_SHORT_WATCHES: u32 = 3;
/// The reasons with which a cluster ends a watch that needs a new login.
const LOGIN_REFUSED: [&str; 3] = [
    "Unauthenticated",
    "user name is empty",
    "revision of auth store is old",
];
/// The longest line of a watch that is read, in bytes.
const LONGEST_LINE: usize = 16 << 20;

/// Receives wake-ups from an etcd cluster, for tasks that wait for a lock or observe an election.
pub struct EtcdListener {
    shared: Arc<Shared>,
    /// The connection over which the lease is renewed.
    control: Member,
    lease: u64,
    renew_at: Instant,
    key: Vec<u8>,
    watch: Watch,
    /// The number of short watches that have followed each other.
    short_watches: u32,
}

/// A watch on the wake-up key.
struct Watch {
    member: Member,
    stream: Incoming,
    opened_at: Instant,
    /// The bytes of the stream that do not form a whole line yet.
    rest: Vec<u8>,
    lines: VecDeque<Vec<u8>>,
    /// The first revision that the watch has not shown yet.
    next: u64,
}

/// The contents of one line of a watch.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// The watch was created, or nothing has happened.
    Nothing,
    /// Messages were written to the key. An empty list means that their text is unknown.
    Messages(Vec<Vec<u8>>),
    /// The key was removed: the lease has ended.
    Removed,
    /// The cluster has removed the history up to this revision, so messages may be lost.
    Compacted(u64),
    /// The cluster has refused the watch, because it demands a new login.
    LoginRefused,
}

impl EtcdListener {
    /// Creates the wake-up key of `process`, and watches it.
    pub(crate) async fn open(shared: &Arc<Shared>, process: &str) -> Result<Self, Fault> {
        let key = shared.address.layout().wake_up(process);
        let mut control = Member::open(shared).await?;
        let granted = control
            .call(
                "/v3/lease/grant",
                &json!({"TTL": LEASE_SECONDS.to_string()}),
            )
            .await
            .map_err(down)?;
        let lease = json::number(&granted.body, "ID").filter(|id| *id > 0);
        let lease = lease.ok_or_else(unreadable)?;
        let renew_at = Instant::now() + RENEWAL;
        let put = json!({"key": json::encode(&key), "lease": lease.to_string()});
        let put = control.call("/v3/kv/put", &put).await.map_err(down)?;
        let (_, revision) = header(&put.body)?;
        let watch = Watch::open(shared, &key, revision.saturating_add(1)).await?;
        Ok(Self {
            shared: shared.clone(),
            control,
            lease,
            renew_at,
            key,
            watch,
            short_watches: 0,
        })
    }

    /// Renews the lease. If the connection was lost, opens another one.
    async fn renew(&mut self) -> Result<(), Fault> {
        let renewed = match self.send_renewal().await {
            Err(Fault::Disconnected(_) | Fault::Down(_)) => {
                let opening = timeout(LIMIT, Member::open(&self.shared)).await;
                self.control = opening.unwrap_or(Err(Fault::Timeout(LIMIT)))?;
                self.send_renewal().await
            }
            renewed => renewed,
        };
        if !renewed? {
            return Err(lease_ended());
        }
        self.renew_at = Instant::now() + RENEWAL;
        Ok(())
    }

    /// Sends one renewal. Returns whether the lease still exists.
    async fn send_renewal(&mut self) -> Result<bool, Fault> {
        let request = json!({"ID": self.lease.to_string()});
        let call = self.control.call("/v3/lease/keepalive", &request);
        let answer = timeout(LIMIT, call).await;
        let answer = answer.unwrap_or(Err(Fault::Timeout(LIMIT)))?;
        let result = answer.body.get("result").ok_or_else(unreadable)?;
        Ok(json::number(result, "TTL").is_some_and(|seconds| seconds > 0))
    }

    /// Opens a new watch after the last one ended with this fault. It begins with the first message that is missing.
    /// Fails with the fault if too many short watches have followed each other.
    async fn watch_again(&mut self, fault: Fault) -> Result<(), Fault> {
        if self.watch.opened_at.elapsed() >= SHORTEST_WATCH {
            self.short_watches = 0;
        } else if self.short_watches < MOST_SHORT_WATCHES {
            self.short_watches += 1;
        } else {
            return Err(fault);
        }
        let opening = Watch::open(&self.shared, &self.key, self.watch.next);
        let opened = timeout(LIMIT, opening).await;
        self.watch = opened.unwrap_or(Err(Fault::Timeout(LIMIT)))?;
        Ok(())
    }
}

impl Listener for EtcdListener {
    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            let event = tokio::select! {
                biased;
                () = sleep_until(self.renew_at) => None,
                event = self.watch.next() => Some(event),
            };
            match event {
                None => self.renew().await?,
                Some(Ok(Event::Nothing)) => {}
                Some(Ok(Event::Messages(messages))) => return Ok(messages),
                Some(Ok(Event::Removed)) => return Err(lease_ended()),
                Some(Ok(Event::LoginRefused)) => {
                    // The next request logs in again.
                    self.shared.login.forget();
                    return Err(Fault::Disconnected("the login has expired".into()));
                }
                Some(Ok(Event::Compacted(revision))) => {
                    self.watch.next = self.watch.next.max(revision.saturating_add(1));
                    self.watch_again(compacted()).await?;
                    return Ok(Vec::new());
                }
                Some(Err(fault @ Fault::Disconnected(_))) => {
                    self.watch_again(fault).await?;
                    // The cluster was perhaps unavailable for longer than the lease.
                    self.renew().await?;
                }
                Some(Err(fault)) => return Err(fault),
            }
        }
    }
}

fn compacted() -> Fault {
    Fault::Disconnected("the cluster has removed the history that the watch needs".into())
}

fn lease_ended() -> Fault {
    Fault::Disconnected("the etcd lease of the wake-up key of this process has ended".into())
}

impl Watch {
    /// Watches a key from the revision `next` on.
    async fn open(shared: &Arc<Shared>, key: &[u8], next: u64) -> Result<Self, Fault> {
        let mut member = Member::open(shared).await?;
        let request = json!({"create_request": {
            "key": json::encode(key),
            "start_revision": next.to_string(),
        }});
        let stream = member.stream("/v3/watch", &request).await.map_err(down)?;
        Ok(Self {
            member,
            stream,
            opened_at: Instant::now(),
            rest: Vec::new(),
            lines: VecDeque::new(),
            next,
        })
    }

    /// Waits for the next line of the watch. It is safe to drop the future.
    async fn next(&mut self) -> Result<Event, Fault> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                let line = serde_json::from_slice(&line).map_err(|_| unreadable())?;
                return event(&line, &mut self.next);
            }
            let piece = self.member.next_piece(&mut self.stream).await?;
            let piece = piece.ok_or_else(|| Fault::Disconnected("the watch has ended".into()))?;
            self.rest.extend(piece);
            self.lines.extend(whole_lines(&mut self.rest));
            if self.rest.len() > LONGEST_LINE {
                return Err(unreadable());
            }
        }
    }
}

/// Takes the whole lines out of `bytes`.
fn whole_lines(bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        return Vec::new();
    };
    let rest = bytes.split_off(end + 1);
    let lines = std::mem::replace(bytes, rest);
    let lines = lines.split(|byte| *byte == b'\n');
    let is_empty = |line: &[u8]| line.iter().all(u8::is_ascii_whitespace);
    let lines = lines.filter(|line| !is_empty(line));
    lines.map(<[u8]>::to_vec).collect()
}

/// Reads a line of a watch. `next` becomes the first revision that the watch has not shown yet.
fn event(line: &Value, next: &mut u64) -> Result<Event, Fault> {
    if let Some(refusal) = Refusal::read(line) {
        return Err(refusal.fault());
    }
    let result = line.get("result").ok_or_else(unreadable)?;
    if json::flag(result, "canceled") {
        let reason = json::text(result, "cancel_reason");
        if LOGIN_REFUSED.iter().any(|text| reason.contains(text)) {
            return Ok(Event::LoginRefused);
        }
        return match json::number(result, "compact_revision") {
            Some(0) | None if reason.contains("PermissionDenied") => {
                let text = reason.to_owned();
                Err(Refusal { code: 7, text }.fault())
            }
            Some(0) | None => Err(Fault::Disconnected(crate::fault::plain(reason).into())),
            Some(revision) => Ok(Event::Compacted(revision)),
        };
    }
    let mut messages = Vec::new();
    for event in json::list(result, "events") {
        if json::text(event, "type") == "DELETE" {
            return Ok(Event::Removed);
        }
        let pair = event.get("kv").ok_or_else(unreadable)?;
        let revision = json::number(pair, "mod_revision").ok_or_else(unreadable)?;
        *next = (*next).max(revision.saturating_add(1));
        let data = json::bytes(pair, "value").ok_or_else(unreadable)?;
        match decode_messages(&data) {
            Some(decoded) => messages.extend(decoded),
            None => return Ok(Event::Messages(Vec::new())),
        }
    }
    Ok(if messages.is_empty() {
        Event::Nothing
    } else {
        Event::Messages(messages)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quorate::node::store::encode_messages;

    use super::*;

    fn put(data: &[u8], revision: u64) -> Value {
        let (value, revision) = (json::encode(data), revision.to_string());
        json!({"kv": {"key": "YQ==", "mod_revision": revision, "value": value}})
    }

    fn of(result: Value, next: &mut u64) -> Result<Event, Fault> {
        event(&json!({ "result": result }), next)
    }

    #[test]
    fn watch_shows_messages_and_the_next_revision() {
        let mut next = 5;
        assert_eq!(of(json!({"created": true}), &mut next), Ok(Event::Nothing));
        let data = |words: &[&[u8]]| encode_messages(words.iter().copied());
        let events = json!([put(&data(&[b"a", b"b"]), 7), put(&data(&[b"c"]), 9)]);
        let messages = vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
        let found = of(json!({"events": events}), &mut next);
        assert_eq!(found, Ok(Event::Messages(messages)));
        assert_eq!(next, 10);
        let unknown = of(json!({"events": [put(b"x", 11)]}), &mut next);
        assert_eq!(unknown, Ok(Event::Messages(Vec::new())));
        let removed = of(json!({"events": [{"type": "DELETE", "kv": {}}]}), &mut next);
        assert_eq!(removed, Ok(Event::Removed));
    }

    #[test]
    fn watch_that_the_cluster_ends_says_why() {
        let mut next = 5;
        let compacted = json!({"canceled": true, "compact_revision": "8"});
        assert_eq!(of(compacted, &mut next), Ok(Event::Compacted(8)));
        let denied = json!({"canceled": true, "cancel_reason": "code = PermissionDenied"});
        let fault = of(denied, &mut next).expect_err("denied");
        assert_eq!(fault.kind(), "denied");
        let other = of(json!({"canceled": true}), &mut next).expect_err("ended");
        assert_eq!(other.kind(), "disconnected");
        let error = json!({"error": {"grpc_code": 14, "message": "no leader"}});
        assert_eq!(
            event(&error, &mut next).expect_err("error").kind(),
            "disconnected"
        );
        assert!(event(&json!({}), &mut next).is_err());
        for reason in [
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token",
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty",
        ] {
            let refused = json!({"watch_id": "-1", "created": true, "canceled": true, "cancel_reason": reason});
            assert_eq!(of(refused, &mut next), Ok(Event::LoginRefused));
        }
    }

    proptest! {
        #[test]
        fn no_line_of_a_watch_causes_a_panic(revision in any::<u64>(), value in any::<Vec<u8>>(), text in any::<String>()) {
            let mut next = 0;
            let number = revision.to_string();
            let pair = json!({"mod_revision": number, "value": json::encode(&value)});
            drop(of(json!({"events": [{"kv": pair}]}), &mut next));
            drop(of(json!({"canceled": true, "compact_revision": number, "cancel_reason": text}), &mut next));
            drop(of(json!({"events": [{"kv": {"mod_revision": text, "value": text}}]}), &mut next));
            drop(whole_lines(&mut value.clone()));
        }
    }

    #[test]
    fn lines_are_taken_from_the_stream_as_soon_as_they_are_whole() {
        let mut bytes = b"{}\n\n[1]\n{\"a\"".to_vec();
        assert_eq!(whole_lines(&mut bytes), [b"{}".to_vec(), b"[1]".to_vec()]);
        assert_eq!(bytes, b"{\"a\"");
        assert!(whole_lines(&mut bytes).is_empty());
    }
}
