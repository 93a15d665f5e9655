//! Tests of the documented behavior of `Hostile`. Most tests use a plain socket. Tests that need correct replies use a
//! real server behind `Hostile`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use quorate_testbed::{
    AfterHandshake, AnswerBytes, Connection, Hostile, Reply, Script, Server, ServerOptions,
    Tampering, within,
};

const LONG_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a test waits for an answer before it concludes that the server sends none.
const SHORT_TIMEOUT: Duration = Duration::from_millis(60);

fn start(script: Script) -> Hostile {
    Hostile::start(script).unwrap()
}

fn connect(hostile: &Hostile) -> Connection {
    Connection::tcp(hostile.addr(), LONG_TIMEOUT).unwrap()
}

fn connect_stream(hostile: &Hostile) -> TcpStream {
    let stream = TcpStream::connect(hostile.addr()).unwrap();
    stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    stream
}

fn is_silent(connection: &mut Connection) -> bool {
    let reply = connection.receive();
    reply.is_err_and(|error| error.kind() == ErrorKind::TimedOut)
}

fn introduce(connection: &mut Connection) {
    assert!(
        connection
            .command(&["CLIENT", "SETINFO", "LIB-NAME", "x"])
            .unwrap()
            .is_ok()
    );
    let info = connection.command(&["INFO", "server"]).unwrap();
    assert!(info.text().unwrap().contains("\nrun_id:"), "{info:?}");
}

#[test]
fn two_hostile_servers_give_different_answers_to_the_info_command() {
    let servers = [
        Script::Greet(AfterHandshake::Hush),
        Script::Greet(AfterHandshake::Hush),
    ]
    .map(start);
    let [first, second] = servers.each_ref().map(|hostile| {
        let info = connect(hostile).command(&["INFO"]).unwrap();
        info.text().unwrap().into_owned()
    });
    assert_ne!(first, second);
}

#[test]
fn hostile_server_answers_the_handshake_and_then_follows_its_script() {
    let hostile = start(Script::Greet(AfterHandshake::HangUpAfter {
        commands: 2,
        words: ":7\r\n".into(),
    }));
    let mut connection = connect(&hostile);
    introduce(&mut connection);
    for _ in 0..2 {
        assert_eq!(connection.command(&["GET", "a"]).unwrap(), Reply::Int(7));
    }
    assert!(connection.command(&["GET", "a"]).is_err());
    assert_eq!(hostile.accepted(), 1);
    assert_eq!(hostile.commands(), 5);
    assert_eq!(hostile.commands_named("GET"), 3);
}

#[test]
fn server_with_the_hang_up_script_waits_for_the_end_of_the_handshake() {
    let hostile = start(Script::Greet(AfterHandshake::HangUp));
    let mut connection = connect(&hostile);
    thread::sleep(SHORT_TIMEOUT);
    introduce(&mut connection);
    let started = Instant::now();
    assert!(connection.receive().is_err());
    assert!(started.elapsed() < LONG_TIMEOUT / 2);
}

#[test]
fn new_script_applies_to_existing_connections() {
    let hostile = start(Script::Hush);
    let mut connection = Connection::tcp(hostile.addr(), SHORT_TIMEOUT).unwrap();
    connection.send(&["HELLO", "3"]).unwrap();
    assert!(is_silent(&mut connection));
    hostile.play(Script::Say("+now\r\n".into()));
    // `HELLO` was sent before the change of the script, so it still gets no answer.
    assert!(is_silent(&mut connection));
    connection.send(&["PING"]).unwrap();
    let mut reply = connection.receive();
    for _ in 0..100 {
        if reply.is_ok() {
            break;
        }
        reply = connection.receive();
    }
    assert_eq!(reply.unwrap(), Reply::Status("now".into()));
}

#[test]
fn server_with_the_dismiss_script_sends_an_error_to_each_new_client() {
    let hostile = start(Script::Dismiss(
        "-ERR max number of clients reached\r\n".into(),
    ));
    let mut received = String::new();
    connect_stream(&hostile)
        .read_to_string(&mut received)
        .unwrap();
    assert_eq!(received, "-ERR max number of clients reached\r\n");
}

#[test]
fn server_with_the_quote_script_quotes_the_refused_command_with_all_arguments() {
    let hostile = start(Script::Quote);
    let reply = connect(&hostile).command(&["HELLO", "3", "AUTH", "u", "s3cret"]);
    let Reply::Error(text) = reply.unwrap() else {
        panic!("the reply to a refused command must be an error")
    };
    assert!(
        text.contains("'HELLO'") && text.contains("'s3cret'"),
        "{text}"
    );
}

#[test]
fn server_with_the_garbage_script_sends_different_bytes_each_time() {
    let hostile = start(Script::Say(AnswerBytes::Garbage(64)));
    let mut stream = connect_stream(&hostile);
    let mut answers = Vec::new();
    for _ in 0..50 {
        stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        let mut buffer = [0; 64];
        let count = stream.read(&mut buffer).unwrap();
        answers.push(buffer[..count].to_vec());
    }
    answers.sort();
    answers.dedup();
    assert!(
        answers.len() > 25,
        "most of the 50 answers must differ, but only {} do",
        answers.len()
    );
}

#[test]
fn server_with_the_flood_script_sends_a_reply_without_end() {
    let hostile = start(Script::Greet(AfterHandshake::Flood {
        first: b"$4294967296\r\n".to_vec(),
        rest: b"x".to_vec(),
    }));
    let mut connection = connect(&hostile);
    introduce(&mut connection);
    let mut stream = connect_stream(&hostile);
    stream.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut flood = vec![0; 2 << 20];
    stream.read_exact(&mut flood).unwrap();
    assert!(flood.starts_with(b"$4294967296\r\nxxx"));
}

fn server() -> Server {
    Server::start(ServerOptions::new()).unwrap_or_else(|error| panic!("{error}"))
}

fn relay(server: &Server, tampering: Tampering) -> Script {
    let target = server.addr();
    Script::Relay { target, tampering }
}

#[test]
fn relay_passes_replies_on_with_the_chosen_kind_of_tampering() {
    let server = server();
    for tampering in [Tampering::None, Tampering::Bytewise] {
        let hostile = start(relay(&server, tampering.clone()));
        let mut connection = connect(&hostile);
        assert!(connection.command(&["SET", "a", "b"]).unwrap().is_ok());
        assert_eq!(connection.command(&["GET", "a"]).unwrap(), "b".into());
        // The relay must close the connection, because another script has already answered a command on it.
        hostile.play(Script::Say(":1\r\n".into()));
        assert_eq!(connection.command(&["GET", "a"]).unwrap(), Reply::Int(1));
        hostile.play(relay(&server, tampering));
        assert!(connection.command(&["GET", "a"]).is_err());
    }
    let hostile = start(relay(&server, Tampering::Slip("+shifted\r\n".into())));
    let mut connection = connect(&hostile);
    let first = connection.command(&["GET", "a"]).unwrap();
    assert_eq!(first, Reply::Status("shifted".into()));
    let second = connection.command(&["PING"]).unwrap();
    assert_eq!(second, "b".into());
}

#[test]
fn relay_forwards_the_handshake_but_answers_later_commands_itself() {
    let server = server();
    let hostile = start(relay(&server, Tampering::Say("+other\r\n".into())));
    let mut connection = connect(&hostile);
    let server_info = server.command(&["INFO", "server"]).unwrap();
    let run_id_of = |info: &Reply| {
        let text = info.text().unwrap().into_owned();
        text.lines()
            .find_map(|line| line.strip_prefix("run_id:").map(str::to_owned))
            .unwrap()
    };
    let relayed_info = connection.command(&["INFO", "server"]).unwrap();
    assert_eq!(run_id_of(&relayed_info), run_id_of(&server_info));
    for _ in 0..2 {
        let answer = connection.command(&["SET", "a", "b"]).unwrap();
        assert_eq!(answer, Reply::Status("other".into()));
    }
    assert_eq!(server.command(&["GET", "a"]).unwrap(), Reply::Nil);
}

#[test]
fn relay_hangs_up_after_passing_the_chosen_command_to_the_real_server() {
    let server = server();
    let hostile = start(relay(&server, Tampering::HangUpAt(2)));
    for round in 1..=2 {
        let mut connection = connect(&hostile);
        assert_reports_run_id(&mut connection);
        assert_eq!(
            connection.command(&["INCR", "a"]).unwrap(),
            Reply::Int(2 * round - 1)
        );
        assert!(connection.command(&["INCR", "a"]).is_err());
        let value = || server.command(&["GET", "a"]).unwrap().int();
        assert!(
            within(LONG_TIMEOUT, || value() == Some(2 * round)),
            "{:?}",
            value()
        );
    }
}

#[test]
fn relay_can_hang_up_right_after_the_handshake() {
    let server = server();
    let hostile = start(relay(&server, Tampering::HangUpAt(0)));
    let mut connection = connect(&hostile);
    thread::sleep(SHORT_TIMEOUT);
    assert_reports_run_id(&mut connection);
    let started = Instant::now();
    assert!(connection.receive().is_err());
    assert!(started.elapsed() < LONG_TIMEOUT / 2);
}

fn assert_reports_run_id(connection: &mut Connection) {
    let info = connection.command(&["INFO", "server"]).unwrap();
    assert!(info.text().unwrap().contains("run_id:"), "{info:?}");
}
