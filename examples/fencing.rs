//! A resource that refuses stale writers: the other half of fencing.
//!
//! A lock cannot stop a holder that was paused past its lease and wakes up believing. The resource
//! can: it remembers the largest fencing token it has seen and refuses smaller ones. Here the
//! resource is a file; with a database it is `UPDATE .. WHERE fence <= $token`.
//!
//! `cargo run -p quorate --features testing --example fencing` shows the whole story in one process.
//! `.. --example fencing -- FILE TOKEN TEXT` writes once, as a child of `quorate run` would,
//! and exits with 1 when the token is stale.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate::Redlock;

/// A text with the token of its last writer in front.
struct FencedFile {
    path: PathBuf,
}

impl FencedFile {
    fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
        }
    }

    /// Writes `text`, unless somebody with a larger token has written already. Check and write are
    /// one step under the file's own lock, as they would be one statement in a database.
    fn write(&self, token: u64, text: &str) -> io::Result<Result<(), u64>> {
        let mut options = OpenOptions::new();
        let mut file: File = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)?;
        // Freed when the file is closed.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
        let mut content = String::new();
        file.read_to_string(&mut content)?;
        let newest = content.lines().next().and_then(|line| line.parse().ok());
        if let Some(newest) = newest.filter(|newest| token < *newest) {
            return Ok(Err(newest));
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{token}\n{text}\n")?;
        Ok(Ok(()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [file, token, text] = &args[..] {
        return match FencedFile::new(file).write(token.parse()?, text)? {
            Ok(()) => Ok(()),
            Err(newest) => Err(format!("stale token {token}: {newest} has written since").into()),
        };
    }

    let path = std::env::temp_dir().join(format!("quorate-fencing-{}", std::process::id()));
    let file = FencedFile::new(&path);
    let redlock = Redlock::in_memory(5);

    let paused = redlock
        .lock("register")
        .ttl(Duration::from_millis(500))
        .renewal(false)
        .acquire()
        .await?;
    let stale = paused.fencing_token().unwrap_or_default();
    println!("first holder:  token {stale}; it is paused past its lease");
    println!("first holder:  {}", paused.lost().await);

    let later = redlock.acquire("register").await?;
    let token = later.fencing_token().unwrap_or_default();
    println!(
        "second holder: token {token}, writes: {:?}",
        file.write(token, "second")?
    );
    println!(
        "first holder:  wakes up and writes: {:?} (refused)",
        file.write(stale, "first")?
    );

    std::fs::remove_file(path)?;
    Ok(())
}
