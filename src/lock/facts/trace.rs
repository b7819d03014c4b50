//! The facts of one decision as a list of answers, so that a trace can contain them and a checker can decide again.

use serde::{Deserialize, Serialize};

use super::{Facts, HandleHash, Lease, Liveness, PidDomain, ProcessId, Waiter};

/// Every answer that a decision could use.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Answers {
    /// Wall clock in milliseconds since 1970.
    pub wall: u64,
    /// Liveness of each process.
    pub fates: Vec<(PidDomain, ProcessId, Liveness)>,
    /// Leases, each with true if it is over.
    pub over: Vec<(Lease, bool)>,
    /// Leases, each with true if it lasts longer than the caller is willing to wait.
    pub outlasts: Vec<(Lease, bool)>,
    /// Waiters on each page, by page number.
    pub pages: Vec<(u64, Vec<Waiter>)>,
    /// Handle hashes of provisional grants, each with true if the grants are committed.
    pub decided: Vec<(HandleHash, bool)>,
    /// Leases that started with the decision, each with its duration in milliseconds.
    pub lent: Vec<(u64, Lease)>,
}

impl From<Facts> for Answers {
    fn from(facts: Facts) -> Answers {
        let of_process = |((pid, start), known): ((i32, u64), Vec<(PidDomain, Liveness)>)| {
            known.into_iter().map(move |(domain, liveness)| (domain, ProcessId { pid, start }, liveness))
        };
        Answers {
            wall: facts.wall,
            fates: facts.fates.into_iter().flat_map(of_process).collect(),
            over: facts.over.into_values().flatten().collect(),
            outlasts: facts.outlasts,
            pages: facts.pages.into_iter().collect(),
            decided: facts.decided,
            lent: facts.lent,
        }
    }
}

impl From<Answers> for Facts {
    fn from(answers: Answers) -> Facts {
        let mut facts = Facts::at(answers.wall);
        answers
            .fates
            .into_iter()
            .for_each(|(domain, process, liveness)| facts.insert_liveness(domain, process, liveness));
        answers.over.into_iter().for_each(|(lease, over)| facts.insert_expired(lease, over));
        answers.outlasts.into_iter().for_each(|(lease, outlasts)| facts.insert_outlasts(lease, outlasts));
        answers.pages.into_iter().for_each(|(number, waiters)| facts.insert_page(number, waiters));
        answers.decided.into_iter().for_each(|(proof, decided)| facts.insert_committed(proof, decided));
        answers.lent.into_iter().for_each(|(span, lease)| facts.insert_new_lease(span, lease));
        facts
    }
}
