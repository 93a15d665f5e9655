//! How the task removes obsolete records from the store (see [`Sweep`](crate::node::store::sweep::Sweep)).

use super::{Online, SessionTask};
use crate::limit::Limit;
use crate::node::Fault;
use crate::node::store::contract::{Clocked, Session, Store};
use crate::node::store::sweep::PAGE;

impl<S: Store> SessionTask<S> {
    /// Removes a few obsolete records, and reads a page of records to find further obsolete ones.
    pub(super) async fn sweep(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        let shared = self.shared.clone();
        let mut limit = Limit::new(
            &*shared.context().runtime,
            self.now() + shared.traits.timeout,
        );
        let result = limit.wait(self.sweep_page(online)).await;
        result.unwrap_or(Err(Fault::Stalled))
    }

    async fn sweep_page(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        let now = self.now();
        // If the server's time is unknown, use 0, so that no item counts as expired.
        let time = self.time.now(now).map_or(0, |(earliest, _)| earliest);
        let date = self.time.removal_date(now);
        let obsolete = self.sweep.obsolete(now, (time, date), &self.cache);
        if !obsolete.is_empty() {
            for (name, _) in &obsolete {
                self.cache.remove(name);
            }
            online.session.remove(&obsolete).await?;
        }
        // Only one session of this process reads the pages of the store to find obsolete records. It does so even if its
        // cache has no room: with a page, a database also removes rows that contain no record.
        if *self.shared.pager.get_or_init(|| self.index) != self.index {
            return Ok(());
        }
        let asked_at = self.now();
        let Clocked { what, clock } = online.session.page(self.sweep.page(), PAGE).await?;
        let answered_at = self.learn_time(online, clock, asked_at);
        self.sweep.advance_page(what.len());
        let Some((_, moment)) = self.moment(answered_at) else {
            return Ok(());
        };
        for (name, record) in what.into_iter().filter(|(_, record)| record.version > 0) {
            if !self.cache.has_room() {
                break;
            }
            self.cache.read_unrequested(&name.into(), &record, moment);
        }
        Ok(())
    }
}
