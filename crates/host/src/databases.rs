//! The databases of users, groups and hosts that nsswitch.conf(5) describes.
//!
//! csalock is a static program, and modules that the C library would load into it for these databases (LDAP, sssd,
//! systemd) may crash it. So csalock reads the files itself, and asks getent(1) for the other sources.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Asks all sources of a database.
const GETENT: &str = "/usr/bin/getent";

/// Maximum wait for the name of a user or group, which is for display only.
const TO_NAME: Duration = Duration::from_secs(2);

type Known = BTreeMap<(&'static str, u32), Option<Vec<String>>>;

/// Answers by database and key, because a table may show one user a thousand times.
static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

pub fn user_name(uid: u32) -> Option<String> {
    entry("passwd", uid)?.into_iter().next()
}

pub fn home_of(uid: u32) -> Option<PathBuf> {
    entry("passwd", uid)?.into_iter().nth(5).map(PathBuf::from)
}

/// From the file of users, each once.
pub fn homes() -> BTreeSet<PathBuf> {
    let file = std::fs::read("/etc/passwd").unwrap_or_default();
    let homes = file.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b':').nth(5));
    homes.filter(|home| home.starts_with(b"/")).map(|home| PathBuf::from(OsStr::from_bytes(home))).collect()
}

pub fn group_name(gid: u32) -> Option<String> {
    entry("group", gid)?.into_iter().next()
}

/// Returns the addresses of a host, in the order in which to try them; none if the host is unknown. Waits at most this
/// long for the name service ([`io::ErrorKind::TimedOut`]). Any other error says why getent(1) cannot run.
pub fn addresses_of(host: &str, at_most: Duration) -> io::Result<Vec<IpAddr>> {
    let in_file = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let of_line = |line: &str| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
    };
    let mut found: Vec<IpAddr> = in_file.lines().filter_map(of_line).collect();
    if found.is_empty() {
        let of_line = |line: &str| line.split_whitespace().next()?.parse().ok();
        found = ask(&["ahosts", host], at_most)?.lines().filter_map(of_line).collect();
    }
    // getent prints each address once for each type of socket.
    found.dedup();
    Ok(found)
}

/// Its number is the third field of each line.
fn entry(database: &'static str, number: u32) -> Option<Vec<String>> {
    if let Some(known) = known().get(&(database, number)) {
        return known.clone();
    }
    let key = number.to_string();
    let of = |lines: &str| {
        let mut entries = lines.lines().map(|line| line.split(':').map(str::to_string).collect::<Vec<_>>());
        entries.find(|fields| fields.get(2) == Some(&key) && !fields[0].is_empty())
    };
    let file = std::fs::read(format!("/etc/{database}")).unwrap_or_default();
    let found =
        of(&String::from_utf8_lossy(&file)).or_else(|| of(&ask(&[database, &key], TO_NAME).unwrap_or_default()));
    known().insert((database, number), found.clone());
    found
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// getent(1) is ended if it prints nothing for this long.
fn ask(arguments: &[&str], at_most: Duration) -> io::Result<String> {
    let mut getent = Command::new(GETENT);
    getent.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    crate::signals::restore_for(&mut getent);
    let mut child = getent.spawn().map_err(|error| io::Error::new(error.kind(), format!("{GETENT}: {error}")))?;
    let answer = answer_of(&mut child, at_most);
    // The status is unknown if this process ignores SIGCHLD; the answer counts.
    let _ = (child.kill(), child.wait());
    answer
}

fn answer_of(child: &mut Child, at_most: Duration) -> io::Result<String> {
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
    while let Some(stdout) = &mut child.stdout {
        if poll(&mut [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)], timeout) == Ok(0) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stdout.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => answer.extend(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_of_the_files() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(home_of(0), Some(PathBuf::from("/root")));
        assert!(homes().contains(&PathBuf::from("/root")));
        assert_eq!(group_name(0).as_deref(), Some("root"));
    }

    #[test]
    fn an_unknown_user_has_no_name() {
        assert_eq!((user_name(4_101_999), home_of(4_101_999), group_name(4_101_999)), (None, None, None));
    }
}
