//! The writer of the log: the order of its work, in a thread or in line.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{CHUNK_BYTES, EMPTY_AHEAD, Evict, Log, PRODUCER_SEGMENTS, Segment, State, lock};
use crate::flash::Buffer;
use crate::format::PAGE_BYTES;

/// Size in bytes of a write to flash while producers wait.
const LARGE_CHUNK_BYTES: usize = 1 << 20;
/// Time between two writings of the statistics.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The next work of the writer thread.
enum Work {
    /// Evict the old content of this segment's place.
    Evict(u64),
    /// Write these bytes of a segment.
    Write {
        segment: Arc<Segment>,
        from: usize,
        until: usize,
        written: Written,
    },
    /// Make the log durable up to this position.
    Sync(u64),
    End,
}

/// The part of a segment that is on flash after a write.
#[derive(Debug, Clone, Copy)]
enum Written {
    /// The records up to this offset.
    Records(usize),
    /// The whole segment.
    Whole,
}

impl Log {
    /// Runs the writer until the log ends. `evict` empties places ahead of the log.
    pub(crate) fn run(&self, evict: &mut impl Evict) {
        let mut chunk = self.chunk();
        let mut report_at = Instant::now() + REPORT_EVERY;
        loop {
            let Some(work) = self.wait_for_work(report_at) else {
                evict.report();
                report_at = Instant::now() + REPORT_EVERY;
                continue;
            };
            if !self.perform(work, &mut chunk, evict) {
                return;
            }
        }
    }

    /// Performs all work of the writer that there is, in the caller's thread.
    pub(crate) fn run_in_line(&self, evict: &mut impl Evict) {
        let next = || Self::next_work(&lock(&self.state), self.geometry.segment_bytes);
        let Some(mut work) = next() else { return };
        let mut chunk = self.chunk();
        while self.perform(work, &mut chunk, evict) {
            match next() {
                Some(more) => work = more,
                None => return,
            }
        }
    }

    /// Waits until the writer has nothing to do.
    pub(crate) fn wait_for_writer(&self) {
        let size = self.geometry.segment_bytes;
        self.wait(|state| match Self::next_work(state, size) {
            None | Some(Work::End) => Some(()),
            Some(_) => {
                self.work.notify_one();
                None
            }
        });
    }

    /// Returns a buffer for the bytes of a write.
    fn chunk(&self) -> Buffer {
        let size = self.geometry.segment_bytes as usize;
        self.flash.buffers().take(LARGE_CHUNK_BYTES.min(size))
    }

    /// Performs a piece of work. Returns false once the log has ended.
    fn perform(&self, work: Work, chunk: &mut [u8], evict: &mut impl Evict) -> bool {
        let result = match work {
            Work::Evict(number) => evict.evict(number).map(|()| {
                let mut state = lock(&self.state);
                state.empty_until = number + 1;
                self.notify(state);
            }),
            Work::Write { segment, from, until, written } => {
                self.write(chunk, segment, from, until, written)
            }
            Work::Sync(position) => self.flash.sync().map(|()| {
                let mut state = lock(&self.state);
                state.durable = state.durable.max(position);
                self.notify(state);
            }),
            Work::End => return false,
        };
        let Err(error) = result else { return true };
        self.fail(&error);
        evict.report();
        false
    }

    /// Waits for the next work; `None` when it is time to report.
    fn wait_for_work(&self, report_at: Instant) -> Option<Work> {
        let mut state = lock(&self.state);
        loop {
            let wait = report_at.saturating_duration_since(Instant::now());
            if wait.is_zero() && !state.ending && state.failed.is_none() {
                return None;
            }
            if let Some(work) = Self::next_work(&state, self.geometry.segment_bytes) {
                return Some(work);
            }
            let waited = self.work.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the next work, if there is any. It is the same until it is done.
    fn next_work(state: &State, segment_bytes: u64) -> Option<Work> {
        if state.failed.is_some() {
            return Some(Work::End);
        }
        let open = state.fillings.back().expect("a segment is open").segment.id.number;
        let first = state.fillings.front().expect("a segment is open");
        let start = first.segment.id.number * segment_bytes;
        let position = start + first.written as u64;
        if state.wanted > state.durable && position >= state.wanted {
            return Some(Work::Sync(position));
        }
        // Records that are kept need a segment that producers cannot take.
        let may_evict = state.fillings.len() <= PRODUCER_SEGMENTS;
        if may_evict && state.empty_until <= open + 1 && !state.ending {
            return Some(Work::Evict(state.empty_until));
        }
        // Bytes are written at once where somebody waits for them, else in whole chunks.
        let at_once = first.footer.is_some() || state.wanted > position || state.hurried > position;
        let ready = if at_once { first.filled } else { first.filled / CHUNK_BYTES * CHUNK_BYTES };
        let segment = Arc::clone(&first.segment);
        if first.written < ready {
            let from = first.written / PAGE_BYTES * PAGE_BYTES;
            let producers_wait = state.fillings.len() >= PRODUCER_SEGMENTS;
            let most = if producers_wait { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
            let until = ready.next_multiple_of(PAGE_BYTES).min(from + most);
            let written = Written::Records(until.min(ready));
            return Some(Work::Write { segment, from, until, written });
        }
        if let Some(from) = first.footer {
            let until = segment_bytes as usize;
            return Some(Work::Write { segment, from, until, written: Written::Whole });
        }
        if state.ending {
            return Some(Work::End);
        }
        if may_evict && state.empty_until <= open + EMPTY_AHEAD {
            return Some(Work::Evict(state.empty_until));
        }
        None
    }

    /// Writes bytes of a segment, in chunks.
    fn write(
        &self,
        chunk: &mut [u8],
        segment: Arc<Segment>,
        from: usize,
        until: usize,
        written: Written,
    ) -> io::Result<()> {
        let start = self.geometry.segment_start(segment.id.number);
        let mut at = from;
        while at < until {
            let len = (until - at).min(chunk.len());
            {
                let bytes = segment.bytes.read().unwrap_or_else(PoisonError::into_inner);
                chunk[..len].copy_from_slice(&bytes[at..at + len]);
            }
            // Relaxed: it tells reads apart, for a mean.
            self.counters.is_writing.store(true, Ordering::Relaxed);
            let result = self.flash.write(&chunk[..len], start + at as u64);
            self.counters.is_writing.store(false, Ordering::Relaxed);
            result?;
            self.counters.written_bytes.fetch_add(len as u64, Ordering::Relaxed);
            at += len;
        }
        let id = segment.id;
        drop(segment);
        let mut state = lock(&self.state);
        let first = state.fillings.front_mut().expect("a segment is open");
        debug_assert_eq!(first.segment.id, id);
        let records = match written {
            Written::Records(offset) => offset.saturating_sub(first.written),
            Written::Whole => 0,
        };
        let overhead = (until - from).saturating_sub(records) as u64;
        self.counters.overhead_bytes.fetch_add(overhead, Ordering::Relaxed);
        match written {
            Written::Records(offset) => {
                first.written = offset;
                self.notify(state);
            }
            Written::Whole => {
                let done = state.fillings.pop_front();
                let mut resident = self.resident.write().unwrap_or_else(PoisonError::into_inner);
                resident.retain(|it| it.id != id);
                drop(resident);
                // A reader may still hold the segment, which is then not used again.
                if let Some(Ok(segment)) = done.map(|done| Arc::try_unwrap(done.segment)) {
                    let bytes = segment.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
                    state.spare.push(bytes);
                }
                self.notify(state);
            }
        }
        Ok(())
    }
}
