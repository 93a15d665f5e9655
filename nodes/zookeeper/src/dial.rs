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
const NEXT_MEMBER_DELAY: Duration = Duration::from_millis(125);

/// If a member has not answered after this time, the client also finds out whether it is a server of another kind:
/// 200 ms, well below the default connect timeout. This check of a member that closed the connection is limited to the
/// same time.
const SILENCE_LIMIT: Duration = Duration::from_millis(200);

/// A client that is connected to one member, and that member's address.
pub(crate) struct MemberConnection {
    pub(crate) client: Client,
    pub(crate) host: String,
}

/// Opens a session with the first member that answers. If no member has answered after [`NEXT_MEMBER_DELAY`], also
/// tries the next member.
///
/// The client then uses only the member that answered. If that member fails, a new client must open a new session.
pub(crate) async fn dial(address: &Address) -> Result<MemberConnection, Fault> {
    let mut hosts = address.hosts.clone();
    let mut rng: StdRng = rand::make_rng();
    hosts.shuffle(&mut rng);
    let mut remaining_hosts = hosts.iter();
    let mut attempts = FuturesUnordered::new();
    let mut reasons = Vec::new();
    let mut foreign_members = 0;
    loop {
        if let Some(host) = remaining_hosts.next() {
            attempts.push(dial_member(host, address));
        }
        let has_more_hosts = remaining_hosts.len() > 0;
        tokio::select! {
            outcome = attempts.next(), if !attempts.is_empty() => match outcome {
                Some(Ok(connection)) => return check_session_timeout(connection, address),
                Some(Err(Refusal::Final(fault))) => return Err(fault),
                Some(Err(Refusal::Silent(reason))) => reasons.push(reason),
                Some(Err(Refusal::Foreign(reason))) => {
                    foreign_members += 1;
                    reasons.push(reason);
                }
                None => {}
            },
            () = sleep(NEXT_MEMBER_DELAY.min(address.timeout / 4)), if has_more_hosts => {}
        }
        if attempts.is_empty() && remaining_hosts.len() == 0 {
            let reason = reasons.join("; ").into();
            return Err(if foreign_members == hosts.len() {
                Fault::Unsupported(reason)
            } else {
                Fault::Down(reason)
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

async fn dial_member(host: &str, address: &Address) -> Result<MemberConnection, Refusal> {
    let mut connector = Client::connector()
        .with_fail_eagerly()
        .with_session_timeout(address.session_timeout);
    if let Some(user) = &address.user {
        let secret = format!("{}:{}", user.name, user.password);
        connector = connector.with_auth("digest", secret.as_bytes());
    }
    let foreign_refusal = |text: &str| Refusal::Foreign(format!("{host}: {text}"));
    let mut connecting = pin!(connector.connect(host));
    let outcome = tokio::select! {
        biased;
        outcome = &mut connecting => outcome,
        Some(text) = detect_other_kind(host) => return Err(foreign_refusal(text)),
    };
    match outcome {
        Ok(client) => Ok(MemberConnection {
            client,
            host: host.to_owned(),
        }),
        Err(error) => Err(
            match fault::classify_request_error(&error, &address.path, address) {
                Fault::Disconnected(why) => {
                    let detection = other_protocol(with_port(host), Protocol::ZooKeeper);
                    match timeout(SILENCE_LIMIT, detection).await {
                        Ok(Some(text)) => foreign_refusal(text),
                        _ => Refusal::Silent(explain_silence(host, &why).await),
                    }
                }
                fault => Refusal::Final(fault),
            },
        ),
    }
}

/// Finds out after [`SILENCE_LIMIT`] whether a member that has not answered is a server of another kind, and returns
/// what to change in this case.
async fn detect_other_kind(host: &str) -> Option<&'static str> {
    sleep(SILENCE_LIMIT).await;
    other_protocol(with_port(host), Protocol::ZooKeeper).await
}

/// Finds out why a member did not answer. The client reports the same error `why` for an absent server and for a server
/// that closes the connection.
async fn explain_silence(host: &str, why: &str) -> String {
    match timeout(Duration::from_secs(1), TcpStream::connect(with_port(host))).await {
        Ok(Err(error)) if !is_closed_by_server(&error) => format!("{host}: {error}"),
        Ok(_) => format!(
            "{host}: the server closed the connection ({why}): check that its ensemble has a majority and that \
             maxClientCnxns allows more connections"
        ),
        Err(_) => format!("{host}: no connection"),
    }
}

/// Whether `error` means that the server accepted the connection and then closed it.
fn is_closed_by_server(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset
    )
}

/// Returns a fault if the client could abandon a connection before a request times out. The client abandons a
/// connection that is silent for 2/5 of the session timeout.
fn check_session_timeout(
    connection: MemberConnection,
    address: &Address,
) -> Result<MemberConnection, Fault> {
    let granted_timeout = connection.client.session_timeout();
    if granted_timeout * 2 / 5 < address.timeout {
        return Err(fault::short_session_fault(granted_timeout, address));
    }
    Ok(connection)
}

/// Watches the connection while a request waits for its result. If the connection is lost, the wait ends with an error.
pub(crate) struct SessionWatch(StateWatcher);

impl SessionWatch {
    /// Begins to watch a session. Call this before a request is sent. Returns an error if the session is not connected.
    pub(crate) fn start(client: &Client) -> Result<Self, Fault> {
        let mut states = client.state_watcher();
        match states.state() {
            SessionState::SyncConnected => Ok(Self(states)),
            state => Err(Fault::Down(
                format!("the session has ended: {state:?}").into(),
            )),
        }
    }

    /// Waits for the result of a request. Returns an error if the connection is lost or the session ends first.
    pub(crate) async fn result_of<T>(
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
