//! The resources that a process uses.

/// The resident memory in bytes and the number of open file descriptors of a process. `None` if the process has ended.
pub fn usage(pid: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
    let handles = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some((kilobytes * 1024, handles as u64))
}
