//! Values that the masters store and a lock protects. The register is one stored value; the quota and the
//! once-per-period record are built on it.

pub(crate) mod error;
pub(crate) mod glance;
pub(crate) mod once;
pub(crate) mod period;
pub(crate) mod quota;
pub(crate) mod record;
pub(crate) mod register;
pub(crate) mod value;
