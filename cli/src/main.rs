//! The `quorate` command line.
fn main() {}
