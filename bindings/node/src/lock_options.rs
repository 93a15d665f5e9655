//! The options of one acquire.

use napi_derive::napi;
use quorate_bindings::error::{CallError, ErrorKind};
use quorate_bindings::lock_options::{self, LockKind};

use crate::duration::{from_ms, wait_from_ms};

/// The resources and options of one acquire. Times are in milliseconds. An option that is not set has the default of
/// the `Redlock`.
#[napi(object, object_to_js = false)]
pub struct LockOptions {
    pub resources: Vec<String>,
    /// Whether `resources` is a list, even with one name.
    pub is_list: Option<bool>,
    /// The number of permits, for a permit of a semaphore.
    pub permits: Option<u32>,
    /// The id of the lock owner, for a re-entrant lock.
    pub owner: Option<String>,
    pub shared: Option<bool>,
    pub ttl: Option<f64>,
    /// Negative: no limit.
    pub wait: Option<f64>,
    pub max_hold: Option<f64>,
    pub renewal: Option<bool>,
    pub note: Option<String>,
    /// Whether the holder publishes no note at all.
    pub is_anonymous: Option<bool>,
    /// Whether to make only one attempt.
    pub is_try: Option<bool>,
}

impl LockOptions {
    fn kind(&mut self) -> LockKind {
        match (self.owner.take(), self.permits) {
            (Some(owner), _) => LockKind::Owner(owner),
            (_, Some(permits)) => LockKind::Permit(permits as usize),
            _ if self.is_list == Some(true) => LockKind::All,
            _ => LockKind::Exclusive,
        }
    }

    /// The options as the library reads them.
    ///
    /// # Errors
    ///
    /// If `shared` is set for another kind of lock than one on a single name.
    pub(crate) fn options(mut self) -> Result<lock_options::LockOptions, CallError> {
        let kind = match (self.kind(), self.shared) {
            (LockKind::Exclusive, Some(true)) => LockKind::Shared,
            (_, Some(true)) => {
                let text = "the option shared is only supported for a lock on a single name";
                return Err(CallError::new(ErrorKind::Invalid, text));
            }
            (kind, _) => kind,
        };
        Ok(lock_options::LockOptions {
            names: self.resources.into_iter().map(String::into_bytes).collect(),
            kind,
            ttl: self.ttl.map(from_ms),
            wait: self.wait.map(wait_from_ms),
            max_hold: self.max_hold.map(from_ms),
            renewal: self.renewal.unwrap_or(true),
            note: self.note,
            is_anonymous: self.is_anonymous == Some(true),
        })
    }
}
