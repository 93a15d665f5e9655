//! What stands in a record: items, each with its time, as bytes and back.
//!
//! A store with a clock of its own writes until when an item is kept on that clock. One without writes for how
//! long, and a stamp that is another one each time: for an observer it is over when it has been seen unchanged
//! for that long, on the observer's own clock, and a little more. The holder counts from before it asked, the item is
//! there only after that, and it is seen later still: so nobody sees the end before the holder does.

use std::time::Duration;

use crate::node::memory::items::{Id, Item, Kind};

/// The first byte of every state: how the rest is written.
const FORMAT: u8 = 1;

/// An item of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) item: Item,
    when: When,
}

/// Until when an item is kept, as it stands in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    /// Microseconds on the server's clock.
    Until(u64),
    /// So many microseconds from when it was written: this stamp.
    For {
        stamp: u64,
        life: u64,
    },
}

/// Whose clock says what is over.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// The server's; it may be further by this many microseconds than what is taken for its time.
    Server { slack: u64 },
    /// That of whoever looks; what is written now has this stamp.
    Own { stamp: u64 },
}

/// How long an observer sees a lease last.
fn seen(life: u64) -> u64 {
    #[cfg(feature = "testing")]
    if super::flaw::has(super::flaw::StoreFlaw::EarlyEnd) {
        return life / 3;
    }
    life + life / 100 + 2_000
}

/// Lines and holds are counted in whole milliseconds.
fn whole(kind: Kind, until: u64) -> u64 {
    match kind {
        Kind::Text | Kind::Foreign | Kind::Watcher => until,
        Kind::Line | Kind::Place | Kind::Hold => until.div_ceil(1000) * 1000,
    }
}

impl Kept {
    /// Reads a state that was seen at `now`, by an observer who has known the same record as `known`.
    /// None where it was not written by this code, or is torn.
    pub(super) fn read(state: &[u8], known: &[Self], now: u64) -> Option<Vec<Self>> {
        let mut rest = match state.split_first() {
            None => return Some(Vec::new()),
            Some((&FORMAT, rest)) => rest,
            Some(_) => return None,
        };
        let mut all = Vec::new();
        while !rest.is_empty() {
            let mut kept = Self::take(&mut rest)?;
            if let When::For { life, .. } = kept.when {
                let before = known.iter().find(|known| {
                    known.item.id == kept.item.id
                        && known.item.what == kept.item.what
                        && known.when == kept.when
                });
                let until = before.and_then(|known| known.item.until);
                let until = until.unwrap_or_else(|| whole(kept.item.id.kind, now + seen(life)));
                kept.item.until = Some(until);
            }
            all.push(kept);
        }
        Some(all)
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let (&kind, behind) = rest.split_first()?;
        *rest = behind;
        let (key, member, what) = (bytes(rest)?, bytes(rest)?, bytes(rest)?);
        let (&form, behind) = rest.split_first()?;
        *rest = behind;
        let when = match form {
            0 => When::Always,
            1 => When::Until(number(rest)?),
            2 => When::For {
                stamp: number(rest)?,
                life: number(rest)?,
            },
            _ => return None,
        };
        let until = match when {
            When::Until(until) => Some(until),
            When::Always | When::For { .. } => None,
        };
        let id = Id::of(kind_of(kind)?, &key, &member);
        let item = Item { id, what, until };
        Some(Self { item, when })
    }

    /// What is kept from `now` on where a record held `before` and is to hold `items`; what has not changed keeps its
    /// time to the bit.
    pub(super) fn after(before: &[Self], items: Vec<Item>, now: u64, clock: Clock) -> Vec<Self> {
        let mut all: Vec<Self> = items
            .into_iter()
            .map(|item| {
                let same = before.iter().find(|known| known.item == item);
                same.cloned().unwrap_or_else(|| Self::new(item, now, clock))
            })
            .collect();
        all.sort_unstable_by(|one, other| one.item.id.cmp(&other.item.id));
        all
    }

    fn new(mut item: Item, now: u64, clock: Clock) -> Self {
        let when = match (item.until, clock) {
            (None, _) => When::Always,
            (Some(until), Clock::Server { slack }) => {
                let until = whole(item.id.kind, until + slack);
                item.until = Some(until);
                When::Until(until)
            }
            (Some(until), Clock::Own { stamp }) => {
                let life = until.saturating_sub(now);
                // By the clock by which its writer counts it is over after exactly that time.
                item.until = Some(whole(item.id.kind, until));
                When::For { stamp, life }
            }
        };
        Self { item, when }
    }

    /// The state of a record that holds these.
    pub(super) fn write(all: &[Self]) -> Vec<u8> {
        let mut state = vec![FORMAT];
        for kept in all {
            let Item { id, what, .. } = &kept.item;
            state.push(id.kind as u8);
            for part in [&id.key, &id.member, what] {
                state.extend((part.len() as u32).to_be_bytes());
                state.extend(part);
            }
            match kept.when {
                When::Always => state.push(0),
                When::Until(until) => {
                    state.push(1);
                    state.extend(until.to_be_bytes());
                }
                When::For { stamp, life } => {
                    state.push(2);
                    state.extend(stamp.to_be_bytes());
                    state.extend(life.to_be_bytes());
                }
            }
        }
        state
    }
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, behind) = rest.split_first_chunk::<8>()?;
    *rest = behind;
    Some(u64::from_be_bytes(*number))
}

fn bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (bytes, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(bytes.to_vec())
}

fn kind_of(byte: u8) -> Option<Kind> {
    let all = [
        Kind::Text,
        Kind::Foreign,
        Kind::Line,
        Kind::Place,
        Kind::Hold,
        Kind::Watcher,
    ];
    all.into_iter().find(|kind| *kind as u8 == byte)
}

/// Microseconds of a duration.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4)
}
