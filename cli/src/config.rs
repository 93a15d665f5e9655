//! The options about masters. For each option, the first of these sources that has a value is used:
//!
//! 1. a flag
//! 2. a `QUORATE_*` variable
//! 3. the TOML file
//! 4. the library's default
//!
//! Exception: if the flag `--config` names the file, the file comes before the variables (see `args.rs`).
//!
//! The argument parser merges flags and variables. This module adds the values of the TOML file. The library's builder
//! checks the result.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quorate::list::OptionGroup;
pub(crate) use quorate::text::{duration, wait};
use quorate::{Redlock, Settings};
use serde::Serialize;

use crate::exit::Failure;
use crate::file::{self, FileOptions, FileSource};
use crate::output;
use crate::settings::{self, MasterSettings};

/// The configuration file that is read if it exists and `--config` is not given.
const DEFAULT_FILE: &str = "quorate.toml";

/// Sets the named fields of `$options` from the TOML file `$under`, unless a flag or a variable has set them. The macro
/// is for options of commands. For settings of the library, use `Settings::or`.
macro_rules! fill {
    ($options:ident from $under:ident: $($name:ident),+ $(,)?) => {
        $($options.$name = $options.$name.take().or($under.$name.take());)+
    };
}
pub(crate) use fill;

/// Before its exit, a command waits until the masters have answered its release requests. It waits for at most the node
/// timeout plus this time.
const RELEASE_MARGIN: Duration = Duration::from_millis(300);

/// The options about masters. All commands that connect to masters have them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MasterOptions {
    #[command(flatten)]
    given_settings: MasterSettings,

    /// TOML file with settings [default: quorate.toml, if it exists]
    ///
    /// A file that is named by this option on the command line overrides QUORATE_* variables. Otherwise variables
    /// override the file.
    ///
    /// The file may set every option about masters, and ttl, wait, max_hold, note, keep_for and grace. Its keys are the
    /// long options with underscores: masters = ["redis://a", ..], ttl = "10s".
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", help_heading = settings::HEADING)]
    config: Option<PathBuf>,
}

/// Where the value of one setting comes from, for `doctor`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Origin {
    pub(crate) setting: &'static str,
    /// The origin: the name of a flag or of a variable, or the path of the file.
    pub(crate) source: String,
    /// The variable of this setting, if the variable is set but a flag or the file overrides it; `None` otherwise.
    pub(crate) overridden: Option<&'static str>,
}

impl MasterOptions {
    /// Reads the configuration file. Uses its value for every setting that neither a flag nor a variable gives.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not TOML, or has an unknown key or a bad value; or if no master is configured.
    pub(crate) fn complete(mut self) -> Result<(Self, FileOptions), Failure> {
        let file = match &self.config {
            Some(path) => FileOptions::load(path, FileSource::Named)?,
            None if is_default_file() => {
                FileOptions::load(DEFAULT_FILE.as_ref(), FileSource::Found)?
            }
            None => FileOptions::default(),
        };
        let file_settings = file.settings.clone().of(OptionGroup::Masters);
        self.given_settings.settings =
            std::mem::take(&mut self.given_settings.settings).or(file_settings);
        let settings = self.settings();
        if settings.masters.iter().all(String::is_empty) {
            return Err(Failure::usage(
                "no masters: set --masters URL,URL,.. or QUORATE_MASTERS \
                 or masters = [..] in quorate.toml, for example --masters redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3",
            ));
        }
        check_none_empty("master", &settings.masters)?;
        check_none_empty("next master", &settings.next_masters)?;
        Ok((self, file))
    }

    /// For `doctor`: the origin of each setting that a flag, a variable or the file sets.
    pub(crate) fn origins(&self, file: &FileOptions) -> Vec<Origin> {
        let path = self.config.as_deref().unwrap_or(DEFAULT_FILE.as_ref());
        let is_config_option = |word: OsString| word.to_string_lossy().starts_with("--config");
        let is_file_first = std::env::args_os().any(is_config_option);
        let origins = file::keys_and_variables().filter_map(|(setting, variable)| {
            let is_set = std::env::var_os(variable).is_some_and(|value| !value.is_empty());
            let is_in_file = file.keys.iter().any(|key| key == setting);
            let mut sources = self.given_settings.sources.iter();
            let flag = sources.find(|(name, source)| *name == setting && source != variable);
            let source = match flag {
                Some((_, flag)) => flag.clone(),
                None if is_in_file && (is_file_first || !is_set) => path.display().to_string(),
                None if is_set => variable.to_owned(),
                None => return None,
            };
            let overridden = (is_set && source != variable).then_some(variable);
            Some(Origin {
                setting,
                source,
                overridden,
            })
        });
        origins.collect()
    }

    /// The settings of the masters.
    pub(crate) fn settings(&self) -> &Settings {
        &self.given_settings.settings
    }

    /// Mutable access to the settings of the masters.
    pub(crate) fn settings_mut(&mut self) -> &mut Settings {
        &mut self.given_settings.settings
    }

    /// How long a command may wait before its exit for the answers to its releases: the node timeout plus
    /// [`RELEASE_MARGIN`].
    pub(crate) fn release_timeout(&self) -> Duration {
        self.settings().node_timeout() + RELEASE_MARGIN
    }
}

/// Whether the default file exists and is a regular file. If something else has this name, for example a directory,
/// prints a warning and returns false. This is not an error, because the user has not named the file.
fn is_default_file() -> bool {
    let Ok(metadata) = std::fs::metadata(DEFAULT_FILE) else {
        return false;
    };
    if !metadata.is_file() {
        output::print_notice(format!(
            "warning: ignoring {DEFAULT_FILE} in the working directory: it is not a regular file"
        ));
    }
    metadata.is_file()
}

fn check_none_empty(noun: &str, urls: &[String]) -> Result<(), Failure> {
    match urls.iter().position(String::is_empty) {
        None => Ok(()),
        Some(index) => Err(Failure::usage(format!(
            "{noun} {} of {} is empty: remove the extra comma, or fill in the URL",
            index + 1,
            urls.len()
        ))),
    }
}

/// Creates a lock client with these options. Opens no connection yet.
///
/// # Errors
///
/// If the library refuses a setting. The message names the setting and a valid value.
pub(crate) fn redlock(options: &MasterOptions, ttl: Option<Duration>) -> Result<Redlock, Failure> {
    let mut settings = options.settings().clone();
    settings.ttl = ttl;
    let masters = std::mem::take(&mut settings.masters);
    let mut builder = settings.named(settings::flag).map_err(Failure::usage)?;
    for (index, url) in masters.iter().enumerate() {
        builder = crate::backends::add(builder, index + 1, url)?;
    }
    builder.build().map_err(Failure::usage)
}

/// The failure of a process that the operating system refuses file descriptors or threads.
pub(crate) fn start_failure(error: std::io::Error) -> Failure {
    Failure::internal(format!(
        "cannot start: {error}: raise the limits of open files and processes (ulimit -n, ulimit -u)"
    ))
}

/// Runs the future on a new runtime in this thread, and returns its result.
///
/// # Errors
///
/// The error of the future, or an internal failure if no runtime can be created.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = quorate::one_thread().map_err(start_failure)?;
    let result = runtime.block_on(future);
    // Do not wait for a pending DNS lookup: the name server may never reply (test
    // `run_exits_without_waiting_for_a_silent_name_server`).
    runtime.shutdown_background();
    result
}
