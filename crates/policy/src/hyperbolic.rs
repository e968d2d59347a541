//! Hyperbolic caching: evicts, of a sample, the entry with the fewest hits per unit of time since
//! its insertion.
//!
//! An entry's priority is the number of its hits divided by the time it has been cached, which
//! falls like a hyperbola without hits, so new entries get time to prove themselves. Of a sample of
//! 64 the entry with the lowest priority leaves (Blankstein, Sen, Freedman, "Hyperbolic Caching",
//! ATC '17).
//!
//! Time is counted in insertions, where libCacheSim counts requests: a hit writes no clock that
//! others read. So an entry ages more slowly while the hit ratio is high. The paper's extensions by
//! cost and size are left out: entries count as one each whatever their weight, and an owner that
//! needs more room evicts again.
//!
//! Do not use it where popularity changes quickly: an old favourite loses its rank slowly.

use crate::slot_array::{SampleSet, ordered_by_array};
use crate::{Access, Eviction, Parameter, Parameters, Policy, PolicyInfo, Slot, Stamps};

/// Hyperbolic caching (`hyperbolic`): evicts, of a sample, the entry with the fewest hits for its
/// time in the cache. FIFO-like.
#[derive(Debug, Clone)]
pub struct Hyperbolic {
    entries: SampleSet,
    hits: Stamps,
    entered: Vec<u32>,
    samples: u64,
}

impl Hyperbolic {
    fn resized(&mut self) {
        self.entered.resize(self.entries.slots(), 0);
    }

    fn moved(&mut self, from: Slot, to: Slot) {
        self.entered[to.index()] = self.entered[from.index()];
    }

    fn memory(&self) -> usize {
        self.entered.capacity() * size_of::<u32>()
    }
}

#[inline]
fn priority(hits: &Stamps, entered: &[u32], slot: Slot) -> f64 {
    let cached = hits.times().now().wrapping_sub(entered[slot.index()]);
    (f64::from(hits.count(slot)) + 1.0) / (f64::from(cached) + 1.0)
}

impl Policy for Hyperbolic {
    const INFO: PolicyInfo = PolicyInfo::new(
        "hyperbolic",
        "evicts, of a sample, the entry with the fewest hits per time cached",
        "Blankstein et al., ATC '17",
    )
    .with(&[Parameter::count("samples", 64, 1..=256, "entries drawn per eviction")]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            entries: SampleSet::default(),
            hits: Stamps::new(u32::MAX),
            entered: Vec::new(),
            samples: parameters.count("samples"),
        }
    }
}

impl Eviction for Hyperbolic {
    type Marks = Stamps;

    fn marks(&self) -> &Stamps {
        &self.hits
    }

    fn promote(&mut self, _: Slot) {}

    fn insert(&mut self, slot: Slot, _: &Access) {
        self.entered[slot.index()] = self.hits.times().advance();
        self.hits.start(slot);
        self.entries.insert(slot);
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let (hits, entered) = (&self.hits, &self.entered);
        let victim = self.entries.worst(self.samples, |slot| priority(hits, entered, slot))?;
        self.entries.remove(victim);
        Some(victim)
    }

    ordered_by_array! {
        order: entries, marks: hits,
        class: |this, slot| {
            let worth = priority(&this.hits, &this.entered, slot);
            (8.0 - worth.log2()).clamp(0.0, 31.0) as u32
        },
        resized: resized, moved: moved, memory: memory
    }
}
