//! A record as bytes: lines that a person can read with cat(1), safe against untrusted input.
//!
//! ```text
//! csalock 1
//! name nightly
//! holder proof=6e34… token=17 share=exclusive slot=0 since=1795408000123 tenure=owner … command=sh%20job
//! waiter proof=…
//! ending how=died proof=…
//! seen lease=fs-… boot=4f1c… at=86400000000 store=1795408000123456
//! sum 0123456789abcdef
//! ```
//!
//! The first line is the format number; csalock refuses other formats and never guesses. The last line is the beginning
//! of the SHA-256 of all lines before it, so csalock detects a torn or edited record. In values, `%XX` replaces every
//! byte that is not plain printable ASCII, and space, `%`, `,`, `:`, `=`, `"` and `\`.

pub(super) mod auxiliary;
pub(crate) mod fields;

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest, Sha256};

use self::fields::{Fields, escape, unescape};
use super::handle::HandleHash;
use super::lifetime::{Begun, Lease, LeaseClock, Lifetime};
use super::owner::{Owner, PidDomain, ProcessId};
use super::record::{EndReason, EndedGrant, Grant, Mode, Pages, Record, Waiter};
use super::sighting::{MOST_SIGHTINGS, Moment, Sighting};
use super::value::Value;
use crate::error::{Error, Result};

const FIRST_LINE: &str = "csalock 1\n";

/// Maximum size of a record in bytes, enough for about ten thousand waiters.
pub(crate) const MOST_BYTES: usize = 4 << 20;

/// Maximum number of pages in a queue.
const MOST_PAGES: u64 = 10_000;

/// Returns the bytes of a record.
pub fn encode(record: &Record) -> Vec<u8> {
    closed(text_of(record))
}

/// Returns the text of a record without the checksum line.
fn text_of(record: &Record) -> String {
    let mut text = String::with_capacity(512);
    text.push_str(FIRST_LINE);
    text.push_str("name ");
    escape(&mut text, &record.name);
    text.push('\n');
    if let Some(slots) = record.slots {
        let _ = writeln!(text, "slots {slots}");
    }
    if let Some(pages) = &record.pages {
        let _ = writeln!(text, "pages {} {}", pages.first, pages.last);
    }
    if let Some(value) = &record.value {
        write_value(&mut text, value);
    }
    for grant in &record.holders {
        text.push_str("holder ");
        write_grant(&mut text, grant);
    }
    for waiter in &record.waiters {
        write_waiter(&mut text, waiter);
    }
    for ending in record.kept_endings() {
        let _ = write!(text, "ending how={} ", ended_word(ending.reason));
        write_grant(&mut text, &ending.grant);
    }
    for seen in record.sightings.iter().filter(|seen| record.leases().any(|lease| *lease == seen.lease)) {
        write_sighting(&mut text, seen);
    }
    text
}

fn closed(mut text: String) -> Vec<u8> {
    let sum = checksum(text.as_bytes());
    let _ = writeln!(text, "sum {sum:016x}");
    text.into_bytes()
}

/// Decodes the output of [`encode`]. Grants made in this very record get `version`, its stored version, as their token.
/// Returns [`crate::error::ErrorKind::Corrupt`] with the problem for any other bytes.
pub fn decode(bytes: &[u8], version: u64) -> Result<Record> {
    read(bytes, version).map_err(|wrong| Error::corrupt(format!("a lock record is unreadable: {wrong}")))
}

fn read(bytes: &[u8], version: u64) -> std::result::Result<Record, String> {
    if bytes.len() > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    let mut record = Record::default();
    let lines = body(bytes, FIRST_LINE)?;
    for line in lines.lines() {
        read_line(&mut record, line).ok_or_else(|| {
            let start: String = line.chars().take(60).collect();
            format!("line \"{}\" makes no sense", crate::name::escape(start.as_bytes()))
        })?;
    }
    // A record without a name would be free. Repeated or reformatted lines show that another program wrote the record.
    if record.name.is_empty() || text_of(&record).strip_prefix(FIRST_LINE) != Some(lines) {
        return Err("it is not as csalock writes them".to_string());
    }
    if let Some(wrong) = record.broken_invariant() {
        return Err(wrong.to_string());
    }
    number(&mut record, version);
    Ok(record)
}

/// Sets the token of each grant, and the version and token of the value, that the record's `version` introduced.
pub(crate) fn number(record: &mut Record, version: u64) {
    record.holders.iter_mut().for_each(|grant| grant.token = grant.token.or(Some(version)));
    if let Some(value) = &mut record.value {
        value.version = value.version.or(Some(version));
        value.token = value.token.or(Some(version));
    }
}

/// Returns the lines between the first line and the checksum line; fails if either of these two is wrong.
fn body<'a>(bytes: &'a [u8], first_line: &str) -> std::result::Result<&'a str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_string())?;
    let Some(body) = text.strip_prefix(first_line) else {
        let first: String = text.lines().next().unwrap_or("").chars().take(40).collect();
        return Err(match first.strip_prefix("csalock ") {
            Some(format) => format!(
                "its format is {}, this csalock knows 1; use the csalock that wrote it",
                crate::name::escape(format.as_bytes())
            ),
            None if bytes.is_empty() => "it is empty".to_string(),
            None => "it does not begin with \"csalock 1\"".to_string(),
        });
    };
    let lines_end = body.rfind("sum ").filter(|at| body[..*at].ends_with('\n')).ok_or("it is cut short")?;
    let sum = body[lines_end..].strip_prefix("sum ").and_then(|rest| rest.strip_suffix('\n'));
    let sum = sum.and_then(|hex| u64::from_str_radix(hex, 16).ok()).ok_or("it is cut short")?;
    if sum != checksum(&bytes[..first_line.len() + lines_end]) {
        return Err("its checksum is wrong".to_string());
    }
    Ok(&body[..lines_end])
}

fn read_line(record: &mut Record, line: &str) -> Option<()> {
    let (word, rest) = line.split_once(' ')?;
    match word {
        "name" => record.name = unescape(rest)?,
        "slots" => record.slots = Some(rest.parse().ok().filter(|slots| *slots > 0)?),
        "pages" => {
            let (first, last) = rest.split_once(' ')?;
            let pages = Pages { first: first.parse().ok()?, last: last.parse().ok()? };
            record.pages = Some(pages);
            pages.last.checked_sub(pages.first).filter(|count| *count < MOST_PAGES && pages.last < u64::MAX >> 1)?;
        }
        "value" => record.value = Some(read_value(&Fields::of(rest)?)?),
        "holder" => record.holders.push(read_grant(&Fields::of(rest)?)?),
        "waiter" => record.waiters.push(read_waiter(&Fields::of(rest)?)?),
        "ending" => {
            let fields = Fields::of(rest)?;
            let how = ended_of(fields.get("how")?)?;
            record.ended_grants.push(EndedGrant { grant: read_grant(&fields)?, reason: how });
        }
        "seen" if record.sightings.len() < MOST_SIGHTINGS => {
            record.sightings.push(read_sighting(&Fields::of(rest)?)?);
        }
        _ => return None,
    }
    Some(())
}

fn write_grant(text: &mut String, grant: &Grant) {
    let _ = write!(text, "proof={} ", grant.proof);
    if let Some(token) = grant.token {
        let _ = write!(text, "token={token} ");
    }
    let _ = write!(text, "share={} slot={} since={} ", share_word(grant.mode), grant.slot, grant.since);
    if grant.waited > 0 {
        let _ = write!(text, "waited={} ", grant.waited);
    }
    write_tenure(text, &grant.lifetime);
    if grant.release_on_exit {
        text.push_str("yields=yes ");
    }
    write_claim(text, grant.claim.as_deref());
    if let Some(process) = &grant.provisional {
        text.push_str("unconfirmed=");
        write_process(text, process);
        text.push(' ');
    }
    write_party(text, &grant.owner);
}

fn read_grant(fields: &Fields<'_>) -> Option<Grant> {
    Some(Grant {
        proof: HandleHash::parse(fields.get("proof")?)?,
        token: fields.optional("token", |word| word.parse().ok())?,
        mode: share_of(fields.get("share")?)?,
        slot: fields.number("slot")?,
        owner: read_party(fields)?,
        lifetime: read_tenure(fields.get("tenure")?)?,
        since: fields.number("since")?,
        waited: fields.optional("waited", |word| word.parse().ok())?.unwrap_or(0),
        provisional: fields.optional("unconfirmed", read_process)?,
        release_on_exit: fields.flag("yields")?,
        claim: fields.optional("claim", unescape)?,
    })
}

fn write_claim(text: &mut String, claim: Option<&[u8]>) {
    if let Some(id) = claim {
        text.push_str("claim=");
        escape(text, id);
        text.push(' ');
    }
}

fn write_value(text: &mut String, value: &Value) {
    text.push_str("value ");
    for (key, number) in [("version", value.version), ("token", value.token)] {
        if let Some(number) = number {
            let _ = write!(text, "{key}={number} ");
        }
    }
    if let Some(mode) = value.mode {
        let _ = write!(text, "mode={mode:o} ");
    }
    let _ = write!(text, "size={} mark={:016x}", value.size, value.write_id);
    if let Some(bytes) = &value.inline {
        text.push_str(" bytes=");
        escape(text, bytes);
    }
    text.push('\n');
}

fn read_value(fields: &Fields<'_>) -> Option<Value> {
    let number = |word: &str| word.parse().ok();
    let value = Value {
        version: fields.optional("version", number)?,
        token: fields.optional("token", number)?,
        size: fields.number("size")?,
        write_id: u64::from_str_radix(fields.get("mark")?, 16).ok()?,
        mode: fields.optional("mode", |word| u32::from_str_radix(word, 8).ok())?,
        inline: fields.optional("bytes", unescape)?,
    };
    let fits = value.inline.as_ref().is_none_or(|bytes| bytes.len() as u64 == value.size);
    let goes_on = value.version.is_none_or(|version| version < u64::MAX >> 1);
    (fits && goes_on).then_some(value)
}

fn write_waiter(text: &mut String, waiter: &Waiter) {
    let _ = write!(text, "waiter proof={} share={} since={} ", waiter.proof, share_word(waiter.mode), waiter.since);
    write_tenure(text, &waiter.lifetime);
    text.push_str("process=");
    write_process(text, &waiter.process);
    if waiter.needs_confirmation {
        text.push_str(" confirms=yes");
    }
    if waiter.release_on_exit {
        text.push_str(" yields=yes");
    }
    text.push(' ');
    write_claim(text, waiter.claim.as_deref());
    text.pop();
    if let Some(lease) = &waiter.lease {
        text.push_str(" lease=");
        write_lease(text, lease);
    }
    for (at, process) in waiter.blocked_processes.iter().enumerate() {
        text.push_str(if at == 0 { " within=" } else { "," });
        write_process(text, process);
    }
    for (at, proof) in waiter.enclosing_grants.iter().enumerate() {
        let _ = write!(text, "{}{proof}", if at == 0 { " under=" } else { "," });
    }
    text.push(' ');
    write_party(text, &waiter.owner);
}

fn read_waiter(fields: &Fields<'_>) -> Option<Waiter> {
    Some(Waiter {
        proof: HandleHash::parse(fields.get("proof")?)?,
        mode: share_of(fields.get("share")?)?,
        owner: read_party(fields)?,
        process: read_process(fields.get("process")?)?,
        lifetime: read_tenure(fields.get("tenure")?)?,
        needs_confirmation: fields.flag("confirms")?,
        release_on_exit: fields.flag("yields")?,
        claim: fields.optional("claim", unescape)?,
        enclosing_grants: fields
            .optional("under", |word| word.split(',').map(HandleHash::parse).collect())?
            .unwrap_or_default(),
        blocked_processes: fields
            .optional("within", |word| word.split(',').map(read_process).collect())?
            .unwrap_or_default(),
        lease: fields.optional("lease", read_lease)?,
        since: fields.number("since")?,
    })
}

fn write_party(text: &mut String, party: &Owner) {
    for (key, value) in [
        ("machine", party.domain.machine.as_bytes()),
        (" boot", party.domain.boot.as_bytes()),
        (" pids", party.domain.pids.as_bytes()),
        (" host", party.host.as_bytes()),
        (" command", &party.command),
    ] {
        text.push_str(key);
        text.push('=');
        escape(text, value);
    }
    if let Some(label) = &party.label {
        text.push_str(" label=");
        escape(text, label);
    }
    let _ = write!(text, " net={} uid={} owners=", party.domain.net, party.uid);
    for (at, owner) in party.processes.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        write_process(text, owner);
    }
    if let Some(supervisor) = &party.supervisor {
        text.push_str(" supervisor=");
        write_process(text, supervisor);
    }
    text.push('\n');
}

fn read_party(fields: &Fields<'_>) -> Option<Owner> {
    let word = |key| String::from_utf8(unescape(fields.get(key)?)?).ok();
    let owners = fields.get("owners")?;
    Some(Owner {
        domain: PidDomain {
            machine: word("machine")?,
            boot: word("boot")?,
            pids: word("pids")?,
            net: fields.number("net")?,
        },
        processes: owners.split(',').filter(|owner| !owner.is_empty()).map(read_process).collect::<Option<_>>()?,
        supervisor: fields.optional("supervisor", read_process)?,
        host: word("host")?,
        uid: fields.number("uid")?,
        command: unescape(fields.get("command")?)?,
        label: fields.optional("label", unescape)?,
    })
}

fn write_process(text: &mut String, process: &ProcessId) {
    let _ = write!(text, "{}:{}", process.pid, process.start);
}

fn read_process(word: &str) -> Option<ProcessId> {
    let (pid, start) = word.split_once(':')?;
    Some(ProcessId { pid: pid.parse().ok().filter(|pid| *pid > 0)?, start: start.parse().ok()? })
}

fn write_tenure(text: &mut String, lifetime: &Lifetime) {
    text.push_str("tenure=");
    match lifetime {
        Lifetime::WhileOwnerLives => text.push_str("owner"),
        Lifetime::UntilReleased => text.push_str("forever"),
        Lifetime::OwnerDied => text.push_str("died"),
        Lifetime::Ttl(span) => {
            let _ = write!(text, "most:{span}");
        }
        Lifetime::ExpiresAt(lease) => write_lease(text, lease),
        Lifetime::KeepalivePending(span) => {
            let _ = write!(text, "renewing:{span}");
        }
        Lifetime::Keepalive(lease) => {
            text.push_str("renewed:");
            write_lease(text, lease);
        }
    }
    text.push(' ');
}

fn read_tenure(word: &str) -> Option<Lifetime> {
    Some(match word {
        "owner" => Lifetime::WhileOwnerLives,
        "forever" => Lifetime::UntilReleased,
        "died" => Lifetime::OwnerDied,
        _ => match word.split_once(':')? {
            ("most", span) => Lifetime::Ttl(span.parse().ok()?),
            ("renewing", span) => Lifetime::KeepalivePending(span.parse().ok()?),
            ("renewed", lease) => Lifetime::Keepalive(read_lease(lease)?),
            _ => Lifetime::ExpiresAt(read_lease(word)?),
        },
    })
}

fn write_lease(text: &mut String, lease: &Lease) {
    match &lease.clock {
        LeaseClock::FileSystem(Begun { boot, at, span }) => {
            let _ = write!(text, "fs-{boot:x}-{at}-{span}");
        }
        LeaseClock::Etcd(id) => {
            let _ = write!(text, "etcd-{id:x}");
        }
        LeaseClock::Boot(boot) => escape(text, boot.as_bytes()),
    }
    let _ = write!(text, ":{}:{}", lease.ends, lease.wall);
}

fn read_lease(word: &str) -> Option<Lease> {
    let mut parts = word.split(':');
    let clock = match parts.next()? {
        fs if fs.starts_with("fs-") => LeaseClock::FileSystem(read_begun(&fs[3..])?),
        etcd if etcd.starts_with("etcd-") => LeaseClock::Etcd(u64::from_str_radix(&etcd[5..], 16).ok()?),
        boot => LeaseClock::Boot(String::from_utf8(unescape(boot)?).ok()?),
    };
    let (ends, wall) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(Lease { clock, ends, wall })
}

fn read_begun(word: &str) -> Option<Begun> {
    let mut parts = word.split('-');
    let boot = u64::from_str_radix(parts.next()?, 16).ok()?;
    let (at, span) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(Begun { boot, at, span })
}

fn write_sighting(text: &mut String, seen: &Sighting) {
    text.push_str("seen lease=");
    write_lease(text, &seen.lease);
    let (boottime, store) = (seen.at.boottime.as_micros(), seen.at.store.as_micros());
    let _ = writeln!(text, " boot={:x} at={boottime} store={store}", seen.boot);
}

fn read_sighting(fields: &Fields<'_>) -> Option<Sighting> {
    let time = |key| fields.number(key).map(Duration::from_micros);
    Some(Sighting {
        lease: read_lease(fields.get("lease")?).filter(|lease| matches!(lease.clock, LeaseClock::FileSystem(_)))?,
        boot: u64::from_str_radix(fields.get("boot")?, 16).ok()?,
        at: Moment { boottime: time("at")?, store: time("store")? },
    })
}

pub(crate) fn share_word(share: Mode) -> &'static str {
    match share {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Slot => "slot",
    }
}

pub(crate) fn share_of(word: &str) -> Option<Mode> {
    [Mode::Exclusive, Mode::Shared, Mode::Slot].into_iter().find(|share| share_word(*share) == word)
}

pub(crate) fn ended_word(how: EndReason) -> &'static str {
    match how {
        EndReason::Released => "released",
        EndReason::Died => "died",
        EndReason::Expired => "expired",
        EndReason::Broken => "broken",
    }
}

pub(crate) fn ended_of(word: &str) -> Option<EndReason> {
    [EndReason::Released, EndReason::Died, EndReason::Expired, EndReason::Broken]
        .into_iter()
        .find(|how| ended_word(*how) == word)
}

/// Returns the first 64 bits of the SHA-256.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let digest = Sha256::digest(bytes);
    digest.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests;
