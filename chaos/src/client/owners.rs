//! The workload of reentrant locks. It models purchase orders, which are processed in steps. Each owner of the lock is
//! a purchase order, and each hold is one step of this order.
//!
//! Steps can be nested, and several processes can run steps of one order at the same time. While steps of one order
//! hold the lock, steps of other orders must not run.

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::files;
use super::hold::Hold;
use crate::claim::Claim;
use crate::event::Event;

/// The shared file that names the current owner of the reentrant lock. Its content is the owner's id, a space, and the
/// name of the attempt that wrote the file.
const OWNER_FILE: &str = "owners";

/// Writes the id of the attempt's lock owner to the shared file. Writes nothing if the lock has been lost. Returns
/// whether the id was written.
pub(super) fn write_owner(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold) -> bool {
    let (Claim::Owner(id), Ok((file, _))) = (&spec.claim, files::read_state(ctx, OWNER_FILE))
    else {
        return false;
    };
    files::write_if_valid(&file, hold, &format!("{id} {}", ctx.attempt_name(op)))
}

/// Records two owners: the one that the shared file names, and the expected one (the owner of this attempt). Records
/// nothing if the lock has been lost.
pub(super) fn record_found_owner(ctx: &Ctx, spec: &AttemptSpec, op: u64, hold: &Hold) {
    let (Claim::Owner(id), Ok((_, content))) = (&spec.claim, files::read_state(ctx, OWNER_FILE))
    else {
        return;
    };
    if !hold.is_valid() {
        return;
    }
    let (found, writer) = content.split_once(' ').unwrap_or((&content, ""));
    ctx.record(Event::Found {
        op,
        key: OWNER_FILE.to_owned(),
        expected: id.clone(),
        found: found.to_owned(),
        writer: writer.to_owned(),
    });
}
