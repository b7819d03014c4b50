//! The invariants of every state.

use lock::{Acquire, AcquireStep, Grant, Lifetime, Mode, Record, Transition, Waiter, decide};
use stateright::Property;

use super::actor::{HeldMode, Holding, Phase, Swapping};
use super::facts::decide_now;
use super::state::{Broken, State};
use super::world::{Script, World, name, owner, party, process, proof, whose};

pub(crate) const FIT: &str = "the holders are compatible";
pub(crate) const RECORD_FITS: &str = "the holders in the record are compatible";
pub(crate) const TOKENS: &str = "tokens rise in the order of granting";
pub(crate) const FIRST_COME: &str = "the first of two live waiters is granted first";
pub(crate) const PLACES: &str = "no live waiter loses its position";
pub(crate) const LATEST: &str = "of the callers that give way to newer ones, one waits, and no replaced one is granted";
pub(crate) const KEPT: &str = "no grant of a live holder ends";
pub(crate) const SERVED: &str = "a queue is granted by every change of the record";
pub(crate) const HANDLES: &str = "every grant has a known handle, or depends on its waiter";
pub(crate) const JOB_ONCE: &str = "a job whose success is on record does not begin again";
pub(crate) const NOT_STUCK: &str = "no name is stuck once the dead are gone";
pub(crate) const PASSED: &str = "no waiter waits for a stopped one";
pub(crate) const WOKEN: &str = "a waiter is woken by another actor, or polls";

/// Newcomers act as this one.
const NEWCOMER: usize = 7;

pub(crate) fn all() -> Vec<Property<World>> {
    vec![
        Property::always(FIT, do_fit),
        Property::always(RECORD_FITS, |_, state: &State| state.broken != Some(RECORD_FITS)),
        Property::always(TOKENS, |_, state: &State| state.broken != Some(TOKENS)),
        Property::always(FIRST_COME, |_, state: &State| state.broken != Some(FIRST_COME)),
        Property::always(PLACES, |_, state: &State| state.broken != Some(PLACES)),
        Property::always(LATEST, |_, state: &State| state.broken != Some(LATEST)),
        Property::always(KEPT, |_, state: &State| state.broken != Some(KEPT)),
        Property::always(SERVED, |_, state: &State| state.broken != Some(SERVED)),
        Property::always(HANDLES, have_handles),
        Property::always(JOB_ONCE, |_, state: &State| state.broken != Some(JOB_ONCE)),
        Property::always(NOT_STUCK, |world, state| !is_over(state) || is_free_for_all(world, state)),
        Property::always(PASSED, |world, state| !waits_for_stopped(world, state)),
        Property::always(WOKEN, |world, state| !all_actors_wait(world, state)),
    ]
}

/// Whether the holders that were told so, and have not begun to release, are compatible.
fn do_fit(world: &World, state: &State) -> bool {
    (0..state.names.len()).all(|name| {
        let holds = state.actors.iter().zip(&world.actors).map(|(actor, script)| (actor.holds[name], script.slots));
        let told = holds.filter(|(hold, _)| hold.is == Holding::Told);
        fit(&told.filter_map(|(hold, slots)| Some((hold.share?, hold.slot, slots))).collect::<Vec<_>>())
    })
}

/// Whether these are compatible: the mode and the slot of each, and how many slots it counts.
fn fit(holds: &[(HeldMode, u32, u32)]) -> bool {
    let Some((mode, _, slots)) = holds.first() else { return true };
    let alike = holds.iter().all(|(other, ..)| other == mode);
    match mode {
        HeldMode::Exclusive => holds.len() == 1,
        HeldMode::Shared => alike,
        HeldMode::Slot => {
            let distinct = holds.iter().enumerate().all(|(at, hold)| !holds[..at].contains(hold));
            alike && distinct && holds.iter().all(|(_, slot, count)| slot < slots && count == slots)
        }
    }
}

/// The promise that a swap has broken, if it has.
pub(crate) fn broken_by_swap(
    world: &World,
    state: &State,
    by: usize,
    swap: &Swapping,
    old: &Record,
    new: &Record,
) -> Option<Broken> {
    let slots_of = |proof| whose(&proof).map_or(0, |whose| world.actors[whose].slots);
    let key = |grant: &Grant| (HeldMode::from(grant.mode), grant.slot, slots_of(grant.proof));
    if !fit(&new.holders.iter().map(key).collect::<Vec<_>>()) {
        return Some(RECORD_FITS);
    }
    let is_new = |grant: &&Grant| old.holders.iter().all(|other| other.proof != grant.proof);
    let tokens: Vec<_> = new.holders.iter().map(|grant| grant.token).collect();
    let highest =
        old.holders.iter().chain(old.ended_grants.iter().map(|ending| &ending.grant)).map(|grant| grant.token).max();
    let rises = new.holders.iter().filter(is_new).all(|grant| highest.is_none_or(|highest| grant.token > highest));
    if !tokens.is_sorted() || !rises {
        return Some(TOKENS);
    }
    let holds = |proof| new.holders.iter().any(|grant| grant.proof == proof);
    let waits = |proof| new.waiters.iter().any(|waiter| waiter.proof == proof);
    let is_there = |waiter: &Waiter| {
        let in_time = waiter.lease.as_ref().is_none_or(|lease| !state.is_over(lease.ends));
        // Without its shell, a waiter waits for no one.
        let is_wanted = !waiter.owner.processes.iter().all(|owner| state.is_dead(owner));
        in_time && is_wanted && !state.is_dead(&waiter.process) && waiter.proof != proof(by)
    };
    let is_late = |grant: &Grant| whose(&grant.proof).is_some_and(|whose| state.actors[whose].replaced);
    if new.waiters.iter().filter(|waiter| waiter.latest_only).count() > 1
        || new.holders.iter().filter(is_new).any(is_late)
    {
        return Some(LATEST);
    }
    let old = &with_newcomer_in_place(old, new, by);
    if old.waiters.iter().any(|waiter| is_there(waiter) && !holds(waiter.proof) && !waits(waiter.proof)) {
        return Some(PLACES);
    }
    // The holder was granted after all waiters before it in the queue; a newcomer comes after all of them.
    for grant in new.holders.iter().filter(is_new) {
        let place = old.waiters.iter().position(|waiter| waiter.proof == grant.proof).unwrap_or(old.waiters.len());
        let is_next = |waiter: &Waiter| is_there(waiter) && !state.was_stopped(&waiter.process);
        if old.waiters[..place].iter().any(|waiter| is_next(waiter) && !holds(waiter.proof)) {
            return Some(FIRST_COME);
        }
    }
    let stayed = old.waiters.iter().filter(|waiter| waits(waiter.proof)).map(|waiter| waiter.proof);
    // A waiter whose grant was taken back comes first again.
    let is_back = |waiter: &&Waiter| old.holders.iter().any(|grant| grant.proof == waiter.proof);
    let queue = new.waiters.iter().skip_while(is_back).map(|waiter| waiter.proof);
    if !queue.take(stayed.clone().count()).eq(stayed) {
        return Some(FIRST_COME);
    }
    let ended = old.holders.iter().filter(|grant| !holds(grant.proof));
    if ended.clone().any(|grant| !may_end(world, state, by, swap, grant)) {
        return Some(KEPT);
    }
    // Only what does not serve leaves holders as they are.
    // A waiter that stopped after the decision is not passed over by it; PASSED covers that.
    let first = new.waiters.first().filter(|first| !state.was_stopped(&first.process));
    let first_fits = first.is_some_and(|first| {
        let mut holds: Vec<_> = new.holders.iter().map(key).collect();
        let slot = (0..).find(|slot| holds.iter().all(|(_, other, _)| other != slot)).unwrap_or_default();
        let slot = if first.mode == Mode::Slot { slot } else { 0 };
        holds.push((first.mode.into(), slot, slots_of(first.proof)));
        fit(&holds)
    });
    first_fits.then_some(SERVED)
}

/// Returns the record with a newcomer in the place of the waiter that it replaces, if it does.
fn with_newcomer_in_place(old: &Record, new: &Record, by: usize) -> Record {
    let mut old = old.clone();
    let came = !old.has_entry(&proof(by)) && new.has_entry(&proof(by));
    let gone = |waiter: &&mut Waiter| waiter.latest_only && !new.has_entry(&waiter.proof);
    let gives_way = new.replacement.as_ref().is_some_and(|replacement| replacement.by == proof(by));
    if let Some(replaced) = old.waiters.iter_mut().find(gone).filter(|_| came && gives_way) {
        replaced.proof = proof(by);
    }
    old
}

/// Whether an actor may end this grant of another one.
fn may_end(world: &World, state: &State, by: usize, swap: &Swapping, grant: &Grant) -> bool {
    let Some(whose) = whose(&grant.proof) else { return false };
    let is_over = grant.lifetime.lease().is_some_and(|lease| state.is_over(lease.ends));
    let depends_on = grant.provisional.unwrap_or_else(|| owner(&world.actors[whose], whose));
    let is_taken_back = grant.provisional.is_some_and(|process| state.was_stopped(&process));
    let is_lost = is_taken_back || state.is_dead(&depends_on) || state.is_dead(&owner(&world.actors[whose], whose));
    whose == by || swap.breaks.contains(&whose) || is_over || is_lost || grant.lifetime == Lifetime::OwnerDied
}

/// Whether an actor is told a token below a token that was told before, although the two grants cannot have overlapped.
/// Remembers the token.
pub(crate) fn broken_by_token(state: &mut State, name: usize, token: u64, mode: HeldMode) -> Option<Broken> {
    let (any, exclusive) = &mut state.told[name];
    let below = if mode == HeldMode::Exclusive { *any } else { *exclusive };
    *any = token.max(*any);
    if mode == HeldMode::Exclusive {
        *exclusive = token.max(*exclusive);
    }
    (token <= below).then_some(TOKENS)
}

/// Every grant is known: its actor was told of it, is about to be told, has confirmed it, or is dead; or its time is
/// over.
fn have_handles(world: &World, state: &State) -> bool {
    (0..world.names).all(|at| {
        let record = state.names[at].now.record(&name(at));
        record.holders.iter().all(|grant| {
            let Some(whose) = whose(&grant.proof) else { return false };
            let actor = &state.actors[whose];
            let waits = !state.is_dead(&process(whose)) && actor.phase != Phase::Ended;
            let knows = actor.holds[at].said || actor.holds[at].is != Holding::Nothing;
            let depends = grant.provisional == Some(process(whose));
            let is_over = grant.lifetime.lease().is_some_and(|lease| state.is_over(lease.ends));
            waits || knows || depends || is_over || state.is_dead(&owner(&world.actors[whose], whose))
        })
    })
}

/// Whether nothing more happens in this world by itself.
fn is_over(state: &State) -> bool {
    state.on_its_way.is_empty() && state.actors.iter().all(|actor| actor.phase == Phase::Ended)
}

/// Whether a newcomer gets every name at once when no lease is left.
fn is_free_for_all(world: &World, state: &State) -> bool {
    let state = &State { over: u32::MAX, ..state.clone() };
    let script = Script::job(&[]);
    (0..world.names).all(|at| {
        let entry = Waiter::new(proof(NEWCOMER), party(&script, NEWCOMER), process(NEWCOMER));
        let ask = Acquire::new(entry);
        let record = state.names[at].now.record(&name(at));
        let step = decide_now(world, state, 0, |facts| decide(&record, &ask, facts));
        matches!(step, Transition::Write { response: AcquireStep::Granted(..), .. })
    })
}

/// Whether the actors that are not stopped wait, and no event lets them read, although no stopped one has a lock.
fn waits_for_stopped(world: &World, state: &State) -> bool {
    let is_stopped = |at: &usize| state.is_stopped(&process(*at));
    let is_at_work = |at: &usize| is_stopped(at) && state.actors[*at].holds.iter().any(|hold| hold.said);
    let (all, idle) = (0..world.actors.len(), |at: &usize| is_stopped(at) || !world.can_go_on(state, *at));
    let waits = |at: usize| matches!(state.actors[at].phase, Phase::Waiting { .. });
    state.stopped != 0
        && state.on_its_way.is_empty()
        && all.clone().all(|at| idle(&at))
        && !all.clone().any(|at| is_at_work(&at))
        && all.clone().any(|at| !is_stopped(&at) && waits(at))
}

/// Whether all live actors wait, and no event will ever let them read; or they would read in vain.
fn all_actors_wait(world: &World, state: &State) -> bool {
    let waits = |at: usize| matches!(state.actors[at].phase, Phase::Waiting { .. });
    let idle = |at: usize| state.actors[at].phase == Phase::Ended || !world.can_go_on(state, at);
    let all = 0..world.actors.len();
    if state.stopped != 0 || !state.on_its_way.is_empty() || !all.clone().any(waits) || !all.clone().all(idle) {
        return false;
    }
    // A waiter for a lease sees its end.
    let mut after = state.clone();
    after.over = u32::MAX;
    all.filter(|at| waits(*at)).all(|at| !world.can_go_on(&after, at))
}
