//! Collects the wake-ups of a master.

use std::sync::{Arc, Mutex};

use quorate::node::{Subscriber, WakeSink};

use crate::tested_master::TestedMaster;

/// The prefix of all waiter ids in a comparison, which is the id of the process.
pub const PROCESS: &str = "0000000000000007";

/// The wake-ups that one master sent.
#[derive(Clone, Default)]
pub struct WakeUps(Arc<Mutex<Vec<Vec<u8>>>>);

impl WakeSink for WakeUps {
    fn woken(&self, _: usize, key: &[u8]) {
        self.0.lock().expect("no panic").push(key.to_vec());
    }
}

impl WakeUps {
    /// Begins to collect the wake-ups that `master` sends to the process [`PROCESS`].
    pub fn subscribe(master: &TestedMaster) -> Self {
        let wake_ups = Self::default();
        master.node().subscribe(Subscriber {
            process: PROCESS.into(),
            node: 0,
            sink: Arc::new(wake_ups.clone()),
        });
        wake_ups
    }

    /// Returns the keys of the locks of all wake-ups since the last call.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}
