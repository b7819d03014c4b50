//! The common basis of the commands: environment, host, store, caller, and the output of results.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{AccessFlags, access};

use crate::cli::{Common, Taking, Waiting};
use crate::exit::Exit;
use crate::report::{Document, RefusalReport, Reporter, SettingNames, indented, json};
use crate::terminal;
pub(super) use engine::LockRef;
use engine::environment;
use engine::{self, Engine, LockSet, LockStatus, WaitPolicy};
use host::{ThisProcess, new_owner, signals};
use lock::name::{self, escape};
use lock::{Credentials, Error, ErrorKind, Grant, Handle, HandleHash, Mode, NotHolder, Owner, ProcessId, Result};
use store::{Call, Location, is_on_network, refuse_file_mounted_alone};

/// Maximum number of bytes that are read from the file of a handle.
const MOST_HANDLE: u64 = 4096;

/// A command that waits for no lock waits so long for the servers.
const ONE_CALL: WaitPolicy = WaitPolicy { limit: Some(Duration::from_secs(10)), backoff: None };

/// Minimum time that a reader gets for printed output.
const UNREAD: Duration = Duration::from_secs(1);

/// The basis of all commands: the process and its host, and the options that every command has.
pub(super) struct Context {
    process: engine::Context,
    pub(super) common: Common,
    pub(super) settings: &'static SettingNames,
}

impl Deref for Context {
    type Target = engine::Context;

    fn deref(&self) -> &engine::Context {
        &self.process
    }
}

impl Context {
    pub(super) fn new(common: Common) -> Context {
        Context { process: engine::Context::of_this_process(), common, settings: &SettingNames::OPTIONS }
    }

    /// `None` means that the default rules apply.
    fn chosen_store(&self, option: Option<&OsString>, variable: Option<OsString>) -> Result<Option<Location>> {
        if let Some(url) = option {
            return engine::location(url, &self.current).map(Some);
        }
        let Some(url) = variable else { return Ok(None) };
        let location = engine::location(&url, &self.current)?;
        // A command under a file's lock inherits that file's store. The store is not meant for other names.
        let is_of_file = Location::is_inherited(&url) && location.is_beside();
        Ok((!is_of_file).then_some(location))
    }

    /// Store for files that a command under our lock uses, as `CSALOCK_OUTER_STORE` passes it on.
    pub(super) fn outer_store(&self) -> OsString {
        let chosen = self.chosen_store(None, environment::store_for_files());
        chosen.ok().flatten().map(|location| location.url()).unwrap_or_default()
    }

    pub(super) fn store(&self) -> Result<Location> {
        self.store_for(self.common.store.as_ref())
    }

    /// The store of a call with this `--store` or none.
    pub(super) fn store_for(&self, option: Option<&OsString>) -> Result<Location> {
        let chosen = self.chosen_store(option, environment::variable("CSALOCK_STORE"))?;
        chosen.map_or_else(environment::default_store, Ok)
    }

    pub(super) fn target(&self, typed: &OsStr) -> Result<LockRef> {
        self.target_for(typed, &|_| false)
    }

    /// If the caller `locks_file` with the kernel, a user who may not write in the file's directory has the record in a
    /// store of that user, under the file's path. [`Context::record_beside`] names the other record.
    pub(super) fn target_for(&self, typed: &OsStr, locks_file: &dyn Fn(&Path) -> bool) -> Result<LockRef> {
        let typed = typed.as_bytes();
        if !name::is_path(typed) {
            let name = name::literal(typed).unwrap_or(typed);
            name::check(name)?;
            let shell_arg = shell_arg(&self.common, name);
            return Ok(LockRef { shell_arg, ..LockRef::in_store(&self.store()?, name.to_vec()) });
        }
        name::check(typed)?;
        // Two working directories that share a store would have two locks.
        let is_store_chosen = || self.common.store.is_some() || environment::store_for_files().is_some();
        if !name::is_plain_path(typed) && is_store_chosen() {
            let (what, path) = (format!("{} may be a file or a name", escape(typed)), [b"./", typed].concat());
            let (path, name) = (name::shell_quote(&path), name::shell_quote(&[b"name:", typed].concat()));
            return Err(Error::invalid(what, format!("use {path} for the file, or {name} for the name in the store")));
        }
        let file = name::file_of(typed, &self.current)?;
        let display_name = file.as_os_str().as_bytes().to_vec();
        let shell_arg = shell_arg(&self.common, &display_name);
        let chosen = self.chosen_store(self.common.store.as_ref(), environment::store_of_file(&display_name))?;
        let beside = Location::beside(file.parent().unwrap_or(Path::new("/")));
        let (location, name) = match chosen {
            Some(location) if location != beside => (location, display_name.clone()),
            None if !beside.path().is_none_or(environment::may_write) && locks_file(&file) => {
                (environment::writable_store(true)?, display_name.clone())
            }
            _ => {
                refuse_file_mounted_alone(&file)?;
                (beside, file.file_name().unwrap_or(OsStr::new("/")).as_bytes().to_vec())
            }
        };
        Ok(LockRef { location, name, display_name, shell_arg, is_file: true })
    }

    /// Like [`Context::target`], but for a command that only looks or releases: the lock may be one that this user took
    /// without the right to write beside the file.
    pub(super) fn known_target(&self, typed: &OsStr) -> Result<LockRef> {
        let target = self.target(typed)?;
        if !target.location.is_beside() || target.location.path().is_none_or(environment::may_write) {
            return Ok(target);
        }
        let Ok(location) = environment::writable_store(false) else { return Ok(target) };
        let engine = self.engine(&location)?;
        let mut is_known = !engine.record(&target.display_name)?.is_free();
        // A history that cannot be read has no grants.
        let _ = engine.each_past(&mut |past| is_known |= past.name == target.display_name);
        let is_beside = self.engine(&target.location)?.inspect(&target.name).map_or(true, |status| status.is_held());
        let own = LockRef { location, name: target.display_name.clone(), ..target.clone() };
        Ok(if is_known && !is_beside { own } else { target })
    }

    /// The lock beside the file, if the record of `target` is elsewhere only because this user may not write there.
    pub(super) fn record_beside(&self, target: &LockRef) -> Result<Option<LockRef>> {
        let path = Path::new(OsStr::from_bytes(&target.display_name));
        let is_chosen =
            || self.chosen_store(self.common.store.as_ref(), environment::store_of_file(&target.display_name));
        if !target.is_file || target.location.is_beside() || is_chosen()?.is_some() {
            return Ok(None);
        }
        let location = Location::beside(path.parent().unwrap_or(Path::new("/")));
        let name = path.file_name().unwrap_or(OsStr::new("/")).as_bytes().to_vec();
        Ok(Some(LockRef { location, name, ..target.clone() }))
    }

    /// The directory as a path, and the store of the locks of its files.
    pub(super) fn store_in(&self, typed: &OsStr) -> Result<(Location, PathBuf)> {
        name::check(typed.as_bytes())?;
        let directory = name::directory_of(typed, &self.current)?;
        let chosen = self.chosen_store(self.common.store.as_ref(), environment::store_for_files())?;
        Ok((chosen.unwrap_or_else(|| Location::beside(&directory)), directory))
    }

    /// Tells of names that are files of the current directory, which another spelling locks: on a terminal and with -v.
    fn tell_of_files(&self, typed: &[OsString]) {
        let is_told = self.common.verbose || std::io::stderr().is_terminal();
        let is_file = |name: &&OsString| {
            let word = name.as_bytes();
            !name::is_path(word) && name::literal(word).is_none() && Path::new(name).exists()
        };
        for name in typed.iter().filter(|name| is_told && is_file(name)) {
            let name = escape(name.as_bytes());
            self.common.note_unless_json(&format!("{name} is a name; the file is ./{name}"));
        }
    }

    pub(super) fn lock_set(&self, typed: &[OsString]) -> Result<LockSet> {
        self.tell_of_files(typed);
        Ok(LockSet::new(typed.iter().map(|name| self.target(name)).collect::<Result<Vec<_>>>()?))
    }

    /// For a caller that `locks_files` with the kernel, or does so where it could not lock a file otherwise.
    pub(super) fn lock_set_of_files(&self, typed: &[OsString], locks_files: bool) -> Result<LockSet> {
        self.tell_of_files(typed);
        // This user may read the file, and all callers are on this host: some network file systems lock only there.
        let can_be_flocked = |file: &Path| access(file, AccessFlags::R_OK).is_ok() && !is_on_network(file);
        let lock_of = |name: &OsString| self.target_for(name, &|file| locks_files || can_be_flocked(file));
        let targets = typed.iter().map(lock_of).collect::<Result<Vec<_>>>()?;
        for target in &targets {
            if self.common.verbose && self.record_beside(target)?.is_some() {
                let (name, url) = (escape(&target.display_name), target.location.url());
                let store = escape(url.as_encoded_bytes());
                eprint_line(&format!(
                    "lock {name} is kept in store {store}, because this user may not write beside the file; the file itself \
                     is locked too"
                ));
            }
        }
        Ok(LockSet::new(targets))
    }

    /// With `reentrant`, leaves out of `set` the locks, maybe all, that a grant around this process or a script that waits
    /// for this process holds now. The grant must be exclusive, or have the mode that is asked for, of no more slots.
    pub(super) fn lock_set_for(&self, set: LockSet, taking: &Taking, reentrant: bool) -> Result<LockSet> {
        let LockSet { all, first_at } = set;
        let mut rest = LockSet { all: Vec::new(), first_at: 0 };
        for (at, target) in all.into_iter().enumerate() {
            if reentrant && self.is_held_around(&target, Some(taking))? {
                continue;
            }
            if at == first_at {
                rest.first_at = rest.all.len();
            }
            rest.all.push(target);
        }
        Ok(rest)
    }

    /// The variables alone prove nothing: a daemon that the command left behind has them for ever, and a grant that is
    /// over may still be in the record. `None` means any mode, and no grant of a script, which the caller may release.
    pub(super) fn is_held_around(&self, target: &LockRef, taking: Option<&Taking>) -> Result<bool> {
        let around = self.enclosing_grants();
        let this = self.host.this_process()?.pid;
        let callers = taking.map(|_| self.host.blocked_callers(this, true)).unwrap_or_default();
        if around.is_empty() && callers.is_empty() {
            return Ok(false);
        }
        let space = self.host.pid_space()?;
        let engine = self.engine(&target.location)?;
        let policy = taking.map_or(ONE_CALL, |taking| taking.waiting.wait_policy(None));
        let mut inspect = |engine: &Engine| engine.inspect(&target.name);
        let status = engine.outlast_outages(&target.name, &policy, None, &mut |_| None, &mut inspect)?;
        let Some(status) = status else { return Ok(false) };
        let fits = |grant: &Grant| match taking {
            Some(taking) if grant.mode != Mode::Exclusive => {
                grant.mode == taking.mode() && status.record.slots.is_none_or(|slots| taking.slots >= Some(slots))
            }
            _ => true,
        };
        let mut holders = status.record.holders.iter().zip(&status.holders).zip(&status.owners);
        let is_around = |grant: &Grant, owner: &Option<ProcessId>| {
            let is_of_script = grant.provisional.is_none() && space.contains(&grant.owner.domain);
            around.contains(&grant.proof) || (is_of_script && owner.is_some_and(|owner| callers.contains(&owner)))
        };
        Ok(holders.any(|((grant, holds), owner)| holds.holds() && is_around(grant, owner) && fits(grant)))
    }

    /// Visits all locks of a store. Tells people of the records that cannot be read, and returns their errors.
    pub(super) fn each_readable(&self, engine: &Engine, visit: &mut dyn FnMut(LockStatus)) -> Result<Vec<Error>> {
        let mut unreadable = Vec::new();
        engine.for_each_lock(&mut |status| {
            match status {
                Ok(status) => visit(status),
                Err(error) => {
                    self.common.note_unless_json(&format!("passed over: {error}"));
                    unreadable.push(error);
                }
            }
            Ok(())
        })?;
        Ok(unreadable)
    }

    /// The held lock of the same store whose name differs by a typing error, if no lock of the typed name was found.
    pub(super) fn similar(&self, target: &LockRef, not_holder: &NotHolder) -> Option<LockRef> {
        if *not_holder != NotHolder::default() {
            return None;
        }
        let engine = self.engine(&target.location).ok()?;
        let call = Call::until(self.host.boottime().saturating_add(UNREAD));
        let name = engine.during(call).find_held(&|name| name::is_mistyped(&target.name, name)).ok()??;
        // The name of a lock beside a file is the end of the path.
        let directory = target.display_name.strip_suffix(target.name.as_slice())?;
        let display_name = [directory, &name].concat();
        let shell_arg = shell_arg(&self.common, &display_name);
        Some(LockRef { name, display_name, shell_arg, ..target.clone() })
    }

    /// The owner's command has no arguments if this call or the environment asks for that.
    pub(super) fn owner(&self, owners: Vec<ProcessId>, mut command: Vec<u8>, waiting: &Waiting) -> Result<Owner> {
        if environment::hides_commands()? || waiting.no_command {
            command.truncate(command.iter().position(|byte| *byte == b' ').unwrap_or(command.len()));
        }
        let label = waiting.label.as_ref();
        new_owner(self.host.as_ref(), owners, &command, label.map(|label| label.as_bytes()))
    }

    /// A valid `--handle` proves the grant, else `$CSALOCK_HANDLE` or the calling processes.
    pub(super) fn credentials(&self, engine: &Engine, handle: Option<&str>, this: &ThisProcess) -> Result<Credentials> {
        if let Some(text) = handle {
            return engine.by_proof(given_proof(text)?);
        }
        engine.credentials(self.handle_from_env(), this.with_caller()?)
    }

    /// The caller's proof in the words of a refusal.
    pub(super) fn presented_handle(&self, option: Option<&str>) -> Option<&'static str> {
        match (option, environment::variable("CSALOCK_HANDLE")) {
            (Some(_), _) => Some("this handle"),
            (None, Some(_)) if self.handle_from_env().is_some() => Some("the handle in CSALOCK_HANDLE"),
            (None, Some(_)) => Some("CSALOCK_HANDLE, which is not a handle"),
            (None, None) => None,
        }
    }

    /// With a closed stdout the caller would not get this result.
    pub(super) fn require_stdout(&self, result: &str, hint: &str) -> Result<()> {
        if !signals::was_closed(1) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InputOutput, format!("stdout is closed, so {result} would be lost"), hint))
    }

    pub(super) fn handle_from_env(&self) -> Option<HandleHash> {
        proof_of(environment::variable("CSALOCK_HANDLE")?.to_str()?)
    }

    /// Handle hashes of all grants that we run under, the innermost first.
    pub(super) fn enclosing_grants(&self) -> Vec<HandleHash> {
        let Some(innermost) = self.handle_from_env() else { return Vec::new() };
        let outer = environment::variable("CSALOCK_OUTER").unwrap_or_default();
        let outer = outer.to_str().unwrap_or_default().split(',').filter_map(HandleHash::parse);
        std::iter::once(innermost).chain(outer).take(16).collect()
    }

    /// This process and those processes of the calling script that are the caller. For a subshell in the background,
    /// the script around it is not the caller.
    pub(super) fn caller_processes(&self, this: &ThisProcess) -> Result<Vec<ProcessId>> {
        let processes = this.with_caller()?.into_iter().enumerate();
        let waiting = self.host.blocked_callers(this.id()?.pid, true);
        let is_caller = |(at, process): &(usize, ProcessId)| *at < 2 || waiting.contains(process);
        Ok(processes.filter(is_caller).map(|(_, process)| process).collect())
    }
}

/// `text` is a handle, or `@FILE`, which ps(1) does not show to other users.
fn given_proof(text: &str) -> Result<HandleHash> {
    let hint = "a handle is the 32 hex digits that `csalock lock --print-handle` printed";
    let Some(path) = text.strip_prefix('@') else {
        let what = || format!("\"{}\" is not a handle", escape(text.as_bytes()));
        return proof_of(text).ok_or_else(|| Error::invalid(what(), hint));
    };
    let shown = escape(path.as_bytes());
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_HANDLE).read_to_end(&mut content)).map_err(|error| {
        let what = format!("cannot read the handle from {shown}: {error}");
        Error::new(ErrorKind::InputOutput, what, "name a readable file after the @")
    })?;
    proof_of(&String::from_utf8_lossy(&content))
        .ok_or_else(|| Error::invalid(format!("there is no handle in {shown}"), hint))
}

fn proof_of(handle: &str) -> Option<HandleHash> {
    Handle::parse(handle.trim()).map(|handle| handle.proof())
}

fn shell_arg(common: &Common, name: &[u8]) -> String {
    let store = common.store.as_ref().map(|url| format!("--store {} ", name::shell_quote(url.as_bytes())));
    let dashes = if name.starts_with(b"-") { "-- " } else { "" };
    format!("{}{dashes}{}", store.unwrap_or_default(), name::shell_quote(&name::spelled(name)))
}

impl Common {
    /// Prints a message about a result that the exit code reports too, unless `--quiet` is given.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            eprint_line(text);
        }
    }

    /// With `--verbose`, prints a step that has been done.
    pub(super) fn note_step(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            eprint_line(&text());
        }
    }

    /// Prints a message for people. With `--json` the document says the same.
    pub(super) fn note_unless_json(&self, message: &impl Display) {
        if !self.json {
            self.note(&message.to_string());
        }
    }

    /// Prints a result: the document with `--json`, else the text.
    pub(super) fn print(&self, document: &impl serde::Serialize, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
        if self.json { print_json(document) } else { print(text) }
    }

    pub(super) fn refuse(
        &self,
        refusal: &RefusalReport,
        exit: Exit,
        reporter: Option<&Reporter<'_>>,
    ) -> anyhow::Result<Exit> {
        match self.json {
            true => print_json(&refusal.json(exit, reporter))?,
            false => self.note(&refusal.to_string()),
        }
        Ok(exit)
    }
}

/// Maximum number of bytes or characters of a word that a message repeats.
pub(super) const LONGEST_WORD: usize = 100;

pub(super) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_encoded_bytes();
    match bytes.get(..LONGEST_WORD) {
        Some(begin) if bytes.len() > LONGEST_WORD => name::shell_quote(begin) + "...",
        _ => name::shell_quote(bytes),
    }
}

/// Prints a message for people on stderr: one line, or on a terminal as many lines as it needs.
pub(super) fn eprint_line(text: &str) {
    let mut stderr = std::io::stderr();
    let mut text = format!("csalock: {text}");
    let is_terminal = stderr.is_terminal();
    if is_terminal {
        text = indented(&text, terminal::size(&stderr).1);
    }
    text.push('\n');
    for part in text.as_bytes().chunks(terminal::PIPE_BUF) {
        // A log without a reader must not keep a lock from its command. (A terminal that stands still has a reader.)
        if !is_terminal && !terminal::is_writable_within(&stderr, UNREAD) {
            return;
        }
        // If stderr is gone, no other place is left for the message.
        let _ = stderr.write_all(part);
    }
}

/// Prints the proof of a grant that blocks other callers meanwhile. The reader must take it by `until` on
/// CLOCK_BOOTTIME, or within a second if that is later.
pub(super) fn print_before(context: &Context, until: Duration, text: &str) -> anyhow::Result<()> {
    for part in text.as_bytes().chunks(terminal::PIPE_BUF) {
        let left = until.saturating_sub(context.host.boottime()).max(UNREAD);
        if !terminal::is_writable_within(std::io::stdout(), left) {
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "no process reads it");
            return Err(error).context("cannot write to stdout");
        }
        print(part)?;
    }
    Ok(())
}

pub(super) fn print(result: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let result = result.as_ref();
    // If it was closed at the start, descriptor 1 is /dev/null, and would lose the result.
    let written = match signals::was_closed(1) && !result.is_empty() {
        true => Err(std::io::Error::other("it is closed")),
        false => stdout.write_all(result).and_then(|()| stdout.flush()),
    };
    written.context("cannot write to stdout")
}

/// The results of a command for several locks: its exit and, with `--json`, documents that are printed as one list.
pub(super) struct Results<'a> {
    common: &'a Common,
    pub(super) documents: Vec<Document>,
    pub(super) exit: Exit,
}

impl<'a> Results<'a> {
    pub(super) fn new(common: &'a Common) -> Results<'a> {
        Results { common, documents: Vec::new(), exit: Exit::Done }
    }

    /// Without `--json` no document is made, because it may need files in /proc.
    pub(super) fn add(&mut self, document: impl FnOnce() -> Document) {
        if self.common.json {
            self.documents.push(document());
        }
    }

    pub(super) fn done(&mut self, lock: &LockRef, outcome: &'static str, grants: &[Grant], reporter: &Reporter<'_>) {
        self.add(|| json::outcome(&lock.display_name, outcome, grants, reporter));
    }

    pub(super) fn refuse(&mut self, lock: &LockRef, refusal: &RefusalReport, reporter: &Reporter<'_>) {
        self.common.note_unless_json(refusal);
        self.exit = self.exit.or(refusal.kind);
        self.add(|| json::not_done(&lock.display_name, &refusal.holders, Some(refusal), reporter));
    }

    pub(super) fn print(self) -> anyhow::Result<Exit> {
        if self.common.json {
            print_json(&self.documents)?;
        }
        Ok(self.exit)
    }
}

pub(super) fn json_line(document: &impl serde::Serialize) -> String {
    json(document) + "\n"
}

pub(super) fn print_json(document: &impl serde::Serialize) -> anyhow::Result<()> {
    print(json_line(document))
}
