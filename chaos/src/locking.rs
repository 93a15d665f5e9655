//! Builds the library's lock over masters of any kind.

use quorate::node::store::StoreNode;
use quorate::{Redlock, RedlockBuilder};

/// Returns a builder of a lock over the masters with these URLs, in this order.
///
/// # Errors
///
/// If a URL of a MySQL or ZooKeeper master is not valid. URLs of Redis masters are checked only when the returned
/// builder builds the lock.
pub fn over(urls: &[String]) -> anyhow::Result<RedlockBuilder> {
    let mut builder = Redlock::builder();
    for url in urls {
        builder = match url.split_once("://") {
            Some(("mysql", _)) => builder.node(StoreNode::new(quorate_mysql::MySql::open(url)?)),
            Some(("zk", _)) => builder.node(quorate_zookeeper::node(url)?),
            _ => builder.master(url),
        };
    }
    Ok(builder)
}
