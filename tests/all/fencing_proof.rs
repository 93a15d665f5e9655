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
/// if `forgets_at_restart`.
async fn prove(
    write: impl Fn(&mut Row, u64, String) -> bool,
    forgets_at_restart: bool,
) -> Result<(), FencingFault> {
    let row = Mutex::new(Row::default());
    let lock_row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = write(&mut lock_row(), token, value);
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(lock_row().value.clone());
    let restart_resource = async || {
        if forgets_at_restart {
            lock_row().newest = 0;
        }
        Ok::<_, Infallible>(())
    };
    let proof = FencingProof::new(write, read);
    proof.with_restart(restart_resource).run().await
}

/// A correct resource whose comparison is `accepts(token, newest)`.
fn write_if(accepts: impl Fn(u64, u64) -> bool) -> impl Fn(&mut Row, u64, String) -> bool {
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

fn correct_write() -> impl Fn(&mut Row, u64, String) -> bool {
    write_if(|token, newest| token >= newest)
}

/// Runs the proof, and returns the flaw and its text.
async fn fault(write: impl Fn(&mut Row, u64, String) -> bool) -> (FencingFault, String) {
    let fault = prove(write, false).await.expect_err("a wrong resource");
    let text = fault.to_string();
    (fault, text)
}

#[tokio::test]
async fn correct_resource_passes_the_proof() {
    assert_eq!(prove(correct_write(), false).await, Ok(()));
}

#[tokio::test]
async fn resource_that_compares_64_bit_floats_passes_because_tokens_are_below_2_to_the_53() {
    let write_floats = write_if(|token, newest| token as f64 >= newest as f64);
    assert_eq!(prove(write_floats, false).await, Ok(()));
}

#[tokio::test]
async fn resource_without_a_check_accepts_an_older_token() {
    let (fault, text) = fault(write_if(|_, _| true)).await;
    let expected_fault = FencingFault::AcceptsOlder {
        newest: 10,
        older: 9,
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("refuse a smaller one"), "{text}");
}

#[tokio::test]
async fn resource_that_compares_after_the_write_is_named() {
    let write_then_check = |row: &mut Row, token: u64, value: String| {
        row.value = value;
        let accepted = token >= row.newest;
        row.newest = row.newest.max(token);
        accepted
    };
    let (fault, text) = fault(write_then_check).await;
    let expected_fault = FencingFault::WritesWhatItRefuses {
        newest: 10,
        older: 9,
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("before the write"), "{text}");
}

#[tokio::test]
async fn resource_that_stores_the_token_of_a_refused_write_is_named() {
    let store_newest = |row: &mut Row, token: u64, value: String| {
        let accepted = token >= row.newest;
        row.newest = token;
        if accepted {
            row.value = value;
        }
        accepted
    };
    let (fault, text) = fault(store_newest).await;
    let expected_fault = FencingFault::AcceptsOlderSecondTime {
        newest: 10,
        older: 9,
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("only if the resource accepts it"), "{text}");
}

#[tokio::test]
async fn resource_that_demands_a_larger_token_refuses_the_second_write() {
    let (fault, text) = fault(write_if(|token, newest| token > newest)).await;
    assert_eq!(fault, FencingFault::RefusesSame { token: 9 });
    assert!(text.contains("`>=`, not `>`"), "{text}");
}

#[tokio::test]
async fn resource_that_counts_only_changed_rows_refuses_the_repetition_of_a_write() {
    let count_changes = |row: &mut Row, token: u64, value: String| {
        let is_changed = token >= row.newest && (token, &value) != (row.newest, &row.value);
        if is_changed {
            *row = Row {
                newest: token,
                value,
            };
        }
        is_changed
    };
    let (fault, text) = fault(count_changes).await;
    assert_eq!(fault, FencingFault::RefusesRepeated { token: 9 });
    assert!(text.contains("rows that a write has changed"), "{text}");
}

#[tokio::test]
async fn resource_that_loses_its_value_when_it_refuses_a_write_is_named() {
    let clear_if_refused = |row: &mut Row, token: u64, value: String| {
        let accepted = token >= row.newest;
        row.newest = row.newest.max(token);
        row.value = if accepted { value } else { String::new() };
        accepted
    };
    let (fault, text) = fault(clear_if_refused).await;
    let expected_fault = FencingFault::LosesAcceptedWrite {
        token: 10,
        found: String::new(),
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("when a write is refused"), "{text}");
}

#[tokio::test]
async fn resource_that_writes_what_it_refuses_after_a_restart_is_named() {
    let row = Mutex::new((Row::default(), false));
    let lock_row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let (lock_row, restarted) = &mut *lock_row();
        let accepted = token >= lock_row.newest;
        if accepted || *restarted {
            lock_row.value = value;
        }
        lock_row.newest = lock_row.newest.max(token);
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(lock_row().0.value.clone());
    let restart_resource = async || {
        lock_row().1 = true;
        Ok::<_, Infallible>(())
    };
    let proof = FencingProof::new(write, read).with_restart(restart_resource);
    let expected_fault = FencingFault::WritesWhatItRefuses {
        newest: 10,
        older: 9,
    };
    assert_eq!(proof.run().await, Err(expected_fault));
}

#[tokio::test]
async fn resource_that_loses_the_value_at_a_restart_is_named() {
    let row = Mutex::new(Row::default());
    let lock_row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = correct_write()(&mut lock_row(), token, value);
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(lock_row().value.clone());
    let restart_resource = async || {
        lock_row().value.clear();
        Ok::<_, Infallible>(())
    };
    let proof = FencingProof::new(write, read).with_restart(restart_resource);
    let expected_fault = FencingFault::LosesAcceptedWrite {
        token: 10,
        found: String::new(),
    };
    assert_eq!(proof.run().await, Err(expected_fault));
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
    let fault = prove(correct_write(), true).await;
    let expected_fault = FencingFault::ForgetsAtRestart {
        newest: 10,
        older: 9,
    };
    assert_eq!(fault, Err(expected_fault.clone()));
    assert!(
        expected_fault
            .to_string()
            .contains("together with the data")
    );
}

#[tokio::test]
async fn resource_that_compares_texts_refuses_a_token_with_more_digits() {
    let (fault, text) = fault(write_if(|token, newest| {
        newest == 0 || token.to_string() >= newest.to_string()
    }))
    .await;
    let expected_fault = FencingFault::RefusesNewer {
        newest: 9,
        newer: 10,
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("as numbers, not as texts"), "{text}");
}

#[tokio::test]
async fn resource_that_keeps_32_bits_refuses_a_newer_token() {
    let (fault, text) = fault(write_if(|token, newest| token as u32 >= newest as u32)).await;
    let expected_fault = FencingFault::RefusesNewer {
        newest: (1 << 32) - 1,
        newer: 1 << 32,
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("64-bit integer"), "{text}");
}

#[tokio::test]
async fn resource_that_rounds_tokens_accepts_an_older_token() {
    for round in [
        |token: u64| u64::from((token as f32).to_bits()),
        // A column of type `timestamp` with milliseconds.
        |token: u64| if token < 1 << 40 { token } else { token / 1000 },
    ] {
        let (fault, text) = fault(write_if(|token, newest| round(token) >= round(newest))).await;
        let FencingFault::AcceptsOlder { newest, older } = fault else {
            panic!("{fault:?}");
        };
        assert_eq!(newest - older, 1);
        assert!(text.contains("not a 32-bit float"), "{text}");
    }
}

#[tokio::test]
async fn resource_that_was_used_before_is_refused_for_the_proof() {
    let write_above_1000 = write_if(|token, newest| token >= newest.max(1_000));
    let (fault, text) = fault(write_above_1000).await;
    assert_eq!(fault, FencingFault::RefusesFirst { token: 9 });
    assert!(text.contains("use a new resource"), "{text}");
}

#[tokio::test]
async fn resource_that_does_not_write_what_it_accepts_is_named() {
    let (fault, text) = fault(|_, _, _| true).await;
    let expected_fault = FencingFault::LosesAcceptedWrite {
        token: 9,
        found: String::new(),
    };
    assert_eq!(fault, expected_fault);
    assert!(text.contains("only after the write"), "{text}");
}

#[tokio::test]
async fn resource_whose_check_and_write_are_two_steps_is_named() {
    let row = Mutex::new(Row::default());
    let lock_row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = token >= lock_row().newest;
        tokio::task::yield_now().await;
        if accepted {
            *lock_row() = Row {
                newest: token,
                value,
            };
        }
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(lock_row().value.clone());
    let fault = FencingProof::new(write, read).run().await;
    let Err(FencingFault::CheckAndWriteNotAtomic { newer, older }) = &fault else {
        panic!("{fault:?}");
    };
    assert!(older < newer);
    let text = fault.expect_err("a flaw").to_string();
    assert!(text.contains("in one step"), "{text}");
}

/// The value is right in the end, but the token is that of an older client.
#[tokio::test]
async fn resource_that_stores_the_token_in_a_step_of_its_own_is_named() {
    let row = Mutex::new(Row::default());
    let lock_row = || row.lock().expect("no panic");
    let write = async |token: u64, value: String| {
        let accepted = token >= lock_row().newest;
        if accepted {
            // The comparison of the values is always right.
            let newest_value = {
                let lock_row = lock_row();
                let last_token = lock_row.value.rsplit(' ').next().map(str::parse::<u64>);
                last_token.and_then(Result::ok).unwrap_or_default()
            };
            if token >= newest_value {
                lock_row().value = value;
            }
            tokio::task::yield_now().await;
            lock_row().newest = token;
        }
        Ok::<_, Infallible>(FencedWrite::accepted_if(accepted))
    };
    let read = async || Ok(lock_row().value.clone());
    let fault = FencingProof::new(write, read).run().await;
    assert!(
        matches!(&fault, Err(FencingFault::CheckAndWriteNotAtomic { newer, older }) if newer - older == 1),
        "{fault:?}"
    );
}

#[tokio::test]
async fn failure_of_the_resource_is_no_refusal() {
    let call_count = Mutex::new(0);
    let failing = async |_: u64, _: String| {
        let mut call_count = call_count.lock().expect("no panic");
        *call_count += 1;
        Err::<FencedWrite, _>("connection refused")
    };
    let fault = FencingProof::new(failing, async || Ok(String::new()))
        .run()
        .await
        .expect_err("the resource fails");
    let text = fault.to_string();
    assert!(
        text.starts_with("cannot write with token 9: connection refused"),
        "{text}"
    );
}
