//! Which kind of lock `run` takes, and what of it a nested `run` is told.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Args;
use quorate::{LockRequest, Owner, Redlock, Wait};

use crate::exit::{self, Failure};
use crate::output;

/// What the command is told that its ancestors hold.
const HELD: &str = "QUORATE_HELD";

/// What it is told of its ancestor's owner.
const OWNER: &str = "QUORATE_OWNER";

/// Arguments of `run` about the kind of lock.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KindArgs {
    /// Lock this as well, all or nothing (may be given up to 15 times)
    #[arg(long, value_name = "RESOURCE", conflicts_with_all = ["shared", "permits", "owner", "reenter"])]
    also: Vec<OsString>,

    /// Hold it as a reader: beside other readers, with no writer beside them
    #[arg(long, conflicts_with_all = ["permits", "owner", "reenter"])]
    shared: bool,

    /// Take one of so many permits of a semaphore of this name
    #[arg(long, value_name = "N", conflicts_with_all = ["owner", "reenter"])]
    permits: Option<usize>,

    /// Hold it as this owner: runs of the same owner hold it beside each other
    #[arg(long, value_name = "ID", conflicts_with = "reenter")]
    owner: Option<String>,

    /// Join the owner of the quorate that this one runs under
    #[arg(long)]
    reenter: bool,
}

/// The kind of lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exclusive,
    Several(Vec<OsString>),
    Shared,
    Permits(usize),
    Owner(String),
}

impl KindArgs {
    /// What was asked for.
    ///
    /// # Errors
    ///
    /// `--reenter` without an ancestor that has an owner.
    pub(crate) fn kind(self) -> Result<Kind, Failure> {
        let owner = if self.reenter {
            let known = std::env::var(OWNER).ok().filter(|id| !id.is_empty());
            Some(known.ok_or_else(|| {
                Failure::usage(
                    "--reenter joins the owner of the quorate that this one runs under, and there is none: \
                     give that one an --owner ID",
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
    /// The lock as the library knows it. `owner` keeps an owner for as long as the request.
    ///
    /// # Errors
    ///
    /// An owner's id that cannot be one.
    pub(crate) fn request<'a>(
        &self,
        redlock: &'a Redlock,
        resource: &OsStr,
        owner: &'a mut Option<Owner>,
    ) -> Result<LockRequest<'a>, Failure> {
        let resource = resource.as_bytes();
        Ok(match self {
            Self::Exclusive => redlock.lock(resource),
            Self::Several(also) => {
                let also = also.iter().map(|one| one.as_bytes());
                redlock.lock_all(std::iter::once(resource).chain(also))
            }
            Self::Shared => redlock.lock(resource).shared(),
            Self::Permits(permits) => redlock.semaphore(resource, *permits),
            Self::Owner(id) => {
                let made = redlock.owner(id.as_str());
                let made = made.map_err(|error| Failure::new(exit::USAGE, error))?;
                owner.insert(made).lock(resource)
            }
        })
    }

    fn letter(&self) -> char {
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

    /// Refuses at once to wait for what an ancestor holds: it waits for us to end.
    ///
    /// # Errors
    ///
    /// As said, with the ancestor's kind of lock and what to do.
    pub(crate) fn check_ancestors(
        &self,
        redlock: &Redlock,
        resource: &OsStr,
        wait: Wait,
    ) -> Result<(), Failure> {
        let held = std::env::var_os(HELD).unwrap_or_default();
        for wanted in self.resources(resource) {
            let place = place(redlock, wanted);
            let kinds = held.as_bytes().split(|byte| *byte == b' ');
            let letters = kinds.filter_map(|entry| {
                let (letter, rest) = entry.split_first()?;
                (rest == place.as_bytes()).then_some(char::from(*letter))
            });
            // A semaphore is another lock than the one of its name.
            let permits = |letter: &char| *letter == 'p';
            let (ours, plain): (Vec<char>, Vec<char>) = letters.partition(permits);
            let beside = match (self, plain.first()) {
                (Self::Permits(permits), _) => *permits == 0 || ours.len() < *permits,
                (_, None) | (Self::Shared, Some('s')) => true,
                // Another owner waits as anybody does, and the ancestor waits for it.
                (Self::Owner(id), Some('o')) => std::env::var(OWNER).as_ref() == Ok(id),
                _ => false,
            };
            if !beside && wait != Wait::None {
                return Err(Failure::new(
                    exit::HELD,
                    format!(
                        "the quorate that this one runs under holds '{}' itself, and waits for this one to end: \
                         give that one an --owner ID and this one --reenter, or name another resource",
                        output::bytes(wanted.as_bytes())
                    ),
                ));
            }
        }
        Ok(())
    }

    /// What the command is told for those that run under it.
    pub(crate) fn environment(
        &self,
        redlock: &Redlock,
        resource: &OsStr,
    ) -> Vec<(&'static str, Option<OsString>)> {
        let mut held = std::env::var_os(HELD).unwrap_or_default().into_vec();
        for resource in self.resources(resource) {
            if !held.is_empty() {
                held.push(b' ');
            }
            let entry = format!("{}{}", self.letter(), place(redlock, resource));
            held.extend(entry.into_bytes());
        }
        let mut env = vec![(HELD, Some(OsString::from_vec(held)))];
        if let Self::Owner(id) = self {
            env.push((OWNER, Some(id.into())));
        }
        env
    }
}

/// Names a resource on its masters, in printable characters without blanks.
fn place(redlock: &Redlock, resource: &OsStr) -> String {
    let mut masters: Vec<String> = redlock.masters().map(ToString::to_string).collect();
    masters.sort_unstable();
    // FNV-1a: it only tells sets of masters apart.
    let hash = masters
        .join(" ")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let mut place = format!("{hash:016x}:");
    for byte in resource.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:/".contains(byte) {
            place.push(char::from(*byte));
        } else {
            place.push_str(&format!("%{byte:02X}"));
        }
    }
    place
}
