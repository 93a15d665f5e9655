//! The masters that the benchmark measures: the configured masters, or servers that the benchmark has started.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use quorate::{Order, Redlock, RestartGuard};
use quorate_testbed::{Masters, TestServer};

use super::party::{Kinds, Party};
use super::setting::Setting;
use crate::backends::{self, Backend};
use crate::config::{self, MasterOptions};
use crate::exit::Failure;

/// All masters that the benchmark uses, and the sets of them that it compares with each other.
pub(super) struct Ground {
    pub(super) options: MasterOptions,
    pub(super) urls: Vec<String>,
    /// The sets of masters that the benchmark compares with each other.
    pub(super) parties: Vec<Party>,
    pub(super) server: String,
    pub(super) spawned: Option<Masters>,
    /// The settings of the plain lock that are measured on each set of masters. With `--kinds`: the kinds of locks.
    pub(super) settings: &'static [Setting],
    /// Servers that the benchmark has started for `--nodes`. They are stored here because a server stops when its
    /// [`TestServer`] is dropped.
    others: Vec<Box<dyn TestServer>>,
    /// All clients that were created so far. At the end of the benchmark, [`clear`](Self::clear) waits until the
    /// masters have replied to the releases of these clients.
    pub(super) clients: RefCell<Vec<Redlock>>,
    /// Each task of the measurement holds a clone, so that [`clear`](Self::clear) can wait for the end of all tasks.
    pub(super) running: Arc<()>,
}

/// How long the benchmark waits for the releases of all clients. If the node timeout is longer, it waits longer.
/// Thousands of tasks may have to release their locks.
const CLEARING: Duration = Duration::from_secs(3);

const DEFAULT_SIZES: [usize; 5] = [1, 3, 5, 7, 9];

impl Ground {
    /// Starts as many masters as the largest number in `sizes` (default: [`DEFAULT_SIZES`]), but at least `least`
    /// masters.
    pub(super) fn spawn(sizes: Option<Vec<usize>>, least: usize) -> Result<Self, Failure> {
        let sizes = sizes.unwrap_or(DEFAULT_SIZES.to_vec());
        check(&sizes)?;
        let most = sizes.iter().copied().max().unwrap_or(1).max(least);
        if let Some(why) = backends::REDIS.missing() {
            return Err(Failure::internal(why));
        }
        let masters = Masters::start(most)
            .map_err(|error| Failure::internal(format!("cannot start masters: {error}")))?;
        let urls = masters.urls();
        Ok(Self {
            options: of_our_own(),
            parties: by_size(&sizes, &urls),
            urls,
            server: format!("{} on this machine", backends::REDIS.program()),
            spawned: Some(masters),
            others: Vec::new(),
            settings: &Setting::ALL,
            clients: RefCell::default(),
            running: Arc::default(),
        })
    }

    /// Starts the servers for the sets of masters `quorums`, one set per `--nodes`. A server can belong to several
    /// sets.
    pub(super) async fn spawn_kinds(quorums: &[Kinds]) -> Result<Self, Failure> {
        let most = |kind: &'static dyn Backend| {
            let of_kind = |one: &Kinds| one.0.iter().filter(|other| **other == kind).count();
            quorums.iter().map(of_kind).max().unwrap_or(0)
        };
        let wanted: Vec<&dyn Backend> = backends::ALL
            .into_iter()
            .flat_map(|kind| std::iter::repeat_n(kind, most(kind)))
            .collect();
        let others = backends::start_all(&wanted)?;
        let urls: Vec<String> = others
            .iter()
            .map(|server| server.url(backends::PLACE))
            .collect();
        for url in &urls {
            backends::prepare(url).await?;
        }
        let parties = quorums.iter().map(|quorum| {
            let mut left = urls.clone();
            let mut next = |kind: &&'static dyn Backend| {
                let at = left.iter().position(|url| backends::of_url(url) == *kind)?;
                Some(left.remove(at))
            };
            Party::of_kinds(quorum.0.iter().filter_map(&mut next).collect())
        });
        let mut names: Vec<String> = wanted.iter().map(|kind| kind.program()).collect();
        names.dedup();
        Ok(Self {
            options: of_our_own(),
            parties: parties.collect(),
            urls,
            server: format!("{} on this machine", names.join(", ")),
            spawned: None,
            others,
            settings: &Setting::ALL,
            clients: RefCell::default(),
            running: Arc::default(),
        })
    }

    /// Uses the configured masters. Compares these sets:
    ///
    /// - with `sizes`: the first n masters, for each n in `sizes`
    /// - without `sizes`, if there are several kinds of masters: the masters of each kind, and all masters together
    /// - without `sizes`, if all masters are of one kind: the first n masters, for each odd n
    pub(super) fn find(sizes: Option<Vec<usize>>, masters: MasterOptions) -> Result<Self, Failure> {
        let (options, _) = masters.complete().map_err(|failure| {
            failure.with("; or use --spawn to start servers for the measurement")
        })?;
        let urls = options.settings().masters.clone();
        let kinds = Party::each_kind(&urls);
        let by_kind = sizes.is_none() && !kinds.is_empty();
        let sizes = sizes.unwrap_or_else(|| (1..=urls.len()).step_by(2).collect());
        check(&sizes)?;
        if let Some(size) = sizes.iter().find(|size| **size > urls.len()) {
            return Err(Failure::usage(format!(
                "--sizes {size} is more than the number of masters, which is {}",
                urls.len()
            )));
        }
        Ok(Self {
            server: format!("{} masters as configured", urls.len()),
            options,
            parties: if by_kind {
                kinds
            } else {
                by_size(&sizes, &urls)
            },
            urls,
            spawned: None,
            others: Vec::new(),
            settings: &Setting::ALL,
            clients: RefCell::default(),
            running: Arc::default(),
        })
    }

    /// If `wanted` is true, measures several kinds of locks (reader, permit, and so on). Otherwise, measures the plain
    /// lock in several settings.
    pub(super) fn by_kinds_of_locks(self, wanted: bool) -> Self {
        Self {
            settings: if wanted {
                &Setting::KINDS
            } else {
                self.settings
            },
            ..self
        }
    }

    /// Creates a client of the masters at `urls`, and adds it to `clients`.
    pub(super) fn client(
        &self,
        setting: Setting,
        options: &MasterOptions,
        urls: &[String],
    ) -> Result<Redlock, Failure> {
        let mut options = options.clone();
        let settings = options.settings_mut();
        settings.masters = urls.to_vec();
        settings.fencing = Some(setting != Setting::Classic);
        let fair = !matches!(setting, Setting::Classic | Setting::Fenced);
        settings.order = Some(if fair { Order::Fair } else { Order::Unordered });
        // The library requires a ttl of at least four node timeouts.
        let ttl = settings.ttl().max(4 * settings.node_timeout());
        let redlock = config::redlock(&options, Some(ttl))?;
        self.clients.borrow_mut().push(redlock.clone());
        Ok(redlock)
    }

    /// Waits until the masters have replied to the releases of all clients. Returns false if this takes longer than
    /// [`CLEARING`] and longer than the node timeout.
    pub(super) async fn clear(&self) -> bool {
        let clients = self.clients.take();
        let cleared = async {
            // If a signal ended the measurement, its tasks are aborted, and release their locks when they end.
            while Arc::strong_count(&self.running) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            futures::future::join_all(clients.iter().map(Redlock::flush)).await;
        };
        let limit = self.options.parting().max(CLEARING);
        tokio::time::timeout(limit, cleared).await.is_ok()
    }

    pub(super) fn words(&self) -> String {
        let labels: Vec<String> = self.parties.iter().map(Party::label).collect();
        format!("quorums of {} ({})", labels.join(", "), self.server)
    }

    /// Whether the benchmark compares kinds of masters instead of numbers of masters.
    pub(super) fn is_by_kind(&self) -> bool {
        self.parties.iter().any(|party| party.kinds.is_some())
    }

    /// Whether the benchmark has started the masters itself (`--spawn` or `--nodes`).
    pub(super) fn is_spawned(&self) -> bool {
        self.spawned.is_some() || !self.others.is_empty()
    }
}

/// Options for masters that the benchmark has just started. The restart guard would ignore their votes at first,
/// because a restarted master may have lost locks. These masters have lost none, so the guard is off.
fn of_our_own() -> MasterOptions {
    let mut options = MasterOptions::default();
    options.settings_mut().restart_guard = Some(RestartGuard::Off);
    options
}

fn by_size(sizes: &[usize], urls: &[String]) -> Vec<Party> {
    let party = |size: &usize| Party::of_size(*size, urls);
    sizes.iter().map(party).collect()
}

fn check(sizes: &[usize]) -> Result<(), Failure> {
    match sizes.iter().find(|size| !(1..=64).contains(*size)) {
        Some(size) => Err(Failure::usage(format!(
            "--sizes {size}: use 1 to 64 masters"
        ))),
        None => Ok(()),
    }
}
