//! Everything comes in: what most caches do.
//!
//! Not to be used where writing to the cache slows its reads, or where most blocks are used once.

use super::{Admission, Choosable, Verdict, Victim};
use crate::{About, Access, Parameters};

/// Admits every offer.
#[derive(Debug, Clone)]
pub struct Always;

impl Choosable for Always {
    const ABOUT: About = About::new("always", "everything comes in", "-");

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for Always {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        Verdict::Admit
    }
}
