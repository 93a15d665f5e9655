//! The recipes for object stores.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use quorate_recipes::recipe;
use quorate_testbed::ServerDir;

use crate::store_server::{Moto, StoreServer};
use crate::{NEW_TOKEN, OLD_TOKEN, not_run};

/// Whether `curl` is missing, with which the recipes send their requests. If so, reports the test as not run.
fn is_curl_missing() -> bool {
    let help = Command::new("curl")
        .args(["--help", "all"])
        .stderr(Stdio::null())
        .output();
    let has_option =
        help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--aws-sigv4"));
    if !has_option {
        not_run("curl with the option --aws-sigv4 is missing: install curl 7.88 or later");
    }
    !has_option
}

/// Runs shell code after the recipe, with these arguments. Returns its exit status.
fn run_shell(function: &str, call: &str, arguments: &[&str]) -> i32 {
    let request = recipe("s3-request");
    let status = Command::new("sh")
        .args(["-c", &format!("{request}{function}{call}"), "sh"])
        .args(arguments)
        .envs([("AWS_REGION", "test"), ("AWS_ACCESS_KEY_ID", "test")])
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_SESSION_TOKEN", "session")
        .status();
    status.unwrap().code().expect("an exit status")
}

/// A secret that the tests look for.
const SECRET: &str = "a-secret/of+the=tests";

/// Calls the recipe with a file. Returns its exit status.
fn put_status(url: &str, token: &str, value: &str) -> i32 {
    let directory = ServerDir::create(None).unwrap();
    let value_file = directory.path().join("value");
    fs::write(&value_file, value).unwrap();
    let file_path = value_file.display().to_string();
    let shell_call = "fenced_put \"$1\" \"$2\" \"$3\"";
    run_shell(recipe("s3-put"), shell_call, &[url, token, &file_path])
}

fn put(url: &str, token: u64, value: &str) -> bool {
    match put_status(url, &token.to_string(), value) {
        0 => true,
        75 => false,
        other => panic!("the recipe ended with {other}"),
    }
}

fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl")
        // A store may hide objects from requests without a signature.
        .args(["-sS", "--aws-sigv4", "aws:amz:test:s3", "-u", "test:test"])
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
        .args(["-H", "x-amz-security-token: session"])
        .args(arguments)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The URL of the data to which the object points.
fn data_url(url: &str) -> String {
    let pointer = curl(&[url]);
    let data = pointer.lines().find_map(|line| line.strip_prefix("data: "));
    format!("{url}.{}", data.expect("a pointer"))
}

/// The value to which the object points.
fn read_value(url: &str) -> String {
    curl(&[&data_url(url)])
}

/// Writes with rising, equal and older tokens, one after the other.
fn write_in_turn(url: &str) {
    for (token, is_accepted) in [
        (9, true),
        (10, true),
        (9, false),
        (OLD_TOKEN, true),
        (NEW_TOKEN, true),
        (OLD_TOKEN, false),
        (NEW_TOKEN, true),
        (NEW_TOKEN, true),
        (OLD_TOKEN, false),
        (10, false),
    ] {
        let value = format!("value of {token}");
        assert_eq!(put(url, token, &value), is_accepted, "{token}");
        if is_accepted {
            assert_eq!(read_value(url), value);
        }
    }
    assert_eq!(read_value(url), format!("value of {NEW_TOKEN}"));
}

#[test]
fn object_store_recipe_refuses_older_tokens() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    write_in_turn(&store.url("report"));
}

#[test]
fn object_store_recipe_refuses_older_tokens_on_moto() {
    if is_curl_missing() {
        return;
    }
    let Some(moto) = Moto::start() else {
        return not_run("the Python package moto[server] is missing");
    };
    write_in_turn(&moto.url("report"));
    assert_eq!(
        run_shell(
            recipe("s3-check"),
            "checks_conditions \"$1\"",
            &[&moto.url("check")]
        ),
        0
    );
    assert_etag_ignores_metadata(&moto.url("metadata"));
}

#[test]
fn object_store_recipe_reads_again_if_another_holder_writes_between_its_read_and_its_write() {
    if is_curl_missing() {
        return;
    }
    // The object may exist before, with an ETag, or not.
    for exists in [false, true] {
        for (own_token, other_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
            let store = StoreServer::start(false);
            let url = store.url("report");
            if exists {
                assert!(put(&url, 9, "none"));
            }
            let url_of_other = url.clone();
            store.before_next_put(move || {
                assert!(put(&url_of_other, other_token, &other_token.to_string()));
            });
            let is_accepted = put(&url, own_token, &own_token.to_string());
            assert!(store.has_job_run());
            assert_eq!(is_accepted, own_token == NEW_TOKEN, "{exists} {own_token}");
            assert_eq!(read_value(&url), NEW_TOKEN.to_string());
        }
    }
}

#[test]
fn object_store_recipe_fails_if_not_all_of_the_pointer_arrives() {
    if is_curl_missing() {
        return;
    }
    // With the first digits of the stored token, 18 would be a newer token.
    for cut_after in ["HTTP/1.1 200 .", "ETag: \"", "fence: 17", "data: "] {
        for has_length in [true, false] {
            let store = StoreServer::start(false);
            let url = store.url("report");
            assert!(put(&url, NEW_TOKEN, "new"));
            store.cut_next_answer(cut_after, has_length);
            assert_eq!(put_status(&url, "18", "old"), 1, "{cut_after} {has_length}");
            assert_eq!(read_value(&url), "new");
        }
    }
}

#[test]
fn object_store_recipe_refuses_what_is_not_a_token() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    let url = store.url("report");
    for token in ["", "0", "-1", "seven", "9007199254740993"] {
        assert_eq!(put_status(&url, token, "bad"), 1, "{token:?}");
    }
    assert!(put(&url, 1 << 53, "good"));
    // The client must not overwrite an object that is no pointer.
    let other_url = store.url("other");
    curl(&["-X", "PUT", "--data-binary", "text", &other_url]);
    assert_eq!(put_status(&other_url, "7", "bad"), 1);
    assert_eq!(curl(&[&other_url]), "text");
}

#[test]
fn object_store_client_that_is_refused_late_changes_no_data() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    let url = store.url("report");
    assert!(put(&url, OLD_TOKEN, "old"));
    let old_data_url = data_url(&url);
    let url_of_other = url.clone();
    // The older holder has uploaded its second value when the newer one writes.
    store.before_next_put(move || assert!(put(&url_of_other, NEW_TOKEN, "new")));
    assert!(!put(&url, OLD_TOKEN, "late"));
    assert!(store.has_job_run());
    assert_eq!(curl(&[&old_data_url]), "old");
    assert_eq!(read_value(&url), "new");
}

#[test]
fn object_store_recipe_without_a_file_stores_the_token_before_the_holder_reads() {
    if is_curl_missing() {
        return;
    }
    let store_token = |url: &str| {
        let shell_call = "fenced_put \"$1\" \"$2\"";
        assert_eq!(
            run_shell(recipe("s3-put"), shell_call, &[url, &NEW_TOKEN.to_string()]),
            0
        );
    };
    let store = StoreServer::start(false);
    let url = store.url("report");
    assert!(put(&url, OLD_TOKEN, "10 left"));
    store_token(&url);
    assert_eq!(read_value(&url), "10 left");
    assert!(!put(&url, OLD_TOKEN, "9 left"));
    assert_eq!(read_value(&url), "10 left");
    assert!(put(&url, NEW_TOKEN, "9 left"));
    // A write of the older holder during the claim is kept.
    let (url, url_of_other) = (store.url("another"), store.url("another"));
    store.before_next_put(move || assert!(put(&url_of_other, OLD_TOKEN, "9 left")));
    store_token(&url);
    assert_eq!(read_value(&url), "9 left");
    // If nothing has been stored, older tokens are refused as well.
    let url = store.url("empty");
    store_token(&url);
    assert!(!put(&url, OLD_TOKEN, "old"));
    assert!(put(&url, NEW_TOKEN, "new"));
}

#[test]
fn object_store_recipe_shows_the_secret_in_no_command_line() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    let url = store.url("report");
    store.before_next_put(|| {
        // The client waits for the answer to this request.
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let command_lines =
            processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
        let lines: Vec<String> = command_lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect();
        assert!(lines.iter().any(|line| line.contains("--aws-sigv4")));
        let line_with_secret = lines.iter().find(|line| line.contains(SECRET));
        assert_eq!(line_with_secret, None);
    });
    assert!(put(&url, NEW_TOKEN, "new"));
    assert!(store.has_job_run());
}

#[test]
fn object_store_recipe_keeps_the_newest_of_concurrent_writes() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    let url = store.url("report");
    for round in 0..10 {
        let newest = OLD_TOKEN + 10 * round;
        let tokens = [newest - 3, newest - 2, newest, newest - 1];
        let outcomes = thread::scope(|scope| {
            let url = &url;
            let writes =
                tokens.map(|token| scope.spawn(move || put(url, token, &token.to_string())));
            writes.map(|write| write.join().unwrap())
        });
        assert!(outcomes[2], "the newest token was refused");
        assert_eq!(read_value(&url), newest.to_string());
    }
}

/// Checks that a token in the metadata does not protect: the ETag stays the same if a newer holder writes the same
/// body.
fn assert_etag_ignores_metadata(url: &str) {
    let put_if = |token: u64, condition: &str| {
        let metadata = format!("x-amz-meta-fence: {token}");
        // With the type of a form, which is the default of `curl`, moto would store an empty body.
        let body_arguments = ["--data-binary", "same", "-H", "Content-Type: text/plain"];
        let put = ["-o", "/dev/null", "-w", "%{http_code}", "-X", "PUT", url];
        let headers = ["-H", &metadata, "-H", condition];
        curl(&[&put[..], &body_arguments, &headers].concat())
    };
    let read_etag = || {
        let head_reply = curl(&["-I", url]).to_lowercase();
        let etag_header = head_reply
            .lines()
            .find_map(|line| line.strip_prefix("etag: "));
        etag_header.expect("an ETag").trim().to_owned()
    };
    assert_eq!(put_if(9, "If-None-Match: *"), "200");
    assert_eq!(curl(&[url]), "same");
    let condition_of_seen_etag = format!("If-Match: {}", read_etag());
    assert_eq!(put_if(NEW_TOKEN, &condition_of_seen_etag), "200");
    assert_eq!(
        put_if(OLD_TOKEN, &condition_of_seen_etag),
        "200",
        "the older holder must not notice the newer one"
    );
}

#[test]
fn object_store_token_in_the_metadata_lets_an_older_token_pass() {
    if is_curl_missing() {
        return;
    }
    assert_etag_ignores_metadata(&StoreServer::start(false).url("metadata"));
}

#[test]
fn object_store_that_ignores_conditions_is_noticed() {
    if is_curl_missing() {
        return;
    }
    for ignores_conditions in [false, true] {
        let store = StoreServer::start(ignores_conditions);
        let url = store.url("check");
        let status = run_shell(recipe("s3-check"), "checks_conditions \"$1\"", &[&url]);
        assert_eq!(status != 0, ignores_conditions);
    }
}
