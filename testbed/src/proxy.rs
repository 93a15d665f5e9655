//! A TCP proxy on loopback that injects faults.
//!
//! The proxy works in user space and needs no root. But the kernel accepts each connection before the proxy sees it, so
//! no SYN is lost or delayed. So if the server is down, the client can still connect to the proxy. The proxy then
//! resets this connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::counters::{Counters, Stats};
use crate::fault::{Era, Fault, Injected, Rules};
use crate::pipe::serve;

/// A proxy in front of one address.
///
/// The proxy runs on a thread of its own, so a test may block its own thread while it uses the proxy. Dropping this
/// value closes the proxy's port and all its connections.
///
/// ```no_run
/// use quorate_testbed::{Fault, Proxy, Server, ServerOptions, Way};
///
/// let server = Server::start(ServerOptions::new())?;
/// let proxy = Proxy::start(server.addr())?;
/// let url = server.url_at(proxy.addr());
/// let partition = Fault::Hold(Way::Both).inject(&proxy);
/// // .. what does a client of `url` do now?
/// partition.heal();
/// # let _ = url;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the proxy ends its connections and frees its port"]
pub struct Proxy {
    address: SocketAddr,
    target: SocketAddr,
    rules: Arc<watch::Sender<Rules>>,
    stats: Arc<Stats>,
    seen_era: Arc<SeenEra>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to `target` on a free port of 127.0.0.1. No server needs to run at `target` yet.
    ///
    /// # Errors
    ///
    /// If no port, thread or file handle is available.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        Self::seeded(target, 0)
    }

    /// Starts a proxy as [`start`](Self::start) does, with a seed for the random jitter. With the same seed, the n-th
    /// read from the m-th connection gets the same jitter in each run. But TCP may split the same bytes into different
    /// reads.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn seeded(target: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (rules, rules_view) = watch::channel(Rules::default());
        let stats = Arc::new(Stats::default());
        let seen_era = Arc::new(SeenEra::default());
        let acceptor = Acceptor {
            listener,
            target,
            seed,
            view: rules_view,
            stats: stats.clone(),
            seen_era: seen_era.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new()
            .name(format!("proxy-{}", address.port()))
            .spawn(move || LocalSet::new().block_on(&runtime, acceptor.run()))?;
        Ok(Self {
            address,
            target,
            rules: Arc::new(rules),
            stats,
            seen_era,
            thread: Some(thread),
        })
    }

    /// The address that clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The address that the proxy forwards bytes to, unless a fault redirects them.
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// Injects a fault and returns its guard, like [`Fault::inject`]. Dropping the guard heals the fault.
    pub fn inject(&self, fault: Fault) -> Injected {
        let mut id = 0;
        self.change(|rules| id = rules.insert(fault));
        Injected {
            rules: Arc::downgrade(&self.rules),
            id,
        }
    }

    /// Heals all faults, even if their guards still exist.
    pub fn heal(&self) {
        self.rules.send_modify(Rules::clear);
    }

    /// Resets (RST) both sides of every connection that was made before this call, even if a fault delays the
    /// connection's bytes. The proxy still accepts new connections.
    pub fn reset_all(&self) {
        self.change(|rules| rules.era.reset += 1);
    }

    /// The current counters, which can lag slightly behind the actual traffic.
    pub fn counters(&self) -> Counters {
        self.stats.read()
    }
}

impl Proxy {
    /// Changes the rules of the proxy.
    ///
    /// If the change affects all connections that exist now, the [`Era`] changes. Then waits until the accepting thread
    /// stores the changed `Era` with each new connection.
    fn change(&self, change: impl FnOnce(&mut Rules)) {
        let mut era = Era::default();
        let mut is_new = false;
        self.rules.send_modify(|rules| {
            let old_era = rules.era;
            change(rules);
            era = rules.era;
            is_new = era != old_era;
        });
        if is_new {
            self.seen_era.wait_for(era);
        }
    }
}

/// The counters ([`Era`]) that the accepting thread has read last. It stores them with each new connection.
#[derive(Debug, Default)]
struct SeenEra {
    era: Mutex<Era>,
    changed: Condvar,
}

impl SeenEra {
    fn set(&self, era: Era) {
        *self.era.lock().unwrap_or_else(PoisonError::into_inner) = era;
        self.changed.notify_all();
    }

    fn wait_for(&self, wanted: Era) {
        let era = self.era.lock().unwrap_or_else(PoisonError::into_inner);
        // Usually this wait takes microseconds. The time limit prevents a hang if the accepting thread has died.
        let _ = self
            .changed
            .wait_timeout_while(era, Duration::from_secs(5), |era| !era.reaches(wanted));
    }
}

impl Fault {
    /// Injects this fault into `proxy` and returns its guard. Dropping the guard heals the fault. The fault applies to
    /// all bytes that are forwarded from now on, on existing and new connections.
    pub fn inject(&self, proxy: &Proxy) -> Injected {
        proxy.inject(self.clone())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.rules.send_modify(|rules| rules.closed = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The accepting side of the proxy.
struct Acceptor {
    listener: TcpListener,
    target: SocketAddr,
    seed: u64,
    view: watch::Receiver<Rules>,
    stats: Arc<Stats>,
    seen_era: Arc<SeenEra>,
}

impl Acceptor {
    /// Accepts connections until the proxy is dropped.
    async fn run(mut self) {
        // Use two handles for the listening socket: `async_listener` waits for a connection, `self.listener` never
        // waits.
        let Ok(async_listener) = self
            .listener
            .try_clone()
            .and_then(tokio::net::TcpListener::from_std)
        else {
            return;
        };
        let mut era = Era::default();
        loop {
            tokio::select! {
                biased;
                change = self.view.changed() => {
                    let (new_era, is_closed) = {
                        let rules = self.view.borrow_and_update();
                        (rules.era, rules.closed)
                    };
                    if change.is_err() || is_closed {
                        return;
                    }
                    // First accept the connections that were made before the rules changed, with the old `era`.
                    while let Ok((client, _)) = self.listener.accept() {
                        let stream = client.set_nonblocking(true).and_then(|()| TcpStream::from_std(client));
                        if let Ok(client) = stream {
                            self.admit(client, era);
                        }
                    }
                    era = new_era;
                    self.seen_era.set(era);
                }
                accepted = async_listener.accept() => match accepted {
                    Ok((client, _)) => self.admit(client, era),
                    // Accepting failed, usually because no file descriptor is free. Try again later.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                },
            }
        }
    }

    fn admit(&self, client: TcpStream, era: Era) {
        let connection_number = self.stats.accepted.fetch_add(1, Ordering::Relaxed);
        let (refuse, detour) = {
            let rules = self.view.borrow();
            (rules.refuse, rules.detour)
        };
        if refuse {
            self.stats.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let target = match detour {
            Some((other_address, is_every_second))
                if !is_every_second || connection_number % 2 == 1 =>
            {
                other_address
            }
            _ => self.target,
        };
        let seed = self.seed ^ connection_number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (view, stats) = (self.view.clone(), self.stats.clone());
        tokio::task::spawn_local(serve(client, target, era, view, stats, seed));
    }
}
