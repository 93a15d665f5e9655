//! The handle of a master on top of a store.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::contract::Store;
use super::inspect::inspect;
use super::shared::Shared;
use super::{names, session_task, wake_ups};
use crate::fork::Process;
use crate::node::actor::joined::split_by_session;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::panicked::inspection_fault;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::inspection::Inspection;
use crate::node::{
    Abilities, Claim, Context, Fault, Node, NodeName, Reply, Request, Scope, Subscriber,
};
use crate::panics::caught_in;
use crate::runtime::{self, BoxFuture};

/// A master that keeps its locks in a [`Store`]. It supports the same kinds of locks as a Redis master.
///
/// The store has one record for each resource. The client reads the record, decides based on its content, and changes
/// it by compare-and-set.
///
/// A `StoreNode` that is dropped accepts no more requests. Its tasks still try to deliver pending releases, for at most
/// a second.
pub struct StoreNode<S: Store> {
    shared: Arc<Shared<S>>,
    process: Process,
}

impl<S: Store> StoreNode<S> {
    /// Creates a master on this store. The master connects to the store when it gets its first request.
    pub fn new(store: S) -> Self {
        let shared = Arc::new(Shared::new(store));
        Self {
            shared,
            process: Process::current(),
        }
    }

    fn push(&self, session: usize, request: Request, reply: Reply) {
        let mailbox = &self.shared.mailboxes[session];
        match mailbox.push(Queued::new(request, reply)) {
            Ok(false) => {}
            Ok(true) => {
                let task = session_task::run(self.shared.clone(), session, PendingReleases::new());
                if !self.shared.context().runtime.spawn(Box::pin(task)) {
                    mailbox.fail(&Fault::Down("no tokio runtime is running".into()));
                }
            }
            Err(queued) => queued.answer(Err(Fault::Overloaded)),
        }
    }

    /// The index of the session that serves requests for these records. The index depends only on the first record. It
    /// is 0 if there are no records.
    fn session_of(&self, names: &[names::Name]) -> usize {
        let sessions = self.shared.mailboxes.len();
        let first_name = names.first().filter(|_| sessions > 1);
        first_name.map_or(0, |name| {
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            usize::try_from(hasher.finish() % sessions as u64).unwrap_or(0)
        })
    }
}

/// Distributes the locks of a request over requests to several sessions, each of which fits into one commit.
struct Splitter {
    max_records: usize,
    /// For each session, how many of its requests are full, and the number of records in the next one.
    sessions: Vec<(usize, usize)>,
}

impl Splitter {
    fn new(sessions: usize, max_records: usize) -> Self {
        Self {
            max_records,
            sessions: vec![(0, 0); sessions],
        }
    }

    /// The number of the request for a lock that has this many records in this session. Divided by the number of
    /// sessions, the remainder of this number is the index of the session.
    fn request_number(&mut self, session: usize, record_count: usize) -> usize {
        let (full_requests, records) = &mut self.sessions[session];
        if *records > 0 && *records + record_count > self.max_records {
            *full_requests += 1;
            *records = 0;
        }
        *records += record_count;
        *full_requests * self.sessions.len() + session
    }
}

impl<S: Store> Node for StoreNode<S> {
    fn name(&self) -> &NodeName {
        self.shared.store.name()
    }

    fn abilities(&self) -> Abilities {
        let traits = &self.shared.traits;
        let abilities = Abilities::default().timeout(traits.timeout);
        if traits.wakes {
            abilities
        } else {
            abilities.without_wakes()
        }
    }

    fn settle(&self, context: &Context) {
        self.shared.settle(context);
    }

    fn send(&self, request: Request, reply: Reply) {
        if self.process.is_not_current() {
            return reply.answer(Err(Fault::forked()));
        }
        wake_ups::listen(&self.shared, &request);
        let (sessions, max_records) = (self.shared.mailboxes.len(), self.shared.traits.records);
        if sessions == 1 && max_records == usize::MAX {
            return self.push(0, request, reply);
        }
        // Each session gets one request, or several ones if the records do not fit into one commit. The number of a
        // request also names its session.
        let mut splitter = Splitter::new(sessions, max_records);
        let request_number = |claim: &Claim| {
            let names = names::records_of_claim(claim);
            splitter.request_number(self.session_of(&names), names.len())
        };
        for (number, request, reply) in split_by_session(request, reply, request_number) {
            let session = number.map(|number| number % sessions);
            let session =
                session.unwrap_or_else(|| self.session_of(&names::records_of_request(&request)));
            self.push(session, request, reply);
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        // The contract allows one subscriber: ignore a second one.
        let _ = self.shared.subscriber.set(subscriber);
    }

    fn idle(&self) -> BoxFuture<()> {
        let (shared, process) = (self.shared.clone(), self.process);
        Box::pin(async move {
            if process.is_not_current() {
                return;
            }
            for mailbox in &shared.mailboxes {
                mailbox.idle().await;
            }
        })
    }

    fn inspect(&self, _: &Scope) -> BoxFuture<Inspection> {
        let shared = self.shared.clone();
        if self.process.is_not_current() {
            let failed = Inspection::failed(self.name().clone(), Fault::forked());
            return Box::pin(std::future::ready(failed));
        }
        Box::pin(runtime::in_runtime(async move {
            let name = shared.store.name().clone();
            let inspection = caught_in(inspect(shared)).await;
            inspection.unwrap_or_else(|panic| {
                let mut inspection = Inspection::failed(name, inspection_fault(&panic));
                inspection.records = true;
                inspection
            })
        }))
    }
}

impl<S: Store> Drop for StoreNode<S> {
    fn drop(&mut self) {
        if self.process.is_not_current() {
            return;
        }
        for mailbox in &self.shared.mailboxes {
            mailbox.close();
        }
        self.shared.listening.close();
    }
}

impl<S: Store> fmt::Debug for StoreNode<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreNode")
            .field("name", self.name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::faulty::{Answers, Failing, Faulty};
    use super::super::table::Table;
    use super::*;
    use crate::node::WakeSink;
    use crate::runtime::manual::ManualClock;

    fn scope() -> Scope {
        Scope {
            prefix: "".into(),
            fencing: true,
            fair: true,
            unused_word: "".into(),
        }
    }

    fn watch_request() -> Request {
        let key = b"boss"[..].into();
        Request::Watch { key, on: true }
    }

    struct Nobody;

    impl WakeSink for Nobody {
        fn woken(&self, _: usize, _: &[u8]) {}
    }

    /// The process observes an election, so without the drop it would listen for ever.
    #[tokio::test]
    async fn listening_task_ends_when_the_node_of_its_store_is_dropped() {
        let node = StoreNode::new(Table::new("table", true));
        let shared = node.shared.clone();
        let subscriber = Subscriber {
            process: "0123456789abcdef".into(),
            node: 0,
            sink: Arc::new(Nobody),
        };
        assert!(shared.subscriber.set(subscriber).is_ok());
        let key: Arc<[u8]> = b"boss"[..].into();
        wake_ups::listen(&shared, &Request::Watch { key, on: true });
        assert!(Arc::strong_count(&shared) > 2, "a task must be listening");
        drop(node);
        let is_last = async {
            while Arc::strong_count(&shared) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(30), is_last).await;
        assert!(ended.is_ok(), "the task must end");
    }

    #[tokio::test]
    async fn node_in_a_forked_process_refuses_all_work_and_leaves_the_mailbox_open() {
        let mut node = StoreNode::new(Table::new("table", true).lanes(1));
        let shared = node.shared.clone();
        let queued = Queued::new(watch_request(), Reply::ignored());
        assert!(
            shared.mailboxes[0].push(queued).is_ok(),
            "the mailbox must have room"
        );
        shared.mailboxes[0].take(1, &mut Vec::new());
        assert!(futures::poll!(node.idle()).is_pending());
        node.process = Process::other();
        assert!(
            futures::poll!(node.idle()).is_ready(),
            "a forked process must not wait for the tasks of its parent"
        );
        let (reply, mut received) = Answers::reply();
        node.send(watch_request(), reply);
        assert_eq!(received.try_recv().ok(), Some(Err(Fault::forked())));
        assert!(!shared.mailboxes[0].has_any());
        let inspection = node.inspect(&scope()).await;
        assert_eq!(inspection.fault, Some(Fault::forked()));
        drop(node);
        assert!(!shared.mailboxes[0].is_over());
    }

    #[tokio::test]
    async fn request_is_answered_with_a_fault_if_no_task_can_be_started() {
        let node = StoreNode::new(Table::new("table", true));
        node.settle(&Context::new(
            Arc::new(ManualClock::default()),
            Duration::from_secs(30),
        ));
        let (reply, mut received) = Answers::reply();
        node.send(watch_request(), reply);
        let answer = received.try_recv();
        assert!(matches!(answer, Ok(Err(Fault::Down(_)))), "{answer:?}");
    }

    #[tokio::test]
    async fn panic_in_an_inspection_is_reported_as_a_fault_of_a_master_that_keeps_records() {
        let node = StoreNode::new(Faulty::new(Failing::InspectPanics));
        let inspection = node.inspect(&scope()).await;
        assert!(inspection.records);
        let fault = inspection.fault.expect("the inspection must fail");
        assert!(fault.to_string().contains("no inspection"), "{fault}");
    }

    #[test]
    fn request_for_many_locks_is_split_so_that_each_part_fits_into_one_commit() {
        let mut splitter = Splitter::new(2, 5);
        let locks = [
            (0, 3),
            (1, 1),
            (0, 2),
            (0, 1),
            (1, 4),
            (1, 1),
            (0, 9),
            (0, 1),
        ];
        let numbers = locks.map(|(session, records)| splitter.request_number(session, records));
        assert_eq!(numbers, [0, 1, 0, 2, 1, 3, 4, 6]);
        let mut splitter = Splitter::new(1, 5);
        let numbers = [3, 3, 2, 1].map(|records| splitter.request_number(0, records));
        assert_eq!(
            numbers,
            [0, 1, 1, 2],
            "a new request must begin without records"
        );
        let mut splitter = Splitter::new(1, 5);
        let numbers = [9, 9].map(|records| splitter.request_number(0, records));
        assert_eq!(numbers, [0, 1], "the first request must not stay empty");
        let mut splitter = Splitter::new(1, usize::MAX);
        let numbers = [1, 100, 1000].map(|records| splitter.request_number(0, records));
        assert_eq!(numbers, [0; 3]);
    }
}
