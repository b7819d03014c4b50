//! What a test lacks on this machine. Each test notes it for itself, in its own thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Error;
use std::panic::resume_unwind;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The programs that tests need, each with its Debian package. `.ci/run` installs these packages.
const PROGRAMS: &str = include_str!("../programs.txt");

/// The reason why a test was not tried, or only in part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// These programs are missing.
    Programs(Vec<String>),
    /// Only root may do it.
    Root,
    /// This machine does not have or allow it.
    Machine(String),
}

/// The end of a test that cannot go on. The cause is noted.
pub(crate) struct Abandoned;

thread_local! {
    /// The causes of the test that this thread runs, each with what the report says about this test.
    static CAUSES: RefCell<Option<BTreeMap<Cause, String>>> = const { RefCell::new(None) };
}

impl Cause {
    /// Returns the packages of the missing programs.
    pub(crate) fn packages(&self) -> Vec<&'static str> {
        let Cause::Programs(programs) = self else { return Vec::new() };
        let mut packages: Vec<_> = programs.iter().map(|program| package_of(program)).collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    }

    /// Returns true if `.ci/run` provides for it.
    pub(crate) fn is_provided_in_ci(&self) -> bool {
        !matches!(self, Cause::Machine(_))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Programs(programs) => {
                write!(f, "no {} (apt-get install {})", programs.join(", "), self.packages().join(" "))
            }
            Cause::Root => f.write_str("only root can try it"),
            Cause::Machine(why) => f.write_str(why),
        }
    }
}

/// Returns each program of the table with its package.
fn table() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROGRAMS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '))
}

fn is_in_table(program: &str) -> bool {
    table().any(|(name, _)| name == program)
}

/// Returns the Debian package of a program.
fn package_of(program: &str) -> &'static str {
    let found = table().find(|(name, _)| *name == program);
    found.unwrap_or_else(|| panic!("{program} is not in tests/harness/programs.txt; add it with its package")).1
}

/// Begins a test in this thread.
pub(crate) fn begin() {
    CAUSES.set(Some(BTreeMap::new()));
}

/// Returns what the test of this thread noted.
pub(crate) fn end() -> BTreeMap<Cause, String> {
    CAUSES.take().unwrap_or_default()
}

fn note(cause: Cause, report: String) {
    let is_noted = CAUSES.with_borrow_mut(|causes| {
        let noted = causes.as_mut().map(|causes| causes.insert(cause, report.clone()));
        noted.is_some()
    });
    assert!(is_noted, "{report}: only the thread of a test can note what it lacks");
}

/// Returns true if the program is installed. Otherwise the test is reported as ignored.
pub fn has(program: &str) -> bool {
    has_all(&[program])
}

/// Returns true if all these programs are installed. Otherwise the test is reported as ignored.
pub fn has_all(programs: &[&str]) -> bool {
    // Each program must be in the table, even where it is installed.
    let is_missing = |program: &&&str| !package_of(program).is_empty() && !is_installed(program);
    let missing: Vec<String> = programs.iter().filter(is_missing).map(ToString::to_string).collect();
    let is_complete = missing.is_empty();
    if !is_complete {
        note_missing(missing);
    }
    is_complete
}

fn note_missing(programs: Vec<String>) {
    let cause = Cause::Programs(programs);
    let report = cause.to_string();
    note(cause, report);
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    // Debian does not put the programs of PostgreSQL's server on the path.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let of_postgres = versions.map(|version| version.path().join("bin"));
    std::env::split_paths(&path).chain(of_postgres).any(|directory| directory.join(program).is_file())
}

/// Returns true if root runs the test. Otherwise the test is reported as ignored.
pub fn is_root(for_what: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        note(Cause::Root, format!("{}: {for_what}", Cause::Root));
    }
    is_root
}

/// Returns true if the test may make namespaces and mounts. Otherwise it is reported as ignored: not every root may.
pub fn has_namespaces(for_what: &str) -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    if !is_root(for_what) || !has("unshare") {
        return false;
    }
    let is_possible = *POSSIBLE.get_or_init(|| {
        let mut command = Command::new("unshare");
        command.args(["-mnpf", "--mount-proc", "mount", "-t", "tmpfs", "none", "/tmp"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    });
    if !is_possible {
        skip("namespaces", "none can be made here, as in a container or a chroot");
    }
    is_possible
}

/// Notes that this machine does not have or allow something, and why. That is not a failure even in CI.
pub fn skip(what: &str, why: &str) {
    let report = format!("{what}: {why}");
    note(Cause::Machine(report.clone()), report);
}

/// Ends a test that started a program which was not found. Only a program of the table may be missing.
#[track_caller]
pub fn abandon(program: &OsStr, error: Error) -> ! {
    let name = program.to_str().unwrap_or_default();
    assert!(is_in_table(name) && !is_installed(name), "{name}: {error}");
    note_missing(vec![name.to_string()]);
    resume_unwind(Box::new(Abandoned))
}
