//! A named value (quota or once-per-period record). Each call takes the lock that has the value's name, and releases
//! it.

use std::fmt;
use std::sync::Arc;

use super::error::ValueError;
use super::register::Register;
use crate::acquire::acquire_loop::Observer;
use crate::hold::guard::LockGuard;
use crate::redlock::Redlock;
use crate::settings::Wait;

/// The number of bytes that an error message quotes from a value of another kind.
const MAX_QUOTED_BYTES: usize = 24;

/// A named value of one kind, and the `Redlock` that accesses it.
#[derive(Clone)]
pub(crate) struct NamedValue {
    pub(crate) redlock: Redlock,
    name: Box<[u8]>,
    /// The prefix of the stored text, which identifies the kind.
    kind: &'static str,
    pub(crate) wait: Option<Wait>,
    /// The caller's callback, which receives the state of each wait for the lock that protects the value.
    pub(crate) observer: Option<Observer>,
}

impl fmt::Debug for NamedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedValue")
            .field("redlock", &self.redlock)
            .field("name", &self.name())
            .field("kind", &self.kind)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl NamedValue {
    pub(crate) fn new(redlock: &Redlock, name: &[u8], kind: &'static str) -> Self {
        Self {
            redlock: redlock.clone(),
            name: name.into(),
            kind,
            wait: None,
            observer: None,
        }
    }

    /// Whether this guard holds the lock that protects the value: an exclusive lock with the value's name, on a single
    /// key, from the same `Redlock`.
    pub(crate) fn is_under(&self, guard: &LockGuard) -> bool {
        let claim = &guard.held.claim;
        claim.is_plain_on(&self.name) && Arc::ptr_eq(&guard.core, &self.redlock.core)
    }

    /// The name of the value, as text.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// Takes the lock, runs `body`, and releases the lock. The future is large, so callers box it.
    pub(crate) async fn under_lock<T>(
        &self,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, ValueError>,
    ) -> Result<T, ValueError> {
        let guard = self.lock().await?;
        let result = body(&guard).await;
        guard.release().await;
        result
    }

    /// Takes the lock, reads the value, calls `change` with it, and releases the lock. If `change` returns a new value,
    /// writes that value; otherwise calls `KnownValue::refill`. The future is large, so callers box it.
    pub(crate) async fn change<T>(
        &self,
        make_change: impl FnOnce(&[u8]) -> Result<(Option<Vec<u8>>, T), ValueError>,
    ) -> Result<T, ValueError> {
        let guard = self.lock().await?;
        let begin_write = async {
            let value = Register::under(&guard)?.read().await?;
            let (bytes, outcome) = make_change(value.bytes())?;
            let Some(bytes) = bytes else {
                value.refill().await?;
                return Ok((None, outcome));
            };
            Ok((Some(value.begin_write(&bytes)?), outcome))
        };
        let (write, outcome) = match begin_write.await {
            Ok((Some(write), outcome)) => (write, outcome),
            Ok((None, outcome)) => {
                guard.release().await;
                return Ok(outcome);
            }
            Err(error) => {
                guard.release().await;
                return Err(error);
            }
        };
        let written = if write.may_release_early() {
            let (_, written) = futures::future::join(guard.release(), write.finish()).await;
            written
        } else {
            let written = write.finish().await;
            guard.release().await;
            written
        };
        written.map(|()| outcome)
    }

    async fn lock(&self) -> Result<LockGuard, ValueError> {
        if !self.redlock.core.coordinator.fencing {
            return Err(ValueError::NoFencing);
        }
        let mut lock = self.redlock.lock(&self.name);
        if let Some(wait) = self.wait {
            lock = lock.wait(wait);
        }
        if let Some(observer) = self.observer.clone() {
            lock = lock.waiting(move |waiting| observer(waiting));
        }
        Ok(lock.acquire().await?)
    }

    pub(crate) async fn create(&self, rest: &str) -> Result<(), ValueError> {
        let text = self.text_with_kind(rest);
        let create = async |guard: &LockGuard| {
            let vacant = Register::under(guard)?.read_vacant().await?;
            vacant.write(&text).await
        };
        Box::pin(self.under_lock(create)).await
    }

    pub(crate) async fn remove(&self) -> Result<bool, ValueError> {
        let has_own_kind = |bytes: &[u8]| self.text_after_kind(bytes).map(drop);
        let remove = async |guard: &LockGuard| Register::under(guard)?.remove(has_own_kind).await;
        Box::pin(self.under_lock(remove)).await
    }

    /// The text to store for a value: the prefix of this kind, a space, and `rest`.
    pub(crate) fn text_with_kind(&self, rest: &str) -> Vec<u8> {
        format!("{} {rest}", self.kind).into_bytes()
    }

    /// The part of the stored text after the prefix of this kind; an error if the value is of another kind.
    pub(crate) fn text_after_kind<'a>(&self, bytes: &'a [u8]) -> Result<&'a str, ValueError> {
        let text = std::str::from_utf8(bytes).ok();
        let text_after_kind = text.and_then(|text| text.strip_prefix(self.kind)?.strip_prefix(' '));
        text_after_kind.ok_or_else(|| self.other_kind_error(bytes))
    }

    /// The error for a stored value that is of another kind.
    pub(crate) fn other_kind_error(&self, bytes: &[u8]) -> ValueError {
        let start_of_value = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_QUOTED_BYTES)]);
        ValueError::OtherKind {
            name: self.name(),
            wanted: self.kind,
            found: start_of_value.into_owned(),
        }
    }
}

/// Parses a number that consists of digits only; `None` for other texts and for numbers above `u64::MAX`.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_a_value_of_another_kind_quotes_only_its_beginning() {
        let value = NamedValue::new(&Redlock::in_memory(1), b"prizes", "quota");
        for len in [0, MAX_QUOTED_BYTES, MAX_QUOTED_BYTES + 1, 1_000] {
            let error = value.other_kind_error(&vec![b'x'; len]);
            let ValueError::OtherKind { found, .. } = error else {
                panic!("another error: {error:?}");
            };
            assert_eq!(found, "x".repeat(len.min(24)));
        }
    }
}
