//! Tests of the files in `packaging/`. Each file is checked by the tool that reads it, and the commands in it run on
//! real masters.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{self, output_of, quorate_command, quorate_on, start_masters};
use quorate_testbed::{Masters, not_run};
use serde_json::Value;

fn packaging_file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    root.join(name)
}

fn packaging_text(name: &str) -> String {
    std::fs::read_to_string(packaging_file(name)).expect(name)
}

fn is_installed(program: &str) -> bool {
    let status = Command::new(program)
        .arg("--help")
        .stdin(Stdio::null())
        .output();
    status.is_ok()
}

/// Runs `quorate` with the arguments `words` several times. `times` contains the expected exit code of each run. If the
/// command is `quorate once`, first creates the once-per-period record `name`.
fn assert_runs(masters: &Masters, words: &[String], name: &str, times: &[i32]) {
    let mut create = quorate_on(masters);
    create.env("QUORATE_NODE_TIMEOUT", "500ms");
    if words[0] == "once" {
        let created_run = output_of(create.args(["once", "--create", name]));
        assert_eq!(created_run.code, Some(0), "{created_run:?}");
    }
    for code in times {
        let mut run = quorate_on(masters);
        run.env("QUORATE_NODE_TIMEOUT", "500ms");
        let output = output_of(run.args(words));
        assert_eq!(
            (output.code, &*output.stderr),
            (Some(*code), ""),
            "{words:?}: {output:?}"
        );
    }
}

#[test]
fn systemd_units_are_valid_and_their_command_runs() {
    let service = packaging_text("systemd/quorate-nightly.service");
    assert!(service.contains("SuccessExitStatus=75\n"), "{service}");
    let line = service
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/quorate "));
    let masters = start_masters(3);
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("quorate.toml");
    let masters_line = format!("masters = '{}'\n", masters.urls().join(","));
    std::fs::write(&config, masters_line).expect("written");
    let folder = dir.path().to_str().expect("text");
    let line = line
        .expect("a command")
        .replace("${CREDENTIALS_DIRECTORY}", folder);
    let words = line.split_whitespace().map(str::to_owned);
    let words: Vec<String> = words
        .map(|word| {
            if word.starts_with("/usr/local") {
                "true".to_owned()
            } else {
                word
            }
        })
        .collect();
    assert_runs(&masters, &words, "nightly-report", &[0, 0]);

    if !is_installed("systemd-analyze") {
        return not_run(
            "systemd_units_are_valid_and_their_command_runs",
            "there is no systemd-analyze",
        );
    }
    let local_service = service
        .replace("/usr/bin/quorate", env!("CARGO_BIN_EXE_quorate"))
        .replace("/usr/local/bin/nightly-report", "/bin/true");
    std::fs::write(dir.path().join("quorate-nightly.service"), local_service).expect("written");
    let timer = packaging_text("systemd/quorate-nightly.timer");
    std::fs::write(dir.path().join("quorate-nightly.timer"), &timer).expect("written");
    let verify = |name: &str| {
        let unit = dir.path().join(name);
        output_of(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .arg(unit),
        )
    };
    for name in ["quorate-nightly.service", "quorate-nightly.timer"] {
        let verified = verify(name);
        assert_eq!(
            (verified.code, &*verified.stderr),
            (Some(0), ""),
            "{name}: {verified:?}"
        );
    }
    let wrong = timer.replace("03:00:00 UTC", "25 o'clock");
    std::fs::write(dir.path().join("quorate-nightly.timer"), wrong).expect("written");
    let refused_run = verify("quorate-nightly.timer");
    assert_eq!(
        refused_run.code,
        Some(1),
        "systemd-analyze must refuse a timer with a wrong time: {refused_run:?}"
    );
}

/// The cron job as kubectl parses it, without a cluster; `None` if kubectl is not installed. Fields that kubectl does
/// not know are missing.
fn as_kubernetes_reads_it() -> Option<Value> {
    if !is_installed("kubectl") {
        return None;
    }
    let mut kubectl = Command::new("kubectl");
    kubectl.args([
        "set",
        "image",
        "--local",
        "-o",
        "json",
        "nightly-report=x",
        "-f",
    ]);
    let kubectl_run = output_of(kubectl.arg(packaging_file("kubernetes/cronjob.yaml")));
    assert_eq!(kubectl_run.code, Some(0), "{kubectl_run:?}");
    Some(serde_json::from_str(&kubectl_run.stdout).expect("JSON"))
}

/// The names of all fields that the file of the cron job contains.
fn fields_of_the_cron_job() -> BTreeSet<String> {
    let source = packaging_text("kubernetes/cronjob.yaml");
    let lines = source
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let names = lines.filter_map(|line| {
        let (name, _) = line.trim_start().trim_start_matches("- ").split_once(':')?;
        name.chars()
            .all(char::is_alphanumeric)
            .then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn kubernetes_cron_job_is_valid_and_its_command_runs() {
    let Some(job) = as_kubernetes_reads_it() else {
        return not_run(
            "kubernetes_cron_job_is_valid_and_its_command_runs",
            "there is no kubectl",
        );
    };
    let (names, read) = (fields_of_the_cron_job(), job.to_string());
    assert!(names.len() > 20, "{names:?}");
    for field in names {
        assert!(read.contains(&format!("\"{field}\":")), "{field}: {read}");
    }
    let container = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["command"], serde_json::json!(["quorate", "once"]));
    let words = container["args"].as_array().expect("a list").iter();
    let words = words.map(|word| word.as_str().expect("text"));
    let words = words.map(|word| {
        if word.starts_with("/usr/local") {
            "true"
        } else {
            word
        }
    });
    let words: Vec<String> = std::iter::once("once")
        .chain(words)
        .map(str::to_owned)
        .collect();
    assert_runs(&start_masters(3), &words, "nightly-report", &[0]);
    let masters = start_masters(3);
    for master in &masters {
        master
            .command(&["SET", "nightly-report", "x"])
            .expect("a reply");
    }
    let short = words.iter().map(|word| match word.strip_prefix("--wait=") {
        Some(_) => "--wait=100ms",
        None => word,
    });
    let short_run = output_of(quorate_on(&masters).args(short));
    assert_eq!(
        short_run.code,
        Some(75),
        "a job that did not get the lock must fail, so that Kubernetes does not count it as complete: {short_run:?}"
    );
    assert!(
        short_run.stderr.contains("held by another"),
        "{short_run:?}"
    );
}

/// The number that is the value of this field in the file of the cron job.
fn number_in_the_cron_job(field: &str) -> usize {
    let file = packaging_text("kubernetes/cronjob.yaml");
    let (_, rest) = file.split_once(&format!("{field}: ")).expect("a field");
    rest.lines()
        .next()
        .expect("a line")
        .parse()
        .expect("a number")
}

/// The container's arguments in `cronjob.yaml`, and the number of pods that Kubernetes starts if every pod fails.
fn pod_arguments() -> (Vec<String>, usize) {
    let file = packaging_text("kubernetes/cronjob.yaml");
    let (_, rest) = file.split_once(" args:\n").expect("arguments");
    let (args, _) = rest.split_once(" env:\n").expect("an environment");
    let args = args
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- "));
    let args = args.map(|word| word.replace("$(NODE)", "node-1"));
    (
        std::iter::once("once".to_owned()).chain(args).collect(),
        number_in_the_cron_job("backoffLimit") + 1,
    )
}

#[test]
fn failed_command_of_the_kubernetes_cron_job_is_repeated_by_the_next_pod() {
    let masters = start_masters(3);
    let (words, pods) = pod_arguments();
    assert!(
        pods > 1,
        "cronjob.yaml must let Kubernetes start more than one pod"
    );
    let created_run = output_of(quorate_on(&masters).args(["once", "--create", "nightly-report"]));
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let dir = tempfile::tempdir().expect("a directory");
    // The job fails until the test creates this file.
    let go = dir.path().join("go");
    let job_path = dir.path().join("job");
    std::fs::write(
        &job_path,
        format!("#!/bin/sh\necho ran; test -e {}\n", go.display()),
    )
    .expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&job_path, executable)
        .expect("the test must be able to make the script executable");
    let words = words.iter().map(|word| {
        if word.starts_with("/usr/local") {
            job_path.to_str().expect("text").to_owned()
        } else {
            word.clone()
        }
    });
    let words: Vec<String> = words.collect();
    let pod_command = || {
        let mut quorate = quorate_on(&masters);
        output_of(quorate.env("QUORATE_NODE_TIMEOUT", "500ms").args(&words))
    };
    for _ in 0..pods {
        let failed_run = pod_command();
        assert_eq!(
            (failed_run.code, &*failed_run.stdout),
            (Some(1), "ran\n"),
            "{failed_run:?}"
        );
    }
    std::fs::write(go, "").expect("written");
    for out in ["ran\n", ""] {
        let output = pod_command();
        assert_eq!((output.code, &*output.stdout), (Some(0), out), "{output:?}");
    }
}

/// Two Kubernetes clusters run the same cron job. While a pod of the first cluster runs the job, a pod of the second
/// cluster waits. If the job fails in the first cluster, the waiting pod must run it.
#[test]
fn kubernetes_pod_repeats_the_failed_job_of_a_pod_in_another_cluster() {
    let masters = start_masters(3);
    let (words, _) = pod_arguments();
    let limit = number_in_the_cron_job("activeDeadlineSeconds");
    let wait = words.iter().find_map(|word| word.strip_prefix("--wait="));
    let wait = wait.and_then(|wait| wait.strip_suffix('s')?.parse().ok());
    assert_eq!(
        wait,
        Some(limit),
        "a pod must wait until Kubernetes ends the job"
    );
    let created_run = output_of(quorate_on(&masters).args(["once", "--create", "nightly-report"]));
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let pod = |line: &str| {
        let words = words.iter().filter(|word| *word != "--");
        let words = words.map(|word| {
            if word.starts_with("/usr/local") {
                format!("--shell={line}")
            } else {
                word.clone()
            }
        });
        let mut quorate = quorate_on(&masters);
        quorate.env("QUORATE_NODE_TIMEOUT", "500ms").args(words);
        quorate.stdin(Stdio::piped()).stdout(Stdio::piped());
        quorate.spawn().expect("starts")
    };
    let mut first = pod("read line; exit 3");
    common::wait_until_held(&masters, "quorate:note:nightly-report");
    let second_run = pod("echo ran");
    common::wait_until_held(&masters, "quorate:queue:nightly-report");
    drop(first.stdin.take());
    assert_eq!(common::wait_for_output(first).code, Some(3));
    let second_run = common::wait_for_output(second_run);
    assert_eq!(
        (second_run.code, &*second_run.stdout),
        (Some(0), "ran\n"),
        "{second_run:?}"
    );
}

#[test]
fn compose_file_has_five_masters_and_a_job_that_uses_them() {
    let name = "compose_file_has_five_masters_and_a_job_that_uses_them";
    let script = "import json,sys,yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let parser_run = Command::new("python3")
        .args(["-c", script])
        .arg(packaging_file("docker/compose.yaml"))
        .output();
    let Some(parser_run) = parser_run
        .ok()
        .filter(|parser_run| parser_run.status.success())
    else {
        return not_run(name, "python3 with the module yaml is missing");
    };
    let compose: Value = serde_json::from_slice(&parser_run.stdout).expect("JSON");
    let services = compose["services"].as_object().expect("services");
    let masters: Vec<&String> = services
        .keys()
        .filter(|name| name.starts_with("master"))
        .collect();
    assert_eq!(masters.len(), 5, "{masters:?}");
    for master in &masters {
        let words = services[*master]["command"].to_string();
        assert!(
            words.contains("\"--maxmemory-policy\",\"noeviction\""),
            "{words}"
        );
    }
    let job = &services["job"];
    let urls: Vec<String> = masters
        .iter()
        .map(|name| format!("redis://{name}"))
        .collect();
    assert_eq!(job["environment"]["QUORATE_MASTERS"], urls.join(","));
    assert!(
        masters
            .iter()
            .all(|name| job["depends_on"].get(name).is_some()),
        "{job}"
    );
    let words = job["command"].as_array().expect("a command").iter();
    let words: Vec<String> = words
        .map(|word| word.as_str().expect("text").to_owned())
        .collect();
    assert_runs(&common::start_masters(3), &words, "hello", &[0]);
    let mut docker = Command::new("docker");
    docker
        .args(["compose", "-f"])
        .arg(packaging_file("docker/compose.yaml"));
    if let Err(why) = docker_reads(docker.args(["config", "--quiet"])) {
        not_run("docker compose config", &why);
    }
}

/// Runs a docker command that checks a file, and fails if docker rejects this file. Returns an error if this machine
/// has no suitable docker.
fn docker_reads(docker: &mut Command) -> Result<(), String> {
    let output = docker
        .output()
        .map_err(|_| "there is no docker".to_owned())?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_missing = [
        "unknown command",
        "unknown shorthand",
        "unknown flag: --check",
        "not a docker command",
        "daemon",
    ];
    if is_missing.iter().any(|part| words.contains(part)) {
        return Err(format!(
            "docker cannot check the file on this machine: {}",
            words.lines().next().unwrap_or_default()
        ));
    }
    assert!(output.status.success(), "{words}");
    Ok(())
}

#[test]
fn container_image_copies_only_existing_files() {
    const KNOWN_INSTRUCTIONS: [&str; 10] = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "ENTRYPOINT",
        "CMD",
        "ENV",
        "ARG",
        "LABEL",
    ];
    let source = packaging_text("docker/Dockerfile").replace("\\\n", " ");
    let lines = source
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut seen_instructions = BTreeSet::new();
    for line in lines {
        let (word, rest) = line.split_once(' ').expect("an instruction");
        assert!(KNOWN_INSTRUCTIONS.contains(&word), "{line}");
        seen_instructions.insert(word);
        let Some(words) = rest
            .strip_prefix("--from=build ")
            .filter(|_| word == "COPY")
        else {
            continue;
        };
        let mut words: Vec<&str> = words.split_whitespace().collect();
        words.pop();
        for from in words
            .iter()
            .filter_map(|word| word.strip_prefix("/quorate/"))
        {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let built = from == "target/release/quorate";
            assert!(built || root.join(from).exists(), "{from}");
        }
    }
    assert!(
        seen_instructions.contains("FROM") && seen_instructions.contains("ENTRYPOINT"),
        "{seen_instructions:?}"
    );
    assert!(source.contains("--locked -p quorate-cli"), "{source}");
    let mut docker = Command::new("docker");
    docker
        .args(["build", "--check", "-f"])
        .arg(packaging_file("docker/Dockerfile"))
        .arg(".");
    if let Err(why) = docker_reads(&mut docker) {
        not_run("docker build --check", &why);
    }
}

#[test]
fn first_command_in_the_cron_section_of_the_operations_page_is_quorate_once() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, cron) = page.split_once("\n## Cron\n").expect("a section");
    let first = cron
        .lines()
        .find(|line| line.starts_with("quorate "))
        .expect("a command");
    assert!(first.starts_with("quorate once "), "{first}");
    let line = cron
        .lines()
        .find_map(|line| line.strip_prefix("5 3 * * *  "));
    let line = line.expect("the page must have a line of a crontab");
    let (line, _) = line.split_once("  #").expect("a comment");
    let limited = line.contains(" --wait ");
    assert!(
        limited,
        "a cron job must limit its wait with --wait, because it would hang without a quorum: {line}"
    );
    let words = line.replace("./report.sh", "true");
    let words = words.split_whitespace().skip(1).map(str::to_owned);
    let words: Vec<String> = words.collect();
    assert_runs(&start_masters(3), &words, "nightly-report", &[0, 0]);
    let cron = cron.split("\n## ").next().expect("its text");
    for name in ["systemd/quorate-nightly.timer", "kubernetes/cronjob.yaml"] {
        assert!(cron.contains(&format!("packaging/{name}")), "{name}");
        assert!(packaging_file(name).exists(), "{name}");
    }
    let help = output_of(quorate_command().args(["once", "--help"]));
    assert!(help.stdout.contains("--per"), "{help:?}");
}

/// The path and the text of each file in `folder` and its subfolders that can show commands to users.
fn pages(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            pages.extend(self::pages(&path));
        } else if ending.is_some_and(|ending| ["md", "yaml", "service", "toml"].contains(&ending)) {
            let text = std::fs::read_to_string(&path).expect("text");
            pages.push((path, text));
        }
    }
    pages
}

/// Without a time limit, a cron job would wait for ever while most masters are down. cron would then start one more
/// process each day.
#[test]
fn every_documented_example_of_quorate_once_with_a_period_limits_its_wait() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut all: Vec<_> = ["docs", "packaging"]
        .iter()
        .flat_map(|folder| pages(&root.join(folder)))
        .collect();
    for name in ["README.md", "cli/README.md"] {
        let text = std::fs::read_to_string(root.join(name)).expect(name);
        all.push((name.into(), text));
    }
    for words in [&["once", "--help"][..], &["--help"]] {
        let help = output_of(quorate_command().args(words)).stdout;
        let (_, examples) = help.split_once("Examples:\n").unwrap_or(("", &help));
        all.push((words.join(" ").into(), examples.to_owned()));
    }
    let mut example_count = 0;
    for (name, text) in &all {
        let lines = text.lines().filter(|line| {
            let runs_a_command = line.contains(" -- ") || line.contains("--shell");
            line.contains("quorate once ") && line.contains("--per") && runs_a_command
        });
        for line in lines {
            example_count += 1;
            let is_limited = line.contains("--wait ") || line.contains("--try ");
            assert!(is_limited, "{}: {line}", name.display());
        }
    }
    assert!(
        example_count >= 8,
        "the pages must contain at least 8 examples, but only {example_count} were found"
    );
}
