//! Foreign keys: other programs store values of another type under the keys of locks. While a master has a foreign
//! value under a lock key, it must not grant this lock, and no client may change the value.

use quorate::node::{Fault, Request};

use super::master::SimMaster;
use super::{Event, World};
use crate::facts::Fact;
use crate::locker::{RESOURCES, name};

impl SimMaster {
    /// Whether a foreign value is under the lock key of this resource.
    fn is_foreign(&mut self, now: u64, resource: usize) -> bool {
        let key = name(resource as u8).as_bytes().into();
        let now_us = self.micros(now);
        self.memory.apply(now_us, &Request::Look { key }) == Err(Fault::WrongType)
    }

    fn end(&mut self, now: u64, resource: usize) {
        self.foreign_keys &= !(1 << resource);
        if self.is_foreign(now, resource) {
            let (now_us, key) = (self.micros(now), name(resource as u8).as_bytes());
            let ttl = Some(std::time::Duration::ZERO);
            self.memory.put_text(now_us, key, b"", ttl);
        }
    }

    /// Called after the server has restarted. Removes all foreign values, including those that the disk has restored.
    pub(super) fn forget_foreign_keys(&mut self, now: u64) {
        for resource in 0..RESOURCES {
            self.end(now, resource);
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
        let key = name(resource).as_bytes();
        let now_us = master.micros(now);
        let taken = master.memory.peek(now_us, key).holder.is_some();
        if !master.up || taken || master.foreign_keys >> resource & 1 == 1 {
            return;
        }
        master.memory.put_foreign(key);
        master.foreign_keys |= 1 << resource;
        self.watch.coverage.foreign_keys += 1;
        let master = index;
        self.at(now + lasts, Event::ForeignKeyGoes { master, resource });
    }

    pub(super) fn remove_foreign_key(&mut self, index: u8, resource: u8) {
        let (now, resource) = (self.now, usize::from(resource));
        self.check_foreign_key(index.into(), resource);
        self.masters[usize::from(index)].end(now, resource);
    }

    /// Reports to the checkers whether a foreign value for this resource is still on this master. Reports nothing if no
    /// program has stored one.
    pub(super) fn check_foreign_key(&mut self, index: usize, resource: usize) {
        let (now, master) = (self.now, &mut self.masters[index]);
        if master.foreign_keys == 0 || master.foreign_keys >> resource & 1 == 0 {
            return;
        }
        let fact = Fact::ForeignKey {
            master: index,
            resource,
            stands: master.is_foreign(now, resource),
        };
        self.watch.fact(now, &fact);
    }
}
