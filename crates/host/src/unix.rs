//! The real host: Linux clocks, /proc and pidfds.
//!
//! **Liveness.** Only a process that is certainly gone is dead. In the same boot and pid namespace, kill(2) with signal
//! 0 says whether the pid is in use, even if `hidepid` hides the pid in /proc. The start time says whether the
//! process is the same. A process of another boot of this machine is dead, unless it was in a container: containers may
//! have boot ids of their own. The answer is unknown for another machine, another pid namespace, a /proc that does not
//! answer, or a /proc of another pid namespace (`nsenter -p`).
//!
//! On a store that other hosts may share, no process is certainly dead. Cloned machines have one machine-id and one
//! host name, and machines resumed from one snapshot share a boot id too. There a process that is not here is missing,
//! and a process of another boot is unknown.

use std::fs;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::OnceLock;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::geteuid;

use super::file_locks::{flock_takers, has_descriptor};
use super::interface::{Host, Scope, WakeAddress, WakeSet};
use super::machine::{
    boot_id, boottime_offset, has_boot_id_of_kernel, is_in_first_time_namespace, is_this_machine, machine, moved,
    namespace, now, pid_namespace_of,
};
use super::processes::{self, FirstSight, is_absent, is_process_frozen, is_released_by, liveness_of, no_proc};
use super::wake_set::{self, LinuxWakeSet};
use super::{callers, known};
use lock::{DescriptorLock, Error, ErrorKind, Grant, HandleHash, Liveness, PidDomain, PidSpace, ProcessId, Result};

/// Time after which a supervisor that has not released the locks of its ended command never will. Its process may hang.
const TO_RELEASE: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub struct Unix {
    space: OnceLock<PidSpace>,
    pid_namespace: OnceLock<u64>,
    net: OnceLock<u64>,
    boottime_offset: OnceLock<i64>,
    machine: OnceLock<String>,
    name: OnceLock<String>,
    released: FirstSight,
}

impl Unix {
    pub fn new() -> Unix {
        Unix::default()
    }

    fn known_space(&self) -> Result<&PidSpace> {
        known(&self.space, || {
            Ok(PidSpace { boot: boot_id()?, pids: format!("{}.{}", self.pid_namespace()?, namespace("time")?) })
        })
    }

    fn known_machine(&self) -> Result<&String> {
        known(&self.machine, || machine(&self.name()))
    }

    fn pid_namespace(&self) -> Result<u64> {
        known(&self.pid_namespace, || namespace("pid")).copied()
    }

    /// Returns true if the boot id of a process that ran on this machine is certainly that of an earlier boot. A container
    /// may have a boot id of its own, so neither a process of a container nor a container with such an id proves that.
    fn is_of_earlier_boot(&self, domain: &PidDomain) -> bool {
        let is_same_machine = self.known_machine().is_ok_and(|machine| is_this_machine(machine, &domain.machine));
        is_same_machine && pid_namespace_of(&domain.pids) == Some(first_pid_namespace()) && has_boot_id_of_kernel()
    }
}

impl Host for Unix {
    fn boottime(&self) -> Duration {
        now(ClockId::CLOCK_BOOTTIME)
    }

    fn wall(&self) -> Duration {
        moved(now(ClockId::CLOCK_REALTIME), 0)
    }

    fn domain(&self) -> Result<PidDomain> {
        let PidSpace { boot, pids } = self.pid_space()?;
        let net = *known(&self.net, || namespace("net"))?;
        Ok(PidDomain { machine: self.known_machine()?.clone(), boot, pids, net })
    }

    fn pid_space(&self) -> Result<PidSpace> {
        self.known_space().cloned()
    }

    fn is_in_container(&self) -> bool {
        let is_in_other_time = || self.known_space().is_ok_and(|here| !is_in_first_time_namespace(&here.pids));
        self.pid_namespace().is_ok_and(|number| number != first_pid_namespace()) || is_in_other_time()
    }

    fn boottime_offset(&self) -> Result<i64> {
        if is_in_first_time_namespace(&self.known_space()?.pids) {
            return Ok(0);
        }
        known(&self.boottime_offset, boottime_offset).copied()
    }

    fn name(&self) -> String {
        let read = || nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.name.get_or_init(read).clone()
    }

    fn uid(&self) -> u32 {
        geteuid().as_raw()
    }

    fn this_process(&self) -> Result<ProcessId> {
        Ok(callers::read_own()?.id())
    }

    fn process(&self, pid: i32) -> Result<Option<ProcessId>> {
        let stat = processes::read(pid).map_err(|error| no_proc(&error))?;
        Ok(stat.filter(|stat| !stat.is_zombie()).map(|stat| ProcessId { pid, start: stat.start }))
    }

    fn blocked_callers(&self, called: i32, some_time_later: bool) -> Vec<ProcessId> {
        callers::blocked_callers(called, some_time_later)
    }

    fn may_be_called_by(&self, called: i32, processes: &[ProcessId]) -> bool {
        callers::may_be_called_by(called, processes)
    }

    fn liveness(&self, domain: &PidDomain, process: &ProcessId, reach: Scope) -> Liveness {
        let Ok(here) = self.known_space() else { return Liveness::Unknown };
        let is_this_boot = here.boot == domain.boot;
        let seen = if here.contains(domain) {
            liveness_of(process)
        } else if is_this_boot && pid_namespace_of(&here.pids) == pid_namespace_of(&domain.pids) {
            // The pid says that there is no such process, but start times differ between time namespaces.
            if is_absent(process) { Liveness::Dead } else { Liveness::Unknown }
        } else if !is_this_boot && self.is_of_earlier_boot(domain) {
            Liveness::Dead
        } else {
            Liveness::Unknown
        };
        match (seen, reach) {
            (Liveness::Dead, Scope::Shared) if is_this_boot => Liveness::Missing,
            (Liveness::Dead, Scope::Shared) => Liveness::Unknown,
            (seen, _) => seen,
        }
    }

    fn descriptor(&self, domain: &PidDomain, lock: &DescriptorLock, reach: Scope) -> Liveness {
        let Ok(here) = self.known_space() else { return Liveness::Unknown };
        if here.boot != domain.boot {
            let is_over = reach == Scope::Local && self.is_of_earlier_boot(domain);
            return if is_over { Liveness::Dead } else { Liveness::Unknown };
        }
        let Some(takers) = flock_takers(&lock.place) else { return Liveness::Unknown };
        if here.contains(domain) && takers.contains(&lock.taker) {
            return Liveness::Alive;
        }
        // Outside of the first pid namespace the kernel does not list the locks whose takers have ended, and a copy of this
        // machine has locks of its own. A taker in another pid namespace has another number here.
        let sees_all = reach == Scope::Local && !self.is_in_container();
        let is_known = here.contains(domain) || takers.is_empty();
        if sees_all && is_known { Liveness::Dead } else { Liveness::Unknown }
    }

    fn descriptor_of(&self, process: &ProcessId, lock: &DescriptorLock) -> Liveness {
        match has_descriptor(process.pid, lock) {
            Ok(true) => Liveness::Alive,
            Ok(false) => Liveness::Dead,
            Err(_) => Liveness::Unknown,
        }
    }

    fn is_released_by(&self, supervisor: &ProcessId, domain: &PidDomain, process: &ProcessId) -> bool {
        self.known_space().is_ok_and(|here| here.contains(domain))
            && is_released_by(process, supervisor)
            && self.released.is_within(process, self.boottime(), TO_RELEASE)
    }

    fn is_frozen(&self, domain: &PidDomain, process: &ProcessId) -> bool {
        self.known_space().is_ok_and(|here| here.contains(domain)) && is_process_frozen(process)
    }

    fn is_abandoned(&self, Grant { owner, proof, .. }: &Grant) -> bool {
        let is_here = self.known_space().is_ok_and(|here| here.contains(&owner.domain));
        let is_stopped = |command: &ProcessId| is_here && liveness_of(command) == Liveness::Stopped;
        let of = owner.supervisor.filter(|_| !owner.outlives_lock && owner.processes.first().is_some_and(is_stopped));
        of.is_some_and(|supervisor| liveness_of(&supervisor) == Liveness::Dead)
            && self.domain().is_ok_and(|here| here.net == owner.domain.net)
            // Supervisor and keeper have one socket, which lasts as long as one of them.
            && !self.wake(WakeAddress::Supervisor(proof))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn sleep(&self, span: Duration) {
        std::thread::sleep(span);
    }

    fn is_interrupted(&self) -> bool {
        crate::signals::is_pending()
    }

    fn leave_witness(&self, key: &str, text: &[u8]) {
        // Without a witness file the leases decide.
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(witness(key));
        let _ = file.and_then(|mut file| file.write_all(text));
    }

    fn has_witness(&self, key: &str, uid: u32) -> bool {
        // A file of another user is not a witness.
        fs::symlink_metadata(witness(key)).is_ok_and(|found| found.is_file() && found.uid() == uid)
    }

    fn remove_witness(&self, key: &str) {
        let _ = fs::remove_file(witness(key));
    }

    fn remove_old_witnesses(&self, age: Duration) {
        // Both times are the kernel's, even where a test moves its clocks: the witnesses of other tests are here, too.
        let time = now(ClockId::CLOCK_REALTIME);
        let is_old = |found: &fs::Metadata| Duration::from_secs(found.mtime().max(0) as u64) + age < time;
        // A container may share the directory, and sees no process of its host.
        let sees_all = !self.is_in_container();
        for key in witnesses().filter(|key| self.has_witness(key, self.uid())) {
            if (sees_all && is_of_dead_process(&key))
                || fs::symlink_metadata(witness(&key)).is_ok_and(|found| is_old(&found))
            {
                self.remove_witness(&key);
            }
        }
    }

    fn random(&self) -> Result<[u8; 16]> {
        let mut random = random_bytes::<16>()
            .map_err(|error| Error::new(ErrorKind::System, format!("no random numbers: {error}"), "try again"))?;
        // Machines resumed from one snapshot may draw the same numbers, but hardly in the same nanosecond.
        let times = [self.wall(), self.boottime()].map(|time| (time.as_nanos() as u64).to_ne_bytes());
        random.iter_mut().zip(times.as_flattened()).for_each(|(byte, time)| *byte ^= time);
        Ok(random)
    }

    fn wake_set<'a>(&self, proof: &HandleHash, interrupt: Vec<BorrowedFd<'a>>) -> Result<Box<dyn WakeSet + 'a>> {
        Ok(Box::new(LinuxWakeSet::new(proof, interrupt)))
    }

    fn wake(&self, listener: WakeAddress<'_>) -> bool {
        wake_set::wake(listener)
    }

    fn give_way(&self) {
        let _ = nix::sched::sched_yield();
    }
}

/// Number that replaces the one of the first pid namespace, in builds for tests.
#[cfg(any(test, debug_assertions))]
pub static FIRST_PIDS: OnceLock<Option<u64>> = OnceLock::new();

/// Returns random bytes: at most 256 bytes, which getrandom(2) returns whole. A file in /dev, which a chroot may lack, is not needed.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()))?;
    Ok(bytes)
}

/// PID_NS_INIT_INO in linux/nsfs.h.
fn first_pid_namespace() -> u64 {
    let number = 0xEFFF_FFFC;
    #[cfg(any(test, debug_assertions))]
    let number = FIRST_PIDS.get().copied().flatten().unwrap_or(number);
    number
}

/// Directory in memory that every user may write to: shm_overview(7).
const MEMORY: &str = "/dev/shm";

const WITNESS: &str = "csalock-";

/// The key of the witness for a process begins with it.
fn is_of_dead_process(key: &str) -> bool {
    let mut fields = key.split(':');
    let number = fields.next().and_then(|pid| pid.parse().ok()).zip(fields.next().and_then(|start| start.parse().ok()));
    number.is_some_and(|(pid, start)| processes::liveness_of(&ProcessId { pid, start }) == Liveness::Dead)
}

/// Texts of this user's witnesses for a process.
pub fn texts_of_witnesses(process: &ProcessId) -> Vec<Vec<u8>> {
    let is_own = |key: &String| Unix::new().has_witness(key, geteuid().as_raw());
    let keys = witnesses().filter(|key| key.starts_with(&format!("{process}:")) && is_own(key));
    keys.filter_map(|key| fs::read(witness(&key)).ok()).filter(|text| !text.is_empty()).collect()
}

/// Keys of all users' witnesses.
fn witnesses() -> impl Iterator<Item = String> {
    let names = fs::read_dir(MEMORY).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| Some(name.to_str()?.strip_prefix(WITNESS)?.to_string()))
}

fn witness(key: &str) -> String {
    format!("{MEMORY}/{WITNESS}{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_another_start_time_and_another_boot() {
        let host = Unix::new();
        let (domain, this) = (host.domain().unwrap(), host.this_process().unwrap());
        let liveness = |home: &PidDomain, process: &ProcessId| host.liveness(home, process, Scope::Local);
        assert_eq!(liveness(&domain, &this), Liveness::Alive);
        assert_eq!(liveness(&domain, &ProcessId { start: this.start + 1, ..this }), Liveness::Dead);
        assert_eq!(liveness(&domain, &ProcessId { pid: 4_000_000, start: 1 }), Liveness::Dead);
        assert_eq!(liveness(&PidDomain { pids: "other".into(), ..domain.clone() }, &this), Liveness::Unknown);
        let gone = ProcessId { pid: 4_000_000, start: 1 };
        let earlier = PidDomain { boot: "other".into(), pids: "4026531836.0".into(), ..domain.clone() };
        assert_eq!(liveness(&earlier, &gone), Liveness::Dead);
        for unclear in [
            PidDomain { machine: "0@other".into(), ..earlier.clone() },
            PidDomain { pids: "4026532000.0".into(), ..earlier },
        ] {
            assert_eq!(liveness(&unclear, &gone), Liveness::Unknown, "{unclear:?}");
        }
    }

    #[test]
    fn in_another_time_namespace_only_a_pid_that_is_not_there_is_dead() {
        let host = Unix::new();
        let (domain, this) = (host.domain().unwrap(), host.this_process().unwrap());
        let pids = format!("{}.1", domain.pids.split_once('.').unwrap().0);
        let elsewhere = PidDomain { pids, ..domain };
        let liveness = |process: &ProcessId, scope| host.liveness(&elsewhere, process, scope);
        assert_eq!(liveness(&ProcessId { start: 1, ..this }, Scope::Local), Liveness::Unknown);
        let gone = ProcessId { pid: 4_000_000, start: 1 };
        assert_eq!(
            [Scope::Local, Scope::Shared].map(|scope| liveness(&gone, scope)),
            [Liveness::Dead, Liveness::Missing]
        );
    }

    #[test]
    fn a_shared_store_never_proves_a_death_because_a_copy_of_the_machine_may_run() {
        let host = Unix::new();
        let (domain, this) = (host.domain().unwrap(), host.this_process().unwrap());
        let liveness = |home: &PidDomain, process: &ProcessId| host.liveness(home, process, Scope::Shared);
        assert_eq!(liveness(&domain, &this), Liveness::Alive);
        for gone in [ProcessId { start: this.start + 1, ..this }, ProcessId { pid: 4_000_000, start: 1 }] {
            assert_eq!(liveness(&domain, &gone), Liveness::Missing);
        }
        assert_eq!(liveness(&PidDomain { boot: "other".into(), ..domain.clone() }, &this), Liveness::Unknown);
    }
}
