//! The local time zone, found as the C library finds it: tzset(3).

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use jiff::tz::TimeZone;

use super::{set, variable};

/// The file that describes the zone of this machine.
const LOCAL: &str = "/etc/localtime";

const ZONES: &str = "/usr/share/zoneinfo";

/// Maximum size of a zone file, in bytes. Real ones have 4 KiB at most.
const MOST_BYTES: u64 = 1 << 16;

/// Returns the zone that `TZ` or else /etc/localtime describes, or UTC. The first call reads a file.
pub fn local_zone() -> &'static TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(|| find().unwrap_or(TimeZone::UTC))
}

fn find() -> Option<TimeZone> {
    let Some(text) = variable("TZ") else { return read(Path::new(LOCAL)) };
    // POSIX leaves the meaning of a value with a colon to the system: here it is the name of a file.
    let text = text.as_bytes().strip_prefix(b":").unwrap_or(text.as_bytes());
    if text.is_empty() {
        return None;
    }
    let zones = set("TZDIR").map_or_else(|| PathBuf::from(ZONES), PathBuf::from);
    read(&zones.join(OsStr::from_bytes(text))).or_else(|| TimeZone::posix(std::str::from_utf8(text).ok()?).ok())
}

fn read(path: &Path) -> Option<TimeZone> {
    // To open a FIFO would wait.
    std::fs::metadata(path).ok().filter(|found| found.is_file())?;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    TimeZone::tzif("local", &bytes).ok()
}
