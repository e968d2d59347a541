//! Long sequences stay out: disks are good at them, and they are seldom read twice.
//!
//! The owner follows the streams ([`streams`](crate::streams)); from the threshold on, a stream's
//! blocks stay out. Not to be used above devices on which sequential reads are no faster than
//! others.

use super::{Admission, Needs, RegisteredAdmission, Verdict, Victim};
use crate::{Access, Parameter, Parameters, PolicyInfo};

/// Admits what is not part of a long sequence.
#[derive(Debug, Clone)]
pub struct Sequential {
    threshold: u64,
}

impl RegisteredAdmission for Sequential {
    const INFO: PolicyInfo = PolicyInfo::new("sequential", "long sequences stay out", "-")
        .with(&[Parameter::count(
            "threshold",
            32,
            2..=1 << 32,
            "positions in a row from which they do",
        )])
        .looking_at_streams();

    fn with(parameters: &Parameters) -> Self {
        Self { threshold: parameters.count("threshold") }
    }
}

impl Admission for Sequential {
    fn needs(&self) -> Needs {
        Needs { streams: true, ..Needs::default() }
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        if offer.in_a_row < self.threshold { Verdict::Admit } else { Verdict::Bypass }
    }
}
