//! The owner of a grant, and the identity of processes.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text::{self, is_default};

/// Owner of a grant: the processes that the grant depends on, and details about them for display.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub domain: PidDomain,
    /// Processes of the owner; the first live one is the effective owner. Empty if the grant depends on no process.
    pub processes: Vec<ProcessId>,
    /// Process of `run` that waits for the owner's end, then releases the lock, and reports a lost lock.
    #[serde(default, skip_serializing_if = "is_default")]
    pub supervisor: Option<ProcessId>,
    /// csalock does not end the command when the lock is lost (`--on-lost warn`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub outlives_lock: bool,
    /// Session of the script that called `lock`. A process that the script left behind is still in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub session: Option<i32>,
    #[serde(with = "text")]
    pub host: String,
    pub uid: u32,
    /// Command that runs, or that made the request.
    #[serde(with = "text")]
    pub command: Vec<u8>,
    #[serde(default, with = "text", skip_serializing_if = "is_default")]
    pub label: Option<Vec<u8>>,
}

/// Domain in which pids are unique: one boot of one kernel and one pid namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PidDomain {
    /// Machine, the same for all its boots: machine-id(5) or, if that is missing, the host name.
    #[serde(with = "text")]
    pub machine: String,
    /// Boot id from /proc/sys/kernel/random/boot_id.
    #[serde(with = "text")]
    pub boot: String,
    /// Pid and time namespace; pids and start times are comparable only within one namespace.
    #[serde(with = "text")]
    pub pids: String,
    /// Network namespace; csalock can wake a waiter only within one namespace.
    pub net: u64,
}

impl PidDomain {
    /// Pids and start times have the same meaning in both domains.
    pub fn shares_pids_with(&self, other: &PidDomain) -> bool {
        self.boot == other.boot && self.pids == other.pids
    }
}

/// Part of a [`PidDomain`] that pids and start times depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PidSpace {
    pub boot: String,
    pub pids: String,
}

impl PidSpace {
    pub fn contains(&self, domain: &PidDomain) -> bool {
        self.boot == domain.boot && self.pids == domain.pids
    }
}

impl From<PidDomain> for PidSpace {
    fn from(domain: PidDomain) -> PidSpace {
        PidSpace { boot: domain.boot, pids: domain.pids }
    }
}

/// Identity of a process, which differs from that of a later process with the same pid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    pub pid: i32,
    /// Start time in clock ticks since boot, field 22 of proc_pid_stat(5).
    pub start: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.pid, self.start)
    }
}

impl Serialize for ProcessId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'a> Deserialize<'a> for ProcessId {
    fn deserialize<D: Deserializer<'a>>(from: D) -> Result<ProcessId, D::Error> {
        text::parsed(from, |text| {
            let (pid, start) = text.split_once(':')?;
            let (pid, start) = (pid.parse().ok()?, start.parse().ok()?);
            // The kernel takes 0 and negative numbers for groups of processes.
            (pid > 0).then_some(ProcessId { pid, start })
        })
    }
}
