//! A coin decides: what is asked for often comes in sooner or later, most of what is asked for once does not.
//!
//! It remembers nothing, and so costs nothing. Not to be used where the cache has to be warm soon.

use super::{Admission, Choosable, Verdict, Victim};
use crate::random::Random;
use crate::{About, Access, Parameter, Parameters};

const SEED: u64 = 0xad;

/// Admits an offer with a probability.
#[derive(Debug, Clone)]
pub struct Probability {
    probability: f64,
    random: Random,
}

impl Choosable for Probability {
    const ABOUT: About = About::new("probability", "a coin decides", "-").with(&[Parameter::share(
        "p",
        0.1,
        "probability that an offer comes in",
    )]);

    fn with(parameters: &Parameters) -> Self {
        Self { probability: parameters.get("p"), random: Random::new(SEED) }
    }
}

impl Admission for Probability {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        if self.random.share() < self.probability { Verdict::Admit } else { Verdict::Bypass }
    }
}
