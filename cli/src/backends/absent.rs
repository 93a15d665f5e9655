//! A kind of server for which this build has no code, because it was built without the feature of this kind.

use futures::FutureExt;
use futures::future::BoxFuture;
use quorate::RedlockBuilder;
use quorate_testbed::TestServer;

use super::backend::Backend;
use super::names::Names;
use crate::exit::Failure;

#[derive(Debug)]
pub(super) struct Absent(pub(super) &'static Names);

impl Absent {
    fn why(&self) -> String {
        let Names { name, help, .. } = self.0;
        format!("this build does not support {help} masters: rebuild it with --features {name}")
    }
}

impl Backend for Absent {
    fn names(&self) -> &'static Names {
        self.0
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
        self.0.name.to_owned()
    }

    fn start(&self) -> Result<Box<dyn TestServer>, String> {
        Err(self.why())
    }
}
