//! A small server that answers like the JSON gateway of etcd, so that a test can change single answers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// A request to the gateway.
#[derive(Clone, Debug)]
pub(crate) struct GatewayRequest {
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    pub(crate) body: Value,
}

/// A status and a body.
pub(crate) type GatewayAnswer = (u16, Value);

/// A gateway on a free port. It ends with the process of the test.
pub(crate) struct Gateway {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<GatewayRequest>>>,
}

impl Gateway {
    /// Starts a gateway that gives the usual answers, unless `special` has another one.
    pub(crate) fn start(
        special: impl Fn(&GatewayRequest) -> Option<GatewayAnswer> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, special) = (requests.clone(), Arc::new(special));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, special) = (log.clone(), special.clone());
                std::thread::spawn(move || {
                    let _ = serve(stream, |request| {
                        log.lock().expect("no panic").push(request.clone());
                        special(request).unwrap_or_else(|| usual(request))
                    });
                });
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self, login: &str) -> String {
        format!("etcd://{login}{}/locks?timeout=4s", self.address)
    }

    /// The requests to a path so far.
    pub(crate) fn requests(&self, path: &str) -> Vec<GatewayRequest> {
        let requests = self.requests.lock().expect("no panic");
        requests
            .iter()
            .filter(|request| request.path == path)
            .cloned()
            .collect()
    }
}

fn serve(
    stream: TcpStream,
    answer: impl Fn(&GatewayRequest) -> GatewayAnswer,
) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length, mut token) = (String::new(), 0, None);
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            match header.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap_or(0);
                }
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                    token = Some(value.to_owned());
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let (status, body) = answer(&GatewayRequest { path, token, body });
        let body = body
            .as_str()
            .map_or_else(|| body.to_string(), str::to_owned);
        let length = body.len() + 1;
        let date = "Sun, 06 Nov 2033 08:49:37 GMT";
        let head =
            format!("HTTP/1.1 {status} X\r\nDate: {date}\r\nContent-Length: {length}\r\n\r\n");
        writer.write_all(format!("{head}{body}\n").as_bytes())?;
    }
}

/// The header of an answer.
pub(crate) fn header(member: &str) -> Value {
    json!({"cluster_id": "5", "member_id": member, "revision": "3"})
}

/// The answer to a transaction: the identity of the cluster, and no record.
pub(crate) fn transaction(member: &str) -> GatewayAnswer {
    let identity = STANDARD.encode("0123456789abcdef0123456789abcdef");
    let kvs = json!([{"key": STANDARD.encode("/quorate-server"), "value": identity}]);
    let responses = json!([{"response_range": {"kvs": kvs}}, {"response_range": {}}]);
    (
        200,
        json!({"header": header(member), "responses": responses}),
    )
}

fn usual(request: &GatewayRequest) -> GatewayAnswer {
    let header = header("7");
    let answer = match request.path.as_str() {
        "/v3/maintenance/status" => json!({"header": header, "version": "3.6.0", "leader": "7"}),
        "/metrics" => json!("process_start_time_seconds 1.7e+09"),
        "/v3/kv/txn" => return transaction("7"),
        "/v3/lease/grant" => json!({"header": header, "ID": "9", "TTL": "15"}),
        "/v3/lease/keepalive" => json!({"result": {"header": header, "ID": "9", "TTL": "15"}}),
        "/v3/watch" => json!({"result": {"header": header, "created": true}}),
        "/v3/auth/authenticate" => json!({"header": header, "token": "good.1"}),
        _ => json!({"header": header}),
    };
    (200, answer)
}
