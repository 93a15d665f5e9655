//! Tests of the documented behavior of `Postgres`, on real servers.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quorate_testbed::{Error, Postgres, PostgresOptions, not_run, within};

const PATIENCE: Duration = Duration::from_secs(20);

fn report_not_run(why: &str) {
    not_run(std::thread::current().name().unwrap_or("a test"), why);
}

fn server(options: PostgresOptions) -> Option<Postgres> {
    if let Err(error) = Postgres::available() {
        report_not_run(&error.to_string());
        return None;
    }
    let server = Postgres::start_with(options).unwrap_or_else(|error| panic!("{error}"));
    server.sql("CREATE TABLE t (n int)").unwrap();
    Some(server)
}

fn add(server: &Postgres, number: u32) {
    let statement = format!("INSERT INTO t VALUES ({number})");
    server.sql(&statement).unwrap();
}

fn numbers(server: &Postgres) -> String {
    server.sql("SELECT n FROM t ORDER BY n").unwrap()
}

#[test]
fn restored_files_are_those_of_the_moment_of_the_copy() {
    let Some(server) = server(PostgresOptions::new().tcp()) else {
        return;
    };
    let address = server.addr();
    add(&server, 1);
    let copied_while_running = server.copy_files().unwrap();
    add(&server, 2);
    server.shut_down().unwrap();
    let copied_when_stopped = server.copy_files().unwrap();
    for (files, expected) in [
        (copied_while_running, "1\n"),
        (copied_when_stopped, "1\n2\n"),
    ] {
        server.kill().unwrap();
        server.restore_files(files).unwrap();
        server.start_again().unwrap();
        assert_eq!(numbers(&server), expected);
        add(&server, 3);
    }
    assert_eq!(server.addr(), address);
}

#[test]
fn server_that_takes_over_a_promoted_standby_has_its_commits() {
    let Some(server) = server(PostgresOptions::new().tcp()) else {
        return;
    };
    let standby = match server.start_standby() {
        Ok(standby) => standby,
        Err(error) => return report_not_run(&error.to_string()),
    };
    server.kill().unwrap();
    standby.sql("SELECT pg_promote()").unwrap();
    add(&standby, 7);
    let address = server.addr();
    server.take_over(standby).unwrap();
    server.start_again().unwrap();
    assert_eq!(numbers(&server), "7\n");
    assert_eq!(server.addr(), address);
}

#[test]
fn small_disk_of_a_server_can_be_filled_and_keeps_its_files_over_a_restart() {
    if let Some(why) = Postgres::missing_small_disk() {
        return report_not_run(&why);
    }
    let Some(server) = server(PostgresOptions::new().small_disk(2 << 20)) else {
        return;
    };
    let folder = server.small_disk();
    let create = format!("CREATE TABLESPACE small LOCATION '{}'", folder.display());
    server.sql(&create).unwrap();
    server.sql("ALTER TABLE t SET TABLESPACE small").unwrap();
    add(&server, 1);
    let fill = "INSERT INTO t SELECT n FROM generate_series(1,1000000) n";
    let error = server.sql(fill).unwrap_err();
    assert!(
        matches!(&error, Error::Refused(message) if message.contains("No space left on device")),
        "{error}"
    );
    server.restart().unwrap();
    assert_eq!(numbers(&server), "1\n");
    let is_empty_outside = std::fs::read_dir(&folder).unwrap().next().is_none();
    assert!(is_empty_outside, "only the server may see the disk");
}

#[test]
fn server_shuts_down_in_time_although_clients_connect_and_send_nothing() {
    let Some(server) = server(PostgresOptions::new().tcp()) else {
        return;
    };
    let address = server.addr().expect("an address");
    let is_over = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            let mut connections = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                connections.extend(TcpStream::connect(address));
                thread::sleep(Duration::from_millis(50));
            }
        });
        thread::sleep(Duration::from_millis(500));
        let ended = server.shut_down();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    ended.unwrap();
}

#[test]
fn stopped_server_leaves_no_process_when_it_is_dropped() {
    let Some(server) = server(PostgresOptions::new()) else {
        return;
    };
    let pids = server.sql("SELECT pid FROM pg_stat_activity").unwrap();
    let processes: Vec<_> = pids
        .lines()
        .filter_map(|pid| Some((pid, started_at(pid)?)))
        .collect();
    assert!(processes.len() > 3, "{pids}");
    server.stop().unwrap();
    drop(server);
    let has_ended = || {
        processes
            .iter()
            .all(|(pid, started)| started_at(pid).as_ref() != Some(started))
    };
    assert!(within(PATIENCE, has_ended), "{processes:?}");
}

/// When a process started, in clock ticks since the start of the machine; `None` if it has ended. A later process with the
/// same pid has another start time.
fn started_at(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    // A zombie (state Z) has ended, but its parent has not noticed it yet.
    fields.next().filter(|state| *state != "Z")?;
    // The first field after the name is field 3; the start time is field 22.
    fields.nth(18).map(str::to_owned)
}

#[test]
fn console_keeps_its_locks_until_it_is_dropped() {
    let Some(server) = server(PostgresOptions::new()) else {
        return;
    };
    add(&server, 1);
    let mut console = server.console_in("postgres").unwrap();
    assert_eq!(
        console.say("BEGIN; SELECT n FROM t FOR UPDATE").unwrap(),
        "1\n"
    );
    let lock = "SELECT n FROM t FOR UPDATE NOWAIT";
    let error = server.sql(lock).unwrap_err();
    assert!(
        matches!(&error, Error::Refused(message) if message.contains("could not obtain lock")),
        "{error}"
    );
    drop(console);
    assert!(within(PATIENCE, || server.sql(lock).is_ok()));
}
