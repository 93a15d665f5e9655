//! Name lookups for one master, one at a time.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use tokio::task::JoinHandle;

use crate::panics;

/// Looks up host names. A lookup cannot be cancelled, and blocks a thread until the name server answers. So only one
/// lookup runs at a time.
#[derive(Default)]
pub(super) struct Lookup {
    running_task: Mutex<Option<LookupTask>>,
}

type LookupTask = JoinHandle<io::Result<Vec<SocketAddr>>>;

impl Lookup {
    /// Returns the addresses of a host name in the resolver's order, at least one. A host name without an address is an
    /// error.
    pub(super) async fn addresses<N>(&self, name: N) -> io::Result<Vec<SocketAddr>>
    where
        N: ToSocketAddrs + Send + 'static,
    {
        let mut call = LookupCall {
            lookup: self,
            task: self.lock_task().take(),
        };
        if call.task.is_none() {
            // `spawn_blocking` panics if the operating system refuses another thread.
            let resolve = move || Ok(name.to_socket_addrs()?.collect());
            let spawned = panics::caught(|| tokio::task::spawn_blocking(resolve));
            let spawned = spawned.map_err(|panic| io::Error::other(panics::text(&panic)));
            call.task = Some(spawned?);
        }
        let Some(task) = &mut call.task else {
            return Err(io::ErrorKind::Other.into());
        };
        let answer = Pin::new(task).await;
        call.task = None;
        let addresses: Vec<_> = answer.map_err(io::Error::other)??;
        if addresses.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the host name has no address",
            ));
        }
        Ok(addresses)
    }

    fn lock_task(&self) -> std::sync::MutexGuard<'_, Option<LookupTask>> {
        self.running_task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that waits for a running name lookup. If the caller stops waiting, the lookup continues, and the next
/// caller gets its result.
struct LookupCall<'a> {
    lookup: &'a Lookup,
    task: Option<LookupTask>,
}

impl Drop for LookupCall<'_> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            *self.lookup.lock_task() = Some(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A host name whose lookup takes 300 ms.
    struct SlowName(Arc<AtomicUsize>);

    impl ToSocketAddrs for SlowName {
        type Iter = std::vec::IntoIter<SocketAddr>;

        fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(300));
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], 7))].into_iter())
        }
    }

    #[tokio::test]
    async fn later_caller_receives_the_result_of_a_name_lookup_that_earlier_callers_abandoned() {
        let lookups = Arc::new(AtomicUsize::new(0));
        let lookup = Lookup::default();
        let mut abandoned = 0;
        let addresses = loop {
            let attempt = lookup.addresses(SlowName(lookups.clone()));
            match tokio::time::timeout(Duration::from_millis(20), attempt).await {
                Ok(addresses) => break addresses.expect("the lookup must return addresses"),
                Err(_) => abandoned += 1,
            }
        };
        assert_eq!(addresses.len(), 1);
        assert!(
            abandoned > 1,
            "at least two callers must stop waiting for the lookup, but only {abandoned} did"
        );
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
        lookup
            .addresses(SlowName(lookups.clone()))
            .await
            .expect("a new lookup must be made");
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
    }
}
