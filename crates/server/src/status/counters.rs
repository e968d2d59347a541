//! Counters of one thread while it serves, and their sum over all threads.
//!
//! A thread keeps a [`ThreadCounters`] that no other thread accesses. On request it returns a
//! [`Snapshot`]. The server's counters are the sum of its threads' snapshots.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use floe_block::{RequestKind, Stats, Traffic, VolumeId, counters};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Latency;
use crate::client_name::ClientName;
use crate::named_clients::{ClientUse, ClientUses};
use crate::protocol::ProtocolName;
use crate::sampler::Touches;

/// A kind of request, by which requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Flush,
    Trim,
    Zero,
    Prefetch,
    BlockStatus,
}

impl Operation {
    pub(crate) const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::Zero,
        Self::Prefetch,
        Self::BlockStatus,
    ];

    /// Returns the kind's name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::Zero => "zero",
            Self::Prefetch => "prefetch",
            Self::BlockStatus => "block_status",
        }
    }

    /// Returns the kind under which a request of the block layer is counted.
    pub(crate) fn of(kind: RequestKind) -> Self {
        match kind {
            RequestKind::Read => Self::Read,
            RequestKind::Write { .. } => Self::Write,
            RequestKind::Flush | RequestKind::Drain => Self::Flush,
            RequestKind::Trim => Self::Trim,
            RequestKind::Zero { .. } => Self::Zero,
            RequestKind::Prefetch | RequestKind::Warm | RequestKind::Evict => Self::Prefetch,
            RequestKind::DirtyMap => Self::BlockStatus,
        }
    }
}

counters! {
    /// Counters of one kind of request to one volume.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct Answered {
        /// Requests answered, with errors or without.
        pub(crate) requests: u64 = Counter { metric: "floe_requests_total" },
        /// Requests answered with an error.
        pub(crate) errors: u64 = Counter { metric: "floe_request_errors_total" },
        /// Bytes of requests answered without an error.
        pub(crate) bytes: u64 = Counter { metric: "floe_request_bytes_total" },
    }
}

counters! {
    /// Count and total latency of reads that hit the cache, or of those that missed it.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct Found {
        pub(crate) requests: u64,
        /// Sum of the latencies.
        pub(crate) time: Duration,
    }
}

counters! {
    /// Count of requests that waited for the limit of their volume, and the sum of their waits.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub(crate) struct Delayed {
        pub(crate) requests: u64,
        /// Sum of the waits.
        pub(crate) time: Duration,
    }
}

/// Number of volumes whose latencies are recorded separately: those with the lowest numbers.
pub(crate) const MOST_SPREAD: usize = 16;

/// The place that answered a read: the memory tier, the top tier including memory, or a place below
/// the top tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Below,
    Top,
    Memory,
}

/// Counters of requests to one volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VolumeCounters {
    /// Answered requests, indexed by `Operation as usize`.
    pub(crate) answered: [Answered; Operation::ALL.len()],
    /// Number of hits of reads, and of writes.
    pub(crate) hits: [u64; 2],
    /// Requests that waited for the volume's limit.
    pub(crate) delayed: Delayed,
}

counters! {
    /// Counters of connections, and of requests that never reached the cache.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ClientCounts {
        /// Connections taken.
        pub connections_taken: u64 = Counter { metric: "floe_connections_total" },
        /// Connections sent away because there were too many.
        pub connections_refused: u64 = Counter { metric: "floe_connections_refused_total" },
        /// Clients disconnected for what they sent, or for being too slow.
        pub clients_hung_up_on: u64 = Counter { metric: "floe_clients_hung_up_on_total" },
        /// Requests that were refused before they came to the cache.
        pub requests_refused: u64 = Counter { metric: "floe_requests_refused_total" },
    }
}

/// Counters of one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadCounters {
    /// Counters by number of the volume. Volumes with the highest numbers may be missing if they
    /// had no requests.
    volumes: Vec<VolumeCounters>,
    /// Latencies of requests, indexed by `Operation as usize`.
    latencies: [Latencies; Operation::ALL.len()],
    /// Latencies of reads and of writes, indexed by number of the volume.
    spreads: Vec<[Spread; 2]>,
    /// Latencies of reads, indexed by `By as usize`.
    by: [Spread; 3],
    /// Sum of the latencies of reads that the memory tier answered.
    pub(crate) from_memory: Duration,
    /// Reads that missed the cache, and reads that hit it or memory.
    pub(crate) found: [Found; 2],
    /// Counters of connections, and of requests that never reached the cache.
    pub(crate) clients: ClientCounts,
}

impl ThreadCounters {
    /// Counts a request that was answered, with its latency.
    pub(crate) fn answered(
        &mut self,
        volume: VolumeId,
        operation: Operation,
        bytes: u64,
        latency: Duration,
        well: bool,
    ) {
        let answered = &mut self.volume_mut(volume).answered[operation as usize];
        answered.requests += 1;
        if well {
            answered.bytes += bytes;
        } else {
            answered.errors += 1;
        }
        self.latencies[operation as usize].record(latency);
        let volume = usize::from(volume.0);
        if operation as usize > Operation::Write as usize || volume >= MOST_SPREAD {
            return;
        }
        if self.spreads.len() <= volume {
            self.spreads.resize_with(volume + 1, Default::default);
        }
        self.spreads[volume][operation as usize].record(latency);
    }

    /// Counts a request that has waited for the limit of its volume.
    pub(crate) fn delayed(&mut self, volume: VolumeId, time: Duration) {
        let delayed = &mut self.volume_mut(volume).delayed;
        delayed.requests += 1;
        delayed.time += time;
    }

    fn volume_mut(&mut self, volume: VolumeId) -> &mut VolumeCounters {
        let volume = usize::from(volume.0);
        if self.volumes.len() <= volume {
            self.volumes.resize_with(volume + 1, VolumeCounters::default);
        }
        &mut self.volumes[volume]
    }

    /// Counts a read that the memory tier answered. Must be called before [`found`](Self::found).
    pub(crate) fn found_in_memory(&mut self, latency: Duration) {
        self.from_memory += latency;
        self.by[By::Memory as usize].record(latency);
    }

    /// Counts a read or a write as a hit or a miss. Must be called after
    /// [`answered`](Self::answered).
    pub(crate) fn found(
        &mut self,
        volume: VolumeId,
        operation: Operation,
        latency: Duration,
        hit: bool,
    ) {
        if let Some(hits) = self.volumes[usize::from(volume.0)].hits.get_mut(operation as usize) {
            *hits += u64::from(hit);
        }
        if operation == Operation::Read {
            let found = &mut self.found[usize::from(hit)];
            found.requests += 1;
            found.time += latency;
            self.by[usize::from(hit)].record(latency); // below, or at the top
        }
    }

    /// Returns the latencies of reads and of writes of a volume.
    pub(crate) fn spread(&self, volume: VolumeId) -> [Spread; 2] {
        self.spreads.get(usize::from(volume.0)).cloned().unwrap_or_default()
    }

    /// Returns the latencies of reads that were answered in this place.
    pub(crate) fn read_by(&self, by: By) -> &Spread {
        &self.by[by as usize]
    }

    /// Resets the counters of a volume's number when another volume gets that number.
    pub(crate) fn forget(&mut self, volume: VolumeId) {
        if let Some(counters) = self.volumes.get_mut(usize::from(volume.0)) {
            *counters = VolumeCounters::default();
        }
        if let Some(spreads) = self.spreads.get_mut(usize::from(volume.0)) {
            *spreads = Default::default();
        }
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> VolumeCounters {
        self.volumes.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    pub(crate) fn latencies(&self, operation: Operation) -> &Latencies {
        &self.latencies[operation as usize]
    }

    /// Returns the number of answered reads and writes, and the sum of their latencies.
    pub(crate) fn served(&self) -> (u64, Duration) {
        let both = [Operation::Read, Operation::Write].map(|operation| self.latencies(operation));
        (both.iter().map(|it| it.count()).sum(), both.iter().map(|it| it.sum()).sum())
    }

    /// Returns the number of answered requests of all kinds.
    pub(crate) fn requests(&self) -> u64 {
        self.latencies.iter().map(Latencies::count).sum()
    }
}

impl AddAssign<&ThreadCounters> for ThreadCounters {
    fn add_assign(&mut self, other: &ThreadCounters) {
        let longer = self.volumes.len().max(other.volumes.len());
        self.volumes.resize_with(longer, VolumeCounters::default);
        for (sum, part) in self.volumes.iter_mut().zip(&other.volumes) {
            for (sum, part) in sum.answered.iter_mut().zip(part.answered) {
                *sum += &part;
            }
            sum.hits.iter_mut().zip(part.hits).for_each(|(sum, part)| *sum += part);
            sum.delayed += &part.delayed;
        }
        for (sum, part) in self.latencies.iter_mut().zip(&other.latencies) {
            *sum += part;
        }
        let longer = self.spreads.len().max(other.spreads.len());
        self.spreads.resize_with(longer, Default::default);
        for (sums, parts) in self.spreads.iter_mut().zip(&other.spreads) {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        self.by.iter_mut().zip(&other.by).for_each(|(sum, part)| *sum += part);
        self.from_memory += other.from_memory;
        self.found.iter_mut().zip(&other.found).for_each(|(sum, part)| *sum += part);
        self.clients += &other.clients;
    }
}

/// Bytes read from and written to the backing devices. Sums and differences wrap: a difference of
/// two tiers' counters may be below zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BackingBytes {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl BackingBytes {
    /// Returns the bytes that a tier has moved from and to what is below it.
    pub(crate) fn below(tier: &Stats) -> Self {
        let counters = &tier.counters;
        Self { read: counters.backing_read_bytes, written: counters.backing_write_bytes }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            read: self.read.wrapping_add(other.read),
            written: self.written.wrapping_add(other.written),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            read: self.read.wrapping_sub(other.read),
            written: self.written.wrapping_sub(other.written),
        }
    }
}

/// Counters and state of one thread, or the sum over all threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) counters: ThreadCounters,
    /// Counters of the clients that volumes name.
    pub(crate) client_uses: ClientUses,
    /// Counters of this thread's part of the top tier.
    pub(crate) stats: Stats,
    /// Open connections, including those of clients that have not chosen a volume yet.
    pub(crate) connections: ByProtocol,
    /// Number of clients by number of the volume they use.
    pub(crate) users: Vec<ByProtocol>,
    /// For each tier below the first: counters of this thread's part, and failed operations of the
    /// cache device.
    pub(crate) below: Vec<(Stats, u64)>,
    /// Failed operations of the top tier's cache device.
    pub(crate) cache_errors: u64,
    /// Bytes read from and written to the backing devices.
    pub(crate) backing: BackingBytes,
    /// Failed operations of the backing devices.
    pub(crate) backing_errors: u64,
    /// Processor time spent on busy waiting in simulated media.
    pub(crate) spun: Duration,
    /// Messages and wake-ups that the thread has sent to other threads.
    pub(crate) traffic: Traffic,
    /// Blocks touched since the last sample. Only snapshots taken for samples have them; sums do
    /// not.
    pub(crate) touches: Touches,
}

impl Snapshot {
    /// Counts a connection whose client uses these volumes.
    pub(crate) fn connected(&mut self, protocol: ProtocolName, volumes: Vec<VolumeId>) {
        self.connections.count(protocol);
        for VolumeId(volume) in volumes {
            let volume = usize::from(volume);
            self.users.resize(self.users.len().max(volume + 1), ByProtocol::default());
            self.users[volume].count(protocol);
        }
    }

    /// Returns the counters of a client that a volume names.
    pub(crate) fn client_use(&self, volume: VolumeId, client: &ClientName) -> ClientUse {
        self.client_uses.get(&(volume.0, client.clone())).copied().unwrap_or_default()
    }

    /// Returns the number of clients that use a volume.
    pub(crate) fn users(&self, volume: VolumeId) -> ByProtocol {
        self.users.get(usize::from(volume.0)).copied().unwrap_or_default()
    }

    /// Returns for each tier, from the top, its counters and the failed operations of its cache
    /// device.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (&Stats, u64)> {
        let below = self.below.iter().map(|(stats, errors)| (stats, *errors));
        std::iter::once((&self.stats, self.cache_errors)).chain(below)
    }
}

impl AddAssign<&Snapshot> for Snapshot {
    fn add_assign(&mut self, other: &Snapshot) {
        self.counters += &other.counters;
        for (client, part) in &other.client_uses {
            *self.client_uses.entry(client.clone()).or_default() += part;
        }
        self.stats += &other.stats;
        self.below.resize_with(self.below.len().max(other.below.len()), Default::default);
        for (sum, part) in self.below.iter_mut().zip(&other.below) {
            sum.0 += &part.0;
            sum.1 += part.1;
        }
        let longer = self.users.len().max(other.users.len());
        self.users.resize(longer, ByProtocol::default());
        for (sum, part) in self.users.iter_mut().zip(&other.users) {
            *sum += part;
        }
        self.connections += &other.connections;
        self.backing = self.backing.plus(other.backing);
        self.cache_errors += other.cache_errors;
        self.backing_errors += other.backing_errors;
        self.spun += other.spun;
        self.traffic.messages += other.traffic.messages;
        self.traffic.wakes += other.traffic.wakes;
    }
}

/// Number of clients or connections of each protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByProtocol {
    /// Clients or connections that use NBD.
    pub nbd: u64,
    /// Clients or connections that use NVMe over TCP.
    pub nvme_tcp: u64,
}

impl ByProtocol {
    /// Adds one client of this protocol.
    pub(crate) fn count(&mut self, protocol: ProtocolName) {
        match protocol {
            ProtocolName::Nbd => self.nbd += 1,
            ProtocolName::NvmeTcp => self.nvme_tcp += 1,
        }
    }

    /// Returns the number of clients of all protocols.
    pub fn total(&self) -> u64 {
        self.nbd + self.nvme_tcp
    }
}

impl AddAssign<&Self> for ByProtocol {
    fn add_assign(&mut self, other: &Self) {
        self.nbd += other.nbd;
        self.nvme_tcp += other.nvme_tcp;
    }
}

/// Prints the number of clients of each protocol that has any, or `0`.
impl fmt::Display for ByProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [(self.nbd, "nbd"), (self.nvme_tcp, "nvme-tcp")];
        let present = counts.iter().filter(|(count, _)| *count > 0);
        let texts: Vec<String> = present.map(|(count, name)| format!("{count} {name}")).collect();
        f.write_str(if texts.is_empty() { "0" } else { "" })?;
        f.write_str(&texts.join(", "))
    }
}

/// Longest latency recorded exactly, in nanoseconds: a minute. Longer ones count as this long.
const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of latencies with two significant digits. A latency lasts from the arrival of the
/// whole request until its reply is queued.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    sum: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("the bounds are in order");
        Self { histogram, sum: Duration::ZERO }
    }
}

impl Latencies {
    /// Adds a latency.
    pub(super) fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(latency.as_nanos() as u64);
        self.sum += latency;
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns the number of requests that took at most this long, to two significant digits.
    pub(crate) fn within(&self, latency: Duration) -> u64 {
        self.histogram.count_between(0, latency.as_nanos() as u64)
    }

    /// Returns the latencies recorded after an earlier state of this histogram.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut after = self.clone();
        // It fails where something was forgotten in between: the whole is what is known then.
        if after.histogram.subtract(&before.histogram).is_ok() {
            after.sum = after.sum.saturating_sub(before.sum);
        }
        after
    }

    pub(crate) fn summary(&self) -> Latency {
        let us = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1000.0;
        let mean_us = self.sum.as_secs_f64() * 1e6 / self.count().max(1) as f64;
        Latency { mean_us, p50_us: us(0.5), p99_us: us(0.99), p999_us: us(0.999) }
    }
}

impl AddAssign<&Self> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        self.histogram += &other.histogram;
        self.sum += other.sum;
    }
}

/// Logarithm to base 2 of the width in nanoseconds of the first buckets.
const UNIT_BITS: u32 = 6;

/// Logarithm to base 2 of the number of buckets in a factor of two.
const PARTS_BITS: u32 = 3;

/// Number of buckets, which reach to a minute. The last bucket also counts everything longer.
const BUCKETS: usize = 224;

/// Percentiles of latencies in microseconds; 0 without requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Percentiles {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

/// A compact histogram of latencies.
///
/// Each factor of two has eight buckets, so that a percentile is exact to 6 %, and 900 bytes reach
/// to a minute. `Latencies` keeps two digits in 30 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Number of latencies in each bucket; empty without requests.
    counts: Vec<u32>,
}

impl Spread {
    /// Adds a latency.
    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        if self.counts.is_empty() {
            self.counts.resize(BUCKETS, 0);
        }
        let count = &mut self.counts[bucket(latency.as_nanos() as u64)];
        *count = count.wrapping_add(1); // differences are what counts
    }

    /// Returns the latencies recorded after an earlier state of this histogram. An empty earlier
    /// state counts as zero.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let then = before.counts.iter().chain(std::iter::repeat(&0));
        let counts = self.counts.iter().zip(then).map(|(now, then)| now.wrapping_sub(*then));
        Self { counts: counts.collect() }
    }

    /// Computes the percentiles of all recorded latencies.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let all: u64 = self.counts.iter().map(|&count| u64::from(count)).sum();
        let at = |share: f64| {
            let mut left = (share * all as f64).ceil() as u64;
            let reached = |&count: &u32| {
                left = left.saturating_sub(u64::from(count));
                left == 0
            };
            self.counts.iter().position(reached).map_or(0.0, middle_us)
        };
        if all == 0 {
            return Percentiles::default();
        }
        Percentiles { p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999) }
    }
}

impl AddAssign<&Self> for Spread {
    fn add_assign(&mut self, other: &Self) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (sum, part) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.wrapping_add(*part);
        }
    }
}

fn bucket(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    if units < 1 << PARTS_BITS {
        return units as usize;
    }
    let power = units.ilog2();
    let part = (units >> (power - PARTS_BITS)) & ((1 << PARTS_BITS) - 1);
    ((((power - PARTS_BITS + 1) << PARTS_BITS) as u64 + part) as usize).min(BUCKETS - 1)
}

/// Returns the middle of a bucket, in microseconds.
fn middle_us(bucket: usize) -> f64 {
    let (row, part) = (bucket as u32 >> PARTS_BITS, bucket as u64 & ((1 << PARTS_BITS) - 1));
    let power = row.saturating_sub(1);
    let first = if row == 0 { part } else { ((1 << PARTS_BITS) + part) << power };
    (first as f64 + f64::from(1u32 << power) / 2.0) * f64::from(1u32 << UNIT_BITS) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_two_threads_is_what_one_would_have_counted() {
        let answers = [
            (0, Operation::Read, 4096, 100, true),
            (2, Operation::Write, 512, 2000, true),
            (0, Operation::Read, 8192, 70, false),
            (2, Operation::Flush, 0, 9_000_000, true),
        ];
        let mut threads = [Snapshot::default(), Snapshot::default()];
        let mut one = ThreadCounters::default();
        for (at, (volume, operation, bytes, us, well)) in answers.into_iter().enumerate() {
            let latency = Duration::from_micros(us);
            one.answered(VolumeId(volume), operation, bytes, latency, well);
            threads[at % 2].counters.answered(VolumeId(volume), operation, bytes, latency, well);
        }
        threads[0].connected(ProtocolName::Nbd, vec![VolumeId(0)]);
        for volumes in [vec![VolumeId(2)], vec![], vec![VolumeId(0), VolumeId(2)]] {
            threads[1].connected(ProtocolName::NvmeTcp, volumes);
        }
        let mut sum = Snapshot::default();
        threads.iter().for_each(|thread| sum += thread);
        for volume in [0, 1, 2, 3].map(VolumeId) {
            assert_eq!(sum.counters.volume(volume), one.volume(volume));
        }
        for operation in Operation::ALL {
            let (sum, one) = (sum.counters.latencies(operation), one.latencies(operation));
            assert_eq!(sum.summary(), one.summary());
        }
        assert_eq!(
            one.volume(VolumeId(0)).answered[0],
            Answered { requests: 2, bytes: 4096, errors: 1 }
        );
        let clients = |nbd, nvme_tcp| ByProtocol { nbd, nvme_tcp };
        assert_eq!(sum.connections, clients(1, 3));
        assert_eq!(
            [0, 1, 2, 3].map(|it| sum.users(VolumeId(it))),
            [clients(1, 1), clients(0, 0), clients(0, 2), clients(0, 0)]
        );
    }
}

#[cfg(test)]
mod by_protocol_tests {
    use super::*;

    #[test]
    fn protocols_without_clients_are_not_named() {
        for (nbd, nvme_tcp, shown) in
            [(0, 0, "0"), (2, 0, "2 nbd"), (0, 1, "1 nvme-tcp"), (1, 3, "1 nbd, 3 nvme-tcp")]
        {
            assert_eq!(ByProtocol { nbd, nvme_tcp }.to_string(), shown);
        }
    }
}

#[cfg(test)]
mod latencies_tests {
    use super::*;

    #[test]
    fn latencies_are_counted_up_to_a_bound() {
        let mut latencies = Latencies::default();
        [9, 10, 11, 5000].into_iter().for_each(|us| latencies.record(Duration::from_micros(us)));
        assert_eq!(latencies.within(Duration::from_micros(10)), 2);
        assert_eq!(latencies.within(Duration::from_secs(10)), 4);
        assert_eq!(latencies.sum(), Duration::from_micros(5030));
    }
}

#[cfg(test)]
mod spread_tests {
    use super::*;

    #[test]
    fn a_latency_is_found_again_to_six_percent() {
        for us in [1, 3, 17, 99, 1000, 7777, 123_456, 5_000_000, 55_000_000u64] {
            let mut spread = Spread::default();
            spread.record(Duration::from_micros(us));
            let found = spread.percentiles().p50_us / us as f64;
            assert!((0.94..=1.07).contains(&found), "{us} µs: {found}");
        }
        let mut long = Spread::default();
        long.record(Duration::from_secs(10_000));
        assert!(long.percentiles().p99_us > 5e7);
    }

    #[test]
    fn percentiles_are_of_those_since() {
        let mut spread = Spread::default();
        (0..1000).for_each(|_| spread.record(Duration::from_millis(100)));
        let before = spread.clone();
        (0..980).for_each(|_| spread.record(Duration::from_micros(100)));
        (0..20).for_each(|_| spread.record(Duration::from_millis(3)));
        let Percentiles { p50_us, p99_us, p999_us } = spread.since(&before).percentiles();
        assert!((94.0..107.0).contains(&p50_us) && (2800.0..3200.0).contains(&p99_us));
        assert_eq!(p999_us, p99_us);
        assert_eq!(spread.since(&spread).percentiles(), Percentiles::default());
        assert_eq!(Spread::default().percentiles(), Percentiles::default());
        let mut sum = before.since(&Spread::default());
        sum += &spread.since(&before);
        assert_eq!(sum, spread);
    }
}
