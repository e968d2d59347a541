//! [`Catalog`]: the metadata of objects that are known, and changes of objects through this store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use floe_hybrid::Hybrid;
use floe_memory::Cache;
use foldhash::fast::RandomState;
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};

use crate::identity::{self, Known};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of an object before a request for its metadata. If the object is changed through this
/// store meanwhile, the answer may be of the version before, and is not kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token(u64);

/// Changes of objects through this store.
#[derive(Debug, Default)]
struct Changes {
    /// Number of starts and ends of changes, of all objects.
    count: u64,
    /// Objects that are being changed, with the number of their changes.
    active: HashMap<Path, u32>,
    /// The count at the last start or end of a change of an object. Bounded: older ones are
    /// forgotten, and `forgotten` has the last of them.
    ended: HashMap<Path, u64>,
    forgotten: u64,
}

/// Most objects whose last change is remembered one by one.
const REMEMBERED: usize = 4096;

impl Changes {
    fn note(&mut self, location: &Path) {
        self.count += 1;
        if self.ended.len() >= REMEMBERED && !self.ended.contains_key(location) {
            self.ended.clear();
            self.forgotten = self.count;
        }
        self.ended.insert(location.clone(), self.count);
    }

    /// Returns whether no change of an object has begun or ended since, and none is under way.
    fn is_unchanged(&self, location: &Path, token: Token) -> bool {
        let last = self.ended.get(location).copied().unwrap_or(self.forgotten);
        last <= token.0 && !self.active.contains_key(location)
    }
}

/// Metadata in memory, and in the cache where objects are immutable.
pub(crate) struct Catalog {
    /// Name of the store in the keys of a cache that several stores may share.
    pub(crate) namespace: String,
    pub(crate) hybrid: Hybrid<Vec<u8>, Bytes>,
    memory: Cache<Path, Arc<Known>>,
    changes: Mutex<Changes>,
    /// Metadata is kept through restarts, which helps only if it need not be checked then.
    is_kept: bool,
    /// Differs in each process: objects without a version are not found after a restart.
    salt: u64,
}

impl Catalog {
    pub(crate) fn new(
        namespace: String,
        hybrid: Hybrid<Vec<u8>, Bytes>,
        memory_bytes: u64,
        is_kept: bool,
    ) -> Self {
        use std::hash::BuildHasher;
        let memory = Cache::builder()
            .weight_capacity(memory_bytes)
            .weigher(|_: &Path, known: &Arc<Known>| known.bytes() as u64)
            .build();
        let salt = RandomState::default().hash_one(0);
        Self { namespace, hybrid, memory, changes: Mutex::default(), is_kept, salt }
    }

    /// Returns what memory knows about an object.
    pub(crate) fn in_memory(&self, location: &Path) -> Option<Arc<Known>> {
        self.memory.get_cloned(location)
    }

    /// Returns what is known about an immutable object, also from before a restart.
    pub(crate) async fn find(&self, location: &Path) -> Option<Arc<Known>> {
        if let Some(known) = self.in_memory(location) {
            return Some(known);
        }
        if !self.is_kept {
            return None;
        }
        let token = self.token(location);
        let key = identity::metadata_key(&self.namespace, location);
        let bytes = self.hybrid.get(&key[..]).await?;
        let (meta, attributes) = identity::decode(location, &bytes)?;
        // It was not the store that said so, which matters for answers that something is absent.
        let known = self.known(meta, attributes, token, Duration::ZERO);
        self.keep_in_memory(&known, token);
        Some(known)
    }

    /// Makes a version from metadata.
    pub(crate) fn known(
        &self,
        meta: ObjectMeta,
        attributes: Attributes,
        token: Token,
        now: Duration,
    ) -> Arc<Known> {
        let salt = self.salt ^ token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Arc::new(Known::new(&self.namespace, meta, attributes, salt, now))
    }

    /// Notes the state of an object before its metadata is requested.
    pub(crate) fn token(&self, location: &Path) -> Token {
        let changes = lock(&self.changes);
        match changes.active.contains_key(location) {
            true => Token(changes.count),
            // Of an object that is not changed, versions without a name stay the same.
            false => Token(changes.ended.get(location).copied().unwrap_or(changes.forgotten)),
        }
    }

    /// Notes the state of all objects before they are listed.
    pub(crate) fn now(&self) -> Token {
        Token(lock(&self.changes).count)
    }

    /// Keeps a version, unless the object has been changed through this store since the token.
    pub(crate) async fn keep(&self, known: &Arc<Known>, token: Token) {
        if !self.keep_in_memory(known, token) || !self.is_kept || !known.is_versioned() {
            return;
        }
        let Some(bytes) = identity::encode(known) else { return };
        let key = identity::metadata_key(&self.namespace, &known.meta.location);
        self.hybrid.insert_async(key.clone(), bytes.into()).await;
        if !lock(&self.changes).is_unchanged(&known.meta.location, token) {
            self.hybrid.remove(&key[..]);
        }
    }

    fn keep_in_memory(&self, known: &Arc<Known>, token: Token) -> bool {
        let changes = lock(&self.changes);
        let is_unchanged = changes.is_unchanged(&known.meta.location, token);
        if is_unchanged {
            // Under the lock: a change that begins now removes it.
            self.memory.insert(known.meta.location.clone(), Arc::clone(known));
        }
        is_unchanged
    }

    /// Forgets an object, whose version is no longer the store's.
    pub(crate) fn forget(&self, location: &Path) {
        self.memory.remove(location);
        if self.is_kept {
            self.hybrid.remove(&identity::metadata_key(&self.namespace, location)[..]);
        }
    }

    /// Compares what is known with an entry of a list that began at a time.
    pub(crate) fn observe(&self, listed: &ObjectMeta, token: Token, time: Duration) {
        let Some(known) = self.in_memory(&listed.location) else { return };
        // Lists have neither versions nor, in some stores, the same precision of times.
        let tags = known.meta.e_tag.is_some() && known.meta.e_tag == listed.e_tag;
        let is_same = tags && known.is_versioned() && known.meta.size == listed.size;
        if is_same {
            known.validate(time);
        } else if known.meta.e_tag.is_some()
            && listed.e_tag.is_some()
            && lock(&self.changes).is_unchanged(&listed.location, token)
            && !known.was_valid_at(time)
        {
            self.forget(&listed.location);
        }
    }

    /// Begins a change of an object through this store.
    pub(crate) fn begin_change(&self, location: &Path) {
        let mut changes = lock(&self.changes);
        *changes.active.entry(location.clone()).or_insert(0) += 1;
        changes.note(location);
        self.memory.remove(location);
    }

    /// Removes the kept metadata of an object that is being changed, so that no restart finds it.
    pub(crate) async fn remove_kept(&self, location: &Path) {
        if self.is_kept {
            let key = identity::metadata_key(&self.namespace, location);
            if self.hybrid.contains(&key[..]) {
                self.hybrid.remove_async(&key[..]).await;
            }
        }
    }

    pub(crate) fn end_change(&self, location: &Path) {
        let mut changes = lock(&self.changes);
        if let Some(active) = changes.active.get_mut(location) {
            *active -= 1;
            if *active == 0 {
                changes.active.remove(location);
            }
        }
        changes.note(location);
        self.memory.remove(location);
    }

    /// Forgets all objects below a prefix, and returns the number of records that were removed.
    pub(crate) fn evict(&self, prefix: &Path) -> std::io::Result<u64> {
        let below: Vec<Path> = self
            .memory
            .iter()
            .map(|item| item.key().clone())
            .filter(|location| {
                let key = identity::metadata_key(&self.namespace, location);
                identity::is_below(&key, &self.namespace, prefix)
            })
            .collect();
        for location in below {
            self.memory.remove(&location);
        }
        let removed =
            self.hybrid.remove_if(|key| identity::is_below(key, &self.namespace, prefix))?;
        Ok(removed.removed)
    }
}
