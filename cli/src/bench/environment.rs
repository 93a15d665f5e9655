//! The masters that the benchmark measures: the configured masters, or servers that the benchmark has started.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use quorate::{Order, Redlock, RestartGuard};
use quorate_testbed::{Masters, TestServer};

use super::quorum::{KindList, Quorum};
use super::setting::Setting;
use crate::backends::{self, Backend};
use crate::config::{self, MasterOptions};
use crate::exit::Failure;

/// All masters that the benchmark uses, and the sets of them that it compares with each other.
pub(super) struct Environment {
    pub(super) options: MasterOptions,
    pub(super) urls: Vec<String>,
    /// The sets of masters that the benchmark compares with each other.
    pub(super) quorums: Vec<Quorum>,
    pub(super) server: String,
    pub(super) spawned: Option<Masters>,
    /// The settings of the plain lock that are measured on each set of masters. With `--kinds`: the kinds of locks.
    pub(super) settings: &'static [Setting],
    /// Servers that the benchmark has started for `--nodes`. They are stored here because a server stops when its
    /// [`TestServer`] is dropped.
    started_servers: Vec<Box<dyn TestServer>>,
    /// All clients that were created so far. At the end of the benchmark,
    /// [`wait_for_releases`](Self::wait_for_releases) waits until the masters have replied to the releases of these
    /// clients.
    pub(super) clients: RefCell<Vec<Redlock>>,
    /// Each task of the measurement holds a clone, so that [`wait_for_releases`](Self::wait_for_releases) can wait for
    /// the end of all tasks.
    pub(super) running_tasks: Arc<()>,
}

/// How long the benchmark waits for the releases of all clients. If the node timeout is longer, it waits longer.
/// Thousands of tasks may have to release their locks.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

const DEFAULT_SIZES: [usize; 5] = [1, 3, 5, 7, 9];

impl Environment {
    /// Starts as many masters as the largest number in `sizes` (default: [`DEFAULT_SIZES`]), but at least `min_masters`
    /// masters.
    pub(super) fn spawn(sizes: Option<Vec<usize>>, min_masters: usize) -> Result<Self, Failure> {
        let sizes = sizes.unwrap_or(DEFAULT_SIZES.to_vec());
        check_sizes(&sizes)?;
        let masters_count = sizes.iter().copied().max().unwrap_or(1).max(min_masters);
        if let Some(why) = backends::REDIS.missing() {
            return Err(Failure::internal(why));
        }
        let masters = Masters::start(masters_count)
            .map_err(|error| Failure::internal(format!("cannot start masters: {error}")))?;
        let urls = masters.urls();
        Ok(Self {
            options: own_master_options(),
            quorums: quorums_by_size(&sizes, &urls),
            urls,
            server: format!("{} on this machine", backends::REDIS.program()),
            spawned: Some(masters),
            started_servers: Vec::new(),
            settings: &Setting::PLAIN_LOCK,
            clients: RefCell::default(),
            running_tasks: Arc::default(),
        })
    }

    /// Starts the servers for the sets of masters `quorums`, one set per `--nodes`. A server can belong to several
    /// sets.
    pub(super) async fn spawn_kinds(kind_lists: &[KindList]) -> Result<Self, Failure> {
        let max_count = |kind: &'static dyn Backend| {
            let count_of_kind = |kind_list: &KindList| {
                kind_list
                    .0
                    .iter()
                    .filter(|other_kind| **other_kind == kind)
                    .count()
            };
            kind_lists.iter().map(count_of_kind).max().unwrap_or(0)
        };
        let kinds_to_start: Vec<&dyn Backend> = backends::ALL
            .into_iter()
            .flat_map(|kind| std::iter::repeat_n(kind, max_count(kind)))
            .collect();
        let servers = backends::start_all(&kinds_to_start)?;
        let urls: Vec<String> = servers
            .iter()
            .map(|server| server.url(backends::PLACE))
            .collect();
        for url in &urls {
            backends::prepare(url).await?;
        }
        let quorums = kind_lists.iter().map(|kind_list| {
            let mut unused_urls = urls.clone();
            let mut take_url = |kind: &&'static dyn Backend| {
                let index = unused_urls
                    .iter()
                    .position(|url| backends::of_url(url) == *kind)?;
                Some(unused_urls.remove(index))
            };
            Quorum::of_kinds(kind_list.0.iter().filter_map(&mut take_url).collect())
        });
        let mut programs: Vec<String> = kinds_to_start.iter().map(|kind| kind.program()).collect();
        programs.dedup();
        Ok(Self {
            options: own_master_options(),
            quorums: quorums.collect(),
            urls,
            server: format!("{} on this machine", programs.join(", ")),
            spawned: None,
            started_servers: servers,
            settings: &Setting::PLAIN_LOCK,
            clients: RefCell::default(),
            running_tasks: Arc::default(),
        })
    }

    /// Uses the configured masters. Compares these sets:
    ///
    /// - with `sizes`: the first n masters, for each n in `sizes`
    /// - without `sizes`, if there are several kinds of masters: the masters of each kind, and all masters together
    /// - without `sizes`, if all masters are of one kind: the first n masters, for each odd n
    pub(super) fn from_options(
        sizes: Option<Vec<usize>>,
        masters: MasterOptions,
    ) -> Result<Self, Failure> {
        let (options, _) = masters.complete().map_err(|failure| {
            failure.with_suffix("; or use --spawn to start servers for the measurement")
        })?;
        let urls = options.settings().masters.clone();
        let kinds = Quorum::one_per_kind(&urls);
        let compares_kinds = sizes.is_none() && !kinds.is_empty();
        let sizes = sizes.unwrap_or_else(|| (1..=urls.len()).step_by(2).collect());
        check_sizes(&sizes)?;
        if let Some(size) = sizes.iter().find(|size| **size > urls.len()) {
            return Err(Failure::usage(format!(
                "--sizes {size} is more than the number of masters, which is {}",
                urls.len()
            )));
        }
        Ok(Self {
            server: format!("{} masters as configured", urls.len()),
            options,
            quorums: if compares_kinds {
                kinds
            } else {
                quorums_by_size(&sizes, &urls)
            },
            urls,
            spawned: None,
            started_servers: Vec::new(),
            settings: &Setting::PLAIN_LOCK,
            clients: RefCell::default(),
            running_tasks: Arc::default(),
        })
    }

    /// If `compare_kinds` is true, measures several kinds of locks (reader, permit, and so on). Otherwise, measures
    /// the plain lock in several settings.
    pub(super) fn with_kinds_of_locks(self, compare_kinds: bool) -> Self {
        Self {
            settings: if compare_kinds {
                &Setting::LOCK_KINDS
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
        let is_fair = !matches!(setting, Setting::Classic | Setting::Fenced);
        settings.order = Some(if is_fair {
            Order::Fair
        } else {
            Order::Unordered
        });
        // The library requires a ttl of at least four node timeouts.
        let ttl = settings.ttl().max(4 * settings.node_timeout());
        let redlock = config::redlock(&options, Some(ttl))?;
        self.clients.borrow_mut().push(redlock.clone());
        Ok(redlock)
    }

    /// Waits until the masters have replied to the releases of all clients. Returns false if this takes longer than
    /// [`RELEASE_TIMEOUT`] and longer than the node timeout.
    pub(super) async fn wait_for_releases(&self) -> bool {
        let clients = self.clients.take();
        let all_released = async {
            // If a signal ended the measurement, its tasks are aborted, and release their locks when they end.
            while Arc::strong_count(&self.running_tasks) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            futures::future::join_all(clients.iter().map(Redlock::flush)).await;
        };
        let timeout = self.options.release_timeout().max(RELEASE_TIMEOUT);
        tokio::time::timeout(timeout, all_released).await.is_ok()
    }

    pub(super) fn description(&self) -> String {
        let labels: Vec<String> = self.quorums.iter().map(Quorum::label).collect();
        format!("quorums of {} ({})", labels.join(", "), self.server)
    }

    /// Whether the benchmark compares kinds of masters instead of numbers of masters.
    pub(super) fn is_by_kind(&self) -> bool {
        self.quorums.iter().any(|quorum| quorum.kinds.is_some())
    }

    /// Whether the benchmark has started the masters itself (`--spawn` or `--nodes`).
    pub(super) fn is_spawned(&self) -> bool {
        self.spawned.is_some() || !self.started_servers.is_empty()
    }
}

/// Options for masters that the benchmark has just started. The restart guard would ignore their votes at first,
/// because a restarted master may have lost locks. These masters have lost none, so the guard is off.
fn own_master_options() -> MasterOptions {
    let mut options = MasterOptions::default();
    options.settings_mut().restart_guard = Some(RestartGuard::Off);
    options
}

fn quorums_by_size(sizes: &[usize], urls: &[String]) -> Vec<Quorum> {
    let quorum_of = |size: &usize| Quorum::of_size(*size, urls);
    sizes.iter().map(quorum_of).collect()
}

fn check_sizes(sizes: &[usize]) -> Result<(), Failure> {
    match sizes.iter().find(|size| !(1..=64).contains(*size)) {
        Some(size) => Err(Failure::usage(format!(
            "--sizes {size}: use 1 to 64 masters"
        ))),
        None => Ok(()),
    }
}
