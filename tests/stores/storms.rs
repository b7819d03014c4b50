//! The promises that it takes many processes to break. They are this test program again, told in the environment what
//! to do; [`worker`] is what they run.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use host::{Host, Unix};
use store::{Call, CommitResult, Store, Version};

use crate::rig::{Effects, KIND, Kind, Rig, STORE};

/// The parameters of a process besides its store: its part, the log of its steps, and its number.
const PART: &str = "CSALOCK_TEST_PART";
const LOG: &str = "CSALOCK_TEST_LOG";
const WHO: &str = "CSALOCK_TEST_WHO";

const PROCESSES: usize = 8;
const STEPS: usize = 100;

/// Maximum number of attempts; a process without a turn by then is starved.
const MOST_TRIES: usize = 1_000_000;

pub(crate) fn steps_of_many_processes_on_one_record_are_all_kept(rig: &Rig) {
    let logs = storm(rig, "count");
    assert_eq!(counts(&rig.body(b"counts").unwrap()), vec![STEPS; PROCESSES]);
    assert_grown_and_never_given_twice(&logs, PROCESSES);
}

pub(crate) fn tokens_are_never_issued_twice_even_with_removals(rig: &Rig) {
    let logs = storm(rig, "take");
    assert_eq!(rig.bodies(), [b""; 0]);
    assert_grown_and_never_given_twice(&logs, PROCESSES * STEPS);
}

pub(crate) fn processes_killed_in_mid_storm_leave_a_store_that_works(rig: &Rig) {
    let random = Unix::new();
    let mut killed = Vec::new();
    for round in 0..15 {
        let mut victims: Vec<_> = (0..3).map(|number| Victim::start(rig, PROCESSES + round * 3 + number)).collect();
        for (victim, byte) in victims.iter_mut().zip(random.random().unwrap()) {
            victim.await_steps(usize::from(byte % 40) + 1);
        }
        killed.extend(victims.into_iter().map(Victim::kill));
        rig.await_last_words();
        assert_sound(rig);
    }
    // The steps that dead processes logged have happened, and at most one more step of each.
    let counted = counts(&rig.body(b"counts").unwrap());
    for (at, log) in killed.iter().enumerate() {
        let (count, written) = (counted[PROCESSES + at], log.len());
        assert!(count == written || count == written + 1, "{count} counted, {written} written down");
    }
    let highest = killed.iter().flatten().map(|line| number(line)).max().unwrap();
    let logs = storm(rig, "count");
    assert_eq!(counts(&rig.body(b"counts").unwrap())[..PROCESSES], vec![STEPS; PROCESSES]);
    assert!(logs.iter().flatten().map(|line| number(line)).all(|number| number == 0 || number > highest));
    assert_sound(rig);
    rig.store.sweep(Call::default(), false).unwrap();
    assert_sound(rig);
}

/// Runs one part in many processes at once, and brings what they wrote down.
fn storm(rig: &Rig, part: &str) -> Vec<Vec<String>> {
    let mut children: Vec<Child> = (0..PROCESSES).map(|who| start(rig, part, who)).collect();
    // The end of its standard input is every process's sign to begin.
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for output in outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    (0..PROCESSES).map(|who| lines(&log(rig, part, who))).collect()
}

fn start(rig: &Rig, part: &str, who: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "storms::worker", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(PART, part).env(WHO, who.to_string()).env(LOG, log(rig, part, who));
    command.env(KIND, format!("{:?}", rig.kind)).env(STORE, rig.path());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn log(rig: &Rig, part: &str, who: usize) -> PathBuf {
    rig.around().join(format!("{part}.{who}"))
}

fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap().lines().map(str::to_string).collect()
}

fn number(line: &str) -> u64 {
    line.parse().unwrap()
}

fn assert_grown_and_never_given_twice(logs: &[Vec<String>], at_least: usize) {
    let mut all = BTreeSet::new();
    for log in logs {
        let numbers: Vec<u64> = log.iter().map(|line| number(line)).filter(|number| *number > 0).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
        for number in numbers {
            assert!(all.insert(number), "{number} was given twice");
        }
    }
    assert!(all.len() >= at_least, "{} tokens, at least {at_least} expected", all.len());
}

/// A process that works until it is killed.
struct Victim {
    child: Child,
    log: PathBuf,
}

impl Victim {
    fn start(rig: &Rig, who: usize) -> Victim {
        Victim { child: start(rig, "toil", who), log: log(rig, "toil", who) }
    }

    /// It says a byte for every step that it has taken.
    fn await_steps(&mut self, steps: usize) {
        drop(self.child.stdin.take());
        let stderr = self.child.stderr.as_mut().unwrap();
        for _ in 0..steps {
            let mut said = [0];
            let end = stderr.read(&mut said).unwrap() == 0;
            if end || said != *b"." {
                let mut rest = said.to_vec();
                stderr.read_to_end(&mut rest).unwrap();
                panic!("{}", String::from_utf8_lossy(&rest));
            }
        }
    }

    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        lines(&self.log)
    }
}

/// Not a test: what the processes of a storm run.
#[test]
#[ignore = "the storms run it, in processes of their own"]
fn worker() {
    let Ok(part) = std::env::var(PART) else { return };
    let kind = std::env::var(KIND).unwrap();
    let kind = Kind::ALL.into_iter().find(|known| format!("{known:?}") == kind).unwrap();
    let store = kind.open(Path::new(&std::env::var(STORE).unwrap()), Arc::new(Unix::new()));
    let who = std::env::var(WHO).unwrap().parse().unwrap();
    let log = OpenOptions::new().create(true).append(true).open(std::env::var(LOG).unwrap()).unwrap();
    let worker = Worker { store: store.as_ref(), who, log };
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    match &part[..] {
        "count" => (1..=STEPS).for_each(|step| worker.count(step)),
        "take" => (1..=STEPS).for_each(|step| worker.acquire_and_release(step)),
        "toil" => worker.toil(),
        part => panic!("there is no part {part}"),
    }
}

struct Worker<'a> {
    store: &'a dyn Store,
    who: usize,
    log: File,
}

impl Worker<'_> {
    fn note(&self, token: u64) {
        (&self.log).write_all(format!("{token}\n").as_bytes()).unwrap();
    }

    /// Reads and commits until the step is done: `None` if another process has already built on it.
    ///
    /// A conflict may also mean that the commit succeeded and the reply was lost, so `step` returns [`AfterWait::Done`]
    /// when it finds its result.
    fn until_done(&self, name: &[u8], step: impl Fn(Option<&[u8]>) -> Next) -> Option<Version> {
        let mut highest = 0;
        for _ in 0..MOST_TRIES {
            let found = self.store.read(Call::default(), name).unwrap();
            let version = found.as_ref().map(|stored| stored.version);
            if let Some(version) = version {
                assert!(version.number >= highest, "{} after {highest}", version.number);
                highest = version.number;
            }
            let body = match step(found.as_ref().map(|stored| &stored.body[..])) {
                Next::Done => return None,
                Next::Become(body) => body,
            };
            match self.store.swap(name, version.as_ref(), body.as_deref()).unwrap() {
                CommitResult::Done(new) => {
                    assert!(new.number >= highest, "{} after {highest}", new.number);
                    return Some(new);
                }
                CommitResult::Conflict(_) | CommitResult::Unclear => {}
            }
        }
        panic!("process {} never has its turn", self.who);
    }

    /// Step number `step` of this process, in a record that has a line for every process: how many steps it took.
    fn count(&self, step: usize) {
        let done = self.until_done(b"counts", |found| {
            let mut counts = counts(found.unwrap_or_default());
            counts.resize(counts.len().max(self.who + 1), 0);
            match counts[self.who] {
                count if count == step => return Next::Done,
                count => assert_eq!(count, step - 1, "a step of process {} was lost, or done twice", self.who),
            }
            counts[self.who] = step;
            Next::Become(Some(counts.iter().map(|count| format!("{count}\n")).collect::<String>().into_bytes()))
        });
        // A process with a lost reply does not know its token.
        self.note(done.map_or(0, |version| version.number));
    }

    /// The record is created, changed once and removed. A process that meets the second version of another one removes
    /// it, like a caller that finds an abandoned lock.
    fn acquire_and_release(&self, step: usize) {
        let [first, second] = ["once", "twice"].map(|times| format!("{times} {} {step}", self.who).into_bytes());
        let mut born = None;
        for _ in 0..MOST_TRIES {
            if let CommitResult::Done(version) = self.store.swap(b"lock", None, Some(&first)).unwrap() {
                born = Some(version);
                break;
            }
            match self.store.read(Call::default(), b"lock").unwrap() {
                Some(found) if found.body == first => {
                    born = Some(found.version);
                    break;
                }
                Some(found) if found.body.starts_with(b"twice") => {
                    self.store.swap(b"lock", Some(&found.version), None).unwrap();
                }
                _ => {}
            }
        }
        let born = born.unwrap_or_else(|| panic!("process {} never has its turn", self.who));
        self.note(born.number);
        let changed = self.until_done(b"lock", |found| match found {
            Some(body) if body == first => Next::Become(Some(second.clone())),
            _ => Next::Done,
        });
        if let Some(changed) = changed {
            self.note(changed.number);
            // Either this process or another one removes it.
            self.store.swap(b"lock", Some(&changed), None).unwrap();
        }
    }

    /// Steps of every kind, until we are killed.
    fn toil(&self) {
        for step in 1.. {
            let letter = b'a' + (step % 20) as u8;
            let body = vec![letter; 1000 * (step % 20 + 1)];
            self.until_done(b"big", |_| Next::Become(Some(body.clone())));
            self.until_done(b"comes and goes", |found| Next::Become(found.is_none().then(|| body.clone())));
            self.count(step);
            std::io::stderr().write_all(b".").unwrap();
        }
    }
}

/// The effect of a step on the record that it found.
enum Next {
    /// It is already as it should be.
    Done,
    /// This, or no record.
    Become(Option<Vec<u8>>),
}

fn counts(body: &[u8]) -> Vec<usize> {
    String::from_utf8(body.to_vec()).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

/// Every record can be read, is as a process wrote it, and agrees with the scan.
fn assert_sound(rig: &Rig) {
    let whole = |body: &[u8]| match body {
        [first @ b'a'..=b'z', ..] => {
            body.len() == 1000 * usize::from(first - b'a' + 1) && body.iter().all(|byte| byte == first)
        }
        _ => body.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'\n')),
    };
    let mut bodies: Vec<Vec<u8>> =
        [&b"big"[..], b"comes and goes", b"counts"].map(|name| rig.body(name)).into_iter().flatten().collect();
    bodies.sort();
    assert!(bodies.iter().all(|body| whole(body)));
    assert_eq!(rig.bodies(), bodies);
}
