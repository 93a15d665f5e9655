//! Tests of acquires while masters are killed or stopped, and of the text of their errors. `kind_contract.rs` tests the
//! rest of an acquire, for all kinds of locks.

use std::time::Duration;

use quorate::{AcquireError, Redlock, RestartGuard, Wait};
use quorate_testbed::Masters;

fn redlock(masters: &Masters) -> Redlock {
    Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        // The node timeout is 500 ms, ten times the default. On a busy machine, even a healthy master sometimes needs
        // more than the default of 50 ms.
        .node_timeout(Duration::from_millis(500))
        .build()
        .expect("good settings")
}

#[tokio::test]
async fn acquire_succeeds_with_two_of_five_masters_down_and_fails_with_three_down() {
    let masters = Masters::start(5).expect("five masters");
    let redlock = redlock(&masters);
    drop(
        redlock
            .acquire("job")
            .await
            .expect("the acquire must succeed, because all masters are up"),
    );
    masters[0].kill().expect("killed");
    masters[1].stop().expect("stopped");
    for n in 0..5 {
        let guard = redlock
            .acquire("job")
            .await
            .unwrap_or_else(|error| panic!("{n}: {error}"));
        guard.release().await;
    }
    masters[2].kill().expect("killed");
    let error = redlock
        .lock("job")
        .wait(Wait::For(Duration::from_millis(300)))
        .acquire()
        .await
        .expect_err("no quorum");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    println!("{error}");
}

#[tokio::test]
async fn debug_text_of_an_acquire_error_contains_each_master_name_and_the_majority() {
    let masters = quorate::testing::Masters::new(3);
    let redlock = || {
        let redlock = Redlock::builder().in_memory_on(&masters).build();
        redlock.expect("good settings")
    };
    let (first_client, second_client) = (redlock(), redlock());
    let _held = first_client.acquire("job").await.expect("free");
    let request = second_client
        .lock("job")
        .wait(Wait::For(Duration::from_millis(50)));
    let error = request.acquire().await.expect_err("held");
    let text = format!("{error:?}");
    assert!(text.contains("majority: 2 of 3"), "{text}");
    for name in second_client.masters() {
        assert!(text.contains(&format!("node: \"{name}\"")), "{text}");
    }
}
