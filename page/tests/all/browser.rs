//! Tests in Chromium. `page/tests/browser/scenarios.mjs` has the steps of each test; this file does what they ask for.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use quorate::{LockGuard, Redlock, RestartGuard};
use quorate_testbed::{Server, ServerOptions, not_run};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::served::{Masters, ServedPage, options, program, tools};

/// One browser at a time: several would slow each other down.
static TURN: Mutex<()> = Mutex::new(());

/// Names that must be shown as text: markup, text from right to left, control characters, bytes that are not UTF-8, and
/// the longest name.
fn hostile_names() -> Vec<Vec<u8>> {
    let longest = "x".repeat(quorate::MAX_RESOURCE_LEN);
    let texts = [
        "<img src=x onerror=alert(1)>",
        "a\u{202e}gpj.exe",
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
        "';alert(1)//\\\"</script>",
        &longest,
    ];
    let mut names: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    names.push(b"\xff\x1b[2Jbytes".to_vec());
    names
}

/// Carries out the requests of a scenario.
struct Stage {
    masters: Masters,
    page: Option<ServedPage>,
    port: u16,
    runtime: Runtime,
    redlock: Redlock,
    held: HashMap<String, LockGuard>,
    others: Vec<LockGuard>,
    waits: Vec<JoinHandle<()>>,
    /// The only master of a page with many locks: thousands of holders would keep the processor busy, so their keys are
    /// written directly.
    server: Option<Server>,
}

impl Stage {
    fn new(server: Option<Server>) -> Self {
        let masters = Masters::new();
        let page = match &server {
            None => ServedPage::start(&masters, options()),
            Some(server) => start_on(server),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            port: page.address.port(),
            page: Some(page),
            redlock: masters.redlock(),
            masters,
            runtime: runtime.expect("a runtime"),
            held: HashMap::new(),
            others: Vec::new(),
            waits: Vec::new(),
            server,
        }
    }

    fn act(&mut self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        match words[..] {
            ["lose_majority"] => self.masters.set_majority(false),
            ["restore_majority"] => self.masters.set_majority(true),
            ["hold", name, _] => {
                let guard = self
                    .runtime
                    .block_on(async { self.redlock.acquire(name).await });
                self.held
                    .insert(name.to_owned(), guard.expect("the lock is free"));
            }
            ["release", name] => {
                let guard = self.held.remove(name).expect("a held lock");
                self.runtime.block_on(async { guard.release().await });
            }
            ["wait", name, _] => {
                let (redlock, name) = (self.masters.redlock(), name.to_owned());
                self.waits.push(self.runtime.spawn(async move {
                    let _ = redlock.acquire(name).await;
                }));
                // The waiters must come one after the other.
                std::thread::sleep(Duration::from_millis(300));
            }
            ["hostile"] => {
                let take_all = async {
                    for name in hostile_names() {
                        let note = "<b>\u{202e}</b><script>alert(2)</script>".repeat(20);
                        let guard = self.redlock.lock(name).note(note).acquire().await;
                        self.others.push(guard.expect("the lock is free"));
                    }
                };
                self.runtime.block_on(take_all);
            }
            ["many", number] => {
                let number: usize = number.parse().expect("a number");
                let server = self.server.as_ref().expect("a Redis server");
                let mut connection = server.connect(Duration::from_secs(30)).expect("connected");
                for index in 0..number {
                    let (name, value) = (format!("many:{index:04}"), format!("{index:032x}"));
                    let set = ["SET", &name, &value, "PX", "600000"];
                    connection.command(&set).expect("an answer");
                }
            }
            ["stop_page"] => self.page = None,
            ["start_page"] => {
                let mut options = options();
                options.listen.set_port(self.port);
                self.page = Some(ServedPage::start(&self.masters, options));
            }
            _ => panic!("unknown request {words:?}"),
        }
    }
}

/// A page whose only master is this server.
fn start_on(server: &Server) -> ServedPage {
    let url = server.url();
    let redlock = move || {
        let builder = Redlock::builder().masters([url]);
        let builder = builder.restart_guard(RestartGuard::Off);
        builder.build().expect("good settings")
    };
    ServedPage::try_start_with(redlock, options()).expect("the page must start")
}

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("QUORATE_TEST_CHROMIUM").map(PathBuf::from);
    named.or_else(|| program(&["chromium", "chromium-browser", "google-chrome"]))
}

/// Runs one scenario; prints that it was not run if a tool is missing.
fn run(scenario: &str) {
    let test = format!("browser::{scenario}");
    let (Some(node), Some(chromium)) = (program(&["node"]), chromium()) else {
        not_run(&test, "node or chromium is not installed");
        return;
    };
    if !tools().join("node_modules/playwright-core").exists() {
        not_run(
            &test,
            "playwright-core is not installed (npm ci --prefix page/tests/browser)",
        );
        return;
    }
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let server = (scenario == "five_thousand_locks_scroll")
        .then(|| Server::start(ServerOptions::default()).expect("a Redis server"));
    let mut stage = Stage::new(server);
    let url = stage.page.as_ref().map(ServedPage::url).expect("a page");
    let mut driver = Command::new(node)
        .current_dir(tools())
        .args(["driver.mjs", scenario, &url])
        .env("CHROMIUM", chromium)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node starts");
    let mut answers = driver.stdin.take().expect("piped");
    let mut result = "the driver ended without a result".to_owned();
    for line in BufReader::new(driver.stdout.take().expect("piped")).lines() {
        let line = line.expect("text");
        match line.strip_prefix("DO ") {
            Some(words) => {
                stage.act(words);
                writeln!(answers, "done").expect("the driver waits");
            }
            None => result = line,
        }
    }
    driver.wait().expect("the driver ends");
    stage.waits.iter().for_each(JoinHandle::abort);
    assert_eq!(result, "OK", "{scenario}");
}

macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })+
    };
}

scenarios!(
    lost_majority,
    hold_appears_moves_and_ends,
    waiters_in_order,
    hostile_names_are_text,
    dropped_connection_comes_back,
    five_thousand_locks_scroll,
    accessible_in_both_themes,
    wrong_clock_of_the_browser,
    keyboard_alone,
);
