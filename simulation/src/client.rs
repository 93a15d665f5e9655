//! The work of a client process: it executes the steps of its plan. After the faults have ended, it takes one last
//! lock.

mod observing;
mod values;

pub(crate) use values::failed;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{Either, select};
use quorate::Instant;
use quorate::node::Token;
use quorate::runtime::Runtime;

use crate::clock::{BEGIN, MS};
use crate::facts::{Believer, Call, Fact, Why};
use crate::kind::{Kind, ValueStep};
use crate::locker::{Hold, Locker, Miss, Order, place_of_slot};
use crate::process::Process;
use crate::scenario::{COUNTED_WAIT, Step};
use crate::seeded_bugs::{AsItStands, Flaw, counted_place};

/// Runs one task of a client. All tasks of the client share the steps of the plan. If the client's previous process was
/// killed, the tasks continue with the next step. Only the task with `first` set takes the client's last lock.
pub(crate) async fn run(process: Arc<Process>, locker: Arc<dyn Locker>, first: bool) {
    let client = Client { process, locker };
    while let Some(step) = client.next_step() {
        client.sleep(step.think).await;
        if client.process.shared.world().healed() {
            break;
        }
        client.step(&step).await;
        client.may_end().await;
    }
    let heal_at = BEGIN + client.process.shared.world().scenario.heal_at;
    client
        .sleep(heal_at.saturating_sub(client.process.shared.now()))
        .await;
    if first {
        client.last_one().await;
    }
    let mut world = client.process.shared.world();
    let process = &mut world.processes[client.process.client];
    process.tasks -= 1;
    process.done = process.tasks == 0;
}

struct Client {
    process: Arc<Process>,
    locker: Arc<dyn Locker>,
}

impl Client {
    fn next_step(&self) -> Option<Step> {
        let mut world = self.process.shared.world();
        let client = self.process.client;
        let process = &mut world.processes[client];
        process.step += 1;
        let index = process.step - 1;
        world.scenario.clients[client].steps.get(index).copied()
    }

    async fn sleep(&self, nanos: u64) {
        let at = self.process.now() + Duration::from_nanos(nanos);
        self.process.sleep_until(at).await;
    }

    fn say(&self, line: impl FnOnce(usize) -> String) {
        let client = self.process.client;
        self.process.shared.world().say(|| line(client));
    }

    /// Takes the client's last lock. The faults have ended by then, so every live waiter must get its lock.
    async fn last_one(&self) {
        while !self.process.shared.world().may_lock(self.process.client) {
            // Wait until the operators have replaced the masters. `may_lock` then restarts the client with the new
            // masters if the masters reject its present configuration.
            self.sleep(100 * MS).await;
        }
        while !self.has_last_one().await {
            self.sleep(20 * MS).await;
            self.may_end().await;
        }
    }

    /// Acquires and releases the client's last lock. Returns false if the acquire failed and the caller must try again.
    async fn has_last_one(&self) -> bool {
        let kind = self.last_kind();
        let brief = self.process.shared.world().scenario.brief;
        let order = Order {
            resource: 0,
            wait: brief.then_some(Duration::ZERO),
            renew: true,
            kind,
        };
        let call = self.call(Call::Acquire {
            resource: kind.place(0).into(),
            wait: brief.then_some(0),
        });
        let hold = self.locker.acquire(order).await;
        if let Ok(hold) = hold {
            let id = self.obtained(0, (kind, true), hold.clone());
            call.over();
            self.sleep(2 * MS).await;
            self.retire(id, Why::Released);
            hold.release().await;
            let mut world = self.process.shared.world();
            world.watch.coverage.waited_after_healing += 1;
            return true;
        }
        let world = self.process.shared.world();
        world.scenario.change.is_none() && !world.scenario.brief
    }

    /// If client processes take only one step, ends this process. A new process takes the next step.
    async fn may_end(&self) {
        let slowest = {
            let world = self.process.shared.world();
            world.scenario.brief.then(|| world.scenario.slowest())
        };
        let Some(slowest) = slowest else { return };
        // Like the command `quorate`, the process waits until its releases are delivered. The pauses of the clients
        // differ, so that their next tries do not meet again.
        let drawn = u64::from(self.process.shared.world().processes[self.process.client].life);
        let client = self.process.client as u64;
        let pause = 2 * slowest * (1 + (drawn * 7 + client * 3) % 5);
        self.sleep(pause).await;
        self.process.shared.world().ends(self.process.client);
        std::future::pending::<()>().await;
    }

    /// Returns the kind of the client's last lock: the kind of the client's last step, with two exceptions.
    ///
    /// - If the last step downgrades a lock, uses a value, leaves a note, or concerns an election, the last lock is
    ///   exclusive.
    /// - If the last step takes an owner's lock that the tasks of the process share ([`Kind::Counted`]), the last lock
    ///   is an owner's lock that they do not share ([`Kind::Owner`]).
    fn last_kind(&self) -> Kind {
        let world = self.process.shared.world();
        let steps = &world.scenario.clients[self.process.client].steps;
        match steps.last().map_or(Kind::Exclusive, |step| step.kind) {
            Kind::Downgraded | Kind::Value(_) | Kind::Noted(_) | Kind::Lead(_) | Kind::Observe => {
                Kind::Exclusive
            }
            Kind::Counted(id) => Kind::Owner(id),
            kind => kind,
        }
    }

    async fn step(&self, step: &Step) {
        if let Kind::Value(verb) = step.kind
            && verb != ValueStep::Turn
        {
            return self.value(step, verb).await;
        }
        if step.kind == Kind::Observe {
            return self.observe(step).await;
        }
        self.lock(step).await;
    }

    async fn lock(&self, step: &Step) {
        let (wait, renew) = match step.kind {
            // This kind ignores `step.wait` and `step.renew`. It uses the default wait and always renews.
            Kind::Counted(_) => (COUNTED_WAIT, true),
            Kind::Lead(_) => (step.wait, true),
            _ => (step.wait, step.renew),
        };
        let order = Order {
            resource: step.resource,
            wait: Some(Duration::from_nanos(wait)),
            renew,
            kind: step.kind,
        };
        let call = self.call(Call::Acquire {
            resource: step.kind.place(step.resource).into(),
            wait: Some(wait),
        });
        let attempt = self.locker.acquire(order);
        let outcome = match step.cut {
            Some(polls) => Cut::after(attempt, polls).await,
            None => Some(attempt.await),
        };
        let hold = match outcome {
            Some(Ok(hold)) => hold,
            Some(Err(miss)) => {
                call.over();
                return self.missed(miss);
            }
            None => {
                call.over();
                self.say(|client| {
                    format!("client {client} drops the future of its call to acquire before the future is ready")
                });
                self.process.shared.world().watch.coverage.cut += 1;
                return;
            }
        };
        self.says(step, hold.value());
        let mut id = self.obtained(step.resource, (step.kind, renew), hold.clone());
        call.over();
        let mut hold = hold;
        if step.kind == Kind::Downgraded {
            match self.downgraded(step, id, hold).await {
                Some(reader) => (id, hold) = reader,
                None => return,
            }
        }
        if self.is_lost(&hold, self.work(step, &hold)).await {
            return self.lost(id, hold);
        }
        if step.drop {
            self.retire(id, Why::Dropped);
            return drop(hold);
        }
        self.retire(id, Why::Released);
        let call = self.call(Call::Release);
        let release = hold.release();
        match step.cut_release {
            None => release.await,
            Some(polls) => {
                if Cut::after(release, polls).await.is_none() {
                    self.process.shared.world().watch.coverage.cut_releases += 1;
                }
            }
        }
        call.over();
    }

    /// Reports to the checkers which note the holder leaves. `value` is the lock value of the holder.
    fn says(&self, step: &Step, value: Token) {
        if let Some(note) = step.kind.note() {
            let resource = step.resource.into();
            self.tell(|_| Fact::Says {
                resource,
                value,
                note: &note,
            });
        }
    }

    /// Reports to the checkers that a call begins.
    fn call(&self, call: Call) -> UnderWay<'_> {
        if let Call::Acquire { resource, wait } = call {
            self.tell(|task| Fact::Asked {
                task,
                resource,
                wait,
            });
        }
        UnderWay {
            client: self,
            call,
            began: self.process.shared.now(),
        }
    }

    /// Reports a fact about this task to the checkers.
    fn tell<'a>(&self, fact: impl FnOnce(usize) -> Fact<'a>) {
        let mut world = self.process.shared.world();
        let (now, task) = (world.now, world.task);
        world.watch.fact(now, &fact(task));
    }

    /// Does `work` while the client holds the lock. Returns true if the holder is notified of a loss before the work is
    /// done.
    async fn is_lost(&self, hold: &Arc<dyn Hold>, work: impl Future<Output = ()>) -> bool {
        let lost = hold.lost();
        let work = std::pin::pin!(work);
        matches!(select(work, lost).await, Either::Right(_))
    }

    fn lost(&self, id: u64, hold: Arc<dyn Hold>) {
        self.retire(id, Why::Lost);
        self.process.shared.world().watch.coverage.lost += 1;
        drop(hold);
    }

    async fn work(&self, step: &Step, hold: &Arc<dyn Hold>) {
        self.sleep(step.hold / 2).await;
        if let Some(ttl) = step.extend {
            let call = self.call(Call::Extend);
            hold.clone().extend(Duration::from_nanos(ttl)).await;
            call.over();
        }
        if step.kind == Kind::Value(ValueStep::Turn) {
            return self.turn(step, hold).await;
        }
        self.sleep(step.hold / 2).await;
    }

    /// Holds the lock as a writer for half of `step.hold`, and then downgrades it to a reader's lock. Returns the
    /// reader's hold and its id; `None` if the lock was lost or the downgrade was not completed.
    ///
    /// Just before the client sends the downgrade, the checkers stop counting it as a writer.
    async fn downgraded(
        &self,
        step: &Step,
        id: u64,
        hold: Arc<dyn Hold>,
    ) -> Option<(u64, Arc<dyn Hold>)> {
        if self.is_lost(&hold, self.sleep(step.hold / 2)).await {
            self.lost(id, hold);
            return None;
        }
        let writes_on = self.process.shared.world().flaw == Some(Flaw::DowngradeWritesOn);
        if writes_on {
            self.believe_on(id, &hold);
        } else {
            self.retire(id, Why::Downgraded);
        }
        let call = self.call(Call::Downgrade);
        let downgrade = hold.downgrade();
        let reader = match step.cut_release {
            Some(polls) => Cut::after(downgrade, polls).await.flatten(),
            None => downgrade.await,
        };
        let reader = reader.map(|reader| {
            let id = self.obtained(step.resource, (Kind::Shared, step.renew), reader.clone());
            (id, reader)
        });
        call.over();
        if writes_on {
            self.retire(id, Why::Downgraded);
        }
        let coverage = &mut self.process.shared.world().watch.coverage;
        match reader {
            Some(_) => coverage.downgraded += 1,
            None => coverage.not_downgraded += 1,
        }
        reader
    }

    /// For the seeded bug `DowngradeWritesOn`: the checkers count the client as a writer until the downgrade has ended.
    fn believe_on(&self, id: u64, hold: &Arc<dyn Hold>) {
        let as_it_stands = Arc::new(AsItStands::of(&**hold));
        let mut world = self.process.shared.world();
        let of = |believer: &&mut Believer| believer.id == id;
        let believer = world.watch.believers.iter_mut().find(of);
        let real = believer.map(|one| std::mem::replace(&mut one.hold, as_it_stands));
        drop(world);
        drop(real);
    }

    fn missed(&self, miss: Miss) {
        self.say(|client| format!("client {client} gets no lock: {miss:?}"));
        let coverage = &mut self.process.shared.world().watch.coverage;
        match miss {
            Miss::HeldByOther => coverage.held_by_other += 1,
            Miss::NoQuorum => coverage.no_quorum += 1,
            Miss::TooLate => coverage.too_late += 1,
        }
    }

    fn obtained(&self, resource: u8, (kind, renewed): (Kind, bool), hold: Arc<dyn Hold>) -> u64 {
        let until = hold.end_of_validity().map_or(0, Instant::as_nanos);
        let slot = hold.slot();
        let mut place = slot.map_or(resource, |slot| place_of_slot(resource, slot));
        let mut world = self.process.shared.world();
        if world.flaw == Some(Flaw::CountToK) {
            place = counted_place(&world.watch.believers, kind, place);
        }
        let believer = Believer {
            id: 0,
            client: self.process.client,
            task: world.task,
            renewed,
            kind,
            sets: world.sets(self.process.client),
            resource: place.into(),
            scope: kind.scope(place),
            value: hold.value(),
            fencing: hold.fencing(),
            since: 0,
            obtained: world.now,
            until,
            ends: self.process.clock.when(until).unwrap_or(u64::MAX),
            over: false,
            clock: self.process.clock,
            hold,
        };
        let now = world.now;
        world.watch.obtained(now, believer)
    }

    fn retire(&self, id: u64, why: Why) {
        let mut world = self.process.shared.world();
        let now = world.now;
        let hold = world.watch.retire(now, id, why);
        drop(world);
        drop(hold);
    }
}

/// A call of the library that has not returned yet. The rule "calls end" limits its duration.
struct UnderWay<'a> {
    client: &'a Client,
    call: Call,
    began: u64,
}

impl UnderWay<'_> {
    fn over(self) {
        let (call, began) = (self.call, self.began);
        let client = self.client.process.client;
        let first_request = self.client.process.shared.world().processes[client].first_request;
        self.client.tell(|task| Fact::Returned {
            client,
            task,
            call,
            began,
            first_request,
        });
    }
}

/// A future that polls an inner future at most `polls` times. If the inner future is not ready by then, it is dropped,
/// and the result is `None`.
struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    polls: u8,
}

impl<F: Future> Cut<F> {
    fn after(future: F, polls: u8) -> Self {
        let future = Some(Box::pin(future));
        Self { future, polls }
    }
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(done) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        self.polls -= 1;
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}
