//! A resource that rejects writes with stale fencing tokens.
//!
//! A paused process can continue to write after its lock has expired. To reject such writes, the resource stores the
//! largest fencing token that it has seen, and rejects smaller tokens.
//!
//! In this example the resource is a file. In a database, use `UPDATE .. WHERE fence <= $token`.
//!
//! `cargo run -p quorate --features testing --example fencing` shows two holders in one process.
//!
//! `.. --example fencing -- FILE TOKEN TEXT` writes TEXT to FILE once, as a command under `quorate run` would do, and
//! exits with 1 if TOKEN is stale.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate::Redlock;

/// A file with a text, and with the fencing token of the last write.
struct FencedFile {
    path: PathBuf,
}

impl FencedFile {
    fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
        }
    }

    /// Writes `text`. If the file already contains a larger token, writes nothing and returns that token.
    ///
    /// A lock on the file makes the check and the write atomic. In a database, use a single statement.
    fn write(&self, token: u64, text: &str) -> io::Result<Result<(), u64>> {
        let mut options = OpenOptions::new();
        let mut file: File = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)?;
        // The lock on the file is released when the file is closed.
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
            Err(newest) => Err(format!(
                "stale token {token}: the holder of token {newest} has already written"
            )
            .into()),
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
    let stale = paused.fencing_token().ok_or("fencing is off")?;
    println!("first holder:  token {stale}; pauses until its lease has expired");
    println!("first holder:  {}", paused.lost().await);

    let later = redlock.acquire("register").await?;
    let token = later.fencing_token().ok_or("fencing is off")?;
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
