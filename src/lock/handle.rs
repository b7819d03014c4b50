//! The secret that proves a grant, and what a record may know of it.

use std::fmt;

use sha2::{Digest, Sha256};

/// The secret that proves a grant: 128 random bits, shown once to the one who got it, as 32 hex digits.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle([u8; 16]);

/// The SHA-256 of a handle. Everybody may know it; it opens nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct HandleHash([u8; 32]);

impl Handle {
    /// A handle of these random bytes.
    pub fn new(secret: [u8; 16]) -> Handle {
        Handle(secret)
    }

    /// Reads what [`Display`](fmt::Display) prints, also in capitals; `None` for anything else.
    pub fn parse(text: &str) -> Option<Handle> {
        hex(text).map(Handle)
    }

    /// What the record keeps of it.
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
    /// Reads what [`Display`](fmt::Display) prints; `None` for anything else.
    pub fn parse(text: &str) -> Option<HandleHash> {
        hex(text).map(HandleHash).filter(|_| !text.bytes().any(|digit| digit.is_ascii_uppercase()))
    }
}

impl HandleHash {
    /// What wakes whoever waits by it, in the store.
    pub fn channel(&self) -> Vec<u8> {
        self.to_string().into_bytes()
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
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
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
