//! The workload of lock owners. Each owner represents an order, and each hold of the owner is a step of this order.
//! Steps are nested, and run in several processes at once. While steps of one order hold the lock, no step of another
//! order may work.

use super::context::Ctx;
use super::files;
use super::hold::Hold;
use super::wanted::Wanted;
use crate::claim::Claim;
use crate::event::Event;

/// The file that names the order whose steps work now. Its content is `order writer`.
const MARK: &str = "owners";

/// Writes the mark of the attempt's order to the shared file, unless the lock has been lost. Returns whether the mark
/// was written.
pub(super) fn leave_mark(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold) -> bool {
    let (Claim::Owner(id), Ok((file, _))) = (&wanted.claim, files::read(ctx, MARK)) else {
        return false;
    };
    files::mark(ctx, &file, hold, &format!("{id} {}", ctx.signed(op)))
}

/// Checks that the mark of the attempt's order is still in the file. Another step of the same order may have written
/// it.
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
