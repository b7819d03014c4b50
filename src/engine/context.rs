//! The settings and the host of this process, which open stores.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::environment::{Environment, LEASE};
use crate::error::Result;
use crate::host::{Host, Unix};
use crate::signals::StartupState;
use crate::store::Location;

/// The environment of this process, its host, and its state at startup.
pub struct Context {
    pub environment: Environment,
    pub host: Arc<dyn Host>,
    pub inherited: StartupState,
}

impl Context {
    pub fn of_this_process() -> Context {
        #[cfg(debug_assertions)]
        {
            crate::host::OFFSETS.get_or_init(Environment::clock_offsets);
            crate::host::FIRST_PIDS.get_or_init(Environment::first_pid_namespace);
        }
        Context {
            environment: Environment::of_this_process(),
            host: Arc::new(Unix::new()),
            inherited: StartupState::of_this_process(),
        }
    }

    pub fn engine(&self, location: &Location) -> Result<Engine> {
        Engine::open(location, &self.environment, self.host.clone())
    }

    pub fn lease(&self) -> Duration {
        self.environment.lease().unwrap_or(LEASE)
    }
}
