//! The baseline: the least work that a Redlock client must do, with redis-rs.
//!
//! The baseline has one multiplexed connection per master. An acquire sends `SET NX PX` to all masters at the same
//! time, and a release sends a compare-and-delete script. Both return when a majority has answered.
//!
//! A separate task awaits the remaining answers of a release. Without this task, redis-rs would drop requests that are
//! still queued.
//!
//! The baseline deliberately has no timeouts, reconnects or renewals: it is only for comparison, not for use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value};

/// The script that deletes the lock key if it holds this client's value.
pub(crate) const RELEASE: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";

/// The script that extends many lock keys in one call. It skips keys that do not hold this client's values.
const EXTEND: &str = "local n=0 for i=1,#KEYS do if redis.call('GET',KEYS[i])==ARGV[i+1] then \
    redis.call('PEXPIRE',KEYS[i],ARGV[1]) n=n+1 end end return n";

/// A unique lock value: the process id and a counter, as 32 hexadecimal digits.
pub(crate) fn unique_token() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{n:016x}", std::process::id())
}

/// The baseline client, with one connection per master.
pub(crate) struct Floor {
    connections: Vec<MultiplexedConnection>,
    quorum: usize,
    release: String,
    extend: String,
    enough_released: usize,
}

/// The condition under which a release returns.
#[derive(Clone, Copy)]
pub(crate) enum ReleaseCondition {
    /// A majority of the masters has answered. A release of `quorate` returns under the same condition.
    Majority,
    /// Every master has answered.
    All,
}

impl Floor {
    /// Connects to all masters.
    pub(crate) async fn connect(urls: &[String], condition: ReleaseCondition) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            // The buffer is larger than the number of requests that these measurements queue at the same time, so no
            // request waits for space in the buffer.
            .set_pipeline_buffer_size(8_192);
        let mut connections = Vec::new();
        let (mut release, mut extend) = (String::new(), String::new());
        for url in urls {
            let client = Client::open(url.as_str()).expect("the URL must be valid");
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .expect("a master must accept connections");
            for (sha, source) in [(&mut release, RELEASE), (&mut extend, EXTEND)] {
                *sha = redis::cmd("SCRIPT")
                    .arg("LOAD")
                    .arg(source)
                    .query_async(&mut connection)
                    .await
                    .expect("the script must load");
            }
            connections.push(connection);
        }
        let quorum = connections.len() / 2 + 1;
        let enough_released = match condition {
            ReleaseCondition::Majority => quorum,
            ReleaseCondition::All => connections.len(),
        };
        Self {
            connections,
            quorum,
            release,
            extend,
            enough_released,
        }
    }

    /// Extends the locks in `locks` (pairs of resource and value) on all masters. Calls the script once for every 200
    /// locks.
    pub(crate) async fn extend(&self, locks: &[(String, String)], ttl: Duration) {
        for chunk in locks.chunks(200) {
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(&self.extend).arg(chunk.len());
            for (resource, _) in chunk {
                command.arg(resource);
            }
            command.arg(ttl.as_millis() as u64);
            for (_, token) in chunk {
                command.arg(token);
            }
            let answers = self.send(command);
            let _ = count_positive(answers, self.connections.len(), |_| true).await;
        }
    }

    /// Acquires the lock. Returns the value of the lock key, or `None` if no majority granted the lock.
    pub(crate) async fn acquire(&self, resource: &str, ttl: Duration) -> Option<String> {
        let token = unique_token();
        let mut command = Cmd::new();
        command.arg("SET").arg(resource).arg(&token);
        command.arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        let (granted, _) = count_positive(self.send(command), self.quorum, |value| {
            matches!(value, Value::Okay)
        })
        .await;
        if granted >= self.quorum {
            return Some(token);
        }
        self.release(resource, &token).await;
        None
    }

    /// Releases the lock. Returns whether a majority executed the release script, even if the script found no key to
    /// delete.
    pub(crate) async fn release(&self, resource: &str, token: &str) -> bool {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&self.release).arg(1);
        command.arg(resource).arg(token);
        let answers = self.send(command);
        let (released, mut open_answers) = count_positive(answers, self.enough_released, |value| {
            matches!(value, Value::Int(_))
        })
        .await;
        if !open_answers.is_empty() {
            tokio::spawn(async move { while open_answers.next().await.is_some() {} });
        }
        released >= self.quorum
    }

    /// Sends the command to all masters. The answers arrive in any order.
    fn send(&self, command: Cmd) -> FuturesUnordered<impl Future<Output = Option<Value>> + use<>> {
        let shared_command = Arc::new(command);
        let send_to_one = |mut connection: MultiplexedConnection| {
            let command = shared_command.clone();
            async move { command.query_async::<Value>(&mut connection).await.ok() }
        };
        self.connections.iter().cloned().map(send_to_one).collect()
    }
}

/// Counts positive answers until the count reaches `enough` or all masters have answered. Returns the count, and the
/// futures of the answers that have not arrived yet.
async fn count_positive<F: Future<Output = Option<Value>>>(
    mut answers: FuturesUnordered<F>,
    enough: usize,
    is_positive: impl Fn(&Value) -> bool,
) -> (usize, FuturesUnordered<F>) {
    let mut count = 0;
    std::future::poll_fn(|cx| {
        loop {
            match answers.poll_next_unpin(cx) {
                Poll::Ready(Some(answer)) => {
                    count += usize::from(answer.is_some_and(|v| is_positive(&v)));
                }
                Poll::Ready(None) => return Poll::Ready(()),
                // redis-rs queues a request only when its future is first polled. So do not return before all futures
                // were polled.
                Poll::Pending if count >= enough => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    (count, answers)
}
