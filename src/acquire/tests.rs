//! Tests of whole acquires with masters that answer at once, as a test prescribes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;

use crate::TryAcquire;
use crate::builder::RedlockBuilder;
use crate::error::AcquireError;
use crate::node::{
    Abilities, Answer, Fairness, Fault, Node, NodeName, Permit, QueueInfo, Reply, Request,
};
use crate::protocol::instant::Instant;
use crate::redlock::Redlock;
use crate::retry::Retry;
use crate::runtime::{BoxFuture, MakeTask, Runtime, Tokio};
use crate::settings::Wait;
use crate::waiting::Waiting;

pub(super) const TTL: Duration = Duration::from_secs(10);

/// All bytes of a random number. After a collision, this byte makes the pause half as long as the longest pause.
const RANDOM_BYTE: u8 = 128;

/// The pauses of the clients' retry settings.
fn retry() -> Retry {
    Retry::new(ms(500), ms(500))
}

fn first_retry_pause() -> Duration {
    let seed = u64::from_ne_bytes([RANDOM_BYTE; 8]);
    let first_pause = retry().delays(seed).next();
    first_pause.expect("the pauses do not end")
}

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The paused clock of tokio. It records how long each sleep is to be, and all random numbers consist of
/// [`RANDOM_BYTE`].
pub(super) struct Sleeps {
    tokio: Tokio,
    recorded: Mutex<Vec<Duration>>,
}

impl Default for Sleeps {
    fn default() -> Self {
        Self {
            tokio: Tokio::paced(),
            recorded: Mutex::default(),
        }
    }
}

impl Sleeps {
    pub(super) fn recorded(&self) -> Vec<Duration> {
        self.recorded.lock().expect("not poisoned").clone()
    }
}

impl Runtime for Sleeps {
    fn now(&self) -> Instant {
        self.tokio.now()
    }

    fn wall_micros(&self) -> u64 {
        self.tokio.wall_micros()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let pause = at.saturating_since(self.now());
        self.recorded.lock().expect("not poisoned").push(pause);
        self.tokio.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        self.tokio.spawn(task)
    }

    fn take_over(&self, make: MakeTask) -> bool {
        self.tokio.take_over(make)
    }

    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(RANDOM_BYTE);
    }
}

/// The requests that a script answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Acquire,
    Confirm,
    Release,
}

/// One request to one master.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) kind: Kind,
    /// The index of the master.
    pub(super) node: usize,
    /// How many acquire requests the master has received, including this one.
    pub(super) attempt: u64,
    /// The ticket of this client's place in the queue, if the request contains one.
    ticket: Option<u64>,
    /// The slot of a semaphore, if the request is about one.
    pub(super) slot: Option<u8>,
}

/// The reaction of a master to a request.
pub(super) enum Reaction {
    Answer(Answer),
    Fail(Fault),
    /// The master never answers the request.
    Ignore,
}

type Script = Arc<dyn Fn(Asked) -> Reaction + Send + Sync>;

/// A master that answers requests as its script prescribes.
struct ScriptedNode {
    name: NodeName,
    index: usize,
    attempts: Mutex<u64>,
    script: Script,
    abilities: Abilities,
    unanswered: Mutex<Vec<Reply>>,
}

impl Node for ScriptedNode {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn send(&self, request: Request, reply: Reply) {
        let (claim, kind) = match &request {
            Request::Acquire { claim, .. } => (claim, Kind::Acquire),
            Request::Confirm { claim, .. } => (claim, Kind::Confirm),
            Request::Release { claim, .. } => (claim, Kind::Release),
            _ => return reply.answer(Err(Fault::OutOfMemory)),
        };
        let mut attempts = self.attempts.lock().expect("not poisoned");
        *attempts += u64::from(kind == Kind::Acquire);
        let attempt = *attempts;
        drop(attempts);
        let ticket = match claim.fairness() {
            Fairness::Fair(Some(ticket)) => Some(ticket.number),
            Fairness::Fair(None) | Fairness::Unordered => None,
        };
        let reaction = (self.script)(Asked {
            kind,
            node: self.index,
            attempt,
            ticket,
            slot: claim.permit().map(Permit::slot),
        });
        match reaction {
            Reaction::Answer(answer) => reply.answer(Ok(answer)),
            Reaction::Fail(fault) => reply.answer(Err(fault)),
            Reaction::Ignore => self.unanswered.lock().expect("not poisoned").push(reply),
        }
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(async {})
    }
}

/// The settings of a client of three masters that follow this script.
pub(super) fn client(
    sleeps: &Arc<Sleeps>,
    abilities: Abilities,
    script: impl Fn(Asked) -> Reaction + Send + Sync + 'static,
) -> RedlockBuilder {
    let script: Script = Arc::new(script);
    let node = |index: usize| -> Arc<dyn Node> {
        Arc::new(ScriptedNode {
            name: NodeName::new(format!("n{index}")),
            index,
            attempts: Mutex::default(),
            script: script.clone(),
            abilities,
            unanswered: Mutex::default(),
        })
    };
    let nodes = (0..3).map(node).collect();
    Redlock::builder()
        .runtime(sleeps.clone())
        .nodes(nodes)
        .ttl(TTL)
        .node_timeout(ms(50))
        .retry(retry())
}

/// The lock is held, or it is a semaphore of which these slots are free.
pub(super) fn refused(
    ttl_left: Duration,
    ahead: u64,
    holder: Option<&[u8]>,
    free: u64,
) -> Reaction {
    let queue_info = QueueInfo {
        ahead,
        ticket: 6,
        holder: holder.map(<[u8]>::to_vec),
        free,
        ..QueueInfo::default()
    };
    Reaction::Answer(Answer::Refused {
        ttl_left: Some(ttl_left),
        line: Some(Box::new(queue_info)),
    })
}

pub(super) fn granted(counter: u64) -> Reaction {
    Reaction::Answer(Answer::Granted {
        counter: Some(counter),
    })
}

/// The answers of masters that grant an attempt with different fencing tokens, and then react with `confirmed` to the
/// request that confirms one of them. The attempt takes 8 ms.
fn colliding(asked: Asked, confirmed: Reaction) -> Reaction {
    match asked.kind {
        Kind::Acquire => granted(asked.node as u64),
        Kind::Release => Reaction::Answer(Answer::Released(true)),
        Kind::Confirm => {
            if asked.node == 0 {
                // The first poll advances the clock.
                let _ = tokio::time::advance(ms(8)).now_or_never();
            }
            confirmed
        }
    }
}

#[tokio::test(start_paused = true)]
async fn owner_pauses_for_a_random_time_after_each_collision_of_its_attempts() {
    for (wait, pauses) in [
        // The third attempt succeeds. The longest pause is twice the time of the attempt, and then four times.
        (ms(60_000), vec![ms(8), ms(16)]),
        // The wait of the caller ends during the second pause.
        (ms(30), vec![ms(8), ms(6)]),
    ] {
        let sleeps = Arc::new(Sleeps::default());
        let is_won = wait > TTL;
        let redlock = client(&sleeps, Abilities::default(), |asked| {
            if asked.attempt == 3 && asked.kind == Kind::Acquire {
                return granted(9);
            }
            colliding(asked, Reaction::Answer(Answer::NotOurs))
        });
        let redlock = redlock.build().expect("good settings");
        let owner = redlock.owner("o").expect("a valid id");
        let outcome = owner.lock("a").wait(Wait::For(wait)).acquire().await;
        assert_eq!(outcome.is_ok(), is_won, "{outcome:?}");
        assert_eq!(sleeps.recorded(), pauses);
    }
}

/// The first pause of an owner whose first attempt ended like this, in a list, and the tickets of its attempts.
async fn pause_after_first_attempt(
    script: impl Fn(Asked) -> Reaction + Send + Sync + 'static,
) -> (Vec<Duration>, Vec<Option<u64>>) {
    let sleeps = Arc::new(Sleeps::default());
    let tickets = Arc::<Mutex<Vec<_>>>::default();
    let asked_tickets = tickets.clone();
    let redlock = client(&sleeps, Abilities::default(), move |asked| {
        if asked.node == 0 && asked.kind == Kind::Acquire {
            asked_tickets
                .lock()
                .expect("not poisoned")
                .push(asked.ticket);
        }
        match (asked.attempt, asked.kind) {
            (1, _) => script(asked),
            (_, Kind::Release) => Reaction::Answer(Answer::Released(true)),
            _ => granted(9),
        }
    });
    let redlock = redlock.build().expect("good settings");
    let owner = redlock.owner("o").expect("a valid id");
    let guard = owner.acquire("a").await;
    assert!(guard.is_ok(), "the masters grant it: {guard:?}");
    let tickets = tickets.lock().expect("not poisoned").clone();
    (sleeps.recorded(), tickets)
}

#[tokio::test(start_paused = true)]
async fn only_a_majority_that_granted_the_lock_of_an_owner_makes_a_collision() {
    let after_collision =
        pause_after_first_attempt(|asked| colliding(asked, Reaction::Answer(Answer::NotOurs)))
            .await;
    assert_eq!(after_collision, (vec![ms(8)], vec![None, None]));
    // The attempt fails because of the masters, so the pause is the one of the retry settings.
    let after_outage =
        pause_after_first_attempt(|asked| colliding(asked, Reaction::Fail(Fault::OutOfMemory)))
            .await;
    assert_eq!(after_outage, (vec![first_retry_pause()], vec![None, None]));
    // Another client holds the lock. The next attempt queues on the masters at once, behind their largest ticket.
    let after_refusal = pause_after_first_attempt(|asked| match asked.node {
        0 if asked.kind == Kind::Acquire => granted(9),
        0 => Reaction::Answer(Answer::Released(true)),
        _ => refused(ms(90), 0, None, 0),
    });
    assert_eq!(after_refusal.await, (vec![], vec![None, Some(7)]));
}

/// Which of the times at which a waiter asks again without a wake-up comes first.
#[tokio::test(start_paused = true)]
async fn queued_waiter_asks_again_at_the_first_of_its_times() {
    const HOLDER: &[u8] = b"held by another program";
    let wakes = Abilities::default();
    for (abilities, ttl_left, ahead, holder, wait, pause) in [
        // The end of the lease: 2 ms later, and 10 ms later for each waiter ahead.
        (wakes, ms(90), 1, None, TTL, ms(102)),
        (wakes, ms(90), 0, None, TTL, ms(92)),
        (wakes, ms(90), 1, Some(HOLDER), TTL, ms(102)),
        // The masters send no wake-ups.
        (wakes.without_wakes(), ms(90), 1, None, TTL, ms(20)),
        // The holder may send no wake-up, because it has no place in the queue.
        (wakes, TTL, 0, Some(HOLDER), TTL, first_retry_pause()),
        // The wait of the caller ends.
        (wakes, ms(90), 1, None, ms(101), ms(101)),
    ] {
        let sleeps = Arc::new(Sleeps::default());
        let redlock = client(&sleeps, abilities, move |asked| match asked.attempt {
            1 | 2 => refused(ttl_left, ahead, holder, 0),
            _ => granted(9),
        });
        let redlock = redlock.build().expect("good settings");
        let outcome = redlock.lock("a").wait(Wait::For(wait)).acquire().await;
        let case = (abilities, ttl_left, ahead, holder, wait);
        assert_eq!(sleeps.recorded(), [pause], "{case:?}");
        assert_eq!(outcome.is_ok(), wait == TTL, "{case:?}");
    }
}

/// The wait for the first task ends, and that task has a result, because its first attempt has failed.
#[tokio::test(start_paused = true)]
async fn error_of_a_caller_behind_local_tasks_counts_no_attempt() {
    let sleeps = Arc::new(Sleeps::default());
    let redlock = client(&sleeps, Abilities::default(), |_| {
        Reaction::Fail(Fault::Down("off".into()))
    });
    let redlock = redlock.build().expect("good settings");
    let waiting = [(); 2].map(|()| {
        let request = redlock.lock("a").wait(Wait::For(TTL));
        tokio::spawn(async move { request.acquire().await.map(drop) })
    });
    tokio::time::sleep(ms(10)).await;
    let in_time = redlock.lock("a").try_acquire().await.map(drop);
    let late = redlock.lock("a").wait(Wait::For(ms(10))).acquire().await;
    for outcome in [in_time, late.map(drop)] {
        let Err(AcquireError::NoQuorum(details)) = outcome else {
            panic!("the masters are down: {outcome:?}");
        };
        assert_eq!(details.attempts, 0);
    }
    for task in waiting {
        let outcome = task.await.expect("the task must not panic");
        assert!(outcome.is_err(), "the masters are down");
    }
}

#[tokio::test(start_paused = true)]
async fn caller_behind_a_local_task_gives_up_when_the_first_answers_to_that_task_are_due() {
    let sleeps = Arc::new(Sleeps::default());
    let builder =
        client(&sleeps, Abilities::default(), |_| Reaction::Ignore).connect_timeout(ms(40));
    let redlock = builder.build().expect("good settings");
    let first_request = redlock.lock("a").wait(Wait::For(TTL));
    let first_task = tokio::spawn(async move { first_request.acquire().await.map(drop) });
    tokio::task::yield_now().await;
    let started_at = tokio::time::Instant::now();
    let outcome = redlock.lock("a").wait(Wait::For(ms(1))).acquire().await;
    outcome.expect_err("no master has answered");
    // After its own wait of 1 ms, it waits for 50 ms and for the three steps of connecting, each of 40 ms.
    assert_eq!(started_at.elapsed(), ms(1 + 50 + 3 * 40));
    first_task.abort();
}

#[tokio::test(start_paused = true)]
async fn waiter_asks_again_right_after_the_lease_if_no_master_reports_a_queue() {
    let sleeps = Arc::new(Sleeps::default());
    let redlock = client(&sleeps, Abilities::default(), |asked| match asked.attempt {
        1 | 2 => Reaction::Answer(Answer::Refused {
            ttl_left: Some(ms(90)),
            line: None,
        }),
        _ => granted(9),
    });
    let redlock = redlock.build().expect("good settings");
    let outcome = redlock.lock("a").wait(Wait::For(TTL)).acquire().await;
    assert!(outcome.is_ok(), "the masters grant the third attempt");
    assert_eq!(sleeps.recorded(), [ms(92)]);
}

/// No master answers the first task.
#[tokio::test(start_paused = true)]
async fn error_for_a_caller_behind_a_local_task_names_this_task_and_no_fault() {
    let sleeps = Arc::new(Sleeps::default());
    let redlock = client(&sleeps, Abilities::default(), |_| Reaction::Ignore);
    let redlock = redlock.build().expect("good settings");
    let first_request = redlock.lock("a").wait(Wait::For(TTL));
    let first_task = tokio::spawn(async move { first_request.acquire().await.map(drop) });
    tokio::task::yield_now().await;
    let seen = Arc::<Mutex<Vec<Waiting>>>::default();
    let recorded = seen.clone();
    let request = redlock.lock("a").wait(Wait::For(ms(1)));
    let request = request.waiting(move |waiting| {
        let mut recorded = recorded.lock().expect("not poisoned");
        recorded.push(waiting.clone());
    });
    let outcome = request.acquire().await;
    outcome.expect_err("no master has answered");
    let behind_one_task = Waiting {
        ahead: Some(1),
        holder: None,
        note: None,
        ttl_left: None,
        answering: 3,
        majority_answers: true,
        trouble: Vec::new(),
        held_here: false,
        foreign: false,
        masters: 3,
        waited: Duration::ZERO,
        attempts: 0,
    };
    assert_eq!(
        *seen.lock().expect("not poisoned"),
        [behind_one_task],
        "the observer must be called once, when the wait begins"
    );
    first_task.abort();
}

/// After the first attempt, each master shows a value that another program wrote.
#[tokio::test(start_paused = true)]
async fn refusal_names_another_program_only_if_this_process_does_not_hold_the_lock() {
    let sleeps = Arc::new(Sleeps::default());
    let redlock = client(&sleeps, Abilities::default(), |asked| {
        match (asked.kind, asked.attempt) {
            (Kind::Acquire, 1) => granted(9),
            (Kind::Acquire, _) => refused(TTL, 1, Some(b"held by another program"), 0),
            _ => Reaction::Answer(Answer::Released(true)),
        }
    });
    let redlock = redlock.build().expect("good settings");
    let guard = redlock.acquire("a").await.expect("the masters grant it");
    let refusal_shows = async || {
        let outcome = redlock.lock("a").try_acquire().await;
        let Ok(TryAcquire::Held(refusal)) = outcome else {
            panic!("the masters refuse it: {outcome:?}");
        };
        (refusal.held_here, refusal.foreign)
    };
    assert_eq!(refusal_shows().await, (true, false));
    guard.release().await;
    assert_eq!(refusal_shows().await, (false, true));
}

#[tokio::test(start_paused = true)]
async fn request_for_a_semaphore_starts_at_a_random_slot() {
    let sleeps = Arc::new(Sleeps::default());
    let redlock = client(&sleeps, Abilities::default(), |_| Reaction::Ignore);
    let redlock = redlock.build().expect("good settings");
    let random_number = u64::from_ne_bytes([RANDOM_BYTE; 8]);
    for (permits, first_slot) in [
        (1, 0),
        (7, random_number % 7),
        (11, random_number % 11),
        // The request is invalid, and is refused elsewhere.
        (0, 0),
    ] {
        let kind = super::kind::Kind::Semaphore(permits);
        let target = kind.target(&redlock.core.coordinator, b"a");
        let slot = target.shape().permit().map(Permit::slot);
        assert_eq!(slot.map(u64::from), Some(first_slot), "{permits} permits");
    }
    assert_ne!(
        random_number % 7,
        0,
        "the slot must differ from the default"
    );
}
