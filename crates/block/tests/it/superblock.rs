//! A superblock on a device that takes one of its two copies, or none.

use std::ops::Range;

use floe_block::{Io, KeptCache, Layout, NewCache, Volume, VolumeId, write_superblock};
use floe_device::{Action, Completion, Device, MemoryDevice, Operation, Pool};

const CACHE: u64 = 4 << 20;
const COPY: u64 = 32 << 10;

/// A device that refuses writes to a range.
struct Refusing {
    device: MemoryDevice,
    range: Range<u64>,
    refused: Vec<Completion>,
}

impl Device for Refusing {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn submit(&mut self, operation: Operation) {
        let writes = matches!(operation.action, Action::Write { .. });
        if writes && self.range.contains(&operation.offset) {
            let result = Err(std::io::Error::other("refused"));
            return self.refused.push(Completion { token: operation.token, result });
        }
        self.device.submit(operation);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.refused);
        self.device.poll(done);
    }
}

#[test]
fn a_note_is_durable_in_the_copy_of_the_superblock_that_can_be_written() {
    let cases = [(0..0, true), (0..COPY, true), (COPY..2 * COPY, true), (0..2 * COPY, false)];
    for parity in 0..2 {
        for (range, taken) in cases.clone() {
            let pool = Pool::new(1 << 20);
            let device = MemoryDevice::new(CACHE);
            let mut device = Refusing { device, range: 0..0, refused: Vec::new() };
            let mut wait = || Ok(());
            let mut io = Io { device: &mut device, pool: &pool, wait: &mut wait };
            let layout = Layout::new(&"4KiB,16KiB".parse().unwrap(), CACHE, 2).unwrap();
            let volumes = vec![Volume::new(VolumeId(0), "v", 1 << 20)];
            let kept = KeptCache::create(&mut io, NewCache { id: [1; 16], layout, volumes });
            let mut superblock = kept.unwrap().superblock().clone();
            superblock.generation += parity; // each copy is the older one once
            superblock.void = true;
            let mut refusing =
                Refusing { device: device.device.clone(), range: range.clone(), refused: vec![] };
            let mut io = Io { device: &mut refusing, pool: &pool, wait: &mut wait };
            let result = write_superblock(&mut io, &mut superblock);
            assert_eq!(result.is_ok(), range.is_empty(), "{range:?}, {parity}: {result:?}");
            let found = KeptCache::identify(&mut io).unwrap().expect("a copy is intact");
            assert_eq!(found.void, taken, "{range:?}, {parity}");
        }
    }
}

#[test]
fn a_copy_that_was_torn_keeps_the_other_from_being_overwritten() {
    for parity in 0..2 {
        let pool = Pool::new(1 << 20);
        let device = MemoryDevice::new(CACHE);
        let mut device = Refusing { device, range: 0..0, refused: Vec::new() };
        let mut wait = || Ok(());
        let mut io = Io { device: &mut device, pool: &pool, wait: &mut wait };
        let layout = Layout::new(&"4KiB,16KiB".parse().unwrap(), CACHE, 2).unwrap();
        let kept = KeptCache::create(&mut io, NewCache { id: [1; 16], layout, volumes: vec![] });
        let mut superblock = kept.unwrap().superblock().clone();
        superblock.generation += parity;
        let older = (superblock.generation + 1) % 2 * COPY;
        let memory = device.device.clone();
        memory.write_at(older + 100, &[0xff; 8]);
        let mut other = vec![0; COPY as usize];
        memory.read_at(COPY - older, &mut other);
        let mut refusing =
            Refusing { device: memory.clone(), range: older..older + COPY, refused: vec![] };
        let mut io = Io { device: &mut refusing, pool: &pool, wait: &mut wait };
        superblock.void = true;
        for _ in 0..3 {
            assert!(write_superblock(&mut io, &mut superblock).is_err());
            let mut now = vec![0; COPY as usize];
            memory.read_at(COPY - older, &mut now);
            assert_eq!(now, other, "the copy that is intact stays so");
        }
    }
}
