//! A PostgreSQL server as a store of records.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quorate::Inspection;
use quorate::node::store::{Greeting, Store, Traits};
use quorate::node::{Fault, NodeName};

use crate::abandoned::Abandoned;
use crate::connection::Connection;
use crate::greet::greet;
use crate::inspect::inspect;
use crate::listener::PostgresListener;
use crate::run::FirstSight;
use crate::session::PostgresSession;
use crate::url::{Address, BadUrl};

/// The largest number of `Commit` values that a session sends at a time.
const BATCH: usize = 16;

/// A PostgreSQL server as a [`Store`], for a [`StoreNode`](quorate::node::store::StoreNode).
#[derive(Clone, Debug)]
pub struct Postgres {
    name: NodeName,
    address: Arc<Address>,
    seen: Arc<FirstSight>,
    /// Whether the server has refused to remove records. If so, no session of this process tries to remove records
    /// again.
    removal_denied: Arc<AtomicBool>,
    abandoned: Arc<Abandoned>,
}

impl Postgres {
    /// Opens the server with this URL: `postgres://user:password@host:5432/database?timeout=250ms&lanes=4`. The
    /// connection is made on first use.
    ///
    /// - `timeout`: the time limit of one request. Default: 250 ms.
    /// - `lanes`: the number of sessions that this process opens to the server. Default: 4.
    /// - `postgres+tls://`, or `sslmode=verify-full` (feature `tls-rustls`): encrypts the connection, and verifies the
    ///   server's certificate and its host name. `sslmode=require` does the same.
    /// - `sslrootcert`, only with TLS: the file of the trusted certificate authorities. Default: those of the system.
    /// - `sslcert` and `sslkey`, only with TLS: the files of the client certificate and its private key, in PEM form.
    /// - `passfile`: a file with the password, in the form of `.pgpass`. No other user may have the right to read it.
    /// - `host`: the folder of the server's Unix socket, for example `/run/postgresql`. The URL then names no host:
    ///   `postgres://user@/database?host=/run/postgresql`.
    ///
    /// The scheme may also be `postgresql`.
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
            seen: Arc::default(),
            removal_denied: Arc::default(),
            abandoned: Arc::default(),
        })
    }
}

impl Store for Postgres {
    type Session = PostgresSession;
    type Listener = PostgresListener;

    fn name(&self) -> &NodeName {
        &self.name
    }

    fn traits(&self) -> Traits {
        let address = &self.address;
        Traits::new(address.timeout)
            .lanes(address.lanes)
            .batch(BATCH)
            .counts_age()
    }

    async fn connect(&self) -> Result<(PostgresSession, Greeting), Fault> {
        let mut connection = Connection::open(&self.address).await?;
        let timeout = self.address.timeout;
        let met = greet(&mut connection, timeout, &self.seen, &self.abandoned).await?;
        let greeting = met.greeting();
        let session = PostgresSession::new(
            connection,
            met,
            self.seen.clone(),
            self.removal_denied.clone(),
            self.abandoned.clone(),
        );
        Ok((session, greeting))
    }

    async fn listen(&self, process: Arc<str>) -> Result<PostgresListener, Fault> {
        PostgresListener::open(&self.address, &process).await
    }

    async fn inspect(&self) -> Inspection {
        inspect(&self.name, &self.address, &self.seen, &self.abandoned).await
    }
}
