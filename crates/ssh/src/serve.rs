//! The server: one process for each connection, which carries out the calls of the store trait. It trusts no length, no
//! channel and no number in a request, and never runs a command.

use std::fs::{Permissions, set_permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::link::MOST_SUBSCRIPTIONS;
use super::wire::{Change, Commit, FORMAT, Greeting, Lines, Reply, WireRequest, line};
use directory::{Directory, MARK};
use host::{Host, WakeAddress, WakeSocket};
use lock::error::{Error, ErrorKind, Result, errno_of};
use lock::name::escape_path;
use lock::{Handle, HandleHash, Lease};
use store::{
    Call, CommitResult, Layout, LinesOfHistory, Location, Store, Subscription, Topic, Version, Write as Writing,
    WriteOptions, WriteSet,
};

/// Maximum time to wait for the end of an earlier server process.
const TO_END: Duration = Duration::from_secs(8);

/// Pause between checks that an earlier server process has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Time for processes of this host that opened the store before its mark to make their call.
const TO_NOTICE: Duration = Duration::from_secs(1);

/// Serves the directory at this location. Marks it for other hosts first, unless `is_used` says that processes hold or want
/// a lock there.
pub fn serve_at(location: &Location, is_used: &dyn Fn() -> Result<bool>, host: Arc<dyn Host>) -> Result<()> {
    serve(open(location, is_used, &host), host.as_ref())
}

/// Opens the directory. Marks it if it does not have the mark yet.
fn open(location: &Location, is_used: &dyn Fn() -> Result<bool>, host: &Arc<dyn Host>) -> Result<Box<dyn Store>> {
    let Location::Directory { path, layout: Layout::Own, shared, .. } = location else {
        return Err(Error::invalid("serve: the store is not a directory of records", "use dir:PATH"));
    };
    // Other processes of this host give the option, too.
    if !shared {
        mark(path, is_used, host.as_ref())?;
    }
    Ok(Box::new(Directory::open_as(path, Layout::Served, *shared, host.clone())?))
}

/// Marks the directory, if it exists; otherwise the first commit creates it with the mark.
fn mark(path: &Path, is_used: &dyn Fn() -> Result<bool>, host: &dyn Host) -> Result<()> {
    let failed = |doing| move |error: io::Error| Error::os(errno_of(error), doing, path);
    let mode = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed("open the store"))?.permissions().mode(),
    };
    if mode & MARK != 0 {
        return Ok(());
    }
    // Processes that hold or want a lock now take other hosts for dead processes of this one.
    if is_used()? {
        let what = format!(
            "{} has locks that are held or waited for, by processes that know this host only",
            escape_path(path)
        );
        return Err(Error::new(ErrorKind::Busy, what, "try again when no lock is held there"));
    }
    set_permissions(path, Permissions::from_mode(mode & 0o7777 | MARK)).map_err(|error| {
        let error = failed("mark the store")(error);
        Error::new(error.kind(), error.message(), "its owner marks it for other hosts: chmod u+s on the directory")
    })?;
    host.sleep(TO_NOTICE);
    Ok(())
}

/// Fails if the client breaks the protocol, or with the error of the store, which the client reads, too.
fn serve(store: Result<Box<dyn Store>>, host: &dyn Host) -> Result<()> {
    let session = Handle::new(host.random()?).proof();
    let no_socket = || Error::new(ErrorKind::System, "cannot listen on a unix socket", "raise ulimit -n");
    let bell = WakeSocket::new(WakeAddress::Supervisor(&session)).ok_or_else(no_socket)?;
    let session = store.as_ref().map(|_| session).map_err(Error::clone);
    let greeted = print(&Greeting { csalock_serve: FORMAT, program: env!("CARGO_PKG_VERSION").to_string(), session });
    let store = store?;
    let server = Server { store: store.as_ref(), host, subscriptions: Vec::new() };
    match greeted.and_then(|()| answer_all(server, &bell)) {
        // The client has ended the connection before its answer.
        Err(error) if error.kind() == ErrorKind::InputOutput => Ok(()),
        served => served,
    }
}

fn answer_all(mut server: Server<'_>, bell: &WakeSocket) -> Result<()> {
    let (stdin, mut lines, mut buffer) = (io::stdin(), Lines::default(), [0; 16 << 10]);
    loop {
        while let Some((id, request)) = lines.next().map_err(|_| strange())? {
            server.answer(id, request)?;
        }
        let [is_readable, is_over] = server.wait(stdin.as_fd(), bell.as_fd())?;
        if is_over {
            // The client has a new connection.
            return Ok(());
        }
        if is_readable {
            match nix::unistd::read(&stdin, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => lines.push(&buffer[..length]),
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(_) => return Ok(()),
            }
        }
    }
}

pub(super) struct Server<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) host: &'a dyn Host,
    /// Open subscriptions, each with the id of its request.
    pub(super) subscriptions: Vec<(u64, Box<dyn Subscription>)>,
}

impl Server<'_> {
    /// Waits for input or the end of this server, and tells the client of notifications. Returns which of both came.
    fn wait(&mut self, input: BorrowedFd<'_>, bell: BorrowedFd<'_>) -> Result<[bool; 2]> {
        let notifiers = self.subscriptions.iter().map(|(_, subscription)| subscription.descriptor());
        let all = [input, bell].into_iter().chain(notifiers);
        let mut polled: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok([false; 2]),
            Err(errno) => return Err(Error::os(errno, "wait for", "the client")),
        }
        let ready: Vec<bool> = polled.iter().map(|polled| polled.any().unwrap_or(true)).collect();
        let mut at = 1;
        let mut notified = Vec::new();
        self.subscriptions.retain_mut(|(id, subscription)| {
            at += 1;
            let is_over = ready[at] && subscription.is_notified();
            notified.extend(is_over.then_some(*id));
            !is_over
        });
        notified.into_iter().try_for_each(|id| print(&(id, Reply::Notified)))?;
        Ok([ready[0], ready[1]])
    }

    fn answer(&mut self, id: u64, request: WireRequest) -> Result<()> {
        if let WireRequest::Unsubscribe(id) = request {
            self.subscriptions.retain(|(known, _)| *known != id);
            return Ok(());
        }
        let reply = self.reply(id, request).unwrap_or_else(Reply::Failed);
        print(&(id, reply))
    }

    pub(super) fn reply(&mut self, id: u64, request: WireRequest) -> Result<Reply> {
        let (store, leases, call) = (self.store, self.store.leases(), Call::default());
        let milliseconds = |span: Duration| Reply::of(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        Ok(match request {
            WireRequest::After(earlier) => self.await_end(&earlier)?,
            WireRequest::Read(name) => Reply::of(store.read(call, &name)?),
            WireRequest::Scan => {
                store.scan(call, &mut |place, stored| print(&(id, Reply::Entry(place.to_string(), stored))))?;
                Reply::of(())
            }
            WireRequest::Commit(commit) => self.commit(&commit)?,
            WireRequest::Grant(span) => Reply::of(leases.grant(call, Duration::from_millis(span))?),
            WireRequest::Time => milliseconds(leases.time(call)?),
            WireRequest::Ttl(lease) => milliseconds(leases.ttl(call, &lease)?),
            WireRequest::TimeToExpiry(lease, seen) => milliseconds(leases.time_to_expiry(call, &lease, &seen)?),
            WireRequest::NewSightings(wanted, seen) => {
                Reply::of(leases.new_sightings(call, &wanted.iter().collect::<Vec<&Lease>>(), &seen)?)
            }
            WireRequest::Subscribe(waiter) => self.subscribe(id, &waiter)?,
            WireRequest::Unsubscribe(_) => Reply::Done,
            WireRequest::History => self.history(id)?,
            WireRequest::Sweep { dry_run } => Reply::of(store.sweep(call, dry_run)?),
            WireRequest::Diagnose => Reply::of(store.diagnose(call)),
        })
    }

    /// Waits until these server processes have ended. They end when they see this, or the end of their connection.
    fn await_end(&self, earlier: &[HandleHash]) -> Result<Reply> {
        let until = self.host.boottime() + TO_END;
        for session in earlier {
            while self.host.wake(WakeAddress::Supervisor(session)) {
                if self.host.boottime() >= until {
                    let what = "the server process of an earlier connection has not ended";
                    return Err(Error::new(ErrorKind::Unavailable, what, "see why it hangs on that host (ps aux)"));
                }
                self.host.sleep(PAUSE);
            }
        }
        Ok(Reply::Done)
    }

    fn commit(&self, commit: &Commit) -> Result<Reply> {
        let change = commit.change.as_ref().map(|Change { name, expect, body, options }| Writing {
            name,
            expect: *expect,
            body: body.as_deref(),
            options: WriteOptions { mode: options.mode.map(|mode| mode & 0o777), ..*options },
        });
        let is_line = |line: &&String| line.ends_with('\n') && line.matches('\n').count() == 1;
        let set = WriteSet {
            change,
            expired: commit.expired.iter().collect(),
            ended: commit.ended.iter().collect(),
            wake: commit.wake.iter().map(|waiter| (waiter.channel(), None)).collect(),
            closed: commit.closed.iter().map(HandleHash::channel).collect(),
            history: LinesOfHistory::new(|| commit.history.iter().filter(is_line).cloned().collect()),
            limits: commit.limits,
        };
        let (version, is_unclear) = match self.store.commit(Call::default(), &set)? {
            CommitResult::Done(version) => {
                self.store.finish(Call::default(), &set);
                (Some(version), false)
            }
            CommitResult::Conflict(_) => (None, false),
            CommitResult::Unclear => (None, true),
        };
        Ok(Reply::of((version, is_unclear)))
    }

    fn subscribe(&mut self, id: u64, waiter: &HandleHash) -> Result<Reply> {
        let no = |what| Error::new(ErrorKind::System, what, "");
        if self.subscriptions.len() >= MOST_SUBSCRIPTIONS {
            return Err(no("too many subscriptions"));
        }
        let topic = Topic::Channel(&waiter.channel(), Version::default());
        let subscription = self.store.subscribe(Call::default(), topic).ok_or_else(|| no("no notifications here"))?;
        self.subscriptions.push((id, subscription));
        Ok(Reply::Done)
    }

    fn history(&self, id: u64) -> Result<Reply> {
        let mut printed = Ok(());
        let is_kept = self.store.read_history(Call::default(), &mut |text| {
            if printed.is_ok() {
                printed = print(&(id, Reply::Line(text.to_vec())));
            }
        })?;
        printed.map(|()| Reply::of(is_kept))
    }
}

fn print(message: &impl serde::Serialize) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(&line(message)).and_then(|()| stdout.flush());
    printed.map_err(|error| Error::new(ErrorKind::InputOutput, format!("cannot answer the client: {error}"), ""))
}

fn strange() -> Error {
    let what = "serve: standard input is not a client of csalock";
    let hint = "use the store ssh://HOST/PATH, which starts this command; see csalock(7)";
    Error::new(ErrorKind::InvalidInput, what, hint)
}
