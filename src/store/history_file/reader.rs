//! Reading a history file and its older generation, from the beginning or from the end of the last read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Whence, lseek};

use super::{CAUTIOUS, HistoryFile};
use crate::error::{Error, ErrorKind, Result};
use crate::name::escape_path;

/// Maximum length of a line, in bytes.
const MOST_OF_LINE: u64 = 64 << 10;

/// Maximum number of bytes read of a generation, from its end.
const MOST_READ: u64 = 1 << 30;

/// Maximum number of reads if another host replaces the files meanwhile.
const MOST_TRIES: usize = 3;

/// The generations that a reader has visited, oldest first, and how far.
#[derive(Debug, Default)]
pub(in crate::store) struct Generations(Vec<Generation>);

#[derive(Debug)]
struct Generation {
    /// The open file, which keeps its number from being used again.
    file: File,
    id: (u64, u64),
    visited: u64,
    /// True if the file was gone when it was read last, so that it must be opened again.
    is_stale: bool,
}

impl HistoryFile<'_> {
    /// Visits the lines that the reader has not visited, the older generation's first. `path` is the path of the file,
    /// for messages.
    pub(in crate::store) fn read(
        &self,
        known: &mut Generations,
        path: &Path,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        for _ in 0..MOST_TRIES {
            if self.read_once(known, path, visit)? {
                return Ok(());
            }
        }
        Err(Error::os(Errno::ESTALE, "read the history", path))
    }

    /// Returns false if a file that has a name was gone when it was read: another host has replaced it.
    fn read_once(&self, known: &mut Generations, path: &Path, visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // The newer file comes first: if it becomes the older one meanwhile, it is opened twice and not missed.
        let newer = self.open_to_read(&self.name, path)?;
        let older = self.open_to_read(&self.older(), path)?;
        let mut named = Vec::new();
        for (id, file) in [older, newer].into_iter().flatten() {
            named.push(id);
            match known.0.iter_mut().find(|generation| generation.id == id) {
                Some(generation) if generation.is_stale => (generation.file, generation.is_stale) = (file, false),
                Some(_) => {}
                None => known.0.push(Generation { file, id, visited: 0, is_stale: false }),
            }
        }
        let (mut done, mut is_complete) = (Ok(()), true);
        // A process that was rotating appends late lines to the older generation, so the reader stays with both. A
        // generation without a name is read a last time.
        known.0.retain_mut(|generation| {
            let has_name = named.contains(&generation.id);
            match generation.visit_new(visit) {
                Err(error) if error.raw_os_error() == Some(Errno::ESTALE as i32) => {
                    generation.is_stale = true;
                    is_complete &= !has_name;
                }
                visited => done = std::mem::replace(&mut done, Ok(())).and(visited),
            }
            has_name
        });
        let errno = |error: &io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
        done.map_err(|error| Error::os(errno(&error), "read the history", path))?;
        Ok(is_complete)
    }

    /// Opens a generation. Returns its device and number, too.
    fn open_to_read(&self, name: &Path, path: &Path) -> Result<Option<((u64, u64), File)>> {
        let strange = || {
            let what =
                format!("{} or its older generation is not a plain file, so there is no history", escape_path(path));
            Error::new(ErrorKind::Corrupt, what, "see who made it, and move it away")
        };
        let opened = openat(self.at, name, OFlag::O_RDONLY | CAUTIOUS, Mode::empty());
        match opened.and_then(|file| Ok((fstat(&file)?, File::from(file)))) {
            Ok((found, file)) if found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits() => {
                Ok(Some(((found.st_dev, found.st_ino), file)))
            }
            Ok(_) | Err(Errno::ELOOP | Errno::ENXIO) => Err(strange()),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(Error::os(errno, "read the history", path)),
        }
    }
}

impl Generation {
    /// Returns the first position from `at` on that has data, or `length`. A hole in the file has no lines, and may be
    /// large although it takes no space.
    fn file_data_from(&self, at: u64, length: u64) -> u64 {
        match lseek(&self.file, at as i64, Whence::SeekData) {
            Ok(found) => (found as u64).min(length),
            Err(Errno::ENXIO) => length,
            Err(_) => at,
        }
    }

    /// Visits the complete lines after those that were visited.
    fn visit_new(&mut self, visit: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        // A shorter file was written anew by another program.
        if length < self.visited {
            self.visited = 0;
        }
        self.visited = self.visited.max(length.saturating_sub(MOST_READ));
        self.visited = self.file_data_from(self.visited, length);
        self.file.seek(SeekFrom::Start(self.visited))?;
        let mut lines = BufReader::with_capacity(64 << 10, (&self.file).take(MOST_READ));
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = lines.by_ref().take(MOST_OF_LINE).read_until(b'\n', &mut line)? as u64;
            // The rest of a line that is being written comes with the next read.
            if !line.ends_with(b"\n") && length < MOST_OF_LINE {
                return Ok(());
            }
            self.visited += length;
            visit(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::history::HistoryLimits;

    const NOW: Duration = Duration::from_secs(4_000_000_000);

    /// Runs `work` with a history file in a new directory, and a function that returns the new lines.
    fn with(work: impl Fn(&HistoryFile<'_>, &Path, &mut dyn FnMut() -> Vec<String>)) {
        let place = tempfile::tempdir().unwrap();
        let directory = File::open(place.path()).unwrap();
        let history_file = HistoryFile { at: directory.as_fd(), name: "history".into(), like: ".".into() };
        let mut known = Generations::default();
        let mut new = || {
            let mut lines = Vec::new();
            let mut visit = |line: &[u8]| lines.push(String::from_utf8_lossy(line).trim_end().to_string());
            history_file.read(&mut known, Path::new("history"), &mut visit).unwrap();
            lines
        };
        work(&history_file, place.path(), &mut new);
    }

    fn append(history_file: &HistoryFile<'_>, line: &str, size: u64) {
        history_file.append(format!("{line}\n").as_bytes(), &HistoryLimits { size, age: NOW }, NOW).unwrap();
    }

    #[test]
    fn a_reader_visits_each_line_once_across_rotations() {
        with(|history_file, place, new| {
            assert_eq!(new(), [""; 0]);
            for round in 0..40 {
                let lines: Vec<String> = (0..3).map(|number| format!("{round:02} {number}")).collect();
                lines.iter().for_each(|line| append(history_file, line, 80));
                assert_eq!(new(), lines, "{round}");
            }
            assert!(place.join("history.1").exists());
        });
    }

    #[test]
    fn a_late_line_of_an_older_generation_is_visited() {
        with(|history_file, place, new| {
            append(history_file, "one", 1000);
            let mut late = File::options().append(true).open(place.join("history")).unwrap();
            fs::rename(place.join("history"), place.join("history.1")).unwrap();
            append(history_file, "two", 1000);
            assert_eq!(new(), ["one", "two"]);
            io::Write::write_all(&mut late, b"late\n").unwrap();
            assert_eq!(new(), ["late"]);
            fs::rename(place.join("history"), place.join("history.1")).unwrap();
            io::Write::write_all(&mut late, b"later\n").unwrap();
            append(history_file, "three", 1000);
            assert_eq!(new(), ["later", "three"]);
        });
    }

    #[test]
    fn a_line_is_visited_when_it_is_complete() {
        with(|_, place, new| {
            fs::write(place.join("history"), "whole\nhal").unwrap();
            assert_eq!(new(), ["whole"]);
            fs::write(place.join("history"), "whole\nhalf\n").unwrap();
            assert_eq!((new(), new()), (vec!["half".to_string()], Vec::new()));
            fs::write(place.join("history"), "anew\n").unwrap();
            assert_eq!(new(), ["anew"]);
            fs::remove_file(place.join("history")).unwrap();
            assert_eq!(new(), [""; 0]);
            fs::write(place.join("history"), "another\n").unwrap();
            assert_eq!(new(), ["another"]);
        });
    }
}
