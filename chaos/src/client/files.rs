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
    from: String,
    text: &str,
) {
    let began = ctx.clock.now();
    if mark(ctx, file, hold, text) {
        ctx.note(Event::Wrote {
            op,
            key: key.to_owned(),
            from,
            began,
        });
    }
}

/// Writes `text`, padded to 32 bytes, to the start of the file, but only while the lock is valid. Returns whether the
/// text was written.
pub(super) fn mark(ctx: &Ctx, file: &File, hold: &Hold, text: &str) -> bool {
    hold.is_valid(ctx)
        && file
            .write_all_at(format!("{text:<32}").as_bytes(), 0)
            .is_ok()
}

pub(super) fn read(ctx: &Ctx, key: &str) -> std::io::Result<(File, String)> {
    let path = ctx.settings.dir.join(format!("{key}.state"));
    read_at(&path)
}

pub(super) fn read_at(path: &std::path::Path) -> std::io::Result<(File, String)> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok((file, text.trim().to_owned()))
}
