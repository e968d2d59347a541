//! Pins: ranges of objects that stay in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use foldhash::fast::RandomState;
use object_store::ObjectMeta;

use crate::catalog::lock;

#[derive(Debug)]
struct Pinned {
    bytes: Bytes,
    pins: u64,
}

/// All pinned parts.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    parts: Mutex<HashMap<Vec<u8>, Pinned, RandomState>>,
    /// Bytes of the parts. Most stores have none, and look no further.
    bytes: AtomicU64,
}

impl Pins {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.bytes() > 0 && lock(&self.parts).contains_key(key)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Bytes> {
        if self.bytes() == 0 {
            return None;
        }
        lock(&self.parts).get(key).map(|pinned| pinned.bytes.clone())
    }

    fn add(&self, key: Vec<u8>, bytes: Bytes) {
        let len = bytes.len() as u64;
        let mut parts = lock(&self.parts);
        let pinned = parts.entry(key).or_insert(Pinned { bytes, pins: 0 });
        pinned.pins += 1;
        if pinned.pins == 1 {
            self.bytes.fetch_add(len, Ordering::Relaxed);
        }
    }

    fn remove(&self, key: &[u8]) {
        let mut parts = lock(&self.parts);
        if let Some(pinned) = parts.get_mut(key) {
            pinned.pins -= 1;
            if pinned.pins == 0 {
                self.bytes.fetch_sub(pinned.bytes.len() as u64, Ordering::Relaxed);
                parts.remove(key);
            }
        }
    }
}

/// Ranges of an object that stay in memory until the pin is dropped.
/// [`CachedStore::pin`](crate::CachedStore::pin) makes one.
#[must_use = "the bytes are pinned until this is dropped"]
pub struct Pin {
    pins: Arc<Pins>,
    meta: ObjectMeta,
    keys: Vec<Vec<u8>>,
    bytes: u64,
}

impl Pin {
    pub(crate) fn new(pins: Arc<Pins>, meta: ObjectMeta) -> Self {
        Self { pins, meta, keys: Vec::new(), bytes: 0 }
    }

    pub(crate) fn add(&mut self, key: Vec<u8>, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.pins.add(key.clone(), bytes);
        self.keys.push(key);
    }

    /// Returns the metadata of the version that is pinned. A later version is not.
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Returns the number of bytes that the pin keeps, in units of 4 KiB.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("meta", &self.meta).field("bytes", &self.bytes).finish()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.pins.remove(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stays_until_its_last_pin_is_gone() {
        let pins = Pins::default();
        for _ in 0..2 {
            pins.add(vec![1], Bytes::from_static(b"bytes"));
        }
        assert_eq!((pins.bytes(), pins.has(&[1]), pins.has(&[2])), (5, true, false));
        pins.remove(&[1]);
        assert_eq!(pins.get(&[1]).as_deref(), Some(&b"bytes"[..]));
        pins.remove(&[1]);
        assert_eq!((pins.bytes(), pins.get(&[1])), (0, None));
    }
}
