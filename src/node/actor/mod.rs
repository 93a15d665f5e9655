//! What the driver of any kind of master needs and no protocol shows: the queue in front of it, how
//! much may be under way, the releases it owes, and its pauses between connections.
//!
//! Nothing here does I/O, reads a clock or knows Redis: time is passed in.

pub(super) mod back_off;
pub(super) mod joined;
pub(super) mod mailbox;
pub(super) mod marks;
pub(super) mod owed;
pub(super) mod trust;
pub(super) mod window;
