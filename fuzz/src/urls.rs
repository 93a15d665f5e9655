//! The URLs of masters, and messages that may contain them.

use std::fmt::Debug;

use quorate::{Redlock, redact, text};
use quorate_testbed::bad_url::{BadUrl, leaked};

use crate::Depth;

/// Uses the input twice: as a text, and as the choices from which [`BadUrl::drawn`] makes a URL with a password.
///
/// # Panics
///
/// If an output contains four characters in a row of the password, or if hidden passwords are not the same after they
/// are hidden again.
pub fn run(input: &[u8]) -> Depth {
    let text = String::from_utf8_lossy(input);
    let (is_accepted, _) = printed_texts(&text);
    let redacted = redact::redact(&text).into_owned();
    assert_eq!(
        redact::redact(&redacted),
        redacted,
        "a second time, of {text:?}"
    );

    let mut choices = input.iter();
    let BadUrl { url, password } = BadUrl::drawn(|bound| {
        let choice = choices.next().copied().unwrap_or_default();
        usize::from(choice) % bound
    });
    let (is_drawn_url_accepted, outputs) = printed_texts(&url);
    for output in outputs {
        let leak = leaked(&output, &password);
        assert_eq!(leak, None, "{url:?}: {output}");
    }
    if is_accepted || is_drawn_url_accepted {
        Depth::Accepted
    } else {
        Depth::Refused
    }
}

/// Whether at least one kind of master accepts the URL, and everything that the library and the crates for other
/// masters print about it.
fn printed_texts(url: &str) -> (bool, Vec<String>) {
    let mut texts = Vec::new();
    let mut is_accepted = false;
    let builder = || Redlock::builder().master("redis://10.9.9.9").master(url);
    texts.push(format!("{:?}", builder()));
    match builder().build() {
        Ok(redlock) => {
            is_accepted = true;
            texts.push(format!("{redlock:?}"));
            texts.extend(redlock.masters().map(ToString::to_string));
        }
        Err(error) => texts.push(format!("{error} {error:?}")),
    }
    let next_builder = Redlock::builder()
        .master("redis://10.9.9.9")
        .next_masters([url]);
    texts.extend(
        next_builder
            .build()
            .err()
            .map(|error| format!("{error} {error:?}")),
    );
    is_accepted |= add_outcome_text(&mut texts, quorate_mysql::script(url));
    is_accepted |= add_outcome_text(&mut texts, quorate_postgres::script(url));
    is_accepted |= add_outcome_text(&mut texts, quorate_etcd::script(url));
    is_accepted |= add_outcome_text(&mut texts, quorate_zookeeper::script(url));
    is_accepted |= add_outcome_text(&mut texts, quorate_zookeeper::ZooKeeper::open(url));
    texts.extend(text::duration(url).err());
    texts.extend(text::wait(url).err());
    texts.extend(text::switch(url).err());
    texts.push(redact::url(url));
    texts.push(redact::value(url).into_owned());
    if redact::scheme(url).is_some() {
        let message = format!("cannot use '{url}': no");
        texts.push(redact::redact(&message).into_owned());
    }
    (is_accepted, texts)
}

fn add_outcome_text<T: Debug, E: Debug + ToString>(
    texts: &mut Vec<String>,
    outcome: Result<T, E>,
) -> bool {
    match outcome {
        Ok(value) => {
            texts.push(format!("{value:?}"));
            true
        }
        Err(error) => {
            texts.push(format!("{error:?} {}", error.to_string()));
            false
        }
    }
}
