//! An HTTP service that refuses writes with a stale fencing token.
//!
//! - A client sends the token of its lock in the header `Fencing-Token`, with every request that changes something. A
//!   client that reads before it writes sends it with the read as well.
//! - The status code is 428 if the header is missing, 400 if it is not a number from 1 to 2^53, and 412 if the token is
//!   stale. The body says why.
//! - The service checks the token in one middleware. Handlers need no change.
//!
//! `cargo run -p quorate-service --features service --example fenced_http` starts the service, sends some requests to
//! it, proves that it refuses every older token, and ends.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate::testing::{FencedWrite, FencingProof};
use quorate::{Fence, Redlock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

/// The header with the fencing token of the client's lock.
const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// The largest fencing token.
const LARGEST_TOKEN: u64 = 1 << 53;

/// The largest body of a request with a fencing token, in bytes.
const LARGEST_BODY: usize = 1 << 20;

/// The state that all handlers share.
#[derive(Clone, Default)]
struct Service {
    database: Database,
}

/// A database with one text, which the lock `prices` protects.
#[derive(Clone, Default)]
struct Database {
    prices: Arc<Mutex<String>>,
}

impl Database {
    fn read(&self) -> String {
        self.prices.lock().expect("no panic").clone()
    }

    /// Stores a text. Like a real database, it executes a statement that it has received even if nobody waits for the
    /// answer. A longer text takes longer.
    async fn store(&self, prices: String) {
        let stored = Arc::clone(&self.prices);
        let statement = tokio::spawn(async move {
            sleep(Duration::from_micros(100) * prices.len() as u32).await;
            *stored.lock().expect("no panic") = prices;
        });
        statement.await.expect("no panic");
    }
}

/// Lets a request that changes something pass only if its fencing token is not stale. A request that reads may have a
/// token: the token is then stored before the read.
///
/// The guard lives until the handler has written and answered. So no other request with a token is let through between
/// the check and the write.
///
/// This `Fence` is as new as the data, which is in memory. A service that keeps its data must store the token with it,
/// and begin with `Fence::resume`. A service with several instances must let its database check the token.
async fn fenced(State(fence): State<Arc<Fence<()>>>, request: Request, next: Next) -> Response {
    if request.method().is_safe() && !request.headers().contains_key(FENCING_TOKEN) {
        return next.run(request).await;
    }
    let token = match token_of(request.headers()) {
        Ok(token) => token,
        Err(refusal) => return refusal.into_response(),
    };
    // Receive the whole request before taking the guard: the client may be paused while it sends.
    let (head, body) = request.into_parts();
    let Ok(body) = to_bytes(body, LARGEST_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let request = Request::from_parts(head, Body::from(body));
    // If the client disconnects, the server drops this future, but not what the handler has sent to the database. So
    // the guard and the handler need a task of their own.
    let response_task = tokio::spawn(async move {
        let guard = match fence.write(token).await {
            Ok(guard) => guard,
            Err(stale) => {
                return (StatusCode::PRECONDITION_FAILED, format!("{stale}\n")).into_response();
            }
        };
        let response = next.run(request).await;
        drop(guard);
        response
    });
    let to_server_error = |_| StatusCode::INTERNAL_SERVER_ERROR.into_response();
    response_task.await.unwrap_or_else(to_server_error)
}

fn token_of(headers: &HeaderMap) -> Result<u64, (StatusCode, &'static str)> {
    const MISSING: &str = "send the fencing token of your lock in the header Fencing-Token\n";
    const WRONG: &str = "the header Fencing-Token must be a number from 1 to 2^53\n";
    let value = headers.get(FENCING_TOKEN);
    let value = value.ok_or((StatusCode::PRECONDITION_REQUIRED, MISSING))?;
    let token = value.to_str().ok().and_then(|text| text.parse().ok());
    let token = token.filter(|token| (1..=LARGEST_TOKEN).contains(token));
    token.ok_or((StatusCode::BAD_REQUEST, WRONG))
}

async fn read(State(service): State<Service>) -> String {
    service.database.read()
}

async fn write(State(service): State<Service>, prices: String) -> StatusCode {
    service.database.store(prices).await;
    StatusCode::NO_CONTENT
}

fn router() -> Router {
    Router::new()
        .route("/prices", get(read).put(write))
        .layer(from_fn_with_state(Arc::new(Fence::new(())), fenced))
        .with_state(Service::default())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    try_out(serve(router()).await?).await?;
    read_before_write(serve(router()).await?).await?;
    disconnect(serve(router()).await?).await?;
    pause_in_the_middle(serve(router()).await?).await?;
    prove(serve(router()).await?).await
}

/// Starts the service on a free port.
async fn serve(router: Router) -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let bound = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, router).await });
    Ok(bound)
}

/// Two holders, one of which writes after the other one.
async fn try_out(bound: SocketAddr) -> Result<(), Box<dyn Error>> {
    let redlock = Redlock::in_memory(3);
    let paused = redlock.acquire("prices").await?;
    let stale = paused.fencing_token().ok_or("fencing is off")?.to_string();
    expect(put(bound, Some(&stale), "7 EUR").await?, 204, "")?;
    paused.release().await;

    let next = redlock.acquire("prices").await?;
    let token = next.fencing_token().ok_or("fencing is off")?.to_string();
    expect(put(bound, Some(&token), "8 EUR").await?, 204, "")?;
    expect(put(bound, Some(&token), "9 EUR").await?, 204, "")?;
    let stale_text = format!(
        "stale fencing token {stale}: a later holder of the lock has already written with token {token}"
    );
    expect(put(bound, Some(&stale), "7 EUR").await?, 412, &stale_text)?;
    expect(put(bound, None, "7 EUR").await?, 428, "Fencing-Token")?;
    for wrong in ["newest", "0", "9007199254740993"] {
        expect(put(bound, Some(wrong), "7 EUR").await?, 400, "a number")?;
    }
    expect(get_prices(bound).await?, 200, "9 EUR")?;
    next.release().await;
    Ok(())
}

/// A holder reads, and then writes. The previous holder wants to write in between.
async fn read_before_write(bound: SocketAddr) -> Result<(), Box<dyn Error>> {
    expect(put(bound, Some("33"), "10 left").await?, 204, "")?;
    let head = "GET /prices HTTP/1.1\r\nfencing-token: 34\r\n";
    expect(ask(bound, head, "").await?, 200, "10 left")?;
    expect(put(bound, Some("33"), "9 left").await?, 412, "stale")?;
    expect(put(bound, Some("34"), "9 left").await?, 204, "")
}

/// A client disconnects while the database executes its statement, and the next holder writes.
async fn disconnect(bound: SocketAddr) -> Result<(), Box<dyn Error>> {
    // The statement takes 300 ms.
    let slow = "7 EUR".repeat(600);
    let _ = timeout(Duration::from_millis(100), put(bound, Some("33"), &slow)).await;
    expect(put(bound, Some("34"), "8 EUR").await?, 204, "")?;
    // If the guard had been dropped with the connection, the statement of the first client would end now.
    sleep(Duration::from_millis(500)).await;
    expect(get_prices(bound).await?, 200, "8 EUR")
}

/// A client is paused after it has sent half of its request. The next holder must not wait for it.
async fn pause_in_the_middle(bound: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut paused = TcpStream::connect(bound).await?;
    let head = "PUT /prices HTTP/1.1\r\nhost: prices\r\nconnection: close\r\nfencing-token: 33\r\n";
    let half = format!("{head}content-length: 5\r\n\r\n7 ");
    paused.write_all(half.as_bytes()).await?;
    // The service has time to receive this half.
    sleep(Duration::from_millis(200)).await;
    let next = timeout(Duration::from_secs(20), put(bound, Some("34"), "8 EUR"));
    expect(next.await??, 204, "")?;
    paused.write_all(b"EUR").await?;
    expect(answer(paused).await?, 412, "stale")?;
    expect(get_prices(bound).await?, 200, "8 EUR")
}

/// Proves that the service refuses older tokens, also while newer ones arrive.
async fn prove(bound: SocketAddr) -> Result<(), Box<dyn Error>> {
    let write = async |token: u64, value: String| match put(bound, Some(&token.to_string()), &value)
        .await?
        .0
    {
        204 => Ok::<_, Box<dyn Error>>(FencedWrite::Accepted),
        412 => Ok(FencedWrite::Refused),
        other => Err(format!("unexpected status {other}").into()),
    };
    let read = async || get_prices(bound).await.map(|(_, prices)| prices);
    FencingProof::new(write, read).run().await?;
    println!("proven: the service refuses every older token");
    Ok(())
}

/// The status code and the body of a response.
type Answer = (u16, String);

async fn put(bound: SocketAddr, token: Option<&str>, body: &str) -> Result<Answer, Box<dyn Error>> {
    let header = token.map_or_else(String::new, |token| format!("fencing-token: {token}\r\n"));
    let length = body.len();
    let headers = format!("{header}content-length: {length}\r\n");
    ask(bound, &format!("PUT /prices HTTP/1.1\r\n{headers}"), body).await
}

async fn get_prices(bound: SocketAddr) -> Result<Answer, Box<dyn Error>> {
    ask(bound, "GET /prices HTTP/1.1\r\n", "").await
}

async fn ask(bound: SocketAddr, head: &str, body: &str) -> Result<Answer, Box<dyn Error>> {
    let mut stream = TcpStream::connect(bound).await?;
    let text = format!("{head}host: {bound}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await?;
    answer(stream).await
}

async fn answer(mut stream: TcpStream) -> Result<Answer, Box<dyn Error>> {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or("no end of the headers")?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

fn expect((status, body): Answer, wanted: u16, words: &str) -> Result<(), Box<dyn Error>> {
    println!("{status} {}", body.trim_end());
    if status == wanted && body.contains(words) {
        Ok(())
    } else {
        Err(format!("expected {wanted} and {words:?}, got {status} and {body:?}").into())
    }
}
