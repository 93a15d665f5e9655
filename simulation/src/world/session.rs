//! Sessions: connections between clients and stores.
//!
//! A server can still execute requests of a session after the client has abandoned this session and opened a new one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use quorate::node::store::{Clocked, Commit, Committed, Date, Greeting, NamedRecord, Record};
use quorate::node::{Fault, ServerRun};

use super::master::{SimMaster, run_id};
use super::net::{Direction, PacketRoute};
use super::run_row::{RowChange, RunRow, StoreState};
use super::{Event, UnlockedWork, World};
use crate::flaw::Flaw;
use crate::rng::Rng;
use crate::scenario::Refusal;
use crate::store_plan::RunRule;

/// A request that a client makes in a session.
pub(crate) enum SessionRequest {
    Hello,
    /// Reads or changes the row of the run of the store.
    ChangeRow(RowChange),
    /// Subscribes to the wake-up messages for the client process with this id.
    Listen(Arc<str>),
    Load(Vec<Arc<[u8]>>),
    Commit(Vec<Commit>),
    Page(u64, u32),
    Remove(Vec<(Arc<[u8]>, u64)>),
}

impl SessionRequest {
    /// Whether the request begins a session.
    fn is_greeting(&self) -> bool {
        matches!(self, Self::Hello | Self::Listen(_))
    }

    /// Whether the client does not wait for the answer.
    fn is_silent(&self) -> bool {
        matches!(self, Self::ChangeRow(RowChange::Raise(..)))
    }
}

/// The answer to a request in a session.
#[derive(Clone)]
pub(crate) enum SessionAnswer {
    Hello(Greeting),
    Row(Option<RunRow>),
    Listens,
    Loaded(Clocked<Vec<Record>>),
    Committed(Clocked<Vec<Committed>>),
    Paged(Clocked<Vec<NamedRecord>>),
    Removed,
}

/// A request in a session. It contains the answer once the server has executed the request.
pub(crate) struct PendingRequest {
    session: usize,
    request: SessionRequest,
    /// Whether the request is lost on the way, so that it never reaches the server.
    is_lost: bool,
    is_executed: bool,
    /// Whether the request has already waited at the server for commits of other sessions. A request waits at most
    /// once.
    has_waited: bool,
    /// The server's clock, in microseconds, when the request began to wait for commits of other sessions. `None` if the
    /// request did not wait, or if the store has no clock.
    clock_before_wait: Option<u64>,
    /// How many of the request's commits the server executes. If the session breaks, this can be fewer than all.
    commit_limit: usize,
    answer: Option<Result<SessionAnswer, Fault>>,
    /// The state of the store after the request was executed.
    state: StoreState,
    /// Whether the answer has reached the client.
    is_delivered: bool,
}

/// A session: a connection of a client to a store.
pub(crate) struct Session {
    pub(super) client: usize,
    master: usize,
    /// How often the server had restarted when it accepted the session.
    restarts: u32,
    /// Whether the session is open on the client's side.
    is_client_open: bool,
    /// Whether the session is open on the server's side.
    is_server_open: bool,
    /// Whether the client has been notified that the session has ended.
    is_loss_reported: bool,
    /// Whether the next answer of the server is malformed.
    is_next_answer_malformed: bool,
    last_arrival_at_server: u64,
    last_arrival_at_client: u64,
    /// The sequence number of the latest state that the client has read or written in this session. A lagging follower
    /// must not return an older state.
    last_state_seen: u64,
    /// The date that the store gave to the session's last change; `None` before the first.
    last_date: Option<Date>,
    /// The requests whose answers the client has not read yet, oldest first.
    unanswered: VecDeque<usize>,
    waker: Option<Waker>,
    /// The process whose wake-up messages arrive on this session; `None` if the session carries requests instead.
    listening_process: Option<Arc<str>>,
    /// The wake-up messages in flight to the client, oldest first.
    wake_ups_in_flight: VecDeque<Vec<Vec<u8>>>,
    /// The wake-up messages that have arrived and that the client has not read yet, oldest first.
    arrived_wake_ups: VecDeque<Vec<Vec<u8>>>,
    rng: Rng,
}

fn session_lost() -> Fault {
    Fault::Disconnected("the session is gone".into())
}

/// The client's side of sessions. Tasks call these functions while they are polled.
impl World {
    /// Opens a session of a client with a store, and returns its index.
    pub(crate) fn open_session(&mut self, client: usize, master: usize) -> usize {
        let session = self.sessions.len();
        let salt = 5 << 48 | session as u64;
        self.sessions.push(Session {
            client,
            master,
            restarts: 0,
            is_client_open: true,
            is_server_open: false,
            is_loss_reported: false,
            is_next_answer_malformed: false,
            last_arrival_at_server: 0,
            last_arrival_at_client: 0,
            last_state_seen: 0,
            last_date: None,
            unanswered: VecDeque::new(),
            waker: None,
            listening_process: None,
            wake_ups_in_flight: VecDeque::new(),
            arrived_wake_ups: VecDeque::new(),
            rng: Rng::stream(self.scenario.seed, salt),
        });
        session
    }

    /// For a seeded bug: takes a session of this client with this master from the pool of reused sessions. A session in
    /// the pool still has unread answers. Returns `None` if the pool has no such session.
    pub(crate) fn take_reusable_session(
        &mut self,
        client: usize,
        master: usize,
    ) -> Option<(usize, Greeting)> {
        let is_matching = |&&session: &&usize| {
            let state = &self.sessions[session];
            (state.client, state.master) == (client, master) && !state.is_loss_reported
        };
        let session = *self.reusable_sessions.iter().find(is_matching)?;
        self.reusable_sessions.retain(|pooled| *pooled != session);
        Some((session, self.greeting(master)))
    }

    pub(crate) fn send_request(&mut self, session: usize, request: SessionRequest) {
        let pending = self.pending_requests.len();
        let is_silent = request.is_silent();
        let commit_limit = match &request {
            SessionRequest::Commit(commits) => commits.len(),
            _ => 0,
        };
        self.pending_requests.push(Some(PendingRequest {
            session,
            request,
            is_lost: false,
            is_executed: false,
            has_waited: false,
            clock_before_wait: None,
            commit_limit,
            answer: None,
            state: StoreState::default(),
            is_delivered: false,
        }));
        if !is_silent {
            self.sessions[session].unanswered.push_back(pending);
        }
        let arrival = self.draw_session_arrival(session, Direction::ToMaster);
        let pending = pending as u32;
        self.schedule(arrival, Event::RequestReachesStore { request: pending });
        let net = self.scenario.net;
        if !self.faults_have_ended() && self.sessions[session].rng.chance(net.reset_ppm) {
            self.break_session(session, true);
        }
    }

    /// Returns the answer to the oldest request of this session that the client has not read yet, and the state of the
    /// store that the answer shows. Registers `waker` if the answer has not arrived.
    pub(crate) fn poll_answer(
        &mut self,
        session: usize,
        waker: &Waker,
    ) -> Poll<Result<(SessionAnswer, StoreState), Fault>> {
        let state = &mut self.sessions[session];
        if state.is_loss_reported {
            return Poll::Ready(Err(session_lost()));
        }
        let oldest = state.unanswered.front().copied();
        let pending = oldest.and_then(|oldest| self.pending_requests[oldest].as_ref());
        if pending.is_some_and(|pending| pending.is_delivered) {
            state.unanswered.pop_front();
            let pending = oldest.and_then(|oldest| self.pending_requests[oldest].take());
            let answer = pending.and_then(|pending| {
                let state = pending.state;
                pending
                    .answer
                    .map(|answer| answer.map(|answer| (answer, state)))
            });
            return Poll::Ready(answer.unwrap_or_else(|| Err(session_lost())));
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Returns the oldest wake-up message that has arrived on this session and that the client has not read yet.
    /// Registers `waker` if there is none. Returns an error if the session has ended.
    pub(crate) fn poll_wake_up(
        &mut self,
        session: usize,
        waker: &Waker,
    ) -> Poll<Result<Vec<Vec<u8>>, Fault>> {
        let state = &mut self.sessions[session];
        if let Some(wake_up) = state.arrived_wake_ups.pop_front() {
            return Poll::Ready(Ok(wake_up));
        }
        if state.is_loss_reported {
            return Poll::Ready(Err(session_lost()));
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Closes the session on the client's side. Requests in flight may still reach the server.
    ///
    /// The seeded bug `KeptSession` keeps a session with unread answers open for reuse.
    pub(crate) fn close_session(&mut self, session: usize) {
        let state = &mut self.sessions[session];
        state.waker = None;
        let has_unanswered = !state.unanswered.is_empty()
            && state.is_server_open
            && !state.is_loss_reported
            && state.listening_process.is_none();
        if has_unanswered && self.flaw == Some(Flaw::KeptSession) {
            self.reusable_sessions.push(session);
            return;
        }
        if std::mem::replace(&mut state.is_client_open, false) {
            self.lose_requests_in_flight(session);
            self.remove_records_of_session(session);
        }
    }
}

/// The network and the server side of sessions.
impl World {
    fn draw_session_arrival(&mut self, session: usize, direction: Direction) -> u64 {
        let state = &mut self.sessions[session];
        let plan = self.scenario.masters[state.master].store;
        // A lock change takes up to eight packets. At `timeout / 12` each, they take two thirds of the timeout.
        let healed_within = plan.map_or(u64::MAX, |plan| plan.timeout / 12);
        let route = PacketRoute {
            client: state.client,
            master: state.master,
            direction,
            healed_within,
        };
        let coverage = &mut self.observer.coverage;
        let arrival = route.draw_arrival(&self.scenario, self.now, &mut state.rng, coverage);
        let last_arrival = match direction {
            Direction::ToMaster => &mut state.last_arrival_at_server,
            Direction::FromMaster => &mut state.last_arrival_at_client,
        };
        *last_arrival = arrival.max(*last_arrival + 1);
        *last_arrival
    }

    /// Decides for each request in flight to the server whether it is lost. If a request is not lost, the server
    /// executes all of its commits, or only the first few.
    fn lose_requests_in_flight(&mut self, session: usize) {
        let net = self.scenario.net;
        let state = &mut self.sessions[session];
        for index in state.unanswered.clone() {
            let Some(pending) = self.pending_requests[index].as_mut() else {
                continue;
            };
            if pending.is_executed {
                continue;
            }
            pending.is_lost = !state.rng.chance(net.leftover_ppm);
            if !pending.is_lost && pending.commit_limit > 1 {
                pending.commit_limit = state.rng.range(1, pending.commit_limit as u64) as usize;
            }
        }
    }

    /// Breaks a session in the network. If `is_server_alive` is true, the server does not notice the break and keeps
    /// the session.
    fn break_session(&mut self, session: usize, is_server_alive: bool) {
        if !self.sessions[session].is_client_open || self.sessions[session].is_loss_reported {
            return;
        }
        self.observer.coverage.resets += 1;
        self.lose_requests_in_flight(session);
        if !is_server_alive {
            self.sessions[session].is_server_open = false;
        }
        self.remove_records_of_session(session);
        let at = self.draw_session_arrival(session, Direction::FromMaster);
        let session = session as u32;
        self.schedule(at, Event::SessionLost { session });
    }

    pub(super) fn break_all_sessions(&mut self, master: usize, is_server_alive: bool) {
        for session in 0..self.sessions.len() {
            if self.sessions[session].master == master {
                self.break_session(session, is_server_alive);
                self.sessions[session].is_server_open &= is_server_alive;
            }
        }
    }

    /// Ends all sessions of a master on the server's side, without notifying the clients.
    pub(super) fn forget_sessions(&mut self, master: usize) {
        for session in 0..self.sessions.len() {
            if self.sessions[session].master == master {
                let state = &mut self.sessions[session];
                let was_open = std::mem::replace(&mut state.is_server_open, false);
                let is_half_open = was_open && state.is_client_open && !state.is_loss_reported;
                self.observer.coverage.half_open += u64::from(is_half_open);
                self.remove_records_of_session(session);
            }
        }
    }

    pub(super) fn garble_sessions(&mut self, master: usize) {
        for session in &mut self.sessions {
            session.is_next_answer_malformed |= session.master == master;
        }
    }

    /// For a seeded bug: when a session has ended, removes the records that this session wrote.
    fn remove_records_of_session(&mut self, session: usize) {
        if self.flaw == Some(Flaw::SessionIsLease) {
            let master = self.sessions[session].master;
            self.stores[master].remove_records_of(session);
        }
    }

    /// Notifies the client that the session has ended.
    pub(super) fn deliver_session_loss(&mut self, session: usize) -> Option<UnlockedWork> {
        let state = &mut self.sessions[session];
        if !state.is_client_open || std::mem::replace(&mut state.is_loss_reported, true) {
            return None;
        }
        state.waker.take().map(UnlockedWork::Wake)
    }

    /// Delivers a request to the server, which executes and answers it. If the server stalls, or if the request must
    /// wait for a row lock, the request is delivered again later.
    pub(super) fn deliver_request(&mut self, index: usize) {
        let Some(pending) = self.pending_requests[index]
            .as_ref()
            .filter(|pending| !pending.is_lost)
        else {
            return;
        };
        let session = pending.session;
        let state = &self.sessions[session];
        let is_greeting = pending.request.is_greeting();
        let master = &self.masters[state.master];
        let (up, restarts, stalled_until) = (master.up, master.restarts, master.stalled_until);
        if !is_greeting && (!state.is_server_open || state.restarts != restarts || !up) {
            return;
        }
        if up && stalled_until > self.now {
            self.observer.coverage.stalls += 1;
            let pending = index as u32;
            return self.schedule(
                stalled_until,
                Event::RequestReachesStore { request: pending },
            );
        }
        if self.delays_commit(index) {
            return;
        }
        let answer = if up {
            self.sessions[session].restarts = restarts;
            self.sessions[session].is_server_open |= is_greeting;
            self.execute_request(index)
        } else {
            Err(Fault::Down("connection refused".into()))
        };
        let state = self.store_state(self.sessions[session].master);
        let Some(pending) = self.pending_requests[index].as_mut() else {
            return;
        };
        pending.is_executed = true;
        (pending.answer, pending.state) = (Some(answer), state);
        if !self.sessions[session].is_client_open || pending.request.is_silent() {
            // The client has dropped the session, or does not wait for the answer. So the answer is dropped.
            self.pending_requests[index] = None;
            return;
        }
        let at = self.draw_session_arrival(session, Direction::FromMaster);
        let pending = index as u32;
        self.schedule(at, Event::AnswerReachesClient { request: pending });
    }

    /// Sometimes lets a request with commits wait at the server, as if for a row lock. Returns true if the request has
    /// to wait.
    fn delays_commit(&mut self, index: usize) -> bool {
        let healed = self.faults_have_ended();
        let Some(pending) = self.pending_requests[index].as_mut() else {
            return false;
        };
        let state = &mut self.sessions[pending.session];
        let Some(plan) = self.scenario.masters[state.master].store else {
            return false;
        };
        let is_commit = matches!(pending.request, SessionRequest::Commit(_));
        if !is_commit || healed || pending.has_waited || !state.rng.chance(plan.delayed_commits_ppm)
        {
            return false;
        }
        let clock_us = self.masters[state.master].clock.read(self.now) / 1_000;
        (pending.has_waited, pending.clock_before_wait) = (true, plan.clocked.then_some(clock_us));
        let retry_at = self.now + state.rng.below(plan.longest_commit_delay);
        let pending = index as u32;
        self.schedule(retry_at, Event::RequestReachesStore { request: pending });
        true
    }

    /// The server executes a request.
    fn execute_request(&mut self, index: usize) -> Result<SessionAnswer, Fault> {
        let Some(mut pending) = self.pending_requests[index].take() else {
            return Err(session_lost());
        };
        let session = pending.session;
        let master = self.sessions[session].master;
        let refusal = self.masters[master]
            .refusal
            .filter(|(until, _)| self.now < *until);
        // A server that refuses requests still lets clients connect.
        let is_greeting = pending.request.is_greeting()
            || matches!(pending.request, SessionRequest::ChangeRow(_));
        let answer = match refusal {
            Some((_, refusal)) if !is_greeting => {
                self.observer.coverage.refusals += 1;
                self.report_refusal(master);
                self.refuse_session(session, refusal)
            }
            _ => self.answer_request(session, &mut pending),
        };
        self.pending_requests[index] = Some(pending);
        if std::mem::take(&mut self.sessions[session].is_next_answer_malformed) {
            self.observer.coverage.garbage += 1;
            return Err(Fault::Server(
                "the answer belongs to another request".into(),
            ));
        }
        answer
    }

    fn refuse_session(&mut self, session: usize, refusal: Refusal) -> Result<SessionAnswer, Fault> {
        match refusal {
            Refusal::Busy => Err(Fault::Busy),
            Refusal::OutOfMemory => Err(Fault::OutOfMemory),
            Refusal::Misconf => Err(Fault::Misconf),
            Refusal::ReadOnly => Err(Fault::ReadOnly),
            Refusal::Denied => Err(Fault::Denied("not you".into())),
            Refusal::HangUp => {
                self.break_session(session, false);
                Err(session_lost())
            }
        }
    }

    fn answer_request(
        &mut self,
        session: usize,
        pending: &mut PendingRequest,
    ) -> Result<SessionAnswer, Fault> {
        let master = self.sessions[session].master;
        let Some(plan) = self.scenario.masters[master].store else {
            return Err(session_lost());
        };
        self.observer.coverage.messages += 1;
        let reading_us = self.masters[master].clock.read(self.now) / 1_000;
        // If the request waited for other commits, its answer shows the store's clock at the beginning of the wait.
        let shown_clock = plan.clocked.then_some(reading_us);
        let clock = pending.clock_before_wait.or(shown_clock);
        let PendingRequest {
            request,
            commit_limit,
            has_waited,
            ..
        } = pending;
        Ok(match request {
            SessionRequest::Hello => {
                self.observer.coverage.sessions += 1;
                self.sessions[session].last_date = self.date(master);
                SessionAnswer::Hello(self.greeting(master))
            }
            SessionRequest::ChangeRow(change) => {
                SessionAnswer::Row(self.change_row(master, change))
            }
            SessionRequest::Listen(process) => {
                self.sessions[session].listening_process = Some(process.clone());
                SessionAnswer::Listens
            }
            SessionRequest::Load(names) => {
                if plan.run == RunRule::Numbered {
                    // Each answer has a date.
                    self.sessions[session].last_date = self.date(master);
                }
                let result = self.read_records(session, names, plan.lagging_reads_ppm);
                SessionAnswer::Loaded(Clocked {
                    what: result,
                    clock,
                })
            }
            SessionRequest::Commit(commits) => {
                self.observer.coverage.delayed_commits += u64::from(*has_waited);
                let result = self.commit_all(session, &commits[..*commit_limit]);
                SessionAnswer::Committed(Clocked {
                    what: result,
                    clock,
                })
            }
            SessionRequest::Page(from, count) => {
                let result = self.stores[master].page(*from, *count);
                SessionAnswer::Paged(Clocked {
                    what: result,
                    clock,
                })
            }
            SessionRequest::Remove(records) => {
                for (name, version) in &*records {
                    self.stores[master].remove(name, *version);
                }
                SessionAnswer::Removed
            }
        })
    }

    fn commit_all(&mut self, session: usize, commits: &[Commit]) -> Vec<Committed> {
        let commit = |commit: &Commit| self.commit_changes(session, commit);
        let result: Vec<Committed> = commits.iter().map(commit).collect();
        let is_done = |committed: &Committed| *committed != Committed::Stale;
        if result.iter().any(is_done) {
            self.sessions[session].last_date = self.date(self.sessions[session].master);
        }
        result
    }

    /// Returns the latest date that the store gave to this session.
    pub(crate) fn date_of(&self, session: usize) -> Option<Date> {
        self.sessions[session].last_date
    }

    /// Returns the date that a store gives to a change now, rounded down. `None` for stores that report their clock in
    /// each answer, and for stores without dates.
    fn date(&self, master: usize) -> Option<Date> {
        let plan = self.scenario.masters[master].store?;
        let grain = plan.date_grain;
        let SimMaster { clock, leaders, .. } = &self.masters[master];
        (grain > 0).then(|| {
            let date_us = clock.read(self.now) / grain.max(1) * grain / 1_000;
            Date::new(date_us, *leaders).grain(Duration::from_nanos(grain))
        })
    }

    fn greeting(&self, master: usize) -> Greeting {
        let run = ServerRun::new(run_id(master, self.masters[master].restarts));
        let greeting = Greeting::new(run).server(format!("store {master}"));
        let plan = self.scenario.masters[master].store;
        if plan.is_some_and(|plan| plan.run == RunRule::Durable) {
            return greeting;
        }
        let uptime = u64::try_from(self.uptime(master)).unwrap_or(0);
        greeting.uptime(Duration::from_secs(uptime))
    }

    /// Reads records. A lagging follower can return old states, but none older than the latest state that this session
    /// has read or written.
    fn read_records(
        &mut self,
        session: usize,
        names: &[Arc<[u8]>],
        lagging_reads_ppm: u32,
    ) -> Vec<Record> {
        let healed = self.faults_have_ended();
        let state = &mut self.sessions[session];
        let store = &self.stores[state.master];
        let last_change = store.last_change();
        let mut number = last_change;
        if !healed && state.rng.chance(lagging_reads_ppm) {
            number = state.rng.range(
                state.last_state_seen.max(last_change.saturating_sub(6)),
                last_change,
            );
        }
        self.observer.coverage.loads += 1;
        let states = names.iter().map(|name| store.state_after(name, number));
        let (records, numbers): (Vec<Record>, Vec<u64>) = states.unzip();
        let is_stale = names
            .iter()
            .zip(&records)
            .any(|(name, record)| store.get(name) != *record);
        self.observer.coverage.stale_loads += u64::from(is_stale);
        state.last_state_seen = numbers.into_iter().fold(number, u64::max);
        records
    }

    fn commit_changes(&mut self, session: usize, commit: &Commit) -> Committed {
        let state = &mut self.sessions[session];
        let (master, is_client_open) = (state.master, state.is_client_open);
        let names = commit.changes.iter().map(|change| &change.name);
        let names_to_check = names.filter(|_| !self.released_values.is_empty());
        let records_before: Vec<Record> = names_to_check
            .map(|name| self.stores[master].get(name))
            .collect();
        let result = self.stores[master].commit(commit, session);
        state.last_state_seen = self.stores[master].last_change();
        let coverage = &mut self.observer.coverage;
        coverage.commits += 1;
        if result == Committed::Stale {
            coverage.stale_commits += 1;
            coverage.late_stale += u64::from(!is_client_open);
            return result;
        }
        coverage.late_commits += u64::from(!is_client_open);
        for (change, record_before) in commit.changes.iter().zip(&records_before) {
            if let Some(state) = &change.state {
                self.check_written_again(master, state, &record_before.state);
            }
        }
        for wake in &commit.wakes {
            self.send_wake_up_message(master, &wake.process, &wake.word);
        }
        result
    }

    /// Sends a wake-up message to a process. It goes over every session in which the process listens to this store.
    fn send_wake_up_message(&mut self, master: usize, process: &str, word: &[u8]) {
        let is_listening = |state: &Session| {
            let is_open = state.master == master && state.is_server_open && state.is_client_open;
            is_open && state.listening_process.as_deref() == Some(process)
        };
        let sessions = self.sessions.iter().enumerate();
        let listening_sessions: Vec<usize> = sessions
            .filter(|(_, state)| is_listening(state))
            .map(|(index, _)| index)
            .collect();
        let Some(plan) = self.scenario.masters[master].store else {
            return;
        };
        for session in listening_sessions {
            let state = &mut self.sessions[session];
            let disturbances = if plan.repeats_wakes { 3 } else { 1 };
            let disturbance = state
                .rng
                .chance(plan.disturbed_wakes_ppm)
                .then(|| state.rng.below(disturbances));
            let (copies, delay) = match disturbance {
                Some(0) => (0, 0),
                Some(1) => (2, 0),
                Some(_) => (1, state.rng.below(plan.longest_commit_delay)),
                None => (1, 0),
            };
            for _ in 0..copies {
                let wake_up = if plan.wakes_name_no_lock {
                    Vec::new()
                } else {
                    vec![word.to_vec()]
                };
                self.sessions[session].wake_ups_in_flight.push_back(wake_up);
                let arrival = self.draw_session_arrival(session, Direction::FromMaster) + delay;
                let session = session as u32;
                self.schedule(arrival, Event::WakeUpReachesClient { session });
            }
        }
    }

    /// Delivers a wake-up message to its process. Returns the task to wake; `None` if no task waits, or if the session
    /// has ended.
    pub(super) fn deliver_wake_up(&mut self, session: usize) -> Option<UnlockedWork> {
        let state = &mut self.sessions[session];
        let wake_up = state.wake_ups_in_flight.pop_front()?;
        if !state.is_client_open || state.is_loss_reported {
            return None;
        }
        state.arrived_wake_ups.push_back(wake_up);
        self.observer.coverage.store_wake_ups += 1;
        state.waker.take().map(UnlockedWork::Wake)
    }

    /// Delivers an answer to the client. Returns the task to wake; `None` if no task waits, or if the session has
    /// ended.
    pub(super) fn deliver_answer(&mut self, index: usize) -> Option<UnlockedWork> {
        let pending = self.pending_requests[index].as_mut()?;
        let state = &mut self.sessions[pending.session];
        if !state.is_client_open || state.is_loss_reported {
            self.pending_requests[index] = None;
            return None;
        }
        pending.is_delivered = true;
        state.waker.take().map(UnlockedWork::Wake)
    }

    /// The number of the client to which a session belongs.
    pub(super) fn client_of_session(&self, session: u32) -> usize {
        self.sessions[session as usize].client
    }

    pub(super) fn client_of_request(&self, pending: u32) -> Option<usize> {
        let pending = self.pending_requests[pending as usize].as_ref()?;
        Some(self.sessions[pending.session].client)
    }
}
