//! All mutants of a file in one text, each behind its switch.

use std::cmp::Reverse;
use std::ops::Range;

/// Text to put around a part of another.
#[derive(Clone, Debug)]
pub(crate) struct Wrap {
    /// The mutant, or what else is changed.
    pub(crate) id: Option<usize>,
    /// The part.
    pub(crate) range: Range<usize>,
    /// What goes in front.
    pub(crate) before: String,
    /// And behind.
    pub(crate) after: String,
}

/// Where a mutant came to stand.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    /// The mutant.
    pub(crate) id: usize,
    /// The whole of it, with what it was put around.
    pub(crate) whole: Range<usize>,
}

/// Puts all of them in. Of two around the same part the first is outside.
pub(crate) fn weave(text: &str, mut wraps: Vec<Wrap>) -> (String, Vec<Placed>) {
    wraps.sort_by_key(|wrap| (wrap.range.start, Reverse(wrap.range.end)));
    let mut woven = Woven {
        text,
        out: String::with_capacity(2 * text.len()),
        placed: Vec::new(),
    };
    woven.part(0..text.len(), &wraps);
    (woven.out, woven.placed)
}

struct Woven<'a> {
    text: &'a str,
    out: String,
    placed: Vec<Placed>,
}

impl Woven<'_> {
    fn part(&mut self, range: Range<usize>, mut wraps: &[Wrap]) {
        let mut at = range.start;
        while let [wrap, rest @ ..] = wraps {
            let Range { start, end } = wrap.range;
            self.out.push_str(&self.text[at..start]);
            let inner = if start == end {
                0
            } else {
                rest.partition_point(|other| other.range.start < end)
            };
            let (inner, rest) = rest.split_at(inner);
            let begins = self.out.len();
            self.out.push_str(&wrap.before);
            self.part(start..end, inner);
            self.out.push_str(&wrap.after);
            self.placed.extend(wrap.id.map(|id| Placed {
                id,
                whole: begins..self.out.len(),
            }));
            at = end;
            wraps = rest;
        }
        self.out.push_str(&self.text[at..range.end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_within_another_is_woven_inside_of_it() {
        let wrap = |range, before: &str, after: &str| Wrap {
            id: Some(0),
            range,
            before: before.into(),
            after: after.into(),
        };
        let wraps = vec![
            wrap(4..5, "[", "]"),
            wrap(0..5, "(", ")"),
            wrap(0..5, "{", "}"),
            wrap(0..1, "<", ">"),
            wrap(2..2, "!", ""),
            wrap(6..7, "_", ""),
        ];
        let (text, placed) = weave("a b c d", wraps);
        assert_eq!(text, "({<a> !b [c]}) _d");
        assert_eq!(placed.len(), 6);
        let outer = placed.iter().map(|placed| placed.whole.len()).max();
        assert_eq!(outer, Some("({<a> !b [c]})".len()));
    }
}
