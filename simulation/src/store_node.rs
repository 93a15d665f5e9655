//! The `Node` of a store in one client process. The library's driver for stores is real, and the store is simulated.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use quorate::node::store::{
    Clocked, Commit, Committed, Date, Greeting, LastRun, Listener, NamedRecord, Record,
    SeenPosition, Session, Store, StoreNode, Traits,
};
use quorate::node::{
    Abilities, Answer, Context, Fault, Node, NodeName, Phase, Reply, ReplySink, Request, Scope,
    ServerRun, Subscriber,
};
use quorate::runtime::BoxFuture;
use quorate::{Inspection, Instant};

use crate::store_plan::{RunRule, StorePlan};
use crate::world::{RowChange, RunRow, SessionAnswer, SessionRequest, Shared, StoreState};

/// The number of bits of a version that contain the number of the change that made it. The bits above contain the identity
/// of a store of [`RunRule::Numbered`].
const CHANGE_BITS: u32 = 40;
/// A version that no record has.
const NEVER: u64 = u64::MAX;

/// The connection of one client to a simulated store.
struct SimStore {
    name: NodeName,
    plan: StorePlan,
    shared: Weak<Shared>,
    client: usize,
    master: usize,
    /// The last run of the store that this process saw.
    last_run: Arc<LastRun>,
}

/// A session of a client with a simulated store. Dropping this value closes the session.
struct SimSession {
    shared: Weak<Shared>,
    index: usize,
    client: usize,
    master: usize,
    rule: RunRule,
    last_run: Arc<LastRun>,
    /// The id of the run in which the session began, and the file of the records at that time. `None` if clients do not
    /// count the age of the run.
    run: Option<(String, u32)>,
    versions: Versions,
    /// Whether this session receives wake-ups. The library learns the identity of a store only from the greeting of
    /// another session.
    listens: bool,
}

/// Converts versions of a store to those that its clients see, and back. A store that was set back gives the same versions
/// a second time. So its versions also contain the identity that an administrator gives it, as in `nodes/etcd`.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    /// The identity, in the bits above [`CHANGE_BITS`].
    tag: u64,
}

impl Versions {
    fn new(identity: u32) -> Self {
        Self {
            tag: u64::from(identity) << CHANGE_BITS,
        }
    }

    /// The version that clients see; 0 if the record does not exist.
    fn for_clients(self, version: u64) -> u64 {
        if version == 0 { 0 } else { self.tag | version }
    }

    /// The version that the record has on the store. A version with another identity never fits.
    fn on_store(self, version: u64) -> u64 {
        match version {
            0 => 0,
            version if version >> CHANGE_BITS << CHANGE_BITS == self.tag => version ^ self.tag,
            _ => NEVER,
        }
    }

    fn record(self, record: Record) -> Record {
        Record {
            version: self.for_clients(record.version),
            ..record
        }
    }
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
    /// Sends a request. Returns its answer, and the state of the store that the answer shows. Fails if this state shows
    /// that the store may have forgotten records.
    async fn ask(&self, question: SessionRequest) -> Result<(SessionAnswer, StoreState), Fault> {
        // Read the known position before the request is sent: another session may note a higher one meanwhile.
        let known = self.last_run.position();
        let (answer, state) = self.ask_for_state(question).await?;
        if let Some((run, file)) = &self.run {
            let is_same_run = *file == state.place.file
                && state.run.as_ref() == Some(run)
                && self.last_run.is_current(run);
            if !is_same_run {
                self.upgraded()?.world().count_ended_session();
                return Err(Fault::Disconnected("another run has begun".into()));
            }
        }
        if self.rule == RunRule::Numbered {
            let identity = identity_of(self.master, &state);
            let is_set_back = known.is_some_and(|known| known.is_after(&identity, state.number));
            if is_set_back {
                self.upgraded()?.world().count_refused_number();
                return Err(Fault::Server("the store was set back".into()));
            }
            self.meet(&identity, Duration::ZERO, state.number)?;
        }
        Ok((answer, state))
    }

    /// Greets the store. Returns its greeting, and its state.
    async fn greet(&self) -> Result<(Greeting, StoreState), Fault> {
        match self.ask(SessionRequest::Hello).await? {
            (SessionAnswer::Hello(greeting), state) => Ok((greeting, state)),
            _ => wrong_answer(),
        }
    }

    async fn ask_for_state(
        &self,
        question: SessionRequest,
    ) -> Result<(SessionAnswer, StoreState), Fault> {
        self.upgraded()?.world().send_request(self.index, question);
        poll_fn(|cx| match self.shared.upgrade() {
            Some(shared) => shared.world().poll_answer(self.index, cx.waker()),
            None => std::task::Poll::Ready(Err(run_has_ended())),
        })
        .await
    }

    fn upgraded(&self) -> Result<Arc<Shared>, Fault> {
        self.shared.upgrade().ok_or_else(run_has_ended)
    }

    fn now(&self) -> Result<Instant, Fault> {
        let shared = self.upgraded()?;
        let world = shared.world();
        Ok(Instant::from_nanos(
            world.processes[self.client].clock.read(world.now),
        ))
    }

    /// Notes the run of the store, and the number of its latest change. Returns the age of the run.
    fn meet(&self, run: &str, aged: Duration, number: u64) -> Result<Duration, Fault> {
        let (shared, now) = (self.upgraded()?, self.now()?);
        let mut world = shared.world();
        if !self.listens {
            world.note_seen_number(self.client, self.master, number);
        }
        Ok(self.last_run.meet(now, run, aged, Some(number)))
    }

    async fn change_row(&self, change: RowChange) -> Result<RunRow, Fault> {
        match self.ask(SessionRequest::ChangeRow(change)).await? {
            (SessionAnswer::Row(Some(row)), _) => Ok(row),
            _ => wrong_answer(),
        }
    }

    /// Writes the age of the run into its row if it is due. Does not wait for the answer.
    fn raise_age(&self) -> Result<(), Fault> {
        let Some((run, _)) = &self.run else {
            return Ok(());
        };
        if let Some(age) = self.last_run.due(self.now()?, run) {
            let raise = SessionRequest::ChangeRow(RowChange::Raise(run.clone(), age));
            self.upgraded()?.world().send_request(self.index, raise);
        }
        Ok(())
    }
}

/// The identity of a store, which an administrator changes after the store was set back.
fn identity_of(master: usize, state: &StoreState) -> String {
    format!("{master}/{}", state.identity)
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
        Ok(self.session(index))
    }

    fn session(&self, index: usize) -> SimSession {
        SimSession {
            shared: self.shared.clone(),
            index,
            client: self.client,
            master: self.master,
            rule: self.plan.run,
            last_run: self.last_run.clone(),
            run: None,
            versions: Versions::default(),
            listens: false,
        }
    }

    fn take_reusable_session(&self) -> Option<(SimSession, Greeting)> {
        let shared = self.shared.upgrade()?;
        let (index, greeting) = shared
            .world()
            .take_reusable_session(self.client, self.master)?;
        Some((self.session(index), greeting))
    }

    /// Begins a session with a store whose run clients count, in the steps of `nodes/postgres/src/greet.rs`.
    async fn begin_counted(
        &self,
        session: &mut SimSession,
        state: StoreState,
        known: Option<SeenPosition>,
    ) -> Result<Greeting, Fault> {
        let mut row = session.change_row(RowChange::Insert(state.place)).await?;
        if row.place != state.place {
            row = session.change_row(RowChange::Replace(state.place)).await?;
            if row.place != state.place {
                return Err(Fault::Unprepared("the row does not fit".into()));
            }
        }
        let is_set_back = known.is_some_and(|known| known.is_after(&row.id, state.number));
        if is_set_back {
            row = session.change_row(RowChange::BeginAgain(row.id)).await?;
        }
        let age = session.meet(&row.id, row.aged, state.number)?;
        session.run = Some((row.id.clone(), state.place.file));
        let run = ServerRun::new(row.id);
        Ok(Greeting::new(run)
            .server(format!("store {}", self.master))
            .uptime(age))
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
        let traits = if sends_wakes {
            traits
        } else {
            traits.without_wakes()
        };
        if self.plan.run == RunRule::Counted {
            traits.counts_age()
        } else {
            traits
        }
    }

    async fn connect(&self) -> Result<(SimSession, Greeting), Fault> {
        if let Some(pooled) = self.take_reusable_session() {
            return Ok(pooled);
        }
        let mut session = self.open_session()?;
        let known = self.last_run.position();
        let (greeting, state) = session.greet().await?;
        let greeting = match self.plan.run {
            RunRule::Durable | RunRule::Uptime => greeting,
            RunRule::Counted => self.begin_counted(&mut session, state, known).await?,
            RunRule::Numbered => {
                session.versions = Versions::new(state.identity);
                let identity = identity_of(self.master, &state);
                Greeting::new(ServerRun::new(identity.clone()))
                    .run_outlives_restarts()
                    .server(format!("store {identity}"))
            }
        };
        Ok((session, greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<SimSession, Fault> {
        let mut session = self.open_session()?;
        session.listens = true;
        session.ask(SessionRequest::Listen(process)).await?;
        Ok(session)
    }

    async fn inspect(&self) -> Inspection {
        Inspection::new(self.name.clone())
    }
}

impl Session for SimSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let (answer, _) = self.ask(SessionRequest::Load(names.to_vec())).await?;
        self.raise_age()?;
        match answer {
            SessionAnswer::Loaded(loaded) => Ok(Clocked {
                what: loaded
                    .what
                    .into_iter()
                    .map(|record| self.versions.record(record))
                    .collect(),
                clock: loaded.clock,
            }),
            _ => wrong_answer(),
        }
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let mut commits = commits.to_vec();
        for change in commits.iter_mut().flat_map(|commit| &mut commit.changes) {
            change.version = self.versions.on_store(change.version);
        }
        let (answer, _) = self.ask(SessionRequest::Commit(commits)).await?;
        self.raise_age()?;
        match answer {
            SessionAnswer::Committed(mut committed) => {
                for committed in &mut committed.what {
                    if let Committed::Done(versions) = committed {
                        for version in versions {
                            *version = self.versions.for_clients(*version);
                        }
                    }
                }
                Ok(committed)
            }
            _ => wrong_answer(),
        }
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        match self.ask(SessionRequest::Page(from, count)).await? {
            (SessionAnswer::Paged(paged), _) => Ok(Clocked {
                what: paged
                    .what
                    .into_iter()
                    .map(|(name, record)| (name, self.versions.record(record)))
                    .collect(),
                clock: paged.clock,
            }),
            _ => wrong_answer(),
        }
    }

    fn date(&self) -> Option<Date> {
        self.shared.upgrade()?.world().date_of(self.index)
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        let removal =
            |(name, version): &(Arc<[u8]>, u64)| (name.clone(), self.versions.on_store(*version));
        let removals = records.iter().map(removal).collect();
        match self.ask(SessionRequest::Remove(removals)).await? {
            (SessionAnswer::Removed, _) => Ok(()),
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
        shared.world().forget_seen_number(client, master);
        let shared = Arc::downgrade(shared);
        let store = SimStore {
            name: NodeName::new(name),
            plan,
            shared: shared.clone(),
            client,
            master,
            last_run: Arc::default(),
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
            sent_at: shared.now(),
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
    /// The true time at which the client sent the request, in nanoseconds.
    sent_at: u64,
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
                .report_store_answer(self.master, (&self.request, self.sent_at), &answer);
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
