//! Tests of servers without the schema, without rights, or with a wrong schema, and of the preparation.

use crate::common::{
    Server, bare, change, commit, get, name, options, put, server, session, sql, store, store_at,
};
use quorate::Purpose;
use quorate::node::store::{Session as _, Store as _};
use quorate_postgres::{NotPrepared, prepare, script};

#[tokio::test]
async fn missing_database_and_missing_schema_are_reported_and_created() {
    let Some(server) = bare(options()) else {
        return;
    };
    let one = store(&server);
    for create in [None, Some("CREATE DATABASE locks")] {
        if let Some(create) = create {
            server.sql(create).expect("created");
        }
        let fault = one.connect().await.err().expect("unprepared");
        assert_eq!(fault.kind(), "unprepared", "{fault}");
        assert!(
            fault.to_string().contains("quorate prepare-server"),
            "{fault}"
        );
        assert!(one.listen("0123456789abcdef".into()).await.is_err());
    }
    server.sql("DROP DATABASE locks").expect("dropped");
    let url = server.url("locks");
    let report = prepare(&url).await.expect("prepared");
    assert!(report.made && report.repaired.is_empty());
    let again = prepare(&url).await.expect("prepared");
    assert!(!again.made, "{again}");
    session(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_administrators_may_prepare_a_server_at_the_same_time() {
    let Some(server) = bare(options()) else {
        return;
    };
    let url = server.url("locks");
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { prepare(&url).await })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        let report = task
            .await
            .expect("no panic")
            .unwrap_or_else(|error| panic!("{error}"));
        made += u32::from(report.made);
    }
    assert_eq!(made, 1);
    session(&store(&server)).await;
}

#[tokio::test]
async fn script_creates_the_same_schema_and_changes_nothing_the_second_time() {
    let Some(server) = bare(options()) else {
        return;
    };
    server.sql("CREATE DATABASE locks").expect("created");
    let text = script("postgres://someone:secret@h/locks").expect("a script");
    assert!(!text.contains("secret") && !text.contains("someone"));
    sql(&server, &text);
    let one = store(&server);
    let mut open = session(&one).await;
    let version = put(&mut open, "a", 0, "s").await;
    sql(&server, &text);
    assert_eq!(get(&mut open, "a").await.version, version);
    assert!(!prepare(&server.url("locks")).await.expect("prepared").made);
}

#[tokio::test]
async fn user_with_the_printed_grants_can_do_everything_and_each_grant_is_needed() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    sql(&server, "CREATE USER locker");
    let url = server.url_of("locker", "locks");
    let refused = store_at(&url).connect().await.err().expect("no rights");
    assert_eq!(refused.kind(), "denied", "{refused}");
    let grants = prepare(&server.url("locks"))
        .await
        .expect("prepared")
        .grants;
    for grant in &grants {
        sql(&server, &grant.replace("TO USER", "TO locker"));
    }
    let one = store_at(&url);
    let mut open = session(&one).await;
    let version = put(&mut open, "a", 0, "s").await;
    open.remove(&[(b"a"[..].into(), version)])
        .await
        .expect("removed");
    let found = one.inspect().await;
    assert_eq!((found.fault, found.missing), (None, Vec::new()));
    assert!(one.listen("0123456789abcdef".into()).await.is_ok());
    let revokes = [
        "USAGE ON SCHEMA quorate",
        "SELECT ON quorate.record",
        "INSERT ON quorate.record",
        "UPDATE ON quorate.record",
        "SELECT ON quorate.run",
        "INSERT ON quorate.run",
        "UPDATE ON quorate.run",
    ];
    for right in revokes {
        sql(&server, &format!("REVOKE {right} FROM locker"));
        let refused = one.connect().await.err().expect(right);
        assert_eq!(refused.kind(), "denied", "{right}: {refused}");
        sql(&server, &format!("GRANT {right} TO locker"));
    }
    sql(&server, "REVOKE DELETE ON quorate.record FROM locker");
    let mut open = session(&one).await;
    let version = put(&mut open, "a", 0, "s").await;
    let records = [(b"a"[..].into(), version)];
    assert_eq!(
        open.remove(&records).await.expect_err("denied").kind(),
        "denied"
    );
    session(&one)
        .await
        .remove(&records)
        .await
        .expect("not tried again");
    let found = one.inspect().await;
    assert_eq!(found.fault, None);
    assert_eq!(
        found.missing[0].rule(),
        "GRANT DELETE ON quorate.record TO USER"
    );
    assert_eq!(found.missing[0].purposes(), [Purpose::Removal]);
    // An ordinary user may not create a schema.
    sql(&server, "CREATE DATABASE other");
    let refused = prepare(&server.url_of("locker", "other")).await;
    assert!(
        matches!(refused, Err(NotPrepared::Server { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn schema_of_a_newer_program_is_refused() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    sql(
        &server,
        "COMMENT ON SCHEMA quorate IS 'tables of quorate, version 2'",
    );
    let fault = one.connect().await.err().expect("newer");
    assert!(fault.to_string().contains("newer program"), "{fault}");
    let refused = prepare(&server.url("locks")).await;
    assert!(
        matches!(refused, Err(NotPrepared::Newer { found: 2, .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn inspection_shows_version_settings_and_round_trip() {
    let Some((_server, one)) = server(options()).await else {
        return;
    };
    let found = one.inspect().await;
    assert_eq!(found.fault, None);
    assert_eq!(
        (found.server.as_deref(), found.role.as_deref()),
        (Some("postgresql"), Some("master"))
    );
    let version = found.version.as_deref().expect("a version");
    assert!(
        version
            .split('.')
            .all(|number| number.parse::<u32>().is_ok()),
        "{version}"
    );
    assert!(found.round_trip.is_some() && found.connecting.is_some() && found.wake_ups);
    assert!(
        found
            .clock_offset_ms
            .is_some_and(|offset| offset.abs() < 1_000)
    );
    for (name, value) in [
        ("fsync", "on"),
        ("full_page_writes", "off"),
        ("synchronous_commit", "on"),
        ("synchronous_standby_names", ""),
        ("max_connections", "200"),
        ("notification_queue_usage", "0"),
    ] {
        assert_eq!(found.setting(name), Some(value), "{name}");
    }
    let identity = found.identity.expect("an identity");
    assert!(identity.starts_with("postgres 7"), "{identity}");
}

#[tokio::test]
async fn table_with_a_trigger_or_of_another_owner_is_refused() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    sql(
        &server,
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';CREATE USER other",
    );
    for (wrong, text, right) in [
        (
            "CREATE TRIGGER t BEFORE UPDATE ON quorate.record FOR EACH ROW EXECUTE FUNCTION skip()",
            "trigger",
            "DROP TRIGGER t ON quorate.record",
        ),
        (
            "ALTER TABLE quorate.run OWNER TO other",
            "another user",
            "ALTER TABLE quorate.run OWNER TO postgres",
        ),
    ] {
        sql(&server, wrong);
        let fault = one.connect().await.err().expect("unprepared");
        assert_eq!(fault.kind(), "unprepared", "{fault}");
        assert!(fault.to_string().contains(text), "{fault}");
        let refused = prepare(&server.url("locks")).await.expect_err(text);
        assert!(refused.to_string().contains(text), "{refused}");
        sql(&server, right);
        session(&one).await;
    }
}

#[tokio::test]
async fn schema_of_a_user_who_does_not_own_the_database_is_refused() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    sql(
        &server,
        "CREATE USER other;CREATE USER owner;CREATE USER member IN ROLE owner;ALTER DATABASE locks OWNER TO owner;\
         GRANT CREATE ON DATABASE locks TO other",
    );
    // The owner of a schema may drop its tables, and create others.
    sql(&server, "ALTER SCHEMA quorate OWNER TO other");
    let fault = one.connect().await.err().expect("unprepared");
    assert_eq!(fault.kind(), "unprepared", "{fault}");
    let text = fault.to_string();
    assert!(
        text.contains("schema quorate") && text.contains("OWNER TO"),
        "{text}"
    );
    let refused = prepare(&server.url("locks")).await.expect_err("unprepared");
    assert!(refused.to_string().contains("OWNER TO"), "{refused}");
    for owner in ["owner", "member", "pg_database_owner", "postgres"] {
        sql(&server, &format!("ALTER SCHEMA quorate OWNER TO {owner}"));
        session(&one).await;
    }
    // A user who may create schemas, but does not own the database, prepares nothing.
    sql(&server, "DROP SCHEMA quorate CASCADE");
    let refused = prepare(&server.url_of("other", "locks")).await;
    assert!(
        refused.is_err_and(|error| error.to_string().contains("owner of the database")),
        "the schema would be refused by clients"
    );
    let found = "SELECT count(*) FROM pg_namespace WHERE nspname='quorate'";
    assert_eq!(sql(&server, found), "0\n");
    prepare(&server.url_of("owner", "locks"))
        .await
        .expect("prepared");
    session(&one).await;
}

#[tokio::test]
async fn two_databases_have_one_name_if_only_one_user_may_read_the_system_identifier() {
    for is_first in [true, false] {
        let Some((server, _)) = server(options()).await else {
            return;
        };
        server.sql("CREATE USER locker").expect("created");
        let url = server.url("others");
        let grants = prepare(&url).await.expect("prepared").grants;
        let in_others = |statement: &str| server.sql_in("others", statement).expect("done");
        for grant in &grants {
            in_others(&grant.replace("TO USER", "TO locker"));
        }
        // Rights on functions belong to one database.
        in_others("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC");
        let mut names = Vec::new();
        let mut stores = [store(&server), store_at(&server.url_of("locker", "others"))];
        if is_first {
            stores.reverse();
        }
        for store in stores {
            names.push(store.connect().await.expect("a session").1.server);
        }
        assert!(names[0].is_some());
        assert_eq!(names[0], names[1], "{is_first}");
    }
}

#[tokio::test]
async fn repair_of_the_table_of_the_run_keeps_its_grants() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    sql(&server, "CREATE USER locker");
    let grants = prepare(&server.url("locks"))
        .await
        .expect("prepared")
        .grants;
    for grant in &grants {
        sql(&server, &grant.replace("TO USER", "TO locker"));
    }
    sql(&server, "ALTER TABLE quorate.run SET LOGGED");
    prepare(&server.url("locks")).await.expect("repaired");
    session(&store_at(&server.url_of("locker", "locks"))).await;
}

#[tokio::test]
async fn text_that_is_not_utf_8_makes_an_inspection_fail_without_a_panic() {
    let Some(server) = bare(options()) else {
        return;
    };
    server
        .sql("CREATE DATABASE locks TEMPLATE template0 ENCODING 'SQL_ASCII'")
        .expect("created");
    let url = server.url("locks");
    prepare(&url).await.expect("prepared");
    sql(
        &server,
        "DO $$ BEGIN EXECUTE 'COMMENT ON SCHEMA quorate IS ' || quote_literal(convert_from('\\xff'::bytea,'SQL_ASCII')); END $$",
    );
    assert!(store_at(&url).connect().await.is_err());
    assert!(store_at(&url).inspect().await.fault.is_some());
}

/// Creates functions of the user `evil` in the schema `public` that make this user a superuser if a superuser calls
/// them. The server prefers the first two to its own functions, because their arguments fit better.
fn plant_functions(server: &Server) {
    let body =
        "LANGUAGE plpgsql AS 'BEGIN EXECUTE ''ALTER ROLE evil SUPERUSER''; RETURN NULL; END'";
    let functions = [
        "hashtextextended(text,integer) RETURNS bigint",
        "pg_relation_filenode(oid) RETURNS oid",
        // The server prefers these only if `search_path` names `public` first.
        "pg_backend_pid() RETURNS integer",
        "pg_is_in_recovery() RETURNS boolean",
        "current_setting(text) RETURNS text",
    ];
    sql(
        server,
        "GRANT CREATE ON SCHEMA public TO PUBLIC;CREATE ROLE evil",
    );
    for function in functions {
        let create = format!("SET ROLE evil;CREATE FUNCTION public.{function} {body}");
        sql(server, &create);
    }
}

#[tokio::test]
async fn functions_of_other_users_are_not_called_with_the_rights_of_an_administrator() {
    let Some(server) = bare(options()) else {
        return;
    };
    server.sql("CREATE DATABASE locks").expect("created");
    plant_functions(&server);
    let url = server.url("locks");
    for path in ["\"$user\",public", "public,pg_catalog"] {
        sql(
            &server,
            &format!("ALTER DATABASE locks SET search_path={path}"),
        );
        let prepared = prepare(&url).await;
        let inspected = store(&server).inspect().await;
        let connected = store(&server).connect().await.map(drop);
        let listening = store(&server).listen("0123456789abcdef".into()).await;
        let script = script(&url).expect("a script");
        sql(
            &server,
            &format!("DROP SCHEMA IF EXISTS quorate CASCADE;{script}"),
        );
        let evil = "SELECT rolsuper FROM pg_roles WHERE rolname='evil'";
        assert_eq!(
            server.sql(evil).expect("a role"),
            "f\n",
            "{path}: {prepared:?}"
        );
        prepared.expect("prepared");
        assert_eq!(inspected.fault, None);
        connected.expect("connected");
        assert!(listening.is_ok());
    }
}

#[tokio::test]
async fn table_without_its_primary_key_or_with_other_columns_is_refused() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    let mut open = session(&one).await;
    for (wrong, text, right) in [
        (
            "ALTER TABLE quorate.record DROP CONSTRAINT record_pkey",
            "no primary key on its column name",
            "ALTER TABLE quorate.record ADD PRIMARY KEY (name)",
        ),
        (
            "ALTER TABLE quorate.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (name,version)",
            "no primary key on its column name",
            "ALTER TABLE quorate.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (name)",
        ),
        (
            "ALTER TABLE quorate.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (name) DEFERRABLE",
            "no primary key on its column name",
            "ALTER TABLE quorate.record DROP CONSTRAINT record_pkey, ADD PRIMARY KEY (name)",
        ),
        (
            "ALTER TABLE quorate.run DROP CONSTRAINT run_pkey",
            "no primary key on its column one",
            "ALTER TABLE quorate.run ADD PRIMARY KEY (one)",
        ),
        (
            "ALTER TABLE quorate.record ALTER state SET DEFAULT 'x'",
            "other columns",
            "ALTER TABLE quorate.record ALTER state DROP DEFAULT",
        ),
        (
            "ALTER TABLE quorate.record ALTER version TYPE int",
            "other columns",
            "ALTER TABLE quorate.record ALTER version TYPE bigint",
        ),
        (
            "ALTER TABLE quorate.run RENAME aged TO age",
            "other columns",
            "ALTER TABLE quorate.run RENAME age TO aged",
        ),
    ] {
        sql(&server, wrong);
        let fault = one.connect().await.err().expect(wrong);
        assert_eq!(fault.kind(), "unprepared", "{fault}");
        assert!(fault.to_string().contains(text), "{wrong}: {fault}");
        let refused = prepare(&server.url("locks")).await.expect_err(wrong);
        assert!(refused.to_string().contains(text), "{refused}");
        sql(&server, right);
        session(&one).await;
    }
    // An additional column does no harm.
    sql(&server, "ALTER TABLE quorate.record ADD note text");
    session(&one).await;
    // A session that is open while the key is dropped creates no second row of a record.
    let _ended = open.load(&[name("a")]).await;
    let mut open = session(&one).await;
    let stale = commit(vec![change("a", 0, "a"), change("b", 9, "no")]);
    open.commit(std::slice::from_ref(&stale)).await.expect("a");
    sql(
        &server,
        "ALTER TABLE quorate.record DROP CONSTRAINT record_pkey",
    );
    let fault = open.commit(&[stale]).await.expect_err("no key");
    assert_eq!(fault.kind(), "unprepared", "{fault}");
    let rows = "SELECT count(*) FROM quorate.record WHERE name='a'";
    assert_eq!(sql(&server, rows), "1\n");
}

#[tokio::test]
async fn table_whose_rows_other_statements_may_change_or_duplicate_is_refused() {
    let Some((server, one)) = server(options()).await else {
        return;
    };
    server.sql("CREATE DATABASE publisher").expect("created");
    let publish = "CREATE SCHEMA quorate;CREATE TABLE quorate.record (name bytea PRIMARY KEY,version bigint,\
                   state bytea);CREATE PUBLICATION p FOR TABLE quorate.record";
    server.sql_in("publisher", publish).expect("published");
    let address = format!(
        "host={} port={} user=postgres dbname=publisher",
        server.dir().display(),
        server.addr().expect("a port").port()
    );
    let subscribe = format!(
        "CREATE SUBSCRIPTION s CONNECTION '{address}' PUBLICATION p \
         WITH (create_slot=false,enabled=false,copy_data=false)"
    );
    for (wrong, right) in [
        (
            "CREATE TABLE child () INHERITS (quorate.record)",
            "DROP TABLE child",
        ),
        (
            "CREATE TABLE parent (name bytea NOT NULL,version bigint,state bytea);\
             ALTER TABLE quorate.record INHERIT parent",
            "ALTER TABLE quorate.record NO INHERIT parent",
        ),
        (
            &subscribe,
            "ALTER SUBSCRIPTION s SET (slot_name=NONE);DROP SUBSCRIPTION s",
        ),
    ] {
        sql(&server, wrong);
        let fault = one.connect().await.err().expect(wrong);
        assert_eq!(fault.kind(), "unprepared", "{fault}");
        assert!(fault.to_string().contains("remove it"), "{fault}");
        let refused = prepare(&server.url("locks")).await.expect_err(wrong);
        assert!(refused.to_string().contains("remove it"), "{refused}");
        for statement in right.split(';') {
            sql(&server, statement);
        }
        session(&one).await;
    }
}
