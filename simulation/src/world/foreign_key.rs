//! Foreign keys: other programs store values of another type under the keys of locks. While a master has a foreign
//! value under a lock key, it must not grant this lock, and no client may change the value.

use quorate::node::{Fault, Request};

use super::master::SimMaster;
use super::{Event, World};
use crate::facts::Fact;
use crate::locker::{RESOURCES, key_of_place};

impl SimMaster {
    /// Whether a foreign value is under the lock key of this resource.
    fn has_foreign_value(&mut self, now: u64, resource: usize) -> bool {
        let key = key_of_place(resource as u8).as_bytes().into();
        let now_us = self.clock_us(now);
        self.memory.apply(now_us, &Request::Status { key }) == Err(Fault::WrongType)
    }

    fn remove_foreign_value(&mut self, now: u64, resource: usize) {
        self.foreign_keys &= !(1 << resource);
        if self.has_foreign_value(now, resource) {
            let (now_us, key) = (self.clock_us(now), key_of_place(resource as u8).as_bytes());
            let ttl = Some(std::time::Duration::ZERO);
            self.memory.put_text(now_us, key, b"", ttl);
        }
    }

    /// Called after the server has restarted. Removes all foreign values, including those that the disk has restored.
    pub(super) fn forget_foreign_keys(&mut self, now: u64) {
        for resource in 0..RESOURCES {
            self.remove_foreign_value(now, resource);
        }
    }
}

impl World {
    pub(super) fn put_foreign_key(&mut self, index: u8, resource: u8, lasts: u64) {
        let now = self.now;
        if self.scenario.masters[usize::from(index)].store.is_some() {
            return;
        }
        let master = &mut self.masters[usize::from(index)];
        let key = key_of_place(resource).as_bytes();
        let now_us = master.clock_us(now);
        let is_used = master.memory.peek(now_us, key).holder.is_some();
        if !master.up || is_used || master.foreign_keys >> resource & 1 == 1 {
            return;
        }
        master.memory.put_foreign(key);
        master.foreign_keys |= 1 << resource;
        self.observer.coverage.foreign_keys += 1;
        let master = index;
        self.schedule(now + lasts, Event::ForeignKeyRemoved { master, resource });
    }

    pub(super) fn remove_foreign_key(&mut self, index: u8, resource: u8) {
        let (now, resource) = (self.now, usize::from(resource));
        self.check_foreign_key(index.into(), resource);
        self.masters[usize::from(index)].remove_foreign_value(now, resource);
    }

    /// Reports to the checkers whether a foreign value for this resource is still on this master. Reports nothing if no
    /// program has stored one.
    pub(super) fn check_foreign_key(&mut self, index: usize, resource: usize) {
        let (now, master) = (self.now, &mut self.masters[index]);
        if master.foreign_keys == 0 || master.foreign_keys >> resource & 1 == 0 {
            return;
        }
        let fact = Fact::ForeignKeyChecked {
            master: index,
            resource,
            is_unchanged: master.has_foreign_value(now, resource),
        };
        self.observer.report_fact(now, &fact);
    }
}
