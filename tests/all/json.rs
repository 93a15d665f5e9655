//! Tests of the JSON form of results and errors: `docs/library.md`, section "JSON".

use quorate::testing::{Condition, Masters};
use quorate::{ExtendError, LossCause, Redlock, TryAcquire, Wait};
use serde::Serialize;
use serde_json::{Value, json};

use crate::support::{ms, secs};

/// The JSON form, without the times and the process, which differ from run to run.
fn stable_form(value: &impl Serialize) -> Value {
    let mut form = serde_json::to_value(value).expect("it can be written");
    mask(&mut form);
    form
}

/// Replaces values that differ from run to run by the name of their type.
fn mask(form: &mut Value) {
    match form {
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(fields) => {
            for (name, value) in fields {
                let varies = name.ends_with("_ms") || ["pid", "fencing_counter"].contains(&&**name);
                let is_text =
                    ["token", "holder", "host", "process", "since", "id"].contains(&&**name);
                if value.is_number() && varies {
                    *value = json!("number");
                } else if value.is_string() && is_text {
                    *value = json!("text");
                } else {
                    mask(value);
                }
            }
        }
        _ => {}
    }
}

fn client_of(masters: &Masters) -> Redlock {
    let settings = Redlock::builder().in_memory_on(masters).wait(Wait::None);
    settings.build().expect("good settings")
}

fn note() -> Value {
    let text = "text";
    json!({ "host": text, "pid": "number", "process": text, "since": text, "text": "for the test" })
}

fn report(master: &str, phase: &str, outcome: &str, error: Option<&str>) -> Value {
    json!({
        "master": master, "phase": phase, "outcome": outcome, "error": error, "latency_ms": "number", "late": false,
    })
}

/// Acquires the lock, and waits until its note has been written.
async fn acquire_with_note(redlock: &Redlock, resource: &str) -> quorate::LockGuard {
    let request = redlock.lock(resource).note("for the test");
    let guard = request.acquire().await.expect("free");
    let note_of = async || {
        let status = redlock.status(resource).await.expect("a valid name");
        status.note().is_some()
    };
    while !note_of().await {
        tokio::time::sleep(ms(10)).await;
    }
    guard
}

#[tokio::test(start_paused = true)]
async fn listing_has_the_documented_form() {
    let masters = Masters::new(3);
    let redlock = client_of(&masters);
    let _guard = acquire_with_note(&redlock, "deploy").await;
    let _permit = redlock
        .semaphore("seats", 1)
        .note(None)
        .acquire()
        .await
        .expect("free");
    masters[2].set_condition(Condition::Down);
    let held = |master: &str| {
        json!({
            "master": master, "state": "held", "token": "text", "ttl_left_ms": "number",
            "fencing_counter": "number", "waiting": [], "latency_ms": "number", "error": null, "error_kind": null,
        })
    };
    let down = json!({
        "master": "memory-3", "state": "error", "token": null, "ttl_left_ms": null, "fencing_counter": null,
        "waiting": [], "latency_ms": "number", "error": "down (switched off)", "error_kind": "down",
    });
    let states = json!([held("memory-1"), held("memory-2"), down]);
    let lock = json!({
        "resource": "deploy", "verdict": "held", "holder": "text", "note": note(), "quorum": 2, "answered": 2,
        "masters": states,
    });
    let permit = json!({
        "resource": "seats", "slot": 0, "verdict": "held", "holder": "text", "note": null, "quorum": 2,
        "answered": 2, "masters": states,
    });
    let not_asked =
        json!([{ "master": "memory-3", "error": "down (switched off)", "error_kind": "down" }]);
    let listing = stable_form(&redlock.list("").await);
    assert_eq!(
        listing,
        json!({
            "resources": [lock, permit], "complete": true, "majority_answered": true, "not_asked": not_asked,
        })
    );
    let status = stable_form(&redlock.status("deploy").await.expect("a valid name"));
    let mut expected_status = lock;
    expected_status
        .as_object_mut()
        .expect("an object")
        .remove("resource");
    assert_eq!(status, expected_status);
    let names = stable_form(&redlock.list_names("", 10).await);
    assert_eq!(
        names["names"],
        json!([{ "resource": "deploy" }, { "resource": "seats", "slot": 0 }])
    );
    let semaphore = redlock
        .semaphore_status("seats")
        .await
        .expect("a valid name");
    let semaphore = stable_form(&semaphore);
    assert_eq!(semaphore["permits"], json!([permit]));
    let queue = json!({ "master": "memory-1", "waiting": [] });
    assert_eq!(semaphore["permit_line"][0], queue);
}

#[tokio::test(start_paused = true)]
async fn failed_acquires_and_refusals_have_the_documented_form() {
    let masters = Masters::new(3);
    let redlock = client_of(&masters);
    let _guard = acquire_with_note(&redlock, "r").await;
    let other_client = client_of(&masters);
    let error = other_client.acquire("r").await.expect_err("held");
    let no = |master| report(master, "acquire", "no", None);
    let form = stable_form(&error);
    assert_eq!(form["kind"], "held_by_other");
    assert_eq!(form["message"], error.to_string());
    let failed = &form["failed"];
    assert_eq!(
        (&failed["resource"], &failed["attempts"], &failed["note"]),
        (&json!("r"), &json!(1), &note())
    );
    let flags = ["held_here", "foreign", "passes_by_itself"].map(|flag| failed[flag].clone());
    assert_eq!(flags, [json!(false), json!(false), json!(true)]);
    assert_eq!(failed["waited_ms"], "number");
    assert_eq!(failed["reports"][0], no("memory-1"));
    let TryAcquire::Held(refusal) = other_client.try_acquire("r").await.expect("a quorum") else {
        panic!("the lock is held");
    };
    let refusal = stable_form(&refusal);
    assert_eq!(refusal["ttl_left_ms"], "number");
    assert_eq!(
        (&refusal["note"], &refusal["held_here"]),
        (&note(), &json!(false))
    );
    let error = other_client.acquire("").await.expect_err("no name");
    assert_eq!(
        stable_form(&error),
        json!({ "kind": "invalid_resource", "message": error.to_string(), "failed": null })
    );
    masters[0].set_condition(Condition::Down);
    masters[1].set_condition(Condition::Down);
    let error = other_client.acquire("s").await.expect_err("no quorum");
    let form = stable_form(&error);
    assert_eq!(form["kind"], "no_quorum");
    let down = report("memory-1", "acquire", "down", Some("down (switched off)"));
    assert_eq!(form["failed"]["reports"][0], down);
}

#[tokio::test(start_paused = true)]
async fn guards_and_their_errors_have_the_documented_form() {
    let masters = Masters::new(3);
    let redlock = client_of(&masters);
    let guard = redlock.acquire("r").await.expect("free");
    let reports = stable_form(&guard.report());
    assert_eq!(reports[0], report("memory-1", "acquire", "yes", None));
    masters[0].set_condition(Condition::Down);
    masters[1].set_condition(Condition::Down);
    let error = guard.extend(secs(20)).await.expect_err("no quorum");
    let form = stable_form(&error);
    assert_eq!(form["kind"], "no_quorum");
    assert_eq!(form["cause"], Value::Null);
    assert_eq!(
        form["reports"][2],
        report("memory-3", "extend", "yes", None)
    );
    let risk = guard.at_risk(secs(2)).next().await.expect("held");
    let form = stable_form(&risk);
    assert_eq!(form["reason"], "renewal_failed");
    assert_eq!(form["message"], risk.to_string());
    assert_eq!(form["remaining_ms"], "number");
    assert_eq!(
        form["reports"][2],
        report("memory-3", "extend", "yes", None)
    );
    let lost = ExtendError::Lost(LossCause::TakenAway);
    assert_eq!(
        stable_form(&lost),
        json!({ "kind": "lost", "message": lost.to_string(), "cause": "taken_away", "reports": [] })
    );
    masters[0].set_condition(Condition::Up);
    masters[1].set_condition(Condition::Up);
    let guard = redlock.acquire("s").await.expect("free");
    let released = guard.release().await;
    redlock.flush().await;
    let form = stable_form(&released);
    assert_eq!(form["was_valid"], true);
    assert_eq!(form["reports"][2]["phase"], "release");
    let counts = ["on", "expired_on", "unreachable", "pending"].map(|count| form[count].as_u64());
    assert_eq!(counts.into_iter().flatten().sum::<u64>(), 3, "{form}");
}
