//! Tests of [`Fence`] with real locks, and with the proof for resources.

use std::fs;
use std::sync::Arc;

use quorate::testing::{FencedWrite, FencingFault, FencingProof};
use quorate::{Fence, Redlock};

#[tokio::test]
async fn fence_refuses_a_holder_after_the_next_holder_has_written() {
    let redlock = Redlock::in_memory(3);
    let report = Fence::new(Vec::new());
    let first_guard = redlock.acquire("report").await.expect("the lock is free");
    let stale_token = first_guard.fencing_token().expect("fencing is on");
    for page in [1, 2] {
        report
            .write(stale_token)
            .await
            .expect("the holder")
            .push(page);
    }
    first_guard.release().await;
    let second_guard = redlock.acquire("report").await.expect("the lock is free");
    let token = second_guard.fencing_token().expect("fencing is on");
    report.write(token).await.expect("the holder").push(3);

    let refused_write = report
        .write(stale_token)
        .await
        .expect_err("the token is stale");
    assert_eq!(
        (refused_write.token, refused_write.newest),
        (stale_token, Some(token))
    );
    let report = report.read().await;
    assert_eq!((&**report, report.newest()), (&[1, 2, 3][..], Some(token)));
}

/// Fencing numbers of a server whose clock is wrong may begin with 1.
#[tokio::test]
async fn fence_accepts_the_tokens_1_and_2_but_not_0() {
    let data = Fence::new(());
    assert!(data.write(0).await.is_err());
    for token in [1, 2] {
        assert!(data.write(token).await.is_ok(), "{token}");
    }
}

#[tokio::test]
async fn fence_remembers_a_token_whose_write_failed() {
    let fence = Arc::new(Fence::new(0));
    let shared_fence = Arc::clone(&fence);
    let failed = tokio::spawn(async move {
        let _guard = shared_fence.write(8).await.expect("the first token");
        panic!("the write fails");
    });
    assert!(failed.await.is_err());
    assert!(fence.write(7).await.is_err());
    assert_eq!(fence.write(8).await.expect("the same token").token(), 8);
}

#[tokio::test]
async fn dropped_write_that_waits_for_its_turn_does_not_change_the_newest_token() {
    let fence = Fence::new(0);
    let guard = fence.write(7).await.expect("the first token");
    let outcome = tokio::time::timeout(std::time::Duration::from_millis(10), fence.write(9));
    assert!(outcome.await.is_err());
    drop(guard);
    assert!(fence.write(8).await.is_ok());
}

#[test]
fn threads_use_a_fence_without_async() {
    let fence = Fence::resume(7, 0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| *fence.blocking_write(7).expect("an equal token") += 1);
        }
    });
    assert!(fence.blocking_write(6).is_err());
    let read_guard = fence.blocking_read();
    assert_eq!((*read_guard, read_guard.newest()), (4, Some(7)));
}

#[tokio::test]
async fn fence_passes_the_proof_of_a_resource() {
    let folder = temporary_folder();
    let persistent_result = prove_file(&folder.join("stored"), true).await;
    assert_eq!(persistent_result, Ok(()));
    let forgetful_result = prove_file(&folder.join("forgotten"), false).await;
    assert!(
        matches!(forgetful_result, Err(FencingFault::ForgetsAtRestart { .. })),
        "{forgetful_result:?}"
    );
    fs::remove_dir_all(folder).expect("removed");
}

fn temporary_folder() -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("quorate-fence-{}", std::process::id()));
    fs::create_dir_all(&path).expect("a directory");
    path
}

/// Runs the proof on a resource that keeps a text in a file. `is_persistent` is true if the resource stores the token together
/// with the text, as the documentation of [`Fence`] demands.
async fn prove_file(path: &std::path::Path, is_persistent: bool) -> Result<(), FencingFault> {
    let fence = tokio::sync::RwLock::new(Fence::new(()));
    let write = async |token: u64, value: String| {
        let fence = fence.read().await;
        let Ok(guard) = fence.write(token).await else {
            return Ok(FencedWrite::Refused);
        };
        // Other writes have time to overtake this one.
        tokio::task::yield_now().await;
        let stored_text = format!("{}\n{value}", guard.token());
        fs::write(path, stored_text)?;
        Ok::<_, std::io::Error>(FencedWrite::Accepted)
    };
    let stored = || {
        let stored_text = fs::read_to_string(path)?;
        let (token, value) = stored_text.split_once('\n').unwrap_or_default();
        Ok::<_, std::io::Error>((token.parse().unwrap_or_default(), value.to_owned()))
    };
    let read_value = async || stored().map(|(_, value)| value);
    let restart_resource = async || {
        let (newest, _) = stored()?;
        let restarted = if is_persistent {
            Fence::resume(newest, ())
        } else {
            Fence::new(())
        };
        *fence.write().await = restarted;
        Ok::<_, std::io::Error>(())
    };
    let proof = FencingProof::new(write, read_value);
    proof.with_restart(restart_resource).run().await
}
