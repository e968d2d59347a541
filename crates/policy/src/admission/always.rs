//! Everything comes in: what most caches do.
//!
//! Not to be used where writing to the cache slows its reads, or where most blocks are used once.

use super::{Admission, RegisteredAdmission, Verdict, Victim};
use crate::{Access, Parameters, PolicyInfo};

/// Admits every offer.
#[derive(Debug, Clone)]
pub struct Always;

impl RegisteredAdmission for Always {
    const INFO: PolicyInfo = PolicyInfo::new("always", "everything comes in", "-");

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for Always {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        Verdict::Admit
    }
}
