//! Receives the wake-ups of one store while waiters of this process are queued there.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::contract::{Listener, Store};
use super::job::{LEADER, WAKE_UP};
use super::names;
use super::shared::Shared;
use crate::limit::Limit;
use crate::node::actor::back_off::BackOff;
use crate::node::actor::panicked::PanicHistory;
use crate::node::{Fault, Request, Subscriber};
use crate::panics::caught_in;
use crate::repeats::warn_seldom;
use crate::runtime::{BoxFuture, random_number};
use futures::future::{Either, select};

/// How long this process listens for wake-ups after a waiter's last request: 60 s, or the waiter's `heartbeat` if that
/// is longer.
const LISTEN_TIME: Duration = Duration::from_secs(60);

/// Starts a listening task if the request comes from a waiter or an observer and no task runs.
pub(super) fn listen<S: Store>(shared: &Arc<Shared<S>>, request: &Request) {
    let listen_for = match request {
        Request::Acquire { claim, .. } => claim.ticket().map(|ticket| ticket.heartbeat),
        Request::Watch { .. } => Some(LISTEN_TIME),
        _ => None,
    };
    let Some(listen_for) = listen_for else { return };
    if !shared.traits.wakes || shared.subscriber.get().is_none() {
        return;
    }
    let runtime = &shared.context().runtime;
    let until = runtime.now() + listen_for.max(LISTEN_TIME);
    let mut state = shared.listening.state();
    match request {
        Request::Acquire { claim, .. } => {
            state.request_wake_ups(names::records_of_claim(claim), until);
        }
        Request::Watch { key, on: true } => drop(state.watched.insert(key.clone())),
        Request::Watch { key, .. } => {
            state.watched.remove(key);
        }
        _ => {}
    }
    let is_ending = matches!(request, Request::Watch { on: false, .. });
    let is_running = is_ending || std::mem::replace(&mut state.is_running, true);
    drop(state);
    shared.listening.update_pace();
    if is_running {
        return;
    }
    let task = listening_task(shared.clone());
    if !runtime.spawn(Box::pin(task)) {
        shared.listening.state().is_running = false;
    }
}

/// The state of the listening task. If the task's runtime is shut down, a new task in another runtime continues to
/// listen. If there is no other runtime, the next waiter starts a new task.
struct ListeningTask<S: Store> {
    shared: Arc<Shared<S>>,
    /// True if the task ended because this process needs no more wake-ups. False if its runtime was shut down.
    has_finished: bool,
}

impl<S: Store> ListeningTask<S> {
    async fn run(&mut self) {
        listen_on(&self.shared).await;
        self.has_finished = true;
    }
}

impl<S: Store> Drop for ListeningTask<S> {
    fn drop(&mut self) {
        if self.has_finished {
            return;
        }
        let shared = self.shared.clone();
        let task = move || -> BoxFuture<()> { Box::pin(listening_task(shared)) };
        let runtime = &self.shared.context().runtime;
        if std::thread::panicking() || !runtime.take_over(Box::new(task)) {
            self.shared.listening.state().is_running = false;
        }
    }
}

fn listening_task<S: Store>(shared: Arc<Shared<S>>) -> impl Future<Output = ()> + Send + 'static {
    // Create `ListeningTask` outside the `async` block: its `drop` must run even if the runtime drops the task before
    // the first poll.
    let mut task = ListeningTask {
        shared,
        has_finished: false,
    };
    async move { task.run().await }
}

/// Listens until this process needs no more wake-ups from the store.
async fn listen_on<S: Store>(shared: &Shared<S>) {
    let Some(subscriber) = shared.subscriber.get() else {
        return;
    };
    let context = shared.context();
    let mut back_off = BackOff::new(random_number(&*context.runtime));
    let mut panic_history = PanicHistory::default();
    while shared.listening.must_continue(context.runtime.now()) {
        let started_at = context.runtime.now();
        let listening_time = || context.runtime.now().saturating_since(started_at);
        let (fault, connection_age) = match caught_in(listen_once(shared, subscriber)).await {
            Ok((fault, true)) => (fault, Some(listening_time())),
            Ok((fault, false)) => (fault, None),
            // The driver of the store has panicked: listen again after a pause.
            Err(panic) => (
                Some(panic_history.fault(&panic, Some(listening_time()))),
                None,
            ),
        };
        let Some(fault) = fault else { return };
        let node = shared.store.name();
        if fault.passes_by_itself() {
            tracing::debug!(%node, %fault, "no wake-ups");
        } else {
            let text = format!("no wake-ups: {fault}");
            let now = context.runtime.now();
            warn_seldom!((shared.repeats, &text, now), %node, %fault, "no wake-ups: waiters poll");
        }
        let pause = back_off.pause(&fault, connection_age);
        let pause_timer = context.runtime.sleep_until(context.runtime.now() + pause);
        select(pause_timer, pin!(shared.listening.stopped.notified())).await;
    }
}

/// Opens a listener, and passes on its messages until it fails. Returns the fault, which is `None` if this process needs
/// no more wake-ups, and whether the listener was open.
async fn listen_once<S: Store>(
    shared: &Shared<S>,
    subscriber: &Subscriber,
) -> (Option<Fault>, bool) {
    let context = shared.context();
    let until = context.runtime.now() + context.connect_timeout;
    let mut limit = Limit::new(&*context.runtime, until);
    let listening = shared.store.listen(subscriber.process.clone());
    match limit.wait(listening).await {
        Some(Ok(mut listener)) => {
            listener.follow(shared.listening.pacer.clone());
            // Messages that were sent while nothing listened may be lost, so wake all waiters.
            deliver_all(shared, subscriber, &[]);
            (forward_messages(shared, subscriber, listener).await, true)
        }
        Some(Err(fault)) => (Some(fault), false),
        None => (Some(Fault::Down("no connection".into())), false),
    }
}

/// Passes the listener's messages to the subscriber. Returns the fault when the listener fails, or `None` when this
/// process needs no more wake-ups.
async fn forward_messages<S: Store>(
    shared: &Shared<S>,
    subscriber: &Subscriber,
    mut listener: S::Listener,
) -> Option<Fault> {
    loop {
        let result = {
            let next = pin!(listener.next());
            unless_stopped(shared, next).await?
        };
        match result {
            Ok(messages) => deliver_all(shared, subscriber, &messages),
            Err(fault) => return Some(fault),
        }
    }
}

/// Waits for the future `next`. Returns `None` as soon as this process needs no more wake-ups.
async fn unless_stopped<S: Store, F: Future + Unpin>(
    shared: &Shared<S>,
    mut next: F,
) -> Option<F::Output> {
    let runtime = &shared.context().runtime;
    loop {
        let check_timer = runtime.sleep_until(runtime.now() + LISTEN_TIME / 4);
        let stopped = pin!(shared.listening.stopped.notified());
        let pause_or_stop = select(check_timer, stopped);
        match select(next, pause_or_stop).await {
            Either::Left((output, _)) => return Some(output),
            Either::Right((_, unfinished)) => next = unfinished,
        }
        if !shared.listening.must_continue(runtime.now()) {
            return None;
        }
    }
}

/// Passes messages on to the subscriber. An empty list wakes all waiters of this process.
fn deliver_all<S: Store>(shared: &Shared<S>, subscriber: &Subscriber, messages: &[Vec<u8>]) {
    if messages.is_empty() {
        for name in shared.listening.wanted_names() {
            subscriber.sink.woken(subscriber.node, &name);
        }
    }
    for message in messages {
        deliver(subscriber, message);
    }
}

/// Passes one message to the subscriber: a wake-up, or the announcement of a new leader.
pub(super) fn deliver(subscriber: &Subscriber, message: &[u8]) {
    match message.split_first() {
        Some((&WAKE_UP, key)) => subscriber.sink.woken(subscriber.node, key),
        Some((&LEADER, key)) => subscriber.sink.announced(subscriber.node, key),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::contract::{Commit, Session, Wake};
    use super::super::faulty::{Failing, Faulty, MAX_LISTENERS, WokenKeys};
    use super::super::pace::Pace;
    use super::super::table::Table;
    use super::*;
    use crate::node::{Claim, Context, Fairness, Ticket, Token, WakeSink};
    use crate::runtime::manual::{ManualClock, RANDOM_BYTE};
    use crate::runtime::{Runtime, Tokio};

    /// The name of the process in these tests.
    const PROCESS: &str = "0123456789abcdef";

    /// A store with a subscriber that ignores every wake-up.
    fn subscribed() -> Arc<Shared<Table>> {
        subscribed_to(Table::new("table", true))
    }

    /// The same for this store.
    fn subscribed_to<S: Store>(store: S) -> Arc<Shared<S>> {
        let shared = Arc::new(Shared::new(store));
        let subscriber = Arc::<WokenKeys>::default().subscriber(PROCESS);
        let set_result = shared.subscriber.set(subscriber);
        set_result.expect("the node must not have had a subscriber before");
        shared
    }

    #[tokio::test]
    async fn process_stops_listening_to_a_store_if_its_waiter_sends_no_heartbeat() {
        for (heartbeat, time) in [
            (10 * LISTEN_TIME, 10 * LISTEN_TIME),
            (LISTEN_TIME / 60, LISTEN_TIME),
        ] {
            listen_for_waiter(heartbeat, time);
        }
    }

    /// Sends the request of a waiter with this heartbeat. The process must listen for this time.
    fn listen_for_waiter(heartbeat: Duration, time: Duration) {
        let shared = subscribed();
        let waiter = "0123456789abcdef:1".into();
        let ticket = Ticket {
            waiter,
            number: 1,
            heartbeat,
        };
        let claim = Claim::new("", b"a", Token::from_bytes([0; 16]), true)
            .with_fairness(Fairness::Fair(Some(Box::new(ticket))));
        let request = Request::Acquire {
            claim: Arc::new(claim),
            ttl: Duration::from_secs(1200),
            proposal: 0,
        };
        listen(&shared, &request);
        let now = shared.context().runtime.now();
        let listens_at = |at| shared.listening.must_continue(at);
        assert!(listens_at(now + time / 2), "{heartbeat:?}");
        assert!(!listens_at(now + time + LISTEN_TIME), "{heartbeat:?}");
    }

    #[test]
    fn listener_runs_in_the_background_runtime_if_the_caller_has_no_runtime() {
        let shared = subscribed();
        let key: Arc<[u8]> = b"boss"[..].into();
        listen(&shared, &Request::Watch { key, on: true });
        assert!(shared.listening.state().is_running);
    }

    #[test]
    fn listening_task_does_not_count_as_running_if_it_cannot_be_started() {
        let shared = subscribed();
        let runtime = Arc::new(ManualClock::default());
        shared.settle(&Context::new(runtime, LISTEN_TIME));
        let key: Arc<[u8]> = b"boss"[..].into();
        listen(&shared, &Request::Watch { key, on: true });
        assert!(!shared.listening.state().is_running);
    }

    #[test]
    fn listening_task_that_no_runtime_takes_over_does_not_count_as_running() {
        let shared = subscribed();
        let runtime = Arc::new(ManualClock::default());
        shared.settle(&Context::new(runtime, LISTEN_TIME));
        shared.listening.state().is_running = true;
        drop(listening_task(shared.clone()));
        assert!(!shared.listening.state().is_running);
    }

    #[test]
    fn process_no_longer_listens_for_an_election_that_it_has_stopped_to_observe() {
        let shared = subscribed();
        for on in [true, false] {
            let key: Arc<[u8]> = b"boss"[..].into();
            listen(&shared, &Request::Watch { key, on });
            assert_eq!(shared.listening.state().watched.is_empty(), !on);
        }
    }

    /// In this test, the tasks are only counted: they do not run before the first await.
    #[tokio::test]
    async fn only_the_first_observation_starts_a_listening_task() {
        let shared = subscribed();
        for (on, pace, tasks) in [
            (false, Pace::Idle, 0),
            (true, Pace::Observing, 1),
            (true, Pace::Observing, 1),
            (false, Pace::Idle, 1),
        ] {
            let key: Arc<[u8]> = b"boss"[..].into();
            listen(&shared, &Request::Watch { key, on });
            assert_eq!(shared.listening.state().is_running, tasks > 0);
            assert_eq!(Arc::strong_count(&shared), 1 + tasks);
            assert_eq!(shared.listening.pacer.pace(), pace);
        }
    }

    #[test]
    fn listening_task_that_panics_is_not_continued_in_another_runtime() {
        let shared = subscribed();
        let runtime = Arc::new(ManualClock::shut_down(true));
        shared.settle(&Context::new(runtime, LISTEN_TIME));
        shared.listening.state().is_running = true;
        let task = ListeningTask {
            shared: shared.clone(),
            has_finished: false,
        };
        let ended = std::thread::spawn(move || {
            let _task = task;
            panic!("the listener has panicked");
        });
        assert!(ended.join().is_err());
        assert!(!shared.listening.state().is_running);
    }

    #[test]
    fn only_an_empty_list_of_messages_wakes_all_waiters() {
        let shared = subscribed();
        let names = [b"a", b"b"].map(|name| name[..].into());
        let until = crate::protocol::instant::Instant::from_nanos(1);
        shared
            .listening
            .state()
            .request_wake_ups(names.into(), until);
        let woken_by = |messages: &[Vec<u8>]| {
            let sink = Arc::new(WokenKeys::default());
            deliver_all(&shared, &sink.subscriber(PROCESS), messages);
            sink.keys()
        };
        assert_eq!(woken_by(&[]), [b"a", b"b"]);
        let message = [&[WAKE_UP][..], b"b"].concat();
        assert_eq!(woken_by(&[message]), [b"b"]);
    }

    /// A process that observes an election in a store that fails in this way. Its clock is the clock of tokio.
    fn observer_of(failing: Failing) -> Arc<Shared<Faulty>> {
        observer_in(Faulty::new(failing))
    }

    /// The same for this store.
    fn observer_in(store: Faulty) -> Arc<Shared<Faulty>> {
        let shared = subscribed_to(store);
        shared.settle(&Context::new(Arc::new(Tokio::paced()), LISTEN_TIME));
        let key: Arc<[u8]> = b"boss"[..].into();
        shared.listening.state().watched.insert(key);
        shared
    }

    /// Lets a process listen for this time, and returns how many listeners it has requested.
    async fn listeners_within(shared: &Shared<Faulty>, time: Duration) -> usize {
        let ended = tokio::time::timeout(time, listen_on(shared)).await;
        assert!(ended.is_err(), "the process must still listen");
        shared.store.listener_count.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn process_listens_again_after_a_pause_if_listening_fails() {
        let lost = || Fault::Disconnected("lost".into());
        for failing in [
            Failing::ListenFails(lost()),
            Failing::ListenPanics,
            Failing::ListenerFails(lost()),
            Failing::ListenerPanics(Duration::ZERO),
        ] {
            let shared = observer_of(failing.clone());
            let listener_count = listeners_within(&shared, Duration::from_secs(5)).await;
            assert!(
                (4..MAX_LISTENERS).contains(&listener_count),
                "{failing:?}: {listener_count}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_a_listener_that_worked_for_some_time_does_not_count_as_permanent() {
        let shared = observer_of(Failing::ListenerPanics(Duration::from_secs(1)));
        let listener_count = listeners_within(&shared, Duration::from_secs(60)).await;
        assert!(listener_count > 45, "{listener_count}");
    }

    #[tokio::test(start_paused = true)]
    async fn process_listens_again_without_a_pause_after_a_listener_that_worked_for_some_time() {
        let fault = Fault::Denied("no right".into());
        let store = Faulty::new(Failing::ListenerFails(fault));
        let shared = observer_in(store.answer_time(Duration::from_secs(1)));
        let listener_count = listeners_within(&shared, Duration::from_secs(60)).await;
        assert!(listener_count > 45, "{listener_count}");
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_needs_no_more_wake_ups_stops_listening_at_its_next_check() {
        let shared = observer_of(Failing::Never);
        let stop = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            shared.listening.state().watched.clear();
        };
        let started_at = tokio::time::Instant::now();
        let ended = futures::future::join(listen_on(&shared), stop);
        let ended = tokio::time::timeout(LISTEN_TIME / 2, ended).await;
        assert!(ended.is_ok(), "the process must not listen any longer");
        assert!(started_at.elapsed() >= LISTEN_TIME / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_fault_that_does_not_pass_by_itself_is_logged_as_a_warning() {
        let faults = [
            Fault::Denied("no right".into()),
            Fault::Disconnected("lost".into()),
        ];
        for (fault, is_logged) in faults.into_iter().zip([true, false]) {
            let shared = observer_of(Failing::ListenFails(fault.clone()));
            listeners_within(&shared, Duration::from_secs(1)).await;
            let text = format!("no wake-ups: {fault}");
            let now = shared.context().runtime.now();
            let is_repeated = shared.repeats.should_log(&text, now).is_none();
            assert_eq!(is_repeated, is_logged, "{fault}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_listening_has_the_fault_and_whether_the_listener_was_open() {
        let lost = || Fault::Disconnected("lost".into());
        for (failing, fault, was_open) in [
            (Failing::ListenFails(lost()), lost(), false),
            (
                Failing::ListenStalls,
                Fault::Down("no connection".into()),
                false,
            ),
            (Failing::ListenerFails(lost()), lost(), true),
        ] {
            let shared = observer_of(failing);
            let subscriber = shared.subscriber.get().expect("the node has a subscriber");
            let ended = listen_once(&shared, subscriber).await;
            assert_eq!(ended, (Some(fault), was_open));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn open_listener_follows_the_pace_and_begins_with_a_wake_up_of_all_waiters() {
        let connect_timeout = observer_of(Failing::Never).context().connect_timeout;
        let too_slow = Some(Fault::Down("no connection".into()));
        for (time, ended) in [
            (connect_timeout / 2, (None, true)),
            (2 * connect_timeout, (too_slow, false)),
        ] {
            let shared = observer_of(Failing::ListenTakes(time));
            let until = shared.context().runtime.now() + LISTEN_TIME;
            let names = vec![b"a"[..].into()];
            shared.listening.state().request_wake_ups(names, until);
            // Without this, the process would listen for a long time.
            shared.listening.close();
            let sink = Arc::new(WokenKeys::default());
            let subscriber = sink.subscriber(PROCESS);
            let is_open = ended.1;
            assert_eq!(listen_once(&shared, &subscriber).await, ended, "{time:?}");
            assert_eq!(sink.keys().len(), usize::from(is_open));
            let pacer = shared.store.pacer.lock().expect("no test panics here");
            assert_eq!(pacer.is_some(), is_open);
        }
    }

    #[tokio::test]
    async fn pauses_between_tries_to_listen_depend_on_the_random_bytes_of_the_runtime() {
        let lost = Fault::Disconnected("lost".into());
        let shared = subscribed_to(Faulty::new(Failing::ListenFails(lost.clone())));
        let clock = ManualClock::advanced_by_sleeps();
        shared.settle(&Context::new(Arc::new(clock.clone()), LISTEN_TIME));
        let until = clock.now() + Duration::from_secs(1);
        let names = vec![b"a"[..].into()];
        shared.listening.state().request_wake_ups(names, until);
        let mut expected_end = clock.now();
        listen_on(&shared).await;
        let mut back_off = BackOff::new(u64::from_le_bytes([RANDOM_BYTE; 8]));
        while expected_end < until {
            expected_end = expected_end + back_off.pause(&lost, None);
        }
        assert_eq!(clock.now(), expected_end);
    }

    /// A sink that reports each wake-up to the test over a channel.
    struct Wakes(std::sync::mpsc::SyncSender<()>);

    impl WakeSink for Wakes {
        fn woken(&self, _: usize, _: &[u8]) {
            let _ = self.0.try_send(());
        }
    }

    #[test]
    fn listening_continues_after_the_runtime_of_the_caller_shut_down() {
        let table = Table::new("table", true);
        let shared = Arc::new(Shared::new(table.clone()));
        let (wakes, woken) = std::sync::mpsc::sync_channel(1);
        let set_result = shared.subscriber.set(Subscriber {
            process: PROCESS.into(),
            node: 0,
            sink: Arc::new(Wakes(wakes)),
        });
        set_result.expect("the node must not have had a subscriber before");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("the runtime must be created");
        let key: Arc<[u8]> = b"boss"[..].into();
        runtime.block_on(async { listen(&shared, &Request::Watch { key, on: true }) });
        drop(runtime);
        let other_runtime = tokio::runtime::Builder::new_current_thread().build();
        let wake = Wake {
            process: PROCESS.into(),
            word: [&[WAKE_UP], &b"a"[..]].concat(),
        };
        let commit = Commit {
            wakes: vec![wake],
            ..Commit::default()
        };
        let committed = other_runtime
            .expect("the runtime must be created")
            .block_on(table.clone().commit(&[commit]));
        committed.expect("the table must answer");
        assert_eq!(woken.recv_timeout(Duration::from_secs(30)), Ok(()));
    }

    #[tokio::test]
    async fn process_listens_only_if_it_has_a_subscriber_and_the_store_supports_wake_ups() {
        let key: Arc<[u8]> = b"boss"[..].into();
        let request = Request::Watch { key, on: true };
        for (wakes, subscribed) in [(true, true), (true, false), (false, true)] {
            let table = Table::new("table", true);
            let table = if wakes { table } else { table.without_wakes() };
            let shared = Arc::new(Shared::new(table));
            if subscribed {
                shared
                    .subscriber
                    .set(Arc::<WokenKeys>::default().subscriber(PROCESS))
                    .expect("the node must not have had a subscriber before");
            }
            listen(&shared, &request);
            let listens = shared
                .listening
                .must_continue(shared.context().runtime.now());
            assert_eq!(listens, wakes && subscribed);
        }
    }
}
