//! Fuzz properties of every reader of untrusted input: one function for each reader, which must hold for any bytes.
//!
//! `fuzz/` tests them with the inputs of a fuzzer, `cargo test` with the inputs that it has found so far
//! (`fuzz/corpus/`). This module is not in the program, only in builds for tests and fuzzing. The fuzzer bounds time
//! and memory: it ends an input that takes seconds or a gigabyte.

mod etcd;
mod files;
mod paper;
mod record;
mod source;
mod texts;

/// The type of a property: the function panics if the property does not hold.
pub type Property = fn(&[u8]);

/// Every property, with the name of its fuzz target and of its part of the corpus.
pub const ALL: [(&str, Property); 9] = [
    ("record", record::bytes),
    ("record_there_and_back", record::there_and_back),
    ("beside", record::beside),
    ("history", texts::history),
    ("url", texts::url),
    ("duration", texts::duration),
    ("name", texts::name),
    ("etcd", etcd::answers),
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

    /// Maximum number of corpus files, to keep the repository small.
    const MOST_FILES: usize = 300;
    const MOST_BYTES: u64 = 400_000;

    fn corpus(name: &str) -> Vec<PathBuf> {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let listed = std::fs::read_dir(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        listed.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn every_property_holds_for_the_corpus() {
        for (name, property) in super::ALL {
            let files = corpus(name);
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                let bytes = std::fs::read(&file).unwrap();
                let tried = std::panic::catch_unwind(|| property(&bytes));
                assert!(tried.is_ok(), "{} breaks a property; `cargo test` shows above what it was", file.display());
            }
        }
    }

    #[test]
    fn the_corpus_is_small() {
        let files: Vec<PathBuf> = super::ALL.iter().flat_map(|(name, _)| corpus(name)).collect();
        let bytes: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(files.len() <= MOST_FILES && bytes <= MOST_BYTES, "{} files, {bytes} bytes", files.len());
    }

    #[test]
    fn each_property_has_its_fuzz_target() {
        let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
        for (name, _) in super::ALL {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
    }
}
