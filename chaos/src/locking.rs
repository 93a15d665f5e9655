//! Builds the library's lock over masters of any kind.

use quorate::{Redlock, RedlockBuilder};

use crate::node::NodeKind;

/// Returns a builder of a lock over the masters with these URLs, in this order.
///
/// # Errors
///
/// If a URL of a master that is not a Redis is not valid. URLs of Redis masters are checked only when the returned
/// builder builds the lock.
pub fn builder_over(urls: &[String]) -> anyhow::Result<RedlockBuilder> {
    urls.iter().try_fold(Redlock::builder(), |builder, url| {
        (NodeKind::of_url(url).add_to_lock)(builder, url)
    })
}
