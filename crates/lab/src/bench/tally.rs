//! The counters and times of a thread.

use hdrhistogram::Histogram;

/// Longest time kept apart, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Counts and times of a thread, or of several together.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Operations taken from the load. Those whose clients were still parked at the end are neither
    /// hits nor misses.
    pub taken: u64,
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed, and whose entries were brought in.
    pub misses: u64,
    /// Writes.
    pub writes: u64,
    /// Latency of sampled hits.
    pub hit_ns: Histogram<u64>,
    /// Latency of sampled misses, from before the lookup to after the fill.
    pub miss_ns: Histogram<u64>,
    /// Latency of sampled writes.
    pub write_ns: Histogram<u64>,
    /// The time that each parked client was parked.
    pub park_ns: Histogram<u64>,
    /// Time in which all clients of the thread were parked.
    pub idle_ns: u64,
    /// Time the thread ran.
    pub wall_ns: u64,
    /// Processor time it used, waiting precisely included.
    pub cpu_ns: u64,
}

impl Default for Tally {
    fn default() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are in order");
        Self {
            taken: 0,
            hits: 0,
            misses: 0,
            writes: 0,
            hit_ns: histogram(),
            miss_ns: histogram(),
            write_ns: histogram(),
            park_ns: histogram(),
            idle_ns: 0,
            wall_ns: 0,
            cpu_ns: 0,
        }
    }
}

impl Tally {
    /// Operations done.
    pub fn operations(&self) -> u64 {
        self.hits + self.misses + self.writes
    }

    /// Share of lookups that hit; 0 without any.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// Adds another one's counts and times.
    pub fn add(&mut self, other: &Tally) {
        self.taken += other.taken;
        self.hits += other.hits;
        self.misses += other.misses;
        self.writes += other.writes;
        self.idle_ns += other.idle_ns;
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
        for (sum, more) in [
            (&mut self.hit_ns, &other.hit_ns),
            (&mut self.miss_ns, &other.miss_ns),
            (&mut self.write_ns, &other.write_ns),
            (&mut self.park_ns, &other.park_ns),
        ] {
            sum.add(more).expect("all histograms have the same bounds");
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        let Self { hit_ns, miss_ns, write_ns, park_ns, .. } = self;
        for histogram in [hit_ns, miss_ns, write_ns, park_ns] {
            histogram.reset();
        }
        (self.taken, self.hits, self.misses, self.writes) = (0, 0, 0, 0);
        (self.idle_ns, self.wall_ns, self.cpu_ns) = (0, 0, 0);
    }
}
