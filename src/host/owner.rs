//! Who the owner of `csalock lock` is: the shell that runs the script, also from inside `$( )`, a pipeline or `( )`.
//!
//! We follow the parents upward. Programs that only start another one (`sudo`, `timeout`, ...) are stepped over: they
//! end together with us. Then come the shell's own forks: as long as parent and child are one program image forked
//! without an exec (their stacks and arguments begin at the same, randomised, addresses) both are the script, and are
//! kept, innermost first. The *effective owner* is the first of them that still lives: for `h=$(csalock lock x)` the
//! inner one is gone a moment later and the script itself owns the lock, while two `( ... ) &` of one script are two
//! owners.
//!
//! Limits: a caller that has ended already, so that we were handed to init, owns nothing; that is an error and not a
//! lock that would live as long as the machine.

use std::fs;

use super::proc_stat::{self, ProcStat};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::Process;

/// Programs that run another program and end with it.
const STARTERS: [&str; 27] = [
    "busybox", "chpst", "chroot", "chrt", "doas", "env", "faketime", "find", "flock", "ionice", "ltrace", "nice",
    "nohup", "nsenter", "prlimit", "runuser", "script", "setarch", "setpriv", "setsid", "stdbuf", "strace", "sudo",
    "taskset", "time", "timeout", "xargs",
];

/// How far up we look for forks of one image.
const MOST_FORKS: usize = 16;

/// How far up we look at all.
const MOST_PARENTS: usize = 64;

/// The script that called us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its processes, innermost first.
    pub owners: Vec<Process>,
    /// Its command line, the arguments separated by spaces.
    pub command: Vec<u8>,
}

/// Finds out who called this process, whose pid is `pid`.
///
/// # Errors
///
/// A usage error when the caller has ended, and a system error when /proc cannot be read.
pub fn caller(pid: i32) -> Result<Caller> {
    let us = look(pid)?.ok_or_else(orphan)?;
    let (mut at, mut stat) = (us.parent, look(us.parent)?.ok_or_else(orphan)?);
    for _ in 0..MOST_PARENTS {
        if !is_starter(at, &stat) {
            break;
        }
        at = stat.parent;
        stat = look(at)?.ok_or_else(orphan)?;
    }
    // Init is the caller only where it is the script, as in a container; else it is what orphans are handed to.
    if stat.program.starts_with(b"systemd") || (at == 1 && stat.session != us.session) {
        return Err(orphan());
    }
    let command = command_of(at);
    let mut owners = vec![Process { pid: at, start: stat.start }];
    while owners.len() < MOST_FORKS && stat.image != (0, 0) && stat.parent > 0 {
        let Some(parent) = look(stat.parent)?.filter(|parent| parent.image == stat.image) else { break };
        owners.push(Process { pid: stat.parent, start: parent.start });
        stat = parent;
    }
    Ok(Caller { owners, command })
}

/// A process's command line, its arguments separated by spaces.
pub fn command_of(pid: i32) -> Vec<u8> {
    let mut command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    while command.last() == Some(&0) {
        command.pop();
    }
    command.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    command
}

fn look(pid: i32) -> Result<Option<ProcStat>> {
    if pid <= 0 {
        return Ok(None);
    }
    proc_stat::read(pid).map_err(|error| {
        let cure = "mount /proc, or say --pid and --forever";
        Error::new(Exit::System, format!("cannot see the calling process: {error}"), cure)
    })
}

fn is_starter(pid: i32, stat: &ProcStat) -> bool {
    let is = |program: &[u8]| STARTERS.iter().any(|starter| starter.as_bytes() == program);
    if stat.program != b"busybox" {
        return is(&stat.program);
    }
    // One program with many names: which one it is stands in its arguments.
    let command = command_of(pid);
    let mut words = command.split(|byte| *byte == b' ').map(|word| word.rsplit(|byte| *byte == b'/').next());
    let applet = words.find(|word| *word != Some(&b"busybox"[..])).flatten();
    applet.is_some_and(is)
}

fn orphan() -> Error {
    Error::new(
        Exit::Usage,
        "the process that called csalock has ended, so nobody would own the lock",
        "name the owner with --pid PID, or keep the lock until it is given back with --forever",
    )
}
