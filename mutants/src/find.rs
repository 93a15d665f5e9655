//! All mutants of the code that decides.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::mutant::{Mutant, number};
use crate::rust::Constant;
use crate::{lua, rust, targets};

/// The code that decides, and its mutants.
#[derive(Debug)]
pub(crate) struct Code {
    /// What each file says.
    pub(crate) texts: BTreeMap<String, String>,
    /// Its functions that the compiler can call.
    pub(crate) constant: BTreeMap<String, Vec<Constant>>,
    /// Numbered, by file and place.
    pub(crate) mutants: Vec<Mutant>,
}

/// Finds them in a checkout.
pub(crate) fn find(root: &Path) -> Result<Code> {
    let mut code = Code {
        texts: BTreeMap::new(),
        constant: BTreeMap::new(),
        mutants: Vec::new(),
    };
    for (file, text) in targets::deciding(root)? {
        if Path::new(&file)
            .extension()
            .is_some_and(|kind| kind == "lua")
        {
            code.mutants.extend(lua::mutants(&file, &text));
        } else {
            let found = rust::find(&file, &text)?;
            code.mutants.extend(found.mutants);
            code.constant.insert(file.clone(), found.constant);
        }
        code.texts.insert(file, text);
    }
    code.mutants
        .sort_by(|a, b| (&a.file, a.range.start).cmp(&(&b.file, b.range.start)));
    number(&mut code.mutants);
    Ok(code)
}
