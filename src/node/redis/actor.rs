//! The task that owns one master: it connects, sends what has gathered, keeps the deadlines.
//!
//! While the master is down it answers at once and connects again in the background. A master
//! that stops answering is asked nothing more until it answers or is reached anew, so it costs
//! its callers one node timeout and a bounded amount of memory. Releases that could not be
//! delivered are kept and sent first on the next connection.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant as Tick, Sleep};

use super::Shared;
use super::connect::{Link, connect};
use super::connection::closed;
use super::mailbox::Letter;
use super::resp::Value;
use super::window::{UNDER_WAY, Window};
use super::wire::{Scripts, decode, down, is_noscript, server_fault};
use crate::node::{Answer, Claim, Ear, Fault, Reply, Request};
use crate::protocol::instant::Instant;
use crate::retry::Retry;

/// The most requests that are taken at one look.
const BATCH: usize = 512;

/// Bytes that may wait for the socket before no more is taken.
const BACKLOG: usize = 256 << 10;

/// Undelivered releases that are kept; beyond that the ttl does it. Room for all that can be
/// under way on a connection that breaks.
const OWED: usize = 2 * UNDER_WAY;

/// Pauses between connection attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(150);

/// Pauses between deliveries of releases that the master refuses for the moment: it is busy,
/// read-only, cannot save. They grow, for that may last.
const FIRST_RESPITE: Duration = Duration::from_millis(50);
const LONGEST_RESPITE: Duration = Duration::from_secs(2);

/// How long after its last answer a stalled connection is given up for a new one.
const STALL: Duration = Duration::from_millis(500);

/// How long a closed actor goes on trying to deliver releases.
const LINGER: Duration = Duration::from_secs(1);

/// Runs until the handle is gone and nothing is left to deliver.
pub(super) fn run(shared: Arc<Shared>) -> impl Future<Output = ()> + Send + 'static {
    // Made here and not when first polled: a runtime that is shutting down drops the task
    // without a poll, and who waits in the mailbox must hear of that as well
    // (`a_redlock_goes_on_in_another_runtime`).
    serve(Actor {
        shared,
        owed: VecDeque::new(),
        respite: FIRST_RESPITE,
        respite_ends: None,
        closed_at: None,
        batch: Vec::new(),
    })
}

async fn serve(mut actor: Actor) {
    let pauses = || Retry::new(FIRST_PAUSE, LONGEST_PAUSE).delays(Instant::now().as_nanos());
    let mut pause = pauses();
    // The first request waits for the first connection; after a failure nobody waits.
    let mut patience = actor.shared.options.connect_timeout;
    let mut fault = Fault::Down("connecting".into());
    while !actor.done_offline() {
        match actor
            .offline(
                Box::pin(connect_owned(actor.shared.clone())),
                patience,
                &fault,
            )
            .await
        {
            Some(Ok(link)) => {
                tracing::debug!(node = %actor.shared.address.name(), "connected");
                pause = pauses();
                fault = match actor.online(link).await {
                    Some(fault) => fault,
                    None => return,
                };
                tracing::warn!(node = %actor.shared.address.name(), %fault, "connection lost");
                // A restart is over in a moment, a stall is not.
                let stalled = matches!(fault, Fault::Stalled);
                let brief = actor.shared.options.node_timeout;
                patience = if stalled { Duration::ZERO } else { brief };
                continue;
            }
            Some(Err(failed)) => {
                if failed != fault {
                    tracing::warn!(
                        node = %actor.shared.address.name(), fault = %failed, "no connection"
                    );
                }
                fault = failed;
            }
            None => return,
        }
        patience = Duration::ZERO;
        let pause = pause.next().unwrap_or(LONGEST_PAUSE);
        let still = fault.clone();
        let sleep = async move {
            tokio::time::sleep(pause).await;
            Err(still)
        };
        if actor
            .offline(Box::pin(sleep), Duration::ZERO, &fault)
            .await
            .is_none()
        {
            return;
        }
    }
}

async fn connect_owned(shared: Arc<Shared>) -> Result<Link, Fault> {
    connect(&shared).await
}

type Connecting = Pin<Box<dyn Future<Output = Result<Link, Fault>> + Send>>;

struct Actor {
    shared: Arc<Shared>,
    /// Releases that no answer confirms, for the next connection.
    owed: VecDeque<Owed>,
    /// The next pause before the owed releases are tried again, and the end of the present one.
    respite: Duration,
    respite_ends: Option<Tick>,
    /// When the handle was seen to be gone.
    closed_at: Option<Tick>,
    batch: Vec<Letter>,
}

/// A release that no answer confirms.
struct Owed {
    claim: Arc<Claim>,
    leave: bool,
    /// When the key has expired by itself, where the master refuses to delete it.
    until: Option<Tick>,
}

/// What is left is answered, and the mailbox is without a reader again: also when the runtime is
/// shut down under the task.
impl Drop for Actor {
    fn drop(&mut self) {
        self.shared
            .mailbox
            .fail(&Fault::Down("its connection was shut down".into()));
    }
}

impl Actor {
    /// Notes that the handle is gone; true when nothing more can be expected of this actor.
    fn closed_for_good(&mut self) -> bool {
        let at = *self.closed_at.get_or_insert_with(Tick::now);
        self.owed.is_empty() || at.elapsed() > LINGER
    }

    fn done_offline(&self) -> bool {
        self.closed_at
            .is_some_and(|at| at.elapsed() > LINGER || self.owed.is_empty())
    }

    fn owe(&mut self, release: Owed) {
        // The first are those that were under way when the trouble began; what came later was
        // not sent, and its release finds nothing.
        if self.owed.len() < OWED {
            self.owed.push_back(release);
        }
    }

    /// Keeps a release that the master refused for the moment
    /// (`a_release_that_a_master_refuses_for_the_moment_is_delivered_later`).
    fn postpone(&mut self, letter: &Letter) {
        let Request::Release { claim, leave } = &letter.request else {
            return;
        };
        let now = Tick::now();
        let until = letter.until.unwrap_or(now + self.shared.options.max_ttl);
        self.owe(Owed {
            claim: claim.clone(),
            leave: *leave,
            until: Some(until),
        });
        if self.respite_ends.is_none() {
            self.respite_ends = Some(now + self.respite);
            self.respite = (2 * self.respite).min(LONGEST_RESPITE);
        }
    }

    /// Passes an answer on.
    fn take_in(&mut self, letter: Letter, value: &Value<'_>) {
        let answer = decode(&letter.request, value);
        match &answer {
            Err(fault) if is_noscript(value) || passes(fault) => self.postpone(&letter),
            Ok(Answer::Released(_)) => self.respite = FIRST_RESPITE,
            _ => {}
        }
        letter.answer(answer);
    }

    /// The owed releases that are to be sent now.
    fn take_owed(&mut self) -> impl Iterator<Item = Letter> {
        let now = Tick::now();
        let resting = self.respite_ends.is_some_and(|ends| now < ends);
        if !resting {
            self.respite_ends = None;
        }
        let count = if resting {
            0
        } else {
            self.owed.len().min(BATCH)
        };
        let live = move |owed: &Owed| owed.until.is_none_or(|until| now < until);
        self.owed.drain(..count).filter(live).map(|owed| {
            let Owed {
                claim,
                leave,
                until,
            } = owed;
            let mut letter = Letter::new(Request::Release { claim, leave }, Reply::ignored());
            letter.until = until;
            letter
        })
    }

    /// Answers a letter that is not sent.
    fn refuse(&mut self, letter: Letter, fault: &Fault) {
        if let Request::Release { claim, leave } = &letter.request {
            self.owe(Owed {
                claim: claim.clone(),
                leave: *leave,
                until: None,
            });
        }
        letter.answer(Err(fault.clone()));
    }

    /// Waits for `work`, holding letters back for `patience` and refusing them with `fault`
    /// after that. `None` when the handle is gone and nothing is left to do.
    async fn offline(
        &mut self,
        mut work: Connecting,
        patience: Duration,
        fault: &Fault,
    ) -> Option<Result<Link, Fault>> {
        let mut patience = Some(Box::pin(tokio::time::sleep(patience)));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                if let Err(fault) = &done {
                    self.refuse_all(fault);
                    self.shared.mailbox.rest();
                }
                return Poll::Ready(Some(done));
            }
            self.shared.mailbox.register(cx.waker());
            // Until then they wait in the mailbox, where their number is bounded and their
            // place in the order is kept.
            if patience
                .as_mut()
                .is_none_or(|sleep| sleep.as_mut().poll(cx).is_ready())
            {
                patience = None;
                self.refuse_all(fault);
                self.shared.mailbox.rest();
            }
            if self.shared.mailbox.is_over() && self.closed_for_good() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    /// Answers everything that waits with `fault`.
    fn refuse_all(&mut self, fault: &Fault) {
        let mut letters = std::mem::take(&mut self.batch);
        self.shared.mailbox.take(usize::MAX, &mut letters);
        for letter in letters.drain(..) {
            self.refuse(letter, fault);
        }
        self.batch = letters;
    }

    /// Serves one connection until it breaks or stalls (a fault), or the handle is gone (`None`).
    async fn online(&mut self, link: Link) -> Option<Fault> {
        let mut timer = Box::pin(tokio::time::sleep(Duration::ZERO));
        let mut line = Line {
            link,
            under_way: VecDeque::new(),
            again: Vec::new(),
            stalled_since: None,
            armed: None,
            gathering: false,
            window: Window::new(self.shared.options.node_timeout),
        };
        let ended = std::future::poll_fn(|cx| line.poll(self, timer.as_mut(), cx)).await;
        line.hang_up(self, ended.as_ref());
        self.shared.mailbox.rest();
        ended
    }
}

/// One connection at work.
struct Line {
    link: Link,
    /// What the master has been asked and has not answered yet, in the order of asking.
    under_way: VecDeque<Sent>,
    /// Letters that came back because the master had lost its scripts; sent before all others.
    again: Vec<Letter>,
    /// Since when an answer is overdue. Nothing but what is under way is asked meanwhile.
    stalled_since: Option<Tick>,
    /// What the timer is set to.
    armed: Option<Tick>,
    /// The turn has been given to callers that are ready, so that one write carries what all of
    /// them ask.
    gathering: bool,
    window: Window,
}

/// Something the master has been asked.
struct Sent {
    /// None for a script that is loaded again.
    letter: Option<Letter>,
    at: Tick,
}

impl Line {
    fn poll(
        &mut self,
        actor: &mut Actor,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Fault>> {
        // While the master is at work anyway, the callers who are ready now, also those whose
        // answers came just now, have their turn first. Nobody waits for a clock: where nobody is
        // ready this task is polled again at once.
        if !self.gathering && !self.under_way.is_empty() {
            if let Err(fault) = self.land(actor, cx) {
                return Poll::Ready(Some(fault));
            }
            return self.gather(actor, timer, cx);
        }
        self.gathering = false;
        loop {
            actor.shared.mailbox.register(cx.waker());
            let took = self.take_off(actor);
            let wrote = self.link.connection.poll_write(cx);
            // Read also when writing failed: what came before that was said.
            let landed = match self.land(actor, cx) {
                Ok(landed) => landed,
                Err(fault) => return Poll::Ready(Some(fault)),
            };
            if let Err(error) = wrote {
                return Poll::Ready(Some(down(error)));
            }
            if landed {
                return self.gather(actor, timer, cx);
            }
            if !took {
                break;
            }
        }
        if self.under_way.is_empty() && self.again.is_empty() {
            actor.shared.mailbox.rest();
            if actor.shared.mailbox.is_over() && actor.closed_for_good() {
                return Poll::Ready(None);
            }
        }
        self.keep_time(actor, timer.as_mut(), cx)
    }

    /// Lets others go first, once.
    fn gather(
        &mut self,
        actor: &mut Actor,
        timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Fault>> {
        self.gathering = true;
        cx.waker().wake_by_ref();
        self.keep_time(actor, timer, cx)
    }

    /// Takes in the answers that have come; true when there were some.
    fn land(&mut self, actor: &mut Actor, cx: &mut Context<'_>) -> Result<bool, Fault> {
        let mut landed = false;
        while let Poll::Ready(count) = self.link.connection.poll_read(cx).map_err(down)? {
            if count == 0 {
                return Err(down(closed()));
            }
            let now = Tick::now();
            while let Some(value) = self.link.connection.next().map_err(down)? {
                if let Value::Push(push) = &value {
                    hear(actor.shared.ear.get(), push);
                    continue;
                }
                landed = true;
                match self.under_way.pop_front() {
                    Some(Sent {
                        letter: Some(mut letter),
                        at,
                    }) => {
                        self.window.learn(at, now);
                        if is_noscript(&value) && !letter.resent {
                            letter.resent = true;
                            self.again.push(letter);
                        } else {
                            actor.take_in(letter, &value);
                        }
                    }
                    Some(_) => {
                        if let Value::Error(error) = &value {
                            return Err(server_fault(error));
                        }
                    }
                    None => return Err(Fault::Down("an answer that nobody asked for".into())),
                }
            }
        }
        if landed && self.stalled_since.is_some() {
            // As long as the next answer is overdue as well, what is asked now would be late too.
            let now = Tick::now();
            let limit = actor.shared.options.node_timeout;
            let next = self.under_way.front();
            self.stalled_since = next.filter(|sent| sent.at + limit <= now).map(|_| now);
        }
        Ok(landed)
    }

    /// Writes what has gathered; true when there may be more.
    fn take_off(&mut self, actor: &mut Actor) -> bool {
        if self.stalled_since.is_some() {
            actor.refuse_all(&Fault::Stalled);
            return false;
        }
        let connection = &mut self.link.connection;
        let room = self.window.width().saturating_sub(self.under_way.len());
        if room == 0 || connection.backlog() >= BACKLOG {
            return false;
        }
        let mut letters = std::mem::take(&mut actor.batch);
        let at = Tick::now();
        if !self.again.is_empty() {
            // Order is kept: nothing overtakes what came back, so wait until all has landed.
            if !self.under_way.is_empty() {
                actor.batch = letters;
                return false;
            }
            Scripts::load(actor.shared.options.max_ttl, connection.out());
            let load = || Sent { letter: None, at };
            self.under_way
                .extend(std::iter::repeat_with(load).take(Scripts::COUNT));
            letters.append(&mut self.again);
        }
        if !actor.owed.is_empty() {
            letters.extend(actor.take_owed());
        }
        let room = room.min(BATCH).saturating_sub(letters.len());
        if room > 0 {
            actor.shared.mailbox.take(room, &mut letters);
        }
        // Also when all of it has been withdrawn or is guarded: what waits behind it rings no bell
        // of its own, the queue was never empty (`every_request_is_answered_once`).
        let took = !letters.is_empty();
        if took {
            let now = Instant::now();
            let quarantine = self.link.quarantined_until.saturating_since(now);
            for letter in letters.drain(..) {
                if !quarantine.is_zero() && letter.request.is_vote() {
                    letter.answer(Err(Fault::Quarantined(quarantine)));
                } else if self.link.scripts.encode(&letter.request, connection.out()) {
                    let letter = Some(letter);
                    self.under_way.push_back(Sent { letter, at });
                } else {
                    letter.answer(Err(Fault::Withdrawn));
                }
            }
        }
        actor.batch = letters;
        took
    }

    /// Reports what is overdue, gives up a stalled connection, and sets the timer.
    fn keep_time(
        &mut self,
        actor: &mut Actor,
        mut timer: Pin<&mut Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Fault>> {
        let limit = actor.shared.options.node_timeout;
        loop {
            let respite = actor.respite_ends.filter(|_| !actor.owed.is_empty());
            let next = match (self.stalled_since, self.under_way.front()) {
                (Some(since), _) => Some(since + STALL.max(4 * limit)),
                (None, Some(oldest)) => Some(oldest.at + limit),
                (None, None) => respite,
            };
            let Some(next) = next else {
                self.armed = None;
                return Poll::Pending;
            };
            // An earlier alarm is left standing: it rings, looks here, and is set anew. So most
            // requests do not touch the timer at all.
            if self.armed.is_none_or(|armed| armed > next) {
                self.armed = Some(next);
                timer.as_mut().reset(next);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.armed = None;
            let now = Tick::now();
            if now < next {
                continue;
            }
            if self.stalled_since.is_some() {
                return Poll::Ready(Some(Fault::Stalled));
            }
            if self.under_way.is_empty() {
                // The respite is over: to the start, where the owed releases are sent.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.stalled_since = Some(now);
            let open = self
                .under_way
                .iter_mut()
                .filter_map(|sent| sent.letter.as_mut());
            for letter in open.chain(&mut self.again) {
                letter.time_out(Fault::Timeout(limit));
            }
            // What is queued or comes in from now on is refused until the master answers.
            self.take_off(actor);
        }
    }

    /// Answers what is still open when the connection ends, and keeps its releases.
    fn hang_up(self, actor: &mut Actor, ended: Option<&Fault>) {
        let why = ended.map_or_else(|| "shut down".to_owned(), ToString::to_string);
        let fault = Fault::Disconnected(why.into());
        // These come before all that was refused while they were under way, also when there is
        // no room for both: only of them the master may have seen the acquire.
        let mut refused = std::mem::take(&mut actor.owed);
        let open = self.under_way.into_iter().filter_map(|sent| sent.letter);
        for letter in open.chain(self.again) {
            actor.refuse(letter, &fault);
        }
        let room = OWED.saturating_sub(actor.owed.len());
        refused.truncate(room);
        actor.owed.append(&mut refused);
    }
}

/// A wake-up: the channel's message is the key that may be free.
fn hear(ear: Option<&Ear>, push: &[Value<'_>]) {
    if let (Some(ear), [kind, _, key]) = (ear, push)
        && kind.text() == Some(b"message")
        && let Some(key) = key.text()
    {
        ear.sink.woken(ear.node, key);
    }
}

/// Whether a master that answered this may well say something else a while later.
fn passes(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Loading | Fault::ReadOnly | Fault::OutOfMemory | Fault::Misconf | Fault::Busy
    )
}
