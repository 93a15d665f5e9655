//! Lockers that are wrong on purpose. A checker that does not catch them is not looking.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use quorate_testbed::{Connection, Reply};
use rand::RngExt;
use rand::seq::SliceRandom;

use super::context::Ctx;
use crate::workload::Locker;

/// Delete the key if it is ours.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const PATIENCE: Duration = Duration::from_millis(100);

/// What a wrong locker believes to hold.
pub(super) struct CanaryHold {
    resource: String,
    value: String,
    /// Until when.
    pub(super) until: u64,
}

/// Tries for a while.
pub(super) async fn acquire(ctx: &Ctx, resource: &str) -> Option<CanaryHold> {
    for _ in 0..40 {
        let (ctx, resource) = (ctx.clone(), resource.to_owned());
        let tried = tokio::task::spawn_blocking(move || attempt(&ctx, &resource));
        if let Ok(Some(hold)) = tried.await {
            return Some(hold);
        }
        let pause = rand::rng().random_range(5..40);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    None
}

pub(super) async fn release(ctx: &Ctx, hold: CanaryHold) {
    let ctx = ctx.clone();
    let release = tokio::task::spawn_blocking(move || undo(&ctx, &hold.resource, &hold.value));
    let _ = release.await;
}

fn attempt(ctx: &Ctx, resource: &str) -> Option<CanaryHold> {
    let settings = &ctx.settings;
    let masters = addresses(ctx);
    let quorum = match settings.locker {
        // The mistake: half is not more than half.
        Locker::HalfQuorum => (masters.len() / 2).max(1),
        _ => masters.len() / 2 + 1,
    };
    let value = format!("{:032x}", rand::rng().random::<u128>());
    let started = ctx.clock.now();
    let ttl = settings.ttl.as_millis().to_string();
    let mut order = masters.clone();
    order.shuffle(&mut rand::rng());
    let granted = order
        .iter()
        .filter(|master| {
            let answer = ask(**master, &["SET", resource, &value, "NX", "PX", &ttl]);
            answer.is_some_and(|reply| reply.is_ok())
        })
        .count();
    let until = started + settings.ttl.mul_f64(0.98).as_nanos() as u64;
    if granted >= quorum && ctx.clock.now() < until {
        return Some(CanaryHold {
            resource: resource.to_owned(),
            value,
            until,
        });
    }
    // The other mistake: what was granted in vain stays in the way of everybody.
    if settings.locker != Locker::NoUndo {
        undo(ctx, resource, &value);
    }
    None
}

fn undo(ctx: &Ctx, resource: &str, value: &str) {
    for master in addresses(ctx) {
        let _ = ask(master, &["EVAL", RELEASE, "1", resource, value]);
    }
}

fn addresses(ctx: &Ctx) -> Vec<SocketAddr> {
    let urls = ctx.settings.masters.iter();
    urls.filter_map(|url| {
        let address = url.trim_start_matches("redis://");
        address.to_socket_addrs().ok()?.next()
    })
    .collect()
}

fn ask(master: SocketAddr, command: &[&str]) -> Option<Reply> {
    let mut connection = Connection::tcp(master, PATIENCE).ok()?;
    connection.command(command).ok()
}
