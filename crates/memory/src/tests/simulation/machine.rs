//! The latencies of a simulated machine, and their noise.

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// A hit by the frozen index.
    pub(crate) frozen: f64,
    /// A lookup in the index of everything.
    pub(crate) lookup: f64,
    /// Tells what a hit on an entry that is not frozen pays on top.
    pub(crate) promotion: f64,
    /// A lookup in the frozen index that finds nothing.
    pub(crate) failing: f64,
    pub(crate) load: f64,
    pub(crate) insertion: f64,
    /// Of each latency, the share that is exponential noise.
    pub(crate) noise: f64,
    /// The share by which everything becomes slower and faster again, and how many seconds that
    /// takes.
    pub(crate) wander: (f64, f64),
    /// Stalls per second.
    pub(crate) stalls: f64,
    /// For each entry of the frozen index.
    pub(crate) construction: f64,
    /// Tells what reading the clock adds to what is measured.
    pub(crate) clock: f64,
    /// True if entries may be frozen; they may not where each hit has to write to them.
    pub(crate) freezes: bool,
}

impl Machine {
    /// Freezing halves a hit, promotions are dear.
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

    /// The same, so many times as fast.
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
