//! All tests of the model, in one program.

mod changed_rules;
mod histories;
mod search;
