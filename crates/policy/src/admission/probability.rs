//! A coin decides: what is asked for often comes in sooner or later, most of what is asked for once
//! does not.
//!
//! It remembers nothing, and so costs nothing. Not to be used where the cache has to be warm soon.

use super::{Admission, RegisteredAdmission, Verdict, Victim};
use crate::random::Random;
use crate::{Access, Parameter, Parameters, PolicyInfo};

const SEED: u64 = 0xad;

/// Odd, so that no two parts have the same seed, and with bits all over, so that none draws what
/// another has drawn a little earlier.
const PARTS_APART: u64 = 0xd6e8_feb8_6659_fd93;

/// Admits an offer with a probability.
#[derive(Debug, Clone)]
pub struct Probability {
    probability: f64,
    random: Random,
}

impl RegisteredAdmission for Probability {
    const INFO: PolicyInfo = PolicyInfo::new("probability", "a coin decides", "-")
        .with(&[Parameter::share("p", 0.1, "probability that an offer comes in")]);

    fn with(parameters: &Parameters) -> Self {
        Self { probability: parameters.get("p"), random: Random::new(SEED) }
    }
}

impl Admission for Probability {
    fn split(&mut self, part: usize, _: usize) {
        // Each its own coins, and the first those of one that has no others beside it.
        self.random = Random::new(SEED ^ (part as u64).wrapping_mul(PARTS_APART));
    }

    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        if self.random.share() < self.probability { Verdict::Admit } else { Verdict::Bypass }
    }
}
