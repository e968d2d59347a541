//! Every key equally likely: nothing to learn, the hit ratio of any policy is the share of keys it
//! holds.

use super::parameter::KEYS;
use super::rng::Rng;
use super::{Access, Entry, Generate, Made};

pub(super) static UNIFORM: Entry = Entry {
    name: "uniform",
    about: "every key equally likely",
    parameters: &[KEYS],
    chooses_ops: false,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        Ok(Made { span: keys, generator: Box::new(Uniform { rng: Rng::new(plan.seed), keys }) })
    },
};

struct Uniform {
    rng: Rng,
    keys: u64,
}

impl Generate for Uniform {
    #[inline]
    fn next(&mut self) -> Access {
        Access::to(self.rng.below(self.keys))
    }
}
