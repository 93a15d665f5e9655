//! A Redlock quorum lock.
