//! The register that the fencing tokens are for: it takes a write only if no larger token has been
//! seen. It lives in the driver, so that its word on what was applied does not depend on clients.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;

use crate::event::Event;
use crate::recorder::Recorder;

/// Serves the registers on a Unix socket, until the program ends.
#[derive(Debug)]
pub struct Register {
    path: PathBuf,
}

type Highest = Arc<Mutex<HashMap<String, u64>>>;

impl Register {
    /// Opens it in this directory.
    ///
    /// # Errors
    ///
    /// When the socket cannot be made.
    pub fn open(dir: &Path, recorder: &Recorder) -> anyhow::Result<Self> {
        let path = dir.join("register.sock");
        let listener = UnixListener::bind(&path).context("open the register")?;
        let highest = Highest::default();
        let recorder = recorder.clone();
        thread::spawn(move || {
            for knock in listener.incoming() {
                let Ok(stream) = knock else { return };
                let (highest, recorder) = (highest.clone(), recorder.clone());
                thread::spawn(move || {
                    let _ = serve(stream, &highest, &recorder);
                });
            }
        });
        Ok(Self { path })
    }

    /// Where it can be reached.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// One line `key token writer` a write; the answer is `ok` or `stale`.
fn serve(stream: UnixStream, highest: &Highest, recorder: &Recorder) -> anyhow::Result<()> {
    let mut out = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let mut words = line.split(' ');
        let (Some(key), Some(token), Some(by)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let (key, by) = (key.to_owned(), by.to_owned());
        let token: u64 = token.parse()?;
        let answer: &[u8] = {
            // Written down under the lock, so that the history has the order of the register.
            let mut all = highest.lock().unwrap_or_else(PoisonError::into_inner);
            let seen = all.entry(key.clone()).or_default();
            if token < *seen {
                let highest = *seen;
                let refused = Event::Refused {
                    by,
                    key,
                    token,
                    highest,
                };
                recorder.note("register", refused);
                b"stale\n"
            } else {
                *seen = token;
                recorder.note("register", Event::Applied { by, key, token });
                b"ok\n"
            }
        };
        out.write_all(answer)?;
    }
    Ok(())
}
