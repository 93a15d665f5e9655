//! The recipes for PostgreSQL, on a real server.

use std::process::{Command, Output};
use std::sync::Arc;

use quorate_recipes::recipe;
use quorate_testbed::Postgres;

use crate::proof::{assert_older_run_is_refused, prove};
use crate::session::{Program, Session, body, literal, wait_until_one_is_blocked};
use crate::{NEW_TOKEN, OLD_TOKEN, not_run};

/// A server with the table `documents` and its column for tokens. `None` if PostgreSQL is not installed.
fn start_server() -> Option<Arc<Postgres>> {
    if let Err(error) = Postgres::available() {
        not_run(&error.to_string());
        return None;
    }
    let server = Postgres::start().unwrap_or_else(|error| panic!("{error}"));
    run_sql(
        &server,
        "CREATE TABLE documents (id text PRIMARY KEY, body text NOT NULL)",
    );
    run_sql(&server, recipe("postgres-column"));
    run_sql(&server, recipe("postgres-fences"));
    Some(Arc::new(server))
}

fn run_sql(server: &Postgres, statements: &str) -> String {
    let answer = server.sql(statements);
    answer.unwrap_or_else(|error| panic!("{statements}: {error}"))
}

/// A session in which the recipes are prepared, with their placeholders.
fn open_session(server: &Postgres) -> Session {
    let mut session = Session::open(Program::Psql, server.client());
    let recipes = [
        ("updating(text, bigint, text)", recipe("postgres-update")),
        ("upserting(text, bigint, text)", recipe("postgres-upsert")),
        ("beginning(text, bigint)", recipe("postgres-transaction")),
        ("reading(text, bigint)", recipe("postgres-read")),
        ("setting(text)", recipe("postgres-token")),
    ];
    for (name_and_types, statement) in recipes {
        session.succeed(&format!("PREPARE {name_and_types} AS {statement}"));
    }
    session
}

/// The statement that writes a value with the prepared recipe `updating` or `upserting`.
fn write_statement(recipe: &str, token: u64, value: &str) -> String {
    format!("EXECUTE {recipe}('a', {token}, {});", literal(value))
}

fn write(session: &mut Session, recipe: &str, token: u64, value: &str) -> bool {
    is_one_row(&session.execute(&write_statement(recipe, token, value)))
}

/// Whether one row was written. The answer to a refused write says 0 rows.
fn is_one_row(answer: &str) -> bool {
    match answer.trim() {
        "UPDATE 1" | "INSERT 0 1" => true,
        "UPDATE 0" | "INSERT 0 0" => false,
        other => panic!("{other}"),
    }
}

fn wait_until_one_session_is_blocked(server: &Postgres) {
    wait_until_one_is_blocked(|| {
        run_sql(server, "SELECT count(*) FROM pg_locks WHERE NOT granted")
    });
}

/// Proves one of the recipes that write a single row, and checks that a restart keeps the token.
async fn prove_recipe(server: &Arc<Postgres>, recipe: &'static str) {
    let shared_server = Arc::clone(server);
    prove(
        move || open_session(&shared_server),
        move |session, token, value| write(session, recipe, token, value),
        body,
    )
    .await;
    server.restart().unwrap();
    let mut session = open_session(server);
    let stored = body(&mut session);
    assert!(
        !write(&mut session, recipe, NEW_TOKEN, "old"),
        "after a restart"
    );
    assert_eq!(body(&mut session), stored);
}

#[tokio::test]
async fn postgres_recipes_for_one_row_refuse_older_tokens() {
    let Some(server) = start_server() else { return };
    prove_recipe(&server, "upserting").await;
    run_sql(&server, "UPDATE documents SET fence = 0");
    prove_recipe(&server, "updating").await;
}

#[test]
fn postgres_update_that_waits_for_another_holder_sees_the_newer_token() {
    let Some(server) = start_server() else { return };
    let (mut first, mut second) = (open_session(&server), open_session(&server));
    for recipe in ["updating", "upserting"] {
        for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
            for level in ["READ COMMITTED", "REPEATABLE READ"] {
                run_sql(&server, "TRUNCATE documents");
                run_sql(
                    &server,
                    "INSERT INTO documents (id, body) VALUES ('a', 'none')",
                );
                first.succeed("BEGIN;");
                assert!(write(
                    &mut first,
                    recipe,
                    first_token,
                    &first_token.to_string()
                ));
                second.succeed(&format!("BEGIN ISOLATION LEVEL {level};"));
                let second_write = write_statement(recipe, second_token, &second_token.to_string());
                second.send(&second_write);
                wait_until_one_session_is_blocked(&server);
                first.succeed("COMMIT;");
                let mut answer = second.receive();
                if level == "REPEATABLE READ" {
                    assert!(answer.contains("could not serialize access"), "{answer}");
                    second.succeed("ROLLBACK;");
                    second.succeed(&format!("BEGIN ISOLATION LEVEL {level};"));
                    answer = second.execute(&second_write);
                }
                assert_eq!(
                    is_one_row(&answer),
                    second_token == NEW_TOKEN,
                    "{recipe} {level}"
                );
                second.succeed("COMMIT;");
                assert_eq!(body(&mut first), NEW_TOKEN.to_string(), "{recipe} {level}");
            }
        }
    }
    // If the newer holder rolls back, nothing newer was written, and the older token is accepted.
    run_sql(&server, "UPDATE documents SET fence = 0");
    first.succeed("BEGIN;");
    assert!(write(&mut first, "updating", NEW_TOKEN, "new"));
    second.send(&write_statement("updating", OLD_TOKEN, "old"));
    wait_until_one_session_is_blocked(&server);
    first.succeed("ROLLBACK;");
    assert!(is_one_row(&second.receive()));
}

#[test]
fn postgres_holder_that_stores_its_token_before_it_reads_loses_no_write() {
    let Some(server) = start_server() else { return };
    let (mut older, mut newer) = (open_session(&server), open_session(&server));
    for stores_token_first in [false, true] {
        run_sql(&server, "TRUNCATE documents");
        assert!(write(&mut older, "upserting", OLD_TOKEN, "10 left"));
        if stores_token_first {
            let read_answer = newer.execute(&format!("EXECUTE reading('a', {NEW_TOKEN});"));
            assert_eq!(read_answer, "10 left\nUPDATE 1\n");
        } else {
            assert_eq!(body(&mut newer), "10 left");
        }
        // The older holder sells one.
        assert_eq!(
            write(&mut older, "updating", OLD_TOKEN, "9 left"),
            !stores_token_first
        );
        // The newer holder sells one ticket as well.
        assert!(write(&mut newer, "updating", NEW_TOKEN, "9 left"));
    }
    let refused_answer = older.execute(&format!("EXECUTE reading('a', {OLD_TOKEN});"));
    assert_eq!(refused_answer, "UPDATE 0\n");
}

#[test]
fn postgres_tables_refuse_what_is_not_a_token() {
    let Some(server) = start_server() else { return };
    let mut session = open_session(&server);
    let too_large = (1_u64 << 53) + 1;
    for statement in [
        write_statement("upserting", too_large, "bad"),
        format!("EXECUTE beginning('docs', {too_large});"),
        "EXECUTE beginning('docs', 0);".to_owned(),
    ] {
        let answer = session.execute(&statement);
        assert!(answer.contains("check constraint"), "{statement}: {answer}");
    }
    assert!(write(&mut session, "upserting", 1 << 53, "good"));
}

#[test]
fn postgres_check_before_an_update_without_condition_lets_an_older_token_pass() {
    let Some(server) = start_server() else { return };
    run_sql(
        &server,
        "INSERT INTO documents (id, body) VALUES ('a', 'none')",
    );
    let (mut older, mut newer) = (open_session(&server), open_session(&server));
    let (check, update) = recipe("postgres-wrong").split_once(";\n").unwrap();
    older.succeed(&format!("PREPARE checking(text, bigint) AS {check};"));
    older.succeed(&format!("PREPARE wrong(text, bigint, text) AS {update}"));
    older.succeed("BEGIN;");
    assert_eq!(
        older.execute(&format!("EXECUTE checking('a', {OLD_TOKEN});")),
        "t\n"
    );
    assert!(write(&mut newer, "updating", NEW_TOKEN, "new"));
    older.succeed(&write_statement("wrong", OLD_TOKEN, "old"));
    older.succeed("COMMIT;");
    assert_eq!(body(&mut newer), "old");
}

#[test]
fn postgres_transaction_over_several_tables_is_refused_as_a_whole() {
    let Some(server) = start_server() else { return };
    let (mut first, mut second) = (open_session(&server), open_session(&server));
    let begin_statement = |token: u64| format!("BEGIN; EXECUTE beginning('docs', {token});");
    for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
        run_sql(&server, "TRUNCATE fences; TRUNCATE documents");
        assert_eq!(
            first.succeed(&begin_statement(first_token)),
            "BEGIN\nINSERT 0 1\n"
        );
        first.succeed(&format!(
            "INSERT INTO documents (id, body) VALUES ('a', '{first_token}');"
        ));
        second.send(&begin_statement(second_token));
        wait_until_one_session_is_blocked(&server);
        first.succeed("COMMIT;");
        let is_accepted = is_one_row(second.receive().trim_start_matches("BEGIN\n"));
        assert_eq!(is_accepted, second_token == NEW_TOKEN);
        if is_accepted {
            second.succeed(&format!("UPDATE documents SET body = '{second_token}';"));
            second.succeed("COMMIT;");
        } else {
            second.succeed("ROLLBACK;");
        }
        assert_eq!(body(&mut first), NEW_TOKEN.to_string());
        // Without the row, the token is still known.
        assert!(
            first
                .execute(&begin_statement(NEW_TOKEN))
                .ends_with("INSERT 0 1\n")
        );
        first.succeed("DELETE FROM documents;");
        first.succeed("COMMIT;");
        assert!(
            first
                .execute(&begin_statement(OLD_TOKEN))
                .ends_with("INSERT 0 0\n")
        );
        first.succeed("ROLLBACK;");
    }
}

/// Runs the recipe for programs that cannot be changed, with this token in the environment.
fn run_unchanged_program(server: &Postgres, token: u64) -> Output {
    let program = server.client().get_program().to_owned();
    let folder = std::path::Path::new(&program).parent().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("sh")
        .args(["-c", recipe("postgres-environment")])
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("PGHOST", server.dir())
        .envs([("PGUSER", "postgres"), ("PGDATABASE", "postgres")])
        .env("QUORATE_FENCING_TOKEN", token.to_string())
        .output()
        .unwrap()
}

#[tokio::test]
async fn postgres_trigger_refuses_unchanged_statements_with_an_older_token() {
    let Some(server) = start_server() else { return };
    run_sql(
        &server,
        "INSERT INTO documents (id, body) VALUES ('a', 'none')",
    );
    run_sql(&server, recipe("postgres-trigger"));
    let shared_server = Arc::clone(&server);
    let write = |session: &mut Session, token: u64, value: &str| {
        let new_body = literal(value);
        session.succeed(&format!("BEGIN; EXECUTE setting('{token}');"));
        let answer = session.execute(&format!("UPDATE documents SET body = {new_body};"));
        let is_refused = answer.contains("fenced: a newer holder of documents has written");
        assert_ne!(is_refused, answer.contains("UPDATE 1"), "{answer}");
        session.succeed("COMMIT;");
        !is_refused
    };
    prove(move || open_session(&shared_server), write, body).await;
    server.restart().unwrap();
    let mut session = open_session(&server);
    assert!(!write(&mut session, NEW_TOKEN, "old"), "after a restart");

    // Every kind of statement is refused, also without a token, and the error has a code of its own.
    session.succeed("\\set VERBOSITY verbose");
    for setting in [String::new(), format!("EXECUTE setting('{NEW_TOKEN}');")] {
        for statement in [
            "INSERT INTO documents (id, body) VALUES ('b', 'old')",
            "UPDATE documents SET body = 'old'",
            "DELETE FROM documents",
            "TRUNCATE documents",
        ] {
            session.succeed(&format!("BEGIN; {setting}"));
            let answer = session.execute(&format!("{statement};"));
            assert!(answer.contains("FENCE: fenced: "), "{statement}: {answer}");
            session.succeed("ROLLBACK;");
        }
    }
    run_sql(&server, "TRUNCATE fences");
    assert_older_run_is_refused(
        |token| run_unchanged_program(&server, token),
        || body(&mut session),
    );
}

#[test]
fn postgres_trigger_does_not_use_a_temporary_table_of_the_session() {
    let Some(server) = start_server() else { return };
    run_sql(
        &server,
        "INSERT INTO documents (id, body) VALUES ('a', 'none')",
    );
    run_sql(&server, recipe("postgres-trigger"));
    let (mut older, mut newer) = (open_session(&server), open_session(&server));
    // A statement that changes no row stores the token.
    newer.succeed(&format!("BEGIN; EXECUTE setting('{NEW_TOKEN}');"));
    let answer_to_no_change = newer.execute("UPDATE documents SET body = body WHERE false;");
    assert_eq!(answer_to_no_change, "UPDATE 0\n");
    newer.succeed("COMMIT;");
    older.succeed("CREATE TEMP TABLE fences (name text PRIMARY KEY, token bigint NOT NULL);");
    older.succeed(&format!("BEGIN; EXECUTE setting('{OLD_TOKEN}');"));
    let answer = older.execute("UPDATE documents SET body = 'old';");
    assert!(answer.contains("fenced: a newer holder"), "{answer}");
}

/// The page says so: such a table needs a trigger of its own.
#[test]
fn postgres_trigger_of_a_parent_does_not_run_for_statements_that_name_its_child() {
    let Some(server) = start_server() else { return };
    run_sql(&server, recipe("postgres-trigger"));
    run_sql(&server, "CREATE TABLE child () INHERITS (documents)");
    let mut session = open_session(&server);
    let child_answer = session.execute("INSERT INTO child (id, body) VALUES ('c', 'x');");
    assert_eq!(child_answer, "INSERT 0 1\n");
    let parent_answer = session.execute("UPDATE documents SET body = 'y' WHERE id = 'c';");
    assert!(parent_answer.contains("fenced: "), "{parent_answer}");
    run_sql(
        &server,
        "CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON child
         FOR EACH STATEMENT EXECUTE FUNCTION check_fence('documents')",
    );
    let child_answer = session.execute("INSERT INTO child (id, body) VALUES ('d', 'x');");
    assert!(child_answer.contains("fenced: "), "{child_answer}");
}

#[test]
fn postgres_trigger_makes_holders_wait_for_each_other() {
    let Some(server) = start_server() else { return };
    run_sql(&server, recipe("postgres-trigger"));
    let (mut first, mut second) = (open_session(&server), open_session(&server));
    for (first_token, second_token) in [(OLD_TOKEN, NEW_TOKEN), (NEW_TOKEN, OLD_TOKEN)] {
        run_sql(
            &server,
            "TRUNCATE fences; ALTER TABLE documents DISABLE TRIGGER fence",
        );
        run_sql(&server, "TRUNCATE documents");
        run_sql(
            &server,
            "INSERT INTO documents (id, body) VALUES ('a', 'none')",
        );
        run_sql(&server, "ALTER TABLE documents ENABLE TRIGGER fence");
        first.succeed(&format!("BEGIN; EXECUTE setting('{first_token}');"));
        first.succeed(&format!("UPDATE documents SET body = '{first_token}';"));
        second.succeed(&format!("BEGIN; EXECUTE setting('{second_token}');"));
        second.send(&format!("UPDATE documents SET body = '{second_token}';"));
        wait_until_one_session_is_blocked(&server);
        first.succeed("COMMIT;");
        let answer = second.receive();
        assert_eq!(
            answer.contains("UPDATE 1"),
            second_token == NEW_TOKEN,
            "{answer}"
        );
        assert_eq!(
            answer.contains("fenced: "),
            second_token == OLD_TOKEN,
            "{answer}"
        );
        second.succeed("COMMIT;");
        assert_eq!(body(&mut first), NEW_TOKEN.to_string());
    }
}
