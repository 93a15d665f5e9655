//! Tests of `Names`: host names whose lookups get the answers that the test configures. The tests start this test
//! program again as a child process, and the child looks up a name.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quorate_testbed::{LookupAnswer, Names};

const NAME: &str = "m1.quorate.test";
/// A time that is long enough to start a program and to look up a name that gets an answer.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);
const LONG_TIMEOUT: Duration = Duration::from_secs(8);

/// The tests run this function in a child process. Without the variable `LOOK_UP`, it does nothing.
#[test]
fn child_process_looks_up_the_host_name_given_in_an_environment_variable() {
    let Ok(name) = std::env::var("LOOK_UP") else {
        return;
    };
    match (name.as_str(), 7).to_socket_addrs() {
        Ok(addresses) => println!("found: {addresses:?}"),
        Err(error) => println!("error: {error}"),
    }
}

fn spawn_lookup(names: &Names, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "names::child_process_looks_up_the_host_name_given_in_an_environment_variable",
            "--nocapture",
        ])
        .env("LOOK_UP", name)
        .envs(names.env())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn lookup_output(lookup: Child) -> String {
    let Output { stdout, .. } = lookup.wait_with_output().unwrap();
    String::from_utf8_lossy(&stdout).into_owned()
}

#[test]
fn listed_host_names_resolve_as_configured_and_other_names_as_usual() {
    let names = match Names::build() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return eprintln!("{error}"),
        names => names.unwrap(),
    };
    let loopback = IpAddr::from([127, 0, 0, 1]);
    names.set(NAME, LookupAnswer::Address(loopback)).unwrap();
    assert!(lookup_output(spawn_lookup(&names, NAME)).contains("127.0.0.1:7"));
    assert!(lookup_output(spawn_lookup(&names, "127.0.0.3")).contains("127.0.0.3:7"));

    names.set(NAME, LookupAnswer::NoSuchName).unwrap();
    assert!(lookup_output(spawn_lookup(&names, NAME)).contains("error: "));

    names.set(NAME, LookupAnswer::Silence).unwrap();
    let mut lookup = spawn_lookup(&names, NAME);
    std::thread::sleep(SHORT_TIMEOUT);
    assert!(
        lookup.try_wait().unwrap().is_none(),
        "the lookup must not end while the name server is silent"
    );
    let healed_at = Instant::now();
    names.set(NAME, LookupAnswer::Address(loopback)).unwrap();
    assert!(lookup_output(lookup).contains("127.0.0.1:7"));
    assert!(
        healed_at.elapsed() < LONG_TIMEOUT,
        "the lookup must end with an answer, not with a timeout"
    );
}
