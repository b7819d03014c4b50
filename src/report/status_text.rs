//! `status` for people: a table with a row for each lock, or a block with a line for each fact about one lock.

use std::time::Duration;

use super::history::{ended, held_for, who};
use super::holder::{Holder, holders, label_and_command, process, shown_user, waiting};
use super::json::{mode, state};
use super::run::{due, runs, within};
use super::table::{Column, OutputStyle, Table, wrapped};
use super::{FileLocks, Reporter, describe_value};
use engine::{LockRef, LockStatus};
use lock::duration::shown as span;
use lock::history::Past;
use lock::name::{escape, shell_quote};
use lock::{EndReason, Grant, JobState, Lifetime, Liveness, Mode, Standing, Success, Value};

const HOST: usize = 4;

/// Width of the names of the facts, with the blanks that follow.
const MARGIN: usize = 9;

pub(crate) struct LockTable {
    table: Table,
    now: Duration,
    /// Name of this host, which a terminal does not repeat in each row.
    here: String,
    has_other_host: bool,
    pub(crate) holders: usize,
    pub(crate) waiters: usize,
}

impl LockTable {
    pub(crate) fn new(style: OutputStyle, host: &str, now: Duration) -> LockTable {
        let columns = [
            Column { least: Some(12), ..Column::new("NAME") },
            Column { colour: state_colour, ..Column::new("STATE") },
            Column { colour: |cell| if cell == "0" { "" } else { "\x1b[33m" }, ..Column::new("WAITERS") },
            Column { rank: Some(4), ..Column::new("PID") },
            Column { least: Some(8), rank: Some(3), ..Column::new("HOST") },
            Column { least: Some(8), rank: Some(2), ..Column::new("USER") },
            Column::new("SINCE"),
            Column { rank: Some(1), ..Column::new("UNTIL") },
            Column { least: Some(20), ..Column::new("COMMAND") },
        ];
        let table = Table::new(columns, style);
        let here = escape(host.as_bytes());
        LockTable { table, now, here, has_other_host: false, holders: 0, waiters: 0 }
    }

    pub(crate) fn add(&mut self, name: &[u8], status: &LockStatus, reporter: &Reporter<'_>) {
        self.waiters += waiting(status);
        let name = escape(name);
        let waiters = waiting(status).to_string();
        // The first stands for all. Those that ended without a release count if no grant holds the lock any more.
        let (held, ended): (Vec<_>, Vec<_>) = holders(status).into_iter().partition(|(_, standing)| standing.holds());
        let holders = if held.is_empty() { ended } else { held };
        let Some(first) = holders.first() else {
            let value = status.record.value.as_ref();
            let value = value.map_or("-".to_string(), |value| format!("(value: {})", shown_value(value)));
            self.table.add(&[name.as_str(), state(status), waiters.as_str(), "-", "-", "-", "-", "-", value.as_str()]);
            return;
        };
        self.holders += holders.len();
        let grant = first.0;
        let owner = &grant.owner;
        let mut pid = reporter.owner(owner).map_or("-".to_string(), |owner| owner.pid.to_string());
        if holders.len() > 1 {
            pid.push_str(&format!("+{}", holders.len() - 1));
        }
        let host = escape(owner.host.as_bytes());
        self.has_other_host |= host != self.here;
        let id = grant.claim.as_ref().map(|id| format!("id {}: ", escape(id))).unwrap_or_default();
        self.table.add(&[
            name,
            held_as(first, holders.len(), status, reporter),
            waiters,
            pid,
            host,
            shown_user(owner.uid),
            self.table.style.time(grant.since, self.now),
            self.until(first, reporter),
            id + &label_and_command(owner.label.as_ref(), &owner.command),
        ]);
    }

    pub(crate) fn len(&self) -> usize {
        self.table.rows.len()
    }

    pub(crate) fn sorted_lines(&mut self) -> (String, impl Iterator<Item = String>) {
        self.table.rows.sort_unstable();
        let is_obvious = self.table.style.width.is_some() && !self.has_other_host;
        self.table.lines(is_obvious.then_some(HOST))
    }

    fn until(&self, (grant, standing): &Holder<'_>, reporter: &Reporter<'_>) -> String {
        if standing.holds()
            && let Some(end) = reporter.renewable_end(grant)
        {
            return format!("{}?", self.table.style.time(end.as_millis() as u64, self.now));
        }
        match &grant.lifetime {
            _ if !standing.holds() => "over".to_string(),
            Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_) | Lifetime::Keepalive(_) => "alive".to_string(),
            Lifetime::Descriptor(_) => "closed".to_string(),
            Lifetime::OwnerDied => "over".to_string(),
            Lifetime::UntilReleased => "forever".to_string(),
            Lifetime::Ttl(most) => span(Duration::from_millis(*most)),
            Lifetime::ExpiresAt(lease) => self.table.style.time(lease.wall, self.now),
        }
    }
}

fn state_colour(state: &str) -> &'static str {
    match state {
        "free" => "\x1b[32m",
        "dead" | "expired" | "abandoned" | "stale" => "\x1b[31m",
        _ => "\x1b[1m",
    }
}

pub(super) fn shown_value(value: &Value) -> String {
    let mode = value.mode.map(|mode| format!(", mode {mode:04o}")).unwrap_or_default();
    format!("{}{mode}", describe_value(value))
}

/// `held`, `shared` or `2/3`; a question mark means unknown liveness; a word follows if the holder is dead or stopped.
fn held_as((grant, standing): &Holder<'_>, number: usize, status: &LockStatus, reporter: &Reporter<'_>) -> String {
    let how = match (grant.mode, standing) {
        (_, Standing::Ended(EndReason::Expired)) => return "expired".to_string(),
        (_, Standing::Ended(_)) => return "dead".to_string(),
        _ if grant.claim.is_some() => return "claimed".to_string(),
        (Mode::Exclusive, _) => "held".to_string(),
        (Mode::Shared, _) => "shared".to_string(),
        (Mode::Slot, _) => format!("{number}/{}", status.record.slots.unwrap_or_default()),
    };
    match standing {
        Standing::Holds(Liveness::Unknown | Liveness::Missing) if !grant.owner.processes.is_empty() => {
            format!("{how}?")
        }
        // The grant is permanent, or it would not hold the lock any more.
        Standing::Holds(Liveness::Dead) => format!("{how},dead"),
        _ if reporter.is_stopped(grant) => format!("{how},stopped"),
        _ => how,
    }
}

pub(crate) struct LockBlock<'a> {
    pub(crate) lock: &'a LockRef,
    pub(crate) status: &'a LockStatus,
    pub(crate) reporter: &'a Reporter<'a>,
    /// Grants of this lock that have ended, the last one last.
    pub(crate) past: &'a [Past],
    pub(crate) file: Option<&'a FileLocks>,
    pub(crate) style: OutputStyle,
}

impl LockBlock<'_> {
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let record = &self.status.record;
        self.add(&mut lines, "lock", Some(escape(&self.lock.display_name)));
        self.add(&mut lines, "store", Some(escape(self.lock.location.url().as_encoded_bytes())));
        lines.push(self.state());
        let holders = holders(self.status);
        for (at, holder) in holders.iter().enumerate() {
            let number = if holders.len() > 1 { format!("{} of {}: ", at + 1, holders.len()) } else { String::new() };
            self.add_holder(&mut lines, &number, holder);
        }
        self.add(&mut lines, "file", self.file.map(ToString::to_string));
        self.add(&mut lines, "value", record.value.as_ref().map(shown_value));
        self.add(&mut lines, "job", record.job.as_ref().map(|job| self.job(job)));
        self.add(&mut lines, "waiters", (!record.waiters.is_empty()).then(|| waiting(self.status).to_string()));
        self.add_rows(&mut lines, "", &self.queue());
        self.add_rows(&mut lines, "before", &self.earlier());
        // The holders often are alike; each piece of advice is given once.
        let mut advice: Vec<String> = holders.iter().filter_map(|holder| self.how_to_break(holder)).collect();
        advice.dedup();
        advice.into_iter().for_each(|text| self.add(&mut lines, "break", Some(text)));
        lines
    }

    /// Adds the lines of a fact; none without a text.
    fn add(&self, lines: &mut Vec<String>, name: &str, text: Option<String>) {
        let Some(text) = text else { return };
        let width = self.style.width.map_or(usize::MAX, |width| width.saturating_sub(MARGIN).max(1));
        self.add_rows(lines, name, &wrapped(&text, width));
    }

    fn add_rows(&self, lines: &mut Vec<String>, name: &str, rows: &[String]) {
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        lines.extend(names.zip(rows).map(|(name, row)| format!("{name:MARGIN$}{row}")));
    }

    /// Stands beside the names of facts; its last column may be cut.
    fn table(&self, columns: usize) -> Table {
        let mut columns = vec![Column::new(""); columns - 1];
        columns.push(Column { least: Some(0), ..Column::new("") });
        let width = self.style.width.map(|width| width.saturating_sub(MARGIN));
        Table::new(columns, OutputStyle { width, colour: false, ..self.style })
    }

    fn state(&self) -> String {
        let record = &self.status.record;
        let first = record.holders.first();
        let word = match state(self.status) {
            "abandoned" => "stale",
            "held" if first.is_some_and(|grant| grant.claim.is_some()) => "claimed",
            word => word,
        };
        let how = match (first.map(|grant| grant.mode), record.slots) {
            (_, Some(slots)) if word == "held" => {
                let taken = self.status.holders.iter().filter(|standing| standing.holds()).count();
                format!(", {} of {slots} slots free", (slots as usize).saturating_sub(taken))
            }
            (Some(Mode::Shared), _) if word == "held" => ", shared".to_string(),
            _ => String::new(),
        };
        let (colour, end) = if self.style.colour { (state_colour(word), "\x1b[0m") } else { ("", "") };
        format!("{:MARGIN$}{colour}{word}{end}{how}", "state")
    }

    fn add_holder(&self, lines: &mut Vec<String>, number: &str, holder: &Holder<'_>) {
        let (grant, standing) = holder;
        let owner = &grant.owner;
        let slot = if grant.mode == Mode::Slot { format!(", slot {}", grant.slot) } else { String::new() };
        let condition = match standing {
            Standing::Ended(EndReason::Expired) => ", whose time is over",
            Standing::Ended(_) | Standing::Holds(Liveness::Dead) => ", which is dead",
            Standing::Holds(Liveness::Unknown | Liveness::Missing) if !owner.processes.is_empty() => {
                ", not visible from here"
            }
            Standing::Holds(_) if self.reporter.is_stopped(grant) => &format!(", {}", self.reporter.stopped(grant)),
            Standing::Holds(_) => "",
        };
        let who = match &grant.claim {
            // A claim depends on no process.
            Some(_) => format!("user {} on {}", shown_user(owner.uid), escape(owner.host.as_bytes())),
            None => self.reporter.party(owner),
        };
        let since = self.reporter.time(grant.since);
        self.add(lines, "holder", Some(format!("{number}{who}{slot}{condition}")));
        self.add(lines, "command", Some(escape(&owner.command)));
        self.add(lines, "label", owner.label.as_deref().map(escape));
        self.add(lines, "claim", grant.claim.as_ref().map(|id| format!("id {}", escape(id))));
        self.add(lines, "since", Some(format!("{since}, for {}", self.reporter.age(grant.since))));
        self.add(lines, "until", Some(self.until(holder)));
    }

    fn until(&self, (grant, standing): &Holder<'_>) -> String {
        match (&grant.lifetime, standing) {
            (_, Standing::Ended(EndReason::Expired)) => "its time was over".to_string(),
            (Lifetime::OwnerDied, _) | (_, Standing::Ended(_)) => "its process ended".to_string(),
            (Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_), _) => "its process ends".to_string(),
            (Lifetime::Keepalive(lease), _) => {
                let end = self.reporter.time(lease.wall);
                format!("its process ends; until then its lease is renewed, now to {end}")
            }
            (Lifetime::Ttl(most), _) => format!("its process ends, or {}", span(Duration::from_millis(*most))),
            (Lifetime::ExpiresAt(lease), _) => {
                let rest = Duration::from_millis(lease.wall).saturating_sub(self.reporter.host.wall());
                let first = if grant.owner.processes.is_empty() { "" } else { "its process ends, or " };
                format!("{first}{} (in {})", self.reporter.time(lease.wall), span(rest))
            }
            (Lifetime::UntilReleased, _) => "it is released".to_string(),
            (Lifetime::Descriptor(_), _) => "the last process closes its descriptor".to_string(),
        }
    }

    fn queue(&self) -> Vec<String> {
        let mut table = self.table(5);
        let waiters = self.status.record.waiters.iter().zip(&self.status.waiters);
        for (at, (waiter, liveness)) in waiters.enumerate() {
            let owner = &waiter.owner;
            // Most waiters wait for the whole lock.
            let how = match liveness {
                Liveness::Dead => "(dead) ".to_string(),
                Liveness::Stopped => "(stopped) ".to_string(),
                _ if waiter.mode == Mode::Exclusive => String::new(),
                _ if waiter.mode == Mode::Slot && self.status.record.slots != Some(waiter.slot_count()) => {
                    format!("(of {} slots) ", waiter.slot_count())
                }
                _ => format!("({}) ", mode(waiter.mode)),
            };
            table.add(&[
                format!("{}.", at + 1),
                process(Some(waiter.process.pid), &owner.host, &self.reporter.host.name()),
                shown_user(owner.uid),
                self.reporter.age(waiter.since),
                how + &label_and_command(owner.label.as_ref(), &owner.command),
            ]);
        }
        table.rows()
    }

    fn job(&self, job: &JobState) -> String {
        let now = self.reporter.host.wall();
        let last = match &job.success {
            Some(Success { at, host, .. }) => {
                let is_doubtful = job.doubtful_success(now.as_millis() as u64).is_some();
                let age = if is_doubtful { "in the future".to_string() } else { self.reporter.age(*at) + " ago" };
                format!("last succeeded at {} ({age}) on {}", self.reporter.time(*at), escape(host.as_bytes()))
            }
            None => "has not succeeded yet".to_string(),
        };
        let due = within(job).zip(due(job, now, self.reporter.zone)).map(|(within, due)| format!("{within}, {due}"));
        [Some(last), due, runs(job, self.reporter.zone)].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn earlier(&self) -> Vec<String> {
        let mut table = self.table(4);
        let host = self.reporter.host.name();
        let now = self.reporter.host.wall();
        for past in self.past.iter().rev() {
            let from = self.style.zone.brief(Duration::from_millis(past.from), now);
            table.add(&[from.as_str(), &held_for(past, now), &ended(past), &who(&past.holder, &host)]);
        }
        table.rows()
    }

    /// `None` if the owner has no process.
    fn how_to_break(&self, (grant, standing): &Holder<'_>) -> Option<String> {
        let typed = &self.lock.shell_arg;
        let force = format!("`csalock unlock --force {typed}`");
        let end = format!("`csalock unlock --force --end {typed}`");
        if let Some(id) = &grant.claim {
            let id = shell_quote(id);
            return Some(format!("a claim is permanent; `csalock unclaim --id {id} {typed}` gives it up"));
        }
        Some(match (standing, &grant.lifetime) {
            (Standing::Ended(_), _) => {
                // Without its token, that would break the other grants too.
                let token = grant.token.filter(|_| self.status.record.holders.len() > 1);
                let token = token.map_or(String::new(), |token| format!("--token {token} "));
                let force = format!("`csalock unlock --force {token}{typed}`");
                format!("not necessary: the next caller takes the lock over; {force} removes it now")
            }
            (Standing::Holds(_), Lifetime::UntilReleased) => {
                format!("the lock stays until it is released, even if its holder is gone; {force} ends it")
            }
            (Standing::Holds(_), _) if grant.owner.processes.is_empty() => {
                format!("the lock does not depend on a process; {force} ends it now")
            }
            (Standing::Holds(Liveness::Unknown | Liveness::Missing), Lifetime::Keepalive(lease)) => {
                let until = format!("with the lease at {} at the latest", self.reporter.time(lease.wall));
                let ends = match grant.owner.supervisor {
                    Some(_) if !grant.owner.outlives_lock => format!("ends the holder and the lock, {until}"),
                    _ => format!("ends the lock, {until}, but does not stop the holder"),
                };
                format!(
                    "{end} {ends}; csalock cannot see from here whether the holder lives; if it does not, {force} ends \
                     the lock at once"
                )
            }
            (Standing::Holds(liveness @ (Liveness::Unknown | Liveness::Missing)), lifetime) => {
                let kill = self.reporter.owner(&grant.owner).filter(|_| *liveness == Liveness::Unknown);
                let kill = kill.map(|owner| self.kill_elsewhere(grant, owner.pid)).unwrap_or_default();
                let unseen = "csalock cannot see from here whether the holder lives; if it does not,";
                match lifetime.lease() {
                    Some(lease) => {
                        let end = self.reporter.time(lease.wall);
                        format!("{kill}{unseen} the lease ends the lock at {end}, and {force} at once")
                    }
                    None => format!("{kill}{unseen} {force} ends the lock"),
                }
            }
            (Standing::Holds(_), _) => {
                let pid = self.reporter.owner(&grant.owner)?.pid;
                if self.reporter.is_stopped(grant) {
                    format!("`kill -CONT {pid}` continues the holder; {end} ends it and the lock")
                } else if let Some(file) = self.file {
                    format!("the holder may wait for the file: {}", file.how_to_free())
                } else {
                    format!("{end} ends the holder and then the lock")
                }
            }
        })
    }

    /// A kill of this process, which is not visible here, ends the lock.
    fn kill_elsewhere(&self, grant: &Grant, pid: i32) -> String {
        let (host, here) = (&grant.owner.host, self.reporter.host.name());
        let is_here = *host == here;
        let place = if is_here { "in its container".to_string() } else { format!("on {}", escape(host.as_bytes())) };
        format!("{place}: `kill {pid}` ends the holder and the lock; ")
    }
}
