//! A master that has no memory left for the lock of one resource. It refuses requests that need more memory for this
//! lock, and executes all other requests.

use quorate::node::{Answer, ExtendItem, Extended, Fault, Request};

use super::World;
use crate::locker::place_of_key;

impl World {
    /// Whether a master has no memory left for the lock with this key.
    fn is_full_for(&self, index: usize, key: &[u8]) -> bool {
        let shortage = self.masters[index].memory_shortage;
        shortage.is_some_and(|(until, resource)| self.now < until && resource == place_of_key(key))
    }

    /// Whether a master has enough memory to raise these fencing counters.
    pub(super) fn has_room_for(&self, index: usize, counters: &[(Vec<u8>, u64)]) -> bool {
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
            _ if self.masters[index].memory_shortage.is_none() => {}
            Request::Extend { items } => return self.extend_if_room(index, items),
            Request::Acquire { claim, .. }
            | Request::Confirm { claim, .. }
            | Request::Read { claim, .. }
            | Request::Write { claim, .. }
                if claim.keys().any(|key| self.is_full_for(index, key)) =>
            {
                self.observer.coverage.out_of_memory_refusals += 1;
                self.report_shortage(index);
                self.trace_line(|| {
                    format!("master {index} has no memory for this lock, and refuses the request")
                });
                return Err(Fault::OutOfMemory);
            }
            _ => {}
        }
        self.execute_and_report(index, request, true)
    }

    fn extend_if_room(&mut self, index: usize, items: &[ExtendItem]) -> Result<Answer, Fault> {
        let now_us = self.masters[index].clock_us(self.now);
        let needs_room = |item: &ExtendItem| {
            let is_missing = |key: &[u8]| self.masters[index].holder(now_us, key).is_none();
            let mut keys = item.claim.keys();
            !item.claim.is_withdrawn()
                && keys.any(|key| self.is_full_for(index, key) && is_missing(key))
        };
        let refused_items: Vec<bool> = items.iter().map(needs_room).collect();
        let accepted_items = items
            .iter()
            .zip(&refused_items)
            .filter(|(_, refused)| !**refused);
        let accepted_items: Vec<ExtendItem> =
            accepted_items.map(|(item, _)| item.clone()).collect();
        let mut results = Vec::new().into_iter();
        if !accepted_items.is_empty() {
            let items = accepted_items.into();
            match self.execute_and_report(index, &Request::Extend { items }, true)? {
                Answer::Extended(answered) => results = answered.into_iter(),
                answer => return Ok(answer),
            }
        }
        let refused_count = refused_items.iter().filter(|refused| **refused).count() as u64;
        self.observer.coverage.out_of_memory_refusals += refused_count;
        if refused_count > 0 {
            self.report_shortage(index);
        }
        let mut all_results = Vec::new();
        for (item, is_refused) in items.iter().zip(refused_items) {
            let keys = item.claim.keys().count();
            if is_refused {
                all_results.extend(vec![Extended::Unknown(Fault::OutOfMemory); keys]);
            } else {
                all_results.extend(results.by_ref().take(keys));
            }
        }
        Ok(Answer::Extended(all_results))
    }
}
