//! Several resources, locked one after the other; each single lock is correct.

use std::time::Duration;

use super::held::KnownBadHold;
use super::plain;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;
use crate::workload::Locker;

/// The pause between two attempts of a holder of the first resource to lock the next one.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of attempts.
const TRIES: usize = 100;

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<KnownBadHold> {
    let keeps = ctx.settings.locker == Locker::OneByOne;
    let tries = if keeps { 1 } else { TRIES };
    let mut all: Option<KnownBadHold> = None;
    for resource in wanted.resources() {
        let Some(next) = wait_for(ctx, resource, tries) else {
            // The first mistake: the first resource stays locked, and nobody holds it.
            if let Some(first) = all.filter(|_| !keeps) {
                first.give_back(ctx);
            }
            return None;
        };
        all = Some(match all {
            None => next,
            Some(first) => KnownBadHold {
                undo: [first.undo, next.undo].concat(),
                // The second mistake: the lock of the first resource ends before that of the next.
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
