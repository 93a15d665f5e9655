//! Tests that no error, name or message contains a password, however wrong its URL is.

use proptest::prelude::*;
use quorate::{Redlock, redact, text};
use quorate_testbed::bad_url::{BadUrl, OTHER_URL, leaked};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_error_contains_four_characters_of_a_password(seed in any::<u64>()) {
        let BadUrl { url, password } = BadUrl::of(seed);
        let builder = || Redlock::builder().master(OTHER_URL).master(&url);
        let mut texts = vec![format!("{:?}", builder())];
        match builder().build() {
            Ok(redlock) => {
                texts.push(format!("{redlock:?}"));
                texts.extend(redlock.masters().map(ToString::to_string));
            }
            Err(error) => texts.push(format!("{error} {error:?}")),
        }
        let next = Redlock::builder().master(OTHER_URL).next_masters([url.as_str()]);
        texts.extend(next.build().err().map(|error| format!("{error} {error:?}")));
        texts.extend(text::duration(&url).err());
        texts.extend(text::wait(&url).err());
        texts.extend(text::switch(&url).err());
        texts.push(redact::url(&url));
        if redact::scheme(&url).is_some() {
            let message = format!("cannot use '{url}': no");
            let clean = redact::redact(&message).into_owned();
            prop_assert_eq!(redact::redact(&clean), clean.as_str(), "{:?}", url);
            texts.push(clean);
        }
        for text in texts {
            prop_assert_eq!(leaked(&text, &password), None, "{:?}: {}", url, text);
        }
    }
}
