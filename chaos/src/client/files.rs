//! The files that clients change under their locks. Nothing but the lock protects these files.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;

use super::context::Ctx;
use super::hold::Hold;
use crate::event::Event;

/// Writes the new content to the file and records the write. Does neither if the lock has been lost.
pub(super) fn write(
    ctx: &Ctx,
    (key, file): (&str, &File),
    op: u64,
    hold: &Hold,
    old_content: String,
    content: &str,
) {
    let began_at = ctx.clock.now();
    if write_if_valid(file, hold, content) {
        ctx.record(Event::Wrote {
            op,
            key: key.to_owned(),
            from: old_content,
            to: Some(content.to_owned()),
            began: began_at,
        });
    }
}

/// Writes `content`, padded to 32 bytes, to the start of the file, but only while the lock is valid. Returns whether
/// the text was written.
pub(super) fn write_if_valid(file: &File, hold: &Hold, content: &str) -> bool {
    hold.is_valid()
        && file
            .write_all_at(format!("{content:<32}").as_bytes(), 0)
            .is_ok()
}

pub(super) fn read_state(ctx: &Ctx, key: &str) -> std::io::Result<(File, String)> {
    let path = ctx.settings.dir.join(format!("{key}.state"));
    read_state_at(&path)
}

pub(super) fn read_state_at(path: &std::path::Path) -> std::io::Result<(File, String)> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mut content = String::new();
    file.rewind()?;
    file.read_to_string(&mut content)?;
    Ok((file, content.trim().to_owned()))
}
