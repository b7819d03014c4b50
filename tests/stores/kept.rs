//! The durability and the readers of a committed record, as far as they can be seen without a power cut.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use lock::error::ErrorKind;
use store::{Durability, WriteOptions};

use crate::rig::{Effects, Kind, Rig, stored};

const PRIVATE: WriteOptions = WriteOptions { durability: Durability::Volatile, mode: Some(0o600) };

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

/// The modes of all files with this content, and the line with the place after it.
fn modes(directory: &Path, content: &[u8]) -> Vec<u32> {
    let mut modes = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            modes.extend(self::modes(&path, content));
        } else if fs::read(&path).unwrap().starts_with(&[content, b"{\"place\":"].concat()) {
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
