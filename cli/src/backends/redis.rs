//! Redis and Valkey.

mod doctor;

use quorate::{Fault, Inspection, RedlockBuilder};
use quorate_testbed::{Server, ServerOptions, TestServer};

use super::backend::Backend;
use super::names::{self, Names};
use crate::finding::{Add, FaultAdvice, Rules};

#[derive(Debug)]
pub(super) struct Redis;

impl Backend for Redis {
    fn names(&self) -> &'static Names {
        &names::REDIS
    }

    fn add(&self, builder: RedlockBuilder, url: &str) -> Result<RedlockBuilder, String> {
        Ok(builder.master(url))
    }

    fn missing(&self) -> Option<String> {
        Server::missing()
    }

    fn program(&self) -> String {
        quorate_testbed::available()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "redis-server".to_owned())
    }

    fn start(&self) -> Result<Box<dyn TestServer>, String> {
        let server = Server::start(ServerOptions::new()).map_err(|error| error.to_string())?;
        Ok(Box::new(server))
    }

    fn restarts(&self) -> &'static str {
        "restarts without data: its votes do not count until every lost lock has expired"
    }

    fn judge(&self, master: &Inspection, rules: Rules, add: &mut dyn Add) {
        doctor::judge(master, rules, add);
    }

    fn explain<'a>(
        &self,
        master: &Inspection,
        fault: &Fault,
        why: &'a str,
    ) -> Option<FaultAdvice<'a>> {
        doctor::explain(master, fault, why)
    }

    fn grant(&self, rules: &[&str]) -> String {
        doctor::grant(rules)
    }
}
