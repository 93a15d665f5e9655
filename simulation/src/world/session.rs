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
use super::net::{Trip, Way};
use super::{Event, Todo, World};
use crate::clock::MS;
use crate::rng::Rng;
use crate::scenario::Refusal;
use crate::seeded_bugs::Flaw;

/// A request that a client makes in a session.
pub(crate) enum Question {
    Hello,
    /// Subscribes to the wake-up messages for the client process with this id.
    Listen(Arc<str>),
    Load(Vec<Arc<[u8]>>),
    Commit(Vec<Commit>),
    Page(u64, u32),
    Remove(Vec<(Arc<[u8]>, u64)>),
}

/// The answer to a request in a session.
#[derive(Clone)]
pub(crate) enum Said {
    Hello(Greeting),
    Listens,
    Loaded(Clocked<Vec<Record>>),
    Committed(Clocked<Vec<Committed>>),
    Paged(Clocked<Vec<NamedRecord>>),
    Removed,
}

/// A request in a session. It contains the answer once the server has executed the request.
pub(crate) struct Asked {
    session: usize,
    question: Question,
    /// Whether the request is lost on the way, so that it never reaches the server.
    void: bool,
    reached: bool,
    /// Whether the request has already waited at the server for commits of other sessions. A request waits at most
    /// once.
    waited: bool,
    /// The server's clock, in microseconds, when the request began to wait for commits of other sessions. `None` if the
    /// request did not wait, or if the store has no clock.
    showed: Option<u64>,
    /// How many of the request's commits the server executes. If the session breaks, this can be fewer than all.
    upto: usize,
    answer: Option<Result<Said, Fault>>,
    /// Whether the answer has reached the client.
    answered: bool,
}

/// A session: a connection of a client to a store.
pub(crate) struct Session {
    pub(super) client: usize,
    master: usize,
    /// How often the server had restarted when it accepted the session.
    run: u32,
    /// Whether the session is open on the client's side.
    open: bool,
    /// Whether the session is open on the server's side.
    server: bool,
    /// Whether the client has been notified that the session has ended.
    lost: bool,
    /// Whether the next answer of the server is malformed.
    garbled: bool,
    last_to: u64,
    last_from: u64,
    /// The sequence number of the latest state that the client has read or written in this session. A lagging follower
    /// must not return an older state.
    seen: u64,
    /// The date that the store gave to the session's last change; `None` before the first.
    dated: Option<Date>,
    /// The requests whose answers the client has not read yet, oldest first.
    unread: VecDeque<usize>,
    waker: Option<Waker>,
    /// The process whose wake-up messages arrive on this session; `None` if the session carries requests instead.
    process: Option<Arc<str>>,
    /// The wake-up messages in flight to the client, oldest first.
    coming: VecDeque<Vec<Vec<u8>>>,
    /// The wake-up messages that have arrived and that the client has not read yet, oldest first.
    words: VecDeque<Vec<Vec<u8>>>,
    rng: Rng,
}

fn gone() -> Fault {
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
            run: 0,
            open: true,
            server: false,
            lost: false,
            garbled: false,
            last_to: 0,
            last_from: 0,
            seen: 0,
            dated: None,
            unread: VecDeque::new(),
            waker: None,
            process: None,
            coming: VecDeque::new(),
            words: VecDeque::new(),
            rng: Rng::stream(self.scenario.seed, salt),
        });
        session
    }

    /// For a seeded bug: takes a session of this client with this master from the pool of reused sessions. A session in
    /// the pool still has unread answers. Returns `None` if the pool has no such session.
    pub(crate) fn take_pooled(
        &mut self,
        client: usize,
        master: usize,
    ) -> Option<(usize, Greeting)> {
        let of = |&&session: &&usize| {
            let one = &self.sessions[session];
            (one.client, one.master) == (client, master) && !one.lost
        };
        let session = *self.pool.iter().find(of)?;
        self.pool.retain(|one| *one != session);
        Some((session, self.greeting(master)))
    }

    pub(crate) fn ask(&mut self, session: usize, question: Question) {
        let asked = self.asked.len();
        let upto = match &question {
            Question::Commit(commits) => commits.len(),
            _ => 0,
        };
        self.asked.push(Some(Asked {
            session,
            question,
            void: false,
            reached: false,
            waited: false,
            showed: None,
            upto,
            answer: None,
            answered: false,
        }));
        self.sessions[session].unread.push_back(asked);
        let at = self.session_trip(session, Way::To);
        let asked = asked as u32;
        self.at(at, Event::Reach { asked });
        let net = self.scenario.net;
        if !self.healed() && self.sessions[session].rng.chance(net.reset_ppm) {
            self.cut_session(session, true);
        }
    }

    /// Returns the answer to the oldest request of this session that the client has not read yet. Registers `waker` if
    /// the answer has not arrived.
    pub(crate) fn answer(&mut self, session: usize, waker: &Waker) -> Poll<Result<Said, Fault>> {
        let one = &mut self.sessions[session];
        if one.lost {
            return Poll::Ready(Err(gone()));
        }
        let front = one.unread.front().copied();
        let asked = front.and_then(|front| self.asked[front].as_ref());
        if asked.is_some_and(|asked| asked.answered) {
            one.unread.pop_front();
            let asked = front.and_then(|front| self.asked[front].take());
            let answer = asked.and_then(|asked| asked.answer);
            return Poll::Ready(answer.unwrap_or_else(|| Err(gone())));
        }
        one.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Returns the oldest wake-up message that has arrived on this session and that the client has not read yet.
    /// Registers `waker` if there is none. Returns an error if the session has ended.
    pub(crate) fn words(
        &mut self,
        session: usize,
        waker: &Waker,
    ) -> Poll<Result<Vec<Vec<u8>>, Fault>> {
        let one = &mut self.sessions[session];
        if let Some(words) = one.words.pop_front() {
            return Poll::Ready(Ok(words));
        }
        if one.lost {
            return Poll::Ready(Err(gone()));
        }
        one.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Closes the session on the client's side. Requests in flight may still reach the server.
    ///
    /// The seeded bug `KeptSession` keeps a session with unread answers open for reuse.
    pub(crate) fn close_session(&mut self, session: usize) {
        let one = &mut self.sessions[session];
        one.waker = None;
        let waits = !one.unread.is_empty() && one.server && !one.lost && one.process.is_none();
        if waits && self.flaw == Some(Flaw::KeptSession) {
            self.pool.push(session);
            return;
        }
        if std::mem::replace(&mut one.open, false) {
            self.strand_session(session);
            self.lease_ends(session);
        }
    }
}

/// The network and the server side of sessions.
impl World {
    fn session_trip(&mut self, session: usize, way: Way) -> u64 {
        let one = &mut self.sessions[session];
        let plan = self.scenario.masters[one.master].store;
        // A lock change takes up to eight packets. At `timeout / 12` each, they take two thirds of the timeout.
        let healed_within = plan.map_or(u64::MAX, |plan| plan.timeout / 12);
        let trip = Trip {
            client: one.client,
            master: one.master,
            way,
            healed_within,
        };
        let lost = &mut self.watch.coverage.lost_packets;
        let at = trip.ends(&self.scenario, self.now, &mut one.rng, lost);
        let last = match way {
            Way::To => &mut one.last_to,
            Way::From => &mut one.last_from,
        };
        *last = at.max(*last + 1);
        *last
    }

    /// Decides for each request in flight to the server whether it is lost. If a request is not lost, the server
    /// executes all of its commits, or only the first few.
    fn strand_session(&mut self, session: usize) {
        let net = self.scenario.net;
        let one = &mut self.sessions[session];
        for asked in one.unread.clone() {
            let Some(asked) = self.asked[asked].as_mut() else {
                continue;
            };
            if asked.reached {
                continue;
            }
            asked.void = !one.rng.chance(net.leftover_ppm);
            if !asked.void && asked.upto > 1 {
                asked.upto = one.rng.range(1, asked.upto as u64) as usize;
            }
        }
    }

    /// Breaks a session in the network. If `alive` is true, the server does not notice the break and keeps the session.
    fn cut_session(&mut self, session: usize, alive: bool) {
        if !self.sessions[session].open || self.sessions[session].lost {
            return;
        }
        self.watch.coverage.resets += 1;
        self.strand_session(session);
        if !alive {
            self.sessions[session].server = false;
        }
        self.lease_ends(session);
        let at = self.session_trip(session, Way::From);
        let session = session as u32;
        self.at(at, Event::Lost { session });
    }

    pub(super) fn cut_sessions(&mut self, master: usize, alive: bool) {
        for session in 0..self.sessions.len() {
            if self.sessions[session].master == master {
                self.cut_session(session, alive);
                self.sessions[session].server &= alive;
            }
        }
    }

    /// Ends all sessions of a master on the server's side, without notifying the clients.
    pub(super) fn forget_sessions(&mut self, master: usize) {
        for session in 0..self.sessions.len() {
            if self.sessions[session].master == master {
                self.sessions[session].server = false;
                self.lease_ends(session);
            }
        }
    }

    pub(super) fn garble_sessions(&mut self, master: usize) {
        for session in &mut self.sessions {
            session.garbled |= session.master == master;
        }
    }

    /// For a seeded bug: when a session has ended, removes the records that this session wrote.
    fn lease_ends(&mut self, session: usize) {
        if self.flaw == Some(Flaw::SessionIsLease) {
            let master = self.sessions[session].master;
            self.stores[master].remove_of(session);
        }
    }

    /// Notifies the client that the session has ended.
    pub(super) fn lost_session(&mut self, session: usize) -> Option<Todo> {
        let one = &mut self.sessions[session];
        if !one.open || std::mem::replace(&mut one.lost, true) {
            return None;
        }
        one.waker.take().map(Todo::Wake)
    }

    /// Delivers a request to the server, which executes and answers it. If the server stalls, or if the request must
    /// wait for a row lock, the request is delivered again later.
    pub(super) fn reach(&mut self, index: usize) {
        let Some(asked) = self.asked[index].as_ref().filter(|asked| !asked.void) else {
            return;
        };
        let session = asked.session;
        let one = &self.sessions[session];
        let greets = matches!(asked.question, Question::Hello | Question::Listen(_));
        let master = &self.masters[one.master];
        let (up, run, stalled_until) = (master.up, master.run, master.stalled_until);
        if !greets && (!one.server || one.run != run || !up) {
            return;
        }
        if up && stalled_until > self.now {
            let asked = index as u32;
            return self.at(stalled_until, Event::Reach { asked });
        }
        if self.gets_stuck(index) {
            return;
        }
        let answer = if up {
            self.sessions[session].run = run;
            self.sessions[session].server |= greets;
            self.carry_out(index)
        } else {
            Err(Fault::Down("connection refused".into()))
        };
        let Some(asked) = self.asked[index].as_mut() else {
            return;
        };
        asked.reached = true;
        asked.answer = Some(answer);
        if !self.sessions[session].open {
            // The client has dropped the session and does not wait for the answer, so the answer is dropped.
            self.asked[index] = None;
            return;
        }
        let at = self.session_trip(session, Way::From);
        let asked = index as u32;
        self.at(at, Event::Tell { asked });
    }

    /// Sometimes lets a request with commits wait at the server, as if for a row lock. Returns true if the request has
    /// to wait.
    fn gets_stuck(&mut self, index: usize) -> bool {
        let healed = self.healed();
        let Some(asked) = self.asked[index].as_mut() else {
            return false;
        };
        let one = &mut self.sessions[asked.session];
        let Some(plan) = self.scenario.masters[one.master].store else {
            return false;
        };
        let commits = matches!(asked.question, Question::Commit(_));
        if !commits || healed || asked.waited || !one.rng.chance(plan.stuck_ppm) {
            return false;
        }
        let clock = self.masters[one.master].clock.read(self.now) / 1_000;
        (asked.waited, asked.showed) = (true, plan.clocked.then_some(clock));
        let at = self.now + one.rng.below(plan.stuck);
        self.watch.coverage.stuck += 1;
        let asked = index as u32;
        self.at(at, Event::Reach { asked });
        true
    }

    /// The server executes a request.
    fn carry_out(&mut self, index: usize) -> Result<Said, Fault> {
        let Some(mut asked) = self.asked[index].take() else {
            return Err(gone());
        };
        let session = asked.session;
        let master = self.sessions[session].master;
        let refusing = self.masters[master]
            .refusing
            .filter(|(until, _)| self.now < *until);
        // A server that refuses requests still answers `Hello` and `Listen`, so clients can connect.
        let greets = matches!(asked.question, Question::Hello | Question::Listen(_));
        let answer = match refusing {
            Some((_, how)) if !greets => {
                self.watch.coverage.refusals += 1;
                self.refuse_session(session, how)
            }
            _ => self.does(session, &mut asked),
        };
        self.asked[index] = Some(asked);
        if std::mem::take(&mut self.sessions[session].garbled) {
            self.watch.coverage.garbage += 1;
            return Err(Fault::Server(
                "the answer belongs to another request".into(),
            ));
        }
        answer
    }

    fn refuse_session(&mut self, session: usize, how: Refusal) -> Result<Said, Fault> {
        match how {
            Refusal::Busy => Err(Fault::Busy),
            Refusal::OutOfMemory => Err(Fault::OutOfMemory),
            Refusal::Misconf => Err(Fault::Misconf),
            Refusal::ReadOnly => Err(Fault::ReadOnly),
            Refusal::Denied => Err(Fault::Denied("not you".into())),
            Refusal::HangUp => {
                self.cut_session(session, false);
                Err(gone())
            }
        }
    }

    fn does(&mut self, session: usize, asked: &mut Asked) -> Result<Said, Fault> {
        let master = self.sessions[session].master;
        let Some(plan) = self.scenario.masters[master].store else {
            return Err(gone());
        };
        self.watch.coverage.messages += 1;
        let shows = self.masters[master].clock.read(self.now) / 1_000;
        // If the request waited for other commits, its answer shows the store's clock at the beginning of the wait.
        let shows = plan.clocked.then_some(shows);
        let clock = asked.showed.or(shows);
        let Asked { question, upto, .. } = asked;
        Ok(match question {
            Question::Hello => {
                self.watch.coverage.sessions += 1;
                self.sessions[session].dated = self.date(master);
                Said::Hello(self.greeting(master))
            }
            Question::Listen(process) => {
                self.sessions[session].process = Some(process.clone());
                Said::Listens
            }
            Question::Load(names) => {
                let what = self.load(session, names, plan.lag_ppm);
                Said::Loaded(Clocked { what, clock })
            }
            Question::Commit(commits) => {
                let what = commits[..*upto].iter();
                let what: Vec<Committed> =
                    what.map(|commit| self.commit(session, commit)).collect();
                if what.iter().any(|one| *one != Committed::Stale) {
                    self.sessions[session].dated = self.date(master);
                }
                Said::Committed(Clocked { what, clock })
            }
            Question::Page(from, count) => {
                let what = self.stores[master].page(*from, *count);
                Said::Paged(Clocked { what, clock })
            }
            Question::Remove(records) => {
                for (name, version) in &*records {
                    self.stores[master].remove(name, *version);
                }
                Said::Removed
            }
        })
    }

    /// Returns the date that the store gave to the last change of this session.
    pub(crate) fn date_of(&self, session: usize) -> Option<Date> {
        self.sessions[session].dated
    }

    /// Returns the date that a store gives to a change now, in whole milliseconds. `None` for stores that report their
    /// clock in each answer. Also `None` for stores with an odd index, so that the runs contain stores without a date.
    fn date(&self, master: usize) -> Option<Date> {
        let plan = self.scenario.masters[master].store?;
        let dates = !plan.clocked && master.is_multiple_of(2);
        let SimMaster { clock, leaders, .. } = &self.masters[master];
        dates.then(|| Date::new(clock.read(self.now) / MS * 1_000, *leaders))
    }

    fn greeting(&self, master: usize) -> Greeting {
        let run = ServerRun::new(run_id(master, self.masters[master].run));
        let greeting = Greeting::new(run).server(format!("store {master}"));
        let durable = self.scenario.masters[master]
            .store
            .is_some_and(|plan| plan.durable);
        if durable {
            return greeting;
        }
        let uptime = u64::try_from(self.uptime(master)).unwrap_or(0);
        greeting.uptime(Duration::from_secs(uptime))
    }

    /// Reads records. A lagging follower can return old states, but none older than the latest state that this session
    /// has read or written.
    fn load(&mut self, session: usize, names: &[Arc<[u8]>], lag_ppm: u32) -> Vec<Record> {
        let healed = self.healed();
        let one = &mut self.sessions[session];
        let records = &self.stores[one.master];
        let last = records.last();
        let mut number = last;
        if !healed && one.rng.chance(lag_ppm) {
            number = one.rng.range(one.seen.max(last.saturating_sub(6)), last);
        }
        self.watch.coverage.loads += 1;
        let found = names.iter().map(|name| records.get_at(name, number));
        let (found, numbers): (Vec<Record>, Vec<u64>) = found.unzip();
        let old = names
            .iter()
            .zip(&found)
            .any(|(name, one)| records.get(name) != *one);
        self.watch.coverage.stale_loads += u64::from(old);
        one.seen = numbers.into_iter().fold(number, u64::max);
        found
    }

    fn commit(&mut self, session: usize, commit: &Commit) -> Committed {
        let one = &mut self.sessions[session];
        let (master, open) = (one.master, one.open);
        let names = commit.changes.iter().map(|change| &change.name);
        let known = names.filter(|_| !self.released.is_empty());
        let before: Vec<Record> = known.map(|name| self.stores[master].get(name)).collect();
        let done = self.stores[master].commit(commit, session, self.flaw);
        one.seen = self.stores[master].last();
        let coverage = &mut self.watch.coverage;
        coverage.commits += 1;
        if done == Committed::Stale {
            coverage.stale_commits += 1;
            coverage.late_stale += u64::from(!open);
            return done;
        }
        coverage.late_commits += u64::from(!open);
        for (change, before) in commit.changes.iter().zip(&before) {
            if let Some(state) = &change.state {
                self.written_again(master, state, &before.state);
            }
        }
        for wake in &commit.wakes {
            self.tell_process(master, &wake.process, &wake.word);
        }
        done
    }

    /// Sends a wake-up message to a process. It goes over every session in which the process listens to this store.
    fn tell_process(&mut self, master: usize, process: &str, word: &[u8]) {
        let hears = |one: &Session| {
            let server = one.master == master && one.server && one.open;
            server && one.process.as_deref() == Some(process)
        };
        let sessions = self.sessions.iter().enumerate();
        let hearing: Vec<usize> = sessions
            .filter(|(_, one)| hears(one))
            .map(|(index, _)| index)
            .collect();
        let Some(plan) = self.scenario.masters[master].store else {
            return;
        };
        for session in hearing {
            let one = &mut self.sessions[session];
            let deaf = one.rng.chance(plan.deaf_ppm).then(|| one.rng.below(3));
            let (times, late) = match deaf {
                Some(0) => (0, 0),
                Some(1) => (2, 0),
                Some(_) => (1, one.rng.below(plan.stuck)),
                None => (1, 0),
            };
            self.watch.coverage.words += times;
            for _ in 0..times {
                let words = if plan.vague {
                    Vec::new()
                } else {
                    vec![word.to_vec()]
                };
                self.sessions[session].coming.push_back(words);
                let at = self.session_trip(session, Way::From) + late;
                let session = session as u32;
                self.at(at, Event::Word { session });
            }
        }
    }

    /// Delivers a wake-up message to its process. Returns the task to wake; `None` if no task waits, or if the session
    /// has ended.
    pub(super) fn word(&mut self, session: usize) -> Option<Todo> {
        let one = &mut self.sessions[session];
        let words = one.coming.pop_front()?;
        if !one.open || one.lost {
            return None;
        }
        one.words.push_back(words);
        one.waker.take().map(Todo::Wake)
    }

    /// Delivers an answer to the client. Returns the task to wake; `None` if no task waits, or if the session has
    /// ended.
    pub(super) fn tell(&mut self, index: usize) -> Option<Todo> {
        let asked = self.asked[index].as_mut()?;
        let one = &mut self.sessions[asked.session];
        if !one.open || one.lost {
            self.asked[index] = None;
            return None;
        }
        asked.answered = true;
        one.waker.take().map(Todo::Wake)
    }

    /// The number of the client to which a session belongs.
    pub(super) fn client_of_session(&self, session: u32) -> usize {
        self.sessions[session as usize].client
    }

    pub(super) fn client_of_asked(&self, asked: u32) -> Option<usize> {
        let asked = self.asked[asked as usize].as_ref()?;
        Some(self.sessions[asked.session].client)
    }
}
