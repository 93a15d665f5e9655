//! Sends commands of known-bad clients to masters, one master after the other, each on a new connection.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use quorate_testbed::{Connection, Reply};
use rand::RngExt;
use rand::seq::SliceRandom;

use crate::client::context::Ctx;

const PATIENCE: Duration = Duration::from_millis(100);

/// Lua script: deletes the lock key if it holds this client's value.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A Redis command and its arguments.
pub(super) type Command = Vec<String>;

/// The command that runs this Lua script.
pub(super) fn script(source: &str, keys: &[&str], args: &[&str]) -> Command {
    let count = keys.len().to_string();
    let head = ["EVAL", source, &count];
    let arguments = head.iter().chain(keys).chain(args);
    arguments.map(|reason_of| (*reason_of).to_owned()).collect()
}

/// The command that deletes the lock key if it holds this value.
pub(super) fn release(key: &str, value: &str) -> Command {
    script(RELEASE, &[key], &[value])
}

/// The replies of all masters that answer, in any order.
pub(super) fn replies_of_all(ctx: &Ctx, command: &[String]) -> Vec<Reply> {
    let replies = shuffled(ctx).into_iter();
    replies
        .filter_map(|master| send_command(master, command))
        .collect()
}

/// Asks the masters one after another, in the order of the settings, until one answers. Returns this answer.
pub(super) fn first_reply(ctx: &Ctx, command: &[String]) -> Option<Reply> {
    let mut masters = addresses(ctx).into_iter();
    masters.find_map(|master| send_command(master, command))
}

/// Asks the masters one after another, in a random order, until one answers. Returns this answer.
pub(super) fn any_reply(ctx: &Ctx, command: &[String]) -> Option<Reply> {
    let mut masters = shuffled(ctx).into_iter();
    masters.find_map(|master| send_command(master, command))
}

/// The number of masters in a majority.
pub(super) fn majority(ctx: &Ctx) -> usize {
    ctx.settings.masters.len() / 2 + 1
}

/// The time until which the client believes that it holds a lock that it requested at `started`: `started` plus 98 % of
/// the TTL. The remaining 2 % allow for clock drift. Both times are in nanoseconds since the start of the run.
pub(super) fn believed_until(ctx: &Ctx, started: u64) -> u64 {
    started + ctx.settings.ttl.mul_f64(0.98).as_nanos() as u64
}

/// The TTL in milliseconds, as an argument of a command.
pub(super) fn ttl(ctx: &Ctx) -> String {
    ctx.settings.ttl.as_millis().to_string()
}

/// A unique random value to store under the lock key.
pub(super) fn random_value() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

fn shuffled(ctx: &Ctx) -> Vec<SocketAddr> {
    let mut masters = addresses(ctx);
    masters.shuffle(&mut rand::rng());
    masters
}

fn addresses(ctx: &Ctx) -> Vec<SocketAddr> {
    let urls = ctx.settings.masters.iter();
    urls.filter_map(|url| {
        let address = url.trim_start_matches("redis://");
        address.to_socket_addrs().ok()?.next()
    })
    .collect()
}

fn send_command(master: SocketAddr, command: &[String]) -> Option<Reply> {
    let mut connection = Connection::tcp(master, PATIENCE).ok()?;
    connection.command(command).ok()
}
