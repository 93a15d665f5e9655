//! Tests of masters that answer the handshake and then misbehave. The tests check that:
//!
//! - every call ends within its time limit
//! - acquires do not become much slower if a majority of the masters is good
//! - no error names a holder that does not exist
//!
//! With `--nocapture`, the tests print the largest delay beyond the time limit for each kind of call. The goal is at
//! most 100 ms. The tests allow a second, because the machine may be busy.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::support::listener::Listener;
use crate::support::{eventually, masters, ms, secs, settings, take};
use futures::future::{join, join_all};
use quorate::{AcquireError, LockGuard, Redlock, RedlockBuilder, StatusVerdict, TryAcquire, Wait};
use quorate_testbed::{
    AfterHandshake, AnswerBytes, Fault as Harm, Hostile, Proxy, Script, Server, Tampering, Way,
};

/// The node timeout. It exceeds the default of 50 ms, because a good server on a busy machine sometimes needs more.
const NODE_TIMEOUT: Duration = ms(200);

/// The longest wait of each acquire for its lock.
const WAIT: Duration = secs(1);

/// The time by which a call may exceed its time limit on a busy machine. The bugs that these tests look for delay calls
/// by at least 4 s.
const MARGIN: Duration = secs(1);

/// The number of tasks that acquire locks while the fault is active.
const TASKS: usize = 64;

/// The number of acquire attempts right after the fault is injected. Each attempt leaves a pending release for every
/// master that does not answer.
const PENDING_RELEASES: usize = 704;

/// The number of concurrent attempts. The [`PENDING_RELEASES`] attempts are made in batches of this size.
const BURST: usize = 88;

/// The number of locks that are held when the fault is injected.
const HELD_LOCKS: usize = 8;

fn settings_for<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedlockBuilder {
    settings(urls)
        .node_timeout(NODE_TIMEOUT)
        .wait(Wait::For(WAIT))
}

/// An address on which no server listens.
fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there must be a free port");
    format!("redis://{}", listener.local_addr().expect("bound"))
}

fn start(script: Script) -> Hostile {
    Hostile::start(script).expect("the hostile server must start")
}

fn relaying(server: &Server, tampering: Tampering) -> Script {
    let target = server.addr();
    Script::Relay { target, tampering }
}

fn after_handshake(words: &str) -> Script {
    Script::Greet(AfterHandshake::Say(words.into()))
}

fn flooding(first: &str, rest: &str) -> Script {
    Script::Greet(AfterHandshake::Flood {
        first: first.into(),
        rest: rest.into(),
    })
}

/// The other two masters of a test scene, in addition to the hostile master.
#[derive(Clone, Copy, Debug)]
enum OtherServers {
    NoOther,
    OneGoodOneDead,
    TwoGood,
}

/// The results of all calls in one test scene.
#[derive(Default)]
struct CallResults {
    /// For each kind of call: its name, the largest delay beyond the time limit, and the number of calls.
    excess_by_call: Vec<(&'static str, Duration, u32)>,
    /// For each acquire that got its lock: the time from the call to the acquisition.
    acquire_times: Vec<Duration>,
    /// The errors of failed acquires and extensions.
    errors: Vec<String>,
    /// The text of an error that named another holder of the lock. Such an error is wrong, because no other client ever
    /// requested the lock. `None` if there was no such error.
    false_holder: Option<String>,
}

/// A test scene: a client of one hostile master and of the other masters of a [`OtherServers`].
struct Scene {
    redlock: Redlock,
    hostile: Hostile,
    name: String,
    results: Mutex<CallResults>,
}

impl Scene {
    /// Starts the hostile master, and a client of this master and of the masters in `others`. Before the fault is
    /// injected, the hostile master relays all commands to a good server.
    fn start_scene(good_servers: &[Server], others: OtherServers, is_fair: bool) -> Self {
        let hostile = start(relaying(&good_servers[2], Tampering::None));
        let urls = match others {
            OtherServers::NoOther => vec![hostile.url()],
            OtherServers::OneGoodOneDead => {
                vec![good_servers[0].url(), unused_address(), hostile.url()]
            }
            OtherServers::TwoGood => {
                vec![good_servers[0].url(), good_servers[1].url(), hostile.url()]
            }
        };
        let builder = settings_for(urls);
        let builder = if is_fair {
            builder
        } else {
            builder.order(quorate::Order::Unordered)
        };
        let order_name = if is_fair { "in order" } else { "unordered" };
        Self {
            redlock: builder.build().expect("good settings"),
            name: format!("{others:?}, {order_name}, {}", hostile.addr().port()),
            hostile,
            results: Mutex::default(),
        }
    }

    fn results(&self) -> MutexGuard<'_, CallResults> {
        self.results.lock().expect("no panic")
    }

    /// Makes one call, which should end within `limit`. Records by how much the call exceeded this limit.
    async fn record_call<T>(
        &self,
        call: &'static str,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> T {
        let started_at = Instant::now();
        let result = future.await;
        let excess = started_at.elapsed().saturating_sub(limit);
        let excess_by_call = &mut self.results().excess_by_call;
        match excess_by_call.iter_mut().find(|(name, ..)| *name == call) {
            Some((_, largest, count)) => (*largest, *count) = (excess.max(*largest), *count + 1),
            None => excess_by_call.push((call, excess, 1)),
        }
        result
    }

    async fn try_acquire(&self, call: &'static str, resource: &str) -> Option<LockGuard> {
        let try_acquire = self.redlock.try_acquire(resource);
        match self.record_call(call, NODE_TIMEOUT, try_acquire).await {
            Ok(TryAcquire::Acquired(guard)) => return Some(guard),
            Ok(TryAcquire::Held(refusal)) => {
                self.results().false_holder = Some(format!("{call}: {refusal:?}"));
            }
            Err(error) => self.results().errors.push(error.details()),
        }
        None
    }

    async fn wait(&self, resource: &str) -> Option<LockGuard> {
        let started_at = Instant::now();
        let outcome = self
            .record_call("wait", WAIT, self.redlock.acquire(resource))
            .await;
        let mut results = self.results();
        match outcome {
            Ok(guard) => {
                results.acquire_times.push(started_at.elapsed());
                return Some(guard);
            }
            Err(error @ AcquireError::HeldByOther(_)) => {
                results.false_holder = Some(error.details());
            }
            Err(error) => results.errors.push(error.details()),
        }
        None
    }

    /// Calls every method of a held lock, and records how long each call took.
    async fn use_guard(&self, guard: LockGuard) {
        let resource = guard.resource().to_vec();
        let extended = self
            .record_call("extend", NODE_TIMEOUT, guard.extend(secs(30)))
            .await;
        let refusal = extended.err().map(|error| error.details());
        self.results().errors.extend(refusal);
        self.read_status(&resource).await;
        self.record_call("release", NODE_TIMEOUT, guard.release())
            .await;
    }

    async fn read_status(&self, resource: &[u8]) {
        let status = self.redlock.status(resource);
        let status = self.record_call("status", NODE_TIMEOUT, status).await;
        status.expect("the name must be valid");
    }

    /// Runs the scene in this order: acquires some locks, injects the fault, makes attempts that leave pending
    /// releases, and lets many tasks use every method at the same time.
    async fn run_scene(&self, fault: Script) {
        let name = &self.name;
        let mut held_locks = Vec::new();
        for n in 0..HELD_LOCKS {
            held_locks.push(take(&self.redlock, &format!("{name}, held {n}")).await);
        }
        self.hostile.play(fault);
        for burst in 0..PENDING_RELEASES / BURST {
            let attempts = (0..BURST).map(|n| async move {
                let resource = format!("{name}, pending {burst} {n}");
                drop(self.try_acquire("burst", &resource).await);
            });
            join_all(attempts).await;
        }
        let count_masters_with = held_locks.into_iter().map(|guard| self.use_guard(guard));
        let callers = (0..TASKS).map(|n| async move {
            let resource = format!("{name}, {n}");
            let guard = if n % 2 == 0 {
                self.wait(&resource).await
            } else {
                self.try_acquire("try", &resource).await
            };
            match guard {
                Some(guard) => self.use_guard(guard).await,
                None => self.read_status(resource.as_bytes()).await,
            }
        });
        join(join_all(count_masters_with), join_all(callers)).await;
    }

    /// Prints the results of the scene. `kind` is the kind of fault.
    fn print_results(&self, kind: &str) {
        let mut results = self.results();
        results.acquire_times.sort();
        let mut result_line = format!("{kind} | {}", self.name);
        for (call, excess, count) in &results.excess_by_call {
            let _ = write!(
                result_line,
                " | {call} ({count} calls): latest end {} ms after its limit",
                excess.as_millis()
            );
        }
        if let Some(median_acquire_time) = results.median_acquire_time() {
            let _ = write!(
                result_line,
                " | {} calls acquired the lock, median time {median_acquire_time:.1?}",
                results.acquire_times.len()
            );
        }
        println!("{result_line} | {} connections", self.hostile.accepted());
    }

    /// Returns a description of each violation that this scene shows. `control` contains the results of the same calls
    /// in a scene without a fault.
    fn violations(&self, others: OtherServers, control: &CallResults) -> Vec<String> {
        let results = self.results();
        let mut texts = Vec::new();
        let margin = MARGIN + 2 * control.largest_excess();
        for (call, excess, _) in &results.excess_by_call {
            if *excess > margin {
                texts.push(format!(
                    "{call} ended {excess:.1?} after its limit, but at most {margin:.1?} is allowed"
                ));
            }
        }
        if let Some(holder_text) = &results.false_holder {
            texts.push(format!(
                "the refusal names a holder that does not exist: {holder_text}"
            ));
        }
        if matches!(others, OtherServers::TwoGood) {
            // A slow machine may make up to a quarter of all calls fail. With the bugs that these tests look for,
            // nearly all calls fail.
            let call_count: u32 = results.excess_by_call.iter().map(|(.., count)| count).sum();
            if results.errors.len() > control.errors.len() + call_count as usize / 4 {
                let (count, first) = (results.errors.len(), &results.errors[0]);
                texts.push(format!(
                    "{count} of {call_count} calls failed, the first with: {first}"
                ));
            }
            let control_median = control.median_acquire_time().unwrap_or(WAIT);
            if let Some(median_acquire_time) = results
                .median_acquire_time()
                .filter(|m| *m > 4 * control_median + WAIT / 4)
            {
                texts.push(format!(
                    "the median acquire took {median_acquire_time:.1?}, but only {control_median:.1?} without a hostile master"
                ));
            }
        }
        let in_this_scene = |text| format!("{}: {text}", self.name);
        texts.into_iter().map(in_this_scene).collect()
    }
}

impl CallResults {
    fn largest_excess(&self) -> Duration {
        let excesses = self.excess_by_call.iter().map(|(_, excess, _)| *excess);
        excesses.max().unwrap_or_default()
    }

    /// The median of the times in `acquire_times`, which must be sorted. `None` if no acquire got its lock.
    fn median_acquire_time(&self) -> Option<Duration> {
        self.acquire_times
            .get(self.acquire_times.len() / 2)
            .copied()
    }
}

/// Runs one kind of fault in a scene for each `OtherServers`, with ordered and with unordered waiters. Returns a description
/// of each violation.
///
/// All scenes run at the same time. One more scene without a fault shows how much the busy machine delays calls.
async fn run_scenes(kind: &'static str, fault: impl Fn(&[Server]) -> Script) -> Vec<String> {
    let good_servers = masters(3);
    let run_scene = |scene: Arc<Scene>, script: Script| async move {
        // Run each scene on a separate task, so that no scene waits for another.
        let run_scene = tokio::spawn(async move {
            scene.run_scene(script).await;
            scene
        });
        run_scene.await.expect("no panic")
    };
    let all_others = [
        OtherServers::NoOther,
        OtherServers::OneGoodOneDead,
        OtherServers::TwoGood,
    ];
    let scenes = all_others.into_iter().flat_map(|others| {
        [true, false].map(|is_fair| {
            let scene = Arc::new(Scene::start_scene(&good_servers, others, is_fair));
            let played = run_scene(scene, fault(&good_servers));
            async move { (played.await, others) }
        })
    });
    let control_scene = Arc::new(Scene::start_scene(
        &good_servers,
        OtherServers::TwoGood,
        true,
    ));
    let finished_control = run_scene(control_scene, relaying(&good_servers[2], Tampering::None));
    let (scenes, finished_control) = join(join_all(scenes), finished_control).await;
    finished_control.print_results("no trouble");
    for (scene, _) in &scenes {
        scene.print_results(kind);
    }
    let control_results = finished_control.results();
    assert_eq!(control_results.false_holder, None);
    let verdicts = scenes
        .iter()
        .map(|(scene, others)| scene.violations(*others, &control_results));
    verdicts.flatten().collect()
}

/// Runs a future that may block its runtime or hang. Fails the test if the future does not end within a minute.
fn run_within_a_minute<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (done, when_done) = std::sync::mpsc::channel();
    runtime.spawn(async move { done.send(future.await) });
    let outcome = when_done.recv_timeout(secs(60));
    runtime.shutdown_background();
    outcome.expect("the test must end within a minute, without a panic")
}

/// Each of these tests makes thousands of calls with short time limits. So it locks this mutex, and no other of these
/// tests runs at the same time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Defines one test for each kind of fault.
macro_rules! survives {
    ($($name:ident: $kind:literal, $fault:expr;)+) => {$(
        #[test]
        fn $name() {
            let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            let texts = run_within_a_minute(run_scenes($kind, $fault));
            assert!(texts.is_empty(), "{}:\n{}", $kind, texts.join("\n"));
        }
    )+};
}

survives! {
    calls_end_in_time_if_a_master_hangs_up_after_the_handshake: "hangs up after the handshake",
        |_| Script::Greet(AfterHandshake::HangUp);
    calls_end_in_time_if_a_master_hangs_up_at_the_first_request: "hangs up at the first request",
        |_| Script::Greet(AfterHandshake::HangUpAfter { commands: 0, words: "".into() });
    calls_end_in_time_if_a_master_hangs_up_after_some_answers: "hangs up after three answers",
        |_| Script::Greet(AfterHandshake::HangUpAfter { commands: 3, words: "-ERR not now\r\n".into() });
    calls_end_in_time_if_a_master_never_answers: "silent", |_| Script::Hush;
    calls_end_in_time_if_a_master_is_silent_after_the_handshake: "silent after the handshake",
        |_| Script::Greet(AfterHandshake::Hush);
    calls_end_in_time_if_a_master_sends_garbage_after_the_handshake: "nonsense after the handshake",
        |_| Script::Greet(AfterHandshake::Say(AnswerBytes::Garbage(600)));
    calls_end_in_time_if_a_master_sends_garbage_in_the_handshake: "nonsense in the handshake",
        |_| Script::Say(AnswerBytes::Garbage(600));
    calls_end_in_time_if_a_master_sends_words_for_numbers: "words for numbers",
        |_| after_handshake("$3\r\nabc\r\n");
    calls_end_in_time_if_a_master_nests_errors_in_its_answers: "errors in arrays",
        |_| after_handshake("*3\r\n:1\r\n-ERR inside\r\n*1\r\n-OOM deeper\r\n");
    calls_end_in_time_if_a_master_sends_only_resp3_nulls: "null for everything", |_| after_handshake("_\r\n");
    calls_end_in_time_if_a_master_sends_garbage_after_a_null: "junk behind a null", |_| after_handshake("_junk\r\n");
    calls_end_in_time_if_a_master_sends_zero_as_the_fencing_counter: "counter 0", |_| after_handshake(":0\r\n");
    calls_end_in_time_if_a_master_sends_negative_fencing_counters: "counter -7", |_| after_handshake(":-7\r\n");
    calls_end_in_time_if_a_master_sends_fencing_counters_above_2_pow_53: "counter above 2^53",
        |_| after_handshake(":9223372036854775807\r\n");
    calls_end_in_time_if_a_master_sends_two_answers_to_each_request: "two answers each",
        |_| after_handshake(":1\r\n:1\r\n");
    calls_end_in_time_if_each_answer_of_a_master_belongs_to_the_previous_request: "answers shifted by one",
        |good_servers| relaying(&good_servers[2], Tampering::Slip(":1\r\n".into()));
    calls_end_in_time_if_a_master_answers_byte_by_byte: "byte by byte", |good_servers| relaying(&good_servers[2], Tampering::Bytewise);
    calls_end_in_time_if_a_master_sends_pushes_without_end: "pushes without end",
        |_| flooding("", ">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n");
    calls_end_in_time_if_a_master_announces_an_answer_of_gigabytes: "gigabytes", |_| flooding("$4294967296\r\n", "x");
    calls_end_in_time_if_a_master_sends_arrays_nested_without_end: "nesting without end", |_| flooding("", "*1\r\n");
    calls_end_in_time_if_a_master_sends_a_line_without_end: "a line without end", |_| flooding("+", "x");
    calls_end_in_time_if_a_master_has_reached_its_connection_limit: "max number of clients",
        |_| Script::Dismiss("-ERR max number of clients reached\r\n".into());
    calls_end_in_time_if_a_master_has_another_password: "wrong password",
        |_| Script::Say("-WRONGPASS invalid username-password pair\r\n".into());
    calls_end_in_time_if_a_master_repeats_unknown_commands_in_its_errors: "quotes", |_| Script::Quote;
}

/// The number of connections that a client makes in four seconds to a master that behaves as `script` says. During this
/// time, the client acquires locks continuously, and its two other masters are good.
async fn connections_of_a_client_in_four_seconds(script: Script) -> u64 {
    let good_servers = masters(2);
    let hostile = start(script);
    let urls = [good_servers[0].url(), good_servers[1].url(), hostile.url()];
    let redlock = settings_for(urls).build().expect("good settings");
    let started_at = Instant::now();
    let mut n = 0;
    while started_at.elapsed() < secs(4) {
        n += 1;
        drop(redlock.try_acquire(format!("job {n}")).await);
        tokio::time::sleep(ms(5)).await;
    }
    hostile.accepted()
}

/// Runs each script on a separate hostile master for four seconds. Returns a text for each script with which the client
/// made `max_connections` or more connections.
async fn excessive_connections(
    scripts: Vec<(&'static str, Script)>,
    max_connections: u64,
) -> Vec<String> {
    let script_tasks = scripts.into_iter().map(|(kind, script)| async move {
        let calls = connections_of_a_client_in_four_seconds(script).await;
        println!("{kind}: the client made {calls} connections in 4 s");
        (calls >= max_connections).then(|| format!("{kind}: {calls}"))
    });
    join_all(script_tasks).await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_reconnects_with_growing_pauses_to_a_master_that_hangs_up() {
    // The client's pauses between connection attempts grow from 10 to 150 ms. So it must make fewer than 60 attempts in
    // four seconds.
    let answer_with = |commands| {
        let words = "-ERR not now\r\n".into();
        Script::Greet(AfterHandshake::HangUpAfter { commands, words })
    };
    let scripts = vec![
        (
            "hangs up after the handshake",
            Script::Greet(AfterHandshake::HangUp),
        ),
        ("hangs up at the first request", answer_with(0)),
        ("hangs up after three answers", answer_with(3)),
        (
            "says nonsense",
            Script::Greet(AfterHandshake::Say(AnswerBytes::Garbage(600))),
        ),
        (
            "says nonsense at once",
            Script::Say(AnswerBytes::Garbage(600)),
        ),
        ("hangs up at once", Script::Dismiss("".into())),
        ("floods", flooding("", "*1\r\n")),
    ];
    let excessive_connections = excessive_connections(scripts, 60).await;
    assert!(
        excessive_connections.is_empty(),
        "{excessive_connections:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_makes_few_connections_to_a_master_that_refuses_it_permanently() {
    let refusal_text = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    let scripts = vec![
        (
            "max number of clients",
            Script::Dismiss("-ERR max number of clients reached\r\n".into()),
        ),
        ("wrong password", Script::Say(refusal_text.into())),
    ];
    let excessive_connections = excessive_connections(scripts, 12).await;
    assert!(
        excessive_connections.is_empty(),
        "{excessive_connections:?}"
    );
}

#[tokio::test]
async fn replies_that_arrive_byte_by_byte_are_accepted() {
    let master = masters(1);
    let hostile = start(relaying(&master[0], Tampering::Bytewise));
    let builder = settings_for([hostile.url()]);
    let builder = builder.node_timeout(secs(5)).connect_timeout(secs(20));
    let redlock = builder.build().expect("good settings");
    for _ in 0..3 {
        let guard = take(&redlock, "job").await;
        guard.extend(secs(30)).await.expect("extended");
        let held_status = redlock
            .status("job")
            .await
            .expect("the name must be valid")
            .verdict();
        assert!(
            matches!(held_status, StatusVerdict::Held(_)),
            "{held_status:?}"
        );
        assert_eq!(guard.release().await.unreachable, 0);
        let free_status = redlock
            .status("job")
            .await
            .expect("the name must be valid")
            .verdict();
        assert_eq!(free_status, StatusVerdict::Free);
    }
    assert_eq!(
        hostile.accepted(),
        1,
        "the client must need only one connection"
    );
}

#[tokio::test]
async fn fencing_counter_outside_the_valid_range_is_not_used_as_a_token() {
    for counter in ["0", "-7", "9007199254740993", "9223372036854775807"] {
        let hostile = start(after_handshake(&format!(":{counter}\r\n")));
        let redlock = settings_for([hostile.url()]).order(quorate::Order::Unordered);
        let redlock = redlock.build().expect("good settings");
        let outcome = redlock.try_acquire("job").await;
        assert!(
            matches!(outcome, Err(AcquireError::NoQuorum(_))),
            "{counter}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn password_quoted_in_a_server_reply_appears_in_no_output() {
    const SECRET: &str = "s3cret";
    let listener = Listener::default();
    let _listening = listener.listen();
    let quoting_scripts = [
        Script::Quote,
        Script::Say(
            format!("-ERR no HELLO 3 AUTH default {SECRET}\r\n")
                .as_str()
                .into(),
        ),
        Script::Say(
            format!("-NOPERM {SECRET} is no password\r\n")
                .as_str()
                .into(),
        ),
        Script::Say(format!("+{SECRET}\r\n").as_str().into()),
    ];
    for script in quoting_scripts {
        let hostile = start(script);
        let url = format!("redis://:{SECRET}@{}", hostile.addr());
        let redlock = settings_for([url]).build().expect("good settings");
        let error = redlock.try_acquire("job").await.expect_err("no lock");
        let status = redlock.status("job").await;
        let all_texts = format!(
            "{} {error:?} {status:?} {}",
            error.details(),
            listener.output()
        );
        assert!(!all_texts.contains(SECRET), "{all_texts}");
    }
}

#[tokio::test]
async fn idle_connection_that_stops_responding_is_replaced_before_the_next_call() {
    let masters = masters(3);
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    let urls = proxies
        .iter()
        .map(|proxy| format!("redis://{}", proxy.addr()));
    let redlock = settings_for(urls).build().expect("good settings");
    take(&redlock, "job").await.release().await;
    redlock.flush().await;
    let accepted_before = proxies[1].counters().accepted;
    let started_at = Instant::now();
    let _hole = proxies[1].inject(Harm::Drop(Way::Both));
    eventually("the client must make a new connection", || {
        proxies[1].counters().accepted > accepted_before
    })
    .await;
    println!("noticed after {:.1?}", started_at.elapsed());
    // The client should notice within 5 s that the master is silent. The limit of 7 s allows for a busy machine.
    assert!(started_at.elapsed() < secs(7), "{:?}", started_at.elapsed());
    assert_eq!(
        proxies[0].counters().accepted,
        1,
        "the client must not connect again to the other masters"
    );
}
