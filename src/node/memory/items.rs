//! Converts the state of a master in memory to items, and items to such a state. If a database or ZooKeeper is the
//! master, it stores the state as these items.

use std::sync::Arc;

use super::master::{Master, WaiterQueue};
use crate::keys::Family;
use crate::protocol::fencing::COUNTER_TTL_US;

/// An entry on a master: a key, a waiter's place in a queue, or one of the holds of a shared lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct Item {
    pub(in crate::node) id: ItemId,
    /// The stored value of the item.
    pub(in crate::node) value: Vec<u8>,
    /// When the item expires, in microseconds on the master's clock; `None` if it does not expire.
    pub(in crate::node) until: Option<u64>,
}

/// Identifies an item on one master: the kind of item, its key, and its member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) struct ItemId {
    pub(in crate::node) kind: ItemKind,
    pub(in crate::node) key: Vec<u8>,
    /// Distinguishes the items under one key: for example the waiter's id, or the hold's value.
    pub(in crate::node) member: Vec<u8>,
}

/// The kind of an item on a master in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) enum ItemKind {
    /// A key that holds a string.
    Text,
    /// A key that holds a value of another type than string.
    Foreign,
    /// A queue of waiters. The item's value is the largest ticket in the queue.
    Queue,
    /// A waiter's place in a queue. The item's value is the waiter's ticket.
    Place,
    /// One of the holds of readers or of an owner that share a lock key.
    Hold,
    /// An observer: a process that is notified of new leaders.
    Watcher,
}

impl Item {
    pub(in crate::node) fn lives(&self, now: u64) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Whether this item is a fencing counter.
    pub(in crate::node) fn is_counter(&self) -> bool {
        self.id.kind == ItemKind::Text
            && self
                .id
                .key
                .starts_with(Family::Fence.key_prefix().as_bytes())
    }

    /// Whether this item is a fencing counter that must be kept at the time `date` (microseconds since 1970).
    ///
    /// The number of a counter can be read as a time. A counter is kept until one day after this time.
    pub(in crate::node) fn is_counter_needed_at(&self, date: u64) -> bool {
        let text = std::str::from_utf8(&self.value).ok();
        let number: Option<u64> = text.and_then(|text| text.parse().ok());
        self.is_counter()
            && number.is_some_and(|number| number.saturating_add(COUNTER_TTL_US) > date)
    }
}

impl Master {
    /// Returns these items:
    ///
    /// - all items that have not expired;
    /// - all places in a queue that has not expired. A waiter whose heartbeat is overdue can still renew its place;
    /// - holds that expired less than a day ago.
    pub(in crate::node) fn items(&self, now: u64) -> Vec<Item> {
        let keys = self.all().map(|(key, text, until)| {
            let kind = text.map_or(ItemKind::Foreign, |_| ItemKind::Text);
            Item {
                id: ItemId::new(kind, key, &[]),
                value: text.unwrap_or_default().to_vec(),
                until,
            }
        });
        let mut items: Vec<Item> = keys.filter(|item| item.lives(now)).collect();
        for (key, queue) in &self.queues {
            if now / 1000 < queue.expires {
                items.extend(queue.items(key));
            }
        }
        for (key, members) in &self.holds {
            let holds = members.iter().map(|(value, until)| Item {
                id: ItemId::new(ItemKind::Hold, key, value),
                value: Vec::new(),
                until: Some(until * 1000),
            });
            items
                .extend(holds.filter(|hold| hold.until > Some(now.saturating_sub(COUNTER_TTL_US))));
        }
        items
    }

    /// Stores an item. An item with the same id is replaced.
    pub(in crate::node) fn put(&mut self, item: Item) {
        let Item { id, value, until } = item;
        // Round the expiry up to milliseconds, so that the item does not expire too early.
        let ms = until.unwrap_or(u64::MAX / 2).div_ceil(1000);
        match id.kind {
            ItemKind::Text => self.put_until(&id.key, Some(value), until),
            ItemKind::Foreign => self.put_until(&id.key, None, until),
            ItemKind::Queue => {
                let queue = self.queues.entry(id.key).or_default();
                (queue.ticket, queue.expires) = (number(&value), ms);
            }
            ItemKind::Place => {
                let waiter: Arc<str> = String::from_utf8_lossy(&id.member).into();
                let queue = self.queues.entry(id.key).or_default();
                queue.queue.insert((number(&value), waiter.clone()));
                queue.alive.insert(waiter, ms);
                queue.queue_expires = queue.queue_expires.max(ms);
            }
            ItemKind::Hold => {
                let mut value = [0; 32];
                let length = id.member.len().min(32);
                value[..length].copy_from_slice(&id.member[..length]);
                self.holds.entry(id.key).or_default().push((value, ms));
            }
            ItemKind::Watcher => {}
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    let bytes = bytes.try_into().unwrap_or_default();
    u64::from_be_bytes(bytes)
}

impl ItemId {
    pub(in crate::node) fn new(kind: ItemKind, key: &[u8], member: &[u8]) -> Self {
        Self {
            kind,
            key: key.to_vec(),
            member: member.to_vec(),
        }
    }
}

impl WaiterQueue {
    fn items(&self, key: &[u8]) -> impl Iterator<Item = Item> {
        let queue = Item {
            id: ItemId::new(ItemKind::Queue, key, &[]),
            value: self.ticket.to_be_bytes().to_vec(),
            until: Some(self.expires * 1000),
        };
        let places = self.queue.iter().filter_map(|(ticket, waiter)| {
            let expires = self.alive.get(waiter)?;
            Some(Item {
                id: ItemId::new(ItemKind::Place, key, waiter.as_bytes()),
                value: ticket.to_be_bytes().to_vec(),
                until: Some(expires * 1000),
            })
        });
        std::iter::once(queue).chain(places)
    }
}
