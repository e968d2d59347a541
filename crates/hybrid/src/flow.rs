//! The path of evicted objects from memory to flash.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::admission::Offer;
use crate::compression::Compression;
use crate::format::{
    Lifetime, MAX_KEY_BYTES, PART_KEY_BYTES, PARTS_LIST_BYTES, PartsList, RECORD_HEADER_BYTES,
    Record, RecordHead, RecordHeader, RecordKind, UNIT_BYTES,
};
use crate::insertion::{Declined, Inserted};
use crate::log::Refused;
use crate::options::Placement;
use crate::store::{Evictor, Pace, Reporter, Store, count};

thread_local! {
    /// Start of this thread's current call that may evict from memory, on the clock of the stripes.
    pub(crate) static CALL_BEGAN: Cell<u64> = const { Cell::new(0) };
    /// Hash of the key that this thread's current call changes; 0 for none.
    pub(crate) static CHANGING: Cell<u64> = const { Cell::new(0) };
    /// The result for the object of that key, if memory has not kept it.
    pub(crate) static LEFT: Cell<Option<Inserted>> = const { Cell::new(None) };
}

/// The behaviour when memory evicts objects faster than the drive can write them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFull {
    /// Insertions wait for the drive.
    #[default]
    Wait,
    /// Objects are dropped and counted.
    Decline,
}

/// Bytes of a part's record beside its part of the value, padding included.
const PART_HEAD_BYTES: usize = RECORD_HEADER_BYTES + PART_KEY_BYTES + UNIT_BYTES;

/// Maximum number of uses that an object in memory counts.
const MOST_USES: u8 = 3;

/// Settings of an open cache.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Limit in bytes of objects in memory and the index together.
    pub(crate) memory_bytes: u64,
    pub(crate) on_full: OnFull,
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) refresh_ahead: Option<Duration>,
    pub(crate) compression: Compression,
}

/// A value in memory.
#[derive(Debug)]
pub(crate) struct Held<V> {
    pub(crate) value: V,
    pub(crate) weight: u32,
    pub(crate) lifetime: Lifetime,
    /// True if the object was written to flash. Flash may have evicted it since.
    pub(crate) on_flash: bool,
    /// Number of removals by a predicate before the object came from flash; `None` if it came
    /// during one.
    pub(crate) removals: Option<u32>,
    pub(crate) placement: Placement,
    /// True while a refresh in the background is under way.
    pub(crate) refreshing: AtomicBool,
    /// Requests that memory has answered with it, up to [`MOST_USES`].
    pub(crate) uses: AtomicU8,
}

impl<V> Held<V> {
    /// Counts a request. The first few of an object write to it, and the others only read.
    pub(crate) fn count_use(&self) {
        // Relaxed, and not atomic together: a lost use of several is none too few.
        let uses = self.uses.load(Ordering::Relaxed);
        if uses < MOST_USES {
            self.uses.store(uses + 1, Ordering::Relaxed);
        }
    }
}

/// The way of an object to flash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// Start of the call that makes it leave memory.
    pub(crate) since: u64,
    /// Requests that memory has answered with it; `None` when the cache is closed.
    pub(crate) uses: Option<u8>,
    /// For an object that came from flash: the removals by a predicate before.
    pub(crate) removals: Option<u32>,
}

/// An encoded object on its way from memory to flash.
pub(crate) struct Departing {
    pub(crate) header: RecordHeader,
    pub(crate) head: RecordHead,
    /// Bytes of key and stored value.
    pub(crate) body: Bytes,
    /// The parts of an object that is too large for a segment, and the number of those appended.
    pub(crate) parts: Option<(PartsList, u32)>,
}

impl Departing {
    pub(crate) fn record(&self) -> Record<'_> {
        let (key, value) = self.body.split_at(self.header.key_bytes);
        Record { header: self.header, key, value }
    }

    /// Returns the number of the next part to append, and its bytes.
    fn next_part(&self) -> Option<(PartsList, u32, Bytes)> {
        let (list, next) = self.parts.filter(|(list, next)| *next < list.count())?;
        let range = list.range(next);
        let key = self.header.key_bytes;
        Some((list, next, self.body.slice(key + range.start..key + range.end)))
    }

    /// Returns the record that is appended last: the whole object, or the list of its parts.
    fn last_record<R>(
        &self,
        with: impl FnOnce(&RecordHeader, &RecordHead, &[u8], &[u8]) -> R,
    ) -> R {
        let Record { key, value, .. } = self.record();
        let Some((list, _)) = self.parts else { return with(&self.header, &self.head, key, value) };
        let value = list.encode();
        let header = RecordHeader { value_bytes: value.len(), in_parts: true, ..self.header };
        with(&header, &header.encode(key, &value), key, &value)
    }
}

impl fmt::Debug for Departing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departing").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Counts of objects between memory and flash.
#[derive(Debug, Default)]
pub(crate) struct FlowCounters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) superseded: AtomicU64,
    pub(crate) by_options: AtomicU64,
    pub(crate) behind: AtomicU64,
    pub(crate) too_large: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) over_budget: AtomicU64,
    pub(crate) unpopular: AtomicU64,
    pub(crate) write_cost: AtomicU64,
    pub(crate) fits_memory: AtomicU64,
}

impl FlowCounters {
    /// Counts an object that was declined.
    pub(crate) fn decline(&self, reason: Declined) {
        count(match reason {
            Declined::TooLarge | Declined::TooLargeForMemory => &self.too_large,
            Declined::Behind => &self.behind,
            Declined::Superseded => &self.superseded,
            Declined::FlashEnded => &self.failed,
            Declined::OverBudget => &self.over_budget,
            Declined::Unpopular => &self.unpopular,
            Declined::WriteCost => &self.write_cost,
            Declined::FitsMemory => &self.fits_memory,
        });
    }
}

/// The path from memory to a drive.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Path of the drive.
    pub(crate) path: PathBuf,
    pub(crate) store: Arc<Store<Departing>>,
    pub(crate) on_full: OnFull,
    pub(crate) compression: Compression,
    /// Hashes of objects that wait for room in the log.
    pub(crate) waiting: Mutex<VecDeque<u64>>,
    /// True if `waiting` may have objects.
    pub(crate) waits: AtomicBool,
    pub(crate) counters: FlowCounters,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records the result for an object that leaves memory, if this thread's call inserts it.
pub(crate) fn answer(hash: u64, result: Inserted) {
    if CHANGING.get() == hash {
        LEFT.set(Some(result));
    }
}

impl Flow {
    /// Appends an object to the log, or queues it until there is room.
    ///
    /// # Errors
    /// The reason why it is declined, which is counted.
    pub(crate) fn send(
        &self,
        hash: u64,
        (key, value): (&[u8], &[u8]),
        lifetime: Lifetime,
        way: Way,
    ) -> Result<(), Declined> {
        let sent = self.try_send(hash, (key, value), lifetime, way);
        if let Err(reason) = sent {
            self.counters.decline(reason);
        }
        answer(hash, sent.map_or_else(Inserted::Declined, |()| Inserted::ToFlash));
        sent
    }

    fn try_send(
        &self,
        hash: u64,
        (key, value): (&[u8], &[u8]),
        lifetime: Lifetime,
        way: Way,
    ) -> Result<(), Declined> {
        let mut header = RecordHeader::new(RecordKind::Object, key, value);
        header.lifetime = lifetime;
        if !self.fits(&header) {
            return Err(Declined::TooLarge); // compressed or not, so that memory bounds the value
        }
        let compressed = self.compression.compress(value);
        let value = match &compressed {
            Some((how, smaller)) => {
                header.compressed = Some(*how);
                header.value_bytes = smaller.len();
                smaller
            }
            None => value,
        };
        let is_large = header.log_bytes() > self.store.log.geometry.max_record_bytes();
        let head = if is_large { RecordHead::default() } else { header.encode(key, value) };
        let mut stripe = self.store.stripes.of(hash);
        // Memory may decline the very object that this call inserts.
        let own = usize::from(CHANGING.get() == hash);
        let Way { since, uses, removals } = way;
        if stripe.changed_since(hash, since, own)
            || self.store.stripes.cleared_since(since)
            || removals.is_some() && self.store.stripes.removals() != removals
        {
            return Err(Declined::Superseded);
        }
        self.admit(hash, header.log_bytes() as u64, uses)?;
        if is_large {
            self.store.log.check_open().map_err(|_| Declined::FlashEnded)?;
            let parts = Some((self.store.new_parts(value.len()), 0));
            let body = [key, value].concat().into();
            stripe.depart(hash, Departing { header, head, body, parts });
            drop(stripe);
            self.wait_in_line(hash);
            return Ok(());
        }
        match self.store.append_object(hash, &header, &head, key, value) {
            Ok(()) => {
                drop(stripe);
                self.after_append();
                Ok(())
            }
            Err(Refused::Ended) => Err(Declined::FlashEnded),
            Err(Refused::Full) if self.on_full == OnFull::Decline => Err(Declined::Behind),
            Err(Refused::Full) => {
                let body = [key, value].concat().into();
                stripe.depart(hash, Departing { header, head, body, parts: None });
                drop(stripe);
                self.wait_in_line(hash);
                Ok(())
            }
        }
    }

    /// Queues an object for [`drain`](Self::drain).
    fn wait_in_line(&self, hash: u64) {
        lock(&self.waiting).push_back(hash);
        self.waits.store(true, Ordering::Release);
    }

    /// Asks the admission about an object.
    fn admit(&self, hash: u64, bytes: u64, uses: Option<u8>) -> Result<(), Declined> {
        let Some(gate) = &self.store.gate else { return Ok(()) };
        let (now, spent) = (self.store.stripes.now(), self.store.log.counters.spent_bytes());
        match uses {
            Some(uses) => gate.offer(now, spent, &Offer { hash, bytes, uses }),
            None => gate.offer_at_close(now, spent, bytes),
        }
    }

    pub(crate) fn fits(&self, header: &RecordHeader) -> bool {
        let geometry = self.store.log.geometry;
        let list = RecordHeader { value_bytes: PARTS_LIST_BYTES, ..*header };
        header.key_bytes <= MAX_KEY_BYTES
            && list.log_bytes() + UNIT_BYTES <= geometry.max_record_bytes()
            && header.key_bytes + header.value_bytes <= geometry.max_object_bytes()
    }

    /// Appends queued objects while there is room. Returns the bytes that the next one needs.
    pub(crate) fn drain(&self) -> Option<usize> {
        // Acquire: pairs with the store after the push.
        if !self.waits.load(Ordering::Acquire) {
            return None;
        }
        // Held until the end: an object leaves the queue once flash has it.
        let mut waiting = lock(&self.waiting);
        while let Some(&hash) = waiting.front() {
            if let Err(needed) = self.append_departing(hash) {
                return Some(needed);
            }
            waiting.pop_front();
        }
        self.waits.store(false, Ordering::Release);
        None
    }

    /// Appends a queued object, by parts if it is large.
    ///
    /// # Errors
    /// The bytes of room that it needs to go on.
    fn append_departing(&self, hash: u64) -> Result<(), usize> {
        loop {
            let mut stripe = self.store.stripes.of(hash);
            // There is none if the key has changed.
            let Some(object) = stripe.departing(hash) else { return Ok(()) };
            let appended = match object.next_part() {
                None => object.last_record(|header, head, key, value| {
                    let appended = self.store.append_object(hash, header, head, key, value);
                    appended.map(|()| true).map_err(|refused| (refused, header.log_bytes()))
                }),
                Some((list, number, part)) => {
                    let lifetime = object.header.lifetime;
                    drop(stripe); // a part has a stripe of its own
                    let appended = self.store.append_part(&list, number, lifetime, &part);
                    self.after_append();
                    stripe = self.store.stripes.of(hash);
                    let now = stripe.departing_mut(hash).and_then(|it| it.parts.as_mut());
                    match now.filter(|(now, _)| now.id == list.id) {
                        Some((_, next)) if appended.is_ok() => *next += 1,
                        Some(_) => {}
                        None => return Ok(()), // the key has changed: nothing lists its parts
                    }
                    let log_bytes = part.len() + PART_HEAD_BYTES;
                    appended.map(|()| false).map_err(|refused| (refused, log_bytes))
                }
            };
            match appended {
                Ok(false) => continue,
                Ok(true) => {}
                Err((Refused::Ended, _)) => count(&self.counters.failed),
                Err((Refused::Full, needed)) => return Err(needed),
            }
            stripe.take_departing(hash);
            return Ok(());
        }
    }

    /// Appends all queued objects. Blocks while the log has no room.
    pub(crate) fn drain_fully(&self) {
        while let Some(needed) = self.drain() {
            self.wait_for_room(needed);
        }
    }

    /// Appends all queued objects, without blocking a thread.
    pub(crate) async fn drained(&self) {
        while let Some(needed) = self.drain() {
            self.store.log.room(needed).await;
        }
    }

    /// Waits until the log has room for this many bytes, or has ended.
    pub(crate) fn wait_for_room(&self, log_bytes: usize) {
        match self.store.pace {
            Pace::Free | Pace::InStep => self.store.log.wait_for_room(log_bytes),
            Pace::InLine => self.write_in_line(),
        }
    }

    /// Does the writer's work in this thread.
    fn write_in_line(&self) {
        let (store, reporter) = (Arc::clone(&self.store), Reporter::default());
        self.store.log.run_in_line(&mut Evictor { store, reporter });
    }

    /// Lets the writer catch up with a record that was appended, if the [`Pace`] demands it. The
    /// caller holds no stripe: the writer may need it.
    pub(crate) fn after_append(&self) {
        match self.store.pace {
            Pace::Free => {}
            Pace::InStep => self.store.log.wait_for_writer(),
            Pace::InLine => self.write_in_line(),
        }
    }
}
