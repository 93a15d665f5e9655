//! Reads values from the JSON of etcd's gateway, and writes them.
//!
//! The gateway writes 64-bit numbers as text and bytes in base64. It leaves out numbers that are 0, empty bytes and
//! `false`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Bytes as the gateway writes them.
pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The number with this name; 0 if it is left out. `None` if there is something else.
pub(crate) fn number(value: &Value, name: &str) -> Option<u64> {
    match value.get(name) {
        None => Some(0),
        Some(Value::String(digits)) => digits.parse().ok(),
        Some(other) => other.as_u64(),
    }
}

/// The bytes with this name; empty if they are left out. `None` if there is something else.
pub(crate) fn bytes(value: &Value, name: &str) -> Option<Vec<u8>> {
    match value.get(name) {
        None => Some(Vec::new()),
        Some(text) => STANDARD.decode(text.as_str()?).ok(),
    }
}

/// The text with this name; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Whether the flag with this name is set.
pub(crate) fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// The list with this name; empty if there is none.
pub(crate) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_the_gateway_leaves_out_are_zero_or_empty() {
        let value =
            json!({"n": "7", "m": 8, "b": "aGk=", "t": "x", "f": true, "l": [1], "s": "-1"});
        assert_eq!(
            [number(&value, "n"), number(&value, "m")],
            [Some(7), Some(8)]
        );
        assert_eq!(number(&value, "none"), Some(0));
        assert_eq!([number(&value, "t"), number(&value, "s")], [None, None]);
        assert_eq!(bytes(&value, "b").as_deref(), Some(&b"hi"[..]));
        assert_eq!(bytes(&value, "none").as_deref(), Some(&b""[..]));
        assert_eq!([bytes(&value, "t"), bytes(&value, "m")], [None, None]);
        assert_eq!((text(&value, "t"), text(&value, "none")), ("x", ""));
        assert!(flag(&value, "f") && !flag(&value, "none"));
        assert_eq!((list(&value, "l").len(), list(&value, "t").len()), (1, 0));
    }

    proptest! {
        #[test]
        fn encoded_bytes_are_decoded_again(original in any::<Vec<u8>>()) {
            let value = json!({"b": encode(&original)});
            prop_assert_eq!(bytes(&value, "b"), Some(original));
        }
    }
}
