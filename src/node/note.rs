//! The note that describes the holder of a lock to other clients.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::text::sanitize;

/// The maximum length of the text in a holder's note, in bytes.
pub const MAX_NOTE_LEN: usize = 1024;

/// The TTL of a note is this multiple of the TTL of its lock. So most renewals of the lock need not renew the note.
///
/// A note can outlive its hold. It contains the lock value of this hold, so clients ignore it if the lock now has
/// another value or none.
pub(crate) const NOTE_LIVES: u32 = 4;

/// The largest number of bytes of a note that a master returns. No note of this library is longer, but data of another
/// program may be.
pub(crate) const NOTE_SHOWN: usize = 4096;

// Check that the longest note has at most `NOTE_SHOWN` bytes:
//
// - Each byte of the text can become three bytes, because control characters are replaced.
// - Each character of the host name and of the program name can have four bytes.
// - All other parts together have at most 100 bytes.
const _: () = assert!(3 * MAX_NOTE_LEN + 2 * 4 * MAX_NAME_CHARS + 100 <= NOTE_SHOWN);

/// The largest number of characters of a host name or program name that is shown.
const MAX_NAME_CHARS: usize = 64;

/// The beginning of the year 10000, as time since 1970. A note with a later start time is treated as foreign data.
const END_OF_TIME: Duration = Duration::from_secs(253_402_300_800);

/// Separates the parts of a stored note. No part contains this character, because control characters are replaced.
const SEPARATOR: char = '\t';

/// Describes the holder of a lock: its host and process, the time at which the hold began, and an optional text. The
/// holder writes the note.
///
/// A note is for information only: no decision depends on it. A lock has no note in these cases:
///
/// - The lock was acquired less than about 100 ms ago.
/// - The lock was acquired with `note(None)`, or by a `Redlock` with `fencing(false)`.
/// - Another Redlock library acquired the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The host name of the holder's machine.
    pub host: String,
    /// The process id of the holder.
    pub pid: u32,
    /// The name of the program, without its arguments, because arguments may contain secrets.
    pub process: String,
    /// The time at which the hold began, by the holder's clock.
    pub since: SystemTime,
    /// The text that the holder added to its note; `None` if it added none.
    pub text: Option<String>,
}

/// The time `ms` milliseconds after the beginning of 1970; `None` for a time after the year 9999, which cannot be
/// displayed.
pub(super) fn moment(ms: u64) -> Option<SystemTime> {
    let since = Duration::from_millis(ms);
    let shown_time = UNIX_EPOCH.checked_add(since);
    shown_time.filter(|_| since < END_OF_TIME)
}

/// Sanitizes the name of a host or of a program for display: at most 64 characters, no control characters.
pub(super) fn name(name: &str) -> String {
    sanitize(name, MAX_NAME_CHARS)
}

/// Splits a stored note into its parts; `None` if the note does not belong to the lock value `holder`.
fn split_note(note: &[u8], holder: &[u8]) -> Option<Vec<String>> {
    let rest = note.strip_prefix(holder)?.strip_prefix(b" ")?;
    let rest = String::from_utf8_lossy(rest);
    Some(rest.splitn(6, SEPARATOR).map(str::to_owned).collect())
}

impl Note {
    /// Parses the stored note of a lock whose value is `holder`. Returns `None` if the bytes are not a note, if the
    /// note belongs to another lock value, or if the note contains only a leader's term.
    pub(crate) fn read(note: &[u8], holder: &[u8]) -> Option<Self> {
        let parts = split_note(note, holder)?;
        let mut parts = parts.iter().map(String::as_str);
        let since = moment(parts.next()?.parse().ok()?)?;
        let pid = parts.next()?.parse().ok().filter(|pid| *pid != NO_PID)?;
        let (host, process) = (name(parts.next()?), name(parts.next()?));
        let text = parts.next().filter(|text| !text.is_empty());
        Some(Self {
            host,
            pid,
            process,
            since,
            text: text.map(|text| sanitize(text, MAX_NOTE_LEN)),
        })
    }

    /// The leader's term in the note of the lock with the value `holder`; `None` if there is no term.
    pub(crate) fn term(note: &[u8], holder: &[u8]) -> Option<u64> {
        split_note(note, holder)?.get(5)?.parse().ok()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = humantime::format_rfc3339_seconds(self.since);
        write!(
            f,
            "{} on {}, pid {}, since {since}",
            self.process, self.host, self.pid
        )?;
        match &self.text {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}

/// The identity of this process: host, process id and program name. Notes and connection names show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    host: String,
    pid: u32,
    process: String,
}

impl Identity {
    pub(crate) fn of_this_process() -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let program = std::env::args_os().next().unwrap_or_default();
        let process = std::path::Path::new(&program).file_name();
        let process = process.unwrap_or_default().to_string_lossy().into_owned();
        Self::new(&host, std::process::id(), &process)
    }

    pub(crate) fn new(host: &str, pid: u32, process: &str) -> Self {
        Self {
            host: name(host),
            pid,
            process: name(process),
        }
    }

    /// This process as text: `HOST:PID`. The text is part of its connection names in `CLIENT LIST`, and of the ids of
    /// its waiters. Connection names cannot contain spaces, so only ASCII letters, digits, `.`, `-` and `_` of the host
    /// name are kept.
    pub(crate) fn connection_label(&self) -> String {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host: String = self.host.chars().filter(|c| is_allowed(*c)).collect();
        format!("{host}:{}", self.pid)
    }

    /// Builds a note of this process with the given text. [`with_start`] later adds the time at which the hold began.
    fn note_body(&self, text: &str) -> Arc<str> {
        let Self { host, pid, process } = self;
        let text = sanitize(text, MAX_NOTE_LEN);
        format!("{pid}{SEPARATOR}{host}{SEPARATOR}{process}{SEPARATOR}{text}").into()
    }
}

/// The text that a holder adds to its note. If it is made from `None`, the lock gets no note at all. See
/// [`LockRequest::note`](crate::LockRequest::note).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteText(Option<Arc<str>>);

impl NoteText {
    /// Whether the lock gets a note; false after `note(None)`.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The length of the note's text in bytes, if it exceeds [`MAX_NOTE_LEN`]; otherwise `None`.
    pub(crate) fn excess_length(&self) -> Option<usize> {
        let bytes = self.0.as_ref()?.len();
        (bytes > MAX_NOTE_LEN).then_some(bytes)
    }
}

impl Default for NoteText {
    /// The default: a note with host, process and start time, and with an empty text.
    fn default() -> Self {
        Self(Some("".into()))
    }
}

impl From<&str> for NoteText {
    fn from(text: &str) -> Self {
        Self(Some(text.into()))
    }
}

impl From<String> for NoteText {
    fn from(text: String) -> Self {
        Self(Some(text.into()))
    }
}

impl From<&String> for NoteText {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Option<&str>> for NoteText {
    fn from(text: Option<&str>) -> Self {
        Self(text.map(Into::into))
    }
}

/// Builds the notes of one process, without the time at which the hold began: [`with_start`] adds this time later.
/// `note_without_text` is the note without a text.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    identity: Identity,
    note_without_text: Arc<str>,
}

impl Notes {
    pub(crate) fn new(identity: Identity) -> Self {
        let note_without_text = identity.note_body("");
        Self {
            identity,
            note_without_text,
        }
    }

    /// The identity of this process.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Builds a note of this process with the text `note`, without the start time; `None` if the lock gets no note.
    pub(crate) fn note_body(&self, note: &NoteText) -> Option<Arc<str>> {
        Some(match &**note.0.as_ref()? {
            "" => self.note_without_text.clone(),
            text => self.identity.note_body(text),
        })
    }
}

/// The process id in a note that contains only a leader's term. No process has this id.
const NO_PID: u32 = 0;

/// Returns a note without host, process and text. It only carries a leader's term, for a lock that was taken without a
/// note.
pub(crate) fn note_without_holder() -> Arc<str> {
    format!("{NO_PID}{SEPARATOR}{SEPARATOR}{SEPARATOR}").into()
}

/// Puts the start time `since_ms` (milliseconds since 1970) in front of the note `note_body`. A master stores the lock
/// value, a space, and this result.
pub(crate) fn with_start(since_ms: u64, note_body: &str) -> String {
    format!("{since_ms}{SEPARATOR}{note_body}")
}

/// Splits a note that [`with_start`] returned into the start time and the rest; `None` for other text.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn split_start(note: &str) -> Option<(u64, &str)> {
    let (since, note_body) = note.split_once(SEPARATOR)?;
    Some((since.parse().ok()?, note_body))
}

/// Writes a note and a leader's term as a master stores them, after the lock value and a space. `None` if there is
/// neither. [`Note::read`] and [`Note::term`] read the result.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn stored(note: Option<&Note>, term: Option<u64>) -> Option<String> {
    let (since, note_body) = match note {
        Some(note) => {
            let holder = Identity::new(&note.host, note.pid, &note.process);
            let text = note.text.as_deref().unwrap_or_default();
            (milliseconds(note.since), holder.note_body(text))
        }
        None => (0, note_without_holder()),
    };
    match term {
        Some(term) => Some(with_start(since, &with_term(&note_body, term))),
        None => note.map(|_| with_start(since, &note_body)),
    }
}

/// The milliseconds since 1970; 0 for an earlier time.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Appends the leader's term to the note `note_body`.
pub(crate) fn with_term(note_body: &str, term: u64) -> Arc<str> {
    format!("{note_body}{SEPARATOR}{term}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn written(note_body: &str) -> Vec<u8> {
        [
            HOLDER,
            b" ",
            with_start(1_763_000_000_500, note_body).as_bytes(),
        ]
        .concat()
    }

    #[test]
    fn written_note_is_read_back_unchanged() {
        let me = Identity::new("web-3", 4711, "backup");
        let note = Note::read(&written(&me.note_body("by hand\u{1f512}")), HOLDER)
            .expect("the note must be read");
        assert_eq!(
            (&*note.host, note.pid, &*note.process),
            ("web-3", 4711, "backup")
        );
        assert_eq!(note.text.as_deref(), Some("by hand\u{1f512}"));
        assert_eq!(
            note.to_string(),
            "backup on web-3, pid 4711, since 2025-11-13T02:13:20Z: by hand\u{1f512}"
        );
        let note = Note::read(&written(&me.note_body("")), HOLDER).expect("the note must be read");
        assert_eq!(note.text, None);
        let led = written(&with_term(&me.note_body("\t8"), 7));
        let note = Note::read(&led, HOLDER).expect("the note must be read");
        assert_eq!(note.text.as_deref(), Some("\u{fffd}8"));
        for (note_body, term) in [
            (me.note_body(""), None),
            (with_term(&me.note_body("\t8"), 7), Some(7)),
            (with_term(&note_without_holder(), 9), Some(9)),
        ] {
            assert_eq!(
                Note::term(&written(&note_body), HOLDER),
                term,
                "{note_body}"
            );
            assert_eq!(
                Note::term(&written(&note_body), b"another"),
                None,
                "{note_body}"
            );
        }
        assert_eq!(
            Note::read(&written(&with_term(&note_without_holder(), 9)), HOLDER),
            None
        );
    }

    #[test]
    fn stored_note_without_a_holder_has_no_start_and_only_a_term() {
        assert_eq!(stored(None, None), None);
        let led = stored(None, Some(9)).expect("a term is stored");
        let start = split_start(&led).map(|(since_ms, _)| since_ms);
        assert_eq!(start, Some(0));
        let note = [HOLDER, b" ", led.as_bytes()].concat();
        assert_eq!(Note::term(&note, HOLDER), Some(9));
        assert_eq!(Note::read(&note, HOLDER), None);
    }

    #[test]
    fn longest_note_fits_into_the_bytes_that_a_master_returns() {
        let long_text = |sign: char| sign.to_string().repeat(MAX_NOTE_LEN);
        for sign in ['\n', 'x', '\u{85}', '\u{1f512}'] {
            let me = Identity::new(&long_text(sign), u32::MAX, &long_text(sign));
            let text: String = long_text(sign)
                .chars()
                .take(MAX_NOTE_LEN / sign.len_utf8())
                .collect();
            let note = written(&with_term(&me.note_body(&text), u64::MAX));
            assert!(note.len() <= NOTE_SHOWN, "{sign:?}: {}", note.len());
        }
    }

    #[test]
    fn last_second_of_the_year_9999_is_shown_in_a_note() {
        let last = [HOLDER, b" 253402300799999\t1\th\tp\t"].concat();
        let note = Note::read(&last, HOLDER).expect("the note must be read");
        assert_eq!(
            note.to_string(),
            "p on h, pid 1, since 9999-12-31T23:59:59Z"
        );
    }

    #[test]
    fn reading_a_note_of_another_holder_returns_none() {
        let note = written(&Identity::new("h", 1, "p").note_body(""));
        assert!(Note::read(&note, HOLDER).is_some());
        assert_eq!(Note::read(&note, b"0123456789abcdef0123456789abcde0"), None);
        assert_eq!(Note::read(&note, b"another client"), None);
    }

    #[test]
    fn reading_a_malformed_note_returns_none() {
        for malformed in [
            "",
            " ",
            "x\t1\th\tp\t",
            "1\tx\th\tp\t",
            "1\t1\th",
            "18446744073709551616\t1\ta\tb\tc",
            // A start time after the year 9999 cannot be displayed.
            "253402300800000\t1\th\tp\t",
            "999999999999999999\t1\th\tp\t",
        ] {
            let malformed = [HOLDER, b" ", malformed.as_bytes()].concat();
            assert_eq!(Note::read(&malformed, HOLDER), None, "{malformed:?}");
        }
        assert_eq!(Note::read(HOLDER, HOLDER), None);
        let endless = "x".repeat(1 << 20);
        let note = Note::read(&written(&format!("1\th\tp\t{endless}")), HOLDER)
            .expect("the note must be read");
        assert_eq!(note.text.map(|text| text.len()), Some(MAX_NOTE_LEN));
    }

    #[test]
    fn control_characters_in_a_note_are_replaced() {
        let me = Identity::new("h\x1b[2J", 1, "p\tq\n");
        for note_body in [
            me.note_body("a\x07\tb\u{9b}c").to_string(),
            "1\th\x1b\tp\x07\tt\x1b\r".to_owned(),
        ] {
            let note = Note::read(&written(&note_body), HOLDER).expect("the note must be read");
            assert!(
                !format!("{note}{}{}", note.host, note.process)
                    .chars()
                    .any(char::is_control)
            );
        }
    }

    #[test]
    fn connection_name_has_only_characters_that_servers_accept() {
        let me = Identity::new("my host\u{fc}\n", 7, "p");
        assert_eq!(me.connection_label(), "myhost:7");
    }
}
