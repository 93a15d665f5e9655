//! The keys of quorate in an etcd cluster.

/// The key with the identity of the cluster. It is the same for all prefixes, so that clients recognise two URLs of one
/// cluster.
pub(crate) const IDENTITY_KEY: &[u8] = b"/quorate-server";
/// The same key as text, for messages and scripts.
pub(crate) const IDENTITY_NAME: &str = "/quorate-server";

/// The keys below the prefix of one URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    prefix: String,
}

impl Layout {
    /// The keys for a URL with this path, which has no slash at its ends.
    pub(crate) fn new(path: &str) -> Self {
        Self {
            prefix: format!("/{path}/"),
        }
    }

    /// The beginning of all keys except the identity key: the path between two slashes.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The beginning of the keys of all records.
    pub(crate) fn records(&self) -> Vec<u8> {
        format!("{}record/", self.prefix).into_bytes()
    }

    /// The first key after those of all records.
    pub(crate) fn records_end(&self) -> Vec<u8> {
        end_of(&self.records())
    }

    /// The key of one record.
    pub(crate) fn record(&self, name: &[u8]) -> Vec<u8> {
        let mut key = self.records();
        key.extend(name);
        key
    }

    /// The key to which the wake-ups of one process are written.
    pub(crate) fn wake_up(&self, process: &str) -> Vec<u8> {
        format!("{}wake/{process}", self.prefix).into_bytes()
    }
}

/// The first key after all keys that begin with `prefix`, which ends with an ASCII character.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_records_are_between_the_ends_of_their_prefix() {
        let layout = Layout::new("locks");
        let (first, end) = (layout.records(), layout.records_end());
        for name in [&b""[..], b"a", b"\xff\xff\xff"] {
            let key = layout.record(name);
            assert!(first <= key && key < end, "{name:?}");
        }
        let wake_up = layout.wake_up("p");
        assert!(wake_up < first || wake_up >= end);
        assert!(wake_up.starts_with(layout.prefix().as_bytes()));
    }
}
