//! The release of the locks after the command's end, and what happens if a store does not answer then.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::event_loop::ExitReport;
use super::{Notice, Supervisor, why};
use crate::engine::{Engine, LockRef};
use crate::error::{Error, ErrorKind};
use crate::exit::Exit;
use crate::host::WakeSocket;
use crate::lock::{EndReason, Lifetime, NotHolder, ReportSuccess};
use crate::run::detach;
use crate::store::{StoreDeadline, answers};

/// Maximum time that a shared store may be silent before we exit without a release. A dead NFS server blocks its
/// callers until it is back. A slow store answers each call within this time, and the supervisor waits for it.
const SILENCE: Duration = Duration::from_secs(5);

/// Interval between checks that the store has answered.
const LOOK: Duration = Duration::from_millis(250);

/// Maximum time that a store may take to answer a release, however long the lease is.
const TO_RELEASE: Duration = Duration::from_secs(10);

impl Supervisor<'_> {
    /// Runs `what`. Ends the process with `exit` if a store is silent for too long.
    pub(super) fn in_time<T>(&self, ended: &ExitReport, exit: Exit, what: impl FnOnce() -> T) -> T {
        let (tell, why) = (self.tell, why(ended, self.job.limits.ttl.is_some()));
        let (done, is_done) = channel::<()>();
        let watch = move || {
            let (mut heard, mut looks) = (answers(), 0);
            while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = answers();
                looks = if now == heard { looks + 1 } else { 0 };
                heard = now;
                if LOOK * looks < SILENCE {
                    continue;
                }
                [Some(Notice::Silent), why].iter().flatten().for_each(tell);
                detach::exit_now(exit.code());
            }
        };
        std::thread::scope(|scope| {
            let watching = std::thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, watch);
            let result = what();
            drop((done, watching));
            result
        })
    }

    /// Records under the lock that the command has succeeded, if it has. The lock is still held, so the next holder knows.
    pub(super) fn report_success(&self, exit: Exit) {
        let Some(report) = self.job.reports.filter(|_| exit.code() == 0) else { return };
        let (host, engine, target) = (&self.job.context.host, self.opened.engine(0), self.opened.target(0));
        let _deadline = StoreDeadline::begin(Some(host.boottime() + TO_RELEASE));
        let request = engine.by_proof(self.job.handle.proof()).and_then(|credentials| {
            let at = engine.time()?.as_millis() as u64;
            Ok(ReportSuccess { credentials, in_slot: report.in_slot, at, host: host.name() })
        });
        match request.and_then(|request| engine.apply(&target.name, &request)) {
            Err(error) => (self.tell)(&Notice::NotReported(target, &error)),
            Ok(Err(NotHolder { ending, .. })) => {
                let is_released = ending.map_or(self.is_released(0), |ending| ending.reason == EndReason::Released);
                let (what, hint) = match is_released {
                    true => {
                        ("the command had released the lock itself", "let csalock release it when the command ends")
                    }
                    false => ("the lock was lost before", "see `csalock history`"),
                };
                (self.tell)(&Notice::NotReported(target, &Error::new(ErrorKind::NotHeld, what, hint)));
            }
            Ok(Ok(())) => {}
        }
    }

    /// Releases the locks, whose lease, if any, ends at `lease_ends`. If descriptors are scarce, the release takes that of
    /// the `spare` socket. Returns whether a lock was lost while the command ran, and whether the last lease of a lock was
    /// a time limit that a caller set.
    pub(super) fn release(&self, lease_ends: Option<Duration>, spare: Option<WakeSocket>) -> (bool, bool) {
        let now = self.job.context.host.boottime();
        let opened = self.opened;
        // A release after the end of the lease is not needed any more.
        let until = lease_ends.map(|ends| ends.min(now + TO_RELEASE));
        let _deadline = StoreDeadline::begin(until);
        let (mut lost, mut had_limit) = (false, false);
        let mut released = opened.release(self.job.handle.proof());
        // The first release of a database opens more files than the acquisition that created it.
        let is_of_system = |error: &Error| error.kind() == ErrorKind::System;
        if spare.is_some() && released.iter().any(|released| released.as_ref().is_err_and(is_of_system)) {
            drop(spare);
            for (answer, (target, engine)) in released.iter_mut().zip(opened.each()) {
                if answer.as_ref().is_err_and(is_of_system) {
                    *answer = engine.release(&target.name, self.job.handle.proof());
                }
            }
        } else {
            // The process ends soon, and the kernel closes its descriptors.
            std::mem::forget(spare);
        }
        for (at, ((target, engine), released)) in opened.each().zip(&released).enumerate() {
            match released {
                Ok(Ok(grant)) => had_limit |= matches!(grant.lifetime, Lifetime::ExpiresAt(_)),
                // The command released the lock, and the supervisor or the keeper knows it.
                Ok(Err(NotHolder { ending: None, .. })) if self.is_released(at) => {}
                // The command released the lock, or another process saw its end before the supervisor did.
                Ok(Err(NotHolder { ending: Some(ending), .. }))
                    if matches!(ending.reason, EndReason::Died | EndReason::Released) => {}
                Err(error) if lease_ends.is_none_or(|ends| now < ends) => {
                    (self.tell)(&Notice::NotReleased(target, error));
                }
                lost_by => {
                    (self.tell)(&Notice::Lost(target, engine, lost_by));
                    lost = true;
                }
            }
        }
        (lost, had_limit)
    }

    /// Returns true if the command is known to have released this lock itself.
    pub(super) fn is_released(&self, at: usize) -> bool {
        self.released.borrow().contains(&at)
            || self.job.shared_deadline.is_some_and(|shared_deadline| shared_deadline.is_released(at))
    }

    /// Notes that the command released this lock, so that the record need not keep its end any longer.
    pub(super) fn hear_of_release(&self, at: usize, target: &LockRef, engine: &Engine) {
        self.released.borrow_mut().insert(at);
        // If that fails, the record keeps it until the command has ended.
        let _ = engine.release(&target.name, self.job.handle.proof());
    }
}
