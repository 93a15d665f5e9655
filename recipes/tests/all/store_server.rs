//! Object stores for the tests: a small HTTP server in this process, and `moto`, which imitates S3.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A step that is executed before the next `PUT` with a condition.
type Job = Box<dyn FnOnce() + Send>;

/// A server that stores objects, and implements `If-Match` and `If-None-Match: *` as RFC 9110 demands. As in S3, the
/// ETag is a hash of the body. The server has its own threads, which end with this process.
pub(crate) struct StoreServer {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    next_job: Mutex<Option<Job>>,
    cut: Mutex<Option<Cut>>,
    /// Whether the server ignores conditions, as an old store does.
    ignores_conditions: bool,
}

/// An answer that does not arrive as a whole.
struct Cut {
    /// The text after which the connection ends.
    after: String,
    /// Whether the answer has the header `Content-Length`. Without it, the end of the connection ends the body.
    has_length: bool,
}

/// One request: method, path, headers in lower case, and body.
struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl StoreServer {
    pub(crate) fn start(ignores_conditions: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            ignores_conditions,
            ..State::default()
        });
        let thread_state = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&thread_state);
                thread::spawn(move || state.serve(stream));
            }
        });
        Self { address, state }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Lets `job` run before the server handles the next `PUT` with a condition.
    pub(crate) fn before_next_put(&self, job: impl FnOnce() + Send + 'static) {
        *lock_mutex(&self.state.next_job) = Some(Box::new(job));
    }

    /// Ends the connection of the next `GET` after this text.
    pub(crate) fn cut_next_answer(&self, after: &str, has_length: bool) {
        let after = after.to_owned();
        *lock_mutex(&self.state.cut) = Some(Cut { after, has_length });
    }

    /// Lets the server run a job no more. Returns whether the job has run.
    pub(crate) fn has_job_run(&self) -> bool {
        lock_mutex(&self.state.next_job).take().is_none()
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn etag(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

impl State {
    /// Answers one request, and closes the connection.
    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(&stream);
        // Without this answer, `curl` waits for a second before it sends the body.
        let send_continue = || (&stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        let Some(request) = read_request(&mut reader, send_continue) else {
            return;
        };
        let (status, etag, body) = self.answer(&request);
        let full_length_header = format!("Content-Length: {}\r\n", body.len());
        let cut = lock_mutex(&self.cut).take_if(|_| request.method == "GET");
        let length_header: &str = if cut.as_ref().is_some_and(|cut| !cut.has_length) {
            ""
        } else {
            &full_length_header
        };
        let response_head = format!(
            "HTTP/1.1 {status} .\r\nETag: {etag}\r\n{length_header}Connection: close\r\n\r\n"
        );
        let mut answer = [response_head.as_bytes(), &body].concat();
        if let Some(cut) = cut {
            let text = String::from_utf8_lossy(&answer).into_owned();
            let cut_index = text.find(&cut.after).expect("the text of the cut");
            answer.truncate(cut_index + cut.after.len());
        }
        let _ = (&stream).write_all(&answer);
    }

    /// The status, the ETag and the body of the answer.
    fn answer(&self, request: &Request) -> (u16, String, Vec<u8>) {
        let header = |name: &str| request.headers.get(name).map(String::as_str);
        // S3 demands the first of these headers, and the second one from a client with a temporary key.
        if header("x-amz-content-sha256") != Some("UNSIGNED-PAYLOAD")
            || header("x-amz-security-token") != Some("session")
        {
            return (403, "\"\"".to_owned(), Vec::new());
        }
        let (if_match, if_none_match) = (header("if-match"), header("if-none-match"));
        if request.method == "PUT" && (if_match.is_some() || if_none_match.is_some()) {
            let next_job = lock_mutex(&self.next_job).take();
            if let Some(job) = next_job {
                job();
            }
        }
        let mut objects = lock_mutex(&self.objects);
        let stored = objects.get(&request.path);
        if request.method != "PUT" {
            let answer = stored.map(|body| (200, etag(body), body.clone()));
            return answer.unwrap_or_else(|| (404, "\"\"".to_owned(), Vec::new()));
        }
        let is_condition_violated = if_match
            .is_some_and(|tag| stored.is_none_or(|body| etag(body) != tag))
            || if_none_match == Some("*") && stored.is_some();
        if is_condition_violated && !self.ignores_conditions {
            return (412, "\"\"".to_owned(), Vec::new());
        }
        let tag = etag(&request.body);
        objects.insert(request.path.clone(), request.body.clone());
        (200, tag, Vec::new())
    }
}

/// Reads one request. Calls `send_continue` if the client waits for permission to send the body. `None` if the client
/// sends something else.
fn read_request(
    reader: &mut impl BufRead,
    send_continue: impl Fn() -> std::io::Result<()>,
) -> Option<Request> {
    let mut read_line = || {
        let mut text = String::new();
        reader.read_line(&mut text).ok()?;
        Some(text.trim_end().to_owned())
    };
    let request_line = read_line()?;
    let mut request_words = request_line.split(' ').map(str::to_owned);
    let (method, path) = (request_words.next()?, request_words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let text = read_line()?;
        let Some((name, value)) = text.split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(Some(0), |text| text.parse().ok())?;
    if headers.contains_key("expect") {
        send_continue().ok()?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

/// A server of `moto`. Dropping it kills the server.
pub(crate) struct Moto {
    child: Child,
    port: u16,
}

impl Moto {
    /// Starts a server with an empty bucket `bucket`. `None` if `moto` is not installed.
    pub(crate) fn start() -> Option<Self> {
        let mut python = Command::new("python3");
        let discard_output = |command: &mut Command| {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
        };
        python.args(["-c", "import moto.server"]);
        discard_output(&mut python);
        if !python.status().is_ok_and(|status| status.success()) {
            return None;
        }
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = probe.local_addr().expect("an address").port();
        drop(probe);
        let mut server = Command::new("python3");
        server.args([
            "-m",
            "moto.server",
            "-H",
            "127.0.0.1",
            "-p",
            &port.to_string(),
        ]);
        discard_output(&mut server);
        let child = server.spawn().expect("python3");
        let moto = Self { child, port };
        let is_ready = quorate_testbed::within(Duration::from_secs(60), || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        assert!(is_ready, "moto does not answer");
        let url = moto.url("");
        let bucket = url.trim_end_matches('/');
        let curl_result = Command::new("curl")
            .args(["-sSf", "-X", "PUT", bucket])
            .output();
        let created = curl_result.expect("curl");
        assert!(created.status.success(), "{created:?}");
        Some(moto)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/bucket/{path}", self.port)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
