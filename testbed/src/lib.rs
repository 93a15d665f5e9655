//! Throw-away servers and faults.
