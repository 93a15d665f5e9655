//! The work of a client process: it executes the steps of its plan. After the faults have ended, it takes one last
//! lock.

mod observing;
mod risks;
mod values;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use quorate::Instant;
use quorate::node::Token;
use quorate::runtime::Runtime;

use crate::clock::{MS, RUN_START};
use crate::facts::{Believer, Call, EndReason, Fact};
use crate::kind::{Kind, ValueStep};
use crate::library::Library;
use crate::locker::{AcquireArgs, AcquireFailure, Hold, slot_place};
use crate::process::Process;
use crate::scenario::{COUNTED_WAIT, Step};

/// Runs one task of a client. All tasks of the client share the steps of the plan. If the client's previous process was
/// killed, the tasks continue with the next step. Only the task with `is_first` set takes the client's last lock.
pub(crate) async fn run(process: Arc<Process>, library: Arc<Library>, is_first: bool) {
    let client = Client { process, library };
    while let Some(step) = client.next_step() {
        client.sleep(step.think).await;
        if client.process.shared.world().faults_have_ended() {
            break;
        }
        client.run_step(&step).await;
        client.end_if_brief().await;
    }
    let heal_at = RUN_START + client.process.shared.world().scenario.heal_at;
    client
        .sleep(heal_at.saturating_sub(client.process.shared.now()))
        .await;
    if is_first {
        client.acquire_last_lock().await;
    }
    let mut world = client.process.shared.world();
    let process = &mut world.processes[client.process.client];
    process.running_tasks -= 1;
    process.is_done = process.running_tasks == 0;
}

struct Client {
    process: Arc<Process>,
    library: Arc<Library>,
}

impl Client {
    fn next_step(&self) -> Option<Step> {
        let mut world = self.process.shared.world();
        let client = self.process.client;
        let process = &mut world.processes[client];
        process.next_step_index += 1;
        let index = process.next_step_index - 1;
        world.scenario.clients[client].steps.get(index).copied()
    }

    async fn sleep(&self, nanos: u64) {
        let wakes_at = self.process.now() + Duration::from_nanos(nanos);
        self.process.sleep_until(wakes_at).await;
    }

    fn trace(&self, line_for: impl FnOnce(usize) -> String) {
        let client = self.process.client;
        self.process.shared.world().trace_line(|| line_for(client));
    }

    /// Takes the client's last lock. The faults have ended by then, so every live waiter must get its lock.
    ///
    /// A call can fail even then. For example, a master has refused the permission shortly before, and the client still
    /// refuses its own requests for this reason until it is connected again. So the client calls again, until it has
    /// the lock.
    async fn acquire_last_lock(&self) {
        while !self
            .process
            .shared
            .world()
            .may_take_last_lock(self.process.client)
        {
            // Wait until the operators have replaced the masters. `may_take_last_lock` then restarts the client with
            // the new masters if the masters reject its present configuration.
            self.sleep(100 * MS).await;
        }
        while !self.try_last_lock().await {
            self.sleep(20 * MS).await;
            self.end_if_brief().await;
        }
    }

    /// Acquires and releases the client's last lock. Returns false if the acquire failed.
    async fn try_last_lock(&self) -> bool {
        let kind = self.kind_of_last_lock();
        let one_step_per_process = self.process.shared.world().scenario.one_step_per_process;
        let args = AcquireArgs {
            resource: 0,
            wait: one_step_per_process.then_some(Duration::ZERO),
            renew: true,
            kind,
        };
        let call = self.begin_acquire(kind, 0, one_step_per_process.then_some(0));
        let outcome = self.library.clone().acquire(args).await;
        if let Err(failure) = outcome {
            self.report_refusal(kind, 0, failure);
        }
        if let Ok(hold) = outcome {
            let id = self.record_hold(0, (kind, true), hold.clone());
            call.returned();
            self.sleep(2 * MS).await;
            self.retire(id, EndReason::Released);
            hold.release().await;
            let mut world = self.process.shared.world();
            world.observer.coverage.waited_after_healing += 1;
            return true;
        }
        false
    }

    /// If client processes take only one step, ends this process. A new process takes the next step.
    async fn end_if_brief(&self) {
        let slowest = {
            let world = self.process.shared.world();
            world
                .scenario
                .one_step_per_process
                .then(|| world.scenario.slowest_answer())
        };
        let Some(slowest) = slowest else { return };
        // Like the command `quorate`, the process waits until its releases are delivered. The pauses of the clients
        // differ, so that their next tries do not meet again.
        let lives = u64::from(self.process.shared.world().processes[self.process.client].starts);
        let client = self.process.client as u64;
        let pause = 2 * slowest * (1 + (lives * 7 + client * 3) % 5);
        // It also stays connected until it has added to the age of a store's run (`cli/src/lock.rs`).
        let pause = pause.max(self.process.shared.world().scenario.min_connection_time());
        self.sleep(pause).await;
        self.process
            .shared
            .world()
            .schedule_process_end(self.process.client);
        std::future::pending::<()>().await;
    }

    /// Returns the kind of the client's last lock: the kind of the client's last step, with two exceptions.
    ///
    /// - If the last step downgrades a lock, uses a value, leaves a note, or concerns an election, the last lock is
    ///   exclusive.
    /// - If the last step takes an owner's lock that the tasks of the process share ([`Kind::OwnerOfProcess`]), the
    ///   last lock is an owner's lock that they do not share ([`Kind::Owner`]).
    fn kind_of_last_lock(&self) -> Kind {
        let world = self.process.shared.world();
        let steps = &world.scenario.clients[self.process.client].steps;
        match steps.last().map_or(Kind::Exclusive, |step| step.kind) {
            Kind::Downgraded
            | Kind::Value(_)
            | Kind::WithNote(_)
            | Kind::Leader(_)
            | Kind::Observe => Kind::Exclusive,
            Kind::OwnerOfProcess(id) => Kind::Owner(id),
            kind => kind,
        }
    }

    async fn run_step(&self, step: &Step) {
        if let Kind::Value(verb) = step.kind
            && verb != ValueStep::SeparateCalls
        {
            return self.run_value_step(step, verb).await;
        }
        if step.kind == Kind::Observe {
            return self.observe_election(step).await;
        }
        self.hold_lock(step).await;
    }

    async fn hold_lock(&self, step: &Step) {
        let (wait, renew) = match step.kind {
            // This kind ignores `step.wait` and `step.renew`. It uses the default wait and always renews.
            Kind::OwnerOfProcess(_) => (COUNTED_WAIT, true),
            Kind::Leader(_) => (step.wait, true),
            _ => (step.wait, step.renew),
        };
        let args = AcquireArgs {
            resource: step.resource,
            wait: Some(Duration::from_nanos(wait)),
            renew,
            kind: step.kind,
        };
        let call = self.begin_acquire(step.kind, step.resource, Some(wait));
        let acquire = self.library.clone().acquire(args);
        let outcome = match step.cut {
            Some(polls) => PollLimit::new(acquire, polls).await,
            None => Some(acquire.await),
        };
        let hold = match outcome {
            Some(Ok(hold)) => hold,
            Some(Err(failure)) => {
                self.report_refusal(step.kind, step.resource, failure);
                call.returned();
                return self.record_failure(failure);
            }
            None => {
                call.returned();
                self.trace(|client| {
                    format!("client {client} drops the future of its call to acquire before the future is ready")
                });
                let coverage = &mut self.process.shared.world().observer.coverage;
                coverage.dropped_acquires += 1;
                return;
            }
        };
        self.report_note(step, hold.value());
        let mut id = self.record_hold(step.resource, (step.kind, renew), hold.clone());
        call.returned();
        let mut hold = hold;
        if step.kind == Kind::Downgraded {
            match self.downgrade_hold(step, id, hold).await {
                Some(reader) => (id, hold) = reader,
                None => return,
            }
        }
        if self.is_lost_during(id, &hold, self.work(step, &hold)).await {
            return self.drop_lost_hold(id, hold);
        }
        if step.drop {
            self.retire(id, EndReason::Dropped);
            return drop(hold);
        }
        self.retire(id, EndReason::Released);
        self.release_hold(step, hold).await;
    }

    /// Releases a lock. If `step.cut_release` is set, drops the future of the release after this number of polls.
    async fn release_hold(&self, step: &Step, hold: Arc<Hold>) {
        let call = self.begin_call(Call::Release);
        let release = Box::pin(hold.release());
        match step.cut_release {
            None => release.await,
            Some(polls) => {
                if PollLimit::new(release, polls).await.is_none() {
                    let coverage = &mut self.process.shared.world().observer.coverage;
                    coverage.dropped_releases += 1;
                }
            }
        }
        call.returned();
    }

    /// Reports to the checkers which note the holder leaves. `value` is the lock value of the holder.
    fn report_note(&self, step: &Step, value: Token) {
        if let Some(note) = step.kind.note() {
            let resource = step.resource.into();
            self.report_fact(|_| Fact::HolderNote {
                resource,
                value,
                note: &note,
            });
        }
    }

    /// Reports to the checkers that an acquire begins.
    fn begin_acquire(&self, kind: Kind, resource: u8, wait: Option<u64>) -> RunningCall<'_> {
        let place = kind.place(resource);
        let (resource, scope) = (place.into(), kind.scope(place));
        self.report_fact(|task| Fact::AcquireStarted {
            task,
            resource,
            scope,
            wait,
        });
        self.begin_call(Call::Acquire { resource, wait })
    }

    fn begin_call(&self, call: Call) -> RunningCall<'_> {
        RunningCall {
            client: self,
            call,
            began_at: self.process.shared.now(),
        }
    }

    /// Reports a fact about this task to the checkers.
    fn report_fact<'a>(&self, fact: impl FnOnce(usize) -> Fact<'a>) {
        let mut world = self.process.shared.world();
        let (now, task) = (world.now, world.polled_task);
        world.observer.report_fact(now, &fact(task));
    }

    /// Does `work` while the client holds the lock. Returns true if the holder is notified of a loss before the work is
    /// done. Meanwhile, reports to the checkers each notice that the lock may be lost soon.
    async fn is_lost_during(
        &self,
        id: u64,
        hold: &Arc<Hold>,
        work: impl Future<Output = ()>,
    ) -> bool {
        let notices = std::pin::pin!(self.report_risks(id, hold));
        let loss = select(notices, Box::pin(hold.guard().lost()));
        let work = std::pin::pin!(work);
        matches!(select(work, loss).await, Either::Right(_))
    }

    fn drop_lost_hold(&self, id: u64, hold: Arc<Hold>) {
        self.retire(id, EndReason::Lost);
        self.process.shared.world().observer.coverage.lost_locks += 1;
        drop(hold);
    }

    async fn work(&self, step: &Step, hold: &Arc<Hold>) {
        self.sleep(step.hold / 2).await;
        if let Some(ttl) = step.extend {
            let call = self.begin_call(Call::Extend);
            let _outcome = hold.guard().extend(Duration::from_nanos(ttl)).await;
            call.returned();
        }
        if step.kind == Kind::Value(ValueStep::SeparateCalls) {
            return self.read_work_and_write(step, hold).await;
        }
        self.sleep(step.hold / 2).await;
    }

    /// Holds the lock as a writer for half of `step.hold`, and then downgrades it to a reader's lock. Returns the
    /// reader's hold and its id; `None` if the lock was lost or the downgrade was not completed.
    ///
    /// Just before the client sends the downgrade, the checkers stop counting it as a writer.
    async fn downgrade_hold(
        &self,
        step: &Step,
        id: u64,
        hold: Arc<Hold>,
    ) -> Option<(u64, Arc<Hold>)> {
        let work = self.sleep(step.hold / 2);
        if self.is_lost_during(id, &hold, work).await {
            self.drop_lost_hold(id, hold);
            return None;
        }
        self.retire(id, EndReason::Downgraded);
        let call = self.begin_call(Call::Downgrade);
        let reader_future = Box::pin(hold.downgrade());
        let reader_guard = match step.cut_release {
            Some(polls) => PollLimit::new(reader_future, polls).await.flatten(),
            None => reader_future.await,
        };
        let reader = reader_guard.map(|reader| {
            let id = self.record_hold(step.resource, (Kind::Shared, step.renew), reader.clone());
            (id, reader)
        });
        call.returned();
        let coverage = &mut self.process.shared.world().observer.coverage;
        match reader {
            Some(_) => coverage.downgraded += 1,
            None => coverage.not_downgraded += 1,
        }
        reader
    }

    /// Reports to the checkers if an acquire was refused because another client holds the lock.
    fn report_refusal(&self, kind: Kind, resource: u8, failure: AcquireFailure) {
        if let AcquireFailure::HeldByOther = failure {
            let (client, scope) = (self.process.client, kind.scope(kind.place(resource)));
            self.report_fact(|task| Fact::AcquireRefused {
                client,
                task,
                scope,
            });
        }
    }

    fn record_failure(&self, failure: AcquireFailure) {
        self.trace(|client| format!("client {client} gets no lock: {failure:?}"));
        let coverage = &mut self.process.shared.world().observer.coverage;
        match failure {
            AcquireFailure::HeldByOther => coverage.held_by_other += 1,
            AcquireFailure::NoQuorum => coverage.no_quorum += 1,
            AcquireFailure::TooLate => coverage.too_late += 1,
        }
    }

    fn record_hold(&self, resource: u8, (kind, renewed): (Kind, bool), hold: Arc<Hold>) -> u64 {
        let valid_until = hold.end_of_validity().map_or(0, Instant::as_nanos);
        let slot = hold.slot();
        let place = slot.map_or(resource, |slot| slot_place(resource, slot));
        let mut world = self.process.shared.world();
        let believer = Believer {
            id: 0,
            client: self.process.client,
            task: world.polled_task,
            is_renewed: renewed,
            kind,
            sets: world.sets_of_new_hold(self.process.client),
            resource: place.into(),
            scope: kind.scope(place),
            value: hold.value(),
            fencing_token: hold.fencing(),
            obtained_event: 0,
            obtained_at: world.now,
            valid_until,
            ends_at: self
                .process
                .clock
                .time_of_reading(valid_until)
                .unwrap_or(u64::MAX),
            risk_margin: None,
            is_over: false,
            clock: self.process.clock,
            hold,
        };
        let now = world.now;
        world.observer.begin_belief(now, believer)
    }

    fn retire(&self, id: u64, reason: EndReason) {
        let mut world = self.process.shared.world();
        let now = world.now;
        let hold = world.observer.end_belief(now, id, reason);
        drop(world);
        drop(hold);
    }
}

/// A call of the library that has not returned yet. The rule "calls end" limits its duration.
struct RunningCall<'a> {
    client: &'a Client,
    call: Call,
    began_at: u64,
}

impl RunningCall<'_> {
    fn returned(self) {
        let (call, began_at) = (self.call, self.began_at);
        let client = self.client.process.client;
        let first_request = self.client.process.shared.world().processes[client].first_request;
        self.client.report_fact(|task| Fact::CallReturned {
            client,
            task,
            call,
            began_at,
            first_request,
        });
    }
}

/// A future that polls an inner future at most `polls` times. If the inner future is not ready by then, it is dropped,
/// and the result is `None`.
struct PollLimit<F> {
    future: Option<Pin<Box<F>>>,
    polls: u8,
}

impl<F: Future> PollLimit<F> {
    fn new(future: F, polls: u8) -> Self {
        let future = Some(Box::pin(future));
        Self { future, polls }
    }
}

impl<F: Future> Future for PollLimit<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        self.polls -= 1;
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}
