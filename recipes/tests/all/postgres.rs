//! The recipes for PostgreSQL, on a real server.

use std::process::{Command, Output};
use std::sync::Arc;

use quorate_recipes::recipe;
use quorate_testbed::Postgres;

use crate::proof::{prove, refuses_the_older_run};
use crate::session::{Program, Session, body, literal, until_one_waits};
use crate::{NEW, OLD, not_run};

/// A server with the table `documents` and its column for tokens. `None` if PostgreSQL is not installed.
fn server() -> Option<Arc<Postgres>> {
    if let Err(error) = Postgres::available() {
        not_run(&error.to_string());
        return None;
    }
    let server = Postgres::start().unwrap_or_else(|error| panic!("{error}"));
    run(
        &server,
        "CREATE TABLE documents (id text PRIMARY KEY, body text NOT NULL)",
    );
    run(&server, recipe("postgres-column"));
    run(&server, recipe("postgres-fences"));
    Some(Arc::new(server))
}

fn run(server: &Postgres, statements: &str) -> String {
    let answer = server.sql(statements);
    answer.unwrap_or_else(|error| panic!("{statements}: {error}"))
}

/// A session in which the recipes are prepared, with their placeholders.
fn open(server: &Postgres) -> Session {
    let mut session = Session::open(Program::Psql, server.client());
    let prepared = [
        ("updating(text, bigint, text)", recipe("postgres-update")),
        ("upserting(text, bigint, text)", recipe("postgres-upsert")),
        ("beginning(text, bigint)", recipe("postgres-transaction")),
        ("reading(text, bigint)", recipe("postgres-read")),
        ("setting(text)", recipe("postgres-token")),
    ];
    for (head, statement) in prepared {
        session.succeed(&format!("PREPARE {head} AS {statement}"));
    }
    session
}

/// The statement that writes a value with the prepared recipe `updating` or `upserting`.
fn writing(recipe: &str, token: u64, value: &str) -> String {
    format!("EXECUTE {recipe}('a', {token}, {});", literal(value))
}

fn write(session: &mut Session, recipe: &str, token: u64, value: &str) -> bool {
    is_one_row(&session.say(&writing(recipe, token, value)))
}

/// Whether one row was written. The answer to a refused write says 0 rows.
fn is_one_row(answer: &str) -> bool {
    match answer.trim() {
        "UPDATE 1" | "INSERT 0 1" => true,
        "UPDATE 0" | "INSERT 0 0" => false,
        other => panic!("{other}"),
    }
}

fn waiting(server: &Postgres) {
    until_one_waits(|| run(server, "SELECT count(*) FROM pg_locks WHERE NOT granted"));
}

/// Proves one of the recipes that write a single row, and checks that a restart keeps the token.
async fn prove_recipe(server: &Arc<Postgres>, recipe: &'static str) {
    let opened = Arc::clone(server);
    prove(
        move || open(&opened),
        move |session, token, value| write(session, recipe, token, value),
        body,
    )
    .await;
    server.restart().unwrap();
    let mut session = open(server);
    let kept = body(&mut session);
    assert!(!write(&mut session, recipe, NEW, "old"), "after a restart");
    assert_eq!(body(&mut session), kept);
}

#[tokio::test]
async fn postgres_recipes_for_one_row_refuse_older_tokens() {
    let Some(server) = server() else { return };
    prove_recipe(&server, "upserting").await;
    run(&server, "UPDATE documents SET fence = 0");
    prove_recipe(&server, "updating").await;
}

#[test]
fn postgres_update_that_waits_for_another_holder_sees_the_newer_token() {
    let Some(server) = server() else { return };
    let (mut first, mut second) = (open(&server), open(&server));
    for recipe in ["updating", "upserting"] {
        for (held, late) in [(OLD, NEW), (NEW, OLD)] {
            for level in ["READ COMMITTED", "REPEATABLE READ"] {
                run(&server, "TRUNCATE documents");
                run(
                    &server,
                    "INSERT INTO documents (id, body) VALUES ('a', 'none')",
                );
                first.succeed("BEGIN;");
                assert!(write(&mut first, recipe, held, &held.to_string()));
                second.succeed(&format!("BEGIN ISOLATION LEVEL {level};"));
                let again = writing(recipe, late, &late.to_string());
                second.send(&again);
                waiting(&server);
                first.succeed("COMMIT;");
                let mut answer = second.receive();
                if level == "REPEATABLE READ" {
                    assert!(answer.contains("could not serialize access"), "{answer}");
                    second.succeed("ROLLBACK;");
                    second.succeed(&format!("BEGIN ISOLATION LEVEL {level};"));
                    answer = second.say(&again);
                }
                assert_eq!(is_one_row(&answer), late == NEW, "{recipe} {level}");
                second.succeed("COMMIT;");
                assert_eq!(body(&mut first), NEW.to_string(), "{recipe} {level}");
            }
        }
    }
    // If the newer holder rolls back, nothing newer was written, and the older token is accepted.
    run(&server, "UPDATE documents SET fence = 0");
    first.succeed("BEGIN;");
    assert!(write(&mut first, "updating", NEW, "new"));
    second.send(&writing("updating", OLD, "old"));
    waiting(&server);
    first.succeed("ROLLBACK;");
    assert!(is_one_row(&second.receive()));
}

#[test]
fn postgres_holder_that_stores_its_token_before_it_reads_loses_no_write() {
    let Some(server) = server() else { return };
    let (mut older, mut newer) = (open(&server), open(&server));
    for safe in [false, true] {
        run(&server, "TRUNCATE documents");
        assert!(write(&mut older, "upserting", OLD, "10 left"));
        if safe {
            let read = newer.say(&format!("EXECUTE reading('a', {NEW});"));
            assert_eq!(read, "10 left\nUPDATE 1\n");
        } else {
            assert_eq!(body(&mut newer), "10 left");
        }
        // The older holder sells one.
        assert_eq!(write(&mut older, "updating", OLD, "9 left"), !safe);
        // The newer holder sells one as well.
        assert!(write(&mut newer, "updating", NEW, "9 left"));
    }
    let refused = older.say(&format!("EXECUTE reading('a', {OLD});"));
    assert_eq!(refused, "UPDATE 0\n");
}

#[test]
fn postgres_tables_refuse_what_is_not_a_token() {
    let Some(server) = server() else { return };
    let mut session = open(&server);
    let too_large = (1_u64 << 53) + 1;
    for statement in [
        writing("upserting", too_large, "bad"),
        format!("EXECUTE beginning('docs', {too_large});"),
        "EXECUTE beginning('docs', 0);".to_owned(),
    ] {
        let answer = session.say(&statement);
        assert!(answer.contains("check constraint"), "{statement}: {answer}");
    }
    assert!(write(&mut session, "upserting", 1 << 53, "good"));
}

#[test]
fn postgres_check_before_an_update_without_condition_lets_an_older_token_pass() {
    let Some(server) = server() else { return };
    run(
        &server,
        "INSERT INTO documents (id, body) VALUES ('a', 'none')",
    );
    let (mut older, mut newer) = (open(&server), open(&server));
    let (check, update) = recipe("postgres-wrong").split_once(";\n").unwrap();
    older.succeed(&format!("PREPARE checking(text, bigint) AS {check};"));
    older.succeed(&format!("PREPARE wrong(text, bigint, text) AS {update}"));
    older.succeed("BEGIN;");
    assert_eq!(older.say(&format!("EXECUTE checking('a', {OLD});")), "t\n");
    assert!(write(&mut newer, "updating", NEW, "new"));
    older.succeed(&writing("wrong", OLD, "old"));
    older.succeed("COMMIT;");
    assert_eq!(body(&mut newer), "old");
}

#[test]
fn postgres_transaction_over_several_tables_is_refused_as_a_whole() {
    let Some(server) = server() else { return };
    let (mut first, mut second) = (open(&server), open(&server));
    let begin = |token: u64| format!("BEGIN; EXECUTE beginning('docs', {token});");
    for (held, late) in [(OLD, NEW), (NEW, OLD)] {
        run(&server, "TRUNCATE fences; TRUNCATE documents");
        assert_eq!(first.succeed(&begin(held)), "BEGIN\nINSERT 0 1\n");
        first.succeed(&format!(
            "INSERT INTO documents (id, body) VALUES ('a', '{held}');"
        ));
        second.send(&begin(late));
        waiting(&server);
        first.succeed("COMMIT;");
        let accepted = is_one_row(second.receive().trim_start_matches("BEGIN\n"));
        assert_eq!(accepted, late == NEW);
        if accepted {
            second.succeed(&format!("UPDATE documents SET body = '{late}';"));
            second.succeed("COMMIT;");
        } else {
            second.succeed("ROLLBACK;");
        }
        assert_eq!(body(&mut first), NEW.to_string());
        // Without the row, the token is still known.
        assert!(first.say(&begin(NEW)).ends_with("INSERT 0 1\n"));
        first.succeed("DELETE FROM documents;");
        first.succeed("COMMIT;");
        assert!(first.say(&begin(OLD)).ends_with("INSERT 0 0\n"));
        first.succeed("ROLLBACK;");
    }
}

/// Runs the recipe for programs that cannot be changed, with this token in the environment.
fn unchanged_program(server: &Postgres, token: u64) -> Output {
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
    let Some(server) = server() else { return };
    run(
        &server,
        "INSERT INTO documents (id, body) VALUES ('a', 'none')",
    );
    run(&server, recipe("postgres-trigger"));
    let opened = Arc::clone(&server);
    let write = |session: &mut Session, token: u64, value: &str| {
        let value = literal(value);
        session.succeed(&format!("BEGIN; EXECUTE setting('{token}');"));
        let answer = session.say(&format!("UPDATE documents SET body = {value};"));
        let refused = answer.contains("fenced: a newer holder of documents has written");
        assert_ne!(refused, answer.contains("UPDATE 1"), "{answer}");
        session.succeed("COMMIT;");
        !refused
    };
    prove(move || open(&opened), write, body).await;
    server.restart().unwrap();
    let mut session = open(&server);
    assert!(!write(&mut session, NEW, "old"), "after a restart");

    // Every kind of statement is refused, also without a token, and the error has a code of its own.
    session.succeed("\\set VERBOSITY verbose");
    for setting in [String::new(), format!("EXECUTE setting('{NEW}');")] {
        for statement in [
            "INSERT INTO documents (id, body) VALUES ('b', 'old')",
            "UPDATE documents SET body = 'old'",
            "DELETE FROM documents",
            "TRUNCATE documents",
        ] {
            session.succeed(&format!("BEGIN; {setting}"));
            let answer = session.say(&format!("{statement};"));
            assert!(answer.contains("FENCE: fenced: "), "{statement}: {answer}");
            session.succeed("ROLLBACK;");
        }
    }
    run(&server, "TRUNCATE fences");
    refuses_the_older_run(
        |token| unchanged_program(&server, token),
        || body(&mut session),
    );
}

#[test]
fn postgres_trigger_does_not_use_a_temporary_table_of_the_session() {
    let Some(server) = server() else { return };
    run(
        &server,
        "INSERT INTO documents (id, body) VALUES ('a', 'none')",
    );
    run(&server, recipe("postgres-trigger"));
    let (mut older, mut newer) = (open(&server), open(&server));
    // A statement that changes no row stores the token.
    newer.succeed(&format!("BEGIN; EXECUTE setting('{NEW}');"));
    let none = newer.say("UPDATE documents SET body = body WHERE false;");
    assert_eq!(none, "UPDATE 0\n");
    newer.succeed("COMMIT;");
    older.succeed("CREATE TEMP TABLE fences (name text PRIMARY KEY, token bigint NOT NULL);");
    older.succeed(&format!("BEGIN; EXECUTE setting('{OLD}');"));
    let answer = older.say("UPDATE documents SET body = 'old';");
    assert!(answer.contains("fenced: a newer holder"), "{answer}");
}

/// The page says so: such a table needs a trigger of its own.
#[test]
fn postgres_trigger_of_a_parent_does_not_run_for_statements_that_name_its_child() {
    let Some(server) = server() else { return };
    run(&server, recipe("postgres-trigger"));
    run(&server, "CREATE TABLE child () INHERITS (documents)");
    let mut session = open(&server);
    let direct = session.say("INSERT INTO child (id, body) VALUES ('c', 'x');");
    assert_eq!(direct, "INSERT 0 1\n");
    let through_parent = session.say("UPDATE documents SET body = 'y' WHERE id = 'c';");
    assert!(through_parent.contains("fenced: "), "{through_parent}");
    run(
        &server,
        "CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON child
         FOR EACH STATEMENT EXECUTE FUNCTION check_fence('documents')",
    );
    let direct = session.say("INSERT INTO child (id, body) VALUES ('d', 'x');");
    assert!(direct.contains("fenced: "), "{direct}");
}

#[test]
fn postgres_trigger_makes_holders_wait_for_each_other() {
    let Some(server) = server() else { return };
    run(&server, recipe("postgres-trigger"));
    let (mut first, mut second) = (open(&server), open(&server));
    for (held, late) in [(OLD, NEW), (NEW, OLD)] {
        run(
            &server,
            "TRUNCATE fences; ALTER TABLE documents DISABLE TRIGGER fence",
        );
        run(&server, "TRUNCATE documents");
        run(
            &server,
            "INSERT INTO documents (id, body) VALUES ('a', 'none')",
        );
        run(&server, "ALTER TABLE documents ENABLE TRIGGER fence");
        first.succeed(&format!("BEGIN; EXECUTE setting('{held}');"));
        first.succeed(&format!("UPDATE documents SET body = '{held}';"));
        second.succeed(&format!("BEGIN; EXECUTE setting('{late}');"));
        second.send(&format!("UPDATE documents SET body = '{late}';"));
        waiting(&server);
        first.succeed("COMMIT;");
        let answer = second.receive();
        assert_eq!(answer.contains("UPDATE 1"), late == NEW, "{answer}");
        assert_eq!(answer.contains("fenced: "), late == OLD, "{answer}");
        second.succeed("COMMIT;");
        assert_eq!(body(&mut first), NEW.to_string());
    }
}
