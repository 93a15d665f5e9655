//! What may be locked.

use crate::keys::RESERVED;

/// The longest resource name, in bytes.
pub const MAX_RESOURCE_LEN: usize = 1024;

/// The most resources in one lock.
pub const MAX_RESOURCES: usize = 16;

/// The most permits of a semaphore.
pub const MAX_PERMITS: usize = 64;

/// The longest id of an owner, in bytes.
pub const MAX_OWNER_LEN: usize = 64;

/// A resource name that cannot be locked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidResource {
    /// The name is empty.
    #[error("the resource name is empty")]
    Empty,
    /// The name is too long.
    #[error("the resource name is {0} bytes long, at most {max} are allowed", max = MAX_RESOURCE_LEN)]
    TooLong(usize),
    /// The name, with its prefix, would be one of quorate's own keys.
    #[error("resource names that begin with {RESERVED:?} are reserved")]
    Reserved,
    /// More than fit into one lock.
    #[error("{0} resources in one lock, at most {max} are allowed", max = MAX_RESOURCES)]
    TooMany(usize),
    /// The same name twice in one lock.
    #[error("the resource {0:?} is named twice")]
    Twice(String),
    /// A number of permits that no semaphore has.
    #[error("a semaphore has 1 to {max} permits, not {0}", max = MAX_PERMITS)]
    Permits(usize),
    /// `shared()` where there is nothing that readers could share.
    #[error("there are no readers {0}: shared() goes with a lock on one resource")]
    NoReaders(&'static str),
    /// A slot that no semaphore has.
    #[error("the slots of a semaphore are 0 to {last}, there is no {0}", last = MAX_PERMITS - 1)]
    Slot(usize),
    /// An owner's id that cannot be one.
    #[error("an owner's id has 1 to {max} bytes, without control characters; this one has {0}", max = MAX_OWNER_LEN)]
    Owner(usize),
    /// An owner's id that looks like the value of a lock: it is most likely one, taken for an id by mistake.
    #[error(
        "an owner's id of 32 hexadecimal digits is the value of some lock: give the owner a name of its own"
    )]
    OwnerIsValue,
}

/// Whether this name can be locked under this prefix.
pub(crate) fn check_resource(prefix: &str, resource: &[u8]) -> Result<(), InvalidResource> {
    if resource.is_empty() {
        return Err(InvalidResource::Empty);
    }
    if resource.len() > MAX_RESOURCE_LEN {
        return Err(InvalidResource::TooLong(resource.len()));
    }
    let reserved = RESERVED.as_bytes();
    // The whole key counts: an empty prefix, or one that ends in the middle of the word.
    let key_start = prefix
        .as_bytes()
        .iter()
        .chain(resource)
        .take(RESERVED.len());
    if key_start.eq(reserved) || resource.starts_with(reserved) {
        return Err(InvalidResource::Reserved);
    }
    Ok(())
}
