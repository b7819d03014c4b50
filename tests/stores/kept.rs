//! The durability and the readers of a committed record, as far as they can be seen without a power cut.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lock::error::ErrorKind;
use store::{Call, Durability, Version, WriteOptions};

use crate::rig::{Effects, Kind, Rig, stored};

const ALL: [Durability; 3] = [Durability::Volatile, Durability::Atomic, Durability::Durable];

const PRIVATE: WriteOptions = WriteOptions { durability: Durability::Volatile, mode: Some(0o600) };

pub(crate) fn swaps_of_every_durability_do_the_same(rig: &Rig) {
    for first in ALL {
        for second in ALL {
            for third in ALL {
                born_changed_and_removed(rig, [first, second, third]);
            }
        }
    }
    rig.store.sweep(Call::default(), false).unwrap();
    assert_eq!(rig.bodies(), [b""; 0]);
}

fn born_changed_and_removed(rig: &Rig, durabilities: [Durability; 3]) {
    let [born, changed, removed] = durabilities.map(|durability| WriteOptions { durability, mode: None });
    let swap = |name: &str, expect: Option<&Version>, body: Option<&str>, keep| {
        rig.store.swap_with(name.as_bytes(), expect, body.map(str::as_bytes), keep).unwrap()
    };
    // More than one, since one of them may leave other traces than the rest.
    for name in ["x", "y"] {
        let old = stored(swap(name, None, Some("old"), born));
        assert!(!swap(name, None, Some("other"), born).is_done());
        assert_eq!(rig.body(name.as_bytes()).unwrap(), b"old");
        let new = stored(swap(name, Some(&old), Some("new"), changed));
        assert!(new.number > old.number);
        assert!(!swap(name, Some(&old), Some("other"), changed).is_done());
        assert_eq!(rig.body(name.as_bytes()).unwrap(), b"new");
        assert!(!swap(name, Some(&old), None, removed).is_done());
        let gone = stored(swap(name, Some(&new), None, removed));
        assert_eq!(rig.body(name.as_bytes()), None);
        assert!(!swap(name, Some(&new), None, removed).is_done());
        // And one that was never changed.
        let again = stored(swap(name, None, Some("again"), born));
        assert!(again.number > gone.number);
        stored(swap(name, Some(&again), None, removed));
        assert_eq!(rig.store.read(Call::default(), name.as_bytes()).unwrap(), None);
    }
}

pub(crate) fn a_record_has_the_mode_of_the_store_without_missing_bits(rig: &Rig) {
    // The umask takes some of these away from a directory; then the store decides.
    fs::create_dir_all(rig.path()).unwrap();
    fs::set_permissions(rig.path(), PermissionsExt::from_mode(0o2755)).unwrap();
    for (wanted, mode) in [(Some(0o600), 0o600), (Some(0o640), 0o640), (Some(0o666), 0o644), (None, 0o644)] {
        let keep = WriteOptions { mode: wanted, ..WriteOptions::default() };
        let [first, second] = ["born", "changed"].map(|body| format!("{body} for {wanted:?}").into_bytes());
        let born = stored(rig.store.swap_with(b"x", None, Some(&first), keep).unwrap());
        assert_eq!(modes(&rig.path(), &first), [mode], "{wanted:?}");
        let changed = stored(rig.store.swap_with(b"x", Some(&born), Some(&second), keep).unwrap());
        assert_eq!(modes(&rig.path(), &second), [mode], "{wanted:?}");
        rig.remove(b"x", &changed);
    }
}

/// The modes of all files with this content.
fn modes(directory: &Path, content: &[u8]) -> Vec<u32> {
    let mut modes = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            modes.extend(self::modes(&path, content));
        } else if fs::read(&path).unwrap() == content {
            modes.push(entry.metadata().unwrap().permissions().mode() & 0o7777);
        }
    }
    modes
}

pub(crate) fn a_record_that_fewer_may_read_than_the_database_is_refused(rig: &Rig) {
    let swap = |name: &[u8], keep| rig.again().swap_with(name, None, Some(b"body"), keep);
    let remove = |name: &[u8], version| rig.again().swap_with(name, Some(&version), None, PRIVATE);
    let mode = || fs::metadata(rig.path()).unwrap().permissions().mode() & 0o7777;
    stored(swap(b"first", PRIVATE).unwrap());
    assert_eq!(mode(), 0o600);
    fs::set_permissions(rig.path(), PermissionsExt::from_mode(0o640)).unwrap();
    let before = (fs::read(rig.path()).unwrap(), rig.footprint());
    let refused = swap(b"second", PRIVATE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    let said = refused.to_string();
    assert!(["mode 0640", "chmod 0600", rig.path().to_str().unwrap()].iter().all(|what| said.contains(what)), "{said}");
    assert_eq!(before, (fs::read(rig.path()).unwrap(), rig.footprint()));
    let third = stored(swap(b"third", WriteOptions { mode: Some(0o660), ..WriteOptions::default() }).unwrap());
    stored(remove(b"third", third).unwrap());
    fs::set_permissions(rig.path(), PermissionsExt::from_mode(0o600)).unwrap();
    // The log was created while the database had the other mode.
    let log = format!("{}-wal", rig.path().display());
    assert!(swap(b"second", PRIVATE).unwrap_err().to_string().contains(&log));
    fs::set_permissions(log, PermissionsExt::from_mode(0o600)).unwrap();
    stored(swap(b"second", PRIVATE).unwrap());
    assert_eq!((mode(), rig.bodies().len(), rig.kind), (0o600, 2, Kind::Sqlite));
}
