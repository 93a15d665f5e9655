//! The ancestors of this process: its parent, the parent's parent, and so on. Reading them requires Linux with a
//! mounted `/proc`.

use std::os::unix::fs::MetadataExt;

/// Maximum number of processes to read, from this process upwards. If there are more, the ancestors are reported as
/// unknown.
const MAX_DEPTH: usize = 1024;

/// A process, identified by its pid and its start time, because the kernel reuses pids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Time when the process started, in clock ticks since the machine booted.
    start_ticks: u64,
}

/// This process and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ancestry {
    /// Inode of the pid namespace of this process. Pids of different namespaces cannot be compared.
    namespace: u64,
    /// This process first, then its ancestors, up to the first process without a parent.
    processes: Vec<Process>,
}

impl Ancestry {
    /// Reads this process and its ancestors from `/proc`. `None` if one of them cannot be read, or if there are more
    /// than [`MAX_DEPTH`].
    pub(crate) fn of_this_process() -> Option<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let (mut processes, mut next_pid) = (Vec::new(), "self".to_owned());
        loop {
            let stat = std::fs::read(format!("/proc/{next_pid}/stat")).ok()?;
            let (process, parent) = parse(&stat)?;
            processes.push(process);
            if parent == 0 {
                return Some(Self {
                    namespace,
                    processes,
                });
            }
            if processes.len() == MAX_DEPTH {
                return None;
            }
            next_pid = parent.to_string();
        }
    }

    /// The name of this process, in the form `PID.START_TIME.PID_NAMESPACE`. A descendant compares this name with its
    /// own ancestors to recognise this process.
    pub(crate) fn name(&self) -> Option<String> {
        let Process { pid, start_ticks } = self.processes.first()?;
        Some(format!("{pid}.{start_ticks}.{}", self.namespace))
    }

    /// Returns true only if the process `name` is known to be this process or one of its living ancestors. `name` has
    /// the form that [`name`](Self::name) returns.
    ///
    /// Returns false if the process `name` is in another pid namespace: pids can be compared only within one namespace.
    /// A container often has the environment of a process outside of it, which does not wait for the container.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let mut parts = name.split('.');
        let mut next_number = || parts.next()?.parse::<u64>().ok();
        let (Some(pid), Some(start_ticks), Some(namespace)) =
            (next_number(), next_number(), next_number())
        else {
            return false;
        };
        let is_named_process =
            |process: &Process| u64::from(process.pid) == pid && process.start_ticks == start_ticks;
        namespace == self.namespace && self.processes.iter().any(is_named_process)
    }
}

/// Parses `/proc/PID/stat`: returns the process and the pid of its parent. The file has the process name in
/// parentheses, and that name may contain any byte, parentheses included.
fn parse(stat: &[u8]) -> Option<(Process, u32)> {
    let open_paren = stat.iter().position(|&byte| byte == b'(')?;
    let close_paren = stat.iter().rposition(|&byte| byte == b')')?;
    let to_text = |bytes| std::str::from_utf8(bytes).ok();
    let pid = to_text(stat.get(..open_paren)?)?.trim().parse().ok()?;
    let mut rest = to_text(stat.get(close_paren + 1..)?)?
        .split_whitespace()
        .skip(1);
    let parent = rest.next()?.parse().ok()?;
    let start_ticks = rest.nth(17)?.parse().ok()?;
    Some((Process { pid, start_ticks }, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_contains_pid_start_time_and_pid_namespace() {
        let processes = "7 (a) S 1) b\n) R 4 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 5";
        let process = Process {
            pid: 7,
            start_ticks: 99,
        };
        assert_eq!(parse(processes.as_bytes()), Some((process, 4)));
        for cut in ["", "7 (a", "7 (a) R", "7 (a) R 4 5 5 0", "x (a) R 4"] {
            assert_eq!(parse(cut.as_bytes()), None, "{cut}");
        }
        let ancestry = Ancestry {
            namespace: 3,
            processes: vec![
                process,
                Process {
                    pid: 1,
                    start_ticks: 0,
                },
            ],
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
        let ancestry =
            Ancestry::of_this_process().expect("the ancestors of this process must be readable");
        assert_eq!(ancestry.processes[0].pid, std::process::id());
        assert_eq!(
            ancestry.processes[1].pid,
            std::os::unix::process::parent_id()
        );
        assert!(ancestry.contains(&ancestry.name().expect("a name")));
        let mut child = std::process::Command::new("sleep").arg("60").spawn();
        let child = child.as_mut().expect("starts");
        let stat = std::fs::read(format!("/proc/{}/stat", child.id())).expect("a living child");
        let (Process { pid, start_ticks }, parent) = parse(&stat).expect("a process");
        assert_eq!(parent, std::process::id());
        assert!(!ancestry.contains(&format!("{pid}.{start_ticks}.{}", ancestry.namespace)));
        child.kill().expect("a living child");
        child.wait().expect("a child");
    }
}
