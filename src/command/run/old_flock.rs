//! `--flock`: the lock's file is locked with flock(2) as well, so that old users of flock(1) and new ones of csalock
//! exclude each other.
//!
//! First the lock, in whose queue all of ours stand; then the file, for which only the first of them waits, within what is
//! left of the timeout. The command inherits the locked file, so that it stays locked when its guardian is killed; the
//! guardian unlocks it at the command's end, though the command's children may have it open.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::take::Take;
use crate::child::Becoming;
use crate::cli::RunWithLock;
use crate::command::targets::{Opened, Targets};
use crate::command::world::{Target, refusal, say};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flock::{Flock, Flocked, Handover, Wait, holders};
use crate::host::command_of;
use crate::lock::{Ask, Outcome, Share};
use crate::name::{is_path, quoted, shown};

/// So many holders of the file are told of.
const MOST_NAMED: usize = 3;

/// The files that are to be locked.
pub(super) struct OldFlock {
    /// Each with the number of the target whose file it is.
    files: Vec<(PathBuf, usize)>,
    handover: Handover,
}

impl OldFlock {
    /// `None` if it was not asked for. Of several names those that are paths have files.
    pub(super) fn of(asked: &RunWithLock, targets: &Targets) -> Result<Option<OldFlock>> {
        if !asked.flock {
            return Ok(None);
        }
        let paths = targets.all.iter().map(|target| &target.known_as).enumerate().filter(|(_, name)| is_path(name));
        let mut files: Vec<(PathBuf, usize)> =
            paths.map(|(at, path)| (PathBuf::from(OsStr::from_bytes(path)), at)).collect();
        // In one order, so that two of us with other names in common never wait for each other.
        files.sort();
        if files.is_empty() {
            let name = &targets.first().known_as;
            let what = format!("--flock locks a file, and {} is no path", shown(name));
            let cure = format!("say ./{}, or leave out --flock", quoted(name));
            return Err(Error::new(Exit::Usage, what, cure));
        }
        Ok(Some(OldFlock { files, handover: Handover::new()? }))
    }

    /// Locks the files, for the command to inherit, until then at the latest. `Some`: it was not to be, with this exit.
    pub(super) fn take(
        &self,
        take: &Take<'_>,
        opened: &Opened<'_>,
        share: Share,
        until: Option<Duration>,
        becoming: Option<&Becoming>,
    ) -> Result<Option<Exit>> {
        let mut held: Vec<Flock> = Vec::new();
        for (file, at) in &self.files {
            let target = &take.targets.all[*at];
            // Two names of one file; locking it twice would be waiting for ourselves.
            if held.iter().any(|flock| flock.is_of(file)) {
                continue;
            }
            let mut told = false;
            let mut look = || {
                if !std::mem::replace(&mut told, true) {
                    becoming.inspect(|becoming| becoming.depend_on_guardian(take.world.inherited));
                    tell_of_wait(take, target, file);
                }
                keep(take, opened)
            };
            let mut wait = Wait { host: take.world.host.as_ref(), signals: take.signals, until, look: &mut look };
            let wait = (!take.asked.taking.waiting.patience().is_none()).then_some(&mut wait);
            match Flock::take(file, share, wait)? {
                Flocked::Held(flock) => held.push(flock),
                Flocked::Interrupted(signal) => return Ok(Some(Exit::Raised(signal as i32))),
                Flocked::Busy => {
                    let name = shown(&target.known_as);
                    let by = by(take, file);
                    take.asked
                        .common
                        .tell(&format!("lock {name} is busy: {by}; wait longer with -w, or see lslocks(8)"));
                    return Ok(Some(take.asked.taking.waiting.conflict_exit_code.map_or(Exit::Busy, Exit::Chosen)));
                }
            }
            if told {
                keep(take, opened)?;
            }
        }
        for flock in &held {
            flock.to_be_inherited()?;
            becoming.map_or(Ok(()), |_| self.handover.give(flock))?;
        }
        Ok(None)
    }

    /// The command has ended.
    pub(super) fn end(&self) {
        self.handover.unlock_all();
    }
}

fn tell_of_wait(take: &Take<'_>, target: &Target, file: &Path) {
    let common = &take.asked.common;
    if common.verbose || (!common.quiet && std::io::stderr().is_terminal()) {
        say(&format!("waiting for lock {}: {}", shown(&target.known_as), by(take, file)));
    }
}

/// Who is in the way.
fn by(take: &Take<'_>, file: &Path) -> String {
    let own = take.world.host.this_process().map(|process| command_of(process.pid)).unwrap_or_default();
    // We may have inherited the locked file, like our guardian; but it is not us who are in the way.
    let others = holders(file).into_iter().map(|pid| (pid, command_of(pid))).filter(|(_, command)| *command != own);
    let mut who: Vec<String> = others.map(|(pid, command)| format!("pid {pid}: {}", shown(&command))).collect();
    match who.len() {
        0 => who.push("somebody who cannot be seen from here".to_string()),
        many if many > MOST_NAMED => who.splice(MOST_NAMED.., [format!("{} more", many - MOST_NAMED)]).for_each(drop),
        _ => {}
    }
    format!("its file is locked with flock(2), as flock(1) does it, by {}", who.join("; and "))
}

/// The locks are ours while we wait for a file, and a time limit begins only when the wait is over. Says when it is time to
/// look after them again.
///
/// # Errors
///
/// When one is ours no more.
fn keep(take: &Take<'_>, opened: &Opened<'_>) -> Result<Option<Duration>> {
    for (at, (target, engine)) in opened.each().enumerate() {
        let claimant = engine.claimant(Some(take.handle.proof()), Vec::new())?;
        let tenure = engine.begin(&take.asked.taking.tenure())?;
        match engine.settle(&target.name, &Ask::Renew(claimant, tenure))? {
            Outcome::Renewed(_) => {}
            refused => {
                let (text, exit) = refusal(&refused, target, &opened.reporter(at), None);
                return Err(Error::new(exit, text, ""));
            }
        }
    }
    Ok(take.asked.taking.ttl.map(|ttl| ttl / 3))
}
