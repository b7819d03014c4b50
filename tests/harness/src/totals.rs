//! What the suites of one run of `cargo test` tried, for the line at its end.
//!
//! Each suite leaves a file under the directory for temporary files that cargo(1) gives to tests, in a directory with the
//! process id and the start time of that cargo. So the files of an earlier or a simultaneous run do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::causes::Cause;

/// The directory of all files of this kind.
const DIRECTORY: &str = "totals";

/// What a suite, or all suites of a run, tried.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    /// The number of tests that were tried in full.
    pub(crate) run: u64,
    /// The number of tests that lacked something.
    pub(crate) lacking: u64,
    /// The number of tests by cause. A test may have several.
    pub(crate) causes: BTreeMap<Cause, u64>,
    /// The number of tests that are not for this run, by reason.
    pub(crate) left_out: BTreeMap<String, u64>,
}

impl Totals {
    /// Returns a line for each cause.
    pub(crate) fn by_cause(&self) -> String {
        let lines = self.causes.iter().map(|(cause, number)| format!("SKIPPED {}: {cause}\n", tests(*number)));
        lines.collect()
    }

    /// Leaves this for the end of the run, if cargo(1) runs the suite.
    pub(crate) fn keep_for_the_end(&self, temporary: &Path) {
        let Some(run) = run_of_cargo() else { return };
        let directory = temporary.join(DIRECTORY).join(run);
        let suite = std::env::args_os().next().map(PathBuf::from).and_then(|path| Some(path.file_name()?.to_owned()));
        let kept = fs::create_dir_all(&directory)
            .and_then(|()| fs::write(directory.join(suite.unwrap_or_default()), self.to_string()));
        if let Err(error) = kept {
            println!("the totals of this suite are not kept in {}: {error}", directory.display());
        }
    }

    fn add(&mut self, other: Totals) {
        self.run += other.run;
        self.lacking += other.lacking;
        other.causes.into_iter().for_each(|(cause, number)| *self.causes.entry(cause).or_default() += number);
        other.left_out.into_iter().for_each(|(reason, number)| *self.left_out.entry(reason).or_default() += number);
    }

    /// Returns the lines that end a run.
    fn conclusion(&self, suites: usize) -> String {
        let left_out: u64 = self.left_out.values().sum();
        let reasons: Vec<_> = self.left_out.keys().map(String::as_str).collect();
        let more = match left_out {
            0 => String::new(),
            _ => format!("; {left_out} more were not for this run: {}", reasons.join(", ")),
        };
        let ran = format!("{} of {} ran", tests(self.run), count(suites as u64, "suite"));
        if self.lacking == 0 {
            return format!("Nothing was skipped: {ran}{more}.\n");
        }
        let mut text = self.by_cause();
        text += &format!("SKIPPED {} in all; {ran}{more}.\n", tests(self.lacking));
        let mut packages: Vec<_> = self.causes.keys().flat_map(Cause::packages).collect();
        packages.sort_unstable();
        packages.dedup();
        if !packages.is_empty() {
            text += &format!("To try more: apt-get install {}\n", packages.join(" "));
        }
        if self.causes.contains_key(&Cause::Root) {
            text += "To try more: run the tests as root, on a machine that may be lost\n";
        }
        text
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "run {}\nlacking {}", self.run, self.lacking)?;
        for (cause, number) in &self.causes {
            match cause {
                Cause::Programs(programs) => writeln!(f, "programs {number} {}", programs.join(" "))?,
                Cause::Root => writeln!(f, "root {number}")?,
                Cause::Machine(why) => writeln!(f, "machine {number} {why}")?,
            }
        }
        self.left_out.iter().try_for_each(|(reason, number)| writeln!(f, "out {number} {reason}"))
    }
}

/// Reads what a suite left.
fn parsed(text: &str) -> Totals {
    let mut totals = Totals::default();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let kind = words.next().unwrap_or_default();
        let number = words.next().and_then(|number| number.parse().ok()).unwrap_or_default();
        let rest = words.next().unwrap_or_default().to_string();
        match kind {
            "run" => totals.run = number,
            "lacking" => totals.lacking = number,
            "out" => drop(totals.left_out.insert(rest, number)),
            "root" => drop(totals.causes.insert(Cause::Root, number)),
            "machine" => drop(totals.causes.insert(Cause::Machine(rest), number)),
            _ => {
                let programs = rest.split(' ').map(str::to_string).collect();
                totals.causes.insert(Cause::Programs(programs), number);
            }
        }
    }
    totals
}

/// Prints the totals of the suites that this cargo(1) has run. The last target of the tests calls it.
pub fn main(temporary: &str) -> ExitCode {
    let all = Path::new(temporary).join(DIRECTORY);
    let Some(run) = run_of_cargo().filter(|_| !std::env::args().any(|word| word == "--list")) else {
        return ExitCode::SUCCESS;
    };
    let mut totals = Totals::default();
    let mut suites = 0;
    for file in fs::read_dir(all.join(&run)).into_iter().flatten().flatten() {
        totals.add(parsed(&fs::read_to_string(file.path()).unwrap_or_default()));
        suites += 1;
    }
    remove_old(&all, &run);
    print!("\n{}", totals.conclusion(suites));
    ExitCode::SUCCESS
}

/// Removes the files of this run, which has ended, and of all runs whose cargo(1) has ended.
fn remove_old(all: &Path, this: &str) {
    for run in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = run.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
        let lives = pid.and_then(stat).is_some_and(|(_, _, start)| name == format!("{}-{start}", pid.unwrap_or(0)));
        if name == this || !lives {
            let _ = fs::remove_dir_all(run.path());
        }
    }
}

/// Returns the process id and the start time of the cargo(1) that started this suite, or its supervisor.
fn run_of_cargo() -> Option<String> {
    let parent = std::os::unix::process::parent_id();
    let (name, grandparent, start) = stat(parent)?;
    if name.starts_with("cargo") {
        return Some(format!("{parent}-{start}"));
    }
    let (name, _, start) = stat(grandparent.parse().ok()?)?;
    name.starts_with("cargo").then(|| format!("{grandparent}-{start}"))
}

/// Returns the name of a process, its parent, and its start time.
fn stat(pid: u32) -> Option<(String, String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some((head.split_once('(')?.1.to_string(), fields.get(1)?.to_string(), fields.get(19)?.to_string()))
}

fn tests(number: u64) -> String {
    count(number, "test")
}

fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
