//! Options: flags over `QUORATE_*` variables over the TOML file over the library's defaults.
//!
//! Flags and variables are merged by the argument parser; this file adds the TOML file underneath
//! and hands the result to the library's builder, which validates it once.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::fcntl::OFlag;
use quorate::text::pieces as urls;
pub(crate) use quorate::text::{duration, switch, wait};
use quorate::{Redlock, RestartGuard, Tls, Wait};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::exit::Failure;

/// The file that is read when no other is named and it exists.
const DEFAULT_FILE: &str = "quorate.toml";

/// Fills in, from what stands underneath, the options that nobody has given: the one way in which settings are
/// combined, beside the argument parser's own (flags over variables).
macro_rules! fill {
    ($options:ident from $under:ident: $($name:ident),+ $(,)?) => {
        $($options.$name = $options.$name.take().or($under.$name.take());)+
    };
}
pub(crate) use fill;

/// How long releases may still take when we are about to end, beyond the time in which a master has
/// to answer; for masters that take longer the ttl does the rest.
const PARTING: Duration = Duration::from_millis(300);
/// The library's own, where nobody says otherwise.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// The library's own, as well.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(30);

/// How to reach the masters, and the rules of the lock. Every command takes these.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Masters")]
pub(crate) struct MasterOptions {
    /// The masters, separated by commas: redis://, rediss://, unix://, mysql://, mysqls:// or zk:// URLs
    ///
    /// Every URL names one independent master, never a replica or a node of a cluster. Use an odd
    /// number of them; kinds may be mixed. mysql://user:password@host/database and zk://host+host/path
    /// are made ready by `quorate prepare`. A user, a password and a database number may be part of the URL:
    /// redis://user:password@host:6379/0. A password typed here is visible in the list of processes:
    /// prefer the variable or the file. What `run` starts inherits the variable.
    #[arg(
        long,
        value_name = "URL,URL,..",
        env = "QUORATE_MASTERS",
        hide_env_values = true
    )]
    pub(crate) masters: Option<Vec<String>>,

    /// The masters that are to take their place, while masters are replaced: all of them, also those that stay
    ///
    /// While both are named, locks are taken on a majority of each. See `quorate masters`.
    #[arg(
        long,
        value_name = "URL,URL,..",
        env = "QUORATE_NEXT_MASTERS",
        hide_env_values = true
    )]
    pub(crate) next_masters: Option<Vec<String>>,

    /// How often the masters have been replaced up to these [default: 0]
    #[arg(long, value_name = "N", env = "QUORATE_MASTERS_GENERATION")]
    pub(crate) masters_generation: Option<u64>,

    /// A TOML file with settings [default: quorate.toml, when it exists]
    ///
    /// What tells of the masters, and ttl, wait, max_hold, keep_for and grace. Its keys are the long options with
    /// underscores: masters = ["redis://a", ..], ttl = "10s".
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// How long a master may take to answer before its vote is left out
    #[arg(long, value_name = "TIME", env = "QUORATE_NODE_TIMEOUT", value_parser = duration)]
    pub(crate) node_timeout: Option<Duration>,

    /// How long a connection may take to be made
    #[arg(long, value_name = "TIME", env = "QUORATE_CONNECT_TIMEOUT", value_parser = duration)]
    pub(crate) connect_timeout: Option<Duration>,

    /// The longest ttl that anybody uses on these masters; the same everywhere [default: 30s]
    #[arg(long, value_name = "TIME", env = "QUORATE_MAX_TTL", value_parser = duration)]
    pub(crate) max_ttl: Option<Duration>,

    /// Text in front of every resource name in the key on the masters
    #[arg(long, value_name = "TEXT", env = "QUORATE_PREFIX")]
    pub(crate) prefix: Option<String>,

    /// Whether a master that restarted sits out until the longest ttl has passed [default: on]
    #[arg(long, value_name = "MODE", env = "QUORATE_RESTART_GUARD")]
    pub(crate) restart_guard: Option<GuardMode>,

    /// Whether to number the acquisitions [default: on]
    ///
    /// `off` is the classic algorithm: SET key value NX PX ttl and nothing else.
    #[arg(long, value_name = "on|off", env = "QUORATE_FENCING", value_parser = switch)]
    pub(crate) fencing: Option<bool>,

    /// Who is next when the lock is free [default: fair]
    #[arg(long, value_name = "ORDER", env = "QUORATE_ORDER")]
    pub(crate) order: Option<Fairness>,

    /// For rediss://: trust the certificates in this PEM file instead of the system's
    #[arg(long, value_name = "FILE", env = "QUORATE_CA_FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// For rediss://: show the masters this certificate (PEM)
    #[arg(long, value_name = "FILE", env = "QUORATE_CLIENT_CERT")]
    pub(crate) client_cert: Option<PathBuf>,

    /// For rediss://: the private key of --client-cert (PEM)
    #[arg(long, value_name = "FILE", env = "QUORATE_CLIENT_KEY")]
    pub(crate) client_key: Option<PathBuf>,
}

/// When a master that came back counts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GuardMode {
    /// Not before the longest ttl has passed since it started
    On,
    /// The same, except for the state in which it is met first
    AfterFirstContact,
    /// At once: only for masters that lose nothing (appendfsync always)
    Off,
}

/// Who is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fairness {
    /// First come, first served, over all machines; the masters keep the line
    Fair,
    /// Whoever asks at the right moment
    Unordered,
}

/// Everything the TOML file may say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FileOptions {
    masters: Option<List>,
    next_masters: Option<List>,
    masters_generation: Option<u64>,
    #[serde(deserialize_with = "duration_text")]
    node_timeout: Option<Duration>,
    #[serde(deserialize_with = "duration_text")]
    connect_timeout: Option<Duration>,
    #[serde(deserialize_with = "duration_text")]
    max_ttl: Option<Duration>,
    prefix: Option<String>,
    restart_guard: Option<GuardMode>,
    #[serde(deserialize_with = "switch_value")]
    fencing: Option<bool>,
    order: Option<Fairness>,
    ca_file: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    /// How long a grant lasts without renewal.
    #[serde(deserialize_with = "duration_text")]
    pub(crate) ttl: Option<Duration>,
    /// How long `run` waits for the lock.
    #[serde(deserialize_with = "wait_text")]
    pub(crate) wait: Option<Wait>,
    /// How long `run` holds the lock at most.
    #[serde(deserialize_with = "duration_text")]
    pub(crate) max_hold: Option<Duration>,
    /// How long `run` keeps the lock at least.
    #[serde(deserialize_with = "duration_text")]
    pub(crate) keep_for: Option<Duration>,
    /// The time between SIGTERM and SIGKILL when the lock ends.
    #[serde(deserialize_with = "duration_text")]
    pub(crate) grace: Option<Duration>,
}

/// The variables that may hold passwords of masters.
pub(crate) const MASTERS_VARIABLES: [&str; 2] = ["QUORATE_MASTERS", "QUORATE_NEXT_MASTERS"];

impl MasterOptions {
    /// Reads the file and fills in what neither a flag nor a variable said.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is no TOML, has an unknown key or a wrong value, or when nobody
    /// named a master.
    pub(crate) fn complete(mut self) -> Result<(Self, FileOptions), Failure> {
        let found = Path::new(DEFAULT_FILE);
        let mut file = match &self.config {
            Some(path) => FileOptions::load(path, Source::Named)?,
            None if found.exists() => FileOptions::load(found, Source::Found)?,
            None => FileOptions::default(),
        };
        self.masters = named(self.masters, file.masters.take());
        self.next_masters = named(self.next_masters, file.next_masters.take());
        fill!(self from file: masters_generation, node_timeout, connect_timeout, max_ttl, prefix, restart_guard, fencing, order,
            ca_file, client_cert, client_key);
        let urls = self.masters.get_or_insert_default();
        if urls.iter().all(String::is_empty) {
            return Err(Failure::usage(
                "no masters: name them with --masters URL,URL,.. or QUORATE_MASTERS \
                 or masters = [..] in quorate.toml, for example --masters redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3",
            ));
        }
        none_empty("master", urls)?;
        none_empty(
            "next master",
            self.next_masters.as_deref().unwrap_or_default(),
        )?;
        Ok((self, file))
    }

    /// How long a master may take to answer.
    pub(crate) fn node_timeout(&self) -> Duration {
        self.node_timeout.unwrap_or(NODE_TIMEOUT)
    }

    /// How long to see releases off at the end.
    pub(crate) fn parting(&self) -> Duration {
        self.node_timeout() + PARTING
    }
}

/// The URLs that were typed, or stand in the file.
fn named(typed: Option<Vec<String>>, file: Option<List>) -> Option<Vec<String>> {
    let typed = typed.map(|lists| lists.iter().flat_map(|list| urls(list)).collect());
    let named: Option<Vec<String>> = typed.or(file.map(|List(urls)| urls));
    named.map(|urls| urls.iter().map(|url| url.trim().to_owned()).collect())
}

fn none_empty(what: &str, urls: &[String]) -> Result<(), Failure> {
    match urls.iter().position(String::is_empty) {
        None => Ok(()),
        Some(at) => Err(Failure::usage(format!(
            "{what} {} of {} is empty: remove the comma too many, or fill in its URL",
            at + 1,
            urls.len()
        ))),
    }
}

impl FileOptions {
    fn load(path: &Path, source: Source) -> Result<Self, Failure> {
        let text = read(path, source).map_err(|error| {
            Failure::usage(format!(
                "cannot read the configuration {}: {error}",
                path.display()
            ))
        })?;
        Self::parse(&text)
            .map_err(|what| Failure::usage(format!("configuration {}: {what}", path.display())))
    }

    /// Parses; the error is one line with the place and the key, and no other value of the file.
    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let what = error.message().replace('\n', " ");
            match error.span() {
                Some(span) => {
                    let start = span.start.min(text.len());
                    let number = text[..start].matches('\n').count() + 1;
                    let line = text.lines().nth(number - 1).unwrap_or_default();
                    match line.split_once('=') {
                        Some((key, _)) => format!("line {number}, {}: {what}", key.trim()),
                        None => format!("line {number}: {what}"),
                    }
                }
                None => what,
            }
        })
    }
}

/// How a file came to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Somebody named it: it may be a pipe, as with `--config <(..)`.
    Named,
    /// It happened to be there: only a regular file is what it looks like, and any other might never end.
    Found,
}

/// Far more than any configuration needs.
const LARGEST_FILE: u64 = 1 << 20;

fn read(path: &Path, source: Source) -> io::Result<String> {
    let mut options = File::options();
    options.read(true);
    if source == Source::Found {
        // Opening a pipe would wait for its writer. Regular files do not know the flag.
        options.custom_flags(OFlag::O_NONBLOCK.bits());
    }
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() || (source == Source::Found && !kind.is_file()) {
        let what = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a pipe",
            () => "a device",
        };
        return Err(io::Error::other(format!("it is {what} and not a file")));
    }
    let mut text = String::new();
    if file.take(LARGEST_FILE).read_to_string(&mut text)? as u64 == LARGEST_FILE {
        return Err(io::Error::other("it is far too large for a configuration"));
    }
    Ok(text)
}

/// The lock as the options describe it. Connects to nothing.
///
/// # Errors
///
/// When the library refuses the options: its line names the culprit and what would be right.
pub(crate) fn redlock(options: &MasterOptions, ttl: Option<Duration>) -> Result<Redlock, Failure> {
    let mut builder = Redlock::builder();
    for url in options.masters.iter().flatten() {
        builder = crate::masters::add(builder, url)?;
    }
    builder = builder.next_masters(options.next_masters.iter().flatten());
    if let Some(generation) = options.masters_generation {
        builder = builder.masters_generation(generation);
    }
    if let Some(ttl) = ttl {
        builder = builder.ttl(ttl);
    }
    if let Some(timeout) = options.node_timeout {
        builder = builder.node_timeout(timeout);
    }
    if let Some(timeout) = options.connect_timeout {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(max_ttl) = options.max_ttl {
        builder = builder.max_ttl(max_ttl);
    }
    if let Some(prefix) = &options.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(mode) = options.restart_guard {
        builder = builder.restart_guard(mode.into());
    }
    if let Some(fencing) = options.fencing {
        builder = builder.fencing(fencing);
    }
    if options.order == Some(Fairness::Unordered) {
        builder = builder.order(quorate::Order::Unordered);
    }
    builder.tls(tls(options)?).build().map_err(Failure::usage)
}

/// Reads the certificates.
fn tls(options: &MasterOptions) -> Result<Tls, Failure> {
    let read = |option: &str, path: &Path| {
        std::fs::read(path).map_err(|error| {
            Failure::usage(format!(
                "cannot read --{option} {}: {error}",
                path.display()
            ))
        })
    };
    let mut tls = Tls::default();
    if let Some(path) = &options.ca_file {
        tls = tls.root_pem(read("ca-file", path)?);
    }
    match (&options.client_cert, &options.client_key) {
        (Some(cert), Some(key)) => {
            Ok(tls.client_pem(read("client-cert", cert)?, read("client-key", key)?))
        }
        (None, None) => Ok(tls),
        _ => Err(Failure::usage(
            "--client-cert and --client-key belong together: give both or neither",
        )),
    }
}

/// Runs a future that talks to masters to its end.
///
/// # Errors
///
/// Those of the future, or that no runtime could be made.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::internal)?;
    let outcome = runtime.block_on(future);
    // Dropped, it would wait for the thread that looks a name up at a silent name server: nobody needs
    // that answer any more (`a_silent_name_server_holds_up_nobody_at_the_end`).
    runtime.shutdown_background();
    outcome
}

impl From<GuardMode> for RestartGuard {
    fn from(mode: GuardMode) -> Self {
        match mode {
            GuardMode::On => Self::On,
            GuardMode::AfterFirstContact => Self::AfterFirstContact,
            GuardMode::Off => Self::Off,
        }
    }
}

/// A list of URLs, also as one text with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
struct List(Vec<String>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Urls;
        impl<'de> Visitor<'de> for Urls {
            type Value = List;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of URLs")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<List, E> {
                Ok(List(urls(text)))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<List, A::Error> {
                let mut urls = Vec::new();
                while let Some(url) = seq.next_element()? {
                    urls.push(url);
                }
                Ok(List(urls))
            }
        }
        deserializer.deserialize_any(Urls)
    }
}

fn text_with<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map(Some).map_err(de::Error::custom)
}

fn duration_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    text_with(deserializer, duration)
}

fn wait_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Wait>, D::Error> {
    text_with(deserializer, wait)
}

fn switch_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    struct OnOff;
    impl Visitor<'_> for OnOff {
        type Value = bool;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("true, false, \"on\" or \"off\"")
        }
        fn visit_bool<E: de::Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
            switch(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(OnOff).map(Some)
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
                &["redis://:p,w@a", " redis://b"],
            ),
            (
                "redis://u:,p,,w,@a,redis://b",
                &["redis://u:,p,,w,@a", "redis://b"],
            ),
            ("redis://a,redis://:p,w@b", &["redis://a", "redis://:p,w@b"]),
            // What is wrong in it is said of the piece that is.
            ("redis://a,b", &["redis://a", "b"]),
            ("redis://a,,redis://b", &["redis://a", "", "redis://b"]),
            ("redis://a,", &["redis://a", ""]),
        ] {
            assert_eq!(urls(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_file_may_say_everything() {
        let file = FileOptions::parse(
            "masters = ['redis://a', 'redis://b']\nttl = '10s'\nwait = '5m'\nfencing = 'off'\n\
             restart_guard = 'after-first-contact'\nkeep_for = '1m 30s'\n",
        )
        .unwrap();
        assert_eq!(
            file.masters,
            Some(List(vec!["redis://a".into(), "redis://b".into()]))
        );
        assert_eq!(file.ttl, Some(Duration::from_secs(10)));
        assert_eq!(file.wait, Some(Wait::For(Duration::from_secs(300))));
        assert_eq!(file.fencing, Some(false));
        assert_eq!(file.restart_guard, Some(GuardMode::AfterFirstContact));
        assert_eq!(file.keep_for, Some(Duration::from_secs(90)));
        assert_eq!(
            FileOptions::parse("masters = 'redis://a,redis://b'")
                .unwrap()
                .masters,
            file.masters
        );
    }

    #[test]
    fn a_wrong_file_is_answered_with_the_place_and_the_key() {
        for (text, parts) in [
            ("\ntll = '10s'\n", &["line 2", "tll", "expected one of"][..]),
            (
                "ttl = 'ten'",
                &["line 1, ttl", "'ten' is no duration", "10s"],
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
                    "{text:?} gave {error:?} without {part:?}"
                );
            }
        }
    }

    #[test]
    fn a_wrong_file_never_shows_the_other_values() {
        let error =
            FileOptions::parse("masters = ['redis://:s3cret@a']\ntll = '1s'\n").unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn waiting_is_a_duration_or_a_word() {
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("none"), Ok(Wait::None));
        assert_eq!(wait("0s"), Ok(Wait::None));
        assert_eq!(wait("5m"), Ok(Wait::For(Duration::from_secs(300))));
        assert!(wait("5").unwrap_err().contains("'5' is no duration"));
    }
}
