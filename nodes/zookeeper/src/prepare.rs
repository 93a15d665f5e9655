//! Creates the znodes that every lock needs.

use futures::future::join_all;
use quorate::node::{Fault, caught_in, panic_text};
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, Client, CreateMode, Error};

use crate::acl;
use crate::address::{Address, BadUrl};
use crate::dial::dial;
use crate::fault;
use crate::layout::{Layout, SERVER_NAME_PATH, parent_path, random_name};

/// The time limit of the whole preparation, as a multiple of the timeout of one request. With the default timeout of
/// 500 ms this is 10 s.
const TIME_LIMIT_FACTOR: u32 = 20;

/// The largest number of concurrent requests. Each request lists the children of one znode.
const MAX_CONCURRENT: usize = 64;

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
    let to_error = |fault| PrepareError::Failed(address.name(), fault);
    let time_limit = address.timeout * TIME_LIMIT_FACTOR;
    // The client library panics if some replies are too short.
    match timeout(time_limit, caught_in(create_znodes(&address))).await {
        Ok(Ok(result)) => result.map_err(to_error),
        Ok(Err(panic)) => {
            let text = format!("the client library failed: {}", panic_text(&panic));
            Err(to_error(Fault::Server(text.into())))
        }
        Err(_) => Err(to_error(Fault::Timeout(time_limit))),
    }
}

async fn create_znodes(address: &Address) -> Result<Prepared, Fault> {
    let client = dial(address).await?.client;
    let layout = Layout::new(address);
    let root = layout.root();
    let fault_of = |path: &str, error: Error| fault::classify_request_error(&error, path, address);
    let sync_result = client.sync("/").await;
    sync_result.map_err(|error| fault_of("/", error))?;
    let mut is_created = create_root(&client, address).await?;
    let acl = acl::read_acl(&client, root, address).await?;
    let options = CreateMode::Persistent.with_acls(Acls::new(&acl));
    let create = async |path: &str, data: &[u8]| {
        let create_result = client.create(path, data, &options).await;
        was_created(create_result).map_err(|error| fault_of(root, error))
    };
    for path in [layout.records(), layout.wake_ups()] {
        is_created |= create(&path, b"").await?;
    }
    // This znode is created last, so its presence shows that all other znodes exist.
    let path = layout.identity();
    let name_result = read_or_create_name(&client).await;
    let name = name_result.map_err(|error| fault_of(SERVER_NAME_PATH, error))?;
    is_created |= create(&path, name.as_bytes()).await?;
    let stored = client.get_data(&path).await;
    let (identity, _) = stored.map_err(|error| fault_of(&path, error))?;
    let counts = if acl::is_complete(&acl) {
        copy_acl_below(&client, address, &acl).await?
    } else {
        AclCounts::default()
    };
    Ok(Prepared {
        path: root.to_owned(),
        identity: String::from_utf8_lossy(&identity).into_owned(),
        made: is_created,
        changed: counts.changed,
        refused: counts.refused,
    })
}

/// Creates the missing znodes of the path. Only the user of the URL can access them; without a user in the URL,
/// everybody can. Returns true if a znode was created.
async fn create_root(client: &Client, address: &Address) -> Result<bool, Fault> {
    let fault_of = |path: &str, error: Error| fault::classify_request_error(&error, path, address);
    let persistent = CreateMode::Persistent.with_acls(match address.user {
        Some(_) => Acls::creator_all(),
        None => Acls::anyone_all(),
    });
    let mut is_created = false;
    let mut path = String::new();
    for part in address.path.split('/').skip(1) {
        path = format!("{path}/{part}");
        // Check first whether the znode exists. A user without the right to create it can then still use an existing
        // one.
        let stat = client.check_stat(&path).await;
        if stat.map_err(|error| fault_of(&path, error))?.is_none() {
            let create_result = client.create(&path, b"", &persistent).await;
            is_created |=
                was_created(create_result).map_err(|error| fault_of(parent_path(&path), error))?;
        }
    }
    Ok(is_created)
}

/// How many znodes got the ACL of the path, and how many znodes the user of the URL has no right to read or change.
#[derive(Default)]
struct AclCounts {
    changed: usize,
    refused: usize,
}

/// Gives the ACL of the path to all znodes below the path. Counts the znodes that were changed, and the znodes that
/// this user has no right to read or change. Skips znodes that other clients remove during the call.
async fn copy_acl_below(
    client: &Client,
    address: &Address,
    acl: &[Acl],
) -> Result<AclCounts, Fault> {
    let mut counts = AclCounts::default();
    let mut unvisited = vec![address.path.clone()];
    while !unvisited.is_empty() {
        // Send up to [`MAX_CONCURRENT`] requests before the first result is awaited, because this is faster.
        let batch = unvisited.split_off(unvisited.len().saturating_sub(MAX_CONCURRENT));
        let requests = batch.iter().map(|path| client.list_children(path));
        let listings = join_all(requests.collect::<Vec<_>>()).await;
        let mut children = Vec::new();
        for (path, listing) in batch.iter().zip(listings) {
            match listing {
                Ok(names) => children.extend(names.iter().map(|name| format!("{path}/{name}"))),
                Err(Error::NoNode) => {}
                Err(Error::NoAuth) => counts.refused += 1,
                Err(error) => return Err(fault::classify_request_error(&error, path, address)),
            }
        }
        let requests = children
            .iter()
            .map(|path| set_acl_if_different(client, path, acl));
        let outcomes = join_all(requests.collect::<Vec<_>>()).await;
        for (path, outcome) in children.into_iter().zip(outcomes) {
            match outcome {
                Ok(changed) => {
                    counts.changed += usize::from(changed);
                    unvisited.push(path);
                }
                Err(Error::NoNode) => {}
                Err(Error::NoAuth) => counts.refused += 1,
                Err(error) => return Err(fault::classify_request_error(&error, &path, address)),
            }
        }
    }
    Ok(counts)
}

/// Gives this ACL to a znode. Returns false if the znode already had this ACL.
async fn set_acl_if_different(client: &Client, path: &str, acl: &[Acl]) -> Result<bool, Error> {
    let (old_acl, _) = client.get_acl(path).await?;
    if old_acl == acl {
        return Ok(false);
    }
    client.set_acl(path, acl, None).await.map(|_| true)
}

fn was_created<T>(create_result: Result<T, Error>) -> Result<bool, Error> {
    match create_result {
        Ok(_) => Ok(true),
        Err(Error::NodeExists) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the name of the ensemble from the znode `/quorate-server`. If the znode does not exist, creates it with a
/// random name. If this user has no right to create it, returns a random name, which only this path will use.
async fn read_or_create_name(client: &Client) -> Result<String, Error> {
    let random = random_name();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_read());
    match client
        .create(SERVER_NAME_PATH, random.as_bytes(), &options)
        .await
    {
        Err(Error::NodeExists) => {
            let (stored, _) = client.get_data(SERVER_NAME_PATH).await?;
            Ok(String::from_utf8(stored).unwrap_or(random))
        }
        Ok(_) | Err(Error::NoAuth) => Ok(random),
        Err(error) => Err(error),
    }
}
