//! Nothing comes in: the cache that is not there, to compare with.

use super::{Admission, Orders, RegisteredAdmission, Verdict, Victim};
use crate::{Access, Parameters, PolicyInfo, Tick};

/// Admits no offer.
#[derive(Debug, Clone)]
pub struct Never;

impl RegisteredAdmission for Never {
    const INFO: PolicyInfo = PolicyInfo::new("never", "nothing comes in", "-");

    fn with(_: &Parameters) -> Self {
        Self
    }
}

impl Admission for Never {
    fn judge(&mut self, _: &Access, _: Option<&Victim>) -> Verdict {
        Verdict::Bypass
    }

    fn order(&mut self, _: Tick, orders: &mut Orders) {
        orders.hold = true;
    }
}
