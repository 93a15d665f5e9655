//! The local queue of each resource, and the wake-ups from the masters.
//!
//! Within one process the waiters of one resource queue here, and only the first one sends requests to the masters. So
//! a thousand waiters cost no more messages than one. The first keeps its turn while it holds the lock. The requests of
//! the next waiter are sent right behind its releases, on the same connections, without a round trip in between.
//!
//! A turn here only means that the waiter may ask; the masters decide.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::heard::Heard;
use super::own::{Asked, OwnLocks};
use super::watchers::Watchers;
use crate::node::{Permit, WakeSink};
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::rounds::wanted::Wanted;
use crate::runtime::Runtime;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Notify, Ordering};

/// How long the first wake-up waits for those of the other masters: a release reaches all masters within about one
/// round trip.
const GRACE: Duration = Duration::from_millis(2);

/// The local queues of all resources of one process.
pub(crate) struct LocalLines {
    map: Mutex<HashMap<Arc<[u8]>, LocalLine>>,
    /// The locks that are held without a place in a local queue, and the slots that are being asked for.
    own: Arc<OwnLocks>,
    /// The numbers of waiters that ask for a slot outside the queue of its semaphore. Lock order: after `map`. Which
    /// waiter is the first depends on both.
    aside: Mutex<Aside>,
    /// The number of the next waiter.
    came: AtomicU64,
    /// The waiters that ask for a key outside its queue: readers, whose neighbours may ask as well, and owners, which
    /// pass all waiters.
    beside: Mutex<Beside>,
    /// The observers of new leaders.
    pub(crate) watchers: Watchers,
}

/// The waiters that ask for a key outside its queue, by key.
type Beside = HashMap<Arc<[u8]>, Vec<Arc<Turn>>>;

/// The numbers of waiters that ask for a slot outside the queue, by the name of the semaphore's queue.
type Aside = HashMap<Arc<[u8]>, BTreeSet<u64>>;

/// One queue. Most have only a front, so the other waiters are boxed: ten thousand held locks have ten thousand queues.
struct LocalLine {
    /// The waiter that asks the masters; `None` once it holds the lock.
    front: Option<Arc<Turn>>,
    #[expect(
        clippy::box_collection,
        reason = "one word in the many queues that have only a front"
    )]
    behind: Option<Box<VecDeque<Arc<Turn>>>>,
}

impl LocalLine {
    fn of(front: &Arc<Turn>) -> Self {
        Self {
            front: Some(front.clone()),
            behind: None,
        }
    }

    /// Inserts a waiter before all that came later, except a holder.
    fn insert(&mut self, turn: &Arc<Turn>) {
        let behind = self.behind.get_or_insert_default();
        match &mut self.front {
            Some(front) if front.number > turn.number => {
                behind.push_front(std::mem::replace(front, turn.clone()));
            }
            _ => {
                let at = behind.partition_point(|other| other.number < turn.number);
                behind.insert(at, turn.clone());
            }
        }
    }

    fn is_front(&self, turn: &Arc<Turn>) -> bool {
        self.front
            .as_ref()
            .is_some_and(|front| Arc::ptr_eq(front, turn))
    }

    /// The front's knowledge about the lock.
    fn told(&self) -> Option<Heard> {
        match &self.front {
            None => Some(Heard::HERE),
            Some(front) => front.heard().clone(),
        }
    }

    /// Removes the front. The next waiter becomes the front and takes over its knowledge. Returns `None` if there is no
    /// other waiter.
    fn advance(&mut self) -> Option<Arc<Turn>> {
        let behind = self.behind.as_mut()?;
        let next = behind.pop_front()?;
        if behind.is_empty() {
            self.behind = None;
        }
        *next.heard() = self.told();
        if let Some(front) = &self.front {
            next.learn(front.elsewhere());
        }
        self.front = Some(next.clone());
        Some(next)
    }
}

/// One waiter in a queue.
struct Turn {
    /// Waiters that came earlier have smaller numbers.
    number: u64,
    /// The masters that sent a wake-up since the last attempt, as a bit mask.
    woken: AtomicU64,
    /// Notified when the turn has come, or when a master sent a wake-up.
    called: Notify,
    /// Its knowledge about the lock, once it is the front.
    heard: Mutex<Option<Heard>>,
    /// The slots of a semaphore that other processes held when this waiter last asked, as a bit mask.
    elsewhere: AtomicU64,
}

/// Wake-ups of all masters: something changed in this process itself.
const EVERYWHERE: u64 = u64::MAX;

impl Turn {
    fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Ordering::Acquire)
    }

    fn learn(&self, elsewhere: u64) {
        self.elsewhere.store(elsewhere, Ordering::Release);
    }

    /// Lock order: after the mutex of the map.
    fn heard(&self) -> MutexGuard<'_, Option<Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the local queues of all keys of a lock. Dropping it passes the turns on, unless the lock is held.
pub(crate) struct Place {
    lines: Arc<LocalLines>,
    keys: Keys,
    turn: Arc<Turn>,
    stands: Stands,
}

/// Where a place is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    InLine,
    /// Outside the queues, asking alongside others of its class.
    Beside,
    /// Outside the queue for as long as it asks for a slot.
    Aside,
}

/// The keys of a place; most places have one.
enum Keys {
    One(Arc<[u8]>),
    Several(Box<[Arc<[u8]>]>),
}

impl Keys {
    fn of(wanted: &Wanted) -> Self {
        if wanted.keys().count() == 1 {
            return Self::One(wanted.key().clone());
        }
        Self::Several(wanted.keys().cloned().collect())
    }

    fn all(&self) -> &[Arc<[u8]>] {
        match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Several(keys) => keys,
        }
    }
}

impl LocalLines {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            map: Mutex::default(),
            own: Arc::default(),
            aside: Mutex::default(),
            came: AtomicU64::new(0),
            beside: Mutex::default(),
            watchers: Watchers::default(),
        })
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Arc<[u8]>, LocalLine>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process holds the lock of this key.
    pub(crate) fn is_held(&self, key: &[u8]) -> bool {
        let in_line = self.map().get(key).is_some_and(|line| line.front.is_none());
        in_line || self.own.is_held(key)
    }

    /// Records a lock that is held without a place in a local queue, until [`let_go`](Self::let_go).
    pub(crate) fn hold<'a>(
        self: &Arc<Self>,
        keys: impl Iterator<Item = &'a Arc<[u8]>>,
    ) -> Arc<Self> {
        self.own.hold(keys);
        self.clone()
    }

    /// Records that such a lock has ended. Must be called once for each lock. If it was a slot, wakes the first local
    /// waiter of its semaphore, which may take the slot at once.
    pub(crate) fn let_go(&self, key: &[u8], permit: Option<&Permit>) {
        self.own.let_go(key);
        let Some(permit) = permit else {
            return;
        };
        if let Some(front) = self.front(&permit.line()) {
            front.woken.store(EVERYWHERE, Ordering::Release);
            front.called.notify_one();
        }
    }

    fn front(&self, key: &[u8]) -> Option<Arc<Turn>> {
        self.map().get(key).and_then(|line| line.front.clone())
    }

    /// Chooses and records the slot that the waiter at `place` asks for: see [`OwnLocks::ask`].
    pub(crate) fn ask(&self, permit: &Permit, place: Option<&Place>, passes: bool) -> Asked {
        let elsewhere = place.map_or(0, |place| place.turn.elsewhere());
        self.own.ask(permit, elsewhere, passes)
    }

    /// The slots of a semaphore that this process holds, and those that its other waiters ask for: see
    /// [`OwnLocks::slots`].
    pub(crate) fn own_slots(&self, permit: &Permit, except: Option<&Asked>) -> (u64, u64) {
        self.own.slots(permit, except)
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beside(&self) -> MutexGuard<'_, Beside> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place at the end of the queue of each key. All keys are entered at once, so that no two waiters wait for
    /// each other.
    pub(crate) fn enter(self: &Arc<Self>, wanted: &Wanted) -> Place {
        let mut map = self.map();
        // Draw the number under the mutex, so that numbers have the order of entry.
        let place = self.place(wanted);
        for key in place.keys.all() {
            match map.entry(key.clone()) {
                Entry::Vacant(line) => {
                    line.insert(LocalLine::of(&place.turn));
                }
                Entry::Occupied(mut line) => {
                    let behind = line.get_mut().behind.get_or_insert_default();
                    behind.push_back(place.turn.clone());
                }
            }
        }
        drop(map);
        place
    }

    fn place(self: &Arc<Self>, wanted: &Wanted) -> Place {
        Place {
            lines: self.clone(),
            keys: Keys::of(wanted),
            turn: Arc::new(Turn {
                number: self.came.fetch_add(1, Ordering::Relaxed),
                woken: AtomicU64::new(0),
                called: Notify::new(),
                heard: Mutex::default(),
                elsewhere: AtomicU64::new(0),
            }),
            stands: Stands::InLine,
        }
    }

    /// Joins no queue, but is woken: for owners, which pass all waiters.
    pub(crate) fn ask_beside(self: &Arc<Self>, wanted: &Wanted) -> Place {
        let mut place = self.place(wanted);
        place.stand_beside();
        place
    }

    /// Enters for a try, which does not wait. Returns a place if the queue is empty. Returns `Ok(None)` if there is
    /// only a front, or if nothing is known of the lock yet: then the masters are asked. Returns `Err` with the front's
    /// knowledge if other waiters are queued.
    pub(crate) fn enter_if_free(self: &Arc<Self>, wanted: &Wanted) -> Result<Option<Place>, Heard> {
        for key in wanted.keys() {
            match self.map().get(key) {
                None => {}
                Some(line) if line.behind.is_none() => return Ok(None),
                Some(line) => return line.told().map_or(Ok(None), Err),
            }
        }
        // Another waiter may have come since the check. Then this is not the front, and a try does not wait.
        let place = self.enter(wanted);
        if place.is_front() {
            Ok(Some(place))
        } else {
            place.told().map_or(Ok(None), Err)
        }
    }

    /// Passes the turn on when the holder ends: the next waiter becomes the front. Must be called once by each holder,
    /// which is always the front.
    pub(crate) fn pass_on(&self, key: &[u8]) {
        let next = {
            let mut map = self.map();
            let next = map.get_mut(key).and_then(LocalLine::advance);
            if next.is_none() {
                map.remove(key);
            }
            next
        };
        if let Some(next) = next {
            next.called.notify_one();
        }
    }
}

impl WakeSink for LocalLines {
    fn woken(&self, node: usize, key: &[u8]) {
        if let (Some(front), true) = (self.front(key), node < 64) {
            front.woken.fetch_or(1 << node, Ordering::AcqRel);
            front.called.notify_one();
        }
        for turn in self.beside().get(key).into_iter().flatten() {
            turn.woken.fetch_or(1 << (node % 64), Ordering::AcqRel);
            turn.called.notify_one();
        }
    }

    fn announced(&self, _: usize, key: &[u8]) {
        self.watchers.call(key);
    }
}

impl Place {
    /// Leaves the queues, so that the next waiter may ask as well, but still receives wake-ups.
    pub(crate) fn stand_beside(&mut self) {
        let mut beside = self.lines.beside();
        for key in self.keys.all() {
            beside
                .entry(key.clone())
                .or_default()
                .push(self.turn.clone());
        }
        drop(beside);
        self.leave();
        self.stands = Stands::Beside;
    }

    /// Leaves the queue for as long as it asks for a slot, so that the next waiter may ask for another one.
    pub(crate) fn step_aside(&mut self) {
        if self.stands != Stands::InLine {
            return;
        }
        let number = self.turn.number;
        let mut aside = self.lines.aside();
        for key in self.keys.all() {
            aside.entry(key.clone()).or_default().insert(number);
        }
        drop(aside);
        self.leave();
        self.stands = Stands::Aside;
    }

    /// Returns to the queue, before all waiters that came later, including a front, which then waits behind it.
    pub(crate) fn step_back(&mut self) {
        if self.stands != Stands::Aside {
            return;
        }
        self.stands = Stands::InLine;
        let mut map = self.lines.map();
        for key in self.keys.all() {
            match map.entry(key.clone()) {
                Entry::Vacant(line) => {
                    line.insert(LocalLine::of(&self.turn));
                }
                Entry::Occupied(mut line) => line.get_mut().insert(&self.turn),
            }
        }
        self.is_not_aside();
    }

    fn is_not_aside(&self) {
        let mut aside = self.lines.aside();
        for key in self.keys.all() {
            if let Entry::Occupied(mut entry) = aside.entry(key.clone()) {
                entry.get_mut().remove(&self.turn.number);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }

    /// Whether no waiter that came earlier is still without a lock. The first waiter may queue on the masters for all.
    pub(crate) fn is_first(&self) -> bool {
        let map = self.lines.map();
        let aside = self.lines.aside();
        let first = |key: &Arc<[u8]>| {
            let others = aside.get(key).and_then(BTreeSet::first);
            map.get(key).is_some_and(|line| line.is_front(&self.turn))
                && others.is_none_or(|other| *other > self.turn.number)
        };
        self.stands == Stands::Beside || self.keys.all().iter().all(first)
    }

    /// Waits until this waiter is the first, or a lock of this process has ended since
    /// [`forget_wakes`](Self::forget_wakes).
    pub(crate) async fn first(&self) {
        let turn = &self.turn;
        while !self.is_first() && turn.woken.load(Ordering::Acquire) != EVERYWHERE {
            turn.called.notified().await;
        }
    }

    /// Stores which slots other processes hold, as a bit mask.
    pub(crate) fn learn(&self, elsewhere: u64) {
        self.turn.learn(elsewhere);
    }

    /// Records that this waiter got a slot: no other process holds it.
    pub(crate) fn got(&self, slot: u8) {
        self.learn(self.turn.elsewhere() & !(1 << slot));
    }

    /// Whether this place is in the queues.
    pub(crate) fn is_in_line(&self) -> bool {
        self.stands == Stands::InLine
    }

    pub(crate) fn is_front(&self) -> bool {
        if !self.is_in_line() {
            return true;
        }
        let map = self.lines.map();
        let front = |key: &Arc<[u8]>| map.get(key).is_some_and(|line| line.is_front(&self.turn));
        self.keys.all().iter().all(front)
    }

    /// The number of waiters before it in this process.
    pub(crate) fn ahead(&self) -> u64 {
        let turn = &self.turn;
        let map = self.lines.map();
        let before = |line: &LocalLine| {
            if line.is_front(turn) {
                return 0;
            }
            let behind = line.behind.iter().flat_map(|behind| behind.iter());
            1 + behind.take_while(|other| !Arc::ptr_eq(other, turn)).count() as u64
        };
        let lines = self.keys.all().iter().filter_map(|key| map.get(key));
        lines.map(before).max().unwrap_or_default()
    }

    /// Waits for its turn.
    pub(crate) async fn front(&self) {
        while !self.is_front() {
            // A notification before the wait is kept.
            self.turn.called.notified().await;
        }
    }

    /// Marks the front as holder. It keeps its place until [`LocalLines::pass_on`], and receives no more notifications.
    pub(crate) fn hold(self) -> Arc<LocalLines> {
        let mut map = self.lines.map();
        for key in self.keys.all() {
            if let Some(line) = map.get_mut(key) {
                line.front = None;
            }
        }
        drop(map);
        // `self` is no longer in the queue, so dropping it passes nothing on.
        self.lines.clone()
    }

    /// Stores what the waiters behind should know about the lock.
    pub(crate) fn tell(&self, heard: Option<Heard>) {
        *self.turn.heard() = heard;
    }

    /// The front's knowledge about the lock.
    pub(crate) fn told(&self) -> Option<Heard> {
        let map = self.lines.map();
        let mut lines = self.keys.all().iter().filter_map(|key| map.get(key));
        let other = lines.find(|line| !line.is_front(&self.turn));
        match other.filter(|_| self.is_in_line()) {
            Some(line) => line.told(),
            None => self.turn.heard().clone(),
        }
    }

    /// Discards the wake-ups so far. Called right before an attempt, which sees the state that caused them.
    pub(crate) fn forget_wakes(&self) {
        self.turn.woken.store(0, Ordering::Release);
    }

    /// Waits until a majority of `quorum` may be free: masters that sent a wake-up, plus those that were `free` in the
    /// last attempt. With fewer wake-ups, waits until [`GRACE`] after the first one. Ends at `at` in any case.
    pub(crate) async fn woken(
        &self,
        runtime: &dyn Runtime,
        free: MasterSet,
        quorum: Quorum,
        at: Instant,
    ) {
        let turn = &self.turn;
        let mut limit = at;
        let mut sleep = runtime.sleep_until(limit);
        loop {
            let woken = turn.woken.load(Ordering::Acquire);
            if woken != 0 && quorum.is_met_by(MasterSet::of_bits(woken).or(free)) {
                return;
            }
            let now = runtime.now();
            if woken != 0 && now + GRACE < limit {
                limit = now + GRACE;
                sleep = runtime.sleep_until(limit);
            }
            if now >= limit {
                return;
            }
            let called = std::pin::pin!(turn.called.notified());
            futures::future::select(called, &mut sleep).await;
        }
    }
}

impl Place {
    /// Leaves each queue, and notifies the next waiter.
    fn leave(&self) {
        let turn = &self.turn;
        for key in self.keys.all() {
            let mut map = self.lines.map();
            let Entry::Occupied(mut entry) = map.entry(key.clone()) else {
                continue;
            };
            let line = entry.get_mut();
            if line.is_front(turn) {
                let next = line.advance();
                if next.is_none() {
                    entry.remove();
                }
                drop(map);
                if let Some(next) = next {
                    next.called.notify_one();
                }
            } else if let Some(behind) = &mut line.behind {
                behind.retain(|other| !Arc::ptr_eq(other, turn));
                if behind.is_empty() {
                    line.behind = None;
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.stands {
            Stands::InLine => self.leave(),
            Stands::Beside => self.is_not_beside(),
            Stands::Aside => {
                self.is_not_aside();
                // Another waiter may be the first now.
                let fronts = self
                    .keys
                    .all()
                    .iter()
                    .filter_map(|key| self.lines.front(key));
                fronts.for_each(|front| front.called.notify_one());
            }
        }
    }
}

impl Place {
    fn is_not_beside(&self) {
        let mut beside = self.lines.beside();
        for key in self.keys.all() {
            if let Entry::Occupied(mut entry) = beside.entry(key.clone()) {
                entry
                    .get_mut()
                    .retain(|other| !Arc::ptr_eq(other, &self.turn));
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }
}

#[cfg(all(test, not(quorate_loom)))]
mod tests;

#[cfg(all(test, quorate_loom))]
mod models {
    use loom::future::block_on;
    use loom::thread;

    use super::*;
    use crate::runtime::BoxFuture;

    fn key() -> Arc<[u8]> {
        Arc::from(&b"job"[..])
    }

    fn job() -> Wanted {
        Wanted::exclusive(key())
    }

    /// Runs `deed` in another thread.
    fn does(deed: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
        thread::spawn(deed)
    }

    fn all_end<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn no_order_of_threads_loses_the_turn_of_a_front_that_leaves() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let [first, second, third] = [(); 3].map(|()| lines.enter(&job()));
            let leave = [does(move || drop(first)), does(move || drop(second))];
            block_on(third.front());
            all_end(leave);
            drop(third);
            assert!(lines.map().is_empty());
        });
    }

    #[test]
    fn no_order_of_threads_loses_the_turn_of_a_holder() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let holder = lines.enter(&job()).hold();
            let [second, third] = [(); 2].map(|()| lines.enter(&job()));
            let ends = [
                does(move || holder.pass_on(&key())),
                // It leaves at the moment when it is notified.
                does(move || drop(second)),
            ];
            block_on(third.front());
            all_end(ends);
        });
    }

    #[test]
    fn no_order_of_threads_lets_a_newcomer_wait_behind_nobody() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let holder = lines.enter(&job()).hold();
            let ends = does(move || holder.pass_on(&key()));
            let place = lines.enter(&job());
            block_on(place.front());
            all_end([ends]);
        });
    }

    fn slot() -> Wanted {
        Wanted::slot(permit())
    }

    fn permit() -> Permit {
        Permit::new(key(), 0, 2)
    }

    #[test]
    fn no_order_of_threads_leaves_anybody_waiting_to_be_the_first() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let [mut first, second] = [(); 2].map(|()| lines.enter(&slot()));
            first.step_aside();
            // It asks without success, returns, and leaves.
            let ends = does(move || {
                first.step_back();
                assert!(first.is_first());
                drop(first);
            });
            block_on(second.first());
            all_end([ends]);
            drop(second);
            assert!(lines.map().is_empty() && lines.aside().is_empty());
        });
    }

    #[test]
    fn no_order_of_threads_lets_two_be_the_first() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let [mut first, mut second] = [(); 2].map(|()| lines.enter(&slot()));
            first.step_aside();
            second.step_aside();
            let [one, other] = [first, second].map(|mut place| {
                does(move || {
                    place.step_back();
                    block_on(place.first());
                    assert!(place.is_first() && place.is_front());
                })
            });
            all_end([one, other]);
            assert!(lines.map().is_empty() && lines.aside().is_empty());
        });
    }

    #[test]
    fn no_order_of_threads_lets_a_release_here_be_slept_through() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let key = permit().key();
            lines.hold([key.clone()].iter());
            let place = lines.enter(&slot());
            let held = lines.clone();
            let ends = does(move || held.let_go(&key, Some(&permit())));
            place.forget_wakes();
            // A slot that is free by now is seen, and a slot that becomes free later wakes the waiter.
            if lines.own_slots(&permit(), None).0 != 0 {
                block_on(place.woken(&Still, MasterSet::default(), Quorum::of(3), Instant::NEVER));
            }
            all_end([ends]);
        });
    }

    /// A clock that does not move.
    struct Still;

    impl Runtime for Still {
        fn now(&self) -> Instant {
            Instant::from_nanos(0)
        }

        fn wall_micros(&self) -> u64 {
            0
        }

        fn sleep_until(&self, _: Instant) -> BoxFuture<()> {
            Box::pin(std::future::pending())
        }

        fn spawn(&self, _: BoxFuture<()>) -> bool {
            false
        }

        fn random(&self, _: &mut [u8]) {}
    }

    #[test]
    fn no_order_of_threads_lets_the_wake_ups_of_a_majority_be_slept_through() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let place = lines.enter(&job());
            place.forget_wakes();
            let wakes = [0, 1].map(|node| {
                let lines = lines.clone();
                does(move || lines.woken(node, &key()))
            });
            block_on(place.woken(&Still, MasterSet::default(), Quorum::of(3), Instant::NEVER));
            all_end(wakes);
        });
    }

    #[test]
    fn no_order_of_threads_sends_a_wake_up_to_a_front_that_is_gone() {
        crate::sync::model(|| {
            let lines = LocalLines::new();
            let [first, second] = [(); 2].map(|()| lines.enter(&job()));
            let leaves = does(move || drop(first));
            block_on(second.front());
            // A wake-up from now on is for the second waiter.
            let wakes = lines.clone();
            let wakes = does(move || wakes.woken(1, &key()));
            block_on(second.woken(&Still, MasterSet::first(1), Quorum::of(3), Instant::NEVER));
            all_end([leaves, wakes]);
        });
    }
}
