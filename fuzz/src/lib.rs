//! Functions that pass arbitrary bytes to the parsers of `quorate`. A panic in one of them is a bug.
//!
//! `fuzz/libfuzzer` calls the functions with bytes that libFuzzer generates (`scripts/fuzz`). The test
//! `tests/corpus.rs` calls them with the files of `fuzz/corpus`, in every ordinary test run. So a target that no longer
//! compiles or no longer reaches its parser is noticed without libFuzzer.

use std::panic::PanicHookInfo;

pub mod passfile;
pub mod records;
pub mod redis;
pub mod replies;
pub mod urls;
pub mod zookeeper;

/// Passes an input to a parser.
pub type Target = fn(&[u8]) -> Depth;

/// All targets: the name of each, which is also the name of its folder in `fuzz/corpus`, and its function. The function
/// returns how far the input got, so that a test can find out whether a corpus still reaches the parser.
pub const TARGETS: [(&str, Target); 6] = [
    ("redis", redis::run),
    ("replies", replies::run),
    ("records", records::run),
    ("urls", urls::run),
    ("passfile", passfile::run),
    ("zookeeper", zookeeper::run),
];

/// Whether this panic is one that the library expects: the client library for ZooKeeper panics if some replies are too
/// short. A panic hook does not report it. The library must catch it, so it must not reach the caller of a target.
pub fn is_expected(panic: &PanicHookInfo<'_>) -> bool {
    let location = panic.location();
    location.is_some_and(|location| location.file().contains("/zookeeper-client-"))
}

/// How far an input got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The parser refused the input.
    Refused,
    /// The parser accepted at least a part of the input.
    Accepted,
}
