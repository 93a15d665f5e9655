//! A value that is made from files, and is made again when the files have changed: certificates that are replaced while
//! the program runs.

use std::future::Future;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::panics;

/// How long [`Reread::current`] waits for the files. After this time it returns the previous value, so that a file
/// system that hangs does not prevent connections.
const LOAD_TIMEOUT: Duration = Duration::from_millis(200);

/// A file that was changed less than this time before it was read may change again without a new time of change,
/// because file systems record this time in steps. Such a file is read again at the next use.
const SETTLED_AFTER: u128 = 2_000_000_000;

/// Makes the value from the files, or says why it cannot.
type Load<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value that is made from files. Each use looks whether the files have changed. If the new files cannot be used, the
/// previous value stays in use, and one warning is logged.
pub struct Reread<T> {
    files: Vec<PathBuf>,
    /// For a value that also comes from other files than these: the value is made again if it is older than this.
    reload_interval: Option<Duration>,
    load: Load<T>,
    state: Mutex<State<T>>,
    /// Whether the files are being read now.
    busy: AtomicBool,
}

struct State<T> {
    value: T,
    loaded_at: Instant,
    /// The files as they were when they were read last. `None` if they must be read again even if they look the same.
    loaded_stamps: Option<Vec<Stamp>>,
    /// The reason of the last warning; `None` if the files could be used since.
    last_warning: Option<String>,
}

/// Numbers of which one changes if a file is replaced or written; `None` if there is no file.
type Stamp = Option<[i128; 5]>;

impl<T: Clone + Send + 'static> Reread<T> {
    /// Makes the value for the first time, and waits for the files.
    ///
    /// # Errors
    ///
    /// The error of `load`.
    pub fn new(
        files: Vec<PathBuf>,
        reload_interval: Option<Duration>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        let stamps = stamps(&files);
        let state = State {
            value: load()?,
            loaded_at: Instant::now(),
            loaded_stamps: is_settled(&stamps).then_some(stamps),
            last_warning: None,
        };
        Ok(Arc::new(Self {
            files,
            reload_interval,
            load: Box::new(load),
            state: Mutex::new(state),
            busy: AtomicBool::new(false),
        }))
    }

    /// The value, after a look at the files. The files are read on another thread. If this takes too long, returns the
    /// previous value; the next call after its end returns the new one. Also returns the previous value if the files
    /// cannot be read, for example because the operating system refuses another thread.
    pub fn current(self: &Arc<Self>) -> impl Future<Output = T> + Send + use<T> {
        let this = self.clone();
        async move {
            if !this.busy.swap(true, Ordering::AcqRel) {
                let busy = BusyFlag(this.clone());
                let load = move || busy.0.load_if_changed();
                // `spawn_blocking` panics if the operating system refuses another thread.
                match panics::caught(|| tokio::task::spawn_blocking(load)) {
                    Ok(loading) => drop(tokio::time::timeout(LOAD_TIMEOUT, loading).await),
                    Err(panic) => this.state().fail(panics::text(&panic)),
                }
            }
            this.state().value.clone()
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_if_changed(&self) {
        let stamps = stamps(&self.files);
        let is_known = {
            let state = self.state();
            let is_old = self
                .reload_interval
                .is_some_and(|interval| state.loaded_at.elapsed() >= interval);
            !is_old && state.loaded_stamps.as_ref() == Some(&stamps)
        };
        if is_known {
            return;
        }
        // Not under the mutex: callers must not wait for the files.
        let caught_result = panics::caught(|| (self.load)());
        let load_result = caught_result.unwrap_or_else(|panic| {
            Err(format!(
                "internal failure of the client: {}",
                panics::text(&panic)
            ))
        });
        let mut state = self.state();
        state.loaded_stamps = is_settled(&stamps).then_some(stamps);
        state.loaded_at = Instant::now();
        match load_result {
            Ok(value) => {
                state.value = value;
                state.last_warning = None;
            }
            Err(why) => state.fail(why),
        }
    }
}

impl<T> State<T> {
    /// Keeps the value, and logs a warning with the reason, unless the last warning had the same reason.
    fn fail(&mut self, why: String) {
        if self.last_warning.as_ref() != Some(&why) {
            tracing::warn!(
                why,
                "changed TLS files cannot be used: new connections use the previous ones"
            );
        }
        self.last_warning = Some(why);
    }
}

/// While this value exists, the files are being read. It is also dropped if the thread panics, or if the runtime ends
/// before it has run.
struct BusyFlag<T>(Arc<Reread<T>>);

impl<T> Drop for BusyFlag<T> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        let nanos =
            |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Some([
            i128::from(metadata.dev()),
            i128::from(metadata.ino()),
            i128::from(metadata.size()),
            nanos(metadata.mtime(), metadata.mtime_nsec()),
            nanos(metadata.ctime(), metadata.ctime_nsec()),
        ])
    };
    files.iter().map(stamp).collect()
}

/// Whether each file was changed long enough ago that every later change gets another time.
fn is_settled(stamps: &[Stamp]) -> bool {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since_epoch.map_or(0, |since_epoch| since_epoch.as_nanos());
    let has_old_times = |stamp: &Stamp| {
        let times = stamp.as_ref().map_or(&[][..], |stamp| &stamp[3..]);
        let is_old = |time: &i128| u128::try_from(*time).unwrap_or(0) + SETTLED_AFTER < now;
        times.iter().all(is_old)
    };
    stamps.iter().all(has_old_times)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use std::path::Path;

    use super::*;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("quorate-reread-{}-{name}", std::process::id()))
    }

    fn text(path: &PathBuf) -> Result<String, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        if text.contains("bad") {
            return Err(format!("{text} is not good"));
        }
        Ok(text)
    }

    fn reread(path: &Path) -> Arc<Reread<String>> {
        let from = path.to_path_buf();
        Reread::new(vec![from.clone()], None, move || text(&from)).expect("a good file")
    }

    #[tokio::test]
    async fn changed_file_is_used_and_a_bad_or_missing_file_keeps_the_previous_value() {
        let path = file("changed");
        std::fs::write(&path, "one").expect("written");
        let live_text = reread(&path);
        assert_eq!(live_text.current().await, "one");
        // The same length, and within the same step of the time of change.
        std::fs::write(&path, "two").expect("written");
        assert_eq!(live_text.current().await, "two");
        std::fs::write(&path, "bad").expect("written");
        assert_eq!(live_text.current().await, "two");
        assert_eq!(
            live_text.state().last_warning.as_deref(),
            Some("bad is not good")
        );
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(live_text.current().await, "two");
        std::fs::write(&path, "three").expect("written");
        assert_eq!(live_text.current().await, "three");
        assert_eq!(live_text.state().last_warning, None);
        let _ = std::fs::remove_file(&path);
    }

    #[tokio::test]
    async fn unchanged_file_is_not_read_again() {
        let path = file("unchanged");
        std::fs::write(&path, "one").expect("written");
        let reads = Arc::new(AtomicUsize::new(0));
        let (from, count) = (path.clone(), reads.clone());
        let reread_result = Reread::new(vec![path.clone()], None, move || {
            count.fetch_add(1, Ordering::Relaxed);
            text(&from)
        });
        let live_value = reread_result.expect("a good file");
        // Let the file look as if it had been written long ago.
        live_value.state().loaded_stamps = Some(stamps(&live_value.files));
        for _ in 0..3 {
            assert_eq!(live_value.current().await, "one");
        }
        assert_eq!(reads.load(Ordering::Relaxed), 1);
        let _ = std::fs::remove_file(&path);
    }

    #[tokio::test]
    async fn panic_while_files_are_read_keeps_the_previous_value() {
        let reads = AtomicUsize::new(0);
        let reread_result = Reread::new(Vec::new(), Some(Duration::ZERO), move || {
            let read_number = reads.fetch_add(1, Ordering::Relaxed);
            assert!(read_number != 1, "odd file with bob:s3cret@h:1");
            Ok(read_number)
        });
        let live_value = reread_result.expect("a value");
        assert_eq!(live_value.current().await, 0);
        // Printing the panic may take longer than `LOAD_TIMEOUT`.
        while live_value.busy.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let warned = live_value.state().last_warning.clone().unwrap_or_default();
        assert!(warned.contains("odd file"), "{warned}");
        assert!(!warned.contains("s3cret"), "{warned}");
        assert_eq!(live_value.current().await, 2);
        assert_eq!(live_value.state().last_warning, None);
    }

    #[test]
    fn runtime_that_has_ended_keeps_the_previous_value() {
        use std::task::{Context, Poll, Waker};

        let live_value = Reread::new(Vec::new(), Some(Duration::ZERO), || Ok(1)).expect("a value");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        let _entered = handle.enter();
        for _ in 0..2 {
            let current = std::pin::pin!(live_value.current());
            let polled = current.poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled, Poll::Ready(1));
            assert!(!live_value.busy.load(Ordering::Acquire));
        }
    }

    #[tokio::test]
    async fn file_system_that_hangs_does_not_delay_more_than_one_use() {
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = Mutex::new(hangs);
        let is_first = AtomicBool::new(true);
        let reread_result = Reread::new(Vec::new(), Some(Duration::ZERO), move || {
            if !is_first.swap(false, Ordering::Relaxed) {
                let _ = hangs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                return Ok(2);
            }
            Ok(1)
        });
        let live_value = reread_result.expect("a value");
        assert_eq!(live_value.current().await, 1);
        assert!(live_value.busy.load(Ordering::Acquire));
        assert_eq!(live_value.current().await, 1);
        drop(release);
        while live_value.busy.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(live_value.current().await, 2);
    }
}
