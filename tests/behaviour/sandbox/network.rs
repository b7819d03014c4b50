//! Virtual hosts: network namespaces, each with a cable to one switch, that can be cut. Only root can create them.

use std::process::{Child, Command};

use super::{has, has_namespaces, skip, wait_until};

/// The words that run a program which sees no processes but its own. Process 1 of a namespace has special rules, so a shell
/// takes that place.
pub(crate) const ALONE: [&str; 8] =
    ["unshare", "-pf", "--kill-child", "--mount-proc", "dash", "-c", "\"$@\"; exit $?", "dash"];

/// Some hosts and their switch. They go away with the test.
pub(crate) struct Network {
    switch: Namespace,
    hosts: Vec<Namespace>,
    /// The files with the boot ids and machine ids of the hosts.
    identities: tempfile::TempDir,
}

/// A process that keeps a network namespace.
struct Namespace(Child);

impl Network {
    /// Returns `None` and skips the test where that is not possible.
    pub(crate) fn new(hosts: usize) -> Option<Network> {
        let tools = ["ip", "nsenter", "unshare", "setpriv"];
        if !has_namespaces("a network of one's own") || !tools.into_iter().all(has) {
            return None;
        }
        let identities = tempfile::tempdir().unwrap();
        // They are written once: a process that reads a file while it is written anew finds it empty.
        for host in 0..hosts {
            let write = |name: &str, text: String| std::fs::write(identities.path().join(name), text).unwrap();
            write(&format!("boot{host}"), format!("{host:08}-0000-4000-8000-000000000000\n"));
            write(&format!("machine{host}"), format!("{host:032}\n"));
        }
        let network = Network { switch: Namespace::new()?, hosts: Vec::new(), identities };
        network.switch.run("echo 1 > /proc/sys/net/ipv4/ip_forward");
        (0..hosts).try_fold(network, |mut network, number| {
            let host = Namespace::new()?;
            let (cable, pid) = (format!("cable{number}"), host.0.id());
            network.switch.run(&format!(
                "ip link add {cable} type veth peer name plug netns {pid}
                 ip address add 10.77.{number}.1/24 dev {cable}; ip link set {cable} up"
            ));
            host.run(&format!(
                "ip address add 10.77.{number}.2/24 dev plug; ip link set plug up
                 ip route add default via 10.77.{number}.1"
            ));
            network.hosts.push(host);
            Some(network)
        })
    }

    pub(crate) fn address(&self, host: usize) -> String {
        format!("10.77.{host}.2")
    }

    /// An address that a host sends to, and from which nothing ever comes back.
    pub(crate) fn abyss(&self, host: usize) -> String {
        let address = format!("10.77.{host}.99");
        self.hosts[host].run(&format!("ip neighbour replace {address} lladdr 02:00:00:00:00:99 dev plug"));
        address
    }

    /// The words that run a program on a host.
    pub(crate) fn on(&self, host: usize) -> Vec<String> {
        self.hosts[host].enter()
    }

    /// The words that run a program there as on a machine of its own: it sees no processes but its own, and the boot id and
    /// the machine id are those of the host. Other hosts cannot know whether its processes live.
    pub(crate) fn on_a_machine(&self, host: usize) -> Vec<String> {
        let [boot, machine] = ["boot", "machine"].map(|name| self.identities.path().join(format!("{name}{host}")));
        let [boot, machine] = [boot.display(), machine.display()];
        let identity = format!(
            "mount --bind {boot} /proc/sys/kernel/random/boot_id
             [ ! -e /etc/machine-id ] || mount --bind {machine} /etc/machine-id
             \"$@\"; exit $?"
        );
        self.on(host).into_iter().chain(ALONE.map(|word| word.replace(ALONE[6], &identity))).collect()
    }

    /// The words that run a program where all hosts are reached whose cables are not cut.
    pub(crate) fn on_the_switch(&self) -> Vec<String> {
        self.switch.enter()
    }

    /// Cuts a host's cable, or mends it.
    pub(crate) fn cut(&self, host: usize, is_cut: bool) {
        self.switch.run(&format!("ip link set cable{host} {}", if is_cut { "down" } else { "up" }));
    }
}

impl Namespace {
    fn new() -> Option<Namespace> {
        let words = ["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"];
        let namespace = Namespace(Command::new("setpriv").args(words).spawn().unwrap());
        let of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        // Without permission it ends at once.
        wait_until("there is a network namespace", || of(namespace.0.id()) != of(std::process::id()));
        if of(namespace.0.id()).is_none() {
            skip("a network of one's own", "no network namespace can be made here");
            return None;
        }
        namespace.run("ip link set lo up");
        Some(namespace)
    }

    fn enter(&self) -> Vec<String> {
        ["nsenter", "-n", "-t", &self.0.id().to_string()].map(str::to_string).to_vec()
    }

    #[track_caller]
    fn run(&self, script: &str) {
        let words = self.enter();
        let output = Command::new(&words[0]).args(&words[1..]).args(["sh", "-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
