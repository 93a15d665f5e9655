//! Tests that the page has no code that no test runs.

use std::fs;
use std::path::Path;

use quorate_recipes::{PAGE, recipes};

#[test]
fn every_code_block_of_the_page_has_a_name_and_is_used_by_a_test() {
    let blocks = PAGE.matches("\n```").count() / 2;
    let recipes = recipes();
    assert!(blocks > 20, "{blocks} code blocks");
    assert_eq!(recipes.len(), blocks, "a code block without a name");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all");
    let tests: String = fs::read_dir(folder)
        .expect("the folder of the tests")
        .map(|file| fs::read_to_string(file.expect("a file").path()).expect("a text"))
        .collect();
    for name in recipes.keys() {
        let recipe_call = format!("recipe(\"{name}\")");
        assert!(
            tests.contains(&recipe_call),
            "no test uses the recipe {name}"
        );
    }
}
