//! Lists the names of keys on every master, page by page. The number of keys and the time are limited.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, Source};
use super::key_states::timeout;
use crate::limit::Limit;
use crate::node::{Answer, Fault, Page, Phase, Reply, Request};
use crate::protocol::instant::Instant;

/// About how many keys a master scans for one page. Scanning this many takes a fraction of a millisecond.
const PAGE: u32 = 1000;

/// Decides whether a key that matches the pattern is wanted in the list.
pub(crate) type KeyFilter<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// The keys that one master listed.
pub(crate) struct KeyList {
    pub(crate) keys: BTreeSet<Vec<u8>>,
    /// Whether the master listed all its matching keys.
    pub(crate) complete: bool,
    /// How long the master's answers took, without the work of the client between them.
    pub(crate) answer_time: Duration,
}

impl Coordinator {
    /// Lists the keys of each master that match `pattern` and for which `is_wanted` returns true. The result has one
    /// entry per master. The list of a master ends after about `max_keys` keys, or at the time `deadline`.
    pub(crate) async fn list(
        &self,
        pattern: &[u8],
        is_wanted: KeyFilter<'_>,
        max_keys: usize,
        deadline: Instant,
    ) -> Vec<Result<KeyList, Fault>> {
        let nodes = 0..self.nodes.len();
        let lists = nodes.map(|node| self.list_node(node, pattern, is_wanted, max_keys, deadline));
        futures::future::join_all(lists).await
    }

    async fn list_node(
        &self,
        node: usize,
        pattern: &[u8],
        is_wanted: KeyFilter<'_>,
        max_keys: usize,
        deadline: Instant,
    ) -> Result<KeyList, Fault> {
        let mut key_list = KeyList {
            keys: BTreeSet::new(),
            complete: false,
            answer_time: Duration::ZERO,
        };
        let mut next_cursor = 0;
        while key_list.keys.len() < max_keys && self.now() < deadline {
            let page = Page {
                pattern: pattern.into(),
                cursor: next_cursor,
                count: PAGE,
            };
            let asked_at = self.now();
            let (cursor, keys) = self.page(node, page).await?;
            key_list.answer_time += self.now().saturating_since(asked_at);
            key_list
                .keys
                .extend(keys.into_iter().filter(|key| is_wanted(key)));
            next_cursor = cursor;
            if next_cursor == 0 {
                key_list.complete = true;
                break;
            }
        }
        Ok(key_list)
    }

    async fn page(&self, node: usize, page: Page) -> Result<(u64, Vec<Vec<u8>>), Fault> {
        let started_at = self.now();
        let fan_out = FanOut::new(self.runtime.clone(), PageAnswer(None));
        let reply = Reply::new(fan_out.clone(), node, Phase::Look);
        let page = Arc::new(page);
        let name = self.nodes[node].name();
        self.nodes[node].send(Request::List { page }, reply.counted(name));
        let mut limit = Limit::new(&*self.runtime, self.given_up_at());
        match limit
            .wait(fan_out.wait_until(|answer| answer.0.take()))
            .await
        {
            Some(Ok(Answer::Keys { cursor, keys })) => Ok((cursor, keys)),
            Some(Ok(_)) => Err(Fault::Server("unexpected type of answer".into())),
            Some(Err(fault)) => Err(fault),
            None => Err(timeout(self.now().saturating_since(started_at))),
        }
    }
}

struct PageAnswer(Option<Result<Answer, Fault>>);

impl Collect for PageAnswer {
    fn record_answer(&mut self, _: Source, answer: Result<Answer, Fault>) -> bool {
        self.0 = Some(answer);
        true
    }
}
