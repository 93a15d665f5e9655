//! The Redis node under faults.

mod support;

use support::{masters, redlock, take};

#[test]
fn a_redlock_goes_on_in_another_runtime() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    for round in 0..5 {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let guard = tokio::time::timeout(support::PATIENCE, take(&redlock, "job"));
            let guard = guard
                .await
                .unwrap_or_else(|_| panic!("round {round}: no answer"));
            guard.release().await;
            // Guards that go down with the runtime, some before and some after its actors.
            for n in 0..20 {
                let guard = take(&redlock, &format!("{round} {n}")).await;
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(guard);
                });
            }
        });
    }
}
