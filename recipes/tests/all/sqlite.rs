//! The recipes for SQLite, with its command-line client.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use quorate_recipes::recipe;
use quorate_testbed::Home;

use crate::proof::prove;
use crate::session::{Program, Session, body, is_one_row, literal};
use crate::{NEW, OLD, has_program};

/// The file of a database with the table `documents`. `None` if SQLite is not installed.
fn database() -> Option<Arc<Home>> {
    if !has_program("sqlite3", "sqlite3") {
        return None;
    }
    let home = Home::create(None).unwrap();
    let mut session = open(&home);
    session.succeed("CREATE TABLE documents (id TEXT PRIMARY KEY, body TEXT NOT NULL);");
    session.succeed(recipe("sqlite-column"));
    session.succeed(recipe("sqlite-fences"));
    Some(Arc::new(home))
}

fn file(home: &Home) -> PathBuf {
    home.path().join("data.db")
}

fn open(home: &Home) -> Session {
    let mut session = session(home);
    session.succeed(recipe("sqlite-connection"));
    session
}

/// A session without a timeout.
fn session(home: &Home) -> Session {
    let mut command = Command::new("sqlite3");
    command.arg("-batch").arg(file(home));
    Session::open(Program::Sqlite, command)
}

/// The output of the command-line client for a script, and whether it succeeded. The connection has no timeout.
fn script(home: &Home, options: &[&str], statements: &str) -> (String, bool) {
    let mut command = Command::new("sqlite3");
    command.arg("-batch").args(options).arg(file(home));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // The client can end before it has read everything.
    let _ = input.write_all(statements.as_bytes());
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    (text, output.status.success())
}

/// The statements of a recipe, with these values for the placeholders `?1`, `?2` and so on.
fn with(recipe: &str, values: &[&str]) -> String {
    // The client program evaluates the value as SQL. The quotation marks protect it from the program's own syntax.
    let set = |(index, value)| format!(".parameter set ?{} \"{value}\"\n", index + 1);
    let commands: Vec<String> = values.iter().enumerate().map(set).collect();
    commands.concat() + recipe
}

fn writing(recipe: &str, token: u64, value: &str) -> String {
    with(recipe, &["'a'", &token.to_string(), &literal(value)])
}

fn write(session: &mut Session, recipe: &str, token: u64, value: &str) -> bool {
    let answer = session.say(&format!(
        "{}SELECT changes();",
        writing(recipe, token, value)
    ));
    is_one_row(&answer)
}

#[tokio::test]
async fn sqlite_recipes_for_one_row_refuse_older_tokens() {
    let Some(home) = database() else { return };
    for (journal, recipe) in [
        ("DELETE", recipe("sqlite-upsert")),
        ("WAL", recipe("sqlite-update")),
    ] {
        let mut session = open(&home);
        session.succeed(&format!(
            "PRAGMA journal_mode = {journal}; UPDATE documents SET fence = 0;"
        ));
        let opened = Arc::clone(&home);
        prove(
            move || open(&opened),
            move |session, token, value| write(session, recipe, token, value),
            body,
        )
        .await;
        drop(session);
        let mut session = open(&home);
        assert!(!write(&mut session, recipe, NEW, "old"), "in a new process");
    }
}

#[test]
fn sqlite_process_that_is_killed_in_a_transaction_leaves_the_data_and_its_token() {
    let Some(home) = database() else { return };
    let mut session = open(&home);
    assert!(write(&mut session, recipe("sqlite-upsert"), OLD, "old"));
    let mut killed = open(&home);
    killed.succeed("BEGIN IMMEDIATE;");
    assert!(write(&mut killed, recipe("sqlite-update"), NEW, "new"));
    drop(killed);
    assert_eq!(body(&mut session), "old");
    assert!(write(&mut session, recipe("sqlite-update"), OLD, "again"));
}

/// Begins a transaction with the recipe.
fn beginning(token: u64) -> String {
    let begin = with(
        recipe("sqlite-transaction"),
        &["'docs'", &token.to_string()],
    );
    format!("{begin}SELECT changes();")
}

#[test]
fn sqlite_transaction_over_several_tables_is_refused_as_a_whole() {
    let Some(home) = database() else { return };
    for (held, late) in [(OLD, NEW), (NEW, OLD)] {
        let (mut first, mut second) = (open(&home), open(&home));
        first.succeed("DELETE FROM fences; DELETE FROM documents;");
        assert!(is_one_row(&first.say(&beginning(held))));
        first.succeed(&format!(
            "INSERT INTO documents (id, body) VALUES ('a', '{held}');"
        ));
        // Only one connection writes at a time, so this one waits.
        second.send(&beginning(late));
        first.succeed("COMMIT;");
        let accepted = is_one_row(&second.receive());
        assert_eq!(accepted, late == NEW);
        if accepted {
            second.succeed(&format!("UPDATE documents SET body = '{late}'; COMMIT;"));
        } else {
            second.succeed("ROLLBACK;");
        }
        assert_eq!(body(&mut first), NEW.to_string());
        first.succeed("DELETE FROM documents;");
        assert!(!is_one_row(&first.say(&beginning(OLD))), "without the row");
    }
}

#[test]
fn sqlite_client_that_goes_on_after_a_failed_begin_is_not_checked() {
    let Some(home) = database() else { return };
    let mut newer = open(&home);
    newer.succeed("INSERT INTO documents (id, body) VALUES ('a', 'none');");
    let begin = with(recipe("sqlite-transaction"), &["'docs'", &OLD.to_string()]);
    newer.succeed("BEGIN IMMEDIATE; UPDATE documents SET body = 'new';");
    // Without a timeout, the transaction fails at once. With `-bail`, no other statement is executed.
    let statements = format!("{begin}UPDATE documents SET body = 'old';\nCOMMIT;\n");
    let (text, succeeded) = script(&home, &["-bail"], &statements);
    assert_eq!(text.matches("database is locked").count(), 1, "{text}");
    assert!(!succeeded && !text.contains("no transaction"), "{text}");
    // Without `-bail`, the client goes on.
    let mut older = session(&home);
    let answer = older.say(&begin);
    assert!(answer.contains("database is locked"), "{answer}");
    newer.succeed("COMMIT;");
    older.succeed("UPDATE documents SET body = 'old';");
    assert_eq!(body(&mut newer), "old");
}

#[test]
fn sqlite_tables_refuse_what_is_not_a_token() {
    let Some(home) = database() else { return };
    let mut session = open(&home);
    for (name, token) in [
        ("NULL", "7"),
        ("'docs'", "NULL"),
        ("'docs'", "0"),
        ("'docs'", "'seven'"),
        ("'docs'", "7.5"),
        ("'docs'", "9007199254740993"),
    ] {
        let answer = session.say(&with(recipe("sqlite-transaction"), &[name, token]));
        assert!(
            answer.contains("constraint failed"),
            "{name} {token}: {answer}"
        );
        session.succeed("ROLLBACK;");
    }
    let bad = writing(recipe("sqlite-upsert"), (1 << 53) + 1, "bad");
    let answer = session.say(&bad);
    assert!(answer.contains("CHECK constraint failed"), "{answer}");
    assert!(write(
        &mut session,
        recipe("sqlite-upsert"),
        1 << 53,
        "good"
    ));
}

#[test]
fn sqlite_triggers_refuse_a_connection_without_a_token_also_with_or_ignore() {
    let Some(home) = database() else { return };
    let statement = "INSERT OR IGNORE INTO documents (id, body) VALUES ('a', 'bad');";
    for (name, token) in [
        ("NULL", "7"),
        ("'docs'", "NULL"),
        ("'docs'", "'seven'"),
        ("'docs'", "0"),
        ("'docs'", "9007199254740993"),
    ] {
        let mut session = open(&home);
        session.succeed(&with(recipe("sqlite-trigger"), &[name, token]));
        let answer = session.say(statement);
        assert!(answer.contains("fenced: "), "{name} {token}: {answer}");
    }
    let holder = |token: u64| {
        let mut session = open(&home);
        let token = token.to_string();
        session.succeed(&with(recipe("sqlite-trigger"), &["'docs'", &token]));
        session
    };
    let mut empty = holder(NEW);
    empty.succeed("DELETE FROM writer;");
    let answer = empty.say(statement);
    assert!(answer.contains("fenced: "), "no row in writer: {answer}");
    // `OR IGNORE` does not keep the token of a newer holder from being stored.
    holder(OLD).succeed(statement);
    holder(NEW).succeed(statement);
    let answer = holder(OLD).say(statement);
    assert!(answer.contains("fenced: "), "{answer}");
}

#[tokio::test]
async fn sqlite_triggers_refuse_unchanged_statements_with_an_older_token() {
    let Some(home) = database() else { return };
    let as_holder = |home: &Home, token: u64| {
        let mut session = open(home);
        session.succeed(&with(
            recipe("sqlite-trigger"),
            &["'docs'", &token.to_string()],
        ));
        session
    };
    let run = |session: &mut Session, statement: &str| {
        let answer = session.say(&format!("{statement};"));
        let refused = answer.contains("fenced: a newer holder has written");
        assert!(refused || answer.is_empty(), "{answer}");
        !refused
    };
    open(&home).succeed("INSERT INTO documents (id, body) VALUES ('a', 'none');");
    let opened = Arc::clone(&home);
    prove(
        move || Arc::clone(&opened),
        move |home, token, value| {
            let statement = format!("UPDATE documents SET body = {}", literal(value));
            run(&mut as_holder(home, token), &statement)
        },
        |home| body(&mut open(home)),
    )
    .await;
    open(&home).succeed("DELETE FROM fences;");
    let (mut old, mut new) = (as_holder(&home, OLD), as_holder(&home, NEW));
    for statement in [
        "UPDATE documents SET body = 'old'",
        "DELETE FROM documents",
        "INSERT INTO documents (id, body) VALUES ('a', 'old')",
    ] {
        assert!(run(&mut old, statement), "{statement}");
    }
    assert!(run(&mut new, "UPDATE documents SET body = 'new'"));
    for statement in [
        "UPDATE documents SET body = 'old'",
        "DELETE FROM documents",
        "INSERT INTO documents (id, body) VALUES ('b', 'old')",
        "INSERT OR REPLACE INTO documents (id, body) VALUES ('a', 'old')",
    ] {
        assert!(!run(&mut old, statement), "{statement}");
    }
    assert!(run(&mut new, "UPDATE documents SET body = 'newer'"));
    assert_eq!(body(&mut new), "newer");
}

#[test]
fn sqlite_column_without_a_type_accepts_every_token_that_is_bound_as_text() {
    let Some(home) = database() else { return };
    let mut session = open(&home);
    session.succeed("CREATE TABLE untyped (id, fence); INSERT INTO untyped VALUES ('a', 100);");
    let smaller = "FROM untyped WHERE fence <= '9';";
    assert_eq!(session.say(&format!("SELECT count(*) {smaller}")), "1\n");
    session.succeed("INSERT INTO documents (id, body, fence) VALUES ('a', '', 100);");
    let typed = "SELECT count(*) FROM documents WHERE fence <= '9';";
    assert_eq!(session.say(typed), "0\n");
}
