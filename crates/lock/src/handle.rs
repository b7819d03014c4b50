//! The secret that proves a grant, and the hash of it in the record.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::text::{self, Text};

/// Secret that proves a grant: 128 random bits, shown once to the holder as 32 hex digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle([u8; 16]);

/// SHA-256 of a handle. The hash is public and proves nothing.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HandleHash(#[serde(with = "text")] [u8; 32]);

impl Handle {
    pub fn new(secret: [u8; 16]) -> Handle {
        Handle(secret)
    }

    /// Parses the output of [`Display`](fmt::Display), even if in capitals; returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Handle> {
        hex(text).map(Handle)
    }

    pub fn proof(&self) -> HandleHash {
        HandleHash(Sha256::digest(self.0).into())
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(out, &self.0)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Handle(secret)")
    }
}

impl HandleHash {
    /// Parses the output of [`Display`](fmt::Display); returns `None` for any other text.
    pub fn parse(text: &str) -> Option<HandleHash> {
        hex(text).map(HandleHash).filter(|_| !text.bytes().any(|digit| digit.is_ascii_uppercase()))
    }

    /// Store channel that wakes the waiter with this handle hash.
    pub fn channel(&self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl Text for [u8; 32] {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&HandleHash(*self))
    }

    fn read<'a, D: Deserializer<'a>>(from: D) -> Result<[u8; 32], D::Error> {
        text::parsed(from, |text| HandleHash::parse(text).map(|hash| hash.0))
    }
}

impl fmt::Display for HandleHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(out, &self.0)
    }
}

impl fmt::Debug for HandleHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(out, &self.0[..4])
    }
}

fn write_hex(out: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    // A record has dozens of hashes, so this function must not allocate.
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    out.write_str(std::str::from_utf8(&text[..2 * bytes.len()]).unwrap_or_default())
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| (pair[at] as char).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_reads_back_and_only_in_full() {
        let handle = Handle::new(*b"0123456789abcdef");
        assert_eq!(handle.to_string(), "30313233343536373839616263646566");
        assert_eq!(Handle::parse(&handle.to_string()), Some(handle));
        for wrong in ["", "30", "3031323334353637383961626364656", "3031323334353637383961626364656g"] {
            assert_eq!(Handle::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_proof_is_the_sha256_of_the_secret() {
        let proof = Handle::new([0; 16]).proof().to_string();
        assert_eq!(proof, "374708fff7719dd5979ec875d56cd2286f6d3cf7ec317a3b25632aab28ec37bb");
    }
}
