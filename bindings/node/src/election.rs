//! The native half of an election and of its observer.

use std::sync::{Arc, Mutex};

use napi::bindgen_prelude::{Error, Result};
use napi_derive::napi;
use quorate::{Leader, NoteText, Observation};
use serde_json::{Value, json};

use crate::bridge::Bridge;
use crate::client::{NativeRedlock, reply_with_hold};
use crate::duration::{from_ms, wait_from_ms};
use crate::failure;
use crate::held_lock::Hold;
use crate::home::Home;
use crate::sync::lock;

/// An election.
#[napi]
pub struct NativeElection {
    election: quorate::Election,
    home: Arc<Home>,
}

#[napi]
impl NativeElection {
    #[napi(constructor)]
    pub fn new(redlock: &NativeRedlock, name: String, ttl: Option<f64>, wait: Option<f64>) -> Self {
        let home = redlock.home.clone();
        let mut election = home.redlock.election(name);
        if let Some(ttl) = ttl {
            election = election.ttl(from_ms(ttl));
        }
        if let Some(wait) = wait {
            election = election.wait(wait_from_ms(wait));
        }
        Self { election, home }
    }

    /// The reply is the guard of the leadership. If the leadership is lost later, a notice follows.
    #[napi]
    pub fn campaign(&self, bridge: &Bridge, note: Option<String>) -> i64 {
        let (election, home) = (self.election.clone(), self.home.clone());
        let note: NoteText = note.as_deref().into();
        bridge.start(&self.home, |call| async move {
            let leadership = election.campaign(note).await;
            let hold = leadership.map(|leadership| Some(Hold::Leadership(leadership)));
            reply_with_hold(call, hold, home).await;
        })
    }

    #[napi]
    pub fn observe(&self) -> Result<NativeObservation> {
        let observation = self.election.observe();
        let observation = observation.map_err(|error| Error::from_reason(error.to_string()))?;
        Ok(NativeObservation {
            observation: Arc::new(Mutex::new(Some(observation))),
            home: self.home.clone(),
        })
    }
}

/// An observer of an election.
#[napi]
pub struct NativeObservation {
    /// `None` while a call of `next` is running, and after `close`.
    observation: Arc<Mutex<Option<Observation>>>,
    home: Arc<Home>,
}

#[napi]
impl NativeObservation {
    /// The reply is the next leader, or null. A call while another call is running fails.
    #[napi]
    pub fn next(&self, bridge: &Bridge) -> i64 {
        let observation = self.observation.clone();
        let taken = lock(&observation).take();
        bridge.start(&self.home, |call| async move {
            let Some(mut taken) = taken else {
                let message = "the observer is closed, or a call of next() is already running";
                return call.reply_with(Err(failure::invalid(&message)));
            };
            let leader = taken.next().await;
            *lock(&observation) = Some(taken);
            call.reply_with(Ok(leader.as_ref().map_or(Value::Null, leader_value)));
        })
    }

    #[napi]
    pub fn close(&self) {
        let observation = lock(&self.observation).take();
        self.home.enter(|| drop(observation));
    }
}

impl Drop for NativeObservation {
    fn drop(&mut self) {
        self.close();
    }
}

fn leader_value(leader: &Leader) -> Value {
    json!({ "term": leader.term.to_string(), "note": leader.note.as_ref().map(failure::note) })
}
