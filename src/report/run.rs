//! Messages about a command that runs under locks.

use super::Reporter;
use crate::engine::{LockRef, LockSet};
use crate::lock::NotHolder;
use crate::name::escape;
use crate::run::schedule::StopReason;
use crate::run::supervisor::Notice;

/// Returns the message about a command under these locks.
pub(crate) fn notice(locks: &LockSet, notice: &Notice<'_>) -> String {
    let names = locks.shown_names();
    let shown = |lock: &LockRef| format!("lock {}", escape(&lock.display_name));
    match notice {
        Notice::Ended(StopReason::MaxHold, _) => {
            format!("the command was ended: it held lock {names} longer than --max-hold")
        }
        Notice::Ended(StopReason::Lease, true) => {
            format!("the command was ended before the --ttl of lock {names} was over")
        }
        Notice::Ended(StopReason::Lease, false) => format!(
            "the command was ended before the lease of lock {names} was over: it could not be renewed; see `csalock \
             doctor`"
        ),
        Notice::EndedAfterLoss => "the command was ended".to_string(),
        Notice::OutOfReach => {
            format!("the command could not be ended when its time under lock {names} was over: it runs as another user")
        }
        Notice::Lost(lock, engine, released) => {
            let how = match released {
                Ok(Err(NotHolder { ending: Some(ending), .. })) => {
                    format!("it was held by {}", Reporter::new(engine).ending(ending))
                }
                Ok(Err(NotHolder { store_was_replaced: true, .. })) => {
                    "its store was moved, replaced or removed, so other callers did not see the grant".to_string()
                }
                Ok(_) => "its record has no trace of the grant".to_string(),
                Err(error) => format!("its lease is over, and it could not be released: {error}"),
            };
            let lock = shown(lock);
            format!("lost while the command ran: {lock}: {how}; what the command did after that was not guarded")
        }
        Notice::NotReported(lock, error) => format!(
            "the job of {} has succeeded, but that could not be recorded, so it may run again: {error}",
            shown(lock)
        ),
        Notice::NotReleased(lock, error) => format!("{} could not be released: {error}", shown(lock)),
        Notice::Silent => format!(
            "lock {names} could not be released: the store does not answer; it is released when that answers again, \
             and at the latest its lease ends it"
        ),
    }
}
