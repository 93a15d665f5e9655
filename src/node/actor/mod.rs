//! The parts of a master's driver that do not depend on the kind of master: the request queue, the limit on outstanding
//! requests, the pending releases, and the pauses between connections.
//!
//! Nothing in this module does I/O, reads a clock or knows Redis: callers pass the time in.

pub(super) mod back_off;
pub(super) mod joined;
pub(super) mod mailbox;
pub(super) mod markers;
pub(super) mod pending_releases;
pub(super) mod trust;
pub(super) mod window;
