//! Tests of settings that are read from the environment of the process. Each test starts a child process, because a
//! process must not change its own environment while other threads read it.

use std::process::Command;

use quorate::RedlockBuilder;

/// The environment variable that marks the child process. If it is set, this test program runs as the child process.
const CHILD_VARIABLE: &str = "QUORATE_TEST_CHILD";

/// The main function of the child process that [`run_with_variables`] starts; it tests nothing by itself. Prints the masters that the
/// environment configures, or the error.
#[test]
fn child_process_prints_the_settings_from_its_environment() {
    if std::env::var_os(CHILD_VARIABLE).is_none() {
        return;
    }
    match RedlockBuilder::from_env().and_then(RedlockBuilder::build) {
        Ok(redlock) => println!("masters: {:?}", redlock.masters().collect::<Vec<_>>()),
        Err(error) => println!("refused: {error}"),
    }
}

fn run_with_variables(variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args([
        "from_env::child_process_prints_the_settings_from_its_environment",
        "--exact",
        "--nocapture",
    ]);
    command.env(CHILD_VARIABLE, "1");
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
    let output = run_with_variables(&[masters]);
    assert!(
        output.contains("10.0.0.1:6379") && output.contains("10.0.0.2:7000"),
        "{output}"
    );
    let output = run_with_variables(&[masters, ("QUORATE_TTL", "ten")]);
    assert!(
        output.contains("refused: QUORATE_TTL 'ten' is not a duration"),
        "{output}"
    );
    // A TTL of ten minutes exceeds the default `max_ttl`. The builder refuses it, and the error names both settings.
    let output = run_with_variables(&[masters, ("QUORATE_TTL", "10m")]);
    assert!(
        output.contains("refused: ttl of 10m is above max_ttl"),
        "{output}"
    );
    assert!(!output.contains("s3cret"), "{output}");
    let output = run_with_variables(&[]);
    assert!(
        output.contains("refused: QUORATE_MASTERS is not set"),
        "{output}"
    );
}
