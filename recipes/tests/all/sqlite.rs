//! The recipes for SQLite, with its command-line client.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use quorate_recipes::recipe;
use quorate_testbed::ServerDir;

use crate::proof::prove;
use crate::session::{Program, Session, body, is_one_row, literal};
use crate::{NEW_TOKEN, OLD_TOKEN, has_program};

/// The file of a database with the table `documents`. `None` if SQLite is not installed.
fn create_database() -> Option<Arc<ServerDir>> {
    if !has_program("sqlite3", "sqlite3") {
        return None;
    }
    let directory = ServerDir::create(None).unwrap();
    let mut session = open_session(&directory);
    session.succeed("CREATE TABLE documents (id TEXT PRIMARY KEY, body TEXT NOT NULL);");
    session.succeed(recipe("sqlite-column"));
    session.succeed(recipe("sqlite-fences"));
    Some(Arc::new(directory))
}

fn database_file(directory: &ServerDir) -> PathBuf {
    directory.path().join("data.db")
}

fn open_session(directory: &ServerDir) -> Session {
    let mut session = open_session_without_timeout(directory);
    session.succeed(recipe("sqlite-connection"));
    session
}

/// A session without a timeout.
fn open_session_without_timeout(directory: &ServerDir) -> Session {
    let mut command = Command::new("sqlite3");
    command.arg("-batch").arg(database_file(directory));
    Session::open(Program::Sqlite, command)
}

/// The output of the command-line client for a script, and whether it succeeded. The connection has no timeout.
fn run_script(directory: &ServerDir, options: &[&str], statements: &str) -> (String, bool) {
    let mut command = Command::new("sqlite3");
    command
        .arg("-batch")
        .args(options)
        .arg(database_file(directory));
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
    let bytes = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(bytes).unwrap();
    (text, output.status.success())
}

/// The statements of a recipe, with these values for the placeholders `?1`, `?2` and so on.
fn with_values(recipe: &str, values: &[&str]) -> String {
    // The client program evaluates the value as SQL. The quotation marks protect it from the program's own syntax.
    let set_command = |(index, value)| format!(".parameter set ?{} \"{value}\"\n", index + 1);
    let commands: Vec<String> = values.iter().enumerate().map(set_command).collect();
    commands.concat() + recipe
}

fn write_statement(recipe: &str, token: u64, value: &str) -> String {
    with_values(recipe, &["'a'", &token.to_string(), &literal(value)])
}

fn write(session: &mut Session, recipe: &str, token: u64, value: &str) -> bool {
    let answer = session.execute(&format!(
        "{}SELECT changes();",
        write_statement(recipe, token, value)
    ));
    is_one_row(&answer)
}

#[tokio::test]
async fn sqlite_recipes_for_one_row_refuse_older_tokens() {
    let Some(directory) = create_database() else {
        return;
    };
    for (journal, recipe) in [
        ("DELETE", recipe("sqlite-upsert")),
        ("WAL", recipe("sqlite-update")),
    ] {
        let mut session = open_session(&directory);
        session.succeed(&format!(
            "PRAGMA journal_mode = {journal}; UPDATE documents SET fence = 0;"
        ));
        let shared_directory = Arc::clone(&directory);
        prove(
            move || open_session(&shared_directory),
            move |session, token, value| write(session, recipe, token, value),
            body,
        )
        .await;
        drop(session);
        let mut session = open_session(&directory);
        assert!(
            !write(&mut session, recipe, NEW_TOKEN, "old"),
            "in a new process"
        );
    }
}

#[test]
fn sqlite_process_that_is_killed_in_a_transaction_leaves_the_data_and_its_token() {
    let Some(directory) = create_database() else {
        return;
    };
    let mut session = open_session(&directory);
    assert!(write(
        &mut session,
        recipe("sqlite-upsert"),
        OLD_TOKEN,
        "old"
    ));
    let mut killed_session = open_session(&directory);
    killed_session.succeed("BEGIN IMMEDIATE;");
    assert!(write(
        &mut killed_session,
        recipe("sqlite-update"),
        NEW_TOKEN,
        "new"
    ));
    drop(killed_session);
    assert_eq!(body(&mut session), "old");
    assert!(write(
        &mut session,
        recipe("sqlite-update"),
        OLD_TOKEN,
        "again"
    ));
}

/// Begins a transaction with the recipe.
fn begin_statement(token: u64) -> String {
    let begin = with_values(
        recipe("sqlite-transaction"),
        &["'docs'", &token.to_string()],
    );
    format!("{begin}SELECT changes();")
}

#[test]
fn sqlite_transaction_over_several_tables_is_refused_as_a_whole() {
    let Some(directory) = create_database() else {
        return;
    };
    for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
        let (mut first, mut second) = (open_session(&directory), open_session(&directory));
        first.succeed("DELETE FROM fences; DELETE FROM documents;");
        assert!(is_one_row(&first.execute(&begin_statement(first_token))));
        first.succeed(&format!(
            "INSERT INTO documents (id, body) VALUES ('a', '{first_token}');"
        ));
        // Only one connection writes at a time, so this one waits.
        second.send(&begin_statement(second_token));
        first.succeed("COMMIT;");
        let is_accepted = is_one_row(&second.receive());
        assert_eq!(is_accepted, second_token == NEW_TOKEN);
        if is_accepted {
            second.succeed(&format!(
                "UPDATE documents SET body = '{second_token}'; COMMIT;"
            ));
        } else {
            second.succeed("ROLLBACK;");
        }
        assert_eq!(body(&mut first), NEW_TOKEN.to_string());
        first.succeed("DELETE FROM documents;");
        assert!(
            !is_one_row(&first.execute(&begin_statement(OLD_TOKEN))),
            "without the row"
        );
    }
}

#[test]
fn sqlite_client_that_goes_on_after_a_failed_begin_is_not_checked() {
    let Some(directory) = create_database() else {
        return;
    };
    let mut newer = open_session(&directory);
    newer.succeed("INSERT INTO documents (id, body) VALUES ('a', 'none');");
    let begin = with_values(
        recipe("sqlite-transaction"),
        &["'docs'", &OLD_TOKEN.to_string()],
    );
    newer.succeed("BEGIN IMMEDIATE; UPDATE documents SET body = 'new';");
    // Without a timeout, the transaction fails at once. With `-bail`, no other statement is executed.
    let statements = format!("{begin}UPDATE documents SET body = 'old';\nCOMMIT;\n");
    let (text, succeeded) = run_script(&directory, &["-bail"], &statements);
    assert_eq!(text.matches("database is locked").count(), 1, "{text}");
    assert!(!succeeded && !text.contains("no transaction"), "{text}");
    // Without `-bail`, the client goes on.
    let mut older = open_session_without_timeout(&directory);
    let answer = older.execute(&begin);
    assert!(answer.contains("database is locked"), "{answer}");
    newer.succeed("COMMIT;");
    older.succeed("UPDATE documents SET body = 'old';");
    assert_eq!(body(&mut newer), "old");
}

#[test]
fn sqlite_tables_refuse_what_is_not_a_token() {
    let Some(directory) = create_database() else {
        return;
    };
    let mut session = open_session(&directory);
    for (name, token) in [
        ("NULL", "7"),
        ("'docs'", "NULL"),
        ("'docs'", "0"),
        ("'docs'", "'seven'"),
        ("'docs'", "7.5"),
        ("'docs'", "9007199254740993"),
    ] {
        let answer = session.execute(&with_values(recipe("sqlite-transaction"), &[name, token]));
        assert!(
            answer.contains("constraint failed"),
            "{name} {token}: {answer}"
        );
        session.succeed("ROLLBACK;");
    }
    let bad_write = write_statement(recipe("sqlite-upsert"), (1 << 53) + 1, "bad");
    let answer = session.execute(&bad_write);
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
    let Some(directory) = create_database() else {
        return;
    };
    let statement = "INSERT OR IGNORE INTO documents (id, body) VALUES ('a', 'bad');";
    for (name, token) in [
        ("NULL", "7"),
        ("'docs'", "NULL"),
        ("'docs'", "'seven'"),
        ("'docs'", "0"),
        ("'docs'", "9007199254740993"),
    ] {
        let mut session = open_session(&directory);
        session.succeed(&with_values(recipe("sqlite-trigger"), &[name, token]));
        let answer = session.execute(statement);
        assert!(answer.contains("fenced: "), "{name} {token}: {answer}");
    }
    let session_of_holder = |token: u64| {
        let mut session = open_session(&directory);
        let token_text = token.to_string();
        session.succeed(&with_values(
            recipe("sqlite-trigger"),
            &["'docs'", &token_text],
        ));
        session
    };
    let mut session_without_token = session_of_holder(NEW_TOKEN);
    session_without_token.succeed("DELETE FROM writer;");
    let answer = session_without_token.execute(statement);
    assert!(answer.contains("fenced: "), "no row in writer: {answer}");
    // `OR IGNORE` does not keep the token of a newer holder from being stored.
    session_of_holder(OLD_TOKEN).succeed(statement);
    session_of_holder(NEW_TOKEN).succeed(statement);
    let answer = session_of_holder(OLD_TOKEN).execute(statement);
    assert!(answer.contains("fenced: "), "{answer}");
}

#[tokio::test]
async fn sqlite_triggers_refuse_unchanged_statements_with_an_older_token() {
    let Some(directory) = create_database() else {
        return;
    };
    let session_of_holder = |directory: &ServerDir, token: u64| {
        let mut session = open_session(directory);
        session.succeed(&with_values(
            recipe("sqlite-trigger"),
            &["'docs'", &token.to_string()],
        ));
        session
    };
    let is_run_accepted = |session: &mut Session, statement: &str| {
        let answer = session.execute(&format!("{statement};"));
        let is_refused = answer.contains("fenced: a newer holder has written");
        assert!(is_refused || answer.is_empty(), "{answer}");
        !is_refused
    };
    open_session(&directory).succeed("INSERT INTO documents (id, body) VALUES ('a', 'none');");
    let shared_directory = Arc::clone(&directory);
    prove(
        move || Arc::clone(&shared_directory),
        move |directory, token, value| {
            let statement = format!("UPDATE documents SET body = {}", literal(value));
            is_run_accepted(&mut session_of_holder(directory, token), &statement)
        },
        |directory| body(&mut open_session(directory)),
    )
    .await;
    open_session(&directory).succeed("DELETE FROM fences;");
    let (mut old_session, mut new_session) = (
        session_of_holder(&directory, OLD_TOKEN),
        session_of_holder(&directory, NEW_TOKEN),
    );
    for statement in [
        "UPDATE documents SET body = 'old'",
        "DELETE FROM documents",
        "INSERT INTO documents (id, body) VALUES ('a', 'old')",
    ] {
        assert!(is_run_accepted(&mut old_session, statement), "{statement}");
    }
    assert!(is_run_accepted(
        &mut new_session,
        "UPDATE documents SET body = 'new'"
    ));
    for statement in [
        "UPDATE documents SET body = 'old'",
        "DELETE FROM documents",
        "INSERT INTO documents (id, body) VALUES ('b', 'old')",
        "INSERT OR REPLACE INTO documents (id, body) VALUES ('a', 'old')",
    ] {
        assert!(!is_run_accepted(&mut old_session, statement), "{statement}");
    }
    assert!(is_run_accepted(
        &mut new_session,
        "UPDATE documents SET body = 'newer'"
    ));
    assert_eq!(body(&mut new_session), "newer");
}

#[test]
fn sqlite_column_without_a_type_accepts_every_token_that_is_bound_as_text() {
    let Some(directory) = create_database() else {
        return;
    };
    let mut session = open_session(&directory);
    session.succeed("CREATE TABLE untyped (id, fence); INSERT INTO untyped VALUES ('a', 100);");
    let untyped_condition = "FROM untyped WHERE fence <= '9';";
    assert_eq!(
        session.execute(&format!("SELECT count(*) {untyped_condition}")),
        "1\n"
    );
    session.succeed("INSERT INTO documents (id, body, fence) VALUES ('a', '', 100);");
    let typed_query = "SELECT count(*) FROM documents WHERE fence <= '9';";
    assert_eq!(session.execute(typed_query), "0\n");
}
