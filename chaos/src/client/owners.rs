//! The workload of lock owners. Each owner represents an order (of goods), and each hold of the owner is a step of
//! processing it. Steps are nested, and several processes run steps of one order at the same time. While steps of one
//! order hold the lock, no step of another order may work.

use super::context::Ctx;
use super::files;
use super::hold::Hold;
use super::wanted::Wanted;
use crate::claim::Claim;
use crate::event::Event;

/// The file with the mark: the order whose steps hold the lock, and the attempt that wrote the mark. Its content is
/// `order writer`.
const MARK: &str = "owners";

/// Writes the mark of the attempt's order to the shared file. Writes nothing if the lock has been lost. Returns whether
/// the mark was written.
pub(super) fn leave_mark(ctx: &Ctx, wanted: &Wanted, op: u64, hold: &Hold) -> bool {
    let (Claim::Owner(id), Ok((file, _))) = (&wanted.claim, files::read(ctx, MARK)) else {
        return false;
    };
    files::mark(ctx, &file, hold, &format!("{id} {}", ctx.signed(op)))
}

/// Records which order the file names, for the checker. It must be the attempt's order, although another step of this
/// order may have written the mark. Records nothing if the lock has been lost.
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
