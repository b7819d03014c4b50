//! The owner of a grant, and the identity of processes.

/// Owner of a grant: the processes that the grant depends on, and details about them for display.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct Owner {
    /// Domain that the processes run in.
    pub domain: PidDomain,
    /// Processes of the owner; the first live one is the effective owner. Empty if the grant depends on no process.
    pub processes: Vec<ProcessId>,
    /// Process that waits for the owner's end, then releases the lock, and reports a lost lock. Only `run-with-lock`
    /// has a supervisor.
    pub supervisor: Option<ProcessId>,
    /// Host name, for display.
    pub host: String,
    /// Numeric user id.
    pub uid: u32,
    /// Command that runs, or that made the request.
    pub command: Vec<u8>,
    /// Text of `--label`.
    pub label: Option<Vec<u8>>,
}

/// Domain in which pids are unique: one boot of one kernel and one pid namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct PidDomain {
    /// Machine, the same for all its boots: machine-id(5) or, if that is missing, the host name.
    pub machine: String,
    /// Boot id from /proc/sys/kernel/random/boot_id.
    pub boot: String,
    /// Pid and time namespace; pids and start times are comparable only within one namespace.
    pub pids: String,
    /// Network namespace; csalock can wake a waiter only within one namespace.
    pub net: u64,
}

impl PidDomain {
    /// Returns true if pids and start times have the same meaning in both domains.
    pub fn shares_pids_with(&self, other: &PidDomain) -> bool {
        self.boot == other.boot && self.pids == other.pids
    }
}

/// Identity of a process, which differs from that of a later process with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(debug_assertions, derive(serde::Serialize, serde::Deserialize))]
pub struct ProcessId {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot, field 22 of proc_pid_stat(5).
    pub start: u64,
}
