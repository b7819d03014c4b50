//! The words for holders, waiters and turns: process, host and user, since when, until when and why, and how grants end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::Zone;
use engine::{Engine, LockRef, LockStatus};
use host::{FileLock, Host, command_of, file_locks, user_name};
use lock::duration::shown as span;
use lock::name::escape;
use lock::{EndReason, EndedGrant, Grant, Lifetime, Liveness, Owner, ProcessId, Standing};
use store::Scope;

const MOST_NAMED: usize = 3;

/// A holder's grant, and the liveness of its owner or the reason why it has ended.
pub(super) type Holder<'a> = (&'a Grant, Standing);

/// Grants that hold the lock, or that ended without a release. The end of a script is one.
pub(super) fn holders(status: &LockStatus) -> Vec<Holder<'_>> {
    let all = status.record.holders.iter().zip(status.holders.iter().copied());
    let is_released = |(grant, standing): &Holder<'_>| {
        let how = standing.end_reason().map(|reason| grant.shown(reason));
        matches!(how, Some(EndReason::Released | EndReason::Ended))
    };
    all.filter(|holder| !is_released(holder)).collect()
}

/// True for a free lock without waiters and a value.
pub(crate) fn shows_nothing(status: &LockStatus) -> bool {
    let LockStatus { record, .. } = status;
    holders(status).is_empty() && record.waiters.is_empty() && record.pages.is_none() && record.value.is_none()
}

pub(super) fn waiting(status: &LockStatus) -> usize {
    status.waiters.iter().filter(|liveness| **liveness != Liveness::Dead).count()
}

pub(crate) struct Reporter<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) scope: Scope,
    pub(crate) zone: Zone,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Reporter<'a> {
        Reporter { host: engine.host(), scope: engine.store().scope(), zone: Zone::Local }
    }

    /// First one that is not dead: its life counts now.
    pub(crate) fn owner(&self, party: &Owner) -> Option<ProcessId> {
        let lives = |owner: &&ProcessId| self.host.liveness(&party.domain, owner, self.scope).may_live_here();
        party.processes.iter().find(lives).or(party.processes.last()).copied()
    }

    pub(super) fn liveness(&self, party: &Owner) -> Liveness {
        let owner = self.owner(party);
        owner.map_or(Liveness::Unknown, |owner| self.host.liveness(&party.domain, &owner, self.scope))
    }

    pub(super) fn time(&self, millis: u64) -> String {
        self.zone.full(Duration::from_millis(millis))
    }

    pub(super) fn age(&self, millis: u64) -> String {
        span(self.host.wall().saturating_sub(Duration::from_millis(millis)))
    }

    /// One line with process, host, start, end and command.
    pub(crate) fn holder(&self, grant: &Grant) -> String {
        self.grant(grant, &format!(", {}", self.until(grant)))
    }

    /// A clause: held or claimed, and by which holder.
    pub(crate) fn holding(&self, grant: &Grant) -> String {
        let Some(id) = &grant.claim else { return format!("held by {}", self.holder(grant)) };
        let who = shown_user(grant.owner.uid);
        let host = escape(grant.owner.host.as_bytes());
        format!("claimed permanently under id {}, by {who} on {host} since {}", escape(id), self.time(grant.since))
    }

    /// One line like [`Reporter::holder`], with this text in the place of the end.
    pub(crate) fn grant(&self, grant: &Grant, until: &str) -> String {
        let who = self.party(&grant.owner);
        let since = format!("since {} ({} ago)", self.time(grant.since), self.age(grant.since));
        let claim = grant.claim.as_ref().map(|id| format!(", claimed under id {}", escape(id))).unwrap_or_default();
        let label = grant.owner.label.as_ref().map(|label| format!(", for \"{}\"", escape(label))).unwrap_or_default();
        // A record keeps no command of a grant that has ended.
        let command = if grant.owner.command.is_empty() { "" } else { &format!(": {}", escape(&grant.owner.command)) };
        format!("{who} {since}{until}{claim}{label}{command}")
    }

    pub(crate) fn party(&self, party: &Owner) -> String {
        let pid = self.owner(party).map_or("a caller".to_string(), |owner| format!("pid {}", owner.pid));
        format!("{pid} on {} (user {})", escape(party.host.as_bytes()), shown_user(party.uid))
    }

    /// `None` if these holders have locked it: a holder may wait for that file. Slow on a host with many open files.
    pub(crate) fn file_lock(&self, lock: &LockRef, holders: &[Grant]) -> Option<FileLocks> {
        let path = Path::new(OsStr::from_bytes(&lock.display_name));
        if !path.is_absolute() {
            return None;
        }
        let processes = holders.iter().flat_map(|grant| grant.owner.processes.iter().chain(&grant.owner.supervisor));
        let own: Vec<i32> = processes.map(|process| process.pid).collect();
        let mut found = file_locks(path);
        found.retain(|(_, pids)| !pids.iter().any(|pid| own.contains(pid)));
        (!found.is_empty()).then(|| FileLocks::of(found))
    }

    pub(super) fn is_stopped(&self, grant: &Grant) -> bool {
        grant.claim.is_none() && self.liveness(&grant.owner) == Liveness::Stopped
    }

    pub(super) fn stopped(&self, grant: &Grant) -> &'static str {
        if self.host.is_abandoned(grant) { "stopped, and its csalock was killed" } else { "stopped" }
    }

    /// With its lease, or with an owner that is alive here.
    pub(super) fn ends_by_itself(&self, grant: &Grant) -> bool {
        match grant.lifetime {
            Lifetime::UntilReleased => grant.claim.is_some(),
            Lifetime::WhileOwnerLives => self.liveness(&grant.owner).is_seen_alive(),
            _ => true,
        }
    }

    /// A break may be right: the grant lasts until it is released, or its owner is not seen alive here.
    pub(super) fn may_need_force(&self, grant: &Grant) -> bool {
        let lasts = grant.lifetime == Lifetime::UntilReleased || !self.liveness(&grant.owner).is_seen_alive();
        grant.claim.is_none() && lasts
    }

    /// `unlock --force --end` ends a holder that is seen alive here, or renews a lease until it is asked.
    pub(super) fn can_be_ended(&self, grant: &Grant) -> bool {
        let is_renewed = matches!(grant.lifetime, Lifetime::Keepalive(_));
        let ends_with_owner = grant.claim.is_none() && grant.lifetime != Lifetime::UntilReleased;
        is_renewed || (ends_with_owner && self.liveness(&grant.owner).is_seen_alive())
    }

    /// A clause about a holder that the break of its grant did not end at once.
    pub(crate) fn left_by_break(&self, ending: &EndedGrant) -> Option<String> {
        let party = &ending.grant.owner;
        // A grant that lasts until it is released may be of a process that has handed it over.
        let depends = ending.reason == EndReason::Broken && ending.grant.lifetime != Lifetime::UntilReleased;
        let ends_command =
            |supervisor: &ProcessId| self.host.liveness(&party.domain, supervisor, self.scope).is_seen_alive();
        match (self.liveness(party), party.supervisor) {
            _ if !depends || ending.grant.claim.is_some() => None,
            (Liveness::Dead, _) => None,
            _ if party.outlives_lock => Some(self.not_stopped(party)),
            (Liveness::Alive | Liveness::Stopped, Some(supervisor)) if ends_command(&supervisor) => None,
            (Liveness::Unknown | Liveness::Missing, Some(_)) => Some(format!(
                "its command on {} goes on until csalock there notices the break, with its lease at the latest",
                escape(party.host.as_bytes())
            )),
            _ => Some(self.not_stopped(party)),
        }
    }

    pub(crate) fn not_stopped(&self, owner: &Owner) -> String {
        let why = if owner.outlives_lock { " (--on-lost warn)" } else { "" };
        format!("{} was not stopped{why}, and may go on as if it held the lock", self.party(owner))
    }

    /// A lease counts until the holder renews it: no other end of the holder shows here.
    pub(super) fn renewable_end(&self, grant: &Grant) -> Option<Duration> {
        let Lifetime::Keepalive(lease) = &grant.lifetime else { return None };
        let is_seen = self.liveness(&grant.owner).is_seen_alive();
        (!is_seen).then_some(Duration::from_millis(lease.wall))
    }

    fn until(&self, grant: &Grant) -> String {
        if let Some(end) = self.renewable_end(grant) {
            return format!("while it lives (its lease ends at {} unless it is renewed)", self.zone.full(end));
        }
        let text = match &grant.lifetime {
            Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_) | Lifetime::Keepalive(_) => {
                let stopped = self.is_stopped(grant).then(|| format!(", now {}", self.stopped(grant)));
                return format!("while it lives{}", stopped.unwrap_or_default());
            }
            Lifetime::OwnerDied => "no longer",
            Lifetime::Descriptor(_) => "while a process has its descriptor",
            Lifetime::Ttl(most) => return format!("for at most {}", span(Duration::from_millis(*most))),
            Lifetime::ExpiresAt(lease) => return format!("until {} at the latest", self.time(lease.wall)),
            Lifetime::UntilReleased => match self.liveness(&grant.owner) {
                Liveness::Dead => "until it is released, though its process has ended",
                Liveness::Missing => "until it is released, though its process is not here",
                _ => "until it is released",
            },
        };
        text.to_string()
    }

    pub(crate) fn ending(&self, ending: &EndedGrant) -> String {
        let how = match ending.grant.shown(ending.reason) {
            EndReason::Released if ending.grant.provisional.is_some() => "which was not told of it",
            EndReason::Released => "which released it",
            EndReason::Died => "which ended without releasing it",
            EndReason::Ended => "which ended",
            EndReason::Expired if matches!(ending.grant.lifetime, Lifetime::Keepalive(_)) => {
                "which did not renew its lease"
            }
            EndReason::Expired => "which let its time run out",
            EndReason::Broken => "until it was broken by --force",
        };
        format!("{}, {how}", self.grant(&ending.grant, ""))
    }
}

/// Pid and command of a visible process.
type Seen = (i32, Vec<u8>);

pub(crate) struct FileLocks(pub(crate) Vec<(FileLock, Vec<Seen>)>);

impl fmt::Display for FileLocks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clauses = self.0.iter().map(|(kind, holders)| locked_by(*kind, holders.iter().cloned()));
        formatter.write_str(&clauses.collect::<Vec<_>>().join("; and "))
    }
}

impl FileLocks {
    pub(crate) fn of(found: Vec<(FileLock, Vec<i32>)>) -> FileLocks {
        let named = |pids: Vec<i32>| pids.into_iter().map(|pid| (pid, command_of(pid))).collect();
        FileLocks(found.into_iter().map(|(kind, pids)| (kind, named(pids))).collect())
    }

    /// A command to the reader.
    pub(super) fn how_to_free(&self) -> String {
        let pids: BTreeSet<i32> = self.0.iter().flat_map(|(_, holders)| holders).map(|(pid, _)| *pid).collect();
        let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
        match pids.as_slice() {
            [pid] => format!("wait until pid {pid} unlocks the file, or end that process with `kill {pid}`"),
            [] => "wait until the file is unlocked; see lslocks(8)".to_string(),
            pids if pids.len() > MOST_NAMED => "wait until the file is unlocked; see lslocks(8)".to_string(),
            pids => {
                let (each, kill) = (pids.join(" and "), pids.join(" "));
                format!("wait until pids {each} unlock the file, or end these processes with `kill {kill}`")
            }
        }
    }
}

/// A clause about a file that these processes, pid and command, have locked with this call.
pub(crate) fn locked_by(lock: FileLock, holders: impl IntoIterator<Item = Seen>) -> String {
    let (call, program) = (lock.name(), if lock == FileLock::Flock { "flock(1)" } else { "dpkg(1)" });
    let mut who: Vec<String> =
        holders.into_iter().map(|(pid, command)| format!("pid {pid}: {}", escape(&command))).collect();
    if who.is_empty() {
        who.push("a process that cannot be seen from here".to_string());
    }
    if who.len() > MOST_NAMED {
        let more = who.split_off(MOST_NAMED).len();
        who.push(format!("{more} more"));
    }
    format!("locked with {call}(2), as {program} does it, by {}", who.join("; and "))
}

pub(super) fn process(pid: Option<i32>, host: &str, here: &str) -> String {
    let pid = pid.map_or("-".to_string(), |pid| pid.to_string());
    if host == here { pid } else { format!("{pid}@{}", escape(host.as_bytes())) }
}

pub(super) fn label_and_command(label: Option<&Vec<u8>>, command: &[u8]) -> String {
    let label = label.map(|label| format!("[{}] ", escape(label))).unwrap_or_default();
    format!("{label}{}", escape(command))
}

/// Escaped, because the user database may be untrusted, too.
pub(super) fn shown_user(uid: u32) -> String {
    escape(user(uid).as_bytes())
}

pub(super) fn user(uid: u32) -> String {
    user_name(uid).unwrap_or_else(|| uid.to_string())
}
