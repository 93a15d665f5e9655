//! Tests of environment variables: an empty variable counts as unset, and an unknown `QUORATE_*` variable causes a
//! warning.

use crate::common::{self, Done, bare, done, masters, quorate, run};

/// The commands that connect to masters, with their required arguments.
const COMMANDS: [&[&str]; 11] = [
    &["run", "r", "true"],
    &["hold", "r"],
    &["once", "--per", "1h", "r", "true"],
    &["lead", "r", "true"],
    &["watch", "r"],
    &["status", "r"],
    &["check", "r", "7"],
    &["doctor"],
    &["break", "r", "--yes"],
    &["bench"],
    &["quota", "left", "r"],
];

#[test]
fn every_environment_variable_of_every_command_may_be_empty() {
    for words in COMMANDS {
        let page = if words[0] == "quota" {
            "quota-left"
        } else {
            words[0]
        };
        let names = common::variables_of(page);
        assert!(names.len() > 12, "{words:?}: {names:?}");
        let mut command = bare();
        for name in &names {
            command.env(name, "");
        }
        let ran = done(command.args(words));
        assert_eq!(ran.code, Some(64), "{words:?}: {ran:?}");
        assert!(ran.err.contains("no masters"), "{words:?}: {ran:?}");
    }
}

fn with(name: &str, words: &[&str]) -> Done {
    let masters = masters(1);
    done(quorate(&masters).env(name, "5s").args(words))
}

#[test]
fn misspelt_environment_variable_is_reported_with_a_suggestion() {
    let line = "quorate: warning: quorate has no variable QUORATE_TLL: did you mean QUORATE_TTL?\n";
    for words in [&["run", "r", "true"][..], &["status"], &["status", "r"]] {
        let said = with("QUORATE_TLL", words);
        assert_eq!((said.code, &*said.err), (Some(0), line), "{said:?}");
        let empty = done(quorate(&masters(1)).env("QUORATE_TLL", "").args(words));
        assert_eq!((empty.code, &*empty.err), (Some(0), ""), "{empty:?}");
    }
    let far = with("QUORATE_SOMETHING", &["status"]);
    assert!(
        far.err.contains("QUORATE_SOMETHING") && !far.err.contains("did you mean"),
        "{far:?}"
    );
    let quiet = with("QUORATE_TLL", &["status", "--quiet"]);
    assert_eq!((quiet.code, &*quiet.err), (Some(0), ""), "{quiet:?}");
}

#[test]
fn nested_quorate_does_not_warn_about_variables_set_by_the_outer_quorate() {
    let masters = masters(3);
    let inner = env!("CARGO_BIN_EXE_quorate");
    for options in [&["--owner", "me"][..], &["--permits", "2"]] {
        let outer = done(&mut run(
            &masters,
            &[options, &["r"]].concat(),
            &[inner, "run", "another", "--", "true"],
        ));
        assert_eq!((outer.code, &*outer.err), (Some(0), ""), "{outer:?}");
    }
}
