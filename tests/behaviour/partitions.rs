//! Servers on a host of their own that are away for a while, and hosts that are cut off: in network namespaces, and with
//! processes that no other host sees.

use crate::etcd::Place;
use crate::etcd::fair::fair;
use crate::extent::{Extent, extent, turn};
use crate::hosts;
use crate::sandbox::{Call, Job, Network, Sandbox, has_namespaces, wait_until};
use crate::servers::{ALIVE, BUSY, ENDED, LEASE, LEASE_SECONDS, NEXT, Servers, has_noted, noted, place, uptime};
use crate::{postgres, ssh};

const HOLDER: usize = 0;
const WAITER: usize = 1;
const SERVER: usize = 2;

/// A host that holds, one that waits, and one with the store.
struct Hosts {
    server: Servers,
    sandbox: Sandbox,
    network: Network,
}

impl Hosts {
    fn with(start: impl FnOnce(&Network) -> Option<Servers>) -> Option<Hosts> {
        let network = Network::new(3)?;
        let server = start(&network)?;
        Some(Hosts { sandbox: server.sandbox(), server, network })
    }

    fn with_etcd() -> Option<Hosts> {
        Hosts::with(|network| Servers::etcd(Some(network), &[SERVER]))
    }

    fn with_postgres() -> Option<Hosts> {
        Hosts::with(|network| postgres::Server::start_at(place(network, SERVER), &[]).map(Servers::Postgres))
    }

    fn with_ssh() -> Option<Hosts> {
        Hosts::with(|network| ssh::Server::start_at(place(network, SERVER), "").map(Servers::Ssh))
    }

    fn on(&self, host: usize, words: &[&str]) -> Call<'_> {
        self.sandbox.csalock_by(&self.network.on_a_machine(host), words)
    }

    /// Starts a holder and a waiter with such a lease.
    fn begin(&self, lease: &str) -> (Job, Job) {
        for file in ["alive", "next", "over"] {
            let _ = std::fs::remove_file(self.sandbox.path(format!("files/{file}")));
        }
        let holder = self.on(HOLDER, &["run", "x", "dash", "-c", ALIVE]).env("CSALOCK_LEASE", lease).spawn();
        wait_until("the holder holds", || has_noted(&self.sandbox, "alive"));
        (holder, self.waiter(lease, NEXT))
    }

    fn waiter(&self, lease: &str, script: &str) -> Job {
        let words = ["run", "-w", "inf", "x", "dash", "-c", script];
        let waiter = self.on(WAITER, &words).env("CSALOCK_LEASE", lease).spawn();
        wait_until("the waiter waits", || self.sight()["waiters"].as_array().unwrap().len() == 1);
        waiter
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

    /// The command must be ended because of its lease, which begins to run out `since` this time, before the waiter has
    /// its turn.
    fn assert_ended_in_time(&self, mut holder: Job, since: f64) {
        wait_until("the command is ended", || holder.has_ended());
        holder.wait().says(85, ENDED);
        let last = noted(&self.sandbox, "alive");
        assert!(since < last && last < since + LEASE_SECONDS, "it lived for {} s", last - since);
    }

    fn assert_had_its_turn(&self, mut waiter: Job) {
        wait_until("the waiter has its turn", || waiter.has_ended());
        waiter.wait().exits(0);
        assert!(noted(&self.sandbox, "alive") <= noted(&self.sandbox, "next"), "two holders at once");
        self.on(HOLDER, &["run", "-q", "-w", "10s", "x", "true"]).run();
    }
}

/// The server stands still and crashes for less than a lease. Then the cable of the next holder is cut.
fn short_outages(hosts: &Hosts) {
    let (mut holder, waiter) = hosts.begin("60s");
    hosts.server.stop(0, true);
    // A caller that does not wait is told.
    hosts.on(WAITER, &["run", "-n", "y", "true"]).capture().exits(69);
    hosts.server.stop(0, false);
    hosts.server.kill(0);
    let late = hosts.on(WAITER, &["run", "-w", "inf", "y", "true"]).spawn();
    hosts.server.restart(0);
    late.wait().exits(0);
    assert!(!holder.has_ended() && !has_noted(&hosts.sandbox, "next"));
    hosts.sandbox.file("files/over", "");
    holder.wait().succeeds();
    hosts.assert_had_its_turn(waiter);

    let (holder, waiter) = hosts.begin(LEASE);
    let cut = uptime();
    hosts.network.cut(HOLDER, true);
    wait_until("the waiter has its turn", || has_noted(&hosts.sandbox, "next"));
    let next = noted(&hosts.sandbox, "next");
    assert!(next < cut + LEASE_SECONDS + 2.0 + fair(BUSY).as_secs_f64(), "{} s after the cut", next - cut);
    hosts.assert_ended_in_time(holder, cut);
    hosts.network.cut(HOLDER, false);
    hosts.assert_had_its_turn(waiter);
}

cases! {
    fn short_outages_of_etcd_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time() {
        Hosts::with_etcd().iter().for_each(short_outages)
    }
    fn short_outages_of_postgres_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time() {
        Hosts::with_postgres().iter().for_each(short_outages)
    }
    fn short_outages_of_sshd_cost_nothing_and_a_command_on_a_cut_off_host_ends_in_time() {
        Hosts::with_ssh().iter().for_each(short_outages)
    }
}

/// A way in which the server is away for longer than a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    Killed,
    Stopped,
    CutOff,
}

/// A quick run tries one of the ways.
fn a_longer_outage(start: fn() -> Option<Hosts>) {
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
            Away::Killed => server.kill(0),
            Away::Stopped => server.stop(0, true),
            Away::CutOff => network.cut(SERVER, true),
        }
        hosts.assert_ended_in_time(holder, gone);
        assert!(!has_noted(&hosts.sandbox, "next"));
        match way {
            Away::Killed => server.restart(0),
            Away::Stopped => server.stop(0, false),
            Away::CutOff => network.cut(SERVER, false),
        }
        hosts.assert_had_its_turn(waiter);
    }
}

cases! {
    fn a_command_is_ended_before_its_lease_when_etcd_is_away() {
        a_longer_outage(Hosts::with_etcd)
    }
    fn a_command_is_ended_before_its_lease_when_postgres_is_away() {
        a_longer_outage(Hosts::with_postgres)
    }
    fn a_command_is_ended_before_its_lease_when_sshd_is_away() {
        a_longer_outage(Hosts::with_ssh)
    }
}

#[test]
fn a_script_on_a_partitioned_host_loses_its_lock_and_is_told() {
    let Some(hosts) = Hosts::with_etcd() else { return };
    // It takes the lock, and then does what it is told, in a line each.
    let script = "csalock lock --json x; while read words; do csalock $words; echo $?; done";
    let words = [&hosts.network.on_a_machine(HOLDER)[..], &["dash", "-c", script].map(str::to_string)].concat();
    let mut holder = hosts.sandbox.call(&words[0], &words[1..]).env("CSALOCK_LEASE", LEASE).spawn();
    let taken: serde_json::Value = serde_json::from_str(&holder.lines(1)[0]).unwrap();
    let mut waiter = hosts.waiter(LEASE, &format!("{NEXT}; echo $CSALOCK_TOKEN; cat; :"));
    let cut = uptime();
    hosts.network.cut(HOLDER, true);
    let token: u64 = waiter.lines(1)[0].parse().unwrap();
    let next = noted(&hosts.sandbox, "next");
    assert!(next < cut + LEASE_SECONDS + 2.0 + BUSY.as_secs_f64(), "{} s after the cut", next - cut);
    assert!(token > taken["token"].as_u64().unwrap(), "{token} {taken}");
    // While it is alone, it cannot know.
    holder.tell("unlock x");
    assert_eq!(holder.lines(2)[1], "69");
    hosts.network.cut(HOLDER, false);
    for (at, words) in ["put x value", "renew --ttl 5s x", "unlock x"].into_iter().enumerate() {
        holder.tell(words);
        let code = &holder.lines(3 + at)[2 + at];
        assert!(["81", "82"].contains(&&code[..]), "{words}: {code} {:?}", holder.said());
    }
    waiter.wait().exits(0);
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
    sandbox.csalock(["run", "-n", "remote", "true"]).capture().exits(75);
    remote.wait().succeeds();
}
