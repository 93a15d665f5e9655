//! An HTTP service that refuses writes with a stale fencing token.
//!
//! - A client sends the token of its lock in the header `Fencing-Token`, with every request that changes something.
//! - The status code is 428 if the header is missing, 400 if it is not a number, and 412 if the token is stale. The
//!   body says why.
//! - The service checks the token in one middleware. Handlers need no change.
//!
//! `cargo run -p quorate-service --features service --example fenced_http` starts the service, sends some requests to
//! it, proves that it refuses every older token, and ends.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate::testing::{FencedWrite, FencingProof};
use quorate::{Fence, Redlock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The header with the fencing token of the client's lock.
const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// The state that all handlers share.
#[derive(Clone, Default)]
struct Service {
    /// The text that the lock `prices` protects. A real service has a database here.
    prices: Arc<Mutex<String>>,
}

/// Lets a request that changes something pass only if its fencing token is not stale.
///
/// The guard lives until the handler has written and answered. So no other request with a token is let through between
/// the check and the write. If the connection to the client breaks, the guard and the handler are dropped together.
///
/// This `Fence` is as new as the data, which is in memory. A service that keeps its data must store the token with it,
/// and begin with `Fence::resume`. A service with several instances must let its database check the token.
async fn fenced(State(fence): State<Arc<Fence<()>>>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let token = match token_of(request.headers()) {
        Ok(token) => token,
        Err(refused) => return refused.into_response(),
    };
    let guard = match fence.write(token).await {
        Ok(guard) => guard,
        Err(stale) => {
            return (StatusCode::PRECONDITION_FAILED, format!("{stale}\n")).into_response();
        }
    };
    let response = next.run(request).await;
    drop(guard);
    response
}

fn token_of(headers: &HeaderMap) -> Result<u64, (StatusCode, &'static str)> {
    const MISSING: &str = "send the fencing token of your lock in the header Fencing-Token\n";
    const WRONG: &str = "the header Fencing-Token must be a number from 1 to 2^53\n";
    let value = headers.get(FENCING_TOKEN);
    let value = value.ok_or((StatusCode::PRECONDITION_REQUIRED, MISSING))?;
    let token = value.to_str().ok().and_then(|text| text.parse().ok());
    token.ok_or((StatusCode::BAD_REQUEST, WRONG))
}

async fn read(State(service): State<Service>) -> String {
    service.prices.lock().expect("no panic").clone()
}

async fn write(State(service): State<Service>, prices: String) -> StatusCode {
    // A real handler waits for its database. Other requests have time to overtake this one.
    tokio::task::yield_now().await;
    *service.prices.lock().expect("no panic") = prices;
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
    let (first, second) = (serve(router()).await?, serve(router()).await?);
    try_out(first).await?;
    prove(second).await
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
    let why = format!(
        "stale fencing token {stale}: a later holder of the lock has already written with token {token}"
    );
    expect(put(bound, Some(&stale), "7 EUR").await?, 412, &why)?;
    expect(put(bound, None, "7 EUR").await?, 428, "Fencing-Token")?;
    expect(put(bound, Some("newest"), "7 EUR").await?, 400, "a number")?;
    expect(get_prices(bound).await?, 200, "9 EUR")?;
    next.release().await;
    Ok(())
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
