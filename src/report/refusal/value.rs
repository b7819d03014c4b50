//! Messages about a value that was not written, because of the value or of the lock that guards it.

use super::{RefusalReport, RefusedLock};
use crate::error::ErrorKind;
use crate::lock::{EndedGrant, Grant, Value};

impl RefusedLock<'_> {
    /// Returns the report about a value that exists although it must not.
    pub fn value_exists(&self, value: &Value) -> RefusalReport {
        let message = format!("{self} guards a value already, with {}", describe_value(value));
        self.report(ErrorKind::NotUnique, message, format!("see it with `csalock get {}`", self.lock.shell_arg), &[])
    }

    /// Returns the report about a value that is not at the version that it must have.
    pub fn version_mismatch(&self, value: Option<&Value>, expected: u64) -> RefusalReport {
        let has = value.map_or("there is none".to_string(), |value| format!("it has {}", describe_value(value)));
        let message = format!("the value of {self} is not at version {expected} any more: {has}");
        self.report(ErrorKind::Stale, message, format!("read it again with `csalock get {}`", self.lock.shell_arg), &[])
    }

    /// Returns the report about a writer that shares the lock with these holders.
    pub fn shared(&self, others: &[Grant]) -> RefusalReport {
        let message = format!("nothing was written, because you share {self}: {}", self.each(others));
        self.report(ErrorKind::Busy, message, "release it, and acquire it exclusively", others)
    }

    /// Returns the report about a value that does not exist.
    pub fn no_value(&self) -> RefusalReport {
        self.report(ErrorKind::NotHeld, format!("{self} guards no value"), "", &[])
    }

    /// Returns the report about a writer whose grant ended, and whose lock these holders have. `even_if_stale` means
    /// that the option of this name may help.
    pub fn writer_lost_it(&self, holders: &[Grant], ending: &EndedGrant, even_if_stale: bool) -> RefusalReport {
        let ending = self.reporter.ending(ending);
        let now = holders.first().map(|grant| format!(", and is now held by {}", self.reporter.holder(grant)));
        let or = if even_if_stale { ", or use --even-if-stale, if no other caller has had it since" } else { "" };
        let message = format!("nothing was written, because {self} was held by {ending}{}", now.unwrap_or_default());
        self.report(ErrorKind::NotOwner, message, format!("take it again before you read and write{or}"), holders)
    }

    /// Returns the report about a writer whose script has ended, while other callers have had the lock.
    pub fn orphaned_writer(&self, holders: &[Grant]) -> RefusalReport {
        let message = format!(
            "nothing was written, because the script that called csalock has ended, and others have had {self} since"
        );
        let hint = "take it again before you read and write; use setsid(1) for a write that no script waits for";
        self.report(ErrorKind::NotOwner, message, hint, holders)
    }

    /// Returns the report about a writer that must hold the lock, which has no holder.
    pub fn not_held_by_writer(&self) -> RefusalReport {
        let hint = format!("take it first with `csalock get --lock {}`", self.lock.shell_arg);
        self.report(ErrorKind::NotHeld, format!("nothing was written, because {self} is not held"), hint, &[])
    }
}

/// Returns version and size of a value.
pub fn describe_value(value: &Value) -> String {
    let plural = if value.size == 1 { "" } else { "s" };
    format!("version {} and {} byte{plural}", value.version.unwrap_or_default(), value.size)
}
