//! Messages about refusals: a lock that was not acquired, renewed or released.

mod value;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

pub use self::value::describe_value;
use super::{RefusalReport, Reporter};
use crate::engine::LockRef;
use crate::environment::Environment;
use crate::error::ErrorKind;
use crate::lock::{Edge, EndedGrant, Grant, NotHolder, Refusal, Successor};
use crate::name::{escape, shell_quote};
use crate::store::Location;

/// A lock whose holders or whose state refused a request.
pub struct RefusedLock<'a> {
    lock: &'a LockRef,
    reporter: &'a Reporter<'a>,
    /// The settings that hints name.
    pub settings: &'static Settings,
    /// The handle that the caller presented, in words.
    pub presented: Option<&'static str>,
    /// Another store that has a lock of this name, which the caller may mean.
    pub elsewhere: Option<Location>,
}

/// The settings of a caller that hints name: options, or variables for a caller without options.
#[derive(Debug)]
pub struct Settings {
    /// Sets the timeout.
    timeout: &'static str,
    /// Presents a handle.
    handle: &'static str,
    /// Chooses the store whose URL follows.
    store: &'static str,
}

impl Settings {
    /// The options.
    pub const OPTIONS: Settings = Settings { timeout: "-w", handle: "--handle", store: "use --store " };

    /// The variables.
    pub const VARIABLES: Settings =
        Settings { timeout: "CSALOCK_TIMEOUT", handle: "CSALOCK_HANDLE", store: "set CSALOCK_STORE=" };
}

/// Messages about the lock itself.
impl<'a> RefusedLock<'a> {
    /// Creates the subject of a refusal, for a caller that sets options.
    pub fn new(lock: &'a LockRef, reporter: &'a Reporter<'a>) -> RefusedLock<'a> {
        RefusedLock { lock, reporter, settings: &Settings::OPTIONS, presented: None, elsewhere: None }
    }

    /// Returns the report about a lock that was not acquired.
    pub fn refusal(&self, refusal: &Refusal) -> RefusalReport {
        match refusal {
            Refusal::Busy(holders) => self.busy(holders),
            Refusal::Claimed(claim) => {
                RefusalReport { kind: ErrorKind::NotUnique, ..self.busy(std::slice::from_ref(claim)) }
            }
            Refusal::Stale(endings) => self.stale(endings),
            Refusal::Deadlock(cycle) => self.deadlock(cycle),
            Refusal::SlotCountConflict(slots) => self.slot_count_conflict(*slots),
            Refusal::Replaced(successor) => self.replaced(successor.as_deref()),
            Refusal::Lost(not_holder) => self.not_holder(not_holder),
        }
    }

    /// Returns the report about a lock that the caller does not hold.
    pub fn not_holder(&self, NotHolder { holders, ending, stale, .. }: &NotHolder) -> RefusalReport {
        match (holders.as_slice(), ending.as_ref().or(stale.as_ref()), self.presented) {
            ([], Some(ending), _) => self.not_held_any_more(ending),
            ([], None, _) => self.not_held(),
            (holders, None, Some(handle)) if holders.iter().all(|grant| grant.claim.is_none()) => {
                self.other_handle(handle, holders)
            }
            (holders, ending, _) => self.not_owner(holders, ending),
        }
    }

    /// Returns the report about a lock with these holders, or with other callers in its queue.
    pub fn busy(&self, holders: &[Grant]) -> RefusalReport {
        let (timeout, typed) = (self.settings.timeout, &self.lock.shell_arg);
        let wait = || match holders.iter().any(|grant| !self.reporter.ends_by_itself(grant)) {
            false => format!("wait longer with {timeout}, or see `csalock status {typed}`"),
            true => format!(
                "wait longer with {timeout}, or break it with `csalock unlock --force {typed}` if it is not needed any \
                 more"
            ),
        };
        let hint = self.how_to_unclaim(holders).unwrap_or_else(wait);
        self.report(ErrorKind::Busy, format!("{self} is busy: {}", self.holders(holders)), hint, holders)
    }

    fn stale(&self, endings: &[EndedGrant]) -> RefusalReport {
        let grants: Vec<Grant> = endings.iter().map(|ending| ending.grant.clone()).collect();
        let endings = join(endings.iter().map(|ending| self.reporter.ending(ending)));
        let hint = format!(
            "take it over without --fail-on-stale, or remove it with `csalock unlock --force {}`",
            self.lock.shell_arg
        );
        self.report(ErrorKind::Stale, format!("{self} is stale: it was left by {endings}"), hint, &grants)
    }

    /// Returns the report about a wait that would close this cycle. A cycle of one edge is the caller's own lock.
    fn deadlock(&self, cycle: &[Edge]) -> RefusalReport {
        let LockRef { name, display_name, shell_arg, .. } = self.lock;
        let of_this_lock = cycle.iter().filter(|edge| edge.name == *name);
        let holders: Vec<Grant> = of_this_lock.map(|edge| edge.grant.clone()).collect();
        if let [own] = cycle {
            let held = self.reporter.holder(&own.grant);
            let message = format!("{self}: the caller holds it already, so waiting would never end: {held}");
            let hint = format!("release it first with `csalock unlock {shell_arg}`");
            return self.report(ErrorKind::Deadlock, message, hint, &holders);
        }
        let directory = &display_name[..display_name.len() - name.len()];
        let held = |edge: &Edge| {
            let name = escape(&[directory, &edge.name].concat());
            format!("lock {name} is held by {}", self.reporter.holder(&edge.grant))
        };
        let cycle = cycle.iter().map(held).collect::<Vec<_>>().join(", which waits: ");
        let message = format!("{self}: waiting would never end: {cycle}, the caller");
        let hint = "release what you hold and try again, or acquire all of them at once";
        self.report(ErrorKind::Deadlock, message, hint, &holders)
    }

    /// Returns the report about a place in the queue that a newer caller has.
    fn replaced(&self, successor: Option<&Successor>) -> RefusalReport {
        let by = match successor {
            None => "a newer caller has taken the place in the queue".to_string(),
            Some(Successor { owner, since, waits }) => format!(
                "a newer caller has taken the place in the queue: {} {} since {}: {}",
                self.reporter.party(owner),
                if *waits { "has waited" } else { "has held the lock" },
                self.reporter.zone.full(Duration::from_millis(*since)),
                escape(&owner.command)
            ),
        };
        let hint = format!("nothing was run; see `csalock status {}`", self.lock.shell_arg);
        self.report(ErrorKind::Busy, format!("{self}: {by}"), hint, &[])
    }

    fn slot_count_conflict(&self, slots: u32) -> RefusalReport {
        let message = format!("{self} has {slots} slots, by the word of its holders and waiters");
        self.report(ErrorKind::InvalidInput, message, format!("use -j {slots}"), &[])
    }

    fn not_held_any_more(&self, ending: &EndedGrant) -> RefusalReport {
        let message = format!("{self} is not held any more: it was held by {}", self.reporter.ending(ending));
        self.report(
            ErrorKind::NotHeld,
            message,
            format!("take it again with `csalock lock {}`", self.lock.shell_arg),
            &[],
        )
    }

    fn not_held(&self) -> RefusalReport {
        let see = || format!("see `csalock status {}`", self.lock.shell_arg);
        let hint = match (self.other_locks(), &self.elsewhere) {
            (Some(others), None) => format!("{}; {others}", see()),
            (others, _) => others.unwrap_or_else(see),
        };
        self.report(ErrorKind::NotHeld, format!("{self} is not held"), hint, &[])
    }

    /// Returns a hint if the caller may mean another lock: in another store, or that of the file of this name.
    pub fn other_locks(&self) -> Option<String> {
        let name = Path::new(OsStr::from_bytes(&self.lock.display_name));
        // The bare name of a file means another lock than the file's path.
        let is_file = name.components().count() == 1 && name.exists();
        let in_store = self.elsewhere.as_ref().map(|location| {
            let (store, url) = (shown_store(location), shell_quote(location.url().as_bytes()));
            format!("store {store} has a lock of this name: {}{url}", self.settings.store)
        });
        let of_file = is_file.then(|| format!("the lock of the file is ./{}", self.shown()));
        let hints: Vec<String> = in_store.into_iter().chain(of_file).collect();
        (!hints.is_empty()).then(|| hints.join("; "))
    }

    /// Returns the report about a lock that only other callers hold, and about the end of the caller's own grant.
    fn not_owner(&self, holders: &[Grant], ending: Option<&EndedGrant>) -> RefusalReport {
        let before = ending.map(|ending| format!("; before, it was held by {}", self.reporter.ending(ending)));
        let hint = self.how_to_unclaim(holders).unwrap_or_else(|| {
            let or = self.how_to_break(holders).unwrap_or_else(|| "wait until it is released".to_string());
            format!("give its handle with {}, or {or}", self.settings.handle)
        });
        let message =
            format!("{self} belongs to another holder: {}{}", self.holders(holders), before.unwrap_or_default());
        self.report(ErrorKind::NotOwner, message, hint, holders)
    }

    /// Returns the report about a lock whose holders have another handle than the one that the caller gave.
    fn other_handle(&self, handle: &str, holders: &[Grant]) -> RefusalReport {
        let message = format!("{self} was not taken with {handle}: {}", self.each(holders));
        let or = self.how_to_break(holders).map(|or| format!("; or {or}")).unwrap_or_default();
        let hint = format!(
            "give the handle that `csalock lock --print-handle` printed for it, or none if your script took it{or}"
        );
        self.report(ErrorKind::NotOwner, message, hint, holders)
    }

    /// Returns the report about a lock whose holders have other tokens than the one that the caller named.
    pub fn other_token(&self, holders: &[Grant], token: u64) -> RefusalReport {
        let held = join(holders.iter().map(|grant| {
            format!("with token {} it is {}", grant.token.unwrap_or_default(), self.reporter.holding(grant))
        }));
        let hint = format!("check `csalock status {}`", self.lock.shell_arg);
        self.report(ErrorKind::NotHeld, format!("{self} is not held with token {token}: {held}"), hint, holders)
    }

    /// Returns the report of `unlock --force` about a lock whose holders came after it had looked at the lock.
    pub fn changed_hands(&self, holders: &[Grant]) -> RefusalReport {
        let (held, typed) = (self.each(holders), &self.lock.shell_arg);
        let hint = format!("check `csalock status {typed}`, and use --force again to break that too");
        self.report(ErrorKind::NotOwner, format!("{self} has changed hands meanwhile: {held}"), hint, holders)
    }

    fn report(&self, kind: ErrorKind, message: String, hint: impl Into<String>, holders: &[Grant]) -> RefusalReport {
        let lock = Some(self.lock.display_name.clone());
        RefusalReport { lock, holders: holders.to_vec(), ..RefusalReport::new(kind, message, hint) }
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
        Some(format!("to give it up, use `csalock unclaim --id {} {}`", shell_quote(id), self.lock.shell_arg))
    }

    /// Returns a hint if no holder is seen alive here, or one keeps the lock until it is released.
    fn how_to_break(&self, grants: &[Grant]) -> Option<String> {
        let may_be_needed = grants.iter().any(|grant| self.reporter.may_need_force(grant));
        may_be_needed.then(|| format!("break it with `csalock unlock --force {}`", self.lock.shell_arg))
    }
}

/// Writes the word "lock", the name for display and, unless it is obvious, the store.
impl fmt::Display for RefusedLock<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lock {}", name_and_store(self.lock))
    }
}

/// Returns the name of a lock for display and, unless it is obvious, its store. The default store is obvious, and so is the
/// store beside the file.
pub fn name_and_store(LockRef { location, name, display_name, .. }: &LockRef) -> String {
    let shown = escape(display_name);
    let default = || Environment::of_this_process().default_store();
    match (location.is_beside() && name != display_name) || default().is_ok_and(|store| store.url() == location.url()) {
        true => shown,
        false => format!("{shown} in store {}", shown_store(location)),
    }
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join("; and ")
}

fn shown_store(location: &Location) -> String {
    escape(location.url().as_bytes())
}
