//! The `Node` of a store in one client process. The library's driver for stores is real, and the store is simulated.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use quorate::Inspection;
use quorate::node::store::{
    Clocked, Commit, Committed, Date, Greeting, Listener, NamedRecord, Record, Session, Store,
    StoreNode, Traits,
};
use quorate::node::{
    Abilities, Answer, Context, Fault, Node, NodeName, Phase, Reply, ReplySink, Request, Scope,
    Subscriber,
};
use quorate::runtime::BoxFuture;

use crate::store_plan::StorePlan;
use crate::world::{SessionAnswer, SessionRequest, Shared};

/// The connection of one client to a simulated store.
struct SimStore {
    name: NodeName,
    plan: StorePlan,
    shared: Weak<Shared>,
    client: usize,
    master: usize,
}

/// A session of a client with a simulated store. Dropping this value closes the session.
struct SimSession {
    shared: Weak<Shared>,
    index: usize,
}

impl Drop for SimSession {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.world().close_session(self.index);
        }
    }
}

fn run_has_ended() -> Fault {
    Fault::Down("the simulation run has ended".into())
}

impl SimSession {
    async fn ask(&self, question: SessionRequest) -> Result<SessionAnswer, Fault> {
        let shared = self.shared.upgrade().ok_or_else(run_has_ended)?;
        shared.world().send_request(self.index, question);
        drop(shared);
        poll_fn(|cx| match self.shared.upgrade() {
            Some(shared) => shared.world().poll_answer(self.index, cx.waker()),
            None => std::task::Poll::Ready(Err(run_has_ended())),
        })
        .await
    }
}

/// Returns the error for an answer that belongs to another request of the session. Such answers arrive only with the
/// seeded bug `KeptSession`, which reuses sessions with unread answers.
fn wrong_answer<T>() -> Result<T, Fault> {
    Err(Fault::Server(
        "the answer belongs to another request".into(),
    ))
}

impl SimStore {
    fn open_session(&self) -> Result<SimSession, Fault> {
        let shared = self.shared.upgrade().ok_or_else(run_has_ended)?;
        let index = shared.world().open_session(self.client, self.master);
        let shared = self.shared.clone();
        Ok(SimSession { shared, index })
    }

    fn take_reusable_session(&self) -> Option<(SimSession, Greeting)> {
        let shared_state = self.shared.upgrade()?;
        let (index, greeting) = shared_state
            .world()
            .take_reusable_session(self.client, self.master)?;
        let shared = self.shared.clone();
        Some((SimSession { shared, index }, greeting))
    }
}

impl Store for SimStore {
    type Session = SimSession;
    type Listener = SimSession;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        let StorePlan {
            timeout,
            sessions,
            commits_per_request,
            sends_wakes,
            ..
        } = self.plan;
        let default_traits = Traits::new(Duration::from_nanos(timeout));
        let traits = default_traits
            .lanes(sessions.into())
            .batch(commits_per_request.into());
        if sends_wakes {
            traits
        } else {
            traits.without_wakes()
        }
    }

    async fn connect(&self) -> Result<(SimSession, Greeting), Fault> {
        if let Some(pooled) = self.take_reusable_session() {
            return Ok(pooled);
        }
        let session = self.open_session()?;
        match session.ask(SessionRequest::Hello).await? {
            SessionAnswer::Hello(greeting) => Ok((session, greeting)),
            _ => wrong_answer(),
        }
    }

    async fn listen(&self, process: Arc<str>) -> Result<SimSession, Fault> {
        let session = self.open_session()?;
        session.ask(SessionRequest::Listen(process)).await?;
        Ok(session)
    }

    async fn inspect(&self) -> Inspection {
        Inspection::new(self.name.clone())
    }
}

impl Session for SimSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        match self.ask(SessionRequest::Load(names.to_vec())).await? {
            SessionAnswer::Loaded(loaded) => Ok(loaded),
            _ => wrong_answer(),
        }
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        match self.ask(SessionRequest::Commit(commits.to_vec())).await? {
            SessionAnswer::Committed(committed) => Ok(committed),
            _ => wrong_answer(),
        }
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        match self.ask(SessionRequest::Page(from, count)).await? {
            SessionAnswer::Paged(paged) => Ok(paged),
            _ => wrong_answer(),
        }
    }

    fn date(&self) -> Option<Date> {
        self.shared.upgrade()?.world().date_of(self.index)
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        match self.ask(SessionRequest::Remove(records.to_vec())).await? {
            SessionAnswer::Removed => Ok(()),
            _ => wrong_answer(),
        }
    }
}

impl Listener for SimSession {
    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        poll_fn(|cx| match self.shared.upgrade() {
            Some(shared) => shared.world().poll_wake_up(self.index, cx.waker()),
            None => std::task::Poll::Ready(Err(run_has_ended())),
        })
        .await
    }
}

/// A wrapper of the library's node of a store. It reports each request and each answer to the checkers.
pub(crate) struct WatchedStore {
    inner: StoreNode<SimStore>,
    shared: Weak<Shared>,
    client: usize,
    link: usize,
    master: usize,
}

impl WatchedStore {
    pub(crate) fn new(
        name: &str,
        plan: StorePlan,
        shared: &Arc<Shared>,
        (client, master, link): (usize, usize, usize),
    ) -> Self {
        let shared = Arc::downgrade(shared);
        let store = SimStore {
            name: NodeName::new(name),
            plan,
            shared: shared.clone(),
            client,
            master,
        };
        Self {
            inner: StoreNode::new(store),
            shared,
            client,
            link,
            master,
        }
    }
}

impl Node for WatchedStore {
    fn name(&self) -> &NodeName {
        self.inner.name()
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn settle(&self, context: &Context) {
        self.inner.settle(context);
    }

    fn send(&self, request: Request, reply: Reply) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        if !shared.report_store_request(self.link, self.master, &request) {
            return;
        }
        let phase = match &request {
            Request::Acquire { .. } => Phase::Acquire,
            Request::Release { .. } => Phase::Release,
            Request::Extend { .. } => Phase::Extend,
            _ => return self.inner.send(request, reply),
        };
        let reporting_reply = ReportingReply {
            shared: self.shared.clone(),
            client: self.client,
            master: self.master,
            request: request.clone(),
            reply: Mutex::new(Some(reply)),
        };
        let reply = Reply::new(Arc::new(reporting_reply), self.master, phase);
        self.inner.send(request, reply);
    }

    fn subscribe(&self, subscriber: Subscriber) {
        self.inner.subscribe(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.inner.idle()
    }

    fn inspect(&self, scope: &Scope) -> BoxFuture<Inspection> {
        self.inner.inspect(scope)
    }
}

/// Receives the answer to a request, reports it to the checkers, and then passes it to the library.
struct ReportingReply {
    shared: Weak<Shared>,
    client: usize,
    master: usize,
    request: Request,
    reply: Mutex<Option<Reply>>,
}

impl ReplySink for ReportingReply {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        if let Some(shared) = self.shared.upgrade() {
            shared
                .world()
                .report_store_answer(self.master, &self.request, &answer);
        }
        let reply = self
            .reply
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(reply) = reply else { return };
        // The library may read a clock while it handles the answer. Preempt no task then.
        let shared = self.shared.upgrade();
        let was_polled = shared.as_ref().map(|shared| shared.set_polling(false));
        reply.answer(answer);
        if let (Some(shared), Some(was_polled)) = (shared, was_polled) {
            shared.check_client(self.client);
            shared.set_polling(was_polled);
        }
    }
}
