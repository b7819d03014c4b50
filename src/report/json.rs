//! The JSON documents. They are a stable interface: fields may be added, but never renamed or removed.

use std::num::NonZeroU32;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::history::signal_name;
use super::holder::{holders, user};
use super::{FileLocks, RefusalReport, Reporter};
use crate::exit::Exit;
use engine::{LockRef, LockStatus};
use lock::duration::rfc3339_millis;
use lock::error::{Error, ErrorKind};
use lock::history::{EndedBy, Past, Who};
use lock::name::is_invisible;
use lock::{EndReason, EndedGrant, Grant, Handle, JobState, Lifetime, Liveness, Mode, Owner, Runs, Standing, Value};
use store::{Finding, Location, Verdict};

/// Returns a document as text. JSON escapes ASCII controls; this function escapes other controls and characters that
/// reorder or hide text too, because terminals show documents. Such characters occur only within strings.
pub(crate) fn json(document: &impl Serialize) -> String {
    // Only maps have no JSON text if their keys are not texts.
    let text = serde_json::to_string(document).unwrap_or_default();
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if is_invisible(char) {
            escaped.extend(char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// A JSON object whose fields keep the order in which they are added.
#[derive(Debug, Default)]
pub(crate) struct Document(Vec<(&'static str, Box<RawValue>)>);

impl Document {
    /// Adds a field. `None` becomes `null`.
    pub(super) fn with(mut self, name: &'static str, value: impl Serialize) -> Document {
        self.0.push((name, to_raw_value(&value).unwrap_or_default()));
        self
    }

    /// Adds a field, unless its value is `None`.
    pub(crate) fn with_some(self, name: &'static str, value: Option<impl Serialize>) -> Document {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(super) fn with_list(self, name: &'static str, documents: impl IntoIterator<Item = Document>) -> Document {
        self.with(name, documents.into_iter().collect::<Vec<_>>())
    }

    pub(super) fn and(mut self, other: Document) -> Document {
        self.0.extend(other.0);
        self
    }
}

impl Serialize for Document {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn time(millis: u64) -> String {
    rfc3339_millis(Duration::from_millis(millis))
}

pub(super) fn state(status: &LockStatus) -> &'static str {
    if status.is_held() {
        "held"
    } else if holders(status).is_empty() {
        "free"
    } else {
        "abandoned"
    }
}

pub(super) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Slot => "slots",
    }
}

/// `store` is given if the locks of several stores are shown.
pub(crate) fn status(
    name: &[u8],
    status: &LockStatus,
    (last, file): (Option<&Past>, Option<&FileLocks>),
    store: Option<&Location>,
    reporter: &Reporter<'_>,
) -> Document {
    let record = &status.record;
    let held = holders(status);
    let waiters = record.waiters.iter().zip(&status.waiters);
    let waiters = waiters.map(|(waiter, alive)| {
        let document = party(&waiter.owner, waiter.mode, waiter.since, *alive, None, reporter);
        document.with_some("slots", waiter.slots.map(NonZeroU32::get))
    });
    let value = record.value.as_ref().map(|value| {
        let mode = value.mode.map(|mode| format!("{mode:04o}"));
        let document = Document::default().with("version", value.version).with("bytes", value.size);
        document.with("token", value.token).with_some("mode", mode)
    });
    Document::default()
        .with("name", text(name))
        .with("state", state(status))
        .with("mode", held.first().map(|(grant, _)| mode(grant.mode)))
        .with("slots", record.slots)
        .with("token", held.iter().filter_map(|(grant, _)| grant.token).max())
        .with_list("holders", held.iter().map(|(grant, standing)| holder(grant, *standing, reporter)))
        .with_list("waiters", waiters)
        .with_some("value", value)
        .with_some("job", record.job.as_ref().map(|state| job(state, reporter.host.wall())))
        .with_some("last_run", last.map(last_run))
        .with_some("file_locked_by", file.map(file_locked_by))
        .with_some("store", store.map(|store| text(store.url().as_encoded_bytes())))
}

/// A lock whose holders are all hidden has an entry without pid and command.
fn file_locked_by(FileLocks(found): &FileLocks) -> Vec<Document> {
    let entries = found.iter().flat_map(|(lock, holders)| {
        let seen = holders.iter().map(Some).chain(holders.is_empty().then_some(None));
        seen.map(|seen| {
            let known = Document::default().with("pid", seen.map(|(pid, _)| *pid));
            known.with("command", seen.map(|(_, command)| text(command))).with("lock", lock.name())
        })
    });
    entries.collect()
}

fn holder(grant: &Grant, standing: Standing, reporter: &Reporter<'_>) -> Document {
    let alive = match standing {
        Standing::Holds(liveness) => liveness,
        Standing::Ended(EndReason::Died) => Liveness::Dead,
        Standing::Ended(_) => reporter.liveness(&grant.owner),
    };
    party(&grant.owner, grant.mode, grant.since, alive, Some(grant), reporter)
}

fn holders_now(grants: &[Grant], reporter: &Reporter<'_>) -> Vec<Document> {
    let standing = |grant: &Grant| Standing::Holds(reporter.liveness(&grant.owner));
    grants.iter().map(|grant| holder(grant, standing(grant), reporter)).collect()
}

fn party(
    owner: &Owner,
    wanted: Mode,
    since: u64,
    alive: Liveness,
    grant: Option<&Grant>,
    reporter: &Reporter<'_>,
) -> Document {
    let (expires, renewed_until) = match grant.map(|grant| &grant.lifetime) {
        Some(Lifetime::ExpiresAt(lease)) => (Some(time(lease.wall)), None),
        // The lease is renewed while the owner lives.
        Some(Lifetime::Keepalive(lease)) => (None, Some(time(lease.wall))),
        _ => (None, None),
    };
    let alive = match alive {
        Liveness::Alive | Liveness::Stopped => "yes",
        Liveness::Dead => "no",
        Liveness::Unknown | Liveness::Missing => "unknown",
    };
    Document::default()
        .with("pid", reporter.owner(owner).map(|owner| owner.pid))
        .with("host", owner.host.as_str())
        .with("user", user(owner.uid))
        .with("command", text(&owner.command))
        .with("label", owner.label.as_deref().map(text))
        .with("since", time(since))
        .with("expires", expires)
        .with("token", grant.and_then(|grant| grant.token))
        .with("alive", alive)
        .with_some("mode", (wanted != Mode::Exclusive).then(|| mode(wanted)))
        .with_some("slot", grant.filter(|grant| grant.mode == Mode::Slot).map(|grant| grant.slot))
        .with_some("claim", grant.and_then(|grant| grant.claim.as_deref()).map(text))
        .with_some("renewed_until", renewed_until)
}

fn job(job: &JobState, now: Duration) -> Document {
    let promise = job.promise.as_ref();
    Document::default()
        .with("last_success", job.success.as_ref().map(|success| time(success.at)))
        .with("host", job.success.as_ref().map(|success| success.host.as_str()))
        .with("within", promise.map(|promise| promise.span as f64 / 1000.0))
        .with("due", job.due(now.as_millis() as u64).map(time))
        .with("refused", promise.map(|promise| promise.refused))
        .with("runs", job.runs.as_ref().map(|runs| runs.count))
        .with("runs_allowed", job.runs.as_ref().and_then(Runs::allowed))
}

/// `now` is a time of the store.
pub(crate) fn overdue(name: &[u8], state: &JobState, last: Option<&Past>, now: Duration) -> Document {
    let is_overdue = state.is_overdue(now.as_millis() as u64);
    Document::default()
        .with("name", text(name))
        .with("overdue", is_overdue)
        .and(job(state, now))
        .with_some("last_run", last.map(last_run))
}

impl RefusalReport {
    /// `reporter` can look up the holders.
    pub(crate) fn json(&self, exit: Exit, reporter: Option<&Reporter<'_>>) -> Document {
        let holders = reporter.map(|reporter| holders_now(&self.holders, reporter)).unwrap_or_default();
        Document::default()
            .with("lock", self.lock.as_deref().map(text))
            .with("reason", reason(self.kind))
            .with("message", self.message.as_str())
            .with_list("holders", holders)
            .with("hint", self.hint_or_none())
            .with("exit_code", exit.code())
    }

    fn hint_or_none(&self) -> Option<&str> {
        if self.hint.is_empty() { None } else { Some(&self.hint) }
    }
}

/// A record that cannot be read has this document instead of its result.
pub(crate) fn unreadable(error: &Error) -> Document {
    RefusalReport::from(error).json(error.kind().into(), None)
}

fn reason(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidInput => "usage error",
        ErrorKind::Corrupt => "unreadable",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Bug => "bug",
        ErrorKind::System => "system error",
        ErrorKind::CannotCreate => "cannot create",
        ErrorKind::InputOutput => "input/output error",
        ErrorKind::Busy => "busy",
        ErrorKind::Denied => "permission denied",
        ErrorKind::Stale => "stale",
        ErrorKind::NotHeld => "not held",
        ErrorKind::NotOwner => "not the owner",
        ErrorKind::NotUnique => "not unique",
        ErrorKind::Deadlock => "deadlock",
        ErrorKind::Lost => "lost",
        ErrorKind::Overdue => "overdue",
        ErrorKind::CannotExecute => "cannot execute",
        ErrorKind::CommandNotFound => "command not found",
    }
}

/// `expires` is a time of the wall clock.
pub(crate) fn acquired(
    locks: &[LockRef],
    handle: &Handle,
    grants: &[Grant],
    evicted: Option<&EndedGrant>,
    expires: Option<Duration>,
    reporter: &Reporter<'_>,
) -> Document {
    let took_over = evicted.map(|EndedGrant { grant, reason }| {
        Document::default().with("how", grant.shown(*reason).word()).and(holder(
            grant,
            Standing::Ended(*reason),
            reporter,
        ))
    });
    let highest = grants.iter().filter_map(|grant| grant.token).max();
    let (named, slot) = match (locks, grants) {
        ([lock], [grant]) => {
            let slot = (grant.mode == Mode::Slot).then_some(grant.slot);
            (Document::default().with("name", text(&lock.display_name)), slot)
        }
        _ => (Document::default().with("names", names(locks)), None),
    };
    named
        .with("handle", handle.to_string())
        .with("token", highest)
        .with_some("tokens", (grants.len() > 1).then(|| tokens(grants)))
        .with_some("slot", slot)
        .with("expires", expires.map(rfc3339_millis))
        .with("took_over", took_over)
}

fn names(locks: &[LockRef]) -> Vec<String> {
    locks.iter().map(|lock| text(&lock.display_name)).collect()
}

fn tokens(grants: &[Grant]) -> Vec<Option<u64>> {
    grants.iter().map(|grant| grant.token).collect()
}

/// Of `unlock`, `renew` and `gc`, with the former holders. The result is `released`, `renewed`, `broken` or `removed`.
pub(crate) fn outcome(name: &[u8], result: &'static str, grants: &[Grant], reporter: &Reporter<'_>) -> Document {
    let document = Document::default().with("name", text(name)).with("outcome", result);
    document.with_list("holders", holders_now(grants, reporter))
}

/// A lock of these holders was not released or renewed; `refusal` is the reason, if it is one.
pub(crate) fn not_done(
    name: &[u8],
    holders: &[Grant],
    refusal: Option<&RefusalReport>,
    reporter: &Reporter<'_>,
) -> Document {
    let is_held = refusal.map_or(!holders.is_empty(), |refusal| refusal.kind != ErrorKind::NotHeld);
    let document = outcome(name, if is_held { "not the owner" } else { "not held" }, holders, reporter);
    let Some(refusal) = refusal else { return document };
    document
        .with("message", refusal.message.as_str())
        .with_some("hint", refusal.hint_or_none())
        .with("exit_code", Exit::from(refusal.kind).code())
}

/// The grant that a value was read under: its handle and token.
pub(crate) type ReadGrant<'a> = (&'a Handle, Option<u64>);

/// The document of `get`, `put` and `del`. `taken` is the grant that the value was read under with `--lock`; `get` shows
/// the bytes as they are if they are valid UTF-8, else in base64 (RFC 4648).
pub(crate) fn value(name: &[u8], value: &Value, taken: Option<ReadGrant<'_>>, bytes: Option<Vec<u8>>) -> Document {
    let document = Document::default()
        .with("name", text(name))
        .with("version", value.version)
        .with("bytes", value.size)
        .with("token", taken.map_or(value.token, |(_, token)| token))
        .with_some("handle", taken.map(|(handle, _)| handle.to_string()));
    match bytes.map(String::from_utf8) {
        Some(Ok(text)) => document.with("value", text),
        Some(Err(error)) => document.with("value_base64", STANDARD.encode(error.as_bytes())),
        None => document,
    }
}

/// `get --lock` holds the lock even if the value does not exist.
pub(crate) fn no_value(refusal: &RefusalReport, (handle, token): ReadGrant<'_>) -> Document {
    refusal.json(refusal.kind.into(), None).with("handle", handle.to_string()).with("token", token)
}

pub(crate) fn claimed(locks: &[LockRef], id: &[u8], grants: &[Grant]) -> Document {
    Document::default().with("names", names(locks)).with("id", text(id)).with("tokens", tokens(grants))
}

/// No name was claimed, because these are claimed already, each under its id.
pub(crate) fn taken(taken: &[(LockRef, Grant)], refusal: &RefusalReport) -> Document {
    let ids = taken.iter().map(|(lock, grant)| id_of(&lock.display_name, grant.claim.as_deref().unwrap_or_default()));
    Document::default().with_list("taken", ids).and(refusal.json(refusal.kind.into(), None))
}

pub(crate) fn id_of(name: &[u8], id: &[u8]) -> Document {
    Document::default().with("name", text(name)).with("id", text(id))
}

/// Records of the errors cannot be read, and may have the id too.
pub(crate) fn names_of(id: &[u8], names: &[Vec<u8>], errors: &[Error]) -> Document {
    let names: Vec<String> = names.iter().map(|name| text(name)).collect();
    let document = Document::default().with("id", text(id)).with("names", names);
    if errors.is_empty() { document } else { document.with_list("passed_over", errors.iter().map(unreadable)) }
}

pub(crate) fn findings(url: &[u8], findings: &[Finding]) -> Document {
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good);
    Document::default().with("store", text(url)).with("findings", findings).with("verdict", worst)
}

fn run(past: &Past) -> Document {
    Document::default()
        .with("ended", past.how.map(EndReason::word))
        .with("exit_code", past.run.map(|run| run.exit))
        .with("signal", past.run.and_then(|run| run.signal).map(signal_name))
        .with("ran", past.run.map(|run| run.ran as f64 / 1000.0))
}

fn last_run(past: &Past) -> Document {
    Document::default().with("at", past.to.map(time)).and(run(past))
}

pub(crate) fn past(past: &Past, overlaps: bool) -> Document {
    let who = |who: &Who| {
        let document = Document::default().with("pid", who.pid).with("host", who.host.as_str());
        document.with("user", user(who.uid)).with("command", text(&who.command))
    };
    let ended_by = |by: &EndedBy| {
        let reason = if by.replaces { "replace" } else { "end" };
        who(&by.who).with("label", by.who.label.as_deref().map(text)).with("reason", reason)
    };
    Document::default()
        .with("name", text(&past.name))
        .and(who(&past.holder))
        .with("label", past.holder.label.as_deref().map(text))
        .with("mode", mode(past.mode))
        .with("slot", (past.mode == Mode::Slot).then_some(past.slot))
        .with("token", past.token)
        .with("from", time(past.from))
        .with("to", past.to.map(time))
        .with("waited", past.waited as f64 / 1000.0)
        .and(run(past))
        .with("broken_by", past.broken_by.as_ref().map(who))
        .with("ended_by", past.ended_by.as_ref().map(ended_by))
        .with_some("overlaps", overlaps.then_some(true))
}
