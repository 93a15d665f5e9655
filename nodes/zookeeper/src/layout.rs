//! The paths of all znodes.

use std::fmt::Write;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::address::Address;
use crate::step::CreationId;

/// The znode with the name of the ensemble. It is shared by all paths of the ensemble.
pub(crate) const SERVER_NAME_PATH: &str = "/quorate-server";

/// The paths of the znodes below the path in the URL.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
}

impl Layout {
    pub(crate) fn new(address: &Address) -> Self {
        Self {
            root: address.path.clone(),
        }
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    pub(crate) fn records(&self) -> String {
        format!("{}/records", self.root)
    }

    pub(crate) fn wake_ups(&self) -> String {
        format!("{}/wake", self.root)
    }

    pub(crate) fn identity(&self) -> String {
        format!("{}/identity", self.root)
    }

    /// The path of the parent znode of a record.
    pub(crate) fn record_parent(&self, name: &[u8]) -> String {
        let mut path = self.records();
        path.reserve(1 + 2 * name.len() + 9);
        path.push('/');
        path.push_str(&encode_name(name));
        path
    }

    /// The path of the znode of a record. Each time a record is created, its znode gets a new random number, the
    /// [`CreationId`], as its name.
    pub(crate) fn record_znode(&self, name: &[u8], id: CreationId) -> String {
        let mut path = self.record_parent(name);
        let _ = write!(path, "/{id:08x}");
        path
    }

    pub(crate) fn wake_up(&self, process: &str) -> String {
        format!("{}/wake/{process}", self.root)
    }
}

/// The path of the znode above the znode at `path`.
pub(crate) fn parent_path(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// Returns a random name of 32 hexadecimal digits, for an ensemble or for a temporary znode.
pub(crate) fn random_name() -> String {
    let mut rng: StdRng = rand::make_rng();
    encode_name(&rng.random::<[u8; 16]>())
}

/// Returns the [`CreationId`] that the name of a znode encodes; `None` if [`Layout::record_znode`] did not produce the
/// name.
pub(crate) fn parse_creation_id(name: &str) -> Option<CreationId> {
    CreationId::from_str_radix(name, 16)
        .ok()
        .filter(|id| format!("{id:08x}") == name && *id > 0)
}

/// Encodes bytes as two hexadecimal digits each. An empty name becomes a dash, because a znode needs a name.
pub(crate) fn encode_name(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    quorate::printable::hex(bytes)
}

/// Decodes the output of [`encode_name`]. `None` if `encode_name` did not produce the text.
pub(crate) fn decode_name(text: &str) -> Option<Vec<u8>> {
    if text == "-" {
        return Some(Vec::new());
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = text.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_name_is_unchanged_after_encoding_and_decoding_its_znode_name() {
        let all_bytes: Vec<u8> = (0..=255).collect();
        for name in [&b""[..], b"a", b"a/b\0", &all_bytes] {
            let text = encode_name(name);
            assert!(!text.contains('/') && !text.is_empty());
            assert_eq!(decode_name(&text).as_deref(), Some(name));
        }
        for foreign_name in ["", "a", "zz", "AB", "a-", "probe-1"] {
            assert_eq!(decode_name(foreign_name), None, "{foreign_name}");
        }
    }
}
