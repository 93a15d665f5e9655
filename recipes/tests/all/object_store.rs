//! The recipes for object stores.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use quorate_recipes::recipe;
use quorate_testbed::Home;

use crate::store_server::{Moto, StoreServer};
use crate::{NEW, OLD, not_run};

/// Whether `curl` is missing, with which the recipes send their requests. If so, reports the test as not run.
fn is_curl_missing() -> bool {
    let help = Command::new("curl")
        .args(["--help", "all"])
        .stderr(Stdio::null())
        .output();
    let found =
        help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--aws-sigv4"));
    if !found {
        not_run("curl with the option --aws-sigv4 is missing: install curl 7.88 or later");
    }
    !found
}

/// Runs shell code after the recipe, with these arguments. Returns its exit status.
fn shell(function: &str, call: &str, arguments: &[&str]) -> i32 {
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
fn status(url: &str, token: &str, value: &str) -> i32 {
    let home = Home::create(None).unwrap();
    let file = home.path().join("value");
    fs::write(&file, value).unwrap();
    let file = file.display().to_string();
    let call = "fenced_put \"$1\" \"$2\" \"$3\"";
    shell(recipe("s3-put"), call, &[url, token, &file])
}

fn put(url: &str, token: u64, value: &str) -> bool {
    match status(url, &token.to_string(), value) {
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
fn data(url: &str) -> String {
    let pointer = curl(&[url]);
    let data = pointer.lines().find_map(|line| line.strip_prefix("data: "));
    format!("{url}.{}", data.expect("a pointer"))
}

/// The value to which the object points.
fn read(url: &str) -> String {
    curl(&[&data(url)])
}

/// Writes with rising, equal and older tokens, one after the other.
fn play(url: &str) {
    for (token, accepts) in [
        (9, true),
        (10, true),
        (9, false),
        (OLD, true),
        (NEW, true),
        (OLD, false),
        (NEW, true),
        (NEW, true),
        (OLD, false),
        (10, false),
    ] {
        let value = format!("value of {token}");
        assert_eq!(put(url, token, &value), accepts, "{token}");
        if accepts {
            assert_eq!(read(url), value);
        }
    }
    assert_eq!(read(url), format!("value of {NEW}"));
}

#[test]
fn object_store_recipe_refuses_older_tokens() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    play(&store.url("report"));
}

#[test]
fn object_store_recipe_refuses_older_tokens_on_moto() {
    if is_curl_missing() {
        return;
    }
    let Some(moto) = Moto::start() else {
        return not_run("the Python package moto[server] is missing");
    };
    play(&moto.url("report"));
    assert_eq!(
        shell(
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
        for (first, meanwhile) in [(OLD, NEW), (NEW, OLD)] {
            let store = StoreServer::start(false);
            let url = store.url("report");
            if exists {
                assert!(put(&url, 9, "none"));
            }
            let other = url.clone();
            store.before_next_put(move || {
                assert!(put(&other, meanwhile, &meanwhile.to_string()));
            });
            let accepted = put(&url, first, &first.to_string());
            assert!(store.has_run());
            assert_eq!(accepted, first == NEW, "{exists} {first}");
            assert_eq!(read(&url), NEW.to_string());
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
            assert!(put(&url, NEW, "new"));
            store.cut_next_answer(cut_after, has_length);
            assert_eq!(status(&url, "18", "old"), 1, "{cut_after} {has_length}");
            assert_eq!(read(&url), "new");
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
        assert_eq!(status(&url, token, "bad"), 1, "{token:?}");
    }
    assert!(put(&url, 1 << 53, "good"));
    // The client must not overwrite an object that is no pointer.
    let other = store.url("other");
    curl(&["-X", "PUT", "--data-binary", "text", &other]);
    assert_eq!(status(&other, "7", "bad"), 1);
    assert_eq!(curl(&[&other]), "text");
}

#[test]
fn object_store_client_that_is_refused_late_changes_no_data() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    let url = store.url("report");
    assert!(put(&url, OLD, "old"));
    let accepted = data(&url);
    let other = url.clone();
    // The older holder has uploaded its second value when the newer one writes.
    store.before_next_put(move || assert!(put(&other, NEW, "new")));
    assert!(!put(&url, OLD, "late"));
    assert!(store.has_run());
    assert_eq!(curl(&[&accepted]), "old");
    assert_eq!(read(&url), "new");
}

#[test]
fn object_store_recipe_without_a_file_stores_the_token_before_the_holder_reads() {
    if is_curl_missing() {
        return;
    }
    let claim = |url: &str| {
        let call = "fenced_put \"$1\" \"$2\"";
        assert_eq!(shell(recipe("s3-put"), call, &[url, &NEW.to_string()]), 0);
    };
    let store = StoreServer::start(false);
    let url = store.url("report");
    assert!(put(&url, OLD, "10 left"));
    claim(&url);
    assert_eq!(read(&url), "10 left");
    assert!(!put(&url, OLD, "9 left"));
    assert_eq!(read(&url), "10 left");
    assert!(put(&url, NEW, "9 left"));
    // A write of the older holder during the claim is kept.
    let (url, other) = (store.url("another"), store.url("another"));
    store.before_next_put(move || assert!(put(&other, OLD, "9 left")));
    claim(&url);
    assert_eq!(read(&url), "9 left");
    // If nothing has been stored, older tokens are refused as well.
    let url = store.url("empty");
    claim(&url);
    assert!(!put(&url, OLD, "old"));
    assert!(put(&url, NEW, "new"));
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
        let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
        let lines: Vec<String> = lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect();
        assert!(lines.iter().any(|line| line.contains("--aws-sigv4")));
        let shown = lines.iter().find(|line| line.contains(SECRET));
        assert_eq!(shown, None);
    });
    assert!(put(&url, NEW, "new"));
    assert!(store.has_run());
}

#[test]
fn object_store_recipe_keeps_the_newest_of_concurrent_writes() {
    if is_curl_missing() {
        return;
    }
    let store = StoreServer::start(false);
    let url = store.url("report");
    for round in 0..10 {
        let newest = OLD + 10 * round;
        let tokens = [newest - 3, newest - 2, newest, newest - 1];
        let accepted = thread::scope(|scope| {
            let url = &url;
            let writes =
                tokens.map(|token| scope.spawn(move || put(url, token, &token.to_string())));
            writes.map(|write| write.join().unwrap())
        });
        assert!(accepted[2], "the newest token was refused");
        assert_eq!(read(&url), newest.to_string());
    }
}

/// Checks that a token in the metadata does not protect: the ETag stays the same if a newer holder writes the same body.
fn assert_etag_ignores_metadata(url: &str) {
    let write = |token: u64, condition: &str| {
        let metadata = format!("x-amz-meta-fence: {token}");
        // With the type of a form, which is the default of `curl`, moto would store an empty body.
        let body = ["--data-binary", "same", "-H", "Content-Type: text/plain"];
        let put = ["-o", "/dev/null", "-w", "%{http_code}", "-X", "PUT", url];
        let headers = ["-H", &metadata, "-H", condition];
        curl(&[&put[..], &body, &headers].concat())
    };
    let etag = || {
        let head = curl(&["-I", url]).to_lowercase();
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: "));
        tag.expect("an ETag").trim().to_owned()
    };
    assert_eq!(write(9, "If-None-Match: *"), "200");
    assert_eq!(curl(&[url]), "same");
    let seen = format!("If-Match: {}", etag());
    assert_eq!(write(NEW, &seen), "200");
    assert_eq!(
        write(OLD, &seen),
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
    for ignores in [false, true] {
        let store = StoreServer::start(ignores);
        let url = store.url("check");
        let status = shell(recipe("s3-check"), "checks_conditions \"$1\"", &[&url]);
        assert_eq!(status != 0, ignores);
    }
}
