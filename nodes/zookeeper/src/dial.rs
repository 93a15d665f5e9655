//! Opens a session with one member of an ensemble.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use quorate::node::{Fault, Protocol, other_protocol};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Client, SessionState, StateWatcher};

use crate::address::{Address, with_port};
use crate::fault;

/// If no member of the ensemble has answered after this time, the client also tries the next member. If the request
/// timeout is shorter than 500 ms, the client waits only a quarter of the request timeout.
const NEXT: Duration = Duration::from_millis(125);

/// If a member has not answered after this time, the client also finds out whether it is a server of another kind:
/// 200 ms, well below the default connect timeout. This check of a member that closed the connection is limited to the
/// same time.
const SILENCE: Duration = Duration::from_millis(200);

/// A client that is connected to one member, and that member's address.
pub(crate) struct Dialled {
    pub(crate) client: Client,
    pub(crate) host: String,
}

/// Opens a session with the first member that answers. If no member has answered after [`NEXT`], also tries the next
/// member.
///
/// The client then uses only the member that answered. If that member fails, a new client must open a new session.
pub(crate) async fn dial(address: &Address) -> Result<Dialled, Fault> {
    let mut hosts = address.hosts.clone();
    let mut rng: StdRng = rand::make_rng();
    hosts.shuffle(&mut rng);
    let mut waiting = hosts.iter();
    let mut asked = FuturesUnordered::new();
    let mut failed = Vec::new();
    let mut foreign = 0;
    loop {
        if let Some(host) = waiting.next() {
            asked.push(dial_one(host, address));
        }
        let more = waiting.len() > 0;
        tokio::select! {
            answer = asked.next(), if !asked.is_empty() => match answer {
                Some(Ok(dialled)) => return check(dialled, address),
                Some(Err(Refusal::Final(fault))) => return Err(fault),
                Some(Err(Refusal::Silent(why))) => failed.push(why),
                Some(Err(Refusal::Foreign(why))) => {
                    foreign += 1;
                    failed.push(why);
                }
                None => {}
            },
            () = sleep(NEXT.min(address.timeout / 4)), if more => {}
        }
        if asked.is_empty() && waiting.len() == 0 {
            let why = failed.join("; ").into();
            return Err(if foreign == hosts.len() {
                Fault::Unsupported(why)
            } else {
                Fault::Down(why)
            });
        }
    }
}

enum Refusal {
    /// This member did not answer, for the reason in this text. Another member may answer.
    Silent(String),
    /// There is a server of another kind at the address of this member. Another member may answer.
    Foreign(String),
    /// The member answered with a fault that every other member would also report.
    Final(Fault),
}

async fn dial_one(host: &str, address: &Address) -> Result<Dialled, Refusal> {
    let mut connector = Client::connector()
        .with_fail_eagerly()
        .with_session_timeout(address.session);
    if let Some(user) = &address.user {
        let secret = format!("{}:{}", user.name, user.password);
        connector = connector.with_auth("digest", secret.as_bytes());
    }
    let is_foreign = |text: &str| Refusal::Foreign(format!("{host}: {text}"));
    let mut connecting = pin!(connector.connect(host));
    let answer = tokio::select! {
        biased;
        answer = &mut connecting => answer,
        Some(text) = other_kind(host) => return Err(is_foreign(text)),
    };
    match answer {
        Ok(client) => Ok(Dialled {
            client,
            host: host.to_owned(),
        }),
        Err(error) => Err(match fault::of_request(&error, &address.path, address) {
            Fault::Disconnected(why) => {
                let asked = other_protocol(with_port(host), Protocol::ZooKeeper);
                match timeout(SILENCE, asked).await {
                    Ok(Some(text)) => is_foreign(text),
                    _ => Refusal::Silent(why_silent(host, &why).await),
                }
            }
            fault => Refusal::Final(fault),
        }),
    }
}

/// Finds out after [`SILENCE`] whether a member that has not answered is a server of another kind, and returns what to
/// change in this case.
async fn other_kind(host: &str) -> Option<&'static str> {
    sleep(SILENCE).await;
    other_protocol(with_port(host), Protocol::ZooKeeper).await
}

/// Finds out why a member did not answer. The client reports the same error `why` for an absent server and for a server
/// that closes the connection.
async fn why_silent(host: &str, why: &str) -> String {
    match timeout(Duration::from_secs(1), TcpStream::connect(with_port(host))).await {
        Ok(Err(error)) if !hung_up(&error) => format!("{host}: {error}"),
        Ok(_) => format!(
            "{host}: the server closed the connection ({why}): check that its ensemble has a majority and that \
             maxClientCnxns allows more connections"
        ),
        Err(_) => format!("{host}: no connection"),
    }
}

/// Whether `error` means that the server accepted the connection and then closed it.
fn hung_up(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset
    )
}

/// Returns a fault if the client could abandon a connection before a request times out. The client abandons a
/// connection that is silent for 2/5 of the session timeout.
fn check(dialled: Dialled, address: &Address) -> Result<Dialled, Fault> {
    let granted = dialled.client.session_timeout();
    if granted * 2 / 5 < address.timeout {
        return Err(fault::short_session(granted, address));
    }
    Ok(dialled)
}

/// Watches the connection while a request waits for its result. If the connection is lost, the wait ends with an error.
pub(crate) struct Watch(StateWatcher);

impl Watch {
    /// Begins to watch a session. Call this before a request is sent. Returns an error if the session is not connected.
    pub(crate) fn on(client: &Client) -> Result<Self, Fault> {
        let mut states = client.state_watcher();
        match states.state() {
            SessionState::SyncConnected => Ok(Self(states)),
            state => Err(Fault::Down(
                format!("the session has ended: {state:?}").into(),
            )),
        }
    }

    /// Waits for the result of a request. Returns an error if the connection is lost or the session ends first.
    pub(crate) async fn over<T>(
        mut self,
        answer: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            biased;
            answer = answer => answer,
            state = self.0.changed() => {
                Err(Fault::Disconnected(format!("the session has ended: {state:?}").into()))
            }
        }
    }
}
