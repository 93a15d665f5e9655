//! The two calls with which a back end runs the whole contract suite.

use std::future::Future;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use crate::agreement::{Operations, Sequences, Times, compare};
use crate::cases;
use crate::tested_master::TestedMaster;

/// Cases whose failures are ignored, because many masters cannot store the lock value of 9 MiB that they use.
const OPTIONAL: [&str; 1] =
    ["refusal_and_status_request_return_the_first_96_bytes_of_a_long_lock_value"];

/// How many cases run at the same time. Most cases wait until something expires.
const CONCURRENT_CASES: usize = 4;

/// Defines `run_cases`, which runs each case on a new master.
macro_rules! define_run_of_all_cases {
    ($($module:ident: $($case:ident)*;)*) => {
        /// Returns the number of cases that were run, and the names of the cases that failed.
        async fn run_cases<F: Future<Output = TestedMaster> + Send + 'static>(
            open: impl Fn(String) -> F,
        ) -> (usize, Vec<&'static str>) {
            let mut cases_by_name: Vec<(&'static str, BoxFuture<'static, ()>)> = Vec::new();
            $($({
                let master = open(format!("case_{}", cases_by_name.len() + 1));
                let case = async move { cases::$module::$case(&master.await).await };
                cases_by_name.push((stringify!($case), case.boxed()));
            })*)*
            let count = cases_by_name.len();
            let results = futures::stream::iter(cases_by_name)
                .map(|(name, case)| async move { (name, tokio::spawn(case).await) })
                .buffer_unordered(CONCURRENT_CASES);
            let failed_cases = results.filter_map(|(name, result)| async move { result.is_err().then_some(name) });
            (count, failed_cases.collect().await)
        }
    };
}

crate::all_cases!(define_run_of_all_cases);

/// Runs each case of the contract on a new master, four at a time. `open` receives a name that is different for each
/// master (lowercase letters, digits and underscores), and opens an empty master.
///
/// # Panics
///
/// If a case fails. The message contains the names of all failed cases. The panic message of each case is printed
/// before. One case needs a lock value of 9 MiB; its failure is ignored, because many masters cannot store this value.
pub async fn check_cases<F: Future<Output = TestedMaster> + Send + 'static>(
    open: impl Fn(String) -> F,
) {
    let (count, mut failed_cases) = run_cases(open).await;
    failed_cases.retain(|case| !OPTIONAL.contains(case));
    assert!(count > 100, "only {count} contract cases were run");
    assert!(
        failed_cases.is_empty(),
        "{} of {count} contract cases failed: {failed_cases:?}",
        failed_cases.len()
    );
}

// `tests/all/tiers.rs` compares these numbers with the table in CONTRIBUTING.md.
/// The sequences of each kind of operation in [`compare_with_memory`].
const SEQUENCES_PER_KIND: Sequences = Sequences::new(8, 60);

/// Compares a master with the memory master of the library, in random sequences of operations: 16 sequences, or 120 if
/// the variable `QUORATE_TEST_SEQUENCES` is `all`. `open` receives a name that is different for each master, and opens
/// an empty master.
///
/// This function creates its own Tokio runtime, so call it outside of a runtime.
///
/// # Panics
///
/// If a reply, a key or a wake-up differs. The message contains the shortest failing sequence that was found, and the
/// seed. With this seed in the variable `QUORATE_SEED`, a test run draws the same sequences again.
pub fn compare_with_memory<F: Future<Output = TestedMaster>>(open: impl Fn(String) -> F) {
    for (n, operations) in (1..).zip([Operations::Single, Operations::Groups]) {
        compare(
            open(format!("comparison_{n}")),
            &Times::LASTING,
            SEQUENCES_PER_KIND,
            operations,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quorate::node::memory::MemoryNode;

    use super::*;
    use crate::record_keys::RecordKeys;

    /// The memory master forgets its keys in a restart, so it is not the durable master that it is declared to be.
    async fn wrongly_durable(name: String) -> TestedMaster {
        let master = MemoryNode::new(&name);
        TestedMaster::new(Arc::new(master.clone()), RecordKeys(master))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn master_that_fails_one_case_is_refused_with_the_name_of_this_case() {
        let (count, failed_cases) = run_cases(wrongly_durable).await;
        let expected = "stored_value_of_another_server_run_is_trusted_on_durable_servers_only";
        assert!(failed_cases.contains(&expected), "{failed_cases:?}");
        // On a busy machine, a few cases with short TTLs may fail as well.
        assert!(failed_cases.len() < count / 10, "{failed_cases:?}");
    }
}
