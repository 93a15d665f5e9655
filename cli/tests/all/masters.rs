//! Tests of `quorate masters` on real servers, with the commands exactly as docs/operations.md shows them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Done, bare, done, masters, until};
use quorate_testbed::{Masters, Persistence, Server, ServerOptions};

/// The `quorate masters` commands that docs/operations.md shows, in the order of the page.
fn walk() -> Vec<Vec<String>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, rest) = page
        .split_once("## Changing the masters")
        .expect("its section");
    let section = rest.split("\n## ").next().expect("its text");
    let commands = section
        .lines()
        .map(str::trim)
        .filter_map(|line| line.strip_prefix("quorate "));
    let words = |command: &str| command.split(' ').map(str::to_owned).collect();
    commands.map(words).collect()
}

/// Five servers. The first three are the old masters, and the last three are the next masters, so the third server is
/// both an old and a next master.
struct Scene(Masters);

impl Scene {
    fn urls(&self, which: std::ops::Range<usize>) -> String {
        self.0.urls()[which].join(",")
    }

    fn quorate(masters: &str) -> Command {
        let mut command = bare();
        command
            .env("QUORATE_MASTERS", masters)
            .env("QUORATE_RESTART_GUARD", "off")
            .env("QUORATE_MAX_TTL", "1s")
            .env("QUORATE_NODE_TIMEOUT", "250ms")
            .env("QUORATE_CONNECT_TIMEOUT", "2s");
        command
    }

    fn operator(&self, words: &[&str]) -> Done {
        let mut command = Self::quorate(&self.urls(0..3));
        command.env("QUORATE_NEXT_MASTERS", self.urls(2..5));
        done(command.args(words))
    }

    fn locks(mut command: Command) -> Option<i32> {
        let words = ["run", "--ttl", "1s", "--wait", "5s", "job", "--", "true"];
        done(command.args(words)).code
    }

    fn old(&self) -> Option<i32> {
        Self::locks(Self::quorate(&self.urls(0..3)))
    }

    fn both(&self) -> Option<i32> {
        let mut command = Self::quorate(&self.urls(0..3));
        command.env("QUORATE_NEXT_MASTERS", self.urls(2..5));
        Self::locks(command)
    }

    fn next(&self) -> Option<i32> {
        let mut command = Self::quorate(&self.urls(2..5));
        command.env("QUORATE_MASTERS_GENERATION", "1");
        Self::locks(command)
    }
}

/// Two of the three old masters do not reply, and a client could hold a lock on these two. So `status` and `break` must
/// fail, although the other three of the five masters reply.
#[test]
fn status_and_break_require_a_majority_of_old_masters_while_masters_are_replaced() {
    let scene = Scene(masters(5));
    for master in scene.0.iter().take(2) {
        master.stop().expect("stopped");
    }
    for words in [
        &["status", "job"][..],
        &["status"],
        &["break", "job", "--yes"],
    ] {
        let told = scene.operator(words);
        assert_eq!(told.code, Some(69), "{words:?}: {told:?}");
        assert!(
            told.err.contains("3 of 5 masters answered")
                && told
                    .err
                    .contains("a majority of masters and a majority of next_masters are needed"),
            "{told:?}"
        );
    }
}

#[test]
fn documented_steps_replace_the_masters_while_clients_take_locks() {
    let scene = Scene(masters(5));
    let mut steps = Vec::new();
    let all = |scene: &Scene| [scene.old(), scene.both(), scene.next()];
    assert_eq!(
        all(&scene),
        [Some(0), Some(0), Some(78)],
        "exit codes of the clients before the first step"
    );
    for command in walk() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let step = words[1];
        // `begin` fails if the next masters have just started, so repeat it until it succeeds.
        until("the change has begun", || {
            step != "begin" || scene.operator(&words).code == Some(0)
        });
        for again in 0..2 {
            let took = scene.operator(&words);
            assert_eq!(took.code, Some(0), "{step} {again}: {took:?}");
            assert!(took.out.contains("127.0.0.1:"), "{took:?}");
        }
        let codes = match step {
            "begin" | "status" => [Some(0), Some(0), Some(78)],
            "close" => [Some(78), Some(0), Some(78)],
            "open" => [Some(78), Some(0), Some(0)],
            "finish" => [Some(78), Some(78), Some(0)],
            step => panic!("the page lists a step that this test does not know: {step}"),
        };
        assert_eq!(all(&scene), codes, "exit codes of the clients after {step}");
        steps.push(step.to_owned());
    }
    assert_eq!(steps, ["begin", "status", "close", "open", "finish"]);
    // A client that still uses the old masters must get an error from every command.
    let mut outdated = Scene::quorate(&scene.urls(0..3));
    let told = done(outdated.args(["masters", "status"]));
    assert!(told.out.contains("refuse this configuration"), "{told:?}");
    for words in [
        &["status", "job"][..],
        &["status"],
        &["break", "job", "--yes"],
        &["watch", "job"],
    ] {
        let told = done(Scene::quorate(&scene.urls(0..3)).args(words));
        assert_eq!(told.code, Some(78), "{told:?}");
        assert!(told.err.contains("refuse this configuration"), "{told:?}");
    }
    let mut outdated = Scene::quorate(&scene.urls(0..3));
    outdated.env("QUORATE_MAX_TTL", "30s");
    let told = done(outdated.arg("doctor"));
    assert_eq!(told.code, Some(69), "{told:?}");
    assert!(told.out.contains("refuses this configuration"), "{told:?}");
    // Replace the masters once more: from servers 2 to 4 back to servers 0 to 2.
    let mut command = Scene::quorate(&scene.urls(2..5));
    command.env("QUORATE_NEXT_MASTERS", scene.urls(0..3));
    command.env("QUORATE_MASTERS_GENERATION", "1");
    for step in ["begin", "close", "open", "finish"] {
        let mut again = Command::new(command.get_program());
        again.args(["masters", step]).envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let took = done(&mut again);
        assert_eq!(took.code, Some(0), "{step}: {took:?}");
    }
    let mut first = Scene::quorate(&scene.urls(0..3));
    first.env("QUORATE_MASTERS_GENERATION", "2");
    assert_eq!(Scene::locks(first), Some(0));
    assert_eq!(scene.next(), Some(78));
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
    let scene = Scene(masters(5));
    until("the change has begun", || {
        scene.operator(&["masters", "begin"]).code == Some(0)
    });
    let old = Holder::start(Scene::quorate(&scene.urls(0..3)), "old");
    let mut both = Scene::quorate(&scene.urls(0..3));
    both.env("QUORATE_NEXT_MASTERS", scene.urls(2..5));
    let both = Holder::start(both, "both");
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let mut seen = serde_json::Value::Null;
    let mut client = |pid: u32| {
        let shown = scene.operator(&["masters", "status", "--json"]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        seen = serde_json::from_str(&shown.out).expect("JSON");
        let clients = seen["clients"].as_array().expect("clients");
        let client = clients.iter().find(|client| client["pid"] == pid);
        client.cloned().unwrap_or_default()
    };
    let connections = |client: &serde_json::Value| {
        let connections = client["connections"].as_array();
        connections.cloned().unwrap_or_default()
    };
    for (pid, step, state, of) in [
        (old.0.id(), 0, "outdated", 0..3),
        (both.0.id(), 1, "current", 0..5),
    ] {
        // A client can hold the lock before it is connected to every master, so wait for all connections.
        until("all connections are listed", || {
            connections(&client(pid)).len() == of.len()
        });
        let client = client(pid);
        assert_eq!(client["step"], step, "{client}");
        assert_eq!(client["state"], state, "{client}");
        assert_eq!(client["host"], *host, "{client}");
        let name = client["name"].as_str().expect("a name");
        assert!(name.starts_with(&format!("quorate/{step}/")), "{client}");
        let shown = scene.operator(&["masters", "status"]).out;
        let word = pid.to_string();
        let mut lines = shown.lines();
        let line = lines.find(|line| line.split_whitespace().any(|part| part == word));
        let line = line.unwrap_or_else(|| panic!("a line must show the pid {pid}: {shown}"));
        assert!(line.starts_with(&step.to_string()), "{line}");
        assert!(line.contains(state) && line.contains(&*host), "{line}");
        for (connection, url) in connections(&client).iter().zip(&scene.0.urls()[of]) {
            let master = connection["master"].as_str().expect("a master");
            assert!(url.ends_with(master), "{connection} {url}");
            let address = connection["address"].as_str().expect("an address");
            assert!(line.contains(address), "{address}: {line}");
        }
    }
    assert_eq!(seen["stage"], "begun", "{seen:#}");
    assert_eq!(seen["masters"][4]["set"], "next", "{seen:#}");
    assert_eq!(seen["masters"][4]["mark"], seen["masters"][3]["mark"]);
}

#[test]
fn step_out_of_order_in_a_change_of_masters_is_refused_with_the_reason() {
    let scene = Scene(masters(5));
    for (step, says) in [
        ("close", "`begin` first"),
        ("open", "`close` first"),
        ("finish", "`open` first"),
    ] {
        let took = scene.operator(&["masters", step]);
        assert_eq!(took.code, Some(1), "{took:?}");
        assert!(took.err.contains(says), "{took:?}");
    }
    let young = scene.operator(&["masters", "begin"]);
    if young.code != Some(0) {
        assert!(young.err.contains("has been up for"), "{young:?}");
    }
    let left = scene.operator(&["masters", "back-out"]);
    assert_eq!(left.code, Some(0), "{left:?}");
    until("the change has begun", || {
        scene.operator(&["masters", "begin"]).code == Some(0)
    });
    assert_eq!(scene.operator(&["masters", "close"]).code, Some(0));
    let left = scene.operator(&["masters", "back-out"]);
    assert_eq!(left.code, Some(1), "{left:?}");
    // `close` without next masters is wrong usage.
    let none = done(Scene::quorate(&scene.urls(0..3)).args(["masters", "close"]));
    assert_eq!(none.code, Some(64), "{none:?}");
    let shown = done(Scene::quorate(&scene.urls(0..3)).args(["masters", "status"]));
    assert_eq!(shown.code, Some(0), "{shown:?}");
}

#[test]
fn masters_status_names_the_fault_of_a_reachable_server() {
    let masters = masters(3);
    let status = |urls: &[String]| {
        let shown = done(Scene::quorate(&urls.join(",")).args(["masters", "status"]));
        assert!(!shown.out.contains("masters mark"), "{shown:?}");
        shown
    };
    let of_nobody = |master: &Server| format!("redis://nobody:wrong@{}", master.addr());
    let strangers: Vec<String> = masters.iter().map(of_nobody).collect();
    let denied = status(&strangers);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert!(denied.err.contains("WRONGPASS"), "{denied:?}");
    assert!(!denied.err.contains("no master answered"), "{denied:?}");

    let set = masters[1].command(&["SADD", "quorate:masters", "x"]);
    set.expect("a reply");
    let strange = status(&masters.urls());
    assert_eq!(strange.code, Some(1), "{strange:?}");
    assert!(strange.err.contains("key quorate:masters"), "{strange:?}");

    masters
        .iter()
        .for_each(|master| master.kill().expect("killed"));
    let down = status(&masters.urls());
    assert_eq!(down.code, Some(69), "{down:?}");
    assert!(down.err.contains("no master answered"), "{down:?}");
}

#[test]
fn change_of_masters_needs_only_a_majority_of_the_old_masters() {
    let scene = Scene(masters(5));
    scene.0[0].kill().expect("killed");
    until("the change has begun", || {
        scene.operator(&["masters", "begin"]).code == Some(0)
    });
    for step in ["close", "open"] {
        let took = scene.operator(&["masters", step]);
        assert_eq!(took.code, Some(0), "{step}: {took:?}");
    }
    assert_eq!(scene.next(), Some(0));
    let scene = Scene(masters(5));
    until("the change has begun", || {
        scene.operator(&["masters", "begin"]).code == Some(0)
    });
    scene.0[0].kill().expect("killed");
    scene.0[1].kill().expect("killed");
    let took = scene.operator(&["masters", "close"]);
    assert_eq!(took.code, Some(1), "{took:?}");
    assert_eq!(scene.operator(&["masters", "open"]).code, Some(1));
}

#[test]
fn doctor_recommends_generation_markers_until_every_master_has_one() {
    let scene = Scene(masters(5));
    let first = scene.urls(0..3);
    let doctor = || {
        let mut command = Scene::quorate(&first);
        command.env("QUORATE_RESTART_GUARD", "after-first-contact");
        let judged = done(command.args(["doctor", "--json"]));
        let marked = |text: &str| text.contains("quorate masters mark");
        (judged.code, marked(&judged.out))
    };
    let (code, recommended) = doctor();
    assert!(recommended);
    let other = done(Scene::quorate(&scene.urls(3..5)).args(["masters", "status"]));
    assert!(other.out.contains("quorate masters mark"), "{other:?}");
    for _ in 0..2 {
        let marked = done(Scene::quorate(&first).args(["masters", "mark"]));
        assert_eq!(marked.code, Some(0), "{marked:?}");
        assert!(marked.out.contains("RUN ID"), "{marked:?}");
        assert!(marked.out.contains("marked: check that each"), "{marked:?}");
    }
    assert_eq!(
        doctor(),
        (code, false),
        "a note must not change the exit code of doctor"
    );
    assert_eq!(scene.old(), Some(0));
    let fewer = done(Scene::quorate(&scene.urls(0..2)).args(["masters", "mark"]));
    assert_eq!(fewer.code, Some(1), "{fewer:?}");
    assert!(fewer.err.contains("belongs to other masters"), "{fewer:?}");
    scene.0[4].kill().expect("killed");
    let away = done(Scene::quorate(&scene.urls(2..5)).args(["masters", "mark"]));
    assert_eq!(away.code, Some(1), "{away:?}");
    let next = scene.operator(&["masters", "mark"]);
    assert_eq!(next.code, Some(1), "{next:?}");
    assert!(next.err.contains("begin"), "{next:?}");
}

/// No client is connected after the restart, so without this command the age of the server would not grow.
/// A job that is started again and again, and never waits for its lock: each process ends at once.
#[test]
fn processes_that_do_not_wait_together_give_restarted_masters_their_votes() {
    let options = |_| ServerOptions::new().persistence(Persistence::AofAlways);
    let scene = Scene(Masters::start_with(3, options).expect("three masters"));
    let quorate = |words: &[&str]| {
        let mut command = Scene::quorate(&scene.urls(0..3));
        command
            .env("QUORATE_RESTART_GUARD", "on")
            .env("QUORATE_MAX_TTL", "3s");
        done(command.args(words))
    };
    assert_eq!(quorate(&["masters", "mark"]).code, Some(0));
    for server in &scene.0 {
        server.restart().expect("restarted");
    }
    let began = Instant::now();
    loop {
        let tried = quorate(&["run", "job", "--try", "--ttl", "2s", "--", "true"]);
        if tried.code == Some(0) {
            break;
        }
        assert_eq!(tried.code, Some(69), "{tried:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{tried:?}");
    }
    assert!(began.elapsed() > Duration::from_secs(3));
}

#[test]
fn masters_mark_with_watch_ends_when_the_votes_of_a_restarted_master_count() {
    let scene = Scene(masters(3));
    let mark = || {
        let mut mark = Scene::quorate(&scene.urls(0..3));
        mark.env("QUORATE_RESTART_GUARD", "on")
            .env("QUORATE_MAX_TTL", "3s");
        done(mark.args(["masters", "mark", "--watch"]))
    };
    assert_eq!(mark().code, Some(0));
    scene.0[0].restart_empty().expect("restarted");
    let marked = mark();
    assert_eq!(marked.code, Some(0), "{marked:?}");
    assert!(
        marked.err.contains("until clients count the votes"),
        "{marked:?}"
    );
    let record = scene.0[0].command(&["GET", "quorate:masters:age"]);
    let record = record.expect("the server must answer");
    let record = record.text().expect("an age record").into_owned();
    let age = record.split(' ').nth(1).and_then(|age| age.parse().ok());
    // The last raise may be a thirty-second part of `max_ttl` (1 s) ago.
    assert!(age > Some(900), "{record}");
    assert!(record.contains(" lost-"), "{record}");
}

/// The configuration of a client: `masters`, `next_masters` and `masters_generation`. The numbers in the lists are
/// indices of the servers in `scene`.
struct Told<'a> {
    scene: &'a Scene,
    masters: &'a [usize],
    next: &'a [usize],
    generation: &'a str,
    /// Index of the server whose user and password are wrong in the client's URL; `None` if all URLs are correct.
    away: Option<usize>,
}

impl Told<'_> {
    fn urls(&self, which: &[usize]) -> String {
        let url = |at: &usize| {
            let url = &self.scene.0.urls()[*at];
            match self.away {
                Some(away) if away == *at => url.replace("redis://", "redis://nobody:x@"),
                _ => url.clone(),
            }
        };
        which.iter().map(url).collect::<Vec<_>>().join(",")
    }

    fn ask(&self, words: &[&str]) -> Done {
        let mut command = Scene::quorate(&self.urls(self.masters));
        if !self.next.is_empty() {
            command.env("QUORATE_NEXT_MASTERS", self.urls(self.next));
        }
        command.env("QUORATE_TTL", "1s");
        command.env("QUORATE_MASTERS_GENERATION", self.generation);
        done(command.args(words))
    }

    fn does(&self, words: &[&str]) -> String {
        let did = self.ask(words);
        assert_eq!(did.code, Some(0), "{words:?}: {did:?}");
        did.out
    }

    fn begin(&self) {
        until("the change has begun", || {
            self.ask(&["masters", "begin"]).code == Some(0)
        });
    }

    /// Runs the job `name` with `quorate once`. Returns whether its command ran.
    fn runs(&self, name: &str) -> bool {
        let words = ["once", "--per", "8760h", name, "--", "echo", "ran"];
        self.does(&words) == "ran\n"
    }
}

impl Scene {
    fn told<'a>(&'a self, masters: &'a [usize], next: &'a [usize]) -> Told<'a> {
        Told {
            scene: self,
            masters,
            next,
            generation: "0",
            away: None,
        }
    }

    fn clients(&self) -> [Told<'_>; 3] {
        let next = Told {
            generation: "1",
            ..self.told(&[2, 3, 4], &[])
        };
        [
            self.told(&[0, 1, 2], &[]),
            self.told(&[0, 1, 2], &[2, 3, 4]),
            next,
        ]
    }
}

#[test]
fn change_of_masters_keeps_the_record_of_quorate_once_despite_failed_masters() {
    let scene = Scene(masters(5));
    let [old, both, next] = scene.clients();
    both.begin();
    both.does(&["once", "--create", "job"]);
    let old = Told {
        away: Some(2),
        ..old
    };
    assert!(old.runs("job"));
    scene.0[1].restart_empty().expect("restarted");
    let without = Told {
        away: Some(0),
        ..scene.told(&[0, 1, 2], &[2, 3, 4])
    };
    without.begin();
    without.does(&["masters", "close"]);
    let stopped = without.ask(&["masters", "open"]);
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(stopped.err.contains("\"job\": "), "{stopped:?}");
    both.does(&["masters", "close"]);
    let open = both.does(&["masters", "open"]);
    assert!(open.contains("\"job\": carried\n"), "{open}");
    both.does(&["masters", "finish"]);
    assert!(!next.runs("job"));
}

#[test]
fn quorate_masters_open_fails_for_a_lost_quota_but_not_for_a_dropped_quota() {
    let scene = Scene(masters(5));
    let [old, both, next] = scene.clients();
    both.begin();
    for name in ["lost", "dropped"] {
        both.does(&["quota", "create", name, "7"]);
    }
    old.does(&["quota", "drop", "dropped", "--yes"]);
    for server in [0, 1] {
        scene.0[server].restart_empty().expect("restarted");
    }
    both.begin();
    both.does(&["masters", "close"]);
    let stopped = both.ask(&["masters", "open"]);
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(stopped.err.contains("\"lost\": lost"), "{stopped:?}");
    assert!(stopped.err.contains("\"dropped\": removed"), "{stopped:?}");
    both.does(&["quota", "drop", "lost", "--yes"]);
    both.does(&["masters", "open"]);
    for name in ["lost", "dropped"] {
        let left = next.ask(&["quota", "left", name]);
        assert_eq!(left.code, Some(64), "{left:?}");
    }
}

#[test]
fn quota_survives_a_change_of_masters_and_the_change_back() {
    let scene = Scene(masters(5));
    let [_, both, next] = scene.clients();
    both.begin();
    for name in ["kept", "dropped"] {
        both.does(&["quota", "create", name, "10"]);
    }
    for step in ["close", "open", "finish"] {
        both.does(&["masters", step]);
    }
    for name in ["kept", "dropped"] {
        next.does(&["quota", "take", name, "7"]);
    }
    next.does(&["quota", "drop", "dropped", "--yes"]);
    let back = Told {
        generation: "1",
        ..scene.told(&[2, 3, 4], &[0, 1, 2])
    };
    for step in ["begin", "close", "open", "finish"] {
        back.does(&["masters", step]);
    }
    let first = Told {
        generation: "2",
        ..scene.told(&[0, 1, 2], &[])
    };
    assert_eq!(first.does(&["quota", "left", "kept"]), "3\n");
    let left = first.ask(&["quota", "left", "dropped"]);
    assert_eq!(left.code, Some(64), "{left:?}");
}

/// Regression test for two bugs. Both occurred if the user lacked the right to run CLIENT LIST:
///
/// - `status` exited with 69 although all masters had answered.
/// - `begin` failed only after it had marked the next masters.
#[test]
fn masters_commands_report_a_permission_that_the_user_lacks() {
    let scene = Scene(masters(5));
    for server in &scene.0 {
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
    let user = |which| scene.urls(which).replace("redis://", "redis://quorate:x@");
    let run = |step: &str| {
        let mut command = Scene::quorate(&user(0..3));
        command.env("QUORATE_NEXT_MASTERS", user(2..5));
        done(command.args(["masters", step]))
    };
    let right =
        "the configured user has no right to use CLIENT LIST: ACL SETUSER <user> +client|list";
    for step in ["begin", "close", "open", "finish", "status"] {
        let said = run(step);
        assert_eq!(said.code, Some(1), "{step}: {said:?}");
        assert!(said.out.contains(right), "{step}: {said:?}");
        assert_eq!(
            said.err.contains(right),
            step != "status",
            "{step}: {said:?}"
        );
    }
    // The failed steps must not have written a generation marker.
    let state = done(Scene::quorate(&scene.urls(0..3)).args(["masters", "status"]));
    assert!(
        state
            .out
            .contains("not all masters have a generation marker"),
        "{state:?}"
    );
    let said = run("status");
    assert!(said.out.contains("not begun"), "{said:?}");
    assert!(said.err.contains("grant the rights"), "{said:?}");
}
