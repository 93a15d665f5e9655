//! The first questions of a session.

use quorate::node::Fault;
use zookeeper_client::Client;

use crate::address::Address;
use crate::fault;
use crate::layout::Layout;

/// Brings the member up to what its leader knows, and reads the name of the ensemble.
pub(crate) async fn greet(client: &Client, address: &Address) -> Result<String, Fault> {
    let layout = Layout::new(address);
    let path = layout.identity();
    let (synced, identity) = futures::join!(client.sync(layout.root()), client.get_data(&path));
    let read = synced.and(identity);
    let (identity, _) = read.map_err(|error| fault::of_request(&error, address))?;
    let identity = String::from_utf8(identity).ok();
    identity
        .filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .ok_or_else(|| fault::unprepared(address))
}
