//! Records whose owner a user of the store has forged, and the processes that root ends then.

use lock::{Owner, ProcessId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Anne, Root};
use crate::sandbox::proc::{lives, start_of};
use crate::sandbox::{Job, Kind, Sandbox, is_root};

const END: [&str; 6] = ["unlock", "--force", "--end", "--kill-after", "50ms", "x"];

const REPLACE: [&str; 9] = ["run", "--busy", "replace", "--kill-after", "50ms", "-w", "inf", "x", "true"];

/// A service of root that is deaf to TERM, and its child. Neither has anything to do with csalock.
struct Service {
    job: Job,
    process: ProcessId,
    child: i32,
}

impl Service {
    fn begin(sandbox: &Sandbox) -> Service {
        let mut job = sandbox.script("dash", "trap '' TERM; sleep 1000 & echo $!; exec sleep 1000").spawn();
        let child = job.lines(1)[0].parse().unwrap();
        let process = ProcessId { pid: job.pid(), start: start_of(job.pid()).unwrap() };
        Service { job, process, child }
    }

    fn end(mut self) {
        kill(Pid::from_raw(self.child), Signal::SIGKILL).unwrap();
        self.job.kill();
    }
}

/// Lets the record of lock x name these processes of this user instead of its holder.
fn forge(sandbox: &Sandbox, uid: u32, processes: &[ProcessId], supervisor: Option<ProcessId>) -> Job {
    let holder = sandbox.csalock(["run", "-q", "x", "dash", "-c", "echo; cat; :"]).ready();
    sandbox.edit("x", |record| {
        let owner = (*record.holders[0].owner).clone();
        record.holders[0].owner = Owner { uid, processes: processes.to_vec(), supervisor, ..owner }.into();
    });
    holder
}

const DEAD: ProcessId = ProcessId { pid: 4_000_000, start: 1 };

#[test]
fn a_forged_record_of_another_user_ends_no_process() {
    if !is_root("users") {
        return;
    }
    let sandbox = Sandbox::new(Kind::Directory);
    let service = Service::begin(&sandbox);
    let _holder = forge(&sandbox, Anne.uid(), &[DEAD, service.process], Some(service.process));
    let before = sandbox.stored();
    let pid = service.process.pid;
    let said = format!("csalock: lock x: pid {pid} cannot be ended, that process is of another user: held by ");
    sandbox.csalock(END).capture().says(77, &said);
    sandbox.csalock(REPLACE).capture().says(77, "cannot be replaced, that process is of another user: held by ");
    assert!(lives(pid) && lives(service.child) && sandbox.stored() == before);
    service.end();
}

#[test]
fn a_forged_supervisor_costs_no_process_below_it() {
    if !is_root("users") {
        return;
    }
    let sandbox = Sandbox::new(Kind::Directory);
    for call in [&END[..], &REPLACE] {
        let service = Service::begin(&sandbox);
        let _holder = forge(&sandbox, Root.uid(), &[DEAD, service.process], Some(service.process));
        sandbox
            .csalock(call)
            .capture()
            .says(0, &format!("csalock: lock x: pid {} went on for 50ms", service.process.pid));
        assert!(lives(service.child), "{call:?}");
        service.end();
    }
}

#[test]
fn a_forged_record_with_a_reused_pid_ends_no_process() {
    if !is_root("users") {
        return;
    }
    let sandbox = Sandbox::new(Kind::Directory);
    for call in [&END[..], &REPLACE] {
        let service = Service::begin(&sandbox);
        let earlier = ProcessId { start: service.process.start - 1, ..service.process };
        let _holder = forge(&sandbox, Root.uid(), &[earlier], Some(service.process));
        sandbox.csalock(call).capture().exits(0);
        assert!(lives(service.process.pid) && lives(service.child), "{call:?}");
        service.end();
    }
}
