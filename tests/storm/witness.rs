//! The witness: who is inside, by another book than csalock's.
//!
//! Whoever is in a critical section says so in a file of places that flock(2) guards, each written with one write. One
//! who comes in looks at all who are there. An entry counts while the process lives whose life the lock is bound to, and,
//! where it is bound to a time, until the earliest moment at which that may be over on CLOCK_BOOTTIME. What the
//! witness finds wrong is a line in the file `broken`; all that it sees is a line in `events`.

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

/// How long after the end of its lease a command may still be seen alive: whoever ends it must be given the processor.
const OVERDUE: u64 = 2500;

/// Somebody who is in, or a name that an id has.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Which round of which worker.
    pub(crate) who: String,
    pub(crate) name: String,
    /// `x`, `s`, `j`; `c` is a claim.
    pub(crate) share: char,
    /// Whose life it is bound to: pid and start.
    pub(crate) owner: Option<(i32, u64)>,
    /// No later than when it was asked for: the lease, if there is one, began after it.
    pub(crate) asked: u64,
    pub(crate) until: Option<u64>,
    /// When its owner must have been ended, where somebody is there to do it.
    pub(crate) overdue: Option<u64>,
    pub(crate) token: Option<u64>,
    /// Of a claim.
    pub(crate) id: String,
}

/// What is remembered of a name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Mark {
    name: String,
    highest: u64,
    highest_exclusive: u64,
    /// Until when everything that was asked for may have been broken; for ever while somebody is about it.
    broken: u64,
    breaker: Option<(i32, u64)>,
}

pub(crate) struct Witness {
    place: PathBuf,
}

/// The file of places, while nobody else has it.
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

    /// Comes in, under all of these names. Whether it counts: one whose owner is gone, or whose time is over, or whose lock
    /// may have been broken meanwhile, is not inside.
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

    /// Somebody is about to break the lock, or has broken it.
    pub(crate) fn breaks(&self, name: &str, breaker: Option<(i32, u64)>) {
        let book = self.book();
        let (at, mut mark) = book.mark(name);
        (mark.breaker, mark.broken) = (breaker, book.now);
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

    /// Everybody who has a place. Those whose owners died give it up.
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

    fn standing(&self, entry: &Entry) -> &'static str {
        let (_, mark) = self.mark(&entry.name);
        if !lives(entry.owner) {
            "orphan"
        } else if entry.until.is_some_and(|until| until <= self.now) {
            "late"
        } else if entry.asked <= mark.broken || (mark.breaker.is_some() && lives(mark.breaker)) {
            "perhaps broken"
        } else {
            "in"
        }
    }

    fn enter(&self, entry: &Entry) {
        let here = self.entries();
        let others: Vec<_> = here.iter().filter(|(_, other)| other.name == entry.name && other.who != entry.who).collect();
        let mut slots = 1;
        for (_, other) in &others {
            if self.standing(other) == "in" {
                slots += u32::from(other.share == 'j');
                let same_id = other.share == 'c' && other.id == entry.id;
                let fits = same_id || (other.share == entry.share && matches!(entry.share, 's' | 'j'));
                if !fits || slots > SLOTS {
                    self.broken(entry, &format!("while {other:?} is in"));
                }
            } else if other.overdue.is_some_and(|overdue| overdue < self.now) {
                self.broken(entry, &format!("while the command of {other:?} outlives its lease"));
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

/// Nobody's life is for ever.
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

/// How a critical section is told what it is: words, each `KEY=VALUE`.
pub(crate) const TOLD: &str = "CSALOCK_TEST_TOLD";

/// The words that run the critical section.
pub(crate) fn section() -> Vec<String> {
    let this = std::env::current_exe().unwrap().display().to_string();
    [&this, "witness::critical_section", "--exact", "--ignored", "--test-threads=1"].map(str::to_string).to_vec()
}

/// What scripts and commands run, in and out of locks.
#[test]
#[ignore = "the processes of a storm run it"]
fn critical_section() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let told = |key: &str| told.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default().to_string();
    let number = |key: &str| told(key).parse::<u64>().ok();
    let witness = Witness::new(Path::new("witness"));
    let (who, id) = (told("who"), told("id"));
    match &told("do")[..] {
        "stay" => {
            let entries = entries_of(&told, &number);
            if witness.enter(&entries) {
                std::thread::sleep(std::time::Duration::from_millis(number("stay").unwrap_or(0)));
                witness.leave(|entry| entry.who == who);
            }
        }
        "claimed" => {
            let entry = |name: &str| {
                let name = name.to_string();
                Entry { who: who.clone(), name, share: 'c', asked: boottime(), id: id.clone(), ..Entry::default() }
            };
            witness.enter(&told("names").split(',').map(entry).collect::<Vec<_>>());
        }
        "unclaims" => witness.leave(|entry| entry.share == 'c' && entry.id == id),
        "breaks" => witness.breaks(&told("names"), parent()),
        "broke" => witness.breaks(&told("names"), None),
        what => panic!("{what:?} is nothing to do"),
    }
}

fn parent() -> Option<(i32, u64)> {
    // Who has none any more has one that is not there.
    let parent = nix::unistd::getppid().as_raw();
    Some(identity(parent).filter(|_| parent > 1).unwrap_or((i32::MAX, 0)))
}

/// `names=a:self,b:parent,d:nobody tokens=5,6 share=x asked=7 ttl=8 warded=9`
fn entries_of(told: &dyn Fn(&str) -> String, number: &dyn Fn(&str) -> Option<u64>) -> Vec<Entry> {
    let (asked, ttl, now) = (number("asked").unwrap(), number("ttl"), boottime());
    let tokens = Some(told("tokens")).filter(|tokens| !tokens.is_empty());
    let tokens = tokens.or_else(|| std::env::var("CSALOCK_TOKEN").ok()).unwrap_or_default();
    let mut tokens = tokens.split(',').map(|token| token.parse().ok());
    let me = std::process::id() as i32;
    let entry = |name: &str| {
        let (name, owner) = name.split_once(':').unwrap();
        Entry {
            who: told("who"),
            name: name.to_string(),
            share: told("share").chars().next().unwrap(),
            owner: match owner {
                "self" => identity(me),
                "parent" => parent(),
                _ => None,
            },
            asked,
            until: ttl.map(|ttl| asked + ttl),
            overdue: ttl.filter(|_| !told("warded").is_empty()).map(|ttl| now + ttl + OVERDUE),
            token: tokens.next().flatten(),
            id: String::new(),
        }
    };
    told("names").split(',').map(entry).collect()
}
