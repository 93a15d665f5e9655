//! Encodes the messages of a wake-up for stores that keep a wake-up as the data of one key.

/// Encodes messages as the data of a wake-up: for each message, its length in four bytes, then its bytes.
///
/// ```
/// use quorate::node::store::{decode_messages, encode_messages};
///
/// let data = encode_messages([&b"a"[..], b"bc"]);
/// assert_eq!(decode_messages(&data), Some(vec![b"a".to_vec(), b"bc".to_vec()]));
/// ```
pub fn encode_messages<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut data = Vec::new();
    for message in messages {
        data.extend((message.len() as u32).to_be_bytes());
        data.extend(message);
    }
    data
}

/// Parses the data of a wake-up. `None` if [`encode_messages`] did not produce the data.
pub fn decode_messages(mut data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    while !data.is_empty() {
        let (length, after_length) = data.split_first_chunk::<4>()?;
        let (message, rest) = after_length.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        messages.push(message.to_vec());
        data = rest;
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoder_of_wake_ups_restores_valid_data_and_refuses_malformed_data() {
        for messages in [&[][..], &[&b""[..]], &[b"a", b"", b"bcd"]] {
            assert_eq!(
                decode_messages(&encode_messages(messages.iter().copied())).unwrap(),
                messages
            );
        }
        for malformed_data in [&b"a"[..], b"\0\0\0\x02a", b"\xff\xff\xff\xffabc"] {
            assert_eq!(decode_messages(malformed_data), None);
        }
    }
}
