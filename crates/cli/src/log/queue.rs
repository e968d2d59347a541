//! A bounded queue of log lines, and the one thread that writes them to standard error.
//!
//! A thread that logs copies its line into the queue and goes on; no write to standard error
//! happens under the lock. A stalled reader therefore stops the log and nothing else: the queue
//! fills, further lines are dropped and counted, and the log reports their number as soon as it
//! moves again.
//!
//! The writer of tracing-appender does not fit: it bounds the number of lines, not their bytes, its
//! wait at the end is fixed at one second, and it reports that on standard output, which carries
//! the addresses of `floe serve`.
//!
//! Invariants: the queue holds at most [`MOST_BYTES`], the lines of [`Queue::push_last`] and the
//! log's own notice. Lines leave in the order in which they came. Only [`Queue::write_out`] writes.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of lines that may wait: some thousand lines.
pub(super) const MOST_BYTES: usize = 1 << 20;

thread_local! {
    /// This thread is the writer: its notice of dropped lines finds room even in a full queue.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// A handle; clones share the queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Lines have come, or all have left.
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Waiting lines, one behind the other.
    waiting: Vec<u8>,
    /// The writer is writing lines.
    writing: bool,
    /// Dropped lines that the log has not reported.
    untold: u64,
}

impl Queue {
    /// Appends a line, or drops it where there is no room.
    pub(super) fn push(&self, line: &[u8]) {
        let most = if WRITES.get() { 2 * MOST_BYTES } else { MOST_BYTES };
        let mut state = self.lock();
        if state.waiting.len() + line.len() > most {
            state.untold += 1;
            self.0.dropped.fetch_add(1, Ordering::Relaxed); // a count; nothing is ordered by it
            return;
        }
        state.waiting.extend_from_slice(line);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Appends the last line, even without room.
    pub(super) fn push_last(&self, line: &[u8]) {
        self.lock().waiting.extend_from_slice(line);
        self.0.changed.notify_all();
    }

    /// Returns the number of lines dropped so far: for lack of room, or after a failed write.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed) // a count; nothing is ordered by it
    }

    /// Waits for at most `within` until all lines are written. Returns whether they are.
    pub(super) fn drain(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        let mut state = self.lock();
        while state.writing || !state.waiting.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Writes lines as they come, for ever. `tell` logs the number of dropped lines at their place.
    pub(super) fn write_out(&self, to: &mut impl Write, tell: impl Fn(u64)) -> ! {
        WRITES.set(true);
        let mut lines = Vec::new();
        loop {
            self.write_some(&mut lines, to, &tell);
        }
    }

    /// Waits for lines and writes all that there are.
    fn write_some(&self, lines: &mut Vec<u8>, to: &mut impl Write, tell: &impl Fn(u64)) {
        let mut state = self.lock();
        while state.waiting.is_empty() && state.untold == 0 {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        std::mem::swap(lines, &mut state.waiting);
        let untold = std::mem::take(&mut state.untold);
        drop(state);
        if untold > 0 {
            tell(untold); // to the queue, behind what has just left it
        }
        if to.write_all(lines).is_err() {
            // The reader is gone, or the disk is full. Lost lines are counted, but the notice has
            // no reader.
            let lost = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.0.dropped.fetch_add(lost, Ordering::Relaxed); // a count; nothing is ordered by it
        }
        lines.clear();
        self.lock().writing = false;
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner) // whole at any time
    }
}

/// A line for each `write`, as the formatter of events makes them.
impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(queue: &Queue, tell: impl Fn(u64)) -> String {
        let mut text = Vec::new();
        queue.write_some(&mut Vec::new(), &mut text, &tell);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_leave_in_order_and_the_count_of_dropped_ones_stands_where_they_are_missing() {
        let queue = Queue::default();
        queue.push(b"first\n");
        queue.push(&[b'x'; MOST_BYTES - 6]);
        queue.push(b"lost\n");
        queue.push(b"lost\n");
        assert_eq!(queue.dropped(), 2);
        let tell = |count| queue.push(format!("{count} are missing\n").as_bytes());
        let text = written(&queue, tell);
        assert!(text.starts_with("first\nxxx") && text.len() == MOST_BYTES);
        queue.push(b"later\n");
        assert_eq!(written(&queue, tell), "2 are missing\nlater\n");
        assert!(queue.drain(Duration::ZERO));
        assert_eq!(queue.dropped(), 2);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let queue = Queue::default();
        queue.push(b"one\ntwo\n");
        queue.write_some(&mut Vec::new(), &mut Gone, &|_| {});
        assert_eq!(queue.dropped(), 2);
        assert!(queue.drain(Duration::ZERO), "nothing is waited for that cannot come");
    }

    #[test]
    fn an_end_does_not_wait_for_a_reader_that_takes_nothing() {
        let queue = Queue::default();
        queue.push(b"nobody reads this\n");
        assert!(!queue.drain(Duration::from_millis(1)));
        queue.push_last(&[b'x'; 2 * MOST_BYTES]);
        assert_eq!(queue.dropped(), 0, "the last line is not dropped");
    }
}
