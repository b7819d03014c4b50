//! The process that stays behind, waits for the command's end and gives the lock back.

use std::cell::{Cell, OnceCell};
use std::time::Duration;

use crate::child::{Ended, Limits, Report, Running, Stop};
use crate::cli::{OnLost, RunWithLock};
use crate::command::world::{Target, World};
use crate::engine::Engine;
use crate::error::Result;
use crate::exit::Exit;
use crate::lock::{self, Ask, Handle, Outcome, Tenure};
use crate::name::shown;
use crate::report::Reporter;
use crate::signals::Signals;

/// Everything that it needs.
pub(super) struct Guard<'a> {
    pub(super) world: &'a World,
    pub(super) asked: &'a RunWithLock,
    pub(super) target: &'a Target,
    pub(super) handle: &'a Handle,
    /// Should it not be possible to open the store, the child says so as well.
    pub(super) engine: Result<Engine>,
}

impl Guard<'_> {
    pub(super) fn until_the_end(&self, running: Running, signals: &Signals) -> anyhow::Result<Exit> {
        // Asked now, while the command runs, so that giving back need not wait for it.
        let _ = self.world.host.home();
        let began = OnceCell::new();
        let lease_ends = Cell::new(None);
        let limits = || {
            let (now, left) = (self.world.host.boottime(), self.lease_left());
            lease_ends.set(self.asked.taking.ttl.map(|_| now + left));
            self.limits(began.get_or_init(|| (now, left)), now + left)
        };
        let limited = self.asked.max_hold.is_some() || self.asked.taking.ttl.is_some();
        let limits = limited.then_some(&limits as &dyn Fn() -> Vec<Limits>);
        let ended = running.watch(signals, limits, self.world.host.as_ref())?;
        if let Some(Report::Exit(code)) = ended.told {
            return Ok(Exit::Chosen(code));
        }
        let lost = ended.told.is_some() && self.give_back(lease_ends.get());
        if ended.told.is_none() {
            // It was killed while it waited, or just as it was granted the lock.
            self.clean_up()?;
        }
        Ok(self.exit(&ended, lost))
    }

    /// Gives the lock back, whose lease, if it had one, was to end there. Whether it was lost while the command ran.
    fn give_back(&self, lease_ends: Option<Duration>) -> bool {
        let over = lease_ends.is_some_and(|ends| ends <= self.world.host.boottime());
        let released = self.release();
        let text = match &released {
            Ok((Outcome::Released(_), _)) => return false,
            // The command gave it back itself, or somebody saw its end before we did.
            Ok((Outcome::NotHeld(None), _)) if !over => return false,
            Ok((Outcome::NotHeld(Some(ending)) | Outcome::NotOwner(_, Some(ending)), _))
                if matches!(ending.how, lock::Ended::Died | lock::Ended::Released) =>
            {
                return false;
            }
            Ok((Outcome::NotHeld(Some(ending)) | Outcome::NotOwner(_, Some(ending)), engine)) => {
                let reporter = Reporter { host: engine.host(), reach: engine.store().reach() };
                format!("it was held by {}", reporter.ending(ending))
            }
            Ok(_) => "its time ran out, or it was broken".to_string(),
            Err(error) => {
                // The command's own status counts; the next one finds a lock whose owner is dead.
                let name = shown(&self.target.known_as);
                self.asked.common.tell(&format!("lock {name} could not be given back: {error}"));
                return false;
            }
        };
        let name = shown(&self.target.known_as);
        self.asked.common.tell(&format!(
            "lost while the command ran: lock {name}: {text}; what the command did after that was not guarded"
        ));
        true
    }

    fn release(&self) -> Result<(Outcome, &Engine)> {
        let engine = self.engine.as_ref().map_err(Clone::clone)?;
        let claimant = engine.claimant(Some(self.handle.proof()), Vec::new())?;
        Ok((engine.settle(&self.target.name, &Ask::Release(claimant))?, engine))
    }

    fn clean_up(&self) -> Result<()> {
        let engine = self.engine.as_ref().map_err(Clone::clone)?;
        if let Outcome::GrantedMeanwhile(_) = engine.settle(&self.target.name, &Ask::Withdraw(self.handle.proof()))? {
            self.release()?;
        }
        Ok(())
    }

    fn exit(&self, ended: &Ended, lost: bool) -> Exit {
        let name = shown(&self.target.known_as);
        if let Some(signal) = ended.of_terminal {
            return Exit::Raised(signal as i32);
        }
        match ended.stopped {
            Some((Stop::MaxHold, killed)) => {
                self.asked.common.tell(&format!("the command was ended: it held lock {name} longer than --max-hold"));
                if killed { Exit::signalled(nix::libc::SIGKILL) } else { Exit::MaxHold }
            }
            Some((Stop::Lease, _)) => {
                self.asked.common.tell(&format!("the command was ended before the --ttl of lock {name} was over"));
                Exit::Lost
            }
            None if lost => Exit::Lost,
            None => ended.exit,
        }
    }

    /// When a command is to be ended that began then, with so much of its lease left, and whose lease now ends there.
    fn limits(&self, (began, lease): &(Duration, Duration), lease_ends: Duration) -> Vec<Limits> {
        let mut limits = Vec::new();
        if let Some(span) = self.asked.max_hold {
            let term = began.saturating_add(span);
            limits.push(Limits { term, kill: term.saturating_add(self.asked.kill_after), why: Stop::MaxHold });
        }
        if self.asked.taking.ttl.is_some() && self.asked.on_lost == OnLost::Kill {
            // Dead before the lease is over: killed a tenth of it before, asked to end before that.
            let kill = lease_ends.saturating_sub(*lease / 10);
            let grace = self.asked.kill_after.min(*lease * 9 / 20);
            limits.push(Limits { term: kill.saturating_sub(grace), kill, why: Stop::Lease });
        }
        limits
    }

    /// What is left of the lease; nothing if it is over, or we could not find out.
    fn lease_left(&self) -> Duration {
        let mine = |engine: &Engine| {
            let holders = engine.sight(&self.target.name)?.record.holders;
            match holders.into_iter().find(|grant| grant.proof == self.handle.proof()).map(|grant| grant.tenure) {
                Some(Tenure::Until(lease)) => engine.store().remaining(&lease),
                _ => Ok(Duration::ZERO),
            }
        };
        self.engine.as_ref().map_or(Duration::ZERO, |engine| mine(engine).unwrap_or_default())
    }
}
