//! Linearizability: whether calls that overlapped can be put in one order, each at a moment between its call and its
//! return, in which every result is right. The algorithm is that of Wing and Gong as Lowe made it fast: at each return, all
//! orders of the calls that are open are tried until that call has happened.
//!
//! A call without a known result may have happened at any moment after it was made, or never: it returns at infinity.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

/// What an object does: its state, and what an operation with its result makes of that.
pub(crate) trait Object {
    type State: Clone + Eq + Hash + Debug;
    type Operation: Clone + PartialEq + Debug;

    fn initial() -> Self::State;

    /// The state after it; `None` if it cannot have this result now.
    fn apply(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;
}

/// An operation with its result, called and returned on one clock. No return: nothing is known of the result.
#[derive(Debug, Clone)]
pub(crate) struct Call<T> {
    pub(crate) from: u64,
    pub(crate) until: Option<u64>,
    pub(crate) operation: T,
}

/// More possible worlds than this at one moment are not followed.
const MOST_WORLDS: usize = 200_000;

/// One order of the calls so far: the state that it leads to, and which of the open calls have happened in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World<S> {
    state: S,
    happened: BTreeSet<usize>,
    /// Of the calls without a result.
    perhaps: BTreeSet<usize>,
}

/// What is wrong with this history, if no order of it is right.
pub(crate) fn judge<O: Object>(calls: &[Call<O::Operation>]) -> Result<(), String> {
    // Times are equal where the clock is coarse: what may overlap, does.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        events.push((call.from, false, at));
        events.extend(call.until.map(|until| (until, true, at)));
    }
    events.sort_unstable();
    let mut open: BTreeSet<usize> = BTreeSet::new();
    let first = World { state: O::initial(), happened: BTreeSet::new(), perhaps: BTreeSet::new() };
    let mut worlds: HashSet<World<O::State>> = HashSet::from([first]);
    for (_, is_return, at) in events {
        if !is_return {
            open.insert(at);
            continue;
        }
        let after = until_happened::<O>(calls, &open, &worlds, at)?;
        if after.is_empty() {
            let states: HashSet<_> = worlds.iter().map(|world| format!("{:?}", world.state)).collect();
            let others: Vec<_> = open.iter().filter(|other| **other != at).map(|other| &calls[*other]).collect();
            return Err(format!("{:?} cannot be, with the states {states:?} and, open, {others:?}", calls[at]));
        }
        open.remove(&at);
        worlds = fewest(after);
    }
    Ok(())
}

/// All worlds in which this call has happened, and is open no more.
fn until_happened<O: Object>(
    calls: &[Call<O::Operation>],
    open: &BTreeSet<usize>,
    worlds: &HashSet<World<O::State>>,
    at: usize,
) -> Result<HashSet<World<O::State>>, String> {
    let mut seen = worlds.clone();
    let mut to_do: Vec<World<O::State>> = worlds.iter().cloned().collect();
    let mut found = HashSet::new();
    while let Some(mut world) = to_do.pop() {
        if world.happened.remove(&at) {
            found.insert(world);
            continue;
        }
        for next in open.iter().filter(|next| !world.happened.contains(next) && !world.perhaps.contains(next)) {
            // Of calls without a result that are alike, the earliest does as well as any.
            let is_unknown = calls[*next].until.is_none();
            let alike = |other: &&usize| calls[**other].until.is_none() && !world.perhaps.contains(other);
            let is_later = |other: &usize| *other != *next && calls[*other].operation == calls[*next].operation;
            if is_unknown && open.iter().filter(alike).take_while(|other| *other < next).any(is_later) {
                continue;
            }
            let Some(state) = O::apply(&world.state, &calls[*next].operation) else { continue };
            let mut after = World { state, ..world.clone() };
            if is_unknown { &mut after.perhaps } else { &mut after.happened }.insert(*next);
            if seen.insert(after.clone()) {
                to_do.push(after);
            }
        }
        if seen.len() > MOST_WORLDS {
            return Err(format!("more than {MOST_WORLDS} orders are possible at {:?}", calls[at]));
        }
    }
    Ok(found)
}

/// The worlds without those in which more calls without a result have happened than in another one that is the same.
fn fewest<S: Clone + Eq + Hash>(worlds: HashSet<World<S>>) -> HashSet<World<S>> {
    let mut alike: HashMap<(S, BTreeSet<usize>), Vec<BTreeSet<usize>>> = HashMap::new();
    for World { state, happened, perhaps } in worlds {
        let known = alike.entry((state, happened)).or_default();
        if known.iter().any(|known| known.is_subset(&perhaps)) {
            continue;
        }
        known.retain(|known| !perhaps.is_subset(known));
        known.push(perhaps);
    }
    let world = |((state, happened), all): ((S, BTreeSet<usize>), Vec<BTreeSet<usize>>)| {
        all.into_iter().map(move |perhaps| World { state: state.clone(), happened: happened.clone(), perhaps })
    };
    alike.into_iter().flat_map(world).collect()
}
