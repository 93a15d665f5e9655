//! Tests of `Names`: host names whose lookups get the answers that the test configures. The tests start this test
//! program again as a child process, and the child looks up a name.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quorate_testbed::{Leads, Names};

const NAME: &str = "m1.quorate.test";
/// A time that is long enough to start a program and to look up a name that gets an answer.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(8);

/// The tests run this function in a child process. Without the variable `LOOK_UP`, it does nothing.
#[test]
fn child_process_looks_up_the_host_name_given_in_an_environment_variable() {
    let Ok(name) = std::env::var("LOOK_UP") else {
        return;
    };
    match (name.as_str(), 7).to_socket_addrs() {
        Ok(found) => println!("found: {found:?}"),
        Err(error) => println!("error: {error}"),
    }
}

fn ask(names: &Names, name: &str) -> Child {
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

fn said(asker: Child) -> String {
    let Output { stdout, .. } = asker.wait_with_output().unwrap();
    String::from_utf8_lossy(&stdout).into_owned()
}

#[test]
fn listed_host_names_resolve_as_configured_and_other_names_as_usual() {
    let names = match Names::build() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return eprintln!("{error}"),
        names => names.unwrap(),
    };
    let home = IpAddr::from([127, 0, 0, 1]);
    names.set(NAME, Leads::To(home)).unwrap();
    assert!(said(ask(&names, NAME)).contains("127.0.0.1:7"));
    assert!(said(ask(&names, "127.0.0.3")).contains("127.0.0.3:7"));

    names.set(NAME, Leads::Nowhere).unwrap();
    assert!(said(ask(&names, NAME)).contains("error: "));

    names.set(NAME, Leads::ToSilence).unwrap();
    let mut asker = ask(&names, NAME);
    std::thread::sleep(SHORT);
    assert!(
        asker.try_wait().unwrap().is_none(),
        "the lookup must not end while the name server is silent"
    );
    let healed = Instant::now();
    names.set(NAME, Leads::To(home)).unwrap();
    assert!(said(asker).contains("127.0.0.1:7"));
    assert!(
        healed.elapsed() < LONG,
        "the lookup must end with an answer, not with a timeout"
    );
}
