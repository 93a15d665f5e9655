//! A master made of a store that keeps records and changes them by compare-and-set.

mod contract;

pub use contract::{
    Change, Commit, Committed, Greeting, Listener, Named, Record, Said, Session, Store, Traits,
    Wake,
};
