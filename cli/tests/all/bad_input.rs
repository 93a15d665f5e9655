//! Tests of wrong usage: quorate prints one line that names the wrong argument, exits with 64, and does not run the
//! command.

use quorate_testbed::Masters;
use quorate_testbed::bad_url::BadUrl;

use crate::common::{self, RunOutput, output_of, quorate_command, quorate_on, start_masters};

/// Runs `quorate run` with these options and the command `touch FILE`. Expects exit code 64, one line of output that
/// contains all of `parts`, and no file FILE.
fn assert_refused(options: &[&str], parts: &[&str]) {
    let folder = tempfile::tempdir().expect("a directory");
    let ran_file = folder.path().join("ran");
    let run = output_of(
        quorate_command()
            .arg("run")
            .args(options)
            .args(["--", "touch"])
            .arg(&ran_file),
    );
    assert_eq!(run.code, Some(64), "{options:?} {run:?}");
    assert_eq!(run.stderr.lines().count(), 1, "{options:?} {run:?}");
    for part in parts {
        assert!(
            run.stderr.contains(part),
            "the error for {options:?} must contain {part:?}: {run:?}"
        );
    }
    assert_eq!(run.stdout, "");
    assert!(!ran_file.exists());
}

const THREE_URLS: &str = "redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3";

#[test]
fn wrong_master_urls_are_refused_with_a_one_line_error() {
    assert_refused(&["r"], &["no masters", "--masters"]);
    assert_refused(&["--masters", "", "r"], &["no masters"]);
    assert_refused(
        &["--masters", "redis://a,,redis://b", "r"],
        &["master 2 of 3"],
    );
    assert_refused(&["--masters", "http://a", "r"], &["http", "redis://"]);
    // The error shows nothing of a wrong URL but its place and its scheme, because the rest may be a password.
    assert_refused(&["--masters", "a:b:c", "r"], &["master number 1 (***)"]);
    assert_refused(
        &["--masters", "redis://b,redis://a:port", "r"],
        &["master number 2 (redis://***)"],
    );
    assert_refused(
        &["--masters", "redis://a,redis://a:6379", "r"],
        &["a:6379", "twice"],
    );
    assert_refused(&["--masters", "redis://a/0,redis://a/1", "r"], &["twice"]);
}

#[test]
fn wrong_resource_names_are_refused_with_a_one_line_error() {
    assert_refused(&["--masters", THREE_URLS, ""], &["empty"]);
    assert_refused(
        &["--masters", THREE_URLS, &"x".repeat(5000)],
        &["5000", "1024"],
    );
    assert_refused(
        &["--masters", THREE_URLS, "quorate:fence:x"],
        &["quorate:", "reserved"],
    );
}

#[test]
fn wrong_durations_are_refused_with_a_one_line_error() {
    assert_refused(&["--masters", THREE_URLS, "--ttl", "0s", "r"], &["ttl"]);
    assert_refused(
        &["--masters", THREE_URLS, "--ttl", "2ms", "r"],
        &["ttl", "2ms"],
    );
    assert_refused(
        &["--masters", THREE_URLS, "--ttl", "5m", "r"],
        &["ttl", "max_ttl"],
    );
    assert_refused(
        &["--masters", THREE_URLS, "--wait", "soon", "r"],
        &["'soon'", "--wait", "5m"],
    );
    assert_refused(
        &["--masters", THREE_URLS, "--wait", "5", "r"],
        &["'5'", "--wait"],
    );
    assert_refused(&["--masters", THREE_URLS, "--grace=-1s", "r"], &["--grace"]);
    assert_refused(
        &["--masters", THREE_URLS, "--try", "--wait", "1s", "r"],
        &["--try", "--wait"],
    );
}

#[test]
fn wrong_arguments_are_refused_with_a_one_line_error() {
    assert_refused(&["--masters", THREE_URLS], &["<RESOURCE>"]);
    assert_refused(
        &["--masters", THREE_URLS, "--restart-guard", "maybe", "r"],
        &["maybe", "off"],
    );
    assert_refused(&["--masters", THREE_URLS, "--nope", "r"], &["--nope"]);
    let run = output_of(quorate_command().args(["run", "--masters", THREE_URLS, "r"]));
    assert_eq!(
        (run.code, run.stderr.lines().count()),
        (Some(64), 1),
        "{run:?}"
    );
    assert!(run.stderr.contains("<COMMAND>"), "{run:?}");
}

#[test]
fn error_names_the_environment_variable_that_has_an_invalid_value() {
    let run = output_of(quorate_command().env("QUORATE_TTL", "ten").args([
        "run",
        "--masters",
        THREE_URLS,
        "r",
        "--",
        "true",
    ]));
    assert_eq!(run.code, Some(64));
    assert!(
        run.stderr.contains("QUORATE_TTL") && run.stderr.contains("'ten'"),
        "{run:?}"
    );
}

#[test]
fn mistake_in_the_configuration_file_is_reported_with_file_line_and_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let run_with_config = |text: &str| {
        let path = dir.path().join("quorate.toml");
        std::fs::write(&path, text).expect("written");
        output_of(
            quorate_command()
                .current_dir(dir.path())
                .args(["run", "r", "--", "true"]),
        )
    };
    let unknown_run = run_with_config("masters = ['redis://:s3cret@a']\ntll = '1s'\n");
    assert_eq!(unknown_run.code, Some(64));
    for part in ["quorate.toml", "line 2", "tll"] {
        assert!(unknown_run.stderr.contains(part), "{unknown_run:?}");
    }
    assert_eq!(unknown_run.stderr.lines().count(), 1, "{unknown_run:?}");
    assert!(!unknown_run.stderr.contains("s3cret"), "{unknown_run:?}");
    let wrong_run = run_with_config("wait = 'soon'");
    assert!(wrong_run.stderr.contains("line 1, wait"), "{wrong_run:?}");
    let missing_run =
        output_of(quorate_command().args(["run", "--config", "/no/such.toml", "r", "--", "true"]));
    assert_eq!(missing_run.code, Some(64));
    assert!(
        missing_run.stderr.contains("/no/such.toml"),
        "{missing_run:?}"
    );
}

#[test]
fn sources_of_a_setting_have_the_documented_precedence() {
    let masters = start_masters(1);
    let dir = tempfile::tempdir().expect("a directory");
    let config_file = dir.path().join("quorate.toml");
    let text = format!(
        "masters = '{}'\nrestart_guard = 'off'\nprefix = 'file:'\n",
        masters.urls()[0]
    );
    std::fs::write(&config_file, text).expect("written");
    let held_key = |config_source: &str, variable: Option<&str>, flag: Option<&str>| {
        let mut command = quorate_command();
        command.arg("run").current_dir(dir.path());
        match config_source {
            "flag" => command.arg("--config").arg(&config_file),
            "variable" => command.env("QUORATE_CONFIG", &config_file),
            _ => &mut command,
        };
        if let Some(value) = variable {
            command.env("QUORATE_PREFIX", value);
        }
        if let Some(value) = flag {
            command.args(["--prefix", value]);
        }
        let mut child = command
            .args(["r", "--", "sleep", "5"])
            .spawn()
            .expect("starts");
        let mut held_keys = String::new();
        common::wait_until("the lock is held", || {
            held_keys = ["file:r", "variable:r", "flag:r"]
                .into_iter()
                .filter(|key| {
                    masters[0]
                        .command(&["EXISTS", key])
                        .is_ok_and(|reply| reply.int() == Some(1))
                })
                .collect();
            !held_keys.is_empty()
        });
        common::send_signal(&child, "TERM");
        let _ = child.wait();
        held_keys
    };
    for (config_source, expected) in [
        ("flag", "file:r"),
        ("variable", "variable:r"),
        ("found", "variable:r"),
    ] {
        assert_eq!(
            held_key(config_source, None, None),
            "file:r",
            "{config_source}"
        );
        assert_eq!(
            held_key(config_source, Some("variable:"), None),
            expected,
            "{config_source}"
        );
        assert_eq!(
            held_key(config_source, Some("variable:"), Some("flag:")),
            "flag:r",
            "{config_source}"
        );
    }
}

#[test]
fn default_ttl_is_lowered_to_the_value_of_the_option_max_ttl() {
    let masters = start_masters(1);
    for words in [
        &["run", "r", "--max-ttl", "5s", "--", "true"][..],
        &["lead", "r", "--max-ttl", "5s", "--", "true"],
        &["bench", "--time", "1s", "--tasks", "1", "--max-ttl", "5s"],
    ] {
        let mut command = quorate_on(&masters);
        command.env("QUORATE_NODE_TIMEOUT", "500ms");
        let output = output_of(command.args(words));
        assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
    }
}

#[test]
fn file_named_by_the_option_config_overrides_environment_variables() {
    let masters = start_masters(1);
    let config_file = tempfile::NamedTempFile::new().expect("a file");
    let text = format!(
        "masters = '{}'\nrestart_guard = 'off'\nmax_ttl = '5s'\ngrace = '1ms'\nwait = 'none'\n",
        masters.urls()[0]
    );
    std::fs::write(&config_file, text).expect("written");
    // Set four variables. The configuration file overrides three of them, but not QUORATE_TTL, because the file does
    // not set `ttl`.
    let run_with_config = |args: &[&str]| {
        let mut command = quorate_command();
        command.env("QUORATE_MASTERS", "redis://127.0.0.1:1");
        command.env("QUORATE_WAIT", "forever");
        command
            .env("QUORATE_GRACE", "1h")
            .env("QUORATE_TTL", "900ms");
        output_of(
            command
                .args([&args[..1], &["--config"]].concat())
                .arg(config_file.path())
                .args(&args[1..]),
        )
    };
    let run = run_with_config(&["run", "-v", "r", "--", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.stderr.contains("--grace"), "{run:?}");
    let reply = masters[0].command(&["SET", "r", "somebody else"]);
    reply.expect("a reply");
    let refused_run = run_with_config(&["run", "r", "--", "true"]);
    assert_eq!(refused_run.code, Some(75), "{refused_run:?}");
    let doctor_run = run_with_config(&["doctor", "--json", "--node-timeout", "400ms"]);
    let report: serde_json::Value = serde_json::from_str(&doctor_run.stdout).expect("JSON");
    let path = config_file.path().to_str().expect("text");
    let expected = serde_json::json!([
        { "setting": "grace", "source": path, "overridden": "QUORATE_GRACE" },
        { "setting": "masters", "source": path, "overridden": "QUORATE_MASTERS" },
        { "setting": "max_ttl", "source": path, "overridden": null },
        { "setting": "node_timeout", "source": "--node-timeout", "overridden": null },
        { "setting": "restart_guard", "source": path, "overridden": null },
        { "setting": "ttl", "source": "QUORATE_TTL", "overridden": null },
        { "setting": "wait", "source": path, "overridden": "QUORATE_WAIT" },
    ]);
    let mut settings = report["settings"].as_array().expect("a list").clone();
    settings.sort_by_key(|row| row["setting"].to_string());
    assert_eq!(serde_json::Value::from(settings), expected, "{report}");
    let variables_run = output_of(
        quorate_command()
            .env("QUORATE_MASTERS", masters.urls()[0].clone())
            .env("QUORATE_KEEP_FOR", "1m")
            .arg("doctor"),
    );
    let settings_text = variables_run
        .stdout
        .split_once("\nsetting ")
        .map(|(_, rest)| rest);
    assert_eq!(
        settings_text,
        Some(
            "masters: from QUORATE_MASTERS\nsetting keep_for: from QUORATE_KEEP_FOR\nother settings: default\n"
        ),
        "{variables_run:?}"
    );
}

/// Runs `quorate run r -- true` with these environment variables, and with a configuration file that ends with `lines`.
fn run_with_file(masters: &Masters, lines: &str, variables: &[(&str, &str)]) -> RunOutput {
    let config_file = tempfile::NamedTempFile::new().expect("a file");
    let url = &masters.urls()[0];
    let text = format!("masters = '{url}'\nrestart_guard = 'off'\n{lines}");
    std::fs::write(&config_file, text).expect("written");
    let mut run = quorate_command();
    run.args(["run", "r", "--config"]).arg(config_file.path());
    output_of(
        run.envs(variables.iter().copied())
            .args(["-q", "--", "true"]),
    )
}

#[test]
fn variable_quorate_try_is_ignored_if_the_config_file_sets_wait() {
    let masters = start_masters(1);
    for lines in ["", "wait = '1m'\n"] {
        // Without the wait, the lock must outlast the start of the command, however busy the machine is.
        let (ttl_ms, code) = if lines.is_empty() {
            ("60000", 75)
        } else {
            ("700", 0)
        };
        let reply = masters[0].command(&["SET", "r", "somebody else", "PX", ttl_ms]);
        reply.expect("a reply");
        let run = run_with_file(&masters, lines, &[("QUORATE_TRY", "1")]);
        assert_eq!(run.code, Some(code), "{lines}: {run:?}");
    }
}

#[test]
fn invalid_environment_variable_is_refused_unless_the_config_file_overrides_it() {
    let masters = start_masters(1);
    let variables = [
        ("QUORATE_TTL", "garbage"),
        ("QUORATE_MAX_TTL", "garbage"),
        ("QUORATE_TRY", "garbage"),
    ];
    let lines = "ttl = '5s'\nmax_ttl = '5s'\nwait = '1m'\n";
    let run = run_with_file(&masters, lines, &variables);
    assert_eq!(run.code, Some(0), "{run:?}");
    let run = run_with_file(&masters, "ttl = '5s'\n", &variables);
    assert_eq!(run.code, Some(64), "{run:?}");
}

#[test]
fn wait_option_overrides_the_variable_quorate_try() {
    let masters = start_masters(1);
    let holder = common::quorate_run(&masters, &["r"], &["sleep", "1"])
        .spawn()
        .expect("starts");
    common::wait_until_held(&masters, "r");
    let run = output_of(
        quorate_on(&masters)
            .env("QUORATE_TRY", "1")
            .args(["run", "--wait", "5s", "r", "--", "true"]),
    );
    assert_eq!(run.code, Some(0), "{run:?}");
    common::wait_for_output(holder);
}

#[test]
fn no_output_contains_a_password() {
    for masters in [
        "redis://bob:s3cret@127.0.0.1:1",
        "redis://:s3cret@127.0.0.1:1",
        "redis//:s3cret@host",
        "redis://:s3cret@127.0.0.1:port",
        "redis://:a,s3cret,b@127.0.0.1:1",
        "redis://:a,s3cret,b@127.0.0.1:port",
        "redis://:s3cret,127.0.0.1:1",
        "ftp://bob:s3cret@host",
        "redis://:s3cret@a,redis://:s3cret@a",
        "unix:///tmp/no.sock?user=bob&pass=s3cret",
    ] {
        for command in [
            &["run", "--wait", "100ms", "r", "--", "true"][..],
            &["status", "r"],
            &["status", "--json", "r"],
            &["check", "--json", "r", "7"],
            &["break", "r", "--yes"],
        ] {
            let run = output_of(
                quorate_command()
                    .env("QUORATE_MASTERS", masters)
                    .args(command),
            );
            assert!(matches!(run.code, Some(64 | 69)), "{masters} {run:?}");
            assert!(!run.stderr.contains("s3cret"), "{masters} {run:?}");
            assert!(!run.stdout.contains("s3cret"), "{masters} {run:?}");
        }
    }
    let typed_run = output_of(quorate_command().args(["run", "r", "redis://:s3cret@host"]));
    assert!(!typed_run.stderr.contains("s3cret"), "{typed_run:?}");
}

/// Every way to give a URL to the command: as the value of the right and of a wrong option, as an argument at a wrong
/// place, in a variable, and in a configuration file.
#[test]
fn no_output_contains_four_characters_of_the_password_of_a_wrong_url() {
    let folder = tempfile::tempdir().expect("a directory");
    let config_file = folder.path().join("quorate.toml");
    let mut refused_count = 0;
    for seed in 0..120 {
        let BadUrl { url, password } = BadUrl::of(seed);
        let config_text = format!("masters = [{url:?}, 'redis://127.0.0.1:1']");
        let texts = [
            config_text,
            format!("ttl = {url:?}"),
            format!("masters = [\n{url}\n]"),
        ];
        std::fs::write(&config_file, &texts[seed as usize % 3]).expect("written");
        let path = config_file.to_str().expect("UTF-8");
        let long = format!("--masters={url}");
        let unknown = format!("--mastres={url}");
        let invocations: [(&[&str], Option<&str>); 12] = [
            (&["status", "--masters", &url, "r"], None),
            (&["run", "--try", &long, "r", "--", "true"], None),
            (&["doctor", "--json", "--masters", &url], None),
            (&["doctor"], Some("QUORATE_MASTERS")),
            (&["masters", "show", "--json"], Some("QUORATE_MASTERS")),
            (&["run", "--help"], Some("QUORATE_TTL")),
            (&["run", "r", "--", "true"], Some("QUORATE_TTL")),
            (&["status", "--config", path, "r"], None),
            (&["status", "--config", &url, "r"], None),
            (&["run", "--ttl", &url, "r", "--", "true"], None),
            (&[&unknown], None),
            (&["prepare-server", &url], None),
        ];
        // Two of the ways for each URL; after six URLs, all ways were tried.
        for (args, variable) in
            (0..2).map(|n| invocations[(seed as usize * 2 + n) % invocations.len()])
        {
            let mut command = quorate_command();
            command.args(args).env("QUORATE_CONNECT_TIMEOUT", "50ms");
            if let Some(variable) = variable {
                command.env(variable, &url);
            }
            let run = output_of(&mut command);
            refused_count += u32::from(run.code == Some(64));
            for text in [&run.stdout, &run.stderr] {
                let leaked = quorate_testbed::bad_url::leaked(text, &password);
                assert_eq!(leaked, None, "{seed}: {url:?} {args:?} {run:?}");
            }
        }
    }
    assert!(
        refused_count > 100,
        "only {refused_count} of 240 commands were refused"
    );
}
