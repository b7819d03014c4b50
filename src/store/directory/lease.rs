//! Leases of a directory: a local store counts on CLOCK_BOOTTIME, a shared store on CLOCK_BOOTTIME of each host
//! ([`crate::store::leases`]). The store's time is the file system's, on NFS the server's.

use std::sync::Arc;
use std::time::Duration;

use super::Directory;
use super::root::Root;
use crate::error::Result;
use crate::lock::{Lease, LeaseClock, Sighting};
use crate::store::leases::{lend_shared, remaining_shared};
use crate::store::{Leases, Scope, leases};

impl Directory {
    fn file_system_time(&self) -> Result<Duration> {
        self.in_store(false, |root| root.file_system_time())?.ok_or_else(|| self.is_missing())
    }
}

impl Leases for Directory {
    fn grant(&self, span: Duration) -> Result<Lease> {
        let lent = |root: &Arc<Root>| match root.scope {
            Scope::Local => leases::lend_local(self.host.as_ref(), span),
            Scope::Shared => lend_shared(self.host.as_ref(), span, || root.file_system_time()),
        };
        self.in_store(true, lent)?.ok_or_else(|| self.is_missing())
    }

    fn time(&self) -> Result<Duration> {
        // Under one kernel, files have the times of its clock.
        if self.scope() == Scope::Local {
            return Ok(self.host.wall());
        }
        self.in_store(true, |root| root.file_system_time())?.ok_or_else(|| self.is_missing())
    }

    fn ttl(&self, lease: &Lease) -> Result<Duration> {
        let left = |root: &Arc<Root>| remaining_shared(self.host.as_ref(), lease, || root.file_system_time());
        self.in_store(false, left).map(Option::unwrap_or_default)
    }

    fn is_expired(&self, lease: &Lease) -> Result<bool> {
        Ok(self.time_to_expiry(lease, &[])?.is_zero())
    }

    fn time_to_expiry(&self, lease: &Lease, seen: &[Sighting]) -> Result<Duration> {
        let LeaseClock::FileSystem(begun) = &lease.clock else { return self.ttl(lease) };
        self.leases.until_over(self.host.as_ref(), (lease, begun), seen, || self.file_system_time())
    }

    fn new_sightings(&self, leases: &[&Lease], seen: &[Sighting]) -> Result<Vec<Sighting>> {
        self.leases.to_note(self.host.as_ref(), leases, seen, || self.file_system_time())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::store::directory::sys;

    #[test]
    fn the_time_of_a_fresh_file_cannot_be_chosen_by_a_user() {
        let file = tempfile::tempfile().unwrap();
        let wrong = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(2_147_415_594);
        file.set_times(std::fs::FileTimes::new().set_modified(wrong)).unwrap();
        let found = nix::sys::stat::fstat(&file).unwrap();
        assert_eq!(found.st_mtime, 2_147_415_594);
        assert!(sys::changed(&found) < Duration::from_secs(2_147_415_594));
    }
}
