//! Reads the TOML file with settings.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::OFlag;
use quorate::Settings;
use quorate::list::SETTINGS;
use quorate::redact;
use quorate::text::duration;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::exit::Failure;

/// The contents of the TOML file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileOptions {
    pub(crate) settings: Settings,
    /// The keys that the file sets, for example `masters` and `ttl`.
    pub(crate) keys: Vec<String>,
    /// The option `keep_for`: the minimum time for which `run` keeps the lock; `None` if the file does not set it.
    pub(crate) keep_for: Option<Duration>,
    /// The option `grace`: the time between SIGTERM and SIGKILL; `None` if the file does not set it.
    pub(crate) grace: Option<Duration>,
}

/// A key of the TOML file that is not a setting of the library, like [`GRACE`].
const KEEP_FOR: &str = "keep_for";
const GRACE: &str = "grace";

/// The keys of a configuration file that are not settings of the library, each with its environment variable.
const OWN_KEYS: [(&str, &str); 2] = [(KEEP_FOR, "QUORATE_KEEP_FOR"), (GRACE, "QUORATE_GRACE")];

/// All keys that the file may contain, each with its environment variable.
pub(crate) fn keys_and_variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    let library = SETTINGS
        .iter()
        .map(|setting| (setting.name, setting.variable));
    library.chain(OWN_KEYS)
}

/// All keys that the file may contain.
pub(crate) static KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| keys_and_variables().map(|(key, _)| key).collect());

impl FileOptions {
    /// Reads the file. Later calls for the same path return the first result, because a pipe can be read only once.
    pub(crate) fn load(path: &Path, source: FileSource) -> Result<Self, Failure> {
        static LOADED: Mutex<Vec<(PathBuf, Result<FileOptions, String>)>> = Mutex::new(Vec::new());
        let mut results = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, result)) = results.iter().find(|(loaded_path, _)| loaded_path == path) {
            return result.clone().map_err(Failure::usage);
        }
        let result = Self::parse_file(path, source);
        results.push((path.to_owned(), result.clone()));
        result.map_err(Failure::usage)
    }

    fn parse_file(path: &Path, source: FileSource) -> Result<Self, String> {
        let path_text = path.to_string_lossy();
        let path_text = redact::value(&path_text);
        let text = read_text(path, source)
            .map_err(|error| format!("cannot read the configuration file {path_text}: {error}"))?;
        Self::parse(&text)
            .map_err(|error_text| format!("configuration file {path_text}: {error_text}"))
    }

    /// Parses the TOML file. The error is one line with the line number and the key. The error quotes no line of the
    /// file, because a line may contain passwords.
    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let error_text = redact::redact(error.message()).replace('\n', " ");
            match error.span() {
                Some(span) => {
                    let start = span.start.min(text.len());
                    let number = text[..start].matches('\n').count() + 1;
                    let line = text.lines().nth(number - 1).unwrap_or_default();
                    match line.split_once('=') {
                        Some((key, _)) if is_key(key.trim()) => {
                            format!("line {number}, {}: {error_text}", key.trim())
                        }
                        _ => format!("line {number}: {error_text}"),
                    }
                }
                None => error_text,
            }
        })
    }
}

/// Whether a text may be a key. Other text before an `=` may be a part of a URL, for example of one in a list with
/// several lines.
fn is_key(text: &str) -> bool {
    KEYS.contains(&text)
        || text.len() < 20
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Why a configuration file is read: the user named it, or it has the default name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSource {
    /// The user named the file. It may be a pipe, for example in `--config <(..)`.
    Named,
    /// The user did not name the file, but a file with the default name exists. It must be a regular file, because
    /// reading a pipe or a device might never end.
    Found,
}

/// Maximum size of the file in bytes; far more than any configuration needs.
const LARGEST_FILE: u64 = 1 << 20;

fn read_text(path: &Path, source: FileSource) -> io::Result<String> {
    let mut options = File::options();
    options.read(true);
    if source == FileSource::Found {
        // With O_NONBLOCK, opening a pipe does not wait for a writer. The flag has no effect on regular files.
        options.custom_flags(OFlag::O_NONBLOCK.bits());
    }
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() || (source == FileSource::Found && !kind.is_file()) {
        let file_kind = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a pipe",
            () => "a device",
        };
        return Err(io::Error::other(format!(
            "the path leads to {file_kind}, not to a file"
        )));
    }
    let mut text = String::new();
    if file.take(LARGEST_FILE).read_to_string(&mut text)? as u64 == LARGEST_FILE {
        return Err(io::Error::other("the file is larger than 1 MiB"));
    }
    Ok(text)
}

impl<'de> Deserialize<'de> for FileOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OptionsVisitor)
    }
}

struct OptionsVisitor;

impl<'de> Visitor<'de> for OptionsVisitor {
    type Value = FileOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileOptions, A::Error> {
        let mut file = FileOptions::default();
        while let Some(Key(key)) = map.next_key()? {
            file.keys.push(key.clone());
            match &*key {
                KEEP_FOR => file.keep_for = Some(map.next_value::<DurationValue>()?.0),
                GRACE => file.grace = Some(map.next_value::<DurationValue>()?.0),
                name => map.next_value_seed(SettingSeed {
                    name,
                    settings: &mut file.settings,
                })?,
            }
        }
        Ok(file)
    }
}

/// A key of the file. Deserialization rejects an unknown key with an error that names the line of the key.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if KEYS.contains(&&*name) {
            Ok(Self(name))
        } else {
            Err(de::Error::unknown_field(&redact::value(&name), &KEYS))
        }
    }
}

/// A duration, parsed from text such as `10s`.
struct DurationValue(Duration);

impl<'de> Deserialize<'de> for DurationValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        duration(&text).map(Self).map_err(de::Error::custom)
    }
}

/// Deserializes the value of one setting of the library, and stores it in `settings`.
struct SettingSeed<'a> {
    name: &'a str,
    settings: &'a mut Settings,
}

impl<'de> DeserializeSeed<'de> for SettingSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.settings.read(self.name, deserializer)
    }
}

#[cfg(test)]
mod tests {
    use quorate::{RestartGuard, Wait};

    use super::*;

    #[test]
    fn configuration_file_may_set_options_of_every_type() {
        let file = FileOptions::parse(
            "masters = ['redis://a', 'redis://b']\nttl = '10s'\nwait = '5m'\nfencing = 'off'\n\
             restart_guard = 'after-first-contact'\nkeep_for = '1m 30s'\n",
        )
        .unwrap();
        assert_eq!(file.settings.masters, ["redis://a", "redis://b"]);
        assert_eq!(file.settings.ttl, Some(Duration::from_secs(10)));
        assert_eq!(
            file.settings.wait,
            Some(Wait::For(Duration::from_secs(300)))
        );
        assert_eq!(file.settings.fencing, Some(false));
        assert_eq!(
            file.settings.restart_guard,
            Some(RestartGuard::AfterFirstContact)
        );
        assert_eq!(file.keep_for, Some(Duration::from_secs(90)));
        assert_eq!(
            FileOptions::parse("masters = 'redis://a,redis://b'")
                .unwrap()
                .settings
                .masters,
            file.settings.masters
        );
    }

    #[test]
    fn error_in_a_configuration_file_is_reported_with_line_and_key() {
        for (text, parts) in [
            ("\ntll = '10s'\n", &["line 2", "tll", "expected one of"][..]),
            (
                "ttl = 'ten'",
                &["line 1, ttl", "'ten' is not a duration", "10s"],
            ),
            ("ttl = 10", &["line 1, ttl", "integer"]),
            ("wait = 'soon'", &["line 1, wait", "forever"]),
            (
                "restart_guard = 'maybe'",
                &["restart_guard", "maybe", "off"],
            ),
            ("masters = [", &["line 1"]),
        ] {
            let error = FileOptions::parse(text).unwrap_err();
            assert!(!error.contains('\n'), "{error}");
            for part in parts {
                assert!(
                    error.contains(part),
                    "the error for {text:?} must contain {part:?}: {error:?}"
                );
            }
        }
    }

    #[test]
    fn error_in_a_configuration_file_does_not_show_values_of_other_keys() {
        let error =
            FileOptions::parse("masters = ['redis://:s3cret@a']\ntll = '1s'\n").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
        for text in [
            "masters = [\n 'redis://:s3cret=x@a',\n \"redis://:s3cret=x\n]",
            "masters = redis://:s3cret x@a",
            "ttl = 'redis://:s3cret x'",
            "masters_generation = 'redis://:s3cret x'",
            "'redis://:s3cret x' = 1",
            "\"redis://:s3cret x",
        ] {
            let error = FileOptions::parse(text).unwrap_err();
            assert!(!error.contains("s3cr"), "{text}: {error}");
        }
    }
}
