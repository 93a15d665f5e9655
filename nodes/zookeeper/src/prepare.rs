//! Creates the znodes that every lock needs.

use futures::future::join_all;
use quorate::node::{Fault, caught_in, panic_text};
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, Client, CreateMode, Error};

use crate::acl;
use crate::address::{Address, BadUrl};
use crate::dial::dial;
use crate::fault;
use crate::layout::{Layout, SERVER, above, fresh};

/// The time limit of the whole preparation, as a multiple of the timeout of one request. With the default timeout of
/// 500 ms this is 10 s.
const PATIENCE: u32 = 20;

/// The largest number of concurrent requests. Each request lists the children of one znode.
const AT_ONCE: usize = 64;

/// The result of a successful [`prepare`]: the ensemble, and the changes that `prepare` made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// The path below which quorate stores all its data.
    pub path: String,
    /// The random name of the ensemble. If two URLs yield the same `identity`, they belong to the same ensemble.
    pub identity: String,
    /// Whether at least one znode had to be created. False if all existed.
    pub made: bool,
    /// The number of znodes below [`path`](Self::path) whose ACL `prepare` has replaced with the ACL of the znode at
    /// `path`.
    pub changed: usize,
    /// The number of znodes that `prepare` skipped, because the user in the URL has no right to read or change them.
    pub refused: usize,
}

/// Why [`prepare`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The URL is not valid.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The preparation failed. The fields are the name of the server or ensemble, and the fault.
    #[error("{0}: {1}")]
    Failed(String, Fault),
}

/// Creates the znodes that a lock needs, if they are missing. The user of `url` needs the right to create znodes.
///
/// It is safe to call this function again. After you have changed the ACL of the znode at the path in `url`, call this
/// function: it copies the new ACL to the znodes below.
///
/// # Errors
///
/// [`PrepareError`] if the URL is not valid, the server cannot be reached, or the server refuses a request.
pub async fn prepare(url: &str) -> Result<Prepared, PrepareError> {
    let address = Address::parse(url)?;
    let failed = |fault| PrepareError::Failed(address.name(), fault);
    let within = address.timeout * PATIENCE;
    // The client library panics if some replies are too short.
    match timeout(within, caught_in(make(&address))).await {
        Ok(Ok(made)) => made.map_err(failed),
        Ok(Err(panic)) => {
            let text = format!("the client library failed: {}", panic_text(&panic));
            Err(failed(Fault::Server(text.into())))
        }
        Err(_) => Err(failed(Fault::Timeout(within))),
    }
}

async fn make(address: &Address) -> Result<Prepared, Fault> {
    let client = dial(address).await?.client;
    let layout = Layout::new(address);
    let root = layout.root();
    let fault = |path: &str, error: Error| fault::of_request(&error, path, address);
    let synced = client.sync("/").await;
    synced.map_err(|error| fault("/", error))?;
    let mut made = make_root(&client, address).await?;
    let acl = acl::read(&client, root, address).await?;
    let options = CreateMode::Persistent.with_acls(Acls::new(&acl));
    let create = async |path: &str, data: &[u8]| {
        let created = client.create(path, data, &options).await;
        is_new(created).map_err(|error| fault(root, error))
    };
    for path in [layout.records(), layout.wakes()] {
        made |= create(&path, b"").await?;
    }
    // This znode is created last, so its presence shows that all other znodes exist.
    let path = layout.identity();
    let drawn = identity(&client).await;
    let drawn = drawn.map_err(|error| fault(SERVER, error))?;
    made |= create(&path, drawn.as_bytes()).await?;
    let read = client.get_data(&path).await;
    let (identity, _) = read.map_err(|error| fault(&path, error))?;
    let passed = if acl::is_complete(&acl) {
        pass_on(&client, address, &acl).await?
    } else {
        Passed::default()
    };
    Ok(Prepared {
        path: root.to_owned(),
        identity: String::from_utf8_lossy(&identity).into_owned(),
        made,
        changed: passed.changed,
        refused: passed.refused,
    })
}

/// Creates the missing znodes of the path. Only the user of the URL can access them; without a user in the URL,
/// everybody can. Returns true if a znode was created.
async fn make_root(client: &Client, address: &Address) -> Result<bool, Fault> {
    let fault = |path: &str, error: Error| fault::of_request(&error, path, address);
    let persistent = CreateMode::Persistent.with_acls(match address.user {
        Some(_) => Acls::creator_all(),
        None => Acls::anyone_all(),
    });
    let mut made = false;
    let mut path = String::new();
    for part in address.path.split('/').skip(1) {
        path = format!("{path}/{part}");
        // Check first whether the znode exists. A user without the right to create it can then still use an existing
        // one.
        let found = client.check_stat(&path).await;
        if found.map_err(|error| fault(&path, error))?.is_none() {
            let created = client.create(&path, b"", &persistent).await;
            made |= is_new(created).map_err(|error| fault(above(&path), error))?;
        }
    }
    Ok(made)
}

/// How many znodes got the ACL of the path, and how many znodes the user of the URL has no right to read or change.
#[derive(Default)]
struct Passed {
    changed: usize,
    refused: usize,
}

/// Gives the ACL of the path to all znodes below the path. Counts the znodes that were changed, and the znodes that
/// this user has no right to read or change. Skips znodes that other clients remove during the call.
async fn pass_on(client: &Client, address: &Address, acl: &[Acl]) -> Result<Passed, Fault> {
    let mut passed = Passed::default();
    let mut open = vec![address.path.clone()];
    while !open.is_empty() {
        // Send up to [`AT_ONCE`] requests before the first result is awaited, because this is faster.
        let some = open.split_off(open.len().saturating_sub(AT_ONCE));
        let below = some.iter().map(|path| client.list_children(path));
        let below = join_all(below.collect::<Vec<_>>()).await;
        let mut found = Vec::new();
        for (path, below) in some.iter().zip(below) {
            match below {
                Ok(names) => found.extend(names.iter().map(|name| format!("{path}/{name}"))),
                Err(Error::NoNode) => {}
                Err(Error::NoAuth) => passed.refused += 1,
                Err(error) => return Err(fault::of_request(&error, path, address)),
            }
        }
        let asked = found.iter().map(|path| give(client, path, acl));
        let given = join_all(asked.collect::<Vec<_>>()).await;
        for (path, given) in found.into_iter().zip(given) {
            match given {
                Ok(changed) => {
                    passed.changed += usize::from(changed);
                    open.push(path);
                }
                Err(Error::NoNode) => {}
                Err(Error::NoAuth) => passed.refused += 1,
                Err(error) => return Err(fault::of_request(&error, &path, address)),
            }
        }
    }
    Ok(passed)
}

/// Gives this ACL to a znode. Returns false if the znode already had this ACL.
async fn give(client: &Client, path: &str, acl: &[Acl]) -> Result<bool, Error> {
    let (before, _) = client.get_acl(path).await?;
    if before == acl {
        return Ok(false);
    }
    client.set_acl(path, acl, None).await.map(|_| true)
}

fn is_new<T>(made: Result<T, Error>) -> Result<bool, Error> {
    match made {
        Ok(_) => Ok(true),
        Err(Error::NodeExists) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the name of the ensemble from the znode `/quorate-server`. If the znode does not exist, creates it with a
/// random name. If this user has no right to create it, returns a random name, which only this path will use.
async fn identity(client: &Client) -> Result<String, Error> {
    let drawn = fresh();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_read());
    match client.create(SERVER, drawn.as_bytes(), &options).await {
        Err(Error::NodeExists) => {
            let (there, _) = client.get_data(SERVER).await?;
            Ok(String::from_utf8(there).unwrap_or(drawn))
        }
        Ok(_) | Err(Error::NoAuth) => Ok(drawn),
        Err(error) => Err(error),
    }
}
