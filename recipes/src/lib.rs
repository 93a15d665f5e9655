//! Reads the recipes of `docs/fencing-recipes.md`. The tests run the text of the page, so the page cannot drift.
//!
//! A recipe is a code block after a line `<!-- recipe: NAME -->`.

use std::collections::BTreeMap;

/// The whole page.
pub const PAGE: &str = include_str!("../../docs/fencing-recipes.md");

/// The text of the code block with this name.
///
/// # Panics
///
/// If the page has no such block.
pub fn recipe(name: &str) -> &'static str {
    recipes()
        .remove(name)
        .unwrap_or_else(|| panic!("docs/fencing-recipes.md has no recipe {name}"))
}

/// All code blocks of the page that have a name.
pub fn recipes() -> BTreeMap<&'static str, &'static str> {
    let parts = PAGE.split("<!-- recipe: ").skip(1);
    let named_blocks = parts.filter_map(|part| {
        let (name, after_name) = part.split_once(" -->\n```")?;
        let (_language, code) = after_name.split_once('\n')?;
        Some((name, code.split_once("```\n")?.0))
    });
    named_blocks.collect()
}
