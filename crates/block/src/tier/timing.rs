//! Measurement of device times. An admission compares the latencies of the cache device and the
//! backing device, by a sample of operations. The size of fetches follows the [price](Price) of the
//! backing device's reads, which are all timed, by what was under way before each, and of the cache
//! device's writes. The [bound on fills](crate::shard::fills::Fills) follows the same reads and
//! the writes of the cache device, by what was under way before each.
//!
//! Devices are timed only if the cache needs it, and only by a clock that the tier was given: the
//! machine's, or a simulated one. An operation is timed from its submission to the device until its
//! completion is handled. So the time includes waiting in the device's queue, as a client's time
//! does.
//!
//! The [cost of a write](Times::write_cost) is the time of a byte written over that of a byte read.
//! Let reads take *r* a byte beside writes and *r*₀ without, writes *w*, and *n* bytes be read for
//! each one written. With a fixed number of operations under way, a byte written then costs (*w* +
//! *n* (*r* − *r*₀)) / *r*₀ bytes read. The reported value, *w* / *r*, is never more. It omits the
//! effect of writes on reads, as *r*₀ is not known while there are writes; that takes a
//! calibration.

use std::collections::HashMap;
use std::time::Instant;

use floe_device::Action;
use floe_policy::admission::Times;
use foldhash::fast::FixedState;

use crate::cache::BlockCache;
use crate::cache::price::{Ahead, Line, Price, Reads};
use crate::geometry::SECTOR_BYTES;
use crate::order::DeviceId;

/// Sampling interval: one of 8 operations is sampled, and the means of 64 of these are reported at
/// once.
const TIMED_OF: u32 = 8;
const TOLD_AT_ONCE: u32 = 64;

/// Number of reads between two reports of the price.
const PRICED_AT_ONCE: u32 = 16;

/// The types of operations that are timed separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimedOp {
    CacheRead,
    CacheWrite,
    BackingRead,
    BackingWrite,
}

/// A timed operation that is under way.
#[derive(Debug, Clone, Copy)]
struct Begun {
    device: DeviceId,
    timed: TimedOp,
    bytes: usize,
    at: Instant,
    /// For reads of a backing device and writes to the cache device: what was under way before.
    ahead: Ahead,
    /// Set if the operation belongs to the sample for the mean times.
    sampled: bool,
}

/// Sum of the times of ended operations of one type.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    operations: u32,
    bytes: u64,
    ns: f64,
}

impl Sum {
    fn mean_ns(self) -> Option<f64> {
        (self.operations > 0).then(|| self.ns / f64::from(self.operations))
    }
}

/// Share of a sum that is kept at each report, for figures that one report's operations are too few
/// for: some reports have few writes.
const LEFT: f64 = 0.875;

/// Recent bytes moved, and the time they took.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    bytes: f64,
    ns: f64,
}

impl Pace {
    /// Adds a sum, and returns the nanoseconds per byte.
    fn after(&mut self, sum: Sum) -> Option<f64> {
        self.bytes = self.bytes * LEFT + sum.bytes as f64;
        self.ns = self.ns * LEFT + sum.ns;
        (self.bytes > 0.0).then(|| self.ns / self.bytes)
    }
}

/// The times of operations since the last report.
pub(super) struct Timing {
    clock: Box<dyn Fn() -> Instant>,
    /// Operations to skip until the next one is sampled.
    skipped: u32,
    /// Timed operations under way, by their tokens.
    begun: HashMap<u64, Begun, FixedState>,
    /// All that is under way on each device that is waited for, but for the cache device's reads.
    under_way: HashMap<DeviceId, Ahead, FixedState>,
    /// Sums of times since the last report, by [`TimedOp`].
    sums: [Sum; 4],
    /// Recent pace of reads and of writes of the cache device.
    paces: [Pace; 2],
    timed: u32,
    /// Set where an admission needs the mean times.
    for_admission: bool,
    /// Set where fills are stored on a device in whose queue they can wait for each other.
    for_fills: bool,
    /// Times of the backing devices' reads, by size and by what was ahead.
    reads: Reads,
    /// Times of a sample of the cache device's writes, by size.
    writes: Line,
    /// Times of all the cache device's writes, by size and by what was ahead.
    stores: Reads,
}

/// Returns the sectors of an operation of this many bytes.
fn sectors(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(SECTOR_BYTES)
}

/// A result of timing that is due to be reported to the cache.
enum News {
    Times(Times),
    Price(Price),
}

impl Timing {
    pub(super) fn new(
        clock: impl Fn() -> Instant + 'static,
        for_admission: bool,
        for_fills: bool,
    ) -> Self {
        Self {
            clock: Box::new(clock),
            for_admission,
            for_fills,
            reads: Reads::default(),
            writes: Line::default(),
            stores: Reads::default(),
            skipped: 0,
            begun: HashMap::default(),
            under_way: HashMap::default(),
            sums: [Sum::default(); 4],
            paces: [Pace::default(); 2],
            timed: 0,
        }
    }

    /// Records the start of an operation, if it is to be timed.
    pub(super) fn begin(&mut self, device: DeviceId, token: u64, action: &Action) {
        let (timed, bytes) = match (device, action) {
            (DeviceId::Cache, Action::Read(to)) => (TimedOp::CacheRead, to.len()),
            (DeviceId::Cache, Action::Write { from, .. }) => (TimedOp::CacheWrite, from.len()),
            (DeviceId::Backing(_), Action::Read(to)) => (TimedOp::BackingRead, to.len()),
            (DeviceId::Backing(_), Action::Write { from, .. }) => {
                (TimedOp::BackingWrite, from.len())
            }
            _ => return,
        };
        if !self.for_admission && timed == TimedOp::CacheRead {
            return;
        }
        let is_modelled = timed != TimedOp::CacheRead;
        self.skipped += 1;
        let sampled = self.skipped == TIMED_OF;
        if sampled {
            self.skipped = 0;
        }
        if sampled || is_modelled {
            let mut ahead = Ahead::default();
            if is_modelled {
                let under_way = self.under_way.entry(device).or_default();
                ahead = *under_way;
                under_way.operations += 1;
                under_way.sectors += sectors(bytes);
            }
            let at = (self.clock)();
            let begun = Begun { device, timed, bytes, at, ahead, sampled };
            let before = self.begun.insert(token, begun);
            debug_assert!(before.is_none(), "tokens of operations under way differ");
        }
    }

    /// Records the end of an operation. Returns the mean times or the price when there are enough
    /// new ones; a failed operation does not count.
    fn end(&mut self, token: u64, ok: bool) -> Option<News> {
        let begun = self.begun.remove(&token)?;
        if begun.timed != TimedOp::CacheRead {
            let under_way = self.under_way.get_mut(&begun.device).expect("it has begun there");
            under_way.operations -= 1;
            under_way.sectors -= sectors(begun.bytes);
        }
        if !ok {
            return None;
        }
        let ns = (self.clock)().saturating_duration_since(begun.at).as_nanos() as f64;
        match begun.timed {
            TimedOp::BackingRead => self.reads.add(begun.bytes as u64, begun.ahead, ns),
            TimedOp::CacheWrite => {
                self.stores.add(begun.bytes as u64, begun.ahead, ns);
                if begun.sampled {
                    self.writes.add(begun.bytes as u64, ns);
                }
            }
            _ => {}
        }
        if !self.for_admission && begun.timed != TimedOp::BackingRead {
            return None;
        }
        if !self.for_admission {
            self.timed = (self.timed + 1) % PRICED_AT_ONCE;
            return (self.timed == 0).then(|| News::Price(self.reads.price(&self.writes)));
        }
        if !begun.sampled {
            return None;
        }
        let sum = &mut self.sums[begun.timed as usize];
        sum.operations += 1;
        sum.bytes += begun.bytes as u64;
        sum.ns += ns;
        self.timed += 1;
        if self.timed < TOLD_AT_ONCE {
            return None;
        }
        self.timed = 0;
        let sums = std::mem::take(&mut self.sums);
        let mean = |timed: TimedOp| sums[timed as usize].mean_ns();
        let [reads, writes] = &mut self.paces;
        let read = reads.after(sums[TimedOp::CacheRead as usize]);
        let written = writes.after(sums[TimedOp::CacheWrite as usize]);
        Some(News::Times(Times {
            hit_ns: mean(TimedOp::CacheRead),
            backing_read_ns: mean(TimedOp::BackingRead),
            backing_write_ns: mean(TimedOp::BackingWrite),
            insert_ns: mean(TimedOp::CacheWrite),
            write_cost: written
                .zip(read.filter(|ns| *ns > 0.0))
                .map(|(written, read)| written / read),
        }))
    }
}

/// Records the end of an operation, if operations are timed, and reports the times to the cache
/// when there are enough.
#[inline]
pub(super) fn note_end(timing: &mut Option<Timing>, cache: &mut BlockCache, token: u64, ok: bool) {
    if let Some(timing) = timing
        && let Some(news) = timing.end(token, ok)
    {
        match news {
            News::Times(times) => {
                cache.observe(&times);
                cache.shards.set_price(timing.reads.price(&timing.writes));
            }
            News::Price(price) => cache.shards.set_price(price),
        }
        if timing.for_fills {
            cache.shards.set_fill_times(timing.reads.fill_times(&timing.stores));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use floe_device::Pool;

    use super::*;
    use crate::geometry::VolumeId;

    /// Returns a timing with a clock that shows the returned number of nanoseconds.
    fn timing() -> (Timing, Rc<Cell<u64>>) {
        let (epoch, passed) = (Instant::now(), Rc::new(Cell::new(0)));
        let clock = Rc::clone(&passed);
        (Timing::new(move || epoch + Duration::from_nanos(clock.get()), true, true), passed)
    }

    fn times(news: Option<News>) -> Option<Times> {
        match news? {
            News::Times(times) => Some(times),
            News::Price(_) => None,
        }
    }

    #[test]
    fn without_an_admission_reads_of_the_volume_alone_give_a_price() {
        let (epoch, passed) = (Instant::now(), Rc::new(Cell::new(0)));
        let clock = Rc::clone(&passed);
        let clock = move || epoch + Duration::from_nanos(clock.get());
        let mut timing = Timing::new(clock, false, false);
        let pool = Pool::new(0);
        let mut prices = Vec::new();
        for token in 0..512 {
            // 1 ms, and 10 µs a sector.
            let sectors = 1 + token % 5 * 16;
            let read = Action::Read(pool.allocate(4096 * sectors as usize).whole());
            timing.begin(DeviceId::Backing(VolumeId(0)), token, &read);
            timing.begin(DeviceId::Cache, 1000 + token, &read);
            passed.set(passed.get() + 1_000_000 + 10_000 * sectors);
            assert!(timing.end(1000 + token, true).is_none());
            if let Some(News::Price(price)) = timing.end(token, true) {
                prices.push(price.sectors_an_operation());
            }
        }
        assert_eq!(prices.len(), 32);
        assert!((prices[31] - 100.0).abs() < 2.0, "{prices:?}");
    }

    #[test]
    fn means_are_of_what_was_timed_and_of_each_device_apart() {
        let (mut timing, passed) = timing();
        let read = Action::Read(Pool::new(0).allocate(4096).whole());
        let mut told = Vec::new();
        // As many reads of each; those of the cache take 10 ns, the others 300, and every third
        // fails.
        for token in 0..u64::from(2 * TOLD_AT_ONCE * TIMED_OF) {
            let (device, ns) = match token / u64::from(TIMED_OF) % 2 {
                0 => (DeviceId::Cache, 10),
                _ => (DeviceId::Backing(VolumeId(0)), 300),
            };
            timing.begin(device, token, &read);
            passed.set(passed.get() + ns);
            told.extend(times(timing.end(token, !token.is_multiple_of(3))));
        }
        let [times] = told[..] else { panic!("enough of them went well for one time: {told:?}") };
        let expected =
            Times { hit_ns: Some(10.0), backing_read_ns: Some(300.0), ..Times::default() };
        assert_eq!(times, expected);
    }

    #[test]
    fn a_write_costs_as_many_bytes_read_as_fit_into_its_time() {
        let (mut timing, passed) = timing();
        let pool = Pool::new(0);
        let read = Action::Read(pool.allocate(4096).whole());
        let write = Action::Write { from: pool.allocate(32768).whole(), durable: false };
        let mut told = Vec::new();
        // Three of four read 4 KiB in 1 µs, 250 ns a KiB; the fourth writes 32 KiB in 40 µs, 1250
        // ns a KiB. Those of the volume take longer by far, and do not count.
        for token in 0..u64::from(TOLD_AT_ONCE * TIMED_OF) {
            let (device, action, ns) = match token / u64::from(TIMED_OF) % 8 {
                0..3 => (DeviceId::Cache, &read, 1000),
                3 => (DeviceId::Cache, &write, 40_000),
                at => {
                    (DeviceId::Backing(VolumeId(0)), if at < 6 { &read } else { &write }, 1_000_000)
                }
            };
            timing.begin(device, token, action);
            passed.set(passed.get() + ns);
            told.extend(times(timing.end(token, true)));
        }
        assert_eq!(told.iter().map(|times| times.write_cost).collect::<Vec<_>>(), [Some(5.0)]);
    }
}
