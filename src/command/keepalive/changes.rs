//! Changes of the records that a keeper keeps, where a store tells of them: so it sees at once when another host takes a
//! lock that was lost, and not only when it renews.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::command::lock_set::OpenLockSet;
use crate::engine::Engine;
use crate::store::Subscription;

/// Maximum number of records that are listened to: each takes a connection.
const MOST: usize = 16;

/// Minimum time between two beginnings, and before the first: most commands have ended by then, and a record with a busy
/// queue changes all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// Time until a store is asked again that could not begin to tell.
const RETRY: Duration = Duration::from_secs(20);

/// What is heard of each record.
pub(super) struct Changes {
    hearings: Vec<Option<Box<dyn Subscription>>>,
    /// When to begin at the earliest, and when there is something to begin; on CLOCK_BOOTTIME.
    earliest: Duration,
    due: Duration,
}

impl Changes {
    /// Listens to nothing yet.
    pub(super) fn new(now: Duration) -> Changes {
        Changes { hearings: Vec::new(), earliest: now + PAUSE, due: now + PAUSE }
    }

    /// When to [listen](Changes::listen) again, on CLOCK_BOOTTIME.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// The store does not answer: nothing can be listened to before then.
    pub(super) fn postpone(&mut self, until: Duration) {
        self.due = self.due.max(until);
    }

    /// Each becomes readable when its record changes.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.hearings.iter().flatten().map(|subscription| subscription.descriptor())
    }

    /// Takes note of the changes that have been heard. After the first, a record is listened to anew.
    pub(super) fn hear(&mut self) {
        for subscription in &mut self.hearings {
            if subscription.take_if(|hearing| hearing.is_notified()).is_some() {
                self.due = self.earliest;
            }
        }
    }

    /// Begins to listen to the records that are not listened to, if that is due. Whether it has begun: the keeper must look
    /// at the records again, because earlier changes are not heard.
    pub(super) fn listen(&mut self, opened: &OpenLockSet<'_>, now: Duration) -> bool {
        if now < self.due {
            return false;
        }
        let (mut begun, mut failed) = (false, false);
        let tells = |engine: &Engine| engine.store().can_notify();
        for (at, (target, engine)) in opened.each().take(MOST).enumerate().filter(|(_, (_, engine))| tells(engine)) {
            self.hearings.resize_with(self.hearings.len().max(at + 1), || None);
            if self.hearings[at].is_none() {
                self.hearings[at] = engine.store().subscribe_changes(&target.name);
                begun |= self.hearings[at].is_some();
                failed |= self.hearings[at].is_none();
            }
        }
        self.earliest = now + PAUSE;
        self.due = if failed { now + RETRY } else { Duration::MAX };
        begun
    }
}
