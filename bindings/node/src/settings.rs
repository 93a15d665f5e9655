//! The settings of a `Redlock`.

use std::time::Duration;

use napi_derive::napi;
use quorate_bindings::client_settings::ClientSettings;
use quorate_bindings::error::CallError;
use quorate_bindings::quorate::testing::Masters;
use quorate_bindings::quorate::{self, Order, RedlockBuilder, RestartGuard};

use crate::duration::{from_ms, wait_from_ms};

/// The settings of a `Redlock`. Times are in milliseconds. A setting that is not given has its default.
#[napi(object, object_to_js = false)]
#[derive(Default)]
pub struct Settings {
    pub masters: Option<Vec<String>>,
    pub next_masters: Option<Vec<String>>,
    pub masters_generation: Option<u32>,
    pub masters_name: Option<String>,
    pub ttl: Option<f64>,
    pub max_ttl: Option<f64>,
    /// Negative: no limit.
    pub wait: Option<f64>,
    pub node_timeout: Option<f64>,
    pub connect_timeout: Option<f64>,
    pub heartbeat: Option<f64>,
    pub max_hold: Option<f64>,
    pub prefix: Option<String>,
    pub fencing: Option<bool>,
    /// Whether waiters get the lock first come, first served.
    pub is_fair: Option<bool>,
    pub restart_guard: Option<String>,
    pub note: Option<String>,
    /// Whether holders publish no note at all.
    pub is_anonymous: Option<bool>,
    pub ca_file: Option<String>,
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
}

impl Settings {
    /// The builder with these settings, and with those of the environment where a setting is not given.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or if a certificate file or a variable cannot be read.
    pub(crate) fn builder(
        self,
        memory: Option<Masters>,
        from_env: bool,
    ) -> Result<RedlockBuilder, CallError> {
        let settings = ClientSettings {
            heartbeat: self.heartbeat.map(from_ms),
            is_anonymous: self.is_anonymous == Some(true),
            settings: self.settings(),
            memory,
        };
        if from_env {
            settings.or_env()?.builder()
        } else {
            settings.builder()
        }
    }

    /// The settings as the library reads them.
    fn settings(self) -> quorate::Settings {
        let duration =
            |milliseconds: Option<f64>| -> Option<Duration> { milliseconds.map(from_ms) };
        let mut settings = quorate::Settings::default();
        settings.masters = self.masters.unwrap_or_default();
        settings.next_masters = self.next_masters.unwrap_or_default();
        settings.masters_generation = self.masters_generation.map(u64::from);
        settings.masters_name = self.masters_name;
        settings.ttl = duration(self.ttl);
        settings.max_ttl = duration(self.max_ttl);
        settings.wait = self.wait.map(wait_from_ms);
        settings.node_timeout = duration(self.node_timeout);
        settings.connect_timeout = duration(self.connect_timeout);
        settings.max_hold = duration(self.max_hold);
        settings.prefix = self.prefix;
        settings.fencing = self.fencing;
        settings.order = self.is_fair.map(|is_fair| {
            if is_fair {
                Order::Fair
            } else {
                Order::Unordered
            }
        });
        settings.restart_guard = self.restart_guard.map(|mode| match mode.as_str() {
            "off" => RestartGuard::Off,
            "afterFirstContact" => RestartGuard::AfterFirstContact,
            _ => RestartGuard::On,
        });
        settings.note = self.note;
        settings.ca_file = self.ca_file.map(Into::into);
        settings.client_cert = self.client_cert.map(Into::into);
        settings.client_key = self.client_key.map(Into::into);
        settings
    }
}
