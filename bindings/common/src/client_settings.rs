//! The settings of a client, as data.

use quorate::testing::Masters;
use quorate::{RedlockBuilder, Settings};

use crate::error::CallError;

/// The settings of a client.
#[derive(Default)]
pub struct ClientSettings {
    /// All settings that can be written as text. An unset field keeps its default.
    pub settings: Settings,
    /// Masters in memory, instead of servers.
    pub memory: Option<Masters>,
}

impl ClientSettings {
    /// The settings in the environment variables `QUORATE_..`.
    ///
    /// # Errors
    ///
    /// If a variable cannot be parsed.
    pub fn from_env() -> Result<Self, CallError> {
        let settings = Settings::from_env()?;
        let memory = None;
        Ok(Self { settings, memory })
    }

    /// Checks the settings, and makes a builder of them.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or a certificate cannot be read.
    pub fn builder(self) -> Result<RedlockBuilder, CallError> {
        let builder = self.settings.builder()?;
        Ok(match self.memory {
            Some(masters) => builder.in_memory_on(&masters),
            None => builder,
        })
    }
}
