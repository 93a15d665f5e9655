use super::*;

/// The comment at the head of a script, as one line.
fn header(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("-- "));
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn header_of_every_script_names_its_keys_and_arguments_in_order() {
    let rows = Script::ALL.into_iter().map(Script::row);
    let rows = rows.map(|row| (row.source, &row.keys, &row.args));
    let of_operators =
        [&RAISE_MARKER, &CARRY_COUNTERS].map(|row| (row.source, &row.keys, &row.args));
    for (source, keys, args) in rows.chain(of_operators) {
        let header = header(source);
        let (_, argument_text) = header
            .split_once("KEYS: ")
            .expect("the header must name KEYS");
        let (key_text, argument_text) = argument_text
            .split_once(" ARGV: ")
            .expect("the header must name ARGV");
        let (ScriptKeys::One(name) | ScriptKeys::Many(name)) = keys;
        assert!(key_text.starts_with(name), "{name} in {header:?}");
        let mut rest = argument_text.split("Reply").next().unwrap_or_default();
        for name in [args.first, args.each, args.last].concat() {
            let after_name = rest.split_once(name);
            (_, rest) = after_name.unwrap_or_else(|| {
                panic!("the header must name {name:?} next: {rest:?} of {header:?}")
            });
        }
    }
}

#[test]
fn highest_argument_index_in_a_script_equals_the_listed_number_of_arguments() {
    let rows = Script::ALL.map(|script| (script.source(), &script.row().args));
    let raise = with_parts(RAISE_MARKER.source);
    for (source, args) in rows.into_iter().chain([(&*raise, &RAISE_MARKER.args)]) {
        let ScriptArgs { first, each, last } = args;
        if !each.is_empty() {
            continue;
        }
        let used_indices = source.split("ARGV[").skip(1).map(|rest| {
            let digits = rest.split(']').next().unwrap_or_default();
            digits
                .parse::<usize>()
                .expect("ARGV must be indexed by a number")
        });
        assert_eq!(
            used_indices.max(),
            Some(first.len() + last.len()),
            "{source}"
        );
    }
}

#[test]
fn script_is_found_by_its_source() {
    for script in Script::ALL {
        assert_eq!(
            Script::from_source(script.source().as_bytes()),
            Some(script)
        );
    }
    assert_eq!(Script::from_source(b"return 1"), None);
}

#[test]
fn every_script_belongs_to_exactly_one_set_of_loaded_scripts() {
    let loaded = ScriptSet::ALL.into_iter().flat_map(ScriptSet::scripts);
    assert!(loaded.eq(Script::ALL));
}
