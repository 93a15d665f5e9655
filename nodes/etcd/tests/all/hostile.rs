//! Tests with a gateway whose answers differ from those of etcd 3.4.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quorate::node::store::{Listener as _, Session as _, Store as _};
use quorate_etcd::{Etcd, EtcdListener};
use serde_json::{Value, json};

use crate::gateway::{Gateway, GatewayRequest, header, transaction};
use crate::support::*;

const PROCESS: &str = "00000000000000aa";

/// An error as etcd 3.6 writes it.
fn refused(status: u16, code: u64, message: &str) -> (u16, Value) {
    (status, json!({"code": code, "message": message}))
}

async fn listen(gateway: &Gateway, login: &str) -> EtcdListener {
    let store = Etcd::open(&gateway.url(login)).unwrap();
    store.listen(PROCESS.into()).await.unwrap()
}

#[tokio::test]
async fn errors_of_etcd_3_6_lead_to_a_new_login() {
    let logins = AtomicU64::new(0);
    let gateway = Gateway::start(move |request| match request.path.as_str() {
        "/v3/auth/authenticate" => {
            let number = logins.fetch_add(1, Ordering::Relaxed);
            Some((
                200,
                json!({"header": header("7"), "token": format!("token.{number}")}),
            ))
        }
        // The first token has expired.
        "/v3/kv/txn" if request.token.as_deref() != Some("token.1") => {
            Some(refused(401, 16, "etcdserver: invalid auth token"))
        }
        _ => None,
    });
    connect(&Etcd::open(&gateway.url("ann:s3cret@")).unwrap()).await;
    assert_eq!(gateway.requests("/v3/auth/authenticate").len(), 2);
}

#[tokio::test]
async fn errors_of_etcd_3_6_are_classified_as_those_of_etcd_3_4() {
    for (status, code, message, kind, part) in [
        (
            400,
            3,
            "etcdserver: authentication failed, invalid user ID or password",
            "denied",
            "password in the URL",
        ),
        (403, 7, "etcdserver: permission denied", "denied", "/locks/"),
        (503, 14, "etcdserver: no leader", "down", "majority"),
        (
            429,
            8,
            "etcdserver: mvcc: database space exceeded",
            "server_error",
            "defrag",
        ),
    ] {
        let gateway = Gateway::start(move |request| {
            let path = if code == 3 {
                "/v3/auth/authenticate"
            } else {
                "/v3/kv/txn"
            };
            (request.path == path).then(|| refused(status, code, message))
        });
        let fault = connect_fault(&gateway.url("ann:s3cret@")).await;
        assert_eq!(fault.kind(), kind, "{fault}");
        assert!(fault.to_string().contains(part), "{fault}");
    }
    let gateway = Gateway::start(|request| {
        let is_login = request.path == "/v3/auth/authenticate";
        is_login.then(|| refused(400, 9, "etcdserver: authentication is not enabled"))
    });
    connect(&Etcd::open(&gateway.url("ann:s3cret@")).unwrap()).await;
}

#[tokio::test]
async fn watches_that_end_at_once_are_not_opened_again_without_a_pause() {
    let gateway = Gateway::start(|_| None);
    let mut listener = listen(&gateway, "").await;
    let next = tokio::time::timeout(PATIENCE, listener.next()).await;
    let fault = next.expect("the listener must fail").expect_err("a fault");
    assert!(fault.passes_by_itself(), "{fault}");
    assert!(
        gateway.requests("/v3/watch").len() <= 4,
        "{:?}",
        gateway.requests("/v3/watch").len()
    );
}

#[tokio::test]
async fn history_that_is_always_removed_is_not_watched_again_without_a_pause() {
    let compacted = json!({"result": {"canceled": true, "compact_revision": u64::MAX.to_string()}});
    let gateway = Gateway::start(move |request| {
        (request.path == "/v3/watch").then(|| (200, compacted.clone()))
    });
    let mut listener = listen(&gateway, "").await;
    let started = Instant::now();
    while listener.next().await.is_ok() {
        assert!(started.elapsed() < PATIENCE, "the listener must fail");
    }
    assert!(gateway.requests("/v3/watch").len() <= 4);
}

#[tokio::test]
async fn watch_that_is_refused_because_of_its_token_leads_to_a_new_login() {
    let reason = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
    let line = json!({"result": {"watch_id": "-1", "created": true, "canceled": true, "cancel_reason": reason}});
    let gateway =
        Gateway::start(move |request| (request.path == "/v3/watch").then(|| (200, line.clone())));
    let store = Etcd::open(&gateway.url("ann:s3cret@")).unwrap();
    for logins in 1..=2 {
        let mut listener = store.listen(PROCESS.into()).await.unwrap();
        assert_eq!(gateway.requests("/v3/auth/authenticate").len(), logins);
        let fault = tokio::time::timeout(PATIENCE, listener.next()).await;
        let fault = fault.expect("the listener must fail").expect_err("a fault");
        assert!(fault.to_string().contains("login"), "{fault}");
    }
    assert_eq!(gateway.requests("/v3/watch").len(), 2);
}

#[tokio::test]
async fn date_of_another_member_behind_the_address_is_not_used() {
    let gateway = Gateway::start(|request| {
        let is_load = request.body["success"][0].get("request_range").is_some();
        (request.path == "/v3/kv/txn" && is_load).then(|| {
            let (status, mut answer) = transaction("8");
            answer["succeeded"] = true.into();
            answer["responses"] = json!([{"response_range": {}}]);
            (status, answer)
        })
    });
    let mut session = connect(&Etcd::open(&gateway.url("")).unwrap()).await;
    assert!(session.date().is_some());
    session.load(&[name("a")]).await.unwrap();
    assert_eq!(session.date(), None);
}

#[tokio::test]
async fn largest_revision_causes_no_panic() {
    let gateway = Gateway::start(|request| {
        let header = json!({"cluster_id": "5", "member_id": "7", "revision": u64::MAX.to_string()});
        (request.path == "/v3/kv/put").then(|| (200, json!({ "header": header })))
    });
    let mut listener = listen(&gateway, "").await;
    assert!(listener.next().await.is_err());
}

#[tokio::test]
async fn two_searches_over_one_session_do_not_read_pages_again() {
    let limit =
        |request: &GatewayRequest| request.body["success"][0]["request_range"]["limit"].clone();
    let gateway = Gateway::start(move |request| {
        let range = &request.body["success"][0]["request_range"];
        let count: u64 = range.get("limit")?.as_str()?.parse().ok()?;
        let key = |number: u64| json!({"key": range["key"], "mod_revision": "2", "version": number.to_string()});
        let kvs: Vec<Value> = (0..count).map(key).collect();
        let (status, mut answer) = transaction("7");
        answer["succeeded"] = true.into();
        answer["responses"] = json!([{"response_range": {"kvs": kvs}}]);
        Some((status, answer))
    });
    let mut session = connect(&Etcd::open(&gateway.url("")).unwrap()).await;
    let before = gateway.requests("/v3/kv/txn").len();
    for (from, count) in [(0, 30), (0, 7), (30, 30), (7, 7), (60, 30), (14, 7)] {
        assert_eq!(
            session.page(from, count).await.unwrap().what.len(),
            count as usize
        );
    }
    let sent = gateway.requests("/v3/kv/txn");
    let limits: Vec<Value> = sent[before..].iter().map(limit).collect();
    assert_eq!(limits, ["30", "7", "30", "7", "30", "7"]);
    // Pages of another session are skipped without their contents.
    session.page(25_000, 7).await.unwrap();
    let sent = gateway.requests("/v3/kv/txn");
    let skipped = &sent[before + 6..];
    assert!(
        skipped
            .iter()
            .take(3)
            .all(|request| request.body["success"][0]["request_range"]["keys_only"] == true)
    );
    assert_eq!(
        skipped.iter().map(limit).collect::<Vec<_>>(),
        ["10000", "10000", "5000", "7"]
    );
}
