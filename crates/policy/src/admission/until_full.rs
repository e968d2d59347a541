//! Admits while there is room, and evicts nothing. The cache that writes least, to compare with
//! ("Writes Hurt", figure 3).
//!
//! Not to be used where what is popular changes.

use super::{Admission, Orders, RegisteredAdmission, Verdict, Victim};
use crate::{Access, Parameters, PolicyInfo, Tick};

/// Admits offers that need no eviction.
#[derive(Debug, Clone)]
pub struct UntilFull;

impl RegisteredAdmission for UntilFull {
    const INFO: PolicyInfo = PolicyInfo::new(
        "until-full",
        "what fits comes in, and nobody leaves for it",
        "NVCache, \"Writes Hurt\"",
    );

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for UntilFull {
    fn judge(&mut self, _: &Access, victim: Option<&Victim>) -> Verdict {
        if victim.is_none() { Verdict::Admit } else { Verdict::Bypass }
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold = true;
    }
}
