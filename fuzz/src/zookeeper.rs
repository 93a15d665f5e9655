//! The frames that a ZooKeeper server sends, as the crate `quorate-zookeeper` and its client library read them.
//!
//! The first byte of an input chooses what the client does ([`run_client_action`]). The rest are [`Entry`]s: the server
//! sends them one after the other, and closes all connections after the last one.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate::node::caught_in;
use quorate::node::store::{Change, Commit, Committed, Listener, Session, Store, Wake};
use quorate_zookeeper::ZooKeeper;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::Depth;

/// The number of things that the client can do.
pub const CLIENT_ACTIONS: u8 = 4;

/// The longest time for one step of the client. A step whose answer does not come takes this long.
const STEP_LIMIT: Duration = Duration::from_millis(300);

/// One message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The body of a good reply. The server adds the header that fits the request. It answers the first frame of a
    /// connection without a header.
    Reply(Vec<u8>),
    /// The number of an error, in four bytes, and the body of the reply.
    Refusal(Vec<u8>),
    /// A frame with its header, which is not the answer to a request.
    Frame(Vec<u8>),
    /// These bytes, and then the end of the connection.
    Last(Vec<u8>),
}

impl Entry {
    /// Encodes the entry as a part of an input.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (kind, bytes) = match self {
            Self::Reply(bytes) => (0, bytes),
            Self::Refusal(bytes) => (1, bytes),
            Self::Frame(bytes) => (2, bytes),
            Self::Last(bytes) => (3, bytes),
        };
        out.push(kind);
        out.extend(u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend(bytes);
    }

    fn parse_all(mut rest: &[u8]) -> VecDeque<Self> {
        let mut entries = VecDeque::new();
        while let [kind, long, short, after_header @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*long, *short])).min(after_header.len());
            let (body, after_entry) = after_header.split_at(length);
            rest = after_entry;
            let bytes = body.to_vec();
            entries.push_back(match kind % 4 {
                0 => Self::Reply(bytes),
                1 => Self::Refusal(bytes),
                2 => Self::Frame(bytes),
                _ => Self::Last(bytes),
            });
        }
        entries
    }
}

/// The client library reserves memory for as many elements as a list announces, and the process ends if it gets none
/// (SECURITY.md). So that other bugs can be found, the server sends no list that announces more elements than bytes.
fn announces_too_much(list: &[u8]) -> bool {
    let count = list
        .first_chunk()
        .map_or(0, |count| i32::from_be_bytes(*count));
    usize::try_from(count).is_ok_and(|count| count > list.len())
}

type Entries = Arc<Mutex<VecDeque<Entry>>>;

async fn serve(listener: TcpListener, entries: Entries) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(serve_client(client, entries.clone()));
    }
}

async fn serve_client(mut client: TcpStream, entries: Entries) -> io::Result<()> {
    let mut is_first = true;
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length).await?;
        let is_srvr_command = &length == b"srvr";
        let mut request = Vec::new();
        if !is_srvr_command {
            let request_length = usize::try_from(i32::from_be_bytes(length))
                .unwrap_or(0)
                .min(1 << 20);
            request.resize(request_length, 0);
            client.read_exact(&mut request).await?;
        }
        let field_at = |offset: usize| request.get(offset..offset + 4).unwrap_or_default().to_vec();
        let (xid, operation) = (field_at(0), field_at(4));
        if !is_first && operation == 11_i32.to_be_bytes() {
            let pong = [&xid[..], &[0; 12]].concat();
            client.write_all(&add_length(&pong)).await?;
            continue;
        }
        loop {
            let entry = entries
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            let header = |error: &[u8]| [&xid[..], &[0, 0, 0, 0, 0, 0, 0, 1], error].concat();
            let (bytes, is_answer) = match entry {
                None => return Ok(()),
                Some(Entry::Reply(body)) if is_srvr_command => {
                    return client.write_all(&body).await;
                }
                Some(Entry::Reply(body)) if is_first => (add_length(&body), true),
                Some(Entry::Reply(body)) if announces_too_much(&body) => continue,
                Some(Entry::Reply(body)) => {
                    (add_length(&[&header(&[0; 4])[..], &body].concat()), true)
                }
                Some(Entry::Refusal(body))
                    if announces_too_much(body.get(4..).unwrap_or_default()) =>
                {
                    continue;
                }
                Some(Entry::Refusal(body)) => {
                    let (error, body) = body.split_at(body.len().min(4));
                    (add_length(&[&header(error)[..], body].concat()), true)
                }
                Some(Entry::Frame(bytes))
                    if announces_too_much(bytes.get(16..).unwrap_or_default()) =>
                {
                    continue;
                }
                Some(Entry::Frame(bytes)) => (add_length(&bytes), false),
                Some(Entry::Last(bytes))
                    if announces_too_much(bytes.get(20..).unwrap_or_default()) =>
                {
                    continue;
                }
                Some(Entry::Last(bytes)) => return client.write_all(&bytes).await,
            };
            client.write_all(&bytes).await?;
            if is_answer {
                break;
            }
        }
        is_first = false;
    }
}

fn add_length(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

/// Runs a client: it prepares the server, reads and changes records, listens for wake-ups, or inspects the server.
/// Each step takes at most the time `step`. Returns the number of steps that succeeded.
pub async fn run_client_action(action: u8, url: &str, step: Duration) -> usize {
    let mut good_steps = 0;
    let store = ZooKeeper::open(url).expect("the URL must be valid");
    match action % CLIENT_ACTIONS {
        // The crate itself must catch panics here.
        0 => {
            let prepared = timeout(step, quorate_zookeeper::prepare(url)).await;
            good_steps += usize::from(prepared.is_ok_and(|prepared| prepared.is_ok()));
        }
        1 => good_steps += use_session(&store, step).await,
        2 => good_steps += use_listener(&store, step).await,
        _ => {
            let inspection = in_time(step, async { Ok::<_, ()>(store.inspect().await) }).await;
            good_steps +=
                usize::from(inspection.is_some_and(|inspection| inspection.fault.is_none()));
        }
    }
    good_steps
}

async fn in_time<T, E>(step: Duration, call: impl Future<Output = Result<T, E>>) -> Option<T> {
    // The library catches panics in the calls of a store in the same way.
    let call_result = timeout(step, caught_in(call)).await.ok()?;
    call_result.ok()?.ok()
}

async fn use_session(store: &ZooKeeper, step: Duration) -> usize {
    let Some((mut session, _)) = in_time(step, store.connect()).await else {
        return 0;
    };
    let names: [Arc<[u8]>; 2] = [b"lock:a"[..].into(), b"lock:b"[..].into()];
    let mut good_steps = 1;
    let mut versions = [0, 0];
    for state in [&b"one"[..], b"two"] {
        let changes = names.iter().zip(versions).map(|(name, version)| Change {
            name: name.clone(),
            version,
            state: Some(state.to_vec()),
        });
        let wake = Wake {
            process: "00112233aabbccdd".into(),
            word: b"lock:a".to_vec(),
        };
        let commit = Commit {
            changes: changes.collect(),
            wakes: vec![wake],
            ..Commit::default()
        };
        if let Some(committed) = in_time(step, session.commit(&[commit])).await {
            good_steps += 1;
            if let Some(Committed::Done(new)) = committed.what.first() {
                assert_eq!(new.len(), versions.len(), "one version for each change");
                versions.copy_from_slice(new);
            }
        }
        if let Some(loaded) = in_time(step, session.load(&names)).await {
            good_steps += 1;
            assert_eq!(loaded.what.len(), names.len(), "one record for each name");
        }
    }
    let _ = session.date();
    good_steps += usize::from(in_time(step, session.page(0, 10)).await.is_some());
    let removals = names.into_iter().zip(versions).collect::<Vec<_>>();
    good_steps + usize::from(in_time(step, session.remove(&removals)).await.is_some())
}

async fn use_listener(store: &ZooKeeper, step: Duration) -> usize {
    let Some(mut listener) = in_time(step, store.listen("00112233aabbccdd".into())).await else {
        return 0;
    };
    let mut good_steps = 1;
    // In the recorded traffic, another client sends wake-ups.
    for _ in 0..2 {
        // The library drops a listener after its first error. This is necessary: after two errors of this kind,
        // zookeeper-client 0.11.2 reads memory that it has freed.
        if in_time(step, listener.next()).await.is_none() {
            break;
        }
        good_steps += 1;
    }
    good_steps
}

/// Passes an input to a client.
///
/// # Panics
///
/// If the client panics, or if no socket can be opened.
pub fn run(input: &[u8]) -> Depth {
    let (&action, rest) = input.split_first().unwrap_or((&0, &[]));
    let entries: Entries = Arc::new(Mutex::new(Entry::parse_all(rest)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let good_steps = runtime.block_on(async {
        let listener = TcpListener::bind((own_address(), 0))
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(serve(listener, entries));
        let url = format!("zk://ann:secret@{address}/a/locks?timeout=100ms&session=1s");
        run_client_action(action, &url, STEP_LIMIT).await
    });
    if good_steps > 0 {
        Depth::Accepted
    } else {
        Depth::Refused
    }
}

/// Another address for each input on Linux, where all of 127.0.0.0/8 is local. Otherwise closed connections would soon
/// occupy all ports.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    if cfg!(target_os = "linux") {
        let [_, a, b, c] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Ipv4Addr::new(127, a.max(1), b, c.max(1))
    } else {
        Ipv4Addr::LOCALHOST
    }
}
