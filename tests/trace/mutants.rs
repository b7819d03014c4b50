//! Faults planted in a store, a host and an engine, each of which the checker finds; and traces in which nothing is wrong,
//! in which it finds nothing.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::trace::{Bytes, Decided, Event, Intent, Line};
use engine::{AcquireRequest, Engine, WaitPolicy};
use host::{Fake, Host};
use lock::error::Result;
use lock::{self, Facts, Grant, Lease, Lifetime, Liveness, Owner, ProcessId, Query, Record, Release, RenewGrant};
use store::{
    Abilities, Call, CommitResult, Finding, Leases, Scope, Store, Upkeep, Version, Versioned, Visit, Write, WriteSet,
    leases,
};

use crate::checker::any_request::AnyRequest;
use crate::checker::{self, Report};

/// The fault of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A read is stale, and the swap that follows does not compare.
    NothingCompared,
    /// A swap is answered, and nothing is stored.
    NothingStored,
    /// A swap stores the record that was there before, as a new version.
    OtherBytes,
    /// A removed record comes back.
    RemovalUndone,
    /// An old write arrives once more.
    LateCopy,
    /// Numbers restart after a removal.
    NumbersForgotten,
    /// A lease is over before its time.
    LeasesEarly,
}

/// A store in memory, with a fault that begins when it is `armed`.
struct Faulty {
    wrong: Wrong,
    host: Fake,
    first: Fake,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    armed: bool,
    number: u64,
    records: BTreeMap<Vec<u8>, Versioned>,
    /// Every version that a name had.
    past: Vec<(Vec<u8>, Option<Versioned>)>,
    /// Processes of the first host that die as soon as the next swap is made.
    doomed: Vec<i32>,
}

#[derive(Clone)]
struct Shared(Arc<Faulty>);

impl Shared {
    fn arm(&self) {
        self.0.inside.lock().unwrap().armed = true;
    }
}

impl Inside {
    /// Whether this is the moment of this fault.
    fn strikes(&mut self, is_it: bool) -> bool {
        let strikes = self.armed && is_it;
        self.armed &= !strikes;
        strikes
    }

    fn set(&mut self, name: &[u8], stored: Option<Versioned>) {
        self.past.push((name.to_vec(), self.records.get(name).cloned()));
        match stored {
            Some(stored) => drop(self.records.insert(name.to_vec(), stored)),
            None => drop(self.records.remove(name)),
        }
    }
}

impl Store for Shared {
    fn read(&self, _call: Call, name: &[u8]) -> Result<Option<Versioned>> {
        let mut inside = self.0.inside.lock().unwrap();
        if self.0.wrong == Wrong::NothingCompared && inside.armed {
            return Ok(inside.past.iter().rev().find(|(of, _)| of == name).and_then(|(_, stored)| stored.clone()));
        }
        if self.0.wrong == Wrong::RemovalUndone && !inside.records.contains_key(name) && inside.strikes(true) {
            let back = inside.past.iter().rev().find(|(of, stored)| of == name && stored.is_some()).cloned();
            inside.set(name, back.and_then(|(_, stored)| stored));
        }
        if inside.strikes(self.0.wrong == Wrong::LateCopy) {
            let old = inside.past.iter().find(|(of, stored)| of == name && stored.is_some()).cloned();
            inside.number += 1;
            let version = Version { number: inside.number, mark: 0 };
            inside.set(name, old.and_then(|(_, stored)| Some(Versioned { version, ..stored? })));
        }
        Ok(inside.records.get(name).cloned())
    }

    fn commit(&self, _call: Call, set: &WriteSet<'_>) -> Result<CommitResult> {
        let Write { name, expect, body, .. } = set.change.unwrap();
        let mut inside = self.0.inside.lock().unwrap();
        let found = inside.records.get(name).cloned();
        let is_stale = found.as_ref().map(|stored| stored.version) != expect;
        if is_stale && !inside.strikes(self.0.wrong == Wrong::NothingCompared) {
            return Ok(CommitResult::Conflict(None));
        }
        inside.number += 1;
        if self.0.wrong == Wrong::NumbersForgotten && found.is_none() && inside.strikes(true) {
            inside.number = 1;
        }
        let version = Version { number: inside.number, mark: 0 };
        if inside.strikes(self.0.wrong == Wrong::NothingStored) {
            return Ok(CommitResult::Done(version));
        }
        let is_other = body.is_some() && found.is_some() && inside.strikes(self.0.wrong == Wrong::OtherBytes);
        let body = if is_other { found.map(|stored| stored.body) } else { body.map(<[u8]>::to_vec) };
        inside.set(name, body.map(|body| Versioned::new(version, body)));
        for pid in std::mem::take(&mut inside.doomed) {
            self.0.first.set_liveness(pid, Liveness::Dead);
        }
        Ok(CommitResult::Done(version))
    }

    fn scan(&self, _call: Call, visit: &mut Visit<'_>) -> Result<()> {
        let all: Vec<_> = self.0.inside.lock().unwrap().records.clone().into_iter().collect();
        all.into_iter().try_for_each(|(name, stored)| visit(&self.describe(&name), Ok(stored)))
    }

    fn leases(&self) -> &dyn Leases {
        self
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(Scope::Local)
    }
}

impl Upkeep for Shared {
    fn describe(&self, name: &[u8]) -> String {
        format!("memory:{}", String::from_utf8_lossy(name))
    }

    fn diagnose(&self, _call: Call) -> Vec<Finding> {
        Vec::new()
    }
}

impl Leases for Shared {
    fn grant(&self, _call: Call, span: Duration) -> Result<Lease> {
        leases::lend_local(&self.0.host, span)
    }

    fn time(&self, _call: Call) -> Result<Duration> {
        Ok(self.0.host.wall())
    }

    fn ttl(&self, _call: Call, lease: &Lease) -> Result<Duration> {
        let is_early = self.0.wrong == Wrong::LeasesEarly && self.0.inside.lock().unwrap().armed;
        if is_early { Ok(Duration::ZERO) } else { leases::remaining_local(&self.0.host, lease) }
    }
}

/// Two processes, 1 and 2, of one host that use one store.
struct Fixture {
    store: Shared,
    hosts: [Fake; 2],
    engines: [Engine; 2],
    log: PathBuf,
    _place: tempfile::TempDir,
}

impl Fixture {
    fn new(wrong: Wrong) -> Fixture {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("trace");
        let hosts = [Fake::new(1), Fake::new(2)];
        hosts[0].set_liveness(2, Liveness::Alive);
        hosts[1].set_liveness(1, Liveness::Alive);
        let faulty = Faulty { wrong, host: hosts[1].clone(), first: hosts[0].clone(), inside: Mutex::default() };
        let store = Shared(Arc::new(faulty));
        let engines = hosts.clone().map(|host| {
            let host: Arc<dyn Host> = Arc::new(host);
            Engine::new(engine::trace::wrap(Box::new(store.clone()), &host, Some(log.clone())), host)
        });
        Fixture { store, hosts, engines, log, _place: place }
    }

    fn applicant(&self, who: usize, lifetime: Lifetime) -> AcquireRequest {
        self.applicant_for(self.engines[who].host().this_process().unwrap(), who, lifetime)
    }

    fn applicant_for(&self, process: ProcessId, who: usize, lifetime: Lifetime) -> AcquireRequest {
        let engine = &self.engines[who];
        let home = engine.host().domain().unwrap();
        let party = Owner {
            domain: home,
            processes: vec![process],
            host: "h".into(),
            uid: 0,
            command: Vec::new(),
            label: None,
            supervisor: None,
            outlives_lock: false,
            session: None,
        };
        let mut request = AcquireRequest::for_itself(engine.new_handle().unwrap(), party, process);
        request.entry.lifetime = lifetime;
        request
    }

    /// One process tries to take x. A refused process goes away.
    fn take(&self, who: usize, lifetime: Lifetime) -> AcquireRequest {
        self.take_with(who, self.applicant(who, lifetime))
    }

    fn take_with(&self, who: usize, applicant: AcquireRequest) -> AcquireRequest {
        self.engines[who].acquire(b"x", &applicant, &WaitPolicy::NONE, None, &mut |_| None).unwrap();
        applicant
    }

    fn release(&self, who: usize, applicant: &AcquireRequest) {
        let engine = &self.engines[who];
        let claimant = engine.by_proof(applicant.handle.proof()).unwrap();
        let _ = engine.apply(b"x", &Release(claimant)).unwrap();
    }

    fn renew(&self, who: usize, applicant: &AcquireRequest) {
        let engine = &self.engines[who];
        let claimant = engine.by_proof(applicant.handle.proof()).unwrap();
        let lifetime = engine.start(&Lifetime::Ttl(60_000)).unwrap();
        let _ = engine.apply(b"x", &RenewGrant { credentials: claimant, lifetime, begins: false }).unwrap();
    }

    fn break_all(&self) {
        let _ = self.engines[1].break_lock(b"x", None, None).unwrap();
    }

    fn take_and_release(&self, who: usize) {
        let applicant = self.take(who, Lifetime::WhileOwnerLives);
        self.release(who, &applicant);
    }

    fn pass(&self, span: Duration) {
        self.hosts.iter().for_each(|host| host.pass(span));
    }

    fn lines(&self) -> Vec<Line> {
        checker::read(std::slice::from_ref(&self.log)).unwrap()
    }

    fn report(&self) -> Report {
        checker::check(&self.lines(), None)
    }
}

#[track_caller]
fn is_found(report: &Report, why: &str) {
    assert!(report.wrong.iter().any(|wrong| wrong.contains(why)), "{:#?}", report.wrong);
}

#[track_caller]
fn nothing_is_found(report: &Report) {
    assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
}

#[test]
fn the_checker_accepts_a_correct_trace() {
    let fixture = Fixture::new(Wrong::Nothing);
    fixture.take_and_release(0);
    let leased = fixture.take(0, Lifetime::Ttl(1000));
    fixture.take(1, Lifetime::WhileOwnerLives);
    fixture.pass(Duration::from_millis(1001));
    let other = fixture.take(1, Lifetime::WhileOwnerLives);
    fixture.release(0, &leased);
    fixture.release(1, &other);
    // 1 dies, and does nothing afterwards.
    fixture.take(0, Lifetime::WhileOwnerLives);
    fixture.hosts[1].set_liveness(1, Liveness::Dead);
    fixture.take_and_release(1);
    let end = checker::end_of(&fixture.store);
    let report = checker::check(&fixture.lines(), Some(&end));
    nothing_is_found(&report);
    assert_eq!((report.names, report.filled, report.lost_replies), (1, 0, 0));
    assert!(report.steps >= 8, "{}", report.figures());
}

#[test]
fn faults_of_stores_are_found() {
    let mut missed = Vec::new();
    for (wrong, why) in [
        (Wrong::NothingCompared, "another record than the one that was there"),
        (Wrong::NothingStored, "two commits replace one version"),
        (Wrong::OtherBytes, "another record than the one that was there"),
        (Wrong::RemovalUndone, "two commits replace one version"),
        (Wrong::LateCopy, "no commit explains the version"),
        (Wrong::NumbersForgotten, "is not above"),
    ] {
        let fixture = Fixture::new(wrong);
        fixture.take_and_release(0);
        fixture.take_and_release(1);
        nothing_is_found(&fixture.report());
        let held = fixture.take(0, Lifetime::Ttl(60_000));
        // The copy of a grant that has ended; the others strike at the next chance.
        if wrong == Wrong::NumbersForgotten || wrong == Wrong::RemovalUndone {
            fixture.release(0, &held);
        }
        fixture.store.arm();
        for _ in 0..2 {
            fixture.renew(0, &held);
            fixture.take_and_release(1);
            fixture.release(0, &held);
            fixture.take_and_release(0);
            fixture.break_all();
        }
        let report = fixture.report();
        if !report.wrong.iter().any(|found| found.contains(why)) {
            missed.push(format!("{wrong:?}: {:#?}", report.wrong));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

#[test]
fn a_lease_that_a_store_ends_early_is_found() {
    let fixture = Fixture::new(Wrong::LeasesEarly);
    fixture.take(0, Lifetime::Ttl(60_000));
    fixture.store.arm();
    fixture.take(1, Lifetime::WhileOwnerLives);
    is_found(&fixture.report(), "a lease is taken for over 60000 ms early");
}

#[test]
fn a_host_that_declares_a_live_process_dead_is_found() {
    let fixture = Fixture::new(Wrong::Nothing);
    fixture.take(0, Lifetime::WhileOwnerLives);
    fixture.hosts[1].set_liveness(1, Liveness::Dead);
    fixture.take_and_release(1);
    nothing_is_found(&fixture.report());
    fixture.pass(Duration::from_millis(1));
    fixture.take_and_release(0);
    is_found(&fixture.report(), "process 1 is taken for dead, but commits");
}

/// An engine that does its work itself, and may do it wrong: it changes a decision before it commits.
struct Clumsy<'a> {
    fixture: &'a Fixture,
    step: u64,
}

impl Clumsy<'_> {
    /// Decides about the record as it is, changes the decision, and commits it.
    fn commit(&mut self, ask: &AnyRequest, change: impl FnOnce(&mut Record)) {
        let store = &self.fixture.store;
        let stored = store.read(Call::default(), b"x").unwrap();
        let version = stored.as_ref().map(|stored| stored.version);
        let before = stored
            .as_ref()
            .map_or_else(|| Record::free(b"x"), |stored| lock::decode(&stored.body, stored.version.number).unwrap());
        let (facts, mut next) = self.decided(&before, ask);
        change(&mut next);
        let body = (!next.is_removable()).then(|| lock::encode(&next));
        let intent = Intent {
            place: store.describe(b"x"),
            name: Bytes(b"x".to_vec()),
            expect: version.map(|version| (version.number, version.mark)),
            before: Some(Bytes(lock::encode(&before))),
            body: body.clone().map(Bytes),
            decided: Some(Decided {
                ask: serde_json::to_value(ask).unwrap(),
                facts,
                from: self.now(),
                until: self.now(),
            }),
        };
        self.log(Event::Intent(vec![intent]));
        let CommitResult::Done(stored) =
            store.commit(Call::default(), &WriteSet::of(b"x", version.as_ref(), body.as_deref())).unwrap()
        else {
            panic!()
        };
        self.log(Event::Committed(stored.number, stored.mark));
        self.step += 1;
    }

    fn decided(&self, before: &Record, ask: &AnyRequest) -> (Facts, Record) {
        let mut facts = Facts::at(self.fixture.hosts[1].wall().as_millis() as u64);
        loop {
            match ask.next_record(before, &facts) {
                Ok(Some(record)) => return (facts, record),
                Ok(None) => panic!("{ask:?} changes nothing"),
                Err(Query::Liveness(home, process)) => facts.insert_liveness(home, process, Liveness::Alive),
                Err(wanted) => panic!("{wanted:?}"),
            }
        }
    }

    fn now(&self) -> u64 {
        self.fixture.hosts[1].boottime().as_millis() as u64
    }

    fn log(&self, event: Event) {
        // A process of its own.
        let home = self.fixture.hosts[1].domain().unwrap();
        let line =
            Line { domain: home, process: ProcessId { pid: 3, start: 1 }, step: self.step, at: self.now(), event };
        append(&self.fixture.log, &serde_json::to_string(&line).unwrap());
    }
}

fn append(log: &Path, line: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// x is held by this process, and 2 waits for it. Returns who holds.
fn with_a_waiter(fixture: &Fixture, holder: i32) -> AcquireRequest {
    let holder = fixture.applicant_for(ProcessId { pid: holder, start: 1 }, 0, Lifetime::WhileOwnerLives);
    let held = fixture.take_with(0, holder);
    let mut ask = take_ask(fixture);
    let AnyRequest::Acquire(application) = &mut ask else { unreachable!() };
    application.queue = true;
    Clumsy { fixture, step: 100 }.commit(&ask, |_| {});
    nothing_is_found(&fixture.report());
    held
}

fn take_ask(fixture: &Fixture) -> AnyRequest {
    let lock::Waiter { proof, owner, process, .. } = fixture.applicant(1, Lifetime::WhileOwnerLives).entry;
    AnyRequest::Acquire(lock::Acquire::new(lock::Waiter::new(proof, Owner::clone(&owner), process)))
}

fn release_ask(fixture: &Fixture, held: &AcquireRequest) -> AnyRequest {
    Release(fixture.engines[0].by_proof(held.handle.proof()).unwrap()).into()
}

#[test]
fn faults_of_engines_are_found() {
    let twice = |record: &mut Record| {
        let more = Grant { token: None, slot: 1, ..record.holders[0].clone() };
        record.holders.push(more);
    };
    let no_waiter_is_granted = |record: &mut Record| {
        let grant = record.holders.remove(0);
        record.waiters = vec![waiter_of(grant)];
    };
    let old_token = |record: &mut Record| record.holders[0].token = Some(1);
    let dropped = |record: &mut Record| record.holders.clear();
    for (what, change) in [
        ("twice", &twice as &dyn Fn(&mut Record)),
        ("no waiter is granted", &no_waiter_is_granted),
        ("old token", &old_token),
        ("dropped", &dropped),
    ] {
        let fixture = Fixture::new(Wrong::Nothing);
        let held = with_a_waiter(&fixture, 1);
        Clumsy { fixture: &fixture, step: 0 }.commit(&release_ask(&fixture, &held), change);
        let report = fixture.report();
        assert!(!report.wrong.is_empty(), "{what}");
        // A reader refuses a record with two exclusive holders.
        let why = if what == "twice" { "its record is unreadable" } else { "the rules make another record of it" };
        is_found(&report, why);
    }
}

fn waiter_of(grant: Grant) -> lock::Waiter {
    let process = grant.owner.processes[0];
    lock::Waiter {
        mode: grant.mode,
        lifetime: grant.lifetime,
        latest_only: grant.latest_only,
        release_on_exit: grant.release_on_exit,
        claim: grant.claim,
        since: grant.since,
        ..lock::Waiter::new(grant.proof, std::sync::Arc::unwrap_or_clone(grant.owner), process)
    }
}

#[test]
fn an_engine_that_commits_past_the_log_is_found() {
    let fixture = Fixture::new(Wrong::Nothing);
    let held = with_a_waiter(&fixture, 1);
    let quiet = std::fs::read(&fixture.log).unwrap();
    Clumsy { fixture: &fixture, step: 0 }.commit(&release_ask(&fixture, &held), |_| {});
    std::fs::write(&fixture.log, quiet).unwrap();
    let end = checker::end_of(&fixture.store);
    is_found(&checker::check(&fixture.lines(), Some(&end)), "the store has");
    fixture.take_and_release(0);
    fixture.break_all();
    is_found(&fixture.report(), "no commit explains the version before");
}

#[test]
fn a_decision_by_facts_that_are_not_so_is_found() {
    let fixture = Fixture::new(Wrong::Nothing);
    fixture.take(0, Lifetime::WhileOwnerLives);
    let stale = fixture.lines();
    fixture.hosts[1].set_liveness(1, Liveness::Dead);
    fixture.take_and_release(1);
    let mut lines = fixture.lines();
    nothing_is_found(&checker::check(&lines, None));
    // The same commits, with facts that declare process 1 alive.
    for line in &mut lines[stale.len()..] {
        let Event::Intent(intents) = &mut line.event else { continue };
        let Some(decided) = intents[0].decided.as_mut() else { continue };
        let text = serde_json::to_string(&decided.facts).unwrap().replace("Dead", "Alive");
        decided.facts = serde_json::from_str(&text).unwrap();
    }
    is_found(&checker::check(&lines, None), "the rules say");
}

#[test]
fn a_result_may_be_missing_but_no_commit() {
    let fixture = Fixture::new(Wrong::Nothing);
    for who in [0, 1, 0] {
        fixture.take_and_release(who);
    }
    let lines = fixture.lines();
    let is_result = |line: &Line| matches!(line.event, Event::Committed(..));
    for at in (0..lines.len()).filter(|at| is_result(&lines[*at])) {
        // Its process was killed.
        let mut killed = lines.clone();
        killed.remove(at);
        let report = checker::check(&killed, None);
        nothing_is_found(&report);
        assert!(report.filled == 1 || at + 1 == lines.len(), "{at}: {}", report.figures());
        // Its reply was lost.
        let mut lost = lines.clone();
        lost[at].event = Event::Conflict;
        nothing_is_found(&checker::check(&lost, None));
        // The commit was not announced.
        let step = (lines[at].process, lines[at].step);
        let unsaid: Vec<Line> = lines.iter().filter(|line| (line.process, line.step) != step).cloned().collect();
        let is_last = at + 1 == lines.len();
        assert!(is_last || !checker::check(&unsaid, None).wrong.is_empty(), "{at}");
    }
}

#[test]
fn a_line_that_was_torn_is_passed_over() {
    let fixture = Fixture::new(Wrong::Nothing);
    fixture.take_and_release(0);
    let text = std::fs::read_to_string(&fixture.log).unwrap();
    let whole = fixture.lines().len();
    std::fs::write(&fixture.log, format!("{text}{}{text}", &text[..100])).unwrap();
    assert_eq!(fixture.lines().len(), 2 * whole);
    std::fs::write(&fixture.log, format!("{text}nonsense\n")).unwrap();
    assert!(checker::read(std::slice::from_ref(&fixture.log)).is_err());
}

#[test]
fn a_grant_that_ends_before_its_record_is_read_again_keeps_its_token() {
    let fixture = Fixture::new(Wrong::Nothing);
    // 9 is dead, so the next one grants the lock to 2, which dies then.
    with_a_waiter(&fixture, 9);
    fixture.store.0.inside.lock().unwrap().doomed.push(2);
    let patience = WaitPolicy { limit: Some(Duration::from_secs(1)), backoff: None };
    let taken = fixture.applicant(0, Lifetime::WhileOwnerLives);
    fixture.engines[0].acquire(b"x", &taken, &patience, None, &mut |_| None).unwrap();
    nothing_is_found(&fixture.report());
    let endings = fixture.engines[0].inspect(b"x").unwrap().record.ended_grants;
    assert!(endings.iter().all(|ending| ending.grant.token.is_some()), "{endings:?}");
}
