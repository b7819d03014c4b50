//! The directory in which a process was started.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The current directory. It is asked for when a relative path needs it: most calls have none.
#[derive(Debug, Clone, Default)]
pub struct CurrentDirectory(OnceLock<PathBuf>);

impl AsRef<Path> for CurrentDirectory {
    /// Returns the path; empty if the directory was removed.
    fn as_ref(&self) -> &Path {
        self.0.get_or_init(|| std::env::current_dir().unwrap_or_default())
    }
}
