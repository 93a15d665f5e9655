//! Redis or Valkey as a master.

use std::io;
use std::sync::Arc;

use quorate_testbed::{Connection, Server, TestServer};

use super::probe::Probe;
use super::row::{Gauge, Row};
use crate::usage::usage;

/// The server software of the kinds in this file.
pub const REDIS: &str = "Redis";

pub(super) const ROWS: &[Row] = &[Row {
    name: "redis",
    aliases: &["valkey"],
    description: "",
    software: REDIS,
    has_clock: true,
    forgets: true,
    // The server program can be named in the options, so its absence is known only when it is started.
    missing_reason: || None,
    start: |options, _| Ok(Arc::new(Server::start(options)?)),
    url: |_, _, _| None,
    scheme: "redis",
    add_to_lock: |builder, url| Ok(builder.master(url)),
    probe: |at, patience| Ok(Box::new(Connection::tcp(at, patience)?)),
    gauge: |server, _| gauge(server),
}];

impl Probe for Connection {
    fn ask(&mut self) -> io::Result<String> {
        reply(self, &["PING"])
    }

    fn ask_long(&mut self) -> io::Result<String> {
        reply(self, &["ECHO", "0123456789012345678901234567890123456789"])
    }
}

fn reply(connection: &mut Connection, command: &[&str]) -> io::Result<String> {
    connection
        .command(command)
        .map(|reply| format!("{reply:?}"))
}

fn gauge(server: &dyn TestServer) -> Option<Gauge> {
    let server = server.downcast_ref::<Server>()?;
    let (_, handles) = usage(server.pid()?)?;
    let number_in = |section: &str, name: &str| {
        let info = server.command(&["INFO", section]).ok()?;
        let text = info.text()?.into_owned();
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
            .trim()
            .parse::<u64>()
            .ok()
    };
    Some(Gauge {
        memory: number_in("memory", "used_memory")?,
        handles,
        connections: number_in("clients", "connected_clients")?.saturating_sub(1),
    })
}
