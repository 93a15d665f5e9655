//! Runs the contract cases about the orders of operators, and compares random sequences of orders.

use quorate::node::memory::Master;
use quorate::testing::Script;
use quorate::testing::server_half::AgeCall;
use quorate_contract::KeyAccess;
use quorate_contract::agreement::{Sequences, compare_orders};
use quorate_testbed::Reply;

use crate::memory_server::memory_server;
use crate::server_keys::{ServerKeys, other_servers, server, server_with_keys};

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

const MARKER_KEY: &[u8] = b"quorate:masters";
const AGE_KEY: &[u8] = b"quorate:masters:age";

/// All contents of a key that lead to different decisions of the script AGE. `None` is a key of another type than
/// string, and the empty text stands for no key.
const MARKERS: [Option<&str>; 3] = [None, Some(""), Some("4 aa")];
const RECORDS: [Option<&str>; 13] = [
    None,
    Some(""),
    Some("run 10 life"),
    Some("run 9 life"),
    Some("run 11 life"),
    Some("run 9 other"),
    Some("run 9 lost-life"),
    Some("old 9 life"),
    Some("old 99 life"),
    Some("run x life"),
    Some("run  life"),
    Some("run 9 life more"),
    Some("run 9 "),
];

fn age_calls() -> impl Iterator<Item = AgeCall<'static>> {
    let markers = ["", "6 bb cc"].into_iter();
    markers.flat_map(|marker| {
        ["", "life", "other"].map(|life| AgeCall {
            run: "run",
            life,
            age_ms: 10,
            new_life: "new",
            marker,
        })
    })
}

/// The reply of a real server to the script AGE; `None` if it is an error.
fn age_reply(server: &ServerKeys, call: &AgeCall<'_>) -> Option<Vec<u8>> {
    let age_ms = call.age_ms.to_string();
    let words = [call.run, call.life, &age_ms, call.new_life, call.marker].map(str::as_bytes);
    let mut command = vec![b"EVAL", Script::Age.source().as_bytes(), b"0"];
    command.extend(words);
    match server.command(&command) {
        Reply::Bulk(record) => Some(record),
        Reply::Error(why) if why.contains("WRONGTYPE") => None,
        other => panic!("{call:?}: {other:?}"),
    }
}

#[tokio::test]
async fn memory_master_raises_age_records_like_a_real_master_in_every_state() {
    let (_master, server) = server_with_keys(None);
    let mut compared = 0;
    for (marker, record) in MARKERS
        .iter()
        .flat_map(|marker| RECORDS.map(|record| (*marker, record)))
    {
        for call in age_calls() {
            let mut memory = Master::default();
            for (key, content) in [(MARKER_KEY, marker), (AGE_KEY, record)] {
                match content {
                    None => {
                        memory.put_foreign(key);
                        server.put_foreign(key);
                    }
                    Some("") => server.delete(key),
                    Some(text) => {
                        memory.put_text(0, key, text.as_bytes(), None);
                        server.put(key, text.as_bytes(), None);
                    }
                }
            }
            let state = format!("{marker:?}, {record:?}, {call:?}");
            let reply = memory.raise_age(0, &call).ok();
            assert_eq!(reply, age_reply(&server, &call), "{state}");
            for key in [MARKER_KEY, AGE_KEY] {
                let text = server.read(key).filter(|text| text != b"foreign");
                assert_eq!(memory.peek(0, key).holder, text.as_deref(), "{state}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * 13 * 6);
}
