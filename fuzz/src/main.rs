//! Records `fuzz/corpus` from the traffic of real servers: `cargo run -p quorate-fuzz`.
//!
//! It needs a Redis or Valkey server and ZooKeeper, and replaces the recorded files only. The other files of the
//! corpus are inputs that once found a bug.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quorate_fuzz::records::{CLOCKED, Damaged, ask};
use quorate_fuzz::redis::{AT_ONCE, SEPARATOR, Talk, requests};
use quorate_fuzz::zookeeper::{Entry, FLOWS, flow};
use quorate_testbed::bad_url::BadUrl;
use quorate_testbed::{Server, ServerOptions, ZooKeeper};

/// The longest time for one step of the client of ZooKeeper.
const STEP: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    redis(&corpus)?;
    urls(&corpus)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(records(&corpus))?;
    zookeeper(&corpus)
}

/// Writes a file of the corpus.
fn write(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    let folder: PathBuf = corpus.join(target);
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("recorded-{name}"));
    fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    println!("{} ({} bytes)", path.display(), bytes.len());
    Ok(())
}

fn redis(corpus: &Path) -> Result<()> {
    for how in [0, 6, 12, AT_ONCE] {
        let server = Server::start(ServerOptions::new())?;
        let mut talk = Talk::new(&server.url(), how);
        let mut stream = TcpStream::connect(server.addr())?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let (mut input, mut chunk) = (vec![how], vec![0; 64 << 10]);
        talk.driver.turn(quorate::Instant::now());
        talk.driver.dialed(quorate::Instant::now());
        while !talk.is_over() {
            stream.write_all(&talk.driver.turn(quorate::Instant::now()).bytes)?;
            // After a request without an answer, no bytes arrive, and the next request is sent.
            let length = stream.read(&mut chunk).unwrap_or(0);
            if length > 0 {
                talk.driver.hear(&chunk[..length], quorate::Instant::now());
                input.extend(&chunk[..length]);
                input.extend(SEPARATOR);
            }
            talk.driver.tick(quorate::Instant::now());
            talk.ask();
        }
        println!("{} good answers of a Redis server", talk.from_server());
        write(corpus, "redis", &how.to_string(), &input)?;
        let mut connection = server.connect(Duration::from_secs(5))?;
        for command in [
            &["PING"][..],
            &["COMMAND", "COUNT"],
            &["GET", "a"],
            &["NO"],
            &["SCAN", "0"],
        ] {
            let reply = connection.command(command)?;
            let encoded = encode(&reply);
            write(corpus, "replies", &command[0].to_lowercase(), &encoded)?;
        }
    }
    Ok(())
}

fn encode(reply: &quorate_testbed::Reply) -> Vec<u8> {
    use quorate_testbed::Reply;
    match reply {
        Reply::Status(line) => format!("+{line}\r\n").into_bytes(),
        Reply::Error(line) => format!("-{line}\r\n").into_bytes(),
        Reply::Int(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Nil => b"$-1\r\n".to_vec(),
        Reply::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Reply::Array(all) => {
            let head = format!("*{}\r\n", all.len()).into_bytes();
            all.iter()
                .fold(head, |sum, one| [sum, encode(one)].concat())
        }
    }
}

/// URLs of each kind, and the choices from which a URL with each kind of error is made.
fn urls(corpus: &Path) -> Result<()> {
    for (name, url) in [
        ("redis", "redis://ann:s%40cret@10.0.0.1:7000/2"),
        ("rediss", "rediss://:secret@[::1]:7000"),
        ("unix", "unix:///run/redis.sock?db=2&user=ann&pass=secret"),
        (
            "mysql",
            "mysql://ann:s%2Fcret@h:3307/locks?timeout=1s&lanes=2",
        ),
        (
            "socket",
            "mysql://ann:secret@localhost/locks?socket=/run/mysqld/mysqld.sock",
        ),
        ("mysqls", "mysqls://ann:secret@h/locks"),
        (
            "zookeeper",
            "zk://ann:secret@h1:2181+[::1]:2182+h3/a/b?timeout=1s&session=4s",
        ),
        (
            "message",
            "cannot use 'redis://ann:se cret@h' and valkey//:secret@h2?password=secret: no",
        ),
    ] {
        write(corpus, "urls", name, url.as_bytes())?;
    }
    for seed in 0..16 {
        // Bytes as choices: the generator of URLs takes each of them modulo the number of possibilities.
        let mut choices = Vec::new();
        let mut state: u64 = seed;
        BadUrl::drawn(|below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let choice = (state >> 33) as u8;
            choices.push(choice);
            usize::from(choice) % below
        });
        write(corpus, "urls", &format!("drawn-{seed}"), &choices)?;
    }
    Ok(())
}

/// The content of the records after each request.
async fn records(corpus: &Path) -> Result<()> {
    for (kind, clocked) in [(CLOCKED, true), (0, false)] {
        let states = Mutex::new(Vec::<Vec<u8>>::new());
        let store = Damaged::new(b"", clocked);
        ask(store, requests().into_iter(), |store| {
            let states = &states;
            async move {
                for name in ["lock:plain", "lock:page", "lock:permits", "lock:quota"] {
                    let content = store.content(name.as_bytes()).await;
                    let mut states = states.lock().expect("no panic");
                    if !states.contains(&content) {
                        states.push(content);
                    }
                }
            }
        })
        .await;
        let states = states.into_inner().expect("no panic");
        for (number, state) in states.iter().enumerate().step_by(2) {
            let input = [&[0, kind][..], state].concat();
            write(corpus, "records", &format!("{kind}-{number}"), &input)?;
        }
    }
    Ok(())
}

fn zookeeper(corpus: &Path) -> Result<()> {
    let server = ZooKeeper::start()?;
    for which in 0..FLOWS {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let relay = relay(server.addr(0), entries.clone())?;
        let url = format!("zk://ann:secret@{relay}/a/locks?timeout=4s&session=10s");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // A second client wakes the listener.
        let direct = format!(
            "{}?timeout=4s&session=10s",
            server
                .url("/a/locks")
                .replacen("zk://", "zk://ann:secret@", 1)
        );
        let (good, _) = runtime.block_on(async {
            tokio::join!(flow(which, &url, STEP), async {
                tokio::time::sleep(Duration::from_millis(150)).await;
                if which == 2 {
                    flow(1, &direct, STEP).await
                } else {
                    0
                }
            })
        });
        drop(runtime);
        std::thread::sleep(Duration::from_millis(100));
        println!("{good} good steps of a client of ZooKeeper");
        let mut input = vec![which];
        for entry in entries.lock().expect("no panic").iter() {
            Entry::write(entry, &mut input);
        }
        write(corpus, "zookeeper", &which.to_string(), &input)?;
    }
    Ok(())
}

type Entries = Arc<Mutex<Vec<Entry>>>;

/// Relays connections to a ZooKeeper server, and notes what the server sends.
fn relay(server: SocketAddr, entries: Entries) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let entries = entries.clone();
            let Ok(upstream) = TcpStream::connect(server) else {
                return;
            };
            let (Ok(mut from), Ok(mut to)) = (client.try_clone(), upstream.try_clone()) else {
                return;
            };
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || note(upstream, client, &entries));
        }
    });
    Ok(address)
}

fn note(mut server: TcpStream, mut client: TcpStream, entries: &Entries) -> std::io::Result<()> {
    let began = Instant::now();
    let mut first = true;
    while began.elapsed() < Duration::from_secs(60) {
        let mut length = [0; 4];
        server.read_exact(&mut length)?;
        if &length == b"Zook" {
            // The answer to the command `srvr` is a text.
            let mut text = length.to_vec();
            server.read_to_end(&mut text)?;
            entries
                .lock()
                .expect("no panic")
                .push(Entry::Reply(text.clone()));
            return client.write_all(&text);
        }
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        server.read_exact(&mut frame)?;
        let field = |at: usize| {
            frame
                .get(at..at + 4)
                .and_then(|four| four.first_chunk())
                .map_or(0, |four| i32::from_be_bytes(*four))
        };
        let entry = match (field(0), field(12)) {
            _ if first => Some(Entry::Reply(frame.clone())),
            (-2, _) => None,
            (-1, _) => Some(Entry::Frame(frame.clone())),
            (_, 0) => Some(Entry::Reply(frame[16..].to_vec())),
            _ => Some(Entry::Refusal(frame[12..].to_vec())),
        };
        first = false;
        entries.lock().expect("no panic").extend(entry);
        client.write_all(&[&length[..], &frame].concat())?;
    }
    Ok(())
}
