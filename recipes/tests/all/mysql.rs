//! The recipes for MySQL and MariaDB, on a real MariaDB server.

use std::fs;
use std::process::{Command, Output};
use std::sync::Arc;

use mysql_async::prelude::Queryable;
use quorate_recipes::recipe;
use quorate_testbed::{MariaDb, MariaDbOptions};

use crate::proof::{prove, refuses_the_older_run};
use crate::session::{Program, Session, body, is_one_row, literal, until_one_waits};
use crate::{NEW, OLD, not_run};

/// A server with the table `documents` and its columns in the database `test`. `None` if MariaDB is not installed.
fn server() -> Option<Arc<MariaDb>> {
    if let Err(error) = MariaDb::available() {
        not_run(&error.to_string());
        return None;
    }
    let server = MariaDb::start(MariaDbOptions::new()).unwrap_or_else(|error| panic!("{error}"));
    let table = "id VARCHAR(100) PRIMARY KEY, body TEXT NOT NULL";
    run(&server, "CREATE DATABASE test");
    run(&server, &format!("CREATE TABLE test.documents ({table})"));
    for recipe in [recipe("mysql-column"), recipe("mysql-fences")] {
        run(&server, &format!("USE test; {recipe}"));
    }
    Some(Arc::new(server))
}

fn run(server: &MariaDb, statements: &str) -> String {
    let answer = server.sql(statements);
    answer.unwrap_or_else(|error| panic!("{statements}: {error}"))
}

/// A session in the database `test` that continues after an error.
fn open(server: &MariaDb) -> Session {
    let mut command = server.client();
    command.args(["--force", "--unbuffered", "--database=test"]);
    Session::open(Program::MariaDb, command)
}

/// The statements of a recipe.
fn statements(recipe: &'static str) -> Vec<&'static str> {
    let parts = recipe.split(";\n").map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Executes a statement with these values for its placeholders. The placeholders stay placeholders: the server
/// prepares the statement as it is. Returns its rows and, in the last line, the number of rows that it changed.
fn executing(statement: &str, values: &[&str]) -> String {
    let statement = literal(statement.trim_end_matches(['\n', ';']));
    let names: Vec<String> = (0..values.len())
        .map(|index| format!("@v{index}"))
        .collect();
    let sets: Vec<String> = names
        .iter()
        .zip(values)
        .map(|(name, value)| format!("SET {name} = {value};"))
        .collect();
    let (sets, names) = (sets.concat(), names.join(", "));
    format!("{sets} PREPARE p FROM {statement}; EXECUTE p USING {names}; SELECT ROW_COUNT();")
        .replace('\n', " ")
}

fn updating(recipe: &str, token: u64, value: &str) -> String {
    let (token, value) = (token.to_string(), literal(value));
    executing(recipe, &[&value, &token, "'a'", &token])
}

fn update(session: &mut Session, token: u64, value: &str) -> bool {
    is_one_row(&session.say(&updating(recipe("mysql-update"), token, value)))
}

/// Creates an empty row with the recipe.
fn insert(session: &mut Session) {
    session.succeed(&executing(recipe("mysql-insert"), &["'a'"]));
}

fn waiting(server: &MariaDb) {
    let count = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    until_one_waits(|| run(server, count));
}

#[tokio::test]
async fn mysql_recipes_for_one_row_refuse_older_tokens() {
    let Some(server) = server() else { return };
    let opened = Arc::clone(&server);
    let write = |session: &mut Session, token: u64, value: &str| {
        session.succeed("START TRANSACTION;");
        insert(session);
        let accepted = update(session, token, value);
        session.succeed("COMMIT;");
        accepted
    };
    prove(move || open(&opened), write, body).await;
    server.restart().unwrap();
    let mut session = open(&server);
    assert!(!write(&mut session, NEW, "old"), "after a restart");
}

#[test]
fn mysql_update_that_waits_for_another_holder_sees_the_newer_token() {
    let Some(server) = server() else { return };
    insert(&mut open(&server));
    let strict = run(&server, "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'");
    let snapshots: &[&str] = if strict.is_empty() {
        &[""]
    } else {
        &[
            "SET innodb_snapshot_isolation = 0;",
            "SET innodb_snapshot_isolation = 1;",
        ]
    };
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        for snapshot in snapshots {
            for (held, late) in [(OLD, NEW), (NEW, OLD)] {
                let (mut first, mut second) = (open(&server), open(&server));
                run(
                    &server,
                    "UPDATE test.documents SET body = 'none', fence = 0",
                );
                first.succeed("START TRANSACTION;");
                assert!(update(&mut first, held, &held.to_string()));
                let begin = format!(
                    "SET TRANSACTION ISOLATION LEVEL {level}; START TRANSACTION; SELECT fence FROM documents;"
                );
                second.succeed(snapshot);
                assert_eq!(second.succeed(&begin), "0\n");
                let again = updating(recipe("mysql-update"), late, &late.to_string());
                second.send(&again);
                waiting(&server);
                first.succeed("COMMIT;");
                let mut answer = second.receive();
                if level == "REPEATABLE READ" && snapshot.ends_with("= 1;") {
                    assert!(answer.contains("ERROR 1020"), "{answer}");
                    second.succeed("ROLLBACK; START TRANSACTION;");
                    answer = second.say(&again);
                }
                assert_eq!(is_one_row(&answer), late == NEW, "{level} {snapshot}");
                second.succeed("COMMIT;");
                assert_eq!(body(&mut first), NEW.to_string(), "{level} {snapshot}");
            }
        }
    }
}

#[tokio::test]
async fn mysql_repeated_write_looks_refused_without_the_counter() {
    let Some(server) = server() else { return };
    insert(&mut open(&server));
    let wrong = recipe("mysql-wrong");
    for found_rows in [false, true] {
        run(&server, "UPDATE test.documents SET fence = 0");
        let options = mysql_async::OptsBuilder::default()
            .socket(Some(server.socket().display().to_string()))
            .user(Some("root"))
            .db_name(Some("test"))
            .client_found_rows(found_rows);
        let mut client = mysql_async::Conn::new(options).await.unwrap();
        let mut rows = Vec::new();
        for statement in [wrong, wrong, recipe("mysql-update"), recipe("mysql-update")] {
            let statement = statement.trim_end().trim_end_matches(';');
            let values = ("value", NEW, "a", NEW);
            client.exec_drop(statement, values).await.unwrap();
            rows.push(client.affected_rows());
        }
        let repeated = u64::from(found_rows);
        assert_eq!(rows, [1, repeated, 1, 1], "CLIENT_FOUND_ROWS: {found_rows}");
        let (statement, values) = (recipe("mysql-update"), ("value", OLD, "a", OLD));
        client
            .exec_drop(statement.trim_end().trim_end_matches(';'), values)
            .await
            .unwrap();
        assert_eq!(client.affected_rows(), 0, "CLIENT_FOUND_ROWS: {found_rows}");
        client.disconnect().await.unwrap();
    }
}

#[test]
fn mysql_tables_refuse_what_is_not_a_token() {
    let Some(server) = server() else { return };
    let mut session = open(&server);
    insert(&mut session);
    let too_large = (1_u64 << 53) + 1;
    let answer = session.say(&updating(recipe("mysql-update"), too_large, "bad"));
    assert!(answer.contains("CONSTRAINT"), "{answer}");
    session.succeed(&beginning());
    let store = executing(recipe("mysql-store"), &[&too_large.to_string(), "'docs'"]);
    let answer = session.say(&store);
    assert!(answer.contains("CONSTRAINT"), "{answer}");
    session.succeed("ROLLBACK;");
    assert!(update(&mut session, 1 << 53, "good"));
}

/// The page says so: the statements after an implicit commit run without the check.
#[test]
fn mysql_transaction_is_ended_by_a_statement_that_commits_implicitly() {
    let Some(server) = server() else { return };
    let (mut older, mut newer) = (open(&server), open(&server));
    insert(&mut older);
    let store = |token: u64| executing(recipe("mysql-store"), &[&token.to_string(), "'docs'"]);
    older.succeed(&beginning());
    older.succeed(&store(OLD));
    older.succeed("CREATE TABLE another (id INT);");
    // The newer holder does not wait.
    assert_eq!(selected(&newer.say(&beginning())), OLD);
    newer.succeed(&store(NEW));
    newer.succeed("UPDATE documents SET body = 'new'; COMMIT;");
    older.succeed("UPDATE documents SET body = 'old'; COMMIT;");
    assert_eq!(body(&mut newer), "old");
}

/// Begins a transaction with the recipe. Returns the token that it selects.
fn beginning() -> String {
    let statements = statements(recipe("mysql-transaction"));
    let [start, insert, select] = statements[..] else {
        panic!("{statements:?}")
    };
    let insert = executing(insert, &["'docs'"]);
    format!("{start}; {insert} {}", executing(select, &["'docs'"]))
}

/// The token in the answer to [`beginning`]: the number of inserted rows, the token, and the number of selected rows.
fn selected(answer: &str) -> u64 {
    let token = answer.lines().nth(1).and_then(|line| line.parse().ok());
    token.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn mysql_transaction_over_several_tables_is_refused_as_a_whole() {
    let Some(server) = server() else { return };
    let (mut first, mut second) = (open(&server), open(&server));
    let begin = beginning();
    let store = |token: u64| executing(recipe("mysql-store"), &[&token.to_string(), "'docs'"]);
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        for session in [&mut first, &mut second] {
            session.succeed(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level};"));
        }
        for (held, late) in [(OLD, NEW), (NEW, OLD)] {
            run(
                &server,
                "DELETE FROM test.fences; DELETE FROM test.documents",
            );
            assert_eq!(selected(&first.say(&begin)), 0);
            first.succeed(&store(held));
            first.succeed(&format!(
                "INSERT INTO documents (id, body) VALUES ('a', '{held}');"
            ));
            second.send(&begin);
            waiting(&server);
            first.succeed("COMMIT;");
            assert_eq!(selected(&second.receive()), held, "{level}");
            if held <= late {
                // The first plain read sees what the older holder has committed.
                assert_eq!(body(&mut second), held.to_string(), "{level}");
                second.succeed(&store(late));
                second.succeed(&format!("UPDATE documents SET body = '{late}'; COMMIT;"));
            } else {
                second.succeed("ROLLBACK;");
            }
            assert_eq!(body(&mut first), NEW.to_string(), "{level}");
            first.succeed("DELETE FROM documents;");
            assert_eq!(selected(&first.say(&begin)), NEW, "without the row");
            first.succeed("ROLLBACK;");
        }
    }
}

/// Runs the recipe for programs that cannot be changed, with this token in the environment.
fn unchanged_program(server: &MariaDb, token: u64) -> Output {
    let socket = server.socket();
    let options = format!(
        "[client]\nuser=root\nsocket={}\ndatabase=test\n",
        socket.display()
    );
    fs::write(server.dir().join(".my.cnf"), options).unwrap();
    Command::new("sh")
        .args(["-c", recipe("mysql-environment")])
        .env("HOME", server.dir())
        .env("QUORATE_FENCING_TOKEN", token.to_string())
        .output()
        .unwrap()
}

#[tokio::test]
async fn mysql_triggers_refuse_unchanged_statements_with_an_older_token() {
    let Some(server) = server() else { return };
    insert(&mut open(&server));
    open(&server).succeed(recipe("mysql-trigger"));
    let opened = Arc::clone(&server);
    let write = |session: &mut Session, token: u64, value: &str| {
        session.succeed(&executing(recipe("mysql-token"), &[&token.to_string()]));
        let answer = session.say(&format!("UPDATE documents SET body = {};", literal(value)));
        let refused = answer.contains("(45000)") && answer.contains("fenced: a newer holder");
        assert!(refused || answer.is_empty(), "{answer}");
        !refused
    };
    prove(move || open(&opened), write, body).await;
    server.restart().unwrap();
    let mut session = open(&server);
    assert!(!write(&mut session, NEW, "old"), "after a restart");

    for token in [NEW.to_string(), "NULL".to_owned()] {
        for statement in [
            "INSERT INTO documents (id, body) VALUES ('b', 'old')",
            "UPDATE documents SET body = 'old'",
            "DELETE FROM documents",
        ] {
            let answer = session.say(&format!("SET @quorate_token = {token}; {statement};"));
            assert!(answer.contains("fenced: "), "{statement}: {answer}");
        }
    }
    run(&server, "DELETE FROM test.fences");
    let zero = session.say("SET @quorate_token = 0; UPDATE documents SET body = 'old';");
    assert!(zero.contains("fenced: "), "{zero}");
    refuses_the_older_run(
        |token| unchanged_program(&server, token),
        || body(&mut session),
    );
}

#[test]
fn mysql_triggers_make_holders_wait_for_each_other() {
    let Some(server) = server() else { return };
    insert(&mut open(&server));
    open(&server).succeed(recipe("mysql-trigger"));
    let (mut first, mut second) = (open(&server), open(&server));
    for (held, late) in [(OLD, NEW), (NEW, OLD)] {
        run(&server, "DELETE FROM test.fences");
        first.succeed(&format!("SET @quorate_token = {held}; START TRANSACTION;"));
        first.succeed(&format!("UPDATE documents SET body = '{held}';"));
        second.succeed(&format!("SET @quorate_token = {late};"));
        second.send(&format!("UPDATE documents SET body = '{late}';"));
        waiting(&server);
        first.succeed("COMMIT;");
        let answer = second.receive();
        assert_eq!(answer.contains("fenced: "), late == OLD, "{answer}");
        assert_eq!(body(&mut first), NEW.to_string());
    }
}
