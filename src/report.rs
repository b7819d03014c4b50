//! All wording: what a person reads, and what a program parses.

mod health;
mod json;
mod past;
mod table;
mod timeline;

use std::time::Duration;

pub use health::{HealthJson, health};
pub use json::{
    ClaimJson, Evicted, HolderJson, LockJson, LookupJson, SightJson, TakenJson, UnlockJson, ValueJson, json,
};
pub use past::PastJson;
pub use table::{HEADER, Paper, WIDTH, table};
pub use timeline::timeline;

use nix::unistd::{Uid, User};

use crate::duration::{rfc3339, shown as span};
use crate::host::Host;
use crate::lock::{Ended, Ending, Fate, Grant, Party, Process, Tenure};
use crate::name::shown;
use crate::store::Reach;

/// What sentences about holders need to know beside the record.
pub struct Reporter<'a> {
    /// Clock and processes.
    pub host: &'a dyn Host,
    /// How far the store reaches.
    pub reach: Reach,
}

impl Reporter<'_> {
    /// The owner whose life counts now: the first that is not dead.
    pub fn owner(&self, party: &Party) -> Option<Process> {
        let lives = |owner: &&Process| self.host.fate(&party.home, owner, self.reach).may_live_here();
        party.owners.iter().find(lives).or(party.owners.last()).copied()
    }

    /// Who, where, since when, until when and what, in one line.
    pub fn holder(&self, grant: &Grant) -> String {
        self.grant(grant, &format!(", {}", self.until(grant)))
    }

    /// The same as a clause: that it is held, or claimed, and by whom.
    pub fn holding(&self, grant: &Grant) -> String {
        let Some(id) = &grant.claim else { return format!("held by {}", self.holder(grant)) };
        let (who, host) = (shown_user(grant.party.uid), shown(grant.party.host.as_bytes()));
        let since = rfc3339(Duration::from_millis(grant.since));
        format!("claimed for good under id {}, by {who} on {host} since {since}", shown(id))
    }

    fn grant(&self, grant: &Grant, until: &str) -> String {
        let now = self.host.wall();
        let since = Duration::from_millis(grant.since);
        let mut text = format!(
            "{} since {} ({} ago){until}",
            self.party(&grant.party),
            rfc3339(since),
            span(now.saturating_sub(since)),
        );
        if let Some(id) = &grant.claim {
            text.push_str(&format!(", claimed under id {}", shown(id)));
        }
        if let Some(label) = &grant.party.label {
            text.push_str(&format!(", for \"{}\"", shown(label)));
        }
        text.push_str(&format!(": {}", shown(&grant.party.command)));
        text
    }

    /// Who and where.
    pub fn party(&self, party: &Party) -> String {
        let pid = self.owner(party).map_or("no process".to_string(), |owner| format!("pid {}", owner.pid));
        format!("{pid} on {} (user {})", shown(party.host.as_bytes()), shown_user(party.uid))
    }

    fn until(&self, grant: &Grant) -> String {
        match &grant.tenure {
            Tenure::OwnerLives | Tenure::Renewing(_) | Tenure::Renewed(_) => "while it lives".to_string(),
            Tenure::OwnerDied => "no longer".to_string(),
            Tenure::AtMost(most) => format!("for at most {}", span(Duration::from_millis(*most))),
            Tenure::Until(lease) => format!("until {} at the latest", rfc3339(Duration::from_millis(lease.wall))),
            Tenure::Forever => match self.fate(&grant.party) {
                Fate::Dead => "until it is given back, though its process has ended".to_string(),
                Fate::Missing => "until it is given back, though its process is not here".to_string(),
                Fate::Alive | Fate::Unknown => "until it is given back".to_string(),
            },
        }
    }

    /// What became of somebody's grant.
    pub fn ending(&self, ending: &Ending) -> String {
        let how = match ending.how {
            Ended::Released if ending.grant.unconfirmed.is_some() => "which was not told of it",
            Ended::Released => "who gave it back",
            Ended::Died => "who died without giving it back",
            Ended::Expired if matches!(ending.grant.tenure, Tenure::Renewed(_)) => "who did not renew its lease",
            Ended::Expired => "who let its time run out",
            Ended::Broken => "until it was broken by --force",
        };
        format!("{}, {how}", self.grant(&ending.grant, ""))
    }
}

/// The same for people: whoever keeps the user database may be a stranger, too.
fn shown_user(uid: u32) -> String {
    shown(user(uid).as_bytes())
}

/// A user's name, or the number where nobody knows one.
pub fn user(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}
