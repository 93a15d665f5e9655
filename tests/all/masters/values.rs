//! Tests that `open` copies stored values to the next masters, which replace the old ones. Stored values are quotas and
//! records of once jobs (docs/protocol.md, "Values while masters are replaced").

use std::time::Duration;

use quorate::{
    ChangeStage, OnceOutcome, Redlock, RedlockBuilder, RestartGuard, Survey, Take, ValueError,
};

use super::support::{ask_server, eventually, ms, secs, settings};
use super::{MAX_TTL, PATIENCE, Scene, begin, missing_conditions};

/// A period of a year, which does not end during a test.
const PERIOD: Duration = secs(365 * 24 * 3600);

/// The uptime after which the restart guard trusts a server. The servers report their uptime in whole seconds, so this
/// time includes a margin.
const RESTART_GUARD_TIME: Duration = Duration::from_millis(2_500);

impl Scene {
    /// The URLs of the servers with the indexes in `indices`. If an index is also in `unreachable`, the URL contains an unknown
    /// user, so the server refuses the login.
    fn urls_without(&self, indices: &[usize], unreachable: &[usize]) -> Vec<String> {
        let url_or_unreachable = |index: &usize| {
            let url_or_unreachable = &self.servers.urls()[*index];
            if unreachable.contains(index) {
                url_or_unreachable.replace("redis://", "redis://nobody:x@")
            } else {
                url_or_unreachable.clone()
            }
        };
        indices.iter().map(url_or_unreachable).collect()
    }

    fn guarded_builder(&self, indices: &[usize], unreachable: &[usize]) -> RedlockBuilder {
        settings(self.urls_without(indices, unreachable))
            .max_ttl(MAX_TTL)
            .ttl(MAX_TTL)
            .node_timeout(ms(250))
            .restart_guard(RestartGuard::AfterFirstContact)
    }

    fn old_client_without(&self, unreachable: &[usize]) -> Redlock {
        self.guarded_builder(&[0, 1, 2], unreachable)
            .build()
            .expect("old")
    }

    fn joint_client_without(&self, unreachable: &[usize]) -> Redlock {
        let next_urls = self.urls_without(&[2, 3, 4], unreachable);
        let joint_client = self
            .guarded_builder(&[0, 1, 2], unreachable)
            .next_masters(next_urls);
        joint_client.build().expect("both")
    }

    fn stored_text(&self, server: usize, name: &str) -> Option<String> {
        let value_key = format!("quorate:value:{name}");
        let get_reply = ask_server(&self.servers[server], &["GET", &value_key]);
        get_reply.text().map(std::borrow::Cow::into_owned)
    }

    async fn restart_empty(&self, server: usize) {
        self.servers[server].restart_empty().expect("restarted");
        tokio::time::sleep(RESTART_GUARD_TIME).await;
    }
}

/// Runs the steps `close` and `closed` of a change, waits for the duration `change.wait()`, and runs `open`. Returns
/// the result of `open`.
async fn run_change(joint_client: &Redlock) -> Result<Survey, quorate::ChangeError> {
    let change = joint_client.change().expect("a change");
    change.close().await.expect("closed");
    let closed = change.closed().await.expect("closed");
    tokio::time::sleep(change.wait()).await;
    change.open(&closed).await
}

/// One text for each stored value that `open` handled: the name of the value and the outcome, such as `"job": carried`.
fn carried_values(survey: &Survey) -> Vec<String> {
    let carried_values = survey.carried.iter();
    carried_values.map(ToString::to_string).collect()
}

async fn take_units(redlock: &Redlock, units: u64) -> Take {
    let take_result = redlock.quota("beans").take(units).await;
    take_result.unwrap_or_else(|error| panic!("{error}"))
}

/// Tests that a job does not run twice in its period if one old master after another fails. At most one of them is
/// unreachable or restarted at a time.
#[tokio::test]
async fn once_job_does_not_run_twice_when_old_masters_fail_one_after_another() {
    let scene = Scene::start();
    let create_job = |redlock: &Redlock| redlock.once("job", PERIOD);
    let joint_client = scene.joint_client_without(&[]);
    begin(&joint_client.change().expect("a change")).await;
    create_job(&joint_client).create().await.expect("created");
    let outcome = create_job(&scene.old_client_without(&[2]))
        .at_most_once(async |_| ())
        .await;
    assert_eq!(outcome, Ok(OnceOutcome::Done(())));
    scene.restart_empty(1).await;
    let joint_client = scene.joint_client_without(&[0]);
    begin(&joint_client.change().expect("a change")).await;
    let missing = missing_conditions(run_change(&joint_client).await);
    assert!(
        missing.iter().any(|line| line.contains("\"job\"")),
        "{missing:?}"
    );
    let joint_client = scene.joint_client_without(&[]);
    let open_survey = run_change(&joint_client).await.expect("open");
    assert_eq!(carried_values(&open_survey), ["\"job\": carried"]);
    let outcome = create_job(&scene.next_client())
        .at_most_once(async |_| ())
        .await;
    assert!(
        matches!(outcome, Ok(OnceOutcome::AlreadyDone { .. })),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn step_open_fails_until_the_operator_drops_a_value_that_a_majority_lost() {
    let scene = Scene::start();
    let joint_client = scene.joint_client_without(&[]);
    begin(&joint_client.change().expect("a change")).await;
    joint_client
        .quota("beans")
        .create(7)
        .await
        .expect("created");
    assert_eq!(
        take_units(&scene.old_client_without(&[2]), 3).await,
        Take::Taken { left: 4 }
    );
    scene.restart_empty(0).await;
    scene.restart_empty(1).await;
    let units_left = scene.old_client().quota("beans").left().await;
    assert!(
        matches!(units_left, Err(ValueError::Lost(_))),
        "{units_left:?}"
    );
    begin(&joint_client.change().expect("a change")).await;
    let missing = missing_conditions(run_change(&joint_client).await);
    let names_the_value = |line: &String| line.contains("\"beans\"") && line.contains("quota 7");
    assert!(missing.iter().any(names_the_value), "{missing:?}");
    joint_client
        .quota("beans")
        .drop_quota()
        .await
        .expect("dropped");
    let open_survey = run_change(&joint_client).await.expect("open");
    assert!(open_survey.carried.is_empty(), "{open_survey:?}");
    let units_left = scene.next_client().quota("beans").left().await;
    assert!(
        matches!(units_left, Err(ValueError::Missing(_))),
        "{units_left:?}"
    );
}

#[tokio::test]
async fn quota_deleted_during_a_change_of_masters_is_not_restored() {
    let scene = Scene::start();
    let (old, joint_client) = (scene.old_client(), scene.joint_client());
    begin(&joint_client.change().expect("a change")).await;
    joint_client
        .quota("beans")
        .create(10)
        .await
        .expect("created");
    old.quota("beans").drop_quota().await.expect("dropped");
    let open_survey = run_change(&joint_client).await.expect("open");
    assert_eq!(
        carried_values(&open_survey),
        ["\"beans\": removed, because no old master has the value"]
    );
    let units_left = scene.next_client().quota("beans").left().await;
    assert!(
        matches!(units_left, Err(ValueError::Missing(_))),
        "{units_left:?}"
    );
}

#[tokio::test]
async fn change_back_to_former_masters_ignores_outdated_values_on_these_masters() {
    let scene = Scene::start();
    let (joint_client, next) = (scene.joint_client(), scene.next_client());
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    for name in ["beans", "peas"] {
        joint_client.quota(name).create(10).await.expect("created");
    }
    run_change(&joint_client).await.expect("open");
    change.finish().await.expect("finished");
    assert_eq!(take_units(&next, 7).await, Take::Taken { left: 3 });
    let peas = next.quota("peas");
    assert_eq!(peas.take(7).await, Ok(Take::Taken { left: 3 }));
    peas.drop_quota().await.expect("dropped");
    let builder = scene.settings(2..5).masters_generation(1);
    let return_builder = builder
        .next_masters(scene.urls(0..3))
        .build()
        .expect("back");
    let survey = begin_again(&return_builder).await;
    let advice = survey.advice();
    assert!(
        advice.iter().all(|line| line.contains("values")),
        "{advice:?}"
    );
    assert_eq!(advice.len(), 2, "{advice:?}");
    run_change(&return_builder).await.expect("open");
    let first_builder = scene.settings(0..3).masters_generation(2);
    let first_client = first_builder
        .build()
        .expect("the settings with the original masters must be valid");
    assert_eq!(first_client.quota("beans").left().await, Ok(3));
    let units_left = first_client.quota("peas").left().await;
    assert!(
        matches!(units_left, Err(ValueError::Missing(_))),
        "{units_left:?}"
    );
}

async fn begin_again(redlock: &Redlock) -> Survey {
    let change = redlock.change().expect("a change");
    let started_at = std::time::Instant::now();
    loop {
        match change.begin().await {
            Ok(survey) => return survey,
            Err(error) => assert!(started_at.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(ms(100)).await;
    }
}

#[tokio::test]
async fn stored_values_left_by_an_abandoned_change_are_not_used_by_the_next_change() {
    let scene = Scene::start();
    let (old, joint_client) = (scene.old_client(), scene.joint_client());
    begin(&joint_client.change().expect("a change")).await;
    joint_client
        .quota("beans")
        .create(10)
        .await
        .expect("created");
    // The operator abandons the change of masters, and all clients use only the old masters again.
    assert_eq!(take_units(&old, 7).await, Take::Taken { left: 3 });
    begin(&joint_client.change().expect("a change")).await;
    let open_survey = run_change(&joint_client).await.expect("open");
    assert_eq!(carried_values(&open_survey), ["\"beans\": carried"]);
    assert_eq!(open_survey.stage(), ChangeStage::Open);
    assert_eq!(scene.next_client().quota("beans").left().await, Ok(3));
}

/// The client `old` runs a job with `at_least_once`. During the job, a change of masters executes its step `close`.
/// Returns true if the client can record after this step that the job is done.
///
/// If `reconnects` is true, the job does not end until the client has reconnected.
async fn try_record_after_close(scene: &Scene, old: &Redlock, reconnects: bool) -> bool {
    let builder = scene.settings(0..3).next_masters(scene.urls(2..5));
    let joint_client = builder
        .max_ttl(secs(20))
        .ttl(secs(20))
        .build()
        .expect("both");
    let change = joint_client
        .change()
        .expect("a change")
        .allow_unknown_clients(true);
    let once = old.once("job", PERIOD);
    once.create().await.expect("created");
    // Write generation markers, so that clients count the votes of a server immediately. Without markers, a client
    // first waits until the server has run for longer than the longest TTL.
    let builder = scene.settings(0..3).next_masters(scene.urls(2..5));
    let mark = quorate::testing::mark(&builder, 0).expect("a mark");
    for server in &scene.servers {
        ask_server(server, &["SET", super::MARKER_KEY, &mark]);
    }
    let outcome = once
        .at_least_once(async |_| {
            change.close().await.expect("closed");
            if reconnects {
                let has_reconnected = |server| {
                    let list = ask_server(server, &["CLIENT", "LIST"]);
                    list.text().unwrap_or_default().contains("name=quorate/0/")
                };
                eventually(
                    "the client must have connected to all masters again",
                    || scene.servers.iter().take(3).all(has_reconnected),
                )
                .await;
            }
            Ok::<(), ()>(())
        })
        .await;
    let is_never_recorded = |index| {
        scene
            .stored_text(index, "job")
            .is_some_and(|text| text.ends_with(" once never"))
    };
    assert!((0..3).all(is_never_recorded), "{outcome:?}");
    matches!(outcome, Ok(OnceOutcome::Done(_)))
}

#[tokio::test]
async fn closed_masters_refuse_writes_on_a_connection_opened_before_step_close() {
    let scene = Scene::start();
    for server in &scene.servers {
        let user = [
            "ACL",
            "SETUSER",
            "unnamed",
            "on",
            "nopass",
            "~*",
            "&*",
            "+@all",
            "-client|setname",
        ];
        assert!(ask_server(server, &user).is_ok());
    }
    let url = |url: String| url.replace("redis://", "redis://unnamed:x@");
    let builder = settings(scene.urls(0..3).into_iter().map(url))
        .max_ttl(secs(20))
        .ttl(secs(20));
    let old = builder.build().expect("old");
    assert!(!try_record_after_close(&scene, &old, false).await);
}

#[tokio::test]
async fn closed_masters_refuse_writes_of_a_client_that_reconnected_after_step_close() {
    let scene = Scene::start();
    let builder = settings(scene.urls(0..3)).max_ttl(secs(20)).ttl(secs(20));
    let old = builder.build().expect("old");
    assert!(!try_record_after_close(&scene, &old, true).await);
}

/// All holds of one owner must have the same fencing token. If the change of masters copied a fencing counter, the
/// owner's next hold could get a different token. So the step `open` must fail while an owner holds the lock.
#[tokio::test]
async fn fencing_counter_is_not_copied_while_an_owner_holds_the_lock() {
    let scene = Scene::start();
    let (joint_client, next) = (scene.joint_client(), scene.next_client());
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let hour_ahead = since_epoch.expect("a date").as_micros() + 3_600_000_000;
    let change = joint_client.change().expect("a change");
    begin(&change).await;
    let owner = joint_client.owner("order-7").expect("the id must be valid");
    let first_guard = owner.acquire("job").await.expect("free");
    // Set the fencing counter of one master an hour ahead, as a client with a wrong clock would.
    let set_command = ["SET", "quorate:fence:job", &hour_ahead.to_string()];
    ask_server(&scene.servers[0], &set_command);
    change.close().await.expect("closed");
    let closed = change.closed().await.expect("closed");
    tokio::time::sleep(change.wait()).await;
    let missing = missing_conditions(change.open(&closed).await);
    let names_the_owner = |line: &String| line.contains("\"job\"") && line.contains("order-7");
    assert!(missing.iter().any(names_the_owner), "{missing:?}");
    assert!(
        first_guard.is_valid(),
        "the lock must be renewed on the old and the next masters"
    );
    let joint_client = scene
        .joint_client()
        .owner("order-7")
        .expect("the id must be valid");
    let third_acquire = joint_client
        .acquire("job")
        .await
        .expect("a further hold of the owner must join its first hold");
    assert_eq!(third_acquire.fencing_token(), first_guard.fencing_token());
    third_acquire.release().await;
    first_guard.release().await;
    change.open(&closed).await.expect("open");
    assert!(u128::from(super::fencing_token_of_job(&next).await) > hour_ahead);
}

/// Tests outdated values that are stored on the next masters before the change begins. `open` removes them, because no
/// old master has values with these names.
#[tokio::test]
async fn outdated_stored_values_on_next_masters_are_reported_and_removed() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    let beans = ["SET", "quorate:value:beans", "1 run quota 9"];
    for server in scene.servers.iter().skip(3) {
        ask_server(server, &beans);
    }
    let survey = begin_again(&joint_client).await;
    let advice = survey.advice();
    assert!(
        advice.iter().all(|line| line.contains("1 values")),
        "{advice:?}"
    );
    assert_eq!(advice.len(), 2, "{advice:?}");
    let open_survey = run_change(&joint_client).await.expect("open");
    assert_eq!(
        carried_values(&open_survey),
        ["\"beans\": removed, because no old master has the value"]
    );
    scene
        .next_client()
        .quota("beans")
        .create(5)
        .await
        .expect("created");
}

/// The old masters are the servers 0 to 2, and the next masters are the servers 1 to 3. The servers 0 and 1 have the
/// latest value, and the servers 2 and 3 have an outdated value. `open` must copy the latest value.
#[tokio::test]
async fn quota_units_taken_before_a_change_of_masters_stay_taken() {
    let scene = Scene::start();
    let builder_for = |indices: &[usize], unreachable: &[usize]| {
        let builder = settings(scene.urls_without(indices, unreachable));
        builder.max_ttl(MAX_TTL).ttl(MAX_TTL).node_timeout(ms(250))
    };
    let old = builder_for(&[0, 1, 2], &[]).build().expect("old");
    old.quota("beans").create(10).await.expect("created");
    let builder = builder_for(&[0, 1, 2], &[]).next_masters(scene.urls_without(&[1, 2, 3], &[]));
    let joint_client = builder.build().expect("both");
    begin(&joint_client.change().expect("a change")).await;
    assert_eq!(take_units(&joint_client, 1).await, Take::Taken { left: 9 });
    let old = builder_for(&[0, 1, 2], &[2]).build().expect("old");
    assert_eq!(take_units(&old, 5).await, Take::Taken { left: 4 });
    let open_survey = run_change(&joint_client).await.expect("open");
    assert_eq!(carried_values(&open_survey), ["\"beans\": carried"]);
    let next_builder = builder_for(&[1, 2, 3], &[1]).masters_generation(1);
    let next = next_builder.build().expect("next");
    assert_eq!(next.quota("beans").left().await, Ok(4));
}

/// Tests that `open` fails while the lock of a stored value is held, because its holder may be about to write the
/// value.
#[tokio::test]
async fn step_open_fails_while_a_client_holds_the_lock_of_a_stored_value() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    begin(&joint_client.change().expect("a change")).await;
    joint_client
        .quota("beans")
        .create(3)
        .await
        .expect("created");
    let lock = joint_client.lock("beans").note("counting beans");
    let held = lock.acquire().await.expect("free");
    let change = joint_client.change().expect("a change");
    change.close().await.expect("closed");
    let closed = change.closed().await.expect("closed");
    tokio::time::sleep(change.wait()).await;
    let another = scene.joint_client();
    let change = another.change().expect("a change");
    let missing = missing_conditions(change.open(&closed).await);
    assert!(
        missing.iter().any(|line| line.contains("counting beans")),
        "{missing:?}"
    );
    let (open, ()) = futures::join!(change.open(&closed), async {
        tokio::time::sleep(ms(300)).await;
        held.release().await;
    });
    assert_eq!(carried_values(&open.expect("open")), ["\"beans\": carried"]);
}

/// Tests masters that serve several deployments, each with its own key prefix.
#[tokio::test]
async fn change_of_masters_copies_the_stored_values_of_every_key_prefix() {
    let scene = Scene::start();
    let joint_client = scene.joint_client();
    begin(&joint_client.change().expect("a change")).await;
    for prefix in ["shop:", "a-much-longer-prefix:"] {
        let builder = scene.settings(0..3).prefix(prefix);
        let old = builder.build().expect("old");
        old.quota("beans").create(3).await.expect("created");
    }
    let other_builder = scene.settings(0..3).prefix("a-much-longer-prefix:");
    let other = other_builder.next_masters(scene.urls(2..5));
    let open_survey = run_change(&other.build().expect("both"))
        .await
        .expect("open");
    assert_eq!(
        carried_values(&open_survey),
        [
            "\"a-much-longer-prefix:beans\": carried",
            "\"shop:beans\": carried"
        ]
    );
    for prefix in ["shop:", "a-much-longer-prefix:"] {
        let next_builder = scene.settings(2..5).prefix(prefix);
        let next = next_builder.masters_generation(1).build().expect("next");
        assert_eq!(next.quota("beans").left().await, Ok(3));
    }
}

/// Tests values that clients of the old masters have created. Only one server belongs to both sets of masters, so the
/// two other next masters have never received these values. Clients of both sets must find the values nevertheless.
#[tokio::test]
async fn client_with_next_masters_reads_values_created_only_on_the_old_masters() {
    let scene = Scene::start();
    let (old, joint_client) = (scene.old_client(), scene.joint_client());
    let change = joint_client.change().expect("a change");
    old.quota("beans").create(10).await.expect("created");
    begin(&change).await;
    assert_eq!(take_units(&joint_client, 1).await, Take::Taken { left: 9 });
    assert_eq!(take_units(&old, 1).await, Take::Taken { left: 8 });
    assert_eq!(take_units(&joint_client, 1).await, Take::Taken { left: 7 });
    old.quota("peas").create(5).await.expect("created");
    change.close().await.expect("closed");
    assert_eq!(joint_client.quota("peas").left().await, Ok(5));
    assert_eq!(joint_client.quota("beans").left().await, Ok(7));
}

/// Without the right to read the lock key, `close` cannot check whether an owner holds the lock.
#[tokio::test]
async fn step_close_fails_if_the_operator_lacks_rights_to_a_lock_key() {
    let scene = Scene::start();
    for server in &scene.servers {
        let user = "ACL SETUSER narrow on nopass ~quorate:* &* +@all";
        let user: Vec<&str> = user.split(' ').collect();
        assert!(ask_server(server, &user).is_ok());
    }
    let urls_of_narrow_user = |indices| {
        let urls = scene.urls(indices).into_iter();
        urls.map(|url| url.replace("redis://", "redis://narrow:x@"))
    };
    let builder = settings(urls_of_narrow_user(0..3))
        .max_ttl(MAX_TTL)
        .ttl(MAX_TTL)
        .node_timeout(ms(250));
    let joint_client = builder
        .next_masters(urls_of_narrow_user(2..5))
        .build()
        .expect("both");
    begin(&joint_client.change().expect("a change")).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ahead = (now.expect("a date").as_micros() + 3_600_000_000).to_string();
    ask_server(&scene.servers[0], &["SET", "quorate:fence:job", &ahead]);
    let change = joint_client.change().expect("a change");
    let closed = change.close().await;
    let names_the_value = |line: &String| line.contains("ACL SETUSER <user> ~job*");
    let Err(quorate::ChangeError::Missing(missing)) = closed else {
        panic!("{closed:?}");
    };
    assert!(missing.iter().any(names_the_value), "{missing:?}");
    assert!(change.survey().await.stage() < quorate::ChangeStage::PartlyClosed);
}
