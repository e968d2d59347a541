//! Shared parts of the journal's tests: a simple model of a shard, and a device whose power fails.

mod crashes;
mod damage;
mod making;
mod model;

use std::io;

use rand::Rng;
use rand::rngs::SmallRng;

use floe_device::{Action, Completion, Device, MemoryDevice, Operation, Pool};
use floe_testkit::faults::{FaultDevice, FaultPlan, Faults};

use super::*;
use crate::geometry::{BlockSizes, SECTOR_BYTES, VolumeId};

const SIZES: [u64; 3] = [4096, 8192, 16384];

/// A cache device whose power can fail, and the memory that survives it.
struct Disk {
    device: FaultDevice<MemoryDevice>,
    faults: Faults,
    memory: MemoryDevice,
    pool: Pool,
}

impl Disk {
    fn new(bytes: u64) -> Disk {
        Disk::of(MemoryDevice::new(bytes))
    }

    fn of(memory: MemoryDevice) -> Disk {
        let (device, faults) = FaultDevice::new(memory.clone(), FaultPlan::none());
        Disk { device, faults, memory, pool: Pool::new(1 << 22) }
    }

    /// Calls `work` with the device.
    fn io<T>(&mut self, work: impl FnOnce(&mut Io<'_>) -> T) -> T {
        let mut idle = 0;
        let mut wait = || {
            idle += 1;
            if idle > 100_000 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
        };
        work(&mut Io { device: &mut self.device, pool: &self.pool, wait: &mut wait })
    }

    /// Submits an operation and polls a few times. Returns its result, if it has ended.
    fn try_for(&mut self, polls: u32, offset: u64, action: Action) -> Option<io::Result<()>> {
        self.device.submit(Operation { token: 0, offset, action });
        let mut done: Vec<Completion> = Vec::new();
        for _ in 0..polls {
            self.device.poll(&mut done);
        }
        done.pop().map(|completion| completion.result)
    }

    /// Writes pages without making them durable.
    fn write(&mut self, pages: &[PageWrite]) -> bool {
        let mut all = true;
        for page in pages {
            let from = self.pool.allocate(page.bytes.len()).whole();
            from.copy_from(&*page.bytes);
            let result = self.try_for(2, page.offset, Action::Write { from, durable: false });
            all &= result.is_some_and(|result| result.is_ok());
        }
        all
    }

    /// Stores some of these pages, as a power failure during the writes does.
    fn store_some(&mut self, pages: &[PageWrite], random: &mut SmallRng) {
        let some: Vec<_> =
            pages.iter().filter(|_| random.random_range(0..3) > 0).cloned().collect();
        self.write(&some);
        if random.random() {
            self.flush();
        }
    }

    fn flush(&mut self) -> bool {
        self.io(|io| io.flush()).is_ok()
    }

    /// Cuts and restores the power. Some of the data that was not durable is kept.
    fn crash(&mut self, seed: u64) {
        if !self.faults.is_off() {
            self.faults.power_cut_keeping(seed);
        }
        let mut done = Vec::new();
        while !self.faults.is_settled() {
            self.device.poll(&mut done);
        }
        *self = Disk::of(self.memory.clone());
    }

    fn open(&mut self) -> Result<Option<Opened>, StoreError> {
        self.io(|io| open(io, &mut |done, total| assert!(done <= total)))
    }
}

fn volumes(cache: u8) -> Vec<Volume> {
    let volume = |id| Volume::new(VolumeId(id), format!("volume {id} of cache {cache}"), 1 << 30);
    (0..2).map(volume).collect()
}

fn layout(groups: u64, shards: u64) -> Layout {
    let sizes = BlockSizes::new(&SIZES).unwrap();
    Layout::of(&sizes, shards, groups * sizes.largest())
}

fn new_cache(id: u8, layout: Layout) -> NewCache {
    NewCache { id: [id; 16], layout, volumes: volumes(id) }
}
