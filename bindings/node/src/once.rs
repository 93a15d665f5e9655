//! The native half of work that runs once per period.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use napi_derive::napi;
use quorate::{LockGuard, Once, OnceOutcome, ValueError};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::bridge::Bridge;
use crate::call::Call;
use crate::client::NativeRedlock;
use crate::duration::{epoch_ms, from_ms, to_ms, wait_from_ms};
use crate::failure;
use crate::home::Home;
use crate::sync::lock;

/// Work that runs once per period.
#[napi]
pub struct NativeOnce {
    name: String,
    once: Once,
    home: Arc<Home>,
}

#[napi]
impl NativeOnce {
    /// A period that repeats every `period` milliseconds, or the single period from `start` to `end` (milliseconds
    /// since 1970).
    #[napi(constructor)]
    pub fn new(
        redlock: &NativeRedlock,
        name: String,
        period: Option<f64>,
        start: Option<f64>,
        end: Option<f64>,
        wait: Option<f64>,
    ) -> Self {
        let home = redlock.home.clone();
        let at = |milliseconds: f64| UNIX_EPOCH + from_ms(milliseconds);
        let mut once = match (start, end) {
            (Some(start), Some(end)) => home.redlock.once_in(&name, at(start)..at(end)),
            _ => home
                .redlock
                .once(&name, from_ms(period.unwrap_or_default())),
        };
        if let Some(wait) = wait {
            once = once.wait(wait_from_ms(wait));
        }
        Self { name, once, home }
    }

    #[napi]
    pub fn create(&self, bridge: &Bridge) -> i64 {
        let once = self.once.clone();
        bridge.start(&self.home, |call| async move {
            let result = once.create().await;
            call.reply_with(
                result
                    .map(|()| Value::Null)
                    .map_err(|error| failure::of_value(&error)),
            );
        })
    }

    #[napi]
    pub fn drop_record(&self, bridge: &Bridge) -> i64 {
        let once = self.once.clone();
        bridge.start(&self.home, |call| async move {
            let result = once.drop_record().await;
            call.reply_with(
                result
                    .map(Value::from)
                    .map_err(|error| failure::of_value(&error)),
            );
        })
    }

    /// The reply is the last recorded period and the note. Acquires the lock of the record.
    #[napi]
    pub fn record(&self, bridge: &Bridge) -> i64 {
        let (once, name, redlock) = (
            self.once.clone(),
            self.name.clone(),
            self.home.redlock.clone(),
        );
        bridge.start(&self.home, |call| async move {
            let read = async {
                let guard = redlock.acquire(name).await?;
                let record = once.record(&guard).await?;
                let value = json!({ "last": record.last().map(epoch_ms), "note": record.note() });
                drop(record);
                guard.release().await;
                Ok(value)
            };
            let result: Result<Value, ValueError> = read.await;
            call.reply_with(result.map_err(|error| failure::of_value(&error)));
        })
    }

    /// If the period is due, sends the notice `turn`, and waits until JavaScript reports the end of the body.
    #[napi]
    pub fn run(&self, bridge: &Bridge, at_most_once: bool) -> i64 {
        let once = self.once.clone();
        let (end_body, body_ended) = oneshot::channel();
        let number = bridge.start(&self.home, |call| async move {
            let body = async |guard: &LockGuard| {
                let token = guard.fencing_token().map(|token| token.to_string());
                call.notify(json!({ "turn": { "fencingToken": token } }));
                // An error means that JavaScript has ended: the body has not succeeded.
                body_ended.await.unwrap_or(false)
            };
            let result = if at_most_once {
                once.at_most_once(body)
                    .await
                    .map(|outcome| outcome_value(&outcome))
            } else {
                let fallible_body =
                    async |guard: &LockGuard| body(guard).await.then_some(()).ok_or(());
                once.at_least_once(fallible_body)
                    .await
                    .map(|outcome| outcome_value(&outcome))
            };
            reply(call, result);
        });
        lock(&bridge.bodies).insert(number, end_body);
        number
    }
}

fn reply(call: Call, result: Result<Value, ValueError>) {
    call.reply_with(result.map_err(|error| failure::of_value(&error)));
}

fn outcome_value<T>(outcome: &OnceOutcome<T>) -> Value {
    match outcome {
        OnceOutcome::Done(_) => json!({ "outcome": "done" }),
        OnceOutcome::NotRecorded(_, error) => {
            json!({ "outcome": "notRecorded", "failure": failure::of_value(error) })
        }
        OnceOutcome::Outlived(_, cause) => {
            json!({ "outcome": "outlived", "cause": cause.as_str() })
        }
        OnceOutcome::AlreadyDone { next } => {
            json!({ "outcome": "alreadyDone", "next": to_ms(*next) })
        }
        _ => json!({ "outcome": "unknown" }),
    }
}
