//! Runs the same contract cases on every implementation of `Node`:
//!
//! - the memory master;
//! - stores in memory, with and without a clock;
//! - a real server;
//! - the server programs in `QUORATE_TEST_SERVERS`, a list of paths separated by commas.

mod acquire;
mod agreed;
mod agreement;
mod arm;
mod cases;
mod classic;
mod confirm;
mod counter;
mod extend;
mod group;
mod line;
mod look;
mod names;
mod note;
mod order;
mod permit;
mod release;
#[path = "../support/mod.rs"]
mod support;
mod together;
mod value;

/// Defines one test for each contract case, which runs the case on every master under test.
macro_rules! contract {
    ($($module:ident: $($case:ident)*;)*) => {
        mod memory {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::memory()).await;
            })*)*
        }
        mod table {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::table(true)).await;
            })*)*
        }
        mod table_without_a_clock {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::table(false)).await;
            })*)*
        }
        mod server {
            $($(#[tokio::test]
            async fn $case() {
                crate::$module::$case(&crate::arm::Arm::server(None)).await;
            })*)*
        }
        mod other_servers {
            $($(#[tokio::test]
            async fn $case() {
                for arm in crate::arm::Arm::others() {
                    crate::$module::$case(&arm).await;
                }
            })*)*
        }
    };
}

cases::all_cases!(contract);
