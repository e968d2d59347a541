//! Removal of all keys that a predicate chooses.
//!
//! An object may move from flash to memory, or from memory to flash, while its key is looked for.
//! These steps, in this order, miss none that was in the cache when the call began:
//!
//! 1. Loads under way are detached, so that their results do not enter memory. Keys in memory are
//!    removed.
//! 2. Keys on their way to flash are removed. An object that memory has evicted, and that is not on
//!    its way yet, is lost: the threads that evict objects have few of these at a time.
//! 3. Keys on flash are removed: all objects that have left memory since step 1 began are there.
//! 4. Step 1 is repeated for objects that came from flash to memory since.

use std::io;
use std::ops::ControlFlow;

use crate::codec::{Key, Value};
use crate::shared::Shared;
use crate::sweep::sweep;

/// The result of [`Hybrid::remove_if`](crate::Hybrid::remove_if).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RemovedKeys {
    /// Keys removed. A key that is inserted meanwhile may count twice.
    pub removed: u64,
    /// Segments of flash that could not be read. Their objects are misses from now on, but a
    /// restart after a crash may bring them back.
    pub unreadable_segments: u64,
    /// True if the call was cancelled. Keys may be left.
    pub cancelled: bool,
}

/// Removes the keys for which `matches` returns true.
///
/// # Errors
/// When the flash has failed or is closed.
pub(crate) fn remove_keys<K: Key + Send + Sync + 'static, V: Value>(
    shared: &Shared<K, V>,
    mut matches: impl FnMut(&K) -> bool,
    progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> io::Result<RemovedKeys> {
    let store = shared.store();
    let mut removed = 0;
    let mut remove = |key: &K| {
        let matches = matches(key);
        if matches {
            let change = shared.begin_change(shared.hash(key));
            shared.memory.remove(key);
            drop(change);
            removed += 1;
        }
    };
    shared.memory.loads().detach();
    shared.memory.iter().for_each(|item| remove(item.key()));

    let mut departing = Vec::new();
    let stripes = store.stripes.all();
    for object in stripes.iter().flat_map(|stripe| stripe.all_departing()) {
        departing.extend(K::decode_key(object.record().key));
    }
    store.stripes.note_clear();
    drop(stripes);
    departing.iter().for_each(&mut remove);

    let swept = sweep(
        store,
        |_, key| {
            if let Some(key) = K::decode_key(key) {
                remove(&key);
            }
        },
        progress,
    );
    if !swept.cancelled {
        shared.memory.loads().detach();
        let came = shared.memory.iter().filter(|item| item.value().on_flash);
        came.for_each(|item| remove(item.key()));
    }
    store.log.check_open()?;
    let (unreadable_segments, cancelled) = (swept.unreadable_segments, swept.cancelled);
    Ok(RemovedKeys { removed, unreadable_segments, cancelled })
}
