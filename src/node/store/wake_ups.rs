//! Receives the wake-ups of one store while waiters of this process are queued there.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::contract::{Listener, Store};
use super::job::{FREE, LEADER};
use super::names;
use super::shared::Shared;
use crate::limit::Limit;
use crate::node::actor::back_off::BackOff;
use crate::node::actor::panicked::Panicked;
use crate::node::{Fault, Request, Subscriber};
use crate::panics::caught_in;
use crate::repeats::warn_seldom;
use crate::runtime::BoxFuture;
use futures::future::{Either, select};

/// How long this process listens for wake-ups after a waiter's last request: 60 s, or the waiter's `heartbeat` if that
/// is longer.
const WAITS: Duration = Duration::from_secs(60);

/// Starts a listening task if the request comes from a waiter or an observer and no task runs.
pub(super) fn listen<S: Store>(shared: &Arc<Shared<S>>, request: &Request) {
    let waits = match request {
        Request::Acquire { claim, .. } => claim.ticket().map(|ticket| ticket.heartbeat),
        Request::Watch { .. } => Some(WAITS),
        _ => None,
    };
    let Some(waits) = waits else { return };
    if !shared.traits.wakes || shared.subscriber.get().is_none() {
        return;
    }
    let runtime = &shared.context().runtime;
    let until = runtime.now() + waits.max(WAITS);
    let mut state = shared.listening.state();
    match request {
        Request::Acquire { claim, .. } => {
            state.want(names::of_claim(claim), until);
        }
        Request::Watch { key, on: true } => drop(state.watched.insert(key.clone())),
        Request::Watch { key, .. } => {
            state.watched.remove(key);
        }
        _ => {}
    }
    let off = matches!(request, Request::Watch { on: false, .. });
    let runs = off || std::mem::replace(&mut state.runs, true);
    drop(state);
    shared.listening.repace();
    if runs {
        return;
    }
    let task = listening_task(shared.clone());
    if !runtime.spawn(Box::pin(task)) {
        shared.listening.state().runs = false;
    }
}

/// The state of the listening task. If the task's runtime is shut down, a new task in another runtime continues to
/// listen. If there is no other runtime, the next waiter starts a new task.
struct Listens<S: Store> {
    shared: Arc<Shared<S>>,
    /// True if the task ended because this process needs no more wake-ups. False if its runtime was shut down.
    done: bool,
}

impl<S: Store> Listens<S> {
    async fn run(&mut self) {
        listen_on(&self.shared).await;
        self.done = true;
    }
}

impl<S: Store> Drop for Listens<S> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let shared = self.shared.clone();
        let task = move || -> BoxFuture<()> { Box::pin(listening_task(shared)) };
        let runtime = &self.shared.context().runtime;
        if std::thread::panicking() || !runtime.take_over(Box::new(task)) {
            self.shared.listening.state().runs = false;
        }
    }
}

fn listening_task<S: Store>(shared: Arc<Shared<S>>) -> impl Future<Output = ()> + Send + 'static {
    // Create `Listens` outside the `async` block: its `drop` must run even if the runtime drops the task before the
    // first poll.
    let mut listens = Listens {
        shared,
        done: false,
    };
    async move { listens.run().await }
}

/// Listens until this process needs no more wake-ups from the store.
async fn listen_on<S: Store>(shared: &Shared<S>) {
    let Some(subscriber) = shared.subscriber.get() else {
        return;
    };
    let context = shared.context();
    let mut seed = [0; 8];
    context.runtime.random(&mut seed);
    let mut back_off = BackOff::new(u64::from_le_bytes(seed));
    let mut panicked = Panicked::default();
    while shared.listening.goes_on(context.runtime.now()) {
        let began = context.runtime.now();
        let lived = || context.runtime.now().saturating_since(began);
        let (fault, lived) = match caught_in(listen_once(shared, subscriber)).await {
            Ok((fault, true)) => (fault, Some(lived())),
            Ok((fault, false)) => (fault, None),
            // The driver of the store has panicked: listen again after a pause.
            Err(panic) => (Some(panicked.fault(&panic, Some(lived()))), None),
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
        let pause = back_off.pause(&fault, lived);
        let rests = context.runtime.sleep_until(context.runtime.now() + pause);
        select(rests, pin!(shared.listening.over.notified())).await;
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
            (pass_on(shared, subscriber, listener).await, true)
        }
        Some(Err(fault)) => (Some(fault), false),
        None => (Some(Fault::Down("no connection".into())), false),
    }
}

/// Passes the listener's messages to the subscriber. Returns the fault when the listener fails, or `None` when this
/// process needs no more wake-ups.
async fn pass_on<S: Store>(
    shared: &Shared<S>,
    subscriber: &Subscriber,
    mut listener: S::Listener,
) -> Option<Fault> {
    loop {
        let said = {
            let next = pin!(listener.next());
            unless_over(shared, next).await?
        };
        match said {
            Ok(words) => deliver_all(shared, subscriber, &words),
            Err(fault) => return Some(fault),
        }
    }
}

/// Waits for the future `next`. Returns `None` as soon as this process needs no more wake-ups.
async fn unless_over<S: Store, F: Future + Unpin>(
    shared: &Shared<S>,
    mut next: F,
) -> Option<F::Output> {
    let runtime = &shared.context().runtime;
    loop {
        let rests = runtime.sleep_until(runtime.now() + WAITS / 4);
        let over = pin!(shared.listening.over.notified());
        let other = select(rests, over);
        match select(next, other).await {
            Either::Left((said, _)) => return Some(said),
            Either::Right((_, waits)) => next = waits,
        }
        if !shared.listening.goes_on(runtime.now()) {
            return None;
        }
    }
}

/// Passes messages on to the subscriber. An empty list wakes all waiters of this process.
fn deliver_all<S: Store>(shared: &Shared<S>, subscriber: &Subscriber, words: &[Vec<u8>]) {
    if words.is_empty() {
        for name in shared.listening.wanted() {
            subscriber.sink.woken(subscriber.node, &name);
        }
    }
    for word in words {
        deliver(subscriber, word);
    }
}

/// Passes one message to the subscriber: a wake-up, or the announcement of a new leader.
pub(super) fn deliver(subscriber: &Subscriber, word: &[u8]) {
    match word.split_first() {
        Some((&FREE, key)) => subscriber.sink.woken(subscriber.node, key),
        Some((&LEADER, key)) => subscriber.sink.announced(subscriber.node, key),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::{Commit, Session, Wake};
    use super::super::table::Table;
    use super::*;
    use crate::node::{Claim, Fairness, Ticket, Token, WakeSink};

    struct Nobody;

    impl WakeSink for Nobody {
        fn woken(&self, _: usize, _: &[u8]) {}
    }

    /// A store with a subscriber that ignores every wake-up.
    fn subscribed() -> Arc<Shared<Table>> {
        let shared = Arc::new(Shared::new(Table::new("table", true)));
        let (process, sink) = ("0123456789abcdef".into(), Arc::new(Nobody));
        let node = 0;
        let set = shared.subscriber.set(Subscriber {
            process,
            node,
            sink,
        });
        set.expect("the node must not have had a subscriber before");
        shared
    }

    #[tokio::test]
    async fn process_stops_listening_to_a_store_if_its_waiter_sends_no_heartbeat() {
        let shared = subscribed();
        let heartbeat = Duration::from_secs(600);
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
        assert!(shared.listening.goes_on(now + heartbeat / 2));
        assert!(!shared.listening.goes_on(now + heartbeat + WAITS));
    }

    #[test]
    fn listener_runs_in_the_background_runtime_if_the_caller_has_no_runtime() {
        let shared = subscribed();
        let key: Arc<[u8]> = b"boss"[..].into();
        listen(&shared, &Request::Watch { key, on: true });
        assert!(shared.listening.state().runs);
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
        let set = shared.subscriber.set(Subscriber {
            process: "0123456789abcdef".into(),
            node: 0,
            sink: Arc::new(Wakes(wakes)),
        });
        set.expect("the node must not have had a subscriber before");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("the runtime must be created");
        let key: Arc<[u8]> = b"boss"[..].into();
        runtime.block_on(async { listen(&shared, &Request::Watch { key, on: true }) });
        drop(runtime);
        let other = tokio::runtime::Builder::new_current_thread().build();
        let wake = Wake {
            process: "0123456789abcdef".into(),
            word: [&[FREE], &b"a"[..]].concat(),
        };
        let commit = Commit {
            wakes: vec![wake],
            ..Commit::default()
        };
        let committed = other
            .expect("the runtime must be created")
            .block_on(table.clone().commit(&[commit]));
        committed.expect("the table must answer");
        assert_eq!(woken.recv_timeout(Duration::from_secs(30)), Ok(()));
    }

    #[tokio::test]
    async fn process_listens_only_if_it_has_a_subscriber_and_the_store_supports_wake_ups() {
        let key: Arc<[u8]> = b"boss"[..].into();
        let request = Request::Watch { key, on: true };
        let subscriber = || Subscriber {
            process: "0123456789abcdef".into(),
            node: 0,
            sink: Arc::new(Nobody),
        };
        for (wakes, subscribed) in [(true, true), (true, false), (false, true)] {
            let table = Table::new("table", true);
            let table = if wakes { table } else { table.without_wakes() };
            let shared = Arc::new(Shared::new(table));
            if subscribed {
                shared
                    .subscriber
                    .set(subscriber())
                    .expect("the node must not have had a subscriber before");
            }
            listen(&shared, &request);
            let listens = shared.listening.goes_on(shared.context().runtime.now());
            assert_eq!(listens, wakes && subscribed);
        }
    }
}
