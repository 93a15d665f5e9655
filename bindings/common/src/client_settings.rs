//! The settings of a client, as data.

use std::time::Duration;

use quorate::testing::Masters;
use quorate::{RedlockBuilder, Settings};

use crate::error::{CallError, ErrorKind};

/// The settings of a client.
#[derive(Default)]
pub struct ClientSettings {
    /// All settings that can be written as text. An unset field keeps its default.
    pub settings: Settings,
    /// Masters in memory, instead of servers.
    pub memory: Option<Masters>,
    /// How long a crashed waiter can delay the waiters behind it; `None` for the default of the library.
    pub heartbeat: Option<Duration>,
    /// Whether holders publish no note at all, unless a lock has one of its own.
    pub is_anonymous: bool,
}

impl ClientSettings {
    /// The settings in the environment variables `QUORATE_..`.
    ///
    /// # Errors
    ///
    /// If a variable cannot be parsed.
    pub fn from_env() -> Result<Self, CallError> {
        Ok(Self {
            settings: Settings::from_env()?,
            ..Self::default()
        })
    }

    /// These settings, and those in the environment variables `QUORATE_..` where a setting is unset.
    ///
    /// # Errors
    ///
    /// If a variable cannot be parsed, or if neither names the masters.
    pub fn or_env(mut self) -> Result<Self, CallError> {
        self.settings = self.settings.or(Settings::from_env()?);
        if self.memory.is_none() && self.settings.masters.is_empty() {
            let text = "QUORATE_MASTERS is not set: name the masters, for example redis://10.0.0.1,redis://10.0.0.2";
            return Err(CallError::new(ErrorKind::Invalid, text));
        }
        Ok(self)
    }

    /// Checks the settings, and makes a builder of them.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or a certificate cannot be read.
    pub fn builder(self) -> Result<RedlockBuilder, CallError> {
        let mut builder = self.settings.builder()?;
        if let Some(heartbeat) = self.heartbeat {
            builder = builder.heartbeat(heartbeat);
        }
        if self.is_anonymous {
            builder = builder.note(None);
        }
        Ok(match self.memory {
            Some(masters) => builder.in_memory_on(&masters),
            None => builder,
        })
    }
}
