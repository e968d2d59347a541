//! A superblock on a device that takes one of its two copies, or none.

use std::io::Error;
use std::ops::Range;

use floe_block::{Io, KeptCache, Layout, NewCache, Volume, VolumeId, write_superblock};
use floe_device::{Action, Device, MemoryDevice, Pool};
use floe_testkit::Intercepted;

const CACHE: u64 = 4 << 20;
const COPY: u64 = 32 << 10;

/// A device that refuses writes to a range.
fn refusing(device: &MemoryDevice, range: Range<u64>) -> impl Device + use<> {
    Intercepted::new(device.clone(), move |operation| {
        let is_write = matches!(operation.action, Action::Write { .. });
        (is_write && range.contains(&operation.offset)).then(|| Err(Error::other("refused")))
    })
}

#[test]
fn a_note_is_durable_in_the_copy_of_the_superblock_that_can_be_written() {
    let cases = [(0..0, true), (0..COPY, true), (COPY..2 * COPY, true), (0..2 * COPY, false)];
    for parity in 0..2 {
        for (range, taken) in cases.clone() {
            let pool = Pool::new(1 << 20);
            let mut device = MemoryDevice::new(CACHE);
            let mut wait = || Ok(());
            let mut io = Io { device: &mut device, pool: &pool, wait: &mut wait };
            let layout = Layout::new(&"4KiB,16KiB".parse().unwrap(), CACHE, 2).unwrap();
            let volumes = vec![Volume::new(VolumeId(0), "v", 1 << 20)];
            let kept = KeptCache::create(&mut io, NewCache { id: [1; 16], layout, volumes });
            let mut superblock = kept.unwrap().superblock().clone();
            superblock.generation += parity; // each copy is the older one once
            superblock.void = true;
            let mut refusing = refusing(&device, range.clone());
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
        let mut device = MemoryDevice::new(CACHE);
        let mut wait = || Ok(());
        let mut io = Io { device: &mut device, pool: &pool, wait: &mut wait };
        let layout = Layout::new(&"4KiB,16KiB".parse().unwrap(), CACHE, 2).unwrap();
        let kept = KeptCache::create(&mut io, NewCache { id: [1; 16], layout, volumes: vec![] });
        let mut superblock = kept.unwrap().superblock().clone();
        superblock.generation += parity;
        let older = (superblock.generation + 1) % 2 * COPY;
        let memory = device.clone();
        memory.write_at(older + 100, &[0xff; 8]);
        let mut other = vec![0; COPY as usize];
        memory.read_at(COPY - older, &mut other);
        let mut refusing = refusing(&memory, older..older + COPY);
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
