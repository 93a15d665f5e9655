//! A copy of a hold, for the seeded bug `DowngradeWritesOn`. The copy reports the lock as held, even after the library
//! has ended the hold.

use std::sync::Arc;
use std::time::Duration;

use quorate::Instant;
use quorate::node::Token;
use quorate::runtime::BoxFuture;

use crate::locker::Hold;

pub(crate) struct FrozenHold {
    value: Token,
    fencing: Option<u64>,
    until: Option<Instant>,
}

impl FrozenHold {
    pub(crate) fn copy_of(hold: &dyn Hold) -> Self {
        Self {
            value: hold.value(),
            fencing: hold.fencing(),
            until: hold.end_of_validity(),
        }
    }
}

impl Hold for FrozenHold {
    fn value(&self) -> Token {
        self.value
    }

    fn fencing(&self) -> Option<u64> {
        self.fencing
    }

    fn end_of_validity(&self) -> Option<Instant> {
        self.until
    }

    fn lost(&self) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }

    fn extend(self: Arc<Self>, _: Duration) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        Box::pin(std::future::ready(None))
    }
}
