//! The kinds of lock beside the plain one, a file each.

pub(crate) mod election;
