//! The settings of the library as options of the command line. The options are generated from the library's list of
//! settings, so a new setting needs no code here.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use quorate::Settings;
use quorate::list::{OptionGroup, SETTINGS, Setting};

/// The options of all commands that connect to masters.
pub(crate) type MasterSettings = GivenSettings<false>;
/// The options of the commands that take a lock.
pub(crate) type LockSettings = GivenSettings<true>;

/// Settings from flags and environment variables. `GivenSettings<true>` contains only settings of the lock, and
/// `GivenSettings<false>` only settings of the masters.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenSettings<const LOCK: bool> {
    pub(crate) settings: Settings,
    /// The name of each setting that the user has set, with its flag or variable.
    pub(crate) sources: Vec<(&'static str, String)>,
}

/// The settings whose defaults differ between the command line and the library: the name, and the default on the
/// command line.
const DEFAULTS: [(&str, &str); 1] = [("wait", "forever")];

/// The names of the environment variables whose values can contain passwords of masters.
pub(crate) fn secret_variables() -> impl Iterator<Item = &'static str> {
    let secret = SETTINGS.iter().filter(|setting| setting.secret);
    secret.map(|setting| setting.variable)
}

/// The flag of a setting as users type it, for example `--max-ttl` for `max_ttl`.
pub(crate) fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}

/// Settings of the lock that `-h` leaves out.
const HIDDEN_IN_SHORT_HELP: [&str; 1] = ["note"];

/// The heading of the options about masters in help texts.
pub(crate) const HEADING: &str = "Masters";

fn settings_of_group(lock: bool) -> impl Iterator<Item = &'static Setting> {
    let group = if lock {
        OptionGroup::Lock
    } else {
        OptionGroup::Masters
    };
    SETTINGS.iter().filter(move |row| row.group == group)
}

fn option_of(setting: &'static Setting) -> Arg {
    let own_default = DEFAULTS.iter().find(|(name, _)| *name == setting.name);
    let default = own_default.map_or(setting.default, |(_, default)| default);
    let help = match default {
        "none" => setting.help.to_owned(),
        _ => format!("{} [default: {default}]", setting.help),
    };
    let arg = Arg::new(setting.name)
        .long(setting.flag)
        .value_name(setting.value)
        .env(setting.variable)
        .hide_env_values(setting.secret)
        .hide_short_help(HIDDEN_IN_SHORT_HELP.contains(&setting.name))
        .help(help.clone());
    let arg = match setting.more {
        "" => arg,
        details => arg.long_help(format!("{help}\n\n{details}")),
    };
    let arg = match setting.group {
        OptionGroup::Masters => arg.help_heading(HEADING),
        OptionGroup::Lock => arg,
    };
    let arg = if setting.several {
        arg.action(ArgAction::Append)
    } else {
        arg.action(ArgAction::Set)
    };
    let arg = if setting.value == "FILE" {
        arg.value_hint(ValueHint::FilePath)
    } else {
        arg
    };
    if setting.choices.is_empty() {
        arg.value_parser(OsStringValueParser::new().try_map(|text| validated(setting, text)))
    } else {
        let choice =
            |(name, help): &(&'static str, &'static str)| PossibleValue::new(*name).help(*help);
        let choices = PossibleValuesParser::new(setting.choices.iter().map(choice));
        arg.value_parser(choices.map(OsString::from))
    }
}

fn validated(setting: &Setting, text: OsString) -> Result<OsString, String> {
    setting.take(&mut Settings::default(), text.clone())?;
    Ok(text)
}

impl<const LOCK: bool> Args for GivenSettings<LOCK> {
    fn augment_args(command: Command) -> Command {
        command.args(settings_of_group(LOCK).map(option_of))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const LOCK: bool> FromArgMatches for GivenSettings<LOCK> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut parsed = Self::default();
        parsed.update_from_arg_matches(matches)?;
        Ok(parsed)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in settings_of_group(LOCK) {
            match matches.value_source(setting.name) {
                Some(ValueSource::CommandLine) => {
                    self.sources.push((setting.name, flag(setting.name)));
                }
                Some(ValueSource::EnvVariable) => {
                    self.sources
                        .push((setting.name, setting.variable.to_owned()));
                }
                _ => {}
            }
            let values = matches.get_many::<OsString>(setting.name);
            for value in values.into_iter().flatten() {
                let result = setting.take(&mut self.settings, value.clone());
                result.map_err(|error| {
                    clap::Error::raw(clap::error::ErrorKind::ValueValidation, error)
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_one_option_and_one_environment_variable() {
        let masters = MasterSettings::augment_args(Command::new("masters"));
        let lock = LockSettings::augment_args(Command::new("lock"));
        let names_of = |command: &Command, setting: &Setting| {
            let mut args = command.get_arguments();
            let arg = args.find(|arg| arg.get_id() == setting.name)?;
            Some((arg.get_long()?.to_owned(), arg.get_env()?.to_owned()))
        };
        for setting in SETTINGS {
            let names_in_both = [names_of(&masters, setting), names_of(&lock, setting)];
            let option_names: Vec<_> = names_in_both.into_iter().flatten().collect();
            assert_eq!(
                option_names,
                [(setting.flag.to_owned(), setting.variable.into())]
            );
        }
    }

    #[test]
    fn options_of_the_command_line_are_parsed_into_settings() {
        let command = MasterSettings::augment_args(Command::new("masters"));
        let command_line = "masters --masters redis://a,redis://b --masters redis://c --max-ttl 1m --order unordered";
        let matches = command.get_matches_from(command_line.split(' '));
        let parsed = MasterSettings::from_arg_matches(&matches).unwrap().settings;
        assert_eq!(parsed.masters, ["redis://a", "redis://b", "redis://c"]);
        assert_eq!(parsed.max_ttl, Some(std::time::Duration::from_secs(60)));
        assert_eq!(parsed.order, Some(quorate::Order::Unordered));
    }
}
