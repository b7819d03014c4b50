//! Names: the valid names, the file that a name with a `/` means, and the display of names.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;

use crate::error::{Error, ErrorKind, Result};
pub use crate::escape::is_invisible;
pub use crate::escape::{escape, escape_path, shell_quote};

/// Maximum length of a name, in bytes.
pub(crate) const LONGEST: usize = 1024;

/// Maximum number of symlinks followed in a path: the kernel's own limit, path_resolution(7).
const MOST_LINKS: usize = 40;

const NO_DIRECTORY: &str =
    "a name with a slash is the path of a file; create its directory, or write name: before a name";

pub fn check(name: &[u8]) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(what, "a name is 1 to 1024 bytes, anything but NUL"));
    match name {
        [] => wrong("a lock's name is not empty".to_string()),
        _ if name.len() > LONGEST => wrong(format!("a name of {} bytes is too long", name.len())),
        _ if name.contains(&0) => wrong(format!("name {} contains NUL", escape(name))),
        _ => Ok(()),
    }
}

const LITERAL: &[u8] = b"name:";

/// The rest of a word that begins with `name:` is a name, even if it looks like a path.
pub fn literal(typed: &[u8]) -> Option<&[u8]> {
    typed.strip_prefix(LITERAL)
}

/// The word that means the lock with this name. A name that begins with a slash is the path of a file.
pub fn spelled(name: &[u8]) -> Cow<'_, [u8]> {
    let is_ambiguous = literal(name).is_some() || (is_path(name) && !name.starts_with(b"/"));
    if is_ambiguous { Cow::Owned([LITERAL, name].concat()) } else { Cow::Borrowed(name) }
}

/// A name with a slash means a file or a directory.
pub fn is_path(name: &[u8]) -> bool {
    literal(name).is_none() && (name.contains(&b'/') || matches!(name, b"." | b".."))
}

/// Such a path is not a name by accident.
pub fn is_plain_path(name: &[u8]) -> bool {
    matches!(name, b"." | b"..") || [&b"/"[..], b"./", b"../"].iter().any(|begin| name.starts_with(begin))
}

/// Such an argument means the locks of all files in a directory.
pub fn is_directory(typed: &OsStr) -> bool {
    literal(typed.as_bytes()).is_none() && typed.as_bytes().ends_with(b"/")
}

/// A relative path starts at `current`. Returns an error if the current directory was removed: `current` is empty then.
pub fn absolute(path: &OsStr, current: impl AsRef<Path>) -> Result<PathBuf> {
    let path = Path::new(path);
    let path = if path.is_absolute() { path.to_path_buf() } else { current.as_ref().join(path) };
    if !path.is_absolute() {
        let what = format!("{} is in the current directory, which was removed", escape_path(&path));
        return Err(Error::new(ErrorKind::Unavailable, what, "cd to one that exists"));
    }
    Ok(path)
}

/// One letter is wrong, missing, additional or swapped with the next. Names that differ in a digit are those of other
/// locks.
pub fn is_mistyped(typed: &[u8], name: &[u8]) -> bool {
    let begin = typed.iter().zip(name).take_while(|(one, other)| one == other).count();
    let (wrong, right) = (&typed[begin..], &name[begin..]);
    let end = wrong.iter().rev().zip(right.iter().rev()).take_while(|(one, other)| one == other).count();
    let (wrong, right) = (&wrong[..wrong.len() - end], &right[..right.len() - end]);
    let is_slip = match (wrong, right) {
        ([], []) => false,
        ([] | [_], [] | [_]) => true,
        ([first, second], [meant_first, meant_second]) => first == meant_second && second == meant_first,
        _ => false,
    };
    typed.len() > 2 && is_slip && ![wrong, right].concat().iter().any(u8::is_ascii_digit)
}

/// The absolute path of a file, without symbolic links, equal for every spelling. The file may be missing, but its
/// directory must exist.
pub fn file_of(name: &[u8], current: impl AsRef<Path>) -> Result<PathBuf> {
    let mut path = absolute(OsStr::from_bytes(name), current)?;
    for _ in 0..MOST_LINKS {
        match fs::canonicalize(&path) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot_find(&error, &path)),
        }
        let (Some(Component::Normal(file)), Some(directory)) = (path.components().next_back(), path.parent()) else {
            return Err(cannot_find(&Errno::ENOENT.into(), &path));
        };
        let directory = fs::canonicalize(directory).map_err(|error| cannot_find(&error, directory))?;
        path = directory.join(file);
        match fs::read_link(&path) {
            Ok(target) => path = directory.join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(Error::os_through_links(Errno::ELOOP, "find", &path))
}

/// The absolute path without symbolic links. The directory must exist.
pub fn directory_of(path: &OsStr, current: impl AsRef<Path>) -> Result<PathBuf> {
    let path = absolute(path, current)?;
    fs::canonicalize(&path).map_err(|error| {
        let error = Error::os_through_links(Errno::from_raw(error.raw_os_error().unwrap_or(0)), "find", &path);
        match error.kind() {
            ErrorKind::Unavailable => Error::new(error.kind(), error.message(), "name a directory that exists"),
            _ => error,
        }
    })
}

fn cannot_find(error: &io::Error, path: &Path) -> Error {
    let error_of_path = Error::os_through_links(Errno::from_raw(error.raw_os_error().unwrap_or(0)), "find", path);
    match error.kind() {
        io::ErrorKind::NotFound => Error::invalid(error_of_path.message(), NO_DIRECTORY),
        _ => error_of_path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_1_to_1024_bytes_without_nul() {
        for good in [&b"x"[..], b"-", b"..", b"a b\n", b"\xff", &[b'x'; 1024]] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        for bad in [&b""[..], b"a\0b", &[b'x'; 1025]] {
            assert_eq!(check(bad).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
        }
    }

    #[test]
    fn every_spelling_of_a_file_is_one_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        std::os::unix::fs::symlink("real/new", root.join("dangling")).unwrap();
        let wanted = root.join("real/new");
        for spelling in ["real/new", "./real/new", "link/new", "real/../link/./new", "./dangling", "link//new"] {
            assert_eq!(file_of(spelling.as_bytes(), &root), Ok(wanted.clone()), "{spelling}");
        }
        fs::write(&wanted, "").unwrap();
        assert_eq!(file_of(b"./dangling", &root), Ok(wanted));
    }

    #[test]
    fn a_missing_directory_and_a_loop_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
        let exit = |name: &[u8]| file_of(name, dir.path()).map_err(|error| error.kind());
        assert_eq!(exit(b"none/file"), Err(ErrorKind::InvalidInput));
        assert_eq!(exit(b"./loop"), Err(ErrorKind::Unavailable));
        assert_eq!(exit(b"loop/file"), Err(ErrorKind::Unavailable));
    }

    #[test]
    fn a_mistyped_name_is_not_that_of_another_lock() {
        for typed in ["nightlyy", "nihgtly", "nightl", "nightlx", "xnightly", "Nightly"] {
            assert!(is_mistyped(typed.as_bytes(), b"nightly"), "{typed}");
        }
        for (typed, name) in
            [("nightly", "nightly"), ("night", "nightly"), ("job1", "job2"), ("job", "job1"), ("x", "y")]
        {
            assert!(!is_mistyped(typed.as_bytes(), name.as_bytes()), "{typed}");
        }
    }

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(shell_quote(b"a/b.c"), "a/b.c");
        assert_eq!(shell_quote(b"it's two"), "'it'\\''s two'");
        assert_eq!(shell_quote(b"a\n'"), "$'a\\n\\''");
    }

    #[test]
    fn control_characters_are_shown_escaped() {
        assert_eq!(escape(b"a\x1b[2J\n\\\xff\xc3\xa9"), "a\\u{1b}[2J\\n\\\\\\xffé");
        assert_eq!(escape("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    }
}
