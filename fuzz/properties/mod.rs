//! Fuzz properties of every reader of untrusted input: one function for each reader, which must hold for any bytes.
//!
//! `fuzz/` tests them with the inputs of a fuzzer, `cargo test` with the inputs that it has found so far
//! (`fuzz/corpus/`). This module is not in the program, only in builds for tests and fuzzing. The fuzzer bounds time
//! and memory: it ends an input that takes seconds or a gigabyte.

mod files;
mod paper;
mod record;
mod servers;
mod source;
mod texts;

/// Panics if the property does not hold.
pub type Property = fn(&[u8]);

/// Every property, with the name of its fuzz target and of its part of the corpus.
pub const ALL: [(&str, Property); 11] = [
    ("record", record::bytes),
    ("record_there_and_back", record::there_and_back),
    ("beside", record::beside),
    ("history", texts::history),
    ("url", texts::url),
    ("duration", texts::duration),
    ("name", texts::name),
    ("etcd", servers::etcd),
    ("postgres", servers::postgres),
    ("ssh", servers::ssh),
    ("file", files::names_and_proc_stat),
];

/// Tests the property with this name.
///
/// # Panics
///
/// Panics if the property does not hold, or no property has that name.
pub fn try_on(name: &str, bytes: &[u8]) {
    let property = ALL.iter().find(|(known, _)| *known == name).expect("a property has that name");
    property.1(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// Maximum size of all archives, to keep the repository small.
    const MOST_BYTES: usize = 400_000;

    fn corpus(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name)
    }

    fn regressions(target: &str) -> Vec<(String, Vec<u8>)> {
        let listed = std::fs::read_dir(corpus(target)).into_iter().flatten();
        let read = |path: PathBuf| (path.display().to_string(), std::fs::read(&path).unwrap());
        listed.map(|entry| read(entry.unwrap().path())).collect()
    }

    fn archive(target: &str) -> Vec<u8> {
        let path = corpus(&format!("{target}.tar"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns the files in a ustar archive: blocks of 512 bytes, a header with name and octal size, then the content.
    fn unpack(mut archive: &[u8]) -> Vec<(String, Vec<u8>)> {
        let text =
            |field: &[u8]| String::from_utf8(field.iter().copied().take_while(|byte| *byte != 0).collect()).unwrap();
        let mut files = Vec::new();
        while archive[0] != 0 {
            let (header, rest) = archive.split_at(512);
            assert_eq!(&header[257..262], b"ustar");
            let size = usize::from_str_radix(&text(&header[124..136]), 8).unwrap();
            files.push((text(&header[..100]), rest[..size].to_vec()));
            archive = &rest[size.next_multiple_of(512)..];
        }
        files
    }

    #[test]
    fn every_property_holds_for_the_corpus() {
        for (target, property) in super::ALL {
            let archived = unpack(&archive(target));
            assert!(!archived.is_empty(), "the archive of {target} is empty");
            for (name, bytes) in archived.into_iter().chain(regressions(target)) {
                let tried = std::panic::catch_unwind(|| property(&bytes));
                assert!(tried.is_ok(), "{target}: {name} breaks the property; its panic is above");
            }
        }
    }

    #[test]
    fn the_corpus_is_small() {
        let bytes: usize = super::ALL.iter().map(|(target, _)| archive(target).len()).sum();
        assert!(bytes <= MOST_BYTES, "{bytes} bytes");
    }

    #[test]
    fn each_property_has_its_fuzz_target() {
        let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
        for (name, _) in super::ALL {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
    }
}
