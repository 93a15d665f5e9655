//! The options for the kind of lock, and the environment variables that describe the held lock. `quorate` sets these
//! variables for the command. A nested `quorate` process reads them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Args;
use quorate::{LockRequest, Redlock, Wait};

use crate::ancestry::Ancestry;
use crate::config::MasterOptions;
use crate::exit::{self, Failure};
use crate::output;

/// The environment variable that lists the locks that ancestor processes hold.
const HELD_VARIABLE: &str = "QUORATE_HELD";

/// The environment variable with the other names of a lock on several resources (`--also`). A space separates two
/// names, and [`percent_encode`] encodes each name.
const ALSO_VARIABLE: &str = "QUORATE_ALSO";

/// The environment variable with the owner id (`--owner`) of the lock.
const OWNER_VARIABLE: &str = "QUORATE_OWNER";

/// The environment variable with the slot number of the permit.
const SLOT_VARIABLE: &str = "QUORATE_SLOT";

/// The heading of the options for the kind of lock in help texts.
const HEADING: &str = "Kind of lock";

/// The options that select the kind of lock, such as `--shared` or `--permits`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KindArgs {
    /// Lock this resource as well: quorate takes all resources or none
    #[arg(long, value_name = "RESOURCE", help_heading = HEADING, conflicts_with_all = ["shared", "permits", "owner", "reenter"])]
    also: Vec<OsString>,

    /// Take a read lock, which several readers can hold together
    #[arg(long, help_heading = HEADING, conflicts_with_all = ["permits", "owner", "reenter"])]
    shared: bool,

    /// Take one permit of the semaphore RESOURCE, which has N permits
    #[arg(long, value_name = "N", help_heading = HEADING, conflicts_with_all = ["owner", "reenter"])]
    permits: Option<usize>,

    /// Take the lock as this owner: all quorate processes with the same owner can hold it together
    #[arg(long, value_name = "ID", hide_short_help = true, help_heading = HEADING, conflicts_with = "reenter")]
    owner: Option<String>,

    /// Take the lock with the owner id of the quorate process that started this one
    #[arg(long, hide_short_help = true, help_heading = HEADING)]
    reenter: bool,
}

/// The kind of lock that `run` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Several(Vec<OsString>),
    Shared,
    Permits(usize),
    Owner(String),
}

impl KindArgs {
    /// Returns the kind of lock that the options select for this resource.
    ///
    /// # Errors
    ///
    /// If `--reenter` is given and no ancestor process has an owner id.
    pub(crate) fn kind(self, lock_space: &LockSpace, resource: &OsStr) -> Result<Kind, Failure> {
        let owner = if self.reenter {
            let lock_id = lock_space.id_of(resource);
            let held = HeldLocks::by_ancestors();
            let holder = held.holder(&lock_id);
            Some(holder.or_else(|| held.nearest_owner()).ok_or_else(|| {
                Failure::usage(
                    "--reenter needs an outer quorate process that was started with --owner ID: start the outer quorate with --owner ID",
                )
            })?)
        } else {
            self.owner
        };
        Ok(match (owner, self.permits) {
            (Some(id), _) => Kind::Owner(id),
            (_, Some(permits)) => Kind::Permits(permits),
            _ if self.shared => Kind::Shared,
            _ if self.also.is_empty() => Kind::Exclusive,
            _ => Kind::Several(self.also),
        })
    }
}

impl Kind {
    /// Creates the library's request for a lock of this kind on `resource`.
    pub(crate) fn request(
        &self,
        redlock: &Redlock,
        resource: &OsStr,
    ) -> Result<LockRequest, Failure> {
        let resource = resource.as_bytes();
        Ok(match self {
            Self::Exclusive => redlock.lock(resource),
            Self::Several(also) => {
                let also = also.iter().map(|name| name.as_bytes());
                redlock.lock_all(std::iter::once(resource).chain(also))
            }
            Self::Shared => redlock.lock(resource).shared(),
            Self::Permits(permits) => redlock.semaphore(resource, *permits),
            Self::Owner(id) => {
                let owner = redlock.owner(id.as_str());
                let owner = owner.map_err(|error| Failure::new(exit::USAGE, error))?;
                owner.lock(resource)
            }
        })
    }

    fn kind_letter(&self) -> char {
        match self {
            Self::Exclusive | Self::Several(_) => 'x',
            Self::Shared => 's',
            Self::Permits(_) => 'p',
            Self::Owner(_) => 'o',
        }
    }

    fn resources<'a>(&'a self, first: &'a OsStr) -> impl Iterator<Item = &'a OsStr> {
        let also = match self {
            Self::Several(also) => &also[..],
            _ => &[],
        };
        std::iter::once(first).chain(also.iter().map(OsString::as_os_str))
    }

    /// Checks that no ancestor process holds a lock that excludes this lock. A wait for this lock would never end,
    /// because the ancestor waits for this process.
    ///
    /// # Errors
    ///
    /// If an ancestor process holds such a lock. There is no error with `Wait::None`, because the process does not
    /// wait.
    pub(crate) fn check_ancestors(
        &self,
        lock_space: &LockSpace,
        resource: &OsStr,
        wait: Wait,
    ) -> Result<(), Failure> {
        if wait == Wait::None {
            return Ok(());
        }
        let held = HeldLocks::by_ancestors();
        for name in self.resources(resource) {
            if !self.is_compatible_with(held.holds_of(&lock_space.id_of(name))) {
                let advice = "start the outer quorate with --owner ID and the inner quorate with --reenter, or use another name";
                return Err(held_by_ancestor(name, advice));
            }
        }
        Ok(())
    }

    /// Whether this is a read lock, and an ancestor process holds the same read lock.
    ///
    /// If a writer waits in the queue for this lock, a wait of this process is a deadlock. This process waits for the
    /// writer, the writer for the ancestor, and the ancestor for this process.
    pub(crate) fn is_read_by_ancestor(&self, lock_space: &LockSpace, resource: &OsStr) -> bool {
        let held = HeldLocks::by_ancestors();
        let lock_id = lock_space.id_of(resource);
        *self == Self::Shared && held.holds_of(&lock_id).any(|hold| hold.kind_letter == b's')
    }

    /// Whether this lock is compatible with the locks `held`, which ancestor processes hold.
    fn is_compatible_with<'a>(&self, held: impl Iterator<Item = Hold<'a>>) -> bool {
        // A semaphore and a lock of the same name do not exclude each other, so check them separately.
        let (permits_held, other_holds): (Vec<Hold<'_>>, Vec<_>) =
            held.partition(|hold| hold.kind_letter == b'p');
        match self {
            Self::Permits(permits) => {
                // Every permit has a number. This process asks only for numbers below `permits`, so count only those.
                let competing = permits_held
                    .iter()
                    .filter(|hold| hold.may_use_slot_below(*permits));
                *permits == 0 || competing.count() < *permits
            }
            Self::Shared => other_holds.iter().all(|hold| hold.kind_letter == b's'),
            // Every ancestor that holds the lock must have the same owner id.
            Self::Owner(id) => other_holds
                .iter()
                .all(|hold| hold.owner().as_ref() == Some(id)),
            Self::Exclusive | Self::Several(_) => other_holds.is_empty(),
        }
    }

    /// The environment variables that describe this lock to nested `quorate` processes. `slot` is the slot number of a
    /// permit; `None` for other kinds of locks.
    pub(crate) fn environment(
        &self,
        lock_space: &LockSpace,
        resource: &OsStr,
        slot: Option<usize>,
    ) -> Vec<(&'static str, Option<OsString>)> {
        let mut held = HeldLocks::by_ancestors().current_entries();
        let holder = Ancestry::of_this_process().and_then(|ancestry| ancestry.name());
        for resource in self.resources(resource) {
            if !held.is_empty() {
                held.push(b' ');
            }
            let mut entry = format!("{}{}", self.kind_letter(), lock_space.id_of(resource));
            match (self, slot) {
                (Self::Owner(id), _) => {
                    entry.push('=');
                    entry.push_str(&percent_encode(id.as_bytes()));
                }
                (Self::Permits(_), Some(slot)) => entry.push_str(&format!("={slot}")),
                _ => {}
            }
            if let Some(holder) = &holder {
                // Only descendants of the process `holder` may use this entry of the variable.
                entry.push_str(&format!("@{holder}"));
            }
            held.extend(entry.into_bytes());
        }
        // Remove the variables that do not apply to this lock. Otherwise the command would inherit the values that an
        // outer quorate has set for its own lock.
        let owner = match self {
            Self::Owner(id) => Some(id.into()),
            _ => None,
        };
        let also = match self {
            Self::Several(also) => Some(join_names(also).into()),
            _ => None,
        };
        vec![
            (HELD_VARIABLE, Some(OsString::from_vec(held))),
            (ALSO_VARIABLE, also),
            (OWNER_VARIABLE, owner),
            (SLOT_VARIABLE, slot.map(|slot| slot.to_string().into())),
        ]
    }
}

/// The value of [`ALSO_VARIABLE`] for these names.
fn join_names(also: &[OsString]) -> String {
    let names = also.iter().map(|name| percent_encode(name.as_bytes()));
    names.collect::<Vec<_>>().join(" ")
}

/// The other names of the lock under which this process runs, as [`ALSO_VARIABLE`] lists them. Empty if the lock has
/// one name.
///
/// # Errors
///
/// If the variable was changed, so that it is no list of names.
pub(crate) fn also_of_this_command() -> Result<Vec<OsString>, Failure> {
    split_names(&std::env::var_os(ALSO_VARIABLE).unwrap_or_default()).ok_or_else(|| {
        Failure::usage(format!(
            "{ALSO_VARIABLE} is no list of names of quorate run --also"
        ))
    })
}

fn split_names(text: &OsStr) -> Option<Vec<OsString>> {
    let names = text.as_bytes().split(|byte| *byte == b' ');
    let names = names.filter(|name| !name.is_empty());
    names
        .map(|name| percent_decode(name).map(OsString::from_vec))
        .collect()
}

/// Checks that no ancestor process holds the lock `name`. `quorate quota` and `quorate once` take this lock to read or
/// change their stored value `name`. If an ancestor holds the lock, they would wait forever.
///
/// # Errors
///
/// If an ancestor process holds the lock.
pub(crate) fn check_ancestors_of_value(
    lock_space: &LockSpace,
    name: &OsStr,
) -> Result<(), Failure> {
    let held = HeldLocks::by_ancestors();
    if Kind::Exclusive.is_compatible_with(held.holds_of(&lock_space.id_of(name))) {
        return Ok(());
    }
    let advice = "run this command before or after the outer quorate, or use another name (each change of a quota or \
                 of a once record takes the lock with its name)";
    Err(held_by_ancestor(name, advice))
}

fn held_by_ancestor(resource: &OsStr, advice: &str) -> Failure {
    Failure::new(
        exit::HELD,
        format!(
            "'{}' is held by the outer quorate process, which waits for this inner quorate to end: {advice}",
            output::printable(resource.as_bytes())
        ),
    )
}

/// The locks that ancestor processes hold, as the variable [`HELD_VARIABLE`] lists them.
struct HeldLocks {
    entries: Vec<u8>,
    /// The ancestors of this process; `None` if [`HELD_VARIABLE`] lists no lock or the ancestors cannot be read.
    ancestry: Option<Ancestry>,
}

impl HeldLocks {
    fn by_ancestors() -> Self {
        let entries = std::env::var_os(HELD_VARIABLE)
            .unwrap_or_default()
            .into_vec();
        // Read `/proc` only if [`HELD_VARIABLE`] lists a lock.
        let has_entries = !entries.is_empty();
        let ancestry = has_entries.then(Ancestry::of_this_process).flatten();
        Self { entries, ancestry }
    }

    /// The locks that ancestor processes hold: each entry of [`HELD_VARIABLE`], and the lock that it describes.
    fn entries_and_holds(&self) -> impl DoubleEndedIterator<Item = (&[u8], Hold<'_>)> {
        let entries = self.entries.split(|byte| *byte == b' ');
        entries.filter_map(|entry| {
            let (kind_letter, rest) = entry.split_first()?;
            let mut entry_parts = rest.splitn(2, |byte| *byte == b'@');
            let mut parts = entry_parts.next()?.splitn(2, |byte| *byte == b'=');
            let hold = Hold {
                kind_letter: *kind_letter,
                lock_id: parts.next()?,
                slot_or_owner: parts.next(),
            };
            self.is_by_ancestor(entry_parts.next())
                .then_some((entry, hold))
        })
    }

    /// The locks that ancestor processes hold on one resource. `lock_id` identifies the resource; [`LockSpace::id_of`]
    /// returns it.
    fn holds_of<'a>(&'a self, lock_id: &'a str) -> impl Iterator<Item = Hold<'a>> {
        let holds = self.entries_and_holds().map(|(_, hold)| hold);
        holds.filter(move |hold| hold.lock_id == lock_id.as_bytes())
    }

    /// The entries of [`HELD_VARIABLE`] for locks that ancestor processes hold, in the form of the variable.
    fn current_entries(&self) -> Vec<u8> {
        let entries: Vec<&[u8]> = self.entries_and_holds().map(|(entry, _)| entry).collect();
        entries.join(&b' ')
    }

    /// Whether `holder`, the process that an entry of [`HELD_VARIABLE`] names, is an ancestor of this process. Only an
    /// ancestor waits for this process. The environment may also come from another process, for example if this process
    /// runs in a container or under a daemon.
    ///
    /// Where ancestors cannot be read (no Linux), quorate names no process in its entries. Then every entry without a
    /// process counts.
    fn is_by_ancestor(&self, holder: Option<&[u8]>) -> bool {
        match (&self.ancestry, holder) {
            (Some(ancestry), Some(holder)) => {
                std::str::from_utf8(holder).is_ok_and(|name| ancestry.contains(name))
            }
            (None, None) => !cfg!(target_os = "linux"),
            _ => false,
        }
    }

    /// The owner id of the nearest ancestor process that holds a lock as an owner; `None` if there is none.
    fn nearest_owner(&self) -> Option<String> {
        self.entries_and_holds()
            .rev()
            .find_map(|(_, hold)| hold.owner())
    }

    /// The owner id with which an ancestor process holds the lock on `lock_id`; `None` if no ancestor holds it as an
    /// owner.
    fn holder(&self, lock_id: &str) -> Option<String> {
        self.holds_of(lock_id).find_map(|hold| hold.owner())
    }
}

/// Describes the holder of a lock for messages. `key` is the value of the lock key on a master. Returns `readers` or
/// the id of the owner if the value names them, otherwise the value itself.
pub(crate) fn holder_text(key: &str) -> String {
    match key.strip_prefix("quorate:owner:") {
        Some(owner) => format!("owner '{owner}'"),
        None if key == "quorate:shared" => "readers".to_owned(),
        None => key.to_owned(),
    }
}

/// One lock that an ancestor process holds, parsed from [`HELD_VARIABLE`].
struct Hold<'a> {
    kind_letter: u8,
    /// The locked resource, as [`LockSpace::id_of`] returns it.
    lock_id: &'a [u8],
    /// The owner id of an owner lock, or the slot number of a permit. `None` for other kinds of locks.
    slot_or_owner: Option<&'a [u8]>,
}

impl Hold<'_> {
    fn owner(&self) -> Option<String> {
        let id = self.slot_or_owner.filter(|_| self.kind_letter == b'o')?;
        String::from_utf8(percent_decode(id)?).ok()
    }

    /// Whether the slot number of this permit is below `permits`. Returns true if the slot number is unknown.
    fn may_use_slot_below(&self, permits: usize) -> bool {
        let slot = self
            .slot_or_owner
            .and_then(|slot| std::str::from_utf8(slot).ok()?.parse().ok());
        slot.is_none_or(|slot: usize| slot < permits)
    }
}

/// Whether an ancestor process holds a lock and waits for this process.
pub(crate) fn is_nested() -> bool {
    HeldLocks::by_ancestors()
        .entries_and_holds()
        .next()
        .is_some()
}

/// The masters and the key prefix with which this process takes locks. With other masters or another prefix, the same
/// resource name refers to a different lock.
pub(crate) struct LockSpace {
    masters: u64,
    prefix: String,
}

impl LockSpace {
    pub(crate) fn new(redlock: &Redlock, options: &MasterOptions) -> Self {
        let mut masters: Vec<String> = redlock.masters().map(ToString::to_string).collect();
        masters.sort_unstable();
        // FNV-1a. The hash only distinguishes sets of masters, so it need not be cryptographic.
        let add_to_hash = |add_to_hash: u64, byte| {
            (add_to_hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        };
        let masters = masters.join(" ");
        Self {
            masters: masters.bytes().fold(0xcbf2_9ce4_8422_2325, add_to_hash),
            prefix: options.settings().prefix.clone().unwrap_or_default(),
        }
    }

    /// A text that identifies a resource: a hash of the masters, then the key prefix and the resource name. It contains
    /// no spaces.
    fn id_of(&self, resource: &OsStr) -> String {
        let key = [self.prefix.as_bytes(), resource.as_bytes()].concat();
        format!("{:016x}:{}", self.masters, percent_encode(&key))
    }
}

fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-_.:/".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Decodes a text that [`percent_encode`] has encoded; `None` if it is malformed.
fn percent_decode(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((byte, rest)) = text.split_first() {
        let (byte, rest) = if *byte == b'%' {
            let (digits, rest) = rest.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            (u8::from_str_radix(digits, 16).ok()?, rest)
        } else {
            (*byte, rest)
        };
        bytes.push(byte);
        text = rest;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_readers_and_owners_are_shown_in_readable_form() {
        assert_eq!(holder_text("quorate:shared"), "readers");
        assert_eq!(holder_text("quorate:owner:me"), "owner 'me'");
        assert_eq!(holder_text("0a1b"), "0a1b");
    }

    #[test]
    fn list_of_names_is_read_as_it_was_written() {
        for names in [&[][..], &["s"], &["a b", "c=d", "ö%", "e\nf"]] {
            let names: Vec<OsString> = names.iter().map(OsString::from).collect();
            assert_eq!(split_names(OsStr::new(&join_names(&names))), Some(names));
        }
        assert_eq!(split_names(OsStr::new("a %x")), None);
    }

    #[test]
    fn unescaping_restores_every_escaped_byte() {
        let all_bytes: Vec<u8> = (0..=u8::MAX).collect();
        let text = percent_encode(&all_bytes);
        assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'=')
        );
        assert_eq!(percent_decode(text.as_bytes()), Some(all_bytes));
        for cut in ["%", "%4", "%4x", "%é"] {
            assert_eq!(percent_decode(cut.as_bytes()), None, "{cut}");
        }
    }
}
