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
    let (accepted, _) = outputs(&text);
    let clean = redact::redact(&text).into_owned();
    assert_eq!(redact::redact(&clean), clean, "a second time, of {text:?}");

    let mut choices = input.iter();
    let BadUrl { url, password } = BadUrl::drawn(|below| {
        let choice = choices.next().copied().unwrap_or_default();
        usize::from(choice) % below
    });
    let (drawn_accepted, outputs) = outputs(&url);
    for output in outputs {
        let leak = leaked(&output, &password);
        assert_eq!(leak, None, "{url:?}: {output}");
    }
    if accepted || drawn_accepted {
        Depth::Accepted
    } else {
        Depth::Refused
    }
}

/// Whether at least one kind of master accepts the URL, and everything that the library and the crates for other masters
/// print about it.
fn outputs(url: &str) -> (bool, Vec<String>) {
    let mut texts = Vec::new();
    let mut accepted = false;
    let builder = || Redlock::builder().master("redis://10.9.9.9").master(url);
    texts.push(format!("{:?}", builder()));
    match builder().build() {
        Ok(redlock) => {
            accepted = true;
            texts.push(format!("{redlock:?}"));
            texts.extend(redlock.masters().map(ToString::to_string));
        }
        Err(error) => texts.push(format!("{error} {error:?}")),
    }
    let next = Redlock::builder()
        .master("redis://10.9.9.9")
        .next_masters([url]);
    texts.extend(next.build().err().map(|error| format!("{error} {error:?}")));
    accepted |= note(&mut texts, quorate_mysql::script(url));
    accepted |= note(&mut texts, quorate_zookeeper::script(url));
    accepted |= note(&mut texts, quorate_zookeeper::ZooKeeper::open(url));
    texts.extend(text::duration(url).err());
    texts.extend(text::wait(url).err());
    texts.extend(text::switch(url).err());
    texts.push(redact::url(url));
    texts.push(redact::value(url).into_owned());
    if redact::scheme(url).is_some() {
        let message = format!("cannot use '{url}': no");
        texts.push(redact::redact(&message).into_owned());
    }
    (accepted, texts)
}

fn note<T: Debug, E: Debug + ToString>(texts: &mut Vec<String>, read: Result<T, E>) -> bool {
    match read {
        Ok(read) => {
            texts.push(format!("{read:?}"));
            true
        }
        Err(error) => {
            texts.push(format!("{error:?} {}", error.to_string()));
            false
        }
    }
}
