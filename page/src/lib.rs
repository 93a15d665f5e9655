//! A live page of quorate locks for a browser: which client holds which lock, which clients wait, how the masters are,
//! and how all this was during the last 24 hours.
//!
//! The page only reads. It uses the public interface of `quorate` ([`Redlock::list_names`], [`Redlock::statuses`],
//! [`Redlock::inspect`] and [`Redlock::glance_at_values`]), and decides nothing about locks. `docs/page.md` describes
//! the page and its JSON.
//!
//! ```no_run
//! # async fn example(redlock: quorate::Redlock) -> Result<(), quorate_page::PageError> {
//! let page = quorate_page::Page::bind(redlock, quorate_page::PageOptions::default()).await?;
//! println!("http://{}/", page.address());
//! page.serve().await;
//! # Ok(()) }
//! ```

mod access;
mod body;
mod elections;
mod event;
mod history_file;
mod hub;
mod lock;
mod master;
mod metrics;
mod page_state;
mod past;
mod record;
mod ring;
mod routes;
mod schedule;
mod server;
mod state_json;
mod survey;
mod text;
mod unsent;
mod value;
mod verdict;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate::{Inspection, Redlock};
use tokio::net::TcpListener;

pub use access::{Password, is_loopback};
pub use history_file::HistoryError;
pub use master::Finding;

use access::Access;
use history_file::HistoryFile;
use hub::{Hub, now_ms};
use page_state::PageState;
use survey::{Judge, Survey};

/// The port of the page if none is given.
pub const DEFAULT_PORT: u16 = 7272;

/// The default of [`PageOptions::history_bytes`]: 16 MiB.
pub const DEFAULT_HISTORY_BYTES: u64 = 16 << 20;

/// The settings of a page.
#[derive(Clone)]
pub struct PageOptions {
    /// The address on which the page listens. Default: 127.0.0.1:7272.
    pub listen: SocketAddr,
    /// The host names under which browsers reach the page, for example through a reverse proxy. IP addresses and
    /// `localhost` are always allowed. Default: none.
    pub hosts: Vec<String>,
    /// The password that browsers must send. Default: none. The caller must give one if other machines can connect.
    pub password: Option<Password>,
    /// The file to which the history is written, and from which it is read at the start. Default: none.
    pub history: Option<PathBuf>,
    /// The largest size of the history file, in bytes. A file of this size is renamed, and a new one is begun.
    pub history_bytes: u64,
    /// How often the masters are asked. Default: one second. If answers take long, the page asks less often.
    pub interval: Duration,
    /// The largest part of a master's time that the page takes in the long run, in percent. Default: 1.
    pub percent: f64,
    /// A client that waits for this long makes the sentence of the page amber. Default: one minute.
    pub slow_wait: Duration,
    /// Turns the inspections of the masters into findings. Default: none.
    pub judge: Option<JudgeFn>,
}

/// A function that turns the inspections of the masters into findings, as `quorate doctor` does.
pub type JudgeFn = Arc<dyn Fn(&[Inspection]) -> Vec<Finding> + Send + Sync>;

impl Default for PageOptions {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, DEFAULT_PORT).into(),
            hosts: Vec::new(),
            password: None,
            history: None,
            history_bytes: DEFAULT_HISTORY_BYTES,
            interval: Duration::from_secs(1),
            percent: 1.0,
            slow_wait: Duration::from_secs(60),
            judge: None,
        }
    }
}

impl fmt::Debug for PageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageOptions")
            .field("listen", &self.listen)
            .field("hosts", &self.hosts)
            .field("password", &self.password)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}

/// Why the page cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The address cannot be used, for example because another program listens on the port.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The history file cannot be used.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// A page that listens, and does not answer yet.
#[derive(Debug)]
pub struct Page {
    listener: TcpListener,
    address: SocketAddr,
    hub: Shared,
    access: Arc<Access>,
    redlock: Redlock,
    interval: Duration,
    percent: f64,
    judge: Judgement,
}

struct Shared(Arc<Hub>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hub")
    }
}

impl Drop for Shared {
    /// Writes the rest of the history file. Connections that still end keep the hub alive.
    fn drop(&mut self) {
        let mut page_state = self.0.page_state();
        page_state.set_watched(false, now_ms());
        page_state.close_file();
    }
}

#[derive(Clone)]
struct Judgement(Judge);

impl fmt::Debug for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Judge")
    }
}

impl Page {
    /// Listens on the address, and opens the history file. Asks no master yet.
    ///
    /// # Errors
    ///
    /// If the address or the history file cannot be used.
    pub async fn bind(redlock: Redlock, options: PageOptions) -> Result<Self, PageError> {
        let address = options.listen;
        let listen_error = |source| PageError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let masters = redlock.masters().map(ToString::to_string).collect();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        // A shorter interval would only make more requests wait.
        let interval = options.interval.max(Duration::from_millis(50));
        let mut page_state = PageState::new(
            masters,
            millis(interval),
            millis(options.slow_wait),
            now_ms(),
        );
        if let Some(path) = &options.history {
            let (file, events) = HistoryFile::open(path, options.history_bytes)?;
            page_state.use_file(file, events, now_ms());
        }
        let hosts = options.hosts.iter().map(|host| host.to_ascii_lowercase());
        let access = Access {
            hosts: hosts.collect(),
            password: options.password,
        };
        Ok(Self {
            listener,
            address,
            hub: Shared(Arc::new(Hub::new(page_state))),
            access: Arc::new(access),
            redlock,
            interval,
            percent: options.percent,
            judge: Judgement(options.judge.unwrap_or_else(|| Arc::new(|_| Vec::new()))),
        })
    }

    /// The address on which the page listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the page. Never returns.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections, ends the requests to the masters, and writes the rest of the history
    /// file.
    pub async fn serve(self) {
        let hub = &self.hub.0;
        let survey = Survey {
            redlock: self.redlock.clone(),
            hub: hub.clone(),
            interval: self.interval,
            judge: self.judge.0.clone(),
            percent: self.percent,
        };
        let server = server::serve(
            self.listener,
            hub.clone(),
            self.access.clone(),
            server::STALL_LIMIT,
        );
        futures::future::join(survey.run(), server).await;
    }
}
