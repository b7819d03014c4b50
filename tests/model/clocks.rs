//! A lease on a shared directory, seen by hosts that cannot see its holder, while the clock of the store is set forward
//! and back at any time. The product's own `lock::age` decides about the age of a lease.
//!
//! Host 0 began the lease. Host 1 was resumed from a snapshot of host 0: it has the same boot id, and another
//! CLOCK_BOOTTIME. Host 2 is unrelated; one process there waits, and others read once and leave.

use std::time::Duration;

use lock::{ClockReading, Lease, LeaseClock, LeaseStart, Sighting, age};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// All times are in steps of ten seconds.
const STEP: Duration = Duration::from_secs(10);
const SPAN: u8 = 3;

/// In these steps, by how much the clock of the store is set, and a clone's CLOCK_BOOTTIME is ahead.
const HOUR: i32 = 360;
const AHEAD: i32 = 4;

#[derive(Debug, Clone)]
struct Clocks {
    until: u8,
    settings: u8,
    renewals: u8,
    /// How many processes look once.
    looks: u8,
    planted: Option<Planted>,
}

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    /// A lease is over when the store's clock says so.
    StoreBelieved,
    /// Observations of a host count by CLOCK_BOOTTIME alone.
    BootBelieved,
    /// A process that does not wait leaves no sighting.
    NothingNoted,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    /// How far the clock of the store is ahead.
    store: i32,
    settings: u8,
    renewals: u8,
    looks: u8,
    /// When the lease in the record began, and the store's clock then; `None`: another host has taken it for over.
    lease: Option<(u8, i32)>,
    /// Since when the one that waits knows that lease, on its CLOCK_BOOTTIME.
    waits_since: Option<i32>,
    /// By which host, and when on its CLOCK_BOOTTIME and on the store's clock.
    sightings: Vec<(u8, i32, i32)>,
    /// When host 2 noted the lease, if the clock was not set since.
    noted: Option<u8>,
    too_early: bool,
    too_late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    TimePasses,
    ClockIsSet(i32),
    HolderRenews,
    Looks(u8),
    WaiterLooks,
}

const NEVER_EARLY: &str = "a lease is over for its holder first";
const NEVER_STUCK: &str = "a host that noted a lease takes it for over after its span";

impl Model for Clocks {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            store: 0,
            settings: self.settings,
            renewals: self.renewals,
            looks: self.looks,
            lease: Some((0, 0)),
            waits_since: None,
            sightings: Vec::new(),
            noted: None,
            too_early: false,
            too_late: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let Some((begun, _)) = state.lease else { return };
        if state.now < self.until {
            actions.push(Action::TimePasses);
        }
        if state.settings > 0 {
            actions.extend([-HOUR, 0, HOUR].into_iter().filter(|to| *to != state.store).map(Action::ClockIsSet));
        }
        if state.renewals > 0 && begun < state.now && state.now < begun + SPAN {
            actions.push(Action::HolderRenews);
        }
        if state.looks > 0 {
            actions.extend([0, 1, 2].map(Action::Looks));
        }
        actions.push(Action::WaiterLooks);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::TimePasses => state.now += 1,
            Action::ClockIsSet(to) => {
                state.settings -= 1;
                (state.store, state.noted) = (to, None);
            }
            Action::HolderRenews => {
                state.renewals -= 1;
                state.lease = Some((state.now, state.store));
                // Observations of the earlier lease are not written any more.
                (state.waits_since, state.noted) = (None, None);
                state.sightings.clear();
            }
            Action::Looks(host) => self.look(&mut state, host),
            Action::WaiterLooks => {
                let since =
                    state.waits_since.or_else(|| self.known_since(&state, 2)).unwrap_or_else(|| boottime(&state, 2));
                state.waits_since = Some(since);
                self.take_if_over(&mut state, 2, since);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_EARLY, |_, state: &State| !state.too_early),
            Property::always(NEVER_STUCK, |_, state: &State| !state.too_late),
        ]
    }
}

impl Clocks {
    /// A process of this host looks once, and leaves a sighting if the next one needs it.
    fn look(&self, state: &mut State, host: u8) {
        state.looks -= 1;
        let known = self.known_since(state, host);
        let since = known.unwrap_or_else(|| boottime(state, host));
        if known.is_none() && self.planted != Some(Planted::NothingNoted) {
            state.sightings.push((host, since, store_time(state)));
        }
        self.take_if_over(state, host, since);
        if host == 2 {
            let noted = *state.noted.get_or_insert(state.now);
            state.too_late |= state.lease.is_some() && state.now >= noted + SPAN;
        }
    }

    /// Since when this host knows the lease for sure, on its CLOCK_BOOTTIME.
    fn known_since(&self, state: &State, host: u8) -> Option<i32> {
        let (begun, store) = state.lease?;
        let ends = (time(i32::from(begun) + store) + STEP * SPAN.into()).as_millis() as u64;
        let at = time(i32::from(begun)).as_micros() as u64;
        let span = (STEP * SPAN.into()).as_millis() as u64;
        let lease = Lease { clock: LeaseClock::FileSystem(LeaseStart { boot: boot(0), at, span }), ends, wall: 0 };
        let sighting = |(host, own, store): &(u8, i32, i32)| {
            let at = ClockReading { boottime: time(*own), store: time(*store) };
            Sighting { lease: lease.clone(), boot: boot(*host), at }
        };
        let seen: Vec<Sighting> = state.sightings.iter().map(sighting).collect();
        let now = ClockReading { boottime: time(boottime(state, host)), store: time(store_time(state)) };
        if self.planted == Some(Planted::BootBelieved) {
            let own = seen.iter().filter(|seen| seen.boot == boot(host)).map(|seen| seen.at.boottime);
            return own.min().map(|at| boottime(state, host) - steps(now.boottime.saturating_sub(at)));
        }
        age(&lease, &seen, boot(host), &now).map(|age| boottime(state, host) - steps(age))
    }

    fn take_if_over(&self, state: &mut State, host: u8, since: i32) {
        let Some((begun, store)) = state.lease else { return };
        let is_over = match self.planted {
            Some(Planted::StoreBelieved) => store_time(state) >= i32::from(begun + SPAN) + store,
            _ => boottime(state, host) - since >= SPAN.into(),
        };
        if is_over {
            state.too_early = state.now < begun + SPAN;
            state.lease = None;
        }
    }
}

fn boot(host: u8) -> u64 {
    u64::from(host == 2)
}

fn boottime(state: &State, host: u8) -> i32 {
    i32::from(state.now) + if host == 1 { AHEAD } else { 0 }
}

fn store_time(state: &State) -> i32 {
    i32::from(state.now) + state.store
}

/// A time of any of these clocks, none of which is near its beginning.
fn time(steps: i32) -> Duration {
    STEP * (steps + 10 * HOUR).unsigned_abs()
}

fn steps(span: Duration) -> i32 {
    (span.as_secs() / STEP.as_secs()) as i32
}

fn clocks(planted: Option<Planted>) -> Clocks {
    let more = if super::extent::is_complete() { 1 } else { 0 };
    Clocks { until: 5 + 2 * more, settings: 2, renewals: 1 + more, looks: 3 + more, planted }
}

#[test]
fn a_clock_that_is_set_ends_no_lease_early_and_keeps_none() {
    let checker = clocks(None).checker().threads(2).spawn_bfs().join();
    eprintln!("model: clocks: {} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn wrong_clocks_are_found() {
    let planted = [
        (Planted::StoreBelieved, NEVER_EARLY),
        (Planted::StoreBelieved, NEVER_STUCK),
        (Planted::BootBelieved, NEVER_EARLY),
        (Planted::NothingNoted, NEVER_STUCK),
    ];
    for (planted, promise) in planted {
        let checker = clocks(Some(planted)).checker().threads(2).finish_when(HasDiscoveries::All).spawn_bfs().join();
        assert!(checker.discoveries().contains_key(promise), "{planted:?}: {promise}");
    }
}
