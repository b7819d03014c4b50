//! The parts of a server's certificate that logins and old certificates need (X.509, DER).

use ring::digest;

/// Parts of a certificate, each without tag and length.
pub(super) struct Parts<'a> {
    signature: &'a [u8],
    /// Identifier of the algorithm of its key, with its parameters.
    pub(super) key_algorithm: &'a [u8],
    pub(super) key: &'a [u8],
}

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const OBJECT_ID: u8 = 0x06;
const VERSION: u8 = 0xa0;

/// Identifiers of algorithms that sign with SHA-384 and SHA-512: RSA, ECDSA; and with SHA-256 or a weaker hash.
const SHA384: [&[u8]; 2] = [b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c", b"\x2a\x86\x48\xce\x3d\x04\x03\x03"];
const SHA512: [&[u8]; 2] = [b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d", b"\x2a\x86\x48\xce\x3d\x04\x03\x04"];
const SHA256: [&[u8]; 5] = [
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b",
    b"\x2a\x86\x48\xce\x3d\x04\x03\x02",
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05",
    b"\x2a\x86\x48\xce\x3d\x04\x01",
    b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04",
];

/// Returns the next element if it has this tag: its content, and the bytes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (bytes, rest) =
                rest.split_at_checked(usize::from(long & 0x7f)).filter(|(bytes, _)| bytes.len() <= 3)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
    };
    (*found == tag).then(|| rest.split_at_checked(length))?
}

fn skip(der: &[u8]) -> Option<&[u8]> {
    element(der, *der.first()?).map(|(_, rest)| rest)
}

impl Parts<'_> {
    pub(super) fn of(certificate: &[u8]) -> Option<Parts<'_>> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (signed, rest) = element(certificate, SEQUENCE)?;
        let (signature, _) = element(rest, SEQUENCE)?;
        let signed = element(signed, VERSION).map_or(signed, |(_, rest)| rest);
        // Serial number, algorithm, issuer, validity and subject precede the key.
        let key = (0..5).try_fold(signed, |rest, _| skip(rest))?;
        let (key_algorithm, key) = element(element(key, SEQUENCE)?.0, SEQUENCE)?;
        let key = element(key, BIT_STRING)?.0.strip_prefix(&[0])?;
        Some(Parts { signature, key_algorithm, key })
    }
}

/// Returns the hash of the certificate that stands for the connection in a login (RFC 5929, tls-server-end-point); `None` if
/// its algorithm defines none.
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (id, _) = element(Parts::of(certificate)?.signature, OBJECT_ID)?;
    let algorithm = match id {
        id if SHA256.contains(&id) => &digest::SHA256,
        id if SHA384.contains(&id) => &digest::SHA384,
        id if SHA512.contains(&id) => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(algorithm, certificate).as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_no_certificate() {
        for bytes in [&b""[..], b"\x30", b"\x30\x80", b"\x30\x03\x30\x01\x00", b"\x30\x84\xff\xff\xff\xff", &[0x30; 40]]
        {
            assert!(Parts::of(bytes).is_none() && end_point(bytes).is_none(), "{bytes:x?}");
        }
    }
}
