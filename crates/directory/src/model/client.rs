//! A client that uses the store as the engine does, one operation after the other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::TIME;
use super::replay::{self, Answer, Call, Progress};
use crate::Directory;
use crate::layout::Place;
use crate::root::Root;
use crate::sys::Ownership;
use host::{Host, WakeAddress, WakeSet};
use lock::error::Result;
use lock::{HandleHash, Liveness, PidDomain, ProcessId};
use store::{Call as StoreCall, CommitResult, Layout, Scope, Store, Upkeep, Version, WriteSet};

const NAME: &[u8] = b"x";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Doing {
    Looks,
    /// Replaces this version by the client's own record.
    Takes(Option<Number>),
    Holds(Number),
    /// Changes the record while holding the lock.
    Changes(Number),
    /// Changes this record of another holder, whose bytes begin like this.
    Joins(Number, [u8; 2]),
    /// Reads the result of a change that ended in a conflict.
    LooksAfterChange,
    GivesBack(Number),
    /// Reads the result of a release that ended in a conflict.
    LooksAfterGivingBack,
    Sweeps,
    Ended,
}

/// A [`Version`] that can be hashed.
pub(super) type Number = (u64, u64);

#[derive(Debug, Clone)]
pub(super) enum Found {
    Read(Option<(Number, Vec<u8>)>),
    Swapped(Option<Number>),
    Swept,
}

type Runs = HashMap<(Act, Vec<Answer>), Progress<Option<Found>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Act {
    pub client: usize,
    pub serial: u64,
    pub doing: Doing,
    pub is_nfs: bool,
}

impl Act {
    /// Returns the bytes that the operation stores; `None` for a release.
    fn body(&self) -> Option<Vec<u8>> {
        if let Doing::Joins(_, [holder, changed]) = self.doing {
            return Some(vec![holder, changed, self.client as u8]);
        }
        let changed = matches!(self.doing, Doing::Changes(_));
        (!matches!(self.doing, Doing::GivesBack(_))).then(|| vec![self.client as u8, u8::from(changed)])
    }

    /// Runs the operation on these answers, unless the result is cached. A failed operation ends with `None`.
    pub(super) fn run_once(&self, answers: &[Answer]) -> Progress<Option<Found>> {
        thread_local! {
            static KNOWN: RefCell<Runs> = RefCell::default();
        }
        KNOWN.with_borrow_mut(|known| {
            let run = || replay::run(answers, |directory| self.operate(directory).ok());
            known.entry((*self, answers.to_vec())).or_insert_with(run).clone()
        })
    }

    fn operate(&self, directory: OwnedFd) -> Result<Found> {
        let scope = if self.is_nfs { Scope::Shared } else { Scope::Local };
        let store = Directory {
            path: PathBuf::from("/store"),
            layout: Layout::Own,
            shared: self.is_nfs,
            host: Arc::new(Clockwork { drawn: Mutex::new((self.client as u64) << 32 | self.serial << 8), act: *self }),
            root: Mutex::new(Some(Arc::new(private_root(directory, scope)))),
            committed_in: Mutex::default(),
            seen: Mutex::default(),
            leases: store::leases::Seen::default(),
        };
        let number = |version: Version| (version.number, version.mark);
        let expect = match self.doing {
            Doing::Takes(expect) => expect,
            Doing::Changes(version) | Doing::GivesBack(version) | Doing::Joins(version, _) => Some(version),
            Doing::Sweeps => return store.sweep(StoreCall::default(), false).map(|_| Found::Swept),
            _ => {
                let stored = store.read(StoreCall::default(), NAME)?;
                return Ok(Found::Read(stored.map(|stored| (number(stored.version), stored.body))));
            }
        };
        let expect = expect.map(|(number, mark)| Version { number, mark });
        let body = self.body();
        let set = WriteSet::of(NAME, expect.as_ref(), body.as_deref());
        Ok(Found::Swapped(match store.commit(StoreCall::default(), &set)? {
            CommitResult::Done(version) => {
                store.finish(StoreCall::default(), &set);
                Some(number(version))
            }
            CommitResult::Conflict(_) | CommitResult::Unclear => None,
        }))
    }

    /// Returns true if no other client can see the effect of a call or change its result.
    pub(super) fn is_private(&self, call: &Call, drafts: impl Fn(&str) -> bool) -> bool {
        match call {
            Call::OpenDirectory { at, name } if name == "." => at == super::STORE || at == ".work",
            Call::Create { at, .. } => drafts(at),
            _ => false,
        }
    }
}

/// A host whose clock stands still and whose random numbers never repeat.
struct Clockwork {
    drawn: Mutex<u64>,
    act: Act,
}

impl Host for Clockwork {
    fn boottime(&self) -> Duration {
        TIME
    }

    fn wall(&self) -> Duration {
        // A client that sweeps considers all drafts old.
        if self.act.doing == Doing::Sweeps { TIME * 1000 } else { TIME }
    }

    fn domain(&self) -> Result<PidDomain> {
        Ok(PidDomain { machine: "m".into(), boot: "b".into(), pids: "p".into(), net: 1 })
    }

    fn name(&self) -> String {
        String::new()
    }

    fn uid(&self) -> u32 {
        0
    }

    fn this_process(&self) -> Result<ProcessId> {
        Ok(ProcessId { pid: 1, start: 1 })
    }

    fn process(&self, _pid: i32) -> Result<Option<ProcessId>> {
        Ok(None)
    }

    fn blocked_callers(&self, _called: i32, _some_time_later: bool) -> Vec<ProcessId> {
        Vec::new()
    }

    fn liveness(&self, _home: &PidDomain, _process: &ProcessId, _reach: Scope) -> Liveness {
        Liveness::Unknown
    }

    fn is_released_by(&self, _supervisor: &ProcessId, _home: &PidDomain, _process: &ProcessId) -> bool {
        false
    }

    fn sleep(&self, _span: Duration) {
        unreachable!("a store of files does not sleep")
    }

    fn is_interrupted(&self) -> bool {
        false
    }

    fn leave_witness(&self, _key: &str, _text: &[u8]) {}

    fn has_witness(&self, _key: &str, _uid: u32) -> bool {
        false
    }

    fn remove_old_witnesses(&self, _age: Duration) {}

    fn remove_witness(&self, _key: &str) {}

    fn random(&self) -> Result<[u8; 16]> {
        let mut drawn = self.drawn.lock().expect("nobody panics with it");
        *drawn += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&drawn.to_be_bytes());
        Ok(bytes)
    }

    fn wake_set<'a>(&self, _proof: &HandleHash, _interrupt: Vec<BorrowedFd<'a>>) -> Result<Box<dyn WakeSet + 'a>> {
        unreachable!("a store does not wait")
    }

    fn wake(&self, _listener: WakeAddress<'_>) -> bool {
        false
    }
}

fn private_root(directory: OwnedFd, scope: Scope) -> Root {
    Root {
        has_channels: true,
        has_old_names: false,
        directory,
        path: PathBuf::from("/store"),
        id: (0, 0),
        place: Place::UNKNOWN,
        is_layered: false,
        sticky: None,
        scope,
        uncached: OFlag::empty(),
        inner_mode: Mode::from_bits_truncate(0o700),
        file_mode: Mode::from_bits_truncate(0o600),
        ownership: Ownership::default(),
        layout: Layout::Own,
        work: OnceLock::new(),
        known_token: Mutex::default(),
        parents_synced: OnceLock::new(),
    }
}
