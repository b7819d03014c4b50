//! Taking a lock, with all the waiting that this may need.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::circle::Noted;
use super::held_up::HeldUp;
use super::patience::Clock;
use super::{Engine, MOST_CONFLICTS, Patience, with_token};
use crate::error::Result;
use crate::exit::Exit;
use crate::host::{Called, Listener, Signs, Vigil, Woken};
use crate::lock::{
    Application, Ask, Grant, Handle, Home, Lease, Link, Outcome, Party, Process, Proof, Record, Share, Step, Tenure,
    Waiter, Waits,
};
use crate::store::{Hearing, Reach, Version};

/// So soon a store that does not answer is asked again.
pub const OUTAGE: Duration = Duration::from_millis(500);

/// So long a waiter asks a store that answered before: while he asks, he does not hear the interrupt.
const TO_ASK: Duration = Duration::from_secs(1);

/// A wait that is over so soon is in no circle; and after it even a shell on a busy machine has mostly begun what comes next.
pub(super) const SOON_OVER: Duration = Duration::from_millis(100);

/// A wait that is so long leaves its note for those, too, who cannot ask: in another network namespace.
const LONG: Duration = Duration::from_secs(1);

/// A lease that is over by this much is over on every clock that rounds.
const ROUNDING: Duration = Duration::from_millis(1);

/// Who wants a lock, and on what terms.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// The secret that will prove the grant.
    pub handle: Handle,
    /// How much of it.
    pub share: Share,
    /// For whom.
    pub party: Party,
    /// The process that waits.
    pub process: Process,
    /// Whether that process may end without the party losing what it waited for: then a grant must be confirmed.
    pub outlived: bool,
    /// Whether the party's end gives the lock back, as a matter of course.
    pub yields: bool,
    /// The id under which the name is to be claimed, if it is.
    pub claim: Option<Vec<u8>>,
    /// How long the grant is to last.
    pub tenure: Tenure,
    /// How many may hold at once, for [`Share::Slot`].
    pub slots: Option<u32>,
    /// Refuse when the holder is gone without having given back.
    pub refuse_stale: bool,
    /// What is granted depends on the waiting process until it is asked for again without this.
    pub tentative: bool,
    /// The grants that do not end before this wait does: those that the applicant works under, and its own where it
    /// takes several names one after the other.
    pub under: Vec<Proof>,
    /// The process whose caller waits for it: [`Waiter::within`] is found out when there is a wait.
    pub called: Option<Called>,
}

impl Applicant {
    /// A process that takes a lock for itself alone, while it lives.
    pub fn for_itself(handle: Handle, party: Party, process: Process) -> Applicant {
        Applicant {
            handle,
            share: Share::Exclusive,
            party,
            process,
            outlived: false,
            yields: false,
            claim: None,
            tenure: Tenure::OwnerLives,
            slots: None,
            refuse_stale: false,
            tentative: false,
            under: Vec::new(),
            called: None,
        }
    }
}

/// How an attempt to take a lock ended.
#[derive(Debug)]
pub enum Taken {
    /// With this answer.
    Answer(Outcome),
    /// Not at all: the interrupt came. Nothing is held, nothing is queued.
    Interrupted,
}

/// A wait, as its onlooker sees it.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// The record as last looked at.
    pub record: &'a Record,
    /// How many stand before us in the queue.
    pub ahead: usize,
    /// How long we are willing to go on; `None`: for ever.
    pub left: Option<Duration>,
}

/// Is shown a wait whenever it begins or goes on, and says how soon it wants to be shown it again at the latest.
pub(super) type Onlooker<'a> = dyn FnMut(&Waiting<'_>) -> Option<Duration> + 'a;

impl Engine {
    /// Takes a lock, waiting for it as long as `patience` lasts.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told. Should the lock be taken all the same, then by a grant that dies with the
    /// applicant.
    pub fn take(
        &self,
        name: &[u8],
        applicant: &Applicant,
        patience: &Patience,
        interrupt: Option<BorrowedFd<'_>>,
        onlooker: &mut Onlooker<'_>,
    ) -> Result<Taken> {
        let mut attempt = Attempt {
            engine: self,
            name,
            application: self.application(applicant, patience),
            begun: None,
            vigil: None,
            hearing: None,
            interrupt,
            held_up: HeldUp::new(applicant.called),
            looked_for_caller: false,
            look_around_at: None,
            suspected_at: None,
            can_be_asked: false,
            noted: None,
            in_touch: false,
        };
        let mut clock = patience.begin(self.host.boottime(), self.must_poll());
        self.store.bound(Some(clock.deadline().unwrap_or(Duration::MAX)));
        let taken = attempt.run_through_outages(applicant, &mut clock, onlooker);
        if attempt.noted.is_some() {
            // A note that stays leads to a wait that is no more, and misleads nobody.
            let _ = self.forget(name, &attempt.application.entry);
        }
        self.store.bound(None);
        taken
    }

    /// Takes for good what was granted tentatively. `None`: it was lost meanwhile.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked or told.
    pub fn confirm(&self, name: &[u8], applicant: &Applicant) -> Result<Option<Grant>> {
        let for_good = Applicant { tentative: false, refuse_stale: false, called: None, ..applicant.clone() };
        match self.take(name, &for_good, &Patience::NONE, None, &mut |_| None)? {
            Taken::Answer(Outcome::Granted(grant, _)) => Ok(Some(grant)),
            _ => Ok(None),
        }
    }

    /// Asks the store no longer than somebody is patient who begins now.
    pub fn bound_by(&self, patience: &Patience) {
        let until = patience.limit.map_or(Duration::MAX, |limit| self.host.boottime().saturating_add(limit));
        self.store.bound(Some(until));
    }

    /// How long to wait at most with so many ahead; `None` when patience is over.
    fn pause(&self, clock: &mut Clock, ahead: usize, leases: &[Lease]) -> Result<Option<Duration>> {
        let Some(mut pause) = clock.next_pause(self.host.boottime(), ahead) else { return Ok(None) };
        for lease in leases {
            pause = pause.min(self.store.remaining(lease)? + ROUNDING);
        }
        // Else others would take us for dead.
        Ok(Some(if self.store.reach() == Reach::ManyHosts { pause.min(self.lease / 4) } else { pause }))
    }

    /// Whether nobody can wake a waiter from another host.
    fn must_poll(&self) -> bool {
        self.store.reach() == Reach::ManyHosts && !self.store.rings()
    }

    pub(super) fn application(&self, applicant: &Applicant, patience: &Patience) -> Application {
        let tenure = match (&applicant.tenure, self.store.reach()) {
            // Other hosts cannot see whether the owner lives.
            (Tenure::OwnerLives, Reach::ManyHosts) => Tenure::Renewing(self.lease.as_millis() as u64),
            (tenure, _) => tenure.clone(),
        };
        let confirms = applicant.outlived || matches!(tenure, Tenure::AtMost(_) | Tenure::Renewing(_));
        let entry = Waiter {
            proof: applicant.handle.proof(),
            share: applicant.share,
            party: applicant.party.clone(),
            process: applicant.process,
            tenure: tenure.clone(),
            confirms,
            yields: applicant.yields,
            claim: applicant.claim.clone(),
            under: applicant.under.clone(),
            within: Vec::new(),
            lease: None,
            since: self.host.wall().as_millis() as u64,
        };
        Application {
            entry,
            tenure,
            slots: applicant.slots,
            queue: !patience.is_none(),
            refuse_stale: applicant.refuse_stale,
            tentative: applicant.tentative,
            place: None,
            full: None,
        }
    }
}

/// What comes after a wait.
enum Next {
    Look,
    Interrupted,
    /// This wait is part of this circle, and the one that is to end.
    GiveUp(Vec<Link>),
}

/// One attempt to take a lock.
struct Attempt<'a> {
    engine: &'a Engine,
    name: &'a [u8],
    application: Application,
    /// The tenure that was begun for a grant that somebody was faster than.
    begun: Option<Tenure>,
    vigil: Option<Box<dyn Vigil + 'a>>,
    hearing: Option<Box<dyn Hearing>>,
    interrupt: Option<BorrowedFd<'a>>,
    /// Whom this wait holds up, and whether we have looked at all.
    held_up: HeldUp,
    looked_for_caller: bool,
    /// When to look around for a circle, on CLOCK_BOOTTIME.
    look_around_at: Option<Duration>,
    /// When we were seen to be the one who ends a circle.
    suspected_at: Option<Duration>,
    /// Whether we listen for those who want to know what we wait for.
    can_be_asked: bool,
    /// Where others can find this wait by its notes; `None`: nobody needs to.
    noted: Option<Noted>,
    /// Whether the store has answered before.
    in_touch: bool,
}

impl<'a> Attempt<'a> {
    /// Goes on when a store that many hosts share, and that answered before, does not answer for a while.
    fn run_through_outages(
        &mut self,
        applicant: &Applicant,
        clock: &mut Clock,
        onlooker: &mut Onlooker<'_>,
    ) -> Result<Taken> {
        loop {
            let error = match self.run(applicant, clock, onlooker) {
                Err(error) if error.exit() == Exit::Unreachable && self.in_touch => error,
                taken => return taken,
            };
            let left = clock.left(self.engine.host.boottime()).unwrap_or(Duration::MAX);
            if left.is_zero() || self.engine.store.reach() == Reach::ThisHost {
                return Err(error);
            }
            let mut signs = Signs { processes: &[], doorway: None, hearing: &mut None };
            if let Woken::Interrupted = self.listen()?.wait(&mut signs, left.min(OUTAGE))? {
                return Ok(self.interrupted());
            }
        }
    }

    fn run(&mut self, applicant: &Applicant, clock: &mut Clock, onlooker: &mut Onlooker<'_>) -> Result<Taken> {
        let engine = self.engine;
        let mut current = None;
        let mut conflicts = 0;
        loop {
            if self.in_touch && engine.store.reach() == Reach::ManyHosts {
                let soon = engine.host.boottime().saturating_add(TO_ASK);
                engine.store.bound(Some(clock.deadline().map_or(soon, |deadline| deadline.min(soon))));
            }
            let (version, record) = match current.take() {
                Some(current) => current,
                None => engine.read(self.name)?,
            };
            self.in_touch = true;
            let patience = clock.left(engine.host.boottime());
            let mut step = engine.decide(&record, &Ask::Take(self.application.clone()), patience)?;
            match &mut step {
                Step::Write { record, outcome: Some(Outcome::Granted(grant, _)), .. } => {
                    self.begin(applicant, record, grant)?;
                }
                Step::Done(outcome) if !matches!(outcome, Outcome::Busy(_)) => {}
                // It may be our own caller who is in our way.
                _ if self.prepare_to_wait()? => {
                    current = Some((version, record));
                    continue;
                }
                _ => {}
            }
            match step {
                Step::Done(outcome) => {
                    // Somebody else has claimed it; perhaps under our id.
                    if let Outcome::Claimed(grant) | Outcome::Granted(grant, _) = &outcome
                        && grant.proof != self.application.entry.proof
                    {
                        self.leave()?;
                    }
                    // What was seen only while we waited: then we are in the queue.
                    if let Outcome::Deadlock(_) = outcome
                        && (self.application.place.is_some() || is_waiting(&record, &self.application.entry.proof))
                        && let Outcome::GrantedMeanwhile(_) = self.leave()?
                    {
                        continue;
                    }
                    return Ok(Taken::Answer(outcome));
                }
                Step::Write { record: next, outcome, wake } => {
                    if outcome.is_none() {
                        // Who is in the queue can be rung, so we listen before we are.
                        self.listen()?;
                    }
                    let stored = engine.swap(version.as_ref(), &record, &next, &wake, None)?;
                    match (stored, outcome) {
                        (Some(version), Some(outcome)) => return Ok(Taken::Answer(with_token(outcome, &version))),
                        (Some(version), None) => current = Some((Some(version), next)),
                        (None, _) if conflicts == MOST_CONFLICTS => return Err(engine.overtaken(self.name)),
                        (None, _) => conflicts += 1,
                    }
                }
                Step::Join(page) => {
                    self.listen()?;
                    if let Some(place) = self.application.place.take().filter(|place| place.page != page) {
                        engine.leave(self.name, place.page, &self.application.entry.proof)?;
                    }
                    self.application.place = engine.join(self.name, page, &self.application.entry)?;
                    self.application.full = self.application.place.is_none().then_some(page);
                }
                Step::Wait { processes, leases, ahead } => {
                    conflicts = 0;
                    let Some(pause) = engine.pause(clock, ahead, &leases)? else {
                        match self.leave() {
                            Ok(Outcome::GrantedMeanwhile(_)) => continue,
                            // That there is no room to write it down changes nothing about the answer: who has ended is
                            // passed over.
                            Err(error) if error.exit() != Exit::InputOutput => return Err(error),
                            _ => return Ok(Taken::Answer(Outcome::Busy(record.holders))),
                        }
                    };
                    let end = engine.host.boottime() + pause;
                    let mut show = || {
                        let left = clock.left(engine.host.boottime());
                        onlooker(&Waiting { record: &record, ahead, left })
                    };
                    match self.wait(&record, version.as_ref(), &processes, ahead, end, &mut show)? {
                        Next::Look => {}
                        Next::Interrupted => return Ok(self.interrupted()),
                        Next::GiveUp(links) => match self.leave()? {
                            Outcome::GrantedMeanwhile(_) => continue,
                            _ => return Ok(Taken::Answer(Outcome::Deadlock(links))),
                        },
                    }
                }
            }
        }
    }

    /// The time of a grant begins now, before it is written.
    fn begin(&mut self, applicant: &Applicant, record: &mut Record, grant: &mut Grant) -> Result<()> {
        let engine = self.engine;
        let depends = applicant.tentative && applicant.claim.is_some() && engine.store.reach() == Reach::ManyHosts;
        // Other hosts cannot see whether we live. Once it is confirmed, it is for good.
        let lease = Tenure::AtMost(engine.lease.as_millis() as u64);
        let tenure = if depends { &lease } else { &self.application.tenure };
        engine.begin_grant(tenure, &mut self.begun, record, grant)
    }

    /// Finds out what those who wait, or would have to, have to say of themselves. Whether that has changed.
    fn prepare_to_wait(&mut self) -> Result<bool> {
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
            entry.lease = Some(engine.lend(engine.lease)?);
            changed = true;
        }
        Ok(changed)
    }

    fn listen(&mut self) -> Result<&mut Box<dyn Vigil + 'a>> {
        Ok(match &mut self.vigil {
            Some(vigil) => vigil,
            none => none.insert(self.engine.host.vigil(&self.application.entry.proof, self.interrupt)?),
        })
    }

    fn wait(
        &mut self,
        record: &Record,
        version: Option<&Version>,
        processes: &[(Home, Process)],
        ahead: usize,
        end: Duration,
        show: &mut dyn FnMut() -> Option<Duration>,
    ) -> Result<Next> {
        let engine = self.engine;
        let here = engine.host.home()?;
        let visible = processes.iter().filter(|(home, _)| here.shares_pids_with(home));
        let visible: Vec<Process> = visible.map(|(_, process)| *process).collect();
        // Who runs in another network namespace cannot ring us, but we may see what it writes.
        let deaf = ahead == 0 && processes.iter().any(|(home, _)| home.net != here.net);
        let doorway = deaf.then(|| engine.store.doorway(self.name)).flatten();
        if let Some(version) = version.filter(|_| self.hearing.is_none()) {
            self.hearing = engine.store.hear(&self.application.entry.proof.bell(), version);
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
                match self.look_around(record, asked || now >= look_around_at + LONG)? {
                    Some(links) if self.suspected_at.is_some() => return Ok(Next::GiveUp(links)),
                    found => self.suspected_at = found.map(|_| now),
                }
            }
            let looks =
                [self.held_up.next_look(look_around_at), may_be_in_circle.then(|| self.next_look(look_around_at))];
            let to_look = looks.into_iter().flatten().filter(|at| *at > now).map(|at| at - now).min();
            let at_most = [show(), to_look].into_iter().flatten().fold(end.saturating_sub(now), Duration::min);
            self.listen()?;
            let mut signs = Signs { processes: &visible, doorway: doorway.as_deref(), hearing: &mut self.hearing };
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
            engine.forget(self.name, entry)?;
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

    /// Leaves the queue.
    fn leave(&self) -> Result<Outcome> {
        let me = self.application.entry.proof;
        let page = self.application.place.as_ref().map(|place| place.page);
        if let Some(page) = page
            && self.engine.leave(self.name, page, &me)?
        {
            return Ok(Outcome::Withdrawn);
        }
        self.engine.settle(self.name, &Ask::Withdraw(me, page))
    }

    /// Gives up because the interrupt came. What cannot be said at once ends by itself.
    fn interrupted(&self) -> Taken {
        self.engine.store.bound(Some(self.engine.host.boottime()));
        let _ = self.abandon();
        Taken::Interrupted
    }

    /// Leaves the queue, and gives back what was granted in the meantime.
    fn abandon(&self) -> Result<()> {
        if let Outcome::GrantedMeanwhile(_) = self.leave()? {
            let claimant = self.engine.claimant(Some(self.application.entry.proof), Vec::new())?;
            self.engine.settle(self.name, &Ask::Release(claimant))?;
        }
        Ok(())
    }
}

fn is_waiting(record: &Record, proof: &Proof) -> bool {
    record.waiters.iter().any(|waiter| waiter.proof == *proof)
}
