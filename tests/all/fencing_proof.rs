//! Tests of [`FencingProof`]: a correct resource passes, and the proof names the flaw of each typical wrong resource.

use std::convert::Infallible;
use std::sync::Mutex;

use quorate::testing::{FencedWrite, FencingFault, FencingProof};

/// The data of a resource.
#[derive(Clone, Debug, Default)]
struct Row {
    newest: u64,
    value: String,
}

/// Runs the proof on a resource that handles each write with `write`, in one step. Its restart clears the newest token
/// if `forgets`.
async fn prove(
    write: impl Fn(&mut Row, u64, String) -> bool,
    forgets: bool,
) -> Result<(), FencingFault> {
    let row = Mutex::new(Row::default());
    let row = || row.lock().expect("no panic");
    let writing = async |token: u64, value: String| {
        let accepted = write(&mut row(), token, value);
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let reading = async || Ok(row().value.clone());
    let restarting = async || {
        if forgets {
            row().newest = 0;
        }
        Ok::<_, Infallible>(())
    };
    let proof = FencingProof::new(writing, reading);
    proof.with_restart(restarting).run().await
}

/// A correct resource whose comparison is `accepts(token, newest)`.
fn compared(accepts: impl Fn(u64, u64) -> bool) -> impl Fn(&mut Row, u64, String) -> bool {
    move |row, token, value| {
        let accepted = accepts(token, row.newest);
        if accepted {
            *row = Row {
                newest: token,
                value,
            };
        }
        accepted
    }
}

fn correct() -> impl Fn(&mut Row, u64, String) -> bool {
    compared(|token, newest| token >= newest)
}

/// Runs the proof, and returns the flaw and its text.
async fn flaw(write: impl Fn(&mut Row, u64, String) -> bool) -> (FencingFault, String) {
    let flaw = prove(write, false).await.expect_err("a wrong resource");
    let text = flaw.to_string();
    (flaw, text)
}

#[tokio::test]
async fn correct_resource_passes_the_proof() {
    assert_eq!(prove(correct(), false).await, Ok(()));
}

#[tokio::test]
async fn resource_that_compares_64_bit_floats_passes_because_tokens_are_below_2_to_the_53() {
    let floats = compared(|token, newest| token as f64 >= newest as f64);
    assert_eq!(prove(floats, false).await, Ok(()));
}

#[tokio::test]
async fn resource_without_a_check_accepts_an_older_token() {
    let (flaw, text) = flaw(compared(|_, _| true)).await;
    let expected = FencingFault::AcceptsOlder {
        newest: 10,
        older: 9,
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("refuse a smaller one"), "{text}");
}

#[tokio::test]
async fn resource_that_compares_after_the_write_is_named() {
    let after = |row: &mut Row, token: u64, value: String| {
        row.value = value;
        let accepted = token >= row.newest;
        row.newest = row.newest.max(token);
        accepted
    };
    let (flaw, text) = flaw(after).await;
    let expected = FencingFault::WritesWhatItRefuses {
        newest: 10,
        older: 9,
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("before the write"), "{text}");
}

#[tokio::test]
async fn resource_that_stores_the_token_of_a_refused_write_is_named() {
    let stores = |row: &mut Row, token: u64, value: String| {
        let accepted = token >= row.newest;
        row.newest = token;
        if accepted {
            row.value = value;
        }
        accepted
    };
    let (flaw, text) = flaw(stores).await;
    let expected = FencingFault::AcceptsOlderSecondTime {
        newest: 10,
        older: 9,
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("only if the resource accepts it"), "{text}");
}

#[tokio::test]
async fn resource_that_demands_a_larger_token_refuses_the_second_write() {
    let (flaw, text) = flaw(compared(|token, newest| token > newest)).await;
    assert_eq!(flaw, FencingFault::RefusesSame { token: 9 });
    assert!(text.contains("`>=`, not `>`"), "{text}");
}

#[tokio::test]
async fn resource_that_counts_only_changed_rows_refuses_the_repetition_of_a_write() {
    let counts_changes = |row: &mut Row, token: u64, value: String| {
        let changes = token >= row.newest && (token, &value) != (row.newest, &row.value);
        if changes {
            *row = Row {
                newest: token,
                value,
            };
        }
        changes
    };
    let (flaw, text) = flaw(counts_changes).await;
    assert_eq!(flaw, FencingFault::RefusesRepeated { token: 9 });
    assert!(text.contains("rows that a write has changed"), "{text}");
}

#[tokio::test]
async fn resource_that_loses_its_value_when_it_refuses_a_write_is_named() {
    let clears = |row: &mut Row, token: u64, value: String| {
        let accepted = token >= row.newest;
        row.newest = row.newest.max(token);
        row.value = if accepted { value } else { String::new() };
        accepted
    };
    let (flaw, text) = flaw(clears).await;
    let expected = FencingFault::LosesAcceptedWrite {
        token: 10,
        found: String::new(),
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("when a write is refused"), "{text}");
}

#[tokio::test]
async fn resource_that_writes_what_it_refuses_after_a_restart_is_named() {
    let row = Mutex::new((Row::default(), false));
    let row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let (row, restarted) = &mut *row();
        let accepted = token >= row.newest;
        if accepted || *restarted {
            row.value = value;
        }
        row.newest = row.newest.max(token);
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(row().0.value.clone());
    let restart = async || {
        row().1 = true;
        Ok::<_, Infallible>(())
    };
    let proof = FencingProof::new(write, read).with_restart(restart);
    let expected = FencingFault::WritesWhatItRefuses {
        newest: 10,
        older: 9,
    };
    assert_eq!(proof.run().await, Err(expected));
}

#[tokio::test]
async fn resource_that_loses_the_value_at_a_restart_is_named() {
    let row = Mutex::new(Row::default());
    let row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = correct()(&mut row(), token, value);
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(row().value.clone());
    let restart = async || {
        row().value.clear();
        Ok::<_, Infallible>(())
    };
    let proof = FencingProof::new(write, read).with_restart(restart);
    let expected = FencingFault::LosesAcceptedWrite {
        token: 10,
        found: String::new(),
    };
    assert_eq!(proof.run().await, Err(expected));
}

#[test]
fn fault_with_an_impossible_order_of_tokens_can_be_shown() {
    let fault = FencingFault::AcceptsOlder {
        newest: 7,
        older: 8,
    };
    assert!(fault.to_string().contains("accepted token 8"));
}

#[tokio::test]
async fn resource_that_forgets_the_token_at_a_restart_is_named() {
    let flaw = prove(correct(), true).await;
    let expected = FencingFault::ForgetsAtRestart {
        newest: 10,
        older: 9,
    };
    assert_eq!(flaw, Err(expected.clone()));
    assert!(expected.to_string().contains("together with the data"));
}

#[tokio::test]
async fn resource_that_compares_texts_refuses_a_token_with_more_digits() {
    let (flaw, text) = flaw(compared(|token, newest| {
        newest == 0 || token.to_string() >= newest.to_string()
    }))
    .await;
    let expected = FencingFault::RefusesNewer {
        newest: 9,
        newer: 10,
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("as numbers, not as texts"), "{text}");
}

#[tokio::test]
async fn resource_that_keeps_32_bits_refuses_a_newer_token() {
    let (flaw, text) = flaw(compared(|token, newest| token as u32 >= newest as u32)).await;
    let expected = FencingFault::RefusesNewer {
        newest: (1 << 32) - 1,
        newer: 1 << 32,
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("64-bit integer"), "{text}");
}

#[tokio::test]
async fn resource_that_rounds_tokens_accepts_an_older_token() {
    for rounded in [
        |token: u64| u64::from((token as f32).to_bits()),
        // A column of type `timestamp` with milliseconds.
        |token: u64| if token < 1 << 40 { token } else { token / 1000 },
    ] {
        let (flaw, text) = flaw(compared(|token, newest| rounded(token) >= rounded(newest))).await;
        let FencingFault::AcceptsOlder { newest, older } = flaw else {
            panic!("{flaw:?}");
        };
        assert_eq!(newest - older, 1);
        assert!(text.contains("not a 32-bit float"), "{text}");
    }
}

#[tokio::test]
async fn resource_that_was_used_before_is_refused_for_the_proof() {
    let used = compared(|token, newest| token >= newest.max(1_000));
    let (flaw, text) = flaw(used).await;
    assert_eq!(flaw, FencingFault::RefusesFirst { token: 9 });
    assert!(text.contains("use a new resource"), "{text}");
}

#[tokio::test]
async fn resource_that_does_not_write_what_it_accepts_is_named() {
    let (flaw, text) = flaw(|_, _, _| true).await;
    let expected = FencingFault::LosesAcceptedWrite {
        token: 9,
        found: String::new(),
    };
    assert_eq!(flaw, expected);
    assert!(text.contains("only after the write"), "{text}");
}

#[tokio::test]
async fn resource_whose_check_and_write_are_two_steps_is_named() {
    let row = Mutex::new(Row::default());
    let row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = token >= row().newest;
        tokio::task::yield_now().await;
        if accepted {
            *row() = Row {
                newest: token,
                value,
            };
        }
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(row().value.clone());
    let flaw = FencingProof::new(write, read).run().await;
    let Err(FencingFault::CheckAndWriteNotAtomic { newer, older }) = &flaw else {
        panic!("{flaw:?}");
    };
    assert!(older < newer);
    let text = flaw.expect_err("a flaw").to_string();
    assert!(text.contains("in one step"), "{text}");
}

/// The value is right in the end, but the token is that of an older client.
#[tokio::test]
async fn resource_that_stores_the_token_in_a_step_of_its_own_is_named() {
    let row = Mutex::new(Row::default());
    let row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = token >= row().newest;
        if accepted {
            // The comparison of the values is always right.
            let newest_value = {
                let row = row();
                let last = row.value.rsplit(' ').next().map(str::parse::<u64>);
                last.and_then(Result::ok).unwrap_or_default()
            };
            if token >= newest_value {
                row().value = value;
            }
            tokio::task::yield_now().await;
            row().newest = token;
        }
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(row().value.clone());
    let flaw = FencingProof::new(write, read).run().await;
    assert!(
        matches!(&flaw, Err(FencingFault::CheckAndWriteNotAtomic { newer, older }) if newer - older == 1),
        "{flaw:?}"
    );
}

#[tokio::test]
async fn failure_of_the_resource_is_no_refusal() {
    let calls = Mutex::new(0);
    let failing = async |_: u64, _: String| {
        let mut calls = calls.lock().expect("no panic");
        *calls += 1;
        Err::<FencedWrite, _>("connection refused")
    };
    let flaw = FencingProof::new(failing, async || Ok(String::new()))
        .run()
        .await
        .expect_err("the resource fails");
    let text = flaw.to_string();
    assert!(
        text.starts_with("cannot write with token 9: connection refused"),
        "{text}"
    );
}
