//! Values that the masters keep and a lock protects: the register, and the quota and the once-per-period record built on it.

pub(crate) mod error;
pub(crate) mod once;
pub(crate) mod quota;
pub(crate) mod register;
pub(crate) mod value;
