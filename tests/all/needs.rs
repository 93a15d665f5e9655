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

const PREFIX: &str = "lock:";
const PASSWORD: &str = "s3cret-of-the-locker";

/// The Redis user of clients in docs/operations.md.
const CLIENT: &str = "quorate";
/// The Redis user of operators in docs/operations.md.
const OPERATOR: &str = "quorate-operator";

/// The words of the documented `ACL SETUSER` command for clients (docs/operations.md).
fn documented() -> Vec<String> {
    documented_for(CLIENT)
}

/// The words of the documented `ACL SETUSER` command for this user (docs/operations.md).
fn documented_for(user: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let command = format!("ACL SETUSER {user} ");
    let line = page.lines().find(|line| line.starts_with(&command));
    let line =
        line.unwrap_or_else(|| panic!("docs/operations.md must contain the command {command}"));
    line.split_whitespace().map(str::to_owned).collect()
}

/// The rights that the documented command for clients grants: commands such as `+get`, key patterns and channels.
fn rights() -> Vec<String> {
    let right = |word: &String| word.starts_with(['+', '~', '&']);
    documented().into_iter().filter(right).collect()
}

/// Every server program to test; `None` is the machine's default program.
fn programs() -> Vec<Option<PathBuf>> {
    let named = std::env::var("QUORATE_TEST_SERVERS").unwrap_or_default();
    let named = named.split(',').map(str::trim).filter(|p| !p.is_empty());
    std::iter::once(None)
        .chain(named.map(|path| Some(PathBuf::from(path))))
        .collect()
}

fn three(program: Option<PathBuf>) -> Masters {
    let options = |_| match &program {
        Some(program) => ServerOptions::new().program(program),
        None => ServerOptions::new(),
    };
    Masters::start_with(3, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the documented `ACL SETUSER` command for clients on every master. If `without` is a right, this right is left
/// out of the command. `None` grants all documented rights.
fn grant(masters: &Masters, without: Option<&str>) {
    grant_to(CLIENT, masters, without);
}

fn grant_to(user: &str, masters: &Masters, without: Option<&str>) {
    grant_words(documented_for(user), masters, without);
}

fn grant_words(mut words: Vec<String>, masters: &Masters, without: Option<&str>) {
    words.retain(|word| Some(word.as_str()) != without);
    for word in &mut words {
        if word.starts_with('>') {
            *word = format!(">{PASSWORD}");
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for master in masters {
        let reply = ask_server(master, &words);
        assert!(reply.is_ok(), "{words:?}: {reply:?}");
    }
}

/// A `Redlock` that logs in as the documented user for clients.
fn locker(masters: &Masters) -> Redlock {
    settings(masters, "").build().expect("good settings")
}

/// Settings with which a client logs in as the documented user for clients. `path` is appended to the URL of every
/// master, for example `/1` for database 1.
fn settings(masters: &Masters, path: &str) -> RedlockBuilder {
    settings_of(urls(CLIENT, masters.iter(), path))
}

/// The URLs of these masters with the name and the password of `user`.
fn urls<'a>(user: &str, masters: impl Iterator<Item = &'a Server>, path: &str) -> Vec<String> {
    let url = |master: &Server| format!("redis://{user}:{PASSWORD}@{}{path}", master.addr());
    masters.map(url).collect()
}

fn settings_of(urls: Vec<String>) -> RedlockBuilder {
    Redlock::builder()
        .masters(urls)
        .prefix(PREFIX)
        // Trust the test servers, which have just started. This setting needs the same rights as the default.
        .restart_guard(RestartGuard::AfterFirstContact)
        // A generous timeout for a busy machine.
        .node_timeout(secs(5))
        .connect_timeout(secs(10))
        .ttl(secs(20))
        .wait(Wait::For(PATIENCE))
}

/// The commands, keys and channels that this server has denied to the user, as its `ACL LOG` shows them.
fn refused(server: &Server) -> Vec<String> {
    let Reply::Array(entries) = ask_server(server, &["ACL", "LOG"]) else {
        panic!("no log")
    };
    let object = |entry: Reply| match entry {
        Reply::Array(fields) => {
            let text = |n: usize| fields.get(n).and_then(Reply::text).unwrap_or_default();
            let at = (0..fields.len()).find(|n| text(*n) == "object");
            text(at.expect("an object") + 1).into_owned()
        }
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(object).collect()
}

/// The number of times that this server has executed `command`.
fn calls(server: &Server, command: &str) -> u64 {
    let reply = ask_server(server, &["INFO", "commandstats"]);
    let stats = reply.text().expect("text").into_owned();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|line| line.split(',').next()?.parse().ok())
        .unwrap_or(0)
}

async fn queued(masters: &Masters, resource: &str) {
    let queue = format!("quorate:queue:{PREFIX}{resource}");
    eventually("a waiter must be in the queue of every master", || {
        masters.iter().all(|master| has_key(master, &queue))
    })
    .await;
}

fn assert_well(inspections: &[Inspection]) {
    for inspection in inspections {
        assert_eq!(inspection.fault, None, "{inspection:?}");
        assert!(inspection.missing.is_empty(), "{inspection:?}");
        assert!(inspection.wake_ups, "{inspection:?}");
    }
}

/// Deletes the lock key on a master. Then extends the lock repeatedly, until this master has the key again.
async fn put_back(master: &Server, guard: &LockGuard, key: &str) {
    ask_server(master, &["DEL", key]);
    let ours = guard.token().to_string();
    let started_at = Instant::now();
    loop {
        guard
            .extend(secs(29))
            .await
            .expect("the extension must succeed, because the lock is still held");
        if ask_server(master, &["GET", key]).text().as_deref() == Some(&*ours) {
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
async fn reached_again(masters: &Masters, redlock: &Redlock) {
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
async fn values(redlock: &Redlock) {
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
async fn kinds(redlock: &Redlock) {
    let reader = redlock.lock("doc").shared().note("reads").acquire().await;
    let permit = redlock.semaphore("api", 2).note("calls").acquire().await;
    let (reader, permit) = (reader.expect("free"), permit.expect("free"));
    let started_at = Instant::now();
    loop {
        let doc = redlock.status("doc").await.expect("the name must be valid");
        let api = redlock
            .semaphore_status("api")
            .await
            .expect("the name must be valid");
        let reads = doc.holds().into_iter().find_map(|hold| hold.note);
        let calls = api.permits.iter().find_map(|permit| permit.status.note());
        if let (Some(reads), Some(calls)) = (&reads, calls) {
            let texts = [&reads.text, &calls.text].map(|text| text.as_deref());
            assert_eq!(texts, [Some("reads"), Some("calls")]);
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{doc:?} {api:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let slot = permit.slot().expect("one");
    let broken = redlock.break_permit("api", slot).await.expect("a slot");
    assert!(broken.nodes.iter().all(|node| node.state.is_ok()));
    drop((reader, permit));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_with_exactly_the_documented_rights_can_use_every_function_of_a_client() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, None);
        let (first, second) = (locker(&masters), locker(&masters));

        let guard = first.acquire("job").await.expect("free");
        assert!(guard.fencing_token().is_some());
        let waiter = tokio::spawn({
            let second = second.clone();
            async move { second.acquire("job").await }
        });
        queued(&masters, "job").await;
        let tried = locker(&masters).try_acquire("job").await.expect("answers");
        assert!(matches!(tried, TryAcquire::Held(_)));
        let status = second.status("job").await.expect("the name must be valid");
        for node in &status.nodes {
            let state = node.state.as_ref().expect("an answer");
            assert_eq!(state.queue.len(), 1, "{state:?}");
        }
        guard.extend(secs(25)).await.expect("still held");
        put_back(&masters[0], &guard, "lock:job").await;
        assert_eq!(guard.release().await.unreachable, 0);
        let guard = waiter.await.expect("no panic").expect("acquired");
        for master in &masters {
            // The waiter already has the lock when two masters have released it. So wait until the third master has
            // also published its wake-up.
            eventually("the master must have published a wake-up", || {
                calls(master, "publish") > 0
            })
            .await;
            eventually("both clients must listen for wake-ups", || {
                let heard = ask_server(master, &["PUBSUB", "CHANNELS", "quorate:wake:*"]);
                matches!(&heard, Reply::Array(channels) if channels.len() >= 2)
            })
            .await;
        }

        values(&first).await;
        kinds(&first).await;
        let broken = first.break_lock("job").await.expect("must be a valid name");
        assert!(broken.nodes.iter().all(|node| node.state.is_ok()));
        assert!(masters.iter().all(|master| !has_key(master, "lock:job")));
        drop(guard);

        reached_again(&masters, &first).await;
        assert_well(&first.inspect().await);
        for master in &masters {
            let left = ask_server(master, &["KEYS", "*quorate-doctor*"]);
            assert_eq!(left, Reply::Array(Vec::new()), "no key may be left");
        }

        for master in &masters {
            let refused: Vec<String> = refused(master)
                .into_iter()
                // These commands are optional. Old servers report a denied `CLIENT SETNAME` as `client`.
                .filter(|what| !["client|setinfo", "client|setname", "client"].contains(&&**what))
                // `CONFIG GET` is optional for inspections.
                .filter(|what| what != "config|get" && what != "config")
                .collect();
            assert_eq!(
                refused,
                [] as [String; 0],
                "the page must name every right that the client needs"
            );
        }
    }
}

/// The row for this purpose in the table of rights in docs/operations.md: its commands, and its key prefixes.
fn row(purpose: &str) -> (Vec<String>, Vec<String>) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let row = page.lines().find_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_prefix(purpose)?;
        cells.strip_prefix(" | ")
    });
    let mut cells = row.expect("the row").split(" | ");
    let commands = cells.next().expect("commands").replace('\\', "");
    let keys = cells.next().expect("keys");
    let keys = keys.replace("the lock key", &format!("`{PREFIX}`"));
    let words = |cell: String| {
        cell.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let word = |word: String| word.trim_matches('`').to_owned();
    let commands = words(commands).into_iter().map(word);
    let keys = words(keys).into_iter().map(word);
    let commands = commands.map(|command| format!("+{command}"));
    (
        commands.collect(),
        keys.map(|key| format!("~{key}*")).collect(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_with_the_documented_rights_can_show_and_force_release_a_permit() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, None);
        let outcome = locker(&masters).semaphore("api", 2).acquire().await;
        let permit = outcome.expect("free");
        let slot = permit.slot().expect("one");
        // Give the operator the commands of both rows, but only the keys of the row for `status`, `break` and `doctor`.
        let (scripts, _) = row("taking, renewing, releasing");
        let (commands, keys) = row("`status`, `break`, `doctor`");
        let user = documented()[2].clone();
        let mut words = ["ACL", "SETUSER", &user, "reset", "on"]
            .map(str::to_owned)
            .to_vec();
        words.push(format!(">{PASSWORD}"));
        words.extend(scripts.into_iter().chain(commands).chain(keys));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for master in &masters {
            assert!(ask_server(master, &words).is_ok(), "{words:?}");
        }
        let operator = locker(&masters);
        let seen = operator
            .semaphore_status("api")
            .await
            .expect("the name must be valid");
        let slots: Vec<_> = seen.permits.iter().map(|permit| permit.slot).collect();
        assert_eq!(slots, [Some(slot)], "{seen:?}");
        let broken = operator.break_permit("api", slot).await.expect("a slot");
        assert!(
            broken.nodes.iter().all(|node| node.state.is_ok()),
            "{broken:?}"
        );
    }
}

/// The longest lease of the clients in the tests that replace masters.
const MAX_TTL: Duration = secs(1);

/// A `Redlock` of this user for a change of masters. The first two of the three servers are the old masters, and the
/// last two are the next masters.
fn replacing(user: &str, masters: &Masters) -> Redlock {
    settings_of(urls(user, masters.iter().take(2), ""))
        .next_masters(urls(user, masters.iter().skip(1), ""))
        .max_ttl(MAX_TTL)
        .ttl(MAX_TTL)
        .node_timeout(MAX_TTL / 4)
        .build()
        .expect("good settings")
}

/// The value of the generation marker on each master. `None` for a master without a marker.
fn markers(masters: &Masters) -> Vec<Option<String>> {
    let marker = |master| {
        let marker = ask_server(master, &["GET", "quorate:masters"]);
        marker.text().map(std::borrow::Cow::into_owned)
    };
    masters.iter().map(marker).collect()
}

/// Begins the change of the masters as soon as the uptime of the new server is long enough.
async fn begin(redlock: &Redlock) {
    let started_at = Instant::now();
    let change = redlock.change().expect("next_masters must be set");
    while let Err(error) = change.begin().await {
        assert!(started_at.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_with_exactly_the_documented_rights_can_mark_and_replace_masters() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, None);
        grant_to(OPERATOR, &masters, None);
        let client = replacing(CLIENT, &masters);
        let builder = settings_of(urls(OPERATOR, masters.iter().take(2), ""));
        let old = builder.build().expect("good settings");
        old.mark_masters().await.expect("the step must succeed");

        let operator = replacing(OPERATOR, &masters);
        begin(&operator).await;
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
            let refused = refused(master);
            let optional = |what: &String| {
                // Old servers report a denied `CLIENT SETINFO` as `client`.
                ["client|setinfo", "client"].contains(&what.as_str())
            };
            let refused: Vec<_> = refused.into_iter().filter(|what| !optional(what)).collect();
            assert_eq!(refused, [] as [String; 0], "the page must name every right");
        }
    }
}

/// A second key prefix. The locks of some tests use it in addition to [`PREFIX`].
const SECOND_PREFIX: &str = "b:";

/// The rights that the documentation lists for operators, with each key pattern repeated for [`SECOND_PREFIX`].
fn words_of_operators() -> Vec<String> {
    let mut words = documented_for(OPERATOR);
    let keys = words.iter().filter(|word| word.starts_with('~'));
    let keys = keys.filter(|word| word.contains(PREFIX));
    let second: Vec<String> = keys
        .map(|word| word.replace(PREFIX, SECOND_PREFIX))
        .collect();
    words.extend(second);
    words
}

/// Stores a quota and the fencing counter of a semaphore under each of the two prefixes.
async fn store_values(masters: &Masters) {
    for prefix in [PREFIX, SECOND_PREFIX] {
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
async fn replace(redlock: &Redlock) -> Result<(), ChangeError> {
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
    let operator = replacing(OPERATOR, masters);
    let survey = operator.survey().await.expect("masters with markers");
    for master in &survey.masters {
        let rules = master.seen.missing.iter().map(MissingRight::rule);
        assert_eq!(rules.collect::<Vec<_>>(), [right], "{master:?}");
        assert!(master.lacks_rights());
    }
    let change = operator.change().expect("next masters are set");
    let builder = settings_of(urls(OPERATOR, masters.iter().take(2), ""));
    let old = builder.build().expect("good settings");
    for step in [
        change.begin().await,
        change.close().await,
        change.closed().await,
        change.open(&survey).await,
        change.finish().await,
        old.mark_masters().await,
    ] {
        let said = step.expect_err("a right is missing").to_string();
        assert!(
            said.contains(&format!("ACL SETUSER <user> {right}")),
            "{said}"
        );
        assert!(!said.contains(PASSWORD), "{said}");
    }
}

/// Regression test: if the operator lacks any right, the first step of a change must fail before it writes anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_masters_writes_nothing_if_the_operator_lacks_a_right() {
    for program in programs() {
        let masters = three(program);
        store_values(&masters).await;
        let mut needless = Vec::new();
        for right in words_of_operators() {
            if !right.starts_with(['+', '~', '&']) {
                continue;
            }
            grant_words(words_of_operators(), &masters, Some(&right));
            match replace(&replacing(OPERATOR, &masters)).await {
                Err(_) => {
                    assert_eq!(markers(&masters), [None, None, None], "{right}");
                    assert_each_step_names(&right, &masters).await;
                    assert_eq!(markers(&masters), [None, None, None], "{right}");
                }
                Ok(()) => needless.push(right),
            }
            for master in &masters {
                ask_server(master, &["DEL", "quorate:masters"]);
            }
        }
        // These two rights are not needed, because the test stores no key that matches these patterns.
        let groups = ["~quorate:holds:b:*", "~quorate:note:quorate:hold:*:b:*"];
        assert_eq!(needless, groups);
        assert_refusals_without_the_rights_of_clients_or_operators(&masters).await;
    }
}

async fn assert_refusals_without_the_rights_of_clients_or_operators(masters: &Masters) {
    let (mut commands, keys) = row("`quorate masters`: operators only");
    let words = ["ACL", "SETUSER", OPERATOR, "reset", "on", ">"].map(str::to_owned);
    commands.extend(keys.iter().map(|key| key.trim_end_matches('*').to_owned()));
    grant_words(words.into_iter().chain(commands).collect(), masters, None);
    let operator = replacing(OPERATOR, masters);
    let said = replace(&operator).await.expect_err("rights are missing");
    assert!(said.to_string().contains("+del"), "{said}");
    assert_eq!(markers(masters), [None, None, None]);

    // Give the user of the clients only its documented rights. They do not include `CLIENT LIST`.
    grant(masters, None);
    let client = replacing(CLIENT, masters);
    let said = replace(&client).await.expect_err("rights are missing");
    let said = said.to_string();
    assert!(
        said.contains("CLIENT LIST: ACL SETUSER <user> +client|list"),
        "{said}"
    );
    assert_eq!(markers(masters), [None, None, None]);
    // The survey must contain everything that this user may read, although the user lacks the right `client|list`.
    let survey = client.survey().await.expect("masters with markers");
    let mut seen = survey.masters.iter().map(|master| &master.seen);
    assert!(seen.all(|seen| seen.run_id.is_some()));
}

/// The operator's key prefix is empty, so the change of masters handles the keys of all prefixes. The operator must
/// need rights only to prefixes that existing keys have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_masters_for_all_key_prefixes_needs_rights_only_to_existing_keys() {
    let masters = three(None);
    store_values(&masters).await;
    let builder = settings_of(urls(OPERATOR, masters.iter().take(2), ""));
    let all = builder
        .next_masters(urls(OPERATOR, masters.iter().skip(1), ""))
        .prefix("")
        .max_ttl(MAX_TTL)
        .ttl(MAX_TTL)
        .node_timeout(MAX_TTL / 4);
    let operator = all.build().expect("good settings");
    grant_words(words_of_operators(), &masters, Some("~quorate:value:b:*"));
    let said = replace(&operator).await.expect_err("a right is missing");
    assert!(
        said.to_string().contains("<user> ~quorate:value:b:*"),
        "{said}"
    );
    assert_eq!(markers(&masters), [None, None, None]);
    grant_words(words_of_operators(), &masters, None);
    replace(&operator).await.expect("all rights are granted");
}

#[tokio::test]
async fn documented_rights_allow_no_dangerous_command() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, None);
        let user = documented()[2].clone();
        let mut connection = masters[0].connect(secs(5)).expect("a connection");
        let welcome = connection.command(&["AUTH", &user, PASSWORD]);
        assert!(welcome.expect("the server must answer the command").is_ok());
        for harm in [
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
                .command(harm)
                .expect("the server must answer the command");
            let text = reply.text().unwrap_or_default().into_owned();
            assert!(text.starts_with("NOPERM"), "{harm:?}: {reply:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_of_a_master_names_each_missing_right_of_the_user() {
    for program in programs() {
        let masters = three(program);
        for right in rights() {
            grant(&masters, Some(&right));
            for inspection in locker(&masters).inspect().await {
                let rules: Vec<&str> = inspection.missing.iter().map(MissingRight::rule).collect();
                assert_eq!(rules, [&*right], "{inspection:?}");
            }
        }
        grant(&masters, None);
        assert_well(&locker(&masters).inspect().await);
    }
}

/// Adds a waiter that belongs to no process to the queue on every master. The masters treat this waiter as dead after
/// the time `lives_until`, in milliseconds since 1970.
fn ghost(masters: &Masters, resource: &str, id: &str, lives_until: &str) {
    for master in masters {
        let of = |family: &str| format!("quorate:{family}:{PREFIX}{resource}");
        ask_server(master, &["ZADD", &of("queue"), "1", id]);
        ask_server(master, &["ZADD", &of("alive"), lives_until, id]);
    }
}

/// Uses all features of a lock. Returns the texts of all results and errors, joined to one text.
async fn life(masters: &Masters, resource: &str) -> String {
    let (first, second) = (locker(masters), locker(masters));
    let mut said = String::new();
    let mut note = |what: String| {
        said.push_str(&what);
        said.push('\n');
    };
    let guard = match first.try_acquire(resource).await {
        Ok(TryAcquire::Acquired(guard)) => guard,
        other => return format!("{other:?}"),
    };
    // Add a live waiter to the queue.
    ghost(masters, resource, "0123456789abcdef:1", "9999999999999");
    for node in first
        .status(resource)
        .await
        .expect("the name must be valid")
        .nodes
    {
        note(format!("{:?}", node.state));
    }
    note(format!("{:?}", locker(masters).try_acquire(resource).await));
    // The client `second` joins the queue, and leaves it after 700 ms.
    let wait = Wait::For(Duration::from_millis(700));
    let waited = second.lock(resource).wait(wait).acquire().await;
    note(format!("{waited:?}"));
    note(format!("{:?}", guard.extend(secs(25)).await));
    for master in masters {
        ask_server(master, &["DEL", &format!("{PREFIX}{resource}")]);
    }
    note(format!("{:?}", guard.extend(secs(29)).await));
    note(format!("{:?}", guard.release().await.reports()));
    let quota = first.quota(format!("{resource}, pieces"));
    note(format!("{:?}", quota.create(3).await));
    note(format!("{:?}", quota.take(1).await));
    note(format!("{:?}", quota.drop_quota().await));
    // Add a dead waiter to the queue. The next attempt of a client removes it.
    ghost(masters, resource, "0123456789abcdef:1", "1");
    note(format!("{:?}", first.try_acquire(resource).await));
    for node in second
        .break_lock(resource)
        .await
        .expect("the name must be valid")
        .nodes
    {
        note(format!("{:?}", node.state));
    }
    first.flush().await;
    second.flush().await;
    said
}

/// The text that the error of a lock must contain if the user lacks `right`. `None` if locks work without `right`, so
/// that there is no error.
fn told(right: &str) -> Option<String> {
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
            Some(keys) => Some(keys.replace(PREFIX, "")),
            // Servers before Redis 7 report a denied `CLIENT LIST` as `client`.
            None => right[1..].split('|').next().map(str::to_owned),
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_error_names_each_missing_right() {
    let programs = programs().into_iter().map(async |program| {
        let masters = three(program);
        for (n, right) in rights().iter().enumerate() {
            let Some(name) = told(right) else { continue };
            grant(&masters, Some(right));
            let said = life(&masters, &format!("job {n}")).await.to_lowercase();
            assert!(said.contains("denied"), "{right}: {said}");
            assert!(
                said.contains(&name),
                "the error must name the missing right {right}: {said}"
            );
            assert!(!said.contains(PASSWORD), "{said}");
        }
        grant(&masters, None);
        let said = life(&masters, "job at last").await.to_lowercase();
        assert!(!said.contains("denied"), "{said}");
    });
    // Test all server programs concurrently, because these tests mostly wait.
    futures::future::join_all(programs).await;
}

#[tokio::test]
async fn extension_reports_a_revoked_right_as_a_fault_instead_of_a_loss() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, None);
        let redlock = locker(&masters);
        let guard = redlock.acquire("job").await.expect("free");
        grant(&masters, Some("+get"));
        let said = format!("{:?}", guard.extend(secs(25)).await);
        assert!(said.contains("Denied"), "{said}");
        grant(&masters, None);
        guard.extend(secs(26)).await.expect("still ours");
    }
}

#[tokio::test]
async fn inspection_of_a_master_names_missing_rights_only_for_features_in_use() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, None);
        let database = settings(&masters, "/1").build().expect("good settings");
        let error = database.try_acquire("job").await.expect_err("denied");
        assert!(error.details().contains("select"), "{error}");
        let builder = settings(&masters, "").restart_guard(RestartGuard::Off);
        let unguarded = builder.build().expect("good settings");
        for (redlock, right) in [(&database, "+select"), (&unguarded, "+config|get")] {
            for inspection in redlock.inspect().await {
                let rules: Vec<&str> = inspection.missing.iter().map(MissingRight::rule).collect();
                assert_eq!(rules, [right], "{inspection:?}");
            }
        }
        for master in &masters {
            let user = &documented()[2];
            ask_server(master, &["ACL", "SETUSER", user, "+select", "+config|get"]);
        }
        // Use another database, so that the client has to make new connections.
        let database = settings(&masters, "/1").build().expect("good settings");
        assert_well(&database.inspect().await);
        assert_well(&unguarded.inspect().await);
        let guard = database.acquire("job").await.expect("free");
        assert_eq!(guard.release().await.unreachable, 0);
    }
}

#[tokio::test]
async fn client_of_the_classic_algorithm_needs_no_queue_or_pubsub_rights() {
    let masters = three(None);
    grant(&masters, None);
    for master in &masters {
        let user = &documented()[2];
        ask_server(
            master,
            &["ACL", "SETUSER", user, "-zadd", "-subscribe", "-zrem"],
        );
    }
    let build_result = settings(&masters, "").fencing(false).build();
    let classic = build_result.expect("good settings");
    for inspection in classic.inspect().await {
        assert_eq!(inspection.fault, None, "{inspection:?}");
        assert!(inspection.missing.is_empty(), "{inspection:?}");
        assert!(
            !inspection.wake_ups,
            "a client without ordered waiters must not listen for wake-ups"
        );
    }
    let guard = classic.acquire("job").await.expect("free");
    guard
        .extend(secs(25))
        .await
        .expect("the extension must succeed, because the lock is still held");
    assert_eq!(guard.release().await.unreachable, 0);
}

#[tokio::test]
async fn user_without_the_right_to_mget_can_acquire_many_locks_concurrently() {
    for program in programs() {
        let masters = three(program);
        grant(&masters, Some("+mget"));
        let locker = locker(&masters);
        for _ in 0..3 {
            let names: Vec<String> = (0..50).map(|n| format!("one of many {n}")).collect();
            let all = names.iter().map(|name| locker.acquire(name));
            let outcomes = futures::future::join_all(all).await.into_iter();
            let held: Vec<LockGuard> = outcomes
                .map(|one| {
                    one.expect("the acquire must succeed, because it works without the right +mget")
                })
                .collect();
            let released = held.into_iter().map(LockGuard::release);
            let released = format!("{:?}", futures::future::join_all(released).await);
            assert!(!released.to_lowercase().contains("denied"), "{released}");
        }
        // Some server versions do not count denied calls, so check only the script calls.
        for master in &masters {
            let reply = ask_server(master, &["INFO", "commandstats"]);
            let stats = reply.text().expect("text").into_owned();
            let calls = stats.split("cmdstat_evalsha:calls=").nth(1);
            let calls = calls.and_then(|rest| rest.split(',').next()?.parse::<u32>().ok());
            let fewer = calls.is_some_and(|calls| calls < 250);
            assert!(
                fewer,
                "the client must combine its 300 requests into fewer than 250 script calls: {stats}"
            );
        }
    }
}

/// Returns true if the server can delete a key on condition that the key has a given value (Valkey 9: `DELIFEQ`). For a
/// lock without a queue, a client can use this command instead of the release script.
fn deletes_by_command(server: &Server) -> bool {
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
async fn give_back(masters: &Masters, fencing: bool) -> Vec<u64> {
    let before = by_command(masters);
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
    let now = by_command(masters).into_iter();
    now.zip(before).map(|(now, before)| now - before).collect()
}

fn by_command(masters: &Masters) -> Vec<u64> {
    masters
        .iter()
        .map(|master| calls(master, "delifeq"))
        .collect()
}

#[tokio::test]
async fn locks_without_a_queue_are_released_by_the_delete_command() {
    for program in programs() {
        let masters = three(program);
        let has = deletes_by_command(&masters[0]);
        grant(&masters, None);
        for fencing in [true, false] {
            assert_eq!(
                give_back(&masters, fencing).await,
                [0; 3],
                "the script must release the locks"
            );
        }
        for master in &masters {
            let objects = refused(master);
            assert_eq!(
                objects.iter().any(|object| object == "delifeq"),
                has,
                "{objects:?}"
            );
            if has {
                let user = &documented()[2];
                ask_server(master, &["ACL", "SETUSER", user, "+delifeq"]);
            }
        }
        for fencing in [true, false] {
            let asked = give_back(&masters, fencing).await;
            // If the server has `DELIFEQ`, the client uses it for every release. Otherwise it tries `DELIFEQ` only
            // once.
            assert!(asked.iter().all(|times| (*times > 1) == has), "{asked:?}");
        }
        // The release of a lock with a queue needs the script, because it must also wake the next waiter.
        let (before, ordered) = (by_command(&masters), locker(&masters));
        let guard = ordered.acquire("job").await.expect("free");
        assert_eq!(guard.release().await.unreachable, 0);
        ordered.flush().await;
        assert_eq!(by_command(&masters), before);
    }
}

#[tokio::test]
async fn locks_are_released_by_a_script_if_the_delete_command_was_renamed() {
    let mut tried = false;
    for program in programs() {
        if !deletes_by_command(&three(program.clone())[0]) {
            continue;
        }
        tried = true;
        let options = |_| {
            let options = ServerOptions::new().arg("--rename-command");
            let options = options.arg("DELIFEQ").arg("elsewhere");
            program.iter().fold(options, ServerOptions::program)
        };
        let masters = Masters::start_with(3, options).unwrap_or_else(|error| panic!("{error}"));
        let reply = ask_server(&masters[0], &["DELIFEQ", "a", "b"]);
        assert!(!reply.is_ok(), "{reply:?}");
        grant(&masters, None);
        for fencing in [true, false] {
            assert_eq!(give_back(&masters, fencing).await, [0; 3]);
        }
    }
    if !tried {
        not_run(
            "locks_are_released_by_a_script_if_the_delete_command_was_renamed",
            "no server has DELIFEQ",
        );
    }
}
