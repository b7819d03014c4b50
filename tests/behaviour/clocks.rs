//! Clocks that are set, and times of files that are told in whole seconds: neither lets a second holder in, and neither
//! keeps a lock that is over.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sandbox::proc::keepers;
use crate::sandbox::{Call, Job, Kind, Mount, Sandbox, has_namespaces, wait_until};
use store::Call as StoreCall;

/// A call that sees the wall clock and the times of files like this, as if the clock of the server had been set.
fn at<'a>(call: Call<'a>, offset: &str) -> Call<'a> {
    call.with_clocks(offset)
}

/// The lock of a script that lives on.
fn leased(sandbox: &Sandbox, span: &str, offset: &str) -> Job {
    let script = format!("csalock lock --ttl {span} x; echo; cat; :");
    at(sandbox.script("dash", &script), offset).ready()
}

/// How often it was noted that a lease was seen.
fn sightings(sandbox: &Sandbox) -> usize {
    let stored = sandbox.open().read(StoreCall::default(), b"x").unwrap().unwrap();
    lock::decode(&stored.body, stored.version.number).unwrap().sightings.len()
}

#[test]
fn the_clock_of_these_tests_moves_the_times_of_files() {
    let sandbox = Sandbox::new(Kind::Shared);
    let ends = |name: &str, offset| {
        at(sandbox.csalock(["lock", "--ttl", "1h", name]), offset).capture().exits(0);
        let stored = sandbox.open().read(StoreCall::default(), name.as_bytes()).unwrap().unwrap();
        let record = lock::decode(&stored.body, stored.version.number).unwrap();
        record.holders[0].lifetime.lease().unwrap().ends
    };
    assert!(ends("now", "+0").abs_diff(ends("later", "+1000d")) > 999 * 86_400_000);
}

#[test]
fn a_clock_that_was_set_forward_ends_no_lease() {
    let sandbox = Sandbox::new(Kind::Shared);
    let _job = leased(&sandbox, "1h", "+0");
    for words in [
        &["lock", "-qn", "x"][..],
        &["run", "-qn", "x", "true"],
        &["put", "-qn", "x", "v"],
        &["lock", "-qw", "0.1", "x"],
    ] {
        assert_eq!(at(sandbox.csalock(words), "+2h").capture().code, Some(75), "{words:?}");
    }
    at(sandbox.csalock(["gc", "-q"]), "+2h").capture().exits(0);
    at(sandbox.csalock(["status", "-q", "x"]), "+2h").capture().exits(0);
    assert_eq!((sandbox.state("x").as_str(), sightings(&sandbox)), ("held", 1));
}

#[test]
fn a_clock_that_was_set_back_keeps_no_lease() {
    let sandbox = Sandbox::new(Kind::Shared);
    let _job = leased(&sandbox, "3s", "+1h");
    let begun = Instant::now();
    sandbox.csalock(["run", "-q", "-w", "60", "x", "true"]).run();
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_caller_that_does_not_wait_continues_the_count_of_the_last() {
    for words in [&["run", "-qn", "x", "true"][..], &["run", "-qw", "0.2", "x", "true"], &["put", "-qn", "x", "v"]] {
        let sandbox = Sandbox::new(Kind::Shared);
        let _job = leased(&sandbox, "3s", "+1h");
        assert_eq!(sandbox.csalock(words).capture().code, Some(75), "{words:?}");
        let seen = Instant::now();
        assert_eq!(sightings(&sandbox), 1, "{words:?}");
        wait_until("it was seen for its span", || seen.elapsed() > Duration::from_millis(3100));
        assert_eq!(sandbox.csalock(words).capture().code, Some(0), "{words:?}");
    }
}

#[test]
fn a_second_collection_frees_the_lock() {
    let sandbox = Sandbox::new(Kind::Shared);
    let _job = leased(&sandbox, "3s", "+1h");
    sandbox.csalock(["gc", "-q"]).run();
    let seen = Instant::now();
    assert_eq!((sandbox.state("x").as_str(), sightings(&sandbox)), ("held", 1));
    wait_until("it was seen for its span", || seen.elapsed() > Duration::from_millis(3100));
    let removed = "removed x: held by pid PID on HOST (user USER) since TIME (AGE ago): dash -c csalock lock --ttl 3s x; echo; cat; :, which let its time run out\n";
    sandbox.csalock(["gc", "-q"]).stdout(removed).run();
    assert_eq!(sandbox.state("x"), "free");
}

#[test]
fn no_caller_acquires_early_on_file_systems_with_whole_seconds() {
    require!(has_namespaces("another file system"));
    let sandbox = Sandbox::new(Kind::Shared);
    let Some(_mount) = Mount::with_coarse_times(&sandbox) else { return };
    let (store, log) = (format!("dir:{}?shared=1", sandbox.path("files/mount/l").display()), sandbox.path("log"));
    fn in_store<'a>(call: Call<'a>, store: &str) -> Call<'a> {
        call.env("CSALOCK_STORE", store).env("CSALOCK_LEASE", "3s")
    }
    // The later in its second a lease begins, the more of it is cut off.
    let of_second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis();
    while !(930..960).contains(&of_second()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    // The shell itself writes: a child would outlive it by a moment.
    let note = format!("read up rest < /proc/uptime; echo $up >> {}", log.display());
    let text = format!("trap '' TERM; while :; do {note}; sleep 0.02; done");
    let job = in_store(sandbox.csalock(["run", "x", "dash", "-c", &text]), &store).spawn();
    let keeper = || keepers(job.pid()).first().copied();
    wait_until("there is a keeper", || keeper().is_some() && log.exists());
    let keeper = Pid::from_raw(keeper().unwrap());
    kill(keeper, Signal::SIGSTOP).unwrap();
    let next = "--pid --fork --mount-proc csalock run -qw inf x cat /proc/uptime".split(' ');
    let next = in_store(sandbox.call("unshare", next), &store).capture();
    job.wait().exits(85);
    let _ = kill(keeper, Signal::SIGKILL);
    let second = |text: &str| text.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    let last = std::fs::read_to_string(&log).unwrap().lines().map(second).fold(0.0, f64::max);
    assert!(second(&next.stdout) >= last, "the first command ran until {last}: {next:?}");
    let done = in_store(sandbox.csalock(["doctor"]), &store).capture();
    let said = "the file system keeps times in whole seconds only";
    assert!(done.stdout.lines().any(|line| line.starts_with("warning  clock") && line.contains(said)), "{done:?}");
}
