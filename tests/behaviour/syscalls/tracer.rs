//! A tree of processes that runs from system call to system call, with one fault on the way.
//!
//! A point is a call of one of the processes, in the order of their start: each makes the same calls every time, as far
//! as it does not depend on the others. The command of `csalock run` is detached as soon as it is executed, and so is
//! a process that still runs a moment after the end of the first. A thread of its own traces, so that it waits only for
//! its own children.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls;
use crate::etcd::fair::fair;

/// The file that commits are logged to, in the sandbox.
pub(crate) const TRACE: &str = "/commits.trace";

/// Maximum duration of a command; a longer one hangs.
const HANGS: Duration = Duration::from_secs(40);

/// Number of quiet checks after which the processes in the background are detached.
const QUIET: u32 = 10;

/// The fault at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed instead of making the call.
    Killed,
    /// All of them are.
    AllKilled,
    /// The call is not made, and fails.
    Fails(Errno),
    /// The call is made, and is said to have failed: a reply was lost.
    Misreported(Errno),
    /// From now on the disk is full.
    DiskFull,
    /// From now on the process gets no more descriptors.
    NoDescriptors,
    /// Other processes do their work before the call is made.
    Overtaken,
}

/// A call of one of the processes, both counted from 0, and what happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) process: usize,
    pub(crate) call: usize,
    /// Which one it is, if it is the same as before: threads do not take turns.
    pub(crate) number: u64,
    pub(crate) fault: Fault,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
    /// Its path, if it has one.
    pub(crate) path: String,
    /// True if it removes a lock of fcntl(2).
    pub(crate) is_unlock: bool,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// For each process its calls.
    pub(crate) made: Vec<Vec<Made>>,
    pub(crate) met: Option<Made>,
    pub(crate) pids: Vec<i32>,
    pub(crate) hung: bool,
}

/// The processes of a command, as they are born.
pub(crate) type Pids = Arc<Mutex<Vec<i32>>>;

/// Runs a command with a mishap, or none.
pub(crate) fn trace(command: Command, point: Option<Point>) -> Traced {
    trace_with(command, point, Pids::default())
}

/// Traces like `trace`, and reports the processes to the caller.
pub(crate) fn trace_with(command: Command, point: Option<Point>, pids: Pids) -> Traced {
    trace_during(command, point, pids, Box::new(|| ()))
}

/// Traces like `trace`; the work of the others for [`Fault::Overtaken`] is `others`.
pub(crate) fn trace_overtaken(command: Command, point: Point, others: impl FnOnce() + Send + 'static) -> Traced {
    trace_during(command, Some(point), Pids::default(), Box::new(others))
}

fn trace_during(mut command: Command, point: Option<Point>, pids: Pids, others: Others) -> Traced {
    let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    command.process_group(0);
    let (tell, told) = channel();
    let of_tracer = pids.clone();
    let tracing = std::thread::spawn(move || {
        let mut tracer = Tracer::new(&mut command, point, of_tracer, others);
        tracer.run();
        tracer.let_go();
        let _ = tell.send(());
        (tracer.status, tracer.made, tracer.met)
    });
    let hung = told.recv_timeout(fair(HANGS)) == Err(RecvTimeoutError::Timeout);
    if hung {
        pids.lock().unwrap().iter().for_each(|pid| end(Pid::from_raw(*pid)));
    }
    let (status, made, met) = tracing.join().unwrap();
    let pids = pids.lock().unwrap().clone();
    Traced { status: status.unwrap(), stdout: content(&stdout), stderr: content(&stderr), made, met, pids, hung }
}

/// The work of other processes.
type Others = Box<dyn FnOnce() + Send>;

struct Tracer {
    others: Option<Others>,
    root: Pid,
    point: Option<Point>,
    status: Option<ExitStatus>,
    pids: Pids,
    /// For each that is traced, the how-manieth it is.
    traced: HashMap<Pid, usize>,
    made: Vec<Vec<Made>>,
    met: Option<Made>,
    /// The result of the pending call of a process.
    comes_back_with: HashMap<Pid, Errno>,
}

impl Tracer {
    fn new(command: &mut Command, point: Option<Point>, pids: Pids, others: Others) -> Tracer {
        // SAFETY: between fork and exec only this one system call is made.
        #[allow(unsafe_code, reason = "a traced process must ask for it itself")]
        unsafe {
            command.pre_exec(|| ptrace::traceme().map_err(|errno| std::io::Error::from_raw_os_error(errno as i32)))
        };
        #[allow(clippy::zombie_processes, reason = "it is waited for together with the others")]
        let root = Pid::from_raw(command.spawn().unwrap().id() as i32);
        assert_eq!(waitpid(root, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::Stopped(root, Signal::SIGTRAP)));
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC;
        ptrace::setoptions(root, options).unwrap();
        let mut tracer = Tracer {
            others: Some(others),
            root,
            point,
            status: None,
            pids,
            traced: HashMap::new(),
            made: Vec::new(),
            met: None,
            comes_back_with: HashMap::new(),
        };
        tracer.enter(root);
        let _ = ptrace::syscall(root, None);
        tracer
    }

    fn enter(&mut self, pid: Pid) {
        if !self.traced.contains_key(&pid) {
            self.traced.insert(pid, self.made.len());
            self.made.push(Vec::new());
            self.pids.lock().unwrap().push(pid.as_raw());
        }
    }

    fn run(&mut self) {
        let mut quiet = 0;
        while quiet < QUIET {
            let waits = if self.status.is_some() { WaitPidFlag::WNOHANG } else { WaitPidFlag::empty() };
            match waitpid(None, Some(waits | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Ok(WaitStatus::StillAlive) => {
                    quiet += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(status) => {
                    quiet = 0;
                    self.see(status);
                }
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Lets those go on alone who are still there. They have to be stopped for that.
    fn let_go(&mut self) {
        let those: Vec<Pid> = self.traced.keys().copied().collect();
        let tell = |signal| {
            for pid in &those {
                let _ = kill(*pid, signal);
            }
        };
        tell(Signal::SIGSTOP);
        while !self.traced.is_empty() {
            let Ok(status) = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) else { break };
            if let WaitStatus::PtraceEvent(pid, _, event) = status
                && event != libc::PTRACE_EVENT_EXEC
                && let Ok(born) = ptrace::getevent(pid)
            {
                self.enter(Pid::from_raw(born as i32));
            }
            if let Some(pid) = status.pid() {
                let _ = ptrace::detach(pid, None);
                self.traced.remove(&pid);
            }
        }
        for pid in self.pids.lock().unwrap().iter() {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGCONT);
        }
        tell(Signal::SIGCONT);
    }

    fn see(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::PtraceSyscall(pid) => {
                self.at_call(pid);
                // A process that was just killed does not continue.
                let _ = ptrace::syscall(pid, None);
            }
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXEC) => {
                // It is the command now, and none of ours.
                self.traced.remove(&pid);
                let _ = ptrace::detach(pid, None);
            }
            WaitStatus::PtraceEvent(pid, _, _) => {
                if let Ok(born) = ptrace::getevent(pid) {
                    self.enter(Pid::from_raw(born as i32));
                }
                let _ = ptrace::syscall(pid, None);
            }
            WaitStatus::Stopped(pid, Signal::SIGSTOP) => {
                // It was only just born.
                self.enter(pid);
                let _ = ptrace::syscall(pid, None);
            }
            WaitStatus::Stopped(pid, signal) => drop(ptrace::syscall(pid, signal)),
            WaitStatus::Exited(pid, code) => self.ended(pid, ExitStatus::from_raw(code << 8)),
            WaitStatus::Signaled(pid, signal, _) => self.ended(pid, ExitStatus::from_raw(signal as i32)),
            _ => {}
        }
    }

    fn ended(&mut self, pid: Pid, status: ExitStatus) {
        self.traced.remove(&pid);
        if pid == self.root {
            self.status = Some(status);
        }
    }

    fn at_call(&mut self, pid: Pid) {
        let Some(info) = SyscallInfo::of(pid) else { return };
        match info.op {
            SyscallInfo::ENTRY => self.before(pid, info.number, info.arguments),
            SyscallInfo::EXIT => self.after(pid),
            _ => {}
        }
    }

    fn before(&mut self, pid: Pid, number: u64, arguments: [u64; 6]) {
        let Some(process) = self.traced.get(&pid).copied() else { return };
        // The C library's memory is not part of the test: the calls of musl for it differ from run to run.
        if calls::is_of_memory(number) {
            return;
        }
        let call = self.made[process].len();
        let path = match calls::path_at(number) {
            Some(at) => text_of(pid, arguments[at]),
            None if calls::is_of_a_descriptor(number) => file_of(pid, arguments[0]),
            None => None,
        };
        let path = path.unwrap_or_default();
        // The log of the tests is not part of the test.
        if path.ends_with(TRACE) {
            return;
        }
        let made = Made { number, arguments, path, is_unlock: is_unlock(pid, number, arguments) };
        self.made[process].push(made.clone());
        let Some(point) = self.point else { return };
        let is_there = point.process == process && point.call == call && point.number == number && self.met.is_none();
        let goes_on = self.met.is_some()
            && match point.fault {
                Fault::DiskFull => calls::needs_room(&made),
                Fault::NoDescriptors => point.process == process && calls::needs_a_descriptor(number as i64),
                _ => false,
            };
        if is_there {
            self.met = Some(made);
        }
        if is_there || goes_on {
            self.happens(pid, point.fault);
        }
    }

    fn happens(&mut self, pid: Pid, fault: Fault) {
        match fault {
            Fault::Killed => end(pid),
            Fault::AllKilled => self.traced.keys().for_each(|pid| end(*pid)),
            Fault::Fails(errno) => self.fails(pid, errno),
            Fault::DiskFull => self.fails(pid, Errno::ENOSPC),
            Fault::NoDescriptors => self.fails(pid, Errno::EMFILE),
            Fault::Overtaken => self.others.take().into_iter().for_each(|others| others()),
            Fault::Misreported(errno) => drop(self.comes_back_with.insert(pid, errno)),
        }
    }

    fn fails(&mut self, pid: Pid, errno: Errno) {
        // An invalid call number has no effect.
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.orig_rax = u64::MAX;
            let _ = ptrace::setregs(pid, registers);
        }
        self.comes_back_with.insert(pid, errno);
    }

    fn after(&mut self, pid: Pid) {
        let Some(errno) = self.comes_back_with.remove(&pid) else { return };
        if let Ok(mut registers) = ptrace::getregs(pid) {
            registers.rax = -(errno as i64) as u64;
            let _ = ptrace::setregs(pid, registers);
        }
    }
}

fn end(pid: Pid) {
    // A process that is already gone need not end.
    let _ = kill(pid, Signal::SIGKILL);
}

/// Returns the target of a descriptor of a process.
fn file_of(pid: Pid, descriptor: u64) -> Option<String> {
    let found = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()?;
    Some(found.display().to_string())
}

/// Whether this call removes a lock of fcntl(2), whose structure begins with its type.
fn is_unlock(pid: Pid, number: u64, [_, command, lock, ..]: [u64; 6]) -> bool {
    let mut kind = [0; size_of::<libc::c_short>()];
    number == libc::SYS_fcntl as u64
        && command as i32 == libc::F_SETLK
        && File::open(format!("/proc/{pid}/mem")).is_ok_and(|memory| memory.read_exact_at(&mut kind, lock).is_ok())
        && libc::c_int::from(libc::c_short::from_ne_bytes(kind)) == libc::F_UNLCK
}

/// A text in the memory of a process.
fn text_of(pid: Pid, address: u64) -> Option<String> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = [0; 256];
    let read = memory.read_at(&mut bytes, address).ok()?;
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

fn content(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    let read = file.read_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// The system call at which a process is stopped: `ptrace_syscall_info` of <linux/ptrace.h>, as it is at an entry. The crate
/// libc has it for glibc only.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    padding: [u8; 3],
    architecture: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    number: u64,
    arguments: [u64; 6],
}

impl SyscallInfo {
    const ENTRY: u8 = 1;
    const EXIT: u8 = 2;

    fn of(pid: Pid) -> Option<SyscallInfo> {
        const PTRACE_GET_SYSCALL_INFO: u16 = 0x420e;
        let mut info = SyscallInfo::default();
        // SAFETY: the kernel writes at most as many bytes as the third argument says.
        #[allow(unsafe_code, reason = "nix has this request for glibc only")]
        let known = unsafe {
            libc::ptrace(PTRACE_GET_SYSCALL_INFO.into(), pid.as_raw(), size_of::<SyscallInfo>(), &raw mut info)
        };
        (known > 0).then_some(info)
    }
}
