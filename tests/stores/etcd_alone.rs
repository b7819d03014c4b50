//! Properties of the etcd store alone: its leases, its channels, and its messages for an unreachable cluster.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use host::{Host, Unix};
use lock::error::ErrorKind;
use lock::history::HistoryLimits;
use lock::{Lease, LeaseClock, LeaseStart};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use store::{Call, Finding, Store, Topic, Verdict, WriteOptions, WriteSet};

use crate::etcd::between::{Between, Fate, Where, as_it_was};
use crate::etcd::fair::{fair, is_within};
use crate::etcd::{self, Cluster, Setup};
use crate::rig::{Effects, Rig, stored};

const SECOND: Duration = Duration::from_secs(1);

/// Maximum duration of a bounded call, even on a busy machine.
const BOUNDED: Duration = Duration::from_secs(16);

/// The store, and the same store behind a server that answers with an old state.
type Pair = [Box<dyn Store>; 2];

/// Variables and their values.
type Access = Vec<(&'static str, PathBuf)>;

fn open_as(url: &str, access: &Access) -> lock::error::Result<Box<dyn Store>> {
    let value = |wanted: &str| access.iter().rfind(|(name, _)| *name == wanted).map(|(_, value)| value.into());
    engine::stores::open(&engine::location(url.as_ref(), "/").unwrap(), &value, Arc::new(Unix::new()))
}

fn open(url: &str) -> Box<dyn Store> {
    open_as(url, &Access::default()).unwrap()
}

/// That reading and writing fail with this code, within a time, and with all these words.
fn assert_fails(store: impl AsRef<dyn Store>, kind: ErrorKind, within: Duration, words: &[&str]) {
    let store = store.as_ref();
    let begun = Instant::now();
    let error = store.read(Call::default(), b"x").unwrap_err();
    let said = error.to_string();
    assert!(is_within(begun, within), "after {:?}: {said}", begun.elapsed());
    assert_eq!(error.kind(), kind, "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(store.swap(b"x", None, Some(b"body")).unwrap_err().kind(), kind);
}

/// Until a moment from now.
fn bound_soon() -> Call {
    Call::until(Unix::new().boottime() + SECOND / 2)
}

fn lease_id(lease: &Lease) -> String {
    match lease.clock {
        LeaseClock::Etcd(id) => format!("{id:x}"),
        _ => panic!("{lease:?}"),
    }
}

#[test]
fn a_lease_is_over_exactly_when_its_key_is_gone() {
    let Some(rig) = Rig::etcd() else { return };
    let cluster = etcd::shared().unwrap();
    let other = rig.again();
    let lease = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    // Not stored yet: so far only we know of it.
    assert!(!rig.store.leases().is_expired(Call::default(), &lease).unwrap());
    assert!(rig.store.leases().ttl(Call::default(), &lease).unwrap() > 50 * SECOND);
    assert!(other.leases().is_expired(Call::default(), &lease).unwrap());
    let version = rig.put(b"x", None, b"body");
    assert!(
        !rig.store.leases().is_expired(Call::default(), &lease).unwrap()
            && !other.leases().is_expired(Call::default(), &lease).unwrap()
    );
    let left = other.leases().ttl(Call::default(), &lease).unwrap();
    assert!(left > 50 * SECOND && left <= 60 * SECOND, "{left:?}");
    cluster.ctl(&["lease", "revoke", &lease_id(&lease)]);
    for store in [&rig.store, &other] {
        assert!(store.leases().is_expired(Call::default(), &lease).unwrap());
        assert_eq!(store.leases().ttl(Call::default(), &lease).unwrap(), Duration::ZERO);
    }
    rig.remove(b"x", &version);
}

#[test]
fn a_lease_lasts_its_duration_and_ends_soon_after() {
    let Some(rig) = Rig::etcd() else { return };
    let begun = Instant::now();
    let lease = rig.store.leases().grant(Call::default(), SECOND / 2).unwrap();
    rig.put(b"x", None, b"body");
    let other = rig.again();
    let mut over = Duration::ZERO;
    while !other.leases().is_expired(Call::default(), &lease).unwrap() {
        over = begun.elapsed();
        assert!(
            !other.leases().ttl(Call::default(), &lease).unwrap().is_zero()
                || other.leases().is_expired(Call::default(), &lease).unwrap()
        );
        assert!(over < fair(BOUNDED));
        std::thread::sleep(SECOND / 50);
    }
    assert!(over > SECOND / 2, "{over:?}");
    assert_eq!(rig.body(b"x"), Some(b"body".to_vec()));
}

#[test]
fn an_ended_lease_leaves_no_key_and_a_strange_one_is_over() {
    let Some(rig) = Rig::etcd() else { return };
    // The creation guards exist from the first creation on.
    let first = rig.put(b"x", None, b"body");
    rig.remove(b"x", &first);
    let before = rig.footprint();
    let lease = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let unused = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = rig.put(b"x", None, b"body");
    rig.store.end_lease(&lease);
    rig.store.end_lease(&unused);
    rig.remove(b"x", &version);
    assert_eq!(rig.footprint(), before);
    let strange = Lease { clock: LeaseClock::FileSystem(LeaseStart::default()), ..lease };
    assert!(rig.store.leases().is_expired(Call::default(), &strange).unwrap());
}

#[test]
fn a_new_lease_that_did_not_come_about_is_asked_for_again() {
    let Some(rig) = Rig::etcd() else { return };
    let first = rig.put(b"x", None, b"body");
    let second = rig.put(b"x", Some(&first), b"body");
    let lease = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    // The commit asks for the lease too, although another one was faster.
    assert!(!rig.store.swap(b"x", Some(&first), Some(b"late")).unwrap().is_done());
    etcd::shared().unwrap().ctl(&["lease", "revoke", &lease_id(&lease)]);
    rig.put(b"x", Some(&second), b"body");
    assert!(!rig.again().leases().is_expired(Call::default(), &lease).unwrap());
}

/// The server refuses the lease, which exists, and the proxy must pass on that refusal.
#[test]
fn a_transaction_whose_reply_is_lost_is_settled_at_once() {
    let Some(cluster) = etcd::shared() else { return };
    let is_cut = AtomicBool::new(false);
    let between = Between::and(&cluster.endpoints()[0], move |path, _| {
        let is_first = path.ends_with("/txn") && !is_cut.swap(true, Ordering::SeqCst);
        Fate { cut: is_first.then_some(Where::AfterSending), ..Fate::default() }
    });
    let store = open(&cluster.url_at(&[between.address], &etcd::new_prefix()));
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let begun = Instant::now();
    assert!(!store.swap(b"x", None, Some(b"body")).unwrap().is_done(), "the second copy finds the first one");
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().body, b"body");
    assert!(!store.leases().is_expired(Call::default(), &lease).unwrap());
    assert!(is_within(begun, 5 * SECOND), "{:?}", begun.elapsed());
}

#[test]
fn one_request_finds_out_about_many_leases() {
    let Some(rig) = Rig::etcd() else { return };
    let leases: Vec<Lease> = (0..50).map(|_| rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap()).collect();
    rig.put(b"x", None, b"body");
    let (over, lasting) = leases.split_last().unwrap();
    rig.store.end_lease(over);
    let count = Arc::new(AtomicU64::new(0));
    let seen = count.clone();
    let server = &etcd::shared().unwrap().endpoints()[0];
    let between = Between::and(server, move |_, _| {
        seen.fetch_add(1, Ordering::SeqCst);
        Fate::default()
    });
    let store = open(&rig.place.shown().unwrap().replace(server, &between.address));
    store.leases().look_ahead(Call::default(), &leases.iter().collect::<Vec<_>>()).unwrap();
    assert!(lasting.iter().all(|lease| !store.leases().is_expired(Call::default(), lease).unwrap()));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert!(store.leases().is_expired(Call::default(), over).unwrap());
}

/// The store as it is, and as a server shows it whose reads of leases show the state at this revision.
fn with_stale_leases(prefix: &str) -> Option<(Pair, Arc<AtomicU64>)> {
    let cluster = etcd::shared()?;
    let revision = Arc::new(AtomicU64::new(0));
    let (shown, leases) = (revision.clone(), format!("{prefix}/leases/"));
    let between = Between::and(&cluster.endpoints()[0], move |_, request| {
        let instead = as_it_was(request, &leases, shown.load(Ordering::SeqCst));
        Fate { instead, ..Fate::default() }
    });
    Some(([open(&cluster.url(prefix)), open(&cluster.url_at(&[between.address], prefix))], revision))
}

#[test]
fn a_lease_that_only_a_stale_read_shows_as_over_is_not_ended() {
    let Some(([store, stale], revision)) = with_stale_leases(&etcd::new_prefix()) else { return };
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    revision.store(version.number - 1, Ordering::SeqCst);
    let change = || WriteSet { expired: vec![&lease], ..WriteSet::of(b"x", Some(&version), Some(b"other")) };
    assert!(stale.leases().is_expired(Call::default(), &lease).unwrap());
    assert!(!stale.commit_and_finish(&change()).unwrap().is_done());
    // The transaction knows better than the reads that follow it.
    assert!(!stale.leases().is_expired(Call::default(), &lease).unwrap());
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().version, version);
    etcd::shared().unwrap().ctl(&["lease", "revoke", &lease_id(&lease)]);
    stored(stale.commit_and_finish(&change()).unwrap());
}

#[test]
fn a_change_may_depend_on_the_end_of_any_number_of_leases_and_begin_as_many() {
    let Some(rig) = Rig::etcd() else { return };
    let lend = || (0..200).map(|_| rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap()).collect::<Vec<_>>();
    let leases = lend();
    let version = rig.put(b"x", None, b"body");
    assert!(leases.iter().all(|lease| !rig.again().leases().is_expired(Call::default(), lease).unwrap()));
    let (last, over) = leases.split_last().unwrap();
    over.iter().for_each(|lease| rig.store.end_lease(lease));
    let swap = |store: &dyn Store, over: &[Lease]| {
        let expired = over.iter().collect();
        store.commit_and_finish(&WriteSet { expired, ..WriteSet::of(b"x", Some(&version), None) }).unwrap()
    };
    for lasting in [over.len() / 2, 0, over.len()] {
        let mut all = over.to_vec();
        all.insert(lasting, last.clone());
        assert!(!swap(&*rig.again(), &all).is_done(), "{lasting}");
    }
    assert_eq!(rig.body(b"x"), Some(b"body".to_vec()));
    stored(swap(&*rig.store, over));
}

#[test]
fn a_notification_wakes_its_subscriber_even_if_it_came_earlier() {
    let Some(rig) = Rig::etcd() else { return };
    let ringer = rig.again();
    let lease = rig.store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = rig.put(b"x", None, b"body");
    let rang = |hearing: &mut Box<dyn store::Subscription>, at_most: u16| {
        poll(&mut [PollFd::new(hearing.descriptor(), PollFlags::POLLIN)], PollTimeout::from(at_most)).unwrap();
        hearing.is_notified()
    };
    let mut hearing = rig.store.subscribe(Call::default(), Topic::Channel(b"bell", version)).unwrap();
    assert!(!rang(&mut hearing, 100));
    assert!(rig.store.abilities().notifies);
    ringer.wake(b"another bell", &lease);
    assert!(!rang(&mut hearing, 100));
    ringer.wake(b"bell", &lease);
    assert!(rang(&mut hearing, 5000));
    let mut late = rig.store.subscribe(Call::default(), Topic::Channel(b"bell", version)).unwrap();
    assert!(rang(&mut late, 5000));
    // It goes away with the lease.
    rig.store.end_lease(&lease);
    let newest = rig.put(b"x", Some(&version), b"another");
    let mut later = rig.store.subscribe(Call::default(), Topic::Channel(b"bell", newest)).unwrap();
    assert!(!rang(&mut later, 100));
}

#[test]
fn lines_of_history_beyond_one_page_are_removed_by_the_limits_alone() {
    const LINES: u64 = 10_300;
    const LENGTH: u64 = 100;
    let Some(cluster) = etcd::shared() else { return };
    let prefix = etcd::new_prefix();
    let store = open(&cluster.url(&prefix));
    let now = Unix::new().wall().as_nanos() as u64;
    let line = |number: u64| format!("line {number:94}\n");
    let put = |number: u64| {
        let key = format!("{prefix}/history/{:020}.{number:08x}.{LENGTH}", now - (LINES - number) * 1_000_000);
        serde_json::json!({"request_put": {"key": STANDARD.encode(key), "value": STANDARD.encode(line(number))}})
    };
    for first in (0..LINES).step_by(100) {
        let puts: Vec<_> = (first..first + 100).map(put).collect();
        cluster.post("/v3/kv/txn", &serde_json::json!({"success": puts}));
    }
    let reader: &dyn Store = store.as_ref();
    let lines = || {
        let mut lines = Vec::new();
        reader
            .read_history(Call::default(), &mut |line| lines.push(String::from_utf8_lossy(line).into_owned()))
            .unwrap();
        lines
    };
    let all_keys = serde_json::json!({
        "key": STANDARD.encode(format!("{prefix}/history/")), "range_end": STANDARD.encode(format!("{prefix}/history0")),
        "count_only": true
    });
    let count = || cluster.post("/v3/kv/range", &all_keys)["count"].as_str().unwrap().parse::<u64>().unwrap();
    let mut written = LINES;
    let mut remember = |size| {
        store.append_history(&line(written), &HistoryLimits { size, ..HistoryLimits::default() });
        written += 1;
        written
    };
    // Some of these look whether there are too many.
    let all = (0..400).map(|_| remember(1 << 30)).last().unwrap();
    assert_eq!(count(), all);
    // The size is still more than one page.
    let kept = 10_100;
    let all = std::iter::repeat_with(|| remember(kept * LENGTH)).find(|all| count() < all - 100).unwrap();
    let left = lines();
    assert_eq!(left.first(), Some(&line(all - kept)), "{} of {all}", left.len());
    assert_eq!(left.len() as u64, kept);
}

#[test]
fn a_value_with_fewer_readers_than_the_store_is_refused() {
    let Some(rig) = Rig::etcd() else { return };
    let swap = |mode| rig.store.swap_with(b"x", None, Some(b"body"), WriteOptions { mode, ..WriteOptions::default() });
    let refused = swap(Some(0o600)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert!(refused.to_string().contains("role"), "{refused}");
    stored(swap(Some(0o644)).unwrap());
}

#[test]
fn an_oversized_record_is_refused_with_an_explanation() {
    let Some(rig) = Rig::etcd() else { return };
    let error = rig.store.swap(b"x", None, Some(&vec![b'x'; 3 << 20])).unwrap_err();
    assert!(error.kind() == ErrorKind::InputOutput && error.to_string().contains("large"), "{error}");
    assert_eq!(rig.body(b"x"), None);
}

#[test]
fn a_call_after_a_timeout_fails_sooner() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = open(&format!("etcd://{}/p", silent.local_addr().unwrap()));
    let [first, second] = [(); 2].map(|()| {
        let begun = Instant::now();
        assert_eq!(store.read(Call::default(), b"x").unwrap_err().kind(), ErrorKind::Unavailable);
        begun.elapsed()
    });
    assert!(second < first / 2, "{second:?} after {first:?}");
}

#[test]
fn a_silent_server_does_not_hide_the_others() {
    let Some(cluster) = etcd::shared() else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = format!("127.0.0.1:{}", etcd::free_port());
    let servers = [silent.local_addr().unwrap().to_string(), dead, cluster.endpoints()[0].clone()];
    for _ in 0..4 {
        let store = open(&cluster.url_at(&servers, &etcd::new_prefix()));
        let begun = Instant::now();
        stored(store.swap(b"x", None, Some(b"body")).unwrap());
        assert!(store.read(Call::default(), b"x").unwrap().is_some());
        assert!(is_within(begun, BOUNDED));
    }
}

#[test]
fn a_disabled_gateway_is_reported() {
    let setup = Setup { arguments: vec!["--enable-grpc-gateway=false"], ..Setup::default() };
    let Some(cluster) = Cluster::start(setup) else { return };
    let words = ["404", "--enable-grpc-gateway", "3.4"];
    assert_fails(open(&cluster.url("p")), ErrorKind::Unavailable, 2 * SECOND, &words);
}

/// A proxy before the first server, and the bytes of the last transaction that passed it.
fn with_last_transaction(cluster: &Cluster) -> (Between, Arc<Mutex<Vec<u8>>>) {
    let last: Arc<Mutex<Vec<u8>>> = Arc::default();
    let sent = last.clone();
    let between = Between::and(&cluster.endpoints()[0], move |path, request| {
        if path.ends_with("/txn") {
            *sent.lock().unwrap() = request.to_vec();
        }
        Fate::default()
    });
    (between, last)
}

/// Sends a transaction again, as a server that wakes up would: it must change nothing.
#[track_caller]
fn is_refused_later(cluster: &Cluster, transaction: &[u8]) {
    let mut server = TcpStream::connect(&cluster.endpoints()[0]).unwrap();
    server.write_all(transaction).unwrap();
    let mut answer = [0; 4096];
    let length = server.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.contains("revision") && !answer.contains("succeeded"), "{answer}");
}

#[test]
fn an_undone_creation_does_not_happen_again_when_a_server_wakes_up() {
    let Some(cluster) = etcd::shared() else { return };
    let (between, last) = with_last_transaction(cluster);
    let store = open(&cluster.url_at(std::slice::from_ref(&between.address), &etcd::new_prefix()));
    for _ in 0..2 {
        let born = stored(store.swap(b"x", None, Some(b"one")).unwrap());
        let late = last.lock().unwrap().clone();
        stored(store.swap(b"x", Some(&born), None).unwrap());
        is_refused_later(cluster, &late);
        assert_eq!(store.read(Call::default(), b"x").unwrap(), None);
    }
}

#[test]
fn a_creation_that_lost_does_not_happen_when_a_server_wakes_up() {
    let Some(cluster) = etcd::shared() else { return };
    let (between, late) = with_last_transaction(cluster);
    let prefix = etcd::new_prefix();
    let store = open(&cluster.url_at(std::slice::from_ref(&between.address), &prefix));
    let other = open(&cluster.url(&prefix));
    assert_eq!(store.read(Call::default(), b"x").unwrap(), None);
    let version = stored(other.swap(b"x", None, Some(b"other")).unwrap());
    assert!(!store.swap(b"x", None, Some(b"one")).unwrap().is_done());
    stored(other.swap(b"x", Some(&version), None).unwrap());
    is_refused_later(cluster, &late.lock().unwrap());
    assert_eq!(store.read(Call::default(), b"x").unwrap(), None);
    // A name that was removed in the meantime is read again.
    let version = stored(other.swap(b"x", None, Some(b"other")).unwrap());
    stored(other.swap(b"x", Some(&version), None).unwrap());
    assert!(!store.swap(b"x", None, Some(b"one")).unwrap().is_done());
    stored(store.swap(b"x", None, Some(b"one")).unwrap());
}

/// Returns a server with a script for each connection, and the requests on the connection at each step. A step is a text
/// that the requests must contain, and the answers that follow.
fn scripted(connections: Vec<Vec<(&'static str, Vec<&'static str>)>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    std::thread::spawn(move || {
        // A connection that ends before all requests are read would lose answers.
        let mut open = Vec::new();
        for pieces in connections {
            let (mut stream, mut requests) = (listener.accept().unwrap().0, Vec::new());
            for (until, answers) in pieces {
                while !String::from_utf8_lossy(&requests).contains(until) {
                    let mut buffer = [0; 4096];
                    let length = stream.read(&mut buffer).unwrap();
                    assert!(length > 0);
                    requests.extend_from_slice(&buffer[..length]);
                }
                seen.lock().unwrap().push(String::from_utf8_lossy(&requests).into_owned());
                for answer in answers {
                    let (head, body) = answer.split_once('|').unwrap();
                    let body = format!("{{\"header\":{{\"revision\":\"5\"}}{body}}}");
                    write!(stream, "HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
                }
            }
            open.push(stream);
        }
    });
    (server, asked)
}

/// Acquires a lease with the first record, from a server that has none.
fn acquire_from(server: &str) {
    let store = open(&format!("etcd://{server}/p"));
    assert_eq!(store.read(Call::default(), b"x").unwrap(), None);
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    assert_eq!(stored(store.swap(b"x", None, Some(b"body")).unwrap()).number, 5);
    assert!(matches!(lease.clock, LeaseClock::Etcd(_)));
}

/// This server answers nothing before it has the last of the requests that belong together.
#[test]
fn a_lease_and_its_commit_take_one_round_trip() {
    let (server, _) =
        scripted(vec![vec![("/v3/kv/range", vec!["|"]), ("/v3/kv/txn", vec!["|", "|,\"succeeded\":true"])]]);
    acquire_from(&server);
}

/// A proxy may serve one request on each connection.
#[test]
fn a_connection_that_ends_with_each_answer_serves_all_requests() {
    const CLOSE: &str = "Connection: close\r\n|";
    let done = "Connection: close\r\n|,\"succeeded\":true";
    let (server, asked) = scripted(vec![
        vec![("/v3/kv/range", vec![CLOSE])],
        vec![("/v3/lease/grant", vec![CLOSE])],
        vec![("/v3/kv/txn", vec![done])],
    ]);
    acquire_from(&server);
    let asked = asked.lock().unwrap();
    assert!(asked[2].starts_with("POST /v3/kv/txn ") && !asked[2].contains("/v3/lease/grant"), "{asked:?}");
}

#[test]
fn doctor_examines_a_cluster() {
    let Some(cluster) = Cluster::start(Setup { members: 3, ..Setup::default() }) else { return };
    let worst = |findings: &[Finding], topic: &str| {
        findings.iter().filter(|finding| finding.topic == topic).map(|finding| finding.verdict).max()
    };
    // On a loaded machine a server that has just begun may not answer in time.
    let examined = || open(&cluster.url("p")).diagnose(Call::default());
    let all_answer = |findings: &Vec<Finding>| worst(findings, "server") == Some(Verdict::Good);
    let findings = (0..10).map(|_| examined()).find(all_answer).unwrap_or_else(examined);
    for topic in ["server", "members", "transport"] {
        assert_eq!(worst(&findings, topic), Some(Verdict::Good), "{findings:#?}");
    }
    assert_eq!(worst(&findings, "login"), Some(Verdict::Doubtful));
    let of = |topic: &str| findings.iter().filter(|found| found.topic == topic).collect::<Vec<_>>();
    let (servers, versions) = (of("server"), of("version"));
    // Three servers of one version: one warning at most.
    let is_old = servers[0].found.contains(": etcd 3.4.");
    assert!(servers.len() == 3 && versions.len() <= 1 && (!is_old || versions.len() == 1), "{findings:#?}");
    assert!(!is_old || versions[0].found.ends_with("; 3.4 is end-of-life"), "{versions:#?}");
    let one = open(&cluster.url_at(&cluster.endpoints()[..1], "p")).diagnose(Call::default());
    assert_eq!(worst(&one, "members"), Some(Verdict::Doubtful), "{one:#?}");
    cluster.kill(cluster.leader());
    let findings = open(&cluster.url("p")).diagnose(Call::default());
    assert_eq!(worst(&findings, "server"), Some(Verdict::Doubtful), "{findings:#?}");
    let nothing = open(&format!("etcd://127.0.0.1:{}/p", etcd::free_port()));
    let call = Call::until(Unix::new().boottime());
    assert_eq!(worst(&nothing.diagnose(call), "server"), Some(Verdict::Bad));
    assert!(findings.iter().all(|finding| (finding.verdict == Verdict::Good) == finding.cure.is_none()));
}

fn with_ca(cluster: &Cluster) -> Access {
    vec![("CSALOCK_ETCD_CACERT", cluster.path("ca.pem"))]
}

#[test]
fn tls_works_with_the_right_authority_and_explains_a_wrong_one() {
    let Some(cluster) = Cluster::start(Setup { tls: true, ..Setup::default() }) else { return };
    let store = open_as(&cluster.url("p"), &with_ca(&cluster)).unwrap();
    let version = stored(store.swap(b"x", None, Some(&[b'x'; 100_000])).unwrap());
    assert_eq!(store.read(Call::default(), b"x").unwrap().unwrap().body.len(), 100_000);
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    stored(store.swap(b"y", None, Some(b"y")).unwrap());
    let mut hearing = store.subscribe(Call::default(), Topic::Channel(b"bell", version)).unwrap();
    store.wake(b"bell", &lease);
    store.end_lease(&lease);
    poll(&mut [PollFd::new(hearing.descriptor(), PollFlags::POLLIN)], PollTimeout::from(5000u16)).unwrap();
    assert!(hearing.is_notified() && store.leases().is_expired(Call::default(), &lease).unwrap());
    let unknown_authority = vec![("CSALOCK_ETCD_CACERT", cluster.path("unknown_authority.pem"))];
    let words = [&cluster.endpoints()[0][..], "CSALOCK_ETCD_CACERT"];
    assert_fails(open_as(&cluster.url("p"), &unknown_authority).unwrap(), ErrorKind::Unavailable, 2 * SECOND, &words);
    // Plain to one that speaks TLS, and the other way round.
    let plain = cluster.url("p").replace("etcds:", "etcd:");
    let begun = Instant::now();
    let error = open(&plain).read(Call::default(), b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(is_within(begun, BOUNDED));
    let shared = etcd::shared().unwrap().url("p").replace("etcd:", "etcds:");
    let other = open_as(&shared, &with_ca(&cluster)).unwrap();
    assert_fails(&other, ErrorKind::Unavailable, 2 * SECOND, &["TLS", "etcd://"]);
    for wrong in ["missing.pem", "ca.key"] {
        let access = vec![("CSALOCK_ETCD_CACERT", cluster.path(wrong))];
        let refused = open_as(&cluster.url("p"), &access).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{wrong}");
    }
}

#[test]
fn a_server_that_requires_a_certificate_gets_one_or_is_reported() {
    let setup = Setup { tls: true, client_certificates: true, ..Setup::default() };
    let Some(cluster) = Cluster::start(setup) else { return };
    let without = open_as(&cluster.url("p"), &with_ca(&cluster)).unwrap();
    assert_fails(&without, ErrorKind::Unavailable, BOUNDED, &["CSALOCK_ETCD_CERT"]);
    let mut access = with_ca(&cluster);
    access.push(("CSALOCK_ETCD_CERT", cluster.path("client.pem")));
    access.push(("CSALOCK_ETCD_KEY", cluster.path("client.key")));
    stored(open_as(&cluster.url("p"), &access).unwrap().swap(b"x", None, Some(b"body")).unwrap());
    access.push(("CSALOCK_ETCD_KEY", cluster.path("server.key")));
    assert_eq!(open_as(&cluster.url("p"), &access).map(drop).unwrap_err().kind(), ErrorKind::Unavailable);
}

fn tokens(runtime: &Path) -> Vec<PathBuf> {
    let listing = std::fs::read_dir(runtime.join("csalock")).unwrap();
    listing.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn logging_in() {
    let Some(cluster) = Cluster::start(Setup { root: Some("geheim"), ..Setup::default() }) else { return };
    cluster.add_user("cron", "wort", "p/");
    let runtime = tempfile::tempdir().unwrap();
    let access = |user: &str, password: &str| -> Access {
        vec![
            ("CSALOCK_ETCD_USER", user.into()),
            ("CSALOCK_ETCD_PASSWORD", password.into()),
            ("XDG_RUNTIME_DIR", runtime.path().into()),
        ]
    };
    let url = cluster.url("p");
    let cron = access("cron", "wort");
    let store = open_as(&url, &cron).unwrap();
    let lease = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    let version = stored(store.swap(b"x", None, Some(b"body")).unwrap());
    assert!(!store.leases().is_expired(Call::default(), &lease).unwrap());
    assert!(store.subscribe(Call::default(), Topic::Channel(b"bell", version)).is_some());
    store.end_lease(&lease);
    assert!(store.leases().is_expired(Call::default(), &lease).unwrap());

    // The token is kept for others, in a private file that does not contain the password.
    let [kept] = &tokens(runtime.path())[..] else { panic!("{:?}", tokens(runtime.path())) };
    assert_eq!(std::fs::metadata(kept).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(std::fs::metadata(kept.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o700);
    let token = std::fs::read_to_string(kept).unwrap();
    assert!(!token.contains("wort"));
    assert!(open_as(&url, &cron).unwrap().read(Call::default(), b"x").unwrap().is_some());
    assert_eq!(std::fs::read_to_string(kept).unwrap(), token);

    // A useless file is replaced; a file that others could have written is not even tried.
    for (wrong, mode) in [("nonsense.17", 0o600), (&token[..], 0o666), ("", 0o600)] {
        std::fs::write(kept, wrong).unwrap();
        std::fs::set_permissions(kept, PermissionsExt::from_mode(mode)).unwrap();
        assert!(open_as(&url, &cron).unwrap().read(Call::default(), b"x").unwrap().is_some(), "{wrong}");
        assert_ne!(std::fs::read_to_string(kept).unwrap(), wrong);
        assert_eq!(std::fs::metadata(kept).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    // etcd waits for a step of its log that a token of an earlier cluster names.
    let old = "nonsense.1000000";
    for has_time in [true, false] {
        std::fs::write(kept, old).unwrap();
        let store = open_as(&url, &cron).unwrap();
        if !has_time {
            assert_eq!(store.read(bound_soon(), b"x").unwrap_err().kind(), ErrorKind::Unavailable);
        }
        let next = if has_time { store } else { open_as(&url, &cron).unwrap() };
        assert!(next.read(Call::default(), b"x").unwrap().is_some());
        assert_ne!(std::fs::read_to_string(kept).unwrap(), old);
    }

    let wrong = open_as(&url, &access("cron", "falsch")).unwrap();
    assert_fails(&wrong, ErrorKind::Denied, BOUNDED, &["CSALOCK_ETCD_PASSWORD"]);
    assert!(!wrong.read(Call::default(), b"x").unwrap_err().to_string().contains("falsch"));
    let unknown = open_as(&url, &access("nobody", "wort")).unwrap();
    assert_fails(&unknown, ErrorKind::Denied, BOUNDED, &["CSALOCK_ETCD_USER"]);
    assert_fails(open(&url), ErrorKind::Denied, BOUNDED, &["CSALOCK_ETCD_USER"]);
    let elsewhere = open_as(&cluster.url("q"), &cron).unwrap();
    assert_fails(&elsewhere, ErrorKind::Denied, BOUNDED, &["role", "q/"]);
}

#[test]
fn passwords_come_from_files_and_may_be_superfluous() {
    let Some(cluster) = etcd::shared() else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("password");
    std::fs::write(&file, "wort\nsecond line\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let access = vec![("CSALOCK_ETCD_USER", "cron".into()), ("CSALOCK_ETCD_PASSWORD_FILE", file.clone())];
    let url = cluster.url(&etcd::new_prefix());
    let refused = open_as(&url, &access).map(drop).unwrap_err();
    assert!(refused.kind() == ErrorKind::Denied && refused.to_string().contains("chmod"), "{refused}");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    // This cluster has no users at all.
    stored(open_as(&url, &access).unwrap().swap(b"x", None, Some(b"body")).unwrap());
    assert_eq!(open_as(&url, &access[..1].to_vec()).map(drop).unwrap_err().kind(), ErrorKind::InvalidInput);
    std::fs::write(&file, "\n").unwrap();
    let empty = open_as(&url, &access).map(drop).unwrap_err();
    assert!(
        empty.kind() == ErrorKind::InvalidInput && empty.to_string().contains("no password in its first line"),
        "{empty}"
    );
    std::fs::remove_file(&file).unwrap();
    let missing = open_as(&url, &access).map(drop).unwrap_err().to_string();
    assert!(missing.contains("CSALOCK_ETCD_PASSWORD_FILE") && missing.contains("No such file"), "{missing}");
    // The file is not read if the password is set.
    let both = [&access[..], &[("CSALOCK_ETCD_PASSWORD", "wort".into())]].concat();
    stored(open_as(&url, &both).unwrap().swap(b"y", None, Some(b"body")).unwrap());
}

#[test]
fn a_full_cluster_is_reported() {
    let setup = Setup { arguments: vec!["--quota-backend-bytes", "200000"], ..Setup::default() };
    let Some(cluster) = Cluster::start(setup) else { return };
    let store = open(&cluster.url("p"));
    let full =
        (0..100).find_map(|number: u32| store.swap(format!("x{number}").as_bytes(), None, Some(&[b'x'; 50_000])).err());
    let full = full.unwrap();
    assert!(full.kind() == ErrorKind::InputOutput && full.to_string().contains("full"), "{full}");
    // Existing records can still be read, and be removed after a failed renewal.
    let found = store.read(Call::default(), b"x0").unwrap().unwrap();
    let _ = store.leases().grant(Call::default(), 60 * SECOND).unwrap();
    assert!(store.swap(b"x0", Some(&found.version), Some(b"renewed")).is_err());
    stored(store.swap(b"x0", Some(&found.version), None).unwrap());
}
