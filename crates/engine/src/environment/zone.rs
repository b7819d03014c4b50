//! The local time zone, found as the C library finds it: tzset(3). The C library takes a zone that is not installed for
//! UTC; here the caller learns of it, because the days of another host begin at another time then.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use jiff::tz::TimeZone;

use super::{raw, variable};
use lock::name::escape;

const LOCAL: &str = "/etc/localtime";

const ZONES: &str = "/usr/share/zoneinfo";

/// Zones that need no file, because they are UTC.
const NAMES_OF_UTC: [&str; 8] = ["UTC", "UCT", "GMT", "Zulu", "Universal", "Etc/UTC", "Etc/UCT", "Etc/GMT"];

/// Maximum size of a zone file, in bytes. Real ones have 4 KiB at most.
const MOST_BYTES: u64 = 1 << 16;

pub struct LocalZone {
    pub name: String,
    /// `TZ` or /etc/localtime.
    pub source: &'static str,
    /// `None` if the zone is not installed.
    rules: Option<TimeZone>,
}

impl LocalZone {
    /// The first call reads a file.
    pub fn of_this_process() -> &'static LocalZone {
        static ZONE: OnceLock<LocalZone> = OnceLock::new();
        ZONE.get_or_init(|| match raw("TZ") {
            Some(text) => of_variable(&text, &variable("TZDIR").map_or_else(|| PathBuf::from(ZONES), PathBuf::from)),
            None => of_machine(Path::new(LOCAL)),
        })
    }

    pub fn is_installed(&self) -> bool {
        self.rules.is_some()
    }

    /// UTC if the zone is not installed.
    pub fn rules(&self) -> TimeZone {
        self.rules.clone().unwrap_or(TimeZone::UTC)
    }
}

fn of_variable(text: &OsStr, zones: &Path) -> LocalZone {
    // POSIX leaves the meaning of a value with a colon to the system: here it is the name of a file.
    let text = text.as_bytes().strip_prefix(b":").unwrap_or(text.as_bytes());
    let text = if text.is_empty() { b"UTC" } else { text };
    let posix = || TimeZone::posix(std::str::from_utf8(text).ok()?).ok();
    let rules = read(&zones.join(OsStr::from_bytes(text))).or_else(posix).or_else(|| utc(text));
    LocalZone { name: escape(text), source: "TZ", rules }
}

/// `local` is usually a link to the file of a named zone.
fn of_machine(local: &Path) -> LocalZone {
    let is_missing = || std::fs::symlink_metadata(local).is_err();
    let place = std::fs::read_link(local).unwrap_or_else(|_| local.to_path_buf());
    let place = place.to_string_lossy();
    let name = if is_missing() { "UTC" } else { place.rsplit_once("/zoneinfo/").map_or(&*place, |(_, name)| name) };
    let rules = read(local).or_else(|| utc(name.as_bytes()));
    LocalZone { name: escape(name.as_bytes()), source: LOCAL, rules }
}

fn utc(name: &[u8]) -> Option<TimeZone> {
    NAMES_OF_UTC.iter().any(|utc| utc.as_bytes() == name).then_some(TimeZone::UTC)
}

fn read(path: &Path) -> Option<TimeZone> {
    // To open a FIFO would wait.
    std::fs::metadata(path).ok().filter(|found| found.is_file())?;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    TimeZone::tzif("local", &bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_installed_is_no_zone_unless_it_means_utc() {
        let empty = tempfile::tempdir().unwrap();
        let found = |text: &str| of_variable(OsStr::new(text), empty.path());
        for text in ["", ":", "UTC", ":UTC", "Etc/UTC", "GMT", "CET-1CEST,M3.5.0,M10.5.0/3", "<+03>-3"] {
            assert!(found(text).is_installed(), "{text}");
        }
        for text in ["Europe/Berlin", ":Europe/Berlin", "Europe/Belin", "CET", "nonsense\n"] {
            assert!(!found(text).is_installed(), "{text}");
        }
        assert_eq!([found("").name, found(":Europe/Berlin").name], ["UTC", "Europe/Berlin"]);
    }

    #[test]
    fn a_machine_without_localtime_has_utc_and_a_link_to_nothing_has_no_zone() {
        let place = tempfile::tempdir().unwrap();
        let local = place.path().join("localtime");
        let found = of_machine(&local);
        assert_eq!((found.name.as_str(), found.is_installed()), ("UTC", true));
        for (to, name, is_installed) in [("UTC", "UTC", true), ("Europe/Belin", "Europe/Belin", false)] {
            std::os::unix::fs::symlink(Path::new("/nowhere/zoneinfo").join(to), &local).unwrap();
            let found = of_machine(&local);
            assert_eq!((found.name.as_str(), found.is_installed()), (name, is_installed));
            std::fs::remove_file(&local).unwrap();
        }
        std::fs::write(&local, "damaged").unwrap();
        assert!(!of_machine(&local).is_installed());
    }
}
