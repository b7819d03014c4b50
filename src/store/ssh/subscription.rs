//! Notifications on the connection of the store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::client::{Client, Slot};
use super::wire::{Reply, WireRequest, line};
use crate::host::Host;
use crate::lock::HandleHash;
use crate::store::{Subscription, guarded};

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
    pub(super) fn new(client: &Client, request: &WireRequest) -> Option<Subscribed> {
        let (id, Reply::Done) = client.ask(request).ok()? else { return None };
        let guard = guarded(&client.slot);
        let link = guard.link.as_ref()?;
        let (socket, session) = (link.descriptor().ok()?, link.session?);
        let ready = eventfd(1, EventfdFlags::CLOEXEC).ok()?;
        Some(Subscribed { id, session, socket, ready, slot: client.slot.clone(), host: client.host.clone() })
    }

    /// Returns true if the notification has arrived, or if the server process is gone.
    fn is_over(&self) -> bool {
        let slot = guarded(&self.slot);
        let link = slot.link.as_ref().filter(|link| link.session == Some(self.session));
        link.is_none_or(|link| link.notified.contains(&self.id))
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
        let soon = self.host.boottime() + Duration::from_millis(100);
        if link.send(self.host.as_ref(), &line(&(self.id, WireRequest::Unsubscribe(self.id))), soon).is_err() {
            slot.lose();
        }
    }
}
