//! Several independent servers, which are the masters of one lock.

use std::ops::{Deref, Index};
use std::thread;

use crate::error::Error;
use crate::options::ServerOptions;
use crate::server::Server;

/// Several independent masters. Dereferences to a slice of [`Server`], so `len`, `iter` and indexing work.
///
/// ```no_run
/// let masters = quorate_testbed::Masters::start(5)?;
/// masters[0].kill()?;
/// println!("{}", masters.urls().join(","));
/// # Ok::<(), quorate_testbed::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the masters kills them"]
pub struct Masters(Vec<Server>);

impl Masters {
    /// Starts `n` servers with default options, all at the same time.
    ///
    /// # Errors
    ///
    /// The first error of a [`Server::start`]. In that case, the servers that have already started are killed.
    pub fn start(n: usize) -> Result<Self, Error> {
        Self::start_with(n, |_| ServerOptions::new())
    }

    /// Starts `n` servers at the same time, each with the options that `options` returns for its index.
    ///
    /// # Errors
    ///
    /// As for [`thread`](Self::start).
    pub fn start_with(
        n: usize,
        mut options: impl FnMut(usize) -> ServerOptions,
    ) -> Result<Self, Error> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|i| {
                    let options = options(i);
                    scope.spawn(move || Server::start(options))
                })
                .collect();
            let results: Vec<_> = threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect();
            results.into_iter().collect::<Result<_, _>>().map(Self)
        })
    }

    /// The URLs of the servers, in the order of their indices.
    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }
}

impl Deref for Masters {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.0
    }
}

impl Index<usize> for Masters {
    type Output = Server;

    fn index(&self, i: usize) -> &Server {
        &self.0[i]
    }
}

impl<'a> IntoIterator for &'a Masters {
    type Item = &'a Server;
    type IntoIter = std::slice::Iter<'a, Server>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
