//! The trait of a kind of server that can be a master: all that the command must know about it.

use std::fmt;

use futures::future::BoxFuture;
use quorate::{Fault, Inspection, RedlockBuilder};
use quorate_testbed::TestServer;

use super::names::Names;
use crate::exit::Failure;
use crate::finding::{Add, FaultAdvice, Rules};

/// One kind of server that can be a master.
pub(crate) trait Backend: fmt::Debug + Sync {
    fn names(&self) -> &'static Names;

    /// Adds the master with this URL to the builder. Opens no connection.
    ///
    /// # Errors
    ///
    /// A text if the URL is not valid. Redis URLs are checked only when the `Redlock` is built.
    fn add(&self, builder: RedlockBuilder, url: &str) -> Result<RedlockBuilder, String>;

    /// Prepares the server with this URL, and returns a report of what was created. `None` if servers of this kind need no
    /// preparation.
    fn prepare<'a>(&self, _url: &'a str) -> Option<BoxFuture<'a, Result<String, Failure>>> {
        None
    }

    /// The statements that prepare the server with this URL. `None` if servers of this kind need no preparation.
    fn script(&self, _url: &str) -> Option<Result<String, Failure>> {
        None
    }

    /// Why this machine cannot start a server of this kind, as text for the user. `None` if it can.
    fn missing(&self) -> Option<String>;

    /// The name of the server's program.
    fn program(&self) -> String;

    /// Starts a server on a free port, for `demo` and `bench`.
    ///
    /// # Errors
    ///
    /// A text that says why no server could be started.
    fn start(&self) -> Result<Box<dyn TestServer>, String>;

    /// The event that a killed server of this kind [comes back](TestServer::restart_after_crash), as text for the user.
    fn restarts(&self) -> &'static str {
        "restarts"
    }

    /// Runs the checks of `doctor` that only this kind needs, on a master on which locks can be taken.
    fn judge(&self, _master: &Inspection, _rules: Rules, _add: &mut dyn Add) {}

    /// The advice of `doctor` if no lock can be taken on a master of this kind because of `fault`, whose text is `why`.
    /// `None` if the advice does not depend on the kind.
    fn explain<'a>(
        &self,
        _master: &Inspection,
        _fault: &Fault,
        _why: &'a str,
    ) -> Option<FaultAdvice<'a>> {
        None
    }

    /// The advice of `doctor` that grants these missing rights to the user of the lock client.
    fn grant(&self, rules: &[&str]) -> String {
        rules.join("; ")
    }

    /// Whether this master tolerates failures of its own servers, so that `doctor` accepts it as the only master.
    fn survives_alone(&self, _master: &Inspection) -> bool {
        false
    }
}

/// Two kinds are the same if they have the same name.
impl PartialEq for dyn Backend {
    fn eq(&self, other: &Self) -> bool {
        self.names().name == other.names().name
    }
}

impl Eq for dyn Backend {}

/// How the report of a preparation says whether anything was created.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper"
))]
pub(super) fn prepared(made: bool) -> &'static str {
    if made {
        "prepared"
    } else {
        "was already prepared"
    }
}

/// The failure of a server that could not be prepared.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper"
))]
pub(super) fn failed(error: impl fmt::Display) -> Failure {
    let why = error.to_string();
    Failure::new(crate::exit::UNAVAILABLE, crate::output::redact(&why))
}
