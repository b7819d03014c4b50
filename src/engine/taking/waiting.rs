//! One wait: what is said of oneself before it, what wakes from it, and the circle that it may be part of.

use std::time::Duration;

use super::Attempt;
use crate::engine::circle::Noted;
use crate::error::{Error, Result};
use crate::host::{Listener, Signs, Vigil, Woken};
use crate::lock::{Home, Lease, Link, Process, Record, Waits};
use crate::store::{Reach, Version};

/// A wait that is over so soon is in no circle; and after it even a shell on a busy machine has mostly begun what comes next.
pub(in crate::engine) const SOON_OVER: Duration = Duration::from_millis(100);

/// A wait that is so long leaves its note for those, too, who cannot ask: in another network namespace.
const LONG: Duration = Duration::from_secs(1);

/// A wait, as its onlooker sees it.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// The record as last looked at.
    pub record: &'a Record,
    /// How many stand before us in the queue.
    pub ahead: usize,
    /// How long we are willing to go on; `None`: for ever.
    pub left: Option<Duration>,
    /// Why the store cannot be asked for the moment. The record is not known then.
    pub outage: Option<&'a Error>,
}

/// Is shown a wait whenever it begins or goes on, and says how soon it wants to be shown it again at the latest.
pub(in crate::engine) type Onlooker<'a> = dyn FnMut(&Waiting<'_>) -> Option<Duration> + 'a;

/// What comes after a wait.
pub(super) enum Next {
    Look,
    Interrupted,
    /// This wait is part of this circle, and the one that is to end.
    GiveUp(Vec<Link>),
}

impl<'a> Attempt<'a> {
    /// Finds out what those who wait, or would have to, have to say of themselves. Whether that has changed.
    pub(super) fn prepare_to_wait(&mut self) -> Result<bool> {
        let (engine, entry) = (self.engine, &mut self.application.entry);
        let mut changed = false;
        // Who waits has time to look twice.
        if !self.application.queue
            && !std::mem::replace(&mut self.looked_for_caller, true)
            && let Some(within) = self.held_up.at_once(&*engine.host)
        {
            entry.within = within;
            changed = true;
        }
        // Where other hosts cannot see whether a waiter lives, it says so from time to time.
        let left = |lease: &Lease| engine.left_of_own(lease).unwrap_or_default();
        if self.application.queue
            && engine.store.reach() == Reach::ManyHosts
            && entry.lease.as_ref().map_or(Duration::ZERO, left) < engine.lease / 2
        {
            match engine.lend(engine.lease) {
                Ok(lease) => {
                    entry.lease = Some(lease);
                    changed = true;
                }
                // The next look tries again.
                Err(error) if error.is_refused_change() && self.is_queued => {}
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    }

    pub(super) fn listen(&mut self) -> Result<&mut Box<dyn Vigil + 'a>> {
        Ok(match &mut self.vigil {
            Some(vigil) => vigil,
            none => none.insert(self.engine.host.vigil(&self.application.entry.proof, self.interrupt)?),
        })
    }

    pub(super) fn wait(
        &mut self,
        record: &Record,
        version: Option<&Version>,
        processes: &[(Home, Process)],
        end: Duration,
        show: &mut dyn FnMut() -> Option<Duration>,
    ) -> Result<Next> {
        let engine = self.engine;
        let here = engine.host.home()?;
        let visible = processes.iter().filter(|(home, _)| here.shares_pids_with(home));
        let visible: Vec<Process> = visible.map(|(_, process)| *process).collect();
        // A process in another network namespace can ring us only through the store.
        let parties = record.holders.iter().map(|grant| &grant.party);
        let parties = parties.chain(record.waiters.iter().map(|waiter| &waiter.party));
        let supervisors: Vec<Process> = parties.clone().filter_map(|party| party.supervisor).collect();
        let mut homes = parties.map(|party| &party.home).chain(processes.iter().map(|(home, _)| home));
        let needs_bell = engine.store.rings() || homes.any(|home| home.net != here.net);
        if let Some(version) = version.filter(|_| self.hearing.is_none() && needs_bell) {
            self.hearing = engine.store.hear(&self.application.entry.proof.bell(), version);
            // We may have been granted the lock before the bell was there.
            let is_late = self.hearing.is_some() && !engine.store.rings();
            if is_late && engine.store.version(self.name)?.as_ref() != Some(version) {
                return Ok(Next::Look);
            }
        }
        let look_around_at = *self.look_around_at.get_or_insert_with(|| engine.host.boottime() + SOON_OVER);
        let mut asked = false;
        loop {
            let now = engine.host.boottime();
            if now >= look_around_at && self.look_at_callers_again(now)? {
                return Ok(Next::Look);
            }
            let may_be_in_circle = self.held_up.is_known() && !Waits::keys(&self.application.entry).is_empty();
            if may_be_in_circle && now >= self.next_look(look_around_at) {
                // A look that fails, as when no note can be written in a full store, is repeated and does not end the wait.
                match self.look_around(record, asked || now >= look_around_at + LONG).unwrap_or_default() {
                    Some(links) if self.suspected_at.is_some() => return Ok(Next::GiveUp(links)),
                    found => self.suspected_at = found.map(|_| now),
                }
            }
            let looks =
                [self.held_up.next_look(look_around_at), may_be_in_circle.then(|| self.next_look(look_around_at))];
            let to_look = looks.into_iter().flatten().filter(|at| *at > now).map(|at| at - now).min();
            let at_most = [show(), to_look].into_iter().flatten().fold(end.saturating_sub(now), Duration::min);
            self.listen()?;
            let mut signs = Signs { processes: &visible, supervisors: &supervisors, hearing: &mut self.hearing };
            let Some(vigil) = &mut self.vigil else { continue };
            match vigil.wait(&mut signs, at_most)? {
                Woken::Interrupted => return Ok(Next::Interrupted),
                Woken::Asked => asked = true,
                Woken::TimeOver if engine.host.boottime() < end => {}
                Woken::LookAgain | Woken::TimeOver => return Ok(Next::Look),
            }
        }
    }

    /// Looks again at whom this wait holds up. Whether that has changed.
    fn look_at_callers_again(&mut self, now: Duration) -> Result<bool> {
        let (engine, entry) = (self.engine, &mut self.application.entry);
        let mut within = entry.within.clone();
        self.held_up.look_again(&*engine.host, now, &mut within);
        if within == entry.within {
            return Ok(false);
        }
        if self.noted.take().is_some() {
            // A note that stays is only a hint, and leads to what the entry says.
            let _ = engine.forget(self.name, entry);
        }
        entry.within = within;
        Ok(true)
    }

    /// When to look around for a circle, if `first` is when to do so for the first time. Who is to end one looks twice: those
    /// who were asked meanwhile may find that they are held up no more.
    fn next_look(&self, first: Duration) -> Duration {
        self.suspected_at.map_or(first, |at| at + SOON_OVER)
    }

    /// The circle that this wait is part of, if it is the one who has to give up.
    ///
    /// Most waits are in none, so nothing is written down before there is a reason: somebody asks what we wait for, or
    /// those wait who hold what we wait for. These are asked, and then they look around as well. Whoever comes last asks
    /// those who were there before, so no circle is missed. Who cannot be asked, or not alone, leaves his note at once.
    fn look_around(&mut self, record: &Record, note: bool) -> Result<Option<Vec<Link>>> {
        let (engine, me) = (self.engine, self.application.entry.proof);
        let own = Waits::keys(&self.application.entry);
        let can_be_asked = std::mem::replace(&mut self.can_be_asked, true) || self.listen()?.answer(&own);
        let mut note = note || !can_be_asked || engine.store.reach() == Reach::ManyHosts;
        for key in record.holders.iter().flat_map(Waits::keys_of_holder) {
            note |=
                own.contains(&key) || engine.host.ring(Listener::OnBehalf(&key)) || engine.store.read(&key)?.is_some();
        }
        if self.noted.map_or(note, |noted| noted != Noted::Everywhere) {
            self.noted = Some(Noted::Nowhere);
            self.noted = Some(engine.note(self.name, &self.application.entry)?);
        }
        // Where it is not noted, those are who hold up the same for as long, and they look around.
        if self.noted.is_none_or(|noted| noted == Noted::Nowhere) {
            return Ok(None);
        }
        let Some(circle) = engine.circle(self.name, &me)? else { return Ok(None) };
        if circle.victim != me {
            engine.host.ring(Listener::Waiter(&circle.victim));
            return Ok(None);
        }
        // What is left may still be a circle.
        for member in circle.members.iter().filter(|member| **member != me) {
            engine.host.ring(Listener::Waiter(member));
        }
        Ok(Some(circle.links))
    }
}
