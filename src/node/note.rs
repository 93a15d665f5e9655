//! What the holder of a lock tells those who look at it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::text::tame;

/// The longest text of a note, in bytes.
pub const MAX_NOTE_LEN: usize = 1024;

/// So many times as long as its lock a note is kept: most renewals need not look after it. Who looks
/// is shown one only while the lock holds the value in front of it.
pub(crate) const NOTE_LIVES: u32 = 4;

/// The most bytes of what stands beside a lock that a master tells: as many as the longest note of ours has. It may
/// be anybody's data.
pub(crate) const NOTE_TOLD: usize = 4096;

// A tamed sign has three bytes, others up to four; beside the text stand two names, the value and numbers.
const _: () = assert!(3 * MAX_NOTE_LEN + 2 * 4 * NAME + 100 <= NOTE_TOLD);

/// The most of a host's or a program's name that is told.
const NAME: usize = 64;

/// The year 10000, which no calendar here shows.
const END_OF_TIME: Duration = Duration::from_secs(253_402_300_800);

/// Between the parts of a note on a master. No part has it: control characters are tamed.
const BETWEEN: char = '\t';

/// Who holds a lock, as the holder itself says: host, process, since when, and a text of its own.
///
/// It is a hint for people: nothing is decided by it. A lock that is held for less than about 100 ms
/// has none, and neither has one that was taken with `note(None)`, with the classic protocol, or by
/// another Redlock client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// The machine that it is held on.
    pub host: String,
    /// The process, by its number there.
    pub pid: u32,
    /// The name of the program; never its arguments, which may hold secrets.
    pub process: String,
    /// Since when it is held, on the holder's clock.
    pub since: SystemTime,
    /// What the user had to add.
    pub text: Option<String>,
}

/// The parts of what stands on a master beside the lock of `holder`; none of what another left.
fn parts(note: &[u8], holder: &[u8]) -> Option<Vec<String>> {
    let rest = note.strip_prefix(holder)?.strip_prefix(b" ")?;
    let rest = String::from_utf8_lossy(rest);
    Some(rest.splitn(6, BETWEEN).map(str::to_owned).collect())
}

impl Note {
    /// Reads what stands on a master beside the lock of `holder`. None for what another left, for who leads and says
    /// nothing else, and for what is no note at all.
    pub(crate) fn read(note: &[u8], holder: &[u8]) -> Option<Self> {
        let parts = parts(note, holder)?;
        let mut parts = parts.iter().map(String::as_str);
        let since = Duration::from_millis(parts.next()?.parse().ok()?);
        let pid = parts.next()?.parse().ok().filter(|pid| *pid != NOBODY)?;
        let name = |part: &str| tame(part, NAME);
        let (host, process) = (name(parts.next()?), name(parts.next()?));
        let text = parts.next().filter(|text| !text.is_empty());
        Some(Self {
            host,
            pid,
            process,
            since: UNIX_EPOCH
                .checked_add(since)
                .filter(|_| since < END_OF_TIME)?,
            text: text.map(|text| tame(text, MAX_NOTE_LEN)),
        })
    }

    /// The term in what stands there, where its holder was elected.
    pub(crate) fn term(note: &[u8], holder: &[u8]) -> Option<u64> {
        parts(note, holder)?.get(5)?.parse().ok()
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

/// Who this process is, for notes and for the name of its connections.
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
        let name = |name: &str| tame(name, NAME);
        Self {
            host: name(host),
            pid,
            process: name(process),
        }
    }

    /// The end of the name of a connection in `CLIENT LIST`, where no spaces and no signs beyond ASCII may stand.
    pub(crate) fn of_connection(&self) -> String {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host: String = self.host.chars().filter(|c| fits(*c)).collect();
        format!("{host}:{}", self.pid)
    }

    /// What a note of this process says, but for the time.
    fn says(&self, text: &str) -> Arc<str> {
        let Self { host, pid, process } = self;
        let text = tame(text, MAX_NOTE_LEN);
        format!("{pid}{BETWEEN}{host}{BETWEEN}{process}{BETWEEN}{text}").into()
    }
}

/// What a holder has to add to its note, or that it wants none; see
/// [`LockRequest::note`](crate::LockRequest::note). From a text, or from `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteText(Option<Arc<str>>);

impl NoteText {
    /// Its length, where that is more than is kept.
    pub(crate) fn too_long(&self) -> Option<usize> {
        let bytes = self.0.as_ref()?.len();
        (bytes > MAX_NOTE_LEN).then_some(bytes)
    }
}

impl Default for NoteText {
    /// A note without a text.
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

impl From<Option<&str>> for NoteText {
    fn from(text: Option<&str>) -> Self {
        Self(text.map(Into::into))
    }
}

/// What the holders of one process say, but for the time. The usual note is one text, which all share.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    identity: Identity,
    usual: Arc<str>,
}

impl Notes {
    pub(crate) fn of(identity: Identity) -> Self {
        let usual = identity.says("");
        Self { identity, usual }
    }

    /// What a holder says with this text; none where it says nothing.
    pub(crate) fn says(&self, note: &NoteText) -> Option<Arc<str>> {
        Some(match &**note.0.as_ref()? {
            "" => self.usual.clone(),
            text => self.identity.says(text),
        })
    }
}

/// The process of a note without a word of its holder.
const NOBODY: u32 = 0;

/// Of a leader that says nothing of itself, all but its term, which has to live for as long as it leads.
pub(crate) fn unsaid() -> Arc<str> {
    format!("{NOBODY}{BETWEEN}{BETWEEN}{BETWEEN}").into()
}

/// A note as it stands on a master behind the value of its holder.
pub(crate) fn dated(since_ms: u64, says: &str) -> String {
    format!("{since_ms}{BETWEEN}{says}")
}

/// What a leader says, with its term.
pub(crate) fn leads(says: &str, term: u64) -> Arc<str> {
    format!("{says}{BETWEEN}{term}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn written(says: &str) -> Vec<u8> {
        [HOLDER, b" ", dated(1_763_000_000_500, says).as_bytes()].concat()
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let me = Identity::new("web-3", 4711, "backup");
        let note = Note::read(&written(&me.says("by hand\u{1f512}")), HOLDER).expect("a note");
        assert_eq!(
            (&*note.host, note.pid, &*note.process),
            ("web-3", 4711, "backup")
        );
        assert_eq!(note.text.as_deref(), Some("by hand\u{1f512}"));
        assert_eq!(
            note.to_string(),
            "backup on web-3, pid 4711, since 2025-11-13T02:13:20Z: by hand\u{1f512}"
        );
        let note = Note::read(&written(&me.says("")), HOLDER).expect("a note");
        assert_eq!(note.text, None);
        let led = written(&leads(&me.says("\t8"), 7));
        let note = Note::read(&led, HOLDER).expect("a note");
        assert_eq!(note.text.as_deref(), Some("\u{fffd}8"));
        for (says, term) in [
            (me.says(""), None),
            (leads(&me.says("\t8"), 7), Some(7)),
            (leads(&unsaid(), 9), Some(9)),
        ] {
            assert_eq!(Note::term(&written(&says), HOLDER), term, "{says}");
            assert_eq!(Note::term(&written(&says), b"another"), None, "{says}");
        }
        assert_eq!(Note::read(&written(&leads(&unsaid(), 9)), HOLDER), None);
    }

    #[test]
    fn no_note_of_ours_is_longer_than_what_is_told_of_it() {
        let long = |sign: char| sign.to_string().repeat(MAX_NOTE_LEN);
        for sign in ['\n', 'x', '\u{85}', '\u{1f512}'] {
            let me = Identity::new(&long(sign), u32::MAX, &long(sign));
            let text: String = long(sign)
                .chars()
                .take(MAX_NOTE_LEN / sign.len_utf8())
                .collect();
            let note = written(&leads(&me.says(&text), u64::MAX));
            assert!(note.len() <= NOTE_TOLD, "{sign:?}: {}", note.len());
        }
    }

    #[test]
    fn the_last_moment_that_a_note_may_be_from_is_shown() {
        let last = [HOLDER, b" 253402300799999\t1\th\tp\t"].concat();
        let note = Note::read(&last, HOLDER).expect("a note");
        assert_eq!(
            note.to_string(),
            "p on h, pid 1, since 9999-12-31T23:59:59Z"
        );
    }

    #[test]
    fn a_note_of_another_holder_is_not_shown() {
        let note = written(&Identity::new("h", 1, "p").says(""));
        assert!(Note::read(&note, HOLDER).is_some());
        assert_eq!(Note::read(&note, b"0123456789abcdef0123456789abcde0"), None);
        assert_eq!(Note::read(&note, b"another client"), None);
    }

    #[test]
    fn what_is_no_note_is_none() {
        for odd in [
            "",
            " ",
            "x\t1\th\tp\t",
            "1\tx\th\tp\t",
            "1\t1\th",
            "18446744073709551616\t1\ta\tb\tc",
            // Beyond the year 9999, which cannot be shown.
            "253402300800000\t1\th\tp\t",
            "999999999999999999\t1\th\tp\t",
        ] {
            let odd = [HOLDER, b" ", odd.as_bytes()].concat();
            assert_eq!(Note::read(&odd, HOLDER), None, "{odd:?}");
        }
        assert_eq!(Note::read(HOLDER, HOLDER), None);
        let endless = "x".repeat(1 << 20);
        let note = Note::read(&written(&format!("1\th\tp\t{endless}")), HOLDER).expect("a note");
        assert_eq!(note.text.map(|text| text.len()), Some(MAX_NOTE_LEN));
    }

    #[test]
    fn nothing_in_a_note_reaches_a_terminal_as_it_is() {
        let me = Identity::new("h\x1b[2J", 1, "p\tq\n");
        for says in [
            me.says("a\x07\tb\u{9b}c").to_string(),
            "1\th\x1b\tp\x07\tt\x1b\r".to_owned(),
        ] {
            let note = Note::read(&written(&says), HOLDER).expect("a note");
            assert!(
                !format!("{note}{}{}", note.host, note.process)
                    .chars()
                    .any(char::is_control)
            );
        }
    }

    #[test]
    fn the_name_of_a_connection_is_one_that_servers_take() {
        let me = Identity::new("my host\u{fc}\n", 7, "p");
        assert_eq!(me.of_connection(), "myhost:7");
    }
}
