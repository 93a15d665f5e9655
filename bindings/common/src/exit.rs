//! The end of the process: everything that is listed here is closed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quorate::fork::PerProcess;

/// Something that the end of the process must close.
pub(crate) trait Close: Send + Sync {
    /// Ends it, and waits at most 400 ms. Returns how many locks it held.
    fn close(&self) -> usize;
}

/// The list of everything that the end of this process must close.
#[derive(Default)]
struct List {
    in_use: Vec<Weak<dyn Close>>,
    /// Each stays here until its last work is done.
    ending: Vec<Arc<dyn Close>>,
}

/// The list of this process. A forked process begins with an empty list.
static LIST: PerProcess<Mutex<List>> = PerProcess::new();

fn list() -> MutexGuard<'static, List> {
    let list = LIST.get_or_init(Mutex::default);
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists something that is closed at the end of the process if it was not dropped before.
pub(crate) fn list_in_use(closed: Weak<dyn Close>) {
    let mut list = list();
    list.in_use.retain(|other| other.strong_count() > 0);
    list.in_use.push(closed);
}

/// The place of something in the list that has last work to do. Dropping this value removes it from the list.
pub(crate) struct Ending(Arc<dyn Close>);

impl Drop for Ending {
    fn drop(&mut self) {
        // This value still refers to it, so it is not dropped while the list is locked.
        list()
            .ending
            .retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(&self.0)));
    }
}

/// Lists something that has last work to do, and that is closed at the end of the process if the work is not done before.
pub(crate) fn list_ending(closed: Arc<dyn Close>) -> Ending {
    list().ending.push(closed.clone());
    Ending(closed)
}

/// Closes all of these at the same time. Returns how many locks they held.
pub(crate) fn close_together(all: &[Arc<dyn Close>]) -> usize {
    let Some((first, others)) = all.split_first() else {
        return 0;
    };
    let held = AtomicUsize::new(0);
    let close = |closed: &Arc<dyn Close>| {
        held.fetch_add(closed.close(), Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for closed in others {
            let thread = std::thread::Builder::new();
            if thread.spawn_scoped(scope, || close(closed)).is_err() {
                close(closed);
            }
        }
        close(first);
    });
    held.into_inner()
}

/// Closes all clients of this process at the same time: releases all locks that are still held, and waits until the
/// releases were sent, at most 400 ms. Returns how many locks were held.
pub fn close_all_clients() -> usize {
    let List { in_use, ending } = std::mem::take(&mut *list());
    let in_use = in_use.iter().filter_map(Weak::upgrade);
    let all: Vec<_> = in_use.chain(ending).collect();
    close_together(&all)
}
