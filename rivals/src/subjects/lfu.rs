//! LFU behind one lock: Floe's order by frequency, which takes a constant time a hit, and a
//! hashbrown table. No crate of others is in wide use for it. Values are read under the lock.

use std::sync::{Mutex, PoisonError};

use floe_memory::policy::{Access, Eviction, Lfu, Slot};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{Cache, Lookup, Value};

pub struct MutexLfu<V>(Mutex<Entries<V>>);

struct Entries<V> {
    slots: HashMap<u64, u32, RandomState>,
    /// By slot.
    entries: Vec<(u64, V)>,
    order: Lfu,
}

impl<V: Value> Lookup for MutexLfu<V> {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = *cache.slots.get(&key)?;
        cache.order.promote(Slot(slot));
        Some(cache.entries[slot as usize].1.read())
    }
}

impl<V: Value> Cache for MutexLfu<V> {
    fn new(capacity: usize) -> Self {
        let mut order = Lfu::default();
        order.reserve(capacity);
        order.set_capacity(capacity as u64);
        let slots = HashMap::with_capacity_and_hasher(capacity, RandomState::default());
        Self(Mutex::new(Entries { slots, entries: Vec::with_capacity(capacity), order }))
    }

    #[inline]
    fn insert(&self, key: u64) {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Entries { slots, entries, order } = &mut *cache;
        if let Some(&slot) = slots.get(&key) {
            order.promote(Slot(slot));
            entries[slot as usize].1 = V::of(key);
            return;
        }
        let slot = if entries.len() < entries.capacity() {
            entries.push((key, V::of(key)));
            entries.len() as u32 - 1
        } else {
            let slot = order.evict(None).expect("a full cache has somebody to leave").0;
            let (left, _) = std::mem::replace(&mut entries[slot as usize], (key, V::of(key)));
            slots.remove(&left);
            slot
        };
        slots.insert(key, slot);
        order.insert(Slot(slot), &Access::new(key));
    }
}
