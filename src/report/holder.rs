//! The words for a holder: its process, host and user, since when, until when and why, and how its grant ended.

use std::time::Duration;

use super::Zone;
use crate::duration::shown as span;
use crate::engine::{Engine, OpenLockSet};
use crate::host::{Host, user_name};
use crate::lock::{EndReason, EndedGrant, Grant, Lifetime, Liveness, Owner, ProcessId};
use crate::name::escape;
use crate::store::Scope;

/// The context that sentences about holders need in addition to the record.
pub struct Reporter<'a> {
    /// The clock and the processes.
    pub host: &'a dyn Host,
    /// The scope of the store.
    pub scope: Scope,
    /// The zone of the times.
    pub zone: Zone,
}

impl<'a> Reporter<'a> {
    /// Creates the context of the records in the store of this engine.
    pub fn new(engine: &'a Engine) -> Reporter<'a> {
        Reporter { host: engine.host(), scope: engine.store().scope(), zone: Zone::Local }
    }
}

impl OpenLockSet<'_> {
    /// Returns the reporter for the lock with this index.
    pub fn reporter(&self, at: usize) -> Reporter<'_> {
        Reporter::new(self.engine(at))
    }
}

impl Reporter<'_> {
    /// Returns the owner process whose life counts now: the first process that is not dead.
    pub fn owner(&self, party: &Owner) -> Option<ProcessId> {
        let lives = |owner: &&ProcessId| self.host.liveness(&party.domain, owner, self.scope).may_live_here();
        party.processes.iter().find(lives).or(party.processes.last()).copied()
    }

    /// Returns one line with process, host, start, end and command of a grant.
    pub fn holder(&self, grant: &Grant) -> String {
        self.grant(grant, &format!(", {}", self.until(grant)))
    }

    /// Returns a clause that tells whether the lock is held or claimed, and by which holder.
    pub fn holding(&self, grant: &Grant) -> String {
        let Some(id) = &grant.claim else { return format!("held by {}", self.holder(grant)) };
        let (who, host) = (shown_user(grant.owner.uid), escape(grant.owner.host.as_bytes()));
        let since = self.zone.full(Duration::from_millis(grant.since));
        format!("claimed permanently under id {}, by {who} on {host} since {since}", escape(id))
    }

    fn grant(&self, grant: &Grant, until: &str) -> String {
        let now = self.host.wall();
        let since = Duration::from_millis(grant.since);
        let mut text = format!(
            "{} since {} ({} ago){until}",
            self.party(&grant.owner),
            self.zone.full(since),
            span(now.saturating_sub(since)),
        );
        if let Some(id) = &grant.claim {
            text.push_str(&format!(", claimed under id {}", escape(id)));
        }
        if let Some(label) = &grant.owner.label {
            text.push_str(&format!(", for \"{}\"", escape(label)));
        }
        text.push_str(&format!(": {}", escape(&grant.owner.command)));
        text
    }

    /// Returns the process, host and user of an owner.
    pub fn party(&self, party: &Owner) -> String {
        let pid = self.owner(party).map_or("no process".to_string(), |owner| format!("pid {}", owner.pid));
        format!("{pid} on {} (user {})", escape(party.host.as_bytes()), shown_user(party.uid))
    }

    /// Returns the pid and the command of an owner.
    pub fn owner_and_command(&self, party: &Owner) -> String {
        match self.owner(party) {
            Some(owner) => format!("owner pid {} ({})", owner.pid, escape(&party.command)),
            None => "no owner".to_string(),
        }
    }

    /// Returns true if the owner is stopped, and cannot release the lock.
    pub fn is_stopped(&self, grant: &Grant) -> bool {
        grant.claim.is_none()
            && self.owner(&grant.owner).is_some_and(|owner| self.host.is_stopped(&grant.owner.domain, &owner))
    }

    /// Returns true if the grant ends without a release: with its lease, or with an owner that is alive here.
    pub fn ends_by_itself(&self, grant: &Grant) -> bool {
        match grant.lifetime {
            Lifetime::UntilReleased => grant.claim.is_some(),
            Lifetime::WhileOwnerLives => self.liveness(&grant.owner) == Liveness::Alive,
            _ => true,
        }
    }

    /// Returns true if a break may be right: the grant lasts until it is released, or its owner is not seen alive here.
    pub fn may_need_force(&self, grant: &Grant) -> bool {
        let lasts = grant.lifetime == Lifetime::UntilReleased || self.liveness(&grant.owner) != Liveness::Alive;
        grant.claim.is_none() && lasts
    }

    /// Returns what the break of a grant did not end at once, or `None`.
    pub fn left_by_break(&self, ending: &EndedGrant) -> Option<String> {
        let party = &ending.grant.owner;
        // A grant that lasts until it is released may be of a process that has handed it over.
        let depends = ending.reason == EndReason::Broken && ending.grant.lifetime != Lifetime::UntilReleased;
        let ends_command = |supervisor: &ProcessId| {
            self.host.liveness(&party.domain, supervisor, self.scope) == Liveness::Alive
                && !self.host.is_stopped(&party.domain, supervisor)
        };
        match (self.liveness(party), party.supervisor) {
            _ if !depends || ending.grant.claim.is_some() => None,
            (Liveness::Dead, _) => None,
            (Liveness::Alive, Some(supervisor)) if ends_command(&supervisor) => None,
            (Liveness::Unknown | Liveness::Missing, Some(_)) => Some(format!(
                "its command on {} goes on until csalock there notices the break, with its lease at the latest",
                escape(party.host.as_bytes())
            )),
            _ => Some(format!("{} was not stopped, and may go on as if it held the lock", self.party(party))),
        }
    }

    fn until(&self, grant: &Grant) -> String {
        match &grant.lifetime {
            Lifetime::WhileOwnerLives | Lifetime::KeepalivePending(_) | Lifetime::Keepalive(_) => {
                if self.is_stopped(grant) { "while it lives, now stopped" } else { "while it lives" }.to_string()
            }
            Lifetime::OwnerDied => "no longer".to_string(),
            Lifetime::Ttl(most) => format!("for at most {}", span(Duration::from_millis(*most))),
            Lifetime::ExpiresAt(lease) => {
                format!("until {} at the latest", self.zone.full(Duration::from_millis(lease.wall)))
            }
            Lifetime::UntilReleased => match self.liveness(&grant.owner) {
                Liveness::Dead => "until it is released, though its process has ended".to_string(),
                Liveness::Missing => "until it is released, though its process is not here".to_string(),
                Liveness::Alive | Liveness::Unknown => "until it is released".to_string(),
            },
        }
    }

    /// Returns how a grant ended, in one line.
    pub fn ending(&self, ending: &EndedGrant) -> String {
        let how = match ending.reason {
            EndReason::Released if ending.grant.provisional.is_some() => "which was not told of it",
            EndReason::Released => "which released it",
            EndReason::Died => "which ended without releasing it",
            EndReason::Expired if matches!(ending.grant.lifetime, Lifetime::Keepalive(_)) => {
                "which did not renew its lease"
            }
            EndReason::Expired => "which let its time run out",
            EndReason::Broken => "until it was broken by --force",
        };
        format!("{}, {how}", self.grant(&ending.grant, ""))
    }
}

/// Returns the user for people, escaped: the user database may be untrusted, too.
pub(super) fn shown_user(uid: u32) -> String {
    escape(user(uid).as_bytes())
}

/// Returns a user's name, or the number if the user has no name.
pub fn user(uid: u32) -> String {
    user_name(uid).unwrap_or_else(|| uid.to_string())
}
