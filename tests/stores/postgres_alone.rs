//! Properties of the PostgreSQL store alone: logins, refusals, lost replies, leases, wake-ups and failovers.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use csalock::error::{Error, ErrorKind};
use csalock::host::{Host, Unix};
use csalock::lock::LeaseClock;
use csalock::store::{
    Access, CommitResult, Finding, LinesOfHistory, Location, Postgres, Store, Topic, Verdict, Version, Write as Change,
    WriteOptions, WriteSet,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cutting::cutting;
use crate::etcd::fair::{fair, is_within};
use crate::postgres::{self, Server};
use crate::rig::{Effects, Rig, stored};

const SECOND: Duration = Duration::from_secs(1);

/// Maximum duration of a bounded call, even on a busy machine.
const BOUNDED: Duration = Duration::from_secs(16);

fn open_as(url: &str, variables: &[(&'static str, &str)]) -> csalock::error::Result<Postgres> {
    let postgres: BTreeMap<_, _> = variables.iter().map(|(name, value)| (*name, value.to_string())).collect();
    match Location::parse(url.as_ref(), Path::new("/"))? {
        Location::Postgres(place) => {
            Postgres::open(&place, &Access { postgres, ..Access::default() }, Arc::new(Unix::new()))
        }
        other => panic!("{other:?}"),
    }
}

fn open(url: &str) -> Postgres {
    open_as(url, &[]).unwrap()
}

/// The error of an attempt to write.
fn refusal(url: &str, variables: &[(&'static str, &str)]) -> Error {
    open_as(url, variables).and_then(|store| store.swap(b"x", None, Some(b"body"))).unwrap_err()
}

#[track_caller]
fn assert_refused(error: &Error, kind: ErrorKind, words: &[&str]) {
    let said = error.to_string();
    assert_eq!(error.kind(), kind, "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

/// Waits until something is so.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
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
    let guard = postgres::shared().unwrap().sql(&format!("SELECT max(number) FROM {schema}.removed"));
    rig.remove(b"x", &first);
    let copy = format!(
        "SELECT number IS NULL FROM {schema}.commit('{{x}}', '{{NULL}}', '{{{guard}}}', '{{first}}', '{{}}', '{{}}', \
         '{{}}', '{{}}', '{{}}', '{{}}')"
    );
    assert_eq!(postgres::shared().unwrap().sql(&copy), "t");
    assert_eq!(rig.body(b"x"), None);
    // The removal of another name of the same bucket counts too, but no removal of other buckets.
    let buckets = postgres::shared().unwrap().sql(&format!("SELECT count(*) FROM {schema}.removed WHERE number > 0"));
    assert_eq!(buckets, "1");
}

#[test]
fn commits_of_several_names_are_made_all_or_none() {
    for rig in [Rig::postgres(), Rig::pooled()].into_iter().flatten() {
        let write =
            |name, expect: Option<Version>, body| Change { name, expect, body, options: WriteOptions::default() };
        let commit = |changes| rig.store.commit(&WriteSet { changes, ..WriteSet::default() }).unwrap();
        let born = stored(commit(vec![write(b"b", None, Some(b"1")), write(b"a", None, Some(b"1"))]));
        assert_eq!([b"a", b"b"].map(|name| rig.store.version(name)), [Some(born); 2]);
        let stale = Version { number: born.number + 1, mark: 0 };
        let changes = vec![write(b"a", Some(born), Some(b"2")), write(b"b", Some(stale), Some(b"2"))];
        assert_eq!(commit(changes), CommitResult::Conflict);
        assert_eq!(rig.bodies(), [b"1", b"1"]);
        let next = stored(commit(vec![write(b"a", Some(born), None), write(b"b", Some(born), Some(b"3"))]));
        assert!(next.number > born.number);
        assert!(rig.put(b"a", None, b"again").number > next.number);
    }
}

#[test]
fn a_lease_lasts_its_duration_on_the_servers_clock() {
    let Some(rig) = Rig::postgres() else { return };
    let other = rig.again();
    let begun = Instant::now();
    let lease = rig.store.leases().grant(SECOND).unwrap();
    // Not stored yet: so far only this process knows of it.
    assert!(!rig.store.leases().is_expired(&lease).unwrap() && other.leases().is_expired(&lease).unwrap());
    let version = rig.put(b"x", None, b"body");
    assert!(!other.leases().is_expired(&lease).unwrap() || begun.elapsed() > SECOND);
    assert!(other.leases().ttl(&lease).unwrap() <= SECOND);
    wait_until("it is over", || other.leases().is_expired(&lease).unwrap());
    assert!(begun.elapsed() > SECOND);
    let evicts =
        WriteSet { expired: vec![&lease], ended: vec![&lease], ..WriteSet::of(b"x", Some(&version), Some(b"2")) };
    stored(other.commit(&evicts).unwrap());
    let LeaseClock::Etcd(_) = lease.clock else { panic!("{lease:?}") };
}

#[test]
fn leases_are_looked_at_together_and_go_with_their_commits() {
    let Some(rig) = Rig::postgres() else { return };
    let first = rig.put(b"x", None, b"body");
    rig.remove(b"x", &first);
    let before = rig.footprint();
    let leases: Vec<_> = (0..50).map(|_| rig.store.leases().grant(60 * SECOND).unwrap()).collect();
    let version = rig.put(b"x", None, b"body");
    let (other, all) = (rig.again(), leases.iter().collect::<Vec<_>>());
    other.leases().look_ahead(&all).unwrap();
    assert!(all.iter().all(|lease| !other.leases().is_expired(lease).unwrap()));
    stored(other.commit(&WriteSet { ended: all, ..WriteSet::of(b"x", Some(&version), None) }).unwrap());
    assert!(rig.again().leases().is_expired(&leases[7]).unwrap());
    assert_eq!(rig.footprint(), before);
}

#[test]
fn a_commit_wakes_its_waiter_and_a_waiter_behind_a_pooler_polls() {
    let (Some(rig), Some(pooled)) = (Rig::postgres(), Rig::pooled()) else { return };
    let version = rig.put(b"x", None, b"body");
    let lease = rig.store.leases().grant(60 * SECOND).unwrap();
    let mut heard = rig.again().subscribe(Topic::Channel(b"waiter", version)).unwrap();
    rig.store.wake(b"other", &lease);
    assert!(!heard.is_notified());
    rig.store.wake(b"waiter", &lease);
    let mut polled = [PollFd::new(heard.descriptor(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut polled, PollTimeout::from(30_000_u16)).unwrap(), 1);
    assert!(heard.is_notified());
    assert!(pooled.store.subscribe(Topic::Channel(b"waiter", version)).is_none());
    assert!(rig.store.subscribe(Topic::Record(b"x")).is_none());
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
    let show = "psql -XqAt -h 127.0.0.1 -p PORT -U test -d postgres -c 'SELECT name, label, mode, token, pid > 1, \
                expires > since FROM SCHEMA.holders'";
    let show = show.replace("PORT", &postgres::shared().unwrap().port().to_string()).replace("SCHEMA", &schema);
    let place = rig.around().join("shown");
    csalock(&["run", "--ttl", "1h", "--label", "why", "a b", "sh", "-c", &format!("{show} > {}", place.display())]);
    assert_eq!(std::fs::read_to_string(place).unwrap(), "a b|why|exclusive|1|t|t\n");
}

#[test]
fn a_schema_of_another_program_or_format_is_refused() {
    let Some(server) = postgres::shared() else { return };
    server.sql("CREATE SCHEMA foreign_one; CREATE TABLE foreign_one.t(x int)");
    assert_refused(&refusal(&server.url("foreign_one"), &[]), ErrorKind::Corrupt, &["another program", "?schema="]);
    server.sql("CREATE SCHEMA newer; CREATE TABLE newer.format(number int); INSERT INTO newer.format VALUES (2)");
    assert_refused(&refusal(&server.url("newer"), &[]), ErrorKind::Corrupt, &["format 2", "knows 1"]);
    assert_eq!(open(&server.url("newer")).read(b"x"), Ok(None));
}

#[test]
fn a_role_needs_only_the_documented_privileges() {
    let Some(server) = postgres::shared() else { return };
    let url = server.url("privileges");
    let as_user = |user: &str| url.replace("test@", &format!("{user}@"));
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE looker LOGIN; CREATE ROLE nobody LOGIN");
    // A role without the privilege to create a schema cannot be the first.
    assert_refused(&refusal(&as_user("app"), &[]), ErrorKind::Denied, &["permission denied", "docs/postgres.md"]);
    let version = stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    server.sql(
        "GRANT USAGE ON SCHEMA privileges TO app, looker; GRANT SELECT ON ALL TABLES IN SCHEMA privileges TO looker; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA privileges TO app",
    );
    let app = open(&as_user("app"));
    let lease = app.leases().grant(60 * SECOND).unwrap();
    let version = stored(app.swap(b"x", Some(&version), Some(b"changed")).unwrap());
    assert!(!open(&as_user("looker")).leases().is_expired(&lease).unwrap());
    assert_eq!(open(&as_user("looker")).read(b"x").unwrap().unwrap().body, b"changed");
    let looker = open(&as_user("looker")).swap(b"x", Some(&version), None).unwrap_err();
    assert_refused(&looker, ErrorKind::Denied, &["permission denied", "docs/postgres.md"]);
    assert_refused(&open(&as_user("nobody")).read(b"x").unwrap_err(), ErrorKind::Denied, &["schema privileges"]);
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
                            let found = store.read(b"count").unwrap().unwrap();
                            let next = (String::from_utf8(found.body).unwrap().parse::<u32>().unwrap() + 1).to_string();
                            let next = store.swap(b"count", Some(&found.version), Some(next.as_bytes()));
                            next.unwrap() == CommitResult::Conflict
                        } {}
                        if let CommitResult::Done(born) = store.swap(b"lock", None, Some(b"x")).unwrap() {
                            store.swap(b"lock", Some(&born), None).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(open(&url).read(b"count").unwrap().unwrap().body, b"200");
    }
}

#[test]
fn logins_by_password_certificate_authorities_and_sockets() {
    let hba = "local all all scram-sha-256\nhostssl all tls all scram-sha-256\nhost all scram all scram-sha-256\n\
               host all old all md5\nhost all clear all password\n";
    let settings = ["listen_addresses=127.0.0.1,127.0.0.2"];
    let Some(server) = Server::start_with(&settings, hba) else { return };
    server.sql(
        "CREATE ROLE scram LOGIN SUPERUSER PASSWORD 'sesame'; CREATE ROLE clear LOGIN SUPERUSER PASSWORD 'sesame'",
    );
    server.sql(
        "CREATE ROLE tls LOGIN SUPERUSER PASSWORD 'sesame'; SET password_encryption = md5; \
                CREATE ROLE old LOGIN SUPERUSER PASSWORD 'sesame'",
    );
    let url = |user: &str, options: &str| server.url("s").replace("test@", &format!("{user}@")) + options;
    let place = tempfile::tempdir().unwrap();
    let pgpass = place.path().join("pgpass");
    std::fs::write(&pgpass, format!("# passwords\nother:*:*:*:wrong\n127.0.0.1:{}:*:scram:ses\\ame\n", server.port()))
        .unwrap();
    std::fs::set_permissions(&pgpass, PermissionsExt::from_mode(0o600)).unwrap();
    let password: &[(&str, &str)] = &[("PGPASSWORD", "sesame")];
    let file = [("PGPASSFILE", pgpass.to_str().unwrap())];
    for (user, variables) in
        [("scram", password), ("old", password), ("clear", password), ("tls", password), ("scram", &file)]
    {
        assert!(open_as(&url(user, ""), variables).unwrap().swap(b"x", None, None).is_ok(), "{user}");
        let wrong = refusal(&url(user, ""), &[("PGPASSWORD", "open")]);
        assert_refused(&wrong, ErrorKind::Denied, &["password authentication failed", "pg_hba.conf"]);
        assert_refused(&refusal(&url(user, ""), &[]), ErrorKind::Denied, &["asks for a password", "~/.pgpass"]);
    }
    std::fs::set_permissions(&pgpass, PermissionsExt::from_mode(0o644)).unwrap();
    assert_refused(&refusal(&url("scram", ""), &file), ErrorKind::Denied, &["none is known"]);
    // A socket of this host, by the URL and by the environment; and a service.
    let (directory, port) = (server.path("").display().to_string(), server.port().to_string());
    let encoded = directory.replace('/', "%2F");
    assert!(
        open_as(&format!("postgres://scram@{encoded}:{port}/postgres?schema=s"), password).unwrap().read(b"x").is_ok()
    );
    let variables = [("PGHOST", &directory[..]), ("PGPORT", &port), ("PGUSER", "scram"), ("PGPASSWORD", "sesame")];
    assert!(open_as("postgres:///postgres?schema=s", &variables).unwrap().read(b"x").is_ok());
    let services = place.path().join("services");
    let service = format!(
        "[other]\nhost=elsewhere\n[mine]\nhost=127.0.0.1\nport={port}\nuser=scram\ndbname=postgres\npassword=sesame\n"
    );
    std::fs::write(&services, service).unwrap();
    let services = [("PGSERVICEFILE", services.to_str().unwrap())];
    assert!(open_as("postgres:///?schema=s&service=mine", &services).unwrap().read(b"x").is_ok());
    assert_refused(&refusal("postgres:///?service=none", &services), ErrorKind::InvalidInput, &["no service \"none\""]);
    // TLS.
    let (ca, unknown) =
        (server.path("ca.pem").display().to_string(), server.path("unknown_authority.pem").display().to_string());
    let other_name = |options: &str| url("tls", options).replace("@127.0.0.1", "@127.0.0.2");
    for mode in ["require", "verify-ca", "verify-full"] {
        let options = format!("&sslmode={mode}");
        let with =
            |root: &'static str, file: &str| vec![("PGPASSWORD", "sesame".to_string()), (root, file.to_string())];
        let read = |url: &str, variables: &[(&'static str, String)]| {
            let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &value[..])).collect();
            open_as(url, &variables).and_then(|store| store.read(b"x"))
        };
        assert_eq!(read(&url("tls", &options), &with("PGSSLROOTCERT", &ca)), Ok(None), "{mode}");
        let foreign = read(&url("tls", &options), &with("PGSSLROOTCERT", &unknown)).unwrap_err();
        assert_refused(&foreign, ErrorKind::Unavailable, &["UnknownIssuer", "PGSSLROOTCERT"]);
        let named_otherwise = read(&other_name(&options), &with("PGSSLROOTCERT", &ca));
        assert_eq!(named_otherwise.is_ok(), mode != "verify-full", "{mode}");
        assert_eq!(read(&url("tls", &options), &with("PGHOST", "")).is_ok(), mode == "require", "{mode}");
    }
    // A pooler has one code for everything.
    if let Some(bouncer) = postgres::shared_bouncer() {
        let foreign = bouncer.url("s").replace("test@", "stranger@");
        assert_refused(&refusal(&foreign, &[]), ErrorKind::Denied, &["pg_hba.conf"]);
    }
    let plain = refusal(&url("tls", "&sslmode=disable"), password);
    assert_refused(&plain, ErrorKind::Denied, &["no encryption"]);
}

#[test]
fn a_server_that_could_lose_a_lock_is_refused_with_the_reason() {
    let Some(server) = Server::start(&[]) else { return };
    let url = server.url("csalock");
    stored(open(&url).swap(b"x", None, Some(b"body")).unwrap());
    server.sql("ALTER ROLE test SET synchronous_commit = off");
    let refused = open(&url).swap(b"y", None, Some(b"body")).unwrap_err();
    assert_refused(&refused, ErrorKind::Unavailable, &["synchronous_commit is off", "could lose a lock"]);
    assert!(has(&open(&url).diagnose(), Verdict::Bad, "synchronous_commit is off"));
    server.sql("ALTER ROLE test SET synchronous_commit = on; ALTER ROLE test SET default_transaction_read_only = on");
    let refused = open(&url).swap(b"y", None, Some(b"body")).unwrap_err();
    assert_refused(&refused, ErrorKind::Unavailable, &["read-only"]);
    assert_refused(&refusal(&url.replace("/postgres?", "/none?"), &[]), ErrorKind::Unavailable, &["none", "createdb"]);
    assert!(has(&open(&url).diagnose(), Verdict::Doubtful, "fsync is off"));
}

#[test]
fn nothing_waits_for_a_silent_or_absent_server_beyond_its_time() {
    let Some(server) = Server::start(&[]) else { return };
    let store = open(&server.url("csalock"));
    let version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    server.stop(true);
    store.set_deadline(Some(Unix::new().boottime() + SECOND / 2));
    let begun = Instant::now();
    assert_refused(&store.read(b"x").unwrap_err(), ErrorKind::Unavailable, &["no answer in time"]);
    assert!(is_within(begun, BOUNDED), "{:?}", begun.elapsed());
    server.stop(false);
    store.set_deadline(None);
    assert_eq!(store.read(b"x").unwrap().unwrap().version, version);
    server.kill();
    store.set_deadline(Some(Unix::new().boottime() + SECOND / 2));
    // On a busy machine its time may be over before the refusal comes.
    assert_refused(&store.read(b"x").unwrap_err(), ErrorKind::Unavailable, &["PostgreSQL", "cannot be reached"]);
    server.restart();
    store.set_deadline(None);
    assert_eq!(store.read(b"x").unwrap().unwrap().version, version);
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
            let result = store.commit(&WriteSet { history: line, ..WriteSet::of(b"x", None, Some(b"body")) }).unwrap();
            // If the first copy was committed and its answer lost, the second one conflicts.
            *(if result == CommitResult::Conflict { &mut unknown } else { &mut done }) += 1;
            let found = rig.store.read(b"x").unwrap().unwrap();
            assert!(
                found.body == b"body" && [CommitResult::Done(found.version), CommitResult::Conflict].contains(&result)
            );
            rig.remove(b"x", &found.version);
            if !has_cut.load(Ordering::SeqCst) {
                let lines = postgres::shared()
                    .unwrap()
                    .sql(&format!("SELECT count(*) = count(DISTINCT line) FROM {schema}.history"));
                assert_eq!(lines, "t");
                break;
            }
        }
        assert!(done > 10 && (unknown > 0) == is_answer, "{is_answer}: {done} {unknown}");
    }
}

#[test]
fn a_synchronous_standby_loses_nothing_and_starts_leases_anew() {
    let Some(primary) = Server::start(&["synchronous_standby_names=s1"]) else { return };
    let standby = primary.standby("s1");
    let store = open(&primary.url("csalock"));
    let lease = store.leases().grant(2 * SECOND).unwrap();
    let version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    assert!(has(&store.diagnose(), Verdict::Good, "wait for a synchronous standby: s1"));
    let follower = open(&standby.url("csalock"));
    assert_refused(&follower.read(b"x").unwrap_err(), ErrorKind::Unavailable, &["recovery", "standby", "primary"]);
    assert!(has(&follower.diagnose(), Verdict::Bad, "a standby"));
    wait_until("the lease is over", || store.leases().is_expired(&lease).unwrap());
    primary.kill();
    standby.sql("SELECT pg_promote()");
    assert_eq!(follower.read(b"x").unwrap().map(|found| found.version), Some(version));
    // Its clock may be behind, so the lease begins again.
    let left = follower.leases().ttl(&lease).unwrap();
    assert!(left > Duration::ZERO && left <= 2 * SECOND, "{left:?}");
    let evicts = || follower.commit(&WriteSet { expired: vec![&lease], ..WriteSet::of(b"x", Some(&version), None) });
    assert_eq!(evicts().unwrap(), CommitResult::Conflict);
    wait_until("the lease is over again", || follower.leases().is_expired(&lease).unwrap());
    assert!(matches!(evicts().unwrap(), CommitResult::Done(_)));
}

#[test]
fn an_asynchronous_standby_loses_a_commit_of_which_doctor_warned() {
    let Some(primary) = Server::start(&[]) else { return };
    let standby = primary.standby("s1");
    let store = open(&primary.url("csalock"));
    stored(store.swap(b"early", None, Some(b"body")).unwrap());
    wait_until("the standby has it", || standby.try_sql("SELECT count(*) FROM csalock.records").stdout == b"1\n");
    assert!(has(&store.diagnose(), Verdict::Doubtful, "a lock may then be granted twice"));
    standby.stop(true);
    // What has been sent already would reach it even later.
    primary.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication");
    stored(store.swap(b"late", None, Some(b"body")).unwrap());
    primary.kill();
    standby.stop(false);
    standby.sql("SELECT pg_promote()");
    let follower = open(&standby.url("csalock"));
    assert!(follower.read(b"early").unwrap().is_some());
    assert_eq!(follower.read(b"late"), Ok(None), "the loss can be observed");
}
