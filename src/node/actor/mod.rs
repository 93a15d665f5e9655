//! The parts of a master's driver that are the same for all kinds of masters: the request queue, the limit on
//! outstanding requests, the pending releases, and the pauses between connections.
//!
//! Nothing in this module does I/O, reads a clock or depends on Redis. Callers pass the time as an argument.

pub(super) mod back_off;
pub(super) mod joined;
pub(super) mod mailbox;
pub(super) mod markers;
pub(super) mod outage;
pub(super) mod panicked;
pub(super) mod pending_releases;
pub(super) mod trust;
pub(super) mod window;
