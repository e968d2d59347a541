//! Media one can ask for by name.
//!
//! Each stands for a product or a measurement that its comment cites, so that a result can be read
//! as "on such a disk". Figures a source does not give are marked as estimates.

use super::model::{Interference, Medium, Path, Timing};

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
    read: Path {
        median_ns: 100.0,
        p99_ns: 150.0,
        bytes_per_second: 40.0 * GB,
        operations_per_second: UNLIMITED,
    },
    write: Path {
        median_ns: 100.0,
        p99_ns: 150.0,
        bytes_per_second: 20.0 * GB,
        operations_per_second: UNLIMITED,
    },
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
    read: Path {
        median_ns: 305.0,
        p99_ns: 400.0,
        bytes_per_second: 12.0 * GB,
        operations_per_second: UNLIMITED,
    },
    write: Path {
        median_ns: 94.0,
        p99_ns: 150.0,
        bytes_per_second: 2.3 * GB,
        operations_per_second: UNLIMITED,
    },
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
    read: Path {
        median_ns: 9.0 * US,
        p99_ns: 10.0 * US,
        bytes_per_second: 2.4 * GB,
        operations_per_second: 585e3,
    },
    write: Path {
        median_ns: 10.0 * US,
        p99_ns: 13.0 * US,
        bytes_per_second: 2.0 * GB,
        operations_per_second: 500e3,
    },
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
    read: Path {
        median_ns: 85.0 * US,
        p99_ns: 110.0 * US,
        bytes_per_second: 3.2 * GB,
        operations_per_second: 490e3,
    },
    write: Path {
        median_ns: 20.0 * US,
        p99_ns: 60.0 * US,
        bytes_per_second: 1.05 * GB,
        operations_per_second: 38e3,
    },
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
    read: Path {
        median_ns: 250.0 * US,
        p99_ns: 600.0 * US,
        bytes_per_second: 500.0 * MB,
        operations_per_second: 97e3,
    },
    write: Path {
        median_ns: 60.0 * US,
        p99_ns: 300.0 * US,
        bytes_per_second: 500.0 * MB,
        operations_per_second: 36e3,
    },
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
    read: Path {
        median_ns: 8.0 * MS,
        p99_ns: 20.0 * MS,
        bytes_per_second: 150.0 * MB,
        operations_per_second: UNLIMITED,
    },
    write: Path {
        median_ns: 8.0 * MS,
        p99_ns: 20.0 * MS,
        bytes_per_second: 150.0 * MB,
        operations_per_second: UNLIMITED,
    },
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
    read: Path {
        median_ns: 1.0 * MS,
        p99_ns: 3.0 * MS,
        bytes_per_second: 250.0 * MIB,
        operations_per_second: 16e3,
    },
    write: Path {
        median_ns: 1.0 * MS,
        p99_ns: 3.0 * MS,
        bytes_per_second: 250.0 * MIB,
        operations_per_second: 16e3,
    },
    flush_ns: 0.5 * MS,
    servers: 64,
    half_duplex: true,
    interference: &[],
    timing: Timing::Latency,
};

const ALL: [Medium; 7] = [DRAM, PMEM, OPTANE, NVME, SATA_SSD, HDD, CLOUD];

impl Medium {
    /// The medium called `name`.
    pub fn named(name: &str) -> Option<Medium> {
        ALL.into_iter().find(|medium| medium.name == name)
    }

    /// All media, fastest first.
    pub fn all() -> impl Iterator<Item = Medium> {
        ALL.into_iter()
    }

    /// The names of all media, `dram, pmem, …`, for errors and help.
    pub fn names() -> String {
        ALL.map(|medium| medium.name).join(", ")
    }
}
