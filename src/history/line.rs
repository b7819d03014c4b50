//! A past grant as a line of printable text:
//!
//! ```text
//! past:1 0123456789abcdef name=nightly how=released from=1795408000123 to=1795408003456 … pid=4711 command=sh%20job
//! ```
//!
//! The line starts with the format and the beginning of the SHA-256 of the rest. The reader skips a torn or overwritten
//! line. The first word cannot appear elsewhere in a line, because values are escaped as in records. A torn line
//! therefore never hides the next line.

use std::fmt::Write as _;

use super::{Past, Who};
use crate::lock::codec::fields::{Fields, escape, unescape};
use crate::lock::codec::{checksum, ended_of, ended_word, share_of, share_word};

const BEGINNING: &str = "past:1 ";

impl Past {
    /// Returns the line of this grant.
    pub fn line(&self) -> String {
        let text = self.text();
        format!("{BEGINNING}{:016x} {text}\n", checksum(text.as_bytes()))
    }

    /// Returns the text after the checksum.
    fn text(&self) -> String {
        let mut text = String::with_capacity(256);
        text.push_str("name=");
        escape(&mut text, &self.name);
        if let Some(how) = self.how {
            let _ = write!(text, " how={}", ended_word(how));
        }
        let _ = write!(text, " from={}", self.from);
        if let Some(to) = self.to {
            let _ = write!(text, " to={to}");
        }
        if self.waited > 0 {
            let _ = write!(text, " waited={}", self.waited);
        }
        let _ = write!(text, " share={} slot={}", share_word(self.share), self.slot);
        if let Some(token) = self.token {
            let _ = write!(text, " token={token}");
        }
        write_who(&mut text, "", &self.holder);
        if let Some(who) = &self.broken_by {
            write_who(&mut text, "by-", who);
        }
        text
    }

    /// Reads a line. Returns `None` if the line is incomplete or not a past grant.
    pub fn read(line: &[u8]) -> Option<Past> {
        let line = String::from_utf8_lossy(line);
        let (_, line) = line.trim_end_matches('\n').rsplit_once(BEGINNING)?;
        let (sum, text) = line.split_once(' ')?;
        if u64::from_str_radix(sum, 16).ok()? != checksum(text.as_bytes()) {
            return None;
        }
        let fields = Fields::of(text)?;
        let past = Past {
            name: unescape(fields.get("name")?)?,
            token: fields.optional("token", |word| word.parse().ok())?,
            share: share_of(fields.get("share")?)?,
            slot: fields.number("slot")?,
            holder: read_who(&fields, "")?,
            from: fields.number("from")?,
            to: fields.optional("to", |word| word.parse().ok())?,
            waited: fields.optional("waited", |word| word.parse().ok())?.unwrap_or(0),
            how: fields.optional("how", ended_of)?,
            broken_by: fields
                .get("by-host")
                .map(|_| read_who(&fields, "by-"))
                .map_or(Some(None), |who| who.map(Some))?,
        };
        // csalock writes each grant in exactly one form; any other form comes from another writer.
        (past.text() == text && sum.len() == 16).then_some(past)
    }
}

fn write_who(text: &mut String, whose: &str, who: &Who) {
    if let Some(pid) = who.pid {
        let _ = write!(text, " {whose}pid={pid}");
    }
    let _ = write!(text, " {whose}uid={} {whose}host=", who.uid);
    escape(text, who.host.as_bytes());
    let _ = write!(text, " {whose}command=");
    escape(text, &who.command);
    if let Some(label) = &who.label {
        let _ = write!(text, " {whose}label=");
        escape(text, label);
    }
}

fn read_who(fields: &Fields<'_>, whose: &str) -> Option<Who> {
    let key = |word: &str| format!("{whose}{word}");
    Some(Who {
        pid: fields.optional(&key("pid"), |word| word.parse().ok())?,
        host: String::from_utf8(unescape(fields.get(&key("host"))?)?).ok()?,
        uid: fields.number(&key("uid"))?,
        command: unescape(fields.get(&key("command"))?)?,
        label: fields.optional(&key("label"), unescape)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{EndReason, Mode};

    fn full() -> Past {
        let holder = Who {
            pid: Some(4711),
            host: "a host".into(),
            uid: 1000,
            command: b"sh -c 'past:1 %,=\n\xff'".to_vec(),
            label: Some(Vec::new()),
        };
        let breaker = Who { pid: None, host: String::new(), uid: 0, command: Vec::new(), label: None };
        Past {
            name: b"a\nb past:1 ".to_vec(),
            token: Some(7),
            share: Mode::Slot,
            slot: 2,
            holder,
            from: 8,
            to: Some(9),
            waited: 10,
            how: Some(EndReason::Broken),
            broken_by: Some(breaker),
        }
    }

    #[test]
    fn a_line_reads_back() {
        let bare = Past { token: None, to: None, waited: 0, how: None, broken_by: None, ..full() };
        for past in [full(), bare] {
            let line = past.line();
            assert_eq!((line.matches('\n').count(), line.ends_with('\n')), (1, true));
            assert_eq!(Past::read(line.as_bytes()), Some(past));
        }
    }

    #[test]
    fn no_single_changed_or_missing_byte_is_believed() {
        let line = full().line().into_bytes();
        for at in 0..line.len() - 1 {
            let mut changed = line.clone();
            changed[at] ^= 1;
            assert_eq!(Past::read(&changed), None, "changed at {at}");
            assert_eq!(Past::read(&line[..at]), None, "cut at {at}");
        }
        for strange in [&b""[..], b"\n", b"past:1 ", b"past:2 0 x", b"\0\0\0", &[0xff; 100]] {
            assert_eq!(Past::read(strange), None);
        }
    }

    #[test]
    fn a_torn_line_does_not_damage_the_next() {
        let line = full().line().into_bytes();
        for at in 0..line.len() {
            assert_eq!(Past::read(&[&line[..at], &line].concat()), Some(full()), "torn at {at}");
        }
        assert_eq!(Past::read(&[&[0; 4096][..], &line].concat()), Some(full()));
    }
}
