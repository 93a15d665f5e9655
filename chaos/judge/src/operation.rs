//! The input: operations, as `quorate-chaos export` prints them. `docs/histories.md` describes each field.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::promise::Promise;

/// The operations of one run.
#[derive(Debug)]
pub struct Input {
    /// Facts about the run, from the first line.
    pub run: Run,
    /// All operations, sorted by call time.
    pub operations: Vec<Operation>,
}

/// The first line of the input.
#[derive(Debug, Deserialize)]
pub struct Run {
    /// Whether two simultaneous holders are impossible (`holds`), allowed (`may-break`) or certain (`must-break`).
    pub exclusion: String,
    /// The same for tokens that fall. Without this field, tokens always rise.
    pub tokens: Option<String>,
    /// The code that the clients ran.
    pub code: String,
}

impl Run {
    /// The promises that do not hold in this run, so that a refusal shows no bug.
    pub fn broken_promises(&self) -> Vec<Promise> {
        let mut broken = Vec::new();
        if self.exclusion != "holds" {
            broken.extend([Promise::Holds, Promise::Values]);
        }
        if self.tokens.as_ref().is_some_and(|tokens| tokens != "holds") {
            broken.push(Promise::Tokens);
        }
        broken
    }
}

/// One operation on one object. Times are in nanoseconds since the run began.
#[derive(Clone, Debug, Deserialize)]
pub struct Operation {
    pub object: String,
    pub name: String,
    pub op: String,
    pub by: String,
    pub call: u64,
    /// `None` if the operation is open: its end is not in the history.
    #[serde(rename = "return")]
    pub returned: Option<u64>,
    pub outcome: Option<String>,
    pub mode: Option<Value>,
    pub slot: Option<usize>,
    pub token: Option<u64>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub left: Option<u64>,
    pub balances: Option<BTreeMap<String, i64>>,
}

impl Input {
    /// Reads a file of operations.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a line is malformed.
    pub fn load(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or(format!("{name} is empty"))?;
        let run =
            serde_json::from_str(first).map_err(|error| format!("{name}, line 1: {error}"))?;
        let operations = lines.map(|(index, line)| {
            serde_json::from_str(line)
                .map_err(|error| format!("{name}, line {}: {error}", index + 1))
        });
        let mut operations: Vec<Operation> = operations.collect::<Result<_, _>>()?;
        operations.sort_by_key(|operation| operation.call);
        Ok(Self { run, operations })
    }
}
