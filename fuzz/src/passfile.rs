//! Files with passwords for PostgreSQL, in the form of `.pgpass`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use quorate_postgres::Postgres;
use quorate_testbed::ServerDir;

use crate::Depth;

/// Fewer bytes of an input may also be a part of an error message.
const SHORTEST_SECRET: usize = 24;

/// Uses the input as the content of the file.
///
/// # Panics
///
/// If an error or the printed form of the server contains the text after the last colon of a line.
pub fn run(input: &[u8]) -> Depth {
    let folder = ServerDir::create(None).expect("a directory");
    let file = folder.path().join("passwords");
    fs::write(&file, input).expect("written");
    // Files that other users may read are refused.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("changed");
    let url = format!(
        "postgres://ann@db.example:5433/locks?passfile={}",
        file.display()
    );
    let (depth, printed) = match Postgres::open(&url) {
        Ok(server) => (Depth::Accepted, format!("{server:?}")),
        Err(error) => (Depth::Refused, format!("{error} {error:?}")),
    };
    let text = String::from_utf8_lossy(input);
    let secrets = text
        .lines()
        .filter_map(|line| Some(line.rsplit_once(':')?.1));
    let secrets = secrets.filter(|secret| secret.len() >= SHORTEST_SECRET);
    for secret in secrets.filter(|secret| !url.contains(secret)) {
        assert!(!printed.contains(secret), "{printed}");
    }
    depth
}
