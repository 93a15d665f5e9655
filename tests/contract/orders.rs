//! Runs the contract cases about the orders of operators, and compares random sequences of orders.

use quorate_contract::agreement::{Sequences, compare_orders};

use crate::memory_server::memory_server;
use crate::server_keys::{other_servers, server};

/// Defines one test for each contract case and each master that executes the orders of operators.
macro_rules! contract {
    ($($module:ident: $($case:ident)*;)*) => {
        mod memory {
            $($(#[tokio::test]
            async fn $case() {
                let master = crate::memory_server::memory_server();
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

quorate_contract::operator_cases!(contract);

#[test]
fn memory_master_executes_random_orders_of_operators_like_a_real_master() {
    let sequences = Sequences::new(40, 400);
    compare_orders(memory_server, || server(None), sequences);
    for other in other_servers() {
        let mut other = Some(other);
        let open = move || other.take().expect("one server");
        compare_orders(memory_server, open, sequences);
    }
}
