//! The drives of an open cache, and the path of objects to them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use floe_memory::Cause;

use crate::codec::{Key, Value};
use crate::flash::FlashSwitch;
use crate::flow::{CALL_BEGAN, Departing, Flow, Held, Way, answer};
use crate::format::{Lifetime, seconds_now};
use crate::insertion::{Declined, Inserted};
use crate::options::Placement;
use crate::order::Stripes;
use crate::recovery::{Opened, SuperblockWriter};
use crate::set::Shares;
use crate::store::{Reporter, count, hash_key};

/// A drive of an open cache, without the path to it.
pub(crate) struct Drive {
    pub(crate) superblock: SuperblockWriter,
    pub(crate) opened: Opened,
    pub(crate) writer: Mutex<Option<JoinHandle<()>>>,
    pub(crate) reporter: Reporter,
    pub(crate) switch: Arc<FlashSwitch>,
}

/// The paths from memory to the drives, shared with the eviction listener of the cache in memory.
#[derive(Debug)]
pub(crate) struct Flows {
    flows: Box<[Flow]>,
    shares: Shares,
    hash_seed: u64,
}

impl Flows {
    /// Creates the paths to the drives of a set, by place. Their stores have the same stripes and
    /// the same seed of hashes.
    pub(crate) fn new(flows: Box<[Flow]>, shares: Shares) -> Self {
        let hash_seed = flows[0].store.hash_seed;
        debug_assert!(flows.iter().all(|flow| flow.store.hash_seed == hash_seed));
        Self { flows, shares, hash_seed }
    }

    /// Returns the place of the drive that a key with this hash belongs to.
    pub(crate) fn place_of(&self, hash: u64) -> usize {
        self.shares.place_of(hash)
    }

    /// Returns the path to the drive that a key with this hash belongs to.
    pub(crate) fn of(&self, hash: u64) -> &Flow {
        &self.flows[self.place_of(hash)]
    }

    /// Returns the paths to all drives, by place.
    pub(crate) fn all(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns the order of changes to keys.
    pub(crate) fn stripes(&self) -> &Stripes<Departing> {
        &self.flows[0].store.stripes
    }

    /// Returns the hash of a key.
    pub(crate) fn hash<Q: Key + ?Sized>(&self, key: &Q) -> u64 {
        key.encode_key(|key| hash_key(self.hash_seed, key))
    }

    /// Accepts an object that has left memory. Returns the cause if it has left the cache as a
    /// whole, and `None` if flash has it or gets it.
    ///
    /// # Errors
    /// The reason why it is not written to flash.
    pub(crate) fn depart<K: Key, V: Value>(
        &self,
        key: &K,
        held: &Held<V>,
        cause: Cause,
    ) -> Result<Option<Cause>, Declined> {
        let flash_has_it = || {
            let hash = self.hash(key);
            held.on_flash && self.of(hash).store.index.peek(hash).is_some()
        };
        match cause {
            Cause::Evicted if flash_has_it() => return Ok(None),
            // Of one that came during a removal by a predicate, the sweep of flash may be over.
            Cause::Evicted if held.on_flash && held.removals.is_none() => return Ok(Some(cause)),
            Cause::Evicted => {}
            // The value of a load that memory did not take may be outdated.
            Cause::Rejected | Cause::Bypassed if held.on_flash => return Ok(None),
            Cause::Rejected | Cause::Bypassed => {}
            // Flash tells of its copy.
            Cause::Expired if flash_has_it() => return Ok(None),
            _ => return Ok(Some(cause)),
        }
        if held.lifetime.is_expired(seconds_now()) {
            return Ok(Some(Cause::Expired));
        }
        if held.placement != Placement::Both {
            let hash = self.hash(key);
            count(&self.of(hash).counters.by_options);
            answer(hash, Inserted::Declined(Declined::TooLargeForMemory));
            return Ok(Some(cause));
        }
        let uses = Some(held.uses.load(Ordering::Relaxed));
        let removals = held.removals.filter(|_| held.on_flash);
        let way = Way { since: CALL_BEGAN.get(), uses, removals };
        self.send(key, &held.value, held.lifetime, way)?;
        Ok(None)
    }

    /// Sends an object to its drive, as [`Flow::send`] does.
    ///
    /// # Errors
    /// The reason why it is declined, which is counted.
    pub(crate) fn send<K: Key, V: Value>(
        &self,
        key: &K,
        value: &V,
        lifetime: Lifetime,
        way: Way,
    ) -> Result<(), Declined> {
        key.encode_key(|key| {
            let hash = hash_key(self.hash_seed, key);
            value.encode(|value| self.of(hash).send(hash, (key, value), lifetime, way))
        })
    }

    /// Appends queued objects while there is room.
    pub(crate) fn drain(&self) {
        for flow in &self.flows {
            flow.drain();
        }
    }

    /// Appends all queued objects. Blocks while a log has no room.
    pub(crate) fn drain_fully(&self) {
        self.flows.iter().for_each(Flow::drain_fully);
    }

    /// Appends all queued objects, without blocking a thread.
    pub(crate) async fn drained(&self) {
        for flow in &self.flows {
            flow.drained().await;
        }
    }

    /// Appends queued objects, and makes all logs durable. Blocks.
    ///
    /// # Errors
    /// When a drive fails. The others are synced nevertheless.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.drain_fully();
        let ends: Vec<u64> = self.flows.iter().map(|flow| flow.store.log.begin_sync()).collect();
        let mut synced = Ok(());
        for (flow, end) in self.flows.iter().zip(ends) {
            synced = synced.and(self.named(flow, flow.store.log.sync_until(end)));
        }
        synced
    }

    /// Makes all logs durable, as [`Flows::sync`] does, without blocking a thread.
    ///
    /// # Errors
    /// When a drive fails.
    pub(crate) async fn synced(&self) -> io::Result<()> {
        self.drained().await;
        let ends: Vec<u64> = self.flows.iter().map(|flow| flow.store.log.begin_sync()).collect();
        let mut synced = Ok(());
        for (flow, end) in self.flows.iter().zip(ends) {
            let is_durable = flow.store.log.durable(end).await;
            synced = synced.and(self.named(flow, is_durable));
        }
        synced
    }

    /// Adds the path of a drive to an error, if there are several.
    pub(crate) fn named<T>(&self, flow: &Flow, result: io::Result<T>) -> io::Result<T> {
        match self.flows.len() {
            1 => result,
            _ => result.map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", flow.path.display()))
            }),
        }
    }
}
