//! Runs both calls of the crate on a store in memory, as the example in the documentation of the crate does.

use quorate::node::store::Table;
use quorate_contract::{TestedMaster, check_cases, compare_with_memory};

async fn open(name: String) -> TestedMaster {
    let table = Table::new(&name, true);
    TestedMaster::store(table.clone(), table)
}

#[tokio::test(flavor = "multi_thread")]
async fn store_in_memory_passes_all_cases_of_the_contract() {
    check_cases(open).await;
}

#[test]
fn store_in_memory_gives_the_same_replies_as_the_memory_master() {
    compare_with_memory(open);
}
