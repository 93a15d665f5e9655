//! The masters that are measured: spawned, or as they run.

use std::cell::RefCell;
use std::time::Duration;

use quorate::Redlock;
use quorate_testbed::Masters;

use super::results::Setting;
use crate::config::{self, Fairness, GuardMode, MasterOptions};
use crate::exit::Failure;

/// Where the locks live.
pub(super) struct Ground {
    pub(super) options: MasterOptions,
    pub(super) urls: Vec<String>,
    pub(super) sizes: Vec<usize>,
    pub(super) server: String,
    pub(super) spawned: Option<Masters>,
    /// Every client there was: a measurement that is cut short has releases on their way.
    pub(super) clients: RefCell<Vec<Redlock>>,
}

const TTL: Duration = Duration::from_secs(10);
const DEFAULT_SIZES: [usize; 5] = [1, 3, 5, 7, 9];

impl Ground {
    /// Starts masters: for these sizes, the usual ones where none are given, and at least so many.
    pub(super) fn spawn(sizes: Option<Vec<usize>>, least: usize) -> Result<Self, Failure> {
        let sizes = sizes.unwrap_or(DEFAULT_SIZES.to_vec());
        check(&sizes)?;
        let most = sizes.iter().copied().max().unwrap_or(1).max(least);
        let program = quorate_testbed::available().ok_or_else(|| {
            Failure::internal(
                "no redis-server or valkey-server on the PATH: install one, or name it in QUORATE_SERVER",
            )
        })?;
        let masters = Masters::start(most)
            .map_err(|error| Failure::internal(format!("cannot start masters: {error}")))?;
        let name = program.file_name().unwrap_or_default();
        Ok(Self {
            options: MasterOptions {
                // Just started by ourselves: they have forgotten nothing.
                restart_guard: Some(GuardMode::Off),
                ..MasterOptions::default()
            },
            urls: masters.urls(),
            sizes,
            server: format!("{} on this machine", name.to_string_lossy()),
            spawned: Some(masters),
            clients: RefCell::default(),
        })
    }

    /// Takes the masters that are named; odd sizes up to their number where none are given.
    pub(super) fn find(sizes: Option<Vec<usize>>, masters: MasterOptions) -> Result<Self, Failure> {
        let (options, _) = masters.complete().map_err(|failure| {
            failure.with("; or start some for the measurement: quorate bench --spawn")
        })?;
        let urls = options.masters.clone().unwrap_or_default();
        let sizes = sizes.unwrap_or_else(|| (1..=urls.len()).step_by(2).collect());
        check(&sizes)?;
        if let Some(size) = sizes.iter().find(|size| **size > urls.len()) {
            return Err(Failure::usage(format!(
                "--sizes {size}: more than the masters that are named ({})",
                urls.len()
            )));
        }
        Ok(Self {
            server: format!("{} masters as configured", urls.len()),
            options,
            urls,
            sizes,
            spawned: None,
            clients: RefCell::default(),
        })
    }

    /// A client of some of them, of which this keeps track.
    pub(super) fn client(
        &self,
        setting: Setting,
        options: &MasterOptions,
        urls: &[String],
    ) -> Result<Redlock, Failure> {
        let mut options = options.clone();
        options.masters = Some(urls.to_vec());
        options.fencing = Some(setting != Setting::Classic);
        let fair = setting == Setting::Default;
        options.order = Some(if fair {
            Fairness::Fair
        } else {
            Fairness::Unordered
        });
        // For masters that may take long, as long as the library wants it.
        let ttl = TTL.max(4 * options.node_timeout());
        let redlock = config::redlock(&options, Some(ttl))?;
        self.clients.borrow_mut().push(redlock.clone());
        Ok(redlock)
    }

    /// Sees releases off.
    pub(super) async fn clear(&self) {
        // The tasks of a crowd that was dropped end with the next turn of the runtime.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let clients = self.clients.take();
        let flushed = futures::future::join_all(clients.iter().map(Redlock::flush));
        let _ = tokio::time::timeout(self.options.parting(), flushed).await;
    }

    pub(super) fn words(&self) -> String {
        let sizes: Vec<String> = self.sizes.iter().map(ToString::to_string).collect();
        format!("quorums of {} ({})", sizes.join(", "), self.server)
    }
}

fn check(sizes: &[usize]) -> Result<(), Failure> {
    match sizes.iter().find(|size| !(1..=64).contains(*size)) {
        Some(size) => Err(Failure::usage(format!(
            "--sizes {size}: a quorum has between 1 and 64 masters"
        ))),
        None => Ok(()),
    }
}
