//! Steps of one order, nested and in several processes at once: while they hold, no other order is at it.

use super::context::Ctx;
use super::files;
use super::hold::Hold;
use super::wanted::Wanted;
use crate::claim::Claim;
use crate::event::Event;

/// The file that bears the mark of whoever is at work: `order writer`.
const MARK: &str = "owners";

/// Leaves the mark of its order, if the lock is still there.
pub(super) fn leave_mark(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold) -> bool {
    let (Claim::Owner(id), Ok((file, _))) = (&wanted.claim, files::read(ctx, MARK)) else {
        return false;
    };
    files::mark(ctx, &file, hold, &format!("{id} {}", ctx.signed(op)))
}

/// Looks whether the mark is still there: from another step of the same order just as well.
pub(super) fn look(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold) {
    let (Claim::Owner(id), Ok((_, text))) = (&wanted.claim, files::read(ctx, MARK)) else {
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
