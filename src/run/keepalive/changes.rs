//! Changes of the records that a keeper renews, if the store reports them. The keeper then sees at once, not only at
//! the next renewal, that another host acquires a lost lock.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::engine::{Engine, OpenLockSet};
use crate::store::{Subscription, Topic};

/// Maximum number of records that are subscribed to: each takes a connection.
const MOST: usize = 16;

/// Minimum time between two subscriptions, and before the first. Most commands have ended by then, and a record with a
/// busy queue changes all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// Time until a store that could not start a subscription is asked again.
const RETRY: Duration = Duration::from_secs(20);

pub(super) struct Changes {
    subscriptions: Vec<Option<Box<dyn Subscription>>>,
    /// Earliest time of the next subscription, and when a subscription is due; on CLOCK_BOOTTIME.
    earliest: Duration,
    due: Duration,
}

impl Changes {
    pub(super) fn new(now: Duration) -> Changes {
        Changes { subscriptions: Vec::new(), earliest: now + PAUSE, due: now + PAUSE }
    }

    /// Returns when to [listen](Changes::listen) again, on CLOCK_BOOTTIME.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// Postpones all subscriptions until then, because the store does not answer.
    pub(super) fn postpone(&mut self, until: Duration) {
        self.due = self.due.max(until);
    }

    /// Returns the descriptors, each of which becomes readable when its record changes.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.subscriptions.iter().flatten().map(|subscription| subscription.descriptor())
    }

    /// Handles the notifications that have arrived. After the first one, a record needs a new subscription.
    pub(super) fn take_notifications(&mut self) {
        for subscription in &mut self.subscriptions {
            if subscription.take_if(|subscription| subscription.is_notified()).is_some() {
                self.due = self.earliest;
            }
        }
    }

    /// Subscribes to the records that have no subscription, if that is due. Returns true if a subscription started: the
    /// keeper must read the records again, because it is not notified of earlier changes.
    pub(super) fn listen(&mut self, opened: &OpenLockSet<'_>, now: Duration) -> bool {
        if now < self.due {
            return false;
        }
        let (mut begun, mut failed) = (false, false);
        let notifies = |engine: &Engine| engine.store().abilities().notifies;
        for (at, (target, engine)) in opened.each().take(MOST).enumerate().filter(|(_, (_, engine))| notifies(engine)) {
            self.subscriptions.resize_with(self.subscriptions.len().max(at + 1), || None);
            if self.subscriptions[at].is_none() {
                self.subscriptions[at] = engine.store().subscribe(Topic::Record(&target.name));
                begun |= self.subscriptions[at].is_some();
                failed |= self.subscriptions[at].is_none();
            }
        }
        self.earliest = now + PAUSE;
        self.due = if failed { now + RETRY } else { Duration::MAX };
        begun
    }
}
