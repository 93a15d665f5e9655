//! Runs the contract suite (`nodes/contract/`) on the masters of this library:
//!
//! - the memory master;
//! - stores in memory, with and without a clock;
//! - a real server;
//! - the server programs in `QUORATE_TEST_SERVERS`, a list of paths separated by commas.

mod agreed;
mod memory_server;
mod orders;
mod server_keys;
#[path = "../support/mod.rs"]
mod support;
mod together;

/// Defines one test for each contract case and each of these masters.
macro_rules! contract {
    ($($module:ident: $($case:ident)*;)*) => {
        mod memory {
            $($(#[tokio::test]
            async fn $case() {
                let master = quorate_contract::TestedMaster::memory();
                quorate_contract::cases::$module::$case(&master).await;
            })*)*
        }
        mod table {
            $($(#[tokio::test]
            async fn $case() {
                let master = quorate_contract::TestedMaster::table(true);
                quorate_contract::cases::$module::$case(&master).await;
            })*)*
        }
        mod table_without_a_clock {
            $($(#[tokio::test]
            async fn $case() {
                let master = quorate_contract::TestedMaster::table(false);
                quorate_contract::cases::$module::$case(&master).await;
            })*)*
        }
        mod server {
            $($(#[tokio::test]
            async fn $case() {
                let master = crate::server_keys::server(None);
                quorate_contract::cases::$module::$case(&master).await;
            })*)*
        }
        mod other_servers {
            $($(#[tokio::test]
            async fn $case() {
                for master in crate::server_keys::other_servers() {
                    quorate_contract::cases::$module::$case(&master).await;
                }
            })*)*
        }
    };
}

quorate_contract::all_cases!(contract);
