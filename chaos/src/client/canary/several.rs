//! Several resources, one after the other: each of them is locked rightly.

use std::time::Duration;

use super::held::CanaryHold;
use super::plain;
use crate::client::context::Ctx;
use crate::client::wanted::Wanted;
use crate::workload::Locker;

/// How long a holder of the first waits for the next between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// How often it tries.
const TRIES: usize = 100;

pub(super) fn attempt(ctx: &Ctx, wanted: &Wanted) -> Option<CanaryHold> {
    let keeps = ctx.settings.locker == Locker::OneByOne;
    let tries = if keeps { 1 } else { TRIES };
    let mut all: Option<CanaryHold> = None;
    for resource in wanted.resources() {
        let Some(next) = wait_for(ctx, resource, tries) else {
            // The one mistake: the first stays locked, and nobody has it.
            if let Some(first) = all.filter(|_| !keeps) {
                first.give_back(ctx);
            }
            return None;
        };
        all = Some(match all {
            None => next,
            Some(first) => CanaryHold {
                undo: [first.undo, next.undo].concat(),
                // The other mistake: the first ends before the next one does.
                ..next
            },
        });
    }
    all
}

fn wait_for(ctx: &Ctx, resource: &str, tries: usize) -> Option<CanaryHold> {
    (0..tries).find_map(|number| {
        if number > 0 {
            std::thread::sleep(PAUSE);
        }
        plain::attempt(ctx, resource)
    })
}
