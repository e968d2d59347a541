//! The device under measurement: a range of bytes reserved for it, and its clock.
//!
//! A measurement writes, so it uses a device only where no data can be lost. One such place is a
//! new file, which is removed as soon as it is open. The other is a range in the middle of an empty
//! device, which reads as zeros before and afterwards. A device that holds a persistent cache is
//! never used.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use floe_device::{
    Action, Completion, Device, OpenError, Operation, Pool, Ring, RingError, Role, Slice, Spec,
};
use floe_server::DeviceSource;
use floe_server::persistent::{Holds, StartError, holds};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::replay::{Clock, StageError, VirtualClock, simulated};

/// Number of submissions that the io_uring ring holds.
const RING_ENTRIES: u32 = 512;

/// Initial size in bytes of the buffer pool for operations in flight; it grows as needed.
const ARENA_BYTES: usize = 32 << 20;

/// Number of bytes to read, fill or zero at a time.
const STRIDE_BYTES: u64 = 1 << 20;

/// Errors of preparing a device for a measurement.
#[derive(Debug, thiserror::Error)]
pub enum TestBedError {
    /// The kernel refused to create an io_uring ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The contents of the device cannot be examined.
    #[error(transparent)]
    Look(#[from] StartError),
    /// The device cannot be simulated.
    #[error(transparent)]
    Simulate(#[from] StageError),
    /// A device in virtual time names no medium, so its operations would take no time.
    #[error(
        "{0} names no medium, so it would take no time in virtual time: name one, such as \
         {0},medium=nvme"
    )]
    NoTime(String),
    /// The device holds a persistent cache.
    #[error(
        "{0} holds a persistent cache, which a measurement would overwrite; measure a new file on \
         the same disk, or the disk before a cache is made"
    )]
    KeptCache(String),
    /// The device holds data, and overwriting was not allowed.
    #[error("{0} holds data, which a measurement would overwrite; give --overwrite to allow that")]
    Data(String),
    /// The device is too small for a measurement.
    #[error("only {bytes} bytes of {spec} can be used; a measurement takes {wanted} at least")]
    Small {
        /// The device, as named on the command line.
        spec: String,
        /// Usable bytes of the device.
        bytes: u64,
        /// Bytes that a measurement needs.
        wanted: u64,
    },
    /// The file or device to read from does not exist.
    #[error("{} does not exist, so there is nothing to read from it", .0.display())]
    Missing(PathBuf),
    /// A file that was created for the measurement cannot be removed.
    #[error("cannot remove {}, which was made for the measurement: {source}", path.display())]
    Remove {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An operation on the device failed.
    #[error("{doing} {spec}: {source}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The device, as named on the command line.
        spec: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// A device to measure, and the range of it that the measurement uses.
pub struct TestBed {
    // Before the clock, which has the ring it is on.
    pub(super) device: Box<dyn Device>,
    pub(super) clock: Clock,
    pub(super) pool: Pool,
    pub(super) range: Range<u64>,
    name: String,
    /// True if the range must be zeroed after the measurement.
    restores: bool,
}

impl TestBed {
    /// Opens a device to write to: a range of up to `scratch_bytes`, and at least `least_bytes`. A
    /// missing file is created and at once removed. An existing device must be empty, unless
    /// `overwrite` is set.
    ///
    /// # Errors
    /// When the device holds data or a persistent cache, is too small, or fails.
    pub fn to_write(
        spec: &Spec,
        scratch_bytes: u64,
        least_bytes: u64,
        overwrite: bool,
    ) -> Result<Self, TestBedError> {
        let missing: Vec<&PathBuf> = spec.paths().iter().filter(|path| !path.exists()).collect();
        let is_new = !missing.is_empty();
        let found = if is_new { spec.size_bytes() } else { spec.size_found() };
        let size = found.unwrap_or(scratch_bytes);
        let source = spec.prepare(Role::Cache { size });
        for path in missing {
            // It stays for as long as it is open.
            match fs::remove_file(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(TestBedError::Remove { path: path.clone(), source });
                }
                _ => {}
            }
        }
        let source: Arc<dyn DeviceSource> = Arc::new(source?);
        let is_others = !is_new && !spec.is_memory();
        if is_others {
            match holds(&source)? {
                Holds::Cache => return Err(TestBedError::KeptCache(spec.to_string())),
                Holds::Data if !overwrite => return Err(TestBedError::Data(spec.to_string())),
                Holds::Data | Holds::Nothing => {}
            }
        }
        let mut bed = Self::on(&source, spec)?;
        bed.range = bed.middle(scratch_bytes, least_bytes)?;
        if is_others {
            if !overwrite && !bed.is_zero()? {
                return Err(TestBedError::Data(spec.to_string()));
            }
            bed.restores = true;
        }
        bed.fill()?;
        Ok(bed)
    }

    /// Opens a device that is only read.
    ///
    /// # Errors
    /// When the device does not exist, is too small, or fails.
    pub fn to_read(spec: &Spec, least_bytes: u64) -> Result<Self, TestBedError> {
        if let Some(path) = spec.paths().iter().find(|path| !path.exists()) {
            return Err(TestBedError::Missing(path.clone()));
        }
        let source: Arc<dyn DeviceSource> =
            Arc::new(spec.prepare(Role::Backing { read_only: true })?);
        let mut bed = Self::on(&source, spec)?;
        bed.range = bed.middle(u64::MAX, least_bytes)?;
        Ok(bed)
    }

    /// Creates a simulated device, whose operations take as long as on its medium. No file is
    /// touched.
    ///
    /// # Errors
    /// When the device has no medium, or is too small.
    pub fn simulated(
        spec: &Spec,
        scratch_bytes: u64,
        least_bytes: u64,
    ) -> Result<Self, TestBedError> {
        if spec.medium().is_none() {
            return Err(TestBedError::NoTime(spec.to_string()));
        }
        let clock = VirtualClock::default();
        let size = spec.size_found().unwrap_or(scratch_bytes);
        let mut bed = Self {
            device: simulated(spec, size, &clock, false, Duration::ZERO)?,
            clock: Clock::Virtual(clock),
            pool: Pool::new(ARENA_BYTES),
            range: 0..0,
            name: spec.to_string(),
            restores: false,
        };
        bed.range = bed.middle(scratch_bytes, least_bytes)?;
        Ok(bed)
    }

    fn on(source: &Arc<dyn DeviceSource>, spec: &Spec) -> Result<Self, TestBedError> {
        let (ring, pool) = (Ring::new(RING_ENTRIES)?, Pool::new(ARENA_BYTES));
        let _ = ring.register_pool(&pool); // without, I/O costs a little more
        let device = source.open(&ring, &pool)?;
        let (clock, name) = (Clock::Real(ring), spec.to_string());
        Ok(Self { device, clock, pool, range: 0..0, name, restores: false })
    }

    /// Returns a range of `bytes` in the middle of the device, or of the whole device if it is
    /// smaller.
    fn middle(&self, bytes: u64, least_bytes: u64) -> Result<Range<u64>, TestBedError> {
        let size = self.device.size_bytes();
        let len = bytes.min(size) / STRIDE_BYTES * STRIDE_BYTES;
        if len < least_bytes.max(STRIDE_BYTES) {
            let wanted = least_bytes.max(STRIDE_BYTES);
            return Err(TestBedError::Small {
                spec: self.name.clone(),
                bytes: bytes.min(size),
                wanted,
            });
        }
        let start = (size - len) / 2 / STRIDE_BYTES * STRIDE_BYTES;
        Ok(start..start + len)
    }

    /// Returns whether the whole range reads as zeros.
    fn is_zero(&mut self) -> Result<bool, TestBedError> {
        let into = self.pool.allocate(STRIDE_BYTES as usize).whole();
        for offset in self.strides() {
            self.carry_out("reading", offset, Action::Read(into.clone()))?;
            if into.to_vec().iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the whole range once, since a device may read data that was never written without
    /// accessing its medium.
    fn fill(&mut self) -> Result<(), TestBedError> {
        let from = self.random_bytes(STRIDE_BYTES);
        for offset in self.strides() {
            let action = Action::Write { from: from.clone(), durable: false };
            self.carry_out("writing to", offset, action)?;
        }
        self.carry_out("flushing", 0, Action::Flush)
    }

    /// Zeroes the range again, if it was zero before. To be called at the end of a measurement.
    ///
    /// # Errors
    /// When the device fails.
    pub fn restore(mut self) -> Result<(), TestBedError> {
        if !std::mem::take(&mut self.restores) {
            return Ok(());
        }
        for offset in self.strides() {
            let action = Action::Zero { len: STRIDE_BYTES, may_unmap: true, fast: false };
            self.carry_out("zeroing", offset, action)?;
        }
        self.carry_out("flushing", 0, Action::Flush)
    }

    /// Returns a buffer filled with incompressible data.
    pub(super) fn random_bytes(&self, bytes: u64) -> Slice {
        let words = (0..bytes / 8).flat_map(|word| floe_policy::mix(word).to_le_bytes());
        let slice = self.pool.allocate(bytes as usize).whole();
        slice.copy_from(&words.collect::<Vec<u8>>());
        slice
    }

    fn strides(&self) -> impl Iterator<Item = u64> + use<> {
        self.range.clone().step_by(STRIDE_BYTES as usize)
    }

    /// Runs one operation, and waits for its completion.
    fn carry_out(
        &mut self,
        doing: &'static str,
        offset: u64,
        action: Action,
    ) -> Result<(), TestBedError> {
        let mut done = Vec::new();
        self.device.submit(Operation { token: 0, offset, action });
        let result = loop {
            self.device.poll(&mut done);
            if let Some(completion) = done.pop() {
                break completion.result;
            }
            if let Err(error) = self.clock.wait_until(self.device.next_due()) {
                break Err(error);
            }
        };
        result.map_err(|source| TestBedError::Io { doing, spec: self.name.clone(), source })
    }
}

/// Longest latency that histograms distinguish: a minute, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Ratio of a round's length to that of the uncounted time before it.
const SETTLE: u32 = 5;

/// Minimum number of reads in a round. A round with fewer is extended up to [`PATIENCE`] times its
/// length.
const READS_LEAST: u64 = 8;
const PATIENCE: u32 = 100;

/// Block size, share of writes and queue depth of the operations on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mix {
    /// Size of each operation in bytes.
    pub(super) block_bytes: u64,
    /// Share of the operations that write.
    pub(super) write_share: f64,
    /// Operations in flight.
    pub(super) depth: usize,
}

/// Latencies in nanoseconds of the operations that completed in a round.
#[derive(Debug)]
pub(super) struct Round {
    /// Length of the round in seconds, any extension included.
    pub(super) seconds: f64,
    pub(super) read_ns: Histogram<u64>,
    pub(super) write_ns: Histogram<u64>,
}

struct Slot {
    buffer: Slice,
    writes: bool,
    began: Instant,
}

/// The closed loop of a round, with its operations in flight.
struct Loop<'a> {
    bed: &'a mut TestBed,
    mix: Mix,
    slots: Vec<Slot>,
    random: SmallRng,
    /// Writes owed to reach the share of writes, as a fraction of an operation.
    due: f64,
}

/// Runs a round of a mix of reads and writes. The same bed, mix and seed give the same operations.
///
/// # Errors
/// The first operation that fails.
pub(super) fn run(bed: &mut TestBed, mix: Mix, length: Duration, seed: u64) -> io::Result<Round> {
    let now = bed.clock.now();
    let slots = (0..mix.depth).map(|_| Slot {
        buffer: bed.random_bytes(mix.block_bytes),
        writes: false,
        began: now,
    });
    let slots = slots.collect();
    let from = now + length / SETTLE;
    let until = from + length;
    let histogram =
        || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
    let mut round =
        Round { seconds: length.as_secs_f64(), read_ns: histogram(), write_ns: histogram() };
    let mut at_work = Loop { bed, mix, slots, random: SmallRng::seed_from_u64(seed), due: 0.0 };
    (0..mix.depth).for_each(|slot| at_work.begin(slot));
    let (mut in_flight, mut done, mut is_over) = (mix.depth, Vec::new(), false);
    while in_flight > 0 {
        at_work.bed.device.poll(&mut done);
        if done.is_empty() {
            at_work.bed.clock.wait_until(at_work.bed.device.next_due())?;
            continue;
        }
        let now = at_work.bed.clock.now();
        for Completion { token, result } in done.drain(..) {
            result?;
            is_over |= now >= until && round.has_enough() || now >= from + length * PATIENCE;
            let slot = &at_work.slots[token as usize];
            if now >= from && !is_over {
                let latencies = if slot.writes { &mut round.write_ns } else { &mut round.read_ns };
                latencies.saturating_record((now - slot.began).as_nanos() as u64);
                round.seconds = round.seconds.max((now - from).as_secs_f64());
            }
            if is_over {
                in_flight -= 1;
            } else {
                at_work.begin(token as usize);
            }
        }
    }
    Ok(round)
}

impl Round {
    /// Returns whether the round has enough reads for a result.
    pub(super) fn has_enough(&self) -> bool {
        self.read_ns.len() >= READS_LEAST
    }
}

impl Loop<'_> {
    fn begin(&mut self, at: usize) {
        let Mix { block_bytes, write_share, .. } = self.mix;
        let range = &self.bed.range;
        let blocks = (range.end - range.start) / block_bytes;
        let offset = range.start + self.random.random_range(0..blocks) * block_bytes;
        self.due += write_share;
        let writes = self.due >= 1.0;
        self.due -= f64::from(u8::from(writes));
        let slot = &mut self.slots[at];
        (slot.writes, slot.began) = (writes, self.bed.clock.now());
        let slice = slot.buffer.clone();
        let action = if writes {
            Action::Write { from: slice, durable: false }
        } else {
            Action::Read(slice)
        };
        self.bed.device.submit(Operation { token: at as u64, offset, action });
    }
}
