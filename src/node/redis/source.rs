//! The Lua source of a script as it is loaded: with the parts that scripts share, and with the names of keys.

use crate::keys;

macro_rules! part {
    ($name:literal) => {
        (
            concat!("--+ ", $name, "\n"),
            include_str!(concat!("../../scripts/", $name)),
        )
    };
}

/// Lua code that several scripts share. A part replaces the line that names it, because calling a Lua function would make
/// every run of the script slower.
const PARTS: [(&str, &str); 20] = [
    part!("fence/read.lua"),
    part!("fence/again.lua"),
    // Contains another part, which must follow in this list.
    part!("fence/raise.lua"),
    part!("fence/next.lua"),
    part!("fence/lives.lua"),
    part!("line/join.lua"),
    // Contains another part, which must follow in this list.
    part!("line/first.lua"),
    part!("line/purge.lua"),
    // Contains another part, which must follow in this list.
    part!("line/refused.lua"),
    // Returns the number of waiters ahead of this one, or of all waiters if this one is not queued.
    part!("line/ahead.lua"),
    part!("many/call.lua"),
    part!("many/each.lua"),
    part!("many/lines.lua"),
    part!("many/seen.lua"),
    part!("mark/has.lua"),
    part!("mark/class.lua"),
    part!("note/forget.lua"),
    part!("note/said.lua"),
    part!("wake/readers.lua"),
    part!("value/read.lua"),
];

/// A Lua source with its parts and the names of keys inserted.
pub(super) fn with_parts(source: &str) -> String {
    let put_in = |text: String, (line, part): &(&str, &str)| text.replace(line, part);
    keys::put_in(&PARTS.iter().fold(source.to_owned(), put_in))
}
