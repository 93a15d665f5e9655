//! Services that check fencing tokens: registers and a bank. A service refuses a request if it has accepted a request
//! with a larger token for the same register or account.
//!
//! The services run in the main process of the run. So the history contains every accepted write, even if the client
//! was killed before it got the reply.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;

use crate::bank::Bank;
use crate::event::Event;
use crate::recorder::Recorder;

/// Serves the registers and the bank on a Unix socket, until the program ends.
#[derive(Debug)]
pub struct Register {
    path: PathBuf,
}

#[derive(Debug, Default)]
struct ProtectedData {
    /// The largest token that each register has seen.
    highest_tokens: HashMap<String, u64>,
    bank: Bank,
}

impl Register {
    /// Opens the socket in this folder.
    ///
    /// # Errors
    ///
    /// If the socket cannot be created.
    pub fn open(dir: &Path, recorder: &Recorder) -> anyhow::Result<Self> {
        let path = dir.join("register.sock");
        let listener = UnixListener::bind(&path).context("cannot open the register's socket")?;
        let protected = Arc::new(Mutex::new(ProtectedData::default()));
        let recorder = recorder.clone();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(stream) = connection else { return };
                let (protected, recorder) = (protected.clone(), recorder.clone());
                thread::spawn(move || {
                    let _ = serve(stream, &protected, &recorder);
                });
            }
        });
        Ok(Self { path })
    }

    /// The path of the socket that clients connect to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Serves one connection: each request is one line, and is answered with one line, `ok ..` or `stale`.
fn serve(
    stream: UnixStream,
    protected: &Mutex<ProtectedData>,
    recorder: &Recorder,
) -> anyhow::Result<()> {
    let mut out = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let fields: Vec<&str> = line.split(' ').collect();
        let answer = {
            // Record the event while the mutex is locked, so that the history has the same order as the writes.
            let mut protected = protected.lock().unwrap_or_else(PoisonError::into_inner);
            match fields[..] {
                ["look", names, token, by] => {
                    let names: Vec<&str> = names.split(',').collect();
                    protected.read_balances(&names, token.parse()?, by, recorder)
                }
                ["book", balances, token, by] => {
                    protected.book(&parse_balances(balances)?, token.parse()?, by, recorder)
                }
                [key, token, by] => protected.write(key, token.parse()?, by, recorder),
                _ => continue,
            }
        };
        out.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// Parses `account=balance`, separated by commas.
fn parse_balances(balances: &str) -> anyhow::Result<BTreeMap<String, i64>> {
    let named_balances = balances.split(',').map(|part| {
        let (name, balance) = part
            .split_once('=')
            .context("each balance must have the form ACCOUNT=AMOUNT")?;
        Ok((name.to_owned(), balance.parse()?))
    });
    named_balances.collect()
}

impl ProtectedData {
    /// Handles a write to a register. The request consists of the key, the fencing token and the name of the writer.
    /// The reply is `ok` or `stale`.
    fn write(&mut self, key: &str, token: u64, by: &str, recorder: &Recorder) -> String {
        let (key, by) = (key.to_owned(), by.to_owned());
        let highest_token = self.highest_tokens.entry(key.clone()).or_default();
        if token < *highest_token {
            return record_refusal((key, *highest_token), token, by, recorder);
        }
        *highest_token = token;
        recorder.record("register", Event::Applied { by, key, token });
        "ok\n".to_owned()
    }

    /// Handles a read of balances. The request consists of the word `look`, the names of the accounts, the fencing
    /// token and the name of the reader. The reply is `ok` followed by the balances, or `stale`.
    fn read_balances(
        &mut self,
        names: &[&str],
        token: u64,
        by: &str,
        recorder: &Recorder,
    ) -> String {
        match self.bank.balances(names, token) {
            Ok(balances) => {
                let amounts: Vec<String> = balances.iter().map(i64::to_string).collect();
                format!("ok {}\n", amounts.join(" "))
            }
            Err(stale) => record_refusal(stale, token, by.to_owned(), recorder),
        }
    }

    /// Handles a write of balances. The request consists of the word `book`, pairs of an account and its new balance,
    /// the fencing token and the name of the writer.
    fn book(
        &mut self,
        balances: &BTreeMap<String, i64>,
        token: u64,
        by: &str,
        recorder: &Recorder,
    ) -> String {
        let (by, balances) = (by.to_owned(), balances.clone());
        if let Err(stale) = self.bank.book(&balances, token) {
            return record_refusal(stale, token, by, recorder);
        }
        let moved_event = Event::Moved {
            by,
            token,
            balances,
        };
        recorder.record("bank", moved_event);
        "ok\n".to_owned()
    }
}

fn record_refusal(
    (key, highest): (String, u64),
    token: u64,
    by: String,
    recorder: &Recorder,
) -> String {
    let refused_event = Event::Refused {
        by,
        key,
        token,
        highest,
    };
    recorder.record("register", refused_event);
    "stale\n".to_owned()
}
