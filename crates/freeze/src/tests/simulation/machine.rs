//! The latencies of a simulated machine, and their noise.

/// Latencies of a simulated machine, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Latency of a hit through the frozen index.
    pub(crate) frozen: f64,
    /// Latency of a lookup in the index of all entries.
    pub(crate) lookup: f64,
    /// Additional latency of a hit on an entry that is not frozen.
    pub(crate) promotion: f64,
    /// Latency of a lookup in the frozen index that does not find the key.
    pub(crate) failing: f64,
    pub(crate) load: f64,
    pub(crate) insertion: f64,
    /// Share of each latency that is exponential noise.
    pub(crate) noise: f64,
    /// Amplitude of a periodic slowdown of the machine, as a share, and its period in seconds.
    pub(crate) wander: (f64, f64),
    /// Stalls per second.
    pub(crate) stalls: f64,
    /// Construction time of the frozen index, per entry.
    pub(crate) construction: f64,
    /// Time that reading the clock adds to a measured latency.
    pub(crate) clock: f64,
    /// True if entries may be frozen. They may not where each hit has to write to them.
    pub(crate) freezes: bool,
}

impl Machine {
    /// A machine on which freezing halves the latency of a hit, and promotions are expensive.
    pub(crate) const LRU_LIKE: Self = Self {
        frozen: 10.0,
        lookup: 15.0,
        promotion: 15.0,
        failing: 2.0,
        load: 200.0,
        insertion: 20.0,
        noise: 0.5,
        wander: (0.0, 1.0),
        stalls: 0.0,
        construction: 1.0,
        clock: 2.0,
        freezes: true,
    };

    /// Returns a machine that is `times` times as fast.
    pub(crate) fn faster(self, times: f64) -> Self {
        Self {
            frozen: self.frozen / times,
            lookup: self.lookup / times,
            promotion: self.promotion / times,
            failing: self.failing / times,
            load: self.load / times,
            insertion: self.insertion / times,
            construction: self.construction / times,
            clock: self.clock / times,
            ..self
        }
    }
}
