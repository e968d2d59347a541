//! The exchange between the parts of a cache: bounded queues between all threads, and wake-ups for
//! sleeping threads.
//!
//! Nothing is locked, and nothing is allocated once the queues exist. A parcel that does not fit
//! into a full queue waits with its sender, in order. No more parcels wait than sub-requests are
//! under way, which the server bounds. A [`WakeUp`] is rung once per turn of the sender's loop, by
//! [`Exchange::flush`], and only if its thread sleeps.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_device::{Lent, Ring};
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use rustix::event::{EventfdFlags, eventfd};

use crate::geometry::{Sectors, VolumeId};
use crate::join::{Fault, Piece, RequestId};
use crate::sleep::Sleep;

/// Capacity in parcels: of all queues to one thread together, and the least of each queue.
const PARCELS: usize = 4096;
const FEWEST_PARCELS: usize = 64;

/// Time until a full queue is tried again. Its reader is running, or the queue would not be full.
const RETRY: Duration = Duration::from_micros(50);

/// A message, and the buffer of the sub-request in it.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) message: Message,
    pub(crate) buffer: Option<Lent>,
}

/// The wake-up of a thread: lets other threads end its wait on its I/O ring.
#[derive(Debug)]
pub struct WakeUp {
    sleep: Sleep,
    event: OwnedFd,
}

impl WakeUp {
    /// Creates the wake-up of a thread that is awake.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { sleep: Sleep::new(), event })
    }

    /// Wakes the thread if it sleeps, after something was put into one of its queues; returns
    /// whether it slept.
    pub fn ring(&self) -> bool {
        let asleep = self.sleep.must_be_woken();
        if asleep {
            // It fails only when the counter is full, and then the thread is being woken already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
        asleep
    }

    /// Returns a descriptor that becomes readable at a wake-up; [`WakeUp::heard`] resets it.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn descriptor(&self) -> io::Result<Rc<OwnedFd>> {
        self.event.try_clone().map(Rc::new)
    }

    /// Waits on the thread's own ring until something arrives, is due, or the thread is woken. Only
    /// polls the ring when the thread's queues are not empty. Returns whether it waited.
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

    /// Clears the wake-up after its descriptor became readable.
    pub fn heard(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count); // nothing to read is no harm
    }
}

/// The queue to one other part.
#[derive(Debug)]
struct Outlet {
    queue: Producer<Parcel>,
    /// Parcels that did not fit into the queue.
    late: VecDeque<Parcel>,
    bell: Arc<WakeUp>,
    /// Set when parcels were put into the queue since the last wake-up of its reader.
    unannounced: bool,
}

/// One thread's end of the message queues between all parts.
#[derive(Debug)]
pub struct Exchange {
    outlets: Vec<Option<Outlet>>,
    inlets: Vec<Consumer<Parcel>>,
    turn: usize,
    bell: Arc<WakeUp>,
    late: usize,
    traffic: Traffic,
}

/// Counts of the messages that a thread has sent to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages: sub-requests sent away, and answers to sub-requests of others.
    pub messages: u64,
    /// Wake-ups of other threads for these messages.
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

fn bells(parts: usize) -> io::Result<Vec<Arc<WakeUp>>> {
    (0..parts).map(|_| WakeUp::new().map(Arc::new)).collect()
}

impl Exchange {
    /// Creates the queues between `parts` parts, and returns each part's end, in order.
    ///
    /// # Errors
    /// When the system is out of descriptors.
    pub fn family(parts: usize) -> io::Result<Vec<Exchange>> {
        Ok(Self::between(&bells(parts)?))
    }

    /// Creates the queues for a cache of `tiers` tiers in `parts` parts. Returns the ends by part,
    /// from the top tier down. The tiers of a part share a wake-up.
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

    /// Creates queues between parts that already have these wake-ups, for a tier that is attached
    /// later. Returns an end for each part, in order.
    pub fn between(bells: &[Arc<WakeUp>]) -> Vec<Exchange> {
        let parts = bells.len();
        let end = |bell: &Arc<WakeUp>| Exchange {
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

    /// Returns this thread's wake-up.
    pub fn bell(&self) -> &Arc<WakeUp> {
        &self.bell
    }

    /// Returns whether this thread has received all messages sent to it.
    pub fn is_empty(&self) -> bool {
        self.inlets.iter().all(Consumer::is_empty)
    }

    /// Returns the counts of the messages that this thread has sent.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns the latest time to try full queues again; `None` when nothing waits.
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

    /// Puts waiting parcels into their queues as far as there is room, and wakes sleeping threads
    /// that were sent parcels.
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

    /// Returns the next parcel, taking from all senders in turn.
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

/// Bits of a [`RequestId`] for the number within its part; the part is in the bits above.
const LOCAL_BITS: u32 = 24;

/// Maximum number of parts of a cache.
pub const MOST_PARTS: usize = 1 << (u32::BITS - LOCAL_BITS);

/// The number of a part of a cache, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartId(pub u8);

impl RequestId {
    /// Creates the id of a part's request from its number, which is small.
    ///
    /// # Panics
    /// With more than 16 million requests under way.
    pub fn new(part: PartId, number: usize) -> Self {
        assert!(number < 1 << LOCAL_BITS, "fewer than 2^{LOCAL_BITS} requests are under way");
        Self(u32::from(part.0) << LOCAL_BITS | number as u32)
    }

    /// Returns the part that the request was submitted to.
    pub fn part(self) -> PartId {
        PartId((self.0 >> LOCAL_BITS) as u8)
    }

    /// Returns the request's number among the requests of its part.
    pub fn number(self) -> usize {
        (self.0 & ((1 << LOCAL_BITS) - 1)) as usize
    }
}

/// A message from one part to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Serve a sub-request of the sender. Its buffer is lent until the sub-request has finished.
    Piece(ForeignPiece),
    /// Fetch this run of a region, which continues a stream of the sender; no client waits for it.
    FetchAhead {
        /// The volume of the run.
        volume: VolumeId,
        /// The run of sectors to fetch.
        sectors: Sectors,
        /// The first sector of the stream.
        stream: u64,
    },
    /// Answers a sub-request of the receiver.
    Answered {
        /// Id of the request that the sub-request is a part of.
        request: RequestId,
        /// The sub-request's result.
        result: Result<(), Fault>,
        /// The cache had all of the sub-request's data.
        hit: bool,
        /// The sub-request does not need the buffer any more.
        finished: bool,
    },
    /// Reports that an answered sub-request of the receiver does not need the buffer any more.
    Finished {
        /// Id of the request that the sub-request is a part of.
        request: RequestId,
    },
    /// Make all dirty data of the volume durable, for a flush of the sender.
    Drain {
        /// The flush that waits for the drain.
        request: RequestId,
        /// The volume to drain.
        volume: VolumeId,
        /// Clean all dirty data, including data that the cache could keep.
        to_backing: bool,
    },
    /// Reports the end of a drain.
    Drained {
        /// The flush that waits for the drain.
        request: RequestId,
        /// The drain's result.
        result: Result<(), Fault>,
    },
}

/// A sub-request of another part's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignPiece(pub(crate) Piece);

impl ForeignPiece {
    /// Returns the id of the request that the sub-request belongs to.
    pub fn request(&self) -> RequestId {
        self.0.request
    }
}

impl Message {
    /// Returns the request of which a sub-request no longer uses the buffer, if this message
    /// reports that.
    pub fn finishes(&self) -> Option<RequestId> {
        match *self {
            Self::Answered { request, finished: true, .. } | Self::Finished { request } => {
                Some(request)
            }
            _ => None,
        }
    }
}
