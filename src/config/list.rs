//! The settings that can be written as text, one table row each. The row of a setting contains everything about it: the
//! field of [`Settings`], the environment variable, the key in a file, the option of the command `quorate`, and the row
//! of the table on [`RedlockBuilder`](crate::RedlockBuilder).

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::value::{Choice, Field};
use crate::protocol::lease::default_node_timeout;
use crate::settings::{Order, RestartGuard, Wait};

/// The default `ttl`: 10 s, or `max_ttl` if that is shorter.
const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The default `max_ttl`: 30 s.
const DEFAULT_MAX_TTL: Duration = Duration::from_secs(30);
/// The default `node_timeout`: 50 ms, or a tenth of the `ttl` if that is shorter.
const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(50);
/// The default `connect_timeout`: 500 ms.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The default `wait` of an acquire: 30 s.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// The group of a setting. It decides which commands of `quorate` accept the setting as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionGroup {
    /// Every command that connects to masters accepts the setting.
    Masters,
    /// Every command that takes a lock accepts the setting.
    Lock,
}

/// The description of one setting: one row of [`SETTINGS`].
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name of the setting: the field of [`Settings`], and the key in a file.
    pub name: &'static str,
    /// The long command-line option, without the leading dashes.
    pub flag: &'static str,
    /// The environment variable of the setting.
    pub variable: &'static str,
    /// The default, as text for users; `none` if there is no default.
    pub default: &'static str,
    /// The commands that accept the setting as an option.
    pub group: OptionGroup,
    /// The placeholder of the setting's value in a help text.
    pub value: &'static str,
    /// A description of the setting in one line.
    pub help: &'static str,
    /// Further explanations of the setting; may be empty.
    pub more: &'static str,
    /// The accepted words, if the setting accepts only certain words; otherwise empty.
    pub choices: &'static [Choice],
    /// Whether the setting's value may contain passwords.
    pub secret: bool,
    /// Whether the setting may be given several times.
    pub several: bool,
    take: fn(&mut Settings, OsString) -> Result<(), String>,
}

impl Setting {
    /// Parses `text` as the value of this setting and writes it into `settings`.
    ///
    /// # Errors
    ///
    /// An error message that quotes the text and states the expected format.
    pub fn take(&self, settings: &mut Settings, text: OsString) -> Result<(), String> {
        (self.take)(settings, text)
    }
}

/// The bytes of `name`, with dashes instead of underscores.
const fn with_dashes<const N: usize>(name: &str) -> [u8; N] {
    let name = name.as_bytes();
    let mut flag = [0; N];
    let mut index = 0;
    while index < N {
        flag[index] = if name[index] == b'_' {
            b'-'
        } else {
            name[index]
        };
        index += 1;
    }
    flag
}

macro_rules! settings {
    ($($name:ident: $type:ty {
        variable: $variable:literal,
        default: $default:literal,
        change: $change:literal,
        option: $group:ident $value:literal,
        help: $help:literal,
        $(more: $more:literal,)?
    })+) => {
        /// The settings of a [`RedlockBuilder`](crate::RedlockBuilder) as data. The name of a field is also its key in
        /// the settings file of the command `quorate`. An unset field keeps the builder's default.
        ///
        /// [`from_env`](Self::from_env) reads the settings from the environment. With the feature `serde`, the settings
        /// can be deserialized from any format:
        ///
        /// - Durations are written with a unit: `"500ms"`, `"1h 30m"`.
        /// - `wait` is a duration, `"forever"` or `"none"`.
        /// - `masters` is a list of URLs, or one text with URLs separated by commas.
        /// - An unknown key is an error. The keys `keep_for` and `grace` are errors, because only the command `quorate`
        ///   has these settings.
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
            $(
                #[doc = concat!($help, ". Default: ", $default, ".")]
                $(#[doc = concat!("\n", $more)])?
                #[cfg_attr(feature = "serde", serde(deserialize_with = "super::value::deserialize_field"))]
                pub $name: $type,
            )+
        }

        /// The descriptions of all settings, in the order of help texts and tables.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            flag: {
                const FLAG: [u8; stringify!($name).len()] = with_dashes(stringify!($name));
                match std::str::from_utf8(&FLAG) {
                    Ok(flag) => flag,
                    Err(_) => panic!("the name of a setting must be text"),
                }
            },
            variable: $variable,
            default: $default,
            group: OptionGroup::$group,
            value: $value,
            help: $help,
            more: concat!($($more)?),
            choices: <$type as Field>::CHOICES,
            secret: <$type as Field>::SECRET,
            several: <$type as Field>::SEVERAL,
            take: |to, text| to.$name.read_text(text),
        }),+];

        impl Settings {
            /// These settings, completed by `under`: a setting that is not set in `self` is taken from `under`.
            #[must_use]
            #[doc(hidden)]
            pub fn or(self, under: Self) -> Self {
                Self { $($name: Field::or(self.$name, under.$name),)+ }
            }

            /// Only the settings of this option group; all other settings are unset.
            #[must_use]
            #[doc(hidden)]
            pub fn of(self, group: OptionGroup) -> Self {
                Self { $($name: if group == OptionGroup::$group { self.$name } else { Default::default() },)+ }
            }

            /// Deserializes the value of the setting `name` into the field with this name.
            ///
            /// # Errors
            ///
            /// If no setting has this name, or if the value has another type.
            #[cfg(feature = "serde")]
            #[doc(hidden)]
            pub fn read<'de, D: serde::Deserializer<'de>>(
                &mut self,
                name: &str,
                from: D,
            ) -> Result<(), D::Error> {
                match name {
                    $(stringify!($name) => self.$name = Field::deserialize(from)?,)+
                    _ => return Err(serde::de::Error::custom("no such setting")),
                }
                Ok(())
            }
        }

        /// The table of all settings, for rustdoc.
        macro_rules! table {
            () => {
                concat!(
                    "| setting | variable | default | change it when |\n|---|---|---|---|",
                    $("\n| `", stringify!($name), "` | `", $variable, "` | ", $default, " | ", $change, " |",)+
                )
            };
        }
        pub(crate) use table;
    };
}

settings! {
    masters: Vec<String> {
        variable: "QUORATE_MASTERS",
        default: "none",
        change: "always: name an odd number of independent servers",
        option: Masters "URL,URL,..",
        help: "URLs of the masters, separated by commas",
        more: "The URLs begin with redis:// or valkey://, rediss:// or valkeys:// (TLS), unix://, mysql://, mysqls:// (TLS) or zk://. For example, redis://user:password@host:6379/0 (0 is the database number), \
            mysql://user:password@host/database, zk://host+host/path. For mysql:// and zk://, run `quorate \
            prepare-server` once. Each URL names one independent master, never a replica or a node of a cluster. Use an \
            odd number of masters; different kinds may be mixed. A password on the command line is visible in the list \
            of processes: use QUORATE_MASTERS or --config. A command that quorate starts inherits the variable, unless \
            --hide-masters is given.",
    }
    next_masters: Vec<String> {
        variable: "QUORATE_NEXT_MASTERS",
        default: "none",
        change: "masters are being replaced while in use",
        option: Masters "URL,URL,..",
        help: "While masters are being replaced: the complete new set, including masters that stay",
        more: "Every lock then needs a majority of --masters and a majority of --next-masters. See `quorate masters`.",
    }
    masters_generation: Option<u64> {
        variable: "QUORATE_MASTERS_GENERATION",
        default: "0",
        change: "the masters have been replaced before",
        option: Masters "N",
        help: "How many times the masters have been replaced so far",
    }
    masters_name: Option<String> {
        variable: "QUORATE_MASTERS_NAME",
        default: "none",
        change: "an address could lead to another server, for example a Kubernetes Service; set the same name on every client",
        option: Masters "NAME",
        help: "Name that the generation marker of a master must bear; a server without it has no vote",
        more: "Run `quorate masters mark` once with this name. From then on, only an operator marks a server: clients do \
            not restore a marker that a master has lost.",
    }
    node_timeout: Option<Duration> {
        variable: "QUORATE_NODE_TIMEOUT",
        default: "50ms, at most a tenth of the ttl",
        change: "masters are more than 20 ms away",
        option: Masters "TIME",
        help: "How long to wait for the reply of a master before its vote is ignored",
    }
    connect_timeout: Option<Duration> {
        variable: "QUORATE_CONNECT_TIMEOUT",
        default: "500ms",
        change: "connections use TLS over a slow network",
        option: Masters "TIME",
        help: "How long to wait for a connection to a master",
    }
    max_ttl: Option<Duration> {
        variable: "QUORATE_MAX_TTL",
        default: "30s",
        change: "you need longer leases; set the same value on every client",
        option: Masters "TIME",
        help: "The longest ttl that any client uses on these masters; must be the same for all clients",
    }
    prefix: Option<String> {
        variable: "QUORATE_PREFIX",
        default: "none",
        change: "several deployments share masters",
        option: Masters "TEXT",
        help: "Prefix of the key of every lock on the masters",
    }
    restart_guard: Option<RestartGuard> {
        variable: "QUORATE_RESTART_GUARD",
        default: "on",
        change: "all masters use `appendfsync always`",
        option: Masters "MODE",
        help: "Whether the votes of a restarted master are ignored until max_ttl has passed",
    }
    fencing: Option<bool> {
        variable: "QUORATE_FENCING",
        default: "on",
        change: "you want plain `SET key value NX PX ttl`, without fencing tokens",
        option: Masters "on|off",
        help: "Whether each acquisition gets a fencing token",
        more: "`off` is the classic Redlock algorithm: SET key value NX PX ttl and nothing else.",
    }
    order: Option<Order> {
        variable: "QUORATE_ORDER",
        default: "fair",
        change: "you want classic Redlock: no queue, and retries after random pauses",
        option: Masters "ORDER",
        help: "Which waiter gets the lock next",
    }
    ca_file: Option<PathBuf> {
        variable: "QUORATE_CA_FILE",
        default: "none",
        change: "masters have certificates from a private CA",
        option: Masters "FILE",
        help: "For rediss://: PEM file of CA certificates to trust instead of the system's",
    }
    client_cert: Option<PathBuf> {
        variable: "QUORATE_CLIENT_CERT",
        default: "none",
        change: "masters require a client certificate",
        option: Masters "FILE",
        help: "For rediss://: client certificate to present to the masters (PEM)",
    }
    client_key: Option<PathBuf> {
        variable: "QUORATE_CLIENT_KEY",
        default: "none",
        change: "with `client_cert`",
        option: Masters "FILE",
        help: "For rediss://: private key of the client certificate (PEM)",
    }
    wait: Option<Wait> {
        variable: "QUORATE_WAIT",
        default: "30s",
        change: "you want to give up sooner, or never (the default of `quorate run` is `forever`)",
        option: Lock "TIME",
        help: "How long to wait for the lock: a duration, `forever` or `none`",
    }
    ttl: Option<Duration> {
        variable: "QUORATE_TTL",
        default: "10s, at most max_ttl",
        change: "a crashed holder must be replaced sooner, or masters are far away",
        option: Lock "TIME",
        help: "How long the lock lasts without renewal",
        more: "A held lock is renewed after each third of this time.",
    }
    max_hold: Option<Duration> {
        variable: "QUORATE_MAX_HOLD",
        default: "none",
        change: "a stuck holder must not keep the lock for ever",
        option: Lock "TIME",
        help: "Longest time to hold the lock; a lock that is held for longer is lost",
    }
    note: Option<String> {
        variable: "QUORATE_NOTE",
        default: "none",
        change: "operators should see more about a holder than its host, pid and process",
        option: Lock "TEXT",
        help: "Holder's note, shown by `status` and waiters; at most 1 KiB",
    }
}

/// The effective value of each setting: the value that was set, otherwise the default. The command `quorate` calls the
/// public functions, so that each default is computed only here.
impl Settings {
    #[doc(hidden)]
    pub fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL.min(self.max_ttl()))
    }

    #[doc(hidden)]
    pub fn max_ttl(&self) -> Duration {
        self.max_ttl.unwrap_or(DEFAULT_MAX_TTL)
    }

    #[doc(hidden)]
    pub fn node_timeout(&self) -> Duration {
        let timeout = self.node_timeout;
        timeout.unwrap_or_else(|| default_node_timeout(self.ttl(), DEFAULT_NODE_TIMEOUT))
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT)
    }

    pub(crate) fn wait(&self) -> Wait {
        self.wait.unwrap_or(Wait::For(DEFAULT_WAIT))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may contain passwords, so only the number of URLs is shown.
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

    #[test]
    fn variable_and_flag_of_a_setting_are_derived_from_its_name() {
        for setting in SETTINGS {
            let variable = format!("QUORATE_{}", setting.name.to_uppercase());
            assert_eq!(setting.variable, variable);
            assert_eq!(setting.flag, setting.name.replace('_', "-"));
        }
    }

    #[test]
    fn default_text_in_the_list_of_settings_equals_the_effective_default() {
        for (name, default) in [
            ("ttl", DEFAULT_TTL),
            ("max_ttl", DEFAULT_MAX_TTL),
            ("node_timeout", DEFAULT_NODE_TIMEOUT),
            ("connect_timeout", DEFAULT_CONNECT_TIMEOUT),
            ("wait", DEFAULT_WAIT),
        ] {
            let setting_row = SETTINGS
                .iter()
                .find(|setting_row| setting_row.name == name)
                .expect(name);
            let text = setting_row.default.split(',').next().unwrap_or_default();
            assert_eq!(humantime::parse_duration(text), Ok(default), "{name}");
        }
        for (name, default) in [
            ("order", format!("{:?}", Order::default())),
            ("restart_guard", format!("{:?}", RestartGuard::default())),
        ] {
            let setting_row = SETTINGS
                .iter()
                .find(|setting_row| setting_row.name == name)
                .expect(name);
            assert_eq!(setting_row.default, default.to_lowercase(), "{name}");
        }
    }

    #[test]
    fn settings_of_lower_precedence_fill_in_only_unset_settings() {
        let settings_from = |rows: &[(&str, &str)]| {
            let mut settings = Settings::default();
            for (name, text) in rows {
                let setting_row = SETTINGS
                    .iter()
                    .find(|setting_row| setting_row.name == *name);
                let setting_row = setting_row.expect("a setting");
                setting_row
                    .take(&mut settings, (*text).into())
                    .expect("good");
            }
            settings
        };
        let higher = settings_from(&[("ttl", "1s")]);
        let lower = settings_from(&[("ttl", "2s"), ("masters", "redis://a")]);
        let merged = higher.or(lower);
        assert_eq!(merged.ttl, Some(Duration::from_secs(1)));
        assert_eq!(merged.masters, ["redis://a"]);
    }
}
