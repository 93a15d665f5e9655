//! The contract of every master, held by a real MariaDB.

#![allow(
    dead_code,
    reason = "of what the suite has for other masters, a part is used"
)]

#[path = "../../../tests/contract/acquire.rs"]
mod acquire;
#[path = "../../../tests/contract/arm.rs"]
mod arm;
#[path = "../../../tests/contract/cases.rs"]
mod cases;
#[path = "../../../tests/contract/classic.rs"]
mod classic;
#[path = "../../../tests/contract/confirm.rs"]
mod confirm;
#[path = "../../../tests/contract/extend.rs"]
mod extend;
#[path = "../../../tests/contract/group.rs"]
mod group;
#[path = "../../../tests/contract/look.rs"]
mod look;
#[path = "../../../tests/contract/names.rs"]
mod names;
#[path = "../../../tests/contract/note.rs"]
mod note;
#[path = "../../../tests/contract/order.rs"]
mod order;
#[path = "../../../tests/contract/permit.rs"]
mod permit;
#[path = "../../../tests/contract/release.rs"]
mod release;
#[path = "../../../tests/support/mod.rs"]
mod support;
#[path = "../../../tests/contract/value.rs"]
mod value;

use quorate_mysql::{MySql, prepare};
use quorate_testbed::{MariaDb, MariaDbOptions};

/// Each case in a database of its own in one server, and the names of those that failed.
macro_rules! one_after_the_other {
    ($($module:ident: $($case:ident)*;)*) => {
        async fn play(server: &MariaDb) -> (usize, Vec<&'static str>) {
            let (mut played, mut failed) = (0, Vec::new());
            $($({
                played += 1;
                let url = server.url(&format!("case_{played}"));
                server.sql(&format!("CREATE DATABASE case_{played}")).unwrap();
                let case = tokio::spawn(async move {
                    prepare(&url).await.unwrap();
                    let open = || MySql::open(&format!("{url}?timeout=5s")).unwrap();
                    crate::$module::$case(&crate::arm::Arm::store(open(), open())).await;
                });
                if case.await.is_err() {
                    failed.push(stringify!($case));
                }
            })*)*
            (played, failed)
        }
    };
}

cases::all_cases!(one_after_the_other);

/// What other clients write there is longer than a packet may be.
const IMPOSSIBLE: [&str; 1] = ["of_a_long_value_a_refusal_and_a_look_tell_the_beginning"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mariadb_keeps_the_contract_of_all_masters() {
    if let Err(why) = MariaDb::available() {
        let test = "a_mariadb_keeps_the_contract_of_all_masters";
        return quorate_testbed::not_run(test, &why.to_string());
    }
    let server = MariaDb::start(MariaDbOptions::new()).unwrap_or_else(|error| panic!("{error}"));
    let (played, mut failed) = play(&server).await;
    failed.retain(|case| !IMPOSSIBLE.contains(case));
    assert!(played > 100, "{played}");
    assert!(
        failed.is_empty(),
        "{} of {played}: {failed:?}",
        failed.len()
    );
}
