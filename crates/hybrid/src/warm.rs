//! Warming: bringing a list of keys from flash to memory.
//!
//! Each key has a load of its own, which every later change of the key outdates. A load looks its
//! record up and then waits for the [`Batch`], which sorts the records by their places, reads those
//! that are near to each other together, and hands them out.

use std::borrow::Borrow;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use crate::codec::{Key, Value};
use crate::flash::{Buffer, Flash, Reading};
use crate::flow::{Flow, lock};
use crate::format::Lifetime;
use crate::shared::{Miss, Shared, Stored};
use crate::store::{PendingRead, count};

/// Most keys of a batch.
const BATCH_KEYS: usize = 256;
/// Bytes of records after which a batch ends.
const BATCH_BYTES: usize = 8 << 20;
/// Gap between two records up to which they are read together, in bytes.
const READ_GAP: u64 = 16 << 10;
/// Most bytes read together, unless a record is longer.
const READ_BYTES: u64 = 1 << 20;

/// The result of [`Hybrid::warm`](crate::Hybrid::warm): numbers of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Warmed {
    /// Keys that were in memory already, or on their way to flash.
    pub in_memory: u64,
    /// Keys brought from flash to memory.
    pub brought: u64,
    /// Keys that flash does not have, or whose record could not be read.
    pub missing: u64,
    /// Keys left on flash because memory has no room for them beside the keys before them.
    pub without_room: u64,
}

/// The reads of a batch.
#[derive(Default)]
struct Batch {
    wanted: Mutex<Vec<Wanted>>,
}

/// A record that a load waits for.
struct Wanted {
    /// Offset in the file and length in bytes.
    range: (u64, usize),
    record: Arc<Mutex<Option<Arrived>>>,
}

/// The bytes of a record, from an offset of a buffer on.
struct Arrived {
    buffer: Option<Arc<Buffer>>,
    offset: usize,
}

/// Brings keys from flash to memory.
pub(crate) async fn warm<K, V, Q>(shared: &Shared<K, V>, keys: &[&Q]) -> Warmed
where
    K: Borrow<Q> + Key + Send + Sync + 'static,
    V: Value,
    Q: Key + ToOwned<Owned = K> + Sync + ?Sized,
{
    let mut warmed = Warmed::default();
    let mut room = shared.memory.stats().weight_capacity.unwrap_or(u64::MAX);
    let mut places = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let hash = shared.hash(*key);
        if shared.memory.contains_key(*key)
            || shared.flows.stripes().of(hash).departing(hash).is_some()
        {
            warmed.in_memory += 1;
            continue;
        }
        let Some(place) = shared.store(hash).index.peek(hash) else {
            warmed.missing += 1;
            continue;
        };
        // Keys at the start of the list take precedence.
        match room.checked_sub(place.length.bytes() as u64) {
            Some(left) => room = left,
            None => {
                warmed.without_room += 1;
                continue;
            }
        }
        let drive = shared.flows.place_of(hash);
        places.push((drive, place.address, place.length.bytes(), at));
    }
    places.sort_unstable();
    let mut rest = &places[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let first = rest[0].0;
        let mut fits = |&(drive, _, len, _): &(usize, u64, usize, usize)| {
            bytes += len;
            drive == first && bytes <= BATCH_BYTES
        };
        let number = rest.iter().take(BATCH_KEYS).take_while(|it| fits(it)).count().max(1);
        let (these, others) = rest.split_at(number);
        rest = others;
        let flow = &shared.flows.all()[first];
        let brought = bring(shared, flow, these.iter().map(|(.., at)| keys[*at])).await;
        warmed.brought += brought;
        warmed.missing += these.len() as u64 - brought;
        shared.flows.drained().await;
    }
    warmed
}

/// Brings the keys of a batch, which are on one drive. Returns the number of keys that are in
/// memory then.
async fn bring<'k, K, V, Q>(
    shared: &Shared<K, V>,
    flow: &Flow,
    keys: impl Iterator<Item = &'k Q>,
) -> u64
where
    K: Borrow<Q> + Key + Send + Sync + 'static,
    V: Value,
    Q: Key + ToOwned<Owned = K> + Sync + ?Sized + 'k,
{
    let batch = Batch::default();
    let (batch, store) = (&batch, &*flow.store);
    let mut loads: Vec<Option<Pin<Box<dyn Future<Output = bool> + Send + '_>>>> = Vec::new();
    for key in keys {
        loads.push(Some(Box::pin(async move {
            let load = async move {
                let hash = shared.hash(key);
                let place = store.index.peek(hash).ok_or(Miss)?;
                let bytes = key.encode_key(<[u8]>::to_vec);
                if store.log.read_resident(place, |_, _| ()).is_some() {
                    return shared.load_from_flash(hash, bytes).await;
                }
                let key_bytes = bytes.len();
                let (range, pending) = store.begin_read(hash, place, bytes);
                let arrived = batch.record(range).await;
                let found = end_read(shared, hash, &pending, &arrived);
                drop(arrived); // its buffer, before the parts of a large object are read
                let found = shared.whole_entry(hash, place, found).await;
                shared.finish_load(key_bytes, found)
            };
            shared.memory.loads().get_async(key, load).await.is_ok()
        })));
    }
    let mut brought = 0;
    let mut readings = Vec::new();
    poll_fn(|context| {
        loop {
            for slot in &mut loads {
                let Some(load) = slot else { continue };
                if let Poll::Ready(is_there) = load.as_mut().poll(context) {
                    brought += u64::from(is_there);
                    *slot = None;
                }
            }
            readings.extend(batch.begin(&*store.log.flash));
            let mut progress = false;
            readings.retain_mut(|(reading, wanted): &mut (Reading, Vec<Wanted>)| {
                let Poll::Ready(buffer) = Pin::new(reading).poll(context) else { return true };
                if buffer.is_err() {
                    count(&store.counters.failed_reads);
                }
                let buffer = buffer.ok().map(Arc::new);
                let start = wanted[0].range.0;
                for wanted in wanted {
                    let offset = (wanted.range.0 - start) as usize;
                    let arrived = Arrived { buffer: buffer.clone(), offset };
                    *lock(&wanted.record) = Some(arrived);
                }
                progress = true;
                false
            });
            if !progress {
                break;
            }
        }
        match loads.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending, // a read or the load of another caller wakes the task
        }
    })
    .await;
    brought
}

/// Checks the bytes of a record, and decodes it.
fn end_read<K: Key + Send + Sync + 'static, V: Value>(
    shared: &Shared<K, V>,
    hash: u64,
    pending: &PendingRead,
    arrived: &Arrived,
) -> Option<(Stored<V>, Lifetime)> {
    let bytes = &arrived.buffer.as_ref()?[arrived.offset..];
    shared.store(hash).check_read(pending, bytes, |record| shared.entry(hash, record))?
}

impl Batch {
    /// Waits for the bytes of a record.
    async fn record(&self, range: (u64, usize)) -> Arrived {
        let record = Arc::new(Mutex::new(None));
        lock(&self.wanted).push(Wanted { range, record: Arc::clone(&record) });
        // No waker is kept: `bring` polls all loads after each read.
        poll_fn(|_| lock(&record).take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Begins the reads of the records that loads wait for, in the order of the file.
    fn begin(&self, flash: &dyn Flash) -> Vec<(Reading, Vec<Wanted>)> {
        let mut wanted = mem::take(&mut *lock(&self.wanted));
        wanted.sort_unstable_by_key(|wanted| wanted.range);
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        let mut ranges: Vec<(u64, usize)> = Vec::new();
        for wanted in wanted {
            let (offset, len) = wanted.range;
            let end = offset + len as u64;
            if let (Some((start, length)), Some(group)) = (ranges.last_mut(), groups.last_mut()) {
                let until = *start + *length as u64;
                if offset <= until + READ_GAP && end <= *start + READ_BYTES {
                    *length = (until.max(end) - *start) as usize;
                    group.push(wanted);
                    continue;
                }
            }
            ranges.push((offset, len));
            groups.push(vec![wanted]);
        }
        flash.start_all(&ranges).into_iter().zip(groups).collect()
    }
}
