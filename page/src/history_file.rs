//! The history file: one JSON object per line. A thread writes it, because a slow disk must not delay the page.
//!
//! - A file that reaches the size limit is renamed to `FILE.1`, which replaces the `FILE.1` before it.
//! - `FILE.lock` is locked while the page runs, so that a second page does not write to the same file.
//! - If the file cannot be written, for example because the disk is full, the page goes on with the history in memory,
//!   and tries again with the next event.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{FlockOperation, flock};

use crate::event::Event;
use crate::ring::MAX_EVENTS;

/// How many lines may wait for the disk. If there are more, the next ones are lost, and the page says so.
const MAX_QUEUED: usize = 8_192;

/// The longest line that is read back. A longer line was not written by the page.
const MAX_LINE: u64 = 64 * 1024;

/// The largest number of an event that is read back: numbers up to it are exact in every reader of JSON.
const MAX_SEQ: u64 = 1 << 53;

/// The rights on a new file: names of locks and hosts are not for all users of the machine.
const MODE: u32 = 0o600;

/// Why the history file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file or its folder cannot be opened.
    #[error("cannot open the history file {path}: {source}")]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The path leads to something else than a file.
    #[error("the history file {0} is no file: a folder, a device or a pipe cannot have a history")]
    NotAFile(PathBuf),
    /// Another page writes to the file.
    #[error("another page writes the history file {0}: give each page a file of its own")]
    InUse(PathBuf),
}

/// The writer of the history file. Its thread ends when it is dropped, after it has written all lines.
pub(crate) struct HistoryFile {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
    error: Arc<Mutex<Option<String>>>,
    _lock: File,
}

impl HistoryFile {
    /// Opens the file, reads the events in it and in `FILE.1`, oldest first, and starts the thread.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or is no file, or if another page uses it.
    pub(crate) fn open(path: &Path, max_bytes: u64) -> Result<(Self, Vec<Event>), HistoryError> {
        let open_error = |source| HistoryError::Open {
            path: path.to_owned(),
            source,
        };
        let lock_path = with_suffix(path, ".lock");
        let old_path = with_suffix(path, ".1");
        for path in [path, &*lock_path, &*old_path] {
            // Opening or reading a pipe could wait for ever.
            if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
                return Err(HistoryError::NotAFile(path.to_owned()));
            }
        }
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(MODE)
            .open(lock_path)
            .map_err(open_error)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| HistoryError::InUse(path.to_owned()))?;
        let mut events = VecDeque::new();
        // Usually, there is no older file.
        let _ = read_events(&old_path, &mut events);
        let writer = Writer::open(path, max_bytes).map_err(open_error)?;
        read_events(path, &mut events).map_err(open_error)?;
        let error = Arc::new(Mutex::new(None));
        let (lines, received) = sync_channel(MAX_QUEUED);
        let shared_error = error.clone();
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || write_all(writer, &received, &shared_error))
            .map_err(open_error)?;
        let file = Self {
            lines: Some(lines),
            thread: Some(thread),
            error,
            _lock: lock,
        };
        Ok((file, events.into()))
    }

    /// Queues a line for the file. Never waits.
    pub(crate) fn write(&self, event: &Event) {
        let (Some(lines), Ok(line)) = (&self.lines, serde_json::to_string(event)) else {
            return;
        };
        if let Err(TrySendError::Full(_)) = lines.try_send(line) {
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) =
                Some("the disk is too slow, and events were left out".to_owned());
        }
    }

    /// Why the last event could not be written; `None` if it was written.
    pub(crate) fn error(&self) -> Option<String> {
        self.error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for HistoryFile {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_all(mut writer: Writer, lines: &Receiver<String>, error: &Mutex<Option<String>>) {
    for line in lines {
        let result = writer.write(&line);
        *error.lock().unwrap_or_else(PoisonError::into_inner) =
            result.err().map(|error| error.to_string());
    }
}

/// The file that is written, and its size.
struct Writer {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    /// Whether the file ends within a line: the next line then begins with a line break.
    is_torn: bool,
}

impl Writer {
    fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(MODE)
            .open(path)?;
        let bytes = file.metadata()?.len();
        let mut last = [b'\n'];
        if bytes > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        let is_torn = last != [b'\n'];
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            max_bytes,
            is_torn,
        })
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 >= self.max_bytes {
            self.rotate()?;
        }
        let line_break = if self.is_torn { "\n" } else { "" };
        let text = format!("{line_break}{line}\n");
        // If only a part is written, the file ends within a line.
        self.is_torn = true;
        self.file.write_all(text.as_bytes())?;
        self.is_torn = false;
        self.bytes += text.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, with_suffix(&self.path, ".1"))?;
        *self = Self::open(&self.path, self.max_bytes)?;
        Ok(())
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Adds the events in a file, and keeps only the newest. Lines that are torn, too long or not events are left out.
fn read_events(path: &Path, events: &mut VecDeque<Event>) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        let event = serde_json::from_slice::<Event>(&line).ok();
        events.extend(event.filter(|event| event.seq <= MAX_SEQ));
        if events.len() > MAX_EVENTS {
            events.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;

    fn event(at_ms: u64) -> Event {
        Event {
            lock: Some("l:a".into()),
            ..Event::new(EventKind::Taken, at_ms)
        }
    }

    fn times(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.at_ms).collect()
    }

    fn open(path: &Path, max_bytes: u64) -> (HistoryFile, Vec<Event>) {
        HistoryFile::open(path, max_bytes).expect("the file can be opened")
    }

    #[test]
    fn events_are_read_back_after_a_restart_and_a_torn_line_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        let (file, events) = open(&path, 1 << 20);
        assert!(events.is_empty());
        file.write(&event(1));
        file.write(&event(2));
        drop(file);
        let mut text = std::fs::read_to_string(&path).expect("the file");
        text.push_str("garbage\n{\"seq\":3,\"at_m");
        std::fs::write(&path, text).expect("written");
        let (file, events) = open(&path, 1 << 20);
        assert_eq!(times(&events), [1, 2]);
        file.write(&event(4));
        drop(file);
        assert_eq!(times(&open(&path, 1 << 20).1), [1, 2, 4]);
    }

    #[test]
    fn pipe_folder_or_device_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        for other in [
            path.clone(),
            with_suffix(&path, ".lock"),
            with_suffix(&path, ".1"),
        ] {
            let pipe = rustix::fs::CWD;
            let mode = rustix::fs::Mode::from(0o600);
            let made = rustix::fs::mknodat(pipe, &other, rustix::fs::FileType::Fifo, mode, 0);
            made.expect("a pipe");
            let refused = HistoryFile::open(&path, 1_000).err();
            let refused = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("is no file"), "{refused}");
            std::fs::remove_file(&other).expect("removed");
        }
        for other in [folder.path(), Path::new("/dev/null")] {
            let refused = HistoryFile::open(other, 1_000);
            assert!(matches!(refused, Err(HistoryError::NotAFile(_))));
        }
    }

    #[test]
    fn new_file_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        drop(open(&path, 1_000));
        let mode = std::fs::metadata(&path)
            .expect("the file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn only_the_newest_events_of_a_large_file_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        let line = |number: u64| {
            let event = Event {
                seq: number,
                ..event(number)
            };
            serde_json::to_string(&event).expect("JSON") + "\n"
        };
        let numbers = 0..MAX_EVENTS as u64 + 7;
        let text: String = numbers.chain([u64::MAX]).map(line).collect();
        std::fs::write(&path, text).expect("written");
        let (_, events) = open(&path, 1 << 30);
        assert_eq!(events.len(), MAX_EVENTS);
        assert_eq!(
            (events[0].seq, events[MAX_EVENTS - 1].seq),
            (7, MAX_EVENTS as u64 + 6)
        );
    }

    #[test]
    fn full_file_is_renamed_and_both_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        let (file, _) = open(&path, 500);
        (1..=20).for_each(|at_ms| file.write(&event(at_ms)));
        drop(file);
        let size = |path: &Path| std::fs::metadata(path).expect("the file").len();
        assert!(size(&path) <= 500 && size(&with_suffix(&path, ".1")) <= 500);
        let events = times(&open(&path, 500).1);
        assert_eq!(events.last(), Some(&20));
        assert!(events.len() > 10 && events.is_sorted(), "{events:?}");
    }

    #[test]
    fn second_page_with_the_same_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history");
        let first = open(&path, 1_000);
        let second = HistoryFile::open(&path, 1_000);
        assert!(matches!(second, Err(HistoryError::InUse(_))));
        drop(first);
        open(&path, 1_000);
    }

    #[test]
    fn full_disk_is_reported_and_does_not_stop_the_page() {
        let path = Path::new("/dev/full");
        if !path.exists() {
            println!("NOT RUN: there is no /dev/full");
            return;
        }
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .expect("/dev/full");
        let mut writer = Writer {
            path: path.to_owned(),
            file,
            bytes: 0,
            max_bytes: 1 << 20,
            is_torn: false,
        };
        assert!(writer.write("a").is_err() && writer.is_torn);
        let folder = tempfile::tempdir().expect("a folder");
        let good = folder.path().join("history");
        writer.file = File::create(&good).expect("a file");
        assert!(writer.write("b").is_ok());
        assert_eq!(std::fs::read_to_string(&good).expect("the file"), "\nb\n");
    }

    #[test]
    fn file_in_a_missing_folder_cannot_be_opened() {
        let result = HistoryFile::open(Path::new("/nowhere/at/all"), 1_000);
        let text = result
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            text.starts_with("cannot open the history file /nowhere/at/all: No such file"),
            "{text}"
        );
    }
}
