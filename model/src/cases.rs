//! The cases: which masters, attempts and events each search has.
//!
//! Every attempt has a client of its own. A TTL of two ticks with a drift allowance of one tick gives a validity of one
//! tick, and three ticks give two.

use crate::rules::Sets;
use crate::world::Case;

/// Three masters, which are not replaced.
const THREE: Sets = [0b111, 0b111];

/// A change from three masters to one of them.
const TO_ONE_OF_THREE: Sets = [0b111, 0b100];

/// A change from one master to another one.
const TO_ANOTHER: Sets = [0b01, 0b10];

/// The clients of a change: of the old masters, of both sets, and of the next masters.
const ALL_STEPS: &[u8] = &[0, 1, 2];

const BASE: Case = Case {
    name: "",
    sets: THREE,
    steps: &[0],
    attempts: 2,
    ttl: 3,
    drift: 1,
    max_ttl: 3,
    short_ttl: 0,
    extensions: 0,
    restarts: 0,
    duplicates: 0,
    fencing: false,
    ticks: 0,
    slack: 0,
};

/// With the shorter TTL.
const BRIEF: Case = Case {
    ttl: 2,
    max_ttl: 2,
    ..BASE
};

/// Three attempts.
pub const ATTEMPTS: Case = Case {
    name: "attempts",
    attempts: 3,
    ..BRIEF
};

/// Two extensions, long or short.
pub const EXTENSIONS: Case = Case {
    name: "extensions",
    extensions: 2,
    short_ttl: 2,
    ..BASE
};

/// A request that a master executes twice.
pub const DUPLICATES: Case = Case {
    name: "duplicates",
    extensions: 1,
    duplicates: 1,
    ..BASE
};

/// A restart, and an extension.
pub const RESTART: Case = Case {
    name: "restart",
    restarts: 1,
    extensions: 1,
    ..BASE
};

/// Two restarts.
pub const RESTARTS: Case = Case {
    name: "restarts",
    restarts: 2,
    ..BASE
};

/// Fencing tokens of two clients.
pub const TOKENS: Case = Case {
    name: "tokens",
    fencing: true,
    ..BASE
};

/// Fencing tokens of three clients.
pub const MORE_TOKENS: Case = Case {
    name: "more-tokens",
    attempts: 3,
    fencing: true,
    ..BRIEF
};

/// A single master that loses its fencing counter, twice.
pub const LOST_COUNTER: Case = Case {
    name: "lost-counter",
    sets: [1, 1],
    attempts: 3,
    restarts: 2,
    ticks: 6,
    fencing: true,
    ..BRIEF
};

/// Two masters that lose their fencing counters. The numbers that clients propose differ from the clocks.
pub const LOST_COUNTERS: Case = Case {
    name: "lost-counters",
    sets: [0b11, 0b11],
    restarts: 2,
    ticks: 6,
    slack: 1,
    fencing: true,
    ..BASE
};

/// A change from three masters to one of them, with an extension.
pub const CHANGE: Case = Case {
    name: "change",
    sets: TO_ONE_OF_THREE,
    steps: ALL_STEPS,
    extensions: 1,
    ..BRIEF
};

/// A change from one master to three others.
pub const CHANGE_OF_ALL: Case = Case {
    name: "change-of-all",
    sets: [0b0001, 0b1110],
    steps: ALL_STEPS,
    ..BRIEF
};

/// A change from one master to another one, during which clients renew their locks for longer than the operator waits.
pub const RENEWED_CHANGE: Case = Case {
    name: "renewed-change",
    sets: TO_ANOTHER,
    steps: ALL_STEPS,
    extensions: 3,
    ..BASE
};

/// A change from one master to another one, with fencing tokens.
pub const TOKENS_OF_CHANGE: Case = Case {
    name: "tokens-of-change",
    sets: TO_ANOTHER,
    steps: ALL_STEPS,
    fencing: true,
    ..BRIEF
};

/// A change from three masters to one of them, with fencing tokens.
pub const MORE_TOKENS_OF_CHANGE: Case = Case {
    name: "more-tokens-of-change",
    sets: TO_ONE_OF_THREE,
    steps: ALL_STEPS,
    fencing: true,
    ..BRIEF
};

/// The cases of the search that runs in every `cargo test`.
pub const SMALL: [Case; 12] = [
    ATTEMPTS,
    EXTENSIONS,
    DUPLICATES,
    RESTART,
    RESTARTS,
    TOKENS,
    LOST_COUNTER,
    LOST_COUNTERS,
    CHANGE,
    CHANGE_OF_ALL,
    RENEWED_CHANGE,
    TOKENS_OF_CHANGE,
];

/// The further cases of the nightly search.
pub const LARGE: [Case; 7] = [
    Case {
        name: "more-attempts",
        attempts: 4,
        ..BRIEF
    },
    Case {
        name: "more-extensions",
        attempts: 3,
        extensions: 1,
        ..BASE
    },
    Case {
        name: "more-restarts",
        restarts: 2,
        extensions: 1,
        ..BASE
    },
    MORE_TOKENS,
    MORE_TOKENS_OF_CHANGE,
    Case {
        name: "change-of-two",
        sets: [0b0111, 0b1100],
        steps: ALL_STEPS,
        ..BRIEF
    },
    Case {
        name: "three-tokens-of-change",
        sets: TO_ANOTHER,
        steps: ALL_STEPS,
        attempts: 3,
        fencing: true,
        ..BRIEF
    },
];
