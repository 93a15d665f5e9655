//! The types of settings, and how each is parsed from text and, with the feature `serde`, deserialized.

use std::ffi::OsString;
#[cfg(feature = "serde")]
use std::fmt;
#[cfg(feature = "serde")]
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "serde")]
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::text;
use crate::redact;
use crate::settings::{Order, RestartGuard, Wait};

/// A word that a setting accepts, and the meaning of the word.
pub(super) type Choice = (&'static str, &'static str);

/// A type that the value of a setting can have, for example a duration.
pub(super) trait Value: Sized {
    /// The accepted words and their meanings, if only certain words are accepted; otherwise empty.
    const CHOICES: &'static [Choice] = &[];

    /// Parses the value. The error text quotes `text` and describes the expected format.
    fn parse(text: &str) -> Result<Self, String>;

    /// Parses the value from the bytes of an environment variable or option, which need not be UTF-8.
    fn parse_os(text: OsString) -> Result<Self, String> {
        let text = text.into_string();
        Self::parse(&text.map_err(|_| "is not valid UTF-8".to_owned())?)
    }

    /// Deserializes the value; by default from text.
    #[cfg(feature = "serde")]
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }

    /// Writes the expected format. The error for a value of another type, such as a number or null, contains it.
    #[cfg(feature = "serde")]
    fn describe_format(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }
}

/// Deserializes a value from text.
#[cfg(feature = "serde")]
struct TextVisitor<T>(PhantomData<T>);

#[cfg(feature = "serde")]
impl<T: Value> Visitor<'_> for TextVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::describe_format(f)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::parse(text).map_err(E::custom)
    }
}

/// Writes the words that a setting accepts.
#[cfg(feature = "serde")]
fn write_choices(f: &mut fmt::Formatter<'_>, choices: &[Choice]) -> fmt::Result {
    let quoted_choices: Vec<_> = choices
        .iter()
        .map(|(word, _)| format!("{word:?}"))
        .collect();
    f.write_str(&quoted_choices.join(" or "))
}

/// The type of a field of [`Settings`](super::list::Settings). The field is empty until its setting is set.
pub(super) trait Field: Sized {
    const CHOICES: &'static [Choice];
    /// Whether the field's value may contain passwords.
    const SECRET: bool = false;
    /// Whether the setting may be given several times.
    const SEVERAL: bool = false;

    /// Parses a text. Sets the field to the parsed value, or adds the value to the field if the setting may be given
    /// several times.
    fn read_text(&mut self, text: OsString) -> Result<(), String>;

    /// This field's value if the field is set, otherwise the value of `other`.
    fn or(self, other: Self) -> Self;

    #[cfg(feature = "serde")]
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

impl<T: Value> Field for Option<T> {
    const CHOICES: &'static [Choice] = T::CHOICES;

    fn read_text(&mut self, text: OsString) -> Result<(), String> {
        *self = Some(T::parse_os(text)?);
        Ok(())
    }

    fn or(self, other: Self) -> Self {
        self.or(other)
    }

    #[cfg(feature = "serde")]
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Some)
    }
}

/// A list of master URLs, given as one text with commas or as a list.
impl Field for Vec<String> {
    const CHOICES: &'static [Choice] = &[];
    const SECRET: bool = true;
    const SEVERAL: bool = true;

    fn read_text(&mut self, text: OsString) -> Result<(), String> {
        let text = String::parse_os(text)?;
        self.extend(text::urls(&text));
        Ok(())
    }

    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    #[cfg(feature = "serde")]
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UrlsVisitor)
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, String> {
        text::duration(text)
    }

    #[cfg(feature = "serde")]
    fn describe_format(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as \"250ms\" or \"10s\"")
    }
}

impl Value for Wait {
    fn parse(text: &str) -> Result<Self, String> {
        text::wait(text)
    }

    #[cfg(feature = "serde")]
    fn describe_format(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as \"10s\", or \"forever\" or \"none\"")
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        text::switch(text)
    }

    #[cfg(feature = "serde")]
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SwitchVisitor)
    }
}

impl Value for u64 {
    fn parse(text: &str) -> Result<Self, String> {
        let number = text.trim().parse();
        number.map_err(|_| format!("'{}' is not a number", redact::value(text)))
    }

    #[cfg(feature = "serde")]
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::Deserialize::deserialize(deserializer)
    }
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl Value for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.into())
    }

    /// Accepts any bytes, because a file name need not be UTF-8.
    fn parse_os(text: OsString) -> Result<Self, String> {
        Ok(text.into())
    }
}

impl Value for Order {
    const CHOICES: &'static [Choice] = &[
        (
            "fair",
            "First come, first served across all machines; the masters keep the queue",
        ),
        (
            "unordered",
            "No queue: the first waiter that asks the masters after a release gets the lock",
        ),
    ];

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "fair" => Ok(Self::Fair),
            "unordered" => Ok(Self::Unordered),
            other => Err(format!(
                "'{}': write fair or unordered",
                redact::value(other)
            )),
        }
    }

    #[cfg(feature = "serde")]
    fn describe_format(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_choices(f, Self::CHOICES)
    }
}

impl Value for RestartGuard {
    const CHOICES: &'static [Choice] = &[
        (
            "on",
            "A restarted master votes only after max_ttl has passed since its start",
        ),
        (
            "after-first-contact",
            "Like `on`, but only for restarts after the client's first connection to the master",
        ),
        (
            "off",
            "A restarted master votes immediately; safe only if it loses no data (appendfsync always)",
        ),
    ];

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "on" => Ok(Self::On),
            "after-first-contact" => Ok(Self::AfterFirstContact),
            "off" => Ok(Self::Off),
            other => Err(format!(
                "'{}': write on, after-first-contact or off",
                redact::value(other)
            )),
        }
    }

    #[cfg(feature = "serde")]
    fn describe_format(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_choices(f, Self::CHOICES)
    }
}

/// Deserializes one field, whatever its type.
#[cfg(feature = "serde")]
pub(super) fn deserialize_field<'de, D: Deserializer<'de>, F: Field>(
    deserializer: D,
) -> Result<F, D::Error> {
    F::deserialize(deserializer)
}

/// Deserializes a switch from a boolean, or from the words `on` and `off`.
#[cfg(feature = "serde")]
struct SwitchVisitor;

#[cfg(feature = "serde")]
impl Visitor<'_> for SwitchVisitor {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false, \"on\" or \"off\"")
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        text::switch(text).map_err(E::custom)
    }
}

/// Deserializes URLs from a list, or from one text with commas.
#[cfg(feature = "serde")]
struct UrlsVisitor;

#[cfg(feature = "serde")]
impl<'de> Visitor<'de> for UrlsVisitor {
    type Value = Vec<String>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of URLs")
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
        Ok(text::urls(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
        let mut urls = Vec::new();
        while let Some(url) = seq.next_element::<String>()? {
            urls.push(url.trim().to_owned());
        }
        Ok(urls)
    }
}
