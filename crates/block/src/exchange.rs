//! How parts of a cache talk: a bounded queue from each thread to each other, and a bell for those
//! who sleep.
//!
//! Nothing is locked, and nothing is allocated once the queues are there. What does not fit into a
//! full queue waits with its sender, in order; no more than the pieces of requests under way, which
//! the server bounds. Bells are rung once per turn of the sender's loop, by [`Exchange::flush`],
//! and only for those who sleep.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_device::{Lent, Ring};
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

use crate::part::{Message, PartId};
use crate::sleep::Sleep;

/// Parcels in all queues to one thread together, and the fewest in each.
const PARCELS: usize = 4096;
const FEWEST_PARCELS: usize = 64;

/// How soon to try a full queue again. Its reader is at work, or it would not be full.
const RETRY: Duration = Duration::from_micros(50);

/// A message, and the buffer of the piece that it brings.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) message: Message,
    pub(crate) buffer: Option<Lent>,
}

/// What wakes a thread that waits in its ring.
#[derive(Debug)]
pub struct Bell {
    sleep: Sleep,
    event: OwnedFd,
}

impl Bell {
    /// A bell of a thread that is awake.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sleep: Sleep::new(), event })
    }

    /// Wakes the thread if it sleeps, after something has been put where it will look; says whether
    /// it did.
    pub fn ring(&self) -> bool {
        let asleep = self.sleep.must_be_woken();
        if asleep {
            // It fails only when the counter is full, and then the thread is being woken already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
        asleep
    }

    /// A descriptor that becomes readable when the bell is rung; [`Bell::heard`] makes it
    /// unreadable again.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn descriptor(&self) -> io::Result<Rc<OwnedFd>> {
        self.event.try_clone().map(Rc::new)
    }

    /// Waits on the thread's own ring until something arrives, is due, or the bell is rung; only
    /// looks at the ring when there is something where the thread looks. Says whether it waited.
    ///
    /// # Errors
    /// When the ring fails.
    pub fn wait(
        &self,
        ring: &Ring,
        due: Option<Instant>,
        there_is_nothing: impl FnOnce() -> bool,
    ) -> io::Result<bool> {
        let asleep = self.sleep.fall_asleep(there_is_nothing);
        let waited = if asleep { ring.wait_until(due) } else { ring.wait(Some(Duration::ZERO)) };
        self.sleep.wake();
        waited.map(|_| asleep)
    }

    /// Takes the ringing in, after the descriptor became readable.
    pub fn heard(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count); // nothing to read is no harm
    }
}

/// The queue to one other part.
#[derive(Debug)]
struct Outlet {
    queue: Producer<Parcel>,
    /// What found the queue full.
    late: VecDeque<Parcel>,
    bell: Arc<Bell>,
    /// Something has been put into the queue since the bell was last rung.
    unannounced: bool,
}

/// One thread's end of the queues between all parts.
#[derive(Debug)]
pub struct Exchange {
    outlets: Vec<Option<Outlet>>,
    inlets: Vec<Consumer<Parcel>>,
    /// The inlet to look into first.
    turn: usize,
    bell: Arc<Bell>,
    late: usize,
    traffic: Traffic,
}

/// What a thread has said to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages: pieces sent away, and answers to pieces of others.
    pub messages: u64,
    /// How often another thread had to be woken for them.
    pub wakes: u64,
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            messages: sum.messages + one.messages,
            wakes: sum.wakes + one.wakes,
        })
    }
}

fn bells(parts: usize) -> io::Result<Vec<Arc<Bell>>> {
    (0..parts).map(|_| Bell::new().map(Arc::new)).collect()
}

impl Exchange {
    /// The ends for so many parts, in order.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn family(parts: usize) -> io::Result<Vec<Exchange>> {
        Ok(Self::between(&bells(parts)?))
    }

    /// The ends for a cache of so many tiers in so many parts: by part, from the top tier down. The
    /// tiers of a part share a bell.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn families(tiers: usize, parts: usize) -> io::Result<Vec<Vec<Exchange>>> {
        let bells = bells(parts)?;
        let mut ends: Vec<Vec<Exchange>> = bells.iter().map(|_| Vec::new()).collect();
        for _ in 0..tiers {
            ends.iter_mut().zip(Self::between(&bells)).for_each(|(of_part, end)| of_part.push(end));
        }
        Ok(ends)
    }

    /// An end for each of these bells, in the order of the parts: for a tier that comes to those
    /// that ring them already.
    pub fn between(bells: &[Arc<Bell>]) -> Vec<Exchange> {
        let parts = bells.len();
        let end = |bell: &Arc<Bell>| Exchange {
            outlets: Vec::new(),
            inlets: Vec::new(),
            turn: 0,
            bell: Arc::clone(bell),
            late: 0,
            traffic: Traffic::default(),
        };
        let mut ends: Vec<Exchange> = bells.iter().map(end).collect();
        let parcels = (PARCELS / parts).max(FEWEST_PARCELS);
        for from in 0..parts {
            for to in 0..parts {
                let outlet = (from != to).then(|| {
                    let (queue, inlet) = RingBuffer::new(parcels);
                    ends[to].inlets.push(inlet);
                    Outlet {
                        queue,
                        late: VecDeque::new(),
                        bell: Arc::clone(&bells[to]),
                        unannounced: false,
                    }
                });
                ends[from].outlets.push(outlet);
            }
        }
        ends
    }

    /// What wakes this thread.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Whether nothing has been sent to this thread that it has not received.
    pub fn is_empty(&self) -> bool {
        self.inlets.iter().all(Consumer::is_empty)
    }

    /// What this thread has said to others so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// When to try full queues again at the latest; `None` when all is on its way.
    pub fn next_due(&self) -> Option<Instant> {
        (self.late > 0).then(|| Instant::now() + RETRY)
    }

    pub(crate) fn send(&mut self, to: PartId, parcel: Parcel) {
        self.traffic.messages += 1;
        let outlet = self.outlets[to.0 as usize].as_mut().expect("a part does not write to itself");
        match outlet.late.is_empty() {
            true => match outlet.queue.push(parcel) {
                Ok(()) => outlet.unannounced = true,
                Err(PushError::Full(parcel)) => {
                    outlet.late.push_back(parcel);
                    self.late += 1;
                }
            },
            false => {
                outlet.late.push_back(parcel);
                self.late += 1;
            }
        }
    }

    /// Puts what is late into its queue as far as there is room, and wakes whoever sleeps and has
    /// been sent something.
    pub(crate) fn flush(&mut self) {
        for outlet in self.outlets.iter_mut().flatten() {
            while let Some(parcel) = outlet.late.pop_front() {
                if let Err(PushError::Full(parcel)) = outlet.queue.push(parcel) {
                    outlet.late.push_front(parcel);
                    break;
                }
                outlet.unannounced = true;
                self.late -= 1;
            }
            if std::mem::take(&mut outlet.unannounced) {
                self.traffic.wakes += u64::from(outlet.bell.ring());
            }
        }
    }

    /// The next parcel, taking from all senders in turn.
    pub(crate) fn receive(&mut self) -> Option<Parcel> {
        for _ in 0..self.inlets.len() {
            self.turn = (self.turn + 1) % self.inlets.len();
            if let Ok(parcel) = self.inlets[self.turn].pop() {
                return Some(parcel);
            }
        }
        None
    }
}
