//! The options of one acquire.

use napi_derive::napi;
use quorate::{AcquireError, LockRequest, Redlock};

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
    /// The request with these options.
    ///
    /// # Errors
    ///
    /// [`AcquireError::InvalidResource`] if the id of the owner is not valid.
    pub(crate) fn request(self, redlock: &Redlock) -> Result<LockRequest, AcquireError> {
        let first = self.resources.first().cloned().unwrap_or_default();
        let mut request = match (self.owner, self.permits) {
            (Some(owner), _) => redlock.owner(owner)?.lock(first),
            (_, Some(permits)) => redlock.semaphore(first, permits as usize),
            _ if self.is_list == Some(true) => redlock.lock_all(self.resources),
            _ => redlock.lock(first),
        };
        if let Some(ttl) = self.ttl {
            request = request.ttl(from_ms(ttl));
        }
        if let Some(wait) = self.wait {
            request = request.wait(wait_from_ms(wait));
        }
        if let Some(max_hold) = self.max_hold {
            request = request.max_hold(from_ms(max_hold));
        }
        if let Some(note) = self.note {
            request = request.note(note);
        }
        if self.is_anonymous == Some(true) {
            request = request.note(None);
        }
        if self.shared == Some(true) {
            request = request.shared();
        }
        Ok(request.renewal(self.renewal.unwrap_or(true)))
    }
}
