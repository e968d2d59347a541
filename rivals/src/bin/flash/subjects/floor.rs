//! The floor: pages of one file, read past the page cache through a ring of the reading thread.
//!
//! It has no index, no checksums and no futures. Each object begins at a page boundary, so that a
//! read touches as few pages as can be.

use std::alloc::Layout;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;

use super::{Bench, Reads, Settings};
use crate::load::Stream;

const PAGE: usize = 4096;
/// Reads in flight at most.
const DEPTH: usize = 64;
/// Bytes written at once while the file is filled.
const CHUNK: usize = 1 << 20;

/// Memory that begins at a page boundary.
struct Pages {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory has one owner, which hands out slices by the usual rules.
unsafe impl Send for Pages {}

impl Pages {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, PAGE).expect("a buffer has a modest size");
        // SAFETY: no caller asks for 0 bytes.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!start.is_null(), "out of memory");
        Self { start, layout }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation is as long as its layout says, and was zeroed.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; this is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.start, self.layout) }
    }
}

struct State {
    ring: IoUring,
    buffers: Pages,
    /// Slots that were filled, in the order of their keys.
    chunk: Vec<u8>,
    written: u64,
}

pub struct Floor {
    file: File,
    slot: usize,
    state: Mutex<State>,
}

/// Opens the floor; keys are 0, 1, 2, … in the order of their insertion.
pub fn open(settings: &Settings) -> Result<Box<dyn Bench>, String> {
    std::fs::create_dir_all(&settings.folder).map_err(|error| format!("no folder: {error}"))?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(settings.folder.join("floor"))
        .map_err(|error| format!("no file: {error}"))?;
    let ring = IoUring::new(DEPTH as u32).map_err(|error| format!("no ring: {error}"))?;
    let slot = settings.value_bytes.next_multiple_of(PAGE);
    let state = State { ring, buffers: Pages::new(slot * DEPTH), chunk: Vec::new(), written: 0 };
    Ok(Box::new(Floor { file, slot, state: Mutex::new(state) }))
}

impl Floor {
    fn flush(&self, state: &mut State) {
        if state.chunk.is_empty() {
            return;
        }
        let mut pages = Pages::new(state.chunk.len());
        pages.bytes_mut().copy_from_slice(&state.chunk);
        self.file.write_all_at(pages.bytes(), state.written).expect("the disk writes");
        state.written += state.chunk.len() as u64;
        state.chunk.clear();
    }

    fn read_keys(&self, mut next: impl FnMut() -> Option<u64>, depth: usize) -> Reads {
        let state = &mut *self.state.lock().expect("nobody panics with the ring");
        assert!(depth <= DEPTH, "the ring has {DEPTH} places");
        let mut reads = Reads::default();
        let mut begun = [(0, Instant::now()); DEPTH];
        let mut free: Vec<usize> = (0..depth).collect();
        loop {
            while let Some(place) = free.pop() {
                let Some(key) = next() else {
                    free.push(place);
                    break;
                };
                begun[place] = (key, Instant::now());
                // SAFETY: `place` is below DEPTH, the buffers are DEPTH slots long.
                let buffer = unsafe { state.buffers.start.add(place * self.slot) };
                let fd = types::Fd(self.file.as_raw_fd());
                let read = opcode::Read::new(fd, buffer, self.slot as u32)
                    .offset(key * self.slot as u64)
                    .build()
                    .user_data(place as u64);
                // SAFETY: the buffer outlives the read, which is awaited below.
                unsafe { state.ring.submission().push(&read) }.expect("the ring has room");
            }
            if free.len() == depth {
                return reads;
            }
            state.ring.submit_and_wait(1).expect("the ring takes reads");
            for done in state.ring.completion() {
                let place = done.user_data() as usize;
                let slot = &state.buffers.bytes()[place * self.slot..][..self.slot];
                let (key, begun) = begun[place];
                let whole = done.result() == self.slot as i32;
                reads.add(key, whole.then_some(slot), begun);
                free.push(place);
            }
        }
    }
}

impl Bench for Floor {
    fn insert(&self, values: Vec<(u64, Bytes)>) {
        let state = &mut *self.state.lock().expect("nobody panics with the ring");
        for (key, value) in values {
            let slots = state.written + state.chunk.len() as u64;
            assert_eq!(slots, key * self.slot as u64, "keys come in order");
            state.chunk.extend_from_slice(&value);
            state.chunk.resize(state.chunk.len().next_multiple_of(self.slot), 0);
            if state.chunk.len() >= CHUNK {
                self.flush(state);
            }
        }
    }

    fn insert_paced(&self, _: u64, _: &Bytes, _: f64, _: Duration) {}

    fn read(&self, keys: &[u64], depth: usize) -> Reads {
        let mut keys = keys.iter().copied();
        self.read_keys(|| keys.next(), depth)
    }

    fn read_blocking(&self, _keys: &[u64]) -> usize {
        0
    }

    fn remove(&self, _: &[u64]) {}

    fn sync(&self) {
        self.flush(&mut self.state.lock().expect("nobody panics with the ring"));
    }

    fn close(self: Box<Self>) {
        self.sync();
    }

    fn hits(&self, _: &Stream) -> f64 {
        f64::NAN
    }

    fn read_until(&self, keys: &[u64], depth: usize, stop: &AtomicBool) -> Reads {
        let mut keys = keys.iter().cycle().copied();
        self.read_keys(|| (!stop.load(Ordering::Relaxed)).then(|| keys.next()).flatten(), depth)
    }

    fn index_bytes(&self) -> Option<usize> {
        None
    }
}
