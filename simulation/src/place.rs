//! Places: the things that a client can lock, i.e. resources and slots of semaphores. Each place has a number and a
//! key.

/// The largest number of resources in a run.
pub(crate) const RESOURCES: usize = 20;

/// The largest number of semaphores in a run. Their names are `r0` to `r3`.
pub(crate) const SEMAPHORES: usize = 4;

/// The largest number of permits of each semaphore.
pub(crate) const PERMITS: usize = 3;

/// The largest number of places. Resources have the lowest numbers; the slots of the semaphores follow.
pub(crate) const PLACES: usize = RESOURCES + SEMAPHORES * PERMITS;

const PLACE_KEYS: [&str; PLACES] = [
    "r0",
    "r1",
    "r2",
    "r3",
    "r4",
    "r5",
    "r6",
    "r7",
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
    "r16",
    "r17",
    "r18",
    "r19",
    "quorate:slot:0:r0",
    "quorate:slot:1:r0",
    "quorate:slot:2:r0",
    "quorate:slot:0:r1",
    "quorate:slot:1:r1",
    "quorate:slot:2:r1",
    "quorate:slot:0:r2",
    "quorate:slot:1:r2",
    "quorate:slot:2:r2",
    "quorate:slot:0:r3",
    "quorate:slot:1:r3",
    "quorate:slot:2:r3",
];

/// Returns the key of a place: the name of a resource, or the key of a slot.
pub(crate) fn key_of_place(place: u8) -> &'static str {
    PLACE_KEYS[usize::from(place)]
}

/// Returns the number of the place (a resource or a slot) with this key.
pub(crate) fn place_of_key(key: &[u8]) -> usize {
    if let Some([slot, b':', b'r', semaphore]) = key.strip_prefix(b"quorate:slot:") {
        let digit_value = |digit: &u8| usize::from(digit - b'0');
        return RESOURCES + PERMITS * digit_value(semaphore) + digit_value(slot);
    }
    let digits = key.iter().skip(1).map(|digit| usize::from(digit - b'0'));
    digits.fold(0, |number, digit| 10 * number + digit)
}

/// Returns the number of the semaphore that uses `key` for a slot or for its queue; `None` for other keys.
pub(crate) fn semaphore_of_key(key: &[u8]) -> Option<usize> {
    let rest = key.strip_prefix(b"quorate:slot:")?;
    match rest.strip_prefix(b"line:r") {
        Some([semaphore]) => Some(usize::from(semaphore - b'0')),
        _ => semaphore_of_place(place_of_key(key)),
    }
}

/// Whether `key` is the key of a semaphore's queue. The value under such a key is never a lock value.
pub(crate) fn is_semaphore_queue(key: &[u8]) -> bool {
    key.starts_with(b"quorate:slot:line:")
}

/// Returns the place number of a slot of the semaphore for `resource`. Resource n uses the semaphore with the number n
/// modulo `SEMAPHORES`.
pub(crate) fn slot_place(resource: u8, slot: usize) -> u8 {
    let semaphore = usize::from(resource) % SEMAPHORES;
    (RESOURCES + PERMITS * semaphore + slot) as u8
}

/// Returns the number of the semaphore to which a place belongs; `None` for a resource.
pub(crate) fn semaphore_of_place(place: usize) -> Option<usize> {
    Some(place.checked_sub(RESOURCES)? / PERMITS)
}
