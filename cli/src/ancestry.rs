//! The ancestors of this process: its parent, the parent's parent, and so on. Reading them requires Linux with a
//! mounted `/proc`.

use std::os::unix::fs::MetadataExt;

/// Maximum number of processes to read, from this process upwards. If there are more, the ancestors are reported as
/// unknown.
const DEEPEST: usize = 1024;

/// A process, identified by its pid and its start time, because the kernel reuses pids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Time when the process started, in clock ticks since the machine booted.
    began: u64,
}

/// This process and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestry {
    /// Inode of the pid namespace of this process. Pids of different namespaces cannot be compared.
    namespace: u64,
    /// This process first, then its ancestors, up to the first process without a parent.
    line: Vec<Process>,
}

impl Ancestry {
    /// Reads this process and its ancestors from `/proc`. `None` if one of them cannot be read, or if there are more
    /// than [`DEEPEST`].
    pub(crate) fn of_this_process() -> Option<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let (mut line, mut next) = (Vec::new(), "self".to_owned());
        loop {
            let stat = std::fs::read(format!("/proc/{next}/stat")).ok()?;
            let (process, parent) = parse(&stat)?;
            line.push(process);
            if parent == 0 {
                return Some(Self { namespace, line });
            }
            if line.len() == DEEPEST {
                return None;
            }
            next = parent.to_string();
        }
    }

    /// The name of this process, in the form `PID.START_TIME.PID_NAMESPACE`. A descendant compares this name with its
    /// own ancestors to recognise this process.
    pub(crate) fn name(&self) -> Option<String> {
        let Process { pid, began } = self.line.first()?;
        Some(format!("{pid}.{began}.{}", self.namespace))
    }

    /// Returns true only if the process `name` is known to be this process or one of its living ancestors. `name` has
    /// the form that [`name`](Self::name) returns.
    ///
    /// Returns false if the process `name` is in another pid namespace: pids can be compared only within one namespace.
    /// A container often has the environment of a process outside of it, which does not wait for the container.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let mut parts = name.split('.');
        let mut part = || parts.next()?.parse::<u64>().ok();
        let (Some(pid), Some(began), Some(namespace)) = (part(), part(), part()) else {
            return false;
        };
        let is = |process: &Process| u64::from(process.pid) == pid && process.began == began;
        namespace == self.namespace && self.line.iter().any(is)
    }
}

/// Parses `/proc/PID/stat`: returns the process and the pid of its parent. The file has the process name in
/// parentheses, and that name may contain any byte, parentheses included.
fn parse(stat: &[u8]) -> Option<(Process, u32)> {
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let pid = text(stat.get(..open)?)?.trim().parse().ok()?;
    let mut rest = text(stat.get(close + 1..)?)?.split_whitespace().skip(1);
    let parent = rest.next()?.parse().ok()?;
    let began = rest.nth(17)?.parse().ok()?;
    Some((Process { pid, began }, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_contains_pid_start_time_and_pid_namespace() {
        let line = "7 (a) S 1) b\n) R 4 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 5";
        let process = Process { pid: 7, began: 99 };
        assert_eq!(parse(line.as_bytes()), Some((process, 4)));
        for cut in ["", "7 (a", "7 (a) R", "7 (a) R 4 5 5 0", "x (a) R 4"] {
            assert_eq!(parse(cut.as_bytes()), None, "{cut}");
        }
        let ancestry = Ancestry {
            namespace: 3,
            line: vec![process, Process { pid: 1, began: 0 }],
        };
        assert_eq!(ancestry.name().as_deref(), Some("7.99.3"));
        for (name, contained) in [
            ("7.99.3", true),
            ("1.0.3", true),
            ("7.98.3", false),
            ("8.99.3", false),
            ("7.99.4", false),
            ("7.99", false),
            ("", false),
            ("7.x.3", false),
        ] {
            assert_eq!(ancestry.contains(name), contained, "{name}");
        }
    }

    #[test]
    fn ancestry_contains_the_parent_process_but_not_a_child_process() {
        let ours =
            Ancestry::of_this_process().expect("the ancestors of this process must be readable");
        assert_eq!(ours.line[0].pid, std::process::id());
        assert_eq!(ours.line[1].pid, std::os::unix::process::parent_id());
        assert!(ours.contains(&ours.name().expect("a name")));
        let mut child = std::process::Command::new("sleep").arg("60").spawn();
        let child = child.as_mut().expect("starts");
        let stat = std::fs::read(format!("/proc/{}/stat", child.id())).expect("a living child");
        let (Process { pid, began }, parent) = parse(&stat).expect("a process");
        assert_eq!(parent, std::process::id());
        assert!(!ours.contains(&format!("{pid}.{began}.{}", ours.namespace)));
        child.kill().expect("a living child");
        child.wait().expect("a child");
    }
}
