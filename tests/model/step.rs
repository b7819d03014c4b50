//! The possible next events: an actor continues, or the world interferes.

use stateright::{Model, Property};

use super::actor::{Answer, Holding, Phase, Swapping};
use super::asking;
use super::facts::leases;
use super::promises;
use super::state::{Sent, State};
use super::storage::Version;
use super::world::{Lasts, Planted, Task, World, bit, name, owner, process, proof, whose};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// This actor does what comes next.
    Goes(usize),
    /// It reads what was there before the last swap.
    ReadsStale(usize),
    /// Its swap happens, and it does not hear of it.
    LosesReply(usize),
    /// It has waited for long enough.
    IsImpatient(usize),
    /// Its process is stopped.
    IsStopped(usize),
    IsContinued(usize),
    /// Its process dies.
    Dies(usize),
    /// Its shell dies.
    LosesShell(usize),
    /// Its process dies having sent a swap.
    DiesSending(usize),
    /// It has sent its swap to a server that is slow, and sends it to another one.
    SendsTwice(usize),
    /// A sent request arrives.
    Arrives(usize),
    /// This lease is over.
    Expires(u64),
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for at in 0..self.actors.len() {
            self.actions_of(state, at, actions);
        }
        actions.extend((0..state.on_its_way.len()).map(Action::Arrives));
        let relevant = self.relevant_leases(state);
        actions.extend((0..u64::from(state.lent)).filter(|at| relevant & (1 << at) != 0).map(Action::Expires));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Goes(at) => self.go_on(state, at)?,
            Action::ReadsStale(at) => {
                state.left.stale_reads -= 1;
                let old = |version: &super::storage::Kept| version.before.clone();
                self.read(state, at, old);
            }
            Action::LosesReply(at) => {
                state.left.lost_replies -= 1;
                let Phase::Swapping(swap) = state.actors[at].phase.clone() else { return None };
                if !self.store(state, at, &swap) {
                    return None;
                }
                self.try_again(state, at);
            }
            Action::IsImpatient(at) => {
                state.actors[at].leaves = true;
                state.actors[at].phase = Phase::Ready;
            }
            Action::IsStopped(at) => {
                state.left.stops -= 1;
                state.stopped |= bit(&process(at));
                state.ever_stopped |= bit(&process(at));
            }
            Action::IsContinued(at) => state.stopped &= !bit(&process(at)),
            Action::Dies(at) => {
                state.left.crashes -= 1;
                self.die(state, at);
            }
            Action::LosesShell(at) => {
                state.left.crashes -= 1;
                self.lose_owner(state, at);
            }
            Action::DiesSending(at) => {
                state.left.late_arrivals -= 1;
                let Phase::Swapping(swap) = state.actors[at].phase.clone() else { return None };
                state.on_its_way.push(Sent { by: at, swap });
                self.die(state, at);
            }
            Action::SendsTwice(at) => {
                state.left.late_copies -= 1;
                let Phase::Swapping(swap) = state.actors[at].phase.clone() else { return None };
                state.on_its_way.push(Sent { by: at, swap });
            }
            Action::Arrives(which) => {
                let Sent { by, swap } = state.on_its_way.remove(which);
                if !was_revoked(state, by, &swap) {
                    self.store(state, by, &swap);
                }
            }
            Action::Expires(lease) => self.expire(state, lease),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

/// Whether the lease of a grant that arrives late is over or was released: then etcd does not know it, and does nothing.
fn was_revoked(state: &State, by: usize, swap: &Swapping) -> bool {
    let Some(Answer::Granted { lease: Some(lease), .. }) = swap.answer else { return false };
    let actor = &state.actors[by];
    let has = actor.begun == Some(lease) || actor.holds.iter().any(|hold| hold.lease == Some(lease));
    state.is_over(lease) || (!has && !state.is_dead(&process(by)))
}

impl World {
    fn actions_of(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let actor = &state.actors[at];
        let lives = !state.is_dead(&process(at));
        if state.is_stopped(&process(at)) {
            actions.push(Action::IsContinued(at));
            return;
        }
        let can_go = self.can_go_on(state, at);
        if can_go {
            actions.push(Action::Goes(at));
        }
        match &actor.phase {
            Phase::Ended => return,
            Phase::Ready | Phase::Waiting { .. } if can_go => {
                let about = self.task(state, at).map(|task| task.name());
                let is_stale = |name: usize| {
                    let kept = &state.names[name];
                    kept.before.number < kept.now.number && kept.before.number >= actor.seen[name]
                };
                if state.left.stale_reads > 0 && about.is_some_and(is_stale) {
                    actions.push(Action::ReadsStale(at));
                }
            }
            Phase::Swapping(_) => {
                if state.left.lost_replies > 0 {
                    actions.push(Action::LosesReply(at));
                }
                if state.left.late_copies > 0 {
                    actions.push(Action::SendsTwice(at));
                }
                if state.left.late_arrivals > 0 && lives {
                    actions.push(Action::DiesSending(at));
                }
            }
            _ => {}
        }
        if state.left.stops > 0 && lives {
            actions.push(Action::IsStopped(at));
        }
        if matches!(actor.phase, Phase::Waiting { .. }) && self.actors[at].impatient {
            actions.push(Action::IsImpatient(at));
        }
        if state.left.crashes > 0 && lives {
            actions.push(Action::Dies(at));
        }
        if state.left.crashes > 0 && self.actors[at].for_shell && !state.is_dead(&owner(&self.actors[at], at)) {
            actions.push(Action::LosesShell(at));
        }
    }

    /// The leases that are not over and that matter to an actor.
    fn relevant_leases(&self, state: &State) -> u32 {
        let mut relevant = 0;
        for (at, kept) in state.names.iter().enumerate() {
            leases(&kept.now.record(&name(at))).for_each(|lease| relevant |= 1 << lease);
        }
        for actor in state.actors.iter().filter(|actor| actor.phase != Phase::Ended) {
            let of_holds = actor.holds.iter().filter(|hold| hold.is == Holding::Told).filter_map(|hold| hold.lease);
            of_holds.chain(actor.waits_by).chain(actor.begun).for_each(|lease| relevant |= 1 << lease);
        }
        relevant & !state.over
    }

    fn go_on(&self, state: &mut State, at: usize) -> Option<()> {
        match state.actors[at].phase.clone() {
            Phase::Ready | Phase::Waiting { .. } if self.task(state, at).is_none() => self.end(state, at),
            Phase::Ready | Phase::Waiting { .. } => self.read(state, at, |kept| kept.now.clone()),
            Phase::Read(version, known) => return asking::think(self, state, at, &version, known),
            Phase::Swapping(swap) => {
                if !self.store(state, at, &swap) {
                    self.try_again(state, at);
                    return Some(());
                }
                for rung in swap.rings.iter().filter(|_| self.planted != Some(Planted::NobodyRung)) {
                    state.actors[*rung].rung = true;
                }
                let stored = state.names[swap.name].now.clone();
                self.has_seen(state, at, swap.name, stored.number);
                state.actors[at].queued = self.actors[at].latest_only && swap.answer.is_none();
                match swap.answer {
                    Some(answer) => self.tell(state, at, answer, stored.number),
                    None => state.actors[at].phase = Phase::Read(stored, Vec::new()),
                }
            }
            Phase::Ended => return None,
        }
        Some(())
    }

    fn read(&self, state: &mut State, at: usize, which: impl Fn(&super::storage::Kept) -> Version) {
        let Some(task) = self.task(state, at) else { return };
        let version = which(&state.names[task.name()]);
        self.has_seen(state, at, task.name(), version.number);
        let actor = &mut state.actors[at];
        actor.rung = false;
        if let Task::GiveBack(name) | Task::GiveBackAsOwner(name) = task
            && actor.holds(name)
        {
            actor.holds[name].is = Holding::GivingBack;
        }
        actor.phase = Phase::Read(version, Vec::new());
    }

    /// Makes a swap, if it is not too late, and looks whether it keeps the promises.
    fn store(&self, state: &mut State, by: usize, swap: &Swapping) -> bool {
        let (key, before) = (name(swap.name), state.names[swap.name].clone());
        let compares = self.planted != Some(Planted::NothingCompared);
        if !state.names[swap.name].swap(swap.expect, swap.body.clone(), compares) {
            return false;
        }
        if self.planted == Some(Planted::NumbersForgotten) && swap.body.is_none() {
            state.names[swap.name].now.number = 0;
        }
        let (old, new) = (before.now.record(&key), state.names[swap.name].now.record(&key));
        for broken in &swap.breaks {
            let hold = &mut state.actors[*broken].holds[swap.name];
            if let Some(grant) = old.holders.iter().find(|grant| grant.proof == proof(*broken)) {
                hold.broken = grant.token;
            }
            hold.lose();
        }
        if swap.says {
            state.actors[by].holds[swap.name].said = true;
        }
        state.broken = promises::broken_by_swap(self, state, by, swap, &old, &new).or(state.broken);
        let gone = old.waiters.iter().filter(|waiter| waiter.latest_only && !new.has_entry(&waiter.proof));
        gone.filter_map(|waiter| whose(&waiter.proof)).for_each(|whose| state.actors[whose].replaced = true);
        true
    }

    fn has_seen(&self, state: &mut State, at: usize, name: usize, version: u64) {
        // A difference without consequences does not make two states of one.
        if state.left.stale_reads > 0 {
            state.actors[at].seen[name] = version;
        }
    }

    fn try_again(&self, state: &mut State, at: usize) {
        state.actors[at].repeated = true;
        state.actors[at].phase = Phase::Ready;
    }

    fn expire(&self, state: &mut State, lease: u64) {
        state.over |= 1 << lease;
        for (script, actor) in self.actors.iter().zip(&mut state.actors) {
            // A holder counts from before its request, so for itself its lease ends first. Renewed leases last equally
            // long, so an earlier lease is over by then too.
            let is_lost = |own: u64| own == lease || (script.lasts == Lasts::Renewing && own < lease);
            let lost = actor.holds.iter_mut().filter(|hold| hold.lease.is_some_and(is_lost));
            lost.for_each(super::actor::Hold::lose);
        }
    }

    /// An actor's process dies; its shell, if it has one, releases its locks.
    fn die(&self, state: &mut State, at: usize) {
        state.dead |= bit(&process(at));
        if self.actors[at].for_shell && !state.is_dead(&owner(&self.actors[at], at)) {
            let actor = &mut state.actors[at];
            (actor.phase, actor.refused) = (Phase::Ready, true);
        } else {
            self.forget(state, at);
        }
    }

    /// The owner of an actor's grants dies.
    fn lose_owner(&self, state: &mut State, at: usize) {
        state.dead |= bit(&owner(&self.actors[at], at));
        state.actors[at].holds.iter_mut().for_each(super::actor::Hold::lose);
        if state.is_dead(&process(at)) {
            self.forget(state, at);
        }
    }

    /// An actor has done everything there was to do.
    fn end(&self, state: &mut State, at: usize) {
        if !self.actors[at].stays {
            state.dead |= bit(&process(at)) | bit(&owner(&self.actors[at], at));
        }
        self.forget(state, at);
    }

    /// It does nothing more.
    fn forget(&self, state: &mut State, at: usize) {
        let ended = super::actor::Actor::new(self.names);
        let mut holds = std::mem::replace(&mut state.actors[at], ended).holds;
        holds.iter_mut().for_each(super::actor::Hold::lose);
        state.actors[at].holds =
            holds.iter().map(|hold| super::actor::Hold { is: hold.is, ..Default::default() }).collect();
        state.actors[at].phase = Phase::Ended;
    }

    /// Tells an actor the result of its request.
    pub(crate) fn tell(&self, state: &mut State, at: usize, answer: Answer, stored: u64) {
        let Some(task) = self.task(state, at) else { return };
        let about = task.name();
        // An actor that learns of its grant late may have lost it already.
        let is_broken = |token: u64| state.actors[at].holds[about].broken == Some(token);
        let is_over = |lease: u64| state.is_over(lease);
        let is_lost = match answer {
            Answer::Granted { token, lease, .. } => {
                let is_dead = state.is_dead(&owner(&self.actors[at], at));
                is_dead || token.is_some_and(is_broken) || lease.is_some_and(is_over)
            }
            _ => false,
        };
        if let Answer::Granted { token, mode, .. } = answer
            && !is_lost
        {
            state.broken = promises::broken_by_token(state, about, token.unwrap_or(stored), mode).or(state.broken);
        }
        // The supervisor starts no command after the end of the lease.
        let starts = answer == Answer::Done && matches!(task, Task::Begin(_)) && state.actors[at].holds(about);
        if starts && state.reported {
            state.broken = Some(promises::JOB_ONCE);
        }
        state.reported |= answer == Answer::Done && matches!(task, Task::Report(_));
        let keeps = matches!(task, Task::Keep { .. });
        let actor = &mut state.actors[at];
        (actor.repeated, actor.phase) = (false, Phase::Ready);
        match answer {
            Answer::Granted { mode, slot, lease, .. } => {
                let hold = &mut actor.holds[about];
                let is = if is_lost { Holding::Lost } else { Holding::Told };
                *hold = super::actor::Hold { is, share: Some(mode), slot, lease, ..*hold };
                (actor.waits_by, actor.begun, actor.leaves) = (None, None, false);
                actor.task += 1;
            }
            Answer::Left => (actor.leaves, actor.refused) = (false, true),
            Answer::FindsIt => actor.leaves = false,
            Answer::Refused if keeps => actor.task += 1,
            Answer::Renewed(lease) => {
                actor.renewals += 1;
                actor.begun = None;
                if let Task::Keep { of, name, .. } = task
                    && state.actors[of].holds(name)
                {
                    state.actors[of].holds[name].lease = lease;
                    if lease.is_some_and(|lease| state.over & (1 << lease) != 0) {
                        state.actors[of].holds[name].lose();
                    }
                }
            }
            Answer::Refused if matches!(task, Task::Take(..) | Task::Try(..) | Task::Begin(_)) => {
                (actor.refused, actor.waits_by, actor.begun) = (true, None, None);
            }
            Answer::Done | Answer::Refused => {
                if matches!(task, Task::GiveBack(_) | Task::GiveBackAsOwner(_)) {
                    actor.holds[about] = super::actor::Hold::default();
                }
                actor.breaking = None;
                actor.task += usize::from(!actor.refused);
            }
        }
        self.process_may_exit(state, at);
    }

    /// A process that acquires a lock for a shell ends when it has it.
    fn process_may_exit(&self, state: &mut State, at: usize) {
        let takes = |task: &Task| matches!(task, Task::Take(..) | Task::Try(..));
        let done = !self.actors[at].tasks[state.actors[at].task..].iter().any(takes) || state.actors[at].refused;
        if self.actors[at].for_shell && done {
            state.dead |= bit(&process(at));
            if state.is_dead(&owner(&self.actors[at], at)) {
                self.forget(state, at);
            }
        }
    }
}
