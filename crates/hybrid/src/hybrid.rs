//! [`Hybrid`]: the cache in memory and on flash.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use floe_memory::Cache;
use foldhash::quality::SeedableRandomState;

use crate::admission::{Gate, GateOptions};
use crate::codec::{Key, Value};
use crate::drives::{Drive, Flows};
use crate::flash::FlashSwitch;
use crate::flow::{Departing, Flow, FlowCounters, Held, Settings, lock};
use crate::format::Record;
use crate::index::Place;
use crate::insertion::{Declined, Inserted};
use crate::left::Listener;
use crate::loads::Loads;
use crate::log::Refused;
use crate::open_error::OpenError;
use crate::options::InsertOptions;
use crate::read_times::ReadClock;
use crate::recovery::{self, OpenStore, Opened};
use crate::removal::{RemovedKeys, VisitedKeys, remove_keys, visit_keys};
use crate::set::Shares;
use crate::shared::{OnDeclined, Shared};
use crate::stats::Stats;
use crate::store::{Pace, Reporter, spawn_writer};
use crate::warm::{Warmed, warm};

/// The result of a removal.
#[derive(Debug)]
#[non_exhaustive]
pub enum Removed {
    /// No restart brings the object back.
    Durable,
    /// The object was removed, but a restart may bring it back: the flash has failed.
    NotDurable(io::Error),
}

/// An open drive of a cache that is not complete yet.
pub(crate) struct OpenDrive {
    pub(crate) open: OpenStore<Departing>,
    pub(crate) gate: GateOptions,
    pub(crate) switch: Arc<FlashSwitch>,
}

/// A cache in memory and on flash. Clones share it.
///
/// Objects are inserted into memory. When memory evicts an object, it is appended to a log on
/// flash. The second hit on flash copies the object to memory. The log evicts its oldest segment;
/// objects in it that were used since they were written are appended again.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("cache");
/// use floe_hybrid::Hybrid;
///
/// let cache: Hybrid<String, Vec<u8>> =
///     Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
/// cache.insert("key".to_string(), b"value".to_vec());
/// assert_eq!(cache.get_blocking("key"), Some(b"value".to_vec()));
/// cache.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hybrid<K: Key + Send + Sync + 'static, V: Value> {
    pub(crate) shared: Arc<Shared<K, V>>,
}

/// The result of a lookup beyond memory, before flash is read.
enum OnFlash<V> {
    Absent,
    /// On its way from memory to flash.
    Departing(V),
    /// The place by the index, and the uses before.
    Placed(Place, u8),
}

impl<K: Key + Send + Sync + 'static, V: Value> Clone for Hybrid<K, V> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Key + Send + Sync + 'static, V: Value> fmt::Debug for Hybrid<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hybrid").field("stats", &self.stats()).finish()
    }
}

impl<K: Key + Send + Sync + 'static, V: Value> Hybrid<K, V> {
    /// Creates the cache from its open drives, by place, with the admission of each.
    pub(crate) fn assemble(
        open: Vec<OpenDrive>,
        settings: &Settings,
        (on_declined, listener): (Option<OnDeclined<K>>, Option<Listener<K, V>>),
    ) -> Result<Self, OpenError> {
        let (mut flows, mut drives) = (Vec::new(), Vec::new());
        let shares = Shares::of(&open[0].open.superblock.current().set);
        let stripes = Arc::clone(&open[0].open.store.stripes);
        for OpenDrive { open, gate, switch } in open {
            let OpenStore { mut store, superblock, opened, unlogged } = open;
            store.stripes = Arc::clone(&stripes);
            store.gate = Gate::new(&gate, stripes.now(), store.log.counters.spent_bytes());
            flows.push(Flow {
                path: switch.path().to_owned(),
                store: Arc::new(store),
                on_full: settings.on_full,
                compression: settings.compression,
                waiting: Mutex::default(),
                waits: AtomicBool::new(false),
                counters: FlowCounters::default(),
            });
            let (writer, reporter) = (Mutex::default(), Reporter::default());
            drives.push((Drive { superblock, opened, writer, reporter, switch }, unlogged));
        }
        let flows = Arc::new(Flows::new(flows.into(), shares));
        begin(&flows, &drives)?;
        let (departs, told) = (Arc::clone(&flows), (on_declined.clone(), listener.clone()));
        let memory = Cache::builder()
            .weight_capacity(settings.memory_bytes)
            .weigher(|_: &K, held: &Held<V>| held.weight)
            .listener(move |key: &K, held: &Held<V>, cause| {
                let departed = departs.depart(key, held, cause);
                if let (Err(reason), Some(told)) = (departed, &told.0) {
                    told(key, reason);
                }
                let left = match departed {
                    // The change that superseded it tells of a copy on flash.
                    Err(Declined::Superseded) if held.on_flash => None,
                    Err(_) => Some(cause),
                    Ok(left) => left,
                };
                if let (Some(cause), Some(listener)) = (left, &told.1) {
                    listener(key, Some(&held.value), cause);
                }
            })
            .hasher(match flows.all()[0].store.pace.is_reproducible() {
                true => SeedableRandomState::fixed(),
                false => SeedableRandomState::random(),
            })
            .build();
        let cache = Self {
            shared: Arc::new(Shared {
                memory,
                memory_bytes: settings.memory_bytes,
                index_bytes: AtomicU64::new(0),
                flows,
                drives: drives.into_iter().map(|(drive, _)| drive).collect(),
                time_to_live: settings.time_to_live,
                refresh_ahead: settings.refresh_ahead,
                on_declined,
                listener,
            }),
        };
        cache.shared.account_for_index();
        cache.shared.listen_to_flash();
        cache.shared.begin_reports();
        Ok(cache)
    }

    /// Returns the state in which the cache was found when it was opened. Of several drives, one
    /// that was recovered counts, and then one that was closed.
    pub fn opened(&self) -> Opened {
        let opened = || self.shared.drives.iter().map(|drive| drive.opened);
        let rank = [Opened::Recovered, Opened::Clean];
        rank.into_iter().find(|state| opened().any(|it| it == *state)).unwrap_or(Opened::New)
    }

    /// Inserts an object, replacing any older object of its key.
    ///
    /// The call blocks while producers are faster than the drive; see
    /// [`on_full`](crate::Builder::on_full). [`insert_async`](Self::insert_async) does not block a
    /// thread.
    pub fn insert(&self, key: K, value: V) -> Inserted {
        self.insert_with(key, value, InsertOptions::new())
    }

    /// Inserts an object with [options](InsertOptions), such as a time to live or a hint where it
    /// is to be stored. Blocks as [`insert`](Self::insert) does.
    pub fn insert_with(&self, key: K, value: V, options: InsertOptions) -> Inserted {
        let change = self.shared.begin_change(self.shared.hash(&key));
        let inserted = self.shared.insert_changed(change, key, value, &options);
        self.shared.flows.drain_fully();
        inserted
    }

    /// Inserts an object with a time to live; `None` for one that never expires.
    #[deprecated(note = "use `insert_with`")]
    pub fn insert_with_lifetime(
        &self,
        key: K,
        value: V,
        time_to_live: Option<Duration>,
    ) -> Inserted {
        let time = time_to_live.unwrap_or(Duration::MAX);
        self.insert_with(key, value, InsertOptions::new().time_to_live(time))
    }

    /// Inserts an object without blocking: the future waits while producers are faster than the
    /// drive. If the future is dropped, the object may or may not be inserted.
    pub async fn insert_async(&self, key: K, value: V) -> Inserted {
        self.insert_async_with(key, value, InsertOptions::new()).await
    }

    /// Inserts an object with [options](InsertOptions), as [`insert_async`](Self::insert_async)
    /// does.
    pub async fn insert_async_with(&self, key: K, value: V, options: InsertOptions) -> Inserted {
        let hash = self.shared.hash(&key);
        let change = loop {
            match self.shared.try_begin_change(hash) {
                Ok(change) => break change,
                Err(needed) => self.shared.store(hash).log.room(needed).await,
            }
        };
        let inserted = self.shared.insert_changed(change, key, value, &options);
        self.shared.flows.drained().await;
        inserted
    }

    /// Returns the value of a key, from memory or from flash.
    pub async fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(value) = self.shared.in_memory(key) {
            return Some(value);
        }
        let hash = self.shared.hash(key);
        let found = self.get_from_flash(hash, key).await;
        self.shared.count_flash(hash, found.is_some());
        found
    }

    async fn get_from_flash<Q>(&self, hash: u64, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        let bytes = key.encode_key(<[u8]>::to_vec);
        if let Some((value, _)) = self.shared.departing(hash, &bytes) {
            return Some(value);
        }
        // Most misses end here, without a load.
        let (place, uses) = self.shared.store(hash).look_up(hash)?;
        if uses == 0 {
            return self.read_once(hash, place, bytes).await;
        }
        let load = self.shared.load_from_flash(hash, bytes);
        let value = {
            let loaded = self.shared.memory.loads().get_async(key, load).await;
            loaded.ok().map(|held| held.value.clone())
        };
        self.shared.flows.drain();
        value
    }

    /// Reads an object that was not used since it was written. It does not come to memory, where
    /// another would have to leave for it.
    async fn read_once(&self, hash: u64, place: Place, key: Vec<u8>) -> Option<V> {
        let store = self.shared.store(hash);
        let read = |record: &Record<'_>| self.shared.decode(hash, record);
        if let Some(found) = store.read_resident(hash, place, &key, read) {
            return self.shared.whole(hash, place, found.flatten()?).await;
        }
        let ((offset, len), pending) = store.begin_read(hash, place, key);
        let began = ReadClock::begin();
        let buffer = store.log.flash.start(offset, len).await;
        store.counters.read_clock.end(began);
        let (header, value) = store.end_shared_read(pending, buffer).ok()??;
        let stored = self.shared.decode_shared(hash, &header, value)?;
        self.shared.whole(hash, place, stored).await
    }

    /// Returns the value of a key, from memory or from flash. Blocks while flash is read.
    pub fn get_blocking<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        if let Some(value) = self.shared.in_memory(key) {
            return Some(value);
        }
        let hash = self.shared.hash(key);
        let found = self.get_from_flash_blocking(hash, key);
        self.shared.count_flash(hash, found.is_some());
        found
    }

    /// Returns the value of a key, as [`get_blocking`](Self::get_blocking) does. `around` is given
    /// the read of flash, if one is needed, and must call it. It can give up a lock of the caller
    /// meanwhile, such as that of an interpreter.
    pub fn get_blocking_around<Q>(
        &self,
        key: &Q,
        around: impl FnOnce(&mut (dyn FnMut() + Send)),
    ) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + Sync + ?Sized,
    {
        if let Some(value) = self.shared.in_memory(key) {
            return Some(value);
        }
        let hash = self.shared.hash(key);
        let found = match self.find_on_flash(hash, key) {
            OnFlash::Absent => None,
            OnFlash::Departing(value) => Some(value),
            OnFlash::Placed(place, uses) => {
                let mut found = None;
                around(&mut || found = self.read_placed(hash, key, place, uses));
                found
            }
        };
        self.shared.count_flash(hash, found.is_some());
        found
    }

    fn get_from_flash_blocking<Q>(&self, hash: u64, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        match self.find_on_flash(hash, key) {
            OnFlash::Absent => None,
            OnFlash::Departing(value) => Some(value),
            OnFlash::Placed(place, uses) => self.read_placed(hash, key, place, uses),
        }
    }

    /// Looks a key up in the index and among the objects on their way to flash. Counts a use.
    fn find_on_flash<Q: Key + ?Sized>(&self, hash: u64, key: &Q) -> OnFlash<V> {
        if let Some((value, _)) = key.encode_key(|key| self.shared.departing(hash, key)) {
            return OnFlash::Departing(value);
        }
        match self.shared.store(hash).look_up(hash) {
            Some((place, uses)) => OnFlash::Placed(place, uses),
            None => OnFlash::Absent,
        }
    }

    /// Reads an object that the index has. `uses` is the number of uses before.
    fn read_placed<Q>(&self, hash: u64, key: &Q, place: Place, uses: u8) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        if uses == 0 {
            return key.encode_key(|key| self.read_once_blocking(hash, place, key));
        }
        let load = || key.encode_key(|key| self.shared.load_from_flash_blocking(hash, key));
        let loaded = self.shared.memory.loads().get(key, load);
        let value = loaded.ok().map(|held| held.value.clone());
        self.shared.flows.drain();
        value
    }

    /// Returns the value of a key, as [`get`](Self::get) does, but without a trace: the lookup
    /// counts no use and no hit, and copies nothing to memory. For scans and inspections.
    pub async fn peek<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        let (hash, bytes) = match self.shared.peek_in_memory(key) {
            Ok(value) => return Some(value),
            Err(absent) => absent,
        };
        let place = self.shared.store(hash).index.peek(hash)?;
        self.read_once(hash, place, bytes).await
    }

    /// Returns the value of a key without a trace, as [`peek`](Self::peek) does. Blocks while flash
    /// is read.
    pub fn peek_blocking<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        let (hash, bytes) = match self.shared.peek_in_memory(key) {
            Ok(value) => return Some(value),
            Err(absent) => absent,
        };
        let place = self.shared.store(hash).index.peek(hash)?;
        self.read_once_blocking(hash, place, &bytes)
    }

    fn read_once_blocking(&self, hash: u64, place: Place, key: &[u8]) -> Option<V> {
        let read = |record: &Record<'_>| self.shared.decode(hash, record);
        let stored = self.shared.store(hash).read_blocking(hash, place, key, read).ok()???;
        self.shared.whole_blocking(hash, place, stored)
    }

    /// Returns the values of many keys, in their order. All reads of flash are in flight at once,
    /// at the cost of one submission. Values found on flash are not copied to memory.
    pub async fn get_many<Q>(&self, keys: &[&Q]) -> Vec<Option<V>>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
    {
        let mut values: Vec<Option<V>> = Vec::with_capacity(keys.len());
        let drives = self.shared.flows.all().len();
        let mut wanted: Vec<(Vec<_>, Vec<_>)> = (0..drives).map(|_| Default::default()).collect();
        for (at, key) in keys.iter().enumerate() {
            let value = self.shared.in_memory(*key);
            let in_memory = value.is_some();
            values.push(value);
            if in_memory {
                continue;
            }
            let hash = self.shared.hash(*key);
            let store = self.shared.store(hash);
            let bytes = key.encode_key(<[u8]>::to_vec);
            let read = |record: &Record<'_>| self.shared.decode(hash, record);
            values[at] = self.shared.departing(hash, &bytes).map(|(value, _)| value);
            if values[at].is_none()
                && let Some((place, _)) = store.look_up(hash)
            {
                match store.read_resident(hash, place, &bytes, read) {
                    Some(Some(Some(stored))) => {
                        values[at] = self.shared.whole(hash, place, stored).await;
                    }
                    Some(_) => {}
                    None => {
                        let (range, pending) = store.begin_read(hash, place, bytes);
                        let (ranges, places) = &mut wanted[self.shared.flows.place_of(hash)];
                        ranges.push(range);
                        places.push((at, hash, place, pending));
                        continue;
                    }
                }
            }
            self.shared.count_flash(hash, values[at].is_some());
        }
        let mut readings = Vec::new();
        for ((ranges, places), flow) in wanted.into_iter().zip(self.shared.flows.all()) {
            readings.extend(flow.store.log.flash.start_all(&ranges).into_iter().zip(places));
        }
        for (reading, (at, hash, place, pending)) in readings {
            let found = self.shared.store(hash).end_shared_read(pending, reading.await);
            let stored = found
                .ok()
                .flatten()
                .and_then(|(header, value)| self.shared.decode_shared(hash, &header, value));
            if let Some(stored) = stored {
                values[at] = self.shared.whole(hash, place, stored).await;
            }
            self.shared.count_flash(hash, values[at].is_some());
        }
        values
    }

    /// Returns the value of a key. If neither memory nor flash has it, awaits `fetch` and inserts
    /// the result. Concurrent callers for the key wait for that one fetch.
    ///
    /// # Errors
    /// The error of `fetch`, for all callers that waited for it.
    pub async fn get_or_fetch<Q, E>(
        &self,
        key: &Q,
        fetch: impl Future<Output = Result<V, E>>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + ?Sized,
        E: Send + Sync + 'static,
    {
        let fetch = async { Ok((fetch.await?, InsertOptions::new())) };
        self.loads().get(key, fetch).await
    }

    /// Returns the loads with options: the lifetime of the fetched value, hints, or a refresh in
    /// the background.
    pub fn loads(&self) -> Loads<'_, K, V> {
        Loads { shared: &self.shared }
    }

    /// Brings a list of keys from flash to memory, such as those that were hot before a restart.
    ///
    /// The records are read in the order of the file, near ones together, with up to 256 reads or
    /// 8 MiB in flight. If memory has no room for all, the keys at the start of the list take
    /// precedence. Objects that are in memory already may be evicted.
    pub async fn warm<Q>(&self, keys: &[&Q]) -> Warmed
    where
        K: Borrow<Q>,
        Q: Key + ToOwned<Owned = K> + Sync + ?Sized,
    {
        warm(&self.shared, keys).await
    }

    /// Returns whether memory or flash has an object of the key. For flash this may be a false
    /// positive: about one absent key in some thousands, since the index knows keys by a part of
    /// their hash.
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        let hash = self.shared.hash(key);
        self.shared.memory.contains_key(key)
            || self.shared.flows.stripes().of(hash).departing(hash).is_some()
            || self.shared.store(hash).index.peek(hash).is_some()
    }

    /// Removes the object of a key. A restart may bring it back until [`sync`](Self::sync) has
    /// returned; [`remove_durably`](Self::remove_durably) waits for that.
    pub fn remove<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        let change = self.shared.begin_change(self.shared.hash(key));
        self.shared.remove_changed(change, key);
    }

    /// Removes the object of a key, and waits until no restart can bring it back.
    pub fn remove_durably<Q>(&self, key: &Q) -> Removed
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        self.remove(key);
        let log = &self.shared.store(self.shared.hash(key)).log;
        match log.sync_until(log.end()) {
            Ok(()) => Removed::Durable,
            Err(error) => Removed::NotDurable(error),
        }
    }

    /// Removes the object of a key. The future ends when no restart can bring the object back.
    pub async fn remove_async<Q>(&self, key: &Q) -> Removed
    where
        K: Borrow<Q>,
        Q: Key + ?Sized,
    {
        let hash = self.shared.hash(key);
        let change = loop {
            match self.shared.try_begin_change(hash) {
                Ok(change) => break change,
                Err(needed) => self.shared.store(hash).log.room(needed).await,
            }
        };
        self.shared.remove_changed(change, key);
        let log = &self.shared.store(hash).log;
        match log.durable(log.end()).await {
            Ok(()) => Removed::Durable,
            Err(error) => Removed::NotDurable(error),
        }
    }

    /// Removes all keys for which `matches` returns true, such as those of a deleted table.
    ///
    /// All matching objects that were in the cache when the call began are gone when it returns.
    /// Objects inserted meanwhile may be removed, too. The results of loads that were under way do
    /// not enter the cache. As with [`remove`](Self::remove), the removals are durable after the
    /// next [`sync`](Self::sync).
    ///
    /// The cost does not depend on the number of matching keys: the index knows keys by a part of
    /// their hash, so the call reads the keys from flash. It reads all of flash, except for the
    /// inside of objects larger than 32 KiB and for runs of objects that were replaced or removed.
    /// That takes about as long as the drive needs to read as many bytes. Each removed key takes 32
    /// bytes of the log. The call blocks its thread and holds no lock meanwhile. The few objects
    /// that other threads are evicting from memory when the call turns to flash are lost.
    ///
    /// # Errors
    /// When the flash has failed or is closed: a restart may then bring objects back.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # use floe_hybrid::Hybrid;
    /// let cache: Hybrid<(String, u64), Vec<u8>> =
    ///     Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
    /// cache.insert(("orders".to_string(), 1), vec![1]);
    /// cache.insert(("users".to_string(), 1), vec![2]);
    /// let removed = cache.remove_if(|(table, _)| table == "orders")?;
    /// assert_eq!((removed.removed, cache.contains(&("users".to_string(), 1))), (1, true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_if(&self, matches: impl FnMut(&K) -> bool) -> io::Result<RemovedKeys> {
        self.remove_if_while(matches, |_, _| ControlFlow::Continue(()))
    }

    /// Removes all keys whose encoding begins with these bytes, as [`remove_if`](Self::remove_if)
    /// does and at the same cost. Text and bytes encode to themselves. Integers are little-endian.
    ///
    /// # Errors
    /// When the flash has failed or is closed: a restart may then bring objects back.
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> io::Result<RemovedKeys> {
        let prefix = prefix.as_ref();
        self.remove_if(|key| key.encode_key(|key| key.starts_with(prefix)))
    }

    /// Removes keys as [`remove_if`](Self::remove_if) does. `progress` gets the number of segments
    /// of flash that have been read, and the number of all segments. If it returns
    /// [`Break`](ControlFlow::Break), the call ends, and keys may be left.
    ///
    /// # Errors
    /// When the flash has failed or is closed: a restart may then bring objects back.
    pub fn remove_if_while(
        &self,
        matches: impl FnMut(&K) -> bool,
        progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> io::Result<RemovedKeys> {
        remove_keys(&self.shared, matches, progress)
    }

    /// Visits the keys of all objects, without counting a use or changing anything.
    ///
    /// A key whose object is in the cache throughout the call is visited at least once, and may be
    /// visited again: in memory and on flash. Keys of expired objects may be visited, too. An
    /// object that is inserted or removed meanwhile may be visited or not, and so may one that
    /// flash appends again twice during the call.
    ///
    /// The index knows keys by a part of their hash, so the keys are read from flash, at the cost
    /// of [`remove_if`](Self::remove_if). The call blocks its thread and holds no lock.
    ///
    /// # Errors
    /// When the flash has failed or is closed.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("cache");
    /// # use floe_hybrid::Hybrid;
    /// let cache: Hybrid<String, Vec<u8>> =
    ///     Hybrid::builder().memory(8 << 20).flash(path, 64 << 20).open()?;
    /// cache.insert("key".to_string(), vec![1]);
    /// let mut keys = std::collections::HashSet::new();
    /// cache.for_each_key(|key| {
    ///     keys.insert(key.clone());
    /// })?;
    /// assert_eq!(keys.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_each_key(&self, visit: impl FnMut(&K)) -> io::Result<VisitedKeys> {
        self.for_each_key_while(visit, |_, _| ControlFlow::Continue(()))
    }

    /// Visits keys as [`for_each_key`](Self::for_each_key) does. `progress` gets the number of
    /// segments of flash that have been read, and the number of all segments. If it returns
    /// [`Break`](ControlFlow::Break), the call ends.
    ///
    /// # Errors
    /// When the flash has failed or is closed.
    pub fn for_each_key_while(
        &self,
        visit: impl FnMut(&K),
        progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> io::Result<VisitedKeys> {
        visit_keys(&self.shared, visit, progress)
    }

    /// Removes all objects, in a time that does not depend on their number.
    ///
    /// # Errors
    /// When the flash fails; a restart may then bring objects back.
    pub fn clear(&self) -> io::Result<()> {
        let flows = &self.shared.flows;
        // Memory first: what leaves it by calls that began before the stripes are locked is lost.
        self.shared.memory.clear();
        let mut result = Ok(());
        let mut left: Vec<(&Flow, &Drive)> = flows.all().iter().zip(&self.shared.drives).collect();
        while !left.is_empty() {
            let mut cleared = Vec::new();
            {
                let mut stripes = flows.stripes().all();
                left.retain(|&(flow, drive)| {
                    let first = flow.store.clear();
                    let is_full = first == Err(Refused::Full);
                    if !is_full {
                        cleared.push((flow, drive, first));
                    }
                    is_full
                });
                if !cleared.is_empty() {
                    flows.stripes().note_clear();
                    stripes.iter_mut().for_each(|stripe| drop(stripe.take_all_departing()));
                }
            }
            for (flow, drive, first) in cleared {
                let (log, ended) = (&flow.store.log, "the cache is closed");
                let written = match first {
                    Ok(first) => drive.superblock.write(&*log.flash, |block| {
                        block.first_segment = block.first_segment.max(first);
                    }),
                    Err(_) => {
                        Err(io::Error::other(log.failure().unwrap_or_else(|| ended.to_owned())))
                    }
                };
                result = result.and(flows.named(flow, written));
            }
            if let Some((flow, _)) = left.first() {
                flow.store.log.wait_for_room(flow.store.log.geometry.max_record_bytes());
            }
        }
        result
    }

    /// Makes all earlier removals and replacements durable, and all objects written to the log.
    /// Objects that are only in memory are not written.
    ///
    /// # Errors
    /// When the flash fails.
    pub fn sync(&self) -> io::Result<()> {
        self.shared.flows.sync()
    }

    /// Makes removals and replacements durable, as [`sync`](Self::sync) does, without blocking a
    /// thread.
    ///
    /// # Errors
    /// When the flash fails.
    pub async fn sync_async(&self) -> io::Result<()> {
        self.shared.flows.synced().await
    }

    /// Writes the objects in memory to flash and closes the cache. Other handles then find only
    /// objects in memory. The next start finds all objects within a second.
    ///
    /// # Errors
    /// When the flash fails; the next start then recovers what it can.
    pub fn close(&self) -> io::Result<()> {
        self.shared.close()
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Stats {
        Stats::of(self.shared.memory.stats(), &self.shared.flows)
    }
}

/// Runs the logs of the drives, and logs the removals that they lack.
fn begin(flows: &Flows, drives: &[(Drive, Vec<u64>)]) -> Result<(), OpenError> {
    let begin = |flow: &Flow, drive: &Drive, unlogged: &[u64]| -> io::Result<()> {
        match flow.store.pace {
            Pace::InLine => flow.store.load_index(),
            Pace::Free | Pace::InStep => {
                *lock(&drive.writer) = Some(spawn_writer(&flow.store, &drive.reporter)?);
            }
        }
        match drive.opened {
            Opened::Recovered => recovery::log_removals(&flow.store, &drive.superblock, unlogged),
            Opened::New | Opened::Clean => Ok(()),
        }
    };
    let begun = flows.all().iter().zip(drives).try_for_each(|(flow, (drive, unlogged))| {
        let failed = |source| OpenError::Io { path: flow.path.clone(), source };
        begin(flow, drive, unlogged).map_err(failed)
    });
    if begun.is_err() {
        flows.all().iter().for_each(|flow| flow.store.log.end_soon());
        for writer in drives.iter().filter_map(|(drive, _)| lock(&drive.writer).take()) {
            let _ = writer.join(); // the error is told
        }
    }
    begun
}
