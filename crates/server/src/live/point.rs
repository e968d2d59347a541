//! Rates, latencies and hit ratios of one interval in a server's life.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use floe_block::Stats;
use serde::Serialize;

use crate::status::{
    Answered, By, Latencies, Operation, Percentiles, Report, Spread, ThreadCounters, TierKey,
    VolumeCounters,
};

/// Maximum number of tiers that a point describes, from the top.
pub(super) const MOST_TIERS: usize = 8;

/// Maximum number of volumes that a point describes: the first ones. The page shows the number of
/// all volumes.
pub(super) const MOST_VOLUMES: usize = 16;

/// Rate and latencies of one kind of request in an interval. Latencies are 0 without requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Flow {
    /// Requests per second.
    rate: f32,
    /// Bytes per second.
    bytes: f32,
    mean_us: f32,
    p50_us: f32,
    p99_us: f32,
    p999_us: f32,
}

/// Hit ratios, dirty bytes and the device's traffic of a tier in an interval. Ratios are `None`
/// without requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct CachePoint {
    read_hit_ratio: Option<f32>,
    write_hit_ratio: Option<f32>,
    dirty_bytes: u64,
    #[serde(flatten)]
    device: Traffic,
}

/// Bytes per second that a device, or several, read and wrote.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Traffic {
    read_bytes: f32,
    written_bytes: f32,
}

/// Bytes that a device, or several, have read and written since the start.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    read_bytes: u64,
    written_bytes: u64,
}

impl Moved {
    fn since(self, then: Self, rate: impl Fn(u64, u64) -> f32) -> Traffic {
        Traffic {
            read_bytes: rate(self.read_bytes, then.read_bytes),
            written_bytes: rate(self.written_bytes, then.written_bytes),
        }
    }
}

/// Percentiles of latencies in microseconds; 0 without requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct SpreadPoint {
    p50_us: f32,
    p99_us: f32,
}

impl SpreadPoint {
    fn of(now: &Spread, then: &Spread) -> Self {
        let Percentiles { p50_us, p99_us, .. } = now.since(then).percentiles();
        Self { p50_us: rounded(p50_us), p99_us: rounded(p99_us) }
    }
}

/// Requests per second, bytes per second, hit ratios and latencies of a volume in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct VolumePoint {
    #[serde(serialize_with = "name")]
    name: Arc<str>,
    reads: f32,
    writes: f32,
    read_bytes: f32,
    write_bytes: f32,
    /// Share of reads that were hits; `None` without reads.
    read_hit_ratio: Option<f32>,
    /// Share of writes that were hits; `None` without writes.
    write_hit_ratio: Option<f32>,
    read: SpreadPoint,
    write: SpreadPoint,
}

/// The rates, latencies and hit ratios of one interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Point {
    /// End of the interval, in seconds since 1970.
    at: u64,
    seconds: f32,
    read: Flow,
    write: Flow,
    /// Share of reads answered from memory; `None` without reads or without a memory tier.
    memory_hit_ratio: Option<f32>,
    /// Bytes of unflushed data: only memory has them.
    memory_dirty_bytes: u64,
    /// Latencies of reads answered from memory, by the top tier, and below it.
    by: [SpreadPoint; 3],
    backing: Traffic,
    /// The tiers, from the top.
    tiers: Box<[CachePoint]>,
    volumes: Box<[VolumePoint]>,
}

/// Counters of a tier since it was attached.
#[derive(Debug, Clone, Copy, Default)]
struct CacheCounts {
    reads: u64,
    read_hits: u64,
    writes: u64,
    write_hits: u64,
    dirty_bytes: u64,
    device: Moved,
    /// Traffic of the device below: the next tier, or the backing devices.
    below: Moved,
}

/// Counters of reads and of writes to a volume since the start, with hits and latencies.
#[derive(Debug, Clone, Default)]
struct VolumeCounts {
    answered: [Answered; 2],
    hits: [u64; 2],
    spreads: [Spread; 2],
}

/// All counters since the start, at one moment. The difference of two samples is a [`Point`].
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    uptime: Duration,
    at: SystemTime,
    read: Latencies,
    write: Latencies,
    read_bytes: u64,
    write_bytes: u64,
    memory_hits: Option<u64>,
    memory_dirty_bytes: u64,
    /// Latencies of reads answered from memory, by the top tier, and below it.
    by: [Spread; 3],
    /// The tiers, from the top. A tier's position changes when one above it is attached or
    /// detached, and its key does not.
    tiers: Vec<(TierKey, CacheCounts)>,
    volumes: Vec<(Arc<str>, VolumeCounts)>,
}

impl Sample {
    /// Extracts the counters from a report. Returns `None` while a tier is being attached or
    /// detached: some threads then have other tiers than the facts.
    pub(crate) fn of(report: &Report) -> Option<Self> {
        let (facts, sum) = (&report.facts, &report.sum);
        if report.threads.iter().any(|thread| thread.tiers().count() != facts.tiers.len()) {
            return None;
        }
        let counts = |stats: &Stats| CacheCounts {
            reads: stats.requests.reads,
            read_hits: stats.requests.read_hits,
            writes: stats.requests.writes,
            write_hits: stats.requests.write_hits,
            dirty_bytes: stats.dirty_bytes,
            device: Moved {
                read_bytes: stats.counters.cache_read_bytes,
                written_bytes: stats.counters.cache_write_bytes,
            },
            below: Moved {
                read_bytes: stats.counters.backing_read_bytes,
                written_bytes: stats.counters.backing_write_bytes,
            },
        };
        let tiers = facts.tiers.iter().zip(sum.tiers());
        let tiers = tiers.map(|(facts, (stats, _))| (facts.key, counts(stats)));
        let volumes = facts.volumes.iter().take(MOST_VOLUMES).map(|volume| {
            let VolumeCounters { answered, hits, .. } = sum.counters.volume(volume.id);
            let answered =
                [Operation::Read, Operation::Write].map(|operation| answered[operation as usize]);
            let spreads = sum.counters.spread(volume.id);
            (Arc::from(volume.name.as_str()), VolumeCounts { answered, hits, spreads })
        });
        Some(Self {
            uptime: facts.uptime,
            at: SystemTime::now(),
            read: sum.counters.latencies(Operation::Read).clone(),
            write: sum.counters.latencies(Operation::Write).clone(),
            read_bytes: sum.stats.requests.read_bytes,
            write_bytes: sum.stats.requests.write_bytes,
            memory_hits: facts.memory.as_ref().map(|_| sum.stats.memory_hits),
            memory_dirty_bytes: sum.stats.held_bytes,
            by: by(&sum.counters),
            tiers: tiers.collect(),
            volumes: volumes.collect(),
        })
    }

    /// Returns the rates, latencies and hit ratios of the interval since an earlier sample. Returns
    /// `None` if no time has passed.
    pub(super) fn since(&self, before: &Self) -> Option<Point> {
        let seconds = self.uptime.saturating_sub(before.uptime).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |now: u64, then: u64| rounded(now.saturating_sub(then) as f64 / seconds);
        let flow = |now: &Latencies, then: &Latencies, bytes: f32| {
            let latencies = now.since(then);
            let summary = latencies.summary();
            Flow {
                rate: rate(latencies.count(), 0),
                bytes,
                mean_us: rounded(summary.mean_us),
                p50_us: rounded(summary.p50_us),
                p99_us: rounded(summary.p99_us),
                p999_us: rounded(summary.p999_us),
            }
        };
        let reads = self.read.count().saturating_sub(before.read.count());
        // A tier that was attached since then began at zero.
        let earlier = |key: TierKey| {
            let same = before.tiers.iter().find(|(before, _)| *before == key);
            same.map(|(_, counts)| *counts).unwrap_or_default()
        };
        let backing = |(key, now): &(TierKey, CacheCounts)| {
            // The tier that is the lowest now may have had another one below it.
            now.below.since(earlier(*key).below, rate)
        };
        let tiers = self.tiers.iter().take(MOST_TIERS).map(|(key, now)| {
            let then = earlier(*key);
            CachePoint {
                read_hit_ratio: share((now.read_hits, then.read_hits), (now.reads, then.reads)),
                write_hit_ratio: share(
                    (now.write_hits, then.write_hits),
                    (now.writes, then.writes),
                ),
                dirty_bytes: now.dirty_bytes,
                device: now.device.since(then.device, rate),
            }
        });
        let volumes = self.volumes.iter().map(|(name, counts)| {
            let [read, write] = counts.answered;
            let then = before.volumes.iter().find(|(before, _)| before == name);
            let old = then.map(|(_, counts)| counts.clone()).unwrap_or_default();
            let [old_read, old_write] = old.answered;
            let hits = |at: usize| {
                let requests = (counts.answered[at].requests, old.answered[at].requests);
                share((counts.hits[at], old.hits[at]), requests)
            };
            VolumePoint {
                name: Arc::clone(then.map_or(name, |(before, _)| before)),
                reads: rate(read.requests, old_read.requests),
                writes: rate(write.requests, old_write.requests),
                read_bytes: rate(read.bytes, old_read.bytes),
                write_bytes: rate(write.bytes, old_write.bytes),
                read_hit_ratio: hits(0),
                write_hit_ratio: hits(1),
                read: SpreadPoint::of(&counts.spreads[0], &old.spreads[0]),
                write: SpreadPoint::of(&counts.spreads[1], &old.spreads[1]),
            }
        });
        let by = self.by.iter().zip(&before.by).map(|(now, then)| SpreadPoint::of(now, then));
        Some(Point {
            at: self.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            seconds: rounded(seconds),
            read: flow(&self.read, &before.read, rate(self.read_bytes, before.read_bytes)),
            write: flow(&self.write, &before.write, rate(self.write_bytes, before.write_bytes)),
            memory_hit_ratio: self
                .memory_hits
                .and_then(|hits| share((hits, before.memory_hits.unwrap_or(0)), (reads, 0))),
            memory_dirty_bytes: self.memory_dirty_bytes,
            by: by.collect::<Vec<_>>().try_into().expect("three places"),
            backing: self.tiers.last().map(backing)?,
            tiers: tiers.collect(),
            volumes: volumes.collect(),
        })
    }
}

/// Returns the latencies of reads answered from memory, by the top tier, and below it.
fn by(counters: &ThreadCounters) -> [Spread; 3] {
    let [memory, top, below] = [By::Memory, By::Top, By::Below].map(|by| counters.read_by(by));
    [memory.clone(), top.since(memory), below.clone()]
}

fn name<S: serde::Serializer>(name: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name)
}

/// Returns the growth of `part` divided by the growth of `all`. Each pair has the present and the
/// earlier value.
fn share(part: (u64, u64), all: (u64, u64)) -> Option<f32> {
    let (part, all) = (part.0.saturating_sub(part.1), all.0.saturating_sub(all.1));
    (all > 0).then(|| rounded((part as f64 / all as f64).min(1.0)))
}

/// Rounds to four significant digits. More digits are noise, and cost bytes on the network.
fn rounded(value: f64) -> f32 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    ((value * scale).round() / scale) as f32
}

#[cfg(test)]
mod tests {
    use floe_block::VolumeId;

    use super::*;

    impl Sample {
        /// Creates a sample with the most tiers and volumes that are recorded, after `requests`
        /// requests.
        pub(crate) fn crowded(uptime: Duration, requests: u64) -> Self {
            let answered = Answered { requests, bytes: requests * 4096, ..Answered::default() };
            let counts = VolumeCounts { answered: [answered; 2], ..VolumeCounts::default() };
            Self {
                uptime,
                at: UNIX_EPOCH + uptime,
                read: Latencies::default(),
                write: Latencies::default(),
                read_bytes: requests * 4096,
                write_bytes: 0,
                memory_hits: None,
                memory_dirty_bytes: 0,
                by: Default::default(),
                tiers: (0..MOST_TIERS as u32)
                    .map(|key| {
                        let counts = CacheCounts { reads: requests, ..CacheCounts::default() };
                        (TierKey(key), counts)
                    })
                    .collect(),
                volumes: (0..MOST_VOLUMES)
                    .map(|it| (format!("volume {it}").into(), counts.clone()))
                    .collect(),
            }
        }
    }

    impl Point {
        /// Returns the bytes of memory that the point uses, without names, which it shares with
        /// earlier points.
        pub(crate) fn bytes(&self) -> usize {
            size_of_val(self) + size_of_val(&*self.tiers) + size_of_val(&*self.volumes)
        }
    }

    #[test]
    fn a_point_tells_of_its_interval_alone() {
        let ms = Duration::from_millis;
        let mut counters = ThreadCounters::default();
        let at = |counters: &ThreadCounters, seconds, hits| Sample {
            read: counters.latencies(Operation::Read).clone(),
            tiers: vec![(
                TierKey(0),
                CacheCounts {
                    reads: 4 * hits,
                    read_hits: hits,
                    device: Moved { read_bytes: 10 * hits, written_bytes: 0 },
                    below: Moved { read_bytes: 0, written_bytes: 100 * hits },
                    ..CacheCounts::default()
                },
            )],
            volumes: Vec::new(),
            ..Sample::crowded(Duration::from_secs(seconds), hits)
        };
        let mut answer = |latency, times| {
            for _ in 0..times {
                counters.answered(VolumeId(0), Operation::Read, 4096, latency, true);
            }
            counters.clone()
        };
        let before = at(&answer(ms(100), 1000), 10, 7);
        let after = at(&answer(ms(1), 50), 20, 27);
        let point = after.since(&before).unwrap();
        assert_eq!((point.read.rate, point.at, point.seconds), (5.0, 20, 10.0));
        assert!((point.read.p999_us - 1000.0).abs() < 20.0, "{point:?}");
        assert!((point.read.mean_us - 1000.0).abs() < 1.0, "{point:?}");
        assert_eq!(point.read.bytes, 20.0 * 4096.0 / 10.0);
        assert_eq!(point.tiers[0].read_hit_ratio, Some(0.25));
        assert_eq!(point.tiers[0].write_hit_ratio, None);
        let traffic = |read_bytes, written_bytes| Traffic { read_bytes, written_bytes };
        assert_eq!(
            (point.tiers[0].device, point.backing),
            (traffic(20.0, 0.0), traffic(0.0, 200.0))
        );
        assert_eq!(after.since(&after), None, "no time has passed");
    }

    #[test]
    fn a_tier_that_leaves_makes_no_false_traffic() {
        let second = |at: u64, tiers: &[(u32, u64)]| Sample {
            tiers: tiers
                .iter()
                .map(|(key, bytes)| {
                    let moved = Moved { read_bytes: *bytes, written_bytes: 2 * bytes };
                    let below = Moved { read_bytes: 3 * bytes, written_bytes: 4 * bytes };
                    let counts = CacheCounts { device: moved, below, ..CacheCounts::default() };
                    (TierKey(*key), counts)
                })
                .collect(),
            volumes: Vec::new(),
            ..Sample::crowded(Duration::from_secs(at), 0)
        };
        let read = |before: &Sample, after: &Sample| {
            let point = after.since(before).unwrap();
            let of_tiers: Vec<f32> = point.tiers.iter().map(|it| it.device.read_bytes).collect();
            (of_tiers, point.backing.read_bytes)
        };
        let three = second(1, &[(0, 9_000), (1, 50), (2, 700)]);
        let without_middle = second(2, &[(0, 9_001), (2, 702)]);
        assert_eq!(read(&three, &without_middle), (vec![1.0, 2.0], 6.0));
        let top_alone = second(3, &[(0, 9_002)]);
        assert_eq!(read(&without_middle, &top_alone), (vec![1.0], 3.0));
        let one_more = second(4, &[(0, 9_003), (3, 5)]);
        assert_eq!(read(&top_alone, &one_more), (vec![1.0, 5.0], 15.0));
    }

    #[test]
    fn four_digits_are_kept() {
        let shown = [0.0, 1.0 / 3.0, 123_456.7, 0.000_123_456].map(rounded);
        assert_eq!(shown, [0.0, 0.3333, 123_500.0, 0.000_123_5]);
    }
}
