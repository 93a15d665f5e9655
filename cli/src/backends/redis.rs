//! Redis and Valkey.

use quorate::RedlockBuilder;
use quorate_testbed::{Error, Server, ServerOptions};

use super::backend::{Backend, StartedServer};
use super::names::{self, Names};

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
        let path = quorate_testbed::available();
        path.is_none().then(|| {
            "no redis-server or valkey-server on the PATH: install one, or set QUORATE_SERVER to its path".to_owned()
        })
    }

    fn program(&self) -> String {
        quorate_testbed::available()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "redis-server".to_owned())
    }

    fn start(&self) -> Result<Box<dyn StartedServer>, String> {
        let server = Server::start(ServerOptions::new()).map_err(|error| error.to_string())?;
        Ok(Box::new(server))
    }

    fn restarts(&self) -> &'static str {
        "restarts without data: its votes do not count until every lost lock has expired"
    }
}

impl StartedServer for Server {
    fn port(&self) -> u16 {
        Self::port(self)
    }

    fn url(&self) -> String {
        Self::url(self)
    }

    fn kill(&self) -> Result<(), Error> {
        Self::kill(self)
    }

    fn restart(&self) -> Result<(), Error> {
        self.restart_empty()
    }
}
