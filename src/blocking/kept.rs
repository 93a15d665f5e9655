//! A held value (for example a guard) together with a handle of the background thread.

use super::home::Home;

/// A guard or another held value. When this wrapper is dropped, the value is dropped inside the background runtime,
/// which sends the releases.
pub(super) struct Kept<G> {
    /// `None` once the value has been taken or dropped.
    held: Option<G>,
    pub(super) home: Home,
}

impl<G> Kept<G> {
    pub(super) fn new(held: G, home: &Home) -> Self {
        Self {
            held: Some(held),
            home: home.clone(),
        }
    }

    pub(super) fn get(&self) -> &G {
        self.held
            .as_ref()
            .expect("the held value must not have been taken out yet")
    }

    pub(super) fn split(&mut self) -> (&mut G, &Home) {
        let held = self.held.as_mut();
        (
            held.expect("the held value must not have been taken out yet"),
            &self.home,
        )
    }

    /// Takes out the held value and the handle of the background thread. The background thread runs as long as a handle
    /// exists.
    pub(super) fn take(mut self) -> (G, Home) {
        let held = self
            .held
            .take()
            .expect("the held value must not have been taken out yet");
        (held, self.home.clone())
    }
}

impl<G> Drop for Kept<G> {
    fn drop(&mut self) {
        if self.home.is_forked() {
            // The held value belongs to the parent process.
            std::mem::forget(self.held.take());
            return;
        }
        let _in = self.home.enter();
        self.held = None;
    }
}
