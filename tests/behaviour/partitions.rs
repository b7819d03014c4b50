//! A server of PostgreSQL or an sshd on a host of its own that is away for a while, and hosts that are cut off: in network
//! namespaces, and with processes that no other host sees.

use crate::etcd::Place;
use crate::etcd::fair::fair;
use crate::extent::{Extent, extent, turn};
use crate::hosts;
use crate::sandbox::{Call, Job, Network, Sandbox, has_namespaces, wait_until};
use crate::{postgres, ssh};

/// Short, but long enough for a machine that has other things to do.
const LEASE: f64 = 5.0;

/// The longest time in which a busy machine starts a program and sees its end.
const BUSY: std::time::Duration = std::time::Duration::from_secs(5);

const HOLDER: usize = 0;
const WAITER: usize = 1;
const SERVER: usize = 2;

/// Notes the uptime again and again, and ends with its lease only.
const ALIVE: &str =
    "trap '' TERM; while [ ! -e over ]; do read up rest < /proc/uptime; echo $up > new; mv new alive; sleep 0.02; done";
const NEXT: &str = "read up rest < /proc/uptime; echo $up > new; mv new next";

enum Server {
    Postgres(postgres::Server),
    Ssh(ssh::Server),
}

impl Server {
    fn kill(&self) {
        match self {
            Server::Postgres(server) => server.kill(),
            Server::Ssh(server) => server.kill_all(),
        }
    }

    fn restart(&self) {
        match self {
            Server::Postgres(server) => server.restart(),
            Server::Ssh(server) => server.restart(),
        }
    }

    fn stop(&self, stands: bool) {
        match self {
            Server::Postgres(server) => server.stop(stands),
            Server::Ssh(server) => server.stop(stands),
        }
    }
}

/// A host that holds, one that waits, and one with the store.
struct Hosts {
    server: Server,
    sandbox: Sandbox,
    network: Network,
}

impl Hosts {
    fn with_postgres() -> Option<Hosts> {
        let network = Network::new(3)?;
        let place = Place { address: network.address(SERVER), enter: network.on(SERVER) };
        let server = postgres::Server::start_at(place, &[])?;
        Some(Hosts { sandbox: Sandbox::in_database(&server.url("")), server: Server::Postgres(server), network })
    }

    fn with_ssh() -> Option<Hosts> {
        let network = Network::new(3)?;
        let place = Place { address: network.address(SERVER), enter: network.on(SERVER) };
        let server = ssh::Server::start_at(place, "")?;
        Some(Hosts { sandbox: Sandbox::over_ssh(&server), server: Server::Ssh(server), network })
    }

    fn on(&self, host: usize, words: &[&str]) -> Call<'_> {
        self.sandbox.csalock_by(&self.network.on_a_machine(host), words)
    }

    /// Starts a holder with a lease of so many seconds, and a waiter.
    fn begin(&self, lease: f64) -> (Job, Job) {
        let lease = format!("{lease}s");
        ["alive", "next", "over"].iter().for_each(|file| drop(std::fs::remove_file(self.file(file))));
        let holder = self.on(HOLDER, &["run", "x", "dash", "-c", ALIVE]).env("CSALOCK_LEASE", &lease).spawn();
        wait_until("the holder holds", || self.file("alive").exists());
        let waiter =
            self.on(WAITER, &["run", "-w", "inf", "x", "dash", "-c", NEXT]).env("CSALOCK_LEASE", &lease).spawn();
        wait_until("the waiter waits", || self.sight()["waiters"].as_array().unwrap().len() == 1);
        (holder, waiter)
    }

    fn sight(&self) -> serde_json::Value {
        let done = self.on(WAITER, &["status", "--json", "x"]).capture();
        assert!(matches!(done.code, Some(0 | 81)), "{done:?}");
        serde_json::from_str::<serde_json::Value>(&done.stdout).unwrap()[0].clone()
    }

    fn await_renewal(&self) {
        let renewed = || self.sight()["holders"][0]["renewed_until"].to_string();
        let before = renewed();
        wait_until("the lease is renewed", || renewed() != before);
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.sandbox.path(format!("files/{name}"))
    }

    fn noted(&self, file: &str) -> f64 {
        self.sandbox.read(&format!("files/{file}")).trim().parse().unwrap()
    }

    /// The command must be ended because of its lease, which begins to run out `since` this time, before the waiter has
    /// its turn.
    fn assert_ended_in_time(&self, mut holder: Job, since: f64) {
        wait_until("the command is ended", || holder.has_ended());
        let done = holder.wait();
        assert_eq!(done.code, Some(85), "{done:?}");
        assert!(
            done.stderr.contains("was ended before the lease of lock x was over: it could not be renewed"),
            "{done:?}"
        );
        let last = self.noted("alive");
        assert!(since < last && last < since + LEASE, "it lived for {} s", last - since);
    }

    fn assert_had_its_turn(&self, mut waiter: Job) {
        wait_until("the waiter has its turn", || waiter.has_ended());
        waiter.wait().exits(0);
        assert!(self.noted("alive") <= self.noted("next"), "two holders at once");
        self.on(HOLDER, &["run", "-q", "-w", "10s", "x", "true"]).run();
    }
}

fn uptime() -> f64 {
    std::fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// The server stands still and crashes for less than a lease. Then the cable of the next holder is cut.
fn short_outages_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time(hosts: &Hosts) {
    let (mut holder, waiter) = hosts.begin(60.0);
    hosts.server.stop(true);
    // A caller that does not wait is told.
    hosts.on(WAITER, &["run", "-n", "y", "true"]).capture().exits(69);
    hosts.server.stop(false);
    hosts.server.kill();
    let late = hosts.on(WAITER, &["run", "-w", "inf", "y", "true"]).spawn();
    hosts.server.restart();
    assert_eq!(late.wait().code, Some(0));
    assert!(!holder.has_ended() && !hosts.file("next").exists());
    hosts.sandbox.file("files/over", "");
    holder.wait().succeeds();
    hosts.assert_had_its_turn(waiter);

    let (holder, waiter) = hosts.begin(LEASE);
    let cut = uptime();
    hosts.network.cut(HOLDER, true);
    wait_until("the waiter has its turn", || hosts.file("next").exists());
    let next = hosts.noted("next");
    assert!(next < cut + LEASE + 2.0 + fair(BUSY).as_secs_f64(), "{} s after the cut", next - cut);
    hosts.assert_ended_in_time(holder, cut);
    hosts.network.cut(HOLDER, false);
    hosts.assert_had_its_turn(waiter);
}

#[test]
fn short_outages_of_postgres_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time() {
    Hosts::with_postgres().iter().for_each(short_outages_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time);
}

#[test]
fn short_outages_of_sshd_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time() {
    Hosts::with_ssh().iter().for_each(short_outages_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time);
}

/// A way in which the server is away for longer than a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    Killed,
    Stopped,
    CutOff,
}

/// A quick run tries one of the ways.
fn a_command_is_ended_before_its_lease_when_the_server_is_away(start: fn() -> Option<Hosts>) {
    let ways = [Away::Killed, Away::Stopped, Away::CutOff];
    let chosen = ways[turn() % ways.len()];
    for way in ways.into_iter().filter(|way| *way == chosen || extent() > Extent::Quick) {
        let Some(hosts) = start() else { return };
        let Hosts { server, network, .. } = &hosts;
        println!("{way:?}");
        let (holder, waiter) = hosts.begin(LEASE);
        hosts.await_renewal();
        let gone = uptime();
        match way {
            Away::Killed => server.kill(),
            Away::Stopped => server.stop(true),
            Away::CutOff => network.cut(SERVER, true),
        }
        hosts.assert_ended_in_time(holder, gone);
        assert!(!hosts.file("next").exists());
        match way {
            Away::Killed => server.restart(),
            Away::Stopped => server.stop(false),
            Away::CutOff => network.cut(SERVER, false),
        }
        hosts.assert_had_its_turn(waiter);
    }
}

#[test]
fn a_command_is_ended_before_its_lease_when_postgres_is_away() {
    a_command_is_ended_before_its_lease_when_the_server_is_away(Hosts::with_postgres);
}

#[test]
fn a_command_is_ended_before_its_lease_when_sshd_is_away() {
    a_command_is_ended_before_its_lease_when_the_server_is_away(Hosts::with_ssh);
}

#[test]
fn a_reboot_of_the_ssh_host_ends_the_locks_of_its_processes_with_their_leases_and_no_others() {
    require!(has_namespaces("hosts"));
    let own = tempfile::tempdir().unwrap();
    let place = Place { address: "127.0.0.1".into(), enter: hosts::enter(own.path(), 1) };
    let Some(server) = ssh::Server::start_at(place, "") else { return };
    let sandbox = Sandbox::over_ssh(&server);
    let remote = sandbox.holder("remote");
    let port = server.url("").rsplit(':').next().unwrap().to_string();
    let store = format!("CSALOCK_STORE=dir:{} CSALOCK_LEASE=3s", sandbox.path("store").display());
    let words = ["-p", &port, "127.0.0.1", &format!("{store} exec csalock run local sleep 1000")];
    let _local = sandbox.call("ssh", words).spawn();
    wait_until("the lock of that host is held", || sandbox.state("local") == "held");
    server.kill();
    std::fs::write(own.path().join("boot_id"), "00000000-0000-4000-8000-000000000009\n").unwrap();
    server.restart();
    sandbox.csalock(["run", "-q", "-w", "50s", "local", "true"]).run();
    assert_eq!(sandbox.csalock(["run", "-n", "remote", "true"]).capture().code, Some(75));
    remote.wait().succeeds();
}
