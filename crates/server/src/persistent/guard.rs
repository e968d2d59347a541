//! Keeps a volume's samples, the checksums of some of its sectors, valid after a crash. Before a
//! session first changes a sampled sector, all superblocks durably forget its checksum.
//!
//! A guard stands between the lowest tier and the volume's device. It delays a write that touches a
//! sampled sector, has a separate thread update the superblocks of all persistent tiers, and then
//! submits the write. That happens once for each sample: at most
//! [`MOST_SAMPLES`](floe_block::MOST_SAMPLES) times per session and volume. Every other operation
//! costs one atomic load and, while samples are left, a binary search among them.
//!
//! A volume that is a local block device has no guard: all superblocks forget its samples at the
//! start. Such a device may have to take a write before the kernel has free memory again, and the
//! guard's thread and ring need memory.
//!
//! A superblock that cannot be written does not delay clients: the guard submits the write anyway.
//! The next start may then refuse the volume although it is the right one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use floe_block::SECTOR_BYTES;
use floe_device::{Action, Completion, Device, Operation, delegate_device};

use super::superblock_writer::{Parts, SampleWriter};
use crate::volume::{Volume, WrappedSource};

/// Interval at which a device checks whether it may submit its delayed writes.
const LOOK: Duration = Duration::from_micros(200);

/// The sampled sectors of a volume, and the superblocks that must forget a sample before its sector
/// changes.
#[derive(Debug)]
struct Guard {
    volume: String,
    /// Sampled sectors, sorted, at most 64.
    sectors: Vec<u64>,
    writers: Vec<SampleWriter>,
    /// A bit for each of `sectors`, set when all superblocks have durably forgotten its sample.
    forgotten: AtomicU64,
    wanted: Mutex<Wanted>,
}

/// The samples that superblocks must still forget.
#[derive(Debug, Default)]
struct Wanted {
    samples: u64,
    /// True while a thread is writing superblocks.
    under_way: bool,
}

/// Adds guards to volumes: a write to a sampled sector waits until all `caches`, given from the
/// top, have durably forgotten its sample.
pub(crate) fn guarded<'a>(
    volumes: Vec<Volume>,
    caches: impl Iterator<Item = &'a Parts> + Clone,
) -> Vec<Volume> {
    let guard = |(at, volume): (usize, Volume)| {
        let of = |parts: &Parts| parts.writer.as_ref()?.samples(parts.id(at));
        let (sectors, writers): (Vec<_>, Vec<_>) = caches.clone().filter_map(of).unzip();
        let mut sectors = sectors.concat();
        sectors.sort_unstable();
        sectors.dedup();
        assert!(sectors.len() <= 64, "tiers sample the same sectors of a volume");
        if sectors.is_empty() {
            return volume;
        }
        let guard = Guard {
            volume: volume.name.clone(),
            sectors,
            writers,
            forgotten: AtomicU64::new(0),
            wanted: Mutex::default(),
        };
        if volume.reach.is_local() && !volume.read_only {
            guard.forget_now(u64::MAX);
            return volume;
        }
        let guard = Arc::new(guard);
        let wrap = move |inner: Box<dyn Device>| -> Box<dyn Device> {
            Box::new(GuardedDevice { inner, guard: Arc::clone(&guard), held: VecDeque::new() })
        };
        Volume { backing: Arc::new(WrappedSource::new(volume.backing, wrap)), ..volume }
    };
    volumes.into_iter().enumerate().map(guard).collect()
}

impl Guard {
    /// Returns the samples, one bit each, that superblocks must forget before a range of bytes
    /// changes.
    fn touched(&self, offset: u64, len: u64) -> u64 {
        // Acquire pairs with the release after superblocks were written: a change is submitted
        // after them.
        let left = !self.forgotten.load(Ordering::Acquire);
        if left << (64 - self.sectors.len()) == 0 {
            return 0;
        }
        let range = offset / SECTOR_BYTES..(offset + len).div_ceil(SECTOR_BYTES);
        let first = self.sectors.partition_point(|sector| *sector < range.start);
        let touched = self.sectors[first..].iter().take_while(|sector| **sector < range.end);
        let bits = (first..first + touched.count()).fold(0, |bits, at| bits | 1 << at);
        bits & left
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the superblocks forget these samples, on a new thread unless one is running.
    fn forget(self: &Arc<Self>, samples: u64) {
        let mut wanted = self.wanted();
        wanted.samples |= samples;
        if std::mem::replace(&mut wanted.under_way, true) {
            return;
        }
        drop(wanted);
        let guard = Arc::clone(self);
        let begun = Builder::new().name("floe-samples".to_owned()).spawn(move || guard.write());
        if begun.is_err() {
            self.write(); // slower for this worker, and right
        }
    }

    /// Writes superblocks until none has a wanted sample left to forget.
    fn write(&self) {
        loop {
            let mut wanted = self.wanted();
            let samples = std::mem::take(&mut wanted.samples);
            if samples == 0 {
                wanted.under_way = false;
                return;
            }
            drop(wanted);
            self.forget_now(samples);
        }
    }

    /// Writes all superblocks without these samples, one after the other.
    fn forget_now(&self, samples: u64) {
        let is_one = |at: &usize| samples >> at & 1 == 1;
        let at = (0..self.sectors.len()).filter(is_one);
        let sectors: Vec<u64> = at.map(|at| self.sectors[at]).collect();
        for writer in &self.writers {
            if let Err(error) = writer.forget(&sectors) {
                let volume = &self.volume;
                tracing::warn!(
                    volume, %error,
                    "the superblock of a cache could not be written before a sector changes that \
                     identifies the volume: the next start may refuse the volume"
                );
            }
        }
        self.forgotten.fetch_or(samples, Ordering::Release);
    }
}

/// A worker's handle of a guarded device.
struct GuardedDevice {
    inner: Box<dyn Device>,
    guard: Arc<Guard>,
    /// Writes, discards and zeroing operations that wait for superblocks to be written.
    held: VecDeque<Operation>,
}

impl GuardedDevice {
    /// Returns the samples, one bit each, that superblocks must forget before an operation is
    /// submitted.
    fn touched(&self, operation: &Operation) -> u64 {
        let len = match &operation.action {
            Action::Write { from, .. } => from.len() as u64,
            Action::Zero { len, .. } | Action::Discard { len } => *len,
            Action::Read(_) | Action::Flush => return 0,
        };
        self.guard.touched(operation.offset, len)
    }
}

impl Device for GuardedDevice {
    delegate_device!(this => this.inner; size_bytes set_size allocation set_timeout spun);

    fn submit(&mut self, operation: Operation) {
        match self.touched(&operation) {
            0 => self.inner.submit(operation),
            samples => {
                self.guard.forget(samples);
                self.held.push_back(operation);
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        for operation in std::mem::take(&mut self.held) {
            match self.touched(&operation) {
                0 => self.inner.submit(operation),
                _ => self.held.push_back(operation),
            }
        }
        self.inner.poll(done);
    }

    fn next_due(&self) -> Option<Instant> {
        let look = (!self.held.is_empty()).then(|| Instant::now() + LOOK);
        self.inner.next_due().into_iter().chain(look).min()
    }
}

#[cfg(test)]
mod tests {
    use floe_block::{
        BlockSizes, KeptCache, Layout, NewCache, Samples, Volume as Known, VolumeId,
        sampled_sectors,
    };
    use floe_device::{MemoryDevice, OpenError, Pool, Ring};
    use floe_nvme::target::io::BlockSize;
    use floe_testkit::Intercepted;

    use super::super::disk::Disk;
    use super::super::superblock_writer::SuperblockWriter;
    use super::*;
    use crate::volume::{DeviceSource, Reach};
    use crate::volume_limit::RequestLimit;
    use crate::volume_share::VolumeShare;

    const BYTES: u64 = 1 << 20;

    /// A device in memory. That of a volume has a reference to the device of its cache, too.
    #[derive(Debug)]
    struct Memory {
        device: MemoryDevice,
        cache: Option<Arc<dyn DeviceSource>>,
    }

    impl DeviceSource for Memory {
        fn size_bytes(&self) -> u64 {
            self.device.size_bytes()
        }

        fn refresh(&self) -> std::io::Result<u64> {
            Ok(self.device.size_bytes())
        }

        fn open(&self, _: &Ring, _: &Pool) -> Result<Box<dyn Device>, OpenError> {
            let device = self.device.clone();
            Ok(match self.cache.clone() {
                Some(cache) => Box::new(suspicious(device, cache)),
                None => Box::new(device),
            })
        }
    }

    fn known_samples(cache: &Arc<dyn DeviceSource>) -> Vec<u64> {
        let found = Disk::open(cache).expect("a device").with_io(KeptCache::identify);
        let superblock = found.expect("it can be read").expect("there is a cache");
        superblock.volumes[0].samples.known().map(|(sector, _)| sector).collect()
    }

    /// Returns a volume's device that panics at a change of a sector whose sample the cache has not
    /// forgotten.
    fn suspicious(device: MemoryDevice, cache: Arc<dyn DeviceSource>) -> impl Device {
        Intercepted::new(device, move |operation| {
            let len = match &operation.action {
                Action::Write { from, .. } => from.len() as u64,
                Action::Zero { len, .. } | Action::Discard { len } => *len,
                Action::Read(_) | Action::Flush => 0,
            };
            let end = (operation.offset + len).div_ceil(SECTOR_BYTES);
            let changed = operation.offset / SECTOR_BYTES..end;
            let known = known_samples(&cache);
            assert!(
                len == 0 || !known.iter().any(|sector| changed.contains(sector)),
                "{changed:?}"
            );
            None
        })
    }

    /// Returns a guarded volume, the parts of a cache that has samples of it, and the cache's
    /// device.
    fn guarded_volume(reach: Reach, read_only: bool) -> (Volume, Parts, Arc<dyn DeviceSource>) {
        let memory = |bytes, cache| -> Arc<dyn DeviceSource> {
            Arc::new(Memory { device: MemoryDevice::new(bytes), cache })
        };
        let cache = memory(4 << 20, None);
        let sizes: BlockSizes = "4KiB,16KiB".parse().expect("sizes");
        let layout = Layout::new(&sizes, 4 << 20, 1).expect("there is room");
        let sums = vec![1; sampled_sectors(BYTES).len()];
        let samples = Samples { of_bytes: BYTES, sums };
        let volumes = vec![Known { samples, ..Known::new(VolumeId(0), "v", BYTES) }];
        let new = NewCache { id: [1; 16], layout, volumes };
        let made = Disk::open(&cache).expect("a device").with_io(|io| KeptCache::create(io, new));
        let superblock = made.expect("there is room").superblock().clone();
        let writer = SuperblockWriter::new(Arc::clone(&cache), superblock, None);
        let parts = Parts {
            parts: Vec::new(),
            ids: vec![VolumeId(0)],
            writer: Some(writer),
            data_start: 0,
            most_dirty_bytes: None,
            opened: None,
        };
        let volume = Volume {
            name: "v".into(),
            description: String::new(),
            backing: memory(BYTES, Some(Arc::clone(&cache))),
            read_only,
            block_size: BlockSize::default(),
            limit: RequestLimit::default(),
            share: VolumeShare::default(),
            reach,
        };
        let guarded = guarded(vec![volume], std::iter::once(&parts)).remove(0);
        (guarded, parts, cache)
    }

    #[test]
    fn a_local_device_that_may_be_written_is_known_by_no_sample() {
        let (_, _, cache) = guarded_volume(Reach::Local, false);
        assert!(known_samples(&cache).is_empty());
        let (_, _, cache) = guarded_volume(Reach::Both, true);
        assert!(!known_samples(&cache).is_empty());
    }

    #[test]
    fn a_sector_changes_when_the_superblock_has_forgotten_its_sample() {
        let (volume, _parts, cache) = guarded_volume(Reach::Clients, false);
        let (ring, pool) = (Ring::new(1).expect("a ring"), Pool::new(0));
        let mut device = volume.backing.open(&ring, &pool).expect("a device");

        let sectors = sampled_sectors(BYTES);
        let before = known_samples(&cache).len();
        let zero = |len| Action::Zero { len, may_unmap: false, fast: false };
        let mut changes = vec![(0, zero(SECTOR_BYTES)), (0, Action::Discard { len: SECTOR_BYTES })];
        changes.push((BYTES / 2, zero(BYTES / 2)));
        for (token, (offset, action)) in (0..).zip(changes) {
            device.submit(Operation { token, offset, action });
            let mut done = Vec::new();
            while done.is_empty() {
                device.poll(&mut done);
            }
            assert!(done[0].result.is_ok());
            let left = known_samples(&cache);
            assert!(!left.contains(&0), "what has changed is known no more");
            let untouched = |sector: &&u64| token < 2 && **sector != 0 || **sector < 128;
            let untouched = sectors.iter().filter(untouched).filter(|sector| **sector != 0);
            assert_eq!(left.len(), untouched.count(), "of {before}, after {token}");
        }
    }
}
