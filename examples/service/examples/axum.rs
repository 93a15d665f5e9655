//! A web service whose instances share locks.
//!
//! - Each request takes a lock for its customer.
//! - The status code is 409 if another client holds the lock, and 503 if the lock is unavailable or lost.
//! - All locks are released before the process ends.
//! - `/metrics` serves the metrics.
//!
//! `cargo run -p quorate-service --features service --example axum` starts the service, sends some requests to it, and
//! ends.
//! `QUORATE_MASTERS=redis://.. cargo run -p quorate-service --features service --example axum -- 127.0.0.1:8080` serves until Ctrl-C.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use quorate::{AcquireError, Redlock, RedlockBuilder, ScopeError, Wait};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The state that all handlers share. A `Redlock` is cheap to clone, and a process needs only one.
#[derive(Clone)]
struct Service {
    redlock: Redlock,
    metrics: PrometheusHandle,
}

/// The status code and the text for a failed request.
struct Failure(StatusCode, String);

impl axum::response::IntoResponse for Failure {
    fn into_response(self) -> axum::response::Response {
        (self.0, self.1).into_response()
    }
}

impl From<ScopeError> for Failure {
    fn from(error: ScopeError) -> Self {
        let status = match &error {
            // Another request holds the lock, so the client can try again.
            ScopeError::NotAcquired(AcquireError::HeldByOther(_)) => StatusCode::CONFLICT,
            // The lock could not be acquired, or was lost during the work. If it was lost, the work can be half done.
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        // Operators need the masters' addresses and the holder's host; users must not see them.
        eprintln!("{}", error.details());
        Self(status, error.to_string())
    }
}

/// Writes an invoice under a lock. If the lock is lost, the closure is dropped at its next `await`.
///
/// A real handler must pass the fencing token to the storage: a paused process cannot notice that its lock has expired.
async fn invoice(
    State(service): State<Service>,
    Path(customer): Path<u32>,
) -> Result<String, Failure> {
    let lock = service.redlock.lock(format!("invoice:{customer}"));
    let lock = lock.wait(Wait::For(Duration::from_millis(300)));
    lock.try_scope(async |guard| {
        let fence = guard
            .fencing_token()
            .expect("the guard must have a fencing token, because fencing is on by default");
        tokio::time::sleep(Duration::from_millis(20)).await;
        if customer == 0 {
            return Err(Failure(
                StatusCode::NOT_FOUND,
                "no such customer".to_owned(),
            ));
        }
        Ok(format!("invoice for {customer}, number {fence}\n"))
    })
    .await
}

/// Health check for a load balancer: ready while a majority of the masters replies.
async fn ready(State(service): State<Service>) -> StatusCode {
    match service.redlock.status("ready").await {
        Ok(status) if status.verdict() != quorate::StatusVerdict::Unknown => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn metrics(State(service): State<Service>) -> String {
    service.metrics.render()
}

/// Empties the buffers of the recorder. Without it, samples accumulate in memory until `/metrics` is read.
async fn upkeep(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

fn router(service: Service) -> Router {
    Router::new()
        .route("/invoice/{customer}", post(invoice))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(service)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Install the recorder before the `Redlock` is built, so that every metric exists from the start. Without buckets,
    // the exporter would export summaries, which the dashboard and the alert rules cannot read.
    let buckets = [
        0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0,
    ];
    let metrics = PrometheusBuilder::new().set_buckets(&buckets)?;
    let metrics = metrics.install_recorder()?;
    tokio::spawn(upkeep(metrics.clone()));
    quorate::metrics::describe();
    let redlock = match std::env::var_os("QUORATE_MASTERS") {
        Some(_) => RedlockBuilder::from_env()?.build()?,
        None => Redlock::in_memory(3),
    };
    let service = Service {
        redlock: redlock.clone(),
        metrics,
    };
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let server_address = listener.local_addr()?;
    println!("serving on http://{server_address}");
    let server = axum::serve(listener, router(service));
    if address.is_some() {
        let stop_signal = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        // After Ctrl-C, `server` finishes the requests in progress before it returns. Each request releases its lock.
        server.with_graceful_shutdown(stop_signal).await?;
    } else {
        tokio::select! {
            result = server => result?,
            result = try_out(server_address, &redlock) => result?,
        }
    }
    // A cancelled request releases its lock in the background. Wait for such releases.
    let _ = tokio::time::timeout(Duration::from_millis(500), redlock.flush()).await;
    Ok(())
}

/// Sends some requests to the service, and checks the status codes of the replies.
async fn try_out(
    server_address: std::net::SocketAddr,
    redlock: &Redlock,
) -> Result<(), Box<dyn Error>> {
    for (request, status) in [
        ("POST /invoice/7", 200),
        ("POST /invoice/0", 404),
        ("GET /ready", 200),
    ] {
        expect(ask(server_address, request).await?, request, status)?;
    }
    let guard = redlock.acquire("invoice:8").await?;
    expect(
        ask(server_address, "POST /invoice/8").await?,
        "POST /invoice/8",
        409,
    )?;
    guard.release().await;
    let metrics_text = ask(server_address, "GET /metrics").await?;
    let rounds_line = metrics_text
        .lines()
        .find(|line| line.starts_with("quorate_rounds_total"));
    println!(
        "GET /metrics: {}",
        rounds_line.ok_or("the metric quorate_rounds_total is missing")?
    );
    if !metrics_text.contains("quorate_acquire_seconds_bucket") {
        return Err("the histograms have no buckets".into());
    }
    Ok(())
}

fn expect(answer: String, request: &str, status: u16) -> Result<(), Box<dyn Error>> {
    let last = answer.lines().last().unwrap_or_default();
    println!("{request}: {status} {last}");
    if answer.starts_with(&format!("HTTP/1.1 {status} ")) {
        Ok(())
    } else {
        Err(format!("{request}: expected status {status}, got {answer:?}").into())
    }
}

async fn ask(
    server_address: std::net::SocketAddr,
    request: &str,
) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(server_address).await?;
    let length = if request.starts_with("POST") {
        "content-length: 0\r\n"
    } else {
        ""
    };
    let text = format!(
        "{request} HTTP/1.1\r\nhost: {server_address}\r\nconnection: close\r\n{length}\r\n"
    );
    stream.write_all(text.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
