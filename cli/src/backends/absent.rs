//! A kind of server for which this build has no code, because it was built without the feature of this kind.

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::RedlockBuilder;

use super::backend::{Backend, StartedServer};
use crate::exit::Failure;

#[derive(Debug)]
pub(super) struct Absent {
    /// The name of the kind on the command line, which is also the name of its feature.
    pub(super) name: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) help: &'static str,
    pub(super) schemes: &'static [&'static str],
}

impl Absent {
    fn why(&self) -> String {
        let Self { name, help, .. } = self;
        format!("this build does not support {help} masters: rebuild it with --features {name}")
    }
}

impl Backend for Absent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn aliases(&self) -> &'static [&'static str] {
        self.aliases
    }

    fn help(&self) -> &'static str {
        self.help
    }

    fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    fn add(&self, _builder: RedlockBuilder, _url: &str) -> Result<RedlockBuilder, String> {
        Err(self.why())
    }

    fn prepare<'a>(&self, _url: &'a str) -> Option<BoxFuture<'a, Result<String, Failure>>> {
        let failure = Failure::usage(self.why());
        Some(std::future::ready(Err(failure)).boxed())
    }

    fn script(&self, _url: &str) -> Option<Result<String, Failure>> {
        Some(Err(Failure::usage(self.why())))
    }

    fn missing(&self) -> Option<String> {
        Some(self.why())
    }

    fn program(&self) -> String {
        self.name.to_owned()
    }

    fn start(&self) -> Result<Box<dyn StartedServer>, String> {
        Err(self.why())
    }
}
