//! Tests of an operator's connection to a master that answers as the test says.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::UnixStream;

use super::*;
use crate::node::redis::server_half;
use crate::node::right::{Purpose, Right};
use crate::node::{Dial, Stream};
use crate::runtime::BoxFuture;
use crate::runtime::manual::{ManualClock, RANDOM_BYTE};
use crate::{Redlock, RedlockBuilder};

/// Returns the reply to a command; `None` for the usual reply.
type ReplyTo = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A master that answers each command as the test says, and records the commands.
struct ScriptedMaster {
    reply_to: Box<ReplyTo>,
    commands: Mutex<Vec<String>>,
}

impl ScriptedMaster {
    fn new(reply_to: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            reply_to: Box::new(reply_to),
            commands: Mutex::default(),
        })
    }

    /// The recorded commands that begin with `start`.
    fn commands(&self, start: &str) -> Vec<String> {
        let commands = self.commands.lock().expect("no test thread has panicked");
        let selected = commands.iter().filter(|command| command.starts_with(start));
        selected.cloned().collect()
    }

    /// Connects an operator to this master, and executes the order.
    async fn execute(self: &Arc<Self>, url: &str, order: ChangeOrder) -> ChangeSeen {
        execute_with(self.builder(url), order).await
    }

    fn redlock(self: &Arc<Self>, url: &str) -> Redlock {
        self.builder(url).build().expect("good settings")
    }

    fn builder(self: &Arc<Self>, url: &str) -> RedlockBuilder {
        let master = self.clone();
        let dial: Dial = Arc::new(move |_, _| {
            let opened = UnixStream::pair().map(|(client, server)| {
                tokio::spawn(master.clone().serve(server));
                Box::new(client) as Box<dyn Stream>
            });
            let opened: BoxFuture<io::Result<_>> = Box::pin(async { opened });
            opened
        });
        Redlock::builder().masters([url]).dial(dial)
    }

    async fn serve(self: Arc<Self>, stream: UnixStream) {
        let (mut received, mut replies) = (Vec::new(), Vec::new());
        let mut chunk = [0; 4096];
        loop {
            while let Some((words, len)) = server_half::command(&received) {
                let words = words.iter().map(|word| String::from_utf8_lossy(word));
                let command = words.collect::<Vec<_>>().join(" ");
                received.drain(..len);
                replies.extend_from_slice(self.answer(command).as_bytes());
            }
            while !replies.is_empty() {
                let written = stream
                    .writable()
                    .await
                    .and_then(|()| stream.try_write(&replies));
                match written {
                    Ok(count) => drop(replies.drain(..count)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
            let read = stream
                .readable()
                .await
                .and_then(|()| stream.try_read(&mut chunk));
            match read {
                Ok(0) => return,
                Ok(count) => received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn answer(&self, command: String) -> String {
        let reply = (self.reply_to)(&command).unwrap_or_else(|| usual_reply(&command));
        let commands = self.commands.lock();
        commands.expect("no test thread has panicked").push(command);
        reply
    }
}

/// Connects an operator with these settings to its only master, and executes the order.
async fn execute_with(builder: RedlockBuilder, order: ChangeOrder) -> ChangeSeen {
    let redlock = builder.build().expect("good settings");
    let node = redlock.core.coordinator.nodes()[0].clone();
    node.change(order).await
}

/// The reply of an empty master whose user has all rights.
fn usual_reply(command: &str) -> String {
    let mut words = command.split(' ');
    match words.next().unwrap_or_default() {
        "HELLO" => "%1\r\n+proto\r\n:3\r\n".into(),
        "INFO" => bulk("run_id:a\r\nuptime_in_seconds:9\r\n"),
        "TIME" => format!("*2\r\n{}{}", bulk("1700000000"), bulk("0")),
        "GET" => "_\r\n".into(),
        "SCAN" => scan_page("0", 0..0),
        "SCRIPT" => bulk(&"a".repeat(40)),
        "CLIENT" if words.next() == Some("LIST") => bulk(""),
        _ => "+OK\r\n".into(),
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// One page of the keys of values. `cursor` is that of the next page.
fn scan_page(cursor: &str, numbers: std::ops::Range<usize>) -> String {
    let keys: Vec<String> = numbers
        .map(|number| format!("quorate:value:{number}"))
        .collect();
    page_of(cursor, &keys)
}

/// One page of these keys. `cursor` is that of the next page.
fn page_of(cursor: &str, keys: &[impl AsRef<str>]) -> String {
    let key_texts: String = keys.iter().map(|key| bulk(key.as_ref())).collect();
    format!("*2\r\n{}*{}\r\n{key_texts}", bulk(cursor), keys.len())
}

fn rights_order(redlock: &Redlock, prefix: &str) -> ChangeOrder {
    let scope = Scope {
        prefix: prefix.into(),
        ..redlock.scope_of_rights()
    };
    ChangeOrder::Rights { scope, keys: None }
}

#[tokio::test]
async fn refused_database_ends_every_order_except_the_check_of_rights() {
    let refusal = "-NOPERM User u has no permissions to run the 'select' command\r\n";
    let refuses = |command: &str| command.starts_with("SELECT").then(|| refusal.to_owned());
    let url = "redis://m/2";
    let master = ScriptedMaster::new(refuses);
    let seen = master.execute(url, ChangeOrder::ReadState).await;
    assert!(matches!(seen.fault, Some(Fault::Denied(_))), "{seen:?}");
    assert_eq!(master.commands("INFO"), [""; 0]);
    let master = ScriptedMaster::new(refuses);
    let order = rights_order(&master.redlock(url), "");
    let seen = master.execute(url, order).await;
    let rules: Vec<&str> = seen.missing.iter().map(MissingRight::rule).collect();
    assert_eq!(rules, ["+select"], "{seen:?}");
}

#[tokio::test]
async fn scan_for_values_ends_with_its_last_page_or_with_enough_keys() {
    let pages = |command: &str| {
        let cursor = command.strip_prefix("SCAN ")?.split(' ').next()?;
        Some(match cursor {
            "0" => scan_page("7", 0..500),
            "7" => scan_page("8", 500..1_000),
            // A scan may return a key twice.
            "8" => scan_page("0", 990..1_400),
            _ => "-ERR invalid cursor\r\n".to_owned(),
        })
    };
    let master = ScriptedMaster::new(pages);
    let seen = master.execute("redis://m", ChangeOrder::ReadState).await;
    assert_eq!((seen.fault, seen.values), (None, MAX_VALUES_COUNTED));
    assert_eq!(master.commands("SCAN").len(), 2);
    let seen = master.execute("redis://m", ChangeOrder::Values).await;
    assert_eq!((seen.fault, seen.names.len()), (None, 1_400));
    // A reply without a cursor ends the scan.
    let master = ScriptedMaster::new(|command| match command.strip_prefix("SCAN ") {
        Some(rest) if rest.starts_with("0 ") => Some("*0\r\n".to_owned()),
        Some(_) => Some("-ERR invalid cursor\r\n".to_owned()),
        None => None,
    });
    let seen = master.execute("redis://m", ChangeOrder::ReadState).await;
    assert_eq!((seen.fault, seen.values), (None, 0));
}

/// The ACL rules for the rights that the check finds missing if the master answers each command of the check with this
/// error. `prefix` is that of the lock keys.
async fn missing_rules(error: &str, prefix: &str) -> BTreeSet<String> {
    let reply = format!("-{error}\r\n");
    let master = ScriptedMaster::new(move |command| {
        let is_of_connection = command.starts_with("HELLO") || command.ends_with(OPERATOR);
        (!is_of_connection).then(|| reply.clone())
    });
    let order = rights_order(&master.redlock("redis://m"), prefix);
    let seen = master.execute("redis://m", order).await;
    let rules = seen.missing.iter().map(MissingRight::rule);
    rules.map(str::to_owned).collect()
}

#[tokio::test]
async fn rights_to_the_keys_of_locks_are_checked_by_prefix_only_if_one_is_set() {
    let denied_key = "NOPERM No permissions to access a key";
    let of_prefix = missing_rules(denied_key, "app:").await;
    let without_prefix = missing_rules(denied_key, "").await;
    let of_locks = |rules: &BTreeSet<String>| {
        let mut rules = rules.iter();
        rules.any(|rule| rule.starts_with("~quorate:fence:"))
    };
    assert!(of_locks(&of_prefix), "{of_prefix:?}");
    assert!(!of_locks(&without_prefix), "{without_prefix:?}");
    assert!(
        without_prefix.contains("~quorate:masters"),
        "{without_prefix:?}"
    );
    assert!(without_prefix.is_subset(&of_prefix));
    // The rights to commands are the same for all keys.
    let denied_command = "NOPERM User u has no permissions to run the command";
    let of_prefix = missing_rules(denied_command, "app:").await;
    assert!(of_prefix.contains("+pttl"), "{of_prefix:?}");
    assert_eq!(missing_rules(denied_command, "").await, of_prefix);
}

#[tokio::test]
async fn only_clients_that_check_markers_are_disconnected_before_a_lost_marker_is_restored() {
    let clients = [
        "id=7 addr=a name=quorate/0/00aa:host:9 cmd=ping",
        "id=8 addr=b name= cmd=set",
        "id=9 addr=c name=quorate:host:9 cmd=ping",
    ];
    let raise = |restores| ChangeOrder::Raise {
        number: 0,
        print: "00aa".into(),
        step: 0,
        restores,
    };
    for (mark, restores, killed) in [
        (None, true, &["CLIENT KILL ID 7"][..]),
        (None, false, &[]),
        (Some("0 00aa"), true, &[]),
    ] {
        let master = ScriptedMaster::new(move |command| match command {
            "CLIENT LIST" => Some(bulk(&clients.join("\n"))),
            "GET quorate:masters" => mark.map(bulk),
            _ => None,
        });
        let seen = master.execute("redis://m", raise(restores)).await;
        assert_eq!((seen.fault, seen.ended), (None, 0));
        assert_eq!(
            master.commands("CLIENT KILL"),
            killed,
            "{mark:?} {restores}"
        );
        assert_eq!(master.commands("EVALSHA").len(), 1, "the marker is raised");
    }
}

#[test]
fn number_is_read_from_a_text_or_an_integer() {
    for (value, number) in [
        (Value::Bulk(b"7"), Some(7)),
        (Value::Int(7), Some(7)),
        (Value::Int(-7), None),
        (Value::Bulk(b"x"), None),
        (Value::Nil, None),
    ] {
        let owned = OwnedValue::copy_of(&value).expect("the value is no error");
        assert_eq!(owned.number(), number, "{value:?}");
    }
}

#[test]
fn fault_about_a_missing_right_says_how_to_grant_it() {
    let fault_of = |rights: Vec<Right>| {
        let mut missing = Vec::new();
        for right in rights {
            MissingRight::add(&mut missing, right, &[Purpose::Changing]);
        }
        missing_rights_fault(&missing).map(|fault| fault.to_string())
    };
    assert_eq!(fault_of(Vec::new()), None);
    let command = Right::Command("client|kill".into());
    let fault = fault_of(vec![command, Right::Keys("quorate:*".into())]);
    let fault = fault.expect("a right is missing");
    assert!(
        fault.contains("CLIENT KILL") && fault.contains("quorate:*"),
        "{fault}"
    );
    assert!(fault.contains("ACL SETUSER <user> +client|kill"), "{fault}");
    let fault = fault_of(vec![Right::Unknown("client".into())]);
    let fault = fault.expect("a command is missing");
    assert!(
        fault.contains("rename-command has renamed these commands"),
        "{fault}"
    );
    assert!(!fault.contains("ACL SETUSER"), "{fault}");
}

#[tokio::test]
async fn state_of_a_master_says_whether_its_uptime_is_impossible_and_its_memory_is_limited() {
    let kept_secs = Some(Duration::from_secs(9));
    for (uptime, maxmemory, seen_uptime, is_impossible, eviction) in [
        ("9", "0", kept_secs, false, None),
        ("9", "1000", kept_secs, false, Some("allkeys-lru")),
        ("-5", "0", Some(Duration::ZERO), true, None),
        ("x", "0", None, false, None),
    ] {
        let info = format!(
            "run_id:a\r\nuptime_in_seconds:{uptime}\r\nmaxmemory:{maxmemory}\r\n\
             maxmemory_policy:allkeys-lru\r\n"
        );
        let reply = bulk(&info);
        let reads_info = move |command: &str| (command == "INFO").then(|| reply.clone());
        let master = ScriptedMaster::new(reads_info);
        let seen = master.execute("redis://m", ChangeOrder::ReadState).await;
        assert_eq!(seen.run_id.as_deref(), Some("a"), "{seen:?}");
        assert_eq!(seen.uptime, seen_uptime, "{seen:?}");
        assert_eq!(seen.is_uptime_impossible, is_impossible, "{seen:?}");
        assert_eq!(seen.eviction.as_deref(), eviction, "{seen:?}");
    }
}

/// Reads the state of a master whose replies to TIME take these times, in milliseconds. Each reply shows one second more
/// than the one before; the first shows [`MASTER_SECS`]. The own clock shows 0. Returns the difference of the clocks in
/// milliseconds, and how many times the clock was read.
async fn clock_offset(reply_times: [u64; CLOCK_READINGS]) -> (i64, usize) {
    let (clock, readings) = (ManualClock::default(), AtomicUsize::new(0));
    let clock_of_master = clock.clone();
    let master = ScriptedMaster::new(move |command| {
        (command == "TIME").then(|| {
            let reading = readings.fetch_add(1, Ordering::Relaxed);
            clock_of_master.advance_by(Duration::from_millis(reply_times[reading]));
            let secs = MASTER_SECS + reading as i64;
            format!("*2\r\n{}{}", bulk(&secs.to_string()), bulk("0"))
        })
    });
    let builder = master.builder("redis://m").runtime(Arc::new(clock));
    let seen = execute_with(builder, ChangeOrder::ReadState).await;
    assert_eq!(seen.fault, None);
    let offset = seen.clock_offset_ms.expect("the clock was read");
    (offset, master.commands("TIME").len())
}

/// The first time of the master's clock in [`clock_offset`], in seconds since 1970.
const MASTER_SECS: i64 = 1_700_000_000;

#[tokio::test]
async fn clocks_are_compared_by_the_fastest_reply_in_the_middle_of_its_round_trip() {
    let first = MASTER_SECS * 1_000;
    for (reply_times, offset) in [
        ([250, 0, 0], (first - 125, 1)),
        ([252, 100, 0], (first + 1_000 - 50, 2)),
        ([600, 400, 500], (first + 1_000 - 200, 3)),
        ([400, 400, 400], (first - 200, 3)),
    ] {
        assert_eq!(clock_offset(reply_times).await, offset, "{reply_times:?}");
    }
}

#[tokio::test]
async fn new_age_record_is_the_uptime_less_a_second_and_zero_after_a_loss() {
    let life = format!("{RANDOM_BYTE:02x}").repeat(8);
    for (restores, record) in [
        (false, format!(" a 8000 {life}")),
        (true, format!(" a 0 lost-{life}")),
    ] {
        let master = ScriptedMaster::new(|_| None);
        let clock = Arc::new(ManualClock::default());
        let raise = ChangeOrder::Raise {
            number: 0,
            print: "00aa".into(),
            step: 0,
            restores,
        };
        let builder = master.builder("redis://m").runtime(clock);
        let seen = execute_with(builder, raise).await;
        assert_eq!(seen.fault, None);
        let raised = master.commands("EVALSHA").concat();
        assert!(raised.ends_with(&record), "{raised}");
    }
}

#[tokio::test]
async fn counters_below_the_smallest_number_are_left_out() {
    let min_number = 1_700_000_000_000_000 - 10_000_000;
    let keys = ["quorate:fence:a", "quorate:fence:b"];
    let master = ScriptedMaster::new(move |command| match command {
        "GET quorate:fence:a" => Some(bulk(&min_number.to_string())),
        "GET quorate:fence:b" => Some(bulk(&(min_number - 1).to_string())),
        command if command.starts_with("SCAN") => Some(page_of("0", &keys)),
        _ => None,
    });
    let order = ChangeOrder::Counters(Duration::from_secs(10));
    let seen = master.execute("redis://m", order).await;
    assert_eq!(seen.fault, None);
    assert_eq!(seen.counters, [(keys[0].as_bytes().to_vec(), min_number)]);
}

#[tokio::test]
async fn right_to_read_the_uptime_is_needed_for_the_restart_guard_only_if_it_is_on() {
    for (restart_guard, is_for_guard) in [(RestartGuard::On, true), (RestartGuard::Off, false)] {
        let refusal = "-NOPERM User u has no permissions to run the 'info' command\r\n";
        let refuses = |command: &str| command.starts_with("INFO").then(|| refusal.to_owned());
        let master = ScriptedMaster::new(refuses);
        let order = rights_order(&master.redlock("redis://m"), "");
        let builder = master.builder("redis://m").restart_guard(restart_guard);
        let seen = execute_with(builder, order).await;
        let [missing] = &seen.missing[..] else {
            panic!("only the right to INFO is missing: {seen:?}");
        };
        assert_eq!(missing.rule(), "+info");
        let is_found = missing.purposes().contains(&Purpose::RestartGuard);
        assert_eq!(is_found, is_for_guard, "{missing:?}");
    }
}
