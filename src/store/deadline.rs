//! The deadline of store calls. It belongs to a thread, so a caller cannot limit the calls of another one.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static DEADLINE: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// While it exists, the store calls of this thread have a deadline on CLOCK_BOOTTIME; its end brings back the one before.
/// A call may exceed the deadline by less than a second. `None` means the default of the store. Only a store whose calls
/// never wait for other processes ignores it.
#[must_use]
#[derive(Debug)]
pub struct StoreDeadline(Option<Duration>);

impl StoreDeadline {
    pub fn begin(until: Option<Duration>) -> StoreDeadline {
        StoreDeadline(DEADLINE.replace(until))
    }

    /// Sets another deadline for the rest of this scope.
    pub fn change(&self, until: Option<Duration>) {
        DEADLINE.set(until);
    }
}

impl Drop for StoreDeadline {
    fn drop(&mut self) {
        DEADLINE.set(self.0);
    }
}

/// Returns the deadline of a call that this thread makes now.
pub(super) fn of_call() -> Option<Duration> {
    DEADLINE.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_deadline_brings_back_the_one_before() {
        let (first, second) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(2)));
        let outer = StoreDeadline::begin(first);
        {
            let inner = StoreDeadline::begin(None);
            assert_eq!(of_call(), None);
            inner.change(second);
            assert_eq!(of_call(), second);
            assert_eq!(std::thread::spawn(of_call).join().unwrap(), None);
        }
        assert_eq!(of_call(), first);
        drop(outer);
        assert_eq!(of_call(), None);
    }
}
