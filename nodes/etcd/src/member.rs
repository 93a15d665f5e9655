//! A connection to one member of a cluster, over which requests are sent to its gateway.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::body::Incoming;
use quorate::node::{Fault, Protocol, other_protocol};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::dial::dial;
use crate::fault::{self, NO_LEADER, Refusal};
use crate::http::{Http, Reply};
use crate::json;
use crate::login::Login;
use crate::seen::Seen;
use crate::url::{Address, Host};

/// If no member has answered after this time, the client also tries the next member.
const NEXT_MEMBER_DELAY: Duration = Duration::from_millis(125);
/// The time limit of the check whether an address leads to a server of another kind.
const DETECTION_LIMIT: Duration = Duration::from_millis(200);

/// The state that all connections of one store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) address: Address,
    pub(crate) login: Login,
    pub(crate) seen: Seen,
}

impl Shared {
    pub(crate) fn new(address: Address) -> Arc<Self> {
        let (login, seen) = (Login::default(), Seen::default());
        Arc::new(Self {
            address,
            login,
            seen,
        })
    }
}

/// The answer of a member to a request.
pub(crate) struct Answer {
    pub(crate) body: Value,
    /// The date of the member in microseconds since 1970, in whole seconds; `None` if the answer has none.
    pub(crate) date: Option<u64>,
}

/// The result of a request: the answer, or the error that the cluster has answered.
type Outcome = Result<Answer, Refusal>;

/// A connection to one member.
pub(crate) struct Member {
    http: Http,
    pub(crate) shared: Arc<Shared>,
    /// The member's answer to a request for its status, when the connection was opened.
    pub(crate) status: Value,
}

impl Member {
    /// Opens a connection to the first member that answers, has a leader and may vote. If no member has answered after
    /// [`NEXT_MEMBER_DELAY`], also tries the next one.
    pub(crate) async fn open(shared: &Arc<Shared>) -> Result<Self, Fault> {
        let mut hosts: Vec<&Host> = shared.address.hosts.iter().collect();
        let mut rng: StdRng = rand::make_rng();
        hosts.shuffle(&mut rng);
        let mut remaining = hosts.into_iter();
        let mut attempts = FuturesUnordered::new();
        let mut faults: Vec<(&Host, Fault)> = Vec::new();
        loop {
            if let Some(host) = remaining.next() {
                attempts.push(async move { (host, open_at(host, shared).await) });
            }
            let has_more = remaining.len() > 0;
            tokio::select! {
                attempt = attempts.next(), if !attempts.is_empty() => match attempt {
                    Some((_, Ok(member))) => return Ok(member),
                    Some((host, Err(fault))) => faults.push((host, fault)),
                    None => {}
                },
                () = sleep(NEXT_MEMBER_DELAY.min(shared.address.timeout / 4)), if has_more => {}
            }
            if attempts.is_empty() && remaining.len() == 0 {
                return Err(combine(&faults));
            }
        }
    }

    /// Sends a request to this path. If the cluster demands a login, logs in and sends the request once more: the
    /// cluster has not executed it.
    pub(crate) async fn ask(&mut self, path: &str, body: &Value) -> Result<Outcome, Fault> {
        let body = body.to_string();
        self.log_in_first().await?;
        let token = self.shared.login.token();
        let outcome = match self.send(path, token.as_deref(), body.clone()).await? {
            Err(refusal) if refusal.needs_login() && self.log_in(token).await? => {
                let token = self.shared.login.token();
                self.send(path, token.as_deref(), body).await?
            }
            outcome => outcome,
        };
        Ok(outcome.map(|answer| self.with_own_date(answer)))
    }

    /// Removes the date of an answer that another member has given: an HTTP proxy can send each request to another member.
    fn with_own_date(&self, answer: Answer) -> Answer {
        let is_own = member_id(&answer.body) == member_id(&self.status);
        Answer {
            date: answer.date.filter(|_| is_own),
            ..answer
        }
    }

    /// Sends a request to this path as [`ask`](Self::ask) does. An error of the cluster becomes a fault.
    pub(crate) async fn call(&mut self, path: &str, body: &Value) -> Result<Answer, Fault> {
        self.ask(path, body)
            .await?
            .map_err(|refusal| refusal.fault())
    }

    /// Sends a request whose answer is a stream.
    pub(crate) async fn stream(&mut self, path: &str, body: &Value) -> Result<Incoming, Fault> {
        self.log_in_first().await?;
        let token = self.shared.login.token();
        let body = body.to_string();
        let (status, stream) = self.http.post_stream(path, token.as_deref(), body).await?;
        if status == 200 {
            return Ok(stream);
        }
        if status == 401 {
            // The next connection logs in again.
            self.shared.login.forget();
            return Err(Fault::Disconnected("the login has expired".into()));
        }
        Err(fault::of_status(status, b""))
    }

    /// Waits for the next piece of a stream. `None` if the stream has ended. It is safe to drop the future.
    pub(crate) async fn next_piece(
        &mut self,
        stream: &mut Incoming,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let piece = self.http.next_piece(stream).await?;
        Ok(piece.map(|piece| piece.to_vec()))
    }

    /// Reads a page of the member that is no part of its gateway; `None` if the member does not show it.
    pub(crate) async fn page(&mut self, path: &str) -> Result<Option<String>, Fault> {
        let reply = self.http.get(path).await?;
        let body = String::from_utf8(reply.body).ok();
        Ok(body.filter(|_| reply.status == 200))
    }

    async fn send(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: String,
    ) -> Result<Outcome, Fault> {
        read(self.http.post(path, token, body).await?)
    }

    async fn log_in_first(&mut self) -> Result<(), Fault> {
        if !self.shared.address.user.is_empty() && self.shared.login.is_unknown() {
            self.log_in(None).await?;
        }
        Ok(())
    }

    /// Logs in, unless the URL names no user. `refused` is the token that the cluster has refused: if another
    /// connection has logged in since, its token is used. Returns whether there is another token now.
    async fn log_in(&mut self, refused: Option<Arc<str>>) -> Result<bool, Fault> {
        let shared = self.shared.clone();
        let Some(password) = shared.address.password().await else {
            return Ok(false);
        };
        if refused != shared.login.token() {
            return Ok(true);
        }
        let body = json!({"name": shared.address.user, "password": password});
        match self
            .send("/v3/auth/authenticate", None, body.to_string())
            .await?
        {
            Ok(answer) => {
                let token = json::text(&answer.body, "token");
                if token.is_empty() {
                    return Err(fault::unreadable());
                }
                shared.login.succeeded(token);
                Ok(true)
            }
            // The cluster knows no users yet. etcdctl ignores the user as well then.
            Err(refusal) if refusal.is_auth_off() => {
                shared.login.is_off();
                Ok(false)
            }
            Err(refusal) => Err(refusal.fault()),
        }
    }
}

/// Reads a reply: an answer, or an error of the cluster. Fails if the reply is none of etcd's gateway.
fn read(reply: Reply) -> Result<Outcome, Fault> {
    let Ok(body) = serde_json::from_slice::<Value>(&reply.body) else {
        return Err(match reply.status {
            200 => fault::unreadable(),
            status => fault::of_status(status, &reply.body),
        });
    };
    match Refusal::read(&body) {
        Some(refusal) => Ok(Err(refusal)),
        None if reply.status == 200 => Ok(Ok(Answer {
            body,
            date: reply.date,
        })),
        None => Err(fault::of_status(reply.status, &reply.body)),
    }
}

/// Opens a connection to this member. Fails if the member cannot serve locks now.
async fn open_at(host: &Host, shared: &Arc<Shared>) -> Result<Member, Fault> {
    let http = dial(host, &shared.address).await?;
    let mut member = Member {
        http,
        shared: shared.clone(),
        status: Value::Null,
    };
    let asked = member.send("/v3/maintenance/status", None, "{}".to_owned());
    let outcome = match asked.await {
        Err(Fault::Disconnected(why) | Fault::Down(why)) => {
            return Err(explain_silence(host, shared, why).await);
        }
        outcome => outcome?,
    };
    member.status = outcome.map_err(|refusal| down(refusal.fault()))?.body;
    check_status(&member.status)?;
    shared.address.met.store(true, Ordering::Relaxed);
    Ok(member)
}

/// The fault of a server that has accepted the connection, and does not answer as etcd does.
async fn explain_silence(host: &Host, shared: &Shared, why: Arc<str>) -> Fault {
    if shared.address.tls {
        return fault::of_encrypted(&why, &shared.address);
    }
    let detection = other_protocol((host.name.as_str(), host.port), Protocol::Http);
    if let Ok(Some(text)) = timeout(DETECTION_LIMIT, detection).await {
        return Fault::Unsupported(text.into());
    }
    // etcd closes a connection without an answer if it expects TLS.
    let hint = "if the server expects TLS, use etcd+tls:// in the URL";
    Fault::Down(format!("{why}: {hint}").into())
}

/// Fails if the status of a member shows that it cannot serve locks now.
fn check_status(status: &Value) -> Result<(), Fault> {
    if json::flag(status, "isLearner") {
        let why = "the member is a learner: name voting members in the URL, or promote it";
        return Err(Fault::Down(why.into()));
    }
    match json::number(status, "leader") {
        None => Err(fault::unreadable()),
        Some(0) => Err(Fault::Down(
            format!("the cluster has no leader: {NO_LEADER}").into(),
        )),
        Some(_) => Ok(()),
    }
}

/// The fault of a connection that was not opened: no request of a lock was sent.
pub(crate) fn down(fault: Fault) -> Fault {
    match fault {
        Fault::Disconnected(why) => Fault::Down(why),
        fault => fault,
    }
}

/// The fault of a cluster none of whose members can be used. It is permanent only if all faults are.
fn combine(faults: &[(&Host, Fault)]) -> Fault {
    match faults {
        [(_, fault)] => fault.clone(),
        [(_, first), rest @ ..] if rest.iter().all(|(_, fault)| fault == first) => first.clone(),
        _ => {
            let why = |(host, fault): &(&Host, Fault)| format!("{host}: {}", fault::cause(fault));
            let reasons: Vec<String> = faults.iter().map(why).collect();
            let reasons = reasons.join("; ").into();
            if faults.iter().all(|(_, fault)| !fault.passes_by_itself()) {
                Fault::Unsupported(reasons)
            } else {
                Fault::Down(reasons)
            }
        }
    }
}

/// The cluster and the revision that an answer names.
pub(crate) fn header(answer: &Value) -> Result<(u64, u64), Fault> {
    let header = answer.get("header").ok_or_else(fault::unreadable)?;
    let cluster = json::number(header, "cluster_id");
    let revision = json::number(header, "revision");
    cluster.zip(revision).ok_or_else(fault::unreadable)
}

/// The id of the member that has given this answer; empty if the answer has none.
pub(crate) fn member_id(answer: &Value) -> &str {
    let header = answer.get("header");
    header.map_or("", |header| json::text(header, "member_id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_without_a_leader_and_a_learner_are_refused() {
        assert_eq!(check_status(&json!({"leader": "7"})), Ok(()));
        let lonely = check_status(&json!({"errors": ["etcdserver: no leader"]}));
        assert!(
            lonely
                .expect_err("refused")
                .to_string()
                .contains("no leader")
        );
        let learner = check_status(&json!({"leader": "7", "isLearner": true}));
        assert!(
            learner
                .expect_err("refused")
                .to_string()
                .contains("learner")
        );
    }

    #[test]
    fn fault_of_a_cluster_names_each_member_whose_reason_differs() {
        let host = |name: &str| Host {
            name: name.into(),
            port: 1,
        };
        let (a, b) = (host("a"), host("b"));
        let down = || Fault::Down("refused".into());
        let wrong = || Fault::Unsupported("wrong".into());
        assert_eq!(combine(&[(&a, down())]), down());
        assert_eq!(combine(&[(&a, down()), (&b, down())]), down());
        let both = combine(&[(&a, down()), (&b, wrong())]);
        assert!(both.passes_by_itself());
        let text = both.to_string();
        assert!(
            text.contains("a:1: refused") && text.contains("b:1: "),
            "{text}"
        );
        let other = || Fault::Denied("no".into());
        assert!(!combine(&[(&a, other()), (&b, wrong())]).passes_by_itself());
    }

    #[test]
    fn reply_is_an_answer_an_error_of_the_cluster_or_a_fault() {
        let reply = |status, body: &str| {
            read(Reply {
                status,
                date: None,
                body: body.into(),
            })
        };
        assert!(matches!(reply(200, "{}"), Ok(Ok(_))));
        assert!(matches!(
            reply(400, r#"{"error":"x","code":3}"#),
            Ok(Err(_))
        ));
        for (status, body) in [(200, "x"), (404, "Not Found"), (500, "{}")] {
            assert!(reply(status, body).is_err(), "{status}");
        }
    }
}
