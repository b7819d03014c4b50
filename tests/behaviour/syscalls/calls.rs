//! System calls: what they are called, and which of them can fail in which way.

use nix::errno::Errno;
use nix::libc::{self, c_long};

use super::tracer::{Fault, Made};

/// Returns the errors of a call, besides being the last of its process.
enum Fails {
    With(&'static [Errno]),
    /// The call fails, but may have had its effect, as for changes of names on a remote file system.
    OrWasDone(&'static [Errno]),
}

use Errno::{EACCES, EAGAIN, EINTR, EIO, EMFILE, ENOENT, ENOLCK, ENOSPC, EPERM, ESTALE};
use Fails::{OrWasDone, With};

/// Each call that is made to fail: number, name, the argument that is a path, and how it fails.
const CALLS: [(c_long, &str, Option<usize>, Fails); 50] = [
    (libc::SYS_openat, "openat", Some(1), With(&[EACCES, EMFILE, EIO, ENOSPC, ESTALE, EINTR])),
    (libc::SYS_open, "open", Some(0), With(&[EACCES, EMFILE, EIO, ENOSPC, ESTALE, EINTR])),
    (libc::SYS_rename, "rename", Some(0), OrWasDone(&[EIO, ENOSPC, EACCES, ESTALE])),
    (libc::SYS_renameat, "renameat", Some(1), OrWasDone(&[EIO, ENOSPC, EACCES, ESTALE])),
    (libc::SYS_renameat2, "renameat2", Some(1), OrWasDone(&[EIO, ENOSPC, EACCES, ESTALE])),
    (libc::SYS_unlink, "unlink", Some(0), OrWasDone(&[EIO, EACCES, ESTALE])),
    (libc::SYS_unlinkat, "unlinkat", Some(1), OrWasDone(&[EIO, EACCES, ESTALE])),
    (libc::SYS_rmdir, "rmdir", Some(0), OrWasDone(&[EIO, EACCES, ESTALE])),
    (libc::SYS_mkdir, "mkdir", Some(0), OrWasDone(&[EIO, ENOSPC, EACCES, ESTALE])),
    (libc::SYS_mkdirat, "mkdirat", Some(1), OrWasDone(&[EIO, ENOSPC, EACCES, ESTALE])),
    (libc::SYS_mknod, "mknod", Some(0), OrWasDone(&[EIO, ENOSPC, EACCES])),
    (libc::SYS_mknodat, "mknodat", Some(1), OrWasDone(&[EIO, ENOSPC, EACCES])),
    (libc::SYS_link, "link", Some(0), OrWasDone(&[EIO, ENOSPC, EACCES])),
    (libc::SYS_linkat, "linkat", Some(1), OrWasDone(&[EIO, ENOSPC, EACCES])),
    (libc::SYS_fsync, "fsync", None, With(&[EIO, ENOSPC, EINTR])),
    (libc::SYS_fdatasync, "fdatasync", None, With(&[EIO, ENOSPC, EINTR])),
    (libc::SYS_write, "write", None, With(&[ENOSPC, EIO, EINTR])),
    (libc::SYS_writev, "writev", None, With(&[ENOSPC, EIO, EINTR])),
    (libc::SYS_pwrite64, "pwrite64", None, With(&[ENOSPC, EIO, EINTR])),
    (libc::SYS_ftruncate, "ftruncate", None, With(&[ENOSPC, EIO])),
    (libc::SYS_fallocate, "fallocate", None, With(&[ENOSPC, EIO])),
    (libc::SYS_read, "read", None, With(&[EIO, EINTR, ESTALE])),
    (libc::SYS_pread64, "pread64", None, With(&[EIO, EINTR, ESTALE])),
    (libc::SYS_getdents64, "getdents64", None, With(&[EIO, ESTALE])),
    (libc::SYS_fstat, "fstat", None, With(&[EIO, ESTALE])),
    (libc::SYS_stat, "stat", Some(0), With(&[EIO, EACCES, ESTALE])),
    (libc::SYS_lstat, "lstat", Some(0), With(&[EIO, EACCES, ESTALE])),
    (libc::SYS_newfstatat, "newfstatat", Some(1), With(&[EIO, EACCES, ESTALE])),
    (libc::SYS_statx, "statx", Some(1), With(&[EIO, EACCES, ESTALE])),
    (libc::SYS_statfs, "statfs", Some(0), With(&[EIO, EACCES])),
    (libc::SYS_fstatfs, "fstatfs", None, With(&[EIO])),
    (libc::SYS_access, "access", Some(0), With(&[EIO, EACCES])),
    (libc::SYS_faccessat, "faccessat", Some(1), With(&[EIO, EACCES])),
    (libc::SYS_readlink, "readlink", Some(0), With(&[EIO, EACCES])),
    (libc::SYS_readlinkat, "readlinkat", Some(1), With(&[EIO, EACCES])),
    (libc::SYS_chmod, "chmod", Some(0), With(&[EPERM, EIO])),
    (libc::SYS_fchmod, "fchmod", None, With(&[EPERM, EIO])),
    (libc::SYS_utimensat, "utimensat", Some(1), With(&[EPERM, EIO])),
    (libc::SYS_flock, "flock", None, With(&[EINTR, ENOLCK])),
    (libc::SYS_fork, "fork", None, With(&[EAGAIN])),
    (libc::SYS_clone, "clone", None, With(&[EAGAIN])),
    (libc::SYS_clone3, "clone3", None, With(&[EAGAIN])),
    (libc::SYS_pidfd_open, "pidfd_open", None, With(&[EMFILE])),
    (libc::SYS_socket, "socket", None, With(&[EMFILE, EACCES])),
    (libc::SYS_bind, "bind", None, With(&[EACCES])),
    (libc::SYS_sendto, "sendto", None, With(&[EAGAIN, EPERM])),
    (libc::SYS_pipe2, "pipe2", None, With(&[EMFILE])),
    (libc::SYS_poll, "poll", None, With(&[EINTR])),
    (libc::SYS_ppoll, "ppoll", None, With(&[EINTR])),
    (libc::SYS_execve, "execve", Some(0), With(&[EACCES, EIO, ENOENT])),
];

/// More of them, of which little is made.
const FEW: [(c_long, &str, Errno); 7] = [
    (libc::SYS_timerfd_create, "timerfd_create", EMFILE),
    (libc::SYS_signalfd4, "signalfd4", EMFILE),
    (libc::SYS_epoll_create1, "epoll_create1", EMFILE),
    (libc::SYS_eventfd2, "eventfd2", EMFILE),
    (libc::SYS_socketpair, "socketpair", EMFILE),
    (libc::SYS_wait4, "wait4", EINTR),
    (libc::SYS_dup, "dup", EMFILE),
];

pub(crate) fn path_at(number: u64) -> Option<usize> {
    CALLS.iter().find(|call| call.0 as u64 == number)?.2
}

pub(crate) fn name(number: u64) -> String {
    let known = CALLS.iter().map(|call| (call.0, call.1)).chain(FEW.iter().map(|call| (call.0, call.1)));
    let fcntl = [(libc::SYS_fcntl, "fcntl"), (libc::SYS_exit_group, "exit_group"), (libc::SYS_close, "close")];
    let found = known.chain(fcntl).find(|call| call.0 as u64 == number);
    found.map_or_else(|| format!("call {number}"), |call| call.1.to_string())
}

/// Returns the faults of a call, besides being the last of its process.
pub(crate) fn faults(made: &Made) -> Vec<Fault> {
    let number = made.number as c_long;
    if number == libc::SYS_fcntl {
        // A lock on a file. The kernel always removes one of this host; no call could repeat a removal that fails.
        let locks =
            matches!(made.arguments[1] as i32, libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK) && !made.is_unlock;
        let errors = if locks { &[EACCES, EINTR, ENOLCK, EIO][..] } else { &[] };
        return errors.iter().map(|errno| Fault::Fails(*errno)).collect();
    }
    if let Some((_, _, errno)) = FEW.iter().find(|call| call.0 == number) {
        return vec![Fault::Fails(*errno)];
    }
    let Some((_, _, _, fails)) = CALLS.iter().find(|call| call.0 == number) else { return Vec::new() };
    let (errors, done) = match fails {
        With(errors) => (errors, false),
        OrWasDone(errors) => (errors, true),
    };
    // Output without a reader.
    if number == libc::SYS_write && made.arguments[0] == 2 {
        return vec![Fault::Fails(EINTR)];
    }
    // No disk is behind a pipe or a socket, which have no path.
    if matches!(number, libc::SYS_read | libc::SYS_write | libc::SYS_writev) && !made.path.starts_with('/') {
        return vec![Fault::Fails(EINTR)];
    }
    // A call that only reads needs no space.
    let reads = number == libc::SYS_openat && made.arguments[2] as i32 & libc::O_CREAT == 0;
    // A hidden /proc, or an /etc without read permission, always looks like this.
    let hidden = |errno: Errno| errno == EACCES && (made.path.starts_with("/proc/") || made.path.starts_with("/etc/"));
    let mut faults: Vec<Fault> = errors
        .iter()
        .filter(|errno| !(hidden(**errno) || reads && **errno == ENOSPC))
        .map(|errno| Fault::Fails(*errno))
        .collect();
    faults.extend(done.then_some(Fault::Misreported(EIO)));
    faults.extend((needs_room(made)).then_some(Fault::DiskFull));
    faults.extend(needs_a_descriptor(number).then_some(Fault::NoDescriptors));
    faults
}

/// Whether it fails where the disk is full.
pub(crate) fn needs_room(made: &Made) -> bool {
    match made.number as c_long {
        libc::SYS_openat => made.arguments[2] as i32 & libc::O_CREAT != 0,
        libc::SYS_open => made.arguments[1] as i32 & libc::O_CREAT != 0,
        libc::SYS_mkdir | libc::SYS_mkdirat | libc::SYS_mknod | libc::SYS_mknodat => true,
        libc::SYS_ftruncate | libc::SYS_fallocate => true,
        libc::SYS_write | libc::SYS_pwrite64 => made.path.starts_with('/') && made.arguments[0] > 2,
        _ => false,
    }
}

/// Whether it fails where a process has as many descriptors as it may have.
pub(crate) fn needs_a_descriptor(number: c_long) -> bool {
    match CALLS.iter().find(|call| call.0 == number) {
        Some((_, _, _, With(errors) | OrWasDone(errors))) => errors.contains(&EMFILE),
        None => FEW.iter().any(|call| call.0 == number && call.2 == EMFILE),
    }
}

/// Whether the first argument of a call, which has no path, is a descriptor of a file.
pub(crate) fn is_of_a_descriptor(number: u64) -> bool {
    let all = [
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_ftruncate,
        libc::SYS_getdents64,
        libc::SYS_fstat,
        libc::SYS_fcntl,
        libc::SYS_fchmod,
        libc::SYS_flock,
    ];
    all.contains(&(number as c_long))
}

/// Whether it only gives memory to the process, or takes it.
pub(crate) fn is_of_memory(number: u64) -> bool {
    let all =
        [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk];
    all.contains(&(number as c_long))
}

/// Whether another process may see that it was made. A kill before an invisible call equals a kill after it.
pub(crate) fn is_seen(made: &Made) -> bool {
    let number = made.number as c_long;
    let unseen = [
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_close,
        libc::SYS_getdents64,
        libc::SYS_fstat,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_statfs,
        libc::SYS_fstatfs,
        libc::SYS_access,
        libc::SYS_faccessat,
        libc::SYS_readlink,
        libc::SYS_readlinkat,
        libc::SYS_lseek,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_getrandom,
        libc::SYS_uname,
        libc::SYS_getpid,
        libc::SYS_getppid,
        libc::SYS_gettid,
        libc::SYS_geteuid,
        libc::SYS_getuid,
        libc::SYS_getcwd,
        libc::SYS_clock_gettime,
        libc::SYS_socket,
        libc::SYS_pipe2,
        libc::SYS_pidfd_open,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_umask,
        libc::SYS_ioctl,
    ];
    match number {
        libc::SYS_openat => needs_room(made),
        libc::SYS_fcntl => made.arguments[1] as i32 != libc::F_GETFD && made.arguments[1] as i32 != libc::F_SETFD,
        _ => !unseen.contains(&number),
    }
}
