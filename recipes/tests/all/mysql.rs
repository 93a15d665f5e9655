//! The recipes for MySQL and MariaDB, on a real MariaDB server.

use std::fs;
use std::process::{Command, Output};
use std::sync::Arc;

use mysql_async::prelude::Queryable;
use quorate_recipes::recipe;
use quorate_testbed::{MariaDb, MariaDbOptions};

use crate::proof::{assert_older_run_is_refused, prove};
use crate::session::{Program, Session, body, is_one_row, literal, wait_until_one_is_blocked};
use crate::{NEW_TOKEN, OLD_TOKEN, not_run};

/// A server with the table `documents` and its columns in the database `test`. `None` if MariaDB is not installed.
fn start_server() -> Option<Arc<MariaDb>> {
    if let Err(error) = MariaDb::available() {
        not_run(&error.to_string());
        return None;
    }
    let server = MariaDb::start(MariaDbOptions::new()).unwrap_or_else(|error| panic!("{error}"));
    let table_columns = "id VARCHAR(100) PRIMARY KEY, body TEXT NOT NULL";
    run_sql(&server, "CREATE DATABASE test");
    run_sql(
        &server,
        &format!("CREATE TABLE test.documents ({table_columns})"),
    );
    for recipe in [recipe("mysql-column"), recipe("mysql-fences")] {
        run_sql(&server, &format!("USE test; {recipe}"));
    }
    Some(Arc::new(server))
}

fn run_sql(server: &MariaDb, statements: &str) -> String {
    let answer = server.sql(statements);
    answer.unwrap_or_else(|error| panic!("{statements}: {error}"))
}

/// A session in the database `test` that continues after an error.
fn open_session(server: &MariaDb) -> Session {
    let mut command = server.client();
    command.args(["--force", "--unbuffered", "--database=test"]);
    Session::open(Program::MariaDb, command)
}

/// The statements of a recipe.
fn split_statements(recipe: &'static str) -> Vec<&'static str> {
    let parts = recipe.split(";\n").map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Executes a statement with these values for its placeholders. The placeholders stay placeholders: the server
/// prepares the statement as it is. Returns its rows and, in the last line, the number of rows that it changed.
fn prepared_execution(statement: &str, values: &[&str]) -> String {
    let quoted_statement = literal(statement.trim_end_matches(['\n', ';']));
    let names: Vec<String> = (0..values.len())
        .map(|index| format!("@v{index}"))
        .collect();
    let assignments: Vec<String> = names
        .iter()
        .zip(values)
        .map(|(name, value)| format!("SET {name} = {value};"))
        .collect();
    let (sets_text, names_text) = (assignments.concat(), names.join(", "));
    format!("{sets_text} PREPARE p FROM {quoted_statement}; EXECUTE p USING {names_text}; SELECT ROW_COUNT();")
        .replace('\n', " ")
}

fn update_statement(recipe: &str, token: u64, value: &str) -> String {
    let (token_text, value_literal) = (token.to_string(), literal(value));
    prepared_execution(recipe, &[&value_literal, &token_text, "'a'", &token_text])
}

fn update(session: &mut Session, token: u64, value: &str) -> bool {
    is_one_row(&session.execute(&update_statement(recipe("mysql-update"), token, value)))
}

/// Creates an empty row with the recipe.
fn insert(session: &mut Session) {
    session.succeed(&prepared_execution(recipe("mysql-insert"), &["'a'"]));
}

fn wait_until_one_session_is_blocked(server: &MariaDb) {
    let count_waiting =
        "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    wait_until_one_is_blocked(|| run_sql(server, count_waiting));
}

#[tokio::test]
async fn mysql_recipes_for_one_row_refuse_older_tokens() {
    let Some(server) = start_server() else { return };
    let shared_server = Arc::clone(&server);
    let write_row = |session: &mut Session, token: u64, value: &str| {
        session.succeed("START TRANSACTION;");
        insert(session);
        let is_accepted = update(session, token, value);
        session.succeed("COMMIT;");
        is_accepted
    };
    prove(move || open_session(&shared_server), write_row, body).await;
    server.restart().unwrap();
    let mut session = open_session(&server);
    assert!(
        !write_row(&mut session, NEW_TOKEN, "old"),
        "after a restart"
    );
}

#[test]
fn mysql_update_that_waits_for_another_holder_sees_the_newer_token() {
    let Some(server) = start_server() else { return };
    insert(&mut open_session(&server));
    let isolation_variable = run_sql(&server, "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'");
    let snapshot_settings: &[&str] = if isolation_variable.is_empty() {
        &[""]
    } else {
        &[
            "SET innodb_snapshot_isolation = 0;",
            "SET innodb_snapshot_isolation = 1;",
        ]
    };
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        for snapshot_setting in snapshot_settings {
            for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
                let (mut first, mut second) = (open_session(&server), open_session(&server));
                run_sql(
                    &server,
                    "UPDATE test.documents SET body = 'none', fence = 0",
                );
                first.succeed("START TRANSACTION;");
                assert!(update(&mut first, first_token, &first_token.to_string()));
                let begin_statements = format!(
                    "SET TRANSACTION ISOLATION LEVEL {level}; START TRANSACTION; SELECT fence FROM documents;"
                );
                second.succeed(snapshot_setting);
                assert_eq!(second.succeed(&begin_statements), "0\n");
                let second_update = update_statement(
                    recipe("mysql-update"),
                    second_token,
                    &second_token.to_string(),
                );
                second.send(&second_update);
                wait_until_one_session_is_blocked(&server);
                first.succeed("COMMIT;");
                let mut answer = second.receive();
                if level == "REPEATABLE READ" && snapshot_setting.ends_with("= 1;") {
                    assert!(answer.contains("ERROR 1020"), "{answer}");
                    second.succeed("ROLLBACK; START TRANSACTION;");
                    answer = second.execute(&second_update);
                }
                assert_eq!(
                    is_one_row(&answer),
                    second_token == NEW_TOKEN,
                    "{level} {snapshot_setting}"
                );
                second.succeed("COMMIT;");
                assert_eq!(
                    body(&mut first),
                    NEW_TOKEN.to_string(),
                    "{level} {snapshot_setting}"
                );
            }
        }
    }
}

#[tokio::test]
async fn mysql_repeated_write_looks_refused_without_the_counter() {
    let Some(server) = start_server() else { return };
    insert(&mut open_session(&server));
    let update_without_counter = recipe("mysql-wrong");
    for found_rows in [false, true] {
        run_sql(&server, "UPDATE test.documents SET fence = 0");
        let options = mysql_async::OptsBuilder::default()
            .socket(Some(server.socket().display().to_string()))
            .user(Some("root"))
            .db_name(Some("test"))
            .client_found_rows(found_rows);
        let mut client = mysql_async::Conn::new(options).await.unwrap();
        let mut rows = Vec::new();
        for statement in [
            update_without_counter,
            update_without_counter,
            recipe("mysql-update"),
            recipe("mysql-update"),
        ] {
            let statement = statement.trim_end().trim_end_matches(';');
            let statement_values = ("value", NEW_TOKEN, "a", NEW_TOKEN);
            client.exec_drop(statement, statement_values).await.unwrap();
            rows.push(client.affected_rows());
        }
        let repeated_rows = u64::from(found_rows);
        assert_eq!(
            rows,
            [1, repeated_rows, 1, 1],
            "CLIENT_FOUND_ROWS: {found_rows}"
        );
        let (statement, values) = (recipe("mysql-update"), ("value", OLD_TOKEN, "a", OLD_TOKEN));
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
    let Some(server) = start_server() else { return };
    let mut session = open_session(&server);
    insert(&mut session);
    let too_large = (1_u64 << 53) + 1;
    let answer = session.execute(&update_statement(recipe("mysql-update"), too_large, "bad"));
    assert!(answer.contains("CONSTRAINT"), "{answer}");
    session.succeed(&begin_statements());
    let store = prepared_execution(recipe("mysql-store"), &[&too_large.to_string(), "'docs'"]);
    let answer = session.execute(&store);
    assert!(answer.contains("CONSTRAINT"), "{answer}");
    session.succeed("ROLLBACK;");
    assert!(update(&mut session, 1 << 53, "good"));
}

/// The page says so: the statements after an implicit commit run without the check.
#[test]
fn mysql_transaction_is_ended_by_a_statement_that_commits_implicitly() {
    let Some(server) = start_server() else { return };
    let (mut older, mut newer) = (open_session(&server), open_session(&server));
    insert(&mut older);
    let store =
        |token: u64| prepared_execution(recipe("mysql-store"), &[&token.to_string(), "'docs'"]);
    older.succeed(&begin_statements());
    older.succeed(&store(OLD_TOKEN));
    older.succeed("CREATE TABLE another (id INT);");
    // The newer holder does not wait.
    assert_eq!(
        selected_token(&newer.execute(&begin_statements())),
        OLD_TOKEN
    );
    newer.succeed(&store(NEW_TOKEN));
    newer.succeed("UPDATE documents SET body = 'new'; COMMIT;");
    older.succeed("UPDATE documents SET body = 'old'; COMMIT;");
    assert_eq!(body(&mut newer), "old");
}

/// The statements that begin a transaction with the recipe, and select the stored token.
fn begin_statements() -> String {
    let statements = split_statements(recipe("mysql-transaction"));
    let [start, insert, select] = statements[..] else {
        panic!("{statements:?}")
    };
    let insert_execution = prepared_execution(insert, &["'docs'"]);
    format!(
        "{start}; {insert_execution} {}",
        prepared_execution(select, &["'docs'"])
    )
}

/// The token in the answer to [`begin_statements`]: the number of inserted rows, the token, and the number of selected
/// rows.
fn selected_token(answer: &str) -> u64 {
    let token = answer.lines().nth(1).and_then(|line| line.parse().ok());
    token.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn mysql_transaction_over_several_tables_is_refused_as_a_whole() {
    let Some(server) = start_server() else { return };
    let (mut first, mut second) = (open_session(&server), open_session(&server));
    let begin_statements = begin_statements();
    let store =
        |token: u64| prepared_execution(recipe("mysql-store"), &[&token.to_string(), "'docs'"]);
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        for session in [&mut first, &mut second] {
            session.succeed(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level};"));
        }
        for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
            run_sql(
                &server,
                "DELETE FROM test.fences; DELETE FROM test.documents",
            );
            assert_eq!(selected_token(&first.execute(&begin_statements)), 0);
            first.succeed(&store(first_token));
            first.succeed(&format!(
                "INSERT INTO documents (id, body) VALUES ('a', '{first_token}');"
            ));
            second.send(&begin_statements);
            wait_until_one_session_is_blocked(&server);
            first.succeed("COMMIT;");
            assert_eq!(selected_token(&second.receive()), first_token, "{level}");
            if first_token <= second_token {
                // The first plain read sees what the older holder has committed.
                assert_eq!(body(&mut second), first_token.to_string(), "{level}");
                second.succeed(&store(second_token));
                second.succeed(&format!(
                    "UPDATE documents SET body = '{second_token}'; COMMIT;"
                ));
            } else {
                second.succeed("ROLLBACK;");
            }
            assert_eq!(body(&mut first), NEW_TOKEN.to_string(), "{level}");
            first.succeed("DELETE FROM documents;");
            assert_eq!(
                selected_token(&first.execute(&begin_statements)),
                NEW_TOKEN,
                "without the row"
            );
            first.succeed("ROLLBACK;");
        }
    }
}

/// Runs the recipe for programs that cannot be changed, with this token in the environment.
fn run_unchanged_program(server: &MariaDb, token: u64) -> Output {
    let socket = server.socket();
    let client_options = format!(
        "[client]\nuser=root\nsocket={}\ndatabase=test\n",
        socket.display()
    );
    fs::write(server.dir().join(".my.cnf"), client_options).unwrap();
    Command::new("sh")
        .args(["-c", recipe("mysql-environment")])
        .env("HOME", server.dir())
        .env("QUORATE_FENCING_TOKEN", token.to_string())
        .output()
        .unwrap()
}

#[tokio::test]
async fn mysql_triggers_refuse_unchanged_statements_with_an_older_token() {
    let Some(server) = start_server() else { return };
    insert(&mut open_session(&server));
    open_session(&server).succeed(recipe("mysql-trigger"));
    let shared_server = Arc::clone(&server);
    let write_row = |session: &mut Session, token: u64, value: &str| {
        session.succeed(&prepared_execution(
            recipe("mysql-token"),
            &[&token.to_string()],
        ));
        let answer = session.execute(&format!("UPDATE documents SET body = {};", literal(value)));
        let is_refused = answer.contains("(45000)") && answer.contains("fenced: a newer holder");
        assert!(is_refused || answer.is_empty(), "{answer}");
        !is_refused
    };
    prove(move || open_session(&shared_server), write_row, body).await;
    server.restart().unwrap();
    let mut session = open_session(&server);
    assert!(
        !write_row(&mut session, NEW_TOKEN, "old"),
        "after a restart"
    );

    for token in [NEW_TOKEN.to_string(), "NULL".to_owned()] {
        for statement in [
            "INSERT INTO documents (id, body) VALUES ('b', 'old')",
            "UPDATE documents SET body = 'old'",
            "DELETE FROM documents",
        ] {
            let answer = session.execute(&format!("SET @quorate_token = {token}; {statement};"));
            assert!(answer.contains("fenced: "), "{statement}: {answer}");
        }
    }
    run_sql(&server, "DELETE FROM test.fences");
    let answer_to_zero_token =
        session.execute("SET @quorate_token = 0; UPDATE documents SET body = 'old';");
    assert!(
        answer_to_zero_token.contains("fenced: "),
        "{answer_to_zero_token}"
    );
    assert_older_run_is_refused(
        |token| run_unchanged_program(&server, token),
        || body(&mut session),
    );
}

#[test]
fn mysql_triggers_make_holders_wait_for_each_other() {
    let Some(server) = start_server() else { return };
    insert(&mut open_session(&server));
    open_session(&server).succeed(recipe("mysql-trigger"));
    let (mut first, mut second) = (open_session(&server), open_session(&server));
    for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
        run_sql(&server, "DELETE FROM test.fences");
        first.succeed(&format!(
            "SET @quorate_token = {first_token}; START TRANSACTION;"
        ));
        first.succeed(&format!("UPDATE documents SET body = '{first_token}';"));
        second.succeed(&format!("SET @quorate_token = {second_token};"));
        second.send(&format!("UPDATE documents SET body = '{second_token}';"));
        wait_until_one_session_is_blocked(&server);
        first.succeed("COMMIT;");
        let answer = second.receive();
        assert_eq!(
            answer.contains("fenced: "),
            second_token == OLD_TOKEN,
            "{answer}"
        );
        assert_eq!(body(&mut first), NEW_TOKEN.to_string());
    }
}
