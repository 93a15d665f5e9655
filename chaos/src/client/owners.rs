//! Steps of one order, nested and in several processes at once: while they hold, no other order is at it.

use std::time::Duration;

use rand::RngExt;

use super::context::Ctx;
use super::hold::Hold;
use super::wanted::Wanted;
use super::work;
use crate::claim::Claim;
use crate::event::Event;

/// The file that bears the mark of whoever is at work: `order writer`.
const MARK: &str = "owners";

/// Leaves the mark of its order, works, with another hold inside or without, and looks whether the mark is still
/// there: from another step of the same order just as well.
pub(super) async fn work(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold, time: Duration) {
    let Claim::Owner(id) = &wanted.claim else {
        return;
    };
    let Ok((file, _)) = work::read(ctx, MARK) else {
        return;
    };
    if !work::mark(ctx, &file, hold, &format!("{id} {}", ctx.signed(op))) {
        return;
    }
    tokio::time::sleep(time / 2).await;
    if !wanted.is_inner && rand::rng().random_bool(0.5) {
        let inner = wanted.inner();
        work::critical(ctx, &inner, ctx.next_op()).await;
    }
    tokio::time::sleep(time / 2).await;
    let Ok((_, text)) = work::read(ctx, MARK) else {
        return;
    };
    if !hold.is_valid(ctx) {
        return;
    }
    let (found, writer) = text.split_once(' ').unwrap_or((&text, ""));
    ctx.note(Event::Found {
        op,
        key: MARK.to_owned(),
        expected: id.clone(),
        found: found.to_owned(),
        writer: writer.to_owned(),
    });
}
