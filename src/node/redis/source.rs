//! Completes the Lua source of a script for loading: inserts the parts that several scripts share, and the names of
//! keys.

use crate::keys;

macro_rules! part {
    ($name:literal) => {
        (
            concat!("--+ ", $name, "\n"),
            include_str!(concat!("../../scripts/", $name)),
        )
    };
}

/// Lua code that several scripts share. Each part is inserted into a script in place of the line that names it. The
/// parts are not Lua functions, because function calls would make each execution of the script slower.
const PARTS: [(&str, &str); 20] = [
    part!("fence/read.lua"),
    part!("fence/again.lua"),
    // `fence/raise.lua` names the next two parts. It must come first, because parts are inserted in this order.
    part!("fence/raise.lua"),
    part!("fence/next.lua"),
    part!("fence/lives.lua"),
    part!("line/join.lua"),
    // Names `line/purge.lua`, so it must come earlier: parts are inserted in the order of this list.
    part!("line/first.lua"),
    part!("line/purge.lua"),
    // Names `line/ahead.lua`, so it must come earlier: parts are inserted in the order of this list.
    part!("line/refused.lua"),
    // `line/ahead.lua` counts the waiters ahead of the requesting waiter, or all waiters if the requesting waiter is
    // not queued.
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

/// Inserts the shared parts and the names of keys into a Lua source.
pub(super) fn with_parts(source: &str) -> String {
    let insert_part = |text: String, (line, part): &(&str, &str)| text.replace(line, part);
    keys::fill_placeholders(&PARTS.iter().fold(source.to_owned(), insert_part))
}
