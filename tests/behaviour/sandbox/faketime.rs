//! Another wall clock for one program: libfaketime, without its wrapper.
//!
//! The wrapper refuses to start under the pid of one that was killed, for what that one left in /dev/shm; and where pids
//! are few, they come round within a run of these tests.

use std::path::PathBuf;
use std::sync::LazyLock;

use super::{Kind, skip};

/// The library to preload, and the variables that it wants: this much later, or earlier, on the wall clock alone.
pub(crate) fn faketime(kind: Kind, offset: &str) -> Option<[(&'static str, String); 4]> {
    // Hosts that share a directory use the clock of its file system, which would be faked too.
    if kind == Kind::Shared {
        return None;
    }
    other_times(offset)
}

/// Sets other times of files, too: a shared store sees another clock of its server.
pub(crate) fn other_times(offset: &str) -> Option<[(&'static str, String); 4]> {
    let library = LIBRARY.as_ref()?;
    Some([
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME", offset.to_string()),
        ("DONT_FAKE_MONOTONIC", "1".to_string()),
        ("FAKETIME_DONT_RESET", "1".to_string()),
    ])
}

static LIBRARY: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let architectures = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let places = ["/usr/lib", "/usr/lib64"].map(PathBuf::from).into_iter().chain(architectures);
    let found = places.map(|place| place.join("faketime/libfaketime.so.1")).find(|library| library.is_file());
    if found.is_none() {
        skip("faketime", "its library is not installed here");
    }
    found
});

/// The environment in which a call sees the wall clock an hour later, and the times of files as they are.
pub(crate) fn an_hour_later() -> Option<Vec<(&'static str, String)>> {
    let clock = other_times("+3600")?;
    Some(clock.into_iter().chain([("NO_FAKE_STAT", "1".to_string())]).collect())
}
