//! The contract suite for masters whose tests are in another package. A test program of that package includes this file
//! as a module. The program then runs:
//!
//! - all contract cases, each on a new master;
//! - the comparison with the memory master.

use std::future::Future;

pub(crate) mod acquire;
pub(crate) mod agreement;
pub(crate) mod arm;
pub(crate) mod cases;
pub(crate) mod classic;
pub(crate) mod confirm;
pub(crate) mod counter;
pub(crate) mod extend;
pub(crate) mod group;
pub(crate) mod line;
pub(crate) mod look;
pub(crate) mod names;
pub(crate) mod note;
pub(crate) mod order;
pub(crate) mod permit;
pub(crate) mod release;
#[path = "../support/mod.rs"]
pub(crate) mod support;
pub(crate) mod value;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use agreement::{LASTING, Sequences, compare_with, deed, group_deed};
use arm::Arm;

/// Cases that are skipped, because no client can write a lock value of 9 MiB to these masters.
const IMPOSSIBLE: [&str; 1] =
    ["refusal_and_status_request_return_the_first_96_bytes_of_a_long_lock_value"];

/// How many cases run at the same time. Most cases wait until something expires.
const AT_A_TIME: usize = 4;

macro_rules! a_few_at_a_time {
    ($($module:ident: $($case:ident)*;)*) => {
        async fn play<A: Future<Output = Arm> + Send + 'static>(
            arm: impl Fn(String) -> A,
        ) -> (usize, Vec<&'static str>) {
            let mut cases: Vec<(&'static str, BoxFuture<'static, ()>)> = Vec::new();
            $($({
                let arm = arm(format!("case_{}", cases.len() + 1));
                let case = async move { $module::$case(&arm.await).await };
                cases.push((stringify!($case), case.boxed()));
            })*)*
            let played = cases.len();
            let ends = futures::stream::iter(cases)
                .map(|(name, case)| async move { (name, tokio::spawn(case).await) })
                .buffer_unordered(AT_A_TIME);
            let failed = ends.filter_map(|(name, end)| async move { end.is_err().then_some(name) });
            (played, failed.collect().await)
        }
    };
}

cases::all_cases!(a_few_at_a_time);

/// Runs each contract case on a new [`Arm`] (a master under test).
pub(crate) async fn keeps_the_contract<A: Future<Output = Arm> + Send + 'static>(
    arm: impl Fn(String) -> A,
) {
    let (played, mut failed) = play(arm).await;
    failed.retain(|case| !IMPOSSIBLE.contains(case));
    assert!(played > 100, "only {played} contract cases were run");
    assert!(
        failed.is_empty(),
        "{} of {played} contract cases failed: {failed:?}",
        failed.len()
    );
}

// `tests/all/tiers.rs` compares these numbers with the table in CONTRIBUTING.md.
/// The sequences of the comparisons with MariaDB and with ZooKeeper.
const APART: Sequences = Sequences::of(8, 60);

/// Compares a master under test with the memory master, in [`APART`] random sequences of each kind of operation.
pub(crate) fn agrees(arm: impl Fn() -> Arm) {
    compare_with(&arm, &LASTING, APART, deed());
    compare_with(&arm, &LASTING, APART, group_deed());
}
