//! One process's line in /proc/PID/stat: proc_pid_stat(5).

use std::fs;
use std::io::{self, Read};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// What is wrong with a /proc whose pids are not ours.
pub(super) const FOREIGN: &str = "/proc is not that of this pid namespace";

/// Whether /proc has shown this process under its own pid.
static IS_OURS: AtomicBool = AtomicBool::new(false);

/// What we need of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcStat {
    /// As the mounted /proc counts, which may be that of another pid namespace.
    pub(super) pid: i32,
    /// The file name of the program, at most 15 bytes.
    pub(crate) program: Vec<u8>,
    state: u8,
    threads: u64,
    pub(super) parent: i32,
    pub(super) session: i32,
    pub(super) group: i32,
    /// Whether it was forked and has not executed a program since, so that it is what its parent was: PF_FORKNOEXEC.
    pub(super) is_fork: bool,
    /// Page faults of the children that it has waited for: of every program that was more than a fork.
    faults_of_children: u64,
    /// The process group that has its terminal; -1 without one.
    pub(super) foreground: i32,
    /// Clock ticks after boot.
    pub(super) start: u64,
    /// Where the stack and the arguments begin. Alike in parent and child: one is a fork of the other, without an
    /// exec. 0 where the kernel does not let us see.
    pub(super) image: (u64, u64),
}

/// When a process began, in clock ticks after boot. `None`: it cannot be seen.
pub fn start_of(pid: i32) -> Option<u64> {
    Some(read(pid).ok()??.start)
}

impl ProcStat {
    /// Whether it has ended and is only not yet waited for. (A first thread may end before the others.)
    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    /// Whether it has waited for a program that it called, itself or what it was before an exec.
    pub(super) fn has_called_others(&self) -> bool {
        self.faults_of_children > 0
    }

    /// Whether it sleeps until something comes, as who waits for a child does. Who was not given a processor, or is
    /// stopped, does not.
    pub(super) fn is_sleeping(&self) -> bool {
        self.state == b'S'
    }

    /// Whether it is neither stopped nor ended.
    pub(crate) fn is_running(&self) -> bool {
        !matches!(self.state, b'T' | b't' | b'Z' | b'X')
    }
}

/// Reads a process's line; `None` when there is no such process.
///
/// # Errors
///
/// When /proc cannot be read, or belongs to another pid namespace. Neither says anything about the process.
pub(super) fn read(pid: i32) -> io::Result<Option<ProcStat>> {
    if !IS_OURS.load(Relaxed) {
        read_own()?;
    }
    read_file(&format!("/proc/{pid}/stat"))
}

/// Reads this process's own line.
///
/// # Errors
///
/// As [`read`].
#[expect(clippy::disallowed_methods, reason = "pids mean something only where /proc shows this one as its own")]
pub(super) fn read_own() -> io::Result<ProcStat> {
    let pid = nix::unistd::getpid().as_raw();
    let own = read_file("/proc/self/stat")?.filter(|stat| stat.pid == pid);
    IS_OURS.store(own.is_some(), Relaxed);
    own.ok_or_else(|| io::Error::other(FOREIGN))
}

fn read_file(path: &str) -> io::Result<Option<ProcStat>> {
    let mut buffer = [0; 1024];
    let read = fs::File::open(path).and_then(|mut file| read_once(&mut file, &mut buffer));
    match read {
        Ok(length) => match parse(&buffer[..length]) {
            Some(stat) => Ok(Some(stat)),
            None if length == 0 => Ok(None),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{path} makes no sense"))),
        },
        // ESRCH: it ended between open and read.
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::metadata("/proc/self/stat") {
            Ok(_) => Ok(None),
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// One read, whatever signals come.
pub(super) fn read_once(file: &mut fs::File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

pub(crate) fn parse(line: &[u8]) -> Option<ProcStat> {
    // The program's name stands in parentheses and may itself contain any byte, also ") ".
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(line.get(close + 2..)?).ok()?.split_ascii_whitespace().collect();
    // Numbered as in the manual page, where the state is field 3.
    let field = |number: usize| fields.get(number - 3);
    let number = |at: usize| field(at)?.parse::<u64>().ok();
    Some(ProcStat {
        pid: std::str::from_utf8(&line[..open]).ok()?.trim_ascii().parse().ok()?,
        program: line.get(open + 1..close)?.to_vec(),
        state: *field(3)?.as_bytes().first()?,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        foreground: field(8)?.parse().ok()?,
        is_fork: number(9)? & 0x40 != 0,
        faults_of_children: number(11)?,
        threads: number(20)?,
        start: number(22)?,
        image: (number(28).unwrap_or(0), number(48).unwrap_or(0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_and_spaces() {
        let rest: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let line = format!("17 (a) S 1 (b) R {}\n", rest.join(" "));
        let stat = parse(line.as_bytes()).unwrap();
        assert_eq!(stat.program, b"a) S 1 (b");
        assert_eq!((stat.parent, stat.session, stat.start, stat.image), (4, 6, 22, (28, 48)));
        assert!(!stat.is_zombie());
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert_eq!(read(i32::MAX).unwrap(), None);
    }
}
