//! Settings as data, from a configuration file or from the environment.

pub mod list;
pub mod text;
mod value;

use std::ffi::OsString;
#[cfg(feature = "tls-rustls")]
use std::path::Path;

use self::list::{SETTINGS, Settings};
use crate::builder::RedlockBuilder;
use crate::error::BuildError;
#[cfg(feature = "tls-rustls")]
use crate::redact;
use crate::redlock::Redlock;

fn bad_setting(name: &str, why: impl Into<String>) -> BuildError {
    BuildError::BadSetting {
        name: name.to_owned(),
        why: why.into(),
    }
}

impl Settings {
    /// Reads the settings from environment variables, which the table on [`RedlockBuilder`] lists. A variable that is
    /// missing or empty leaves its setting unset.
    ///
    /// # Errors
    ///
    /// [`BuildError::BadSetting`], which names the variable.
    pub fn from_env() -> Result<Self, BuildError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(
        read_variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, BuildError> {
        let mut settings = Self::default();
        for setting in SETTINGS {
            let value = read_variable(setting.variable).filter(|value| !value.is_empty());
            let result = value.map_or(Ok(()), |value| setting.take(&mut settings, value));
            result.map_err(|why| bad_setting(setting.variable, why))?;
        }
        Ok(settings)
    }

    /// Makes a builder with these settings. The caller can add further settings to the builder. Reads the certificate
    /// files, if the settings name any.
    ///
    /// # Errors
    ///
    /// [`BuildError::BadSetting`] for a file that cannot be read, or a client certificate without its key.
    pub fn builder(self) -> Result<RedlockBuilder, BuildError> {
        self.named(str::to_owned)
    }

    /// Makes a builder as [`builder`](Self::builder) does. Error messages show `name(setting)` instead of the name of a
    /// setting: for example, its environment variable.
    ///
    /// # Errors
    ///
    /// Those of [`builder`](Self::builder).
    #[doc(hidden)]
    pub fn named(self, name: impl Fn(&str) -> String) -> Result<RedlockBuilder, BuildError> {
        let builder = self.tls(Redlock::builder(), name)?;
        Ok(builder.settings(self))
    }

    #[cfg(feature = "tls-rustls")]
    fn tls(
        &self,
        builder: RedlockBuilder,
        name: impl Fn(&str) -> String,
    ) -> Result<RedlockBuilder, BuildError> {
        let read_file = |key: &str, path: &Path| {
            std::fs::read(path).map_err(|error| {
                let path_text = path.to_string_lossy();
                let shown_path = redact::value(&path_text);
                bad_setting(&name(key), format!("cannot read {shown_path}: {error}"))
            })
        };
        // Another file, for example a pipe, can be read only once.
        let is_regular_file =
            |path: &Path| path.metadata().is_ok_and(|metadata| metadata.is_file());
        let mut tls = crate::tls::Tls::default();
        if let Some(path) = &self.ca_file {
            let text = read_file("ca_file", path)?;
            tls = if is_regular_file(path) {
                tls.root_file(path)
            } else {
                tls.root_pem(text)
            };
        }
        match (&self.client_cert, &self.client_key) {
            (Some(cert), Some(key)) => {
                let text = (
                    read_file("client_cert", cert)?,
                    read_file("client_key", key)?,
                );
                tls = if is_regular_file(cert) && is_regular_file(key) {
                    tls.client_files(cert, key)
                } else {
                    tls.client_pem(text.0, text.1)
                };
            }
            (None, None) => {}
            (Some(_), None) => {
                let key = name("client_key");
                return Err(bad_setting(
                    &name("client_cert"),
                    format!("needs {key} as well"),
                ));
            }
            (None, Some(_)) => {
                let cert = name("client_cert");
                return Err(bad_setting(
                    &name("client_key"),
                    format!("needs {cert} as well"),
                ));
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
            Some((key, _)) => Err(bad_setting(
                &name(key),
                "TLS is not built in: turn on the feature \"tls-rustls\"",
            )),
        }
    }
}

impl RedlockBuilder {
    /// A builder with settings from the environment; the [table above](RedlockBuilder) lists the variables. The command
    /// `quorate` reads the same variables. A variable that is missing or empty leaves the builder's default.
    ///
    /// - `QUORATE_MASTERS` must be set: URLs separated by commas.
    /// - Durations are written with a unit (`500ms`, `1h 30m`).
    /// - `QUORATE_WAIT` is a duration, `forever` or `none`.
    /// - `QUORATE_FENCING` is `on` or `off`.
    /// - `QUORATE_ORDER` is `fair` or `unordered`.
    /// - `QUORATE_RESTART_GUARD` is `on`, `after-first-contact` or `off`.
    ///
    /// This function reads no settings file: use [`Settings`] for that. It supports only Redis and Valkey masters. To
    /// add masters of other kinds, read [`Settings`] instead, remove the URLs of these masters from
    /// [`Settings::masters`], and pass the masters to `RedlockBuilder::node` (feature `node`).
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
        Self::with_required_masters(Settings::from_env()?)
    }

    fn with_required_masters(settings: Settings) -> Result<Self, BuildError> {
        let masters = "QUORATE_MASTERS";
        if settings.masters.is_empty() {
            let why = "is not set: name the masters, for example redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3";
            return Err(bad_setting(masters, why));
        }
        let builder = settings.named(|key| format!("QUORATE_{}", key.to_uppercase()))?;
        let bad = |error: BuildError| bad_setting(masters, error.to_string());
        builder.check_masters().map_err(bad)?;
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Wait;
    #[cfg(feature = "serde")]
    use crate::settings::{Order, RestartGuard};

    fn builder_from(variables: &[(&str, &str)]) -> Result<RedlockBuilder, BuildError> {
        let read_variable = |name: &str| {
            let found_variable = variables.iter().find(|(known, _)| *known == name);
            found_variable.map(|(_, value)| value.into())
        };
        Settings::from_variables(read_variable).and_then(RedlockBuilder::with_required_masters)
    }

    const MASTERS: (&str, &str) = ("QUORATE_MASTERS", "redis://a, redis://b:7000 ,redis://c/2");

    #[test]
    fn every_environment_variable_sets_the_setting_it_is_named_after() {
        let variables = [
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
        let redlock = builder_from(&variables)
            .and_then(RedlockBuilder::build)
            .expect("good");
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
        let classic_client =
            builder_from(&[MASTERS, ("QUORATE_FENCING", "off")]).and_then(RedlockBuilder::build);
        assert!(!classic_client.expect("good").core.coordinator.fencing);
        let patient =
            builder_from(&[MASTERS, ("QUORATE_WAIT", "none")]).and_then(RedlockBuilder::build);
        assert_eq!(patient.expect("good").core.options.wait, Wait::None);
    }

    #[test]
    fn error_of_an_invalid_variable_names_the_variable_but_not_the_password() {
        for (name, value, expected_text) in [
            (
                "QUORATE_MASTERS",
                "redis://u:s3cret@a,http://u:s3cret@b",
                "number 2 (http://***)",
            ),
            (
                "QUORATE_MASTERS",
                "redis://u:s3cret@a,redis://u:s3cret@a",
                "twice",
            ),
            ("QUORATE_MASTERS", "mysql://u:s3cret@a/db", "quorate-mysql"),
            ("QUORATE_TTL", "10", "'10' is not a duration"),
            ("QUORATE_MAX_TTL", " ", "not a duration"),
            ("QUORATE_MASTERS_GENERATION", "one", "is not a number"),
            ("QUORATE_NODE_TIMEOUT", "fast", "500ms"),
            ("QUORATE_CONNECT_TIMEOUT", "1", "not a duration"),
            ("QUORATE_MAX_HOLD", "x", "not a duration"),
            ("QUORATE_WAIT", "soon", "forever"),
            ("QUORATE_FENCING", "maybe", "neither on nor off"),
            ("QUORATE_ORDER", "lifo", "fair or unordered"),
            ("QUORATE_RESTART_GUARD", "half", "after-first-contact"),
            ("QUORATE_CA_FILE", "/no/such/file", ""),
            ("QUORATE_TTL", "redis://u:s3cret pw@a", "'redis://***'"),
            ("QUORATE_MAX_HOLD", "u:s3cret@a", "'***'"),
            ("QUORATE_CA_FILE", "redis://u:s3cret@a", ""),
        ] {
            let masters_variable = (name != MASTERS.0).then_some(MASTERS);
            let variables: Vec<_> = masters_variable
                .into_iter()
                .chain([(name, value)])
                .collect();
            let error = builder_from(&variables).expect_err(name);
            let text = error.to_string();
            assert!(
                text.starts_with(name) && text.contains(expected_text),
                "{text}"
            );
            assert!(!format!("{error:?} {text}").contains("s3cret"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        let no_masters_error = builder_from(&[]).expect_err("no masters").to_string();
        assert!(
            no_masters_error.starts_with("QUORATE_MASTERS is not set"),
            "{no_masters_error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn error_of_a_variable_that_is_not_utf_8_names_the_variable() {
        use std::os::unix::ffi::OsStringExt as _;
        let read_variable = |name: &str| {
            (name == "QUORATE_PREFIX").then(|| std::ffi::OsString::from_vec(vec![0xff]))
        };
        let error = Settings::from_variables(read_variable).expect_err("no text");
        assert!(error.to_string().starts_with("QUORATE_PREFIX"), "{error}");
    }

    #[cfg(feature = "tls-rustls")]
    #[test]
    fn error_of_a_client_certificate_without_a_key_names_the_certificate_variable() {
        let error =
            builder_from(&[MASTERS, ("QUORATE_CLIENT_CERT", "/c.pem")]).expect_err("no key");
        assert!(
            error.to_string().starts_with("QUORATE_CLIENT_CERT"),
            "{error}"
        );
    }

    #[cfg(feature = "serde")]
    #[test]
    fn deserialization_of_settings_accepts_only_known_keys() {
        let parse_settings = |text: &str| toml::from_str::<Settings>(text);
        let settings = parse_settings(
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
        let listed_settings =
            parse_settings("masters = ['redis://a']\nfencing = true").expect("good");
        assert_eq!(listed_settings.masters, ["redis://a"]);
        assert_eq!(listed_settings.fencing, Some(true));
        for (text, expected_text) in [
            ("tll = '4s'", "unknown field `tll`"),
            ("ttl = 'ten'", "'ten' is not a duration"),
            ("ttl = 4", "a duration with its unit"),
            ("restart_guard = 'half'", "after-first-contact"),
        ] {
            let error = parse_settings(text).expect_err(text).to_string();
            assert!(error.contains(expected_text), "{error}");
        }
    }
}
