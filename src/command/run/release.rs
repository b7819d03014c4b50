//! The release of the locks after the command's end, and what happens if a store does not answer then.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::supervisor::Supervisor;
use crate::command::context::LockRef;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lock::{self, Lifetime, Request, Response};
use crate::name::escape;
use crate::run::ExitReport;
use crate::run::detach;
use crate::store::answers;

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
        let (common, names) = (&self.asked.common, self.targets.shown_names());
        let why = self.why(ended, self.asked.taking.ttl.is_some());
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
                common.note(&format!(
                    "lock {names} could not be released: the store does not answer; it is released when that \
                     answers again, and at the latest its lease ends it"
                ));
                why.inspect(|why| common.note(why));
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

    /// Releases the locks, whose lease, if any, ends at `lease_ends`. Returns true if a lock was lost while the command
    /// ran. Sets `by_time` if a lease that is not renewed was the last, so that it ended the command.
    pub(super) fn release(&self, lease_ends: Option<Duration>, by_time: &Cell<bool>) -> bool {
        let over = lease_ends.is_some_and(|ends| ends <= self.context.host.boottime());
        let opened = match &self.opened {
            Ok(opened) => opened,
            Err(error) => {
                self.tell_kept(&self.targets.shown_names(), error);
                return false;
            }
        };
        // A release after the end of the lease is not needed any more.
        let until = lease_ends.map(|ends| ends.min(self.context.host.boottime() + TO_RELEASE));
        opened.each().for_each(|(_, engine)| engine.store().set_deadline(until));
        let mut lost = false;
        for (at, released) in opened.release(self.handle.proof()).into_iter().enumerate() {
            let name = escape(&self.targets.all[at].display_name);
            let text = match released {
                Ok(Response::Released(grant)) => {
                    by_time.set(by_time.get() || matches!(grant.lifetime, Lifetime::ExpiresAt(_)));
                    continue;
                }
                // The command released the lock, and the supervisor or the keeper knows it.
                Ok(Response::NotHeld(None) | Response::NotOwner(_, None)) if self.is_released(at) => continue,
                // The command released the lock, or another process saw its end before the supervisor did.
                Ok(Response::NotHeld(Some(ending)) | Response::NotOwner(_, Some(ending)))
                    if matches!(ending.reason, lock::EndReason::Died | lock::EndReason::Released) =>
                {
                    continue;
                }
                Ok(Response::NotHeld(Some(ending)) | Response::NotOwner(_, Some(ending))) => {
                    format!("it was held by {}", opened.reporter(at).ending(&ending))
                }
                Ok(_) => "its record has no trace of the grant".to_string(),
                Err(error) if !over => {
                    self.tell_kept(&name, &error);
                    continue;
                }
                Err(error) => format!("its lease is over, and it could not be released: {error}"),
            };
            self.asked.common.note(&format!(
                "lost while the command ran: lock {name}: {text}; what the command did after that was not guarded"
            ));
            lost = true;
        }
        lost
    }

    /// Reports a failed release. The command's status counts; the next caller finds a lock whose owner is dead.
    fn tell_kept(&self, name: &str, error: &Error) {
        self.asked.common.note(&format!("lock {name} could not be released: {error}"));
    }

    pub(super) fn clean_up(&self) -> Result<()> {
        let opened = self.opened.as_ref().map_err(Clone::clone)?;
        let proof = self.handle.proof();
        for (target, engine) in opened.each() {
            engine.store().set_deadline(Some(self.context.host.boottime()));
            engine.apply(&target.name, &Request::Cancel(proof, None))?;
            // This releases a grant made meanwhile, or collects what other processes recorded of its end.
            engine.apply(&target.name, &Request::Release(engine.supervisor(proof)?))?;
        }
        Ok(())
    }

    /// Returns true if the command is known to have released this lock itself.
    pub(super) fn is_released(&self, at: usize) -> bool {
        self.released.borrow().contains(&at)
            || self.shared_deadline.is_some_and(|shared_deadline| shared_deadline.is_released(at))
    }

    /// Notes that the command released this lock, so that the record need not keep its end any longer.
    pub(super) fn hear_of_release(&self, at: usize, target: &LockRef, engine: &Engine) {
        self.released.borrow_mut().insert(at);
        let hear = |credentials| engine.apply(&target.name, &Request::Release(credentials));
        // If that fails, the record keeps it until the command has ended.
        let _ = engine.supervisor(self.handle.proof()).and_then(hear);
    }
}
