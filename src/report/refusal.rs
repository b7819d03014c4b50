//! Refusals and errors in words: a lock that was not acquired, renewed or released, and a value that was not written.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{FileLocks, Reporter};
use engine::{LockRef, environment};
use lock::error::{Error, ErrorKind};
use lock::name::{escape, shell_quote};
use lock::{Edge, EndReason, EndedGrant, Grant, Lifetime, Mode, NotHolder, Refusal, Successor, Value, WriteRefusal};

/// A refusal or an error: the lock, the problem, the next step, and the holders that stand in the way.
#[derive(Debug, Clone)]
pub(crate) struct RefusalReport {
    pub(crate) kind: ErrorKind,
    /// Name for display, if the report is about one lock.
    pub(crate) lock: Option<Vec<u8>>,
    pub(crate) message: String,
    /// Empty if there is no next step.
    pub(crate) hint: String,
    /// Grants of other holders, or those that ended.
    pub(crate) holders: Vec<Grant>,
}

impl RefusalReport {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>, hint: impl Into<String>) -> RefusalReport {
        let holders = Vec::new();
        RefusalReport { kind, lock: None, message: message.into(), hint: hint.into(), holders }
    }

    pub(crate) fn about(self, lock: &[u8]) -> RefusalReport {
        RefusalReport { lock: Some(lock.to_vec()), ..self }
    }

    /// Adds the processes that have locked the file of the lock, from [`Reporter::file_lock`].
    pub(crate) fn add_file_lock(&mut self, file: Option<&FileLocks>) {
        if let Some(file) = file {
            self.message.push_str(&format!("; its file is {file}"));
        }
    }
}

impl From<&Error> for RefusalReport {
    fn from(error: &Error) -> RefusalReport {
        RefusalReport::new(error.kind(), error.message(), error.hint())
    }
}

impl fmt::Display for RefusalReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::new(self.kind, &self.message, &self.hint).fmt(formatter)
    }
}

pub(crate) struct RefusedLock<'a> {
    lock: &'a LockRef,
    reporter: &'a Reporter<'a>,
    pub(crate) settings: &'static SettingNames,
    /// The caller wants to release the lock.
    pub(crate) is_unlocked: bool,
    /// A handle in words.
    pub(crate) presented: Option<&'static str>,
    /// Is held, and the caller may mean it.
    pub(crate) similar: Option<LockRef>,
    /// Other processes that have locked the file of the lock, for which its holders may wait.
    pub(crate) file: Option<FileLocks>,
}

/// How to release a lock of `lock --fd`.
const OF_DESCRIPTOR: &str = "close its descriptor N, or release it with `csalock unlock --fd N`";

pub(crate) fn is_of_descriptor(grant: &Grant) -> bool {
    matches!(grant.lifetime, Lifetime::Descriptor(_))
}

/// Hints name options, or variables for a caller without options.
pub(crate) struct SettingNames {
    timeout: &'static str,
    handle: &'static str,
    reentrant: &'static str,
}

impl SettingNames {
    pub(crate) const OPTIONS: SettingNames =
        SettingNames { timeout: "-w", handle: "--handle", reentrant: ", or give it --reentrant" };
    pub(crate) const VARIABLES: SettingNames =
        SettingNames { timeout: "CSALOCK_TIMEOUT", handle: "CSALOCK_HANDLE", reentrant: "" };
}

impl<'a> RefusedLock<'a> {
    pub(crate) fn new(lock: &'a LockRef, reporter: &'a Reporter<'a>) -> RefusedLock<'a> {
        let settings = &SettingNames::OPTIONS;
        RefusedLock { lock, reporter, settings, is_unlocked: false, presented: None, similar: None, file: None }
    }

    pub(crate) fn refusal(&self, refusal: &Refusal) -> RefusalReport {
        match refusal {
            Refusal::Busy(holders) => self.busy(holders),
            Refusal::Claimed(claim) => {
                RefusalReport { kind: ErrorKind::NotUnique, ..self.busy(std::slice::from_ref(claim)) }
            }
            Refusal::Stale(endings) => {
                let grants: Vec<Grant> = endings.iter().map(|ending| ending.grant.clone()).collect();
                let endings = join(endings.iter().map(|ending| self.reporter.ending(ending)));
                let hint = format!("take it over without --fail-on-stale, or remove it with {}", self.force());
                self.report(ErrorKind::Stale, format!("{self} is stale: it was left by {endings}"), hint, &grants)
            }
            Refusal::Deadlock(cycle) => self.deadlock(cycle),
            Refusal::Replaced(successor) => self.replaced(successor.as_deref()),
            Refusal::Lost => self.not_held(),
        }
    }

    pub(crate) fn not_holder(&self, NotHolder { holders, ending, stale, .. }: &NotHolder) -> RefusalReport {
        match (holders.as_slice(), ending.as_ref().or(stale.as_ref()), self.presented) {
            ([], Some(ending), _) => {
                let message = format!("{self} is not held any more: it was held by {}", self.reporter.ending(ending));
                let hint = format!("take it again with {}", self.csalock("lock"));
                self.report(ErrorKind::NotHeld, message, hint, &[])
            }
            ([], None, _) => self.not_held(),
            (holders, None, Some(handle)) if holders.iter().all(|grant| grant.claim.is_none()) => {
                self.other_handle(handle, holders)
            }
            (holders, ending, _) => self.not_owner(holders, ending),
        }
    }

    /// `expected` is the version that the value must have; if `unlocks`, the option --even-if-stale may help.
    pub(crate) fn not_written(&self, refusal: &WriteRefusal, expected: Option<u64>, unlocks: bool) -> RefusalReport {
        match refusal {
            WriteRefusal::Busy(holders) => self.busy(holders),
            WriteRefusal::VersionMismatch(value) => self.version_mismatch(value.as_ref(), expected),
            WriteRefusal::Shared(others) => {
                let message = format!("nothing was written, because you share {self}: {}", self.each(others));
                self.report(ErrorKind::Busy, message, "release it, and acquire it exclusively", others)
            }
            WriteRefusal::NoValue => self.no_value(),
            WriteRefusal::Orphaned(holders) => {
                let message = format!(
                    "nothing was written, because the script that called csalock has ended, and others have had \
                     {self} since"
                );
                let hint =
                    "take it again before you read and write; use setsid(1) for a write that no script waits for";
                self.report(ErrorKind::NotOwner, message, hint, holders)
            }
            WriteRefusal::NotHolder(NotHolder { holders, .. }) if holders.is_empty() => {
                let hint = format!("take it first with {}", self.csalock("get --lock"));
                self.report(ErrorKind::NotHeld, format!("nothing was written, because {self} is not held"), hint, &[])
            }
            WriteRefusal::Lost(holders, ending)
            | WriteRefusal::NotHolder(NotHolder { holders, ending: Some(ending), .. }) => {
                self.lost_before_write(holders, ending, unlocks)
            }
            WriteRefusal::NotHolder(not_holder) => self.not_holder(not_holder),
        }
    }

    fn busy(&self, holders: &[Grant]) -> RefusalReport {
        let hint = self.how_to_unclaim(holders).unwrap_or_else(|| {
            let or = if holders.iter().all(|grant| self.reporter.ends_by_itself(grant)) {
                format!("see {}", self.csalock("status"))
            } else {
                format!("break it with {} if it is not needed any more", self.force())
            };
            format!("wait longer with {}, or {or}", self.settings.timeout)
        });
        let holding = match holders {
            [] => "no process holds it now, but the turn of this caller did not come in time".to_string(),
            _ => self.each(holders),
        };
        self.report(ErrorKind::Busy, format!("{self} is busy: {holding}"), hint, holders)
    }

    /// A cycle of one edge is the caller's own lock.
    fn deadlock(&self, cycle: &[Edge]) -> RefusalReport {
        let LockRef { name, display_name, .. } = self.lock;
        let of_this_lock = cycle.iter().filter(|edge| edge.name == *name);
        let holders: Vec<Grant> = of_this_lock.map(|edge| edge.grant.clone()).collect();
        if let [own] = cycle {
            let held = self.reporter.holder(&own.grant);
            let message = format!("{self}: the caller holds it already, so waiting would never end: {held}");
            let hint = match own.grant.owner.supervisor {
                None if is_of_descriptor(&own.grant) => OF_DESCRIPTOR.to_string(),
                None if own.grant.mode != Mode::Exclusive => {
                    format!("release it first with {}", self.csalock("unlock"))
                }
                _ => format!("leave this call out{}", self.settings.reentrant),
            };
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

    fn replaced(&self, successor: Option<&Successor>) -> RefusalReport {
        let by = successor.map(|Successor { owner, since, waits }| {
            let who = self.reporter.party(owner);
            let what = if *waits { "has waited" } else { "has held the lock" };
            format!(": {who} {what} since {}: {}", self.reporter.time(*since), escape(&owner.command))
        });
        let message = format!("{self}: a newer caller has taken the place in the queue{}", by.unwrap_or_default());
        self.report(ErrorKind::Busy, message, format!("nothing was run; see {}", self.csalock("status")), &[])
    }

    fn not_held(&self) -> RefusalReport {
        let see = match &self.similar {
            Some(LockRef { display_name, shell_arg, .. }) => {
                let name = escape(display_name);
                format!("check the name, because lock {name} is held: see `csalock status {shell_arg}`")
            }
            None => format!("see {}", self.csalock("status")),
        };
        let hint = match self.lock_of_file() {
            Some(file) => format!("{see}; {file}"),
            None => see,
        };
        self.report(ErrorKind::NotHeld, format!("{self} is not held"), hint, &[])
    }

    /// A hint, if the caller may mean the lock of the file of this name.
    pub(crate) fn lock_of_file(&self) -> Option<String> {
        let name = Path::new(OsStr::from_bytes(&self.lock.display_name));
        // The bare name of a file means another lock than the file's path.
        let is_file = name.components().count() == 1 && name.exists();
        is_file.then(|| format!("the lock of the file is ./{}", escape(&self.lock.display_name)))
    }

    /// `ending` is that of the caller's own grant.
    fn not_owner(&self, holders: &[Grant], ending: Option<&EndedGrant>) -> RefusalReport {
        let before = ending.map(|ending| format!("; before, it was held by {}", self.reporter.ending(ending)));
        let of_descriptor = holders.iter().all(is_of_descriptor).then(|| OF_DESCRIPTOR.to_string());
        let hint = self.how_to_unclaim(holders).or(of_descriptor).unwrap_or_else(|| {
            let handle = format!("give its handle with {}", self.settings.handle);
            let (end, trap) =
                (self.how_to_end(holders), if self.is_unlocked { "set the trap after the lock, or " } else { "" });
            match self.how_to_break(holders).or_else(|| end.clone()) {
                Some(or) if ending.is_some() || end.is_none() => format!("{handle}, or {or}"),
                None if ending.is_some() => format!("{handle}, or wait until it is released"),
                _ => format!("this script never had it; {trap}{handle}"),
            }
        });
        let held = self.each(holders) + &before.unwrap_or_default();
        self.report(ErrorKind::NotOwner, format!("{self} belongs to another holder: {held}"), hint, holders)
    }

    fn other_handle(&self, handle: &str, holders: &[Grant]) -> RefusalReport {
        let message = format!("{self} was not taken with {handle}: {}", self.each(holders));
        let or = self.how_to_break(holders).map(|or| format!("; or {or}")).unwrap_or_default();
        let hint = format!(
            "give the handle that `csalock lock --print-handle` printed for it, or none if your script took it{or}"
        );
        self.report(ErrorKind::NotOwner, message, hint, holders)
    }

    pub(crate) fn other_token(&self, holders: &[Grant], token: u64) -> RefusalReport {
        let held = join(holders.iter().map(|grant| {
            format!("with token {} it is {}", grant.token.unwrap_or_default(), self.reporter.holding(grant))
        }));
        let message = format!("{self} is not held with token {token}: {held}");
        self.report(ErrorKind::NotHeld, message, format!("check {}", self.csalock("status")), holders)
    }

    pub(crate) fn changed_hands(&self, holders: &[Grant]) -> RefusalReport {
        let message = format!("{self} has changed hands meanwhile: {}", self.each(holders));
        let hint = format!("check {}, and use --force again to break that too", self.csalock("status"));
        self.report(ErrorKind::NotOwner, message, hint, holders)
    }

    pub(crate) fn not_claimed(&self, id: &[u8], holders: &[Grant]) -> RefusalReport {
        let name = name_and_store(self.lock);
        let (kind, message) = match holders {
            [] => (ErrorKind::NotHeld, format!("{name} is not claimed")),
            _ => {
                let held = self.each(holders);
                (ErrorKind::NotOwner, format!("{name} is not claimed under id {}: {held}", escape(id)))
            }
        };
        self.report(kind, message, "nothing was given up", holders)
    }

    fn version_mismatch(&self, value: Option<&Value>, expected: Option<u64>) -> RefusalReport {
        if let (Some(value), None) = (value, expected) {
            let message = format!("{self} guards a value already, with {}", describe_value(value));
            return self.report(ErrorKind::NotUnique, message, format!("see it with {}", self.csalock("get")), &[]);
        }
        let expected = expected.unwrap_or_default();
        let has = value.map_or("there is none".to_string(), |value| format!("it has {}", describe_value(value)));
        let message = format!("the value of {self} is not at version {expected} any more: {has}");
        self.report(ErrorKind::Stale, message, format!("read it again with {}", self.csalock("get")), &[])
    }

    pub(crate) fn no_value(&self) -> RefusalReport {
        self.report(ErrorKind::NotHeld, format!("{self} guards no value"), "", &[])
    }

    fn lost_before_write(&self, holders: &[Grant], ending: &EndedGrant, unlocks: bool) -> RefusalReport {
        let may_help = unlocks && ending.reason != EndReason::Broken;
        let ending = self.reporter.ending(ending);
        let now = holders.first().map(|grant| format!(", and is now held by {}", self.reporter.holder(grant)));
        let message = format!("nothing was written, because {self} was held by {ending}{}", now.unwrap_or_default());
        let or = if may_help { ", or use --even-if-stale, if no other caller has had it since" } else { "" };
        self.report(ErrorKind::NotOwner, message, format!("take it again before you read and write{or}"), holders)
    }

    fn report(&self, kind: ErrorKind, message: String, hint: impl Into<String>, holders: &[Grant]) -> RefusalReport {
        let holders = holders.to_vec();
        RefusalReport { holders, ..RefusalReport::new(kind, message, hint).about(&self.lock.display_name) }
    }

    fn each(&self, grants: &[Grant]) -> String {
        join(grants.iter().map(|grant| self.reporter.holding(grant)))
    }

    fn csalock(&self, command: &str) -> String {
        format!("`csalock {command} {}`", self.lock.shell_arg)
    }

    fn force(&self) -> String {
        self.csalock("unlock --force")
    }

    fn how_to_unclaim(&self, grants: &[Grant]) -> Option<String> {
        let id = shell_quote(grants.first()?.claim.as_ref()?);
        Some(format!("to give it up, use {}", self.csalock(&format!("unclaim --id {id}"))))
    }

    /// `None` if all holders are seen alive here, and none keeps the lock until it is released.
    fn how_to_break(&self, grants: &[Grant]) -> Option<String> {
        let may_be_needed = grants.iter().any(|grant| self.reporter.may_need_force(grant));
        may_be_needed.then(|| self.how_to_end(grants).unwrap_or_else(|| format!("break it with {}", self.force())))
    }

    /// `None` if that is not possible from here. An end is better than a break, after which a holder
    /// may go on beside the next. While another process has locked the file, the end of a holder would free nothing.
    fn how_to_end(&self, grants: &[Grant]) -> Option<String> {
        let holder = if grants.len() == 1 { "holder" } else { "holders" };
        let are_reached = grants.iter().all(|grant| self.reporter.can_be_ended(grant));
        are_reached.then(|| match &self.file {
            Some(file) => file.how_to_free(),
            None => format!("end its {holder} with {}", self.csalock("unlock --force --end")),
        })
    }
}

impl fmt::Display for RefusedLock<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lock {}", name_and_store(self.lock))
    }
}

pub(crate) fn describe_value(value: &Value) -> String {
    let plural = if value.size == 1 { "" } else { "s" };
    format!("version {} and {} byte{plural}", value.version.unwrap_or_default(), value.size)
}

/// Omits a store that is obvious: the default store, and the store beside the file.
pub(crate) fn name_and_store(LockRef { location, name, display_name, .. }: &LockRef) -> String {
    let shown = escape(display_name);
    let is_beside_file = location.is_beside() && name != display_name;
    if is_beside_file || environment::default_store().is_ok_and(|store| store.place() == location.place()) {
        return shown;
    }
    format!("{shown} in store {}", escape(location.url().as_bytes()))
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join("; and ")
}
