//! Finds all mutants of the library code that decides about locks.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::mutant::{Mutant, number};
use crate::rust::Constant;
use crate::{lua, rust, targets};

/// The files with the code that decides about locks, and the mutants of this code.
#[derive(Debug)]
pub(crate) struct Code {
    /// The text of each file.
    pub(crate) texts: BTreeMap<String, String>,
    /// The `const fn` functions of each file.
    pub(crate) constant: BTreeMap<String, Vec<Constant>>,
    /// The mutants, numbered by file and position.
    pub(crate) mutants: Vec<Mutant>,
}

/// Finds the mutants of the code in the checkout `root`.
pub(crate) fn find(root: &Path) -> Result<Code> {
    let mut code = Code {
        texts: BTreeMap::new(),
        constant: BTreeMap::new(),
        mutants: Vec::new(),
    };
    for (file, text) in targets::mutated_files(root)? {
        if Path::new(&file)
            .extension()
            .is_some_and(|extension| extension == "lua")
        {
            code.mutants.extend(lua::mutants(&file, &text));
        } else {
            let file_mutants = rust::find(&file, &text)?;
            code.mutants.extend(file_mutants.mutants);
            code.constant.insert(file.clone(), file_mutants.constant);
        }
        code.texts.insert(file, text);
    }
    code.mutants
        .sort_by(|a, b| (&a.file, a.range.start).cmp(&(&b.file, b.range.start)));
    number(&mut code.mutants);
    Ok(code)
}
