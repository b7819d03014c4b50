//! What tests of outages share: servers of any kind that go away and come back, callers that note when they live, and
//! callers that see no processes but their own.

use std::time::Duration;

use crate::etcd::{Cluster, Place, Setup};
use crate::sandbox::{ALONE, Network, Sandbox, has_namespaces};
use crate::{postgres, ssh};

/// Short, but long enough for a machine that has other things to do.
pub(crate) const LEASE: &str = "5s";
pub(crate) const LEASE_SECONDS: f64 = 5.0;

/// The longest time in which a busy machine starts a program and sees its end.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// The message of a command that was ended because of its lease.
pub(crate) const ENDED: &str = "csalock: the command was ended before the lease of lock x was over: it could not be \
                                renewed; see `csalock doctor`\n";

/// A script that notes CLOCK_BOOTTIME in the file `next`.
pub(crate) const NEXT: &str = "read up rest < /proc/uptime; echo $up > new; mv new next";

/// A script that notes it in `alive` again and again, and that nothing but SIGKILL ends before `over` is there.
pub(crate) const ALIVE: &str = "trap '' TERM; while [ ! -e over ]; do read up rest < /proc/uptime; \
                                echo $up > new.alive; mv new.alive alive; sleep 0.02; done";

pub(crate) fn uptime() -> f64 {
    std::fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap()
}

pub(crate) fn has_noted(sandbox: &Sandbox, file: &str) -> bool {
    sandbox.path(format!("files/{file}")).exists()
}

#[track_caller]
pub(crate) fn noted(sandbox: &Sandbox, file: &str) -> f64 {
    let text = sandbox.read(&format!("files/{file}"));
    text.trim().parse().unwrap_or_else(|_| panic!("{file}: {text:?}"))
}

/// The words before a command line that hide all other processes, as on another host: a caller that sees a live owner
/// does not evict it. `None`: only root can hide them.
pub(crate) fn as_on_another_host() -> Option<Vec<String>> {
    has_namespaces("another pid namespace").then(|| ALONE.map(str::to_string).to_vec())
}

/// The arguments of etcd's own defaults, for elections that happen by chance would prolong leases.
pub(crate) fn calm() -> Vec<&'static str> {
    vec!["--heartbeat-interval=100", "--election-timeout=1000"]
}

/// The servers of a store.
pub(crate) enum Servers {
    Etcd(Cluster),
    Postgres(postgres::Server),
    Ssh(ssh::Server),
}

impl Servers {
    /// One etcd on each of these hosts of a network, or on this host without any.
    pub(crate) fn etcd(network: Option<&Network>, hosts: &[usize]) -> Option<Servers> {
        let places = network.iter().flat_map(|network| hosts.iter().map(|host| place(network, *host))).collect();
        let reach = network.map(Network::on_the_switch).unwrap_or_default();
        let setup = Setup { members: hosts.len(), places, reach, arguments: calm(), ..Setup::default() };
        Cluster::start(setup).map(Servers::Etcd)
    }

    /// A sandbox with a store there.
    pub(crate) fn sandbox(&self) -> Sandbox {
        match self {
            Servers::Etcd(cluster) => Sandbox::at(cluster),
            Servers::Postgres(server) => Sandbox::in_database(&server.url("")),
            Servers::Ssh(server) => Sandbox::over_ssh(server),
        }
    }

    pub(crate) fn count(&self) -> usize {
        if let Servers::Etcd(cluster) = self { cluster.size() } else { 1 }
    }

    pub(crate) fn kill(&self, server: usize) {
        match self {
            Servers::Etcd(cluster) => cluster.kill(server),
            Servers::Postgres(server) => server.kill(),
            Servers::Ssh(sshd) => sshd.kill_all(),
        }
    }

    pub(crate) fn restart(&self, server: usize) {
        match self {
            Servers::Etcd(cluster) => cluster.restart(server),
            Servers::Postgres(server) => server.restart(),
            Servers::Ssh(sshd) => sshd.restart(),
        }
    }

    pub(crate) fn stop(&self, server: usize, stands: bool) {
        match self {
            Servers::Etcd(cluster) => cluster.stop(server, stands),
            Servers::Postgres(server) => server.stop(stands),
            Servers::Ssh(sshd) => sshd.stop(stands),
        }
    }

    /// Waits until the servers have a majority again.
    pub(crate) fn await_health(&self) {
        if let Servers::Etcd(cluster) = self {
            cluster.await_health();
        }
    }
}

pub(crate) fn place(network: &Network, host: usize) -> Place {
    Place { address: network.address(host), enter: network.on(host) }
}
