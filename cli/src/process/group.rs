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
            result => result,
        }
    }

    /// The living processes of the group; `None` if there are none. A process that has ended but was not reaped yet is
    /// not living.
    pub(super) fn living_members(self) -> Option<Members> {
        let probe = killpg(self.0, None);
        if probe == Err(Errno::ESRCH) {
            return None;
        }
        let mut members = Members {
            group: self.0.as_raw(),
            visible: Vec::new(),
        };
        let mut has_ended = false;
        for process in processes().filter(|process| process.group == members.group) {
            if process.has_ended {
                has_ended = true;
            } else {
                members.visible.push(process);
            }
        }
        // If no process of the group is visible (mount option hidepid), the group counts as alive. If the only visible
        // processes have ended, the group is not alive.
        (!members.visible.is_empty() || !has_ended).then_some(members)
    }
}

/// The living processes of one process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members {
    group: i32,
    visible: Vec<Process>,
}

impl Members {
    /// Returns `singular` (such as "is") if there is exactly one process, otherwise `plural` (such as "are").
    pub(crate) fn verb<'a>(&self, singular: &'a str, plural: &'a str) -> &'a str {
        if self.visible.len() == 1 {
            singular
        } else {
            plural
        }
    }
}

/// Maximum number of processes that a message names.
const MAX_LISTED: usize = 8;

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, process) in self.visible.iter().take(MAX_LISTED).enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{process}")?;
        }
        match self.visible.len().saturating_sub(MAX_LISTED) {
            0 if self.visible.is_empty() => {
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
    has_ended: bool,
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
    let user_of = |path: &std::path::Path| std::fs::metadata(path).map(|meta| meta.uid()).ok();
    let own_user = user_of("/proc/self".as_ref());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        let process = parse(pid, &stat)?;
        let user = user_of(&entry.path()).filter(|user| Some(*user) != own_user);
        Some(Process { user, ..process })
    })
}

/// Parses `/proc/PID/stat`. The file has the process name in parentheses, and that name may contain any byte,
/// parentheses included.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let open_paren = stat.iter().position(|&byte| byte == b'(')?;
    let close_paren = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close_paren + 1..)?).ok()?;
    let mut rest = rest.split_whitespace();
    let state = rest.next()?;
    let group = rest.nth(1)?.parse().ok()?;
    Some(Process {
        pid,
        name: output::printable(stat.get(open_paren + 1..close_paren)?),
        group,
        has_ended: matches!(state, "Z" | "X" | "x"),
        user: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_and_line_breaks_is_parsed() {
        let process = parse(7, b"7 (a) S 1) b\n) R 1 42 42 0").expect("a process");
        assert_eq!((process.group, process.has_ended), (42, false));
        assert_eq!(process.to_string(), "process 7 (a) S 1) b\\n)");
        let zombie = parse(8, b"8 (x) Z 1 42 42 0").expect("a process");
        assert!(zombie.has_ended);
        assert_eq!(parse(9, b"9 (x"), None);
        assert_eq!(parse(9, b""), None);
    }

    #[test]
    fn message_about_surviving_processes_lists_at_most_eight_of_them() {
        let process = |pid, user| Process {
            pid,
            name: "sudo".into(),
            group: 40,
            has_ended: false,
            user,
        };
        let members_of = |visible| Members { group: 40, visible };
        assert_eq!(
            members_of(vec![
                process(41, Some(0)),
                process(42, Some(7)),
                process(43, None)
            ])
            .to_string(),
            "process 41 (sudo, run by root), process 42 (sudo, run by user 7), process 43 (sudo)"
        );
        let many = members_of((50..70).map(|pid| process(pid, None)).collect()).to_string();
        assert!(
            many.ends_with("process 57 (sudo) and 12 more processes of group 40"),
            "{many}"
        );
        let unseen = members_of(Vec::new()).to_string();
        assert_eq!(unseen, "processes of group 40 that this user cannot see");
    }

    #[test]
    fn process_group_that_does_not_exist_has_no_living_process() {
        // No group can have this id, because it is larger than the largest pid on Linux.
        let missing_group = Group(Pid::from_raw(4_194_304));
        assert_eq!(missing_group.living_members(), None);
        assert_eq!(missing_group.signal(Signal::SIGTERM), Ok(()));
    }
}
