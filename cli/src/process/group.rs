//! The process group of the command: sends signals to it, and lists its living processes.

use std::fmt;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::output;

/// A process group. It may contain processes that this process has no right to signal, for example set-uid programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group(pub(super) Pid);

impl Group {
    /// Sends `sig` to every process of the group that this process has the right to signal.
    ///
    /// Fails if the group has processes, but this process has the right to signal none of them.
    pub(super) fn signal(self, sig: Signal) -> Result<(), Errno> {
        match killpg(self.0, sig) {
            Err(Errno::ESRCH) => Ok(()),
            done => done,
        }
    }

    /// The living processes of the group; `None` if there are none. A process that has ended but was not reaped yet is
    /// not living.
    pub(super) fn alive(self) -> Option<Members> {
        let may = killpg(self.0, None);
        if may == Err(Errno::ESRCH) {
            return None;
        }
        let mut members = Members {
            group: self.0.as_raw(),
            seen: Vec::new(),
        };
        let mut ended = false;
        for process in processes().filter(|process| process.group == members.group) {
            if process.ended {
                ended = true;
            } else {
                members.seen.push(process);
            }
        }
        // If no process of the group is visible (mount option hidepid), the group counts as alive. If the only visible
        // processes have ended, the group is not alive.
        (!members.seen.is_empty() || !ended).then_some(members)
    }
}

/// The living processes of one process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members {
    group: i32,
    seen: Vec<Process>,
}

impl Members {
    /// Returns `one` (such as "is") if there is exactly one process, otherwise `many` (such as "are").
    pub(crate) fn verb<'a>(&self, one: &'a str, many: &'a str) -> &'a str {
        if self.seen.len() == 1 { one } else { many }
    }
}

/// Maximum number of processes that a message names.
const NAMED: usize = 8;

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, process) in self.seen.iter().take(NAMED).enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{process}")?;
        }
        match self.seen.len().saturating_sub(NAMED) {
            0 if self.seen.is_empty() => {
                write!(
                    f,
                    "processes of group {} that this user cannot see",
                    self.group
                )
            }
            0 => Ok(()),
            more => write!(f, " and {more} more processes of group {}", self.group),
        }
    }
}

/// A process. Its text form is the description that messages show.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: i32,
    name: String,
    group: i32,
    /// Whether the process has ended, but was not reaped yet.
    ended: bool,
    /// The user id of the process, if it is known and is not the user id of this process.
    user: Option<u32>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}", self.pid, self.name)?;
        match self.user {
            None => f.write_str(")"),
            Some(0) => f.write_str(", run by root)"),
            Some(user) => write!(f, ", run by user {user})"),
        }
    }
}

/// All processes that this process may see; empty if `/proc` is not mounted.
fn processes() -> impl Iterator<Item = Process> {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &std::path::Path| std::fs::metadata(path).map(|meta| meta.uid()).ok();
    let own = owner("/proc/self".as_ref());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        let process = parse(pid, &stat)?;
        let user = owner(&entry.path()).filter(|user| Some(*user) != own);
        Some(Process { user, ..process })
    })
}

/// Parses `/proc/PID/stat`. The file has the process name in parentheses, and that name may contain any byte,
/// parentheses included.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut rest = rest.split_whitespace();
    let state = rest.next()?;
    let group = rest.nth(1)?.parse().ok()?;
    Some(Process {
        pid,
        name: output::bytes(stat.get(open + 1..close)?),
        group,
        ended: matches!(state, "Z" | "X" | "x"),
        user: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_and_line_breaks_is_parsed() {
        let process = parse(7, b"7 (a) S 1) b\n) R 1 42 42 0").expect("a process");
        assert_eq!((process.group, process.ended), (42, false));
        assert_eq!(process.to_string(), "process 7 (a) S 1) b\\n)");
        let gone = parse(8, b"8 (x) Z 1 42 42 0").expect("a process");
        assert!(gone.ended);
        assert_eq!(parse(9, b"9 (x"), None);
        assert_eq!(parse(9, b""), None);
    }

    #[test]
    fn message_about_surviving_processes_lists_at_most_eight_of_them() {
        let one = |pid, user| Process {
            pid,
            name: "sudo".into(),
            group: 40,
            ended: false,
            user,
        };
        let of = |seen| Members { group: 40, seen };
        assert_eq!(
            of(vec![one(41, Some(0)), one(42, Some(7)), one(43, None)]).to_string(),
            "process 41 (sudo, run by root), process 42 (sudo, run by user 7), process 43 (sudo)"
        );
        let many = of((50..70).map(|pid| one(pid, None)).collect()).to_string();
        assert!(
            many.ends_with("process 57 (sudo) and 12 more processes of group 40"),
            "{many}"
        );
        let unseen = of(Vec::new()).to_string();
        assert_eq!(unseen, "processes of group 40 that this user cannot see");
    }

    #[test]
    fn process_group_that_does_not_exist_has_no_living_process() {
        // No group can have this id, because it is larger than the largest pid on Linux.
        let gone = Group(Pid::from_raw(4_194_304));
        assert_eq!(gone.alive(), None);
        assert_eq!(gone.signal(Signal::SIGTERM), Ok(()));
    }
}
