//! Power cuts: acknowledged writes exist and are whole, and no lock of the old boot is held.
//!
//! A script of the real program runs under strace(1), which reports every change of files and names and every sync.
//! Every state that a power cut may leave at any moment is built from that ([`disk`]). The library, on a host that was
//! restarted, reads it and continues in it. The program itself reads some states, with another boot id in its /proc,
//! while a process of "the old boot" still runs. `CSALOCK_TESTS` selects the number of ways in which the unsynced
//! writes are mixed. (`tests/vm/power/run` does the same with a real kernel and a real cut.)

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use directory::Directory;
use engine::{AcquireRequest, AcquireResult, Engine, ValueWrite, WaitPolicy, WriteResult};
use host::{Host, Unix, WakeAddress, WakeSet};
use lock::error::Result;
use lock::{HandleHash, Liveness, Owner, PidDomain, ProcessId, Release, SetValue};
use sqlite::Sqlite;
use store::{Call as StoreCall, Layout, Scope, Store, Verdict};

use self::disk::{Disk, Tree};
use self::trace::Call;
use crate::extent::{Extent, choose, extent, turn};
use crate::sandbox::{Kind, Sandbox, has};

mod disk;
mod trace;

/// The effect of a step of the script on names, once it is acknowledged.
#[derive(Clone, Copy)]
enum Effect {
    Value(&'static str, Option<&'static str>),
    Claims(&'static [&'static str], Option<&'static str>),
    Nothing,
}

const BIG: &str = "$(head -c 3000 /dev/zero | tr '\\0' x)";

/// The script. `version NAME` and `token NAME` say what a name has come to.
const STEPS: [(&str, Effect); 23] = [
    ("csalock put a one", Effect::Value("a", Some("one"))),
    ("version a", Effect::Nothing),
    ("csalock put a two", Effect::Value("a", Some("two"))),
    ("csalock run b dash -c 'cd /said/token.b.$CSALOCK_TOKEN'", Effect::Nothing),
    ("csalock lock e", Effect::Nothing),
    ("csalock put g \"$BIG\"", Effect::Value("g", Some(BIG))),
    ("csalock claim -q --id 7 c d", Effect::Claims(&["c", "d"], Some("7"))),
    ("csalock run a csalock put a four", Effect::Value("a", Some("four"))),
    ("version a", Effect::Nothing),
    ("csalock unlock e", Effect::Nothing),
    ("csalock run e true", Effect::Nothing),
    ("csalock del a", Effect::Value("a", None)),
    ("csalock put h first", Effect::Value("h", Some("first"))),
    ("csalock del h", Effect::Value("h", None)),
    ("csalock unclaim -q --id 7 c d", Effect::Claims(&["c", "d"], None)),
    ("csalock claim -q --id 8 d", Effect::Claims(&["d"], Some("8"))),
    ("csalock put g small", Effect::Value("g", Some("small"))),
    ("csalock put a five", Effect::Value("a", Some("five"))),
    ("csalock run a dash -c 'cd /said/token.a.$CSALOCK_TOKEN'", Effect::Nothing),
    ("csalock run a true", Effect::Nothing),
    ("csalock gc -q", Effect::Nothing),
    ("csalock lock f", Effect::Nothing),
    ("csalock run b dash -c 'cd /said/token.b.$CSALOCK_TOKEN'", Effect::Nothing),
];

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// The acknowledged state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    values: BTreeMap<&'static str, Vec<u8>>,
    claims: BTreeMap<&'static str, &'static str>,
}

impl Known {
    fn after(steps: usize) -> Known {
        let mut known = Known::default();
        for (_, effect) in &STEPS[..steps] {
            match *effect {
                Effect::Value(name, Some(BIG)) => drop(known.values.insert(name, vec![b'x'; 3000])),
                Effect::Value(name, Some(value)) => drop(known.values.insert(name, value.as_bytes().to_vec())),
                Effect::Value(name, None) => drop(known.values.remove(name)),
                Effect::Claims(names, Some(id)) => known.claims.extend(names.iter().map(|name| (*name, id))),
                Effect::Claims(names, None) => known.claims.retain(|name, _| !names.contains(name)),
                Effect::Nothing => {}
            }
        }
        known
    }
}

/// The place of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Directory,
    Beside,
    Sqlite,
}

/// A place in memory, so that nothing waits for a disk, where one state after another is laid out.
struct Rig {
    place: Where,
    memory: tempfile::TempDir,
    sandbox: Sandbox,
}

impl Rig {
    fn new(place: Where) -> Rig {
        let memory = crate::supervised::in_memory();
        let rig = Rig { place, memory, sandbox: Sandbox::new(Kind::Directory) };
        std::fs::create_dir(rig.around()).unwrap();
        rig
    }

    fn around(&self) -> PathBuf {
        self.memory.path().join("around")
    }

    fn url(&self) -> Option<String> {
        let path = self.around().join("store");
        match self.place {
            Where::Directory => Some(format!("dir:{}", path.display())),
            Where::Sqlite => Some(format!("sqlite:{}", path.display())),
            Where::Beside => None,
        }
    }

    /// As it is typed.
    fn typed(&self, name: &str) -> String {
        if self.place == Where::Beside { self.around().join(name).display().to_string() } else { name.to_string() }
    }

    fn open(&self, host: Arc<dyn Host>) -> Result<Box<dyn Store>> {
        let path = self.around().join("store");
        Ok(match self.place {
            Where::Directory => Box::new(Directory::open(&path, Layout::Own, host)?),
            Where::Sqlite => Box::new(Sqlite::open(&path, host)?),
            Where::Beside => Box::new(Directory::open(&self.around().join(".csalock"), Layout::Beside, host)?),
        })
    }

    /// The name as the store has it.
    fn stored(&self, name: &str) -> Vec<u8> {
        let location = self.typed(name);
        if self.place == Where::Beside {
            Path::new(&location).file_name().unwrap().as_encoded_bytes().to_vec()
        } else {
            location.into_bytes()
        }
    }

    /// Runs the script and tells what was done to the disk.
    fn trace(&self) -> Vec<Call> {
        let mut script = "BIG=$(head -c 3000 /dev/zero | tr '\\0' x)\n\
            version() { cd \"/said/version.${1##*/}.$(csalock get --json \"$1\" | sed 's/.*\"version\": *\\([0-9]*\\).*/\\1/')\"; }\n"
            .to_string();
        for (number, (step, effect)) in STEPS.iter().enumerate() {
            let mut step = format!("{step} ");
            for name in NAMES {
                step = step.replace(&format!(" {name} "), &format!(" {} ", self.typed(name)));
                step = step.replace(&format!(" {name} "), &format!(" {} ", self.typed(name)));
            }
            let failed = if matches!(effect, Effect::Nothing) { ":" } else { "exit 1" };
            script += &format!("{step} > /dev/null || {failed}\ncd /said/done.{}\n", number + 1);
        }
        let log = self.memory.path().join("trace");
        let log = log.to_str().unwrap();
        let strace = ["-f", "-y", "-xx", "-s", "1000000", "-e", trace::CALLS, "-o", log, "dash", "-c", &script];
        let call = self.sandbox.call("strace", strace).env("CSALOCK_HISTORY", "0");
        let call =
            if let Some(url) = self.url() { call.env("CSALOCK_STORE", url) } else { call.without("CSALOCK_STORE") };
        let done = call.capture();
        // `cd` has complained.
        assert!(!done.stderr.contains("csalock:"), "{done:?}");
        trace::calls(&std::fs::read_to_string(log).unwrap(), &self.around())
    }

    fn lay_out(&self, tree: &Tree) {
        std::fs::remove_dir_all(self.around()).unwrap();
        std::fs::create_dir(self.around()).unwrap();
        disk::lay_out(tree, &self.around());
    }
}

/// This machine after a restart, possibly with its wall clock set back.
struct Rebooted {
    unix: Unix,
    set_back: Duration,
}

impl Host for Rebooted {
    fn boottime(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn wall(&self) -> Duration {
        self.unix.wall() - self.set_back
    }

    fn domain(&self) -> Result<PidDomain> {
        Ok(PidDomain { boot: "the-next-boot".to_string(), ..self.unix.domain()? })
    }

    fn name(&self) -> String {
        self.unix.name()
    }

    fn uid(&self) -> u32 {
        self.unix.uid()
    }

    fn this_process(&self) -> Result<ProcessId> {
        self.unix.this_process()
    }

    fn process(&self, pid: i32) -> Result<Option<ProcessId>> {
        self.unix.process(pid)
    }

    fn blocked_callers(&self, called: i32, some_time_later: bool) -> Vec<ProcessId> {
        self.unix.blocked_callers(called, some_time_later)
    }

    fn liveness(&self, home: &PidDomain, process: &ProcessId, reach: Scope) -> Liveness {
        let real = self.unix.domain().unwrap();
        let mine = home.boot == "the-next-boot";
        // The real host would find processes of the last boot alive; they are in another boot here.
        let seen = if mine {
            PidDomain { boot: real.boot, ..home.clone() }
        } else {
            PidDomain { boot: "before".into(), pids: "4026531836.0".into(), ..home.clone() }
        };
        self.unix.liveness(&seen, process, reach)
    }

    fn is_released_by(&self, supervisor: &ProcessId, home: &PidDomain, process: &ProcessId) -> bool {
        self.unix.is_released_by(supervisor, home, process)
    }

    fn sleep(&self, span: Duration) {
        self.unix.sleep(span);
    }

    fn is_interrupted(&self) -> bool {
        self.unix.is_interrupted()
    }

    fn leave_witness(&self, key: &str, text: &[u8]) {
        self.unix.leave_witness(key, text);
    }

    fn has_witness(&self, key: &str, uid: u32) -> bool {
        self.unix.has_witness(key, uid)
    }

    fn remove_witness(&self, key: &str) {
        self.unix.remove_witness(key);
    }

    fn remove_old_witnesses(&self, age: Duration) {
        self.unix.remove_old_witnesses(age);
    }

    fn random(&self) -> Result<[u8; 16]> {
        self.unix.random()
    }

    fn wake_set<'a>(&self, proof: &HandleHash, interrupt: Vec<BorrowedFd<'a>>) -> Result<Box<dyn WakeSet + 'a>> {
        self.unix.wake_set(proof, interrupt)
    }

    fn wake(&self, listener: WakeAddress<'_>) -> bool {
        self.unix.wake(listener)
    }
}

/// The output before a cut: finished steps, and the numbers of names.
#[derive(Debug, Clone, Default)]
struct Said {
    done: usize,
    /// Tokens of values, which last.
    versions: BTreeMap<String, u64>,
    /// Tokens of locks, which die with the boot: the clock alone keeps them growing.
    tokens: BTreeMap<String, u64>,
}

impl Said {
    fn hear(&mut self, said: &str) {
        let parts: Vec<&str> = said.split('.').collect();
        match parts[..] {
            ["done", number] => self.done = number.parse().unwrap(),
            ["version", name, number] | ["token", name, number] => {
                let number = number.parse().unwrap();
                let name = Path::new(name).file_name().unwrap().to_str().unwrap().to_string();
                if parts[0] == "version" { &mut self.versions } else { &mut self.tokens }.insert(name, number);
            }
            _ => panic!("{said}"),
        }
    }
}

fn check(rig: &Rig, said: &Said, set_back: Duration) -> Result<()> {
    let host = Arc::new(Rebooted { unix: Unix::new(), set_back });
    let store = rig.open(host.clone())?;
    for finding in store.diagnose(StoreCall::default()) {
        assert_ne!(finding.verdict, Verdict::Bad, "{finding:?}");
    }
    store.read_history(StoreCall::default(), &mut |_| {})?;
    let engine = Engine::new(store, host);
    let mut found = Known::default();
    for name in NAMES {
        let stored = rig.stored(name);
        if let Some((_, bytes)) = engine.value(&stored)? {
            found.values.insert(name, bytes);
        }
        if let Some(grant) = engine.claim_of(&stored)? {
            let id = grant.claim.unwrap();
            found.claims.insert(name, if id == b"7" { "7" } else { "8" });
        }
        let sight = engine.inspect(&stored)?;
        let is_claim = found.claims.contains_key(name);
        assert_eq!(sight.is_held(), is_claim, "{name} is held after the cut: {:?}", sight.record);
    }
    let (old, new) = (Known::after(said.done), Known::after((said.done + 1).min(STEPS.len())));
    assert!(found == old || found == new, "found {found:?}, acknowledged {old:?}, perhaps {new:?}");
    for name in NAMES {
        let may_be = [found.claims.contains_key(name), new.claims.contains_key(name)];
        go_on(&engine, rig, said, (name, may_be), set_back)?;
    }
    engine.store().sweep(StoreCall::default(), false)?;
    engine.store().scan(StoreCall::default(), &mut |place, stored| {
        let stored = stored?;
        assert!(lock::is_auxiliary(&stored.body) || !stored.body.is_empty(), "{place}");
        Ok(())
    })
}

/// Acquires, writes and releases, unless the name is claimed. A claim under creation at the power cut may be completed
/// by the next caller.
fn go_on(
    engine: &Engine,
    rig: &Rig,
    said: &Said,
    (name, claimed): (&str, [bool; 2]),
    set_back: Duration,
) -> Result<()> {
    let stored = rig.stored(name);
    let host = engine.host();
    let process = host.this_process()?;
    let (owners, command) = (vec![process], b"after".to_vec());
    let party = Owner {
        domain: host.domain()?,
        processes: owners,
        supervisor: None,
        outlives_lock: false,
        session: None,
        host: host.name(),
        uid: 0,
        command,
        label: None,
    };
    let applicant = AcquireRequest::for_itself(engine.host().new_handle()?, party, process);
    let answer = engine.acquire(&stored, &applicant, &WaitPolicy::NONE, None, &mut |_| None)?;
    let AcquireResult::Granted(grants, _) = answer else {
        assert!(matches!(answer, AcquireResult::Refused(..)), "{name}");
        assert!(claimed.contains(&true), "{name}: {answer:?}");
        return Ok(());
    };
    let grant = &grants[0];
    assert!(!claimed[0], "{name}: {grant:?}");
    let floors = [said.versions.get(name), said.tokens.get(name).filter(|_| set_back.is_zero())];
    let floor = floors.into_iter().flatten().copied().max().unwrap_or(0);
    // Beside a file the clock alone remembers what was there.
    if rig.place != Where::Beside || set_back.is_zero() {
        assert!(grant.token.unwrap() > floor, "{name}: {grant:?} comes after {floor}");
    }
    let by = engine.by_proof(applicant.handle.proof())?;
    let terms = SetValue {
        credentials: by,
        value: None,
        precondition: None,
        require_lock: true,
        release: false,
        even_if_stale: false,
    };
    let wanted = ValueWrite { terms, bytes: Some(b"after"), mode: None };
    let written = engine.write(&stored, &wanted, &applicant, &WaitPolicy::NONE, None, &mut |_| None)?;
    assert!(matches!(&written, WriteResult::Done(Ok(_))), "{name}");
    assert_eq!(engine.value(&stored)?.unwrap().1, b"after");
    let released = engine.apply(&stored, &Release(engine.by_proof(applicant.handle.proof())?))?;
    assert!(released.is_ok(), "{name}: {released:?}");
    Ok(())
}

/// Every state after a cut at any moment, each once, while `visit` wants more.
fn each_state(calls: &[Call], seeds: u64, mut visit: impl FnMut(&Tree, &Said) -> bool) {
    let fates: Vec<disk::Fate> = [disk::Fate::Kept, disk::Fate::Lost, disk::Fate::Zeros, disk::Fate::Torn]
        .into_iter()
        .chain((1..=seeds).map(disk::Fate::Some))
        .collect();
    let (mut disk, mut said, mut seen) = (Disk::default(), Said::default(), HashSet::new());
    for call in calls {
        disk.take(call);
        if let Call::Say(words) = call {
            said.hear(words);
        }
        for tree in disk.after_a_cut(&fates) {
            let mut hasher = DefaultHasher::new();
            (&tree, said.done).hash(&mut hasher);
            if seen.insert(hasher.finish()) && !visit(&tree, &said) {
                return;
            }
        }
    }
}

/// Looks at a state, and says what is wrong with it.
fn fault(rig: &Rig, tree: &Tree, said: &Said, set_back: Duration) -> Option<String> {
    rig.lay_out(tree);
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(rig, said, set_back)));
    let what = match checked {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
    };
    let shown = tree.iter().map(|(path, content)| {
        let content =
            content.as_ref().map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned());
        format!("{} {content:?}", path.display())
    });
    Some(format!("{what}\n{said:?}\n{}", shown.collect::<Vec<_>>().join("\n")))
}

fn every_cut(place: Where) {
    require!(has("strace"));
    let rig = Rig::new(place);
    let calls = rig.trace();
    let said = calls.iter().filter(|call| matches!(call, Call::Say(said) if said.starts_with("done"))).count();
    assert_eq!(said, STEPS.len(), "{calls:?}");
    let seeds = choose(1, 1, 10);
    let mut states = 0;
    each_state(&calls, seeds, |tree, said| {
        states += 1;
        // A quick run tries every second state.
        if extent() == Extent::Quick && states % 2 == turn() % 2 {
            return true;
        }
        let set_back = Duration::from_secs(if states / 2 % 2 == 0 { 0 } else { 3600 });
        let fault = fault(&rig, tree, said, set_back);
        assert_eq!(fault, None, "state {states}");
        true
    });
    println!("{place:?}: {} calls, {states} states", calls.len());
    assert!(states > 100, "{states}");

    // Losses are seen: without any sync, data is lost.
    let unsynced: Vec<Call> = calls.into_iter().filter(|call| !matches!(call, Call::Sync(_))).collect();
    let mut lost = false;
    each_state(&unsynced, 1, |tree, said| {
        lost = fault(&rig, tree, said, Duration::ZERO).is_some();
        !lost
    });
    assert!(lost);
}

cases! {
    fn a_directory_keeps_acknowledged_writes() { every_cut(Where::Directory) }
    fn a_directory_beside_files_keeps_acknowledged_writes() { every_cut(Where::Beside) }
    fn a_database_keeps_acknowledged_writes() { every_cut(Where::Sqlite) }
}

#[test]
fn the_program_treats_locks_of_another_boot_as_free() {
    for kind in [Kind::Directory, Kind::Sqlite] {
        let sandbox = Sandbox::new(kind);
        let holder = sandbox.holder("x");
        sandbox.csalock(["put", "y", "value"]).run();
        let earlier = "11111111-2222-3333-4444-555555555555";
        sandbox.edit("x", |record| record.holders[0].owner_mut().domain.boot = earlier.into());
        let script = "csalock get y; echo; csalock run -n x echo mine; csalock gc -q; csalock status -1
                      csalock doctor > doctor || cat doctor";
        sandbox.script("dash", script).capture().prints(0, "value\nmine\ny\n");
        drop(holder);
    }
}
