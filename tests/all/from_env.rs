//! Tests of settings that are read from the environment of the process. Each test starts a child process, because a
//! process must not change its own environment while other threads read it.

use std::process::Command;

use quorate::RedlockBuilder;

/// The environment variable that marks the child process. If it is set, this test program runs as the child process.
const CHILD: &str = "QUORATE_TEST_CHILD";

/// The main function of the child process that [`with`] starts; it tests nothing by itself. Prints the masters that the
/// environment configures, or the error.
#[test]
fn child_process_prints_the_settings_from_its_environment() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    match RedlockBuilder::from_env().and_then(RedlockBuilder::build) {
        Ok(redlock) => println!("masters: {:?}", redlock.masters().collect::<Vec<_>>()),
        Err(error) => println!("refused: {error}"),
    }
}

fn with(variables: &[(&str, &str)]) -> String {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(this);
    command.args([
        "from_env::child_process_prints_the_settings_from_its_environment",
        "--exact",
        "--nocapture",
    ]);
    command.env(CHILD, "1");
    for name in ["QUORATE_MASTERS", "QUORATE_TTL", "QUORATE_NODE_TIMEOUT"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output();
    String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned()
}

#[test]
fn settings_are_read_from_the_process_environment() {
    let masters = (
        "QUORATE_MASTERS",
        "redis://u:s3cret@10.0.0.1,redis://10.0.0.2:7000",
    );
    let said = with(&[masters]);
    assert!(
        said.contains("10.0.0.1:6379") && said.contains("10.0.0.2:7000"),
        "{said}"
    );
    let said = with(&[masters, ("QUORATE_TTL", "ten")]);
    assert!(
        said.contains("refused: QUORATE_TTL 'ten' is not a duration"),
        "{said}"
    );
    // A TTL of ten minutes exceeds the default `max_ttl`. The builder refuses it, and the error names both settings.
    let said = with(&[masters, ("QUORATE_TTL", "10m")]);
    assert!(
        said.contains("refused: ttl of 10m is above max_ttl"),
        "{said}"
    );
    assert!(!said.contains("s3cret"), "{said}");
    let said = with(&[]);
    assert!(
        said.contains("refused: QUORATE_MASTERS is not set"),
        "{said}"
    );
}
