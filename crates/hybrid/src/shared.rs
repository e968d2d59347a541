//! The parts of a cache that all its handles share, and the steps of its operations.

use std::borrow::Borrow;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use floe_memory::policy::QdClock;
use floe_memory::{Cache, Cause};
use foldhash::quality::SeedableRandomState;

use crate::admission::Gate;
use crate::codec::{Key, Value};
use crate::compression::decompress;
use crate::drives::{Drive, Flows};
use crate::flow::{CALL_BEGAN, CHANGING, Departing, Flow, Held, LEFT, Way, lock};
use crate::format::{
    Compressed, Lifetime, MAX_KEY_BYTES, PartsList, RECORD_HEADER_BYTES, Record, RecordHeader,
    RecordKind, seconds_now,
};
use crate::index::Place;
use crate::insertion::{Declined, Inserted};
use crate::left::Listener;
use crate::log::Refused;
use crate::options::{InsertOptions, Placement};
use crate::order::Change;
use crate::recovery;
use crate::saved_stats;
use crate::stats::Stats;
use crate::store::{Store, count};

/// Bytes of memory that an entry takes beside its key and value.
const ENTRY_OVERHEAD: usize = 96;

/// A value as its record on flash has it.
pub(crate) enum Stored<V> {
    Whole(V),
    /// The header of the record, and the list of the value's parts.
    InParts(RecordHeader, PartsList),
}

/// A miss in memory and on flash, reported by the load of a key.
#[derive(Debug)]
pub(crate) struct Miss;

/// A function that is told of the objects that flash declines.
pub(crate) type OnDeclined<K> = Arc<dyn Fn(&K, Declined) + Send + Sync>;

/// The part of a cache in memory.
pub(crate) type Memory<K, V> = Cache<K, Held<V>, QdClock, SeedableRandomState>;

/// The state of an open cache.
pub(crate) struct Shared<K: Key + Send + Sync + 'static, V: Value> {
    pub(crate) memory: Memory<K, V>,
    /// Limit in bytes of objects in memory and the index together.
    pub(crate) memory_bytes: u64,
    /// Bytes of the index for which the limit of the objects in memory was lowered.
    pub(crate) index_bytes: AtomicU64,
    pub(crate) flows: Arc<Flows>,
    /// The drives, by place.
    pub(crate) drives: Box<[Drive]>,
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) refresh_ahead: Option<Duration>,
    pub(crate) on_declined: Option<OnDeclined<K>>,
    pub(crate) listener: Option<Listener<K, V>>,
}

impl<K: Key + Send + Sync + 'static, V: Value> Shared<K, V> {
    /// Lowers the limit of the objects in memory as the index and the admission grow. They keep at
    /// least an eighth.
    pub(crate) fn account_for_index(&self) {
        let shared = self;
        let bytes_of = |store: &Store<Departing>| {
            store.index.memory_bytes() + store.gate.as_ref().map_or(0, Gate::memory_bytes)
        };
        let now = self.flows.all().iter().map(|flow| bytes_of(&flow.store)).sum();
        // Relaxed: the counts order nothing, and the larger one wins.
        if shared.index_bytes.fetch_max(now, Ordering::Relaxed) < now {
            let left = shared.memory_bytes.saturating_sub(now);
            shared.memory.resize_weight(left.max(shared.memory_bytes / 8));
        }
    }

    /// Writes the statistics to the file of each drive, now and from now on.
    pub(crate) fn begin_reports(&self) {
        for (place, drive) in self.drives.iter().enumerate() {
            let (memory, flows) = (self.memory.clone(), Arc::clone(&self.flows));
            let written = Mutex::new(Vec::new());
            let report = move |closed: bool| {
                let (stats, log) =
                    (Stats::of(memory.stats(), &flows), &flows.all()[place].store.log);
                let figures = stats.figures();
                let mut written = lock(&written);
                if closed || *written != figures {
                    written.clone_from(&figures);
                    // Without the page, `floe hybrid stats` has older figures.
                    let (flash, identity) = (&*log.flash, log.identity());
                    let _ = saved_stats::write(flash, log.geometry, identity, figures, closed);
                }
            };
            report(false);
            let _ = drive.reporter.set(Box::new(report));
        }
    }

    /// Returns the store of the drive that a key with this hash belongs to.
    pub(crate) fn store(&self, hash: u64) -> &Store<Departing> {
        &self.flows.of(hash).store
    }

    pub(crate) fn hash<Q: Key + ?Sized>(&self, key: &Q) -> u64 {
        self.flows.hash(key)
    }

    /// Attributes evictions from memory from now on to this thread's load.
    pub(crate) fn note_load(&self) {
        CALL_BEGAN.set(self.flows.stripes().now());
        CHANGING.set(0);
    }

    /// Begins a change of a key and removes its object from flash. Blocks while the log has no
    /// room.
    pub(crate) fn begin_change(&self, hash: u64) -> Change<'_, Departing> {
        loop {
            match self.try_begin_change(hash) {
                Ok(change) => return change,
                Err(needed) => self.flows.of(hash).wait_for_room(needed),
            }
        }
    }

    /// Begins a change of a key, or returns the bytes of room in the log that it needs.
    pub(crate) fn try_begin_change(&self, hash: u64) -> Result<Change<'_, Departing>, usize> {
        let flow = self.flows.of(hash);
        let store = &flow.store;
        let begun = store.stripes.begin_change(hash, || match store.forget(hash) {
            Ok(was_there) => Ok(was_there),
            Err(Refused::Ended) => Ok(true), // a failed flash is not read any more
            Err(Refused::Full) => Err(RECORD_HEADER_BYTES * 2),
        });
        flow.after_append(); // of a removal
        begun
    }

    /// Removes the object of a key from memory. The start of the change removed it from flash.
    pub(crate) fn remove_changed<Q>(&self, change: Change<'_, Departing>, key: &Q)
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        let was_in_memory = self.memory.remove(key).is_some();
        let listener = self.listener.as_ref().filter(|_| change.had() && !was_in_memory);
        drop(change);
        if let Some(listener) = listener
            && let Some(key) = key.encode_key(K::decode_key)
        {
            listener(&key, None, Cause::Removed);
        }
    }

    /// Tells the listener of an object that the start of a change removed from flash, if it is to
    /// be replaced. Memory tells of its own.
    pub(crate) fn tell_replaced(&self, change: &Change<'_, Departing>, key: &K) {
        if let Some(listener) = &self.listener
            && change.had()
            && !self.memory.contains_key(key)
        {
            listener(key, None, Cause::Replaced);
        }
    }

    /// Inserts an object whose older one was removed from flash by the start of the change.
    pub(crate) fn insert_changed(
        &self,
        change: Change<'_, Departing>,
        key: K,
        value: V,
        options: &InsertOptions,
    ) -> Inserted {
        self.tell_replaced(&change, &key);
        let (held, memory_options) = self.hold(&key, value, options);
        if let Some(declined) = self.declined(change.hash(), &key, &held) {
            self.memory.remove(&key);
            self.flows.of(change.hash()).counters.decline(declined);
            self.tell(&key, declined);
            self.tell_rejected(&key, &held.value);
            return Inserted::Declined(declined);
        }
        CALL_BEGAN.set(change.began());
        CHANGING.set(change.hash());
        LEFT.set(None);
        if held.placement == Placement::ToFlash {
            self.memory.remove(&key);
            let way = Way { since: change.began(), uses: Some(0), removals: None };
            if let Err(reason) = self.flows.send(&key, &held.value, held.lifetime, way) {
                self.tell(&key, reason);
                self.tell_rejected(&key, &held.value);
            }
        } else {
            self.memory.insert_with(key, held, memory_options);
        }
        CHANGING.set(0);
        self.account_for_index();
        LEFT.take().unwrap_or(Inserted::InMemory)
    }

    /// Returns the reason why an object cannot be stored at all, if there is one.
    fn declined(&self, hash: u64, key: &K, held: &Held<V>) -> Option<Declined> {
        if held.placement == Placement::MemoryOnly {
            return None; // memory says whether it has room
        }
        let key_bytes = key.encode_key(<[u8]>::len);
        if key_bytes > MAX_KEY_BYTES {
            return Some(Declined::TooLarge);
        }
        let smallest = self.store(hash).log.geometry.max_record_bytes() - RECORD_HEADER_BYTES;
        if (held.weight as usize) < smallest {
            return None;
        }
        let header = |value: &[u8]| RecordHeader {
            key_bytes,
            ..RecordHeader::new(RecordKind::Object, &[], value)
        };
        let fits = held.value.encode(|value| self.flows.of(hash).fits(&header(value)));
        (!fits).then_some(Declined::TooLarge)
    }

    /// Creates the entry in memory of a new object.
    pub(crate) fn hold(
        &self,
        key: &K,
        value: V,
        options: &InsertOptions,
    ) -> (Held<V>, floe_memory::InsertOptions) {
        let weight = entry_weight(key.encode_key(<[u8]>::len), &value);
        let placement = options.placement;
        let refreshing = AtomicBool::new(false);
        let uses = AtomicU8::new(0);
        let held = |lifetime| {
            let (on_flash, removals) = (false, None);
            Held { value, weight, lifetime, on_flash, removals, placement, refreshing, uses }
        };
        let for_memory = floe_memory::InsertOptions::new();
        let Some(live) = options.live.or(self.time_to_live) else {
            return (held(Lifetime::default()), for_memory);
        };
        let now = seconds_now();
        let second = |after: Duration| {
            u32::try_from(now.saturating_add(after.as_secs().max(1))).unwrap_or(0)
        };
        let mut lifetime = Lifetime { expires: second(live), stale: 0 };
        let mut for_memory = for_memory.time_to_live(live);
        if let Some(ahead) = options.ahead.or(self.refresh_ahead) {
            for_memory = for_memory.refresh_ahead(ahead);
            lifetime.stale = second(live.saturating_sub(ahead));
        }
        (held(lifetime), for_memory)
    }

    /// Creates the entry in memory of an object that was read from flash.
    fn brought(
        &self,
        key_bytes: usize,
        value: V,
        lifetime: Lifetime,
    ) -> (Held<V>, floe_memory::InsertOptions) {
        let weight = entry_weight(key_bytes, &value);
        let mut options = floe_memory::InsertOptions::new();
        let seconds =
            |from: u64, until: u32| Duration::from_secs(u64::from(until).saturating_sub(from));
        if lifetime.expires != 0 {
            options = options.time_to_live(seconds(seconds_now(), lifetime.expires));
        }
        if lifetime.stale != 0 {
            options = options.refresh_ahead(seconds(lifetime.stale.into(), lifetime.expires));
        }
        let (placement, refreshing) = (Placement::Both, AtomicBool::new(false));
        let (on_flash, uses) = (true, AtomicU8::new(0));
        let removals = self.flows.stripes().removals();
        let held =
            Held { value, weight, lifetime, on_flash, removals, placement, refreshing, uses };
        (held, options)
    }

    /// Reads an object for memory, as the load of its key. The place is looked up within the load,
    /// which every later change of the key outdates.
    pub(crate) async fn load_from_flash(
        &self,
        hash: u64,
        key: Vec<u8>,
    ) -> Result<(Held<V>, floe_memory::InsertOptions), Miss> {
        let store = self.store(hash);
        let place = store.index.peek(hash).ok_or(Miss)?;
        let key_bytes = key.len();
        let found = store.read(hash, place, key, |record| self.entry(hash, record)).await;
        let found = self.whole_entry(hash, place, found.ok().flatten().flatten()).await;
        self.finish_load(key_bytes, found)
    }

    /// Reads an object for memory, as [`Shared::load_from_flash`] does, blocking.
    pub(crate) fn load_from_flash_blocking(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<(Held<V>, floe_memory::InsertOptions), Miss> {
        let store = self.store(hash);
        let place = store.index.peek(hash).ok_or(Miss)?;
        let found = store.read_blocking(hash, place, key, |record| self.entry(hash, record));
        let found = found.ok().flatten().flatten().and_then(|(stored, lifetime)| {
            Some((self.whole_blocking(hash, place, stored)?, lifetime))
        });
        self.finish_load(key.len(), found)
    }

    /// Reads the parts of the value in an entry, if it is in parts.
    pub(crate) async fn whole_entry(
        &self,
        hash: u64,
        place: Place,
        entry: Option<(Stored<V>, Lifetime)>,
    ) -> Option<(V, Lifetime)> {
        let (stored, lifetime) = entry?;
        Some((self.whole(hash, place, stored).await?, lifetime))
    }

    pub(crate) fn entry(&self, hash: u64, record: &Record<'_>) -> Option<(Stored<V>, Lifetime)> {
        Some((self.decode(hash, record)?, record.header.lifetime))
    }

    /// Creates the entry in memory that ends the load of a key.
    pub(crate) fn finish_load(
        &self,
        key_bytes: usize,
        found: Option<(V, Lifetime)>,
    ) -> Result<(Held<V>, floe_memory::InsertOptions), Miss> {
        let (value, lifetime) = found.ok_or(Miss)?;
        self.note_load();
        Ok(self.brought(key_bytes, value, lifetime))
    }

    pub(crate) fn count_flash(&self, hash: u64, is_hit: bool) {
        let counters = &self.flows.of(hash).counters;
        count(if is_hit { &counters.hits } else { &counters.misses });
    }

    /// Decodes the value of a record, unless it is in parts.
    pub(crate) fn decode(&self, hash: u64, record: &Record<'_>) -> Option<Stored<V>> {
        if record.header.in_parts {
            return self.in_parts(hash, &record.header, record.value);
        }
        let value = match record.header.compressed {
            None => V::decode(record.value),
            Some(how) => self.decompress(hash, how, record.value),
        };
        self.count_decoded(hash, value).map(Stored::Whole)
    }

    /// Decodes a value that it may share, unless it is in parts.
    pub(crate) fn decode_shared(
        &self,
        hash: u64,
        header: &RecordHeader,
        value: Bytes,
    ) -> Option<Stored<V>> {
        match header.in_parts {
            true => self.in_parts(hash, header, &value),
            false => self.decode_whole(hash, header, value).map(Stored::Whole),
        }
    }

    fn in_parts(&self, hash: u64, header: &RecordHeader, list: &[u8]) -> Option<Stored<V>> {
        let list = self.count_decoded(hash, PartsList::decode(list))?;
        Some(Stored::InParts(*header, list))
    }

    /// Reads the parts of a value, if it is in parts.
    pub(crate) async fn whole(&self, hash: u64, place: Place, stored: Stored<V>) -> Option<V> {
        match stored {
            Stored::Whole(value) => Some(value),
            Stored::InParts(header, list) => {
                // In a box: other futures need not be as large.
                let value = Box::pin(self.store(hash).read_parts(&list)).await;
                self.join_parts(hash, place, &header, value)
            }
        }
    }

    /// Reads the parts of a value as [`Shared::whole`] does, blocking.
    pub(crate) fn whole_blocking(&self, hash: u64, place: Place, stored: Stored<V>) -> Option<V> {
        match stored {
            Stored::Whole(value) => Some(value),
            Stored::InParts(header, list) => {
                let value = self.store(hash).read_parts_blocking(&list);
                self.join_parts(hash, place, &header, value)
            }
        }
    }

    /// Decodes a value whose parts were read. Without all of its parts, the object is gone.
    fn join_parts(
        &self,
        hash: u64,
        place: Place,
        header: &RecordHeader,
        value: Option<Vec<u8>>,
    ) -> Option<V> {
        let Some(value) = value else {
            let store = self.store(hash);
            if store.index.remove_at(hash, place.address).is_some() {
                count(&store.counters.evicted);
            }
            return None;
        };
        self.decode_whole(hash, header, value.into())
    }

    fn decode_whole(&self, hash: u64, header: &RecordHeader, value: Bytes) -> Option<V> {
        let value = match header.compressed {
            None => V::decode_shared(value),
            Some(how) => self.decompress(hash, how, &value),
        };
        self.count_decoded(hash, value)
    }

    fn decompress(&self, hash: u64, how: Compressed, value: &[u8]) -> Option<V> {
        let most = self.store(hash).log.geometry.max_object_bytes();
        V::decode_shared(decompress(how, value, most)?.into())
    }

    fn count_decoded<T>(&self, hash: u64, value: Option<T>) -> Option<T> {
        if value.is_none() {
            count(&self.store(hash).counters.undecoded);
        }
        value
    }

    pub(crate) fn in_memory<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        self.memory.read(key, |held| {
            held.count_use();
            held.value.clone()
        })
    }

    /// Returns the object of a key that is on its way from memory to flash.
    pub(crate) fn departing(&self, hash: u64, key: &[u8]) -> Option<(V, Lifetime)> {
        let flow = self.flows.of(hash);
        if !flow.waits.load(Ordering::Acquire) {
            return None;
        }
        let stripe = flow.store.stripes.of(hash);
        let record = stripe.departing(hash)?.record();
        // It is whole, though its parts may be on flash already.
        match (record.key == key).then(|| self.decode(hash, &record)).flatten()? {
            Stored::Whole(value) => Some((value, record.header.lifetime)),
            Stored::InParts(..) => None,
        }
    }

    /// Returns the value of a key that has not reached flash, or the key's hash and bytes.
    pub(crate) fn peek_in_memory<Q>(&self, key: &Q) -> Result<V, (u64, Vec<u8>)>
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        if let Some(held) = self.memory.peek(key) {
            return Ok(held.value.clone());
        }
        let (hash, bytes) = (self.hash(key), key.encode_key(<[u8]>::to_vec));
        let departing = self.departing(hash, &bytes).map(|(value, _)| value);
        departing.ok_or((hash, bytes))
    }

    /// Tells the listener of an object that is declined.
    fn tell(&self, key: &K, reason: Declined) {
        if let Some(told) = &self.on_declined {
            told(key, reason);
        }
    }

    fn tell_rejected(&self, key: &K, value: &V) {
        if let Some(listener) = &self.listener {
            listener(key, Some(value), Cause::Rejected);
        }
    }

    /// Lets the stores tell the listener of objects that leave flash.
    pub(crate) fn listen_to_flash(&self) {
        let Some(listener) = &self.listener else { return };
        for flow in self.flows.all() {
            let (memory, flows) = (self.memory.clone(), Arc::downgrade(&self.flows));
            let listener = Arc::clone(listener);
            flow.store.left.set(Arc::new(move |key: &[u8], cause| {
                let (Some(flows), Some(key)) = (flows.upgrade(), K::decode_key(key)) else {
                    return;
                };
                let hash = flows.hash(&key);
                let is_elsewhere = memory.contains_key(&key)
                    || flows.of(hash).store.index.peek(hash).is_some()
                    || flows.stripes().of(hash).departing(hash).is_some();
                if !is_elsewhere {
                    listener(&key, None, cause);
                }
            }));
        }
    }

    pub(crate) fn close(&self) -> io::Result<()> {
        // One call closes all drives: another one finds no writer.
        let take = |drive: &Drive| lock(&drive.writer).take();
        let writers: Vec<Option<JoinHandle<()>>> = self.drives.iter().map(take).collect();
        if writers.iter().all(Option::is_none) {
            return Ok(());
        }
        if self.flows.all()[0].store.log.flash.is_forked() {
            std::mem::forget(writers); // the parent's
            return Err(io::Error::other("the cache belongs to the process that forked this one"));
        }
        self.flows.drain_fully();
        // Memory's objects are appended as if they had left it.
        let way = Way { since: self.flows.stripes().now(), uses: None, removals: None };
        for item in self.memory.iter() {
            let (key, held) = (item.key(), item.value());
            let is_there = held.on_flash && {
                let hash = self.hash(key);
                self.store(hash).index.peek(hash).is_some()
            };
            let may_go = held.placement != Placement::MemoryOnly;
            if !is_there && may_go && !held.lifetime.is_expired(seconds_now()) {
                let sent = self.flows.send(key, &held.value, held.lifetime, way);
                if let Err(reason) = sent {
                    self.tell(key, reason);
                }
                self.flows.drain_fully();
            }
        }
        // The writers of all drives end, and then the drives are saved, side by side.
        self.flows.all().iter().for_each(|flow| flow.store.log.end_soon());
        for writer in writers.into_iter().flatten() {
            let _ = writer.join(); // a panic of it has ended the log
        }
        let save = |flow: &Flow, drive: &Drive| {
            let saved = match flow.store.log.failure() {
                Some(failure) => Err(io::Error::other(failure)),
                None => recovery::save(&flow.store, &drive.superblock),
            };
            if let (Some(report), Ok(())) = (drive.reporter.get(), &saved) {
                report(true);
            }
            self.flows.named(flow, saved)
        };
        let drives = || self.flows.all().iter().zip(&self.drives);
        std::thread::scope(|scope| {
            let first = drives().next();
            let others: Vec<_> = drives()
                .skip(1)
                .map(|(flow, drive)| scope.spawn(move || save(flow, drive)))
                .collect();
            let saved = first.map_or(Ok(()), |(flow, drive)| save(flow, drive));
            others.into_iter().fold(saved, |all, other| {
                all.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }
}

impl<K: Key + Send + Sync + 'static, V: Value> Drop for Shared<K, V> {
    fn drop(&mut self) {
        let _ = self.close(); // `Hybrid::close` tells of errors
        // The listener has a handle of memory, whose listener has the stores.
        self.flows.all().iter().for_each(|flow| flow.store.left.end());
    }
}

/// Returns the bytes of memory that an entry counts for.
fn entry_weight<V: Value>(key_bytes: usize, value: &V) -> u32 {
    (key_bytes + value.bytes() + ENTRY_OVERHEAD).min(u32::MAX as usize) as u32
}
