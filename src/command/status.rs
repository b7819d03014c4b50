//! `csalock status`: the locks as a table or as JSON; on a terminal also the details of one lock: its record, its last
//! grants, and other locks of its file. `--watch` redraws them until a signal ends it.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::context::{Context, LockRef, print};
use crate::cli::{Common, Status};
use crate::exit::Exit;
use crate::report::{
    LockBlock, LockTable, OutputStyle, RefusedLock, Reporter, Zone, cut, json, shows_nothing, wrapped,
};
use crate::{glob, terminal};
use engine::{Engine, LockStatus, environment};
use lock::error::{Error, ErrorKind, Result};
use lock::name::{escape, is_directory, is_path, shell_quote};
use store::Location;

/// Time between two drawings of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Number of past grants that are kept for the display.
const KEPT: usize = 3;

pub(super) fn run(context: &Context, options: &Status) -> anyhow::Result<Exit> {
    if options.watch {
        return watch(context, options);
    }
    let mut page = Page::new(context, options);
    let exit = if options.all_stores { page.add_all_stores() } else { page.add_selected()? };
    page.print()?;
    Ok(exit)
}

pub(super) fn output_style(common: &Common, utc: bool) -> OutputStyle {
    let stdout = std::io::stdout();
    let width = stdout.is_terminal().then(|| terminal::size(&stdout).1);
    OutputStyle { colour: common.color.is_for(&stdout), width, zone: if utc { Zone::Utc } else { Zone::Local } }
}

/// All selected locks are kept until the last one is found, because they are sorted.
struct Page<'a> {
    context: &'a Context,
    options: &'a Status,
    style: OutputStyle,
    tables: Vec<(Option<Location>, LockTable)>,
    /// The locks as names or documents. First are those that the arguments name, in their order, with an empty key;
    /// then come the others, with their names.
    texts: Vec<(Box<[u8]>, String)>,
    /// Lines about a single lock.
    block: Vec<String>,
    /// Number of selected locks, and of unreadable records.
    found: usize,
    /// With `--watch`: the error of an unreadable record, or the reason why no lock can be shown.
    trouble: Option<String>,
    /// Exit for the last unreadable record, or else for a named lock, pattern or directory without a held lock.
    exit: Exit,
}

impl<'a> Page<'a> {
    fn new(context: &'a Context, options: &'a Status) -> Page<'a> {
        let style = output_style(&context.common, options.utc);
        let (tables, texts, block) = (Vec::new(), Vec::new(), Vec::new());
        Page { context, options, style, tables, texts, block, found: 0, trouble: None, exit: Exit::Done }
    }

    fn add_selected(&mut self) -> Result<Exit> {
        let exit = self.select(None)?;
        match self.options.names.as_slice() {
            _ if self.found > 0 => {}
            [] => {
                let store = self.context.store()?;
                let other = environment::store_without_xdg(&store).filter(|other| !other.is_missing());
                let other = other.map_or(String::new(), |other| {
                    let other = escape(other.url().as_encoded_bytes());
                    format!("; without XDG_STATE_HOME, as in cron, the store is {other}, so set CSALOCK_STORE in both")
                });
                let hint = "; see `csalock status --all-stores` for others, and `csalock status DIRECTORY/` for files";
                self.tell_empty(&store, &format!("{other}{hint}"));
            }
            [directory] if is_directory(directory) => self.tell_no_file(directory)?,
            _ => {}
        }
        Ok(exit)
    }

    /// Adds the locks of all stores that are known, or the locks of these names in them. A store that cannot be read has
    /// a message instead.
    fn add_all_stores(&mut self) -> Exit {
        let mut exit = Exit::Done;
        for store in stores(self.context) {
            exit = exit.or(store.and_then(|store| self.add_store(&store)).unwrap_or_else(|error| {
                self.context.common.note(&error.to_string());
                error.kind().into()
            }));
        }
        if self.found == 0
            && let [name, ..] = self.options.names.as_slice()
        {
            let (shown, typed) = (escape(name.as_bytes()), shell_quote(name.as_bytes()));
            let file = format!("the lock of a file is shown by `csalock status ./{typed}`");
            self.context.common.note_unless_json(&format!("no store that is known here has a lock {shown}; {file}"));
            exit = exit.or(ErrorKind::NotHeld);
        }
        exit
    }

    fn add_store(&mut self, store: &Location) -> Result<Exit> {
        let before = self.found;
        let exit = self.select(Some(store))?;
        if self.found > before {
            return Ok(exit);
        }
        if self.options.names.is_empty() {
            self.tell_empty(store, "");
        }
        // Another store may have the named locks.
        Ok(Exit::Done)
    }

    /// Begins a table, and adds the locks that the arguments select, or, of one `store` of several, those whose names or
    /// patterns they are. Returns the exit of `status`.
    fn select(&mut self, store: Option<&Location>) -> Result<Exit> {
        let host = &self.context.host;
        self.tables.push((store.cloned(), LockTable::new(self.style, &host.name(), host.wall())));
        self.exit = Exit::Done;
        let all = self.options.names.is_empty();
        let patterns = match store {
            Some(_) => self.options.names.iter().map(|name| name.as_bytes()).collect(),
            None => self.add_named()?,
        };
        if all || !patterns.is_empty() {
            let store = store.map_or_else(|| self.context.store(), |store| Ok(store.clone()))?;
            let fits = |name: &[u8]| all || patterns.iter().any(|pattern| glob::matches(pattern, name));
            let is_one_held = self.add_matching(&store, &|name| fits(name).then(|| name.to_vec()))?;
            self.expect_held(all || is_one_held);
        }
        Ok(self.exit)
    }

    /// Adds the locks that the arguments name, and those beside files in the named directories. Returns the patterns
    /// among the arguments: a lock whose name looks like a pattern comes first.
    fn add_named(&mut self) -> Result<Vec<&'a [u8]>> {
        let mut patterns = Vec::new();
        for typed in &self.options.names {
            if is_directory(typed) {
                let (store, directory) = self.context.store_in(typed)?;
                let is_one_held = self.add_matching(&store, &|name| name_in(&directory, &store, name))?;
                self.expect_held(is_one_held);
                continue;
            }
            let is_pattern = glob::is_pattern(typed.as_bytes());
            let target = match self.context.known_target(typed) {
                Err(error)
                    if is_pattern && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidInput) =>
                {
                    patterns.push(typed.as_bytes());
                    continue;
                }
                target => target?,
            };
            let engine = self.context.engine(&target.location)?;
            match engine.inspect(&target.name) {
                Ok(status) if is_pattern && shows_nothing(&status) => patterns.push(typed.as_bytes()),
                Ok(status) => {
                    self.expect_held(status.is_held());
                    self.add(&target.display_name, &status, &engine, Some(&target));
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => self.add_unreadable(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(patterns)
    }

    /// Adds the locks of a store to which `shown_name` gives a name for display. Returns true if one of them is held.
    fn add_matching(&mut self, store: &Location, shown_name: &dyn Fn(&[u8]) -> Option<Vec<u8>>) -> Result<bool> {
        let engine = self.context.engine(store)?;
        let mut is_one_held = false;
        engine.for_each_lock(&mut |status| {
            match status {
                Ok(status) if shows_nothing(&status) => {}
                Ok(status) => {
                    if let Some(name) = shown_name(&status.record.name) {
                        is_one_held |= status.is_held();
                        self.add(&name, &status, &engine, None);
                    }
                }
                Err(error) => self.add_unreadable(&error),
            }
            Ok(())
        })?;
        Ok(is_one_held)
    }

    fn expect_held(&mut self, is_held: bool) {
        if !is_held {
            self.exit = self.exit.or(ErrorKind::NotHeld);
        }
    }

    /// Tells people, but no program, that a store has no locks, or that all its locks are past.
    fn tell_empty(&self, store: &Location, hint: &str) {
        if self.context.common.json || self.options.names_only || self.context.common.quiet {
            return;
        }
        let url = store.url();
        let shown = escape(url.as_encoded_bytes());
        let mut has_past = false;
        let read = self.context.engine(store).and_then(|engine| engine.each_past(&mut |_| has_past = true));
        // A history that cannot be read has no grants.
        if read.is_err() || !has_past {
            return self.context.common.note(&format!("store {shown} has no locks{hint}"));
        }
        let is_default = self.context.store_for(None).is_ok_and(|default| default == *store);
        let option = if is_default { String::new() } else { format!(" --store {}", shell_quote(url.as_bytes())) };
        let past = format!("; `csalock history{option}` shows past holders");
        self.context.common.note(&format!("no lock is held in {shown}{past}{hint}"));
    }

    /// Tells people, but no program, that the files in a directory have no locks.
    fn tell_no_file(&self, typed: &OsStr) -> Result<()> {
        if !self.context.common.json && !self.options.names_only {
            let directory = self.context.store_in(typed)?.1.into_os_string();
            let (shown, typed) = (escape(directory.as_bytes()), shell_quote(directory.as_bytes()));
            self.context.common.note(&format!(
                "no file in {shown} has a lock; the lock of the directory itself is shown by `csalock status {typed}`"
            ));
        }
        Ok(())
    }

    /// `named` is the lock if an argument is its name.
    fn add(&mut self, name: &[u8], status: &LockStatus, engine: &Engine, named: Option<&LockRef>) {
        self.found += 1;
        let reporter = &Reporter { zone: self.style.zone, ..Reporter::new(engine) };
        let (is_alone, watches) = (self.options.names.len() == 1, self.options.watch);
        let key = if named.is_some() { &[][..] } else { name };
        if self.options.names_only {
            // A name that contains a newline would be two lines.
            self.texts.push((key.into(), escape(name)));
            return;
        }
        if self.context.common.json {
            // The history costs time, so that only a caller who names the lock gets its last run.
            let last = named.and_then(|lock| engine.last_runs().remove(&lock.name));
            let named = named.filter(|_| is_alone);
            let file = named.and_then(|lock| reporter.file_lock(lock, &status.record.holders));
            let store = self.tables.last().and_then(|(store, _)| store.as_ref());
            let document = json::status(name, status, (last.as_ref(), file.as_ref()), store, reporter);
            self.texts.push((key.into(), json(&document)));
            return;
        }
        // The exit code is the answer.
        if self.context.common.quiet && !watches {
            return;
        }
        if let Some(lock) = named {
            let refused = RefusedLock::new(lock, reporter);
            if shows_nothing(status)
                && !watches
                && let Some(file) = refused.lock_of_file()
            {
                self.context.common.note(&format!("{refused} is free; {file}"));
            }
            if is_alone {
                // To find the processes that have locked the file may be slow.
                let file = if watches { None } else { reporter.file_lock(lock, &status.record.holders) };
                // Without a readable history the last grants are missing: the status is more important.
                let mut past = Vec::new();
                let _ = engine.each_past(&mut |ended| {
                    if ended.name == lock.name {
                        past.push(ended);
                    }
                });
                past.drain(..past.len().saturating_sub(KEPT));
                let (file, style) = (file.as_ref(), self.style);
                self.block = LockBlock { lock, status, reporter, past: &past, file, style }.lines();
            }
        }
        if let Some((_, table)) = self.tables.last_mut() {
            table.add(name, status, reporter);
        }
    }

    fn add_unreadable(&mut self, error: &Error) {
        self.found += 1;
        self.exit = error.kind().into();
        if self.options.watch {
            self.trouble = Some(error.to_string());
        } else if self.context.common.json {
            self.texts.push((Box::default(), json(&json::unreadable(error))));
        } else {
            self.context.common.note(&error.to_string());
        }
    }

    fn print(mut self) -> anyhow::Result<()> {
        // Names and documents of several stores are one list. The sort is stable.
        self.texts.sort_by(|(left, _), (right, _)| left.cmp(right));
        let mut lines: Vec<String> = self.texts.into_iter().map(|(_, text)| text).collect();
        if self.context.common.json {
            return print(format!("[{}]\n", lines.join(",")));
        }
        lines.extend(self.block.iter().cloned());
        for (store, table) in self.tables.iter_mut().filter(|(_, table)| self.block.is_empty() && table.len() > 0) {
            if let Some(store) = store {
                let gap = if lines.is_empty() { "" } else { "\n" };
                lines.push(format!("{gap}{}:", escape(store.url().as_encoded_bytes())));
            }
            let (header, rows) = table.sorted_lines();
            lines.extend(std::iter::once(header).chain(rows));
        }
        print(lines.iter().flat_map(|line| [line, "\n"]).collect::<String>())
    }
}

/// Redraws the table, or the details of one lock, again and again.
fn watch(context: &Context, options: &Status) -> anyhow::Result<Exit> {
    if !std::io::stdout().is_terminal() || engine::environment::is_dumb_terminal() {
        let what = "--watch draws on a terminal, and stdout is none that can be drawn on";
        return Err(Error::invalid(what, "use: while sleep 1; do csalock status; done").into());
    }
    // Invalid arguments are reported before the first drawing.
    let mut page = Page::watched(context, options)?;
    // From here on the rows of the terminal are overwritten; what was printed before moves up.
    print("\n".repeat(terminal::size(std::io::stdout()).0))?;
    loop {
        // The lines overwrite the old ones, so that nothing flickers.
        let columns = terminal::size(std::io::stdout()).1;
        let lines: String = page.screen().iter().map(|line| cut(line, columns) + "\x1b[K\r\n").collect();
        print(format!("\x1b[H{lines}\x1b[J"))?;
        context.host.sleep(WATCH_INTERVAL);
        page = Page::watched(context, options)?;
    }
}

/// One drawing of `--watch`.
impl<'a> Page<'a> {
    /// An error of the store may pass, so it is shown like anything else.
    fn watched(context: &'a Context, options: &'a Status) -> Result<Page<'a>> {
        let mut page = Page::new(context, options);
        if let Err(error) = page.select(None) {
            if error.kind() == ErrorKind::InvalidInput {
                return Err(error);
            }
            page = Page { trouble: Some(error.to_string()), ..Page::new(context, options) };
        }
        Ok(page)
    }

    /// As many lines as fit the terminal above the row of the cursor.
    fn screen(&mut self) -> Vec<String> {
        let (height, width) = terminal::size(std::io::stdout());
        let mut lines = vec![self.headline()];
        lines.extend(self.trouble.iter().flat_map(|trouble| wrapped(trouble, width)));
        lines.extend(self.block.iter().cloned());
        for (_, table) in self.tables.iter_mut().filter(|_| self.block.is_empty()) {
            let (header, rows) = table.sorted_lines();
            lines.push(if self.style.colour { format!("\x1b[7m{header}\x1b[0m") } else { header });
            lines.extend(rows);
        }
        let room = height.saturating_sub(1);
        if lines.len() > room {
            let hidden = lines.len() - room.saturating_sub(1);
            lines.truncate(room.saturating_sub(1));
            lines.push(format!("{hidden} more lines: csalock status"));
        }
        lines
    }

    fn headline(&self) -> String {
        let now = self.style.zone.full(self.context.host.wall());
        let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let counts = match self.tables.first() {
            Some((_, table)) => {
                let LockTable { holders, waiters, .. } = *table;
                [count(table.len(), "lock"), count(holders, "holder"), count(waiters, "waiter")].join(", ")
            }
            None => "no answer".to_string(),
        };
        let names = &self.options.names;
        let only_files = !names.is_empty() && names.iter().all(|name| is_path(name.as_bytes()));
        let store = self.context.store().ok().filter(|_| !only_files);
        let store = store.map_or(String::new(), |store| escape(store.url().as_bytes()));
        format!("{now}  {counts}  {store}")
    }
}

/// The stores of `--all-stores`, each once, or why one is unknown.
fn stores(context: &Context) -> Vec<Result<Location>> {
    let own = [context.store(), environment::default_store()];
    let mut stores: Vec<Result<Location>> = Vec::new();
    for store in own.into_iter().chain(environment::other_stores(&context.current)) {
        let place = |store: &Result<Location>| store.as_ref().map(Location::place).map_err(Clone::clone);
        if stores.iter().all(|known| place(known) != place(&store)) {
            stores.push(store);
        }
    }
    stores
}

/// The name for display of a lock in this store, if it is the lock of a file in the directory.
fn name_in(directory: &Path, store: &Location, name: &[u8]) -> Option<Vec<u8>> {
    let file = Path::new(OsStr::from_bytes(name));
    if *store == Location::beside(directory) {
        return Some(directory.join(file).into_os_string().into_encoded_bytes());
    }
    (file.parent() == Some(directory)).then(|| name.to_vec())
}
