//! Properties of file names in a store, and of the process data in /proc.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use directory::layout::{Name, file_name, name_of_file};
use host::processes;

/// Parses any bytes as a file name in a store, and as a line of /proc/PID/stat.
pub(super) fn names_and_proc_stat(bytes: &[u8]) {
    if let Some(Name::Pointer(found)) = Name::parse(bytes) {
        assert_eq!(found.name().as_bytes(), bytes, "whoever renames it would rename another file");
    }
    if let Some(Name::Record(ident)) = Name::parse(bytes) {
        assert_eq!(ident.record().as_bytes(), bytes);
    }
    if let Some(name) = name_of_file(bytes) {
        assert_eq!(file_name(&name), bytes, "two files would be one lock");
    }
    if !bytes.contains(&0) {
        file_name_maps_back(bytes);
    }
    if let Some(stat) = processes::parse(bytes) {
        assert!(bytes.windows(stat.program.len().max(1)).any(|part| part == stat.program || stat.program.is_empty()));
        let _ = (stat.is_zombie(), stat.is_running());
    }
}

/// Checks that a name's file is in the store, is unique, and maps back to the name unless it was shortened.
pub(super) fn file_name_maps_back(name: &[u8]) {
    let file = file_name(name);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.%~".contains(byte);
    assert!(file.len() <= 255 && !file.starts_with(b".") && file.iter().all(is_plain), "{file:?}");
    assert_eq!(
        Path::new("store").join(std::ffi::OsStr::from_bytes(&file)).components().count(),
        2 - usize::from(name.is_empty())
    );
    match file.contains(&b'~') {
        true => assert!(name.len() > 66 && name_of_file(&file).is_none(), "only long ones are shortened"),
        false => assert_eq!(name_of_file(&file).as_deref(), Some(name)),
    }
}
