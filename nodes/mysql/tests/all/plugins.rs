//! Tests of authentication plugins, with a server that demands a plugin and checks the client's answer.

use std::time::Duration;

use quorate::node::Fault;
use quorate::node::store::Store as _;
use quorate_mysql::MySql;
use quorate_testbed::demand_plugin;

/// The password of the user, which is also the secret key of [`SIGNATURE`].
const PASSWORD: &str = "0123456789abcdef0123456789abcdef";
const NONCE: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef";

/// The Ed25519 signature of [`NONCE`], made by `openssl pkeyutl -sign -rawin`.
const SIGNATURE: &str = "b7b01ecd5c10ebe58f4f7530303d8a1254eeec95b97e0ab45bd583b643325a57b134addb815343c39034c0053b771360ddcbe14f5738a616fcf087a77b1d4804";

fn url_of(address: std::net::SocketAddr) -> String {
    format!("mysql://app:{PASSWORD}@{address}/locks?timeout=5s")
}

async fn fault_of(url: &str) -> Fault {
    let store = MySql::open(url).expect("a URL");
    let connect_outcome = tokio::time::timeout(Duration::from_secs(20), store.connect()).await;
    let Err(fault) = connect_outcome.expect("connecting must not hang") else {
        panic!("the server must refuse the connection");
    };
    assert!(!fault.to_string().contains(PASSWORD), "{fault}");
    fault
}

#[tokio::test]
async fn plugin_ed25519_is_supported() {
    let (address, answers) = demand_plugin("client_ed25519", NONCE).expect("a server");
    let url = url_of(address);
    let fault = fault_of(&url).await;
    let answer = answers
        .recv_timeout(Duration::from_secs(20))
        .expect("an answer");
    let digits: Vec<String> = answer.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits.concat(), SIGNATURE);
    assert_eq!(fault.kind(), "denied", "{fault}");
}

#[tokio::test]
async fn plugin_that_this_client_does_not_have_is_refused_by_its_name() {
    for plugin in ["parsec", "auth_gssapi_client", "dialog"] {
        let (address, _answers) = demand_plugin(plugin, NONCE).expect("a server");
        let url = url_of(address);
        let fault = fault_of(&url).await;
        assert!(!fault.passes_by_itself(), "{plugin}: {fault}");
        let text = fault.to_string();
        assert!(text.contains(plugin), "{plugin}: {text}");
        assert!(text.contains("ed25519"), "{plugin}: {text}");
        let store = MySql::open(&url).expect("a URL");
        assert_eq!(store.inspect().await.fault, Some(fault));
    }
}
