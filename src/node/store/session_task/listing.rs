//! How the task answers requests that list the records of the store.

use std::sync::Arc;

use super::{Online, SessionTask};
use crate::node::memory::Master;
use crate::node::memory::items::ItemKind;
use crate::node::store::codec::{Moment, StoredItem};
use crate::node::store::contract::{Clocked, Session, Store};
use crate::node::{Answer, Fault, Page, Request};

impl<S: Store> SessionTask<S> {
    /// Answers the list requests in `batch`. Each request reads one page of records.
    pub(super) async fn list(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        while let Some(queued) = self.batch.last() {
            let Request::List { page } = &queued.request else {
                return Ok(());
            };
            let page = page.clone();
            let answer = self.list_page(online, &page).await?;
            if let Some(queued) = self.batch.pop() {
                queued.answer(Ok(answer));
            }
        }
        Ok(())
    }

    async fn list_page(
        &mut self,
        online: &mut Online<S::Session>,
        page: &Page,
    ) -> Result<Answer, Fault> {
        let asked_at = self.now();
        let Clocked { what, clock } = online.session.page(page.cursor, page.count).await?;
        let answered_at = self.learn_time(online, clock, asked_at);
        let (now, moment) = self.moment(answered_at).unwrap_or((0, Moment::from(0)));
        let mut master = Master::default();
        for (name, record) in &what {
            if record.fault.is_some() {
                // An unreadable record may contain a held lock. So list its name, with an empty value. A caller who
                // then asks for the status of this lock gets the fault.
                master.put_text(now, name, b"", None);
            } else {
                let stored = StoredItem::read(&record.state, &[], moment).unwrap_or_default();
                let items = stored.into_iter().map(|stored| stored.item);
                for item in items.filter(|item| item.id.kind == ItemKind::Text) {
                    master.put(item);
                }
            }
        }
        let request = Request::List {
            page: Arc::new(page.clone()),
        };
        let has_more = what.len() >= usize::try_from(page.count).unwrap_or(usize::MAX);
        let next = if has_more {
            page.cursor + what.len() as u64
        } else {
            0
        };
        match master.apply(now, &request)? {
            Answer::Keys { keys, .. } => Ok(Answer::Keys { cursor: next, keys }),
            other => Ok(other),
        }
    }
}
