//! A MySQL or MariaDB server as a store of records.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quorate::Inspection;
use quorate::node::store::{Greeting, Store, Traits};
use quorate::node::{Fault, NodeName};

use crate::connection::Connection;
use crate::inspect::inspect;
use crate::listener::MySqlListener;
use crate::run::FirstSight;
use crate::schema::set_up_and_greet;
use crate::session::MySqlSession;
use crate::url::{Address, BadUrl};

/// The largest number of `Commit` values that a session sends in one packet.
const COMMITS_PER_PACKET: usize = 16;

/// A MySQL or MariaDB server as a [`Store`], for a [`StoreNode`](quorate::node::store::StoreNode).
#[derive(Clone, Debug)]
pub struct MySql {
    name: NodeName,
    address: Arc<Address>,
    first_sight: Arc<FirstSight>,
    /// Whether the server has refused to remove records. If so, no session of this process tries to remove records
    /// again.
    removal_denied: Arc<AtomicBool>,
}

impl MySql {
    /// Opens the server with this URL: `mysql://user:password@host:3306/database?timeout=250ms&lanes=4`. The connection
    /// is made on first use.
    ///
    /// - `timeout`: the time limit of one request. Default: 250 ms.
    /// - `lanes`: the number of sessions that this process opens to the server. Default: 4.
    /// - `mysqls://` (feature `tls-rustls`): encrypts the connection, and verifies the server's certificate.
    /// - `ca`, only with `mysqls://`: the file of the trusted certificate authorities. Default: those of the system.
    /// - `cert` and `key`, only with `mysqls://`: the files of the client certificate and its private key, in PEM form.
    /// - `socket`: the Unix socket to connect to, for example `/run/mysqld/mysqld.sock`. The host must be `localhost`.
    ///
    /// # Errors
    ///
    /// [`BadUrl`] if the URL is not valid. The error gives the reason, but never contains the URL.
    pub fn open(url: &str) -> Result<Self, BadUrl> {
        let address = Address::open(url)?;
        let name = NodeName::new(address.name());
        let address = Arc::new(address);
        Ok(Self {
            name,
            address,
            first_sight: Arc::default(),
            removal_denied: Arc::default(),
        })
    }
}

impl Store for MySql {
    type Session = MySqlSession;
    type Listener = MySqlListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        let address = &self.address;
        Traits::new(address.timeout)
            .lanes(address.lanes)
            .batch(COMMITS_PER_PACKET)
            .looks()
    }

    async fn connect(&self) -> Result<(MySqlSession, Greeting), Fault> {
        let mut connection = Connection::open(&self.address, true).await?;
        let greeting =
            set_up_and_greet(&mut connection, self.address.timeout, &self.first_sight).await?;
        let session = MySqlSession::new(connection, self.removal_denied.clone());
        Ok((session, greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<MySqlListener, Fault> {
        MySqlListener::open(self.address.clone(), &process).await
    }

    async fn inspect(&self) -> Inspection {
        inspect(&self.name, &self.address, &self.first_sight).await
    }
}
