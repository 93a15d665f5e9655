//! A client that starts with its first use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate::RedlockBuilder;
use quorate::fork::{PerProcess, Process};

use crate::client::Client;
use crate::error::{CallError, ErrorKind};

/// The settings of a client, and the client of this process once it was used. A forked process gets a client of its
/// own, with a new thread and new connections.
pub struct LazyClient {
    builder: RedlockBuilder,
    /// Masters in memory belong to the process that made them.
    in_memory: bool,
    process: Process,
    client: PerProcess<Mutex<Option<Arc<Client>>>>,
}

impl LazyClient {
    /// Checks the settings. Starts nothing.
    ///
    /// # Errors
    ///
    /// If a setting is invalid.
    pub fn new(builder: RedlockBuilder, in_memory: bool) -> Result<Self, CallError> {
        builder.clone().build()?;
        Ok(Self {
            builder,
            in_memory,
            process: Process::current(),
            client: PerProcess::new(),
        })
    }

    fn client(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        let client = self.client.get_or_init(Mutex::default);
        client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of this process, and whether this call has started it, because there was none, or because the last
    /// one was closed.
    ///
    /// # Errors
    ///
    /// If the operating system refuses a thread, or in a forked process if the masters are in memory.
    pub fn get(&self) -> Result<(Arc<Client>, bool), CallError> {
        let mut client = self.client();
        if let Some(client) = &*client {
            return Ok((client.clone(), false));
        }
        if self.in_memory && self.process.is_not_current() {
            let text = "masters in memory belong to the process that made them, and this process was forked from it: \
                        make new masters here";
            return Err(CallError::new(ErrorKind::Forked, text));
        }
        let started = Client::start(self.builder.clone())?;
        *client = Some(started.clone());
        Ok((started, true))
    }

    /// Takes out the client of this process, so that the caller can [close](Client::close) it. The next
    /// [`get`](Self::get) starts another client.
    pub fn take(&self) -> Option<Arc<Client>> {
        self.client().take()
    }
}
