//! Runs the store one system call at a time.
//!
//! The next call depends only on the answers so far. So each step runs the operation from its beginning with all known
//! answers, and unwinds at the first call beyond them. The model answers that call next. The descriptors are real ones,
//! of a private empty file (so that locks on it are private too). The run maps each of them to its directory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nix::NixPath;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Identity of a directory: the name under which it was created, which is never used again.
pub(crate) type Place = String;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    OpenDirectory { at: Place, name: String },
    MakeDirectory { at: Place, name: String },
    Create { at: Place, name: String, bytes: Vec<u8> },
    Read { at: Place, name: String },
    Rename { from: Place, old: String, to: Place, new: String },
    RemoveFile { at: Place, name: String },
    RemoveDirectory { at: Place, name: String },
    List { at: Place },
    IsThere { at: Place },
}

impl Call {
    /// Returns the directories whose names the call reads or changes.
    pub(crate) fn places(&self) -> Vec<&Place> {
        match self {
            Call::OpenDirectory { name, .. } if name == "." => Vec::new(),
            Call::OpenDirectory { at, .. }
            | Call::MakeDirectory { at, .. }
            | Call::Create { at, .. }
            | Call::Read { at, .. }
            | Call::RemoveFile { at, .. }
            | Call::RemoveDirectory { at, .. }
            | Call::List { at } => vec![at],
            Call::Rename { from, to, .. } => vec![from, to],
            Call::IsThere { .. } => Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Done,
    Opened(Place),
    Bytes(Vec<u8>),
    Names(Vec<String>),
    /// An errno as a number, because nix's type cannot be hashed.
    Failed(i32),
}

#[derive(Clone)]
pub(crate) enum Progress<T> {
    /// The operation waits for an answer.
    Calls(Call),
    Ended(T),
}

struct Run {
    answers: Vec<Answer>,
    used: usize,
    places: HashMap<RawFd, Place>,
    empty: OwnedFd,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

struct Unwound(Call);

/// Runs an operation with these answers. The operation gets the descriptor of the store's own directory.
pub(crate) fn run<T>(answers: &[Answer], operation: impl FnOnce(OwnedFd) -> T) -> Progress<T> {
    let empty = memfd_create(c"model", MFdFlags::MFD_CLOEXEC).expect("there are enough descriptors");
    let run = Run { answers: answers.to_vec(), used: 0, places: HashMap::new(), empty };
    RUN.set(Some(run));
    let ended = catch_unwind(AssertUnwindSafe(|| operation(descriptor(super::STORE.to_string()))));
    RUN.set(None);
    match ended {
        Ok(ended) => Progress::Ended(ended),
        Err(payload) => match payload.downcast::<Unwound>() {
            Ok(unwound) => Progress::Calls(unwound.0),
            Err(panicked) => resume_unwind(panicked),
        },
    }
}

/// Returns the directory of a descriptor on a thread that runs a model.
pub(crate) fn directory(at: &impl AsFd) -> Option<Place> {
    RUN.with_borrow(|run| run.as_ref().map(|run| run.places[&at.as_fd().as_raw_fd()].clone()))
}

fn descriptor(place: Place) -> OwnedFd {
    RUN.with_borrow_mut(|run| {
        let run = run.as_mut().expect("a model runs");
        let descriptor = run.empty.try_clone().expect("there are enough descriptors");
        run.places.insert(descriptor.as_raw_fd(), place);
        descriptor
    })
}

fn ask(call: Call) -> Answer {
    let known = RUN.with_borrow_mut(|run| {
        let run = run.as_mut().expect("a model runs");
        run.used += 1;
        run.answers.get(run.used - 1).cloned()
    });
    // The unwinding is not a panic, so no panic hook reports it.
    known.unwrap_or_else(|| resume_unwind(Box::new(Unwound(call))))
}

fn answered(call: Call) -> Result<Answer, Errno> {
    match ask(call) {
        Answer::Failed(errno) => Err(Errno::from_raw(errno)),
        answer => Ok(answer),
    }
}

pub(crate) fn done(call: Call) -> Result<(), Errno> {
    answered(call).map(drop)
}

pub(crate) fn opened(call: Call) -> Result<OwnedFd, Errno> {
    let Answer::Opened(place) = answered(call)? else { unreachable!("it was to be opened") };
    Ok(descriptor(place))
}

pub(crate) fn bytes(call: Call) -> Result<Vec<u8>, Errno> {
    let Answer::Bytes(bytes) = answered(call)? else { unreachable!("it was to be read") };
    Ok(bytes)
}

pub(crate) fn names(call: Call) -> Result<Vec<String>, Errno> {
    let Answer::Names(names) = answered(call)? else { unreachable!("it was to be listed") };
    Ok(names)
}

pub(crate) fn text(name: &(impl NixPath + ?Sized)) -> String {
    name.with_nix_path(|name| name.to_string_lossy().into_owned()).expect("a name has no NUL in it")
}
