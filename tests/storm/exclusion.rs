//! The witness: a record of the processes inside that is independent of csalock.
//!
//! A process in a critical section writes an entry into a file that flock(2) guards, each with one write. A process
//! that enters checks all entries. An entry counts while the owner of the lock lives and, if the lock has a time limit,
//! until the earliest moment at which that may be over on CLOCK_BOOTTIME. Errors are lines in the file `broken`; all
//! observations are lines in `events`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::sandbox::proc;
use crate::schedule::SLOTS;

const PLACES: u64 = 512;
const PLACE: usize = 512;

/// A process that is inside, or a name of an id.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Which round of which worker.
    pub(crate) who: String,
    pub(crate) name: String,
    /// `x`, `s`, `j`; `c` is a claim.
    pub(crate) share: char,
    /// The owner: pid and start.
    pub(crate) owner: Option<(i32, u64)>,
    /// No later than when it was asked for: the lease, if there is one, began after it.
    pub(crate) asked: u64,
    pub(crate) until: Option<u64>,
    /// The time by which its owner must have been ended, if it has a supervisor or keeper.
    pub(crate) overdue: Option<u64>,
    pub(crate) token: Option<u64>,
    /// The entry of a claim.
    pub(crate) id: String,
}

/// The remembered state of a name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Mark {
    name: String,
    highest: u64,
    highest_exclusive: u64,
    /// The time until which all earlier grants may have been broken; unlimited while a break is under way.
    broken: u64,
    breakers: Vec<(i32, u64)>,
}

pub(crate) struct Witness {
    place: PathBuf,
}

/// The file of entries, locked by this process.
struct Book<'a> {
    file: Flock<File>,
    witness: &'a Witness,
    now: u64,
}

impl Witness {
    pub(crate) fn new(place: &Path) -> Witness {
        Witness { place: place.to_path_buf() }
    }

    fn book(&self) -> Book<'_> {
        let path = self.place.join("book");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let mut file = Some(file);
        let file = loop {
            match Flock::lock(file.take().unwrap(), FlockArg::LockExclusive) {
                Ok(locked) => break locked,
                Err((back, nix::errno::Errno::EINTR)) => file = Some(back),
                Err((_, errno)) => panic!("{errno}"),
            }
        };
        Book { file, witness: self, now: boottime() }
    }

    /// Enters under all of these names. Returns whether the entry counts: a process without a live owner, after its
    /// time, or with a lock that may have been broken meanwhile, is not inside.
    pub(crate) fn enter(&self, entries: &[Entry]) -> bool {
        let book = self.book();
        for entry in entries {
            let standing = book.standing(entry);
            if standing != "in" {
                book.note(standing, entry);
                return false;
            }
        }
        entries.iter().for_each(|entry| book.enter(entry));
        true
    }

    /// Goes out, and so do the claims of this id if it has one.
    pub(crate) fn leave(&self, is_mine: impl Fn(&Entry) -> bool) {
        let book = self.book();
        for (at, entry) in book.entries() {
            if is_mine(&entry) {
                book.note("out", &entry);
                book.clear(at);
            }
        }
    }

    /// A process is about to break the lock, or has `done` it.
    pub(crate) fn breaks(&self, name: &str, breaker: (i32, u64), done: bool) {
        let book = self.book();
        let (at, mut mark) = book.mark(name);
        mark.broken = book.now;
        mark.breakers.retain(|other| *other != breaker);
        if !done {
            mark.breakers.push(breaker);
        }
        book.write(at, &mark);
        book.note("breaks", &Entry { name: name.to_string(), share: '-', ..Entry::default() });
    }

    pub(crate) fn broken(&self) -> String {
        std::fs::read_to_string(self.place.join("broken")).unwrap_or_default()
    }

    pub(crate) fn events(&self) -> String {
        std::fs::read_to_string(self.place.join("events")).unwrap_or_default()
    }
}

impl Book<'_> {
    fn read<T: for<'a> Deserialize<'a>>(&self, at: u64) -> Option<T> {
        let mut bytes = [0; PLACE];
        self.file.read_exact_at(&mut bytes, at * PLACE as u64).ok()?;
        serde_json::from_slice(bytes.split(|byte| *byte == 0).next().unwrap()).ok()
    }

    /// One write within a page: a process that is killed has written all of it or nothing.
    fn write(&self, at: u64, what: &impl Serialize) {
        let mut bytes = serde_json::to_vec(what).unwrap();
        assert!(bytes.len() < PLACE, "{}", String::from_utf8_lossy(&bytes));
        bytes.resize(PLACE, 0);
        self.file.write_all_at(&bytes, at * PLACE as u64).unwrap();
    }

    fn clear(&self, at: u64) {
        self.file.write_all_at(&[0; PLACE], at * PLACE as u64).unwrap();
    }

    /// Returns all entries. Entries of dead owners are removed.
    fn entries(&self) -> Vec<(u64, Entry)> {
        let mut bytes = vec![0; PLACE * PLACES as usize];
        let read = self.file.read_at(&mut bytes, 0).unwrap() / PLACE;
        let place = |at: &u64| &bytes[*at as usize * PLACE..][..PLACE];
        let found = (0..read as u64).filter(|at| place(at)[0] != 0);
        let entry = |at: u64| serde_json::from_slice(place(&at).split(|byte| *byte == 0).next().unwrap()).unwrap();
        let all = found.map(|at| -> (u64, Entry) { (at, entry(at)) });
        let (here, gone): (Vec<_>, Vec<_>) = all.partition(|(_, entry)| lives(entry.owner));
        gone.iter().for_each(|(at, _)| self.clear(*at));
        here
    }

    /// Marks stand behind the places.
    fn mark(&self, name: &str) -> (u64, Mark) {
        for at in PLACES.. {
            match self.read::<Mark>(at) {
                Some(mark) if mark.name == name => return (at, mark),
                Some(_) => {}
                None => return (at, Mark { name: name.to_string(), ..Mark::default() }),
            }
        }
        unreachable!()
    }

    /// Whether its lock may have been broken since the request.
    fn is_broken(&self, entry: &Entry) -> bool {
        let (at, mut mark) = self.mark(&entry.name);
        if !mark.breakers.is_empty() {
            // Until now at least. A dead process did not report its end.
            mark.broken = self.now;
            mark.breakers.retain(|breaker| lives(Some(*breaker)));
            self.write(at, &mark);
        }
        entry.asked <= mark.broken
    }

    fn standing(&self, entry: &Entry) -> &'static str {
        if !lives(entry.owner) {
            "orphan"
        } else if entry.until.is_some_and(|until| until <= self.now) {
            "late"
        } else if self.is_broken(entry) {
            "perhaps broken"
        } else {
            "in"
        }
    }

    fn enter(&self, entry: &Entry) {
        let here = self.entries();
        let others: Vec<_> =
            here.iter().filter(|(_, other)| other.name == entry.name && other.who != entry.who).collect();
        let mut slots = 1;
        for (at, other) in &others {
            if self.standing(other) == "in" {
                slots += u32::from(other.share == 'j');
                let same_id = other.share == 'c' && other.id == entry.id;
                let fits = same_id || (other.share == entry.share && matches!(entry.share, 's' | 'j'));
                if !fits || slots > SLOTS {
                    self.broken(entry, &format!("while {other:?} is in"));
                }
                continue;
            }
            if other.overdue.is_some_and(|overdue| overdue < self.now) {
                self.broken(entry, &format!("while the command of {other:?} outlives its lease"));
            }
            if self.is_broken(other) {
                // The process that would leave may be dead.
                self.clear(*at);
            }
        }
        let (at, mut mark) = self.mark(&entry.name);
        if let Some(token) = entry.token {
            let least = if entry.share == 'x' { mark.highest } else { mark.highest_exclusive };
            if token <= least {
                self.broken(entry, &format!("after token {least}"));
            }
            mark.highest = mark.highest.max(token);
            if entry.share == 'x' {
                mark.highest_exclusive = mark.highest;
            }
        }
        self.write(at, &mark);
        let free = (0..PLACES).find(|at| here.iter().all(|(taken, _)| taken != at)).unwrap();
        self.write(free, entry);
        self.note("in", entry);
    }

    fn broken(&self, entry: &Entry, how: &str) {
        self.note("BROKEN", entry);
        self.append("broken", &format!("{}: {entry:?} came in {how}", self.now));
    }

    fn note(&self, what: &str, entry: &Entry) {
        let token = entry.token.map(|token| format!(" token {token}")).unwrap_or_default();
        let Entry { name, share, who, id, .. } = entry;
        self.append("events", &format!("{} {name} {share} {what} {who}{token} {id}", self.now));
    }

    fn append(&self, file: &str, line: &str) {
        let path = self.witness.place.join(file);
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// No owner lives forever.
fn lives(owner: Option<(i32, u64)>) -> bool {
    owner.is_none_or(|(pid, start)| proc::lives(pid) && proc::start_of(pid) == Some(start))
}

/// Milliseconds since the host was started.
pub(crate) fn boottime() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
    time.tv_sec() as u64 * 1000 + time.tv_nsec() as u64 / 1_000_000
}

pub(crate) fn identity(pid: i32) -> Option<(i32, u64)> {
    proc::start_of(pid).map(|start| (pid, start))
}
