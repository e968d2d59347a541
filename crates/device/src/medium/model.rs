//! A model that computes when an operation on a storage medium completes.
//!
//! A medium is a few servers behind a bus. An operation waits for a free server (queue depth),
//! keeps it for a log-normal latency, and moves its bytes over a bus that it shares with the other
//! operations of its direction. It is done when both are. While others write, reads get less of the
//! bus and wait longer (*write interference*). A table gives the slowdown, as measured in "Writes
//! Hurt" (NVCache): its eight readers on Optane get 12 GB/s alone, 3.4 with one writer, 0.8 with
//! eight.
//!
//! Memory-like media answer faster than any timer: they have only the bus, as a token bucket that
//! lets short bursts through at once.
//!
//! Invariants: there is no clock and no hidden state, so equal seeds and calls give equal answers.
//! A larger operation in the same position never completes earlier. Over any long run a direction's
//! bytes stay within its bandwidth.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

use crate::buffer::SECTOR_BYTES;
use crate::device::Action;

/// Standard deviations from the median to the 99th percentile of a normal distribution.
const P99_DEVIATIONS: f64 = 2.326_347_9;
/// The number of standard deviations at which latency samples are cut off, so that one outlier does
/// not stall a run.
const DEVIATIONS_MAX: f64 = 4.0;
/// The time in nanoseconds by which a token bucket may run ahead of the clock.
const BURST_NS: f64 = 100_000.0;

/// The direction of an operation's data transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Data from the medium.
    Read,
    /// Data to the medium.
    Write,
    /// A flush, which waits for the writes in flight.
    Flush,
}

impl Direction {
    /// Returns the direction of an action, and the number of bytes transferred.
    pub fn of(action: &Action) -> (Direction, u64) {
        match action {
            Action::Read(into) => (Direction::Read, into.len() as u64),
            Action::Write { from, .. } => (Direction::Write, from.len() as u64),
            // A command without data: the medium unmaps rather than writes.
            Action::Zero { .. } | Action::Discard { .. } => (Direction::Write, 0),
            Action::Flush => (Direction::Flush, 0),
        }
    }
}

/// Latency and throughput of one direction: reads or writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Median latency of a 4 KiB operation on an idle medium, in nanoseconds.
    pub median_ns: f64,
    /// 99th percentile of the latency of a 4 KiB operation on an idle medium, in nanoseconds.
    pub p99_ns: f64,
    /// Total throughput in bytes per second.
    pub bytes_per_second: f64,
    /// Limit on the total operations per second, beyond the limit that queue depth and latency
    /// imply.
    pub operations_per_second: f64,
}

/// The slowdown of reads while `writers` writes are in flight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interference {
    /// Concurrent writes.
    pub writers: u32,
    /// Fraction of the read throughput that remains.
    pub read_throughput: f64,
    /// Factor on the read latency.
    pub read_latency: f64,
}

/// The way in which the model times completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// Each operation has its own latency.
    Latency,
    /// Only bandwidth is limited, by a token bucket; latencies are below the resolution of a timer.
    Budget,
}

/// A kind of storage with its performance parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Medium {
    /// The name used in device specifications.
    pub name: &'static str,
    /// The description in help texts.
    pub description: &'static str,
    /// Performance of reads.
    pub read: Path,
    /// Performance of writes.
    pub write: Path,
    /// Latency of a flush in nanoseconds, once the writes before it are done.
    pub flush_ns: f64,
    /// Operations that the medium works on at a time.
    pub servers: u32,
    /// True if reads and writes share one bus.
    pub half_duplex: bool,
    /// The slowdown of reads by writes, by rising number of writers.
    pub interference: &'static [Interference],
    /// The timing of completions.
    pub timing: Timing,
}

impl Medium {
    /// Limits the operations and the bytes per second of each direction.
    pub fn limit(&mut self, operations: Option<u64>, bytes: Option<u64>) {
        for path in [&mut self.read, &mut self.write] {
            path.operations_per_second =
                operations.map_or(path.operations_per_second, |limit| limit as f64);
            path.bytes_per_second = bytes.map_or(path.bytes_per_second, |limit| limit as f64);
        }
    }

    /// Returns the limits in which this medium differs from another, as arguments for
    /// [`limit`](Self::limit).
    pub fn limits_beside(&self, other: &Medium) -> (Option<u64>, Option<u64>) {
        let differs = |of: fn(&Path) -> f64| {
            let same = of(&self.read) == of(&other.read) && of(&self.write) == of(&other.write);
            (!same).then_some(of(&self.read) as u64)
        };
        (differs(|path| path.operations_per_second), differs(|path| path.bytes_per_second))
    }

    /// Returns the slowdown of reads with `writers` writes in flight, geometrically interpolated
    /// from the table.
    pub fn interference_of(&self, writers: usize) -> Interference {
        let alone = Interference { writers: 0, read_throughput: 1.0, read_latency: 1.0 };
        let writers = u32::try_from(writers).unwrap_or(u32::MAX);
        let above = self.interference.iter().find(|row| row.writers >= writers);
        let below =
            self.interference.iter().rev().find(|row| row.writers <= writers).unwrap_or(&alone);
        match above {
            _ if writers == 0 => alone,
            Some(above) if above.writers > below.writers => {
                let log = |n: u32| f64::from(n.max(1)).ln();
                let share =
                    (log(writers) - log(below.writers)) / (log(above.writers) - log(below.writers));
                let between = |a: f64, b: f64| a * (b / a).powf(share);
                Interference {
                    writers,
                    read_throughput: between(below.read_throughput, above.read_throughput),
                    read_latency: between(below.read_latency, above.read_latency),
                }
            }
            _ => *below,
        }
    }

    /// Returns the medium called `name`.
    pub fn named(name: &str) -> Option<Medium> {
        ALL.into_iter().find(|medium| medium.name == name)
    }

    /// Returns all media, fastest first.
    pub fn all() -> impl Iterator<Item = Medium> {
        ALL.into_iter()
    }

    /// Returns the names of all media, `dram, pmem, …`, for errors and help.
    pub fn names() -> String {
        ALL.map(|medium| medium.name).join(", ")
    }
}

/// The state of one device of a [`Medium`].
#[derive(Debug, Clone)]
pub struct Model {
    medium: Medium,
    random: SmallRng,
    /// Times in nanoseconds at which the servers become free.
    servers: BinaryHeap<Reverse<u64>>,
    /// Times at which the bus of each direction becomes free; half-duplex media use one entry for
    /// both.
    bus_free_ns: [f64; 2],
    /// Times until which each write in progress slows down reads.
    writers: BinaryHeap<Reverse<u64>>,
    /// The time at which all writes submitted so far complete.
    writes_done_ns: u64,
}

impl Model {
    /// Creates an idle device. The seed determines all latencies.
    pub fn new(medium: Medium, seed: u64) -> Model {
        let servers = (0..medium.servers.max(1)).map(|_| Reverse(0)).collect();
        Model {
            medium,
            random: SmallRng::seed_from_u64(seed),
            servers,
            bus_free_ns: [0.0; 2],
            writers: BinaryHeap::new(),
            writes_done_ns: 0,
        }
    }

    /// Returns the medium that is modelled.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Returns the number of writes in progress at `now_ns`.
    pub fn writers(&mut self, now_ns: u64) -> usize {
        while self.writers.peek().is_some_and(|&Reverse(until)| until <= now_ns) {
            self.writers.pop();
        }
        self.writers.len()
    }

    /// Starts an operation at `now_ns`, which never decreases, and returns its completion time in
    /// nanoseconds.
    pub fn start(&mut self, now_ns: u64, direction: Direction, bytes: u64) -> u64 {
        let writers = self.writers(now_ns);
        let draw: f64 = self.random.sample(StandardNormal);
        let deviations = draw.clamp(-DEVIATIONS_MAX, DEVIATIONS_MAX);
        match direction {
            Direction::Read => {
                let disturbed = self.medium.interference_of(writers);
                let path = self.medium.read;
                let latency_ns = path.latency_ns(deviations) * disturbed.read_latency;
                let remains = disturbed.read_throughput;
                self.transfer(
                    now_ns,
                    0,
                    latency_ns,
                    path.rest_ns(bytes) / remains,
                    path.bus_ns(bytes) / remains,
                )
            }
            Direction::Write => {
                let path = self.medium.write;
                let (latency_ns, bus_ns) = (path.latency_ns(deviations), path.bus_ns(bytes));
                let due_ns = self.transfer(now_ns, 1, latency_ns, path.rest_ns(bytes), bus_ns);
                // A bucket may answer at once; the medium is busy with the bytes all the same.
                let busy_ns = if self.medium.timing == Timing::Budget { bus_ns as u64 } else { 0 };
                self.writers.push(Reverse(due_ns.max(now_ns + busy_ns)));
                self.writes_done_ns = self.writes_done_ns.max(due_ns);
                due_ns
            }
            Direction::Flush => {
                let spread = (self.medium.write.sigma() * deviations).exp();
                now_ns.max(self.writes_done_ns) + (self.medium.flush_ns * spread) as u64
            }
        }
    }

    /// Schedules an operation on the servers and the bus. `rest_ns` is the time for its bytes after
    /// the first sector.
    fn transfer(
        &mut self,
        now_ns: u64,
        bus: usize,
        latency_ns: f64,
        rest_ns: f64,
        bus_ns: f64,
    ) -> u64 {
        let bus = &mut self.bus_free_ns[if self.medium.half_duplex { 0 } else { bus }];
        let now = now_ns as f64;
        match self.medium.timing {
            Timing::Budget => {
                *bus = bus.max(now - BURST_NS) + bus_ns;
                now_ns.max(bus.ceil() as u64)
            }
            Timing::Latency => {
                let turn = bus.max(now);
                *bus = turn + bus_ns;
                let Reverse(free_ns) =
                    self.servers.pop().expect("a medium has at least one server");
                let served_ns = free_ns.max(now_ns) + latency_ns as u64;
                self.servers.push(Reverse(served_ns));
                (turn.max(served_ns as f64) + rest_ns).ceil() as u64
            }
        }
    }
}

impl Path {
    const fn new(
        median_ns: f64,
        p99_ns: f64,
        bytes_per_second: f64,
        operations_per_second: f64,
    ) -> Path {
        Path { median_ns, p99_ns, bytes_per_second, operations_per_second }
    }

    fn sigma(&self) -> f64 {
        (self.p99_ns / self.median_ns).ln() / P99_DEVIATIONS
    }

    fn latency_ns(&self, deviations: f64) -> f64 {
        self.median_ns * (self.sigma() * deviations).exp()
    }

    /// Returns the latency in nanoseconds that an operation's size adds to that of a 4 KiB
    /// operation.
    fn rest_ns(&self, bytes: u64) -> f64 {
        bytes.saturating_sub(SECTOR_BYTES) as f64 / self.bytes_per_second * 1e9
    }

    /// Returns the time in nanoseconds for which an operation occupies the bus.
    fn bus_ns(&self, bytes: u64) -> f64 {
        (bytes as f64 / self.bytes_per_second).max(1.0 / self.operations_per_second) * 1e9
    }
}

const US: f64 = 1e3;
const MS: f64 = 1e6;
const MB: f64 = 1e6;
const MIB: f64 = 1024.0 * 1024.0;
const GB: f64 = 1e9;
const UNLIMITED: f64 = f64::INFINITY;

/// DRAM, as a bandwidth budget.
///
/// "Writes Hurt" (NVCache): eight readers lose 18 % to one writer and 35 % to eight. 40 GB/s is an
/// estimate for eight cores on one socket's memory; 0.1 µs is a cache miss.
const DRAM: Medium = Medium {
    name: "dram",
    description: "DRAM: 40 GB/s, little write interference",
    read: Path::new(100.0, 150.0, 40.0 * GB, UNLIMITED),
    write: Path::new(100.0, 150.0, 20.0 * GB, UNLIMITED),
    flush_ns: 0.0,
    servers: 64,
    half_duplex: false,
    interference: &[
        Interference { writers: 1, read_throughput: 0.82, read_latency: 1.0 },
        Interference { writers: 8, read_throughput: 0.65, read_latency: 1.0 },
    ],
    timing: Timing::Budget,
};

/// Optane DC persistent memory, as a bandwidth budget.
///
/// "Writes Hurt" (NVCache): eight readers get 12 GB/s alone, 3.4 with one writer (28 %), 0.8 with
/// eight (7 %). Latencies and write bandwidth from Yang et al., "An Empirical Guide to the Behavior
/// and Use of Scalable Persistent Memory" (FAST 2020): about 305 ns a random read, 94 ns a store,
/// 2.3 GB/s of writes per DIMM.
const PMEM: Medium = Medium {
    name: "pmem",
    description: "Optane persistent memory: 12 GB/s of reads, of which one writer takes 72 % and \
                  eight 93 %",
    read: Path::new(305.0, 400.0, 12.0 * GB, UNLIMITED),
    write: Path::new(94.0, 150.0, 2.3 * GB, UNLIMITED),
    flush_ns: 0.0,
    servers: 64,
    half_duplex: false,
    interference: &[
        Interference { writers: 1, read_throughput: 3.4 / 12.0, read_latency: 1.0 },
        Interference { writers: 8, read_throughput: 0.8 / 12.0, read_latency: 1.0 },
    ],
    timing: Timing::Budget,
};

/// Intel Optane SSD DC P4800X.
///
/// Product brief: 2400 / 2000 MB/s, 550,000 / 500,000 operations a second. AnandTech's review
/// (2017): reads at depth 1 take 9 µs at the median and 10 µs at p99, and 585,000 a second at depth
/// 16, so about five at a time. 70 % reads reach 500,000 a second in the brief: reads hardly
/// suffer; the interference rows are an estimate.
const OPTANE: Medium = Medium {
    name: "optane",
    description: "Optane NVMe SSD (P4800X): 9 µs, 2.4 GB/s reads, 2.0 GB/s writes",
    read: Path::new(9.0 * US, 10.0 * US, 2.4 * GB, 585e3),
    write: Path::new(10.0 * US, 13.0 * US, 2.0 * GB, 500e3),
    flush_ns: 10.0 * US,
    servers: 5,
    half_duplex: false,
    interference: &[
        Interference { writers: 1, read_throughput: 0.95, read_latency: 1.05 },
        Interference { writers: 8, read_throughput: 0.8, read_latency: 1.2 },
    ],
    timing: Timing::Latency,
};

/// A TLC flash NVMe SSD: Intel P4500, 2 TB.
///
/// Lenovo's product guide for it: 85 / 20 µs, 490,000 / 38,000 operations a second, 3.2 / 1.05
/// GB/s. The p99 of reads is between those AnandTech measured on an Intel P3700 (96 µs) and a
/// Micron 9100 (117 µs). Interference is an estimate: reads queue behind programs and erases on
/// their die.
const NVME: Medium = Medium {
    name: "nvme",
    description: "TLC NVMe SSD (P4500): 85 µs reads, 20 µs writes, 3.2 and 1.05 GB/s",
    read: Path::new(85.0 * US, 110.0 * US, 3.2 * GB, 490e3),
    write: Path::new(20.0 * US, 60.0 * US, 1.05 * GB, 38e3),
    flush_ns: 20.0 * US,
    servers: 42,
    half_duplex: false,
    interference: &[
        Interference { writers: 1, read_throughput: 0.85, read_latency: 1.2 },
        Interference { writers: 8, read_throughput: 0.5, read_latency: 2.0 },
        Interference { writers: 32, read_throughput: 0.3, read_latency: 3.0 },
    ],
    timing: Timing::Latency,
};

/// A SATA flash SSD of the slower class, 200–400 µs a read.
///
/// Throughput and operations as in the Intel D3-S4510's data sheet (560 / 510 MB/s, 97,000 / 36,000
/// operations a second, data sheet figures); 250 µs is the middle of the "slow SSD" class; the p99
/// and interference are estimates.
const SATA_SSD: Medium = Medium {
    name: "sata-ssd",
    description: "SATA SSD: 250 µs reads, 500 MB/s",
    read: Path::new(250.0 * US, 600.0 * US, 500.0 * MB, 97e3),
    write: Path::new(60.0 * US, 300.0 * US, 500.0 * MB, 36e3),
    flush_ns: 500.0 * US,
    servers: 24,
    half_duplex: true,
    interference: &[
        Interference { writers: 1, read_throughput: 0.8, read_latency: 1.3 },
        Interference { writers: 8, read_throughput: 0.5, read_latency: 2.0 },
    ],
    timing: Timing::Latency,
};

/// A 7200 rpm disk; every operation seeks.
///
/// Half a turn is 4.2 ms, an average seek about 8 ms (data sheet figures of nearline disks); queued
/// operations are served in a better order, so 8 ms in all at the median. Its write cache is taken
/// to be off.
const HDD: Medium = Medium {
    name: "hdd",
    description: "7200 rpm disk: 8 ms, 150 MB/s, one at a time",
    read: Path::new(8.0 * MS, 20.0 * MS, 150.0 * MB, UNLIMITED),
    write: Path::new(8.0 * MS, 20.0 * MS, 150.0 * MB, UNLIMITED),
    flush_ns: 8.0 * MS,
    servers: 1,
    half_duplex: true,
    interference: &[],
    timing: Timing::Latency,
};

/// Network block storage: Amazon EBS gp3 with 16,000 operations a second and 250 MiB/s provisioned.
///
/// Amazon's documentation: 3,000 to 16,000 operations a second, 125 to 1000 MiB/s, "single-digit
/// millisecond" latency; a median of 1 ms with a p99 of 3 ms is an estimate within that. Flushes
/// are free: a write is acknowledged once it is stored.
const CLOUD: Medium = Medium {
    name: "cloud",
    description: "network block storage (EBS gp3): 1 ms, 16,000 operations a second, 250 MiB/s",
    read: Path::new(1.0 * MS, 3.0 * MS, 250.0 * MIB, 16e3),
    write: Path::new(1.0 * MS, 3.0 * MS, 250.0 * MIB, 16e3),
    flush_ns: 0.5 * MS,
    servers: 64,
    half_duplex: true,
    interference: &[],
    timing: Timing::Latency,
};

const ALL: [Medium; 7] = [DRAM, PMEM, OPTANE, NVME, SATA_SSD, HDD, CLOUD];
