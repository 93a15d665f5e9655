//! Creates the znodes that every lock needs.

use quorate::node::Fault;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::address::{Address, BadUrl};
use crate::dial::dial;
use crate::fault;
use crate::layout::{Layout, SERVER, fresh};

/// The time limit of the whole preparation, as a multiple of the timeout of one request. With the default timeout of
/// 500 ms this is 10 s.
const PATIENCE: u32 = 20;

/// The result of [`prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// The path under which all znodes are stored.
    pub path: String,
    /// The random name of the ensemble.
    pub identity: String,
    /// Whether a znode had to be created.
    pub made: bool,
}

/// The reason why a ZooKeeper could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The URL is not valid.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The ZooKeeper in the first field (by name) reported the fault in the second field.
    #[error("{0}: {1}")]
    Failed(String, Fault),
}

/// Creates the znodes that a lock needs, if they are missing. The user of `url` needs the right to create znodes. The
/// function may be called again.
///
/// # Errors
///
/// [`PrepareError`] if the URL is not valid, or if the server cannot be reached or refuses.
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
        // Create a parent only if it is missing: this user may lack the right to create it, but a parent that exists
        // needs no right.
        if client.check_stat(&path).await?.is_none() {
            made |= is_new(client.create(&path, b"", &persistent).await)?;
        }
    }
    for path in [layout.records(), layout.wakes()] {
        made |= is_new(client.create(&path, b"", &persistent).await)?;
    }
    // This znode is created last, so its presence shows that all other znodes exist.
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

/// Returns the name of the ensemble, which is the same for all paths. If the shared name cannot be stored, draws a new
/// name, which applies only to this path.
async fn identity(client: &Client) -> Result<String, Error> {
    let drawn = fresh();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_read());
    match client.create(SERVER, drawn.as_bytes(), &options).await {
        Err(Error::NodeExists) => {
            let (there, _) = client.get_data(SERVER).await?;
            Ok(String::from_utf8(there).unwrap_or(drawn))
        }
        // Without the right to create the shared znode, the name applies to this path alone.
        Ok(_) | Err(Error::NoAuth) => Ok(drawn),
        Err(error) => Err(error),
    }
}
