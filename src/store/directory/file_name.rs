//! The file name of a record's directory, which stands for the name of its lock.

use sha2::{Digest, Sha256};

/// Maximum length in bytes of an escaped file name; a longer name is cut and gets a hash. NAME_MAX is 255.
const LONGEST_PLAIN: usize = 200;

/// Number of bytes of a long name that its file name keeps.
const SEEN_OF_LONG: usize = 100;

/// Returns the file name for a lock's name. Letters, digits, `_`, `-` and inner dots stay; other bytes become `%XX`.
/// Only file names of long names contain `~`, before the SHA-256 of the name.
pub(crate) fn file_name(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    for (at, byte) in name.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => plain.push(*byte),
            b'.' if at > 0 => plain.push(*byte),
            _ => plain.extend(format!("%{byte:02X}").into_bytes()),
        }
    }
    if plain.len() > LONGEST_PLAIN {
        plain.truncate(SEEN_OF_LONG);
        plain.push(b'~');
        Sha256::digest(name).iter().for_each(|byte| plain.extend(format!("{byte:02x}").into_bytes()));
    }
    plain
}

/// Returns true if a lock can have this file name. csalock ignores other names in a store; `..` is not valid either.
pub(super) fn is_file_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.%~".contains(byte);
    !name.is_empty() && name[0] != b'.' && name.iter().all(is_plain)
}

/// Returns the lock name for a file name; `None` for the file name of a long name and for an invalid file name.
#[cfg(any(test, fuzzing))]
pub(crate) fn name_of_file(file: &[u8]) -> Option<Vec<u8>> {
    let name = crate::lock::codec::text::unescape(std::str::from_utf8(file).ok()?)?;
    (file_name(&name) == file).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_names_have_distinct_file_names_that_fit() {
        let long = |last: u8| [&[b'x'; 1023][..], &[last]].concat();
        let mut names = vec![b"a".to_vec(), b"A".to_vec(), b".".to_vec(), b"..".to_vec(), b"%2E".to_vec()];
        names.extend([b"a b".to_vec(), b"a%20b".to_vec(), b"~".to_vec(), b"\xff".to_vec(), b"/".to_vec()]);
        names.extend([long(b'a'), long(b'b'), vec![b'\n'; 1024], vec![b'x'; 200], vec![b'x'; 201]]);
        let files: std::collections::BTreeSet<_> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files.len(), names.len());
        assert!(files.iter().all(|file| file.len() <= 255 && file[0] != b'.' && !file.contains(&b'/')));
        assert_eq!(file_name(b"nightly.sh"), b"nightly.sh");
        assert_eq!(file_name(b"../a"), b"%2E.%2Fa");
    }
}
