//! Nothing comes in while what is in use fits into the memory above: it would be answered from
//! there.
//!
//! The published form compares the memory with the size of all files ("Writes Hurt", the NVCache
//! paper, section 3.2, lesson 1); the size of a volume says little of how much of it is in use.
//! Here it is what was *touched* of late ([`Footprint`]). A window ends when four times the memory
//! above was asked of this cache, so data that does not fit above shows before anything is
//! forgotten.
//!
//! Owners have to tell hits ([`Admission::used`]), or what the cache answers itself seems not to be
//! in use. Not to be used where the memory above does not cache what is asked of this cache.

use super::footprint::Footprint;
use super::{Admission, Needs, Orders, RegisteredAdmission, Room, Verdict, Victim};
use crate::{Access, Parameter, Parameters, PolicyInfo, Tick};

/// The length of a window, in the memory above.
const WINDOW: u64 = 4;

/// Admits nothing while the footprint fits above.
#[derive(Debug, Clone)]
pub struct SmallBypass {
    footprint: Footprint,
    given: u64,
    above: u64,
}

impl SmallBypass {
    /// With this much memory above, in the unit of [`Access::weight`].
    pub fn new(memory: u64) -> Self {
        Self { given: memory, above: memory, ..Self::default() }
    }

    fn touch(&mut self, access: &Access) {
        self.footprint.touch(access.hash, access.weight, self.above.saturating_mul(WINDOW).max(1));
    }

    fn fits_above(&self) -> bool {
        self.footprint.weight() <= self.above as f64
    }
}

impl RegisteredAdmission for SmallBypass {
    const INFO: PolicyInfo = PolicyInfo::new(
        "small-bypass",
        "nothing comes in while what is in use fits into the memory above",
        "NVCache, \"Writes Hurt\"",
    )
    .with(&[Parameter::count(
        "memory",
        0,
        0..=1 << 50,
        "the memory above: bytes, such as 1GiB, or objects where these are counted; 0 for what is \
         known to be above",
    )]);

    fn with(parameters: &Parameters) -> Self {
        let given = parameters.count("memory");
        Self { footprint: Footprint::default(), given, above: given }
    }
}

impl Admission for SmallBypass {
    fn needs(&self) -> Needs {
        Needs { above: self.given == 0, ..Needs::default() }
    }

    fn split(&mut self, _: usize, parts: usize) {
        self.given = self.given.div_ceil(parts as u64);
    }

    fn reserve(&mut self, room: &Room) {
        self.above = if self.given > 0 { self.given } else { room.above };
    }

    fn used(&mut self, access: &Access) {
        self.touch(access);
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        self.touch(offer);
        if self.fits_above() { Verdict::Bypass } else { Verdict::Admit }
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold |= self.fits_above();
    }

    fn memory_bytes(&self) -> usize {
        self.footprint.memory_bytes()
    }
}
