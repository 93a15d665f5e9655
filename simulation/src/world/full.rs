//! A master that has no memory left for the lock of one resource. It refuses requests that need more memory for this
//! lock, and executes all other requests.

use quorate::node::{Answer, ExtendItem, Extended, Fault, Request};

use super::World;
use super::orders::Counter;
use crate::locker::resource_of;

impl World {
    /// Whether a master has no memory left for the lock with this key.
    fn is_full_for(&self, index: usize, key: &[u8]) -> bool {
        let full = self.masters[index].full;
        full.is_some_and(|(until, resource)| self.now < until && resource == resource_of(key))
    }

    /// Whether a master has enough memory to raise these fencing counters.
    pub(super) fn has_room_for(&self, index: usize, counters: &[Counter]) -> bool {
        let locks = counters
            .iter()
            .map(|(key, _)| key.strip_prefix(b"quorate:fence:"));
        !locks.flatten().any(|key| self.is_full_for(index, key))
    }

    /// Lets a master execute a request. If the request needs memory for a lock and the master has none for this lock,
    /// the master refuses the request and changes nothing.
    ///
    /// An extension needs memory only if it must create missing keys of the lock.
    pub(super) fn apply_if_room(
        &mut self,
        index: usize,
        request: &Request,
    ) -> Result<Answer, Fault> {
        match request {
            _ if self.masters[index].full.is_none() => {}
            Request::Extend { items } => return self.extend_if_room(index, items),
            Request::Acquire { claim, .. }
            | Request::Confirm { claim, .. }
            | Request::Read { claim, .. }
            | Request::Write { claim, .. }
                if claim.keys().any(|key| self.is_full_for(index, key)) =>
            {
                self.watch.coverage.full += 1;
                self.say(|| {
                    format!("master {index} has no memory for this lock, and refuses the request")
                });
                return Err(Fault::OutOfMemory);
            }
            _ => {}
        }
        self.apply(index, request, true)
    }

    fn extend_if_room(&mut self, index: usize, items: &[ExtendItem]) -> Result<Answer, Fault> {
        let now_us = self.masters[index].micros(self.now);
        let needs_room = |item: &ExtendItem| {
            let missing = |key: &[u8]| self.masters[index].holder(now_us, key).is_none();
            let mut keys = item.claim.keys();
            !item.claim.is_withdrawn()
                && keys.any(|key| self.is_full_for(index, key) && missing(key))
        };
        let refused: Vec<bool> = items.iter().map(needs_room).collect();
        let others = items.iter().zip(&refused).filter(|(_, refused)| !**refused);
        let others: Vec<ExtendItem> = others.map(|(item, _)| item.clone()).collect();
        let mut said = Vec::new().into_iter();
        if !others.is_empty() {
            let items = others.into();
            match self.apply(index, &Request::Extend { items }, true)? {
                Answer::Extended(each) => said = each.into_iter(),
                answer => return Ok(answer),
            }
        }
        self.watch.coverage.full += refused.iter().filter(|refused| **refused).count() as u64;
        let mut all = Vec::new();
        for (item, refused) in items.iter().zip(refused) {
            let keys = item.claim.keys().count();
            if refused {
                all.extend(vec![Extended::Unknown(Fault::OutOfMemory); keys]);
            } else {
                all.extend(said.by_ref().take(keys));
            }
        }
        Ok(Answer::Extended(all))
    }
}
