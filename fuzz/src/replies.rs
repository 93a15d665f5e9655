//! The replies of a Redis server, as the client of the testbed reads them. `quorate demo` contains this client.

use quorate_testbed::Reply;

use crate::Depth;

/// Reads replies until the input ends or is malformed.
pub fn run(mut input: &[u8]) -> Depth {
    let mut depth = Depth::Refused;
    while let Ok(reply) = Reply::read(&mut input) {
        let _ = (reply.is_ok(), reply.int(), reply.text());
        depth = Depth::Accepted;
    }
    depth
}
