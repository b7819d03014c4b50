//! A past grant as a line of JSON:
//!
//! ```text
//! {"past":2,"sum":"0123456789abcdef","name":"nightly","token":17, … ,"how":"released"}
//! ```
//!
//! The line is sealed as a record is. The reader skips a torn or overwritten line. The beginning of a line cannot appear
//! elsewhere in a line, because JSON escapes `"` in texts. A torn line therefore never hides the next line.

use super::Past;
use crate::lock::codec::{open, seal};

const KIND: &str = "past";

const BEGIN: &str = "{\"past\":";

impl Past {
    pub fn line(&self) -> String {
        String::from_utf8(seal(KIND, &self.name, self)).expect("a line is ASCII")
    }

    /// Reads a line. Returns `None` if the line is incomplete or not a past grant.
    pub fn read(line: &[u8]) -> Option<Past> {
        let line = String::from_utf8_lossy(line);
        let (name, past) = open::<Past>(KIND, &line[line.rfind(BEGIN)?..]).ok()?;
        Some(Past { name, ..past })
    }
}

/// Returns true if there is something other than one line in these bytes: the rest of a torn line, or no line at all.
pub fn is_damaged(line: &[u8]) -> bool {
    let text = String::from_utf8_lossy(line);
    text.rfind(BEGIN) != Some(0) || Past::read(line).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Who;
    use crate::lock::{EndReason, Mode};

    fn full() -> Past {
        let holder = Who {
            pid: Some(4711),
            host: "a host".into(),
            uid: 1000,
            command: b"sh -c '{\"past\":2,\"sum\" %,=\n\xff'".to_vec(),
            label: Some(Vec::new()),
        };
        let breaker = Who { pid: None, host: String::new(), uid: 0, command: Vec::new(), label: None };
        Past {
            name: b"a\nb {\"past\":2,".to_vec(),
            token: Some(7),
            mode: Mode::Slot,
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
        for at in 0..line.len() {
            let mut changed = line.clone();
            changed[at] ^= 1;
            assert_eq!(Past::read(&changed), None, "changed at {at}");
            assert_eq!(Past::read(&line[..at]), None, "cut at {at}");
        }
        for strange in [&b""[..], b"\n", b"{\"past\":", b"{\"past\":2,\"sum\":\"", b"\0\0\0", &[0xff; 100]] {
            assert_eq!(Past::read(strange), None);
        }
    }

    #[test]
    fn a_torn_line_does_not_damage_the_next() {
        let line = full().line().into_bytes();
        for at in 0..line.len() {
            let torn = [&line[..at], &line].concat();
            assert_eq!(Past::read(&torn), Some(full()), "torn at {at}");
            assert!(!is_damaged(&line) && is_damaged(&line[..at]), "{at}");
        }
        assert_eq!(Past::read(&[&[0; 4096][..], &line].concat()), Some(full()));
    }
}
