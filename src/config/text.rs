//! Settings as people write them. The command reads its own in the same way.

use std::time::Duration;

use crate::settings::{Order, RestartGuard, Wait};

/// Reads a duration with its unit.
///
/// # Errors
///
/// What it is not, and how it is written.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|_| {
        format!("'{text}' is no duration; write it with a unit: 500ms, 10s, 5m, 1h 30m")
    })
}

/// Reads how long to wait.
///
/// # Errors
///
/// What it is not, and how it is written.
pub fn wait(text: &str) -> Result<Wait, String> {
    match text.trim() {
        "forever" => Ok(Wait::Forever),
        "none" => Ok(Wait::None),
        text => match humantime::parse_duration(text) {
            Ok(Duration::ZERO) => Ok(Wait::None),
            Ok(time) => Ok(Wait::For(time)),
            Err(_) => Err(format!(
                "'{text}' is no duration; write 30s, 5m, 1h 30m, forever or none"
            )),
        },
    }
}

/// Reads `on` and `off`.
///
/// # Errors
///
/// What it is not, and how it is written.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "on" | "true" | "yes" | "1" => Ok(true),
        "off" | "false" | "no" | "0" => Ok(false),
        other => Err(format!("'{other}' is neither on nor off")),
    }
}

pub(super) fn order(text: &str) -> Result<Order, String> {
    match text.trim() {
        "fair" => Ok(Order::Fair),
        "unordered" => Ok(Order::Unordered),
        other => Err(format!("'{other}' is no order; write fair or unordered")),
    }
}

pub(super) fn restart_guard(text: &str) -> Result<RestartGuard, String> {
    match text.trim() {
        "on" => Ok(RestartGuard::On),
        "after-first-contact" => Ok(RestartGuard::AfterFirstContact),
        "off" => Ok(RestartGuard::Off),
        other => Err(format!("'{other}': write on, after-first-contact or off")),
    }
}

/// The URLs in a text with commas. A password may hold commas as well: what follows one and neither
/// begins like a URL nor stands alone belongs to the URL before it.
pub fn pieces(text: &str) -> Vec<String> {
    let pieces: Vec<&str> = text.split(',').collect();
    let begins = |piece: &str| piece.contains("://");
    let mut urls: Vec<String> = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let rest = pieces[at..].iter().take_while(|piece| !begins(piece));
        let within = rest.into_iter().any(|piece| piece.contains('@'));
        match urls.last_mut() {
            Some(url) if within && begins(url) => {
                url.push(',');
                url.push_str(piece);
            }
            _ => urls.push((*piece).to_owned()),
        }
    }
    urls
}

/// The same, without the spaces around them.
pub(super) fn urls(text: &str) -> Vec<String> {
    pieces(text)
        .into_iter()
        .map(|url| url.trim().to_owned())
        .collect()
}

/// The same by serde: fields that are there.
#[cfg(feature = "serde")]
pub(super) mod read {
    use std::fmt;
    use std::time::Duration;

    use serde::Deserialize;
    use serde::de::{Deserializer, Error, SeqAccess, Visitor};

    use crate::settings::{Order, RestartGuard, Wait};

    fn text<'de, D: Deserializer<'de>, T>(
        from: D,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).map(Some).map_err(D::Error::custom)
    }

    pub(in crate::config) fn duration<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        text(from, super::duration)
    }

    pub(in crate::config) fn wait<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Wait>, D::Error> {
        text(from, super::wait)
    }

    pub(in crate::config) fn order<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Order>, D::Error> {
        text(from, super::order)
    }

    pub(in crate::config) fn restart_guard<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<RestartGuard>, D::Error> {
        text(from, super::restart_guard)
    }

    pub(in crate::config) fn switch<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<bool>, D::Error> {
        struct OnOff;
        impl Visitor<'_> for OnOff {
            type Value = bool;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, \"on\" or \"off\"")
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
                Ok(value)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
                super::switch(text).map_err(E::custom)
            }
        }
        from.deserialize_any(OnOff).map(Some)
    }

    pub(in crate::config) fn masters<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<String>, D::Error> {
        struct Urls;
        impl<'de> Visitor<'de> for Urls {
            type Value = Vec<String>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of URLs")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
                Ok(super::urls(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = seq.next_element()? {
                    urls.push(url);
                }
                Ok(urls)
            }
        }
        from.deserialize_any(Urls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comma_in_a_password_does_not_end_the_url() {
        for (text, wanted) in [
            ("redis://a,redis://b", &["redis://a", "redis://b"][..]),
            (
                "redis://:p,w@a, redis://b",
                &["redis://:p,w@a", "redis://b"],
            ),
            ("redis://a,", &["redis://a", ""]),
        ] {
            assert_eq!(urls(text), wanted, "{text}");
        }
    }
}
