//! A catalogue with many readers and one writer: readers share the lock, and the writer holds it alone.
//!
//! `cargo run -p quorate --features testing --example catalogue`

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::{Redlock, Wait};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redlock = Redlock::builder()
        .in_memory(5)
        .wait(Wait::For(Duration::from_secs(10)))
        .build()?;
    // The catalogue consists of two numbers, which the writer changes one after the other. No reader may read the
    // catalogue between these two changes.
    let catalogue = Arc::new(Mutex::new((0, 0)));
    let mut readers = Vec::new();
    for reader in 0..6 {
        let (redlock, catalogue) = (redlock.clone(), catalogue.clone());
        readers.push(tokio::spawn(async move {
            for _ in 0..3 {
                let read_guard = redlock.lock("catalogue").shared().acquire().await?;
                let editions = *catalogue.lock().expect("the mutex must not be poisoned");
                assert_eq!(
                    editions.0, editions.1,
                    "a reader must not see half of a write"
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
                println!("reader {reader}: edition {}", editions.0);
                read_guard.release().await;
            }
            Ok::<_, quorate::AcquireError>(())
        }));
    }
    for edition in 1..=3 {
        let write_guard = redlock.acquire("catalogue").await?;
        catalogue.lock().expect("the mutex must not be poisoned").0 = edition;
        tokio::time::sleep(Duration::from_millis(3)).await;
        catalogue.lock().expect("the mutex must not be poisoned").1 = edition;
        // The writer becomes a reader. It can now read the catalogue at the same time as other readers.
        let read_guard = write_guard.downgrade().await?;
        println!(
            "edition {edition} is published, fencing token {:?}",
            read_guard.fencing_token()
        );
        read_guard.release().await;
    }
    for reader in readers {
        reader.await??;
    }
    Ok(())
}
