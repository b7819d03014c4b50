//! A run of the tests of one suite.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};

use crate::causes::{Abandoned, Cause};
use crate::totals::Totals;
use crate::{Test, causes, output};

/// Options of a run whose value may be the next argument.
const WITH_VALUE: [&str; 6] = ["--test-threads", "--logfile", "--skip", "--color", "--format", "-Z"];

/// The number of tests that lacked something, and of those by cause.
static LACKING: Mutex<(u64, BTreeMap<Cause, u64>)> = Mutex::new((0, BTreeMap::new()));

/// Fails the test if an example of the documentation returned an error.
pub fn check(result: impl std::process::Termination) {
    assert!(result.report() == ExitCode::SUCCESS, "the example returned an error");
}

/// Runs the tests of this suite. `temporary` is cargo's directory for files of tests.
pub fn main(temporary: &str) -> ExitCode {
    main_without(temporary, |_| None)
}

/// Runs the tests of this suite, but not those that `why_not` excludes from this run, for example because they take
/// minutes. `Some(reason)` counts them, `Some("")` does not.
pub fn main_without(temporary: &str, why_not: fn(&Test) -> Option<&'static str>) -> ExitCode {
    // The standard library looks for this function by a weak symbol, which does not take it from a static C library.
    // Without it, each start of a program in another directory would copy the page tables of the whole process of tests.
    std::hint::black_box(nix::libc::posix_spawn_file_actions_addchdir_np as *const ());
    let (arguments, filters) = arguments();
    let mut tests: Vec<&'static Test> = inventory::iter::<Test>.into_iter().collect();
    tests.sort_by_key(|test| name_of(test));
    let is_chosen = |test: &&Test| {
        let name = name_of(test);
        filters.is_empty()
            || filters.iter().any(|filter| if arguments.exact { name == *filter } else { name.contains(filter) })
    };
    tests.retain(is_chosen);
    let mut left_out: BTreeMap<String, u64> = BTreeMap::new();
    if !arguments.list {
        let mut of_module: BTreeMap<&str, usize> = BTreeMap::new();
        tests.iter().for_each(|test| *of_module.entry(module_of(test)).or_default() += 1);
        // Tests that wait then run beside tests that compute, and most of the long ones, which have modules of their own,
        // are not the last. The order is the same in each run.
        tests.sort_by_cached_key(|test| (of_module[module_of(test)] >= 10, scattered(&name_of(test))));
        // The parts of other tests are not tests.
        tests.retain(|test| !test.is_part || arguments.ignored || arguments.include_ignored);
        tests.retain(|test| {
            let reason = why_not(test);
            if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
                *left_out.entry(reason.to_string()).or_default() += 1;
            }
            reason.is_none()
        });
    }
    let keeps_output = !arguments.nocapture && !arguments.show_output;
    if keeps_output {
        output::keep_panics();
    }
    let has_threads = arguments.test_threads != Some(1);
    let trial = |test: &'static Test| {
        Trial::ignorable_test(name_of(test), move || run(test, has_threads, keeps_output))
            .with_ignored_flag(test.is_part)
    };
    let conclusion = libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect());
    if !arguments.list && arguments.format != Some(FormatSetting::Json) {
        let (lacking, causes) = LACKING.lock().map(|found| found.clone()).unwrap_or_default();
        let totals = Totals { run: conclusion.num_passed + conclusion.num_failed, lacking, causes, left_out };
        print!("{}", totals.by_cause());
        totals.keep_for_the_end(Path::new(temporary));
    }
    conclusion.exit_code()
}

/// Returns the arguments of this process, and the filters apart, of which there may be several.
fn arguments() -> (Arguments, Vec<String>) {
    let mut options = Vec::new();
    let mut filters = Vec::new();
    let mut words = std::env::args();
    options.extend(words.next());
    while let Some(word) = words.next() {
        let has_value = WITH_VALUE.contains(&&*word);
        if word.starts_with('-') {
            options.push(word)
        } else {
            filters.push(word)
        }
        options.extend(has_value.then(|| words.next()).flatten());
    }
    let mut arguments = Arguments::from_iter(options);
    if arguments.test_threads.is_none() {
        arguments.test_threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|number| number.parse().ok());
    }
    (arguments, filters)
}

/// Returns the path of a test without the suite.
fn name_of(test: &Test) -> String {
    test.module.split_once("::").map_or_else(|| test.name.to_string(), |(_, module)| format!("{module}::{}", test.name))
}

/// Returns the outermost module of a test in the suite.
fn module_of(test: &Test) -> &str {
    test.module.split("::").nth(1).unwrap_or_default()
}

/// Returns the hash of a name (FNV-1a, https://www.isthe.com/chongo/tech/comp/fnv/).
fn scattered(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Runs a test, in a thread of its own that has its name, except in a run with a single thread.
fn run(test: &'static Test, has_threads: bool, keeps_output: bool) -> Result<Completion, Failed> {
    let (result, causes, output) = if has_threads {
        let thread = std::thread::Builder::new().name(name_of(test));
        thread.spawn(move || attempt(test, keeps_output))?.join().map_err(|_| "the thread of the test ended")?
    } else {
        attempt(test, keeps_output)
    };
    if result.is_err_and(|payload| !payload.is::<Abandoned>()) {
        return Err(output.trim_end().into());
    }
    if causes.is_empty() {
        return Ok(Completion::Completed);
    }
    let reasons: Vec<&str> = causes.values().map(String::as_str).collect();
    let reasons = reasons.join("; ");
    if causes.keys().any(Cause::is_provided_in_ci) && std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        return Err(format!("not tried although CI=true: {reasons}").into());
    }
    if let Ok(mut lacking) = LACKING.lock() {
        lacking.0 += 1;
        causes.into_keys().for_each(|cause| *lacking.1.entry(cause).or_default() += 1);
    }
    Ok(Completion::ignored_with(reasons))
}

type Attempt = (Result<(), Box<dyn Any + Send>>, BTreeMap<Cause, String>, String);

/// Runs a test in this thread. Returns its result, what it lacked, and its output.
fn attempt(test: &Test, keeps_output: bool) -> Attempt {
    causes::begin();
    if keeps_output {
        output::begin();
    }
    let result = catch_unwind(test.run);
    (result, causes::end(), output::end())
}
