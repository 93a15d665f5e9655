//! The client's end of a link (`link.rs`): the library's driver, or a stream (`stream.rs`).

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quorate::testing::Driver;

/// The part of the library at the client's end of a link.
pub(super) enum ClientEnd {
    /// The driver that sends the requests of clients.
    Driver(Arc<Driver>),
    /// The bytes that have arrived for an operator. The library's code for operators reads them itself.
    Stream(StreamState),
}

/// A call to the driver, or a change of a stream. The mutex of `World` must not be locked during the call.
pub(super) enum DriverCall {
    RunActor,
    Tick,
    Connected,
    Receive(Vec<u8>),
    Disconnect(&'static str),
}

/// The client's end of a stream.
#[derive(Default)]
pub(super) struct StreamState {
    pub(super) is_connected: bool,
    /// Why the connection has ended; `None` while it is open or being opened.
    end: Option<&'static str>,
    /// The bytes that have arrived, and that the operator has not read yet.
    pub(super) received: Vec<u8>,
    waker: Option<Waker>,
}

impl StreamState {
    /// Handles a change of the connection. Returns the waker of the task that waits for it.
    pub(super) fn handle(&mut self, call: DriverCall) -> Option<Waker> {
        match call {
            DriverCall::RunActor | DriverCall::Tick => {}
            DriverCall::Connected => self.is_connected = true,
            DriverCall::Receive(bytes) => self.received.extend_from_slice(&bytes),
            DriverCall::Disconnect(reason) => self.end = Some(reason),
        }
        self.waker.take()
    }

    pub(super) fn error(&self) -> Option<io::Error> {
        let reason = self.end?;
        Some(io::Error::new(io::ErrorKind::ConnectionReset, reason))
    }

    pub(super) fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl ClientEnd {
    pub(super) fn driver(&self) -> Option<Arc<Driver>> {
        match self {
            Self::Driver(driver) => Some(driver.clone()),
            Self::Stream(_) => None,
        }
    }
}
