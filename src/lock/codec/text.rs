//! Bytes as text for JSON: `%XX` replaces `%` and each byte that is not printable ASCII. So every byte survives, even if
//! it is not UTF-8, and a terminal that shows the text interprets nothing.
//!
//! `#[serde(with = "text")]` writes and reads a field in this form.

use std::fmt::Write as _;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserializer, Serialize, Serializer};

use crate::lock::handle::HandleHash;

/// A type with a field that is written as text.
pub(crate) trait Text: Sized {
    /// Form in JSON.
    type Form: Serialize + DeserializeOwned;

    fn form(&self) -> Self::Form;

    /// Returns `None` if the form is invalid.
    fn of(form: Self::Form) -> Option<Self>;
}

pub(crate) fn serialize<S: Serializer>(field: &impl Text, to: S) -> Result<S::Ok, S::Error> {
    field.form().serialize(to)
}

pub(crate) fn deserialize<'a, T: Text, D: Deserializer<'a>>(from: D) -> Result<T, D::Error> {
    let form = <T::Form as serde::Deserialize>::deserialize(from)?;
    T::of(form).ok_or_else(|| D::Error::custom("invalid text"))
}

impl Text for Vec<u8> {
    type Form = String;

    fn form(&self) -> String {
        escape(self)
    }

    fn of(form: String) -> Option<Vec<u8>> {
        unescape(&form)
    }
}

impl Text for String {
    type Form = String;

    fn form(&self) -> String {
        escape(self.as_bytes())
    }

    fn of(form: String) -> Option<String> {
        String::from_utf8(unescape(&form)?).ok()
    }
}

impl<T: Text> Text for Option<T> {
    type Form = Option<T::Form>;

    fn form(&self) -> Option<T::Form> {
        self.as_ref().map(T::form)
    }

    fn of(form: Option<T::Form>) -> Option<Option<T>> {
        form.map_or(Some(None), |form| T::of(form).map(Some))
    }
}

impl<T: Text> Text for Vec<T> {
    type Form = Vec<T::Form>;

    fn form(&self) -> Vec<T::Form> {
        self.iter().map(T::form).collect()
    }

    fn of(form: Vec<T::Form>) -> Option<Vec<T>> {
        form.into_iter().map(T::of).collect()
    }
}

impl<T: Text> Text for (T, HandleHash) {
    type Form = (T::Form, HandleHash);

    fn form(&self) -> Self::Form {
        (self.0.form(), self.1)
    }

    fn of((form, proof): Self::Form) -> Option<(T, HandleHash)> {
        Some((T::of(form)?, proof))
    }
}

pub(super) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b' '..=b'~' if *byte != b'%' => text.push(*byte as char),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// Decodes the output of [`escape`], and other spellings of the same bytes.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
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
