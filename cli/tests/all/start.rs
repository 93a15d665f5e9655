//! Tests of `quorate run` in unusual environments: inherited signal settings, PID 1, no `/proc`, and existing files and
//! variables.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    self, Done, Ends, bare, did_not_run, done, end, held_by_another, mark, masters, run, signal,
    sleeps, until, until_held,
};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use quorate_testbed::Masters;

/// A command that starts `quorate` through the wrapper `program`, for example `unshare`.
fn by(program: &[&str], quorate: &Command) -> Command {
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
fn works(program: &[&str]) -> bool {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("true");
    command.output().is_ok_and(|done| done.status.success())
}

fn untouched(masters: &Masters) -> bool {
    let empty =
        |keys: std::io::Result<quorate_testbed::Reply>| keys.expect("a reply").int() == Some(0);
    masters
        .iter()
        .all(|master| empty(master.command(&["DBSIZE"])))
}

#[test]
fn run_started_with_sigchld_ignored_exits_with_the_code_of_the_command() {
    let ignoring = ["env", "--ignore-signal=CHLD"];
    if !works(&ignoring) {
        return did_not_run(
            "run_started_with_sigchld_ignored_exits_with_the_code_of_the_command",
            "env has no option --ignore-signal",
        );
    }
    let masters = masters(3);
    for (command, code) in [
        (&["sh", "-c", "exit 5"][..], 5),
        (&["no-such-command"], 127),
        (&["sh", "-c", "sh -c 'exit 3'; exit $?"], 3),
    ] {
        let done = done(&mut by(&ignoring, &run(&masters, &["r"], command)));
        assert_eq!(done.code, Some(code), "{command:?} {done:?}");
    }
}

#[test]
fn demo_reaps_its_servers_if_sigchld_was_ignored() {
    let ignoring = ["env", "--ignore-signal=CHLD"];
    if !works(&ignoring) {
        return did_not_run(
            "demo_reaps_its_servers_if_sigchld_was_ignored",
            "env has no option --ignore-signal",
        );
    }
    let mut demo = bare();
    let done = done(&mut by(&ignoring, demo.arg("demo")));
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn run_exits_with_128_plus_n_if_real_time_signal_n_killed_the_command() {
    let masters = masters(3);
    for n in [34, 40, 64] {
        let kill = format!("kill -{n} $$");
        let run = done(&mut run(&masters, &["r"], &["sh", "-c", &kill]));
        assert_eq!(run.code, Some(128 + n), "{run:?}");
    }
}

#[test]
fn run_receives_signals_that_were_blocked_when_it_started() {
    let blocking = ["env", "--block-signal"];
    if !works(&blocking) {
        return did_not_run(
            "run_receives_signals_that_were_blocked_when_it_started",
            "env has no option --block-signal",
        );
    }
    let masters = masters(3);
    let mark = mark();
    let holder = by(&blocking, &run(&masters, &["r"], &["sleep", &mark]))
        .spawn()
        .expect("starts");
    until("the command runs", || sleeps(&mark));
    signal(&holder, "TERM");
    let holder = end(holder);
    assert_eq!(holder.code, Some(143), "{holder:?}");
}

#[test]
fn run_dies_of_the_signal_that_ended_its_command_or_interrupted_its_wait() {
    let masters = masters(3);
    for name in ["TERM", "INT", "HUP", "QUIT"] {
        let number = Some(format!("SIG{name}").parse::<Signal>().expect("a signal") as i32);
        let mark = mark();
        let holder = run(&masters, &["r"], &["sleep", &mark])
            .spawn()
            .expect("starts");
        until("the command runs", || sleeps(&mark));
        signal(&holder, name);
        let holder = end(holder);
        assert_eq!(
            holder.died_of, number,
            "run must die of the signal that ended its command: {holder:?}"
        );
        held_by_another(&masters);
        let waiter = run(&masters, &["r"], &["true"]).spawn().expect("starts");
        until_held(&masters, "quorate:queue:r");
        signal(&waiter, name);
        let waiter = end(waiter);
        assert_eq!(
            waiter.died_of, number,
            "a waiting run must die of the signal that it receives: {waiter:?}"
        );
        assert!(waiter.err.contains("no lock is held"), "{waiter:?}");
        for master in &masters {
            master.command(&["DEL", "r"]).expect("a reply");
        }
    }
}

#[test]
fn run_exits_with_the_code_of_a_command_that_handles_a_signal() {
    let masters = masters(3);
    for (script, name, code) in [
        ("trap 'exit 9' TERM", "TERM", 9),
        ("trap 'exit 130' INT", "INT", 130),
        // On SIGHUP, the command kills itself with SIGKILL, so the exit code is 128 + 9.
        ("trap 'kill -9 $$' HUP", "HUP", 137),
    ] {
        let ends = Ends(mark());
        let mark = &ends.0;
        let script = format!("{script}; sleep {mark} >/dev/null 2>&1 & wait");
        let holder = run(&masters, &["r"], &["sh", "-c", &script])
            .spawn()
            .expect("starts");
        until("the command runs", || sleeps(mark));
        signal(&holder, name);
        let holder = end(holder);
        assert_eq!(
            (holder.code, holder.died_of),
            (Some(code), None),
            "{script}: {holder:?}"
        );
    }
}

#[test]
fn shell_loop_around_run_ends_on_ctrl_c() {
    let masters = masters(3);
    for held in [false, true] {
        let mark = mark();
        let quorate = run(&masters, &["r"], &["sleep", &mark]);
        if held {
            held_by_another(&masters);
        }
        let mut shell = by(
            &["bash", "-c", "while :; do \"$@\"; echo again; done", "bash"],
            &quorate,
        );
        let shell = shell.process_group(0).spawn().expect("bash starts");
        if held {
            until_held(&masters, "quorate:queue:r");
        } else {
            until("the command runs", || sleeps(&mark));
        }
        // Send the signal to the whole foreground group, as Ctrl-C does.
        let group = Pid::from_raw(i32::try_from(shell.id()).expect("a pid"));
        killpg(group, Signal::SIGINT).expect("a living process");
        let stuck = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(20));
            let _ = killpg(group, Signal::SIGKILL);
        });
        let shell = end(shell);
        drop(stuck);
        assert_eq!(
            (shell.died_of, &*shell.out),
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
    if !works(&script) {
        return did_not_run(
            "run_without_the_proc_file_system_is_refused_before_the_lock_is_acquired",
            "this machine allows no mount namespace",
        );
    }
    let masters = masters(3);
    let run = done(&mut by(&script, &run(&masters, &["r"], &["true"])));
    assert_eq!(run.code, Some(70), "{run:?}");
    assert!(run.err.contains("/proc"), "{run:?}");
    assert!(untouched(&masters), "{run:?}");
}

/// A wrapper that runs a command as PID 1 of a new pid namespace, as in a container.
const FIRST: [&str; 4] = ["unshare", "--pid", "--fork", "--mount-proc"];

#[test]
fn run_as_pid_1_reaps_orphans() {
    if !works(&FIRST) {
        return did_not_run(
            "run_as_pid_1_reaps_orphans",
            "this machine allows no pid namespace",
        );
    }
    let masters = masters(3);
    // Each inner shell ends before its child `sleep`. So `quorate`, the first process of the container, adopts the
    // child and must reap it.
    let script = "for i in 1 2 3; do sh -c 'sleep 0.1 & exit'; done; sleep 1.5; \
                  cat /proc/[0-9]*/status | grep -c '^State:.Z'; exit 6";
    let run = done(&mut by(
        &FIRST,
        &run(&masters, &["r"], &["sh", "-c", script]),
    ));
    assert_eq!((run.code, &*run.out), (Some(6), "0\n"), "{run:?}");
}

/// A container often gets the environment of a process that does not wait for it. In the container, the process that
/// `QUORATE_HELD` names cannot be seen.
#[test]
fn variable_quorate_held_is_ignored_in_another_pid_namespace() {
    if !works(&FIRST) {
        return did_not_run(
            "variable_quorate_held_is_ignored_in_another_pid_namespace",
            "this machine allows no pid namespace",
        );
    }
    let masters = masters(3);
    let told = &["sh", "-c", "echo \"$QUORATE_HELD\""];
    let told = done(&mut run(&masters, &["job"], told));
    let mut inner = run(
        &masters,
        &["--wait", "1s", "job"],
        &["sh", "-c", "echo \"$QUORATE_HELD\""],
    );
    inner.env("QUORATE_HELD", told.out.trim());
    let inner = done(&mut by(&FIRST, &inner));
    assert_eq!(inner.code, Some(0), "{inner:?}");
    // The command must not get the entries that quorate has ignored.
    assert_eq!(inner.out.trim().split(' ').count(), 1, "{inner:?}");
}

#[test]
fn run_as_pid_1_exits_with_128_plus_the_signal_number() {
    if !works(&FIRST) {
        return did_not_run(
            "run_as_pid_1_exits_with_128_plus_the_signal_number",
            "this machine allows no pid namespace",
        );
    }
    let masters = masters(3);
    held_by_another(&masters);
    let child = by(&FIRST, &run(&masters, &["r"], &["true"]))
        .spawn()
        .expect("starts");
    until_held(&masters, "quorate:queue:r");
    kill(child_of(child.id()), Signal::SIGTERM).expect("a living process");
    let Done { code, err, .. } = end(child);
    assert_eq!(code, Some(143), "{err}");
}

/// The only child of this process.
fn child_of(parent: u32) -> Pid {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let child = std::fs::read_to_string(children).expect("/proc must list the children");
    Pid::from_raw(child.trim().parse().expect("there must be one child"))
}

#[test]
fn run_started_from_outside_its_container_does_not_stop_on_sigtstp() {
    if !works(&FIRST) {
        return did_not_run(
            "run_started_from_outside_its_container_does_not_stop_on_sigtstp",
            "this machine allows no pid namespace",
        );
    }
    let masters = masters(3);
    let mut container = Command::new(FIRST[0]);
    let mut container = container
        .args(&FIRST[1..])
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
    let mark = mark();
    let child = by(&enter, &run(&masters, &["r"], &["sleep", &mark]))
        .spawn()
        .expect("starts");
    until("the command runs", || sleeps(&mark));
    let quorate = child_of(child.id());
    kill(quorate, Signal::SIGTSTP).expect("a living process");
    std::thread::sleep(Duration::from_millis(500));
    let stat = std::fs::read_to_string(format!("/proc/{quorate}/stat")).expect("a living process");
    let (_, state) = stat.rsplit_once(") ").expect("the state of a process");
    assert!(!state.starts_with('T'), "{stat}");
    kill(quorate, Signal::SIGTERM).expect("a living process");
    end(child);
    drop(container.stdin.take());
    container.wait().expect("the shell must end");
}

#[test]
fn pipe_or_directory_with_the_name_of_the_configuration_file_is_ignored() {
    let masters = masters(1);
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
            let mut quorate = common::quorate(&masters);
            // If `quorate` hangs, `timeout` kills it, and the exit code of `timeout` makes the test fail.
            let ran = done(&mut by(
                &["timeout", "10"],
                quorate.args(command).current_dir(dir.path()),
            ));
            assert_eq!(ran.code, Some(0), "{ran:?}");
            assert!(ran.err.contains("ignoring quorate.toml"), "{ran:?}");
        }
        let mut named = common::quorate(&masters);
        if !is_pipe {
            let named = named.args(["status", "--config", "quorate.toml", "r"]);
            let refused = done(named.current_dir(dir.path()));
            assert_eq!(refused.code, Some(64), "{refused:?}");
        }
    }
}

#[test]
fn option_config_accepts_a_pipe() {
    let masters = masters(1);
    let urls = masters.urls().join(",");
    let script =
        format!("exec \"$@\" status r --restart-guard off --config <(echo 'masters = \"{urls}\"')");
    let quorate = bare();
    let done = done(&mut by(&["bash", "-c", &script, "bash"], &quorate));
    assert_eq!(done.code, Some(0), "{done:?}");
}

#[test]
fn empty_environment_variable_counts_as_unset() {
    let masters = masters(3);
    let mut variables = common::variables_of("run");
    variables.retain(|name| name != "QUORATE_MASTERS");
    assert!(variables.len() > 12, "{variables:?}");
    for variable in variables {
        let mut run = run(&masters, &["--restart-guard", "off", "r"], &["true"]);
        let done = done(run.env(&variable, ""));
        assert_eq!(done.code, Some(0), "{variable}: {done:?}");
    }
    // The empty variable QUORATE_TTL counts as unset, so quorate reads the invalid `ttl` in line 2 of the file.
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!("masters = '{}'\nttl = 'ten'\n", masters.urls().join(","));
    std::fs::write(dir.path().join("quorate.toml"), text).expect("written");
    let mut quorate = bare();
    quorate
        .env("QUORATE_MASTERS", "")
        .env("QUORATE_TTL", "")
        .env("QUORATE_CONFIG", "");
    let done = done(
        quorate
            .args(["run", "r", "--", "true"])
            .current_dir(dir.path()),
    );
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("line 2, ttl"), "{done:?}");
}

#[test]
fn command_inherits_the_urls_of_the_masters_unless_hide_masters_is_given() {
    let masters = masters(3);
    let script = "echo ${QUORATE_MASTERS-none} $QUORATE_RESOURCE";
    let urls = masters.urls().join(",");
    let shown = done(&mut run(&masters, &["r"], &["sh", "-c", script]));
    assert_eq!(shown.out, format!("{urls} r\n"), "{shown:?}");
    let hidden = done(&mut run(
        &masters,
        &["--hide-masters", "r"],
        &["sh", "-c", script],
    ));
    assert_eq!(hidden.out, "none r\n", "{hidden:?}");
    let mut hidden = run(&masters, &["r"], &["sh", "-c", script]);
    let hidden = done(hidden.env("QUORATE_HIDE_MASTERS", "1"));
    assert_eq!(hidden.out, "none r\n", "{hidden:?}");
    // QUORATE_NEXT_MASTERS can contain passwords, so `--hide-masters` must hide it from the command that `run` starts.
    let next = format!("{},redis://:s3cret@127.0.0.1:1", masters.urls()[0]);
    let mut hidden = run(
        &masters,
        &["--hide-masters", "r"],
        &["sh", "-c", "echo ${QUORATE_NEXT_MASTERS-none}"],
    );
    let next = format!("{next},{}", masters.urls()[1]);
    let hidden = done(hidden.env("QUORATE_NEXT_MASTERS", next));
    assert_eq!(hidden.out, "none\n", "{hidden:?}");
    let help = done(bare().args(["run", "--help"])).out;
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
    if !works(&script) {
        return did_not_run(
            "run_exits_without_waiting_for_a_silent_name_server",
            "this machine allows no mount namespace",
        );
    }
    let masters = masters(2);
    let urls = format!("{},redis://m.example:6379", masters.urls().join(","));
    let mut command = run(&masters, &["--try", "r"], &["true"]);
    command.env("QUORATE_MASTERS", urls);
    let run = done(&mut by(&script, &command));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.took < Duration::from_secs(7), "{run:?}");
}
