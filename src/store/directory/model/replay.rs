//! Running the store one system call at a time.
//!
//! What it does next depends on nothing but the answers that it got so far. So to take one step, it is run from the
//! beginning of its operation with all answers that are known, and unwound at the first call beyond them: that one is to
//! be answered next. Its descriptors are real ones, of an empty file of its own (so that locks on it are its own as well); which directory
//! each of them means is remembered.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nix::NixPath;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A directory by what it was made as, which nothing else is ever made as.
pub(crate) type Place = String;

/// One system call on the file system that all share.
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
    /// The directories whose names it sees or changes.
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

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Done,
    Opened(Place),
    Bytes(Vec<u8>),
    Names(Vec<String>),
    /// An errno, which nix does not let us hash.
    Failed(i32),
}

/// How far an operation came.
#[derive(Clone)]
pub(crate) enum Progress<T> {
    /// It waits for an answer.
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

/// Runs an operation with these answers. It gets the descriptor of the store's own directory.
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

/// Which directory a descriptor means, on a thread that runs a model.
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
    // No panic: nobody is told of it.
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

pub(crate) fn text(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}

pub(crate) fn path<P: ?Sized + NixPath>(name: &P) -> String {
    name.with_nix_path(|name| name.to_string_lossy().into_owned()).expect("a name has no NUL in it")
}
