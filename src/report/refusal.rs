//! Messages about refusals: a lock that was not acquired, renewed or released, and a value that was not written.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Reporter;
use crate::engine::LockRef;
use crate::error::ErrorKind;
use crate::lock::{Edge, EndedGrant, Grant, NotHolder, Refusal, Value};
use crate::name::{escape, shell_quote};

/// A lock whose holders or whose state refused a request.
pub struct RefusedLock<'a> {
    lock: &'a LockRef,
    reporter: &'a Reporter<'a>,
    /// The option or variable that sets the timeout of the caller.
    pub timeout_setting: &'static str,
    /// The option or variable with which the caller presents a handle.
    pub handle_setting: &'static str,
    /// The handle that the caller presented, in words.
    pub presented: Option<&'static str>,
}

/// Messages about the lock itself.
impl<'a> RefusedLock<'a> {
    /// Creates the subject of a refusal, for a caller with the options `-w` and `--handle`.
    pub fn new(lock: &'a LockRef, reporter: &'a Reporter<'a>) -> RefusedLock<'a> {
        RefusedLock { lock, reporter, timeout_setting: "-w", handle_setting: "--handle", presented: None }
    }

    /// Returns the message and the kind for a lock that was not acquired.
    pub fn refusal(&self, refusal: &Refusal) -> (String, ErrorKind) {
        match refusal {
            Refusal::Busy(holders) => (self.busy(holders), ErrorKind::Busy),
            Refusal::Claimed(claim) => (self.busy(std::slice::from_ref(claim)), ErrorKind::NotUnique),
            Refusal::Stale(endings) => (self.stale(endings), ErrorKind::Stale),
            Refusal::Deadlock(cycle) => (self.deadlock(cycle), ErrorKind::Deadlock),
            Refusal::SlotCountConflict(slots) => (self.slot_count_conflict(*slots), ErrorKind::InvalidInput),
            Refusal::Lost(not_holder) => self.not_holder(not_holder),
        }
    }

    /// Returns the message and the kind for a lock that the caller does not hold.
    pub fn not_holder(&self, NotHolder { holders, ending }: &NotHolder) -> (String, ErrorKind) {
        match (holders.as_slice(), ending, self.presented) {
            ([], Some(ending), _) => (self.not_held_any_more(ending), ErrorKind::NotHeld),
            ([], None, _) => (self.not_held(), ErrorKind::NotHeld),
            (holders, None, Some(handle)) if holders.iter().all(|grant| grant.claim.is_none()) => {
                (self.other_handle(handle, holders), ErrorKind::NotOwner)
            }
            (holders, ending, _) => (self.not_owner(holders, ending.as_ref()), ErrorKind::NotOwner),
        }
    }

    /// Returns the message for a lock with these holders, or with other callers in its queue.
    pub fn busy(&self, holders: &[Grant]) -> String {
        let (timeout, typed) = (self.timeout_setting, &self.lock.shell_arg);
        let wait = || format!("wait longer with {timeout}, or see `csalock status {typed}`");
        let hint = self.how_to_unclaim(holders).unwrap_or_else(wait);
        format!("{self} is busy: {}; {hint}", self.holders(holders))
    }

    fn stale(&self, endings: &[EndedGrant]) -> String {
        let endings = join(endings.iter().map(|ending| self.reporter.ending(ending)));
        format!(
            "{self} is stale: it was left by {endings}; take it over without --fail-on-stale, or remove it with \
             `csalock unlock --force {}`",
            self.lock.shell_arg
        )
    }

    /// Returns the message for a wait that would close this cycle. A cycle of one edge is the caller's own lock.
    fn deadlock(&self, cycle: &[Edge]) -> String {
        if let [own] = cycle {
            return format!(
                "{self}: waiting would never end, because the caller holds it: {}; release it first with `csalock \
                 unlock {}`",
                self.reporter.holder(&own.grant),
                self.lock.shell_arg
            );
        }
        let LockRef { name, display_name, .. } = self.lock;
        let directory = &display_name[..display_name.len() - name.len()];
        let held = |edge: &Edge| {
            let name = escape(&[directory, &edge.name].concat());
            format!("lock {name} is held by {}", self.reporter.holder(&edge.grant))
        };
        let cycle = cycle.iter().map(held).collect::<Vec<_>>().join(", which waits: ");
        format!(
            "{self}: waiting would never end: {cycle}, the caller; release what you hold and try again, or acquire \
             all of them at once"
        )
    }

    fn slot_count_conflict(&self, slots: u32) -> String {
        format!("{self} has {slots} slots, by the word of its holders and waiters; use -j {slots}")
    }

    fn not_held_any_more(&self, ending: &EndedGrant) -> String {
        let ending = self.reporter.ending(ending);
        format!("{self} is not held any more: it was held by {ending}; take it again with `csalock lock`")
    }

    fn not_held(&self) -> String {
        let name = Path::new(OsStr::from_bytes(&self.lock.display_name));
        // The bare name of a file means another lock than the file's path.
        let is_file = name.components().count() == 1 && name.exists();
        let path = if is_file { format!("; the lock of the file is ./{}", self.shown()) } else { String::new() };
        format!("{self} is not held; see `csalock status {}`{path}", self.lock.shell_arg)
    }

    /// Returns the message for a lock that only other callers hold, and for the end of the caller's own grant.
    fn not_owner(&self, holders: &[Grant], ending: Option<&EndedGrant>) -> String {
        let before = ending.map(|ending| format!("; before, it was held by {}", self.reporter.ending(ending)));
        let hint = self.how_to_unclaim(holders).unwrap_or_else(|| {
            let show = format!("show its handle with {}", self.handle_setting);
            format!("{show}, or break it with `csalock unlock --force {}`", self.lock.shell_arg)
        });
        format!("{self} belongs to another holder: {}{}; {hint}", self.holders(holders), before.unwrap_or_default())
    }

    /// Returns the message for a lock whose holders have another handle than the one that the caller gave.
    fn other_handle(&self, handle: &str, holders: &[Grant]) -> String {
        let (held, typed) = (self.each(holders), &self.lock.shell_arg);
        format!(
            "{self} was not taken with {handle}: {held}; show the handle that `csalock lock` printed for it, or \
             none if your script took it; or break it with `csalock unlock --force {typed}`"
        )
    }

    /// Returns the message for a lock whose holders have other tokens than the one that the caller named.
    pub fn other_token(&self, holders: &[Grant], token: u64) -> String {
        let held = join(holders.iter().map(|grant| {
            format!("with token {} it is {}", grant.token.unwrap_or_default(), self.reporter.holding(grant))
        }));
        format!("{self} is not held with token {token}: {held}; check `csalock status {}`", self.lock.shell_arg)
    }

    fn shown(&self) -> String {
        escape(&self.lock.display_name)
    }

    fn holders(&self, grants: &[Grant]) -> String {
        match grants {
            [] => "no process holds it, but other waiters came first".to_string(),
            _ => self.each(grants),
        }
    }

    fn each(&self, grants: &[Grant]) -> String {
        join(grants.iter().map(|grant| self.reporter.holding(grant)))
    }

    /// Returns a hint if the lock is claimed.
    fn how_to_unclaim(&self, grants: &[Grant]) -> Option<String> {
        let id = grants.first()?.claim.as_ref()?;
        Some(format!("to give it up, say `csalock unclaim --id {} {}`", shell_quote(id), self.lock.shell_arg))
    }
}

/// Messages about the value that the lock guards.
impl RefusedLock<'_> {
    /// Returns the message for a value that exists although it must not.
    pub fn value_exists(&self, value: &Value) -> String {
        let (value, typed) = (describe_value(value), &self.lock.shell_arg);
        format!("{self} guards a value already, with {value}; see it with `csalock get {typed}`")
    }

    /// Returns the message for a value that is not at the version that it must have.
    pub fn version_mismatch(&self, value: Option<&Value>, expected: u64) -> String {
        let has = value.map_or("there is none".to_string(), |value| format!("it has {}", describe_value(value)));
        format!(
            "the value of {self} is not at version {expected} any more: {has}; read it again with `csalock get {}`",
            self.lock.shell_arg
        )
    }

    /// Returns the message for a writer that shares the lock with these holders.
    pub fn shared(&self, others: &[Grant]) -> String {
        let others = self.each(others);
        format!("nothing was written, because you share {self}: {others}; release it, and acquire it exclusively")
    }

    /// Returns the message for a value that does not exist.
    pub fn no_value(&self) -> String {
        format!("{self} guards no value")
    }

    /// Returns the message for a writer whose grant ended, and whose lock these holders have. `even_if_stale` means
    /// that the option of this name may help.
    pub fn writer_lost_it(&self, holders: &[Grant], ending: &EndedGrant, even_if_stale: bool) -> String {
        let ending = self.reporter.ending(ending);
        let now = holders.first().map(|grant| format!(", and is now held by {}", self.reporter.holder(grant)));
        let or = if even_if_stale { ", or say --even-if-stale, if no other caller has had it since" } else { "" };
        format!(
            "nothing was written, because {self} was held by {ending}{}; take it again before you read and write{or}",
            now.unwrap_or_default()
        )
    }

    /// Returns the message for a writer that must hold the lock, which has no holder.
    pub fn not_held_by_writer(&self) -> String {
        let typed = &self.lock.shell_arg;
        format!("nothing was written, because {self} is not held; take it first with `csalock get --lock {typed}`")
    }
}

/// Writes the word "lock" and the name for display.
impl fmt::Display for RefusedLock<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lock {}", self.shown())
    }
}

/// Returns version and size of a value.
pub fn describe_value(value: &Value) -> String {
    let plural = if value.size == 1 { "" } else { "s" };
    format!("version {} and {} byte{plural}", value.version.unwrap_or_default(), value.size)
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join("; and ")
}
