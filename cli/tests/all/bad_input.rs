//! Tests of wrong usage: quorate prints one line that names the wrong argument, exits with 64, and does not run the
//! command.

use quorate_testbed::Masters;
use quorate_testbed::bad_url::BadUrl;

use crate::common::{self, Done, bare, done, masters, quorate};

/// Runs `quorate run` with these options and the command `touch FILE`. Expects exit code 64, one line of output that
/// contains all of `parts`, and no file FILE.
fn refused(options: &[&str], parts: &[&str]) {
    let witness = tempfile::tempdir().expect("a directory");
    let file = witness.path().join("ran");
    let run = done(
        bare()
            .arg("run")
            .args(options)
            .args(["--", "touch"])
            .arg(&file),
    );
    assert_eq!(run.code, Some(64), "{options:?} {run:?}");
    assert_eq!(run.err.lines().count(), 1, "{options:?} {run:?}");
    for part in parts {
        assert!(
            run.err.contains(part),
            "the error for {options:?} must contain {part:?}: {run:?}"
        );
    }
    assert_eq!(run.out, "");
    assert!(!file.exists());
}

const THREE: &str = "redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3";

#[test]
fn wrong_master_urls_are_refused_with_a_one_line_error() {
    refused(&["r"], &["no masters", "--masters"]);
    refused(&["--masters", "", "r"], &["no masters"]);
    refused(
        &["--masters", "redis://a,,redis://b", "r"],
        &["master 2 of 3"],
    );
    refused(&["--masters", "http://a", "r"], &["http", "redis://"]);
    // The error shows nothing of a wrong URL but its place and its scheme, because the rest may be a password.
    refused(&["--masters", "a:b:c", "r"], &["master number 1 (***)"]);
    refused(
        &["--masters", "redis://b,redis://a:port", "r"],
        &["master number 2 (redis://***)"],
    );
    refused(
        &["--masters", "redis://a,redis://a:6379", "r"],
        &["a:6379", "twice"],
    );
    refused(&["--masters", "redis://a/0,redis://a/1", "r"], &["twice"]);
}

#[test]
fn wrong_resource_names_are_refused_with_a_one_line_error() {
    refused(&["--masters", THREE, ""], &["empty"]);
    refused(&["--masters", THREE, &"x".repeat(5000)], &["5000", "1024"]);
    refused(
        &["--masters", THREE, "quorate:fence:x"],
        &["quorate:", "reserved"],
    );
}

#[test]
fn wrong_durations_are_refused_with_a_one_line_error() {
    refused(&["--masters", THREE, "--ttl", "0s", "r"], &["ttl"]);
    refused(&["--masters", THREE, "--ttl", "2ms", "r"], &["ttl", "2ms"]);
    refused(
        &["--masters", THREE, "--ttl", "5m", "r"],
        &["ttl", "max_ttl"],
    );
    refused(
        &["--masters", THREE, "--wait", "soon", "r"],
        &["'soon'", "--wait", "5m"],
    );
    refused(
        &["--masters", THREE, "--wait", "5", "r"],
        &["'5'", "--wait"],
    );
    refused(&["--masters", THREE, "--grace=-1s", "r"], &["--grace"]);
    refused(
        &["--masters", THREE, "--try", "--wait", "1s", "r"],
        &["--try", "--wait"],
    );
}

#[test]
fn wrong_arguments_are_refused_with_a_one_line_error() {
    refused(&["--masters", THREE], &["<RESOURCE>"]);
    refused(
        &["--masters", THREE, "--restart-guard", "maybe", "r"],
        &["maybe", "off"],
    );
    refused(&["--masters", THREE, "--nope", "r"], &["--nope"]);
    let run = done(bare().args(["run", "--masters", THREE, "r"]));
    assert_eq!(
        (run.code, run.err.lines().count()),
        (Some(64), 1),
        "{run:?}"
    );
    assert!(run.err.contains("<COMMAND>"), "{run:?}");
}

#[test]
fn error_names_the_environment_variable_that_has_an_invalid_value() {
    let run =
        done(
            bare()
                .env("QUORATE_TTL", "ten")
                .args(["run", "--masters", THREE, "r", "--", "true"]),
        );
    assert_eq!(run.code, Some(64));
    assert!(
        run.err.contains("QUORATE_TTL") && run.err.contains("'ten'"),
        "{run:?}"
    );
}

#[test]
fn mistake_in_the_configuration_file_is_reported_with_file_line_and_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let with = |text: &str| {
        let path = dir.path().join("quorate.toml");
        std::fs::write(&path, text).expect("written");
        done(
            bare()
                .current_dir(dir.path())
                .args(["run", "r", "--", "true"]),
        )
    };
    let unknown = with("masters = ['redis://:s3cret@a']\ntll = '1s'\n");
    assert_eq!(unknown.code, Some(64));
    for part in ["quorate.toml", "line 2", "tll"] {
        assert!(unknown.err.contains(part), "{unknown:?}");
    }
    assert_eq!(unknown.err.lines().count(), 1, "{unknown:?}");
    assert!(!unknown.err.contains("s3cret"), "{unknown:?}");
    let wrong = with("wait = 'soon'");
    assert!(wrong.err.contains("line 1, wait"), "{wrong:?}");
    let missing = done(bare().args(["run", "--config", "/no/such.toml", "r", "--", "true"]));
    assert_eq!(missing.code, Some(64));
    assert!(missing.err.contains("/no/such.toml"), "{missing:?}");
}

#[test]
fn sources_of_a_setting_have_the_documented_precedence() {
    let masters = masters(1);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("quorate.toml");
    let text = format!(
        "masters = '{}'\nrestart_guard = 'off'\nprefix = 'file:'\n",
        masters.urls()[0]
    );
    std::fs::write(&file, text).expect("written");
    let key = |named: &str, variable: Option<&str>, flag: Option<&str>| {
        let mut command = bare();
        command.arg("run").current_dir(dir.path());
        match named {
            "flag" => command.arg("--config").arg(&file),
            "variable" => command.env("QUORATE_CONFIG", &file),
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
        let mut seen = String::new();
        common::until("the lock is held", || {
            seen = ["file:r", "variable:r", "flag:r"]
                .into_iter()
                .filter(|key| {
                    masters[0]
                        .command(&["EXISTS", key])
                        .is_ok_and(|reply| reply.int() == Some(1))
                })
                .collect();
            !seen.is_empty()
        });
        common::signal(&child, "TERM");
        let _ = child.wait();
        seen
    };
    for (named, wins) in [
        ("flag", "file:r"),
        ("variable", "variable:r"),
        ("found", "variable:r"),
    ] {
        assert_eq!(key(named, None, None), "file:r", "{named}");
        assert_eq!(key(named, Some("variable:"), None), wins, "{named}");
        assert_eq!(
            key(named, Some("variable:"), Some("flag:")),
            "flag:r",
            "{named}"
        );
    }
}

#[test]
fn default_ttl_is_lowered_to_the_value_of_the_option_max_ttl() {
    let masters = masters(1);
    for words in [
        &["run", "r", "--max-ttl", "5s", "--", "true"][..],
        &["lead", "r", "--max-ttl", "5s", "--", "true"],
        &["bench", "--time", "1s", "--tasks", "1", "--max-ttl", "5s"],
    ] {
        let mut command = quorate(&masters);
        command.env("QUORATE_NODE_TIMEOUT", "500ms");
        let ended = done(command.args(words));
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    }
}

#[test]
fn file_named_by_the_option_config_overrides_environment_variables() {
    let masters = masters(1);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = format!(
        "masters = '{}'\nrestart_guard = 'off'\nmax_ttl = '5s'\ngrace = '1ms'\nwait = 'none'\n",
        masters.urls()[0]
    );
    std::fs::write(&file, text).expect("written");
    // Set four variables. The configuration file overrides three of them, but not QUORATE_TTL, because the file does
    // not set `ttl`.
    let with = |words: &[&str]| {
        let mut command = bare();
        command.env("QUORATE_MASTERS", "redis://127.0.0.1:1");
        command.env("QUORATE_WAIT", "forever");
        command
            .env("QUORATE_GRACE", "1h")
            .env("QUORATE_TTL", "900ms");
        done(
            command
                .args([&words[..1], &["--config"]].concat())
                .arg(file.path())
                .args(&words[1..]),
        )
    };
    let run = with(&["run", "-v", "r", "--", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.err.contains("--grace"), "{run:?}");
    let held = masters[0].command(&["SET", "r", "somebody else"]);
    held.expect("a reply");
    let refused = with(&["run", "r", "--", "true"]);
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let doctor = with(&["doctor", "--json", "--node-timeout", "400ms"]);
    let doctor: serde_json::Value = serde_json::from_str(&doctor.out).expect("JSON");
    let path = file.path().to_str().expect("text");
    let expected = serde_json::json!([
        { "setting": "grace", "source": path, "overridden": "QUORATE_GRACE" },
        { "setting": "masters", "source": path, "overridden": "QUORATE_MASTERS" },
        { "setting": "max_ttl", "source": path, "overridden": null },
        { "setting": "node_timeout", "source": "--node-timeout", "overridden": null },
        { "setting": "restart_guard", "source": path, "overridden": null },
        { "setting": "ttl", "source": "QUORATE_TTL", "overridden": null },
        { "setting": "wait", "source": path, "overridden": "QUORATE_WAIT" },
    ]);
    let mut settings = doctor["settings"].as_array().expect("a list").clone();
    settings.sort_by_key(|row| row["setting"].to_string());
    assert_eq!(serde_json::Value::from(settings), expected, "{doctor}");
    let words = done(
        bare()
            .env("QUORATE_MASTERS", masters.urls()[0].clone())
            .env("QUORATE_KEEP_FOR", "1m")
            .arg("doctor"),
    );
    let settings = words.out.split_once("\nsetting ").map(|(_, rest)| rest);
    assert_eq!(
        settings,
        Some(
            "masters: from QUORATE_MASTERS\nsetting keep_for: from QUORATE_KEEP_FOR\nother settings: default\n"
        ),
        "{words:?}"
    );
}

/// Runs `quorate run r -- true` with these environment variables, and with a configuration file that ends with `lines`.
fn run_with_file(masters: &Masters, lines: &str, variables: &[(&str, &str)]) -> Done {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let url = &masters.urls()[0];
    let text = format!("masters = '{url}'\nrestart_guard = 'off'\n{lines}");
    std::fs::write(&file, text).expect("written");
    let mut run = bare();
    run.args(["run", "r", "--config"]).arg(file.path());
    done(
        run.envs(variables.iter().copied())
            .args(["-q", "--", "true"]),
    )
}

#[test]
fn variable_quorate_try_is_ignored_if_the_config_file_sets_wait() {
    let masters = masters(1);
    for lines in ["", "wait = '1m'\n"] {
        let held = masters[0].command(&["SET", "r", "somebody else", "PX", "700"]);
        held.expect("a reply");
        let run = run_with_file(&masters, lines, &[("QUORATE_TRY", "1")]);
        let code = if lines.is_empty() { 75 } else { 0 };
        assert_eq!(run.code, Some(code), "{lines}: {run:?}");
    }
}

#[test]
fn invalid_environment_variable_is_refused_unless_the_config_file_overrides_it() {
    let masters = masters(1);
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
    let masters = masters(1);
    let holder = common::run(&masters, &["r"], &["sleep", "1"])
        .spawn()
        .expect("starts");
    common::until_held(&masters, "r");
    let run = done(
        quorate(&masters)
            .env("QUORATE_TRY", "1")
            .args(["run", "--wait", "5s", "r", "--", "true"]),
    );
    assert_eq!(run.code, Some(0), "{run:?}");
    common::end(holder);
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
            let run = done(bare().env("QUORATE_MASTERS", masters).args(command));
            assert!(matches!(run.code, Some(64 | 69)), "{masters} {run:?}");
            assert!(!run.err.contains("s3cret"), "{masters} {run:?}");
            assert!(!run.out.contains("s3cret"), "{masters} {run:?}");
        }
    }
    let typed = done(bare().args(["run", "r", "redis://:s3cret@host"]));
    assert!(!typed.err.contains("s3cret"), "{typed:?}");
}

/// Every way to give a URL to the command: as the value of the right and of a wrong option, as an argument at a wrong
/// place, in a variable, and in a configuration file.
#[test]
fn no_output_contains_four_characters_of_the_password_of_a_wrong_url() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("quorate.toml");
    let mut refused = 0;
    for seed in 0..120 {
        let BadUrl { url, password } = BadUrl::of(seed);
        let quoted = format!("masters = [{url:?}, 'redis://127.0.0.1:1']");
        let texts = [
            quoted,
            format!("ttl = {url:?}"),
            format!("masters = [\n{url}\n]"),
        ];
        std::fs::write(&file, &texts[seed as usize % 3]).expect("written");
        let path = file.to_str().expect("UTF-8");
        let long = format!("--masters={url}");
        let unknown = format!("--mastres={url}");
        let ways: [(&[&str], Option<&str>); 12] = [
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
        for (args, variable) in (0..2).map(|n| ways[(seed as usize * 2 + n) % ways.len()]) {
            let mut command = bare();
            command.args(args).env("QUORATE_CONNECT_TIMEOUT", "50ms");
            if let Some(variable) = variable {
                command.env(variable, &url);
            }
            let run = done(&mut command);
            refused += u32::from(run.code == Some(64));
            for text in [&run.out, &run.err] {
                let leaked = quorate_testbed::bad_url::leaked(text, &password);
                assert_eq!(leaked, None, "{seed}: {url:?} {args:?} {run:?}");
            }
        }
    }
    assert!(refused > 100, "only {refused} of 240 commands were refused");
}
