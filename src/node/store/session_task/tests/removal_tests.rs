//! Tests of the search for obsolete records, and of their removal.

use super::*;
use crate::node::memory::items::{Item, ItemId, ItemKind};
use crate::node::store::codec::{Clock, StoredItem};

fn name(number: usize) -> Name {
    format!("{number:04}").as_bytes().into()
}

/// Stores records in the table, each with one lock key that has expired.
async fn store_expired_records(table: &Table, count: usize) {
    let clock = Clock::Server { slack: 0 };
    let change = |number: usize| {
        let item = Item {
            id: ItemId::new(ItemKind::Text, &name(number), b""),
            value: b"x".to_vec(),
            until: Some(1),
        };
        let stored = StoredItem::updated(&[], vec![item], 0, clock, &[]);
        Change {
            name: name(number),
            version: 0,
            state: Some(StoredItem::write(&stored)),
        }
    };
    let commit = Commit {
        changes: (0..count).map(change).collect(),
        ..Commit::default()
    };
    let committed = table.clone().commit(&[commit]).await;
    committed.expect("the table must answer");
}

/// The number of records in the table.
async fn record_count(table: &Table) -> usize {
    let page = table.clone().page(0, u32::MAX).await;
    page.expect("the table must answer").what.len()
}

/// How many of the first 70 records are cached.
fn cached_count(task: &SessionTask<Table>) -> usize {
    let is_cached = |number: &usize| task.cache.get_all(&[name(*number)]).is_some();
    (0..70).filter(is_cached).count()
}

#[tokio::test]
async fn obsolete_records_of_other_clients_are_found_page_by_page_and_then_removed() {
    let table = Table::new("table", true);
    store_expired_records(&table, 70).await;
    let mut task = task_of(table.clone());
    let mut online = task.connect().await.expect("the table must answer");
    task.cache.start_batch();
    assert_eq!(task.sweep(&mut online).await, Ok(()));
    assert_eq!(task.sweep.page(), 64);
    assert_eq!(record_count(&table).await, 70, "no record was read before");
    assert_eq!(cached_count(&task), 64);
    assert_eq!(task.sweep(&mut online).await, Ok(()));
    assert_eq!(task.sweep.page(), 0, "the search must begin again");
    assert_eq!(record_count(&table).await, 54, "16 records must be removed");
    assert_eq!(cached_count(&task), 48);
}

#[tokio::test]
async fn only_one_session_with_room_in_its_cache_reads_records_to_find_obsolete_ones() {
    let other_names = || (0..8192).map(|number| name(1000 + number));
    for (description, pager, cached_before, found) in [
        ("this session", 0, 0, 3),
        ("another session", 1, 0, 0),
        ("no room", 0, 8192, 0),
        ("room for one record", 0, 8191, 1),
    ] {
        let table = Table::new("table", true);
        store_expired_records(&table, 3).await;
        let mut task = task_of(table);
        let mut online = task.connect().await.expect("the table must answer");
        assert_eq!(task.shared.pager.set(pager), Ok(()));
        for name in other_names().take(cached_before) {
            task.cache.note_written(&name, 1, Vec::new());
        }
        assert_eq!(task.sweep(&mut online).await, Ok(()));
        assert_eq!(cached_count(&task), found, "{description}");
    }
}

#[tokio::test]
async fn row_without_a_record_is_not_cached_by_the_search_for_obsolete_records() {
    for version in [0, 1] {
        let record = Record::new(version, Vec::new());
        let mut task = task_of(Faulty::new(Failing::PageShows(record)));
        let mut online = task.connect().await.expect("the store must answer");
        assert_eq!(task.sweep(&mut online).await, Ok(()));
        let is_cached = task.cache.get_all(&[b"secret"[..].into()]).is_some();
        assert_eq!(is_cached, version > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn removal_of_obsolete_records_has_the_time_limit_of_a_request() {
    let timeout = Duration::from_secs(1);
    for (answer_time, result) in [(timeout / 2, Ok(())), (2 * timeout, Err(Fault::Stalled))] {
        let store = Faulty::new(Failing::Never).timeout(timeout);
        let mut task = paced_task_of(store.clone(), RestartGuard::On);
        let (session, greeting) = store.connect().await.expect("the store must answer");
        let session = session.answer_time(answer_time);
        let online = task.accept_greeting(session, greeting, task.now());
        let mut online = online.expect("the greeting must be accepted");
        assert_eq!(task.sweep(&mut online).await, result, "{answer_time:?}");
    }
}
