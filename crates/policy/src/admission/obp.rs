//! OBP, the overhead bypass ratio: nothing comes in, nor leaves, while the cache is written too much for how it is read.
//!
//! The ratio is `(inserted + removed) / looked up`, and while it is above a target nothing is admitted or evicted ("Writes
//! Hurt", the NVCache paper, section 3.2: on Optane memory 10 %, with 5 to 30 % acceptable, more where writes hurt reads less).
//! Removals count too, by invalidation as much as by eviction: freeing writes. So what is rewritten all the time is not admitted for long.
//!
//! The published counters run since the start, so that a workload that changes is noticed after hours. Here they decay: what is
//! `half-life` operations ago counts half. With `bytes=1` the ratio is of bytes, those written weighed by what they cost in bytes read
//! (`write-cost`, or what is measured while it runs: [`Times::write_cost`](super::Times::write_cost)). What was admitted since the last window counts at once, so that a
//! burst cannot slip in between two of them.
//!
//! Not to be used where writes cost little: the cache fills slowly, by a block for each ten looked up.

use super::{Admission, Choosable, Orders, Traffic, Verdict, Victim, Window};
use crate::{About, Access, Parameter, Parameters, Tick};

/// Keeps writes to a share of lookups.
#[derive(Debug, Clone)]
pub struct Obp {
    target: f64,
    half_life: f64,
    in_bytes: bool,
    write_cost: f64,
    /// The cost was told, and stays.
    is_told: bool,
    written: f64,
    looked_up: f64,
    /// What was admitted and evicted since the last window.
    pending: f64,
}

impl Obp {
    /// With this target and all else as in the registry.
    ///
    /// # Panics
    /// When the target is not a number from 0 to 1.
    pub fn new(target: f64) -> Self {
        assert!((0.0..=1.0).contains(&target), "a target is from 0 to 1, not {target}");
        Self { target, ..Self::default() }
    }

    /// The ratio as of now; 0 before anything was looked up or written, infinite where only writes were seen.
    pub fn ratio(&self) -> f64 {
        let written = self.written + self.pending;
        if written == 0.0 { 0.0 } else { written / self.looked_up }
    }

    /// Whether the cache is written too much. No division: at the start there is nothing to divide by.
    fn exceeds(&self) -> bool {
        self.written + self.pending > self.target * self.looked_up
    }

    fn amount(&self, traffic: Traffic) -> f64 {
        if self.in_bytes { traffic.bytes as f64 } else { traffic.blocks as f64 }
    }

    fn cost(&self, written: f64) -> f64 {
        if self.in_bytes { written * self.write_cost } else { written }
    }
}

impl Choosable for Obp {
    const ABOUT: About = About::new(
        "obp",
        "nothing comes in or leaves while insertions and removals exceed a share of the lookups",
        "NVCache, \"Writes Hurt\"",
    )
    .with(&[
        Parameter::share("target", 0.1, "the share"),
        Parameter::count("half-life", 1 << 18, 1..=1 << 50, "operations after which they count half"),
        Parameter::count("bytes", 0, 0..=1, "whether bytes count instead of blocks"),
        Parameter {
            name: "write-cost",
            default: 0.0,
            min: 0.0,
            max: 1000.0,
            whole: false,
            about: "a byte written in bytes read; 0 for what is measured, 1 until it is",
        },
    ]);

    fn with(parameters: &Parameters) -> Self {
        let told = Some(parameters.get("write-cost")).filter(|cost| *cost > 0.0);
        Self {
            target: parameters.get("target"),
            half_life: parameters.get("half-life"),
            in_bytes: parameters.count("bytes") == 1,
            write_cost: told.unwrap_or(1.0),
            is_told: told.is_some(),
            written: 0.0,
            looked_up: 0.0,
            pending: 0.0,
        }
    }
}

impl Admission for Obp {
    fn split(&mut self, _: usize, parts: usize) {
        self.half_life = (self.half_life / parts as f64).max(1.0);
    }

    fn observe(&mut self, window: &Window) {
        if !self.is_told
            && let Some(cost) = window.times.write_cost.filter(|cost| cost.is_finite() && *cost >= 0.0)
        {
            self.write_cost = cost;
        }
        let operations = window.lookups.blocks + window.inserted.blocks + window.removed.blocks;
        let kept = (-(operations as f64) / self.half_life).exp2();
        let written = self.amount(window.inserted) + self.amount(window.removed);
        self.written = self.written * kept + self.cost(written);
        self.looked_up = self.looked_up * kept + self.amount(window.lookups);
        self.pending = 0.0;
    }

    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        if self.exceeds() { Verdict::Bypass } else { Verdict::Admit }
    }

    fn settle(&mut self, offer: &Access, verdict: Verdict) {
        if verdict.admits() {
            let block = Traffic { blocks: 1, bytes: u64::from(offer.weight) };
            self.pending += self.cost(self.amount(block));
        }
    }

    fn evicted(&mut self, _: &Access) {
        // How many bytes that writes, the next window tells.
        self.pending += if self.in_bytes { 0.0 } else { 1.0 };
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold |= self.exceeds();
    }
}
