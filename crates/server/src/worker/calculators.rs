//! Threads for the long work of NVMe connections: the modular powers by which hosts prove their
//! names, and the changes of reservations.
//!
//! A power in the largest group takes a processor for tens of milliseconds, and any client that
//! knows a host's name can request one. So the serving threads compute none. One thread of the
//! process does, at a lower priority. It takes the cheapest calculation first, so that hosts with
//! the usual groups do not wait for those with large groups only.
//!
//! A change of a reservation waits for a file to be durable. Another thread makes these, in order
//! of arrival.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::thread::Builder;

use floe_nvme::target::reservation::ReservationChange;
use floe_nvme::target::{Calculation, Deferred};

use crate::messages::{Mailbox, Message};

/// Niceness of the calculating thread.
const NICE: i32 = 10;

/// A calculation to run, and the session that waits for it.
struct QueuedCalculation {
    calculation: Calculation,
    mailbox: Arc<Mailbox<Message>>,
    session: u32,
}

#[derive(Default)]
struct CalculationQueue {
    /// Waiting calculations, the cheapest first, then in order of arrival.
    queue: Mutex<Queue>,
    come: Condvar,
}

#[derive(Default)]
struct Queue {
    orders: BTreeMap<(usize, u64), QueuedCalculation>,
    taken: u64,
}

static ORDERS: LazyLock<Option<Arc<CalculationQueue>>> = LazyLock::new(|| {
    let orders = Arc::new(CalculationQueue::default());
    let own = Arc::clone(&orders);
    let run = move || {
        let _ = rustix::process::nice(NICE); // without it the thread is as important as others
        loop {
            let QueuedCalculation { calculation, mailbox, session } = own.next();
            calculation.run();
            mailbox.post(Message::Touch(session));
        }
    };
    let thread = Builder::new().name("floe-powers".to_owned()).spawn(run);
    thread.is_ok().then_some(orders)
});

impl CalculationQueue {
    fn put(&self, order: QueuedCalculation) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let number = queue.taken;
        queue.taken += 1;
        queue.orders.insert((order.calculation.cost(), number), order);
        self.come.notify_one();
    }

    fn next(&self) -> QueuedCalculation {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match queue.orders.pop_first() {
                Some((_, order)) => return order,
                None => queue = self.come.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A change of a reservation, and the session that waits for it.
struct QueuedChange {
    change: ReservationChange,
    mailbox: Arc<Mailbox<Message>>,
    session: u32,
}

impl QueuedChange {
    fn make(self) {
        self.change.run();
        self.mailbox.post(Message::Touch(self.session));
    }
}

static CHANGES: LazyLock<Option<Sender<QueuedChange>>> = LazyLock::new(|| {
    let (sender, changes) = channel::<QueuedChange>();
    let run = move || changes.into_iter().for_each(QueuedChange::make);
    let thread = Builder::new().name("floe-reserve".to_owned()).spawn(run);
    thread.is_ok().then_some(sender)
});

/// Does work in the background, then posts [`Message::Touch`] for the waiting session. That session
/// may have ended and its number be reused; a needless touch does no harm.
pub(crate) fn do_deferred(work: Deferred, mailbox: &Arc<Mailbox<Message>>, session: u32) {
    let mailbox = Arc::clone(mailbox);
    match work {
        Deferred::Calculation(calculation) => {
            let order = QueuedCalculation { calculation, mailbox, session };
            match &*ORDERS {
                Some(orders) => orders.put(order),
                None => {
                    order.calculation.run(); // the system has no thread left
                    order.mailbox.post(Message::Touch(session));
                }
            }
        }
        Deferred::Reservation(change) => {
            let change = QueuedChange { change, mailbox, session };
            match &*CHANGES {
                Some(changes) => {
                    let sent = changes.send(change);
                    sent.unwrap_or_else(|refused| refused.0.make()); // its thread is gone
                }
                None => change.make(),
            }
        }
    }
}
