//! The answer to each request. All answers are read from the state of the page; no request asks a master.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use url::form_urlencoded;

use crate::access::{Access, Refusal};
use crate::body::{PageBody, Progress};
use crate::hub::{Hub, MAX_VIEWERS, now_ms};
use crate::metrics::metrics;
use crate::past::{Window, compute_past};
use crate::ring::MAX_AGE_MS;
use crate::state_json::{MAX_SHOWN_LOCKS, Query};

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// No code, style, image or connection of any other origin, and none within the page. Texts cannot become code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Headers of every answer.
const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// The page answers `/healthz` with an error if it has not asked the masters for this long although somebody watches.
const STUCK_MS: u64 = 60_000;

/// The files of the page.
const FILES: [(&str, &str, &str); 4] = [
    ("/", HTML, include_str!("../assets/index.html")),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("../assets/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/page.js"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("../assets/icon.svg"),
    ),
];

/// Answers a request.
pub(crate) fn answer<B>(
    request: &Request<B>,
    hub: &Arc<Hub>,
    access: &Access,
    progress: &Progress,
) -> Response<PageBody> {
    progress.record_now();
    let path = request.uri().path();
    if let Err(refusal) = access.check(request.method(), path, request.headers()) {
        return refused(refusal, progress);
    }
    let query = request.uri().query().unwrap_or_default();
    let answer = |kind, text: String| large(hub, kind, text, progress);
    if let Some((_, kind, text)) = FILES.iter().find(|(file, ..)| *file == path) {
        let mut file = response(StatusCode::OK, kind, *text, progress);
        file.headers_mut()
            .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        return file;
    }
    match path {
        "/api/state" => answer(
            JSON,
            hub.page_state()
                .full_state_json(&state_query(query), now_ms(), hub.viewers()),
        ),
        "/api/history" => answer(JSON, history(query, hub)),
        "/api/events" if request.method() == Method::HEAD => {
            answer("text/event-stream", String::new())
        }
        "/api/events" => events(hub, progress),
        "/metrics" => answer(
            "text/plain; version=0.0.4; charset=utf-8",
            metrics(&hub.page_state(), now_ms(), hub.viewers()),
        ),
        "/healthz" => health(hub, progress),
        _ => response(
            StatusCode::NOT_FOUND,
            TEXT,
            "there is no such page: begin at /\n",
            progress,
        ),
    }
}

fn response(
    status: StatusCode,
    kind: &'static str,
    text: impl Into<Bytes>,
    progress: &Progress,
) -> Response<PageBody> {
    with_headers(status, kind, PageBody::text(text, progress.clone()))
}

/// An answer that can be large. If too many bytes wait for other clients, the client must try again.
fn large(hub: &Hub, kind: &'static str, text: String, progress: &Progress) -> Response<PageBody> {
    match hub.unsent.reserve(text.len()) {
        Some(reserved) => {
            let body = PageBody::text(text, progress.clone()).with_reserved(reserved);
            with_headers(StatusCode::OK, kind, body)
        }
        None => busy(
            "too many answers wait for slow clients: try again\n".to_owned(),
            progress,
        ),
    }
}

/// The answer to a request that has no room now.
fn busy(text: String, progress: &Progress) -> Response<PageBody> {
    let mut busy = response(StatusCode::SERVICE_UNAVAILABLE, TEXT, text, progress);
    busy.headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("5"));
    busy
}

fn with_headers(status: StatusCode, kind: &'static str, body: PageBody) -> Response<PageBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in HEADERS {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    response
}

fn refused(refusal: Refusal, progress: &Progress) -> Response<PageBody> {
    let mut refused = response(refusal.status(), TEXT, refusal.text(), progress);
    match refusal {
        Refusal::Method => {
            refused
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        Refusal::Password => {
            let basic = HeaderValue::from_static("Basic realm=\"quorate\", charset=\"UTF-8\"");
            refused.headers_mut().insert(WWW_AUTHENTICATE, basic);
        }
        Refusal::Host | Refusal::Origin => {}
    }
    refused
}

fn events(hub: &Arc<Hub>, progress: &Progress) -> Response<PageBody> {
    let Some(viewer) = hub.join() else {
        let text = format!(
            "{MAX_VIEWERS} browsers watch already: close one of them, or read /api/state\n"
        );
        return busy(text, progress);
    };
    if viewer.reserved.is_none() {
        let text = "too many answers wait for slow clients: try again\n";
        return busy(text.to_owned(), progress);
    }
    let body = PageBody::messages(viewer, progress.clone());
    let mut events = with_headers(StatusCode::OK, "text/event-stream", body);
    // nginx must not collect messages.
    events.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    events
}

fn health(hub: &Arc<Hub>, progress: &Progress) -> Response<PageBody> {
    let page_state = hub.page_state();
    let silent_ms = now_ms().saturating_sub(page_state.probed_ms.max(page_state.started_ms));
    if page_state.is_watching && silent_ms > STUCK_MS {
        return response(
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "the page does not ask the masters any more\n",
            progress,
        );
    }
    response(StatusCode::OK, TEXT, "ok\n", progress)
}

fn state_query(query: &str) -> Query {
    let mut state_query = Query::all();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let value = value.into_owned();
        match &*key {
            "search" => state_query.search = value,
            "kind" => state_query.kind = value,
            "state" => state_query.state = value,
            "host" => state_query.host = value,
            "sort" => state_query.sort = value,
            "down" => state_query.down = value == "true",
            "limit" => state_query.limit = value.parse().unwrap_or(MAX_SHOWN_LOCKS),
            "offset" => state_query.offset = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    state_query
}

fn history(query: &str, hub: &Hub) -> String {
    let now_ms = now_ms();
    let (mut lock, mut from_ms, mut to_ms) = (None, now_ms.saturating_sub(MAX_AGE_MS), now_ms);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "lock" => lock = Some(value.into_owned()),
            "from" => from_ms = value.parse().unwrap_or(from_ms),
            "to" => to_ms = value.parse().unwrap_or(to_ms),
            _ => {}
        }
    }
    let window = Window {
        from_ms,
        to_ms,
        now_ms,
        lock: lock.as_deref(),
    };
    let page_state = hub.page_state();
    serde_json::to_string(&compute_past(page_state.ring.iter(), &window)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_decoded_and_bad_numbers_are_replaced() {
        let query = state_query(
            "search=a%20b%3C&kind=permit&sort=name&down=true&limit=x&offset=-1&other=1&state=waited+for",
        );
        let expected = Query {
            search: "a b<".to_owned(),
            kind: "permit".to_owned(),
            state: "waited for".to_owned(),
            sort: "name".to_owned(),
            down: true,
            ..Query::all()
        };
        assert_eq!(query, expected);
    }

    #[test]
    fn files_of_the_page_have_less_than_80_kilobytes_and_no_outside_request() {
        let bytes: usize = FILES.iter().map(|(.., text)| text.len()).sum();
        assert!(bytes < 80_000, "{bytes} bytes");
        for (path, _, text) in FILES {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in [
                "http://",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=\"",
                "onclick=",
            ] {
                assert!(!text.contains(forbidden), "{path}: {forbidden}");
            }
        }
    }
}
