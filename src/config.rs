//! Settings as data: of a configuration file, or of the environment.

pub mod text;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::builder::RedlockBuilder;
use crate::error::BuildError;
use crate::redlock::Redlock;
use crate::settings::{Order, RestartGuard, Wait};

/// The settings of a [`RedlockBuilder`] as data, with the names that the command `quorate` gives them in its file.
/// What is left out keeps the default of the builder.
///
/// [`from_env`](Self::from_env) reads them from the environment; with the feature `serde` they are read from any
/// format: durations as people write them (`"500ms"`, `"1h 30m"`), `wait` also as `"forever"` or `"none"`, `masters`
/// as a list or as one text with commas, and a key that is none of these is an error. The keys that only the command
/// has (`keep_for`, `grace`) are such.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "serde")] {
/// #[derive(serde::Deserialize)]
/// struct Service {
///     locks: quorate::Settings,
/// }
///
/// let service: Service = toml::from_str(
///     r#"
///     [locks]
///     masters = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]
///     ttl = "5s"
///     "#,
/// )?;
/// let redlock = service.locks.builder()?.build()?;
/// # assert_eq!(redlock.masters().count(), 3);
/// # }
/// # Ok(()) }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
#[non_exhaustive]
pub struct Settings {
    /// The masters, by their URLs.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::masters"))]
    pub masters: Vec<String>,
    /// The masters that will be, while they are replaced.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::masters"))]
    pub next_masters: Vec<String>,
    /// How often the masters have been replaced.
    pub masters_generation: Option<u64>,
    /// How long the masters keep a lock that is not renewed.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::duration"))]
    pub ttl: Option<Duration>,
    /// The longest ttl that any client of these masters uses.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::duration"))]
    pub max_ttl: Option<Duration>,
    /// How long one master may take to answer.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::duration"))]
    pub node_timeout: Option<Duration>,
    /// How long connecting to one master may take.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::duration"))]
    pub connect_timeout: Option<Duration>,
    /// How long an acquire waits.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::wait"))]
    pub wait: Option<Wait>,
    /// The longest any lock is held.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::duration"))]
    pub max_hold: Option<Duration>,
    /// What stands before the resource in the lock key.
    pub prefix: Option<String>,
    /// Whether locks are numbered.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::switch"))]
    pub fencing: Option<bool>,
    /// Who is next.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "text::read::order"))]
    pub order: Option<Order>,
    /// Whether masters that restarted lately may vote.
    #[cfg_attr(
        feature = "serde",
        serde(deserialize_with = "text::read::restart_guard")
    )]
    pub restart_guard: Option<RestartGuard>,
    /// What those who look are told of the holder.
    pub note: Option<String>,
    /// For `rediss://`: a PEM file with the certificates that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// For `rediss://`: a PEM file with the certificate that is shown to the masters.
    pub client_cert: Option<PathBuf>,
    /// For `rediss://`: a PEM file with the private key of `client_cert`.
    pub client_key: Option<PathBuf>,
}

/// What one variable is called and what it sets.
type Variable = (&'static str, fn(&mut Settings, &str) -> Result<(), String>);

/// Those that hold text; the files are read apart, for their names may be any bytes.
const VARIABLES: [Variable; 14] = [
    ("QUORATE_MASTERS", |to, text| {
        to.masters = text::urls(text);
        Ok(())
    }),
    ("QUORATE_NEXT_MASTERS", |to, text| {
        to.next_masters = text::urls(text);
        Ok(())
    }),
    ("QUORATE_MASTERS_GENERATION", |to, text| {
        let number = text.trim().parse();
        set(
            &mut to.masters_generation,
            number.map_err(|_| "is no number".to_owned()),
        )
    }),
    ("QUORATE_TTL", |to, text| {
        set(&mut to.ttl, text::duration(text))
    }),
    ("QUORATE_MAX_TTL", |to, text| {
        set(&mut to.max_ttl, text::duration(text))
    }),
    ("QUORATE_NODE_TIMEOUT", |to, text| {
        set(&mut to.node_timeout, text::duration(text))
    }),
    ("QUORATE_CONNECT_TIMEOUT", |to, text| {
        set(&mut to.connect_timeout, text::duration(text))
    }),
    ("QUORATE_WAIT", |to, text| {
        set(&mut to.wait, text::wait(text))
    }),
    ("QUORATE_MAX_HOLD", |to, text| {
        set(&mut to.max_hold, text::duration(text))
    }),
    ("QUORATE_PREFIX", |to, text| {
        set(&mut to.prefix, Ok(text.to_owned()))
    }),
    ("QUORATE_FENCING", |to, text| {
        set(&mut to.fencing, text::switch(text))
    }),
    ("QUORATE_ORDER", |to, text| {
        set(&mut to.order, text::order(text))
    }),
    ("QUORATE_RESTART_GUARD", |to, text| {
        set(&mut to.restart_guard, text::restart_guard(text))
    }),
    ("QUORATE_NOTE", |to, text| {
        set(&mut to.note, Ok(text.to_owned()))
    }),
];

fn set<T>(to: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *to = Some(value?);
    Ok(())
}

fn wrong(name: &str, why: impl Into<String>) -> BuildError {
    BuildError::BadSetting {
        name: name.to_owned(),
        why: why.into(),
    }
}

impl Settings {
    /// Reads `QUORATE_MASTERS`, `QUORATE_TTL` and the others of [`RedlockBuilder::from_env`]. What is not set stays
    /// unset.
    ///
    /// # Errors
    ///
    /// [`BuildError::BadSetting`], which names the variable.
    pub fn from_env() -> Result<Self, BuildError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(look: impl Fn(&str) -> Option<OsString>) -> Result<Self, BuildError> {
        let mut settings = Self::default();
        for (name, take) in VARIABLES {
            let Some(value) = look(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let text = value
                .into_string()
                .map_err(|_| wrong(name, "is no text in UTF-8"))?;
            take(&mut settings, &text).map_err(|why| wrong(name, why))?;
        }
        let file = |name| look(name).filter(|path| !path.is_empty()).map(Into::into);
        settings.ca_file = file("QUORATE_CA_FILE");
        settings.client_cert = file("QUORATE_CLIENT_CERT");
        settings.client_key = file("QUORATE_CLIENT_KEY");
        Ok(settings)
    }

    /// A builder with these settings, for what stands beyond them. Reads the certificates, if any are named.
    ///
    /// # Errors
    ///
    /// [`BuildError::BadSetting`] for a file that cannot be read, and where a certificate lacks its key.
    pub fn builder(self) -> Result<RedlockBuilder, BuildError> {
        self.named(str::to_owned)
    }

    /// The same; `name` says what a key is called by whom it comes from.
    fn named(self, name: impl Fn(&str) -> String) -> Result<RedlockBuilder, BuildError> {
        let mut builder = self.tls(Redlock::builder(), name)?;
        builder = builder.masters(self.masters);
        builder = builder.next_masters(self.next_masters);
        builder = given(
            builder,
            self.masters_generation,
            RedlockBuilder::masters_generation,
        );
        builder = given(builder, self.ttl, RedlockBuilder::ttl);
        builder = given(builder, self.max_ttl, RedlockBuilder::max_ttl);
        builder = given(builder, self.node_timeout, RedlockBuilder::node_timeout);
        builder = given(
            builder,
            self.connect_timeout,
            RedlockBuilder::connect_timeout,
        );
        builder = given(builder, self.wait, RedlockBuilder::wait);
        builder = given(builder, self.max_hold, RedlockBuilder::max_hold);
        builder = given(builder, self.prefix, RedlockBuilder::prefix);
        builder = given(builder, self.fencing, RedlockBuilder::fencing);
        builder = given(builder, self.restart_guard, RedlockBuilder::restart_guard);
        builder = given(builder, self.note, RedlockBuilder::note);
        Ok(given(builder, self.order, RedlockBuilder::order))
    }

    #[cfg(feature = "tls-rustls")]
    fn tls(
        &self,
        builder: RedlockBuilder,
        name: impl Fn(&str) -> String,
    ) -> Result<RedlockBuilder, BuildError> {
        let read = |key: &str, path: &PathBuf| {
            let read = std::fs::read(path);
            read.map_err(|error| {
                wrong(
                    &name(key),
                    format!("cannot read {}: {error}", path.display()),
                )
            })
        };
        let mut tls = crate::tls::Tls::default();
        if let Some(path) = &self.ca_file {
            tls = tls.root_pem(read("ca_file", path)?);
        }
        match (&self.client_cert, &self.client_key) {
            (Some(cert), Some(key)) => {
                tls = tls.client_pem(read("client_cert", cert)?, read("client_key", key)?);
            }
            (None, None) => {}
            (Some(_), None) => {
                return Err(wrong(&name("client_cert"), "needs its client_key as well"));
            }
            (None, Some(_)) => {
                return Err(wrong(&name("client_key"), "needs its client_cert as well"));
            }
        }
        Ok(builder.tls(tls))
    }

    #[cfg(not(feature = "tls-rustls"))]
    fn tls(
        &self,
        builder: RedlockBuilder,
        name: impl Fn(&str) -> String,
    ) -> Result<RedlockBuilder, BuildError> {
        let files = [
            ("ca_file", &self.ca_file),
            ("client_cert", &self.client_cert),
            ("client_key", &self.client_key),
        ];
        match files.into_iter().find(|(_, file)| file.is_some()) {
            None => Ok(builder),
            Some((key, _)) => Err(wrong(
                &name(key),
                "TLS is not built in: turn on the feature \"tls-rustls\"",
            )),
        }
    }
}

fn given<T>(
    builder: RedlockBuilder,
    value: Option<T>,
    setting: impl FnOnce(RedlockBuilder, T) -> RedlockBuilder,
) -> RedlockBuilder {
    match value {
        Some(value) => setting(builder, value),
        None => builder,
    }
}

impl RedlockBuilder {
    /// Settings from the environment, with the names and meanings that they have for the command `quorate`:
    ///
    /// `QUORATE_MASTERS` (URLs with commas between them; it must be set), `QUORATE_NEXT_MASTERS` and
    /// `QUORATE_MASTERS_GENERATION` while and after masters are replaced, `QUORATE_TTL`, `QUORATE_MAX_TTL`,
    /// `QUORATE_NODE_TIMEOUT`, `QUORATE_CONNECT_TIMEOUT`, `QUORATE_MAX_HOLD` (durations: `500ms`, `1h 30m`),
    /// `QUORATE_WAIT` (a duration, `forever` or `none`), `QUORATE_PREFIX`, `QUORATE_NOTE`, `QUORATE_FENCING`
    /// (`on` or `off`), `QUORATE_ORDER` (`fair` or `unordered`), `QUORATE_RESTART_GUARD` (`on`,
    /// `after-first-contact` or `off`), and for TLS `QUORATE_CA_FILE`, `QUORATE_CLIENT_CERT` and
    /// `QUORATE_CLIENT_KEY`. What is not set, or empty, has the builder's default. No file is read for settings: for that
    /// see [`Settings`]. Masters of other kinds than Redis are added by hand: take their URLs out of
    /// [`Settings::masters`] first.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), quorate::BuildError> {
    /// let redlock = quorate::RedlockBuilder::from_env()?.build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::BadSetting`] names the variable, and never shows a password.
    pub fn from_env() -> Result<Self, BuildError> {
        Self::of_variables(Settings::from_env()?)
    }

    fn of_variables(settings: Settings) -> Result<Self, BuildError> {
        let masters = "QUORATE_MASTERS";
        if settings.masters.is_empty() {
            let why = "is not set: name the masters, for example redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3";
            return Err(wrong(masters, why));
        }
        let builder = settings.named(|key| format!("QUORATE_{}", key.to_uppercase()))?;
        let bad = |error: BuildError| wrong(masters, error.to_string());
        builder.check_masters().map_err(bad)?;
        Ok(builder)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may hold passwords: they are counted, not shown.
        f.debug_struct("Settings")
            .field("masters", &self.masters.len())
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<RedlockBuilder, BuildError> {
        let look = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        };
        Settings::from_variables(look).and_then(RedlockBuilder::of_variables)
    }

    const MASTERS: (&str, &str) = ("QUORATE_MASTERS", "redis://a, redis://b:7000 ,redis://c/2");

    #[test]
    fn every_variable_sets_the_setting_of_its_name() {
        let all = [
            MASTERS,
            ("QUORATE_TTL", "4s"),
            ("QUORATE_MAX_TTL", "40s"),
            ("QUORATE_NODE_TIMEOUT", "70ms"),
            ("QUORATE_CONNECT_TIMEOUT", "2s"),
            ("QUORATE_WAIT", "forever"),
            ("QUORATE_MAX_HOLD", "1h 30m"),
            ("QUORATE_PREFIX", "locks:"),
            ("QUORATE_FENCING", "on"),
            ("QUORATE_ORDER", "unordered"),
            ("QUORATE_RESTART_GUARD", "after-first-contact"),
            ("QUORATE_NOTE", "api"),
        ];
        let redlock = from(&all).and_then(RedlockBuilder::build).expect("good");
        let names: Vec<_> = redlock.masters().map(ToString::to_string).collect();
        assert_eq!(names, ["a:6379", "b:7000", "c:6379"]);
        let options = &redlock.core.options;
        let seconds = Duration::from_secs;
        assert_eq!((options.ttl, options.max_ttl), (seconds(4), seconds(40)));
        assert_eq!(options.node_timeout, Duration::from_millis(70));
        assert_eq!(options.wait, Wait::Forever);
        assert_eq!(options.max_hold, Some(seconds(5400)));
        assert!(!options.fair);
        assert_eq!(&*redlock.core.coordinator.prefix, "locks:");
        let text = format!("{:?}", redlock.core.options);
        assert!(text.contains("api"), "{text}");
        let classic = from(&[MASTERS, ("QUORATE_FENCING", "off")]).and_then(RedlockBuilder::build);
        assert!(!classic.expect("good").core.coordinator.fencing);
        let patient = from(&[MASTERS, ("QUORATE_WAIT", "none")]).and_then(RedlockBuilder::build);
        assert_eq!(patient.expect("good").core.options.wait, Wait::None);
    }

    #[test]
    fn error_of_a_bad_variable_names_it_without_the_password() {
        for (name, value, says) in [
            (
                "QUORATE_MASTERS",
                "redis://u:s3cret@a,http://u:s3cret@b",
                "http://b",
            ),
            (
                "QUORATE_MASTERS",
                "redis://u:s3cret@a,redis://u:s3cret@a",
                "twice",
            ),
            ("QUORATE_MASTERS", "mysql://u:s3cret@a/db", "quorate-mysql"),
            ("QUORATE_TTL", "10", "'10' is no duration"),
            ("QUORATE_MAX_TTL", " ", "no duration"),
            ("QUORATE_MASTERS_GENERATION", "one", "is no number"),
            ("QUORATE_NODE_TIMEOUT", "fast", "500ms"),
            ("QUORATE_CONNECT_TIMEOUT", "1", "no duration"),
            ("QUORATE_MAX_HOLD", "x", "no duration"),
            ("QUORATE_WAIT", "soon", "forever"),
            ("QUORATE_FENCING", "maybe", "neither on nor off"),
            ("QUORATE_ORDER", "lifo", "fair or unordered"),
            ("QUORATE_RESTART_GUARD", "half", "after-first-contact"),
            ("QUORATE_CA_FILE", "/no/such/file", ""),
        ] {
            let rest = (name != MASTERS.0).then_some(MASTERS);
            let all: Vec<_> = rest.into_iter().chain([(name, value)]).collect();
            let error = from(&all).expect_err(name);
            let text = error.to_string();
            assert!(text.starts_with(name) && text.contains(says), "{text}");
            assert!(!format!("{error:?} {text}").contains("s3cret"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        let none = from(&[]).expect_err("no masters").to_string();
        assert!(none.starts_with("QUORATE_MASTERS is not set"), "{none}");
    }

    #[cfg(unix)]
    #[test]
    fn error_of_a_variable_that_is_not_text_names_it() {
        use std::os::unix::ffi::OsStringExt as _;
        let look = |name: &str| {
            (name == "QUORATE_PREFIX").then(|| std::ffi::OsString::from_vec(vec![0xff]))
        };
        let error = Settings::from_variables(look).expect_err("no text");
        assert!(error.to_string().starts_with("QUORATE_PREFIX"), "{error}");
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn error_of_a_certificate_without_a_key_names_the_variable() {
        let error = from(&[MASTERS, ("QUORATE_CLIENT_CERT", "/c.pem")]).expect_err("no key");
        assert!(
            error.to_string().starts_with("QUORATE_CLIENT_CERT"),
            "{error}"
        );
    }

    #[cfg(feature = "serde")]
    #[test]
    fn settings_are_deserialized_and_unknown_keys_are_refused() {
        let read = |text: &str| toml::from_str::<Settings>(text);
        let settings = read(
            r#"
            masters = "redis://:p,w@a,redis://b"
            ttl = "4s"
            wait = "5m"
            fencing = "off"
            order = "unordered"
            restart_guard = "off"
            prefix = "p:"
            max_hold = "1h"
            "#,
        );
        let settings = settings.expect("good");
        assert_eq!(settings.masters, ["redis://:p,w@a", "redis://b"]);
        assert_eq!(settings.ttl, Some(Duration::from_secs(4)));
        assert_eq!(settings.wait, Some(Wait::For(Duration::from_secs(300))));
        assert_eq!(settings.fencing, Some(false));
        assert_eq!(settings.order, Some(Order::Unordered));
        assert_eq!(settings.restart_guard, Some(RestartGuard::Off));
        assert!(!format!("{settings:?}").contains("p,w"), "{settings:?}");
        assert!(settings.builder().and_then(RedlockBuilder::build).is_ok());
        let list = read("masters = ['redis://a']\nfencing = true").expect("good");
        assert_eq!(list.masters, ["redis://a"]);
        assert_eq!(list.fencing, Some(true));
        for (text, says) in [
            ("tll = '4s'", "unknown field `tll`"),
            ("ttl = 'ten'", "'ten' is no duration"),
            ("ttl = 4", "string"),
            ("restart_guard = 'half'", "after-first-contact"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
