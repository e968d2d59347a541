//! Removal of all keys that a predicate chooses, and a visit of all keys, which changes nothing.
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
//!
//! A visit takes the same steps, without the detachment of loads and the loss in step 2.

use std::io;
use std::ops::ControlFlow;

use crate::codec::{Key, Value};
use crate::flow::Flow;
use crate::shared::Shared;
use crate::sweep::{Purpose, Swept, sweep};

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
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> io::Result<RemovedKeys> {
    let stripes = shared.flows.stripes();
    // From now on, no object that came from flash goes there again: the sweep may miss it.
    let _removal = stripes.begin_removal();
    let mut removed = 0;
    let mut remove = |key: &K| {
        let matches = matches(key);
        if matches {
            shared.remove_changed(shared.begin_change(shared.hash(key)), key);
            removed += 1;
        }
    };
    shared.memory.loads().detach();
    shared.memory.iter().for_each(|item| remove(item.key()));

    let mut departing = Vec::new();
    let all = stripes.all();
    for object in all.iter().flat_map(|stripe| stripe.all_departing()) {
        departing.extend(K::decode_key(object.record().key));
    }
    stripes.note_clear();
    drop(all);
    departing.iter().for_each(&mut remove);

    let mut visit = |_, key: &[u8]| {
        if let Some(key) = K::decode_key(key) {
            remove(&key);
        }
    };
    let mut swept = Swept::default();
    // Segments of each drive, and those of the drives before it.
    let count = |flow: &Flow| flow.store.log.segments().len() as u64;
    let mut counts: Vec<u64> = shared.flows.all().iter().map(count).collect();
    for (place, flow) in shared.flows.all().iter().enumerate() {
        let mut ended = false;
        let of_drive = sweep(&flow.store, Purpose::Removal, &mut visit, |read, of| {
            counts[place] = of;
            let before: u64 = counts[..place].iter().sum();
            let next = progress(before + read, counts.iter().sum());
            ended = next.is_break();
            next
        });
        swept.unreadable_segments += of_drive.unreadable_segments;
        swept.cancelled = of_drive.cancelled || ended && place + 1 < counts.len();
        if swept.cancelled {
            break;
        }
    }
    if !swept.cancelled {
        shared.memory.loads().detach();
        let came = shared.memory.iter().filter(|item| item.value().on_flash);
        came.for_each(|item| remove(item.key()));
    }
    for flow in shared.flows.all() {
        shared.flows.named(flow, flow.store.log.check_open())?;
    }
    let (unreadable_segments, cancelled) = (swept.unreadable_segments, swept.cancelled);
    Ok(RemovedKeys { removed, unreadable_segments, cancelled })
}

/// The result of [`Hybrid::for_each_key`](crate::Hybrid::for_each_key).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VisitedKeys {
    /// Segments of flash that could not be read. Their keys were not visited.
    pub unreadable_segments: u64,
    /// True if the call was cancelled. Keys may be missing.
    pub cancelled: bool,
}

/// Visits the keys. `progress` gets the numbers of segments read and of all segments.
///
/// # Errors
/// When the flash has failed or is closed.
pub(crate) fn visit_keys<K: Key + Send + Sync + 'static, V: Value>(
    shared: &Shared<K, V>,
    mut visit: impl FnMut(&K),
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> io::Result<VisitedKeys> {
    shared.memory.iter().for_each(|item| visit(item.key()));
    // Objects that leave memory from now on reach a segment that the sweep reads.
    let mut departing: Vec<K> = Vec::new();
    for stripe in shared.flows.stripes().all() {
        departing.extend(stripe.all_departing().filter_map(|it| K::decode_key(it.record().key)));
    }
    departing.iter().for_each(&mut visit);
    let flows = shared.flows.all();
    let count = |flow: &Flow| flow.store.log.segments().len() as u64;
    let mut counts: Vec<u64> = flows.iter().map(count).collect();
    let mut visited = VisitedKeys::default();
    for (place, flow) in flows.iter().enumerate() {
        let mut ended = false;
        let on_flash = |_, key: &[u8]| {
            if let Some(key) = K::decode_key(key) {
                visit(&key);
            }
        };
        let swept = sweep(&flow.store, Purpose::Read, on_flash, |read, of| {
            counts[place] = of;
            let next = progress(counts[..place].iter().sum::<u64>() + read, counts.iter().sum());
            ended = next.is_break();
            next
        });
        let Swept { unreadable_segments, cancelled } = swept;
        visited.unreadable_segments += unreadable_segments;
        visited.cancelled = cancelled || ended && place + 1 < counts.len();
        if visited.cancelled {
            return Ok(visited);
        }
    }
    // Objects that came from flash, which may have evicted its copy since.
    let came = shared.memory.iter().filter(|item| item.value().on_flash);
    came.for_each(|item| visit(item.key()));
    for flow in flows {
        shared.flows.named(flow, flow.store.log.check_open())?;
    }
    Ok(visited)
}
