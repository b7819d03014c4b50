//! The selection of locks by the arguments: names, patterns, directories of files, or all locks of a store.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::cli::Status;
use crate::command::context::{Context, LockRef};
use crate::exit::Exit;
use crate::glob;
use crate::report::{Reporter, Zone};
use engine::environment;
use engine::{Engine, LockStatus};
use lock::error::{ErrorKind, Result};
use lock::name::is_directory;
use store::Location;

pub(super) struct Selected<'a> {
    /// For display.
    pub(super) name: &'a [u8],
    pub(super) status: &'a LockStatus,
    pub(super) reporter: &'a Reporter<'a>,
    /// `None` if no argument is the name of the lock.
    pub(super) named: Option<(&'a LockRef, &'a Engine)>,
}

/// Gets each lock as it is found. An `Err` is an unreadable record.
pub(super) type Visit<'a> = dyn FnMut(Result<Selected<'_>>) + 'a;

enum Scan<'a> {
    All,
    Matches(&'a [&'a [u8]]),
    Files(PathBuf),
}

/// A selection, and its results so far, which decide the exit of `status`.
struct Selection<'a, 'v> {
    context: &'a Context,
    options: &'a Status,
    visit: &'a mut Visit<'v>,
    /// Exit for the last unreadable record.
    unreadable: Option<Exit>,
    /// Also false if a pattern or directory has no held lock.
    all_held: bool,
}

/// Shows the locks that the arguments select to `visit`, or, of one store of several, those whose names or patterns they
/// are. Returns the exit of `status`.
pub(super) fn select(
    context: &Context,
    options: &Status,
    store: Option<&Location>,
    visit: &mut Visit<'_>,
) -> Result<Exit> {
    let mut selection = Selection { context, options, visit, unreadable: None, all_held: true };
    let patterns = match store {
        Some(_) => options.names.iter().map(|name| name.as_bytes()).collect(),
        None => selection.visit_names()?,
    };
    let scan = if options.names.is_empty() { Scan::All } else { Scan::Matches(&patterns) };
    if options.names.is_empty() || !patterns.is_empty() {
        selection.scan(&store.map_or_else(|| context.store(), |store| Ok(store.clone()))?, &scan)?;
    }
    Ok(match selection.unreadable {
        Some(exit) => exit,
        None if selection.all_held => Exit::Done,
        None => ErrorKind::NotHeld.into(),
    })
}

/// The stores of `--all-stores`, each once, or why one is unknown.
pub(super) fn stores(context: &Context) -> Vec<Result<Location>> {
    let own = [context.store(), environment::default_store()];
    let mut stores: Vec<Result<Location>> = Vec::new();
    for store in own.into_iter().chain(environment::other_stores(&context.current)) {
        let url = |store: &Result<Location>| store.as_ref().map(Location::url).map_err(Clone::clone);
        if stores.iter().all(|known| url(known) != url(&store)) {
            stores.push(store);
        }
    }
    stores
}

impl<'a> Selection<'a, '_> {
    /// Shows the locks that the arguments name, and those beside files in the named directories. Returns the patterns
    /// among the arguments: a lock whose name looks like a pattern comes first.
    fn visit_names(&mut self) -> Result<Vec<&'a [u8]>> {
        let mut patterns = Vec::new();
        for typed in &self.options.names {
            if is_directory(typed) {
                let (store, directory) = self.context.store_in(typed)?;
                self.scan(&store, &Scan::Files(directory))?;
                continue;
            }
            let is_pattern = glob::is_pattern(typed.as_bytes());
            let target = match self.context.target(typed) {
                Err(error) if is_pattern && error.kind() == ErrorKind::Unavailable => {
                    patterns.push(typed.as_bytes());
                    continue;
                }
                target => target?,
            };
            let engine = self.context.engine(&target.location)?;
            match engine.inspect(&target.name) {
                Ok(status) if is_pattern && nothing_to_show(&status) => patterns.push(typed.as_bytes()),
                Ok(status) => {
                    self.all_held &= status.is_held();
                    let (reporter, named) = (self.reporter(&engine), Some((&target, &engine)));
                    let (name, reporter) = (target.display_name.as_slice(), &reporter);
                    (self.visit)(Ok(Selected { name, status: &status, reporter, named }));
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.unreadable = Some(error.kind().into());
                    (self.visit)(Err(error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(patterns)
    }

    fn scan(&mut self, store: &Location, scan: &Scan<'_>) -> Result<()> {
        let engine = self.context.engine(store)?;
        let reporter = self.reporter(&engine);
        let mut found_held = false;
        engine.for_each_lock(&mut |status| {
            match status {
                Ok(status) if nothing_to_show(&status) => {}
                Ok(status) => {
                    let Some(name) = scan.name(store, &status.record.name) else { return Ok(()) };
                    found_held |= status.is_held();
                    (self.visit)(Ok(Selected { name: &name, status: &status, reporter: &reporter, named: None }));
                }
                Err(error) => {
                    self.unreadable = Some(error.kind().into());
                    (self.visit)(Err(error));
                }
            }
            Ok(())
        })?;
        self.all_held &= found_held || matches!(scan, Scan::All);
        Ok(())
    }

    fn reporter<'e>(&self, engine: &'e Engine) -> Reporter<'e> {
        let zone = if self.options.utc { Zone::Utc } else { Zone::Local };
        Reporter { zone, ..Reporter::new(engine) }
    }
}

impl Scan<'_> {
    /// Name for display, or `None` if the lock is not selected.
    fn name(&self, store: &Location, name: &[u8]) -> Option<Vec<u8>> {
        let is_selected = match self {
            Scan::All => true,
            Scan::Matches(patterns) => patterns.iter().any(|pattern| glob::matches(pattern, name)),
            Scan::Files(directory) if *store == Location::beside(directory) => {
                return Some(directory.join(OsStr::from_bytes(name)).into_os_string().into_encoded_bytes());
            }
            Scan::Files(directory) => PathBuf::from(OsStr::from_bytes(name)).parent() == Some(directory),
        };
        is_selected.then(|| name.to_vec())
    }
}

pub(super) fn nothing_to_show(status: &LockStatus) -> bool {
    status.record.is_free() && status.record.value.is_none()
}
