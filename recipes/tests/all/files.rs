//! The recipe for files, with a real file system in memory.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_recipes::recipe;
use quorate_testbed::Home;
use rustix::fs::{FlockOperation, flock};

use crate::proof::prove;
use crate::{NEW, OLD, has_program};

/// An empty directory. `None` if a program is missing that the recipe uses.
fn directory() -> Option<Arc<Home>> {
    if !has_program("flock", "util-linux") {
        return None;
    }
    Some(Arc::new(Home::create(None).unwrap()))
}

/// Starts shell code after the recipe.
fn shell(home: &Home, call: &str, arguments: &[&str]) -> Child {
    let mut child = Command::new("sh");
    let script = format!("{}{call}", recipe("file-write"));
    child.args(["-c", &script, "sh"]).args(arguments);
    child.current_dir(home.path()).spawn().unwrap()
}

/// The number of files that the tests have written as input.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Starts the recipe, which replaces the file `data` with `value`.
fn start(home: &Home, token: u64, value: &str) -> Child {
    // The name of a file that no other call of the test uses.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = home.path().join(format!("new.{count}"));
    fs::write(&new, value).unwrap();
    let call = "fenced_write data \"$1\" \"$2\"; code=$?; rm \"$2\"; exit $code";
    let new = new.display().to_string();
    shell(home, call, &[&token.to_string(), &new])
}

fn accepted(mut child: Child) -> bool {
    match child.wait().unwrap().code() {
        Some(0) => true,
        Some(75) => false,
        other => panic!("the recipe ended with {other:?}"),
    }
}

fn read(home: &Home) -> String {
    fs::read_to_string(home.path().join("data")).unwrap_or_default()
}

/// The names of all files in the directory.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn file_recipe_refuses_older_tokens() {
    let Some(home) = directory() else { return };
    let opened = Arc::clone(&home);
    prove(
        move || Arc::clone(&opened),
        |home, token, value| accepted(start(home, token, value)),
        |home| read(home),
    )
    .await;
    // `lock` belongs to the directory itself. No temporary file is left.
    let left = ["data", "data.fence", "data.lock", "lock"];
    assert_eq!(names(home.path()), left);
}

#[test]
fn file_recipe_refuses_an_older_token_in_every_order_of_waiting_processes() {
    let Some(home) = directory() else { return };
    for order in [[OLD, NEW], [NEW, OLD]] {
        let _ = fs::remove_file(home.path().join("data.fence"));
        let lock = File::create(home.path().join("data.lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let waiting = order.map(|token| {
            let child = start(&home, token, &token.to_string());
            // This only makes the intended order likely. The result does not depend on it.
            std::thread::sleep(Duration::from_millis(100));
            child
        });
        drop(lock);
        for (token, child) in order.into_iter().zip(waiting) {
            let accepted = accepted(child);
            assert!(accepted || token == OLD, "{order:?}");
        }
        assert_eq!(read(&home), NEW.to_string());
        assert!(!accepted(start(&home, OLD, "old")));
    }
}

#[test]
fn file_recipe_refuses_an_older_token_after_a_crash_between_token_and_data() {
    let Some(home) = directory() else { return };
    assert!(accepted(start(&home, OLD, "old")));
    // A crash of the newer holder after the first `mv`: the file with the token is new, and the data is old.
    fs::write(home.path().join("data.fence"), format!("{NEW}\n")).unwrap();
    assert!(!accepted(start(&home, OLD, "older")));
    assert!(accepted(start(&home, NEW, "new")));
    assert_eq!(read(&home), "new");
}

#[test]
fn file_recipe_fails_if_its_token_file_cannot_be_read() {
    let Some(home) = directory() else { return };
    for text in ["", "none\n"] {
        fs::write(home.path().join("data.fence"), text).unwrap();
        let status = start(&home, NEW, "new").wait().unwrap();
        assert_eq!(status.code(), Some(1), "{text:?}");
        assert_eq!(read(&home), "");
    }
}

#[test]
fn file_recipe_refuses_what_is_not_a_token() {
    let Some(home) = directory() else { return };
    for token in [
        "",
        "0",
        "-1",
        "seven",
        "9007199254740993",
        "99999999999999999999",
    ] {
        fs::write(home.path().join("new"), "new").unwrap();
        let call = "fenced_write data \"$1\" new";
        let status = shell(&home, call, &[token]).wait().unwrap();
        assert_eq!(status.code(), Some(1), "{token:?}");
        assert_eq!(read(&home), "");
    }
    assert!(accepted(start(&home, 1 << 53, "largest")));
}

#[test]
fn file_recipe_without_a_new_file_stores_the_token_before_the_holder_reads() {
    let Some(home) = directory() else { return };
    assert!(accepted(start(&home, OLD, "10 left")));
    let call = "fenced_write data \"$1\"";
    assert!(accepted(shell(&home, call, &[&NEW.to_string()])));
    assert_eq!(read(&home), "10 left");
    assert!(!accepted(start(&home, OLD, "9 left")));
    assert_eq!(read(&home), "10 left");
    assert!(accepted(start(&home, NEW, "9 left")));
}

#[test]
fn file_of_a_program_that_fails_is_not_stored() {
    let Some(home) = directory() else { return };
    let run = |program: &str| {
        let program = format!("printf '%s\\n' '#!/bin/sh' '{program}' >program; chmod +x program");
        let call = recipe("file-use");
        let call = format!("{program}; QUORATE_FENCING_TOKEN={NEW}; {call}");
        shell(&home, &call, &[]).wait().unwrap()
    };
    assert!(run("echo whole").success());
    assert_eq!(read(&home), "whole\n");
    assert!(!run("echo half; exit 1").success());
    assert_eq!(read(&home), "whole\n");
    // A pipe stores the half.
    let piped = "./program | fenced_write data \"$1\" /dev/stdin";
    assert!(accepted(shell(&home, piped, &[&NEW.to_string()])));
    assert_eq!(read(&home), "half\n");
}
