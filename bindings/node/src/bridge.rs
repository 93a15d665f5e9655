//! The connection between one JavaScript environment (the main thread, or one worker) and the native threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use napi::bindgen_prelude::{Function, Result};
use napi_derive::napi;
use quorate::blocking::BackgroundTask;
use tokio::sync::oneshot;

use crate::call::Call;
use crate::guard::NativeGuard;
use crate::home::Home;
use crate::log;
use crate::mailbox::{Content, Mailbox, Message};
use crate::sync::lock;

/// How long the end of the process waits until the releases have been sent. The threads then have 50 ms to end.
const EXIT_LIMIT: Duration = Duration::from_millis(350);

/// One message to JavaScript.
#[napi(object, object_from_js = false)]
pub struct NativeMessage {
    /// The number of the call; 0 for a log record.
    pub call: i64,
    /// The reply to a call that acquired a lock.
    pub guard: Option<NativeGuard>,
    /// The reply to any other call that succeeded, as JSON.
    pub value: Option<String>,
    /// The reply to a call that failed, as JSON.
    pub failure: Option<String>,
    /// An event that is not a reply, as JSON.
    pub notice: Option<String>,
}

/// The calls of one JavaScript environment. Exactly one exists for each copy of the JavaScript module.
#[napi]
pub struct Bridge {
    pub(crate) mailbox: Arc<Mailbox>,
    next_call: AtomicI64,
    /// The tasks of calls whose reply JavaScript has not taken.
    running: Mutex<HashMap<i64, BackgroundTask>>,
    /// The bodies that run in JavaScript while a task waits for their end: whether the body succeeded.
    pub(crate) bodies: Mutex<HashMap<i64, oneshot::Sender<bool>>>,
    homes: Mutex<Vec<Weak<Home>>>,
}

/// The home threads of all JavaScript environments of this process.
static ALL_HOMES: Mutex<Vec<Weak<Home>>> = Mutex::new(Vec::new());

/// Adds a home thread to a list, and removes those that have ended.
fn add_home_to(list: &Mutex<Vec<Weak<Home>>>, home: &Arc<Home>) {
    let mut homes = lock(list);
    homes.retain(|home| home.strong_count() > 0);
    homes.push(Arc::downgrade(home));
}

#[napi]
impl Bridge {
    /// `ring` is called when messages wait. It must call `take`.
    #[napi(constructor)]
    pub fn new(ring: Function<'_, (), ()>) -> Result<Self> {
        let bell = ring
            .build_threadsafe_function::<()>()
            .callee_handled::<false>()
            .weak::<true>()
            .build()?;
        Ok(Self {
            mailbox: Arc::new(Mailbox::new(bell)),
            next_call: AtomicI64::new(1),
            running: Mutex::default(),
            bodies: Mutex::default(),
            homes: Mutex::default(),
        })
    }

    /// Takes all messages.
    #[napi]
    pub fn take(&self) -> Vec<NativeMessage> {
        let messages = self.mailbox.take();
        let (mut running, mut bodies) = (lock(&self.running), lock(&self.bodies));
        let to_js = |message: Message| {
            let mut js_message = NativeMessage {
                call: message.call,
                guard: None,
                value: None,
                failure: None,
                notice: None,
            };
            if !matches!(message.content, Content::Notice(_)) {
                running.remove(&message.call);
                // A body that did not run: its period was done already, or the call failed.
                bodies.remove(&message.call);
            }
            match message.content {
                Content::Guard(held_lock) => js_message.guard = Some(NativeGuard::new(held_lock)),
                Content::Value(value) => js_message.value = Some(value.to_string()),
                Content::Failure(failure) => js_message.failure = Some(failure.to_string()),
                Content::Notice(notice) => js_message.notice = Some(notice.to_string()),
            }
            js_message
        };
        messages.into_iter().map(to_js).collect()
    }

    /// Cancels a call: drops its future, and the library then releases everything that the call got.
    #[napi]
    pub fn abort(&self, call: i64) {
        lock(&self.bodies).remove(&call);
        if let Some(task) = lock(&self.running).remove(&call) {
            task.abort();
        }
    }

    /// Reports the end of a body that ran in JavaScript.
    #[napi]
    pub fn end_body(&self, call: i64, has_succeeded: bool) {
        if let Some(body) = lock(&self.bodies).remove(&call) {
            let _ = body.send(has_succeeded);
        }
    }

    /// How many calls have no reply that JavaScript has taken, and how many bodies have not ended.
    #[napi]
    pub fn open_calls(&self) -> u32 {
        (lock(&self.running).len() + lock(&self.bodies).len()) as u32
    }

    /// Sends the library's log records of this level and more important levels to this environment. An unknown level
    /// turns the records off.
    #[napi]
    pub fn log(&self, level: String) {
        log::send_to(&self.mailbox, &level);
    }

    /// For the end of a worker, or with `is_process` for the end of the process and so of all its workers: cancels all
    /// calls, releases all held locks, and waits until the releases have been sent, for at most 400 ms. Returns how many
    /// locks were held.
    #[napi]
    pub fn release_all(&self, is_process: bool) -> u32 {
        let deadline = Instant::now() + EXIT_LIMIT;
        self.end();
        let homes = if is_process { &ALL_HOMES } else { &self.homes };
        let homes: Vec<Arc<Home>> = lock(homes).iter().filter_map(Weak::upgrade).collect();
        let held: u32 = homes.iter().map(|home| home.release_all()).sum();
        for home in &homes {
            home.request_end();
        }
        for home in &homes {
            home.wait_for_end(deadline);
        }
        held
    }
}

impl Bridge {
    /// Registers a home thread whose locks `release_all` releases.
    pub(crate) fn add_home(&self, home: &Arc<Home>) {
        add_home_to(&self.homes, home);
        add_home_to(&ALL_HOMES, home);
    }

    /// Starts the task of a call on the home thread, and returns the number of the call. The home thread does not end
    /// before the task, even if JavaScript has no object of it any more.
    pub(crate) fn start<T: Future<Output = ()> + Send + 'static>(
        &self,
        home: &Arc<Home>,
        task: impl FnOnce(Call) -> T,
    ) -> i64 {
        let number = self.next_call.fetch_add(1, Ordering::Relaxed);
        let call = Call::new(number, self.mailbox.clone());
        let (task, task_home) = (task(call), home.clone());
        let kept_task = async move {
            task.await;
            drop(task_home);
        };
        // The reply cannot be taken before the handle is in the map, because only this thread takes replies.
        if let Some(task) = home.spawn(kept_task) {
            lock(&self.running).insert(number, task);
        }
        number
    }

    /// Closes the mailbox and cancels all calls.
    fn end(&self) {
        self.mailbox.close();
        lock(&self.bodies).clear();
        for (_, task) in lock(&self.running).drain() {
            task.abort();
        }
    }
}

/// At the end of a worker that was terminated, JavaScript does not call `release_all`. Node.js waits for this drop.
impl Drop for Bridge {
    fn drop(&mut self) {
        self.release_all(false);
    }
}
