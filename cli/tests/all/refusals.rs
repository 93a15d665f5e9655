//! Tests of masters that refuse the client, and of an operating system that refuses resources.

use std::process::Command;

use crate::common::{output_of, quorate_command, quorate_on};
use quorate_testbed::{Masters, ServerOptions, demand_plugin};

#[test]
fn command_that_the_masters_do_not_have_ends_a_wait_and_is_named_by_doctor() {
    for (command, exits) in [("EVALSHA", 69), ("SCRIPT", 69), ("SUBSCRIBE", 0)] {
        let options = ServerOptions::new()
            .arg("--rename-command")
            .arg(command)
            .arg("");
        let masters = Masters::start_with(3, |_| options.clone()).expect("masters start");
        let run = output_of(quorate_on(&masters).args(["run", "r", "--", "true"]));
        assert_eq!(run.code, Some(exits), "{command}: {run:?}");
        let doctor = output_of(quorate_on(&masters).args(["doctor", "--node-timeout", "2s"]));
        assert!(doctor.stdout.contains(command), "{command}: {doctor:?}");
        if exits != 0 {
            assert!(
                run.stderr.contains("restore its name (rename-command)"),
                "{run:?}"
            );
            assert!(doctor.stdout.contains("rename-command"), "{doctor:?}");
        }
    }
}

#[test]
fn cluster_nodes_end_a_wait_with_advice_that_doctor_repeats() {
    let options = ServerOptions::new().arg("--cluster-enabled").arg("yes");
    let masters = Masters::start_with(3, |_| options.clone()).expect("masters start");
    let run = output_of(quorate_on(&masters).args(["run", "r", "--", "true"]));
    assert_eq!(run.code, Some(69), "{run:?}");
    let advice = "use servers with cluster-enabled no";
    assert!(run.stderr.contains(advice), "{run:?}");
    let doctor = output_of(quorate_on(&masters).arg("doctor"));
    assert!(doctor.stdout.contains(advice), "{doctor:?}");
    assert_eq!(doctor.code, Some(69), "{doctor:?}");
}

#[test]
fn panic_of_a_driver_is_reported_as_a_fault_and_not_as_a_panic() {
    let nonce = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef";
    let (address, _answers) = demand_plugin("parsec", nonce).expect("a server");
    let url = format!("mysql://app:hunter2@{address}/locks?timeout=2s");
    for quiet in [&[][..], &["-q"]] {
        let mut command = quorate_command();
        command.env("QUORATE_MASTERS", &url).arg("run").args(quiet);
        let run = output_of(command.args(["r", "--", "true"]));
        assert_eq!(run.code, Some(69), "{run:?}");
        assert!(run.stderr.contains("parsec"), "{run:?}");
        assert!(!run.stderr.contains("panicked"), "{run:?}");
        assert!(!run.stderr.contains("hunter2"), "{run:?}");
    }
    let doctor = output_of(quorate_command().env("QUORATE_MASTERS", &url).arg("doctor"));
    assert_eq!(doctor.code, Some(69), "{doctor:?}");
    assert!(doctor.stdout.contains("parsec"), "{doctor:?}");
    let prepare = output_of(quorate_command().args(["prepare-server", &url]));
    assert!(matches!(prepare.code, Some(1 | 69 | 70)), "{prepare:?}");
    assert!(prepare.stderr.contains("parsec"), "{prepare:?}");
    assert!(!prepare.stderr.contains("panicked"), "{prepare:?}");
}

#[test]
fn too_few_open_files_end_a_command_with_an_error_and_no_panic() {
    let mut failed = 0;
    for files in 5..20 {
        for arguments in [
            &["-q", "run", "--try", "r", "--", "true"][..],
            &["doctor"],
            &["status", "r"],
        ] {
            let limited_shell = format!("ulimit -n {files}; exec \"$@\"");
            let mut limited = Command::new("sh");
            limited
                .args(["-c", &limited_shell, "sh", env!("CARGO_BIN_EXE_quorate")])
                .args(arguments)
                .env("QUORATE_MASTERS", "redis://127.0.0.1:1");
            let output = output_of(&mut limited);
            let case_text = format!("{files} files, {arguments:?}: {output:?}");
            assert!(matches!(output.code, Some(69 | 70)), "{case_text}");
            assert!(
                !output.stderr.contains("panicked") && !output.stderr.is_empty(),
                "{case_text}"
            );
            failed += u32::from(output.stderr.contains("raise the limits of open files"));
        }
    }
    assert!(failed > 3, "with few open files, no command can start");
}
