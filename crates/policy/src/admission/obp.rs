//! OBP, the overhead bypass ratio: stops admission and eviction while the cache is written too much
//! for how it is read.
//!
//! The ratio is `(inserted + removed) / looked up`. While it is above a target nothing is admitted
//! or evicted ("Writes Hurt", the NVCache paper, section 3.2: on Optane memory 10 %, with 5 to 30 %
//! acceptable, more where writes hurt reads less). Removals count, by invalidation as much as by
//! eviction, because freeing writes. So blocks that are removed all the time are not admitted for
//! long.
//!
//! The published counters run since the start, so a change of the workload is noticed after hours.
//! Here they decay: the weight of a count halves every `half-life` operations. With `bytes=1` the
//! ratio is of bytes, and bytes written are weighed by their cost in bytes read (`write-cost`; by
//! default 1, or [`Times::write_cost`](super::Times::write_cost) if that is more). Admissions since
//! the last window count at once, so that a burst cannot slip in between two windows.
//!
//! Two kinds of writes are always made and not counted ([`Window::replaced`], `fill`). One is newer
//! data of held blocks, which in the paper's engine is another block that can be declined. The
//! other is the first fill of the cache, because a cache that fills by a block for each ten lookups
//! is empty for long. `obp:replaced=1:fill=0` is the published form. With `invalidate=1` newer data
//! of a clean block counts and can be declined, too: the cached copy is dropped, and the write goes
//! only to the device below. That is the fate of obsolete blocks in the paper's engine, which never
//! overwrites. With a target of 0, which a calibration gives where caching does not pay, nothing is
//! ever admitted.
//!
//! Do not use OBP where writes cost little: blocks that become popular are admitted slowly.

use super::{
    Admission, Needs, Orders, RegisteredAdmission, Room, Traffic, Verdict, Victim, Window,
};
use crate::{Access, Parameter, Parameters, PolicyInfo, Tick};

/// Cost of a byte written, in bytes read, unless a higher one is given or measured. A measurement
/// is a lower bound: writes seem free on a device that is idle or that answers them early.
const LEAST_COST: f64 = 1.0;

/// OBP (`obp`): keeps the writes to the cache below a share of its lookups.
#[derive(Debug, Clone)]
pub struct Obp {
    target: f64,
    half_life: f64,
    in_bytes: bool,
    counts_replaced: bool,
    invalidates: bool,
    fills: bool,
    write_cost: f64,
    /// True if the cost of a write was given as a parameter, so measurements do not change it.
    is_told: bool,
    written: f64,
    looked_up: f64,
    /// Amount admitted and evicted since the last window.
    pending: f64,
    /// Capacity of the cache; `unfilled` is the part still to be filled at the start.
    room: f64,
    unfilled: f64,
    /// Amount of insertions and removals in coming windows that is not counted.
    exempt: f64,
}

impl Obp {
    /// Creates an admission with this target ratio and default parameters.
    ///
    /// # Panics
    /// When the target is not a number from 0 to 1.
    pub fn new(target: f64) -> Self {
        assert!((0.0..=1.0).contains(&target), "a target must be from 0 to 1, not {target}");
        Self { target, ..Self::default() }
    }

    /// Returns the present ratio of writes to lookups; 0 before any operation, infinite if only
    /// writes were seen.
    pub fn ratio(&self) -> f64 {
        let written = self.written + self.pending;
        if written == 0.0 { 0.0 } else { written / self.looked_up }
    }

    /// Returns whether the ratio is above the target. Compares products, because the divisor may be
    /// 0.
    fn is_over(&self) -> bool {
        self.target == 0.0 || self.written + self.pending > self.target * self.looked_up
    }

    /// Returns whether admission is closed. The first fill of the cache is exempt unless the target
    /// is 0.
    fn exceeds(&self) -> bool {
        self.is_over() && (self.target == 0.0 || self.unfilled <= 0.0)
    }

    fn amount(&self, traffic: Traffic) -> f64 {
        if self.in_bytes { traffic.bytes as f64 } else { traffic.blocks as f64 }
    }

    fn cost(&self, written: f64) -> f64 {
        if self.in_bytes { written * self.write_cost } else { written }
    }
}

impl RegisteredAdmission for Obp {
    const INFO: PolicyInfo = PolicyInfo::new(
        "obp",
        "admits and evicts nothing while insertions and removals exceed a share of the lookups",
        "NVCache, \"Writes Hurt\"",
    )
    .with(&[
        Parameter::share("target", 0.1, "the share; with 0 nothing is ever admitted"),
        Parameter::count(
            "half-life",
            1 << 18,
            1..=1 << 50,
            "number of operations after which older ones count half",
        ),
        Parameter::count("bytes", 0, 0..=1, "whether bytes count instead of blocks"),
        Parameter {
            name: "write-cost",
            default: 0.0,
            min: 0.0,
            max: 1000.0,
            whole: false,
            names: &[],
            about: "cost of writing a byte, in bytes read; 0 for 1, or more where a write is \
                    measured to take longer",
        },
        Parameter::count("replaced", 0, 0..=1, "whether newer data of cached blocks counts"),
        Parameter::count(
            "invalidate",
            0,
            0..=1,
            "whether newer data of clean cached blocks counts, and beyond the share drops the copy \
             instead of replacing it",
        ),
        Parameter::count(
            "fill",
            1,
            0..=1,
            "whether insertions are not counted until the cache is first full",
        ),
    ]);

    fn with(parameters: &Parameters) -> Self {
        let invalidates = parameters.count("invalidate") == 1;
        let told = Some(parameters.get("write-cost")).filter(|cost| *cost > 0.0);
        Self {
            target: parameters.get("target"),
            half_life: parameters.get("half-life"),
            in_bytes: parameters.count("bytes") == 1,
            counts_replaced: parameters.count("replaced") == 1 || invalidates,
            invalidates,
            fills: parameters.count("fill") == 1,
            write_cost: told.unwrap_or(LEAST_COST),
            is_told: told.is_some(),
            written: 0.0,
            looked_up: 0.0,
            pending: 0.0,
            room: 0.0,
            unfilled: 0.0,
            exempt: 0.0,
        }
    }
}

impl Admission for Obp {
    fn needs(&self) -> Needs {
        Needs { overwrites: self.invalidates, ..Needs::default() }
    }

    fn split(&mut self, _: usize, parts: usize) {
        self.half_life = (self.half_life / parts as f64).max(1.0);
    }

    fn reserve(&mut self, room: &Room) {
        let room = if self.in_bytes { room.weight as f64 } else { room.entries as f64 };
        if self.fills && room > self.room {
            self.unfilled += room - self.room;
            self.room = room;
        }
    }

    fn observe(&mut self, window: &Window) {
        if !self.is_told
            && let Some(cost) =
                window.times.write_cost.filter(|cost| cost.is_finite() && *cost >= 0.0)
        {
            self.write_cost = cost.max(LEAST_COST);
        }
        let operations = window.lookups.blocks + window.inserted.blocks + window.removed.blocks;
        let kept = (-(operations as f64) / self.half_life).exp2();
        let written = self.amount(window.inserted) + self.amount(window.removed);
        if !self.counts_replaced {
            self.exempt += self.amount(window.replaced);
        }
        // An admitted or replaced block may be written a window later, and never if the device
        // fails.
        let exempt = self.exempt.min(written);
        self.exempt = (self.exempt - exempt) * kept;
        self.written = self.written * kept + self.cost(written - exempt);
        self.looked_up = self.looked_up * kept + self.amount(window.lookups);
        self.pending = 0.0;
    }

    fn judge(&mut self, _: &Access, victim: Option<&Victim>) -> Verdict {
        if victim.is_some() {
            self.unfilled = 0.0; // it is full, perhaps since before the program began
        }
        if self.exceeds() { Verdict::Bypass } else { Verdict::Admit }
    }

    fn settle(&mut self, offer: &Access, verdict: Verdict) {
        if !verdict.admits() {
            return;
        }
        let amount = self.amount(Traffic { blocks: 1, bytes: u64::from(offer.weight) });
        if self.unfilled > 0.0 {
            self.unfilled -= amount;
            self.exempt += amount;
        } else {
            self.pending += self.cost(amount);
        }
    }

    fn overwrite(&mut self, access: &Access) -> bool {
        if !self.invalidates {
            return true;
        }
        // Newer data is not what fits at the start.
        if self.is_over() {
            return false;
        }
        let amount = self.amount(Traffic { blocks: 1, bytes: u64::from(access.weight) });
        self.pending += self.cost(amount);
        true
    }

    fn evicted(&mut self, _: &Access) {
        // The next window brings the number of bytes written.
        self.pending += if self.in_bytes { 0.0 } else { 1.0 };
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold |= self.exceeds();
    }
}
