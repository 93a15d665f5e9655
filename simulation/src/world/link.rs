//! One client's connection to one master: what the library's Redis actor does, over a simulated
//! network.
//!
//! Kept from the actor: first in, first out on one connection; every request answered within the
//! node timeout; nothing but what is under way is asked of a master that has stopped answering;
//! refusals while there is no connection; releases owed across connections and sent first on the
//! next; the restart guard measured in the handshake.
//!
//! Each direction is a queue and an event per message takes its head, so nothing on one
//! connection can overtake anything, however the events fall.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, Ear, ExtendItem, Fault, Order, Reply, Request};

use super::{Effects, Event, Stray, World};
use crate::canary::Flaw;
use crate::clock::{BEGIN, MS};
use crate::facts::Fact;
use crate::rng::Rng;
use crate::scenario::FaultKind;

/// How long connecting may take.
const CONNECT: u64 = 500 * MS;

/// How long after its last answer a stalled connection is given up for a new one.
const STALL: u64 = 500 * MS;

/// Pauses between connection attempts.
const FIRST_PAUSE: u64 = 10 * MS;
const LONGEST_PAUSE: u64 = 150 * MS;

/// A request and where its answer goes.
pub(crate) struct Letter {
    request: Request,
    pub(crate) reply: Reply,
    sent: u64,
    timed_out: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody has asked for anything yet.
    Fresh,
    /// No connection. `shaken` once the master has answered the handshake.
    Offline {
        shaken: bool,
    },
    Online,
}

/// What a master says: the answer to the oldest request, or a wake-up in between.
enum Said {
    Answer(Result<Answer, Fault>),
    Wake(Vec<u8>),
}

/// A message and when it arrives.
struct Moving<T> {
    at: u64,
    what: T,
}

pub(crate) struct Link {
    pub(crate) client: usize,
    master: usize,
    state: State,
    /// The process is dead: nothing it says reaches anybody.
    pub(crate) dead: bool,
    /// Counts connections; events of an older one are void.
    epoch: u32,
    /// Broken on the way, and the client does not know it yet.
    broken: bool,
    /// Letters that wait for a connection.
    held: VecDeque<Letter>,
    patient_until: u64,
    /// Letters under way, oldest first.
    pub(crate) flights: VecDeque<Letter>,
    to: VecDeque<Moving<Request>>,
    from: VecDeque<Moving<Said>>,
    last_to: u64,
    last_from: u64,
    owed: VecDeque<(Arc<Claim>, bool)>,
    /// Who hears the wake-ups that come with this connection.
    pub(crate) ear: Option<Ear>,
    stalled_since: Option<u64>,
    armed: bool,
    /// On the client's clock.
    quarantined_until: u64,
    /// What the handshake will have found.
    found: u64,
    /// When that was asked, on the client's clock.
    asked: u64,
    pause: u64,
    rng: Rng,
}

impl Link {
    pub(crate) fn new(client: usize, master: usize, rng: Rng) -> Self {
        Self {
            client,
            master,
            state: State::Fresh,
            dead: false,
            epoch: 0,
            broken: false,
            held: VecDeque::new(),
            patient_until: 0,
            flights: VecDeque::new(),
            to: VecDeque::new(),
            from: VecDeque::new(),
            last_to: 0,
            last_from: 0,
            owed: VecDeque::new(),
            ear: None,
            stalled_since: None,
            armed: false,
            quarantined_until: 0,
            found: 0,
            asked: 0,
            pause: FIRST_PAUSE,
            rng,
        }
    }

    /// Everything that holds on to the library.
    pub(crate) fn rest(&mut self) -> impl Sized + use<> {
        (
            std::mem::take(&mut self.held),
            std::mem::take(&mut self.flights),
            std::mem::take(&mut self.owed),
            std::mem::take(&mut self.to),
            self.ear.take(),
        )
    }

    /// Nothing that was sent is under way any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.dead || (self.held.is_empty() && self.flights.is_empty())
    }

    /// Answers a letter that is not sent, or whose answer will never come.
    fn refuse(&mut self, letter: Letter, fault: Fault, effects: &mut Effects) {
        if let Request::Release { claim, leave } = &letter.request {
            self.owed.push_back((claim.clone(), *leave));
        }
        effects.answers.push((letter.reply, Err(fault)));
    }

    fn id(&self, index: usize) -> (u32, u32) {
        (index as u32, self.epoch)
    }
}

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    To,
    From,
}

impl World {
    /// When a packet that is sent now arrives. Lost packets are sent again; those that meet a
    /// partition arrive after it.
    fn travel(&mut self, index: usize, way: Way) -> u64 {
        let now = self.now;
        let net = &self.scenario.net;
        let link = &mut self.links[index];
        let mut at = now + net.delay + link.rng.below(net.jitter + 1);
        if now < BEGIN + self.scenario.heal_at {
            while link.rng.chance(net.loss_ppm) {
                self.watch.coverage.lost_packets += 1;
                at += net.again;
            }
            loop {
                let cut = self
                    .scenario
                    .faults
                    .iter()
                    .find_map(|fault| match fault.kind {
                        FaultKind::Partition {
                            clients,
                            masters,
                            to,
                            from,
                            lasts,
                        } => {
                            let (begin, end) = (BEGIN + fault.at, BEGIN + fault.at + lasts);
                            let here =
                                clients >> link.client & 1 == 1 && masters >> link.master & 1 == 1;
                            let blocks = if way == Way::To { to } else { from };
                            (here && blocks && now < end && at >= begin && at < end).then_some(end)
                        }
                        _ => None,
                    });
                let Some(end) = cut else { break };
                at = end + net.delay + link.rng.below(net.again);
            }
        }
        let last = if way == Way::To {
            &mut link.last_to
        } else {
            &mut link.last_from
        };
        *last = at.max(*last + 1);
        *last
    }

    /// A node is asked.
    pub(crate) fn send(
        &mut self,
        index: usize,
        request: Request,
        reply: Reply,
        effects: &mut Effects,
    ) {
        let now = self.now;
        let client = self.links[index].client;
        if self.links[index].dead {
            // The reply is dropped by the effects: nobody listens.
            effects
                .answers
                .push((reply, Err(Fault::Down("dead".into()))));
            return;
        }
        self.started(client, &request);
        let letter = Letter {
            request,
            reply,
            sent: now,
            timed_out: false,
        };
        let link = &mut self.links[index];
        match link.state {
            State::Fresh => {
                link.held.push_back(letter);
                link.state = State::Offline { shaken: false };
                self.start(index, CONNECT, 0);
            }
            State::Offline { .. } if now < link.patient_until => link.held.push_back(letter),
            State::Offline { .. } => {
                self.watch.coverage.refused_down += 1;
                link.refuse(letter, Fault::Down("connecting".into()), effects);
            }
            State::Online if link.stalled_since.is_some() => {
                self.watch.coverage.refused_down += 1;
                link.refuse(letter, Fault::Stalled, effects);
            }
            State::Online => self.depart(index, letter, effects),
        }
    }

    /// Tells the checkers of an attempt when its first message is queued.
    fn started(&mut self, client: usize, request: &Request) {
        let Request::Acquire { claim, .. } = request else {
            return;
        };
        let last = &mut self.processes[client].attempt;
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, claim)) {
            return;
        }
        *last = Some(claim.clone());
        self.watch.fact(self.now, &Fact::Started { client, claim });
    }

    /// Begins to connect, after a pause; requests wait for it until `patience` is over.
    fn start(&mut self, index: usize, patience: u64, pause: u64) {
        let now = self.now;
        let link = &mut self.links[index];
        link.epoch += 1;
        link.broken = false;
        link.patient_until = now + patience;
        let (id, epoch) = link.id(index);
        self.at(now + pause, Event::Dial { link: id, epoch });
        if patience > 0 {
            self.at(now + patience, Event::Patience { link: id, epoch });
        }
    }

    pub(super) fn dial(&mut self, index: usize, epoch: u32) {
        if self.void(index, epoch) {
            return;
        }
        let link = &mut self.links[index];
        (link.last_to, link.last_from) = (0, 0);
        // Connection and greeting take round trips of their own before the question is asked.
        let trips = 2 * (self.scenario.net.delay + self.scenario.net.jitter / 2);
        let (id, epoch) = self.links[index].id(index);
        let clock = self.processes[self.links[index].client].clock;
        self.links[index].asked = clock.read(self.now + trips);
        let at = self.travel(index, Way::To) + trips;
        self.at(at, Event::Shake { link: id, epoch });
        self.at(self.now + CONNECT, Event::Failed { link: id, epoch });
    }

    /// The handshake at the master: how long has it been up?
    pub(super) fn shake(&mut self, index: usize, epoch: u32) {
        if self.void(index, epoch) {
            return;
        }
        let now = self.now;
        let (id, epoch) = self.links[index].id(index);
        let master = &self.masters[self.links[index].master];
        if !master.up {
            let at = self.travel(index, Way::From);
            self.at(at, Event::Failed { link: id, epoch });
            return;
        }
        if master.stalled_until > now {
            let at = master.stalled_until;
            self.at(at, Event::Shake { link: id, epoch });
            return;
        }
        let uptime = master.uptime(now);
        self.links[index].found = uptime;
        self.links[index].state = State::Offline { shaken: true };
        let at = self.travel(index, Way::From);
        self.at(at, Event::Connected { link: id, epoch });
    }

    pub(super) fn connected(&mut self, index: usize, epoch: u32, effects: &mut Effects) {
        if self.void(index, epoch) {
            return;
        }
        self.watch.coverage.reconnects += 1;
        let guard = self.scenario.settings.guard && self.flaw != Some(Flaw::GuardOff);
        let max_ttl = self.scenario.settings.max_ttl;
        // Counted from the answer, as the actor does: a handshake may be slow.
        let answered = self.processes[self.links[index].client]
            .clock
            .read(self.now);
        let from_question = self.flaw == Some(Flaw::GuardFromQuestion);
        let link = &mut self.links[index];
        let from = if from_question { link.asked } else { answered };
        // Both ends of the uptime are cut to whole seconds, so it can be one too high.
        let up = link.found.saturating_sub(1) * 1_000 * MS;
        let left = max_ttl.saturating_sub(up);
        link.quarantined_until = if guard && left > 0 { from + left } else { 0 };
        link.state = State::Online;
        link.stalled_since = None;
        link.pause = FIRST_PAUSE;
        let (client, master) = (link.client, link.master);
        if left > 0 {
            self.say(|| {
                format!("client {client} is connected to master {master}, quarantined: {guard}")
            });
        }
        self.catch_up(index, effects);
    }

    /// Sends what is owed and what has waited.
    fn catch_up(&mut self, index: usize, effects: &mut Effects) {
        let now = self.now;
        while let Some((claim, leave)) = self.links[index].owed.pop_front() {
            self.watch.coverage.owed += 1;
            let letter = Letter {
                request: Request::Release { claim, leave },
                reply: Reply::ignored(),
                sent: now,
                timed_out: false,
            };
            self.depart(index, letter, effects);
        }
        // Renewals go first, as in the mailbox of the real actor.
        let held = std::mem::take(&mut self.links[index].held);
        let (first, others): (Vec<_>, Vec<_>) = held
            .into_iter()
            .partition(|letter| matches!(letter.request, Request::Extend { .. }));
        for letter in first.into_iter().chain(others) {
            self.depart(index, letter, effects);
        }
    }

    /// One request goes out.
    fn depart(&mut self, index: usize, mut letter: Letter, effects: &mut Effects) {
        let now = self.now;
        let link = &mut self.links[index];
        let process = &self.processes[link.client];
        if letter.request.is_vote() && link.quarantined_until > 0 {
            let left = link
                .quarantined_until
                .saturating_sub(process.clock.read(now));
            if left > 0 {
                self.watch.coverage.quarantined += 1;
                let left = Duration::from_nanos(left);
                effects
                    .answers
                    .push((letter.reply, Err(Fault::Quarantined(left))));
                return;
            }
        }
        if letter.request.is_withdrawn() {
            effects.answers.push((letter.reply, Err(Fault::Withdrawn)));
            return;
        }
        let confirms = matches!(letter.request, Request::Confirm { .. });
        self.watch.coverage.confirms += u64::from(confirms);
        let lined_up = match &letter.request {
            Request::Acquire { claim, .. } => matches!(claim.order(), Order::Fair(Some(_))),
            _ => false,
        };
        self.watch.coverage.lined_up += u64::from(lined_up);
        let wire = freeze(&letter.request);
        letter.sent = now;
        link.flights.push_back(letter);
        let (id, epoch) = link.id(index);
        let limit = now + self.scenario.settings.node_timeout;
        if !std::mem::replace(&mut link.armed, true) {
            self.at(limit, Event::Overdue { link: id, epoch });
        }
        let at = self.travel(index, Way::To);
        let faulty = !self.healed();
        let net = self.scenario.net;
        let link = &mut self.links[index];
        if faulty && link.rng.chance(net.duplicate_ppm) {
            let late = at + link.rng.below(net.duplicate_late);
            let master = link.master;
            self.watch.coverage.duplicates += 1;
            self.stray_at(late, master, wire.clone());
        }
        let link = &mut self.links[index];
        if link.broken {
            return;
        }
        link.to.push_back(Moving { at, what: wire });
        self.at(at, Event::Deliver { link: id, epoch });
        if faulty && self.links[index].rng.chance(net.reset_ppm) {
            self.cut(index, true);
        }
    }

    pub(super) fn deliver(&mut self, index: usize, epoch: u32) {
        let link = &self.links[index];
        if link.epoch != epoch || link.to.is_empty() {
            return;
        }
        let master = link.master;
        let stalled_until = self.masters[master].stalled_until;
        if stalled_until > self.now {
            let link = index as u32;
            self.at(stalled_until, Event::Deliver { link, epoch });
            return;
        }
        let Some(moving) = self.links[index].to.pop_front() else {
            return;
        };
        let answer = self.apply(master, &moving.what);
        let at = self.travel(index, Way::From);
        let what = Said::Answer(answer);
        self.links[index].from.push_back(Moving { at, what });
        let link = index as u32;
        self.at(at, Event::Answer { link, epoch });
    }

    /// An answer reaches the client.
    pub(super) fn land(&mut self, index: usize, epoch: u32, effects: &mut Effects) {
        let now = self.now;
        let link = &mut self.links[index];
        if link.epoch != epoch || link.dead {
            return;
        }
        let answer = match link.from.pop_front().map(|moving| moving.what) {
            Some(Said::Answer(answer)) => answer,
            Some(Said::Wake(key)) => {
                self.watch.coverage.woken += 1;
                effects.heard.extend(link.ear.clone().map(|ear| (ear, key)));
                return;
            }
            None => return,
        };
        let Some(letter) = link.flights.pop_front() else {
            return;
        };
        // As long as the next answer is overdue as well, the link stays stalled.
        let limit = self.scenario.settings.node_timeout;
        let was_stalled = link.stalled_since.is_some();
        let next = link.flights.front();
        let overdue = next.is_some_and(|letter| letter.sent + limit <= now);
        link.stalled_since = (was_stalled && overdue).then_some(now);
        let recovered = was_stalled && !overdue;
        let (client, master) = (link.client, link.master);
        if !letter.timed_out {
            self.watch.fact(
                now,
                &Fact::Answered {
                    client,
                    master,
                    answer: &answer,
                },
            );
        }
        effects.answers.push((letter.reply, answer));
        if recovered {
            self.catch_up(index, effects);
        }
    }

    /// Reports what is overdue, and gives up a connection that stays silent.
    pub(super) fn overdue(&mut self, index: usize, epoch: u32, effects: &mut Effects) {
        let now = self.now;
        let limit = self.scenario.settings.node_timeout;
        let link = &mut self.links[index];
        if link.epoch != epoch || link.dead {
            return;
        }
        let (id, epoch) = link.id(index);
        link.armed = false;
        let next = match (link.stalled_since, link.flights.front()) {
            (Some(since), _) => since + STALL.max(4 * limit),
            (None, Some(oldest)) => oldest.sent + limit,
            (None, None) => return,
        };
        link.armed = true;
        if now < next {
            self.at(next, Event::Overdue { link: id, epoch });
            return;
        }
        if link.stalled_since.is_some() {
            self.hang_up(index, &Fault::Stalled, true, effects);
            return;
        }
        link.stalled_since = Some(now);
        self.watch.coverage.timeouts += 1;
        let mut flights = std::mem::take(&mut link.flights);
        for letter in &mut flights {
            letter.timed_out = true;
        }
        let fault = Fault::Timeout(Duration::from_nanos(limit));
        effects.overdue = Some((index, flights, fault));
        self.at(
            now + STALL.max(4 * limit),
            Event::Overdue { link: id, epoch },
        );
    }

    /// Breaks a connection on the way. What was on its way may still arrive, the first part of it.
    fn cut(&mut self, index: usize, alive: bool) {
        let net = self.scenario.net;
        let link = &mut self.links[index];
        let shaken = link.state == State::Online || link.state == State::Offline { shaken: true };
        if !shaken || link.broken || link.dead {
            return;
        }
        self.watch.coverage.resets += 1;
        link.broken = true;
        let leftovers = alive && link.rng.chance(net.leftover_ppm);
        self.strand(index, leftovers);
        let at = self.travel(index, Way::From);
        let (id, epoch) = self.links[index].id(index);
        self.at(at, Event::Closed { link: id, epoch });
    }

    /// Takes all messages off a connection; a first part of those to the master may live on.
    fn strand(&mut self, index: usize, leftovers: bool) {
        let link = &mut self.links[index];
        link.from.clear();
        let moving = std::mem::take(&mut link.to);
        let master = link.master;
        if leftovers && !moving.is_empty() {
            let live = link.rng.range(1, moving.len() as u64) as usize;
            for moving in moving.into_iter().take(live) {
                self.watch.coverage.leftovers += 1;
                self.stray_at(moving.at.max(self.now), master, moving.what);
            }
        }
    }

    pub(super) fn cut_all(&mut self, master: usize, alive: bool) {
        for index in 0..self.links.len() {
            if self.links[index].master == master {
                self.cut(index, alive);
            }
        }
    }

    pub(super) fn closed(&mut self, index: usize, epoch: u32, effects: &mut Effects) {
        if self.links[index].epoch != epoch || self.links[index].dead {
            return;
        }
        if self.links[index].state == State::Online {
            let fault = Fault::Disconnected("connection closed".into());
            self.hang_up(index, &fault, false, effects);
        } else {
            self.fail(index, effects);
        }
    }

    /// The client ends the connection: answers what is open, keeps the releases, connects anew.
    fn hang_up(&mut self, index: usize, fault: &Fault, stalled: bool, effects: &mut Effects) {
        let leftover_ppm = self.scenario.net.leftover_ppm;
        let leftovers = self.links[index].rng.chance(leftover_ppm);
        self.strand(index, leftovers);
        let link = &mut self.links[index];
        let gone = match fault {
            Fault::Stalled => Fault::Disconnected("not answering".into()),
            fault => fault.clone(),
        };
        for letter in std::mem::take(&mut link.flights) {
            link.refuse(letter, gone.clone(), effects);
        }
        link.armed = false;
        link.stalled_since = None;
        link.state = State::Offline { shaken: false };
        let brief = self.scenario.settings.node_timeout;
        self.start(index, if stalled { 0 } else { brief }, 0);
    }

    pub(super) fn failed(&mut self, index: usize, epoch: u32, effects: &mut Effects) {
        if !self.void(index, epoch) {
            self.fail(index, effects);
        }
    }

    /// A connection attempt has come to nothing: refuse what waits, pause, try again.
    fn fail(&mut self, index: usize, effects: &mut Effects) {
        self.refuse_held(index, effects);
        let link = &mut self.links[index];
        link.state = State::Offline { shaken: false };
        let step = link.pause;
        link.pause = (step * 8 / 5).min(LONGEST_PAUSE);
        let pause = step / 2 + link.rng.below(step / 2 + 1);
        self.start(index, 0, pause);
    }

    pub(super) fn impatient(&mut self, index: usize, epoch: u32, effects: &mut Effects) {
        if !self.void(index, epoch) {
            self.refuse_held(index, effects);
        }
    }

    fn refuse_held(&mut self, index: usize, effects: &mut Effects) {
        let link = &mut self.links[index];
        for letter in std::mem::take(&mut link.held) {
            self.watch.coverage.refused_down += 1;
            link.refuse(letter, Fault::Down("no connection".into()), effects);
        }
    }

    /// The event belongs to an attempt that is over.
    fn void(&self, index: usize, epoch: u32) -> bool {
        let link = &self.links[index];
        link.dead || link.epoch != epoch || link.state == State::Online
    }

    /// A process dies: its connections end; what was sent may still arrive.
    pub(crate) fn kill_links(&mut self, client: usize) {
        let leftover_ppm = self.scenario.net.leftover_ppm;
        for index in 0..self.links.len() {
            if self.links[index].client == client && !self.links[index].dead {
                let leftovers = self.links[index].rng.chance(leftover_ppm.max(300_000));
                self.strand(index, leftovers);
                self.links[index].dead = true;
            }
        }
    }

    /// A master wakes a process, if it hears it: on its connection, behind what was said before.
    pub(super) fn publish(&mut self, master: usize, process: &str, key: &[u8]) {
        let hears = |link: &Link| {
            let open = !link.dead && !link.broken && link.state == State::Online;
            let ear = link.ear.as_ref().filter(|ear| &*ear.process == process);
            open && link.master == master && ear.is_some()
        };
        let Some(index) = self.links.iter().position(hears) else {
            return;
        };
        let at = self.travel(index, Way::From);
        let what = Said::Wake(key.to_vec());
        self.links[index].from.push_back(Moving { at, what });
        let (link, epoch) = self.links[index].id(index);
        self.at(at, Event::Answer { link, epoch });
    }

    fn stray_at(&mut self, at: u64, master: usize, request: Request) {
        let run = self.masters[master].run;
        let index = self.strays.len() as u32;
        self.strays.push(Some(Stray {
            master,
            run,
            request,
        }));
        self.at(at, Event::Stray(index));
    }

    pub(super) fn stray(&mut self, index: usize) {
        let Some(stray) = &self.strays[index] else {
            return;
        };
        let master = &self.masters[stray.master];
        if master.stalled_until > self.now {
            let at = master.stalled_until;
            self.at(at, Event::Stray(index as u32));
            return;
        }
        // A message does not outlive the server process that was to read it.
        let readable = master.up && master.run == stray.run;
        if let Some(stray) = self.strays[index].take().filter(|_| readable) {
            let master = stray.master;
            self.say(|| format!("master {master}: a late message"));
            let _unheard = self.apply(master, &stray.request);
        }
    }
}

/// The request as it stands on the wire: what is withdrawn later does not change it.
fn freeze(request: &Request) -> Request {
    match request {
        Request::Extend { items } => {
            let freeze = |item: &ExtendItem| {
                let claim = &item.claim;

                let copy = Claim::new("", claim.key(), claim.token(), claim.fenced());
                if claim.is_withdrawn() {
                    copy.withdraw();
                }
                ExtendItem {
                    claim: Arc::new(copy),
                    ttl: item.ttl,
                }
            };
            Request::Extend {
                items: items.iter().map(freeze).collect(),
            }
        }
        request => request.clone(),
    }
}
