//! The recipe for files, with a real file system in memory.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_recipes::recipe;
use quorate_testbed::ServerDir;
use rustix::fs::{FlockOperation, flock};

use crate::proof::prove;
use crate::{NEW_TOKEN, OLD_TOKEN, has_program};

/// An empty directory. `None` if a program is missing that the recipe uses.
fn create_directory() -> Option<Arc<ServerDir>> {
    if !has_program("flock", "util-linux") {
        return None;
    }
    Some(Arc::new(ServerDir::create(None).unwrap()))
}

/// Starts shell code after the recipe.
fn spawn_shell(directory: &ServerDir, call: &str, arguments: &[&str]) -> Child {
    let mut child = Command::new("sh");
    let script = format!("{}{call}", recipe("file-write"));
    child.args(["-c", &script, "sh"]).args(arguments);
    child.current_dir(directory.path()).spawn().unwrap()
}

/// The number of files that the tests have written as input.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Starts the recipe, which replaces the file `data` with `value`.
fn spawn_recipe(directory: &ServerDir, token: u64, value: &str) -> Child {
    // The name of a file that no other call of the test uses.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new_file = directory.path().join(format!("new.{count}"));
    fs::write(&new_file, value).unwrap();
    let shell_call = "fenced_write data \"$1\" \"$2\"; code=$?; rm \"$2\"; exit $code";
    let new_path = new_file.display().to_string();
    spawn_shell(directory, shell_call, &[&token.to_string(), &new_path])
}

fn is_accepted(mut child: Child) -> bool {
    match child.wait().unwrap().code() {
        Some(0) => true,
        Some(75) => false,
        other => panic!("the recipe ended with {other:?}"),
    }
}

fn read_data(directory: &ServerDir) -> String {
    fs::read_to_string(directory.path().join("data")).unwrap_or_default()
}

/// The names of all files in the directory.
fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn file_recipe_refuses_older_tokens() {
    let Some(directory) = create_directory() else {
        return;
    };
    let shared_directory = Arc::clone(&directory);
    prove(
        move || Arc::clone(&shared_directory),
        |directory, token, value| is_accepted(spawn_recipe(directory, token, value)),
        |directory| read_data(directory),
    )
    .await;
    // `lock` belongs to the directory itself. No temporary file is left.
    let remaining_files = ["data", "data.fence", "data.lock", "lock"];
    assert_eq!(file_names(directory.path()), remaining_files);
}

#[test]
fn file_recipe_refuses_an_older_token_in_every_order_of_waiting_processes() {
    let Some(directory) = create_directory() else {
        return;
    };
    for order in [[OLD_TOKEN, NEW_TOKEN], [NEW_TOKEN, OLD_TOKEN]] {
        let _ = fs::remove_file(directory.path().join("data.fence"));
        let lock_file = File::create(directory.path().join("data.lock")).unwrap();
        flock(&lock_file, FlockOperation::LockExclusive).unwrap();
        let children = order.map(|token| {
            let child = spawn_recipe(&directory, token, &token.to_string());
            // This only makes the intended order likely. The result does not depend on it.
            std::thread::sleep(Duration::from_millis(100));
            child
        });
        drop(lock_file);
        for (token, child) in order.into_iter().zip(children) {
            let is_accepted = is_accepted(child);
            assert!(is_accepted || token == OLD_TOKEN, "{order:?}");
        }
        assert_eq!(read_data(&directory), NEW_TOKEN.to_string());
        assert!(!is_accepted(spawn_recipe(&directory, OLD_TOKEN, "old")));
    }
}

#[test]
fn file_recipe_refuses_an_older_token_after_a_crash_between_token_and_data() {
    let Some(directory) = create_directory() else {
        return;
    };
    assert!(is_accepted(spawn_recipe(&directory, OLD_TOKEN, "old")));
    // A crash of the newer holder after the first `mv`: the file with the token is new, and the data is old.
    fs::write(
        directory.path().join("data.fence"),
        format!("{NEW_TOKEN}\n"),
    )
    .unwrap();
    assert!(!is_accepted(spawn_recipe(&directory, OLD_TOKEN, "older")));
    assert!(is_accepted(spawn_recipe(&directory, NEW_TOKEN, "new")));
    assert_eq!(read_data(&directory), "new");
}

#[test]
fn file_recipe_fails_if_its_token_file_cannot_be_read() {
    let Some(directory) = create_directory() else {
        return;
    };
    for text in ["", "none\n"] {
        fs::write(directory.path().join("data.fence"), text).unwrap();
        let status = spawn_recipe(&directory, NEW_TOKEN, "new").wait().unwrap();
        assert_eq!(status.code(), Some(1), "{text:?}");
        assert_eq!(read_data(&directory), "");
    }
}

#[test]
fn file_recipe_refuses_what_is_not_a_token() {
    let Some(directory) = create_directory() else {
        return;
    };
    for token in [
        "",
        "0",
        "-1",
        "seven",
        "9007199254740993",
        "99999999999999999999",
    ] {
        fs::write(directory.path().join("new"), "new").unwrap();
        let shell_call = "fenced_write data \"$1\" new";
        let status = spawn_shell(&directory, shell_call, &[token])
            .wait()
            .unwrap();
        assert_eq!(status.code(), Some(1), "{token:?}");
        assert_eq!(read_data(&directory), "");
    }
    assert!(is_accepted(spawn_recipe(&directory, 1 << 53, "largest")));
}

#[test]
fn file_recipe_without_a_new_file_stores_the_token_before_the_holder_reads() {
    let Some(directory) = create_directory() else {
        return;
    };
    assert!(is_accepted(spawn_recipe(&directory, OLD_TOKEN, "10 left")));
    let shell_call = "fenced_write data \"$1\"";
    assert!(is_accepted(spawn_shell(
        &directory,
        shell_call,
        &[&NEW_TOKEN.to_string()]
    )));
    assert_eq!(read_data(&directory), "10 left");
    assert!(!is_accepted(spawn_recipe(&directory, OLD_TOKEN, "9 left")));
    assert_eq!(read_data(&directory), "10 left");
    assert!(is_accepted(spawn_recipe(&directory, NEW_TOKEN, "9 left")));
}

#[test]
fn file_of_a_program_that_fails_is_not_stored() {
    let Some(directory) = create_directory() else {
        return;
    };
    let store_output_of = |program: &str| {
        let write_program =
            format!("printf '%s\\n' '#!/bin/sh' '{program}' >program; chmod +x program");
        let use_file = recipe("file-use");
        let shell_call = format!("{write_program}; QUORATE_FENCING_TOKEN={NEW_TOKEN}; {use_file}");
        spawn_shell(&directory, &shell_call, &[]).wait().unwrap()
    };
    assert!(store_output_of("echo whole").success());
    assert_eq!(read_data(&directory), "whole\n");
    assert!(!store_output_of("echo half; exit 1").success());
    assert_eq!(read_data(&directory), "whole\n");
    // A pipe stores the half.
    let pipe_call = "./program | fenced_write data \"$1\" /dev/stdin";
    assert!(is_accepted(spawn_shell(
        &directory,
        pipe_call,
        &[&NEW_TOKEN.to_string()]
    )));
    assert_eq!(read_data(&directory), "half\n");
}
