//! The requests of an actor for a record, and its treatment of the response: the loop of the engine, one step at a
//! time.

use std::sync::Arc;

use lock::{
    Acquire, AcquireStep, Awaited, BeginRun, Break, Cancel, Credentials, Facts, Grant, HandleHash, Lease, Lifetime,
    OwnerDied, PidDomain, ProcessId, Query, QueuePlace, Record, Refusal, Release, RenewGrant, ReportSuccess, RunStart,
    Sweep, Transition, WaitNode, Waiter, decide, find_cycle,
};

use super::actor::{Answer, Phase, Swapping};
use super::any_request::AnyRequest;
use super::facts::{Known, SPAN, decide_now, lease};
use super::state::State;
use super::storage::{Version, body};
use super::world::{Lasts, Planted, Task, World, home, name, owner, party, process, proof, whose};

/// The decision about the request of an actor, as the model uses it.
enum Step {
    Acquire(Transition<AcquireStep>),
    Other(Transition<Answer>),
}

fn decide_any(record: &Record, ask: &AnyRequest, facts: &Facts) -> Result<Step, Query> {
    let done = |is_done: bool| if is_done { Answer::Done } else { Answer::Refused };
    Ok(Step::Other(match ask {
        AnyRequest::Acquire(ask) => return Ok(Step::Acquire(decide(record, ask, facts)?)),
        // It goes on, and finds what it was granted.
        AnyRequest::Cancel(ask) => {
            map(decide(record, ask, facts)?, |granted| if granted.is_some() { Answer::FindsIt } else { Answer::Left })
        }
        AnyRequest::RenewGrant(ask) => map(decide(record, ask, facts)?, |renewed| match renewed {
            Ok(grant) => Answer::Renewed(grant.lifetime.lease().map(|lease| lease.ends)),
            Err(_) => Answer::Refused,
        }),
        AnyRequest::Release(ask) => map(decide(record, ask, facts)?, |released| done(released.is_ok())),
        AnyRequest::OwnerDied(ask) => map(decide(record, ask, facts)?, |noted| done(noted.is_ok())),
        AnyRequest::Break(ask) => map(decide(record, ask, facts)?, |broken| done(broken.is_ok())),
        AnyRequest::BeginRun(ask) => {
            map(decide(record, ask, facts)?, |begun| done(matches!(begun, Ok(RunStart::Begun(_)))))
        }
        AnyRequest::ReportSuccess(ask) => map(decide(record, ask, facts)?, |reported| done(reported.is_ok())),
        AnyRequest::Sweep(ask) => map(decide(record, ask, facts)?, |_| Answer::Done),
        AnyRequest::Prepare(_) | AnyRequest::SetValue(_) | AnyRequest::AskToEnd(_) | AnyRequest::Note(_) => {
            unreachable!("no task asks for it")
        }
    }))
}

/// Decides, as far as it can without asking twice for what may change in between.
pub(crate) fn think(
    world: &World,
    state: &mut State,
    at: usize,
    version: &Version,
    mut known: Vec<Known>,
) -> Option<()> {
    let task = world.task(state, at)?;
    let record = version.record(&name(task.name()));
    if matches!(task, Task::Break(_)) && state.actors[at].breaking.is_none() {
        let seen = record.holders.iter().filter_map(|grant| whose(&grant.proof)).collect();
        state.actors[at].breaking = Some(seen);
    }
    let mut facts = world.no_facts(state);
    known.iter().for_each(|known| known.teach(&mut facts));
    let mut has_asked = false;
    let step = loop {
        let ask = world.ask(state, at, task)?;
        let wanted: Query = match decide_any(&record, &ask, &facts) {
            Ok(step) if world.lends_for_wait(state, at, task, &step)? => continue,
            Ok(step) => break step,
            Err(wanted) => wanted,
        };
        let found = match wanted {
            Query::NewLease(_) => Known::Lent(world.lend(state)?),
            wanted => Known::find_out(world, state, world.actors[at].host, &wanted),
        };
        if !found.is_final() && std::mem::replace(&mut has_asked, true) {
            state.actors[at].phase = Phase::Read(version.clone(), known);
            return Some(());
        }
        found.teach(&mut facts);
        known.push(found);
    };
    follow(world, state, at, task, version, &record, step)
}

fn map<R, S>(step: Transition<R>, response_of: impl FnOnce(R) -> S) -> Transition<S> {
    match step {
        Transition::Done(response) => Transition::Done(response_of(response)),
        Transition::Write { record, response, wake, expired } => {
            Transition::Write { record, response: response_of(response), wake, expired }
        }
    }
}

fn follow(
    world: &World,
    state: &mut State,
    at: usize,
    task: Task,
    version: &Version,
    before: &Arc<Record>,
    step: Step,
) -> Option<()> {
    let step = match step {
        Step::Other(_) if matches!(task, Task::Report(_)) && world.planted == Some(Planted::SuccessLost) => {
            Transition::Done(Some(Answer::Done))
        }
        Step::Other(step) => map(step, Some),
        Step::Acquire(Transition::Done(AcquireStep::Wait(Awaited { processes, leases, .. }))) => {
            return wait(world, state, at, task, version, &processes, &leases);
        }
        Step::Acquire(mut step) => {
            if let Transition::Write { record, response: AcquireStep::Granted(grant, _), .. } = &mut step {
                begin(world, state, at, record, grant)?;
            }
            map(step, answer)
        }
    };
    match step {
        Transition::Done(answer) => {
            world.tell(state, at, answer.expect("only a commit repeats a request"), version.number)
        }
        Transition::Write { mut record, response: answer, wake, .. } => {
            plant(world, at, task, before, &mut record);
            let is_mine = |grant: &&Grant| grant.proof == proof(at) && grant.provisional.is_none();
            state.actors[at].phase = Phase::Swapping(Swapping {
                name: task.name(),
                expect: version.expect(world.counts_births()),
                says: matches!(answer, Some(Answer::Granted { .. }))
                    && record.holders.iter().any(|grant| is_mine(&grant)),
                body: body(&record),
                answer,
                rings: wake.iter().filter_map(whose).collect(),
                breaks: state.actors[at].breaking.clone().unwrap_or_default(),
            });
        }
    }
    Some(())
}

/// Waits for the end of these processes and leases, unless the wait would close a cycle.
fn wait(
    world: &World,
    state: &mut State,
    at: usize,
    task: Task,
    version: &Version,
    processes: &[(PidDomain, ProcessId)],
    leases: &[Lease],
) -> Option<()> {
    if let Some(victim) = victim_of_cycle(world, state, at, task) {
        state.actors[victim].rung |= victim != at;
        state.actors[at].leaves |= victim == at;
        if victim == at {
            state.actors[at].phase = Phase::Ready;
            return Some(());
        }
    }
    let here = home(world.actors[at].host);
    let visible = processes.iter().filter(|(at, _)| *at == here);
    state.actors[at].phase = Phase::Waiting {
        processes: visible.fold(0, |all, (_, process)| all | super::world::bit(process)),
        leases: leases.iter().fold(0, |all, lease| all | 1 << lease.ends),
        seen: version.number,
    };
    Some(())
}

/// The time of a grant begins before it is written.
fn begin(world: &World, state: &mut State, at: usize, record: &mut Record, grant: &mut Grant) -> Option<()> {
    if world.actors[at].lasts == Lasts::OwnerLives {
        return Some(());
    }
    let begun = state.actors[at].begun.filter(|begun| !state.is_over(*begun));
    let number = begun.or_else(|| world.lend(state))?;
    state.actors[at].begun = Some(number);
    let lifetime = match world.actors[at].lasts {
        Lasts::Renewing => Lifetime::Keepalive(lease(number)),
        _ => Lifetime::ExpiresAt(lease(number)),
    };
    for holder in record.holders.iter_mut().filter(|holder| holder.proof == grant.proof) {
        holder.lifetime = lifetime.clone();
    }
    grant.lifetime = lifetime;
    Some(())
}

/// Applies the planted fault.
fn plant(world: &World, at: usize, task: Task, before: &Record, record: &mut Record) {
    match world.planted {
        Some(Planted::NobodyServed) if matches!(task, Task::GiveBack(_)) => {
            let mut unserved = before.clone();
            unserved.holders.retain(|grant| grant.proof != proof(at));
            *record = unserved;
        }
        Some(Planted::QueueJumped) if record.waiters.len() > before.waiters.len() => record.waiters.rotate_left(1),
        Some(Planted::BornConfirmed) => record.holders.iter_mut().for_each(|grant| grant.provisional = None),
        _ => {}
    }
}

/// Returns the answer to a request for the lock; `None` if the actor repeats the request.
fn answer(step: AcquireStep) -> Option<Answer> {
    match step {
        AcquireStep::Granted(grant, _) => Some(Answer::Granted {
            token: grant.token,
            mode: grant.mode.into(),
            slot: grant.slot,
            lease: grant.lifetime.lease().map(|lease| lease.ends),
        }),
        AcquireStep::Refused(_) => Some(Answer::Refused),
        AcquireStep::Wait(_) => None,
        AcquireStep::Enqueue(_) => unreachable!("the queues of the model are short"),
    }
}

fn victim_of_cycle(world: &World, state: &State, at: usize, task: Task) -> Option<usize> {
    if !state.actors[at].holds.iter().any(|hold| hold.is == super::actor::Holding::Told) {
        return None;
    }
    let mut waits: Vec<WaitNode> = Vec::new();
    for key in (0..world.names).map(name) {
        let record = state.names[usize::from(key[0] - b'a')].now.record(&key);
        for waiter in record.waiters.clone() {
            waits.push(WaitNode { name: key.clone(), record: record.as_ref().clone(), waiter });
        }
    }
    let me = waits.iter().position(|wait| wait.waiter.proof == proof(at) && wait.name == name(task.name()))?;
    waits.swap(0, me);
    let found = decide_now(world, state, world.actors[at].host, |facts| find_cycle(&waits, facts));
    whose(&found?.victim)
}

impl World {
    pub(crate) fn task(&self, state: &State, at: usize) -> Option<Task> {
        let actor = &state.actors[at];
        if actor.refused {
            let held = actor.holds.iter().position(|hold| hold.is != super::actor::Holding::Nothing)?;
            return Some(Task::GiveBack(held));
        }
        let task = *self.actors[at].tasks.get(actor.task)?;
        match task {
            Task::Keep { of, name, .. }
                if state.actors[of].phase == Phase::Ended
                    && state.actors[of].holds[name].is == super::actor::Holding::Nothing =>
            {
                None
            }
            task => Some(task),
        }
    }

    fn owner_is_dead(&self, state: &State, of: usize) -> bool {
        state.is_dead(&owner(&self.actors[of], of))
    }

    pub(crate) fn ask(&self, state: &mut State, at: usize, task: Task) -> Option<AnyRequest> {
        let actor = &state.actors[at];
        let claimant = |proof: Option<HandleHash>, owners| Credentials {
            proof,
            owners,
            claim: None,
            space: home(self.actors[at].host).into(),
            descriptor: None,
            orphan: None,
            supervises: false,
            repeated: actor.repeated,
        };
        Some(match task {
            Task::Take(..) | Task::Try(..) if actor.leaves => Cancel { proof: proof(at), page: None }.into(),
            Task::Take(_, share) => self.application(state, at, share, true).into(),
            Task::Try(_, share) => self.application(state, at, share, false).into(),
            Task::GiveBack(_) => Release(claimant(Some(proof(at)), Vec::new())).into(),
            Task::GiveBackAsOwner(_) => Release(claimant(None, vec![owner(&self.actors[at], at)])).into(),
            Task::Break(_) => Break(actor.breaking.iter().flatten().map(|seen| proof(*seen)).collect()).into(),
            Task::Collect(_) => Sweep.into(),
            Task::Begin(_) => {
                let credentials = claimant(Some(proof(at)), Vec::new());
                BeginRun { credentials, slot: Some(1), most: 9, pause: 0, promise: None, now: 1 }.into()
            }
            Task::Report(_) => {
                let credentials = claimant(Some(proof(at)), Vec::new());
                ReportSuccess { credentials, in_slot: true, at: 1, host: String::new() }.into()
            }
            Task::Keep { of, .. } if self.owner_is_dead(state, of) => {
                OwnerDied(claimant(Some(proof(of)), Vec::new())).into()
            }
            Task::Keep { of, .. } => {
                let claimant = claimant(Some(proof(of)), Vec::new());
                let begun = actor.begun.filter(|begun| !state.is_over(*begun));
                let begun = begun.or_else(|| self.lend(state))?;
                state.actors[at].begun = Some(begun);
                RenewGrant { credentials: claimant, lifetime: Lifetime::Keepalive(lease(begun)), begins: false }.into()
            }
        })
    }

    fn application(&self, state: &State, at: usize, share: lock::Mode, queue: bool) -> Acquire {
        let (script, actor) = (&self.actors[at], &state.actors[at]);
        let lifetime = match script.lasts {
            Lasts::OwnerLives => Lifetime::WhileOwnerLives,
            Lasts::AtMost => Lifetime::Ttl(SPAN),
            Lasts::Renewing => Lifetime::KeepalivePending(1),
        };
        let holds_any = (0..self.names).any(|name| actor.holds(name));
        let entry = Waiter {
            mode: share,
            slots: std::num::NonZeroU32::new(script.slots).filter(|_| share == lock::Mode::Slot),
            lifetime,
            // The model of a waiter of an older version has fewer states.
            needs_confirmation: script.for_shell || script.lasts != Lasts::OwnerLives || self.faults.stops > 0,
            latest_only: script.latest_only,
            enclosing_grants: if holds_any { vec![proof(at)] } else { Vec::new() },
            lease: actor.waits_by.map(lease),
            ..Waiter::new(proof(at), party(script, at), process(at))
        };
        Acquire {
            queue,
            place: if actor.queued { QueuePlace::InRecord } else { QueuePlace::Nowhere },
            refuse_stale: script.refuses_stale,
            ..Acquire::new(entry)
        }
    }

    /// If other hosts cannot see whether a waiter lives, it shows that by a lease. Returns whether it has a new one;
    /// `None`: no lease is left.
    fn lends_for_wait(&self, state: &mut State, at: usize, task: Task, step: &Step) -> Option<bool> {
        let is_answered = match step {
            Step::Acquire(Transition::Done(step) | Transition::Write { response: step, .. }) => match step {
                AcquireStep::Granted(..) => true,
                AcquireStep::Refused(refusal) => !matches!(refusal, Refusal::Busy(_)),
                AcquireStep::Enqueue(_) | AcquireStep::Wait(_) => false,
            },
            Step::Other(_) => true,
        };
        let waits = matches!(task, Task::Take(..)) && self.has_many_hosts() && !state.actors[at].leaves;
        if is_answered || !waits || state.actors[at].waits_by.is_some_and(|lease| !state.is_over(lease)) {
            return Some(false);
        }
        state.actors[at].waits_by = Some(self.lend(state)?);
        Some(true)
    }

    fn lend(&self, state: &mut State) -> Option<u64> {
        let number = u64::from(state.lent);
        (state.lent < self.faults.leases).then(|| {
            state.lent += 1;
            number
        })
    }

    /// Whether an actor has something to do, or to look at.
    pub(crate) fn can_go_on(&self, state: &State, at: usize) -> bool {
        let actor = &state.actors[at];
        match &actor.phase {
            Phase::Ended => false,
            _ if state.is_stopped(&process(at)) => false,
            Phase::Waiting { processes, leases, seen } => {
                actor.rung
                    || state.dead & processes != 0
                    || state.over & leases != 0
                    || (self.bounded_looks && self.would_see_more(state, at, *seen))
            }
            Phase::Ready => match self.task(state, at) {
                Some(Task::Keep { of, name, renewals }) => {
                    let holds = state.actors[of].holds[name];
                    (self.owner_is_dead(state, of) && holds.is != super::actor::Holding::Nothing)
                        || (holds.is == super::actor::Holding::Told && actor.renewals < renewals)
                }
                _ => true,
            },
            _ => true,
        }
    }

    /// Whether a waiter that reads now would see a change.
    pub(crate) fn would_see_more(&self, state: &State, at: usize, seen: u64) -> bool {
        let Some(task) = self.task(state, at) else { return true };
        state.names[task.name()].now.number != seen || !self.would_wait(state, at)
    }

    /// Whether a waiter that reads now would continue to wait.
    pub(crate) fn would_wait(&self, state: &State, at: usize) -> bool {
        let mut state = state.clone();
        let Some(task) = self.task(&state, at) else { return false };
        let record = state.names[task.name()].now.record(&name(task.name()));
        let Some(ask) = self.ask(&mut state, at, task) else { return false };
        let step = decide_now(self, &state, self.actors[at].host, |facts| decide_any(&record, &ask, facts));
        matches!(step, Step::Acquire(Transition::Done(AcquireStep::Wait(_))))
            && victim_of_cycle(self, &state, at, task).is_none()
    }
}
