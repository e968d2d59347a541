//! The way of a worker's replies and events. Nothing of it blocks.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::mailbox::Mailbox;
use super::messages::{Asker, Done, Event, Notice, Problem, Ticket, WorkerReply};
use super::setup::ServeError;

/// Sends a worker's replies and events.
#[derive(Debug, Clone)]
pub(super) struct WorkerOutbox {
    pub(super) worker: usize,
    pub(super) control: Sender<Event>,
    pub(super) acceptor: Arc<Mailbox<Notice>>,
}

impl WorkerOutbox {
    pub(super) fn reply(&self, ticket: Ticket, result: Result<Done, Problem>) {
        let reply = WorkerReply { worker: self.worker, number: ticket.number, result };
        match ticket.asker {
            Asker::Control => self.send(Event::Replied(reply)),
            Asker::Acceptor => self.acceptor.post(Notice::Replied(reply)),
        }
    }

    pub(super) fn send(&self, event: Event) {
        let _ = self.control.send(event); // the control thread may have ended
    }

    pub(super) fn died(&self, error: ServeError) {
        self.acceptor.post(Notice::Died(error));
    }
}
