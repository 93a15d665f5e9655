//! Writes the identity key of a cluster.

use std::time::Duration;

use quorate::node::Fault;
use serde_json::json;

use crate::fault::unreadable;
use crate::greet::{TXN, name_of, parse_identity, random_identity};
use crate::json;
use crate::layout::{IDENTITY_KEY, IDENTITY_NAME, Layout};
use crate::member::{Member, Shared, header};
use crate::txn;
use crate::url::{Address, BadUrl};

/// The time limit of [`prepare`].
const PATIENCE: Duration = Duration::from_secs(15);

/// The result of a successful [`prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prepared {
    /// The members and the path of the URL, for example `etcd 10.0.0.1:2379/quorate`.
    pub name: String,
    /// The identity of the cluster. If two URLs yield the same `identity`, they belong to the same cluster.
    pub identity: String,
    /// Whether the identity key had to be written. False if it existed.
    pub made: bool,
    /// The commands that grant a user the rights to acquire locks; `USER` is a placeholder.
    pub grants: Vec<String>,
}

/// Why [`prepare`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrepared {
    /// The URL is not valid.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The preparation failed. The fields are the name of the cluster, and the fault.
    #[error("{0}: {1}")]
    Failed(String, Fault),
}

/// Writes a random identity into the key `/quorate-server`, if the key is missing. The user of `url` needs the right to
/// write this key.
///
/// It is safe to call this function again, or from several processes at the same time. After a cluster was restored
/// from a snapshot, delete the key first: the cluster then gets a new identity.
///
/// # Errors
///
/// [`NotPrepared`]. It never contains the password of `url`.
pub async fn prepare(url: &str) -> Result<Prepared, NotPrepared> {
    let address = Address::open(url)?;
    let (name, layout) = (address.name(), address.layout());
    let preparing = tokio::time::timeout(PATIENCE, write_identity(address));
    let prepared = preparing.await.unwrap_or(Err(Fault::Timeout(PATIENCE)));
    let (identity, made) = prepared.map_err(|fault| NotPrepared::Failed(name.clone(), fault))?;
    Ok(Prepared {
        name,
        identity,
        made,
        grants: grants(&layout),
    })
}

/// Writes the identity key if it is missing. Returns the name of the cluster, and whether the key was missing.
async fn write_identity(address: Address) -> Result<(String, bool), Fault> {
    let mut member = Member::open(&Shared::new(address)).await?;
    let own = random_identity();
    let (key, value) = (json::encode(IDENTITY_KEY), json::encode(own.as_bytes()));
    let request = json!({
        "compare": [{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
        "success": [{"request_put": {"key": key, "value": value}}],
        "failure": [txn::range(IDENTITY_KEY)],
    });
    let answer = member.call(TXN, &request).await?;
    let (cluster_id, _) = header(&answer.body)?;
    if json::flag(&answer.body, "succeeded") {
        return Ok((name_of(cluster_id, &own), true));
    }
    let response = json::list(&answer.body, "responses").first();
    let value = txn::value(response)?.ok_or_else(unreadable)?;
    let foreign = || {
        let why = format!(
            "the key {IDENTITY_NAME} has another content than quorate writes: delete it, unless another program needs it"
        );
        Fault::Server(why.into())
    };
    let identity = parse_identity(value).ok_or_else(foreign)?;
    Ok((name_of(cluster_id, &identity), false))
}

/// The commands that grant a user the rights to acquire locks.
pub(crate) fn grants(layout: &Layout) -> Vec<String> {
    let prefix = layout.prefix();
    vec![
        "etcdctl role add quorate".to_owned(),
        format!("etcdctl role grant-permission quorate read {IDENTITY_NAME}"),
        format!("etcdctl role grant-permission --prefix quorate readwrite '{prefix}'"),
        "etcdctl user grant-role USER quorate".to_owned(),
    ]
}
