//! Three hosts that do not see each other's processes, and workers on all of them that share two locks in one store: in
//! etcd with a server on each host, in a PostgreSQL server on the first one, or in a directory there that its host uses
//! without ssh and the others by ssh. Servers are killed and stopped, hosts are cut off, and a majority is lost and returns;
//! PostgreSQL also ends its sessions, has its table locked or no free connection, and is replaced by its standby. Meanwhile
//! workers are killed and stopped. A referee that knows nothing of csalock checks that no two workers are inside at once,
//! and that tokens only grow; the trace of all commits is checked, too. At the end every surviving worker finishes soon.
//!
//! A storm lasts five seconds, longer with `CSALOCK_TESTS`; `CSALOCK_SEED` chooses the faults. A quick run has one of the
//! stores, another one in each run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::checker;
use crate::etcd::Place;
use crate::extent;
use crate::sandbox::{Job, Kind, Network, Sandbox, proc, wait_until, wait_until_or_show};
use crate::servers::{Servers, place};
use crate::storm::{Dice, members};
use crate::{postgres, ssh};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

const LEASE: Duration = Duration::from_secs(5);
const ELECTION: Duration = Duration::from_secs(1);

/// The time that a busy machine needs to let all workers do their last step one after the other.
const BUSY: Duration = Duration::from_secs(8);

pub(crate) const STORMS: [&str; 3] = [
    "a_storm_over_three_hosts_with_etcd_never_admits_two_holders",
    "a_storm_over_three_hosts_with_postgres_never_admits_two_holders",
    "a_storm_over_three_hosts_with_ssh_never_admits_two_holders",
];

const TRACE: &str = "commits.trace";

/// The directory of the referee, the names of the section, and whether it may outlast the lease.
const PLACE: &str = "CSALOCK_TEST_STORM";
const UNDER: &str = "CSALOCK_TEST_UNDER";
const SHARED: &str = "CSALOCK_TEST_SHARED";
const LONG: &str = "CSALOCK_TEST_LONG";

/// How a worker comes to run the section, and what may happen to it.
struct Work {
    /// One round, with the section's words in `$SECTION`.
    round: &'static str,
    under: &'static str,
    shared: bool,
    /// Whether it may be stopped. A script that holds by `lock` and is stopped beyond its lease, on a host that is cut
    /// off, cannot know afterwards that another process holds.
    stops: bool,
    /// Whether it may be killed. A child of a killed script lives on, though its lock does not.
    dies: bool,
}

/// Takes lock x for the script and says its token in `$CSALOCK_TOKEN`.
macro_rules! lock {
    () => {
        "held=$(csalock lock --json -w inf x) && rest=${held#*\\\"token\\\":} && export CSALOCK_TOKEN=${rest%%[!0-9]*}"
    };
}

const RUN: Work = Work { round: "csalock run -w inf x $SECTION", under: "x", shared: false, stops: true, dies: true };
const BOTH: Work = Work { round: "csalock run -w inf x --also y -- $SECTION", under: "x y", ..RUN };
const OTHER: Work = Work { round: "csalock run -w inf y $SECTION", under: "y", ..RUN };
const READ: Work = Work { round: "csalock run -s -w inf x $SECTION", shared: true, ..RUN };
const TAKE_PLACE: Work = Work { round: concat!("dash -c '", lock!(), " && exec $SECTION'"), stops: false, ..RUN };
const LOCK: Work =
    Work { round: concat!(lock!(), " && $SECTION && csalock unlock x"), stops: false, dies: false, ..RUN };

/// The work of the workers. They are on the first host, the second, the third, the first, and so on.
const WORKERS: [&Work; 12] =
    [&RUN, &RUN, &RUN, &LOCK, &LOCK, &BOTH, &BOTH, &TAKE_PLACE, &TAKE_PLACE, &READ, &READ, &OTHER];

/// The results of a round: done; the store was unreachable; `unlock` came too late; the lock was lost while the command
/// ran; a process was killed.
const ENDS: [&str; 6] = ["0", "69", "81", "82", "85", "137"];

/// The standby of a PostgreSQL server that each commit waits for, and sessions that are in the way of others.
#[derive(Default)]
struct Database {
    standby: RefCell<Option<postgres::Server>>,
    sessions: RefCell<Vec<Child>>,
}

impl Database {
    const CONNECTIONS: usize = 40;

    fn start(on: Place) -> Option<postgres::Server> {
        let most = format!("max_connections={}", Database::CONNECTIONS);
        postgres::Server::start_at(on, &[&most, "synchronous_standby_names=follower", "max_wal_senders=3"])
    }

    /// Begins a session that stays until [`Database::end_sessions`].
    fn begin_session(&self, server: &postgres::Server, sql: &str) {
        let mut psql = server.psql();
        let mut session = psql.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // A session that a full server has refused reads nothing.
        let _ = session.stdin.as_mut().unwrap().write_all(sql.as_bytes());
        self.sessions.borrow_mut().push(session);
    }

    fn end_sessions(&self) {
        for mut session in self.sessions.take() {
            drop(session.stdin.take());
            session.wait().unwrap();
        }
    }

    fn follow(&self, server: &postgres::Server) {
        self.standby.replace(Some(server.standby("follower")));
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed(usize),
    Stopped(usize),
    CutOff(usize),
    /// All other servers are stopped.
    Left(usize),
    InDatabase(DatabaseFault),
}

#[derive(Debug, Clone, Copy)]
enum DatabaseFault {
    SessionsEnded,
    TableLocked,
    Full,
    StandbyPromoted,
}

impl DatabaseFault {
    const ALL: [DatabaseFault; 4] = [Self::SessionsEnded, Self::TableLocked, Self::Full, Self::StandbyPromoted];

    fn happens(self, server: &postgres::Server, database: &Database) {
        match self {
            Self::SessionsEnded => {
                server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'csalock'");
            }
            Self::TableLocked => {
                database.begin_session(server, "BEGIN; LOCK TABLE store.records IN ACCESS EXCLUSIVE MODE;\n");
            }
            Self::Full => (0..Database::CONNECTIONS).for_each(|_| database.begin_session(server, "SELECT 1;\n")),
            Self::StandbyPromoted => server.fail_over(&database.standby.take().unwrap()),
        }
    }

    fn is_over(self, server: &postgres::Server, database: &Database) {
        database.end_sessions();
        if let Self::StandbyPromoted = self {
            database.follow(server);
        }
    }
}

impl Fault {
    fn pick(dice: &mut Dice, servers: &Servers, may_cut: bool) -> Fault {
        if matches!(servers, Servers::Postgres(_)) && dice.roll(2) == 0 {
            return Fault::InDatabase(DatabaseFault::ALL[dice.roll(4)]);
        }
        let leader = if let Servers::Etcd(cluster) = servers { cluster.leader() } else { 0 };
        let [server, host] = [servers.count(), 3].map(|all| if dice.roll(2) == 0 { leader } else { dice.roll(all) });
        match dice.roll(if may_cut { 6 } else { 4 }) {
            0 => Fault::Killed(server),
            1 | 2 => Fault::Stopped(server),
            3 if servers.count() == 1 => Fault::Stopped(server),
            3 => Fault::Left(server),
            _ => Fault::CutOff(host),
        }
    }

    /// Begins, or ends.
    fn strike(self, begins: bool, servers: &Servers, database: &Database, network: Option<&Network>) {
        match (self, servers) {
            (Fault::Killed(server), _) if begins => servers.kill(server),
            (Fault::Killed(server), _) => servers.restart(server),
            (Fault::Stopped(server), _) => servers.stop(server, begins),
            (Fault::CutOff(host), _) => network.unwrap().cut(host, begins),
            (Fault::Left(server), _) => {
                (0..servers.count()).filter(|other| *other != server).for_each(|other| servers.stop(other, begins));
            }
            (Fault::InDatabase(fault), Servers::Postgres(server)) if begins => fault.happens(server, database),
            (Fault::InDatabase(fault), Servers::Postgres(server)) => fault.is_over(server, database),
            (Fault::InDatabase(_), _) => unreachable!("only PostgreSQL has it"),
        }
    }
}

/// Kills and stops processes of workers.
struct Shooter<'a> {
    jobs: &'a [Job],
    /// The shells that begin the rounds, and the processes that put them on their hosts.
    loops: Vec<i32>,
    /// The stopped processes, with their times: at most one of each job, because the other must end its command in
    /// time.
    stopped: BTreeMap<usize, (i32, Instant)>,
    killed: usize,
}

impl Shooter<'_> {
    fn shoot(&mut self, dice: &mut Dice) {
        let over: Vec<usize> =
            self.stopped.iter().filter(|(_, (_, until))| Instant::now() >= *until).map(|(at, _)| *at).collect();
        for at in over {
            let (pid, _) = self.stopped.remove(&at).unwrap();
            let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
        }
        let at = dice.roll(self.jobs.len());
        let work = WORKERS[at];
        let is_aim = |pid: &i32| !self.loops.contains(pid) && proc::program(*pid) != "csalock-keeper";
        let aims: Vec<i32> = members(&self.jobs[at..=at]).into_iter().filter(is_aim).collect();
        if aims.is_empty() || self.stopped.contains_key(&at) {
            return;
        }
        let aim = aims[dice.roll(aims.len())];
        match dice.roll(3) {
            0 if work.dies => {
                let _ = kill(Pid::from_raw(aim), Signal::SIGKILL);
                self.killed += 1;
            }
            1 if work.stops => {
                let _ = kill(Pid::from_raw(aim), Signal::SIGSTOP);
                self.stopped.insert(at, (aim, Instant::now() + span(dice)));
            }
            _ => {}
        }
    }
}

/// Mostly shorter than the lease, sometimes longer.
fn span(dice: &mut Dice) -> Duration {
    let (least, more) = if dice.roll(5) == 0 { (LEASE + SECOND, 2000) } else { (200 * MILLISECOND, 2000) };
    least + MILLISECOND * dice.roll(more) as u32
}

fn words_of_section() -> String {
    let this = std::env::current_exe().unwrap().display().to_string();
    format!("{this} host_storm::section --exact --ignored --test-threads=1")
}

fn begin(sandbox: &Sandbox, network: Option<&Network>, at: usize) -> Job {
    let work = WORKERS[at];
    let script = format!("while [ ! -e over ]; do {{ {}; }} > /dev/null 2>> said; echo $? >> ends; done", work.round);
    let enter = network.map(|network| network.on_a_machine(at % 3)).unwrap_or_default();
    let words: Vec<String> = enter.into_iter().chain(["dash".into(), "-c".into(), script]).collect();
    let mut call = sandbox.call(&words[0], &words[1..]).env("CSALOCK_LEASE", format!("{}s", LEASE.as_secs()));
    call = call
        .env("CSALOCK_TRACE", sandbox.path(TRACE))
        .env("SECTION", words_of_section())
        .env(PLACE, sandbox.path("files"))
        .env(UNDER, work.under);
    if work.shared {
        call = call.env(SHARED, "1");
    }
    if work.stops {
        call = call.env(LONG, "1");
    }
    // The host of the directory needs no ssh, if there are hosts.
    if network.is_some() && at.is_multiple_of(3) && sandbox.kind() == Kind::Ssh {
        call = call.env("CSALOCK_STORE", format!("dir:{}", sandbox.path("store").display()));
    }
    call.stdin("").spawn()
}

/// Returns the process of a job that runs its loop, and those above it.
fn loops(job: &Job, network: Option<&Network>) -> Vec<i32> {
    let mut all = vec![job.pid()];
    // unshare(1), process 1 of the machine, and the loop.
    for _ in 0..if network.is_some() { 2 } else { 0 } {
        let above = all[all.len() - 1];
        wait_until("the worker is on its host", || !proc::children(above).is_empty());
        all.push(proc::children(above)[0]);
    }
    all
}

#[test]
fn a_storm_over_three_hosts_with_etcd_never_admits_two_holders() {
    let network = Network::new(3);
    let Some(servers) = Servers::etcd(network.as_ref(), &[0, 1, 2]) else { return };
    storm(servers.sandbox(), servers, network);
}

#[test]
fn a_storm_over_three_hosts_with_postgres_never_admits_two_holders() {
    let Some(network) = Network::new(3) else { return };
    let Some(server) = Database::start(place(&network, 0)) else { return };
    storm(Sandbox::in_database(&server.url("")), Servers::Postgres(server), Some(network));
}

#[test]
fn a_storm_over_three_hosts_with_ssh_never_admits_two_holders() {
    let Some(network) = Network::new(3) else { return };
    let Some(server) = ssh::Server::start_at(place(&network, 0), "") else { return };
    let sandbox = Sandbox::over_ssh(&server);
    // Its mark tells the first host that other hosts use the directory.
    sandbox.csalock_by(&network.on(1), &["run", "x", "true"]).env("CSALOCK_TRACE", sandbox.path(TRACE)).run();
    storm(sandbox, Servers::Ssh(server), Some(network));
}

fn storm(sandbox: Sandbox, servers: Servers, network: Option<Network>) {
    // The machine has room for one storm.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let network = network.as_ref();
    let database = Database::default();
    if let Servers::Postgres(server) = &servers {
        database.follow(server);
    }
    let seed = extent::seed();
    println!("CSALOCK_SEED={seed}");
    let mut dice = Dice(seed | 1);
    let lasts = SECOND * extent::storm_seconds() as u32;

    let jobs: Vec<Job> = (0..WORKERS.len()).map(|at| begin(&sandbox, network, at)).collect();
    wait_until("the first worker was inside", || !sandbox.read("files/grants").is_empty());
    let loops = jobs.iter().flat_map(|job| loops(job, network)).collect();
    let mut shooter = Shooter { jobs: &jobs, loops, stopped: BTreeMap::new(), killed: 0 };
    let begun = Instant::now();
    let mut faults = Vec::new();
    while begun.elapsed() < lasts {
        let fault = Fault::pick(&mut dice, &servers, network.is_some());
        let span = span(&mut dice);
        println!("{:5.1} s: {fault:?} for {:.1} s", begun.elapsed().as_secs_f64(), span.as_secs_f64());
        fault.strike(true, &servers, &database, network);
        faults.push(fault);
        let happened = Instant::now();
        while happened.elapsed() < span {
            shooter.shoot(&mut dice);
            std::thread::sleep(MILLISECOND * dice.roll(200) as u32);
        }
        fault.strike(false, &servers, &database, network);
        servers.await_health();
    }
    let killed = shooter.killed;
    for (pid, _) in shooter.stopped.into_values() {
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
    }
    let calm = Instant::now();
    sandbox.file("files/over", "");
    let survivors = || members(&jobs).into_iter().filter(|pid| proc::lives(*pid)).collect::<Vec<i32>>();
    let evidence = || {
        let lines = survivors().into_iter().map(|pid| format!("{pid} {:?} {}", proc::stat(pid), proc::command(pid)));
        format!("CSALOCK_SEED={seed}\n{}\n{}", lines.collect::<Vec<String>>().join("\n"), sandbox.read("files/said"))
    };
    wait_until_or_show("all surviving workers finish", || survivors().is_empty(), evidence);
    let calm = calm.elapsed();

    assert_eq!(sandbox.read("files/broken"), "", "CSALOCK_SEED={seed}");
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    sandbox.read("files/ends").lines().for_each(|end| *ends.entry(end.to_string()).or_default() += 1);
    let grants = sandbox.read("files/grants").lines().count();
    let traced = checker::check_file(&sandbox.path(TRACE), None);
    println!(
        "{} faults, {killed} killed, {grants} grants, ends {ends:?}, calm after {calm:.1?}, {}",
        faults.len(),
        traced.figures()
    );
    assert_eq!(traced.wrong, [""; 0], "CSALOCK_SEED={seed}");
    let said = sandbox.read("files/said");
    // A worker whose `unlock` did not reach the store still holds the lock at its next attempt.
    let is_one = |end: &str| ENDS.contains(&end) || (end == "84" && ends.contains_key("69"));
    assert!(ends.keys().all(|end| is_one(end)), "{ends:?} CSALOCK_SEED={seed}\n{said}");
    // No other host sees that a worker was killed: the leases of a dead holder, of a dead waiter that was granted the lock
    // meanwhile, and of the two for the other lock pass one after the other.
    assert!(calm < 4 * LEASE + ELECTION + 2 * SECOND + BUSY, "CSALOCK_SEED={seed}: {calm:?}\n{said}");
    for name in ["x", "y"] {
        assert_eq!(
            sandbox.csalock_by(&on_any(network), &["run", "-q", "-w", "6s", name, "true"]).capture().code,
            Some(0)
        );
    }
}

/// The words that run something on the first host, if there are hosts.
fn on_any(network: Option<&Network>) -> Vec<String> {
    network.map_or_else(|| vec!["env".to_string()], |network| network.on(0))
}

/// The critical section: an flock(2) that must be free, and a token that must be higher than the last.
#[test]
#[ignore = "is run by other tests, under a lock"]
fn section() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let place = Path::new(&place);
    let set = |name| std::env::var(name).unwrap_or_default();
    let shared = !set(SHARED).is_empty();
    let token: u64 = set("CSALOCK_TOKEN").parse().unwrap();
    let wrong =
        |what: String| append(&place.join("broken"), &format!("pid {} token {token}: {what}", std::process::id()));
    let under = set(UNDER);
    let mut held = Vec::new();
    for (at, name) in under.split(' ').enumerate() {
        let file = OpenOptions::new().read(true).append(true).create(true).open(place.join(name)).unwrap();
        let how = if shared { FlockArg::LockSharedNonblock } else { FlockArg::LockExclusiveNonblock };
        let mut file = match Flock::lock(file, how) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return wrong(format!("another process is inside {name}")),
            Err((_, errno)) => panic!("{errno}"),
        };
        // The token is that of the first.
        if at == 0 {
            let mut tokens = String::new();
            file.read_to_string(&mut tokens).unwrap();
            let last: u64 = tokens.lines().last().map_or(0, |line| line.parse().unwrap());
            if token <= last {
                wrong(format!("the last of {name} was {last}"));
            }
            if !shared {
                file.write_all(format!("{token}\n").as_bytes()).unwrap();
            }
        }
        held.push(file);
    }
    append(&place.join("grants"), &format!("{under} {token}"));
    let random = u128::from_le_bytes(std::fs::read("/proc/sys/kernel/random/uuid").unwrap()[..16].try_into().unwrap());
    let mut dice = Dice(random as u64 | 1);
    let is_long = !set(LONG).is_empty() && dice.roll(30) == 0;
    let lasts = if is_long { LEASE + SECOND } else { MILLISECOND * dice.roll(20) as u32 };
    let begun = Instant::now();
    while begun.elapsed() < lasts && !(is_long && place.join("over").exists()) {
        std::thread::sleep(5 * MILLISECOND);
    }
}

fn append(file: &Path, line: &str) {
    OpenOptions::new().append(true).create(true).open(file).unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}
