//! Bytes as text for JSON: `%XX` replaces `%` and each byte that is not printable ASCII. So every byte survives, even
//! if it is not UTF-8, and a terminal that shows the text interprets nothing.
//!
//! `#[serde(with = "text")]` writes and reads a field in this form.

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A type with a field that is written as text. Records have dozens of such fields, so none is copied for its text.
pub trait Text: Sized {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    fn read<'a, D: Deserializer<'a>>(from: D) -> Result<Self, D::Error>;
}

struct AsText<'a, T>(&'a T);

struct FromText<T>(T);

struct Escaped<'a>(&'a [u8]);

pub fn serialize<S: Serializer>(field: &impl Text, to: S) -> Result<S::Ok, S::Error> {
    field.write(to)
}

pub fn deserialize<'a, T: Text, D: Deserializer<'a>>(from: D) -> Result<T, D::Error> {
    T::read(from)
}

/// Deserializes a string by this function, which returns `None` if the string is invalid.
pub(crate) fn parsed<'a, T, D: Deserializer<'a>>(from: D, parse: fn(&str) -> Option<T>) -> Result<T, D::Error> {
    struct Parsed<T>(fn(&str) -> Option<T>);
    impl<T> Visitor<'_> for Parsed<T> {
        type Value = T;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("text")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            (self.0)(text).ok_or_else(|| E::custom("invalid text"))
        }
    }
    from.deserialize_str(Parsed(parse))
}

impl Text for Vec<u8> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Escaped(self))
    }

    fn read<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
        parsed(from, unescape)
    }
}

impl Text for String {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Escaped(self.as_bytes()))
    }

    fn read<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
        parsed(from, |text| String::from_utf8(unescape(text)?).ok())
    }
}

impl<T: Text> Text for Option<T> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(AsText).serialize(to)
    }

    fn read<'a, D: Deserializer<'a>>(from: D) -> Result<Option<T>, D::Error> {
        Ok(Option::<FromText<T>>::deserialize(from)?.map(|FromText(value)| value))
    }
}

impl<T: Text> Text for Vec<T> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(AsText))
    }

    fn read<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<T>, D::Error> {
        Ok(Vec::<FromText<T>>::deserialize(from)?.into_iter().map(|FromText(value)| value).collect())
    }
}

impl<T: Text> Serialize for AsText<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

impl<'a, T: Text> Deserialize<'a> for FromText<T> {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<FromText<T>, D::Error> {
        T::read(from).map(FromText)
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'%';
        let mut rest = self.0;
        while !rest.is_empty() {
            let (plain, others) = rest.split_at(rest.iter().position(|byte| !is_plain(byte)).unwrap_or(rest.len()));
            out.write_str(std::str::from_utf8(plain).map_err(|_| fmt::Error)?)?;
            rest = others;
            if let Some((byte, others)) = others.split_first() {
                write!(out, "%{byte:02X}")?;
                rest = others;
            }
        }
        Ok(())
    }
}

pub fn escape(bytes: &[u8]) -> String {
    Escaped(bytes).to_string()
}

/// Decodes the output of [`escape`], and other spellings of the same bytes.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    if !text.contains('%') {
        return Some(text.as_bytes().to_vec());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
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

/// A missing field means the default.
pub(crate) fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}
