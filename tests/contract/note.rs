//! Contract cases: holders' notes, and listing the keys of locks.

use std::sync::{Arc, Mutex};

use quorate::Note;
use quorate::node::{
    Answer, Claim, Class, ExtendItem, Extended, Fault, Group, KeyState, Mode, NoteItem, Page, Part,
    Request, Subscriber, WakeSink,
};

use crate::arm::{Arm, LONG, assert_about, hex, now};
use crate::support::asking::{acquire, claim, extend, look, queued, release, token};
use crate::support::{eventually, ms, secs};

const KEY: &[u8] = b"job";

/// A note is kept for this many times the remaining TTL of its lock.
const NOTE_LIVES: u32 = 4;

fn note_key(key: &[u8]) -> Vec<u8> {
    [b"quorate:note:", key].concat()
}

/// A request that writes the note of one holder, whose machine is `host`. If `announce` is true, the master also
/// announces the holder to observers as a new leader.
pub(crate) fn note(claim: &Arc<Claim>, host: &str, announce: bool) -> Request {
    let item = NoteItem {
        claim: claim.clone(),
        says: format!("7\t{host}\tprogram\ta text").into(),
        since: 1_000,
        announce,
    };
    claim.take_note();
    Request::Note {
        items: [item].into(),
    }
}

async fn state(arm: &Arm) -> KeyState {
    match arm.ask(look(KEY)).await {
        Ok(Answer::State(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn host(note: Option<Note>) -> Option<String> {
    note.map(|note| note.host)
}

fn written(yes: bool) -> Answer {
    Answer::Noted(vec![yes])
}

pub(crate) async fn status_shows_the_holders_note_which_outlives_the_lock_key(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    assert_eq!(state(arm).await.note, None);
    assert_eq!(
        arm.ask(note(&holder, "one", false)).await,
        Ok(written(true))
    );
    let shown = state(arm).await.note.expect("a note");
    assert_eq!((&*shown.host, shown.pid), ("one", 7));
    assert_eq!(shown.process, "program");
    assert_eq!(shown.text.as_deref(), Some("a text"));
    assert_about(arm.ttl(&note_key(KEY)), NOTE_LIVES * LONG);
    assert_eq!(
        arm.ask(note(&holder, "two", false)).await,
        Ok(written(true))
    );
    assert_eq!(host(state(arm).await.note).as_deref(), Some("two"));
}

pub(crate) async fn status_shows_the_term_of_a_leader_with_or_without_a_note(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
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
        assert_eq!(arm.ask(Request::Note { items }).await, Ok(written(true)));
        let state = state(arm).await;
        assert_eq!((host(state.note).as_deref(), state.term), (host_told, term));
    }
}

pub(crate) async fn note_that_is_written_again_after_an_extension_expires_later(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, secs(100), now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    assert_about(arm.ttl(&note_key(KEY)), NOTE_LIVES * secs(100));
    arm.ask(extend(&[(&holder, LONG)]))
        .await
        .expect("the extension must succeed, because the lock is still held");
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    assert_about(arm.ttl(&note_key(KEY)), NOTE_LIVES * LONG);
}

pub(crate) async fn renewal_extends_the_note_and_reports_a_missing_note(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, secs(100), now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let each = |said| Ok(Answer::Extended(vec![said]));
    let renewed = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, each(Extended::Kept));
    assert_about(arm.ttl(&note_key(KEY)), NOTE_LIVES * LONG);
    assert_eq!(host(state(arm).await.note).as_deref(), Some("one"));
    arm.delete(&note_key(KEY));
    let renewed = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, each(Extended::Unnoted));
    // Neither a foreign string nor a key of another data type counts as a note.
    arm.put(&note_key(KEY), b"somebody", None);
    let renewed = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, each(Extended::Unnoted));
    arm.put_foreign(&note_key(KEY));
    let renewed = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, each(Extended::Unnoted));
    let left = arm.read(&note_key(KEY));
    assert_eq!(left.as_deref(), Some(&b"foreign"[..]));
    arm.delete(KEY);
    let renewed = arm.ask(extend(&[(&holder, LONG)])).await;
    assert_eq!(renewed, each(Extended::Restored));
}

pub(crate) async fn renewal_without_the_note_flag_leaves_the_note_unchanged(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, secs(100), now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let alone = || {
        let (claim, ttl) = (holder.clone(), LONG);
        let item = ExtendItem {
            claim,
            ttl,
            note: false,
        };
        Request::Extend {
            items: [item].into(),
        }
    };
    let kept = Ok(Answer::Extended(vec![Extended::Kept]));
    assert_eq!(arm.ask(alone()).await, kept);
    assert_about(arm.ttl(KEY), LONG);
    assert_about(arm.ttl(&note_key(KEY)), NOTE_LIVES * secs(100));
    arm.delete(&note_key(KEY));
    assert_eq!(arm.ask(alone()).await, kept);
}

pub(crate) async fn status_does_not_show_a_note_whose_lock_key_is_gone(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    // The lock key is deleted as if it had expired, not released, so the note stays.
    arm.delete(KEY);
    assert!(arm.read(&note_key(KEY)).is_some());
    assert_eq!(state(arm).await.note, None);
    let next = claim(KEY, 2);
    arm.granted(acquire(&next, LONG, now())).await;
    assert_eq!(state(arm).await.note, None);
}

pub(crate) async fn only_the_holder_of_the_lock_can_write_a_note(arm: &Arm) {
    let stranger = claim(KEY, 2);
    assert_eq!(
        arm.ask(note(&stranger, "two", false)).await,
        Ok(written(false))
    );
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    assert_eq!(
        arm.ask(note(&stranger, "two", true)).await,
        Ok(written(false))
    );
    assert_eq!(host(state(arm).await.note).as_deref(), Some("one"));
}

pub(crate) async fn release_removes_only_the_note_of_the_released_holder(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let late = claim(KEY, 2);
    late.take_note();
    assert_eq!(arm.ask(release(&late)).await, Ok(Answer::Released(false)));
    assert_eq!(host(state(arm).await.note).as_deref(), Some("one"));
    assert_eq!(arm.ask(release(&holder)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.read(&note_key(KEY)), None);
    // These two holders were queued with a ticket before they got the lock.
    for (n, holder) in [(3, queued(KEY, 3, 1)), (4, queued(KEY, 4, 2))] {
        arm.granted(acquire(&holder, LONG, now())).await;
        arm.ask(note(&holder, "one", false))
            .await
            .expect("the master must answer the request");
        assert_eq!(arm.ask(release(&holder)).await, Ok(Answer::Released(true)));
        assert_eq!(arm.read(&note_key(KEY)), None, "{n}");
    }
}

pub(crate) async fn leftover_note_is_never_shown_for_another_holder(arm: &Arm) {
    let first = claim(KEY, 1);
    arm.granted(acquire(&first, LONG, now())).await;
    arm.ask(note(&first, "one", false))
        .await
        .expect("the master must answer the request");
    let left = arm.read(&note_key(KEY)).expect("a note");
    arm.delete(KEY);
    assert_eq!(
        state(arm).await.note,
        None,
        "a free lock must not have a note"
    );
    arm.granted(acquire(&claim(KEY, 2), LONG, now())).await;
    assert_eq!(arm.read(&note_key(KEY)), Some(left));
    assert_eq!(state(arm).await.note, None);
    let Ok(Answer::Refused { line, .. }) = arm.ask(acquire(&queued(KEY, 3, 1), LONG, now())).await
    else {
        panic!("the lock must be reported as held")
    };
    assert_eq!(line.expect("a line").note, None);
}

pub(crate) async fn refusal_of_an_ordered_acquire_contains_the_holders_note(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    for known in [None, Some("one".to_owned())] {
        let said = arm.ask(acquire(&queued(KEY, 2, 1), LONG, now())).await;
        let Ok(Answer::Refused { line, .. }) = said else {
            panic!("{said:?}")
        };
        let line = line.expect("a line");
        assert_eq!(line.holder, Some(hex(1)));
        assert_eq!(host(line.note), known);
        arm.ask(note(&holder, "one", false))
            .await
            .expect("the master must answer the request");
    }
}

pub(crate) async fn forced_release_returns_and_removes_the_note(arm: &Arm) {
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    let Ok(Answer::State(was)) = arm.smash(KEY).await else {
        panic!("no state")
    };
    assert_eq!(host(was.note).as_deref(), Some("one"));
    assert_eq!(arm.read(&note_key(KEY)), None);
}

pub(crate) async fn note_key_of_another_data_type_is_ignored(arm: &Arm) {
    arm.put_foreign(&note_key(KEY));
    let holder = queued(KEY, 1, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    assert_eq!(
        arm.ask(note(&holder, "one", false)).await,
        Ok(written(false))
    );
    assert_eq!(state(arm).await.holder, Some(hex(1)));
    let said = arm.ask(acquire(&queued(KEY, 2, 2), LONG, now())).await;
    assert!(matches!(said, Ok(Answer::Refused { .. })), "{said:?}");
    assert_eq!(arm.ask(release(&holder)).await, Ok(Answer::Released(true)));
    arm.put(KEY, b"somebody", None);
    arm.smash(KEY)
        .await
        .expect("the force-release must succeed");
    let left = arm.read(&note_key(KEY));
    assert_eq!(left.as_deref(), Some(&b"foreign"[..]));
    // A lock key of another data type has no holder.
    arm.put_foreign(b"other");
    let other = claim(b"other", 1);
    assert_eq!(
        arm.ask(note(&other, "one", false)).await,
        Ok(written(false))
    );
}

pub(crate) async fn withdrawn_claim_in_a_request_for_several_notes_gets_no_note(arm: &Arm) {
    let claims = [claim(b"a", 1), claim(b"b", 2)];
    let mut items = Vec::new();
    for claim in &claims {
        arm.granted(acquire(claim, LONG, now())).await;
        items.push(NoteItem {
            claim: claim.clone(),
            says: "7\thost\tprogram\t".into(),
            since: 1,
            announce: false,
        });
    }
    claims[0].withdraw();
    let said = arm.ask(Request::Note {
        items: items.into(),
    });
    assert_eq!(arm_notes(arm, said.await), (false, true));
}

fn arm_notes(arm: &Arm, said: Result<Answer, Fault>) -> (bool, bool) {
    // The withdrawn claim must get the answer `false`, and its note must not be written.
    assert_eq!(said, Ok(Answer::Noted(vec![false, true])));
    let there = |key: &[u8]| arm.read(&note_key(key)).is_some();
    (there(b"a"), there(b"b"))
}

/// Collects the leaders that were announced to an observer.
#[derive(Clone, Default)]
struct Announced(Arc<Mutex<Vec<Vec<u8>>>>);

impl WakeSink for Announced {
    fn woken(&self, _: usize, _: &[u8]) {}

    fn announced(&self, _: usize, key: &[u8]) {
        self.0.lock().expect("no panic").push(key.to_vec());
    }
}

pub(crate) async fn new_leader_is_announced_to_its_observers(arm: &Arm) {
    let heard = Announced::default();
    arm.node.subscribe(Subscriber {
        process: "0000000000000007".into(),
        node: 0,
        sink: Arc::new(heard.clone()),
    });
    let watch = |on| Request::Watch {
        key: KEY.into(),
        on,
    };
    // Mix watch requests with other requests. The answers must stay in order.
    assert_eq!(state(arm).await, KeyState::default());
    assert_eq!(arm.ask(watch(true)).await, Ok(Answer::Watching));
    assert_eq!(arm.ask(watch(true)).await, Ok(Answer::Watching));
    let holder = claim(KEY, 1);
    arm.granted(acquire(&holder, LONG, now())).await;
    arm.ask(note(&holder, "one", false))
        .await
        .expect("the master must answer the request");
    arm.ask(note(&holder, "one", true))
        .await
        .expect("the master must answer the request");
    eventually("the new leader must be announced to observers", || {
        *heard.0.lock().expect("no panic") == [KEY.to_vec()]
    })
    .await;
    assert_eq!(arm.ask(watch(false)).await, Ok(Answer::Watching));
    assert_eq!(state(arm).await.holder, Some(hex(1)));
}

/// All keys that match the pattern, from all pages of the listing.
async fn listed(arm: &Arm, pattern: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        let said = arm.ask(Request::List {
            page: Arc::new(Page {
                pattern: pattern.into(),
                cursor: at,
                count: 10,
            }),
        });
        let Ok(Answer::Keys { cursor, keys }) = said.await else {
            panic!("no keys")
        };
        found.extend(
            keys.iter()
                .map(|key| String::from_utf8_lossy(key).into_owned()),
        );
        at = cursor;
        if at == 0 {
            found.sort();
            found.dedup();
            return found;
        }
    }
}

pub(crate) async fn listing_returns_string_keys_whose_names_match_the_pattern(arm: &Arm) {
    for n in 0..50 {
        arm.put(format!("job:{n:02}").as_bytes(), b"x", Some(LONG));
    }
    arm.put(b"jot", b"x", None);
    arm.put(b"a*b", b"x", None);
    arm.put(b"aab", b"x", None);
    arm.put(b"gone", b"x", Some(ms(1)));
    arm.put_foreign(b"job:list");
    let all = listed(arm, b"job:*").await;
    assert_eq!(all.len(), 50, "{all:?}");
    assert_eq!(listed(arm, b"a\\**").await, ["a*b"]);
    assert_eq!(listed(arm, b"nothing*").await, [""; 0]);
}

pub(crate) async fn each_reader_has_its_own_note_which_its_release_removes(arm: &Arm) {
    let reader = |n| {
        let part = Part {
            key: KEY.into(),
            mode: Mode::Class(Class::Shared),
        };
        let claim = Claim::new("", KEY, token(n), true);
        Arc::new(claim.with_group(Group::new(vec![part])))
    };
    let (one, two, stranger) = (reader(1), reader(2), reader(3));
    arm.granted(acquire(&one, secs(100), now())).await;
    arm.granted(acquire(&two, LONG, now())).await;
    for (reader, host, is) in [
        (&one, "one", true),
        (&two, "two", true),
        (&stranger, "x", false),
    ] {
        assert_eq!(arm.ask(note(reader, host, false)).await, Ok(written(is)));
    }
    let shown = state(arm).await;
    assert_eq!(shown.note, None);
    let hosts: Vec<_> = shown
        .holds
        .into_iter()
        .map(|hold| host(hold.note))
        .collect();
    assert_eq!(hosts, [Some("one".into()), Some("two".into())]);
    let key = |n| [b"quorate:note:quorate:hold:", &hex(n)[..], b":", KEY].concat();
    assert_about(arm.ttl(&key(1)), secs(100) * NOTE_LIVES);
    assert_about(arm.ttl(&key(2)), LONG * NOTE_LIVES);
    arm.ask(release(&one))
        .await
        .expect("the release must succeed, because this reader holds the lock");
    assert_eq!(arm.read(&key(1)), None);
    let Ok(Answer::State(was)) = arm.smash(KEY).await else {
        panic!("no state")
    };
    let hosts: Vec<_> = was.holds.into_iter().map(|hold| host(hold.note)).collect();
    assert_eq!(hosts, [Some("two".into())]);
    // After another client has acquired the lock, the status must not list the force-released reader.
    arm.granted(acquire(&claim(KEY, 4), LONG, now())).await;
    assert_eq!(state(arm).await.holds, []);
}
