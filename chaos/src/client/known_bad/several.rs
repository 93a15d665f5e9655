//! A known-bad lock over several resources: it acquires a separate lock for one resource after the other. Each of these
//! locks is correct, but their combination is not.

use std::time::Duration;

use super::held::KnownBadHold;
use super::plain;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;
use crate::workload::Locker;

/// The pause between two attempts to lock the same resource.
const PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of attempts to lock one resource. The implementation `one-by-one` makes only one attempt.
const TRIES: usize = 100;

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<KnownBadHold> {
    let keeps = ctx.settings.locker == Locker::OneByOne;
    let tries = if keeps { 1 } else { TRIES };
    let mut all: Option<KnownBadHold> = None;
    for resource in wanted.resources() {
        let Some(next) = wait_for(ctx, resource, tries) else {
            // The mistake of `one-by-one`: if the second lock is not available, the client does not release the first.
            if let Some(first) = all.filter(|_| !keeps) {
                first.give_back(ctx);
            }
            return None;
        };
        all = Some(match all {
            None => next,
            Some(first) => KnownBadHold {
                undo: [first.undo, next.undo].concat(),
                // The mistake of `later-lease`: the client believes that it holds both locks until the lease of the
                // lock acquired last ends. The other lease ends earlier.
                ..next
            },
        });
    }
    all
}

fn wait_for(ctx: &Ctx, resource: &str, tries: usize) -> Option<KnownBadHold> {
    (0..tries).find_map(|number| {
        if number > 0 {
            std::thread::sleep(PAUSE);
        }
        plain::attempt(ctx, resource)
    })
}
