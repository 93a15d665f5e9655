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
use quorate_fuzz::records::{DamagedStore, HAS_CLOCK, send_requests};
use quorate_fuzz::redis::{ALL_AT_ONCE, Conversation, SEPARATOR, requests};
use quorate_fuzz::zookeeper::{CLIENT_ACTIONS, Entry, run_client_action};
use quorate_testbed::bad_url::BadUrl;
use quorate_testbed::{Server, ServerOptions, ZooKeeper};

/// The longest time for one step of the client of ZooKeeper.
const STEP_LIMIT: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    record_redis(&corpus)?;
    write_urls(&corpus)?;
    write_passfiles(&corpus)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(record_stores(&corpus))?;
    record_zookeeper(&corpus)
}

/// Writes a file of the corpus.
fn write_corpus_file(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    let folder: PathBuf = corpus.join(target);
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("recorded-{name}"));
    fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    println!("{} ({} bytes)", path.display(), bytes.len());
    Ok(())
}

fn record_redis(corpus: &Path) -> Result<()> {
    for first_byte in [0, 6, 12, ALL_AT_ONCE] {
        let server = Server::start(ServerOptions::new())?;
        let mut conversation = Conversation::new(&server.url(), first_byte);
        let mut stream = TcpStream::connect(server.addr())?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let (mut input, mut chunk) = (vec![first_byte], vec![0; 64 << 10]);
        conversation.driver.advance(quorate::Instant::now());
        conversation.driver.dialed(quorate::Instant::now());
        while !conversation.is_finished() {
            stream.write_all(&conversation.driver.advance(quorate::Instant::now()).bytes)?;
            // After a request without an answer, no bytes arrive, and the next request is sent.
            let length = stream.read(&mut chunk).unwrap_or(0);
            if length > 0 {
                conversation
                    .driver
                    .receive_bytes(&chunk[..length], quorate::Instant::now());
                input.extend(&chunk[..length]);
                input.extend(SEPARATOR);
            }
            conversation.driver.tick(quorate::Instant::now());
            conversation.send_next();
        }
        println!(
            "{} good answers of a Redis server",
            conversation.answers_from_server()
        );
        write_corpus_file(corpus, "redis", &first_byte.to_string(), &input)?;
        let mut connection = server.connect(Duration::from_secs(5))?;
        for command in [
            &["PING"][..],
            &["COMMAND", "COUNT"],
            &["GET", "a"],
            &["NO"],
            &["SCAN", "0"],
        ] {
            let reply = connection.command(command)?;
            let encoded = encode_reply(&reply);
            write_corpus_file(corpus, "replies", &command[0].to_lowercase(), &encoded)?;
        }
    }
    Ok(())
}

fn encode_reply(reply: &quorate_testbed::Reply) -> Vec<u8> {
    use quorate_testbed::Reply;
    match reply {
        Reply::Status(line) => format!("+{line}\r\n").into_bytes(),
        Reply::Error(line) => format!("-{line}\r\n").into_bytes(),
        Reply::Int(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Nil => b"$-1\r\n".to_vec(),
        Reply::Bulk(bytes) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        Reply::Array(elements) => {
            let head = format!("*{}\r\n", elements.len()).into_bytes();
            elements.iter().fold(head, |encoded, element| {
                [encoded, encode_reply(element)].concat()
            })
        }
    }
}

/// URLs of each kind, and the choices from which a URL with each kind of error is made.
fn write_urls(corpus: &Path) -> Result<()> {
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
            "postgres",
            "postgresql://ann:s%2Fcret@h:5433/locks?timeout=1s&lanes=2&sslmode=disable",
        ),
        (
            "postgres-tls",
            "postgres+tls://ann:secret@[::1]:5433/locks?sslcert=/c.pem&sslkey=/k.pem&sslrootcert=system",
        ),
        (
            "postgres-socket",
            "postgres://ann@/locks?host=/run/postgresql&passfile=/etc/passwords",
        ),
        (
            "postgres-folder",
            "postgres://ann:secret@%2Frun%2Fpostgresql:5433/locks",
        ),
        (
            "zookeeper",
            "zk://ann:secret@h1:2181+[::1]:2182+h3/a/b?timeout=1s&session=4s",
        ),
        (
            "etcd",
            "etcd://ann:s%2Fcret@h1:2379+[::1]:2380+h3/a/b?timeout=1s",
        ),
        (
            "etcd-tls",
            "etcd+tls://ann@h1/locks?passfile=/password&cacert=/ca.pem&cert=/c.pem&key=/k.pem",
        ),
        (
            "message",
            "cannot use 'redis://ann:se cret@h' and valkey//:secret@h2?password=secret: no",
        ),
    ] {
        write_corpus_file(corpus, "urls", name, url.as_bytes())?;
    }
    for seed in 0..16 {
        // Bytes as choices: the generator of URLs takes each of them modulo the number of possibilities.
        let mut choices = Vec::new();
        let mut state: u64 = seed;
        BadUrl::drawn(|bound| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let choice = (state >> 33) as u8;
            choices.push(choice);
            usize::from(choice) % bound
        });
        write_corpus_file(corpus, "urls", &format!("drawn-{seed}"), &choices)?;
    }
    Ok(())
}

/// Files with passwords for PostgreSQL.
fn write_passfiles(corpus: &Path) -> Result<()> {
    for (name, text) in [
        ("one", "db.example:5433:locks:ann:secret"),
        (
            "escaped",
            "# passwords\ndb.example:5433:locks:bob:other\ndb.example:*:lo\\cks:a\\nn:s:e\\:c\\\\ret\n",
        ),
        ("any", "*:*:*:*:p\u{e4}ssword\r\n"),
        (
            "other",
            "db.example:5432:locks:ann:wrong-port\ndb.example:5433:locks\n\n::::\n",
        ),
    ] {
        write_corpus_file(corpus, "passfile", name, text.as_bytes())?;
    }
    Ok(())
}

/// The content of the records after each request.
async fn record_stores(corpus: &Path) -> Result<()> {
    for (flags, has_clock) in [(HAS_CLOCK, true), (0, false)] {
        let states = Mutex::new(Vec::<Vec<u8>>::new());
        let store = DamagedStore::new(b"", has_clock);
        send_requests(store, requests().into_iter(), |store| {
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
            let input = [&[0, flags][..], state].concat();
            write_corpus_file(corpus, "records", &format!("{flags}-{number}"), &input)?;
        }
    }
    Ok(())
}

fn record_zookeeper(corpus: &Path) -> Result<()> {
    let server = ZooKeeper::start()?;
    for action in 0..CLIENT_ACTIONS {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let relay_address = start_relay(server.addr(0), entries.clone())?;
        let url = format!("zk://ann:secret@{relay_address}/a/locks?timeout=4s&session=10s");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // A second client wakes the listener.
        let direct_url = format!(
            "{}?timeout=4s&session=10s",
            server
                .url("/a/locks")
                .replacen("zk://", "zk://ann:secret@", 1)
        );
        let (good_steps, _) = runtime.block_on(async {
            tokio::join!(run_client_action(action, &url, STEP_LIMIT), async {
                tokio::time::sleep(Duration::from_millis(150)).await;
                if action == 2 {
                    run_client_action(1, &direct_url, STEP_LIMIT).await
                } else {
                    0
                }
            })
        });
        drop(runtime);
        std::thread::sleep(Duration::from_millis(100));
        println!("{good_steps} good steps of a client of ZooKeeper");
        let mut input = vec![action];
        for entry in entries.lock().expect("no panic").iter() {
            Entry::write(entry, &mut input);
        }
        write_corpus_file(corpus, "zookeeper", &action.to_string(), &input)?;
    }
    Ok(())
}

type Entries = Arc<Mutex<Vec<Entry>>>;

/// Relays connections to a ZooKeeper server, and notes what the server sends.
fn start_relay(server: SocketAddr, entries: Entries) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let entries = entries.clone();
            let Ok(upstream) = TcpStream::connect(server) else {
                return;
            };
            let (Ok(mut client_reader), Ok(mut server_writer)) =
                (client.try_clone(), upstream.try_clone())
            else {
                return;
            };
            std::thread::spawn(move || std::io::copy(&mut client_reader, &mut server_writer));
            std::thread::spawn(move || record_answers(upstream, client, &entries));
        }
    });
    Ok(address)
}

fn record_answers(
    mut server: TcpStream,
    mut client: TcpStream,
    entries: &Entries,
) -> std::io::Result<()> {
    let started_at = Instant::now();
    let mut is_first = true;
    while started_at.elapsed() < Duration::from_secs(60) {
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
        let field_at = |offset: usize| {
            frame
                .get(offset..offset + 4)
                .and_then(|bytes| bytes.first_chunk())
                .map_or(0, |bytes| i32::from_be_bytes(*bytes))
        };
        let entry = match (field_at(0), field_at(12)) {
            _ if is_first => Some(Entry::Reply(frame.clone())),
            (-2, _) => None,
            (-1, _) => Some(Entry::Frame(frame.clone())),
            (_, 0) => Some(Entry::Reply(frame[16..].to_vec())),
            _ => Some(Entry::Refusal(frame[12..].to_vec())),
        };
        is_first = false;
        entries.lock().expect("no panic").extend(entry);
        client.write_all(&[&length[..], &frame].concat())?;
    }
    Ok(())
}
