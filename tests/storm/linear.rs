//! Linearizability: whether calls that overlapped can be put in one order, each at a moment between its call and its
//! return, in which every result is right. The search is that of Wing and Gong with Lowe's memory: depth first, and no set
//! of calls that led to a state is tried twice.
//!
//! A call without a known result may have happened at any moment after it was made, or never: it returns at infinity.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

/// The semantics of an object: its state, and the effect of an operation with its result.
pub(crate) trait Object: Sized {
    type State: Clone + Eq + Hash + Debug;
    type Operation: Clone + PartialEq + Debug;

    fn initial() -> Self::State;

    /// The state after it; `None` if it cannot have this result now.
    fn apply(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;

    /// Whether it leaves every state as it is.
    fn is_pure(operation: &Self::Operation) -> bool;

    /// The thing that this operation sees, if only one state shows it, and that state comes once.
    fn sees(_operation: &Self::Operation) -> Option<&str> {
        None
    }

    /// The thing that this state shows and no later one does.
    fn shows(_state: &Self::State) -> Option<&str> {
        None
    }

    /// The same history, with bounds and names that leave fewer orders to try.
    fn narrowed(calls: &[Call<Self::Operation>]) -> Vec<Call<Self::Operation>> {
        calls.to_vec()
    }
}

/// An operation with its result, called and returned on one clock. No return: nothing is known of the result.
#[derive(Debug, Clone)]
pub(crate) struct Call<T> {
    pub(crate) from: u64,
    pub(crate) until: Option<u64>,
    pub(crate) operation: T,
}

/// The search gives up after this number of steps.
const MOST_STEPS: usize = 3_000_000;

/// A state that some order of calls led to, and the calls that may come next.
struct Frame<S> {
    state: S,
    next: Vec<usize>,
    /// The call that led here.
    by: Option<usize>,
}

struct Search<'a, O: Object> {
    calls: &'a [Call<O::Operation>],
    /// The calls with a result, and those without, each by the time of the call.
    known: Vec<usize>,
    unknown: Vec<usize>,
    done: Vec<bool>,
    /// Stands for the set of the calls that are done: the exclusive or of their marks.
    set: u128,
    seen: HashSet<(u128, O::State)>,
    /// How many calls that are not done see each thing that is seen only once.
    lookers: HashMap<&'a str, usize>,
}

/// Returns the error of this history, if no order of it is right.
pub(crate) fn judge<O: Object>(calls: &[Call<O::Operation>]) -> Result<(), String> {
    let calls = O::narrowed(calls);
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|at| calls[*at].from);
    let (known, unknown) = order.into_iter().partition(|at| calls[*at].until.is_some());
    let done = vec![false; calls.len()];
    let mut lookers = HashMap::new();
    for thing in calls.iter().filter_map(|call| O::sees(&call.operation)) {
        *lookers.entry(thing).or_default() += 1;
    }
    Search::<O> { calls: &calls, known, unknown, done, set: 0, seen: HashSet::new(), lookers }.run()
}

impl<O: Object> Search<'_, O> {
    fn run(mut self) -> Result<(), String> {
        let (mut steps, mut deepest, mut stuck) = (0, 0, String::new());
        let first = Frame { state: O::initial(), next: self.next(&O::initial()), by: None };
        let mut frames = vec![first];
        while let Some(frame) = frames.last_mut() {
            // Calls without a result need not happen.
            if self.known.iter().all(|at| self.done[*at]) {
                return Ok(());
            }
            let Some(at) = frame.next.pop() else {
                let frame = frames.pop().expect("it was just looked at");
                if frames.len() >= deepest {
                    (deepest, stuck) = (frames.len(), self.describe(&frame.state));
                }
                frame.by.into_iter().for_each(|by| self.mark(by));
                continue;
            };
            let Some(state) = O::apply(&frame.state, &self.calls[at].operation) else { continue };
            let is_awaited = |thing| self.lookers.get(thing).is_some_and(|lookers| *lookers > 0);
            if state != frame.state && O::shows(&frame.state).is_some_and(is_awaited) {
                continue;
            }
            self.mark(at);
            if !self.seen.insert((self.set, state.clone())) {
                self.mark(at);
                continue;
            }
            steps += 1;
            if steps > MOST_STEPS {
                return Err(format!("no order was found in {MOST_STEPS} steps; {stuck}"));
            }
            let next = self.next(&state);
            frames.push(Frame { state, next, by: Some(at) });
        }
        Err(stuck)
    }

    /// A call is done, or not any more.
    fn mark(&mut self, at: usize) {
        self.done[at] = !self.done[at];
        if let Some(lookers) = O::sees(&self.calls[at].operation).and_then(|thing| self.lookers.get_mut(thing)) {
            *lookers = if self.done[at] { *lookers - 1 } else { *lookers + 1 };
        }
        // Knuth's multiplier spreads the number; two sets with one mark are as good as impossible.
        let spread = |salt: u64| (at as u64 + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let mixed = |salt| u128::from(spread(salt).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ spread(salt * 7 + 3) >> 31);
        self.set ^= mixed(0x51) << 64 | mixed(0xa7_3309);
    }

    /// The calls that may come next, the best guess last: those that were made before any other one returned.
    fn next(&self, state: &O::State) -> Vec<usize> {
        let mut first_return = u64::MAX;
        let mut next = Vec::new();
        for at in self.known.iter().copied().filter(|at| !self.done[*at]) {
            let call = &self.calls[at];
            // Times are equal where the clock is coarse: calls that may overlap, do.
            if call.from > first_return {
                break;
            }
            // A call that changes nothing, now or ever, is equally right now and later.
            if O::is_pure(&call.operation) && O::apply(state, &call.operation).is_some() {
                return vec![at];
            }
            first_return = first_return.min(call.until.unwrap_or(u64::MAX));
            next.push(at);
        }
        next.retain(|at| self.calls[*at].from <= first_return);
        next.sort_by_key(|at| self.calls[*at].until);
        let mut perhaps: Vec<usize> = Vec::new();
        for at in self.unknown.iter().copied().filter(|at| !self.done[*at]) {
            // The earliest of equal calls is as good as any.
            let is_alike = |other: &usize| self.calls[*other].operation == self.calls[at].operation;
            if self.calls[at].from <= first_return && !perhaps.iter().any(is_alike) {
                perhaps.push(at);
            }
        }
        next.into_iter().chain(perhaps).rev().collect()
    }

    fn describe(&self, state: &O::State) -> String {
        let open: Vec<_> = self.next(state).into_iter().map(|at| &self.calls[at]).collect();
        format!("in state {state:?} none of these can be next: {open:?}")
    }
}
