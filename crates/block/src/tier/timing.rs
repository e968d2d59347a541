//! Measurement of device times. An admission compares the latencies of the cache device and the
//! backing device, by a sample of operations. The size of fetches follows the [price](Price) of the
//! backing device's reads, which are all timed, and of the cache device's writes.
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
//!
//! # Pacing of cleaning
//!
//! The pacer says how many dirty blocks rounds may write to the backing devices at once.
//!
//! Clients feel a write of a round that is ahead of their own operation. So a round waits until no
//! client has used the backing devices for a while (*idle*), and then keeps few writes under way.
//! Beyond half of the dirty limit, cleaning may not wait for that. Its share of the devices' time
//! then grows with the dirty data, up to all that they can take at the limit. So clients slow down
//! smoothly, and dirty data stays where cleaning is as fast as writing.
//!
//! The pacer learns two figures from the operations that it sees. The *service time* is that of an
//! operation that found nothing under way. The *depth* is the number of writes that the devices
//! work on at a time: it rises while writes take about the service time, and falls when they queue.
//!
//! The pacer has no clock and orders nothing; times are nanoseconds since any beginning.

use std::time::{Duration, Instant};

use floe_device::Action;
use floe_policy::admission::Times;

use crate::cache::BlockCache;
use crate::cache::fetch_size::{Line, Price};
use crate::cache::shards::CleaningWanted;
use crate::order::{DeviceId, OpId};

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
    token: u64,
    timed: TimedOp,
    bytes: usize,
    at: Instant,
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
    under_way: Vec<Begun>,
    /// Sums of times since the last report, by [`TimedOp`].
    sums: [Sum; 4],
    /// Recent pace of reads and of writes of the cache device.
    paces: [Pace; 2],
    timed: u32,
    /// Set where an admission needs the mean times.
    for_admission: bool,
    /// Times by size of the backing devices' reads, and of the cache device's writes.
    reads: Line,
    writes: Line,
}

/// A result of timing that is due to be reported to the cache.
enum News {
    Times(Times),
    Price(Price),
}

impl Timing {
    pub(super) fn new(clock: impl Fn() -> Instant + 'static, for_admission: bool) -> Self {
        Self {
            clock: Box::new(clock),
            for_admission,
            reads: Line::default(),
            writes: Line::default(),
            skipped: 0,
            under_way: Vec::new(),
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
        let is_read = timed == TimedOp::BackingRead;
        if !self.for_admission && !is_read && timed != TimedOp::CacheWrite {
            return;
        }
        self.skipped += 1;
        let sampled = self.skipped == TIMED_OF;
        if sampled {
            self.skipped = 0;
        }
        if sampled || is_read {
            self.under_way.push(Begun { token, timed, bytes, at: (self.clock)(), sampled });
        }
    }

    /// Records the end of an operation. Returns the mean times or the price when there are enough
    /// new ones; a failed operation does not count.
    fn end(&mut self, token: u64, ok: bool) -> Option<News> {
        let at = self.under_way.iter().position(|begun| begun.token == token)?;
        let begun = self.under_way.swap_remove(at);
        if !ok {
            return None;
        }
        let ns = (self.clock)().saturating_duration_since(begun.at).as_nanos() as f64;
        match begun.timed {
            TimedOp::BackingRead => self.reads.add(begun.bytes as u64, ns),
            TimedOp::CacheWrite => self.writes.add(begun.bytes as u64, ns),
            _ => {}
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
    }
}

/// Service times without a client's operation after which the backing devices are idle.
const IDLE_TIMES: f64 = 16.0;
/// Ratio to the service time beyond which a write has queued.
const QUEUED: f64 = 2.0;
/// Largest depth, and the amount by which a write that has queued lowers it.
const DEPTH_MAX: f64 = 32.0;
const DEPTH_DOWN: f64 = 0.5;
/// Largest part of clients' operations under way that cleaning has under way beside them, where
/// that is more than the depth.
const QUEUE_PART: f64 = 0.5;
/// Weight of a new service time in the mean.
const WEIGHT: f64 = 0.125;

/// An operation of a backing device that is under way.
#[derive(Debug, Clone, Copy)]
struct PacedOp {
    token: u64,
    cleans: bool,
    at_ns: u64,
    /// Set if nothing else was under way.
    alone: bool,
}

/// Decides how many blocks rounds may clean at once.
#[derive(Debug)]
pub(super) struct Pacer {
    under_way: Vec<PacedOp>,
    /// Clients' operations under way, and the time at which the last one ended.
    clients: usize,
    client_ns: u64,
    /// Mean service time; `None` until it is known.
    service_ns: Option<f64>,
    depth: f64,
    /// Time before which no block may be cleaned, while less than one at a time is allowed.
    rest_until_ns: u64,
    /// Share of the devices' time that cleaning may have, as of the last decision, in writes under
    /// way.
    share: f64,
}

/// Blocks that may be cleaned at once now, and the time at which more may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    pub(super) at_once: usize,
    /// `None` where only the end of an operation can change the pace.
    pub(super) until_ns: Option<u64>,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self {
            under_way: Vec::new(),
            clients: 0,
            client_ns: 0,
            service_ns: None,
            depth: 1.0,
            rest_until_ns: 0,
            share: 0.0,
        }
    }

    /// Records the start of an operation of a backing device, for a client or to clean.
    pub(super) fn begin(&mut self, token: u64, cleans: bool, now_ns: u64) {
        let alone = self.under_way.is_empty();
        self.clients += usize::from(!cleans);
        self.under_way.push(PacedOp { token, cleans, at_ns: now_ns, alone });
    }

    /// Records the end of an operation.
    pub(super) fn end(&mut self, token: u64, now_ns: u64) {
        let at = self.under_way.iter().position(|begun| begun.token == token);
        let Some(PacedOp { cleans, at_ns, alone, .. }) =
            at.map(|at| self.under_way.swap_remove(at))
        else {
            return;
        };
        let took_ns = now_ns.saturating_sub(at_ns) as f64;
        if alone {
            let mean = self.service_ns.get_or_insert(took_ns);
            *mean += WEIGHT * (took_ns - *mean);
        }
        if !cleans {
            self.clients -= 1;
            self.client_ns = now_ns;
            return;
        }
        if let Some(service_ns) = self.service_ns {
            let change = if took_ns > QUEUED * service_ns { -DEPTH_DOWN } else { 1.0 / self.depth };
            self.depth = (self.depth + change).clamp(1.0, DEPTH_MAX);
        }
        if self.share > 0.0 && self.share < 1.0 {
            // One write at a time, and a rest in proportion.
            self.rest_until_ns = now_ns + (took_ns * (1.0 / self.share - 1.0)) as u64;
        }
    }

    /// Returns the pace at a time, with dirty data of this urgency: 0 up to half of the dirty
    /// limit, 1 at the limit.
    pub(super) fn pace(&mut self, urgency: f64, now_ns: u64) -> Allowance {
        let idle_from_ns = self.client_ns + (IDLE_TIMES * self.service_ns.unwrap_or(0.0)) as u64;
        let is_idle = self.clients == 0 && now_ns >= idle_from_ns;
        let idle_until_ns = (self.clients == 0 && !is_idle).then_some(idle_from_ns);
        // Clients beyond the depth wait in the devices' queue, and cleaning with them.
        let urgent = urgency * self.depth.max(QUEUE_PART * self.clients as f64);
        self.share = if is_idle { urgent.max(self.depth / 2.0).max(1.0) } else { urgent };
        if self.share <= 0.0 {
            return Allowance { at_once: 0, until_ns: idle_until_ns };
        }
        if self.share < 1.0 && now_ns < self.rest_until_ns {
            let until_ns = idle_until_ns.into_iter().chain([self.rest_until_ns]).min();
            return Allowance { at_once: 0, until_ns };
        }
        Allowance { at_once: (self.share as usize).max(1), until_ns: idle_until_ns }
    }
}

/// A pacer with its clock.
pub(crate) struct Paced {
    clock: Box<dyn Fn() -> Instant>,
    epoch: Instant,
    pacer: Pacer,
    /// Set once cleaning is paced.
    paces: bool,
    /// Time from which more may be cleaned, if only time has to pass.
    pub(crate) due: Option<Instant>,
}

impl Paced {
    pub(super) fn new(clock: impl Fn() -> Instant + 'static) -> Self {
        let epoch = clock();
        Self { clock: Box::new(clock), epoch, pacer: Pacer::new(), paces: false, due: None }
    }

    fn now_ns(&self) -> u64 {
        (self.clock)().saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Records the start of an operation of a backing device.
    pub(super) fn begin(&mut self, op: OpId, cleans: bool) {
        self.pacer.begin(op.0, cleans, self.now_ns());
    }

    /// Records the end of an operation of a backing device. Returns whether cleaning is to be paced
    /// from now on: once the devices are known to take time.
    pub(super) fn end(&mut self, op: OpId) -> bool {
        self.pacer.end(op.0, self.now_ns());
        let takes_time = self.pacer.service_ns.is_some_and(|ns| ns > 0.0);
        takes_time && !std::mem::replace(&mut self.paces, true)
    }

    /// Returns the number of blocks that may begin to be cleaned now.
    #[inline]
    pub(super) fn turns(&mut self, wanted: Option<CleaningWanted>) -> usize {
        self.due = None;
        let Some(CleaningWanted { under_way, urgency }) = wanted.filter(|_| self.paces) else {
            return 0;
        };
        let pace = self.pacer.pace(urgency, self.now_ns());
        self.due = pace.until_ns.map(|ns| self.epoch + Duration::from_nanos(ns));
        pace.at_once.saturating_sub(under_way)
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
        (Timing::new(move || epoch + Duration::from_nanos(clock.get()), true), passed)
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
        let mut timing = Timing::new(move || epoch + Duration::from_nanos(clock.get()), false);
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

#[cfg(test)]
mod pacer_tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Has operations of a disk that serves one at a time, each for 8 ms, from `now_ns` on, all
    /// begun at once. Returns the time of the last one's end.
    fn serve(pacer: &mut Pacer, now_ns: u64, cleans: &[bool]) -> u64 {
        for (token, &cleans) in cleans.iter().enumerate() {
            pacer.begin(token as u64, cleans, now_ns);
        }
        (0..cleans.len() as u64).fold(now_ns, |end_ns, token| {
            pacer.end(token, end_ns + 8 * MS);
            end_ns + 8 * MS
        })
    }

    #[test]
    fn nothing_is_cleaned_beside_clients_below_half_of_the_limit() {
        let mut pacer = Pacer::new();
        let now_ns = serve(&mut pacer, 0, &[false]);
        let idle_ns = now_ns + 16 * 8 * MS;
        assert_eq!(pacer.pace(0.0, now_ns), Allowance { at_once: 0, until_ns: Some(idle_ns) });
        assert_eq!(pacer.pace(0.0, idle_ns), Allowance { at_once: 1, until_ns: None });
        pacer.begin(9, false, idle_ns);
        assert_eq!(pacer.pace(0.0, idle_ns + 1000 * MS), Allowance { at_once: 0, until_ns: None });
    }

    #[test]
    fn cleaning_has_a_share_of_the_time_that_grows_to_the_limit() {
        let mut pacer = Pacer::new();
        let now_ns = serve(&mut pacer, 0, &[false]);
        pacer.begin(8, false, now_ns); // a client is always there
        assert_eq!(pacer.pace(0.25, now_ns), Allowance { at_once: 1, until_ns: None });
        pacer.begin(9, true, now_ns);
        pacer.end(9, now_ns + 8 * MS);
        // A quarter of the time: a rest three times as long as the write.
        let next_ns = now_ns + 4 * 8 * MS;
        pacer.depth = 1.0;
        assert_eq!(
            pacer.pace(0.25, now_ns + 8 * MS),
            Allowance { at_once: 0, until_ns: Some(next_ns) }
        );
        assert_eq!(pacer.pace(0.25, next_ns).at_once, 1);
        assert_eq!(pacer.pace(1.0, now_ns + 8 * MS).at_once, 1);
    }

    #[test]
    fn the_depth_is_that_of_the_device() {
        let mut disk = Pacer::new();
        let mut now_ns = serve(&mut disk, 0, &[true]);
        for _ in 0..200 {
            let at_once = disk.pace(1.0, now_ns).at_once;
            now_ns = serve(&mut disk, now_ns, &vec![true; at_once]);
        }
        assert!(disk.depth < 4.0, "{}", disk.depth);
        let mut cloud = Pacer::new();
        for _ in 0..200 {
            let at_once = cloud.pace(1.0, now_ns).at_once as u64;
            (0..at_once).for_each(|token| cloud.begin(token, true, now_ns));
            now_ns += MS;
            (0..at_once).for_each(|token| cloud.end(token, now_ns));
        }
        assert_eq!(cloud.depth, DEPTH_MAX);
    }
}
