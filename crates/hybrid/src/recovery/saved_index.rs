//! The index that a closed cache has saved: written behind the log's end, and read again.
//!
//! A cache serves while it reads. Its directory has the checksum of each chunk and the number of
//! objects in each shard, so a lookup reads the slots of its own shard, if they are missing, and
//! believes no chunk that is damaged. The rest is read by the thread that writes the log, before it
//! writes: the log's next segments overwrite the saved index. So flash stays as it was at the close
//! until all is read. If a chunk is damaged, the shards that are still missing are built from the
//! footers of the segments, as after a crash.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{READERS, SuperblockWriter, find_segments, in_parallel, read_segments, units};
use crate::flash::{Buffer, Flash};
use crate::format::{Geometry, PAGE_BYTES, Superblock, crc, u32_at, u64_at};
use crate::index::{Index, PART_BYTES, ShardSource};
use crate::log::Evict;
use crate::store::{Evictor, Store};

/// Size in bytes of reads and writes of the saved index, and of the chunks that have a checksum.
const SAVE_BYTES: usize = 1 << 20;
/// Maximum number of shards.
const MAX_SHARDS: u64 = 1 << 20;

/// Returns the checksum of the saved index from those of its chunks.
fn sum_of(sums: &[u32]) -> u64 {
    u64::from(sums.iter().fold(0u32, |sum, chunk| sum.rotate_left(1) ^ chunk))
}

/// A saved index being written: lengths, the segments in the places, the shape, and the slots.
struct SaveWriter<'a> {
    flash: &'a dyn Flash,
    geometry: Geometry,
    /// Number of the segment at which it begins.
    at: u64,
    offset: u64,
    chunk: Vec<u8>,
    /// Checksums of the chunks.
    sums: Vec<u32>,
    buffer: Buffer,
}

impl SaveWriter<'_> {
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let (these, rest) = bytes.split_at(bytes.len().min(SAVE_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(these);
            bytes = rest;
            if self.chunk.len() == SAVE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the pushed bytes, rounded up to a page.
    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.sums.push(crc(&self.chunk));
        self.chunk.resize(self.chunk.len().next_multiple_of(PAGE_BYTES), 0);
        let mut rest = &self.chunk[..];
        while !rest.is_empty() {
            let (number, offset) = (
                self.at + self.offset / self.geometry.segment_bytes,
                self.offset % self.geometry.segment_bytes,
            );
            let room = (self.geometry.segment_bytes - offset) as usize;
            let (these, others) = rest.split_at(rest.len().min(room));
            self.buffer[..these.len()].copy_from_slice(these);
            let start = self.geometry.segment_start(number) + offset;
            self.flash.write(&self.buffer[..these.len()], start)?;
            self.offset += these.len() as u64;
            rest = others;
        }
        self.chunk.clear();
        Ok(())
    }
}

/// Returns the bytes of a directory.
fn directory_bytes(chunks: usize, shards: usize) -> usize {
    4 + 4 * chunks + 4 * shards
}

/// Saves the index behind the log's end and marks the cache as clean. The log has ended.
pub(crate) fn save<T>(store: &Arc<Store<T>>, writer: &SuperblockWriter) -> io::Result<()> {
    let geometry = store.log.geometry;
    let next = store.log.end() / geometry.segment_bytes + 1;
    let shards = store.index.shape().len();
    let head_bytes = head_bytes(geometry, shards as u64);
    let bytes = (head_bytes + store.index.memory_bytes()).next_multiple_of(PAGE_BYTES as u64);
    let directory = directory_bytes(bytes.div_ceil(SAVE_BYTES as u64) as usize, shards);
    let needed = (bytes + directory as u64).div_ceil(geometry.segment_bytes);
    if needed * 2 > geometry.segments {
        return Ok(()); // a cache of very small objects: its footers are read instead
    }
    // The places for the index give up what they hold. A later crash must not find it either, since
    // the log does not have the removals of what is not in the index.
    let flash = &*store.log.flash;
    let mut evictor = Evictor { store: Arc::clone(store), reporter: Default::default() };
    let mut zeros = flash.buffers().take(PAGE_BYTES);
    zeros.fill(0);
    for number in next..next + needed {
        evictor.evict(number)?;
        store.log.empty_place(number);
        let start = geometry.segment_start(number);
        flash.write(&zeros, start)?;
        flash.write(&zeros, start + geometry.segment_bytes - PAGE_BYTES as u64)?;
        store.log.counters.count_beside(2 * PAGE_BYTES as u64);
    }
    let buffer = flash.buffers().take(SAVE_BYTES);
    let (chunk, sums) = (Vec::with_capacity(SAVE_BYTES), Vec::new());
    let mut saver = SaveWriter { flash, geometry, at: next, offset: 0, chunk, sums, buffer };
    let shape = store.index.shape();
    let mut head = Vec::new();
    head.extend_from_slice(&(shape.len() as u64).to_le_bytes());
    for place in 0..geometry.segments {
        let id = store.log.segment_in(place);
        head.extend_from_slice(&id.number.to_le_bytes());
        head.extend_from_slice(&id.session.to_le_bytes());
    }
    head.extend(shape.iter().flat_map(|parts| parts.to_le_bytes()));
    debug_assert_eq!(head.len() as u64, head_bytes);
    saver.push(&head)?;
    store.index.save(|shard| saver.push(shard))?;
    let length = saver.offset + saver.chunk.len() as u64;
    saver.flush()?;
    let sum = sum_of(&saver.sums);
    let mut directory = vec![0; 4];
    directory.extend(saver.sums.iter().flat_map(|sum| sum.to_le_bytes()));
    directory.extend(store.index.used().iter().flat_map(|used| used.to_le_bytes()));
    let directory_sum = crc(&directory[4..]);
    directory[..4].copy_from_slice(&directory_sum.to_le_bytes());
    saver.push(&directory)?;
    saver.flush()?;
    debug_assert!(saver.offset <= needed * geometry.segment_bytes);
    store.log.counters.count_beside(saver.offset);
    flash.sync()?;
    writer.write(flash, |block| {
        block.clean = true;
        block.saved_at = next;
        block.saved_bytes = length;
        block.saved_crc = sum;
    })
}

/// Returns the bytes before the slots.
fn head_bytes(geometry: Geometry, shards: u64) -> u64 {
    8 + 16 * geometry.segments + 4 * shards
}

/// The place of a saved index.
#[derive(Debug, Clone, Copy)]
struct Saved<'a> {
    flash: &'a dyn Flash,
    block: &'a Superblock,
}

impl Saved<'_> {
    fn chunks(&self) -> usize {
        self.block.saved_bytes.div_ceil(SAVE_BYTES as u64) as usize
    }

    /// Reads bytes from an offset on, which is a multiple of the page size.
    fn read(&self, begin: u64, len: usize) -> io::Result<Buffer> {
        let (Saved { flash, block }, geometry) = (self, self.block.geometry);
        let mut buffer = flash.buffers().take(len.next_multiple_of(PAGE_BYTES));
        let mut done = 0;
        while done < buffer.len() {
            let offset = (begin + done as u64) % geometry.segment_bytes;
            let number = block.saved_at + (begin + done as u64) / geometry.segment_bytes;
            let until = buffer.len().min(done + (geometry.segment_bytes - offset) as usize);
            flash.read(&mut buffer[done..until], geometry.segment_start(number) + offset)?;
            done = until;
        }
        buffer.resize(len);
        Ok(buffer)
    }

    fn read_chunk(&self, at: usize) -> io::Result<Buffer> {
        let begin = at as u64 * SAVE_BYTES as u64;
        self.read(begin, (self.block.saved_bytes - begin).min(SAVE_BYTES as u64) as usize)
    }

    /// Reads a chunk. An error is also one whose checksum does not match.
    fn read_intact(&self, at: usize, sums: &[u32]) -> io::Result<Buffer> {
        let chunk = self.read_chunk(at)?;
        match crc(&chunk) == sums[at] {
            true => Ok(chunk),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Returns the bytes before the slots, given the first 8 of them. `None` if that cannot be.
    fn head_bytes(&self, first: &[u8]) -> Option<u64> {
        let shards = u64_at(first, 0);
        let bytes = head_bytes(self.block.geometry, shards.min(MAX_SHARDS));
        ((1..=MAX_SHARDS).contains(&shards) && bytes <= self.block.saved_bytes).then_some(bytes)
    }

    /// Decodes the bytes before the slots: the number of parts of each shard, and the numbers and
    /// sessions of the segments. `None` if that cannot be.
    #[expect(clippy::type_complexity, reason = "two results of one step")]
    fn decode_head(&self, head: &[u8]) -> Option<(Vec<u32>, Vec<(u64, u64)>)> {
        let (ids, shape) = head[8..].split_at(16 * self.block.geometry.segments as usize);
        let known = ids.chunks(16).map(|id| (u64_at(id, 0), u64_at(id, 8)));
        let known = known.filter(|(number, _)| *number > 0).collect();
        let shape: Vec<u32> = shape.chunks(4).map(|parts| u32_at(parts, 0)).collect();
        let parts: u64 = shape.iter().map(|parts| u64::from(*parts)).sum();
        let is_whole = head.len() as u64 + parts * PART_BYTES == self.block.saved_bytes;
        (is_whole && !shape.contains(&0)).then_some((shape, known))
    }
}

/// Returns whether a cache has a saved index.
fn is_saved(block: &Superblock) -> bool {
    block.clean && block.saved_at > 0 && block.saved_bytes >= head_bytes(block.geometry, 0)
}

/// A saved index, and the numbers and sessions of the valid segments.
type Loaded = (Index, Vec<(u64, u64)>);

/// Reads a saved index. `None` if there is none, or it is damaged.
pub(super) fn load(flash: &dyn Flash, block: &Superblock) -> Option<Loaded> {
    if !is_saved(block) {
        return None;
    }
    let saved = Saved { flash, block };
    let sums = Mutex::new(vec![0u32; saved.chunks()]);
    let read_chunk = |at: usize| -> io::Result<Buffer> {
        let chunk = saved.read_chunk(at)?;
        sums.lock().unwrap_or_else(PoisonError::into_inner)[at] = crc(&chunk);
        Ok(chunk)
    };
    let mut reader = LoadReader::new(&read_chunk, 0, saved.chunks());
    let first = reader.take(8).ok()?;
    let head_bytes = saved.head_bytes(&first)?;
    let head = [first, reader.take(head_bytes - 8).ok()?].concat();
    let (shape, known) = saved.decode_head(&head)?;
    let index = Index::load(units(block.geometry), &shape, |bytes| reader.take(bytes)).ok()?;
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    (sum_of(&sums) == block.saved_crc).then_some((index, known))
}

/// Reads the head and the directory of a saved index, whose shards are read when they are used.
/// `None` if there is none, if an earlier version of Floe wrote it, or if it is damaged.
pub(super) fn begin_load(flash: &Arc<dyn Flash>, block: &Superblock) -> Option<Loaded> {
    if !is_saved(block) {
        return None;
    }
    let saved = Saved { flash: &**flash, block };
    let mut head = saved.read_chunk(0).ok()?.to_vec();
    let head_bytes = saved.head_bytes(&head)?;
    let (chunks, begin) = (saved.chunks(), block.saved_bytes.next_multiple_of(PAGE_BYTES as u64));
    let directory = directory_bytes(chunks, u64_at(&head, 0) as usize);
    if begin + directory as u64 > block.geometry.segments * block.geometry.segment_bytes {
        return None;
    }
    let directory = saved.read(begin, directory).ok()?;
    let numbers: Vec<u32> = directory.chunks(4).map(|number| u32_at(number, 0)).collect();
    let (sums, used) = numbers[1..].split_at(chunks);
    let is_intact = crc(&directory[4..]) == numbers[0] && sum_of(sums) == block.saved_crc;
    if !is_intact || crc(&head) != sums[0] {
        return None;
    }
    while (head.len() as u64) < head_bytes {
        head.extend_from_slice(&saved.read_intact(head.len() / SAVE_BYTES, sums).ok()?);
    }
    let (shape, known) = saved.decode_head(&head[..head_bytes as usize])?;
    let mut starts = vec![head_bytes];
    for parts in &shape {
        starts.push(starts[starts.len() - 1] + u64::from(*parts) * PART_BYTES);
    }
    let sizes: Vec<(u32, u32)> = shape.into_iter().zip(used.iter().copied()).collect();
    let source =
        SavedSlots { flash: Arc::clone(flash), block: *block, sums: sums.to_vec(), starts };
    Some((Index::pending(units(block.geometry), &sizes, Arc::new(source)), known))
}

/// The slots of a saved index.
#[derive(Debug)]
struct SavedSlots {
    flash: Arc<dyn Flash>,
    /// The superblock as the close left it.
    block: Superblock,
    /// Checksums of the chunks.
    sums: Vec<u32>,
    /// Offsets of the shards' slots in the saved index, and the end of the last one's.
    starts: Vec<u64>,
}

impl SavedSlots {
    fn saved(&self) -> Saved<'_> {
        Saved { flash: &*self.flash, block: &self.block }
    }

    /// Supplies the shards in the order of the saved index.
    fn supply_in_order(&self, index: &Index) -> io::Result<()> {
        let (saved, first) = (self.saved(), self.starts[0] as usize / SAVE_BYTES);
        let read_chunk = |at: usize| saved.read_intact(at, &self.sums);
        let mut reader = LoadReader::new(&read_chunk, first, saved.chunks());
        reader.take(self.starts[0] % SAVE_BYTES as u64)?;
        for (shard, range) in self.starts.windows(2).enumerate() {
            index.supply(shard, &reader.take(range[1] - range[0])?);
        }
        Ok(())
    }

    /// Builds the shards that are pending from the footers. Returns the number of damaged segments.
    fn build(&self, index: &Index) -> io::Result<u64> {
        let (flash, block) = (&*self.flash, &self.block);
        let parts = |range: &[u64]| ((range[1] - range[0]) / PART_BYTES) as u32;
        let shape: Vec<u32> = self.starts.windows(2).map(parts).collect();
        let built = Index::of_shape(units(block.geometry), &shape);
        let (found, _) = find_segments(flash, block, 0)?;
        let damaged = read_segments(flash, block, &found, &built, |_, _| {})?;
        index.supply_from(built);
        Ok(damaged)
    }
}

impl ShardSource for SavedSlots {
    fn read(&self, shard: usize) -> Option<Vec<u8>> {
        let (begin, end) = (self.starts[shard], self.starts[shard + 1]);
        let chunk_of = |offset: u64| offset / SAVE_BYTES as u64;
        let mut slots = Vec::with_capacity((end - begin) as usize);
        for at in chunk_of(begin)..=chunk_of(end - 1) {
            let chunk = self.saved().read_intact(at as usize, &self.sums).ok()?;
            let from = at * SAVE_BYTES as u64;
            let range = begin.max(from) - from..end.min(from + SAVE_BYTES as u64) - from;
            slots.extend_from_slice(&chunk[range.start as usize..range.end as usize]);
        }
        Some(slots)
    }

    fn supply_all(&self, index: &Index) -> io::Result<u64> {
        match self.supply_in_order(index) {
            Ok(()) => Ok(0),
            Err(_) => Ok(1 + self.build(index)?),
        }
    }
}

/// Reads the saved index in order, several chunks side by side.
struct LoadReader<'a, F> {
    chunks: Vec<Buffer>,
    /// Number of the next chunk to read, and that of all chunks.
    at: usize,
    count: usize,
    /// Offset of the next byte in `chunks`.
    offset: usize,
    read: &'a F,
}

impl<'a, F: Fn(usize) -> io::Result<Buffer> + Sync> LoadReader<'a, F> {
    /// Begins with chunk `first` of `count`.
    fn new(read: &'a F, first: usize, count: usize) -> Self {
        Self { chunks: Vec::new(), at: first, count, offset: 0, read }
    }

    /// Returns the next bytes.
    fn take(&mut self, bytes: u64) -> io::Result<Vec<u8>> {
        let mut taken = Vec::with_capacity((bytes as usize).min(READERS * SAVE_BYTES));
        while (taken.len() as u64) < bytes {
            if let Some(chunk) = self.chunks.first() {
                let wanted = bytes as usize - taken.len();
                let until = chunk.len().min(self.offset + wanted);
                taken.extend_from_slice(&chunk[self.offset..until]);
                self.offset = until;
                if until == chunk.len() {
                    self.chunks.remove(0);
                    self.offset = 0;
                }
                continue;
            }
            let more = (self.count - self.at).min(READERS);
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (first, read) = (self.at, self.read);
            self.chunks = in_parallel(more, |at| read(first + at))?;
            self.at += more;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::flash::Flash;
    use crate::recovery::{Opened, read_superblock};
    use crate::tests::simulated::SimulatedFlash;
    use crate::tests::store::{Rig, value_of};

    /// Objects for which the index has room, so that it has about 7 MiB.
    const ROOM: u64 = 800_000;
    const KEYS: u64 = 400;
    const MIB: u64 = 1 << 20;

    /// Creates a store with a large index and a few objects, and closes it.
    fn closed() -> SimulatedFlash {
        let mut rig = Rig::open_without_writer(SimulatedFlash::new(20 << 20, 1), ROOM);
        rig.start_writer();
        for key in 0..KEYS {
            assert!(rig.insert(key, &value_of(key, 0, 300)));
        }
        (0..KEYS).step_by(4).for_each(|key| assert!(rig.remove(key)));
        rig.close()
    }

    /// Changes keys, and checks them then and after a crash.
    fn change_and_crash(mut rig: Rig, loses_power: bool) {
        (1..KEYS).step_by(8).for_each(|key| assert!(rig.remove(key)));
        (2..KEYS).step_by(8).for_each(|key| assert!(rig.insert(key, &value_of(key, 1, 200))));
        let check = |rig: &Rig| {
            for key in 0..KEYS {
                let expected = match key % 8 {
                    0 | 4 | 1 => None,
                    2 => Some(value_of(key, 1, 200)),
                    _ => Some(value_of(key, 0, 300)),
                };
                assert_eq!(rig.get(key), expected, "{key}");
            }
            assert_eq!(rig.store.index.len(), KEYS - KEYS / 8 * 3);
        };
        check(&rig);
        rig.start_writer();
        check(&rig);
        assert!(rig.sync());
        let rig = Rig::open(rig.kill(loses_power, 7));
        assert_eq!(rig.opened, Opened::Recovered);
        check(&rig);
    }

    #[test]
    fn a_lookup_after_a_clean_open_reads_its_part_of_the_index() {
        let flash = closed();
        let saved = read_superblock(&flash).unwrap().unwrap().saved_bytes;
        assert!(saved > 6 * MIB, "{saved} bytes are saved");
        let before = flash.read_bytes();
        let rig = Rig::open_without_writer(flash, ROOM);
        assert_eq!((rig.opened, rig.store.index.len()), (Opened::Clean, KEYS - KEYS / 4));
        let opened = rig.flash.read_bytes() - before;
        assert!(opened < MIB + MIB / 4, "the open has read {opened} bytes");
        assert_eq!(rig.get(7), Some(value_of(7, 0, 300)));
        let looked_up = rig.flash.read_bytes() - before - opened;
        assert!(looked_up < 2 * MIB + MIB / 4, "the lookup has read {looked_up} bytes");
        change_and_crash(rig, true);
    }

    #[test]
    fn an_index_closed_before_all_of_it_was_read_is_saved_whole() {
        let mut rig = Rig::open_without_writer(closed(), ROOM);
        assert!(rig.remove(1));
        rig.start_writer();
        let rig = Rig::open(rig.close());
        assert_eq!(rig.opened, Opened::Clean);
        for key in 0..KEYS {
            let expected = (key % 4 != 0 && key != 1).then(|| value_of(key, 0, 300));
            assert_eq!(rig.get(key), expected, "{key}");
        }
    }

    #[test]
    fn a_clear_reads_nothing_and_lasts() {
        let mut rig = Rig::open_without_writer(closed(), ROOM);
        let before = rig.flash.read_bytes();
        let first = rig.store.clear().unwrap();
        assert_eq!((rig.flash.read_bytes(), rig.store.index.len()), (before, 0));
        rig.start_writer();
        assert!(rig.sync());
        assert!((0..KEYS).all(|key| rig.get(key).is_none()), "first segment {first}");
    }

    #[test]
    fn damage_in_a_saved_index_costs_no_object_and_brings_none_back() {
        let bytes = read_superblock(&closed()).unwrap().unwrap().saved_bytes;
        // Bytes of the head, of slots in several chunks, and of the directory.
        let directory = bytes.next_multiple_of(4096) + 8;
        let places = [16, MIB / 2, MIB + 40_000, 3 * MIB, bytes - 100, directory];
        for (at, place) in places.into_iter().enumerate() {
            let flash = closed();
            let block = read_superblock(&flash).unwrap().unwrap();
            let segment = block.geometry.segment_bytes;
            let start = block.geometry.segment_start(block.saved_at + place / segment);
            let start = (start + place % segment) as usize;
            match at % 2 {
                0 => flash.flip(start * 8 + 3),
                _ => flash.spoil(start, 1),
            }
            assert!(flash.size_bytes() > start as u64);
            let mut rig = Rig::open_without_writer(flash, ROOM);
            // A lookup of a damaged part waits for the writer, which builds the part anew.
            rig.start_writer();
            for key in 0..KEYS {
                let expected = (key % 4 != 0).then(|| value_of(key, 0, 300));
                assert_eq!(rig.get(key), expected, "place {place}: {key}");
            }
            let is_partial = rig.opened == Opened::Clean && place != directory;
            // The writer counts once all shards are there, which lookups do not wait for.
            floe_testkit::wait_until(&format!("place {place}: {:?}", rig.opened), || {
                let failed = rig.store.counters.failed_reads.load(Ordering::Relaxed);
                failed == u64::from(is_partial)
            });
            (1..KEYS).step_by(4).for_each(|key| assert!(rig.remove(key)));
            let rig = Rig::open(rig.kill(false, 7));
            let is_back = |key: &u64| rig.get(*key).is_some();
            assert_eq!((0..KEYS).filter(is_back).count() as u64, KEYS / 2, "place {place}");
        }
    }
}
