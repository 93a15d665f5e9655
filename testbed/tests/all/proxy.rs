//! Tests of the documented behavior of `Proxy` and its faults. Tests that need replies have a real server behind the
//! proxy. Tests that compare raw bytes have a plain TCP listener behind it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use quorate_testbed::{Connection, Fault, Proxy, Reply, Server, ServerOptions, Way};

const LONG_TIMEOUT: Duration = Duration::from_secs(20);
/// A time that is long enough for bytes to arrive, if no fault delays them.
const SHORT_TIMEOUT: Duration = Duration::from_millis(60);

/// A real server behind a proxy.
fn server_and_proxy() -> (Server, Proxy) {
    let server = Server::start(ServerOptions::new()).unwrap_or_else(|error| panic!("{error}"));
    let proxy = Proxy::start(server.addr()).unwrap();
    (server, proxy)
}

fn connect(proxy: &Proxy) -> Connection {
    let mut connection = Connection::tcp(proxy.addr(), LONG_TIMEOUT).unwrap();
    ping(&mut connection);
    connection
}

fn ping(connection: &mut Connection) {
    let reply = connection.command(&["PING"]).unwrap();
    assert_eq!(reply, Reply::Status("PONG".into()));
}

/// Connects to `listener` through the proxy. Returns the client's socket and the server's socket.
fn connect_streams(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(proxy.addr()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    }
    (client, server)
}

fn listener_and_proxy() -> (TcpListener, Proxy) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    (listener, proxy)
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SHORT_TIMEOUT)).unwrap();
    let result = stream.read(&mut [0; 16]);
    stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn is_reset(stream: &mut TcpStream) -> bool {
    let result = stream.read(&mut [0; 16]);
    result.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

fn is_over(stream: &mut TcpStream) -> bool {
    let result = stream.read(&mut [0; 16]);
    result.map_or_else(
        |error| error.kind() == ErrorKind::ConnectionReset,
        |n| n == 0,
    )
}

fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).unwrap();
    assert!(
        received == expected,
        "the proxy must pass the bytes on unchanged"
    );
}

fn eventually(awaited: &str, mut is_done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_done() {
        assert!(
            started.elapsed() < LONG_TIMEOUT,
            "timed out waiting for: {awaited}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns `len` different words of four bytes each, so that a test notices lost or swapped bytes.
fn distinct_bytes(len: u32) -> Vec<u8> {
    (0..len)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

#[test]
fn proxy_without_faults_passes_all_bytes_and_counts_them() {
    let (server, proxy) = server_and_proxy();
    let mut client = connect(&proxy);
    let value = "v".repeat(1_000_000);
    assert!(client.command(&["SET", "a", &value]).unwrap().is_ok());
    assert_eq!(
        client.command(&["GET", "a"]).unwrap(),
        Reply::from(value.as_str())
    );
    let counters = proxy.counters();
    assert_eq!((counters.accepted, counters.open), (1, 1));
    eventually("the delivery of all bytes by the counters", || {
        let counters = proxy.counters();
        [counters.to_server, counters.to_client].iter().all(|flow| {
            flow.delivered > 1_000_000 && flow.received == flow.delivered && flow.dropped == 0
        })
    });
    assert_eq!(
        server.url_at(proxy.addr()),
        format!("redis://{}", proxy.addr())
    );
    drop(client);
    eventually("the end of the only connection through the proxy", || {
        proxy.counters().open == 0
    });
}

#[test]
fn latency_fault_delays_bytes_by_at_least_its_latency_until_healed() {
    let (_server, proxy) = server_and_proxy();
    let mut client = connect(&proxy);
    let delay = Duration::from_millis(50);
    let slow_fault = Fault::latency(Way::Both, delay).inject(&proxy);
    let started = Instant::now();
    ping(&mut client);
    assert!(started.elapsed() >= 2 * delay);
    drop(slow_fault);
    let endless_fault = Fault::latency(Way::ToClient, Duration::from_secs(3600)).inject(&proxy);
    client.send(&["PING"]).unwrap();
    eventually("the arrival of the reply at the proxy", || {
        proxy.counters().to_client.received >= 21
    });
    endless_fault.heal();
    assert_eq!(client.receive().unwrap(), Reply::Status("PONG".into()));
}

#[test]
fn unlimited_latency_fault_delivers_nothing() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    for _ in 0..2 {
        Fault::Latency {
            way: Way::Both,
            base: Duration::MAX,
            jitter: Duration::MAX,
        }
        .inject(&proxy)
        .keep();
    }
    client.write_all(b"x").unwrap();
    assert!(is_silent(&mut server));
    proxy.heal();
    expect(&mut server, b"x");
}

#[test]
fn jitter_keeps_the_order_of_bytes() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let _jitter = Fault::Latency {
        way: Way::ToServer,
        base: Duration::ZERO,
        jitter: Duration::from_millis(5),
    }
    .inject(&proxy);
    let bytes = distinct_bytes(50_000);
    let sent = bytes.clone();
    let sender = thread::spawn(move || {
        for chunk in sent.chunks(4_000) {
            client.write_all(chunk).unwrap();
            thread::sleep(Duration::from_micros(200));
        }
        client
    });
    expect(&mut server, &bytes);
    sender.join().unwrap();
}

#[test]
fn bytes_held_by_a_hold_fault_are_delivered_when_the_fault_is_healed() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let hold = Fault::Hold(Way::ToServer).inject(&proxy);
    client.write_all(b"one ").unwrap();
    client.write_all(b"two").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(is_silent(&mut server));
    server.write_all(b"back").unwrap();
    expect(&mut client, b"back");
    hold.heal();
    let mut received = String::new();
    server.read_to_string(&mut received).unwrap();
    assert_eq!(received, "one two");
}

#[test]
fn hold_fault_delays_the_close_of_a_connection_whose_server_was_killed() {
    let (server, proxy) = server_and_proxy();
    connect(&proxy);
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    expect(&mut client, b"+PONG\r\n");
    let hold = Fault::Hold(Way::ToClient).inject(&proxy);
    server.kill().unwrap();
    client.write_all(b"PING\r\n").unwrap();
    assert!(is_silent(&mut client));
    hold.heal();
    assert!(is_over(&mut client));
}

#[test]
fn healed_hold_fault_delivers_the_first_request_of_a_new_connection() {
    let (_server, proxy) = server_and_proxy();
    let hold = Fault::Hold(Way::Both).inject(&proxy);
    let mut client = Connection::tcp(proxy.addr(), LONG_TIMEOUT).unwrap();
    client.send(&["PING"]).unwrap();
    eventually("the arrival of the request at the proxy", || {
        proxy.counters().to_server.received > 0
    });
    assert_eq!(proxy.counters().to_server.delivered, 0);
    drop(hold);
    assert_eq!(client.receive().unwrap(), Reply::Status("PONG".into()));
}

#[test]
fn hold_fault_buffers_megabytes_in_order_and_then_blocks_the_sender() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let hold = Fault::Hold(Way::ToServer).inject(&proxy);
    let bytes = distinct_bytes(8 << 20);
    let sent = bytes.clone();
    let sender = thread::spawn(move || client.write_all(&sent).map(|()| client));
    let full = 16 << 20;
    eventually("a full buffer of the hold fault", || {
        proxy.counters().to_server.received >= full
    });
    thread::sleep(SHORT_TIMEOUT);
    assert!(proxy.counters().to_server.received < full + (1 << 20));
    drop(hold);
    expect(&mut server, &bytes);
    sender.join().unwrap().unwrap();
}

#[test]
fn bytes_that_a_drop_fault_discarded_are_never_delivered() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let drop_fault = Fault::Drop(Way::ToServer).inject(&proxy);
    client.write_all(b"lost").unwrap();
    eventually("the loss of the bytes", || {
        proxy.counters().to_server.dropped == 4
    });
    drop_fault.heal();
    client.write_all(b"found").unwrap();
    expect(&mut server, b"found");
    eventually("a count of five delivered bytes", || {
        proxy.counters().to_server.delivered == 5
    });
}

#[test]
fn drop_fault_discards_bytes_in_transit_and_the_close_of_the_connection() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let slow_fault = Fault::latency(Way::ToServer, Duration::from_secs(3600)).inject(&proxy);
    client.write_all(b"slow").unwrap();
    eventually("the arrival of the bytes at the proxy", || {
        proxy.counters().to_server.received == 4
    });
    let drop_fault = proxy.inject(Fault::Drop(Way::ToServer));
    drop(client);
    eventually("the loss of the bytes", || {
        proxy.counters().to_server.dropped == 4
    });
    assert!(is_silent(&mut server));
    drop((slow_fault, drop_fault));
    assert!(is_silent(&mut server));
    // The client has closed its socket, so it resets the connection when these bytes arrive. The proxy must reset its
    // connection to the server as well.
    server.write_all(b"anyone there?").unwrap();
    assert!(is_reset(&mut server));
}

#[test]
fn rate_fault_limits_the_bytes_per_second() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let rate = Fault::Rate {
        way: Way::ToServer,
        bytes_per_second: 5_000,
    };
    let rate_fault = rate.inject(&proxy);
    let started = Instant::now();
    let bytes = distinct_bytes(250_000);
    client.write_all(&bytes[..1_100]).unwrap();
    expect(&mut server, &bytes[..1_100]);
    assert!(started.elapsed() >= Duration::from_millis(200));
    let rest = bytes[1_100..].to_vec();
    let sender = thread::spawn(move || client.write_all(&rest).map(|()| client));
    thread::sleep(SHORT_TIMEOUT);
    // If the fault still applied, the rest of the bytes would take about 50 s.
    rate_fault.heal();
    expect(&mut server, &bytes[1_100..]);
    sender.join().unwrap().unwrap();
}

#[test]
fn reset_of_all_connections_spares_connections_made_afterwards() {
    let (listener, proxy) = listener_and_proxy();
    for _ in 0..50 {
        let (mut client, mut server) = connect_streams(&proxy, &listener);
        proxy.reset_all();
        // `reset_all` must not reset a connection that is made right after the call.
        let (mut new_client, mut new_server) = connect_streams(&proxy, &listener);
        assert!(is_reset(&mut client));
        assert!(is_reset(&mut server));
        new_client.write_all(b"fine").unwrap();
        expect(&mut new_server, b"fine");
    }
}

#[test]
fn reset_of_all_connections_works_despite_a_hold_fault() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, _server) = connect_streams(&proxy, &listener);
    let _hold = Fault::Hold(Way::Both).inject(&proxy);
    client.write_all(b"held").unwrap();
    proxy.reset_all();
    assert!(is_reset(&mut client));
}

#[test]
fn reset_fault_can_cut_off_a_reply_in_the_middle() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    server.write_all(b"before").unwrap();
    expect(&mut client, b"before");
    let _tear = Fault::ResetAfter(3).inject(&proxy);
    server.write_all(b"+PONG\r\n").unwrap();
    expect(&mut client, b"+PO");
    assert!(is_reset(&mut client));
    assert!(is_reset(&mut server));

    let (mut another, mut server) = connect_streams(&proxy, &listener);
    let _at_once = Fault::ResetAfter(0).inject(&proxy);
    server.write_all(b"+PONG\r\n").unwrap();
    assert!(is_reset(&mut another));
}

#[test]
fn refuse_fault_closes_new_connections_and_spares_existing_ones() {
    let (_server, proxy) = server_and_proxy();
    let mut existing = connect(&proxy);
    let refuse = Fault::Refuse.inject(&proxy);
    let result = Connection::tcp(proxy.addr(), LONG_TIMEOUT)
        .and_then(|mut result| result.command(&["PING"]));
    let kind = result.unwrap_err().kind();
    let allowed_kinds = [
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionReset,
        ErrorKind::UnexpectedEof,
    ];
    assert!(allowed_kinds.contains(&kind), "{kind:?}");
    assert_eq!(proxy.counters().refused, 1);
    ping(&mut existing);
    refuse.heal();
    connect(&proxy);
}

#[test]
fn half_open_fault_closes_only_the_server_side_of_existing_connections() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let (mut quiet, _quiet_server) = connect_streams(&proxy, &listener);
    let half_open = Fault::HalfOpen.inject(&proxy);
    assert!(is_over(&mut server));
    client.write_all(b"hello?").unwrap();
    assert!(is_silent(&mut client));
    let (mut fresh, mut fresh_server) = connect_streams(&proxy, &listener);
    fresh.write_all(b"works").unwrap();
    expect(&mut fresh_server, b"works");
    eventually("the loss of the bytes", || {
        proxy.counters().to_server.dropped == 6
    });
    half_open.heal();
    assert!(is_reset(&mut client));
    assert!(is_silent(&mut quiet));
    quiet.write_all(b"hello?").unwrap();
    assert!(is_reset(&mut quiet));
    fresh.write_all(b"still").unwrap();
    expect(&mut fresh_server, b"still");
}

#[test]
fn strand_fault_holds_bytes_of_existing_connections_until_the_fault_is_healed() {
    let (server, proxy) = server_and_proxy();
    let (mut old, mut older) = (connect(&proxy), connect(&proxy));
    let strand = Fault::Strand.inject(&proxy);
    old.send(&["SET", "a", "late"]).unwrap();
    older.send(&["SET", "b", "late"]).unwrap();
    // Close one client. Its bytes must stay in the proxy until the fault is healed.
    drop(older);
    let mut fresh = connect(&proxy);
    assert!(fresh.command(&["SET", "a", "early"]).unwrap().is_ok());
    let read = |key| server.command(&["GET", key]).unwrap();
    thread::sleep(SHORT_TIMEOUT);
    assert_eq!((read("a"), read("b")), (Reply::from("early"), Reply::Nil));
    strand.heal();
    assert!(old.receive().unwrap().is_ok());
    assert_eq!(read("a"), Reply::from("late"));
    eventually("the arrival of the bytes of the closed connection", || {
        read("b") == Reply::from("late")
    });
    // The fault holds back the data of all existing connections. Now `fresh` is one of them.
    let _strand = Fault::Strand.inject(&proxy);
    fresh.send(&["SET", "c", "late"]).unwrap();
    connect(&proxy);
    assert_eq!(read("c"), Reply::Nil);
}

#[test]
fn proxy_resets_connections_only_while_its_server_is_down() {
    let (server, proxy) = server_and_proxy();
    server.kill().unwrap();
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    assert!(is_reset(&mut client));
    server.restart().unwrap();
    connect(&proxy);
}

#[test]
fn client_of_the_proxy_loses_its_connection_when_the_server_is_killed() {
    let (server, proxy) = server_and_proxy();
    let mut client = connect(&proxy);
    server.kill().unwrap();
    client.receive().unwrap_err();
}

#[test]
fn fault_without_a_guard_lasts_until_the_proxy_is_healed() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    proxy.inject(Fault::Hold(Way::ToServer)).keep();
    let healed_fault = proxy.inject(Fault::Hold(Way::Both));
    drop(healed_fault);
    client.write_all(b"x").unwrap();
    assert!(is_silent(&mut server));
    proxy.heal();
    expect(&mut server, b"x");
}

#[test]
fn dropping_the_proxy_ends_its_connections_and_frees_its_port() {
    let (listener, proxy) = listener_and_proxy();
    let (mut client, mut server) = connect_streams(&proxy, &listener);
    let guard = Fault::Hold(Way::Both).inject(&proxy);
    let address: SocketAddr = proxy.addr();
    drop(proxy);
    assert!(is_over(&mut client));
    assert!(is_over(&mut server));
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    drop(guard);
}

#[test]
fn in_turn_fault_leads_every_second_connection_to_another_server() {
    let (right, proxy) = server_and_proxy();
    let wrong = Server::start(ServerOptions::new()).unwrap_or_else(|error| panic!("{error}"));
    right.command(&["SET", "who", "right"]).unwrap();
    wrong.command(&["SET", "who", "wrong"]).unwrap();
    let answering_server = || connect(&proxy).command(&["GET", "who"]).unwrap();
    let in_turn_fault = Fault::InTurn(wrong.addr()).inject(&proxy);
    let answers = [
        answering_server(),
        answering_server(),
        answering_server(),
        answering_server(),
    ];
    let wrong_count = answers
        .iter()
        .filter(|reply| **reply == "wrong".into())
        .count();
    assert_eq!(wrong_count, 2, "{answers:?}");
    assert_ne!(answers[0], answers[1]);
    in_turn_fault.heal();
    assert_eq!(
        [answering_server(), answering_server()],
        ["right".into(), "right".into()]
    );
}

#[test]
fn detour_fault_leads_new_connections_to_another_server_until_healed() {
    let (right, proxy) = server_and_proxy();
    let wrong = Server::start(ServerOptions::new()).unwrap_or_else(|error| panic!("{error}"));
    right.command(&["SET", "who", "right"]).unwrap();
    wrong.command(&["SET", "who", "wrong"]).unwrap();
    let answering_server =
        |connection: &mut Connection| connection.command(&["GET", "who"]).unwrap();
    let mut existing = connect(&proxy);
    let detour = Fault::Detour(wrong.addr()).inject(&proxy);
    assert_eq!(answering_server(&mut connect(&proxy)), "wrong".into());
    assert_eq!(
        answering_server(&mut existing),
        "right".into(),
        "a detour fault must not affect an existing connection"
    );
    proxy.reset_all();
    assert!(existing.command(&["PING"]).is_err());
    let mut misled = connect(&proxy);
    assert_eq!(answering_server(&mut misled), "wrong".into());
    detour.heal();
    assert_eq!(answering_server(&mut connect(&proxy)), "right".into());
    assert_eq!(
        answering_server(&mut misled),
        "wrong".into(),
        "a connection made during the detour must still lead to the wrong server after the fault is healed"
    );
}
