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

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
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
    /// The lock of the operating system on a second file makes the check and the write one step. In a database, use a
    /// single statement.
    fn write(&self, token: u64, text: &str) -> io::Result<Result<(), u64>> {
        // Lock another file, because the file itself is replaced. The lock is released when this file is closed.
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let lock = options.open(self.path_with_ending(".lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        if let Some(newest) = self.newest()?.filter(|newest| token < *newest) {
            return Ok(Err(newest));
        }
        // Replace the file in one step: after a crash, it has either the old text or the new one, each with its token.
        let new = self.path_with_ending(".new");
        let mut file = File::create(&new)?;
        write!(file, "{token}\n{text}\n")?;
        file.sync_all()?;
        fs::rename(new, &self.path)?;
        let folder = self.path.parent().filter(|folder| folder.is_dir());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Ok(()))
    }

    /// The path of the file, with `ending` appended.
    fn path_with_ending(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    /// The token of the last write. `None` if the file does not exist. An error if its first line is no number, because
    /// the newest token is then unknown.
    fn newest(&self) -> io::Result<Option<u64>> {
        let content = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            content => content?,
        };
        let token = content.lines().next().and_then(|line| line.parse().ok());
        let no_token_error = || io::Error::new(io::ErrorKind::InvalidData, "the file has no token");
        token.map(Some).ok_or_else(no_token_error)
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

    let folder = std::env::temp_dir().join(format!("quorate-fencing-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let path = folder.join("register");
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

    fs::write(path, "")?;
    let refused = file.write(stale, "first");
    assert!(refused.is_err(), "a file without a token was overwritten");
    fs::remove_dir_all(folder)?;
    Ok(())
}
