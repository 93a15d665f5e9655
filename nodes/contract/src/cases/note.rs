//! Contract cases: holders' notes, and listing the keys of locks.

use std::sync::{Arc, Mutex};

use quorate::Note;
use quorate::node::{
    Answer, Claim, Class, ExtendItem, Extended, Fault, Group, KeyState, Mode, NoteItem, Page, Part,
    Request, Subscriber, WakeSink,
};

use crate::fixtures::{LONG, assert_about, now, token_text};
use crate::requests::{acquire, claim, extend, queued, release, token};
use crate::tested_master::TestedMaster;
use crate::time::{eventually, ms, secs};

const KEY: &[u8] = b"job";

/// A note is kept for this many times the remaining TTL of its lock.
const NOTE_TTL_FACTOR: u32 = 4;

fn note_key(key: &[u8]) -> Vec<u8> {
    [b"quorate:note:", key].concat()
}

/// A request that writes the note of one holder, whose machine is `host_of`. If `announce` is true, the master also
/// announces the holder to observers as a new leader.
fn note(claim: &Arc<Claim>, host_of: &str, announce: bool) -> Request {
    let item = NoteItem {
        claim: claim.clone(),
        says: format!("7\t{host_of}\tprogram\ta text").into(),
        since: 1_000,
        announce,
    };
    claim.take_note();
    Request::Note {
        items: [item].into(),
    }
}

fn host_of(note: Option<Note>) -> Option<String> {
    note.map(|note| note.host)
}

fn noted_answer(is_written: bool) -> Answer {
    Answer::Noted(vec![is_written])
}

pub async fn status_shows_the_holders_note_which_outlives_the_lock_key(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    assert_eq!(master.status(KEY).await.note, None);
    assert_eq!(
        master.send(note(&holder, "one", false)).await,
        Ok(noted_answer(true))
    );
    let shown_note = master.status(KEY).await.note.expect("a note");
    assert_eq!((&*shown_note.host, shown_note.pid), ("one", 7));
    assert_eq!(shown_note.process, "program");
    assert_eq!(shown_note.text.as_deref(), Some("a text"));
    assert_about(master.keys().ttl(&note_key(KEY)), NOTE_TTL_FACTOR * LONG);
    assert_eq!(
        master.send(note(&holder, "two", false)).await,
        Ok(noted_answer(true))
    );
    assert_eq!(
        host_of(master.status(KEY).await.note).as_deref(),
        Some("two")
    );
}

pub async fn status_shows_the_term_of_a_leader_with_or_without_a_note(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    for (says, host_told, term) in [
        ("7\tone\tprogram\t", Some("one"), None),
        ("7\tone\tprogram\t\t12", Some("one"), Some(12)),
        ("0\t\t\t\t12", None, Some(12)),
    ] {
        let item = NoteItem {
            claim: holder.clone(),
            says: says.into(),
            since: 1_000,
            announce: false,
        };
        let items = [item].into();
        assert_eq!(
            master.send(Request::Note { items }).await,
            Ok(noted_answer(true))
        );
        let state = master.status(KEY).await;
        assert_eq!(
            (host_of(state.note).as_deref(), state.term),
            (host_told, term)
        );
    }
}

pub async fn note_that_is_written_again_after_an_extension_expires_later(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, secs(100), now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    assert_about(
        master.keys().ttl(&note_key(KEY)),
        NOTE_TTL_FACTOR * secs(100),
    );
    master
        .send(extend(&[(&holder, LONG)]))
        .await
        .expect("the extension must succeed, because the lock is still held");
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    assert_about(master.keys().ttl(&note_key(KEY)), NOTE_TTL_FACTOR * LONG);
}

pub async fn renewal_extends_the_note_and_reports_a_missing_note(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, secs(100), now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let extended = |lock| Ok(Answer::Extended(vec![lock]));
    let renewed = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, extended(Extended::Kept));
    assert_about(master.keys().ttl(&note_key(KEY)), NOTE_TTL_FACTOR * LONG);
    assert_eq!(
        host_of(master.status(KEY).await.note).as_deref(),
        Some("one")
    );
    master.keys().delete(&note_key(KEY));
    let renewed = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, extended(Extended::Unnoted));
    // Neither a foreign string nor a key of another data type counts as a note.
    master.keys().put(&note_key(KEY), b"somebody", None);
    let renewed = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, extended(Extended::Unnoted));
    master.keys().put_foreign(&note_key(KEY));
    let renewed = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, extended(Extended::Unnoted));
    let stored_note = master.keys().read(&note_key(KEY));
    assert_eq!(stored_note.as_deref(), Some(&b"foreign"[..]));
    master.keys().delete(KEY);
    let renewed = master.send(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, extended(Extended::Restored));
}

pub async fn renewal_without_the_note_flag_leaves_the_note_unchanged(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, secs(100), now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let alone = || {
        let (claim, ttl) = (holder.clone(), LONG);
        let item = ExtendItem::new(claim, ttl);
        Request::Extend {
            items: [item].into(),
        }
    };
    let kept_answer = Ok(Answer::Extended(vec![Extended::Kept]));
    assert_eq!(master.send(alone()).await, kept_answer);
    assert_about(master.keys().ttl(KEY), LONG);
    assert_about(
        master.keys().ttl(&note_key(KEY)),
        NOTE_TTL_FACTOR * secs(100),
    );
    master.keys().delete(&note_key(KEY));
    assert_eq!(master.send(alone()).await, kept_answer);
}

pub async fn status_does_not_show_a_note_whose_lock_key_is_gone(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    // The lock key is deleted as if it had expired, not released, so the note stays.
    master.keys().delete(KEY);
    assert!(master.keys().read(&note_key(KEY)).is_some());
    assert_eq!(master.status(KEY).await.note, None);
    let next_claim = claim(KEY, 2);
    master.granted(acquire(&next_claim, LONG, now())).await;
    assert_eq!(master.status(KEY).await.note, None);
}

pub async fn only_the_holder_of_the_lock_can_write_a_note(master: &TestedMaster) {
    let unknown = claim(KEY, 2);
    assert_eq!(
        master.send(note(&unknown, "two", false)).await,
        Ok(noted_answer(false))
    );
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    assert_eq!(
        master.send(note(&unknown, "two", true)).await,
        Ok(noted_answer(false))
    );
    assert_eq!(
        host_of(master.status(KEY).await.note).as_deref(),
        Some("one")
    );
}

pub async fn release_removes_only_the_note_of_the_released_holder(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let late_claim = claim(KEY, 2);
    late_claim.take_note();
    assert_eq!(
        master.send(release(&late_claim)).await,
        Ok(Answer::Released(false))
    );
    assert_eq!(
        host_of(master.status(KEY).await.note).as_deref(),
        Some("one")
    );
    assert_eq!(
        master.send(release(&holder)).await,
        Ok(Answer::Released(true))
    );
    assert_eq!(master.keys().read(&note_key(KEY)), None);
    // These two holders were queued with a ticket before they got the lock.
    for (n, holder) in [(3, queued(KEY, 3, 1)), (4, queued(KEY, 4, 2))] {
        master.granted(acquire(&holder, LONG, now())).await;
        master
            .send(note(&holder, "one", false))
            .await
            .expect("the master must answer the request");
        assert_eq!(
            master.send(release(&holder)).await,
            Ok(Answer::Released(true))
        );
        assert_eq!(master.keys().read(&note_key(KEY)), None, "{n}");
    }
}

pub async fn leftover_note_is_never_shown_for_another_holder(master: &TestedMaster) {
    let first_claim = claim(KEY, 1);
    master.granted(acquire(&first_claim, LONG, now())).await;
    master
        .send(note(&first_claim, "one", false))
        .await
        .expect("the master must answer the request");
    let stored_note = master.keys().read(&note_key(KEY)).expect("a note");
    master.keys().delete(KEY);
    assert_eq!(
        master.status(KEY).await.note,
        None,
        "a free lock must not have a note"
    );
    master.granted(acquire(&claim(KEY, 2), LONG, now())).await;
    assert_eq!(master.keys().read(&note_key(KEY)), Some(stored_note));
    assert_eq!(master.status(KEY).await.note, None);
    let Ok(Answer::Refused { line, .. }) =
        master.send(acquire(&queued(KEY, 3, 1), LONG, now())).await
    else {
        panic!("the lock must be reported as held")
    };
    assert_eq!(line.expect("a line").note, None);
}

pub async fn refusal_of_an_ordered_acquire_contains_the_holders_note(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    for known in [None, Some("one".to_owned())] {
        let reply = master.send(acquire(&queued(KEY, 2, 1), LONG, now())).await;
        let Ok(Answer::Refused { line, .. }) = reply else {
            panic!("{reply:?}")
        };
        let queue_info = line.expect("a line");
        assert_eq!(queue_info.holder, Some(token_text(1)));
        assert_eq!(host_of(queue_info.note), known);
        master
            .send(note(&holder, "one", false))
            .await
            .expect("the master must answer the request");
    }
}

pub async fn forced_release_returns_and_removes_the_note(master: &TestedMaster) {
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let Ok(Answer::State(state)) = master.force_release(KEY).await else {
        panic!("no state")
    };
    assert_eq!(host_of(state.note).as_deref(), Some("one"));
    assert_eq!(master.keys().read(&note_key(KEY)), None);
}

pub async fn note_key_of_another_data_type_is_ignored(master: &TestedMaster) {
    master.keys().put_foreign(&note_key(KEY));
    let holder = queued(KEY, 1, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    assert_eq!(
        master.send(note(&holder, "one", false)).await,
        Ok(noted_answer(false))
    );
    assert_eq!(master.status(KEY).await.holder, Some(token_text(1)));
    let reply = master.send(acquire(&queued(KEY, 2, 2), LONG, now())).await;
    assert!(matches!(reply, Ok(Answer::Refused { .. })), "{reply:?}");
    assert_eq!(
        master.send(release(&holder)).await,
        Ok(Answer::Released(true))
    );
    master.keys().put(KEY, b"somebody", None);
    master
        .force_release(KEY)
        .await
        .expect("the force-release must succeed");
    let stored_note = master.keys().read(&note_key(KEY));
    assert_eq!(stored_note.as_deref(), Some(&b"foreign"[..]));
    // A lock key of another data type has no holder.
    master.keys().put_foreign(b"other");
    let other_claim = claim(b"other", 1);
    assert_eq!(
        master.send(note(&other_claim, "one", false)).await,
        Ok(noted_answer(false))
    );
}

pub async fn withdrawn_claim_in_a_request_for_several_notes_gets_no_note(master: &TestedMaster) {
    let claims = [claim(b"a", 1), claim(b"b", 2)];
    let mut items = Vec::new();
    for claim in &claims {
        master.granted(acquire(claim, LONG, now())).await;
        items.push(NoteItem {
            claim: claim.clone(),
            says: "7\thost\tprogram\t".into(),
            since: 1,
            announce: false,
        });
    }
    claims[0].withdraw();
    let reply = master.send(Request::Note {
        items: items.into(),
    });
    assert_eq!(written_notes(master, reply.await), (false, true));
}

fn written_notes(master: &TestedMaster, reply: Result<Answer, Fault>) -> (bool, bool) {
    // The withdrawn claim must get the answer `false`, and its note must not be written.
    assert_eq!(reply, Ok(Answer::Noted(vec![false, true])));
    let has_note = |key: &[u8]| master.keys().read(&note_key(key)).is_some();
    (has_note(b"a"), has_note(b"b"))
}

/// Collects the leaders that were announced to an observer.
#[derive(Clone, Default)]
struct AnnouncedKeys(Arc<Mutex<Vec<Vec<u8>>>>);

impl WakeSink for AnnouncedKeys {
    fn woken(&self, _: usize, _: &[u8]) {}

    fn announced(&self, _: usize, key: &[u8]) {
        self.0.lock().expect("no panic").push(key.to_vec());
    }
}

pub async fn new_leader_is_announced_to_its_observers(master: &TestedMaster) {
    let announced = AnnouncedKeys::default();
    master.node().subscribe(Subscriber {
        process: "0000000000000007".into(),
        node: 0,
        sink: Arc::new(announced.clone()),
    });
    let watch_request = |on| Request::Watch {
        key: KEY.into(),
        on,
    };
    // Mix watch requests with other requests. The answers must stay in order.
    assert_eq!(master.status(KEY).await, KeyState::default());
    assert_eq!(master.send(watch_request(true)).await, Ok(Answer::Watching));
    assert_eq!(master.send(watch_request(true)).await, Ok(Answer::Watching));
    let holder = claim(KEY, 1);
    master.granted(acquire(&holder, LONG, now())).await;
    master
        .send(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    master
        .send(note(&holder, "one", true))
        .await
        .expect("the master must answer the request");
    eventually("the new leader must be announced to observers", || {
        *announced.0.lock().expect("no panic") == [KEY.to_vec()]
    })
    .await;
    assert_eq!(
        master.send(watch_request(false)).await,
        Ok(Answer::Watching)
    );
    assert_eq!(master.status(KEY).await.holder, Some(token_text(1)));
}

/// All keys that match the pattern, from all pages of the listing.
async fn listed(master: &TestedMaster, pattern: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let mut next_cursor = 0;
    loop {
        let reply = master.send(Request::List {
            page: Arc::new(Page {
                pattern: pattern.into(),
                cursor: next_cursor,
                count: 10,
            }),
        });
        let Ok(Answer::Keys { cursor, keys }) = reply.await else {
            panic!("no keys")
        };
        names.extend(
            keys.iter()
                .map(|key| String::from_utf8_lossy(key).into_owned()),
        );
        next_cursor = cursor;
        if next_cursor == 0 {
            names.sort();
            names.dedup();
            return names;
        }
    }
}

pub async fn listing_returns_string_keys_whose_names_match_the_pattern(master: &TestedMaster) {
    for n in 0..50 {
        master
            .keys()
            .put(format!("job:{n:02}").as_bytes(), b"x", Some(LONG));
    }
    master.keys().put(b"jot", b"x", None);
    master.keys().put(b"a*b", b"x", None);
    master.keys().put(b"aab", b"x", None);
    master.keys().put(b"gone", b"x", Some(ms(1)));
    master.keys().put_foreign(b"job:list");
    let listed_names = listed(master, b"job:*").await;
    assert_eq!(listed_names.len(), 50, "{listed_names:?}");
    assert_eq!(listed(master, b"a\\**").await, ["a*b"]);
    assert_eq!(listed(master, b"nothing*").await, [""; 0]);
}

pub async fn each_reader_has_its_own_note_which_its_release_removes(master: &TestedMaster) {
    let reader_claim = |n| {
        let part = Part {
            key: KEY.into(),
            mode: Mode::Class(Class::Shared),
        };
        let claim = Claim::new("", KEY, token(n), true);
        Arc::new(claim.with_group(Group::new(vec![part])))
    };
    let (one, two, unknown) = (reader_claim(1), reader_claim(2), reader_claim(3));
    master.granted(acquire(&one, secs(100), now())).await;
    master.granted(acquire(&two, LONG, now())).await;
    for (reader, host_of, is) in [
        (&one, "one", true),
        (&two, "two", true),
        (&unknown, "x", false),
    ] {
        assert_eq!(
            master.send(note(reader, host_of, false)).await,
            Ok(noted_answer(is))
        );
    }
    let note = master.status(KEY).await;
    assert_eq!(note.note, None);
    let hosts: Vec<_> = note
        .holds
        .into_iter()
        .map(|hold| host_of(hold.note))
        .collect();
    assert_eq!(hosts, [Some("one".into()), Some("two".into())]);
    let key = |n| [b"quorate:note:quorate:hold:", &token_text(n)[..], b":", KEY].concat();
    assert_about(master.keys().ttl(&key(1)), secs(100) * NOTE_TTL_FACTOR);
    assert_about(master.keys().ttl(&key(2)), LONG * NOTE_TTL_FACTOR);
    master
        .send(release(&one))
        .await
        .expect("the release must succeed, because this reader holds the lock");
    assert_eq!(master.keys().read(&key(1)), None);
    let Ok(Answer::State(state)) = master.force_release(KEY).await else {
        panic!("no state")
    };
    let hosts: Vec<_> = state
        .holds
        .into_iter()
        .map(|hold| host_of(hold.note))
        .collect();
    assert_eq!(hosts, [Some("two".into())]);
    // After another client has acquired the lock, the status must not list the force-released reader.
    master.granted(acquire(&claim(KEY, 4), LONG, now())).await;
    assert_eq!(master.status(KEY).await.holds, []);
}
