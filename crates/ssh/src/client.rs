//! Sends requests to the server, and repeats them as [`net::Calls`] does. Hears notifications, which come on
//! the same connection.
//!
//! **Lost answers.** After an error the client repeats the request on a new connection. The new server process first
//! waits until those of the earlier connections have ended, so no copy of a request is carried out late.

use std::ffi::OsString;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use serde::de::DeserializeOwned;

use super::errors::{SshCause, SshError, explain, strange};
use super::link::Link;
use super::wire::{Reply, WireRequest, line};
use super::{Remote, Ssh};
use host::Host;
use lock::HandleHash;
use lock::error::{Error, Result, describe};
use net::{CallError, Calls, NetError, PATIENCE};
use store::{Call, ServerUrl, Subscription, guarded};

/// Maximum time of one attempt on a connection that has worked. It may be dead without a sign.
const SHARE: Duration = Duration::from_secs(2);

/// Maximum time to connect before a process knows what it needs.
const TO_CONNECT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Slot {
    pub(super) link: Option<Link>,
    /// Server processes of earlier connections, which may not have ended yet.
    earlier: Vec<HandleHash>,
}

impl Slot {
    /// Ends a connection that failed. Its server process may still carry out a request. Subscriptions and forked
    /// processes have its descriptor too, so a close would not end it, nor that process, whose end a repetition awaits.
    pub(super) fn lose(&mut self) {
        let Some(link) = self.link.take() else { return };
        let _ = link.socket.shutdown(Shutdown::Both);
        self.earlier.extend(link.session);
    }
}

impl Ssh {
    /// An error of the new connection shows at the first request.
    pub(crate) fn open(remote: &Remote, program: Option<OsString>, host: Arc<dyn Host>) -> Ssh {
        let program = program.unwrap_or_else(|| "ssh".into());
        let mut slot = Slot::default();
        if let Ok(mut link) = Link::open(&program, remote, host.boottime()) {
            // One that is not connected by then is ended. It would outlive this process, and a request makes a new one.
            let greeted = link.greet(host.as_ref(), Call::until(host.boottime() + TO_CONNECT));
            slot.link = greeted.is_ok().then_some(link);
        }
        let is_greeted = slot.link.as_ref().is_some_and(|link| link.session.is_some());
        let (calls, slot) = (Calls::new(host.clone(), is_greeted), Arc::new(Mutex::new(slot)));
        Ssh { host, remote: remote.clone(), program, slot, calls }
    }

    pub(super) fn ask<A: DeserializeOwned>(&self, call: Call, request: &WireRequest) -> Result<A> {
        self.send(call, request).and_then(|(_, reply, _)| self.answer(reply))
    }

    /// Also tells if the request was sent twice, so that its answer may be that to the second copy.
    pub(super) fn ask_or_repeat<A: DeserializeOwned>(&self, call: Call, request: &WireRequest) -> Result<(A, bool)> {
        self.send(call, request).and_then(|(_, reply, was_resent)| Ok((self.answer(reply)?, was_resent)))
    }

    fn answer<A: DeserializeOwned>(&self, reply: Reply) -> Result<A> {
        match reply {
            Reply::Answer(answer) => serde_json::from_value(answer).map_err(|_| self.nonsense()),
            Reply::Failed(error) => Err(error.of_server(&self.remote.url())),
            _ => Err(self.nonsense()),
        }
    }

    fn send(&self, call: Call, request: &WireRequest) -> Result<(u64, Reply, bool)> {
        let mut tries = 0;
        let id = (u128::from_ne_bytes(self.host.random()?) >> 65) as u64;
        let reply = self.calls.repeat(call, |call| {
            tries += 1;
            let mut slot = guarded(&self.slot);
            self.try_on(call, &mut slot, id, request).inspect_err(|_| slot.lose())
        });
        reply
            .map(|reply| (id, reply, tries > 1))
            .map_err(|failed| self.calls.mark_unreached(&failed, self.error(&failed)))
    }

    fn try_on(&self, call: Call, slot: &mut Slot, id: u64, ask: &WireRequest) -> std::result::Result<Reply, SshError> {
        let host = self.host.as_ref();
        let link = match &mut slot.link {
            Some(link) => link,
            none => {
                let opened = Link::open(&self.program, &self.remote, host.boottime());
                none.insert(opened.map_err(|error| CallError::Server(SshCause::NotStarted(describe(&error))))?)
            }
        };
        let is_new = link.session.is_none();
        // A connection that was made long ago and has not answered never will.
        link.greet(host, call.by(link.since + PATIENCE))?;
        if !slot.earlier.is_empty() {
            match link.ask(host, !id, &WireRequest::After(slot.earlier.clone()), call)? {
                Reply::Done => slot.earlier.clear(),
                _ => return Err(NetError::Silent.into()),
            }
        }
        let call = if is_new { call } else { call.by(host.boottime() + SHARE) };
        link.ask(host, id, ask, call)
    }

    /// Visits the entries of a list. Returns the answer that follows them.
    pub(super) fn list<A: DeserializeOwned>(
        &self,
        call: Call,
        request: &WireRequest,
        visit: &mut dyn FnMut(Reply) -> Result<()>,
    ) -> Result<A> {
        let (id, mut reply, _) = self.send(call, request)?;
        // Requests of the visitor need another connection until the list is over.
        let Some(mut link) = guarded(&self.slot).link.take() else { return Err(self.error(&NetError::Closed.into())) };
        while matches!(reply, Reply::Entry(..) | Reply::Line(_)) {
            self.calls.note_answer();
            visit(reply)?;
            let call = Call { until: Some(self.host.boottime() + PATIENCE), ..call };
            reply = link.reply(self.host.as_ref(), id, call).map_err(|error| self.error(&error))?;
        }
        guarded(&self.slot).link.get_or_insert(link);
        self.answer(reply)
    }

    pub(super) fn nonsense(&self) -> Error {
        self.error(&strange())
    }

    fn error(&self, error: &SshError) -> Error {
        explain(error, &self.remote, &self.program)
    }
}

/// A subscription to a notification, which comes on the connection of the store.
pub(super) struct Subscribed {
    id: u64,
    /// Name of the server process that notifies.
    session: HandleHash,
    /// Duplicate of the connection's descriptor.
    socket: OwnedFd,
    ready: OwnedFd,
    slot: Arc<Mutex<Slot>>,
    host: Arc<dyn Host>,
}

impl Subscribed {
    /// Subscribes by this request; `None` if the server does not.
    pub(super) fn new(store: &Ssh, call: Call, request: &WireRequest) -> Option<Subscribed> {
        let (id, Reply::Done, _) = store.send(call, request).ok()? else { return None };
        let guard = guarded(&store.slot);
        let link = guard.link.as_ref()?;
        let (socket, session) = (link.socket.as_fd().try_clone_to_owned().ok()?, link.session?);
        let ready = eventfd(1, EventfdFlags::CLOEXEC).ok()?;
        Some(Subscribed { id, session, socket, ready, slot: store.slot.clone(), host: store.host.clone() })
    }

    fn is_over(&self) -> bool {
        let mut slot = guarded(&self.slot);
        let link = slot.link.as_mut().filter(|link| link.session == Some(self.session));
        link.is_none_or(|link| link.note_received().is_err() || link.notified.contains(&self.id))
    }
}

impl Subscription for Subscribed {
    fn descriptor(&self) -> BorrowedFd<'_> {
        // The notification may have arrived with the reply to another request.
        if self.is_over() { self.ready.as_fd() } else { self.socket.as_fd() }
    }

    fn is_notified(&mut self) -> bool {
        let mut slot = guarded(&self.slot);
        let heard = slot.link.as_mut().map(|link| link.hear(self.host.as_ref()));
        if !matches!(heard, Some(Ok(()))) {
            slot.lose();
        }
        drop(slot);
        self.is_over()
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        let mut slot = guarded(&self.slot);
        let Some(link) = slot.link.as_mut().filter(|link| link.session == Some(self.session)) else { return };
        link.notified.retain(|id| *id != self.id);
        let soon = Call::until(self.host.boottime() + Duration::from_millis(100));
        if link.send(self.host.as_ref(), &line(&(self.id, WireRequest::Unsubscribe(self.id))), soon).is_err() {
            slot.lose();
        }
    }
}
