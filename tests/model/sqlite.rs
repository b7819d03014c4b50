//! The steps of the SQLite store, as a model of their own: begin immediate, read row and counter, count, write, commit.
//! A crash may come between any two of them; the next process then rolls the journal back. (With a write-ahead log it
//! does not see the frames of an unfinished transaction, which is the same.)

use stateright::{Checker, HasDiscoveries, Model, Property};

#[derive(Debug, Clone)]
struct Database {
    processes: usize,
    crashes: u8,
    planted: Option<Planted>,
}

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    /// A transaction does not lock when it begins: two may read before either writes.
    BeginDeferred,
    /// The counter goes with the row.
    CounterForgotten,
}

/// The pages of the database: the counter, and the row as version and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Pages {
    counter: u64,
    row: Option<(u64, usize)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    pages: Pages,
    /// The old contents, while a transaction writes.
    journal: Option<Pages>,
    locked_by: Option<usize>,
    processes: Vec<Process>,
    crashes: u8,
    /// The highest version that any process was told.
    told: u64,
    numbers_fell: bool,
}

/// A swap by one step after the other, from this version to a record of one's own, or to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Process {
    Reads,
    Begins(Swap),
    Looks(Swap),
    Counts(Swap),
    Writes(Swap, u64),
    Commits(Swap, u64),
    Holds(u64),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Swap {
    expect: Option<u64>,
    takes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Goes(usize),
    Dies(usize),
}

const ONE_HOLDER: &str = "at most one holds";
const RISES: &str = "versions that are told rise";
const WHOLE: &str = "what is seen is the old record or the new one";

impl Model for Database {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let processes = vec![Process::Reads; self.processes];
        let pages = Pages::default();
        vec![State {
            pages,
            journal: None,
            locked_by: None,
            processes,
            crashes: self.crashes,
            told: 0,
            numbers_fell: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, process) in state.processes.iter().enumerate().filter(|(_, process)| **process != Process::Ended) {
            let needs_lock = matches!(process, Process::Begins(_) | Process::Reads);
            if !needs_lock || state.locked_by.is_none() || self.planted == Some(Planted::BeginDeferred) {
                actions.push(Action::Goes(at));
            }
            if state.crashes > 0 {
                actions.push(Action::Dies(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Dies(at) => {
                state.crashes -= 1;
                state.processes[at] = Process::Ended;
                // POSIX locks end with their process; its journal stays.
                state.locked_by = state.locked_by.filter(|by| *by != at);
            }
            Action::Goes(at) => self.go_on(state, at),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.processes.iter().filter(|process| matches!(process, Process::Holds(_))).count() <= 1
            }),
            Property::always(RISES, |_, state: &State| !state.numbers_fell),
            Property::always(WHOLE, |_, state: &State| {
                let seen = state.journal.unwrap_or(state.pages);
                seen.row.is_none_or(|(version, _)| version <= seen.counter)
            }),
        ]
    }
}

impl Database {
    fn go_on(&self, state: &mut State, at: usize) {
        let ends = |state: &mut State| state.locked_by = state.locked_by.filter(|by| *by != at);
        state.processes[at] = match state.processes[at] {
            Process::Reads => {
                self.roll_back(state);
                match state.pages.row {
                    Some((version, by)) if by == at => self.tell(state, version),
                    Some((version, by)) if state.processes[by] == Process::Ended => {
                        Process::Begins(Swap { expect: Some(version), takes: true })
                    }
                    Some(_) => Process::Ended,
                    None => Process::Begins(Swap { expect: None, takes: true }),
                }
            }
            Process::Begins(swap) => {
                self.roll_back(state);
                state.locked_by = Some(at);
                Process::Looks(swap)
            }
            Process::Looks(swap) if state.pages.row.map(|row| row.0) != swap.expect => {
                ends(state);
                if swap.takes { Process::Reads } else { Process::Ended }
            }
            Process::Looks(swap) => Process::Counts(swap),
            Process::Counts(swap) => {
                state.journal = Some(state.pages);
                state.pages.counter += 1;
                Process::Writes(swap, state.pages.counter)
            }
            Process::Writes(swap, version) => {
                state.pages.row = swap.takes.then_some((version, at));
                if !swap.takes && self.planted == Some(Planted::CounterForgotten) {
                    state.pages.counter = 0;
                }
                Process::Commits(swap, version)
            }
            Process::Commits(swap, version) => {
                state.journal = None;
                ends(state);
                if swap.takes { self.tell(state, version) } else { Process::Ended }
            }
            Process::Holds(version) => Process::Begins(Swap { expect: Some(version), takes: false }),
            Process::Ended => Process::Ended,
        };
    }

    /// A process that finds an abandoned journal restores the old contents.
    fn roll_back(&self, state: &mut State) {
        if state.locked_by.is_none() {
            state.pages = state.journal.take().unwrap_or(state.pages);
        }
    }

    fn tell(&self, state: &mut State, version: u64) -> Process {
        state.numbers_fell |= version <= state.told;
        state.told = version.max(state.told);
        Process::Holds(version)
    }
}

fn database() -> Database {
    Database { processes: 3, crashes: if super::extent::is_complete() { 3 } else { 2 }, planted: None }
}

#[test]
fn swaps_that_die_half_way_through_a_transaction() {
    let checker = database().checker().threads(2).spawn_bfs().join();
    eprintln!("model: SQLite: {} states", checker.unique_state_count());
    checker.assert_properties();
}

fn is_seen(planted: Planted, promises: &[&str]) {
    let database = Database { planted: Some(planted), ..database() };
    let checker = database.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    assert!(promises.iter().any(|promise| found.contains_key(promise)), "{:?}", found.keys());
}

#[test]
fn two_callers_hold_if_a_transaction_does_not_lock_when_it_begins() {
    is_seen(Planted::BeginDeferred, &[ONE_HOLDER, WHOLE]);
}

#[test]
fn versions_fall_where_the_counter_goes_with_the_row() {
    is_seen(Planted::CounterForgotten, &[RISES, WHOLE]);
}
