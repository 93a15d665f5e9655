//! Making what has to be there once.

use quorate::node::Fault;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::address::{Address, BadUrl};
use crate::dial::dial;
use crate::fault;
use crate::layout::{Layout, SERVER, fresh};

/// How many timeouts of one answer it may take to make everything.
const PATIENCE: u32 = 20;

/// What [`prepare`] has found or made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// Where everything is kept.
    pub path: String,
    /// The random name of the ensemble.
    pub identity: String,
    /// Whether anything was missing.
    pub made: bool,
}

/// Why a ZooKeeper could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The URL names none.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// It did not do what it was asked.
    #[error("{0}: {1}")]
    Failed(String, Fault),
}

/// Makes the znodes that a lock needs, where they are missing. Needs the right to create them, and may be repeated.
///
/// # Errors
///
/// [`PrepareError`] where the URL is none, or the server cannot be reached or does not allow it.
pub async fn prepare(url: &str) -> Result<Prepared, PrepareError> {
    let address = Address::parse(url)?;
    let failed = |fault| PrepareError::Failed(address.name(), fault);
    let within = address.timeout * PATIENCE;
    match timeout(within, make(&address)).await {
        Ok(made) => made.map_err(failed),
        Err(_) => Err(failed(Fault::Timeout(within))),
    }
}

async fn make(address: &Address) -> Result<Prepared, Fault> {
    let client = dial(address).await?.client;
    let layout = Layout::new(address);
    let made = make_all(&client, &layout).await;
    made.map_err(|error| fault::of_request(&error, address))
}

async fn make_all(client: &Client, layout: &Layout) -> Result<Prepared, Error> {
    let persistent = layout.options(CreateMode::Persistent);
    client.sync("/").await?;
    let mut made = false;
    let mut path = String::new();
    for part in layout.root().split('/').skip(1) {
        path = format!("{path}/{part}");
        // Others' znodes above ours may not be ours to make, only to pass.
        if client.check_stat(&path).await?.is_none() {
            made |= is_new(client.create(&path, b"", &persistent).await)?;
        }
    }
    for path in [layout.records(), layout.wakes()] {
        made |= is_new(client.create(&path, b"", &persistent).await)?;
    }
    // The last one: who finds it finds all.
    let identity = identity(client).await?;
    let path = layout.identity();
    made |= is_new(client.create(&path, identity.as_bytes(), &persistent).await)?;
    let (identity, _) = client.get_data(&path).await?;
    Ok(Prepared {
        path: layout.root().to_owned(),
        identity: String::from_utf8_lossy(&identity).into_owned(),
        made,
    })
}

fn is_new<T>(made: Result<T, Error>) -> Result<bool, Error> {
    match made {
        Ok(_) => Ok(true),
        Err(Error::NodeExists) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name of the ensemble, the same for all paths in it; where it may not be kept for all, a new one.
async fn identity(client: &Client) -> Result<String, Error> {
    let drawn = fresh();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_read());
    match client.create(SERVER, drawn.as_bytes(), &options).await {
        Err(Error::NodeExists) => {
            let (there, _) = client.get_data(SERVER).await?;
            Ok(String::from_utf8(there).unwrap_or(drawn))
        }
        // Where it may not be kept for all, it is this path's alone.
        Ok(_) | Err(Error::NoAuth) => Ok(drawn),
        Err(error) => Err(error),
    }
}
