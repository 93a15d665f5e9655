//! Weaves all mutants of a file into one text, in which each mutant can be switched on alone.

use std::cmp::Reverse;
use std::ops::Range;

/// The texts to insert before and after a range of the original text.
#[derive(Clone, Debug)]
pub(crate) struct Wrap {
    /// The number of the mutant; `None` for a change that is not a mutant.
    pub(crate) id: Option<usize>,
    /// The range of the original text, in bytes.
    pub(crate) range: Range<usize>,
    /// The text before the range.
    pub(crate) before: String,
    /// The text after the range.
    pub(crate) after: String,
}

/// The position of a mutant in the woven text.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// The number of the mutant.
    pub(crate) id: usize,
    /// The range of the mutant in the woven text, in bytes. It includes the texts of [`Wrap`].
    pub(crate) whole: Range<usize>,
}

/// Inserts the two texts of each wrap before and after its range of `text`. If two wraps have the same range, the first
/// one in the list is the outer one.
pub(crate) fn weave(text: &str, mut wraps: Vec<Wrap>) -> (String, Vec<Placed>) {
    wraps.sort_by_key(|wrap| (wrap.range.start, Reverse(wrap.range.end)));
    let mut weaver = Weaver {
        text,
        woven_text: String::with_capacity(2 * text.len()),
        placed: Vec::new(),
    };
    weaver.weave_range(0..text.len(), &wraps);
    (weaver.woven_text, weaver.placed)
}

struct Weaver<'a> {
    text: &'a str,
    woven_text: String,
    placed: Vec<Placed>,
}

impl Weaver<'_> {
    fn weave_range(&mut self, range: Range<usize>, mut wraps: &[Wrap]) {
        let mut position = range.start;
        while let [wrap, rest @ ..] = wraps {
            let Range { start, end } = wrap.range;
            self.woven_text.push_str(&self.text[position..start]);
            let inner_wraps = if start == end {
                0
            } else {
                rest.partition_point(|other| other.range.start < end)
            };
            let (inner_wraps, rest) = rest.split_at(inner_wraps);
            let placed_start = self.woven_text.len();
            self.woven_text.push_str(&wrap.before);
            self.weave_range(start..end, inner_wraps);
            self.woven_text.push_str(&wrap.after);
            self.placed.extend(wrap.id.map(|id| Placed {
                id,
                whole: placed_start..self.woven_text.len(),
            }));
            position = end;
            wraps = rest;
        }
        self.woven_text.push_str(&self.text[position..range.end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_an_inner_mutant_is_placed_inside_the_outer_mutant() {
        let wrap_range = |range, before: &str, after: &str| Wrap {
            id: Some(0),
            range,
            before: before.into(),
            after: after.into(),
        };
        let wraps = vec![
            wrap_range(4..5, "[", "]"),
            wrap_range(0..5, "(", ")"),
            wrap_range(0..5, "{", "}"),
            wrap_range(0..1, "<", ">"),
            wrap_range(2..2, "!", ""),
            wrap_range(6..7, "_", ""),
        ];
        let (text, placed) = weave("a b c d", wraps);
        assert_eq!(text, "({<a> !b [c]}) _d");
        assert_eq!(placed.len(), 6);
        let outer = placed.iter().map(|placed| placed.whole.len()).max();
        assert_eq!(outer, Some("({<a> !b [c]})".len()));
    }
}
