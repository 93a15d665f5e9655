//! Tests of invalid settings. Each of them causes a specific error, whose single line names the cause and the valid
//! range. Nothing is sent to the masters.

use std::time::Duration;

use quorate::{
    AcquireError, BuildError, Drift, ExtendError, InvalidResource, MAX_RESOURCE_LEN, Redlock,
    RedlockBuilder, Retry, Wait,
};

use crate::support::{ms, secs};

fn good_builder() -> RedlockBuilder {
    Redlock::builder().in_memory(3)
}

fn build_error(builder: RedlockBuilder) -> BuildError {
    builder.build().expect_err("bad settings")
}

/// Checks that the error text is a single line and contains each of these words.
#[track_caller]
fn assert_contains_words(error: &dyn std::error::Error, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text:?}");
    for word in words {
        assert!(
            text.contains(word),
            "the error must contain {word:?}, but is {text:?}"
        );
    }
}

/// Checks that the builder reports an invalid duration for this setting, and that the error text contains each of these
/// words.
#[track_caller]
fn assert_duration(builder: RedlockBuilder, setting: &str, words: &[&str]) {
    let error = build_error(builder);
    assert!(
        matches!(&error, BuildError::BadDuration { what, .. } if *what == setting),
        "{error:?}"
    );
    assert_contains_words(&error, words);
    assert_contains_words(&error, &[setting]);
}

#[test]
fn error_for_a_builder_without_masters_shows_an_example_url() {
    let error = build_error(Redlock::builder());
    assert_eq!(error, BuildError::NoMasters);
    assert_contains_words(&error, &["no master", "redis://"]);
}

#[test]
fn error_names_an_invalid_address_without_its_password() {
    for (url, name) in [
        ("", "number 2: "),
        ("10.0.0.1:6379", "number 2 (***)"),
        ("http://user:s3cret@host", "number 2 (http://***)"),
        ("redis://", "number 2 (redis://***)"),
        (
            "redis://user:s3cret@host:notaport",
            "number 2 (redis://***)",
        ),
        ("redis://user:s3cret@host:99999", "number 2 (redis://***)"),
        ("redis://user:s3cret@host/notadb", "number 2 (redis://***)"),
        ("user:s3cret@host", "number 2 (***)"),
        ("unix://?pass=s3cret", "number 2 (unix://***)"),
    ] {
        let error = build_error(Redlock::builder().master("redis://10.9.9.9").master(url));
        assert!(matches!(error, BuildError::BadMaster { .. }), "{error:?}");
        let hint = if url.contains("99999") {
            "1 to 65535"
        } else {
            "redis://host:port"
        };
        assert_contains_words(&error, &[name, hint]);
        let error_texts = format!("{error} {error:?}");
        assert!(!error_texts.contains("s3cret"), "{error_texts}");
    }
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn error_for_a_tls_url_without_the_tls_feature_names_the_feature() {
    let error = build_error(Redlock::builder().master("rediss://user:s3cret@host"));
    assert_contains_words(&error, &["rediss://***", "tls-rustls"]);
}

#[test]
fn duplicate_master_is_refused_in_any_spelling() {
    for duplicate in [
        "redis://10.0.0.1",
        "redis://10.0.0.1:6379/3",
        "redis://user:s3cret@10.0.0.1:6379",
        " redis://10.0.0.1 ",
    ] {
        let urls = ["redis://10.0.0.1", "redis://10.0.0.2", duplicate];
        let error = build_error(Redlock::builder().masters(urls));
        assert_eq!(error, BuildError::SameMasterTwice("10.0.0.1:6379".into()));
        assert_contains_words(&error, &["10.0.0.1:6379", "twice", "server of its own"]);
    }
    let urls = ["redis://localhost:7001", "redis://127.0.0.1:7001"];
    let error = build_error(Redlock::builder().masters(urls));
    assert!(matches!(error, BuildError::SameMasterTwice(_)), "{error:?}");
    let urls = ["unix:///run/a.sock", "unix:///run/a.sock?db=1"];
    let error = build_error(Redlock::builder().masters(urls));
    assert!(matches!(error, BuildError::SameMasterTwice(_)), "{error:?}");
}

#[test]
fn masters_name_that_is_not_a_name_is_refused() {
    let (long_name, longest) = ("n".repeat(65), "n".repeat(64));
    let masters = || Redlock::builder().masters(["redis://10.9.9.9"]);
    for name in [
        "",
        "two words",
        "orders:1",
        "für",
        "a/b",
        "a\nb",
        &long_name,
    ] {
        for builder in [masters(), good_builder()] {
            let error = build_error(builder.masters_name(name));
            assert_eq!(error, BuildError::BadMastersName(name.into()));
            assert_contains_words(&error, &["masters_name", "1 to 64", "dashes"]);
        }
    }
    for name in ["orders", "a.b-c_9", &longest] {
        assert!(masters().masters_name(name).build().is_ok(), "{name}");
    }
}

#[test]
fn too_many_masters_are_refused() {
    let urls = (1..=65).map(|n| format!("redis://10.0.0.{n}"));
    let error = build_error(Redlock::builder().masters(urls));
    assert_eq!(error, BuildError::TooManyMasters(65));
    assert_contains_words(&error, &["65", "at most 64", "3 or 5"]);
}

#[test]
fn too_short_or_too_long_ttl_is_refused() {
    assert_duration(
        good_builder().ttl(Duration::ZERO),
        "ttl",
        &["0s", "raise the ttl"],
    );
    assert_duration(
        good_builder().ttl(ms(2)),
        "ttl",
        &["2ms", "drift", "raise the ttl"],
    );
    assert_duration(
        good_builder().ttl(secs(31)),
        "ttl",
        &["31s", "max_ttl (30s)", "lower the ttl"],
    );
    assert_duration(good_builder().ttl(Duration::MAX), "ttl", &["max_ttl (30s)"]);
    let slow_builder = good_builder().ttl(secs(1)).node_timeout(ms(300));
    assert_duration(slow_builder, "ttl", &["1s", "300ms", "1s 200ms"]);
    let drifting_builder = good_builder()
        .ttl(secs(1))
        .node_timeout(ms(200))
        .drift(Drift {
            factor: 0.7,
            floor: ms(1),
        });
    assert_duration(drifting_builder, "ttl", &["two requests", "raise the ttl"]);
}

#[test]
fn max_ttl_above_the_lifetime_of_a_fencing_counter_is_refused() {
    assert_duration(good_builder().max_ttl(secs(86_401)), "max_ttl", &["1day"]);
    assert_duration(good_builder().max_ttl(Duration::MAX), "max_ttl", &["1day"]);
    assert!(good_builder().max_ttl(secs(86_400)).build().is_ok());
    // If `max_ttl` is below the default TTL, locks get the TTL `max_ttl`.
    assert!(good_builder().max_ttl(secs(2)).build().is_ok());
    assert_duration(
        good_builder().max_ttl(secs(2)).ttl(secs(10)),
        "ttl",
        &["max_ttl (2s)"],
    );
}

#[test]
fn too_short_or_too_long_node_and_connect_timeouts_are_refused() {
    let zero = Duration::ZERO;
    assert_duration(good_builder().node_timeout(zero), "node_timeout", &["50ms"]);
    assert_duration(
        good_builder().connect_timeout(zero),
        "connect_timeout",
        &["500ms"],
    );
    // The largest allowed connect timeout is one hour.
    for longer in [secs(3601), Duration::MAX] {
        assert_duration(
            good_builder().connect_timeout(longer),
            "connect_timeout",
            &["1h"],
        );
    }
    assert_duration(
        good_builder().node_timeout(Duration::MAX),
        "ttl",
        &["node_timeout"],
    );
}

#[test]
fn invalid_drift_is_refused() {
    for factor in [-0.1, 1.0, 7.0, f64::NAN, f64::INFINITY] {
        let floor = ms(2);
        let error = build_error(good_builder().drift(Drift { factor, floor }));
        assert_contains_words(&error, &["drift", "at least 0 and less than 1"]);
    }
    let (factor, floor) = (0.01, Duration::MAX);
    assert_duration(
        good_builder().drift(Drift { factor, floor }),
        "ttl",
        &["drift"],
    );
}

#[test]
fn zero_max_hold_is_refused() {
    assert_duration(
        good_builder().max_hold(Duration::ZERO),
        "max_hold",
        &["do not set max_hold"],
    );
}

#[test]
fn reserved_key_prefix_is_refused() {
    let error = build_error(good_builder().prefix("quorate:fence:"));
    assert_eq!(error, BuildError::ReservedPrefix("quorate:fence:".into()));
    assert_contains_words(&error, &["quorate:fence:", "reserved"]);
    let error = build_error(good_builder().prefix("p".repeat(70_000)));
    assert_eq!(error, BuildError::PrefixTooLong(70_000));
    assert_contains_words(&error, &["70000", "1024"]);
}

#[test]
fn build_needs_no_async_runtime_and_sends_nothing() {
    // No server listens at these addresses, and this thread has no runtime. The builder must nevertheless build a
    // client.
    let redlock = Redlock::builder()
        .masters([
            "redis://192.0.2.1",
            "redis://192.0.2.2",
            "redis://192.0.2.3",
        ])
        .build();
    assert!(redlock.is_ok());
}

async fn resource_error(redlock: &Redlock, resource: &[u8]) -> InvalidResource {
    let error = redlock
        .acquire(resource)
        .await
        .expect_err("the acquire must fail, because the name is invalid");
    assert!(error.reports().is_empty(), "no request may be sent");
    assert_eq!(error.to_string().lines().count(), 1);
    match (error, redlock.status(resource).await) {
        (AcquireError::InvalidResource(error_text), Err(same)) if error_text == same => error_text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn error_for_an_invalid_resource_name_states_the_violated_rule() {
    let redlock = good_builder().build().expect("good settings");
    assert_eq!(resource_error(&redlock, b"").await, InvalidResource::Empty);
    let long_name = vec![b'x'; MAX_RESOURCE_LEN + 1];
    let error_text = resource_error(&redlock, &long_name).await;
    assert_eq!(error_text, InvalidResource::TooLong(1025));
    assert_contains_words(&error_text, &["1025", "1024"]);
    let error_text = resource_error(&redlock, b"quorate:fence:job").await;
    assert_eq!(error_text, InvalidResource::Reserved);
    assert_contains_words(&error_text, &["quorate:", "reserved"]);
    assert!(redlock.break_lock("").await.is_err());
    // The prefix `quor` and the lock name `ate:x` are not reserved, but together they form a reserved key.
    let client_with_short_prefix = good_builder()
        .prefix("quor")
        .build()
        .expect("good settings");
    assert_eq!(
        resource_error(&client_with_short_prefix, b"ate:x").await,
        InvalidResource::Reserved
    );
    let longest = vec![b'x'; MAX_RESOURCE_LEN];
    redlock
        .acquire(&longest)
        .await
        .expect("a name of the maximum length must be accepted")
        .release()
        .await;
}

#[tokio::test]
async fn invalid_lock_options_are_refused_before_anything_is_sent() {
    let redlock = good_builder().build().expect("good settings");
    let bad_requests = [
        ("ttl", redlock.lock("job").ttl(Duration::ZERO)),
        ("ttl", redlock.lock("job").ttl(secs(31))),
        ("ttl", redlock.lock("job").ttl(ms(100))),
        ("max_hold", redlock.lock("job").max_hold(Duration::ZERO)),
    ];
    for (option, request) in bad_requests {
        let error = request.acquire().await.expect_err(option);
        let AcquireError::InvalidOptions(error_text @ BuildError::BadDuration { .. }) = &error
        else {
            panic!("{error:?}")
        };
        assert_contains_words(error_text, &[option]);
        assert!(error.reports().is_empty());
    }
    let error = redlock.lock("").try_acquire().await;
    assert!(matches!(error, Err(AcquireError::InvalidResource(_))));
}

#[tokio::test]
async fn extension_with_an_invalid_ttl_fails_without_affecting_the_lock() {
    let redlock = good_builder().build().expect("good settings");
    let guard = redlock.acquire("job").await.expect("free");
    for ttl in [Duration::ZERO, secs(31), Duration::MAX] {
        let error = guard
            .extend(ttl)
            .await
            .expect_err("the extension must fail, because the ttl is invalid");
        assert!(matches!(error, ExtendError::InvalidTtl(_)), "{error:?}");
        assert_contains_words(&error, &["ttl"]);
    }
    assert!(guard.is_valid());
}

#[tokio::test]
async fn wait_and_max_hold_of_any_length_are_accepted() {
    let redlock = good_builder()
        .wait(Wait::For(Duration::MAX))
        .max_hold(Duration::MAX)
        .connect_timeout(secs(3600))
        .build()
        .expect("good settings");
    let guard = redlock.acquire("job").await.expect("free");
    assert!(guard.remaining() <= secs(10));
    guard.release().await;
}

#[tokio::test]
async fn retry_pauses_of_any_length_are_accepted() {
    for retry in [
        Retry::new(Duration::MAX, Duration::MAX),
        Retry::new(ms(10), Duration::MAX).factor(1e300),
        Retry::new(Duration::ZERO, Duration::ZERO).factor(f64::NAN),
    ] {
        assert_eq!(retry.delays(1).take(50).count(), 50);
        let redlock = good_builder().retry(retry).build().expect("good settings");
        let _held = redlock.acquire("job").await.expect("free");
        let waiting = redlock.lock("job").wait(Wait::For(ms(30))).acquire();
        let error = waiting.await.expect_err("held");
        assert!(matches!(error, AcquireError::HeldByOther(_)), "{error}");
    }
}

/// Tests values that are not text, for example a duration that is a number without a unit.
#[cfg(feature = "serde")]
#[test]
fn error_for_a_settings_value_of_the_wrong_type_states_the_expected_format() {
    for (file, format) in [
        ("ttl = 10", "such as \"250ms\" or \"10s\""),
        ("wait = true", "\"forever\""),
        ("order = 1", "\"fair\" or \"unordered\""),
    ] {
        let error = toml::from_str::<quorate::Settings>(file).expect_err(file);
        assert!(error.to_string().contains(format), "{error}");
    }
}

/// Tests a setting whose value is null. TOML cannot express null, but other formats can.
#[cfg(feature = "serde")]
#[test]
fn error_for_a_null_settings_value_states_the_expected_format() {
    use serde::Deserialize;
    use serde::de::value::{Error, MapDeserializer};

    let deserializer = MapDeserializer::<_, Error>::new([("ttl", ())].into_iter());
    let error = quorate::Settings::deserialize(deserializer).expect_err("null");
    let format = "such as \"250ms\" or \"10s\"";
    assert!(error.to_string().contains(format), "{error}");
}
