//! Lists the names of keys on every master, page by page. The number of keys and the time are limited.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, From};
use super::key_states::timeout;
use crate::limit::Limit;
use crate::node::{Answer, Fault, Page, Phase, Reply, Request};
use crate::protocol::instant::Instant;

/// About how many keys a master scans for one page. Scanning this many takes a fraction of a millisecond.
const PAGE: u32 = 1000;

/// Decides whether a key that matches the pattern is wanted in the list.
pub(crate) type IsWanted<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// The keys that one master listed.
pub(crate) struct Named {
    pub(crate) keys: BTreeSet<Vec<u8>>,
    /// Whether the master listed all its matching keys.
    pub(crate) complete: bool,
}

impl Coordinator {
    /// Lists the keys of each master that match `pattern` and for which `is_wanted` returns true. The result has one
    /// entry per master. The list of a master ends after about `most` keys, or at the time `until`.
    pub(crate) async fn list(
        &self,
        pattern: &[u8],
        is_wanted: IsWanted<'_>,
        most: usize,
        until: Instant,
    ) -> Vec<Result<Named, Fault>> {
        let nodes = 0..self.nodes.len();
        let lists = nodes.map(|node| self.list_one(node, pattern, is_wanted, most, until));
        futures::future::join_all(lists).await
    }

    async fn list_one(
        &self,
        node: usize,
        pattern: &[u8],
        is_wanted: IsWanted<'_>,
        most: usize,
        until: Instant,
    ) -> Result<Named, Fault> {
        let mut named = Named {
            keys: BTreeSet::new(),
            complete: false,
        };
        let mut at = 0;
        while named.keys.len() < most && self.now() < until {
            let page = Page {
                pattern: pattern.into(),
                cursor: at,
                count: PAGE,
            };
            let (cursor, keys) = self.page(node, page).await?;
            named
                .keys
                .extend(keys.into_iter().filter(|key| is_wanted(key)));
            at = cursor;
            if at == 0 {
                named.complete = true;
                break;
            }
        }
        Ok(named)
    }

    async fn page(&self, node: usize, page: Page) -> Result<(u64, Vec<Vec<u8>>), Fault> {
        let began = self.now();
        let fan_out = FanOut::new(self.runtime.clone(), PageAnswer(None));
        let reply = Reply::new(fan_out.clone(), node, Phase::Look);
        let page = Arc::new(page);
        let name = self.nodes[node].name();
        self.nodes[node].send(Request::List { page }, reply.counted(name));
        let mut limit = Limit::new(&*self.runtime, self.given_up_by());
        match limit.wait(fan_out.until(|answer| answer.0.take())).await {
            Some(Ok(Answer::Keys { cursor, keys })) => Ok((cursor, keys)),
            Some(Ok(_)) => Err(Fault::Server("unexpected type of answer".into())),
            Some(Err(fault)) => Err(fault),
            None => Err(timeout(self.now().saturating_since(began))),
        }
    }
}

struct PageAnswer(Option<Result<Answer, Fault>>);

impl Collect for PageAnswer {
    fn count(&mut self, _: From, answer: Result<Answer, Fault>) -> bool {
        self.0 = Some(answer);
        true
    }
}
