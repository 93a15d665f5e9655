//! The local line of each resource, and the wake-ups of the masters.
//!
//! Within one process the waiters of one resource stand in line here, and only the first goes to
//! the masters: a thousand waiters cost no more messages than one. The first keeps its turn while
//! it holds the lock, so the next one's requests go out right behind its releases, on the same
//! connections, without waiting for an answer in between.
//!
//! It does not decide anything: whose turn it is here says only who may ask.

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

/// How long the first wake-up waits for those of the other masters: releases reach them all
/// within about a round trip of each other.
const GRACE: Duration = Duration::from_millis(2);

/// The lines of all resources of one process.
pub(crate) struct LocalLines {
    map: Mutex<HashMap<Arc<[u8]>, LocalLine>>,
    /// The locks that are held without a place in line, and the slots that are asked for.
    own: Arc<OwnLocks>,
    /// Who asks for a slot of its own beside the line of its semaphore, by number. To be locked with the lines, after
    /// them: who is the first of all depends on both.
    aside: Mutex<Aside>,
    /// How many have come so far.
    came: AtomicU64,
    /// Who asks for a key without a place in its line: readers, whose neighbours may ask as well, and
    /// owners, who pass everybody.
    beside: Mutex<Beside>,
    /// Who watches for new leaders.
    pub(crate) watchers: Watchers,
}

/// Who asks for each key without a place in its line.
type Beside = HashMap<Arc<[u8]>, Vec<Arc<Turn>>>;

/// Who asks for a slot of its own, by the line of the semaphore.
type Aside = HashMap<Arc<[u8]>, BTreeSet<u64>>;

/// One line. Most have a front only, so the rest is kept apart: ten thousand held locks are ten
/// thousand lines.
struct LocalLine {
    /// Who asks the masters; none once the front holds the lock.
    front: Option<Arc<Turn>>,
    #[expect(
        clippy::box_collection,
        reason = "one word in the many lines that have nobody behind"
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

    /// Lets one in before all who came later; but for a holder, which stays where it is.
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

    /// What its front knows.
    fn told(&self) -> Option<Heard> {
        match &self.front {
            None => Some(Heard::HERE),
            Some(front) => front.heard().clone(),
        }
    }

    /// The front leaves: the next one is it, and knows what this one knew. None when nobody is
    /// behind.
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

/// One waiter in a line.
struct Turn {
    /// Who came first has the smaller one.
    number: u64,
    /// Masters that said the lock may be free, as bits, since the last attempt was sent.
    woken: AtomicU64,
    /// Its turn has come, or a master woke it.
    called: Notify,
    /// What it knows, once it is the front.
    heard: Mutex<Option<Heard>>,
    /// The slots of a semaphore that other processes held at its last look, as bits.
    elsewhere: AtomicU64,
}

/// The wake-ups of all masters: something has changed in this process itself.
const EVERYWHERE: u64 = u64::MAX;

impl Turn {
    fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Ordering::Acquire)
    }

    fn learn(&self, elsewhere: u64) {
        self.elsewhere.store(elsewhere, Ordering::Release);
    }

    /// Taken after the map's lock, never before it.
    fn heard(&self) -> MutexGuard<'_, Option<Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the local lines of all keys of a lock; dropping it passes the turns on, unless it has become a
/// holder's.
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
    /// It has left the lines and asks beside others of its class.
    Beside,
    /// It has left the line for as long as it asks for a slot of its own.
    Aside,
}

/// The keys of a place; most have one.
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

    /// Whether this process holds a lock on it.
    pub(crate) fn is_held(&self, key: &[u8]) -> bool {
        let in_line = self.map().get(key).is_some_and(|line| line.front.is_none());
        in_line || self.own.is_held(key)
    }

    /// Notes a lock that is held without a place in line, until [`let_go`](Self::let_go).
    pub(crate) fn hold<'a>(
        self: &Arc<Self>,
        keys: impl Iterator<Item = &'a Arc<[u8]>>,
    ) -> Arc<Self> {
        self.own.hold(keys);
        self.clone()
    }

    /// Such a lock has ended. To be called once by each; where it was a slot, who waits for one may have it at once.
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

    /// Notes which slot is to be asked for by who waits at `place`, if it does: see [`OwnLocks::ask`].
    pub(crate) fn ask(&self, permit: &Permit, place: Option<&Place>, passes: bool) -> Asked {
        let elsewhere = place.map_or(0, |place| place.turn.elsewhere());
        self.own.ask(permit, elsewhere, passes)
    }

    /// The slots of a semaphore that this process holds, and those that others of it ask for: see
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

    /// Takes a place at the end of the line of each key: of all at one moment, so that no two wait for
    /// each other.
    pub(crate) fn enter(self: &Arc<Self>, wanted: &Wanted) -> Place {
        let mut map = self.map();
        // Numbered in the order in which they enter.
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

    /// For who passes everybody here: no place, but it is woken.
    pub(crate) fn ask_beside(self: &Arc<Self>, wanted: &Wanted) -> Place {
        let mut place = self.place(wanted);
        place.stand_beside();
        place
    }

    /// For a try, which waits for nobody: a place if the line is empty, none behind a lone front
    /// (the masters will say), and what the front knows if somebody waits here already. Where it
    /// knows nothing yet, the masters will say as well.
    pub(crate) fn enter_if_free(self: &Arc<Self>, wanted: &Wanted) -> Result<Option<Place>, Heard> {
        for key in wanted.keys() {
            match self.map().get(key) {
                None => {}
                Some(line) if line.behind.is_none() => return Ok(None),
                Some(line) => return line.told().map_or(Ok(None), Err),
            }
        }
        // Between the look and the entry another may have come: then this is not the front, and
        // a try does not wait.
        let place = self.enter(wanted);
        if place.is_front() {
            Ok(Some(place))
        } else {
            place.told().map_or(Ok(None), Err)
        }
    }

    /// The holder lets go: the next one in line has its turn. To be called once by each holder;
    /// a holder is always the front.
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
    /// Leaves the lines, so that who stands behind may ask as well; goes on being woken.
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

    /// Leaves the line for as long as it asks for a slot of its own, so that the next one may ask for another.
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

    /// Back into the line, before all who came later: also before a front, which waits behind it from now on.
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

    /// Whether nobody who came before it is still without a lock: such a one may wait at the masters for all.
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

    /// Waits until it is the first, or a lock has ended here since [`forget_wakes`](Self::forget_wakes).
    pub(crate) async fn first(&self) {
        let turn = &self.turn;
        while !self.is_first() && turn.woken.load(Ordering::Acquire) != EVERYWHERE {
            turn.called.notified().await;
        }
    }

    /// Notes which slots other processes hold, as bits.
    pub(crate) fn learn(&self, elsewhere: u64) {
        self.turn.learn(elsewhere);
    }

    /// Has got a slot, so that no other process holds it.
    pub(crate) fn got(&self, slot: u8) {
        self.learn(self.turn.elsewhere() & !(1 << slot));
    }

    /// Whether it stands in the lines.
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

    /// How many stand before it in this process.
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
            // A call that comes first is kept by the Notify.
            self.turn.called.notified().await;
        }
    }

    /// The front holds the lock now: it keeps its place until [`LocalLines::pass_on`], and needs no
    /// more calls.
    pub(crate) fn hold(self) -> Arc<LocalLines> {
        let mut map = self.lines.map();
        for key in self.keys.all() {
            if let Some(line) = map.get_mut(key) {
                line.front = None;
            }
        }
        drop(map);
        // Dropped, this place stands nowhere in the line any more, and passes nothing on.
        self.lines.clone()
    }

    /// Leaves word for those behind.
    pub(crate) fn tell(&self, heard: Option<Heard>) {
        *self.turn.heard() = heard;
    }

    /// What the front knows.
    pub(crate) fn told(&self) -> Option<Heard> {
        let map = self.lines.map();
        let mut lines = self.keys.all().iter().filter_map(|key| map.get(key));
        let other = lines.find(|line| !line.is_front(&self.turn));
        match other.filter(|_| self.is_in_line()) {
            Some(line) => line.told(),
            None => self.turn.heard().clone(),
        }
    }

    /// Forgets the wake-ups so far: right before an attempt is sent, which sees what they saw.
    pub(crate) fn forget_wakes(&self) {
        self.turn.woken.store(0, Ordering::Release);
    }

    /// Waits until so many masters may be free that a majority of `quorum` is possible, counting
    /// those that were `free` at the last attempt; or, with fewer wake-ups, a moment after the
    /// first; at the latest until `at`.
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
    /// Leaves each line, and calls who is next there.
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
                // Somebody may be the first now.
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

    /// In another thread.
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
                // It leaves as it is called.
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
            // It asks in vain, comes back, and leaves.
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
            // What is free by now is seen, and what becomes so later wakes.
            if lines.own_slots(&permit(), None).0 != 0 {
                block_on(place.woken(&Still, MasterSet::default(), Quorum::of(3), Instant::NEVER));
            }
            all_end([ends]);
        });
    }

    /// A clock that stands still.
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
            // What comes from now on is for the second.
            let wakes = lines.clone();
            let wakes = does(move || wakes.woken(1, &key()));
            block_on(second.woken(&Still, MasterSet::first(1), Quorum::of(3), Instant::NEVER));
            all_end([leaves, wakes]);
        });
    }
}
