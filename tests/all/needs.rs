//! Tests that clients and operators need exactly the rights that `docs/operations.md` lists. If a user lacks one of
//! these rights, inspections and lock errors name the missing right.
//!
//! The tests run on the machine's default server program, and on each program that `QUORATE_TEST_SERVERS` names.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ask_server, eventually, has_key, secs};
use quorate::{
    ChangeError, Inspection, LockGuard, MissingRight, Order, Redlock, RedlockBuilder, RestartGuard,
    Take, TryAcquire, Wait,
};
use quorate_testbed::{Masters, Reply, Server, ServerOptions, not_run};

const KEY_PREFIX: &str = "lock:";
const PASSWORD: &str = "s3cret-of-the-locker";

/// The Redis user of clients in docs/operations.md.
const CLIENT_USER: &str = "quorate";
/// The Redis user of operators in docs/operations.md.
const OPERATOR_USER: &str = "quorate-operator";

/// The words of the documented `ACL SETUSER` command for clients (docs/operations.md).
fn documented_command() -> Vec<String> {
    documented_command_for(CLIENT_USER)
}

/// The words of the documented `ACL SETUSER` command for this user (docs/operations.md).
fn documented_command_for(user: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let command = format!("ACL SETUSER {user} ");
    let line = page.lines().find(|line| line.starts_with(&command));
    let line =
        line.unwrap_or_else(|| panic!("docs/operations.md must contain the command {command}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// The rights that the documented command for clients grants: commands such as `+get`, key patterns and channels.
fn documented_rights() -> Vec<String> {
    let is_right = |word: &String| word.starts_with(['+', '~', '&']);
    documented_command().into_iter().filter(is_right).collect()
}

/// Every server program to test; `None` is the machine's default program.
fn server_programs() -> Vec<Option<PathBuf>> {
    let program_list = std::env::var("QUORATE_TEST_SERVERS").unwrap_or_default();
    let program_list = program_list
        .split(',')
        .map(str::trim)
        .filter(|p| !p.is_empty());
    std::iter::once(None)
        .chain(program_list.map(|path| Some(PathBuf::from(path))))
        .collect()
}

fn start_three(program: Option<PathBuf>) -> Masters {
    let options = |_| match &program {
        Some(program) => ServerOptions::new().program(program),
        None => ServerOptions::new(),
    };
    Masters::start_with(3, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the documented `ACL SETUSER` command for clients on every master. If `revoked_right` is a right, this right is left
/// out of the command. `None` grants all documented rights.
fn grant_rights(masters: &Masters, revoked_right: Option<&str>) {
    grant_to(CLIENT_USER, masters, revoked_right);
}

fn grant_to(user: &str, masters: &Masters, revoked_right: Option<&str>) {
    grant_command(documented_command_for(user), masters, revoked_right);
}

fn grant_command(mut words: Vec<String>, masters: &Masters, revoked_right: Option<&str>) {
    words.retain(|word| Some(word.as_str()) != revoked_right);
    for word in &mut words {
        if word.starts_with('>') {
            *word = format!(">{PASSWORD}");
        }
    }
    let acl_words: Vec<&str> = words.iter().map(String::as_str).collect();
    for master in masters {
        let reply = ask_server(master, &acl_words);
        assert!(reply.is_ok(), "{acl_words:?}: {reply:?}");
    }
}

/// A `Redlock` that logs in as the documented user for clients.
fn locker_client(masters: &Masters) -> Redlock {
    settings(masters, "").build().expect("good settings")
}

/// Settings with which a client logs in as the documented user for clients. `path` is appended to the URL of every
/// master, for example `/1` for database 1.
fn settings(masters: &Masters, path: &str) -> RedlockBuilder {
    settings_of(urls(CLIENT_USER, masters.iter(), path))
}

/// The URLs of these masters with the name and the password of `user`.
fn urls<'a>(user: &str, masters: impl Iterator<Item = &'a Server>, path: &str) -> Vec<String> {
    let url_of = |master: &Server| format!("redis://{user}:{PASSWORD}@{}{path}", master.addr());
    masters.map(url_of).collect()
}

fn settings_of(urls: Vec<String>) -> RedlockBuilder {
    Redlock::builder()
        .masters(urls)
        .prefix(KEY_PREFIX)
        // Trust the test servers, which have just started. This setting needs the same rights as the default.
        .restart_guard(RestartGuard::AfterFirstContact)
        // A generous timeout for a busy machine.
        .node_timeout(secs(5))
        .connect_timeout(secs(10))
        .ttl(secs(20))
        .wait(Wait::For(PATIENCE))
}

/// The commands, keys and channels that this server has denied to the user, as its `ACL LOG` shows them.
fn refused_objects(server: &Server) -> Vec<String> {
    let Reply::Array(entries) = ask_server(server, &["ACL", "LOG"]) else {
        panic!("no log")
    };
    let object_of = |entry: Reply| match entry {
        Reply::Array(fields) => {
            let field_text = |n: usize| fields.get(n).and_then(Reply::text).unwrap_or_default();
            let object_index = (0..fields.len()).find(|n| field_text(*n) == "object");
            field_text(object_index.expect("an object") + 1).into_owned()
        }
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(object_of).collect()
}

/// The number of times that this server has executed `command`.
fn count_calls(server: &Server, command: &str) -> u64 {
    let reply = ask_server(server, &["INFO", "commandstats"]);
    let stats = reply.text().expect("text").into_owned();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|line| line.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

async fn wait_until_queued(masters: &Masters, resource: &str) {
    let queue = format!("quorate:queue:{KEY_PREFIX}{resource}");
    eventually("a waiter must be in the queue of every master", || {
        masters.iter().all(|master| has_key(master, &queue))
    })
    .await;
}

fn assert_no_faults(inspections: &[Inspection]) {
    for inspection in inspections {
        assert_eq!(inspection.fault, None, "{inspection:?}");
        assert!(inspection.missing.is_empty(), "{inspection:?}");
        assert!(inspection.wake_ups, "{inspection:?}");
    }
}

/// Deletes the lock key on a master. Then extends the lock repeatedly, until this master has the key again.
async fn restore_key(master: &Server, guard: &LockGuard, key: &str) {
    ask_server(master, &["DEL", key]);
    let token_text = guard.token().to_string();
    let started_at = Instant::now();
    loop {
        guard
            .extend(secs(29))
            .await
            .expect("the extension must succeed, because the lock is still held");
        if ask_server(master, &["GET", key]).text().as_deref() == Some(&*token_text) {
            return;
        }
        // A queued waiter may get the lock key on this master for a moment. So repeat the extension.
        assert!(
            started_at.elapsed() < PATIENCE,
            "the test could not restore the lock key in time"
        );
    }
}

/// Closes all connections to the masters, and waits until the client has connected to every master again.
async fn reconnect_all(masters: &Masters, redlock: &Redlock) {
    for master in masters {
        ask_server(master, &["CLIENT", "KILL", "TYPE", "normal"]);
        ask_server(master, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    let started_at = Instant::now();
    loop {
        // An acquire waits only until it has reached a majority of the masters. The client connects to the others a
        // moment later.
        let again = redlock.acquire("job again").await.expect("free");
        if again.release().await.unreachable == 0 {
            break;
        }
        assert!(
            started_at.elapsed() < PATIENCE,
            "the client must connect to all masters again"
        );
    }
}

/// Uses quotas and once jobs. Both store values on the masters, under a lock.
async fn use_values(redlock: &Redlock) {
    let quota = redlock.quota("prizes");
    quota
        .create(3)
        .await
        .expect("the value must be created, because it does not exist yet");
    assert_eq!(quota.take(1).await, Ok(Take::Taken { left: 2 }));
    quota
        .drop_quota()
        .await
        .expect("drop_quota must succeed, because all masters can be reached");
}

/// Acquires a reader's lock and a permit, each with a note. Waits until the status shows both notes, and then breaks
/// the permit.
async fn use_every_kind(redlock: &Redlock) {
    let reader_guard = redlock.lock("doc").shared().note("reads").acquire().await;
    let permit_guard = redlock.semaphore("api", 2).note("calls").acquire().await;
    let (reader_guard, permit_guard) = (reader_guard.expect("free"), permit_guard.expect("free"));
    let started_at = Instant::now();
    loop {
        let doc = redlock.status("doc").await.expect("the name must be valid");
        let api = redlock
            .semaphore_status("api")
            .await
            .expect("the name must be valid");
        let reader_note = doc.holds().into_iter().find_map(|hold| hold.note);
        let calls_note = api.permits.iter().find_map(|permit| permit.status.note());
        if let (Some(reader_note), Some(calls_note)) = (&reader_note, calls_note) {
            let texts = [&reader_note.text, &calls_note.text].map(|text| text.as_deref());
            assert_eq!(texts, [Some("reads"), Some("calls")]);
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{doc:?} {api:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let slot = permit_guard.slot().expect("one");
    let status = redlock.break_permit("api", slot).await.expect("a slot");
    assert!(status.nodes.iter().all(|node| node.state.is_ok()));
    drop((reader_guard, permit_guard));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_exactly_the_documented_rights_can_use_every_function_of_a_client() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, None);
        let (first, second) = (locker_client(&masters), locker_client(&masters));

        let guard = first.acquire("job").await.expect("free");
        assert!(guard.fencing_token().is_some());
        let waiting_task = tokio::spawn({
            let second_builder = second.clone();
            async move { second_builder.acquire("job").await }
        });
        wait_until_queued(&masters, "job").await;
        let was_tried = locker_client(&masters)
            .try_acquire("job")
            .await
            .expect("answers");
        assert!(matches!(was_tried, TryAcquire::Held(_)));
        let status = second.status("job").await.expect("the name must be valid");
        for node in &status.nodes {
            let state = node.state.as_ref().expect("an answer");
            assert_eq!(state.queue.len(), 1, "{state:?}");
        }
        guard.extend(secs(25)).await.expect("still held");
        restore_key(&masters[0], &guard, "lock:job").await;
        assert_eq!(guard.release().await.unreachable, 0);
        let guard = waiting_task.await.expect("no panic").expect("acquired");
        for master in &masters {
            // The waiter already has the lock when two masters have released it. So wait until the third master has
            // also published its wake-up.
            eventually("the master must have published a wake-up", || {
                count_calls(master, "publish") > 0
            })
            .await;
            eventually("both clients must listen for wake-ups", || {
                let channels = ask_server(master, &["PUBSUB", "CHANNELS", "quorate:wake:*"]);
                matches!(&channels, Reply::Array(channels) if channels.len() >= 2)
            })
            .await;
        }

        use_values(&first).await;
        use_every_kind(&first).await;
        let status = first.break_lock("job").await.expect("must be a valid name");
        assert!(status.nodes.iter().all(|node| node.state.is_ok()));
        assert!(masters.iter().all(|master| !has_key(master, "lock:job")));
        drop(guard);

        reconnect_all(&masters, &first).await;
        assert_no_faults(&first.inspect().await);
        masters.iter().for_each(assert_no_doctor_keys);

        for master in &masters {
            let refused_objects: Vec<String> = refused_objects(master)
                .into_iter()
                // These commands are optional. Old servers report a denied `CLIENT SETNAME` as `client`.
                .filter(|what| !["client|setinfo", "client|setname", "client"].contains(&&**what))
                // `CONFIG GET` is optional for inspections.
                .filter(|what| what != "config|get" && what != "config")
                .collect();
            assert_eq!(
                refused_objects,
                [] as [String; 0],
                "the page must name every right that the client needs"
            );
        }
    }
}

/// The row for this purpose in the table of rights in docs/operations.md: its commands, and its key prefixes.
fn documented_rights_for(purpose: &str) -> (Vec<String>, Vec<String>) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let documented_rights_for = page.lines().find_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_prefix(purpose)?;
        cells.strip_prefix(" | ")
    });
    let mut cells = documented_rights_for.expect("the row").split(" | ");
    let commands = cells.next().expect("commands").replace('\\', "");
    let keys = cells.next().expect("keys");
    let keys = keys.replace("the lock key", &format!("`{KEY_PREFIX}`"));
    let split_words = |cell: String| {
        cell.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let without_backticks = |cell: String| cell.trim_matches('`').to_owned();
    let commands = split_words(commands).into_iter().map(without_backticks);
    let keys = split_words(keys).into_iter().map(without_backticks);
    let commands = commands.map(|command| format!("+{command}"));
    (
        commands.collect(),
        keys.map(|key| format!("~{key}*")).collect(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_with_the_documented_rights_can_show_and_force_release_a_permit() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, None);
        let outcome = locker_client(&masters).semaphore("api", 2).acquire().await;
        let permit = outcome.expect("free");
        let slot = permit.slot().expect("one");
        // Give the operator the commands of both rows, but only the keys of the row for `status`, `break` and `doctor`.
        let (scripts, _) = documented_rights_for("taking, renewing, releasing");
        let (commands, keys) = documented_rights_for("`status`, `break`, `doctor`");
        let user = documented_command()[2].clone();
        let mut acl_words = ["ACL", "SETUSER", &user, "reset", "on"]
            .map(str::to_owned)
            .to_vec();
        acl_words.push(format!(">{PASSWORD}"));
        acl_words.extend(scripts.into_iter().chain(commands).chain(keys));
        let acl_words: Vec<&str> = acl_words.iter().map(String::as_str).collect();
        for master in &masters {
            assert!(ask_server(master, &acl_words).is_ok(), "{acl_words:?}");
        }
        let locker = locker_client(&masters);
        let semaphore = locker
            .semaphore_status("api")
            .await
            .expect("the name must be valid");
        let slots: Vec<_> = semaphore.permits.iter().map(|permit| permit.slot).collect();
        assert_eq!(slots, [Some(slot)], "{semaphore:?}");
        let status = locker.break_permit("api", slot).await.expect("a slot");
        assert!(
            status.nodes.iter().all(|node| node.state.is_ok()),
            "{status:?}"
        );
    }
}

/// The longest lease of the clients in the tests that replace masters.
const MAX_TTL: Duration = secs(1);

/// A `Redlock` of this user for a change of masters. The first two of the three servers are the old masters, and the
/// last two are the next masters.
fn changing_client(user: &str, masters: &Masters) -> Redlock {
    settings_of(urls(user, masters.iter().take(2), ""))
        .next_masters(urls(user, masters.iter().skip(1), ""))
        .max_ttl(MAX_TTL)
        .ttl(MAX_TTL)
        .node_timeout(MAX_TTL / 4)
        .build()
        .expect("good settings")
}

/// The value of the generation marker on each master. `None` for a master without a marker.
fn read_markers(masters: &Masters) -> Vec<Option<String>> {
    let marker_of = |master| {
        let marker_of = ask_server(master, &["GET", "quorate:masters"]);
        marker_of.text().map(std::borrow::Cow::into_owned)
    };
    masters.iter().map(marker_of).collect()
}

/// Begins the change of the masters as soon as the uptime of the new server is long enough.
async fn begin_change(redlock: &Redlock) {
    let started_at = Instant::now();
    let change = redlock.change().expect("next_masters must be set");
    while let Err(error) = change.begin().await {
        assert!(started_at.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_with_exactly_the_documented_rights_can_mark_and_replace_masters() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, None);
        grant_to(OPERATOR_USER, &masters, None);
        let client = changing_client(CLIENT_USER, &masters);
        let builder = settings_of(urls(OPERATOR_USER, masters.iter().take(2), ""));
        let old_client = builder.build().expect("good settings");
        old_client
            .mark_masters()
            .await
            .expect("the step must succeed");

        let operator = changing_client(OPERATOR_USER, &masters);
        begin_change(&operator).await;
        // Create a fencing counter and a stored value, which the change of masters must copy.
        drop(client.acquire("job").await.expect("free"));
        client
            .quota("prizes")
            .create(3)
            .await
            .expect("the quota must be new");
        drop(client);
        let change = operator.change().expect("next_masters must be set");
        change.close().await.expect("the step must succeed");
        let closed = change.closed().await.expect("the step must succeed");
        tokio::time::sleep(change.wait()).await;
        let opened = change.open(&closed).await.expect("the step must succeed");
        assert_eq!(opened.carried.len(), 1, "{opened:?}");
        change.open_again().await.expect("the step must succeed");
        change.finish().await.expect("the step must succeed");
        for master in &masters {
            let refused_objects = refused_objects(master);
            let is_optional = |what: &String| {
                // Old servers report a denied `CLIENT SETINFO` as `client`.
                ["client|setinfo", "client"].contains(&what.as_str())
            };
            let refused_objects: Vec<_> = refused_objects
                .into_iter()
                .filter(|what| !is_optional(what))
                .collect();
            assert_eq!(
                refused_objects,
                [] as [String; 0],
                "the page must name every right"
            );
        }
    }
}

/// A second key prefix. The locks of some tests use it in addition to [`KEY_PREFIX`].
const SECOND_PREFIX: &str = "b:";

/// The rights that the documentation lists for operators, with each key pattern repeated for [`SECOND_PREFIX`].
fn operator_command() -> Vec<String> {
    let mut acl_words = documented_command_for(OPERATOR_USER);
    let keys = acl_words.iter().filter(|word| word.starts_with('~'));
    let keys = keys.filter(|word| word.contains(KEY_PREFIX));
    let second_client: Vec<String> = keys
        .map(|word| word.replace(KEY_PREFIX, SECOND_PREFIX))
        .collect();
    acl_words.extend(second_client);
    acl_words
}

/// Stores a quota and the fencing counter of a semaphore under each of the two prefixes.
async fn write_values(masters: &Masters) {
    for prefix in [KEY_PREFIX, SECOND_PREFIX] {
        let urls = masters.iter().take(2).map(Server::url).collect();
        let client = settings_of(urls).prefix(prefix).build().expect("good");
        client
            .quota("prizes")
            .create(3)
            .await
            .expect("the quota must be new");
        drop(client.semaphore("api", 2).acquire().await.expect("free"));
        client.flush().await;
    }
}

/// Replaces the set of masters: performs all steps in order. Returns the error of the first step that fails.
async fn run_whole_change(redlock: &Redlock) -> Result<(), ChangeError> {
    let change = redlock.change().expect("next masters are set");
    let started_at = Instant::now();
    while let Err(error) = change.begin().await {
        if started_at.elapsed() > PATIENCE || !error.to_string().contains("has been up for") {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    change.close().await?;
    let closed = change.closed().await?;
    tokio::time::sleep(change.wait()).await;
    change.open(&closed).await?;
    change.finish().await?;
    Ok(())
}

async fn assert_each_step_names(right: &str, masters: &Masters) {
    let operator = changing_client(OPERATOR_USER, masters);
    let survey = operator.survey().await.expect("masters with markers");
    for master in &survey.masters {
        let missing_rules = master.seen.missing.iter().map(MissingRight::rule);
        assert_eq!(missing_rules.collect::<Vec<_>>(), [right], "{master:?}");
        assert!(master.lacks_rights());
    }
    let change = operator.change().expect("next masters are set");
    let builder = settings_of(urls(OPERATOR_USER, masters.iter().take(2), ""));
    let old_client = builder.build().expect("good settings");
    for step in [
        change.begin().await,
        change.close().await,
        change.closed().await,
        change.open(&survey).await,
        change.finish().await,
        old_client.mark_masters().await,
    ] {
        let step_error = step.expect_err("a right is missing").to_string();
        assert!(
            step_error.contains(&format!("ACL SETUSER <user> {right}")),
            "{step_error}"
        );
        assert!(!step_error.contains(PASSWORD), "{step_error}");
    }
}

/// Regression test: if the operator lacks any right, the first step of a change must fail before it writes anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_masters_writes_nothing_if_the_operator_lacks_a_right() {
    for program in server_programs() {
        let masters = start_three(program);
        write_values(&masters).await;
        let mut needless_rights = Vec::new();
        for right in operator_command() {
            if !right.starts_with(['+', '~', '&']) {
                continue;
            }
            grant_command(operator_command(), &masters, Some(&right));
            match run_whole_change(&changing_client(OPERATOR_USER, &masters)).await {
                Err(_) => {
                    assert_eq!(read_markers(&masters), [None, None, None], "{right}");
                    assert_each_step_names(&right, &masters).await;
                    assert_eq!(read_markers(&masters), [None, None, None], "{right}");
                }
                Ok(()) => needless_rights.push(right),
            }
            for master in &masters {
                ask_server(master, &["DEL", "quorate:masters"]);
            }
        }
        // These two rights are not needed, because the test stores no key that matches these patterns.
        let groups = ["~quorate:holds:b:*", "~quorate:note:quorate:hold:*:b:*"];
        assert_eq!(needless_rights, groups);
        assert_refusals_without_the_rights_of_clients_or_operators(&masters).await;
    }
}

async fn assert_refusals_without_the_rights_of_clients_or_operators(masters: &Masters) {
    let (mut commands, keys) = documented_rights_for("`quorate masters`: operators only");
    let acl_words = ["ACL", "SETUSER", OPERATOR_USER, "reset", "on", ">"].map(str::to_owned);
    commands.extend(keys.iter().map(|key| key.trim_end_matches('*').to_owned()));
    grant_command(
        acl_words.into_iter().chain(commands).collect(),
        masters,
        None,
    );
    let operator = changing_client(OPERATOR_USER, masters);
    let error_text = run_whole_change(&operator)
        .await
        .expect_err("rights are missing");
    assert!(error_text.to_string().contains("+del"), "{error_text}");
    assert_eq!(read_markers(masters), [None, None, None]);

    // Give the user of the clients only its documented rights. They do not include `CLIENT LIST`.
    grant_rights(masters, None);
    let client = changing_client(CLIENT_USER, masters);
    let error_text = run_whole_change(&client)
        .await
        .expect_err("rights are missing");
    let error_text = error_text.to_string();
    assert!(
        error_text.contains("CLIENT LIST: ACL SETUSER <user> +client|list"),
        "{error_text}"
    );
    assert_eq!(read_markers(masters), [None, None, None]);
    // The survey must contain everything that this user may read, although the user lacks the right `client|list`.
    let survey = client.survey().await.expect("masters with markers");
    let mut inspections = survey.masters.iter().map(|master| &master.seen);
    assert!(inspections.all(|inspection| inspection.run_id.is_some()));
}

/// The operator's key prefix is empty, so the change of masters handles the keys of all prefixes. The operator must
/// need rights only to prefixes that existing keys have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_masters_for_all_key_prefixes_needs_rights_only_to_existing_keys() {
    let masters = start_three(None);
    write_values(&masters).await;
    let builder = settings_of(urls(OPERATOR_USER, masters.iter().take(2), ""));
    let operator_builder = builder
        .next_masters(urls(OPERATOR_USER, masters.iter().skip(1), ""))
        .prefix("")
        .max_ttl(MAX_TTL)
        .ttl(MAX_TTL)
        .node_timeout(MAX_TTL / 4);
    let operator_client = operator_builder.build().expect("good settings");
    grant_command(operator_command(), &masters, Some("~quorate:value:b:*"));
    let error_text = run_whole_change(&operator_client)
        .await
        .expect_err("a right is missing");
    assert!(
        error_text.to_string().contains("<user> ~quorate:value:b:*"),
        "{error_text}"
    );
    assert_eq!(read_markers(&masters), [None, None, None]);
    grant_command(operator_command(), &masters, None);
    run_whole_change(&operator_client)
        .await
        .expect("all rights are granted");
}

#[tokio::test]
async fn documented_rights_allow_no_dangerous_command() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, None);
        let user = documented_command()[2].clone();
        let mut connection = masters[0].connect(secs(5)).expect("a connection");
        let welcome = connection.command(&["AUTH", &user, PASSWORD]);
        assert!(welcome.expect("the server must answer the command").is_ok());
        for command in [
            &["FLUSHALL"][..],
            &["FLUSHDB"],
            &["SWAPDB", "0", "1"],
            &["KEYS", "*"],
            &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"],
            &["CONFIG", "GET", "requirepass"],
            &["SHUTDOWN", "NOSAVE"],
            &["SCRIPT", "FLUSH"],
            &["EVAL", "return 1", "0"],
            &["ACL", "LIST"],
            &["SET", "somebody", "else"],
            &["GET", "quorate:fence:other"],
            &["SUBSCRIBE", "news"],
            &["PUBLISH", "news", "x"],
        ] {
            let reply = connection
                .command(command)
                .expect("the server must answer the command");
            let field_text = reply.text().unwrap_or_default().into_owned();
            assert!(field_text.starts_with("NOPERM"), "{command:?}: {reply:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_of_a_master_names_each_missing_right_of_the_user() {
    for program in server_programs() {
        let masters = start_three(program);
        for right in documented_rights() {
            grant_rights(&masters, Some(&right));
            for inspection in locker_client(&masters).inspect().await {
                let missing_rules: Vec<&str> =
                    inspection.missing.iter().map(MissingRight::rule).collect();
                assert_eq!(missing_rules, [&*right], "{inspection:?}");
            }
        }
        grant_rights(&masters, None);
        assert_no_faults(&locker_client(&masters).inspect().await);
    }
}

/// Adds a waiter that belongs to no process to the queue on every master. The masters treat this waiter as dead after
/// the time `lives_until`, in milliseconds since 1970.
fn put_ghost_waiter(masters: &Masters, resource: &str, id: &str, lives_until: &str) {
    for master in masters {
        let key_of = |family: &str| format!("quorate:{family}:{KEY_PREFIX}{resource}");
        ask_server(master, &["ZADD", &key_of("queue"), "1", id]);
        ask_server(master, &["ZADD", &key_of("alive"), lives_until, id]);
    }
}

/// Uses all features of a lock. Returns the texts of all results and errors, joined to one text.
async fn use_every_call(masters: &Masters, resource: &str) -> String {
    let (first, second) = (locker_client(masters), locker_client(masters));
    let mut error_text = String::new();
    let mut note_error = |what: String| {
        error_text.push_str(&what);
        error_text.push('\n');
    };
    let guard = match first.try_acquire(resource).await {
        Ok(TryAcquire::Acquired(guard)) => guard,
        other => return format!("{other:?}"),
    };
    // Add a live waiter to the queue.
    put_ghost_waiter(masters, resource, "0123456789abcdef:1", "9999999999999");
    for node in first
        .status(resource)
        .await
        .expect("the name must be valid")
        .nodes
    {
        note_error(format!("{:?}", node.state));
    }
    note_error(format!(
        "{:?}",
        locker_client(masters).try_acquire(resource).await
    ));
    // The client `second` joins the queue, and leaves it after 700 ms.
    let wait = Wait::For(Duration::from_millis(700));
    let waited = second.lock(resource).wait(wait).acquire().await;
    note_error(format!("{waited:?}"));
    note_error(format!("{:?}", guard.extend(secs(25)).await));
    for master in masters {
        ask_server(master, &["DEL", &format!("{KEY_PREFIX}{resource}")]);
    }
    note_error(format!("{:?}", guard.extend(secs(29)).await));
    note_error(format!("{:?}", guard.release().await.reports()));
    let quota = first.quota(format!("{resource}, pieces"));
    note_error(format!("{:?}", quota.create(3).await));
    note_error(format!("{:?}", quota.take(1).await));
    note_error(format!("{:?}", quota.drop_quota().await));
    // Add a dead waiter to the queue. The next attempt of a client removes it.
    put_ghost_waiter(masters, resource, "0123456789abcdef:1", "1");
    note_error(format!("{:?}", first.try_acquire(resource).await));
    for node in second
        .break_lock(resource)
        .await
        .expect("the name must be valid")
        .nodes
    {
        note_error(format!("{:?}", node.state));
    }
    first.flush().await;
    second.flush().await;
    error_text
}

/// The text that the error of a lock must contain if the user lacks `right`. `None` if locks work without `right`, so
/// that there is no error.
fn expected_error(right: &str) -> Option<String> {
    match right {
        // Locks work without wake-ups, and without the closing of old connections.
        "+publish" | "+subscribe" | "+ping" | "&quorate:wake:*" | "+client|id" | "+client|kill" => {
            None
        }
        // If the user lacks this right, the client reads several locks one by one.
        "+mget"
        // Locks work without these rights. Notes, listings, and the immediate notification of observers need them.
        | "~quorate:note:lock:*"
        | "~quorate:note:quorate:hold:*:lock:*"
        | "&quorate:leader:*"
        | "+unsubscribe"
        | "+scan"
        | "+getex"
        // Only reader's locks, owners, permits and locks on several resources need this right.
        | "~quorate:holds:lock:*"
        // Plain locks do not need these rights. The rights serve changes of masters, connection names, permits and
        // shared locks.
        | "~quorate:masters"
        | "~quorate:masters:age"
        | "+client|setname"
        | "~quorate:slot:*:lock:*"
        | "~quorate:*:quorate:slot:*:lock:*"
        | "+zcount"
        | "+zremrangebyscore"
        | "+pexpireat" => None,
        "~lock:*" => Some("the lock key".to_owned()),
        _ => match right.strip_prefix('~') {
            Some(keys) => Some(keys.replace(KEY_PREFIX, "")),
            // Servers before Redis 7 report a denied `CLIENT LIST` as `client`.
            None => right[1..].split('|').next().map(str::to_owned),
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_error_names_each_missing_right() {
    let server_programs = server_programs().into_iter().map(async |program| {
        let masters = start_three(program);
        for (n, right) in documented_rights().iter().enumerate() {
            let Some(name) = expected_error(right) else {
                continue;
            };
            grant_rights(&masters, Some(right));
            let error_text = use_every_call(&masters, &format!("job {n}"))
                .await
                .to_lowercase();
            assert!(error_text.contains("denied"), "{right}: {error_text}");
            assert!(
                error_text.contains(&name),
                "the error must name the missing right {right}: {error_text}"
            );
            assert!(!error_text.contains(PASSWORD), "{error_text}");
        }
        grant_rights(&masters, None);
        let error_text = use_every_call(&masters, "job at last").await.to_lowercase();
        assert!(!error_text.contains("denied"), "{error_text}");
    });
    // Test all server programs concurrently, because these tests mostly wait.
    futures::future::join_all(server_programs).await;
}

#[tokio::test]
async fn extension_reports_a_revoked_right_as_a_fault_instead_of_a_loss() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, None);
        let redlock = locker_client(&masters);
        let guard = redlock.acquire("job").await.expect("free");
        grant_rights(&masters, Some("+get"));
        let extension_text = format!("{:?}", guard.extend(secs(25)).await);
        assert!(extension_text.contains("Denied"), "{extension_text}");
        grant_rights(&masters, None);
        guard.extend(secs(26)).await.expect("still ours");
    }
}

#[tokio::test]
async fn inspection_of_a_master_names_missing_rights_only_for_features_in_use() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, None);
        let database = settings(&masters, "/1").build().expect("good settings");
        let error = database.try_acquire("job").await.expect_err("denied");
        assert!(error.details().contains("select"), "{error}");
        let builder = settings(&masters, "").restart_guard(RestartGuard::Off);
        let unguarded = builder.build().expect("good settings");
        for (redlock, right) in [(&database, "+select"), (&unguarded, "+config|get")] {
            for inspection in redlock.inspect().await {
                let missing_rules: Vec<&str> =
                    inspection.missing.iter().map(MissingRight::rule).collect();
                assert_eq!(missing_rules, [right], "{inspection:?}");
            }
        }
        for master in &masters {
            let user = &documented_command()[2];
            ask_server(master, &["ACL", "SETUSER", user, "+select", "+config|get"]);
        }
        // Use another database, so that the client has to make new connections.
        let database = settings(&masters, "/1").build().expect("good settings");
        assert_no_faults(&database.inspect().await);
        assert_no_faults(&unguarded.inspect().await);
        let guard = database.acquire("job").await.expect("free");
        assert_eq!(guard.release().await.unreachable, 0);
    }
}

#[tokio::test]
async fn client_of_the_classic_algorithm_needs_no_queue_or_pubsub_rights() {
    let masters = start_three(None);
    grant_rights(&masters, None);
    for master in &masters {
        let user = &documented_command()[2];
        ask_server(
            master,
            &["ACL", "SETUSER", user, "-zadd", "-subscribe", "-zrem"],
        );
    }
    let build_result = settings(&masters, "").fencing(false).build();
    let classic_client = build_result.expect("good settings");
    for inspection in classic_client.inspect().await {
        assert_eq!(inspection.fault, None, "{inspection:?}");
        assert!(inspection.missing.is_empty(), "{inspection:?}");
        assert!(
            !inspection.wake_ups,
            "a client without ordered waiters must not listen for wake-ups"
        );
    }
    let guard = classic_client.acquire("job").await.expect("free");
    guard
        .extend(secs(25))
        .await
        .expect("the extension must succeed, because the lock is still held");
    assert_eq!(guard.release().await.unreachable, 0);
}

#[tokio::test]
async fn user_without_the_right_to_mget_can_acquire_many_locks_concurrently() {
    for program in server_programs() {
        let masters = start_three(program);
        grant_rights(&masters, Some("+mget"));
        let locker_client = locker_client(&masters);
        for _ in 0..3 {
            let names: Vec<String> = (0..50).map(|n| format!("one of many {n}")).collect();
            let acquires = names.iter().map(|name| locker_client.acquire(name));
            let outcomes = futures::future::join_all(acquires).await.into_iter();
            let held_guards: Vec<LockGuard> = outcomes
                .map(|outcome| {
                    outcome.expect(
                        "the acquire must succeed, because it works without the right +mget",
                    )
                })
                .collect();
            let releases = held_guards.iter().map(LockGuard::release);
            let releases_text = format!("{:?}", futures::future::join_all(releases).await);
            assert!(
                !releases_text.to_lowercase().contains("denied"),
                "{releases_text}"
            );
        }
        // Some server versions do not count denied calls, so check only the script calls.
        for master in &masters {
            let reply = ask_server(master, &["INFO", "commandstats"]);
            let stats = reply.text().expect("text").into_owned();
            let call_count_text = stats.split("cmdstat_evalsha:calls=").nth(1);
            let call_count =
                call_count_text.and_then(|rest| rest.split(',').next()?.parse::<u32>().ok());
            let is_batched = call_count.is_some_and(|count| count < 250);
            assert!(
                is_batched,
                "the client must combine its 300 requests into fewer than 250 script calls: {stats}"
            );
        }
    }
}

/// Returns true if the server can delete a key on condition that the key has a given value (Valkey 9: `DELIFEQ`). For a
/// lock without a queue, a client can use this command instead of the release script.
fn has_delete_command(server: &Server) -> bool {
    let reply = ask_server(server, &["INFO", "server"]);
    let info = reply.text().expect("text").into_owned();
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("valkey_version:"));
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major >= 9)
}

/// Acquires and releases a lock five times, with or without fencing tokens. Returns, for each master, how often the
/// client released the lock with the server's delete command.
async fn release_and_count(masters: &Masters, fencing: bool) -> Vec<u64> {
    let calls_before = delete_calls(masters);
    let builder = settings(masters, "")
        .fencing(fencing)
        .order(Order::Unordered);
    let unordered = builder.build().expect("good settings");
    // On a slow machine, a lock may be held for 100 ms and get a note. The client then releases the lock with the
    // script, to delete the note as well. So test five locks.
    for _ in 0..5 {
        let guard = unordered.acquire("job").await.expect("free");
        let released = guard.release().await;
        unordered.flush().await;
        assert_eq!(released.unreachable, 0, "{released:?}");
        assert!(!format!("{released:?}").contains("Denied"), "{released:?}");
        for master in masters {
            assert!(
                !has_key(master, "lock:job"),
                "every master must have released the lock"
            );
        }
    }
    let calls_after = delete_calls(masters).into_iter();
    calls_after
        .zip(calls_before)
        .map(|(calls_after, calls_before)| calls_after - calls_before)
        .collect()
}

fn delete_calls(masters: &Masters) -> Vec<u64> {
    masters
        .iter()
        .map(|master| count_calls(master, "delifeq"))
        .collect()
}

#[tokio::test]
async fn locks_without_a_queue_are_released_by_the_delete_command() {
    for program in server_programs() {
        let masters = start_three(program);
        let has_command = has_delete_command(&masters[0]);
        grant_rights(&masters, None);
        for fencing in [true, false] {
            assert_eq!(
                release_and_count(&masters, fencing).await,
                [0; 3],
                "the script must release the locks"
            );
        }
        for master in &masters {
            let objects = refused_objects(master);
            assert_eq!(
                objects.iter().any(|object| object == "delifeq"),
                has_command,
                "{objects:?}"
            );
            if has_command {
                let user = &documented_command()[2];
                ask_server(master, &["ACL", "SETUSER", user, "+delifeq"]);
            }
        }
        for fencing in [true, false] {
            let call_counts = release_and_count(&masters, fencing).await;
            // If the server has `DELIFEQ`, the client uses it for every release. Otherwise it tries `DELIFEQ` only
            // once.
            assert!(
                call_counts.iter().all(|times| (*times > 1) == has_command),
                "{call_counts:?}"
            );
        }
        // The release of a lock with a queue needs the script, because it must also wake the next waiter.
        let (calls_before, ordered) = (delete_calls(&masters), locker_client(&masters));
        let guard = ordered.acquire("job").await.expect("free");
        assert_eq!(guard.release().await.unreachable, 0);
        ordered.flush().await;
        assert_eq!(delete_calls(&masters), calls_before);
    }
}

#[tokio::test]
async fn locks_are_released_by_a_script_if_the_delete_command_was_renamed() {
    let mut was_tried = false;
    for program in server_programs() {
        if !has_delete_command(&start_three(program.clone())[0]) {
            continue;
        }
        was_tried = true;
        let options = |_| {
            let options = ServerOptions::new().arg("--rename-command");
            let options = options.arg("DELIFEQ").arg("elsewhere");
            program.iter().fold(options, ServerOptions::program)
        };
        let masters = Masters::start_with(3, options).unwrap_or_else(|error| panic!("{error}"));
        let reply = ask_server(&masters[0], &["DELIFEQ", "a", "b"]);
        assert!(!reply.is_ok(), "{reply:?}");
        grant_rights(&masters, None);
        for fencing in [true, false] {
            assert_eq!(release_and_count(&masters, fencing).await, [0; 3]);
        }
    }
    if !was_tried {
        not_run(
            "locks_are_released_by_a_script_if_the_delete_command_was_renamed",
            "no server has DELIFEQ",
        );
    }
}

fn assert_no_doctor_keys(master: &Server) {
    let leftover_keys = ask_server(master, &["KEYS", "*quorate-doctor*"]);
    assert_eq!(
        leftover_keys,
        Reply::Array(Vec::new()),
        "no key may be left"
    );
}
