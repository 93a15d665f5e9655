//! Wait locks: named locks on the store's server. A waiter blocks on a wait lock instead of polling.
//!
//! - The session of a queued waiter takes a wait lock. Its name is the waiter's short id.
//! - The session of a holder that renews its lock takes a wait lock. Its name is the lock value.
//! - A waiter's listener blocks on the wait lock of the previous waiter in the queue, or else of the holder. If that
//!   client has no wait lock, the listener polls.
//!
//! A wait lock is only a hint. When the listener gets the wait lock, the waiter sends its acquire request again.

use std::sync::Arc;

use super::codec::StoredItem;
use super::contract::WaitLock;
use crate::node::memory::items::{Item, ItemKind};
use crate::node::shape::is_reader;
use crate::node::{Claim, Request, waiter_id};

/// The wait locks that the session must take or release after it has executed `request`. `after` contains all items of
/// the request's records after this execution.
pub(super) fn lock_changes(request: &Request, items_after: &[&StoredItem]) -> Vec<WaitLock> {
    let mut lock_changes = Vec::new();
    match request {
        Request::Acquire { claim, .. } => lock_changes.extend(ticket_lock(claim, items_after)),
        Request::Extend { items } => {
            lock_changes.extend(
                items
                    .iter()
                    .map(|item| value_lock(&item.claim, items_after)),
            );
        }
        Request::Release { claim, .. } => {
            lock_changes.extend(ticket_lock(claim, items_after));
            lock_changes.push(value_lock(claim, items_after));
        }
        _ => {}
    }
    lock_changes
}

fn ticket_lock(claim: &Claim, items_after: &[&StoredItem]) -> Option<WaitLock> {
    let waiter = &claim.ticket()?.waiter;
    let is_place =
        |item: &Item| item.id.kind == ItemKind::Place && item.id.member == waiter.as_bytes();
    let is_queued = items_after.iter().any(|stored| is_place(&stored.item));
    Some(take_or_release(waiter_id::short(waiter).into(), is_queued))
}

fn value_lock(claim: &Claim, items_after: &[&StoredItem]) -> WaitLock {
    let value = claim.token().to_hex();
    let is_lock_key = |item: &Item| item.id.kind == ItemKind::Text && item.value == value;
    let is_held = items_after.iter().any(|stored| is_lock_key(&stored.item));
    take_or_release(String::from_utf8_lossy(&value).into(), is_held)
}

fn take_or_release(name: Arc<str>, is_kept: bool) -> WaitLock {
    if is_kept {
        WaitLock::Keep(name)
    } else {
        WaitLock::Release(name)
    }
}

/// The wait lock of the client directly ahead of this claim's waiter: the previous waiter in the queue, or else the
/// holder. `None` if there is no such client, if there are several, or if that client has no wait lock.
pub(super) fn lock_of_client_ahead(claim: &Claim, items: &[&StoredItem]) -> Option<Arc<str>> {
    let waiter = claim.ticket()?.waiter.as_bytes();
    let queue_places = || {
        items
            .iter()
            .map(|stored| &stored.item)
            .filter(|item| item.id.kind == ItemKind::Place)
    };
    let mut client_ahead: Option<&[u8]> = None;
    for place in queue_places().filter(|item| item.id.member == waiter) {
        let rank = |item: &Item| (item.value.clone(), item.id.member.clone());
        let earlier =
            queue_places().filter(|item| item.id.key == place.id.key && rank(item) < rank(place));
        let client = match earlier.max_by_key(|item| rank(item)) {
            Some(earlier) => &earlier.id.member,
            None => match holder(&place.id.key, items) {
                Some(value) => value,
                // No client is ahead of the waiter at this key. Continue with the next key of the claim.
                None => continue,
            },
        };
        if client_ahead
            .replace(client)
            .is_some_and(|other| other != &client[..])
        {
            return None;
        }
    }
    let client_ahead = std::str::from_utf8(client_ahead?).ok()?;
    // Return `None` if the client ahead is a reader: readers have no wait locks.
    let client_ahead = Some(client_ahead)
        .filter(|client_ahead| !is_reader(client_ahead))
        .map(waiter_id::short)?;
    is_lock_name(client_ahead).then(|| client_ahead.into())
}

/// The value of a lock key among these items; `None` if the lock is free.
fn holder<'a>(key: &[u8], items: &[&'a StoredItem]) -> Option<&'a Vec<u8>> {
    let is_value = |item: &&Item| item.id.kind == ItemKind::Text && item.id.key == key;
    let mut texts = items.iter().map(|stored| &stored.item);
    texts.find(is_value).map(|item| &item.value)
}

/// Whether `name` can name a wait lock: 1 to [`MAX_NAME_BYTES`] bytes, all of them hexadecimal digits or colons. Such a
/// name needs no escaping in a statement.
fn is_lock_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_hexdigit() || byte == b':';
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(is_allowed)
}

/// The longest name of a wait lock, in bytes. MySQL accepts names of at most 64 characters, including the prefix that
/// is added to the name of a wait lock.
const MAX_NAME_BYTES: usize = 48;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::codec::Clock;
    use super::*;
    use crate::node::memory::Master;
    use crate::node::memory::items::ItemId;
    use crate::node::{Class, ExtendItem, Fairness, Group, Mode, Part, Ticket, Token};

    const NOW: u64 = 1_000_000;

    fn claim(number: u8) -> Arc<Claim> {
        let ticket = Ticket {
            waiter: format!("0123456789abcdef:{number}/host:1:1763000000500").into(),
            number: number.into(),
            heartbeat: Duration::from_secs(5),
        };
        let claim = Claim::new("", b"a", Token::from_bytes([number; 16]), true);
        claim
            .with_fairness(Fairness::Fair(Some(Box::new(ticket))))
            .into()
    }

    fn acquire(claim: &Arc<Claim>) -> Request {
        Request::Acquire {
            claim: claim.clone(),
            ttl: Duration::from_secs(10),
            proposal: 0,
        }
    }

    fn after(requests: &[Request]) -> Vec<StoredItem> {
        let mut master = Master::default();
        for request in requests {
            master
                .apply(NOW, request)
                .expect("the master must execute the request");
        }
        let clock = Clock::Server { slack: 0 };
        StoredItem::updated(&[], master.items(NOW), NOW, clock, &[])
    }

    fn lock_ahead(claim: &Claim, stored: &[StoredItem]) -> Option<String> {
        let items: Vec<&StoredItem> = stored.iter().collect();
        lock_of_client_ahead(claim, &items).map(|name| name.to_string())
    }

    #[test]
    fn waiter_blocks_on_the_wait_lock_of_the_next_client_ahead() {
        let [holder, first, second] = [claim(1), claim(2), claim(3)];
        let unqueued = Claim::new("", b"a", holder.token(), true);
        let unqueued = unqueued.with_fairness(Fairness::Fair(None)).into();
        let waiting = [acquire(&first), acquire(&second)];
        let stored = after(&[&[acquire(&holder)], &waiting[..]].concat());
        assert_eq!(
            lock_ahead(&second, &stored),
            Some("0123456789abcdef:2".into())
        );
        assert_eq!(
            lock_ahead(&first, &stored),
            Some("0123456789abcdef:1".into())
        );
        let stored = after(&[&[acquire(&unqueued)], &waiting[..]].concat());
        assert_eq!(lock_ahead(&first, &stored), Some("01".repeat(16)));
        assert_eq!(
            lock_ahead(&unqueued, &stored),
            None,
            "ahead() must be None for a claim that is not queued"
        );
    }

    /// A claim on these keys, each exclusive, with the ticket of `claim(number)`.
    fn claim_on(keys: &[&[u8]], number: u8) -> Arc<Claim> {
        let part = |key: &&[u8]| Part {
            key: (*key).into(),
            mode: Mode::Exclusive,
        };
        let group = Group::new(keys.iter().map(part).collect());
        let ticket = claim(number).ticket().cloned().map(Box::new);
        let claim = Claim::new("", keys[0], Token::from_bytes([number; 16]), true);
        let claim = if keys.len() > 1 {
            claim.with_group(group)
        } else {
            claim
        };
        claim.with_fairness(Fairness::Fair(ticket)).into()
    }

    #[test]
    fn waiter_for_several_locks_blocks_on_a_wait_lock_only_if_one_client_is_ahead() {
        let waiter = claim_on(&[b"a", b"b"], 3);
        let ahead = |holders: &[Arc<Claim>]| {
            let requests = holders.iter().chain([&waiter]).map(acquire);
            lock_ahead(&waiter, &after(&requests.collect::<Vec<_>>()))
        };
        let same_client = [claim_on(&[b"a", b"b"], 1)];
        assert_eq!(ahead(&same_client), Some("0123456789abcdef:1".into()));
        let one_key_is_free = [claim_on(&[b"b"], 1)];
        assert_eq!(ahead(&one_key_is_free), Some("0123456789abcdef:1".into()));
        let different_clients = [claim_on(&[b"a"], 1), claim_on(&[b"b"], 2)];
        assert_eq!(ahead(&different_clients), None);
    }

    #[test]
    fn waiter_behind_a_reader_uses_no_wait_lock() {
        let reads = Group::new(vec![Part {
            key: b"a"[..].into(),
            mode: Mode::Class(Class::Shared),
        }]);
        let place = Box::new(
            claim(2)
                .ticket()
                .expect("the claim must have a ticket")
                .clone(),
        );
        let reader = Claim::new("", b"a", Token::from_bytes([2; 16]), true).with_group(reads);
        let reader = Arc::new(reader.with_fairness(Fairness::Fair(Some(place))));
        let [holder, last] = [claim(1), claim(3)];
        let stored = after(&[acquire(&holder), acquire(&reader), acquire(&last)]);
        assert_eq!(
            lock_ahead(&last, &stored),
            None,
            "ahead() must be None behind a reader, because readers hold no wait lock"
        );
        let stored = after(&[acquire(&holder), acquire(&last)]);
        assert_eq!(
            lock_ahead(&last, &stored),
            Some("0123456789abcdef:1".into())
        );
    }

    #[test]
    fn wait_lock_of_a_waiter_is_kept_while_the_waiter_is_queued() {
        let [holder, waiter] = [claim(1), claim(2)];
        let release = Request::Release {
            claim: waiter.clone(),
            leave: true,
        };
        let queued = after(&[acquire(&holder), acquire(&waiter)]);
        let after_release = after(&[acquire(&holder), acquire(&waiter), release.clone()]);
        let changes_after = |request: &Request, stored: &[StoredItem]| {
            let items: Vec<&StoredItem> = stored.iter().collect();
            lock_changes(request, &items)
        };
        let name: Arc<str> = "0123456789abcdef:2".into();
        let value = || String::from_utf8_lossy(&waiter.token().to_hex()).into();
        let keep = WaitLock::Keep(name.clone());
        assert_eq!(changes_after(&acquire(&waiter), &queued), [keep]);
        let released = [WaitLock::Release(name), WaitLock::Release(value())];
        assert_eq!(changes_after(&release, &after_release), released);
    }

    #[test]
    fn wait_lock_of_a_holder_is_kept_when_the_holder_renews_its_lock() {
        let holder = claim(1);
        let item = ExtendItem::new(holder.clone(), Duration::from_secs(10));
        let items = vec![item].into();
        let extend = Request::Extend { items };
        let name = || String::from_utf8_lossy(&holder.token().to_hex()).into();
        for (requests, change) in [
            (vec![acquire(&holder)], WaitLock::Keep(name())),
            (vec![acquire(&claim(2))], WaitLock::Release(name())),
        ] {
            let stored = after(&requests);
            let items: Vec<&StoredItem> = stored.iter().collect();
            assert_eq!(lock_changes(&extend, &items), [change]);
        }
    }

    /// A watcher whose id is that of the waiter, and an item of another type with the value of the lock.
    #[test]
    fn only_a_place_keeps_the_wait_lock_of_a_waiter_and_only_a_lock_key_that_of_a_holder() {
        let waiter = claim(2);
        let ticket = waiter.ticket().expect("the claim must have a ticket");
        let item = |kind, member: &[u8], value: &[u8]| Item {
            id: ItemId::new(kind, b"a", member),
            value: value.to_vec(),
            until: Some(2 * NOW),
        };
        let value = waiter.token().to_hex();
        let items = vec![
            item(ItemKind::Watcher, ticket.waiter.as_bytes(), b""),
            item(ItemKind::Foreign, b"", &value),
        ];
        let stored = StoredItem::updated(&[], items, NOW, Clock::Server { slack: 0 }, &[]);
        let items: Vec<&StoredItem> = stored.iter().collect();
        let release = Request::Release {
            claim: waiter.clone(),
            leave: true,
        };
        let names = ["0123456789abcdef:2".into(), String::from_utf8_lossy(&value)];
        let released = names.map(|name| WaitLock::Release(name.into()));
        assert_eq!(lock_changes(&release, &items), released);
    }

    #[test]
    fn name_that_is_unsafe_in_sql_is_not_used_as_a_wait_lock() {
        assert!(is_lock_name("0123456789abcdef:7"));
        assert!(is_lock_name(&"a".repeat(48)));
        let long = "a".repeat(49);
        for name in ["", "a'", "A\\", "0123456789abcdef:7r", &long] {
            assert!(
                !is_lock_name(name),
                "{name:?} must not be used as a wait lock"
            );
        }
    }
}
