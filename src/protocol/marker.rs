//! Which masters a client uses, and whether a master accepts that client (docs/protocol.md, "Replacing masters").
//!
//! The **step** of a client is a number that shows which masters the client uses:
//!
//! - Step 0: the first set of masters.
//! - Step 1: the first and the second set.
//! - Step 2: the second set.
//! - Step 3: the second and the third set, and so on.
//!
//! The **generation** of a client is the number of completed replacements. An operator configures it. The client's step
//! is twice its generation, plus one if the client knows the next masters.
//!
//! Every master stores a **generation marker**: a number that never decreases, and the fingerprint of a set of masters.
//! A master votes for a client at step `s` only if the marker's number is from `2s - 2` to `2s`.
//!
//! Example: the second set replaces the first, and the marker's number rises from 0 to 4.
//!
//! - From 1 on, masters reject clients that use only the first set.
//! - From 2 on, masters accept clients that use only the second set.
//! - From 3 on, masters reject clients that use both sets.
//!
//! A marker can also bear a **name**, which the operator chooses for the service (the setting `masters_name`). A client
//! with a name uses only masters whose marker bears this name. A client without a name ignores the names of markers.

use std::fmt;

/// The generation marker of a master: a number that shows the progress of a replacement of masters, and the fingerprint
/// of the set of masters to which the number belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) number: u64,
    pub(crate) print: Fingerprint,
    /// The fingerprint of the name that the marker bears; `None` if it bears no name.
    pub(crate) name: Option<Fingerprint>,
}

/// Identifies a set of masters by their names. The order of the names does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint is an FNV-1a hash. It detects sets that differ by mistake, but gives no protection against an
    /// attacker.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        let bytes = names.iter().flat_map(|name| name.bytes().chain([b'\n']));
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, step))
    }
}

impl Fingerprint {
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text that is stored in the marker's key.
impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.print)?;
        self.name.map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

impl Marker {
    /// Parses the stored text of the marker's key; `None` if the text is not a generation marker.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let (number, prints) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let number = number.parse().ok()?;
        let parse_print = |text| Some(Fingerprint(u64::from_str_radix(text, 16).ok()?));
        let (print, name) = match prints.split_once(' ') {
            Some((set, name)) => (parse_print(set)?, Some(parse_print(name)?)),
            None => (parse_print(prints)?, None),
        };
        let marker = Self {
            number,
            print,
            name,
        };
        // Accept only the exact text that `Display` writes.
        (marker.to_string().as_bytes() == text).then_some(marker)
    }
}

/// Whether a master votes for a client, according to its generation marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// The marker's number is above the client's range, so the client's configuration is outdated.
    Outdated,
    /// The marker's number is below the client's range: the replacement has not reached the client's masters yet.
    Early,
    /// The marker's fingerprint differs from that of the client's configured masters.
    Other,
    /// The client has a name, and the marker does not bear this name, or there is no marker.
    Nameless,
}

/// The configured masters of a client: their generation, their fingerprint, and the fingerprint of the next masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    generation: u64,
    masters: Fingerprint,
    next: Option<Fingerprint>,
    /// The fingerprint of the name that the markers must bear; `None` if no name is configured.
    name: Option<Fingerprint>,
}

impl Configuration {
    pub(crate) fn new(generation: u64, masters: Fingerprint, next: Option<Fingerprint>) -> Self {
        Self {
            // Limit the generation, so that computed marker numbers cannot overflow.
            generation: generation.min(u64::from(u32::MAX)),
            masters,
            next,
            name: None,
        }
    }

    /// With this name, only masters vote whose marker bears the name.
    pub(crate) fn named(self, name: Option<&str>) -> Self {
        let name = name.map(|name| Fingerprint::new([name]));
        Self { name, ..self }
    }

    /// The fingerprint of the configured name; `None` without a name.
    pub(crate) fn name(self) -> Option<Fingerprint> {
        self.name
    }

    /// Whether the marker bears the configured name. True for every marker if no name is configured.
    pub(crate) fn is_named_by(self, marker: Marker) -> bool {
        self.name.is_none() || marker.name == self.name
    }

    /// Whether each script must check the marker. If not, the check in the handshake is enough: an operator who
    /// replaces the masters closes the connections of clients at step 0.
    pub(crate) fn checks_each_request(self) -> bool {
        self.step() > 0 || self.name.is_some()
    }

    pub(crate) fn step(self) -> u64 {
        2 * self.generation + u64::from(self.next.is_some())
    }

    /// Whether the client is configured with next masters, which replace its current masters.
    pub(crate) fn has_next(self) -> bool {
        self.next.is_some()
    }

    /// The marker number at the end of the replacement that led to this client's masters: four times the generation.
    /// From this number on, masters reject every client that is configured with an earlier generation.
    pub(crate) fn first_marker(self) -> u64 {
        4 * self.generation
    }

    /// The lowest and the highest marker number with which masters admit this client.
    fn range(self) -> (u64, u64) {
        let step = self.step();
        ((2 * step).saturating_sub(2), 2 * step)
    }

    /// The fingerprint of the masters that a marker with this number refers to; `None` if this configuration does not
    /// know them.
    pub(crate) fn print_at(self, number: u64) -> Option<Fingerprint> {
        let generation = number.div_ceil(4);
        if generation == self.generation {
            Some(self.masters)
        } else {
            self.next.filter(|_| generation == self.generation + 1)
        }
    }

    /// Whether a marker with this number belongs to a later replacement of the masters than the last one that this
    /// configuration knows.
    pub(crate) fn is_older_than(self, number: u64) -> bool {
        number.div_ceil(4) > self.step().div_ceil(2)
    }

    /// All markers with which a master admits this client. Without a configured name, a marker that bears a name admits
    /// the client as well.
    pub(crate) fn markers(self) -> impl Iterator<Item = Marker> {
        let (low, high) = self.range();
        (low..=high).filter_map(move |number| {
            let print = self.print_at(number)?;
            let name = self.name;
            Some(Marker {
                number,
                print,
                name,
            })
        })
    }

    /// Whether masters without a generation marker vote for this client. True for steps 0 and 1, because a missing
    /// marker counts as number 0, which admits these steps. False for a client with a name.
    pub(crate) fn needs_no_marker(self) -> bool {
        self.range().0 == 0 && self.name.is_none()
    }

    /// Whether a master with this marker votes for this client; `None` means that the master has no marker.
    pub(crate) fn admission(self, marker: Option<Marker>) -> Admission {
        let (low, high) = self.range();
        let number = marker.map_or(0, |marker| marker.number);
        if number < low {
            Admission::Early
        } else if number > high {
            Admission::Outdated
        } else if marker.is_some_and(|marker| self.print_at(number) != Some(marker.print)) {
            Admission::Other
        } else if self.name.is_some() && marker.and_then(|marker| marker.name) != self.name {
            Admission::Nameless
        } else {
            Admission::Admitted
        }
    }

    /// The tag in the names of this client's connections: its step, a slash, and the fingerprint of a set of masters.
    /// The set is that of the next masters if the client knows them, and that of its current masters otherwise.
    pub(crate) fn tag(self) -> String {
        let print = self.next.unwrap_or(self.masters);
        format!("{}/{print}", self.step())
    }

    /// The fingerprint in the connection names of clients at this step ([`tag`](Self::tag)); `None` if this
    /// configuration does not know it.
    pub(crate) fn tagged(self, step: u64) -> Option<Fingerprint> {
        match step.checked_sub(2 * self.generation)? {
            0 => Some(self.masters),
            1 | 2 => self.next,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Admission::{Admitted, Early, Other, Outdated};
    use super::*;

    fn prints() -> [Fingerprint; 3] {
        [["a", "b"], ["b", "c"], ["c", "d"]].map(Fingerprint::new)
    }

    /// A marker that bears no name.
    fn unnamed_marker(number: u64, print: Fingerprint) -> Marker {
        let name = None;
        Marker {
            number,
            print,
            name,
        }
    }

    /// One client for each step from 0 to 4. The clients at steps 1 and 3 know two sets of masters, the others one set.
    fn clients() -> [Configuration; 5] {
        let [a, b, c] = prints();
        [
            Configuration::new(0, a, None),
            Configuration::new(0, a, Some(b)),
            Configuration::new(1, b, None),
            Configuration::new(1, b, Some(c)),
            Configuration::new(2, c, None),
        ]
    }

    #[test]
    fn generation_marker_rejects_clients_with_outdated_or_too_early_settings() {
        let [a, b, c] = prints();
        for (number, print, admitted) in [
            (0, a, [Admitted, Admitted, Early, Early, Early]),
            (1, b, [Outdated, Admitted, Early, Early, Early]),
            (2, b, [Outdated, Admitted, Admitted, Early, Early]),
            (3, b, [Outdated, Outdated, Admitted, Early, Early]),
            (4, b, [Outdated, Outdated, Admitted, Admitted, Early]),
            (5, c, [Outdated, Outdated, Outdated, Admitted, Early]),
            (6, c, [Outdated, Outdated, Outdated, Admitted, Admitted]),
        ] {
            let marker = Some(unnamed_marker(number, print));
            let admissions = clients().map(|client| client.admission(marker));
            assert_eq!(admissions, admitted, "{number}");
        }
        let without = clients().map(|client| client.admission(None));
        assert_eq!(without, [Admitted, Admitted, Early, Early, Early]);
    }

    #[test]
    fn generation_marker_rejects_clients_configured_with_wrong_masters() {
        let [a, b, c] = prints();
        let marker_with = |number, print| Some(unnamed_marker(number, print));
        let settled = |print| Configuration::new(0, print, None);
        let changing = |settled, next| Configuration::new(0, settled, Some(next));
        assert_eq!(settled(b).admission(marker_with(0, a)), Other);
        assert_eq!(changing(c, b).admission(marker_with(0, a)), Other);
        assert_eq!(changing(a, c).admission(marker_with(1, b)), Other);
        assert_eq!(changing(a, c).admission(marker_with(2, b)), Other);
        assert_eq!(
            Configuration::new(1, c, None).admission(marker_with(2, b)),
            Other
        );
        assert_eq!(
            Configuration::new(1, c, None).admission(marker_with(4, b)),
            Other
        );
    }

    #[test]
    fn client_with_a_name_is_admitted_only_by_markers_that_bear_the_name() {
        use super::Admission::Nameless;
        let [a, b, _] = prints();
        let named = |name| Configuration::new(0, a, None).named(name);
        let name_print = |text: &str| Some(Fingerprint::new([text]));
        let marker_named = |name| Marker {
            name,
            ..unnamed_marker(0, a)
        };
        for (client, name, admitted) in [
            (named(Some("x")), None, Nameless),
            (named(Some("x")), name_print("y"), Nameless),
            (named(Some("x")), name_print("x"), Admitted),
            (named(None), None, Admitted),
            (named(None), name_print("x"), Admitted),
        ] {
            assert_eq!(client.admission(Some(marker_named(name))), admitted);
        }
        assert_eq!(named(Some("x")).admission(None), Nameless);
        assert!(!named(Some("x")).needs_no_marker());
        // The name does not replace the other checks.
        let other_marker = Marker {
            print: b,
            ..marker_named(name_print("x"))
        };
        assert_eq!(named(Some("x")).admission(Some(other_marker)), Other);
        let listed: Vec<_> = named(Some("x")).markers().collect();
        assert_eq!(listed, [marker_named(name_print("x"))]);
    }

    #[test]
    fn client_lists_exactly_the_generation_markers_that_admit_it() {
        let all_markers = || {
            prints()
                .into_iter()
                .flat_map(|print| (0..9).map(move |n| (n, print)))
        };
        for client in clients() {
            let markers = all_markers().map(|(number, print)| unnamed_marker(number, print));
            let admitting = markers.filter(|marker| client.admission(Some(*marker)) == Admitted);
            let mut admitting: Vec<_> = admitting.map(|marker| marker.to_string()).collect();
            let mut listed: Vec<_> = client.markers().map(|marker| marker.to_string()).collect();
            admitting.sort();
            listed.sort();
            assert_eq!(admitting, listed, "step {}", client.step());
            assert_eq!(client.needs_no_marker(), client.step() < 2);
        }
    }

    #[test]
    fn configuration_is_older_than_the_markers_of_later_replacements_only() {
        let [a, b, _] = prints();
        for (next, last) in [(None, 12), (Some(b), 16)] {
            let client = Configuration::new(3, a, next);
            for number in 0..24 {
                assert_eq!(client.is_older_than(number), number > last, "{number}");
                let is_known = client.print_at(number).is_some();
                assert_eq!(is_known, (9..=last).contains(&number), "{number}");
            }
        }
    }

    #[test]
    fn client_knows_fingerprints_at_most_one_step_away_in_a_change_of_masters() {
        let [a, b, _] = prints();
        let change = Configuration::new(3, a, Some(b));
        let tags: Vec<_> = (5..10).map(|step| change.tagged(step)).collect();
        assert_eq!(tags, [None, Some(a), Some(b), Some(b), None]);
        assert_eq!(change.tag(), format!("7/{b}"));
        assert_eq!(Configuration::new(3, a, None).tag(), format!("6/{a}"));
    }

    #[test]
    fn generation_marker_is_read_only_from_well_formed_text() {
        let marker = unnamed_marker(5, prints()[0]);
        let name = Some(prints()[1]);
        for marker in [marker, Marker { name, ..marker }] {
            assert_eq!(Marker::read(marker.to_string().as_bytes()), Some(marker));
        }
        for malformed in [
            "",
            "5",
            "5 ",
            "5 12",
            "x 0123456789abcdef",
            "+5 0123456789abcdef",
            "5 +123456789abcdef",
            "5 0123456789abcdef0",
            "5 0123456789abcdef ",
            "5 0123456789abcdef 12",
            "5 0123456789abcdef 0123456789abcdef 0123456789abcdef",
        ] {
            assert_eq!(Marker::read(malformed.as_bytes()), None, "{malformed}");
        }
    }

    #[test]
    fn fingerprint_ignores_the_order_of_the_masters() {
        assert_eq!(Fingerprint::new(["a", "b"]), Fingerprint::new(["b", "a"]));
        assert_ne!(Fingerprint::new(["ab"]), Fingerprint::new(["a", "b"]));
    }
}
