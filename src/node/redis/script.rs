//! The scripts: their Lua sources, which of them are loaded together, and which one a request runs.

use std::ops::Range;
use std::sync::LazyLock;

use crate::keys;
use crate::node::{Claim, ExtendItem, Fairness, Request};

/// The scripts, in the order of [`Script`].
pub(super) const SOURCES: [&str; 20] = [
    include_str!("../../scripts/acquire.lua"),
    include_str!("../../scripts/confirm.lua"),
    include_str!("../../scripts/release.lua"),
    include_str!("../../scripts/extend.lua"),
    include_str!("../../scripts/look.lua"),
    include_str!("../../scripts/break.lua"),
    include_str!("../../scripts/acquire_fair.lua"),
    include_str!("../../scripts/release_fair.lua"),
    include_str!("../../scripts/claim.lua"),
    include_str!("../../scripts/confirm_group.lua"),
    include_str!("../../scripts/unclaim.lua"),
    include_str!("../../scripts/keep.lua"),
    include_str!("../../scripts/read.lua"),
    include_str!("../../scripts/write.lua"),
    include_str!("../../scripts/permit.lua"),
    include_str!("../../scripts/release_permit.lua"),
    include_str!("../../scripts/note.lua"),
    include_str!("../../scripts/classic.lua"),
    include_str!("../../scripts/acquire_many.lua"),
    include_str!("../../scripts/release_many.lua"),
];

macro_rules! part {
    ($name:literal) => {
        (
            concat!("--+ ", $name, "\n"),
            include_str!(concat!("../../scripts/", $name)),
        )
    };
}

/// Lua code that several scripts share. A part replaces the line that names it, because calling a Lua function would make
/// every run of the script slower.
const PARTS: [(&str, &str); 20] = [
    part!("fence/read.lua"),
    part!("fence/again.lua"),
    // Contains another part, which must follow in this list.
    part!("fence/raise.lua"),
    part!("fence/next.lua"),
    part!("fence/lives.lua"),
    part!("line/join.lua"),
    // Contains another part, which must follow in this list.
    part!("line/first.lua"),
    part!("line/purge.lua"),
    // Contains another part, which must follow in this list.
    part!("line/refused.lua"),
    // Returns the number of waiters ahead of this one, or of all waiters if this one is not queued.
    part!("line/ahead.lua"),
    part!("many/call.lua"),
    part!("many/each.lua"),
    part!("many/lines.lua"),
    part!("many/seen.lua"),
    part!("mark/has.lua"),
    part!("mark/class.lua"),
    part!("note/forget.lua"),
    part!("note/said.lua"),
    part!("wake/readers.lua"),
    part!("value/read.lua"),
];

/// The sources with their parts inserted, in the order of [`Script`].
pub(super) fn sources() -> &'static [String; SOURCES.len()] {
    static WHOLE: LazyLock<[String; SOURCES.len()]> = LazyLock::new(|| SOURCES.map(with_parts));
    &WHOLE
}

/// A Lua source with its parts and the names of keys inserted.
pub(super) fn with_parts(source: &str) -> String {
    let put_in = |text: String, (line, part): &(&str, &str)| text.replace(line, part);
    keys::put_in(&PARTS.iter().fold(source.to_owned(), put_in))
}

/// A script, as an index into the lists above.
#[derive(Clone, Copy)]
pub(super) enum Script {
    Acquire,
    Confirm,
    Release,
    Extend,
    Look,
    Break,
    AcquireFair,
    ReleaseFair,
    Claim,
    ConfirmGroup,
    Unclaim,
    Keep,
    Read,
    Write,
    Permit,
    ReleasePermit,
    Note,
    Classic,
    AcquireMany,
    ReleaseMany,
}

impl Script {
    /// The script that a request runs. `None` for an acquire without a fencing token, a list and a watch: plain commands of
    /// the server do these.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let fair = |claim: &Claim| matches!(claim.fairness(), Fairness::Fair(_));
        let grouped = |claim: &Claim| claim.group().is_some();
        Some(match request {
            Request::Acquire { claim, .. } if claim.permit().is_some() => Self::Permit,
            Request::Release { claim, .. } if claim.permit().is_some() => Self::ReleasePermit,
            Request::Acquire { claim, .. } if grouped(claim) => Self::Claim,
            Request::Confirm { claim, .. } if grouped(claim) => Self::ConfirmGroup,
            Request::Release { claim, .. } if grouped(claim) => Self::Unclaim,
            Request::Extend { items } if has_groups(items) => Self::Keep,
            Request::Acquire { claim, .. } if fair(claim) => Self::AcquireFair,
            Request::Acquire { claim, .. } if claim.fenced() => Self::Acquire,
            Request::Acquire { .. } | Request::List { .. } | Request::Watch { .. } => return None,
            Request::Confirm { .. } => Self::Confirm,
            Request::Release { claim, .. } if fair(claim) => Self::ReleaseFair,
            Request::Release { .. } => Self::Release,
            Request::Extend { .. } => Self::Extend,
            Request::Look { .. } => Self::Look,
            Request::Break { .. } => Self::Break,
            Request::Read { .. } => Self::Read,
            Request::Write { .. } => Self::Write,
            Request::Note { .. } => Self::Note,
        })
    }
}

/// The scripts that check the generation marker first: every script whose reply is a vote, and the one that writes a value.
pub(super) const MARKED: [usize; 11] = [
    Script::Acquire as usize,
    Script::Confirm as usize,
    Script::Extend as usize,
    Script::AcquireFair as usize,
    Script::Claim as usize,
    Script::ConfirmGroup as usize,
    Script::Keep as usize,
    Script::Permit as usize,
    Script::Classic as usize,
    Script::AcquireMany as usize,
    Script::Write as usize,
];

/// The sets of scripts that are loaded together, as ranges of [`Script`]. The first set is loaded by every handshake, any
/// other set when a request first needs it.
pub(super) const SETS: [Range<usize>; 7] = [
    0..8,
    8..12,
    12..14,
    14..16,
    16..17,
    17..18,
    18..SOURCES.len(),
];

/// Whether any of these extensions is for a lock that is not one key held exclusively.
pub(super) fn has_groups(items: &[ExtendItem]) -> bool {
    items.iter().any(|item| item.claim.group().is_some())
}
