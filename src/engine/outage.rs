//! Outages: a caller who waits for a lock waits for the store, too.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::patience::Clock;
use super::taking::Onlooker;
use super::{Engine, Patience, Waiting};
use crate::error::{Error, Result};
use crate::host::{Signs, Vigil, Woken};
use crate::lock::Record;

/// The longest pause before a store that does not answer is asked again.
pub const OUTAGE: Duration = Duration::from_millis(500);

impl Engine {
    /// Does `work` again and again while the store's servers have never answered and may soon. `None`: the interrupt came.
    ///
    /// # Errors
    ///
    /// With the last error of `work`, when it is another one or the patience is over.
    pub(super) fn when_reached<T>(
        &self,
        name: &[u8],
        patience: &Patience,
        interrupt: Option<BorrowedFd<'_>>,
        onlooker: &mut Onlooker<'_>,
        work: &mut dyn FnMut() -> Result<T>,
    ) -> Result<Option<T>> {
        let mut clock = patience.begin(self.host.boottime(), false);
        loop {
            match work() {
                Err(error) if error.is_unreached() => {
                    let mut vigil = self.host.vigil(&self.new_handle()?.proof(), interrupt)?;
                    if self.outlast(name, error, &mut clock, &mut *vigil, onlooker)? {
                        return Ok(None);
                    }
                }
                done => return done.map(Some),
            }
        }
    }

    /// Pauses after this error. `true`: the interrupt came.
    ///
    /// # Errors
    ///
    /// With the error, when the patience is over.
    pub(super) fn outlast(
        &self,
        name: &[u8],
        error: Error,
        clock: &mut Clock,
        vigil: &mut dyn Vigil,
        onlooker: &mut Onlooker<'_>,
    ) -> Result<bool> {
        let now = self.host.boottime();
        let Some(pause) = clock.next_pause(now, 0) else { return Err(error) };
        let record = Record::free(name);
        onlooker(&Waiting { record: &record, ahead: 0, left: clock.left(now), outage: Some(&error) });
        let mut signs = Signs { processes: &[], supervisors: &[], hearing: &mut None };
        Ok(vigil.wait(&mut signs, pause.min(OUTAGE))? == Woken::Interrupted)
    }
}
