//! Several clients of one store: their operations in any order, the possible faults and the invariants.

use stateright::{Model, Property};

use super::client::{Act, Doing, Found, Number};
use super::file_system::{FileSystem, Node, Wrong};
use super::replay::{Answer, Call, Progress};

pub(super) const ONE_HOLDER: &str = "at most one holds";
pub(super) const NUMBERS_RISE: &str = "version numbers rise";
pub(super) const SEEN: &str = "who looks while somebody holds sees that";
pub(super) const WORKS: &str = "no operation fails";
pub(super) const LASTS: &str = "what is changed by its holder is changed";
pub(super) const FREE_AGAIN: &str = "when all is over the next one gets it, and nothing is left";

/// Maximum number of commits by one client.
const MOST_SWAPS: u64 = 8;

/// Number of the client that starts after all others have ended.
const NEWCOMER: usize = 7;

#[derive(Debug, Clone)]
pub(super) struct World {
    pub is_nfs: bool,
    pub clients: Vec<Script>,
    /// True if an earlier client removed its record and was killed before it removed the tombstone.
    pub has_tombstone: bool,
    pub faults: Faults,
    pub wrong: Option<Wrong>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Script {
    /// Acquires and releases the lock this many times.
    Takes(u8),
    /// Acquires, changes and releases the lock this many times.
    TakesAndChanges(u8),
    /// Changes the record of another holder, as a waiter does, or breaks the lock of a dead holder.
    Joins,
    Sweeps,
}

/// Maximum number of faults of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub crashes: u8,
    /// A call is made, its reply is lost, and the client gets the reply to the repetition.
    pub lost_replies: u8,
    /// A client gets an old listing, or looks up a name in an old listing.
    pub stale_looks: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub files: FileSystem,
    pub clients: Vec<Client>,
    left: Faults,
    /// The highest version number that any client got when it acquired or changed the lock.
    told: u64,
    broken: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub doing: Doing,
    is_dead: bool,
    rounds: u8,
    swaps: u64,
    held_by: Option<usize>,
    answers: Vec<Answer>,
    pub call: Option<Call>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Goes(usize),
    LosesReply(usize),
    LooksStale(usize),
    Dies(usize),
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |script: &Script| Client {
            doing: if matches!(script, Script::Sweeps) { Doing::Sweeps } else { Doing::Looks },
            is_dead: false,
            rounds: match script {
                Script::Takes(rounds) | Script::TakesAndChanges(rounds) => *rounds,
                Script::Joins | Script::Sweeps => 1,
            },
            swaps: 0,
            held_by: None,
            answers: Vec::new(),
            call: None,
        };
        let clients: Vec<Client> = self.clients.iter().map(client).collect();
        let files = FileSystem::new(self.is_nfs, self.has_tombstone);
        let mut first = State { files, clients, left: self.faults, told: 0, broken: None };
        (0..self.clients.len()).for_each(|at| self.run(&mut first, at));
        vec![first]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (at, client) in state.clients.iter().enumerate().filter(|(_, client)| client.doing != Doing::Ended) {
            actions.push(Action::Goes(at));
            if state.left.crashes > 0 {
                actions.push(Action::Dies(at));
            }
            let Some(call) = &client.call else { continue };
            if state.left.lost_replies > 0 && changes(call) {
                actions.push(Action::LosesReply(at));
            }
            if state.left.stale_looks > 0 && state.files.stale(at, call).is_some() {
                actions.push(Action::LooksStale(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        let (Action::Goes(at) | Action::LosesReply(at) | Action::LooksStale(at) | Action::Dies(at)) = action;
        let call = state.clients[at].call.clone();
        match (action, call) {
            (Action::Dies(_), _) => {
                state.left.crashes -= 1;
                let client = &mut state.clients[at];
                (client.is_dead, client.doing, client.call) = (true, Doing::Ended, None);
                client.answers.clear();
                return Some(next);
            }
            (Action::Goes(_), Some(call)) => {
                let answer = state.files.apply(at, &call, self.wrong);
                state.clients[at].answers.push(answer);
            }
            (Action::LosesReply(_), Some(call)) => {
                state.left.lost_replies -= 1;
                let first = state.files.apply(at, &call, self.wrong);
                let repeated = state.files.repeated(&call, &first)?;
                state.clients[at].answers.push(repeated);
            }
            (Action::LooksStale(_), Some(call)) => {
                state.left.stale_looks -= 1;
                let stale = state.files.stale(at, &call)?;
                state.clients[at].answers.push(stale);
            }
            // No call is pending: the client was just told that it holds the lock.
            (_, None) => self.begin_after_holding(state, at),
        }
        self.run(state, at);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| holders(state).count() <= 1),
            Property::always(NUMBERS_RISE, |_, state: &State| state.broken != Some(NUMBERS_RISE)),
            Property::always(SEEN, |_, state: &State| state.broken != Some(SEEN)),
            Property::always(WORKS, |_, state: &State| state.broken != Some(WORKS)),
            Property::always(LASTS, |_, state: &State| state.broken != Some(LASTS)),
            Property::always(FREE_AGAIN, |world: &World, state: &State| {
                let over = state.clients.iter().all(|client| client.doing == Doing::Ended);
                !over || state.broken.is_some() || world.is_free_again(state)
            }),
        ]
    }
}

/// Returns the holders: from the reply to the acquisition until the release begins.
fn holders(state: &State) -> impl Iterator<Item = usize> {
    let holds = |client: &Client| matches!(client.doing, Doing::Holds(_) | Doing::Changes(_) | Doing::LooksAfterChange);
    state.clients.iter().enumerate().filter(move |(_, client)| holds(client)).map(|(at, _)| at)
}

fn changes(call: &Call) -> bool {
    !matches!(
        call,
        Call::OpenDirectory { .. } | Call::Read { .. } | Call::List { .. } | Call::IsThere { .. } | Call::Create { .. }
    )
}

impl World {
    fn act(&self, state: &State, at: usize) -> Act {
        let client = &state.clients[at];
        Act { client: at, serial: client.swaps, doing: client.doing, is_nfs: self.is_nfs }
    }

    /// Runs a client up to its next call, even if that call belongs to the next operation.
    fn run(&self, state: &mut State, at: usize) {
        loop {
            state.clients[at].call = None;
            if matches!(state.clients[at].doing, Doing::Ended | Doing::Holds(_)) {
                return;
            }
            let act = self.act(state, at);
            match act.run_once(&state.clients[at].answers) {
                Progress::Calls(call) => {
                    let sweeps = self.clients.iter().any(|script| matches!(script, Script::Sweeps));
                    let is_draft = |place: &str| {
                        !sweeps && state.files.directories.get(".work").is_some_and(|work| work.contains_key(place))
                    };
                    if !act.is_private(&call, is_draft) {
                        state.clients[at].call = Some(call);
                        return;
                    }
                    let answer = state.files.apply(at, &call, self.wrong);
                    state.clients[at].answers.push(answer);
                }
                Progress::Ended(found) => {
                    state.clients[at].answers.clear();
                    self.go_on(state, at, found);
                    let held_by = holders(state).next();
                    state.clients[at].held_by = held_by;
                }
            }
        }
    }

    fn begin_after_holding(&self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        if let Doing::Holds(version) = client.doing {
            let changes = matches!(self.clients[at], Script::TakesAndChanges(_));
            client.doing = if changes { Doing::Changes(version) } else { Doing::GivesBack(version) };
        }
    }

    /// Chooses the client's next operation after this result.
    fn go_on(&self, state: &mut State, at: usize, found: Option<Found>) {
        let found = match found {
            Some(found) => found,
            None => {
                state.broken = Some(WORKS);
                return end(&mut state.clients[at]);
            }
        };
        if let Found::Read(read) = &found {
            self.must_see_holder(state, at, read.as_ref().map(|(_, body)| usize::from(body[0])));
        }
        let dead: Vec<bool> = state.clients.iter().map(|client| client.is_dead).collect();
        let is_dead = |body: &[u8]| dead[usize::from(body[0])];
        let is_mine = |body: &[u8]| usize::from(body[0]) == at;
        let client = &mut state.clients[at];
        match (client.doing, found) {
            (Doing::Looks, Found::Read(None)) => client.doing = Doing::Takes(None),
            (Doing::Looks, Found::Read(Some((version, body)))) if is_mine(&body) => tell(state, at, version),
            (Doing::Looks, Found::Read(Some((version, body)))) if is_dead(&body) => {
                client.doing = Doing::Takes(Some(version));
            }
            (Doing::Looks, Found::Read(Some((version, body)))) if matches!(self.clients[at], Script::Joins) => {
                client.doing = Doing::Joins(version, [body[0], body[1]]);
            }
            // Another client holds the lock.
            (Doing::Looks, Found::Read(Some(_))) => next_round(client),
            (Doing::Joins(..), Found::Swapped(Some(_))) => next_round(client),
            (Doing::Joins(..), Found::Swapped(None)) => again(client, Doing::Looks),
            (Doing::Takes(_), Found::Swapped(Some(version))) => tell(state, at, version),
            (Doing::Takes(_), Found::Swapped(None)) => again(client, Doing::Looks),
            (Doing::Changes(_), Found::Swapped(Some(version))) => {
                if version.0 <= state.told {
                    state.broken = Some(NUMBERS_RISE);
                }
                state.told = version.0.max(state.told);
                again(client, Doing::GivesBack(version));
            }
            (Doing::Changes(_), Found::Swapped(None)) => again(client, Doing::LooksAfterChange),
            (Doing::LooksAfterChange, Found::Read(Some((version, body)))) if is_mine(&body) && body[1] == 1 => {
                again(client, Doing::GivesBack(version));
            }
            // Another client has joined first.
            (Doing::LooksAfterChange, Found::Read(Some((version, body)))) if is_mine(&body) && body.len() > 2 => {
                again(client, Doing::Changes(version));
            }
            (Doing::LooksAfterChange, Found::Read(_)) => {
                state.broken = Some(LASTS);
                end(client);
            }
            (Doing::GivesBack(_), Found::Swapped(Some(_))) => next_round(client),
            (Doing::GivesBack(_), Found::Swapped(None)) => again(client, Doing::LooksAfterGivingBack),
            (Doing::LooksAfterGivingBack, Found::Read(Some((version, body)))) if is_mine(&body) => {
                again(client, Doing::GivesBack(version));
            }
            (Doing::LooksAfterGivingBack, Found::Read(_)) => next_round(client),
            _ => end(client),
        }
    }

    /// Checks that a read sees a client that holds all the time. A stale listing may miss it; that costs a retry.
    fn must_see_holder(&self, state: &mut State, at: usize, seen: Option<usize>) {
        let holder = state.clients[at].held_by.filter(|_| self.faults.stale_looks == 0);
        if holder.is_some() && holder == holders(state).next() && seen != holder {
            state.broken = Some(SEEN);
        }
    }

    /// Returns true if a new client can acquire and release the lock, and a sweep then leaves nothing behind.
    fn is_free_again(&self, state: &State) -> bool {
        let mut files = state.files.clone();
        let mut serial = 0;
        let mut doing = Doing::Looks;
        loop {
            serial += 1;
            let act = Act { client: NEWCOMER, serial, doing, is_nfs: self.is_nfs };
            doing = match (doing, to_its_end(&act, &mut files)) {
                _ if serial > 2 * MOST_SWAPS => return false,
                (Doing::Looks, Some(Found::Read(found))) => Doing::Takes(found.map(|(version, _)| version)),
                (Doing::Takes(_), Some(Found::Swapped(None))) => Doing::Looks,
                (Doing::Takes(_), Some(Found::Swapped(Some(version)))) if version.0 > state.told => {
                    Doing::GivesBack(version)
                }
                (Doing::GivesBack(_), Some(Found::Swapped(Some(_)))) => Doing::Sweeps,
                (Doing::Sweeps, Some(Found::Swept)) => break,
                _ => return false,
            };
        }
        let is_left = |name: &str| name.starts_with(".new") || name.starts_with(".dead");
        let work = &files.directories[".work"];
        let is_record = |(_, node): &(&String, &Node)| matches!(node, Node::Directory(place) if place != ".work");
        let records = files.directories[super::STORE].iter().filter(is_record).count();
        let parked = work.keys().filter(|name| name.starts_with("rest.")).count();
        // On NFS a sweep recognizes only those leftovers that are older than a minute on the server.
        (self.is_nfs || !work.keys().any(|name| is_left(name))) && records <= parked
    }
}

fn to_its_end(act: &Act, files: &mut FileSystem) -> Option<Found> {
    let mut answers = Vec::new();
    loop {
        match act.run_once(&answers) {
            Progress::Calls(call) => answers.push(files.apply(act.client, &call, None)),
            Progress::Ended(found) => return found,
        }
    }
}

fn tell(state: &mut State, at: usize, version: Number) {
    if version.0 <= state.told {
        state.broken = Some(NUMBERS_RISE);
    }
    state.told = version.0.max(state.told);
    again(&mut state.clients[at], Doing::Holds(version));
}

fn again(client: &mut Client, doing: Doing) {
    client.swaps += 1;
    client.doing = if client.swaps > MOST_SWAPS { Doing::Ended } else { doing };
}

fn next_round(client: &mut Client) {
    client.rounds -= 1;
    let doing = if client.rounds == 0 { Doing::Ended } else { Doing::Looks };
    again(client, doing);
}

fn end(client: &mut Client) {
    (client.doing, client.call) = (Doing::Ended, None);
}
