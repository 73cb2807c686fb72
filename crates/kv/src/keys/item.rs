//! The value of a key in the store: a head with version and expiry, then the client's value (docs/format.md).
//!
//! A value without a head is one of an earlier version of the program, or of `rackweave kv put`: a string that does not
//! expire, whose version is zero.

use bytes::Bytes;
use rackweave_core::kv::{Found, Version};

/// Bytes of the head.
pub const HEAD: usize = 36;
/// The last byte is the version of the format.
const MAGIC: [u8; 4] = *b"RWI\x01";
/// The only type.
const STRING: u8 = 1;

/// The client's value of what the store has.
pub fn decode(raw: &Bytes) -> Found {
    head(raw).map_or_else(
        || Found { value: raw.clone(), version: Version::default(), expires: None },
        |mut f| {
            f.value = raw.slice(HEAD..);
            f
        },
    )
}

fn head(raw: &[u8]) -> Option<Found> {
    let h = raw.get(..HEAD).filter(|h| h[..4] == MAGIC && h[4] == STRING)?;
    let word = |at: usize| h[at..at + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    if crc32c::crc32c(&h[..32]).to_le_bytes() != h[32..] {
        return None;
    }
    let expires = Some(word(8)).filter(|at| *at != 0);
    Some(Found { value: Bytes::new(), version: Version { epoch: word(16), counter: word(24) }, expires })
}

/// What the store has of a client's value. An expiry at 0 is one at 1.
pub fn encode(value: &[u8], version: Version, expires: Option<u64>) -> Bytes {
    let mut raw = Vec::with_capacity(HEAD + value.len());
    raw.extend_from_slice(&MAGIC);
    raw.extend_from_slice(&[STRING, 0, 0, 0]);
    let words = [expires.map_or(0, |at| at.max(1)), version.epoch, version.counter];
    words.iter().for_each(|w| raw.extend_from_slice(&w.to_le_bytes()));
    let crc = crc32c::crc32c(&raw);
    raw.extend_from_slice(&crc.to_le_bytes());
    raw.extend_from_slice(value);
    raw.into()
}

/// What the store has of a value that needs neither version nor expiry: the value itself, unless it would be taken for
/// one with a head.
pub fn plain(value: Bytes) -> Bytes {
    if head(&value).is_some() { encode(&value, Version::default(), None) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let version = Version { epoch: 0x0102, counter: 3 };
        let raw = encode(b"value", version, Some(1_700_000_000_000));
        assert_eq!(
            raw[..],
            [
                b'R', b'W', b'I', 1, 1, 0, 0, 0, 0x00, 0x68, 0xe5, 0xcf, 0x8b, 0x01, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3,
                0, 0, 0, 0, 0, 0, 0, raw[32], raw[33], raw[34], raw[35], b'v', b'a', b'l', b'u', b'e'
            ]
        );
        let found = Found { value: "value".into(), version, expires: Some(1_700_000_000_000) };
        assert_eq!(decode(&raw), found);
        assert_eq!(decode(&encode(b"", version, None)).expires, None);
        assert_eq!(decode(&encode(b"", version, Some(0))).expires, Some(1));
    }

    #[test]
    fn anything_else_is_a_plain_value() {
        let raw = encode(b"value", Version::default(), Some(5));
        for at in 0..32 {
            let mut bent = raw.to_vec();
            bent[at] ^= 1;
            let bent = Bytes::from(bent);
            assert_eq!(decode(&bent), Found { value: bent, version: Version::default(), expires: None });
        }
        for value in [Bytes::new(), "RWI\x01".into(), raw.slice(..35), raw.clone()] {
            assert_eq!(decode(&plain(value.clone())).value, value);
        }
    }
}
