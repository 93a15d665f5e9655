use super::*;

/// The comment at the head of a script, as one line.
fn header(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("-- "));
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn header_of_every_script_names_its_keys_and_arguments_in_order() {
    for script in Script::ALL {
        let row = script.row();
        let header = header(row.source);
        let (_, said) = header
            .split_once("KEYS: ")
            .expect("the header of the script must name KEYS");
        let (keys, said) = said
            .split_once(" ARGV: ")
            .expect("the header of the script must name ARGV");
        let (Keys::One(name) | Keys::Many(name)) = row.keys;
        assert!(keys.starts_with(name), "{script:?}: {name} in {keys:?}");
        let mut rest = said.split("Reply").next().unwrap_or_default();
        for name in [row.args.first, row.args.each, row.args.last].concat() {
            let behind = rest.split_once(name);
            (_, rest) = behind.unwrap_or_else(|| panic!("{script:?}: {name} in {rest:?}"));
        }
    }
}

#[test]
fn script_without_arguments_for_each_key_uses_exactly_the_arguments_of_its_row() {
    for script in Script::ALL {
        let Args { first, each, last } = script.row().args;
        if !each.is_empty() {
            continue;
        }
        let used = script.source().split("ARGV[").skip(1).map(|rest| {
            let digits = rest.split(']').next().unwrap_or_default();
            digits
                .parse::<usize>()
                .expect("ARGV must be indexed by a number")
        });
        assert_eq!(used.max(), Some(first.len() + last.len()), "{script:?}");
    }
}

#[test]
fn script_is_recognised_by_its_source_alone() {
    for script in Script::ALL {
        assert_eq!(Script::of_source(script.source().as_bytes()), Some(script));
    }
    assert_eq!(Script::of_source(b"return 1"), None);
}

#[test]
fn every_script_belongs_to_exactly_one_set_of_loaded_scripts() {
    let loaded = Set::ALL.into_iter().flat_map(Set::scripts);
    assert!(loaded.eq(Script::ALL));
}
