//! The steps of the etcd store, as a model of their own: a lease that is requested without waiting and whose key the
//! next transaction puts; transactions whose reply is lost, that are sent again, and whose first copy may arrive last;
//! leases that a new leader prolongs; reads of a lease's key that show the state before it was put; and a watch that
//! begins at a version.
//!
//! A release deletes the key of the lease, which etcd knows until its time is over. So a late copy of the grant must fail
//! by another comparison: a transaction that creates the record compares the revision of the last creation.
//!
//! A lease depends on two clocks: that of its holder, which begins before the request, and that of etcd, for which it
//! is over when its key is gone. A leader may prolong a lease and never shortens it, so here it ends at any time after
//! its holder's end.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// A revision and the write at it: its writer, and its lease.
type Record = Option<(u64, usize, usize)>;

#[derive(Debug, Clone)]
struct Cluster {
    clients: usize,
    crashes: u8,
    lost_replies: u8,
    late_copies: u8,
    stale_reads: u8,
    planted: Option<Planted>,
}

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    /// The key of a lease is not put by the transaction that uses it.
    KeyLeftOut,
    /// A transaction compares nothing.
    NothingCompared,
    /// A transaction does not compare that the lease is over that it ends.
    LeaseNotCompared,
    /// A transaction that creates the record does not compare the last creation.
    BirthNotCompared,
    /// A watch begins at the next revision instead of behind the one that was read.
    WatchBeginsLate,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    revision: u64,
    record: Record,
    /// The revision of the last creation of the record.
    birth: u64,
    /// One for each client.
    leases: Vec<Lease>,
    clients: Vec<Client>,
    /// Copies of transactions that are still on their way.
    late: Vec<Transaction>,
    crashes: u8,
    lost_replies: u8,
    late_copies: u8,
    stale_reads: u8,
    /// The highest revision that any client was told.
    told: u64,
    numbers_fell: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Lease {
    is_known: bool,
    has_key: bool,
    /// It is over for its holder.
    own_end: bool,
    was_used: bool,
    was_released: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Transaction {
    by: usize,
    expect: u64,
    takes: bool,
    /// The revision of the last creation, if this one creates the record.
    birth: u64,
    /// The lease that must be over.
    over: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    Looks,
    Sends(Transaction),
    /// Held by another client; this one waits for changes after this revision.
    Waits(u64),
    Holds(u64),
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Goes(usize),
    /// Looks, and does not see the key of the holder's lease, which is there.
    LooksStale(usize),
    LosesReply(usize),
    /// The server is slow, so the request is sent to another one too.
    SendsTwice(usize),
    Arrives(usize),
    GrantArrives(usize),
    OwnEnd(usize),
    Ends(usize),
    Dies(usize),
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            revision: 0,
            record: None,
            birth: 0,
            leases: vec![Lease::default(); self.clients],
            clients: vec![Client::Looks; self.clients],
            late: Vec::new(),
            crashes: self.crashes,
            lost_replies: self.lost_replies,
            late_copies: self.late_copies,
            stale_reads: self.stale_reads,
            told: 0,
            numbers_fell: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (at, client) in state.clients.iter().enumerate() {
            let lease = state.leases[at];
            match client {
                Client::Ended => {}
                Client::Waits(since) if !self.is_rung(state, *since) => {}
                _ => actions.push(Action::Goes(at)),
            }
            if state.stale_reads > 0 && matches!(client, Client::Looks | Client::Waits(_)) {
                actions.push(Action::LooksStale(at));
            }
            if let Client::Sends(transaction) = client {
                if state.lost_replies > 0 {
                    actions.push(Action::LosesReply(at));
                }
                if state.late_copies > 0 {
                    actions.push(Action::SendsTwice(at));
                }
                if transaction.takes && !lease.is_known && !lease.was_used {
                    actions.push(Action::GrantArrives(at));
                }
            }
            if state.crashes > 0 && *client != Client::Ended {
                actions.push(Action::Dies(at));
            }
            // His own clock began first.
            if lease.is_known && !lease.own_end {
                actions.push(Action::OwnEnd(at));
            }
            if lease.is_known && lease.own_end {
                actions.push(Action::Ends(at));
            }
        }
        actions.extend((0..state.late.len()).map(Action::Arrives));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let state = &mut next;
        match action {
            Action::Goes(at) => self.go_on(state, at),
            Action::LooksStale(at) => {
                state.stale_reads -= 1;
                let held = |(_, by, _): &(u64, usize, usize)| *by != at && !state.leases[at].was_used;
                let found = state.record.filter(held).filter(|_| !self.is_over(state))?;
                state.clients[at] = takes(state, at, Some(found));
            }
            Action::LosesReply(at) => {
                state.lost_replies -= 1;
                let Client::Sends(transaction) = state.clients[at] else { return None };
                // It is sent again, and that reply arrives: another client was faster, perhaps itself.
                self.transact(state, transaction, true)?;
            }
            Action::SendsTwice(at) => {
                state.late_copies -= 1;
                let Client::Sends(transaction) = state.clients[at] else { return None };
                state.late.push(transaction);
            }
            Action::Arrives(which) => {
                let transaction = state.late.remove(which);
                self.transact(state, transaction, false);
            }
            Action::GrantArrives(at) => state.leases[at].is_known = true,
            Action::OwnEnd(at) => state.leases[at].own_end = true,
            Action::Ends(at) => (state.leases[at].is_known, state.leases[at].has_key) = (false, false),
            Action::Dies(at) => {
                state.crashes -= 1;
                state.clients[at] = Client::Ended;
                // No client asks for its clock.
                state.leases[at].own_end = true;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                (0..state.clients.len()).filter(|at| holds(state, *at)).count() <= 1
            }),
            Property::always(LEASED, |_, state: &State| {
                (0..state.clients.len()).all(|at| !holds(state, at) || state.leases[at].has_key)
            }),
            Property::always(RISES, |_, state: &State| !state.numbers_fell),
            Property::always(FINAL, |_, state: &State| {
                state.leases.iter().all(|lease| !(lease.was_released && lease.has_key))
            }),
            Property::always(HEARD, |cluster: &Cluster, state: &State| {
                let waits = |client: &&Client| matches!(client, Client::Waits(_));
                let mut waiting = state.clients.iter().filter(waits);
                let is_free = |state: &State| cluster.is_over(state);
                !is_free(state)
                    || waiting.all(|client| matches!(client, Client::Waits(since) if cluster.is_rung(state, *since)))
            }),
        ]
    }
}

const ONE_HOLDER: &str = "at most one client holds by its own clock";
const LEASED: &str = "a holder by its own clock has a lease whose key exists";
const RISES: &str = "revisions that are told rise";
const FINAL: &str = "the lease of a released grant has no key again";
const HEARD: &str = "a waiter learns of changes after its read";

/// Whether a client holds by its own clock.
fn holds(state: &State, at: usize) -> bool {
    matches!(state.clients[at], Client::Holds(_)) && !state.leases[at].own_end
}

impl Cluster {
    /// Whether a watch that began after this revision reports a change, or the lease that was seen there has ended.
    fn is_rung(&self, state: &State, since: u64) -> bool {
        let is_seen = |(revision, ..): &(u64, usize, usize)| *revision == since;
        state.revision > since || (state.record.as_ref().is_some_and(is_seen) && self.is_over(state))
    }

    /// Whether the record has no holder: it is missing, or the key of its lease is gone.
    fn is_over(&self, state: &State) -> bool {
        state.record.is_none_or(|(_, _, lease)| !state.leases[lease].has_key)
    }

    fn go_on(&self, state: &mut State, at: usize) {
        match state.clients[at] {
            Client::Looks | Client::Waits(_) => {
                let found = state.record;
                state.clients[at] = match found {
                    // The reply to its own transaction was lost.
                    Some((revision, by, _)) if by == at => told(state, at, revision),
                    _ if state.leases[at].was_used => Client::Ended,
                    Some((revision, ..)) if !self.is_over(state) => Client::Waits(match self.planted {
                        Some(Planted::WatchBeginsLate) => u64::MAX - 1,
                        _ => revision,
                    }),
                    found => takes(state, at, found),
                };
            }
            Client::Sends(transaction) => {
                let lease = &mut state.leases[at];
                if transaction.takes && !lease.is_known && !lease.own_end {
                    // etcd does not know the lease: it is requested again, and no client has used it.
                    lease.is_known = true;
                    return;
                }
                let revision = self.transact(state, transaction, true);
                state.clients[at] = match revision {
                    Some(revision) if transaction.takes => told(state, at, revision),
                    Some(_) => Client::Ended,
                    None => Client::Looks,
                };
            }
            Client::Holds(revision) => {
                state.clients[at] =
                    Client::Sends(Transaction { by: at, expect: revision, takes: false, birth: 0, over: None });
            }
            Client::Ended => {}
        }
    }

    /// One transaction: all of it or nothing.
    fn transact(&self, state: &mut State, transaction: Transaction, asks_anew: bool) -> Option<u64> {
        let Transaction { by, expect, takes, birth, over } = transaction;
        // A lease that etcd does not know lets all of it fail.
        if takes
            && !state.leases[by].is_known
            && !(asks_anew && !state.leases[by].own_end && !state.leases[by].was_used)
        {
            return None;
        }
        let found = state.record.map_or(0, |found| found.0);
        if found != expect && self.planted != Some(Planted::NothingCompared) {
            return None;
        }
        if over.is_some_and(|lease| state.leases[lease].has_key) && self.planted != Some(Planted::LeaseNotCompared) {
            return None;
        }
        let creates = takes && expect == 0;
        if creates
            && birth != state.birth
            && !matches!(self.planted, Some(Planted::BirthNotCompared | Planted::NothingCompared))
        {
            return None;
        }
        state.revision += 1;
        if creates {
            state.birth = state.revision;
        }
        if takes {
            let lease = &mut state.leases[by];
            (lease.is_known, lease.was_used) = (true, true);
            lease.has_key = self.planted != Some(Planted::KeyLeftOut);
            state.record = Some((state.revision, by, by));
        } else {
            state.record = None;
            // A release deletes the key of the lease.
            state.leases[by] = Lease { has_key: false, own_end: true, was_released: true, ..state.leases[by] };
        }
        Some(state.revision)
    }
}

/// A client tries to take what it found: nothing, or a record whose lease it saw as over.
fn takes(state: &State, at: usize, found: Record) -> Client {
    let (expect, birth) = found.map_or((0, state.birth), |found| (found.0, 0));
    Client::Sends(Transaction { by: at, expect, takes: true, birth, over: found.map(|(_, _, lease)| lease) })
}

/// A client is told that it holds.
fn told(state: &mut State, at: usize, revision: u64) -> Client {
    state.numbers_fell |= revision <= state.told && !state.leases[at].own_end;
    state.told = revision.max(state.told);
    Client::Holds(revision)
}

fn cluster(clients: usize) -> Cluster {
    Cluster { clients, crashes: 1, lost_replies: 1, late_copies: 1, stale_reads: 1, planted: None }
}

#[test]
fn leases_by_transactions_that_are_lost_repeated_and_late() {
    let clients = if super::extent::is_complete() { 3 } else { 2 };
    let checker = cluster(clients).checker().threads(2).spawn_bfs().join();
    eprintln!("model: etcd: {} states", checker.unique_state_count());
    checker.assert_properties();
}

fn is_seen(planted: Planted, promise: &'static str) {
    let cluster = Cluster { planted: Some(planted), ..cluster(2) };
    let checker = cluster.checker().finish_when(HasDiscoveries::AllOf([promise].into())).spawn_bfs().join();
    assert!(checker.discoveries().contains_key(promise), "{:?}", checker.discoveries().keys());
}

cases! {
    fn a_lease_without_its_key_is_seen() { is_seen(Planted::KeyLeftOut, LEASED) }
    fn two_callers_hold_if_a_transaction_compares_nothing() { is_seen(Planted::NothingCompared, ONE_HOLDER) }
    fn two_callers_hold_if_a_stale_read_alone_proves_an_expired_lease() {
        is_seen(Planted::LeaseNotCompared, ONE_HOLDER)
    }
    fn a_late_copy_of_a_grant_undoes_a_release_if_a_creation_is_not_compared() {
        is_seen(Planted::BirthNotCompared, FINAL)
    }
    fn a_watch_that_begins_too_late_misses_earlier_changes() { is_seen(Planted::WatchBeginsLate, HEARD) }
}
