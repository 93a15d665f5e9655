//! Tests of `quorate run` in unusual environments: inherited signal settings, PID 1, no `/proc`, and existing files and
//! variables.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    self, KillAtDrop, RunOutput, did_not_run, is_sleeping, occupy_lock, output_of, quorate_command,
    quorate_run, send_signal, start_masters, unique_marker, wait_for_output, wait_until,
    wait_until_held,
};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use quorate_testbed::Masters;

/// A command that starts `quorate` through the wrapper `program`, for example `unshare`.
fn wrapped_by(program: &[&str], quorate: &Command) -> Command {
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .arg(quorate.get_program())
        .args(quorate.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(dir) = quorate.get_current_dir() {
        command.current_dir(dir);
    }
    for (name, value) in quorate.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Whether the wrapper `program` can start the command `true` on this machine.
fn can_start(program: &[&str]) -> bool {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("true");
    command.output().is_ok_and(|done| done.status.success())
}

fn has_no_keys(masters: &Masters) -> bool {
    let empty =
        |keys: std::io::Result<quorate_testbed::Reply>| keys.expect("a reply").int() == Some(0);
    masters
        .iter()
        .all(|master| empty(master.command(&["DBSIZE"])))
}

#[test]
fn run_started_with_sigchld_ignored_exits_with_the_code_of_the_command() {
    let ignoring = ["env", "--ignore-signal=CHLD"];
    if !can_start(&ignoring) {
        return did_not_run(
            "run_started_with_sigchld_ignored_exits_with_the_code_of_the_command",
            "env has no option --ignore-signal",
        );
    }
    let masters = start_masters(3);
    for (command, code) in [
        (&["sh", "-c", "exit 5"][..], 5),
        (&["no-such-command"], 127),
        (&["sh", "-c", "sh -c 'exit 3'; exit $?"], 3),
    ] {
        let output = output_of(&mut wrapped_by(
            &ignoring,
            &quorate_run(&masters, &["r"], command),
        ));
        assert_eq!(output.code, Some(code), "{command:?} {output:?}");
    }
}

#[test]
fn demo_reaps_its_servers_if_sigchld_was_ignored() {
    let ignoring = ["env", "--ignore-signal=CHLD"];
    if !can_start(&ignoring) {
        return did_not_run(
            "demo_reaps_its_servers_if_sigchld_was_ignored",
            "env has no option --ignore-signal",
        );
    }
    let mut demo = quorate_command();
    let output = output_of(&mut wrapped_by(&ignoring, demo.arg("demo")));
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn run_exits_with_128_plus_n_if_real_time_signal_n_killed_the_command() {
    let masters = start_masters(3);
    for n in [34, 40, 64] {
        let kill_line = format!("kill -{n} $$");
        let run = output_of(&mut quorate_run(
            &masters,
            &["r"],
            &["sh", "-c", &kill_line],
        ));
        assert_eq!(run.code, Some(128 + n), "{run:?}");
    }
}

#[test]
fn run_receives_signals_that_were_blocked_when_it_started() {
    let blocking = ["env", "--block-signal"];
    if !can_start(&blocking) {
        return did_not_run(
            "run_receives_signals_that_were_blocked_when_it_started",
            "env has no option --block-signal",
        );
    }
    let masters = start_masters(3);
    let sleep_marker = unique_marker();
    let holder_child = wrapped_by(
        &blocking,
        &quorate_run(&masters, &["r"], &["sleep", &sleep_marker]),
    )
    .spawn()
    .expect("starts");
    wait_until("the command runs", || is_sleeping(&sleep_marker));
    send_signal(&holder_child, "TERM");
    let holder_output = wait_for_output(holder_child);
    assert_eq!(holder_output.code, Some(143), "{holder_output:?}");
}

#[test]
fn run_dies_of_the_signal_that_ended_its_command_or_interrupted_its_wait() {
    let masters = start_masters(3);
    for name in ["TERM", "INT", "HUP", "QUIT"] {
        let signal_number = Some(format!("SIG{name}").parse::<Signal>().expect("a signal") as i32);
        let sleep_marker = unique_marker();
        let holder_child = quorate_run(&masters, &["r"], &["sleep", &sleep_marker])
            .spawn()
            .expect("starts");
        wait_until("the command runs", || is_sleeping(&sleep_marker));
        send_signal(&holder_child, name);
        let holder_output = wait_for_output(holder_child);
        assert_eq!(
            holder_output.died_of, signal_number,
            "run must die of the signal that ended its command: {holder_output:?}"
        );
        occupy_lock(&masters);
        let waiter_child = quorate_run(&masters, &["r"], &["true"])
            .spawn()
            .expect("starts");
        wait_until_held(&masters, "quorate:queue:r");
        send_signal(&waiter_child, name);
        let waiter_output = wait_for_output(waiter_child);
        assert_eq!(
            waiter_output.died_of, signal_number,
            "a waiting run must die of the signal that it receives: {waiter_output:?}"
        );
        assert!(
            waiter_output.stderr.contains("no lock is held"),
            "{waiter_output:?}"
        );
        for master in &masters {
            master.command(&["DEL", "r"]).expect("a reply");
        }
    }
}

#[test]
fn run_exits_with_the_code_of_a_command_that_handles_a_signal() {
    let masters = start_masters(3);
    for (script, name, code) in [
        ("trap 'exit 9' TERM", "TERM", 9),
        ("trap 'exit 130' INT", "INT", 130),
        // On SIGHUP, the command kills itself with SIGKILL, so the exit code is 128 + 9.
        ("trap 'kill -9 $$' HUP", "HUP", 137),
    ] {
        let kill_at_drop = KillAtDrop(unique_marker());
        let sleep_marker = &kill_at_drop.0;
        let script = format!("{script}; sleep {sleep_marker} >/dev/null 2>&1 & wait");
        let holder_child = quorate_run(&masters, &["r"], &["sh", "-c", &script])
            .spawn()
            .expect("starts");
        wait_until("the command runs", || is_sleeping(sleep_marker));
        send_signal(&holder_child, name);
        let holder_output = wait_for_output(holder_child);
        assert_eq!(
            (holder_output.code, holder_output.died_of),
            (Some(code), None),
            "{script}: {holder_output:?}"
        );
    }
}

#[test]
fn shell_loop_around_run_ends_on_ctrl_c() {
    let masters = start_masters(3);
    for held in [false, true] {
        let sleep_marker = unique_marker();
        let quorate = quorate_run(&masters, &["r"], &["sleep", &sleep_marker]);
        if held {
            occupy_lock(&masters);
        }
        let mut shell = wrapped_by(
            &["bash", "-c", "while :; do \"$@\"; echo again; done", "bash"],
            &quorate,
        );
        let shell = shell.process_group(0).spawn().expect("bash starts");
        if held {
            wait_until_held(&masters, "quorate:queue:r");
        } else {
            wait_until("the command runs", || is_sleeping(&sleep_marker));
        }
        // Send the signal to the whole foreground group, as Ctrl-C does.
        let process_group = Pid::from_raw(i32::try_from(shell.id()).expect("a pid"));
        killpg(process_group, Signal::SIGINT).expect("a living process");
        let stuck = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(20));
            let _ = killpg(process_group, Signal::SIGKILL);
        });
        let shell = wait_for_output(shell);
        drop(stuck);
        assert_eq!(
            (shell.died_of, &*shell.stdout),
            (Some(2), ""),
            "held {held}: {shell:?}"
        );
    }
}

#[test]
fn run_without_the_proc_file_system_is_refused_before_the_lock_is_acquired() {
    let script = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        "umount -l /proc && exec \"$@\"",
        "sh",
    ];
    if !can_start(&script) {
        return did_not_run(
            "run_without_the_proc_file_system_is_refused_before_the_lock_is_acquired",
            "this machine allows no mount namespace",
        );
    }
    let masters = start_masters(3);
    let run = output_of(&mut wrapped_by(
        &script,
        &quorate_run(&masters, &["r"], &["true"]),
    ));
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.stderr.contains("/proc"), "{run:?}");
    assert!(has_no_keys(&masters), "{run:?}");
}

/// A wrapper that runs a command as PID 1 of a new pid namespace, as in a container.
const NEW_PID_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--mount-proc"];

#[test]
fn run_as_pid_1_reaps_orphans() {
    if !can_start(&NEW_PID_NAMESPACE) {
        return did_not_run(
            "run_as_pid_1_reaps_orphans",
            "this machine allows no pid namespace",
        );
    }
    let masters = start_masters(3);
    // Each inner shell ends before its child `sleep`. So `quorate`, the first process of the container, adopts the
    // child and must reap it.
    let script = "for i in 1 2 3; do sh -c 'sleep 0.1 & exit'; done; sleep 1.5; \
                  cat /proc/[0-9]*/status | grep -c '^State:.Z'; exit 6";
    let run = output_of(&mut wrapped_by(
        &NEW_PID_NAMESPACE,
        &quorate_run(&masters, &["r"], &["sh", "-c", script]),
    ));
    assert_eq!((run.code, &*run.stdout), (Some(6), "0\n"), "{run:?}");
}

/// A container often gets the environment of a process that does not wait for it. In the container, the process that
/// `QUORATE_HELD` names cannot be seen.
#[test]
fn variable_quorate_held_is_ignored_in_another_pid_namespace() {
    if !can_start(&NEW_PID_NAMESPACE) {
        return did_not_run(
            "variable_quorate_held_is_ignored_in_another_pid_namespace",
            "this machine allows no pid namespace",
        );
    }
    let masters = start_masters(3);
    let print_held_command = &["sh", "-c", "echo \"$QUORATE_HELD\""];
    let output = output_of(&mut quorate_run(&masters, &["job"], print_held_command));
    let mut inner_run = quorate_run(
        &masters,
        &["--wait", "1s", "job"],
        &["sh", "-c", "echo \"$QUORATE_HELD\""],
    );
    inner_run.env("QUORATE_HELD", output.stdout.trim());
    let inner_output = output_of(&mut wrapped_by(&NEW_PID_NAMESPACE, &inner_run));
    assert_eq!(inner_output.code, Some(0), "{inner_output:?}");
    // The command must not get the entries that quorate has ignored.
    assert_eq!(
        inner_output.stdout.trim().split(' ').count(),
        1,
        "{inner_output:?}"
    );
}

#[test]
fn run_as_pid_1_exits_with_128_plus_the_signal_number() {
    if !can_start(&NEW_PID_NAMESPACE) {
        return did_not_run(
            "run_as_pid_1_exits_with_128_plus_the_signal_number",
            "this machine allows no pid namespace",
        );
    }
    let masters = start_masters(3);
    occupy_lock(&masters);
    let child = wrapped_by(
        &NEW_PID_NAMESPACE,
        &quorate_run(&masters, &["r"], &["true"]),
    )
    .spawn()
    .expect("starts");
    wait_until_held(&masters, "quorate:queue:r");
    kill(child_of(child.id()), Signal::SIGTERM).expect("a living process");
    let RunOutput { code, stderr, .. } = wait_for_output(child);
    assert_eq!(code, Some(143), "{stderr}");
}

/// The only child of this process.
fn child_of(parent: u32) -> Pid {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let child = std::fs::read_to_string(children).expect("/proc must list the children");
    Pid::from_raw(child.trim().parse().expect("there must be one child"))
}

#[test]
fn run_started_from_outside_its_container_does_not_stop_on_sigtstp() {
    if !can_start(&NEW_PID_NAMESPACE) {
        return did_not_run(
            "run_started_from_outside_its_container_does_not_stop_on_sigtstp",
            "this machine allows no pid namespace",
        );
    }
    let masters = start_masters(3);
    let mut container = Command::new(NEW_PID_NAMESPACE[0]);
    let mut container = container
        .args(&NEW_PID_NAMESPACE[1..])
        .args(["sh", "-c", "echo; read x"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut started = [0];
    let output = container.stdout.as_mut().expect("piped");
    output.read_exact(&mut started).expect("the shell must run");
    // Start `quorate` from outside of the container, as `docker exec` does. No shell could continue `quorate` after a
    // stop, so `quorate` must not stop on SIGTSTP.
    let target = child_of(container.id()).to_string();
    let enter = ["nsenter", "--pid", "--target", &target];
    let sleep_marker = unique_marker();
    let child = wrapped_by(
        &enter,
        &quorate_run(&masters, &["r"], &["sleep", &sleep_marker]),
    )
    .spawn()
    .expect("starts");
    wait_until("the command runs", || is_sleeping(&sleep_marker));
    let quorate = child_of(child.id());
    kill(quorate, Signal::SIGTSTP).expect("a living process");
    std::thread::sleep(Duration::from_millis(500));
    let stat = std::fs::read_to_string(format!("/proc/{quorate}/stat")).expect("a living process");
    let (_, state) = stat.rsplit_once(") ").expect("the state of a process");
    assert!(!state.starts_with('T'), "{stat}");
    kill(quorate, Signal::SIGTERM).expect("a living process");
    wait_for_output(child);
    drop(container.stdin.take());
    container.wait().expect("the shell must end");
}

#[test]
fn pipe_or_directory_with_the_name_of_the_configuration_file_is_ignored() {
    let masters = start_masters(1);
    for is_pipe in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("quorate.toml");
        if is_pipe {
            nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU)
                .expect("the pipe must be created");
        } else {
            std::fs::create_dir(&file).expect("the test must be able to create the directory");
        }
        for command in [&["run", "r", "--", "true"][..], &["status", "r"]] {
            let mut quorate = common::quorate_on(&masters);
            // If `quorate` hangs, `timeout` kills it, and the exit code of `timeout` makes the test fail.
            let output = output_of(&mut wrapped_by(
                &["timeout", "10"],
                quorate.args(command).current_dir(dir.path()),
            ));
            assert_eq!(output.code, Some(0), "{output:?}");
            assert!(
                output.stderr.contains("ignoring quorate.toml"),
                "{output:?}"
            );
        }
        let mut command_with_config = common::quorate_on(&masters);
        if !is_pipe {
            let command_with_config =
                command_with_config.args(["status", "--config", "quorate.toml", "r"]);
            let refused_run = output_of(command_with_config.current_dir(dir.path()));
            assert_eq!(refused_run.code, Some(64), "{refused_run:?}");
        }
    }
}

#[test]
fn option_config_accepts_a_pipe() {
    let masters = start_masters(1);
    let urls = masters.urls().join(",");
    let script =
        format!("exec \"$@\" status r --restart-guard off --config <(echo 'masters = \"{urls}\"')");
    let quorate = quorate_command();
    let output = output_of(&mut wrapped_by(&["bash", "-c", &script, "bash"], &quorate));
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn empty_environment_variable_counts_as_unset() {
    let masters = start_masters(3);
    let mut variables = common::variables_of("run");
    variables.retain(|name| name != "QUORATE_MASTERS");
    assert!(variables.len() > 12, "{variables:?}");
    for variable in variables {
        let mut run = quorate_run(&masters, &["--restart-guard", "off", "r"], &["true"]);
        let output = output_of(run.env(&variable, ""));
        assert_eq!(output.code, Some(0), "{variable}: {output:?}");
    }
    // The empty variable QUORATE_TTL counts as unset, so quorate reads the invalid `ttl` in line 2 of the file.
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!("masters = '{}'\nttl = 'ten'\n", masters.urls().join(","));
    std::fs::write(dir.path().join("quorate.toml"), text).expect("written");
    let mut quorate = quorate_command();
    quorate
        .env("QUORATE_MASTERS", "")
        .env("QUORATE_TTL", "")
        .env("QUORATE_CONFIG", "");
    let output = output_of(
        quorate
            .args(["run", "r", "--", "true"])
            .current_dir(dir.path()),
    );
    assert_eq!(output.code, Some(64), "{output:?}");
    assert!(output.stderr.contains("line 2, ttl"), "{output:?}");
}

#[test]
fn command_inherits_the_urls_of_the_masters_unless_hide_masters_is_given() {
    let masters = start_masters(3);
    let script = "echo ${QUORATE_MASTERS-none} $QUORATE_RESOURCE";
    let urls = masters.urls().join(",");
    let held_run = output_of(&mut quorate_run(&masters, &["r"], &["sh", "-c", script]));
    assert_eq!(held_run.stdout, format!("{urls} r\n"), "{held_run:?}");
    let hidden_run = output_of(&mut quorate_run(
        &masters,
        &["--hide-masters", "r"],
        &["sh", "-c", script],
    ));
    assert_eq!(hidden_run.stdout, "none r\n", "{hidden_run:?}");
    let mut hidden_run = quorate_run(&masters, &["r"], &["sh", "-c", script]);
    let hidden_run = output_of(hidden_run.env("QUORATE_HIDE_MASTERS", "1"));
    assert_eq!(hidden_run.stdout, "none r\n", "{hidden_run:?}");
    // QUORATE_NEXT_MASTERS can contain passwords, so `--hide-masters` must hide it from the command that `run` starts.
    let next = format!("{},redis://:s3cret@127.0.0.1:1", masters.urls()[0]);
    let mut hidden_run = quorate_run(
        &masters,
        &["--hide-masters", "r"],
        &["sh", "-c", "echo ${QUORATE_NEXT_MASTERS-none}"],
    );
    let next = format!("{next},{}", masters.urls()[1]);
    let hidden_run = output_of(hidden_run.env("QUORATE_NEXT_MASTERS", next));
    assert_eq!(hidden_run.stdout, "none\n", "{hidden_run:?}");
    let help = output_of(quorate_command().args(["run", "--help"])).stdout;
    assert!(
        help.contains("password") && help.contains("--hide-masters"),
        "{help}"
    );
}

/// The name server never replies. `quorate run` must exit before the system's resolver gives up (after ten seconds).
#[test]
fn run_exits_without_waiting_for_a_silent_name_server() {
    let conf = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("silent.conf");
    std::fs::write(&conf, "nameserver 127.0.0.53\n").expect("written");
    let mount = format!("mount --bind '{}' /etc/resolv.conf", conf.display());
    let script = format!("{mount} && exec \"$@\"");
    let script = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    // Open the port of the name server, but never reply to a query.
    let Ok(_silent) = std::net::UdpSocket::bind("127.0.0.53:53") else {
        return did_not_run(
            "run_exits_without_waiting_for_a_silent_name_server",
            "port 53 of 127.0.0.53 is in use",
        );
    };
    if !can_start(&script) {
        return did_not_run(
            "run_exits_without_waiting_for_a_silent_name_server",
            "this machine allows no mount namespace",
        );
    }
    let masters = start_masters(2);
    let urls = format!("{},redis://m.example:6379", masters.urls().join(","));
    let mut command = quorate_run(&masters, &["--try", "r"], &["true"]);
    command.env("QUORATE_MASTERS", urls);
    let run = output_of(&mut wrapped_by(&script, &command));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.elapsed < Duration::from_secs(7), "{run:?}");
}
