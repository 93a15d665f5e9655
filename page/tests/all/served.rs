//! A page that serves masters in memory, for the tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use quorate::node::memory::{Condition, MemoryNode};
use quorate::{Redlock, Wait};
use quorate_page::{Page, PageOptions, Password};

/// Three masters in memory.
#[derive(Clone)]
pub(crate) struct Masters(Vec<MemoryNode>);

impl Masters {
    pub(crate) fn new() -> Self {
        Self(
            (1..=3)
                .map(|number| MemoryNode::new(&format!("memory-{number}")))
                .collect(),
        )
    }

    /// A client of these masters.
    pub(crate) fn redlock(&self) -> Redlock {
        let mut builder = Redlock::builder()
            .wait(Wait::Forever)
            .ttl(Duration::from_secs(30))
            .max_ttl(Duration::from_secs(600));
        for node in &self.0 {
            builder = builder.node(node.clone());
        }
        builder.build().expect("good settings")
    }

    /// Makes one of the three masters execute requests without answering them, or answer again.
    pub(crate) fn set_mute(&self, is_mute: bool) {
        let condition = if is_mute {
            Condition::Mute
        } else {
            Condition::Up
        };
        self.0[0].set_condition(condition);
    }

    /// Makes two of the three masters unreachable, or reachable again.
    pub(crate) fn set_majority(&self, is_up: bool) {
        let condition = if is_up {
            Condition::Up
        } else {
            Condition::Down
        };
        self.0[1..]
            .iter()
            .for_each(|node| node.set_condition(condition));
    }
}

/// A page that is served until it is dropped.
pub(crate) struct ServedPage {
    pub(crate) address: SocketAddr,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The settings of a page for tests.
pub(crate) fn options() -> PageOptions {
    PageOptions {
        listen: "127.0.0.1:0".parse().expect("an address"),
        interval: Duration::from_millis(200),
        // In a build without optimizations, the client needs more time than the masters.
        percent: 100.0,
        slow_wait: Duration::from_secs(60),
        ..PageOptions::default()
    }
}

pub(crate) fn password(text: &str) -> Option<Password> {
    Password::from_file_content(text.as_bytes())
}

impl ServedPage {
    pub(crate) fn start(masters: &Masters, options: PageOptions) -> Self {
        Self::try_start(masters, options).expect("the page must start")
    }

    pub(crate) fn try_start(masters: &Masters, options: PageOptions) -> Result<Self, String> {
        let masters = masters.clone();
        Self::try_start_with(move || masters.redlock(), options)
    }

    /// Starts a page with the masters of this client.
    pub(crate) fn try_start_with(
        redlock: impl FnOnce() -> Redlock + Send + 'static,
        options: PageOptions,
    ) -> Result<Self, String> {
        let (started, is_started) = channel();
        let (end, ended) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                match Page::bind(redlock(), options).await {
                    Ok(page) => {
                        started.send(Ok(page.address())).expect("the test waits");
                        tokio::select! {
                            () = page.serve() => {}
                            _ = ended => {}
                        }
                    }
                    Err(error) => started
                        .send(Err(error.to_string()))
                        .expect("the test waits"),
                }
            });
        });
        let address = is_started.recv().expect("the thread answers")?;
        Ok(Self {
            address,
            end: Some(end),
            thread: Some(thread),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Sends bytes, and returns everything that comes back until the connection is closed.
    pub(crate) fn send(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The page may close the connection before it has read everything.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the page accepts");
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).expect("a timeout");
        stream
    }

    /// The whole answer to a GET with these further headers, each with its line break.
    pub(crate) fn get(&self, path: &str, headers: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        self.send(request.as_bytes())
    }

    /// The JSON at this path.
    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path, "");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        serde_json::from_str(body).expect("JSON")
    }
}

impl Drop for ServedPage {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the page must not panic");
        }
    }
}

/// The first program of these that exists.
pub(crate) fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates.into_iter().find(|path| path.is_file())
}

/// The folder with the tools of the browser tests.
pub(crate) fn tools() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/browser")
}
