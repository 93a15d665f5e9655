//! A known-bad lock over several resources: it acquires a separate lock for one resource after the other. Each of these
//! locks is correct, but their combination is not.

use std::time::Duration;

use super::held::KnownBadHold;
use super::plain;
use crate::client::attempt_spec::AttemptSpec;
use crate::client::context::Ctx;
use crate::workload::Locker;

/// The pause between two attempts to lock the same resource.
const PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of attempts to lock one resource. The implementation `one-by-one` makes only one attempt.
const TRIES: usize = 100;

pub(super) fn attempt(ctx: &Ctx, spec: &AttemptSpec) -> Option<KnownBadHold> {
    let keeps_partial_locks = ctx.settings.locker == Locker::OneByOne;
    let tries = if keeps_partial_locks { 1 } else { TRIES };
    let mut combined: Option<KnownBadHold> = None;
    for resource in spec.resources() {
        let Some(next_hold) = acquire_with_retries(ctx, resource, tries) else {
            // The mistake of `one-by-one`: if the second lock is not available, the client does not release the first.
            if let Some(earlier_holds) = combined.filter(|_| !keeps_partial_locks) {
                earlier_holds.release(ctx);
            }
            return None;
        };
        combined = Some(match combined {
            None => next_hold,
            Some(earlier_holds) => KnownBadHold {
                release_commands: [earlier_holds.release_commands, next_hold.release_commands]
                    .concat(),
                // The mistake of `later-lease`: the client believes that it holds both locks until the lease of the
                // lock acquired last ends. The other lease ends earlier.
                ..next_hold
            },
        });
    }
    combined
}

fn acquire_with_retries(ctx: &Ctx, resource: &str, tries: usize) -> Option<KnownBadHold> {
    (0..tries).find_map(|attempt_number| {
        if attempt_number > 0 {
            std::thread::sleep(PAUSE);
        }
        plain::attempt(ctx, resource)
    })
}
