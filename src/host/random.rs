//! Random numbers from the kernel, each with a time in it: machines resumed from one snapshot may draw the same numbers, but
//! hardly in the same nanosecond.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

#[derive(Debug, Default)]
pub(super) struct Random {
    /// A number that was drawn together with others, or 0. A forked process may have the same one.
    spare: AtomicU64,
}

impl Random {
    /// Returns random bytes that cannot be guessed.
    pub(super) fn bytes(&self, times: [Duration; 2]) -> Result<[u8; 16]> {
        let (mut bytes, mut spare) = ([0; 24], [0; 8]);
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::new(ErrorKind::System, format!("no random numbers: {error}"), "try again"))?;
        spare.copy_from_slice(&bytes[16..]);
        self.spare.store(u64::from_ne_bytes(spare), Ordering::Relaxed);
        let mut random = [0; 16];
        let times = times.map(|time| nanoseconds(time).to_ne_bytes());
        random.iter_mut().zip(&bytes).zip(times.as_flattened()).for_each(|((to, from), time)| *to = from ^ time);
        Ok(random)
    }

    /// Returns a number that no other call returns, on no host.
    pub(super) fn unique_number(&self, times: [Duration; 2]) -> Result<u64> {
        if self.spare.load(Ordering::Relaxed) == 0 {
            self.bytes(times)?;
        }
        Ok(self.spare.swap(0, Ordering::Relaxed) ^ nanoseconds(times[0]))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}
