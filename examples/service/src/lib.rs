//! This package contains only examples.
