//! The methods that all servers of the testbed share, if they can be masters of a lock.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;

use crate::error::Error;

/// A running [`Server`](crate::Server), [`MariaDb`](crate::MariaDb), [`Postgres`](crate::Postgres),
/// [`ZooKeeper`](crate::ZooKeeper) or [`Etcd`](crate::Etcd). Dropping it kills the server. The methods apply to all
/// members of a ZooKeeper ensemble or an etcd cluster.
///
/// ```no_run
/// use quorate_testbed::{Server, ServerOptions, TestServer, ZooKeeper};
///
/// let servers: [Box<dyn TestServer>; 2] = [
///     Box::new(Server::start(ServerOptions::new())?),
///     Box::new(ZooKeeper::ensemble(3)?),
/// ];
/// for server in &servers {
///     println!("{}", server.url("locks"));
///     server.kill()?;
///     server.restart_after_crash()?;
/// }
/// # Ok::<(), quorate_testbed::Error>(())
/// ```
pub trait TestServer: Any + fmt::Debug + Send + Sync {
    /// Why this machine cannot start a server of this kind: a text for the user. `None` if it can.
    fn missing() -> Option<String>
    where
        Self: Sized;

    /// The addresses of the server, one for each member of an ensemble or a cluster. They stay the same across
    /// restarts.
    fn addrs(&self) -> Vec<SocketAddr>;

    /// The port of the server, or of the first member of an ensemble or a cluster.
    fn port(&self) -> u16 {
        self.addrs()[0].port()
    }

    /// The URL for clients whose data is in `location`: the name of a database, the path of a znode, or the prefix of
    /// keys. Redis has no such place.
    fn url(&self, location: &str) -> String;

    /// Kills the server with SIGKILL, as a crash would. Does nothing if the server is dead.
    ///
    /// # Errors
    ///
    /// [`Error::Unverified`] if a process does not end.
    fn kill(&self) -> Result<(), Error>;

    /// Kills the server if it runs, and starts it again at the same addresses with the data that it has kept.
    ///
    /// # Errors
    ///
    /// If the server does not start.
    fn restart(&self) -> Result<(), Error>;

    /// Starts the server again after a crash that is as bad as this kind permits: a Redis server has then lost its
    /// data, even if it stores data on disk. All other servers have the data on their disks.
    ///
    /// # Errors
    ///
    /// If the server does not start.
    fn restart_after_crash(&self) -> Result<(), Error> {
        self.restart()
    }

    /// Freezes the server with SIGSTOP.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    fn stop(&self) -> Result<(), Error>;

    /// Resumes a server that [`stop`](Self::stop) has frozen.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`] if the server is dead.
    fn cont(&self) -> Result<(), Error>;
}

impl dyn TestServer {
    /// This server as the type `T`, for what only this kind of server can do. `None` if it is a server of another type.
    pub fn downcast_ref<T: TestServer>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}
