//! Claims on a primary server with a synchronous standby, as a model of their own. A commit is visible when its process dies
//! during the wait for the standby, and a failover loses all that the standby lacks. The decisions, and which answers
//! promise something, are those of the product.

use std::sync::Arc;

use lock::{
    Acquire, AcquireStep, Facts, Lifetime, Record, Refusal, Request as _, Transition, Waiter, decide, decode, encode,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::world::{party, process, proof, takes};

type Bytes = Vec<u8>;

#[derive(Debug, Clone)]
struct Servers {
    /// The id that each caller claims the name for.
    claims: Vec<u8>,
    failovers: u8,
    /// The planted fault: an answer without a commit does not wait for the standby.
    answers_at_once: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    /// The versions of the record on the primary, and how many of them the standby has.
    log: Vec<Arc<Bytes>>,
    flushed: usize,
    failovers: u8,
    callers: Vec<Caller>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Caller {
    Begins,
    /// It waits until the standby has so many versions; a failover before that leaves it without an answer.
    Waits(usize, Answer),
    Knows(Answer),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Answer {
    Mine,
    /// The name is claimed under this id.
    Taken(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Step(usize),
    Dies(usize),
    Flush,
    FailOver,
}

const STANDS: &str = "a claim that a caller was told of stands";

impl Servers {
    /// Decides about the claim of a caller as the engine does.
    fn decide(&self, state: &mut State, at: usize) -> Caller {
        let version = state.log.len() as u64;
        let record = state.log.last().map_or_else(|| Record::free(b"n"), |body| decode(body, version).unwrap());
        let entry = Waiter {
            lifetime: Lifetime::UntilReleased,
            claim: Some(vec![self.claims[at]]),
            ..Waiter::new(proof(at), party(&takes(0), at), process(at))
        };
        match decide(&record, &Acquire { queue: false, ..Acquire::new(entry) }, &Facts::at(0)).unwrap() {
            Transition::Write { record, .. } => {
                state.log.push(Arc::new(encode(&record)));
                Caller::Waits(state.log.len(), Answer::Mine)
            }
            Transition::Done(step) => {
                let answer = match &step {
                    AcquireStep::Granted(..) => Answer::Mine,
                    AcquireStep::Refused(Refusal::Claimed(grant)) => Answer::Taken(grant.claim.as_ref().unwrap()[0]),
                    other => panic!("{other:?}"),
                };
                match Acquire::promises(&step) && !self.answers_at_once {
                    true => Caller::Waits(state.log.len(), answer),
                    false => Caller::Knows(answer),
                }
            }
        }
    }
}

impl Model for Servers {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let callers = vec![Caller::Begins; self.claims.len()];
        vec![State { log: Vec::new(), flushed: 0, failovers: self.failovers, callers }]
    }

    fn actions(&self, state: &State, acts: &mut Vec<Act>) {
        for (at, caller) in state.callers.iter().enumerate() {
            match caller {
                Caller::Begins => acts.push(Act::Step(at)),
                Caller::Waits(needs, _) if *needs <= state.flushed => acts.push(Act::Step(at)),
                // The end of the wait shows the commit to others.
                Caller::Waits(..) => acts.push(Act::Dies(at)),
                Caller::Knows(_) | Caller::Ended => {}
            }
        }
        if state.flushed < state.log.len() {
            acts.push(Act::Flush);
        }
        if state.failovers > 0 {
            acts.push(Act::FailOver);
        }
    }

    fn next_state(&self, last: &State, act: Act) -> Option<State> {
        let mut state = last.clone();
        match act {
            Act::Step(at) => {
                state.callers[at] = match state.callers[at] {
                    Caller::Waits(_, answer) => Caller::Knows(answer),
                    _ => self.decide(&mut state, at),
                };
            }
            Act::Dies(at) => state.callers[at] = Caller::Ended,
            Act::Flush => state.flushed += 1,
            Act::FailOver => {
                state.failovers -= 1;
                state.log.truncate(state.flushed);
                // The flush finds another server, and the caller begins again or ends with an error.
                for caller in &mut state.callers {
                    if matches!(caller, Caller::Waits(needs, _) if *needs > state.flushed) {
                        *caller = Caller::Begins;
                    }
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Servers>> {
        vec![
            Property::always(STANDS, |servers: &Servers, state: &State| {
                let record = state.log.last().map(|body| decode(body, state.log.len() as u64).unwrap());
                let stands = record.and_then(|record| record.holders.first()?.claim.clone());
                state.callers.iter().enumerate().all(|(at, caller)| match caller {
                    Caller::Knows(Answer::Mine) => stands == Some(vec![servers.claims[at]]),
                    Caller::Knows(Answer::Taken(id)) => stands == Some(vec![*id]),
                    _ => true,
                })
            }),
            Property::sometimes("a second caller has the claim of the first", |_, state: &State| {
                state.callers.iter().filter(|caller| **caller == Caller::Knows(Answer::Mine)).count() > 1
            }),
        ]
    }
}

fn servers() -> Servers {
    Servers { claims: vec![1, 1, 2, 2], failovers: 2, answers_at_once: false }
}

#[test]
fn claims_outlast_a_failover() {
    let checker = servers().checker().threads(2).spawn_bfs().join();
    eprintln!("model: a synchronous standby: {} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn a_claim_is_lost_if_an_answer_without_a_commit_does_not_wait_for_the_standby() {
    let servers = Servers { answers_at_once: true, ..servers() };
    let checker = servers.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(checker.discoveries().contains_key(STANDS));
}
