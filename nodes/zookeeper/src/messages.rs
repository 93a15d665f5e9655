//! Encodes messages as the data of a wake-up znode: for each message, its length in four bytes, then its bytes.

pub(crate) fn write<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut data = Vec::new();
    for word in words {
        data.extend((word.len() as u32).to_be_bytes());
        data.extend(word);
    }
    data
}

/// Parses the data of a wake-up znode. `None` if [`write`] did not produce the data.
pub(crate) fn read(mut data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    while !data.is_empty() {
        let (length, rest) = data.split_first_chunk::<4>()?;
        let (word, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        words.push(word.to_vec());
        data = rest;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoder_of_wake_ups_restores_valid_data_and_refuses_malformed_data() {
        for words in [&[][..], &[&b""[..]], &[b"a", b"", b"bcd"]] {
            assert_eq!(read(&write(words.iter().copied())).unwrap(), words);
        }
        for nonsense in [&b"a"[..], b"\0\0\0\x02a", b"\xff\xff\xff\xffabc"] {
            assert_eq!(read(nonsense), None);
        }
    }
}
