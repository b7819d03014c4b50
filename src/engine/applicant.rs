//! Who wants a lock, and what he asks the protocol for.

use super::{Engine, Patience};
use crate::host::Called;
use crate::lock::{Application, Handle, Party, Process, Proof, Share, Tenure, Waiter};
use crate::store::Reach;

/// Who wants a lock, and on what terms.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// The secret that will prove the grant.
    pub handle: Handle,
    /// How much of it.
    pub share: Share,
    /// For whom.
    pub party: Party,
    /// The process that waits.
    pub process: Process,
    /// Whether that process may end without the party losing what it waited for: then a grant must be confirmed.
    pub outlived: bool,
    /// Whether the party's end gives the lock back, as a matter of course.
    pub yields: bool,
    /// The id under which the name is to be claimed, if it is.
    pub claim: Option<Vec<u8>>,
    /// How long the grant is to last.
    pub tenure: Tenure,
    /// How many may hold at once, for [`Share::Slot`].
    pub slots: Option<u32>,
    /// Refuse when the holder is gone without having given back.
    pub refuse_stale: bool,
    /// What is granted depends on the waiting process until it is asked for again without this.
    pub tentative: bool,
    /// Take nothing that is not granted already.
    pub confirming: bool,
    /// The grants that do not end before this wait does: those that the applicant works under, and its own where it
    /// takes several names one after the other.
    pub under: Vec<Proof>,
    /// The process whose caller waits for it: [`Waiter::within`] is found out when there is a wait.
    pub called: Option<Called>,
}

impl Applicant {
    /// A process that takes a lock for itself alone, while it lives.
    pub fn for_itself(handle: Handle, party: Party, process: Process) -> Applicant {
        Applicant {
            handle,
            share: Share::Exclusive,
            party,
            process,
            outlived: false,
            yields: false,
            claim: None,
            tenure: Tenure::OwnerLives,
            slots: None,
            refuse_stale: false,
            tentative: false,
            confirming: false,
            under: Vec::new(),
            called: None,
        }
    }
}

impl Engine {
    pub(super) fn application(&self, applicant: &Applicant, patience: &Patience) -> Application {
        let tenure = match (&applicant.tenure, self.store.reach()) {
            // Other hosts cannot see whether the owner lives.
            (Tenure::OwnerLives, Reach::ManyHosts) => Tenure::Renewing(self.lease.as_millis() as u64),
            // Nor whether the process lives that has not yet said that it knows of its grant.
            (_, Reach::ManyHosts) if applicant.tentative => Tenure::Renewing(self.lease.as_millis() as u64),
            (tenure, _) => tenure.clone(),
        };
        let confirms = applicant.outlived || matches!(tenure, Tenure::AtMost(_) | Tenure::Renewing(_));
        let entry = Waiter {
            proof: applicant.handle.proof(),
            share: applicant.share,
            party: applicant.party.clone(),
            process: applicant.process,
            tenure: tenure.clone(),
            confirms,
            yields: applicant.yields,
            claim: applicant.claim.clone(),
            under: applicant.under.clone(),
            within: Vec::new(),
            lease: None,
            since: self.host.wall().as_millis() as u64,
        };
        Application {
            entry,
            tenure,
            slots: applicant.slots,
            queue: !patience.is_none(),
            refuse_stale: applicant.refuse_stale,
            tentative: applicant.tentative,
            confirming: applicant.confirming,
            place: None,
            full: None,
        }
    }
}
