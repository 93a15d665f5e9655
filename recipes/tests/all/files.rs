//! The recipe for files, with a real file system in memory.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
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

/// Starts the recipe, which replaces the file `data` with `value`.
fn start(home: &Home, token: u64, value: &str) -> Child {
    let script = format!("{}fenced_write data \"$1\"", recipe("file-write"));
    let mut child = Command::new("sh")
        .args(["-c", &script, "sh", &token.to_string()])
        .current_dir(home.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(value.as_bytes()).unwrap();
    child
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
    fs::write(home.path().join("data.fence"), "").unwrap();
    let status = start(&home, NEW, "new").wait().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(read(&home), "");
}

#[test]
fn file_moved_over_another_without_the_recipe_is_overwritten_by_an_older_holder() {
    let Some(home) = directory() else { return };
    let path = |name: &str| home.path().join(name);
    fs::write(path("old"), "old").unwrap();
    fs::write(path("new"), "new").unwrap();
    fs::rename(path("new"), path("data")).unwrap();
    fs::rename(path("old"), path("data")).unwrap();
    assert_eq!(read(&home), "old");
}
