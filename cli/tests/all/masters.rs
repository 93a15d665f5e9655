//! Tests of `quorate masters` on real servers, with the commands exactly as docs/operations.md shows them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{RunOutput, output_of, quorate_command, start_masters, wait_until};
use quorate_testbed::{Masters, Persistence, Server, ServerOptions};

/// The `quorate masters` commands that docs/operations.md shows, in the order of the page.
fn documented_commands() -> Vec<Vec<String>> {
    let page_path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(page_path).expect("the page");
    let (_, rest) = page
        .split_once("## Changing the masters")
        .expect("its section");
    let section = rest.split("\n## ").next().expect("its text");
    let commands = section
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_prefix("quorate "));
    let split_words = |command: &str| command.split(' ').map(str::to_owned).collect();
    commands.map(split_words).collect()
}

/// Five servers. The first three are the old masters, and the last three are the next masters, so the third server is
/// both an old and a next master.
struct MastersChange(Masters);

impl MastersChange {
    fn urls(&self, which: std::ops::Range<usize>) -> String {
        self.0.urls()[which].join(",")
    }

    fn quorate(masters: &str) -> Command {
        let mut command = quorate_command();
        command
            .env("QUORATE_MASTERS", masters)
            .env("QUORATE_RESTART_GUARD", "off")
            .env("QUORATE_MAX_TTL", "1s")
            .env("QUORATE_NODE_TIMEOUT", "250ms")
            .env("QUORATE_CONNECT_TIMEOUT", "2s");
        command
    }

    fn run_operator(&self, words: &[&str]) -> RunOutput {
        let mut command = Self::quorate(&self.urls(0..3));
        command.env("QUORATE_NEXT_MASTERS", self.urls(2..5));
        output_of(command.args(words))
    }

    fn exit_code_of_run(mut command: Command) -> Option<i32> {
        let words = ["run", "--ttl", "1s", "--wait", "5s", "job", "--", "true"];
        output_of(command.args(words)).code
    }

    fn old_client_code(&self) -> Option<i32> {
        Self::exit_code_of_run(Self::quorate(&self.urls(0..3)))
    }

    fn changing_client_code(&self) -> Option<i32> {
        let mut command = Self::quorate(&self.urls(0..3));
        command.env("QUORATE_NEXT_MASTERS", self.urls(2..5));
        Self::exit_code_of_run(command)
    }

    fn next_client_code(&self) -> Option<i32> {
        let mut command = Self::quorate(&self.urls(2..5));
        command.env("QUORATE_MASTERS_GENERATION", "1");
        Self::exit_code_of_run(command)
    }
}

/// Two of the three old masters do not reply, and a client could hold a lock on these two. So `status` and `break` must
/// fail, although the other three of the five masters reply.
#[test]
fn status_and_break_require_a_majority_of_old_masters_while_masters_are_replaced() {
    let change = MastersChange(start_masters(5));
    for master in change.0.iter().take(2) {
        master.stop().expect("stopped");
    }
    for words in [
        &["status", "job"][..],
        &["status"],
        &["break", "job", "--yes"],
    ] {
        let output = change.run_operator(words);
        assert_eq!(output.code, Some(69), "{words:?}: {output:?}");
        assert!(
            output.stderr.contains("3 of 5 masters answered")
                && output
                    .stderr
                    .contains("a majority of masters and a majority of next_masters are needed"),
            "{output:?}"
        );
    }
}

#[test]
fn documented_steps_replace_the_masters_while_clients_take_locks() {
    let change = MastersChange(start_masters(5));
    let mut steps = Vec::new();
    let client_codes = |change: &MastersChange| {
        [
            change.old_client_code(),
            change.changing_client_code(),
            change.next_client_code(),
        ]
    };
    assert_eq!(
        client_codes(&change),
        [Some(0), Some(0), Some(78)],
        "exit codes of the clients before the first step"
    );
    for command in documented_commands() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let step = words[1];
        // `begin` fails if the next masters have just started, so repeat it until it succeeds.
        wait_until("the change has begun", || {
            step != "begin" || change.run_operator(&words).code == Some(0)
        });
        for attempt in 0..2 {
            let output = change.run_operator(&words);
            assert_eq!(output.code, Some(0), "{step} {attempt}: {output:?}");
            assert!(output.stdout.contains("127.0.0.1:"), "{output:?}");
        }
        let codes = match step {
            "begin" | "status" => [Some(0), Some(0), Some(78)],
            "close" => [Some(78), Some(0), Some(78)],
            "open" => [Some(78), Some(0), Some(0)],
            "finish" => [Some(78), Some(78), Some(0)],
            step => panic!("the page lists a step that this test does not know: {step}"),
        };
        assert_eq!(
            client_codes(&change),
            codes,
            "exit codes of the clients after {step}"
        );
        steps.push(step.to_owned());
    }
    assert_eq!(steps, ["begin", "status", "close", "open", "finish"]);
    assert_old_client_is_refused(&change);
    // Replace the masters once more: from servers 2 to 4 back to servers 0 to 2.
    let mut command = MastersChange::quorate(&change.urls(2..5));
    command.env("QUORATE_NEXT_MASTERS", change.urls(0..3));
    command.env("QUORATE_MASTERS_GENERATION", "1");
    for step in ["begin", "close", "open", "finish"] {
        let mut attempt = Command::new(command.get_program());
        attempt.args(["masters", step]).envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let output = output_of(&mut attempt);
        assert_eq!(output.code, Some(0), "{step}: {output:?}");
    }
    let mut old_client_command = MastersChange::quorate(&change.urls(0..3));
    old_client_command.env("QUORATE_MASTERS_GENERATION", "2");
    assert_eq!(MastersChange::exit_code_of_run(old_client_command), Some(0));
    assert_eq!(change.next_client_code(), Some(78));
}

/// Checks that a client that still uses the old masters gets an error from every command.
fn assert_old_client_is_refused(change: &MastersChange) {
    let mut outdated = MastersChange::quorate(&change.urls(0..3));
    let output = output_of(outdated.args(["masters", "status"]));
    assert!(
        output.stdout.contains("refuse this configuration"),
        "{output:?}"
    );
    for words in [
        &["status", "job"][..],
        &["status"],
        &["break", "job", "--yes"],
        &["watch", "job"],
    ] {
        let output = output_of(MastersChange::quorate(&change.urls(0..3)).args(words));
        assert_eq!(output.code, Some(78), "{output:?}");
        assert!(
            output.stderr.contains("refuse this configuration"),
            "{output:?}"
        );
    }
    let mut outdated = MastersChange::quorate(&change.urls(0..3));
    outdated.env("QUORATE_MAX_TTL", "30s");
    let output = output_of(outdated.arg("doctor"));
    assert_eq!(output.code, Some(69), "{output:?}");
    assert!(
        output.stdout.contains("refuses this configuration"),
        "{output:?}"
    );
}

/// A process that holds a lock, and is killed when the value is dropped.
struct Holder(Child);

impl Holder {
    /// Adds the arguments of `quorate hold` to `command` and starts it. Returns when the process holds the lock `name`.
    fn start(mut command: Command, name: &str) -> Self {
        command.args(["hold", "--ttl", "1s", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Self(command.spawn().expect("quorate starts"));
        let out = holder.0.stdout.as_mut().expect("piped");
        let mut token = String::new();
        BufReader::new(out).read_line(&mut token).expect("a line");
        assert_ne!(token, "", "quorate hold must get the lock");
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn masters_status_names_host_process_and_addresses_of_an_outdated_client() {
    let change = MastersChange(start_masters(5));
    wait_until("the change has begun", || {
        change.run_operator(&["masters", "begin"]).code == Some(0)
    });
    let old_client = Holder::start(MastersChange::quorate(&change.urls(0..3)), "old");
    let mut changing_client = MastersChange::quorate(&change.urls(0..3));
    changing_client.env("QUORATE_NEXT_MASTERS", change.urls(2..5));
    let changing_client = Holder::start(changing_client, "both");
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let mut status = serde_json::Value::Null;
    let mut client_with_pid = |pid: u32| {
        let output = change.run_operator(&["masters", "status", "--json"]);
        assert_eq!(output.code, Some(0), "{output:?}");
        status = serde_json::from_str(&output.stdout).expect("JSON");
        let clients = status["clients"].as_array().expect("clients");
        let client = clients.iter().find(|client| client["pid"] == pid);
        client.cloned().unwrap_or_default()
    };
    let connections = |client: &serde_json::Value| {
        let connections = client["connections"].as_array();
        connections.cloned().unwrap_or_default()
    };
    for (pid, step, state, master_range) in [
        (old_client.0.id(), 0, "outdated", 0..3),
        (changing_client.0.id(), 1, "current", 0..5),
    ] {
        // A client can hold the lock before it is connected to every master, so wait for all connections.
        wait_until("all connections are listed", || {
            connections(&client_with_pid(pid)).len() == master_range.len()
        });
        let client = client_with_pid(pid);
        assert_eq!(client["step"], step, "{client}");
        assert_eq!(client["state"], state, "{client}");
        assert_eq!(client["host"], *host, "{client}");
        let name = client["name"].as_str().expect("a name");
        assert!(name.starts_with(&format!("quorate/{step}/")), "{client}");
        let output = change.run_operator(&["masters", "status"]).stdout;
        let pid_text = pid.to_string();
        let mut lines = output.lines();
        let line = lines.find(|line| line.split_whitespace().any(|part| part == pid_text));
        let line = line.unwrap_or_else(|| panic!("a line must show the pid {pid}: {output}"));
        assert!(line.starts_with(&step.to_string()), "{line}");
        assert!(line.contains(state) && line.contains(&*host), "{line}");
        for (connection, url) in connections(&client)
            .iter()
            .zip(&change.0.urls()[master_range])
        {
            let master = connection["master"].as_str().expect("a master");
            assert!(url.ends_with(master), "{connection} {url}");
            let address = connection["address"].as_str().expect("an address");
            assert!(line.contains(address), "{address}: {line}");
        }
    }
    assert_eq!(status["stage"], "begun", "{status:#}");
    assert_eq!(status["masters"][4]["set"], "next", "{status:#}");
    assert_eq!(status["masters"][4]["mark"], status["masters"][3]["mark"]);
}

#[test]
fn step_out_of_order_in_a_change_of_masters_is_refused_with_the_reason() {
    let change = MastersChange(start_masters(5));
    for (step, error_text) in [
        ("close", "`begin` first"),
        ("open", "`close` first"),
        ("finish", "`open` first"),
    ] {
        let output = change.run_operator(&["masters", step]);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains(error_text), "{output:?}");
    }
    let young_run = change.run_operator(&["masters", "begin"]);
    if young_run.code != Some(0) {
        assert!(
            young_run.stderr.contains("has been up for"),
            "{young_run:?}"
        );
    }
    let back_out_run = change.run_operator(&["masters", "back-out"]);
    assert_eq!(back_out_run.code, Some(0), "{back_out_run:?}");
    wait_until("the change has begun", || {
        change.run_operator(&["masters", "begin"]).code == Some(0)
    });
    assert_eq!(change.run_operator(&["masters", "close"]).code, Some(0));
    let back_out_run = change.run_operator(&["masters", "back-out"]);
    assert_eq!(back_out_run.code, Some(1), "{back_out_run:?}");
    // `close` without next masters is wrong usage.
    let no_next_masters_run =
        output_of(MastersChange::quorate(&change.urls(0..3)).args(["masters", "close"]));
    assert_eq!(
        no_next_masters_run.code,
        Some(64),
        "{no_next_masters_run:?}"
    );
    let later_output =
        output_of(MastersChange::quorate(&change.urls(0..3)).args(["masters", "status"]));
    assert_eq!(later_output.code, Some(0), "{later_output:?}");
}

#[test]
fn masters_status_names_the_fault_of_a_reachable_server() {
    let masters = start_masters(3);
    let status = |urls: &[String]| {
        let output = output_of(MastersChange::quorate(&urls.join(",")).args(["masters", "status"]));
        assert!(!output.stdout.contains("masters mark"), "{output:?}");
        output
    };
    let url_with_wrong_login = |master: &Server| format!("redis://nobody:wrong@{}", master.addr());
    let wrong_urls: Vec<String> = masters.iter().map(url_with_wrong_login).collect();
    let denied_run = status(&wrong_urls);
    assert_eq!(denied_run.code, Some(1), "{denied_run:?}");
    assert!(denied_run.stderr.contains("WRONGPASS"), "{denied_run:?}");
    assert!(
        !denied_run.stderr.contains("no master answered"),
        "{denied_run:?}"
    );

    let reply = masters[1].command(&["SADD", "quorate:masters", "x"]);
    reply.expect("a reply");
    let strange_run = status(&masters.urls());
    assert_eq!(strange_run.code, Some(1), "{strange_run:?}");
    assert!(
        strange_run.stderr.contains("key quorate:masters"),
        "{strange_run:?}"
    );

    masters
        .iter()
        .for_each(|master| master.kill().expect("killed"));
    let down_run = status(&masters.urls());
    assert_eq!(down_run.code, Some(69), "{down_run:?}");
    assert!(
        down_run.stderr.contains("no master answered"),
        "{down_run:?}"
    );
}

#[test]
fn change_of_masters_needs_only_a_majority_of_the_old_masters() {
    let change = MastersChange(start_masters(5));
    change.0[0].kill().expect("killed");
    wait_until("the change has begun", || {
        change.run_operator(&["masters", "begin"]).code == Some(0)
    });
    for step in ["close", "open"] {
        let output = change.run_operator(&["masters", step]);
        assert_eq!(output.code, Some(0), "{step}: {output:?}");
    }
    assert_eq!(change.next_client_code(), Some(0));
    let change = MastersChange(start_masters(5));
    wait_until("the change has begun", || {
        change.run_operator(&["masters", "begin"]).code == Some(0)
    });
    change.0[0].kill().expect("killed");
    change.0[1].kill().expect("killed");
    let output = change.run_operator(&["masters", "close"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(change.run_operator(&["masters", "open"]).code, Some(1));
}

#[test]
fn doctor_recommends_generation_markers_until_every_master_has_one() {
    let change = MastersChange(start_masters(5));
    let old_urls = change.urls(0..3);
    let doctor = || {
        let mut command = MastersChange::quorate(&old_urls);
        command.env("QUORATE_RESTART_GUARD", "after-first-contact");
        let doctor_run = output_of(command.args(["doctor", "--json"]));
        let recommends_marking = |text: &str| text.contains("quorate masters mark");
        (doctor_run.code, recommends_marking(&doctor_run.stdout))
    };
    let (code, recommended) = doctor();
    assert!(recommended);
    let unmarked_masters_run =
        output_of(MastersChange::quorate(&change.urls(3..5)).args(["masters", "status"]));
    assert!(
        unmarked_masters_run.stdout.contains("quorate masters mark"),
        "{unmarked_masters_run:?}"
    );
    for _ in 0..2 {
        let marked_run = output_of(MastersChange::quorate(&old_urls).args(["masters", "mark"]));
        assert_eq!(marked_run.code, Some(0), "{marked_run:?}");
        assert!(marked_run.stdout.contains("RUN ID"), "{marked_run:?}");
        assert!(
            marked_run.stdout.contains("marked: check that each"),
            "{marked_run:?}"
        );
    }
    assert_eq!(
        doctor(),
        (code, false),
        "a note must not change the exit code of doctor"
    );
    assert_eq!(change.old_client_code(), Some(0));
    let fewer_run = output_of(MastersChange::quorate(&change.urls(0..2)).args(["masters", "mark"]));
    assert_eq!(fewer_run.code, Some(1), "{fewer_run:?}");
    assert!(
        fewer_run.stderr.contains("belongs to other masters"),
        "{fewer_run:?}"
    );
    change.0[4].kill().expect("killed");
    let unreachable =
        output_of(MastersChange::quorate(&change.urls(2..5)).args(["masters", "mark"]));
    assert_eq!(unreachable.code, Some(1), "{unreachable:?}");
    let marked_during_change = change.run_operator(&["masters", "mark"]);
    assert_eq!(
        marked_during_change.code,
        Some(1),
        "{marked_during_change:?}"
    );
    assert!(
        marked_during_change.stderr.contains("begin"),
        "{marked_during_change:?}"
    );
}

/// No client is connected after the restart, so without this command the age of the server would not grow.
/// A job that is started again and again, and never waits for its lock: each process ends at once.
#[test]
fn processes_that_do_not_wait_together_give_restarted_masters_their_votes() {
    let options = |_| ServerOptions::new().persistence(Persistence::AofAlways);
    let change = MastersChange(Masters::start_with(3, options).expect("three masters"));
    let quorate = |words: &[&str]| {
        let mut command = MastersChange::quorate(&change.urls(0..3));
        command
            .env("QUORATE_RESTART_GUARD", "on")
            .env("QUORATE_MAX_TTL", "3s");
        output_of(command.args(words))
    };
    assert_eq!(quorate(&["masters", "mark"]).code, Some(0));
    for server in &change.0 {
        server.restart().expect("restarted");
    }
    let started_at = Instant::now();
    loop {
        let tried_run = quorate(&["run", "job", "--try", "--ttl", "2s", "--", "true"]);
        if tried_run.code == Some(0) {
            break;
        }
        assert_eq!(tried_run.code, Some(69), "{tried_run:?}");
        assert!(
            started_at.elapsed() < Duration::from_secs(60),
            "{tried_run:?}"
        );
    }
    assert!(started_at.elapsed() > Duration::from_secs(3));
}

#[test]
fn masters_mark_with_watch_ends_when_the_votes_of_a_restarted_master_count() {
    let change = MastersChange(start_masters(3));
    let run_mark = || {
        let mut command = MastersChange::quorate(&change.urls(0..3));
        command
            .env("QUORATE_RESTART_GUARD", "on")
            .env("QUORATE_MAX_TTL", "3s");
        output_of(command.args(["masters", "mark", "--watch"]))
    };
    assert_eq!(run_mark().code, Some(0));
    change.0[0].restart_empty().expect("restarted");
    let marked_run = run_mark();
    assert_eq!(marked_run.code, Some(0), "{marked_run:?}");
    assert!(
        marked_run.stderr.contains("until clients count the votes"),
        "{marked_run:?}"
    );
    let record_reply = change.0[0].command(&["GET", "quorate:masters:age"]);
    let record = record_reply.expect("the server must answer");
    let record_text = record.text().expect("an age record").into_owned();
    let age = record_text
        .split(' ')
        .nth(1)
        .and_then(|age| age.parse().ok());
    // The last raise may be a thirty-second part of `max_ttl` (1 s) ago.
    assert!(age > Some(900), "{record_text}");
    assert!(record_text.contains(" lost-"), "{record_text}");
}

/// The configuration of a client: `masters`, `next_masters` and `masters_generation`. The numbers in the lists are
/// indices of the servers in `change`.
struct ClientConfig<'a> {
    change: &'a MastersChange,
    masters: &'a [usize],
    next_masters: &'a [usize],
    generation: &'a str,
    /// Index of the server whose user and password are wrong in the client's URL; `None` if all URLs are correct.
    unreachable: Option<usize>,
}

impl ClientConfig<'_> {
    fn urls(&self, which: &[usize]) -> String {
        let url = |index: &usize| {
            let url = &self.change.0.urls()[*index];
            match self.unreachable {
                Some(unreachable) if unreachable == *index => {
                    url.replace("redis://", "redis://nobody:x@")
                }
                _ => url.clone(),
            }
        };
        which.iter().map(url).collect::<Vec<_>>().join(",")
    }

    fn run(&self, words: &[&str]) -> RunOutput {
        let mut command = MastersChange::quorate(&self.urls(self.masters));
        if !self.next_masters.is_empty() {
            command.env("QUORATE_NEXT_MASTERS", self.urls(self.next_masters));
        }
        command.env("QUORATE_TTL", "1s");
        command.env("QUORATE_MASTERS_GENERATION", self.generation);
        output_of(command.args(words))
    }

    fn stdout_of(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.code, Some(0), "{args:?}: {output:?}");
        output.stdout
    }

    fn begin(&self) {
        wait_until("the change has begun", || {
            self.run(&["masters", "begin"]).code == Some(0)
        });
    }

    /// Runs the job `name` with `quorate once`. Returns whether its command ran.
    fn runs_once(&self, name: &str) -> bool {
        let words = ["once", "--per", "8760h", name, "--", "echo", "ran"];
        self.stdout_of(&words) == "ran\n"
    }
}

impl MastersChange {
    fn client<'a>(&'a self, masters: &'a [usize], next_masters: &'a [usize]) -> ClientConfig<'a> {
        ClientConfig {
            change: self,
            masters,
            next_masters,
            generation: "0",
            unreachable: None,
        }
    }

    fn clients(&self) -> [ClientConfig<'_>; 3] {
        let next_client = ClientConfig {
            generation: "1",
            ..self.client(&[2, 3, 4], &[])
        };
        [
            self.client(&[0, 1, 2], &[]),
            self.client(&[0, 1, 2], &[2, 3, 4]),
            next_client,
        ]
    }
}

#[test]
fn change_of_masters_keeps_the_record_of_quorate_once_despite_failed_masters() {
    let change = MastersChange(start_masters(5));
    let [old_client, changing_client, next_client] = change.clients();
    changing_client.begin();
    changing_client.stdout_of(&["once", "--create", "job"]);
    let old_client = ClientConfig {
        unreachable: Some(2),
        ..old_client
    };
    assert!(old_client.runs_once("job"));
    change.0[1].restart_empty().expect("restarted");
    let without = ClientConfig {
        unreachable: Some(0),
        ..change.client(&[0, 1, 2], &[2, 3, 4])
    };
    without.begin();
    without.stdout_of(&["masters", "close"]);
    let stopped_run = without.run(&["masters", "open"]);
    assert_eq!(stopped_run.code, Some(1), "{stopped_run:?}");
    assert!(stopped_run.stderr.contains("\"job\": "), "{stopped_run:?}");
    changing_client.stdout_of(&["masters", "close"]);
    let open_output = changing_client.stdout_of(&["masters", "open"]);
    assert!(open_output.contains("\"job\": carried\n"), "{open_output}");
    changing_client.stdout_of(&["masters", "finish"]);
    assert!(!next_client.runs_once("job"));
}

#[test]
fn quorate_masters_open_fails_for_a_lost_quota_but_not_for_a_dropped_quota() {
    let change = MastersChange(start_masters(5));
    let [old_client, changing_client, next_client] = change.clients();
    changing_client.begin();
    for name in ["lost", "dropped"] {
        changing_client.stdout_of(&["quota", "create", name, "7"]);
    }
    old_client.stdout_of(&["quota", "drop", "dropped", "--yes"]);
    for server in [0, 1] {
        change.0[server].restart_empty().expect("restarted");
    }
    changing_client.begin();
    changing_client.stdout_of(&["masters", "close"]);
    let stopped_run = changing_client.run(&["masters", "open"]);
    assert_eq!(stopped_run.code, Some(1), "{stopped_run:?}");
    assert!(
        stopped_run.stderr.contains("\"lost\": lost"),
        "{stopped_run:?}"
    );
    assert!(
        stopped_run.stderr.contains("\"dropped\": removed"),
        "{stopped_run:?}"
    );
    changing_client.stdout_of(&["quota", "drop", "lost", "--yes"]);
    changing_client.stdout_of(&["masters", "open"]);
    for name in ["lost", "dropped"] {
        let quota_left_run = next_client.run(&["quota", "left", name]);
        assert_eq!(quota_left_run.code, Some(64), "{quota_left_run:?}");
    }
}

#[test]
fn quota_survives_a_change_of_masters_and_the_change_back() {
    let change = MastersChange(start_masters(5));
    let [_, changing_client, next_client] = change.clients();
    changing_client.begin();
    for name in ["kept", "dropped"] {
        changing_client.stdout_of(&["quota", "create", name, "10"]);
    }
    for step in ["close", "open", "finish"] {
        changing_client.stdout_of(&["masters", step]);
    }
    for name in ["kept", "dropped"] {
        next_client.stdout_of(&["quota", "take", name, "7"]);
    }
    next_client.stdout_of(&["quota", "drop", "dropped", "--yes"]);
    let back = ClientConfig {
        generation: "1",
        ..change.client(&[2, 3, 4], &[0, 1, 2])
    };
    for step in ["begin", "close", "open", "finish"] {
        back.stdout_of(&["masters", step]);
    }
    let old_client = ClientConfig {
        generation: "2",
        ..change.client(&[0, 1, 2], &[])
    };
    assert_eq!(old_client.stdout_of(&["quota", "left", "kept"]), "3\n");
    let quota_left_run = old_client.run(&["quota", "left", "dropped"]);
    assert_eq!(quota_left_run.code, Some(64), "{quota_left_run:?}");
}

/// Regression test for two bugs. Both occurred if the user lacked the right to run CLIENT LIST:
///
/// - `status` exited with 69 although all masters had answered.
/// - `begin` failed only after it had marked the next masters.
#[test]
fn masters_commands_report_a_permission_that_the_user_lacks() {
    let change = MastersChange(start_masters(5));
    for server in &change.0 {
        let mut words = vec![
            "ACL", "SETUSER", "quorate", "on", "nopass", "~*", "&*", "+@all",
        ];
        words.extend(["-client|list"]);
        let mut connection = server
            .connect(Duration::from_secs(5))
            .expect("a connection");
        let reply = connection.command(&words).expect("a reply");
        assert!(reply.is_ok(), "{reply:?}");
    }
    let url_of_user = |which| change.urls(which).replace("redis://", "redis://quorate:x@");
    let run_step = |step: &str| {
        let mut command = MastersChange::quorate(&url_of_user(0..3));
        command.env("QUORATE_NEXT_MASTERS", url_of_user(2..5));
        output_of(command.args(["masters", step]))
    };
    let missing_right =
        "the configured user has no right to use CLIENT LIST: ACL SETUSER <user> +client|list";
    for step in ["begin", "close", "open", "finish", "status"] {
        let output = run_step(step);
        assert_eq!(output.code, Some(1), "{step}: {output:?}");
        assert!(output.stdout.contains(missing_right), "{step}: {output:?}");
        assert_eq!(
            output.stderr.contains(missing_right),
            step != "status",
            "{step}: {output:?}"
        );
    }
    // The failed steps must not have written a generation marker.
    let status_run =
        output_of(MastersChange::quorate(&change.urls(0..3)).args(["masters", "status"]));
    assert!(
        status_run
            .stdout
            .contains("not all masters have a generation marker"),
        "{status_run:?}"
    );
    let output = run_step("status");
    assert!(output.stdout.contains("not begun"), "{output:?}");
    assert!(output.stderr.contains("grant the rights"), "{output:?}");
}
