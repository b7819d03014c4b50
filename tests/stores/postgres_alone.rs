//! Properties of the PostgreSQL store alone: logins, refusals, lost replies, leases, wake-ups and failovers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use host::{Host, Unix};
use lock::error::{Error, ErrorKind};
use lock::{Lease, LeaseClock};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use store::{Call, CommitResult, Finding, LinesOfHistory, Store, Topic, Verdict, WriteSet};

use crate::cutting::cutting;
use crate::etcd::fair::{fair, is_within};
use crate::postgres::{self, Server};
use crate::rig::{Effects, Rig, stored};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Maximum duration of a bounded call, even on a busy machine.
pub(crate) const BOUNDED: Duration = Duration::from_secs(16);

pub(crate) fn open_as(url: &str, variables: &[(&'static str, &str)]) -> lock::error::Result<Box<dyn Store>> {
    let value = |wanted: &str| variables.iter().find(|(name, value)| *name == wanted && !value.is_empty());
    let value = |name: &str| value(name).map(|(_, value)| value.into());
    engine::stores::open(&engine::location(url.as_ref(), "/")?, &value, Arc::new(Unix::new()))
}

pub(crate) fn open(url: &str) -> Box<dyn Store> {
    open_as(url, &[]).unwrap()
}

#[track_caller]
pub(crate) fn assert_refused(error: &Error, kind: ErrorKind, words: &[&str]) {
    let said = error.to_string();
    assert_eq!(error.kind(), kind, "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

/// An attempt to write fails.
#[track_caller]
pub(crate) fn refuses(url: &str, variables: &[(&'static str, &str)], kind: ErrorKind, words: &[&str]) {
    let written = open_as(url, variables).and_then(|store| store.swap(b"x", None, Some(b"body")));
    assert_refused(&written.unwrap_err(), kind, words);
}

#[track_caller]
pub(crate) fn denies(url: &str, variables: &[(&'static str, &str)], words: &[&str]) {
    refuses(url, variables, ErrorKind::Denied, words);
}

#[track_caller]
pub(crate) fn is_away(url: &str, variables: &[(&'static str, &str)], words: &[&str]) {
    refuses(url, variables, ErrorKind::Unavailable, words);
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(is_within(begun, 60 * SECOND), "waited in vain until {what}");
        std::thread::sleep(SECOND / 50);
    }
}

fn has(findings: &[Finding], verdict: Verdict, part: &str) -> bool {
    findings.iter().any(|finding| finding.verdict == verdict && finding.found.contains(part))
}

#[test]
fn a_late_copy_of_a_creation_creates_nothing_after_a_removal() {
    let Some(rig) = Rig::postgres() else { return };
    let schema = rig.path().to_str().unwrap().rsplit('=').next().unwrap().to_string();
    let first = rig.put(b"x", None, b"first");
    let before = postgres::shared().unwrap().sql(&format!("SELECT max(number) FROM {schema}.removed"));
    let guard = postgres::shared().unwrap().sql(&format!("SELECT max(number) FROM {schema}.removed"));
    rig.remove(b"x", &first);
    let copy =
        format!("SELECT number IS NULL FROM {schema}.change('{{x}}', '{{NULL}}', '{{{guard}}}', '{{first}}', '{{}}')");
    assert_eq!(postgres::shared().unwrap().sql(&copy), "t");
    assert_eq!(rig.body(b"x"), None);
    // The removal of another name of the same bucket counts too, but no removal of other buckets.
    let buckets =
        postgres::shared().unwrap().sql(&format!("SELECT count(*) FROM {schema}.removed WHERE number > {before}"));
    assert_eq!(buckets, "1");
}

#[test]
fn a_lease_is_counted_on_the_clock_of_each_host_and_needs_no_row() {
    let Some(rig) = Rig::postgres() else { return };
    let before = rig.footprint();
    let other = rig.again();
    let begun = Instant::now();
    let lease = rig.store.leases().grant(Call::default(), SECOND).unwrap();
    let version = rig.put(b"x", None, b"body");
    assert!(other.leases().ttl(Call::default(), &lease).unwrap() <= SECOND);
    // As on a host that has not seen the lease before: the whole time counts from now.
    let LeaseClock::FileSystem(mut start) = lease.clock else { panic!("{lease:?}") };
    start.boot ^= 1;
    let foreign = Lease { clock: LeaseClock::FileSystem(start), ..lease.clone() };
    wait_until("it is over here", || other.leases().is_expired(Call::default(), &lease).unwrap());
    assert!(begun.elapsed() > SECOND);
    let begun = Instant::now();
    let evicts =
        |over| WriteSet { expired: vec![over], ended: vec![over], ..WriteSet::of(b"x", Some(&version), Some(b"2")) };
    assert!(!other.commit_and_finish(&evicts(&foreign)).unwrap().is_done());
    wait_until("it is over there too", || other.leases().is_expired(Call::default(), &foreign).unwrap());
    assert!(begun.elapsed() > SECOND);
    let version = stored(other.commit_and_finish(&evicts(&foreign)).unwrap());
    rig.remove(b"x", &version);
    assert_eq!(rig.footprint().1, before.1);
}

#[test]
fn a_commit_wakes_its_waiter_and_a_waiter_behind_a_pooler_polls() {
    let (Some(rig), Some(pooled)) = (Rig::postgres(), Rig::pooled()) else { return };
    let version = rig.put(b"x", None, b"body");
    let lease = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let mut heard = rig.again().subscribe(Call::default(), Topic::Channel(b"waiter", version)).unwrap();
    rig.store.wake(b"other", &lease);
    assert!(!heard.is_notified());
    rig.store.wake(b"waiter", &lease);
    let mut polled = [PollFd::new(heard.descriptor(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::from(30_000_u16)).unwrap(), 1);
    assert!(heard.is_notified());
    assert!(pooled.store.subscribe(Call::default(), Topic::Channel(b"waiter", version)).is_none());
    assert!(rig.store.subscribe(Call::default(), Topic::Record(b"x")).is_none());
}

#[test]
fn people_see_holders_in_a_view() {
    let Some(rig) = Rig::postgres() else { return };
    rig.put(b"other", None, b"\xff\0");
    let schema = rig.path().to_str().unwrap().rsplit('=').next().unwrap().to_string();
    let csalock = |words: &[&str]| {
        let mut command = std::process::Command::new(crate::supervised::csalock());
        assert!(command.args(words).env("CSALOCK_STORE", rig.path()).status().unwrap().success());
    };
    let show = "psql -XqAt -h 127.0.0.1 -p PORT -U test -d postgres -c 'SELECT name, label, mode, token > 1, pid > 1, \
                expires > since FROM SCHEMA.holders'";
    let show = show.replace("PORT", &postgres::shared().unwrap().port().to_string()).replace("SCHEMA", &schema);
    let place = rig.around().join("shown");
    csalock(&["run", "--ttl", "1h", "--label", "why", "a b", "sh", "-c", &format!("{show} > {}", place.display())]);
    assert_eq!(std::fs::read_to_string(place).unwrap(), "a b|why|exclusive|t|t|t\n");
}

#[test]
fn a_schema_of_another_program_or_format_is_refused() {
    let Some(server) = postgres::shared() else { return };
    server.sql("CREATE SCHEMA foreign_one; CREATE TABLE foreign_one.t(x int)");
    refuses(&server.url("foreign_one"), &[], ErrorKind::Corrupt, &["another program", "?schema="]);
    server.sql("CREATE SCHEMA newer; CREATE TABLE newer.format(number int); INSERT INTO newer.format VALUES (3)");
    refuses(&server.url("newer"), &[], ErrorKind::Corrupt, &["format 3", "knows 2"]);
    assert_refused(
        &open(&server.url("newer")).read(Call::default(), b"x").unwrap_err(),
        ErrorKind::Corrupt,
        &["format 3"],
    );
}

#[test]
fn a_role_needs_only_the_documented_privileges() {
    let Some(server) = postgres::shared() else { return };
    let url = server.url("privileges");
    let as_user = |user: &str| url.replace("test@", &format!("{user}@"));
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE looker LOGIN; CREATE ROLE nobody LOGIN");
    // A role without the privilege to create a schema cannot be the first.
    denies(&as_user("app"), &[], &["permission denied", "docs/postgres.md"]);
    let version = stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    server.sql(
        "GRANT USAGE ON SCHEMA privileges TO app, looker; GRANT SELECT ON ALL TABLES IN SCHEMA privileges TO looker; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA privileges TO app",
    );
    let app = open(&as_user("app"));
    let lease = app.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = stored(app.swap(b"x", Some(&version), Some(b"changed")).unwrap());
    assert!(!open(&as_user("looker")).leases().is_expired(Call::default(), &lease).unwrap());
    assert_eq!(open(&as_user("looker")).read(Call::default(), b"x").unwrap().unwrap().body, b"changed");
    let looker = open(&as_user("looker")).swap(b"x", Some(&version), None).unwrap_err();
    assert_refused(&looker, ErrorKind::Denied, &["permission denied", "docs/postgres.md"]);
    assert_refused(
        &open(&as_user("nobody")).read(Call::default(), b"x").unwrap_err(),
        ErrorKind::Denied,
        &["schema privileges"],
    );
}

#[test]
fn a_default_isolation_of_the_database_does_no_harm() {
    let Some(server) = postgres::shared() else { return };
    for level in ["repeatable read", "serializable"] {
        let name = level.replace(' ', "_");
        server.sql(&format!("CREATE ROLE {name} LOGIN SUPERUSER"));
        server.sql(&format!("ALTER ROLE {name} SET default_transaction_isolation = '{level}'"));
        let url = server.url(&name).replace("test@", &format!("{name}@"));
        stored(open(&url).swap(b"count", None, Some(b"0")).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let store = open(&url);
                    for _ in 0..50 {
                        while {
                            let found = store.read(Call::default(), b"count").unwrap().unwrap();
                            let next = (String::from_utf8(found.body).unwrap().parse::<u32>().unwrap() + 1).to_string();
                            let next = store.swap(b"count", Some(&found.version), Some(next.as_bytes()));
                            !next.unwrap().is_done()
                        } {}
                        if let CommitResult::Done(born) = store.swap(b"lock", None, Some(b"x")).unwrap() {
                            store.swap(b"lock", Some(&born), None).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(open(&url).read(Call::default(), b"count").unwrap().unwrap().body, b"200");
    }
}

#[test]
fn a_server_that_could_lose_a_lock_is_refused_with_the_reason() {
    let Some(server) = Server::start(&[]) else { return };
    let url = server.url("csalock");
    stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    server.sql("ALTER ROLE test SET synchronous_commit = off");
    let refused = open(&url).swap(b"y", None, Some(b"body")).unwrap_err();
    assert_refused(&refused, ErrorKind::Unavailable, &["synchronous_commit is off", "could lose a lock"]);
    server.sql("ALTER ROLE test SET synchronous_commit = on; ALTER ROLE test SET default_transaction_read_only = on");
    let refused = open(&url).swap(b"y", None, Some(b"body")).unwrap_err();
    assert_refused(&refused, ErrorKind::Unavailable, &["read-only"]);
    is_away(&url.replace("/postgres?", "/none?"), &[], &["none", "createdb"]);
    assert!(has(&open(&url).diagnose(Call::default()), Verdict::Doubtful, "fsync is off"));
}

#[test]
fn nothing_waits_for_a_silent_or_absent_server_beyond_its_time() {
    let Some(server) = Server::start(&[]) else { return };
    let store = open(&server.url("csalock"));
    let version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    server.stop(true);
    let soon = || Call::until(Unix::new().boottime() + SECOND / 2);
    let begun = Instant::now();
    assert_refused(&store.read(soon(), b"x").unwrap_err(), ErrorKind::Unavailable, &["no answer in time"]);
    assert!(is_within(begun, BOUNDED), "{:?}", begun.elapsed());
    server.stop(false);
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().version, version);
    server.kill();
    // On a busy machine its time may be over before the refusal comes.
    assert_refused(
        &store.read(soon(), b"x").unwrap_err(),
        ErrorKind::Unavailable,
        &["PostgreSQL", "cannot be reached"],
    );
    server.restart();
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().version, version);
    assert!(begun.elapsed() < fair(60 * SECOND));
}

#[test]
fn a_connection_cut_anywhere_loses_and_doubles_nothing() {
    let Some(rig) = Rig::postgres() else { return };
    let url = rig.path().to_str().unwrap().to_string();
    let (port, schema) = (postgres::shared().unwrap().port(), url.rsplit('=').next().unwrap());
    rig.put(b"y", None, b"so that the schema exists");
    for is_answer in [false, true] {
        let (mut done, mut unknown) = (0, 0);
        for after in (1..).step_by(11) {
            let (proxy, has_cut) = cutting(port, after, is_answer);
            let store = open(&url.replace(&format!(":{port}/"), &format!(":{proxy}/")));
            let line = LinesOfHistory::new(|| vec![format!("{is_answer} {after}\n")]);
            let result = store
                .commit_and_finish(&WriteSet { history: line, ..WriteSet::of(b"x", None, Some(b"body")) })
                .unwrap();
            // If the first copy was committed and its answer lost, the second one conflicts.
            *(if !result.is_done() { &mut unknown } else { &mut done }) += 1;
            let found = rig.store.read(Call::default(), b"x").unwrap().unwrap();
            assert!(found.body == b"body" && (!result.is_done() || result == CommitResult::Done(found.version)));
            rig.remove(b"x", &found.version);
            if !has_cut.load(Ordering::SeqCst) {
                let lines = postgres::shared()
                    .unwrap()
                    .sql(&format!("SELECT count(*) = count(DISTINCT line) FROM {schema}.history"));
                assert_eq!(lines, "t");
                break;
            }
        }
        // A cut behind the last byte of the request loses its answer, too.
        let is_right = if is_answer { unknown > 0 } else { unknown <= 1 };
        assert!(done > 10 && is_right, "{is_answer}: {done} {unknown}");
    }
}

#[test]
fn a_synchronous_standby_loses_nothing() {
    let Some(primary) = Server::start(&["synchronous_standby_names=s1"]) else { return };
    let standby = primary.standby("s1");
    let store = open(&primary.url("csalock"));
    let version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    assert!(has(&store.diagnose(Call::default()), Verdict::Good, "wait for a synchronous standby: s1"));
    let follower = open(&standby.url("csalock"));
    assert_refused(
        &follower.read(Call::default(), b"x").unwrap_err(),
        ErrorKind::Unavailable,
        &["recovery", "standby", "primary"],
    );
    primary.kill();
    standby.sql("SELECT pg_promote()");
    assert_eq!(follower.read(Call::default(), b"x").unwrap().map(|found| found.version), Some(version));
}

#[test]
fn an_asynchronous_standby_loses_a_commit_of_which_doctor_warned() {
    let Some(primary) = Server::start(&[]) else { return };
    let standby = primary.standby("s1");
    let store = open(&primary.url("csalock"));
    stored(store.swap(b"early", None, Some(b"body")).unwrap());
    wait_until("the standby has it", || standby.try_sql("SELECT count(*) FROM csalock.records").stdout == b"1\n");
    assert!(has(&store.diagnose(Call::default()), Verdict::Doubtful, "a lock may then be granted twice"));
    standby.stop(true);
    // What has been sent already would reach it even later.
    primary.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication");
    stored(store.swap(b"late", None, Some(b"body")).unwrap());
    primary.kill();
    standby.stop(false);
    standby.sql("SELECT pg_promote()");
    let follower = open(&standby.url("csalock"));
    assert!(follower.read(Call::default(), b"early").unwrap().is_some());
    assert_eq!(follower.read(Call::default(), b"late"), Ok(None), "the loss can be observed");
}
