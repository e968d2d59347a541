//! Admits a block when it is offered for the second time.
//!
//! A ghost list remembers rejected blocks. A block that returns while it is remembered has shown
//! that it returns. Not to be used where blocks come back after more other blocks than the list
//! remembers: then nothing is ever admitted.

use super::{Admission, RegisteredAdmission, Room, Verdict, Victim};
use crate::ghost::Ghosts;
use crate::index::Tag;
use crate::{Access, Parameter, Parameters, PolicyInfo};

/// Admits what was offered before.
#[derive(Debug, Clone)]
pub struct SecondAccess {
    stayed_out: Ghosts<1>,
    ghosts_share: f64,
}

impl RegisteredAdmission for SecondAccess {
    const INFO: PolicyInfo =
        PolicyInfo::new("second-access", "what is offered for the second time comes in", "-").with(
            &[Parameter {
                name: "ghosts",
                default: 1.0,
                min: 0.001,
                max: 16.0,
                whole: false,
                about: "remembered per entry of the cache",
            }],
        );

    fn with(parameters: &Parameters) -> Self {
        Self { stayed_out: Ghosts::named(["stayed out"]), ghosts_share: parameters.get("ghosts") }
    }
}

impl Admission for SecondAccess {
    fn reserve(&mut self, room: &Room) {
        self.stayed_out.reserve(((room.entries as f64 * self.ghosts_share) as usize).max(1));
    }

    fn judge(&mut self, offer: &Access, _: Option<&Victim>) -> Verdict {
        match self.stayed_out.take(Tag::of(offer.hash)) {
            Some(_) => Verdict::Admit,
            None => Verdict::Bypass,
        }
    }

    fn settle(&mut self, offer: &Access, verdict: Verdict) {
        if !verdict.admits() {
            self.stayed_out.push(0, Tag::of(offer.hash), ());
        }
    }

    fn memory_bytes(&self) -> usize {
        self.stayed_out.memory_bytes()
    }
}
