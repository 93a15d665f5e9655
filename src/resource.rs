//! Which resource names, permits and owner ids are valid.

use crate::keys::RESERVED;

/// The longest resource name, in bytes.
pub const MAX_RESOURCE_LEN: usize = 1024;

/// The largest number of resources in one lock.
pub const MAX_RESOURCES: usize = 16;

/// The largest number of permits of a semaphore.
pub const MAX_PERMITS: usize = 64;

/// The longest owner id, in bytes.
pub const MAX_OWNER_LEN: usize = 64;

/// Why a resource name, a number of permits, a slot or an owner id is invalid. The library detects such errors before
/// it sends a request to a master.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidResource {
    /// The resource name is empty.
    #[error("the resource name is empty")]
    Empty,
    /// The resource name is longer than [`MAX_RESOURCE_LEN`] bytes.
    #[error("the resource name is {0} bytes long, at most {max} are allowed", max = MAX_RESOURCE_LEN)]
    TooLong(usize),
    /// The resource name, or the lock key (prefix and resource name), begins with the reserved word `quorate:`.
    #[error("resource names that begin with {RESERVED:?} are reserved")]
    Reserved,
    /// More than [`MAX_RESOURCES`] resources in one lock.
    #[error("{0} resources in one lock, at most {max} are allowed", max = MAX_RESOURCES)]
    TooMany(usize),
    /// The same name is listed twice in one lock.
    #[error("the resource {0:?} is named twice")]
    Twice(String),
    /// The number of permits is not in the range 1 to [`MAX_PERMITS`].
    #[error("a semaphore has 1 to {max} permits, not {0}", max = MAX_PERMITS)]
    Permits(usize),
    /// `shared()` was called for a kind of lock that has no readers.
    #[error("shared() is not supported {0}: use it with a lock on a single resource")]
    NoReaders(&'static str),
    /// The slot number is not in the range 0 to [`MAX_PERMITS`]` - 1`.
    #[error("there is no slot {0}: the slots of a semaphore are 0 to {last}", last = MAX_PERMITS - 1)]
    Slot(usize),
    /// The owner's id is empty, longer than [`MAX_OWNER_LEN`] bytes, or contains control characters.
    #[error("an owner's id has 1 to {max} bytes and no control characters; this id has {0} bytes", max = MAX_OWNER_LEN)]
    Owner(usize),
    /// The owner's id has 32 hexadecimal digits, like the token of a lock. Probably a token was passed by mistake.
    #[error(
        "an owner's id of 32 hexadecimal digits looks like the token of a lock: give the owner another id"
    )]
    OwnerIsValue,
}

/// Checks that this resource name can be locked with this key prefix.
pub(crate) fn check_resource(prefix: &str, resource: &[u8]) -> Result<(), InvalidResource> {
    if resource.is_empty() {
        return Err(InvalidResource::Empty);
    }
    if resource.len() > MAX_RESOURCE_LEN {
        return Err(InvalidResource::TooLong(resource.len()));
    }
    let reserved = RESERVED.as_bytes();
    // The prefix and the resource name together can form the reserved word, so check the whole key.
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
