//! The `key=value` words of a line, and the escaping of their values.

use std::fmt::Write as _;

/// `key=value` words of one line.
pub(crate) struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    pub(crate) fn of(line: &'a str) -> Option<Fields<'a>> {
        line.split(' ').map(|word| word.split_once('=')).collect::<Option<_>>().map(Fields)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        self.get(key)?.parse().ok()
    }

    /// Returns whether the key is present, or `None` if its value is invalid.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.optional(key, |word| (word == "yes").then_some(())).map(|found| found.is_some())
    }

    /// Returns `None` if the value is invalid, and `Some(None)` if the key is missing.
    pub(crate) fn optional<T>(&self, key: &str, read: impl Fn(&'a str) -> Option<T>) -> Option<Option<T>> {
        self.get(key).map_or(Some(None), |word| read(word).map(Some))
    }
}

pub(crate) fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'!'..=b'~' if !b"%,:=\"\\".contains(byte) => text.push(*byte as char),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
}

pub(crate) fn unescape(word: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || (rest.next()? as char).to_digit(16);
            bytes.push((digit()? * 16 + digit()?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}
