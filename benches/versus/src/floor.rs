//! The floor: the least work that a Redlock can do with redis-rs.
//!
//! One multiplexed connection per master, `SET NX PX` on all at once, on at the q-th answer;
//! a compare-and-delete script on all at once, on when all have answered. Not at the q-th: the
//! driver does not send a request whose future was dropped while it was queued, so under load
//! the others would keep the key. It deliberately has no timeouts, no reconnects and no renewal:
//! nobody should use it, everybody can be compared with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value};

/// Compare and delete.
pub(crate) const RELEASE: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";

/// Compare and prolong, many at once.
const EXTEND: &str = "local n=0 for i=1,#KEYS do if redis.call('GET',KEYS[i])==ARGV[i+1] then \
    redis.call('PEXPIRE',KEYS[i],ARGV[1]) n=n+1 end end return n";

/// A value that no other attempt of this process has: 32 digits, as the others use.
pub(crate) fn fresh_token() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}{n:016x}", std::process::id())
}

/// One connection per master.
pub(crate) struct Floor {
    connections: Vec<MultiplexedConnection>,
    quorum: usize,
    release: String,
    extend: String,
}

impl Floor {
    /// Connects to all masters.
    pub(crate) async fn connect(urls: &[String]) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            // Longer than any load here: requests never wait in front of the driver's queue.
            .set_pipeline_buffer_size(16_384);
        let mut connections = Vec::new();
        let (mut release, mut extend) = (String::new(), String::new());
        for url in urls {
            let client = Client::open(url.as_str()).expect("a good URL");
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .expect("a master that accepts connections");
            for (sha, source) in [(&mut release, RELEASE), (&mut extend, EXTEND)] {
                *sha = redis::cmd("SCRIPT")
                    .arg("LOAD")
                    .arg(source)
                    .query_async(&mut connection)
                    .await
                    .expect("a script that loads");
            }
            connections.push(connection);
        }
        let quorum = connections.len() / 2 + 1;
        Self {
            connections,
            quorum,
            release,
            extend,
        }
    }

    /// Prolongs all, 200 in one call.
    pub(crate) async fn extend(&self, held: &[(String, String)], ttl: Duration) {
        for some in held.chunks(200) {
            let mut cmd = Cmd::new();
            cmd.arg("EVALSHA").arg(&self.extend).arg(some.len());
            for (resource, _) in some {
                cmd.arg(resource);
            }
            cmd.arg(ttl.as_millis() as u64);
            for (_, token) in some {
                cmd.arg(token);
            }
            self.ask(&cmd, self.connections.len(), |_| true).await;
        }
    }

    /// The value under which the lock is held, if a majority granted it.
    pub(crate) async fn acquire(&self, resource: &str, ttl: Duration) -> Option<String> {
        let token = fresh_token();
        let mut cmd = Cmd::new();
        cmd.arg("SET").arg(resource).arg(&token);
        cmd.arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        if self
            .ask(&cmd, self.quorum, |value| matches!(value, Value::Okay))
            .await
            >= self.quorum
        {
            return Some(token);
        }
        self.release(resource, &token).await;
        None
    }

    /// Gives it back; whether a majority has let go.
    pub(crate) async fn release(&self, resource: &str, token: &str) -> bool {
        let mut cmd = Cmd::new();
        cmd.arg("EVALSHA").arg(&self.release).arg(1);
        cmd.arg(resource).arg(token);
        self.ask(&cmd, self.connections.len(), |value| {
            matches!(value, Value::Int(_))
        })
        .await
            >= self.quorum
    }

    /// Sends to all, and counts those that say yes until `enough` have, or all have spoken.
    async fn ask(&self, cmd: &Cmd, enough: usize, yes: impl Fn(&Value) -> bool) -> usize {
        let mut answers: FuturesUnordered<_> = self
            .connections
            .iter()
            .cloned()
            .map(|mut connection| async move { cmd.query_async::<Value>(&mut connection).await })
            .collect();
        let mut count = 0;
        std::future::poll_fn(|cx| {
            loop {
                match answers.poll_next_unpin(cx) {
                    Poll::Ready(Some(answer)) => {
                        count += usize::from(answer.is_ok_and(|v| yes(&v)));
                    }
                    Poll::Ready(None) => return Poll::Ready(()),
                    // Looked at only now, when every request has been queued.
                    Poll::Pending if count >= enough => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
        count
    }
}
