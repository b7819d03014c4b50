//! Objects as lines of JSON, which a person can read with cat(1), safe against untrusted input.
//!
//! ```text
//! {"csalock":3,"sum":"0123456789abcdef","name":"nightly","holders":[{"proof":"6e34…","token":17,"mode":"exclusive", …
//! ```
//!
//! - The first field is the kind of object and the format number. csalock writes [`FORMAT`] and reads all from
//!   [`OLDEST_FORMAT`] on; it refuses other formats and never guesses.
//! - The second field is the beginning of the SHA-256 of all fields after it, so csalock detects a torn or edited
//!   object.
//! - An object has exactly one form. A reader encodes the decoded object again and refuses the line if it differs, for
//!   example by an unknown or repeated field, or by another order. If the checksum is right, another version of csalock
//!   wrote the line, which may be a live lock: it is foreign, and not damaged.
//! - The last field may be `"optional":{…}`, with fields that a reader may ignore: no rule depends on them, and a commit
//!   by a csalock that does not know them drops them. Any other addition needs a new format number (CONTRIBUTING.md).
//! - Fields that are empty in most objects are left out if they are: SQLite keeps a row of up to 1002 bytes in one
//!   page.
//! - A line is printable ASCII ([`crate::text`]), and no field contains a line break.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::text::{escape, unescape};
use crate::error::{Error, Result};

/// Format number of all lines: 2 in csalock 0.2.0, 3 in 0.3.0.
pub const FORMAT: u32 = 3;

pub const OLDEST_FORMAT: u32 = 2;

pub(crate) fn seal(kind: &str, name: &[u8], object: &impl Serialize) -> Vec<u8> {
    let sealed = sealed_fields(name, object);
    let beginning = format!("{}{:016x}\",", beginning(kind, FORMAT), checksum(&sealed));
    [beginning.as_bytes(), &sealed, b"\n"].concat()
}

fn beginning(kind: &str, format: u32) -> String {
    format!("{{\"{kind}\":{format},\"sum\":\"")
}

/// All that follows the checksum in the one form of this object: its name and its fields.
fn sealed_fields(name: &[u8], object: &impl Serialize) -> Vec<u8> {
    let name = serde_json::to_string(&escape(name)).expect("a text always has a JSON text");
    let mut fields = format!("\"name\":{name}").into_bytes();
    let object_begins = fields.len();
    serde_json::to_writer(&mut fields, object).expect("data without maps always has a JSON text");
    // The fields of the object follow the name.
    fields[object_begins] = b',';
    fields
}

/// Decodes the output of [`seal`] into the name and the object. Returns the problem of any other line.
pub(crate) fn open<T: Serialize + DeserializeOwned>(kind: &str, line: &str) -> Result<(Vec<u8>, T)> {
    let mut formats = (OLDEST_FORMAT..=FORMAT).rev();
    let Some(sealed) = formats.find_map(|format| line.strip_prefix(&beginning(kind, format))) else {
        return Err(unknown_beginning(kind, line));
    };
    let parts = sealed.strip_suffix('\n').and_then(|sealed| sealed.split_once("\","));
    let (sum, sealed) = parts.ok_or_else(|| damaged("it is cut short"))?;
    if sum != format!("{:016x}", checksum(sealed.as_bytes())) {
        return Err(damaged("its checksum is wrong"));
    }
    let object = serde_json::from_str(line).ok().and_then(|object| Some((name_in(line)?, object)));
    let is_ours = |(name, object): &(Vec<u8>, T)| {
        let ours = sealed_fields(name, object);
        let rest = sealed.as_bytes().strip_prefix(&ours[..ours.len() - 1]);
        rest.is_some_and(|rest| rest == b"}" || is_optional(rest))
    };
    object.filter(is_ours).ok_or_else(|| of_unknown_form(line))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Optional {
    #[serde(rename = "optional")]
    _fields: BTreeMap<String, IgnoredAny>,
}

/// The end of a line after the last field that this csalock knows.
fn is_optional(rest: &[u8]) -> bool {
    rest.strip_prefix(b",").is_some_and(|rest| serde_json::from_slice::<Optional>(&[b"{", rest].concat()).is_ok())
}

/// Returns the problem of a line that does not begin like an object of this kind and format. Another format may have
/// another checksum, so its line is never called damaged.
fn unknown_beginning(kind: &str, line: &str) -> Error {
    // An object of format 1 began with the kind and the number as two words.
    let format = line.strip_prefix(&format!("{{\"{kind}\":")).or_else(|| line.strip_prefix(&format!("{kind} ")));
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).take(40).collect::<String>();
    let is_known = |digits: &String| (OLDEST_FORMAT..=FORMAT).any(|format| *digits == format.to_string());
    match format.map(digits).filter(|digits| !digits.is_empty() && !is_known(digits)) {
        Some(format) => {
            foreign(line, &format!("its format is {format}, this csalock knows {OLDEST_FORMAT} to {FORMAT}"))
        }
        None if line.is_empty() => damaged("it is empty"),
        None => damaged(&format!("it does not begin with {{\"{kind}\":{FORMAT}")),
    }
}

pub(super) fn damaged(wrong: &str) -> Error {
    Error::corrupt(format!("a lock record is unreadable: {wrong}"))
}

/// Problem of an object with a right checksum that this version would not write.
pub(super) fn of_unknown_form(line: &str) -> Error {
    foreign(line, "this csalock does not know its form")
}

/// Problem of an object of another version, with its first holders if it names them as this version does.
fn foreign(line: &str, how: &str) -> Error {
    let fields: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let holder = |grant: &serde_json::Value| {
        let owner = &grant["owner"];
        let pid: i32 = owner["processes"][0].as_str()?.split(':').next()?.parse().ok()?;
        Some(format!("; held by pid {pid} on {}", crate::name::escape(owner["host"].as_str()?.as_bytes())))
    };
    let grants = fields["holders"].as_array().into_iter().flatten();
    let holders: String = grants.filter_map(holder).take(3).collect();
    Error::of_other_version(format!("written by another version of csalock: {how}{holders}"))
}

/// Name in a line, even if the rest of the line is damaged.
pub(super) fn name_in(line: &str) -> Option<Vec<u8>> {
    let (_, name) = line.split_once("\"name\":")?;
    unescape(&serde_json::Deserializer::from_str(name).into_iter::<String>().next()?.ok()?)
}

/// First 64 bits of the SHA-256.
pub fn checksum(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes).iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}
