//! TinyLFU's duel: a candidate is admitted if it was requested more often than the victim.
//!
//! A sketch that ages counts what is offered and, as far as the owner tells, what is hit (Einziger,
//! Friedman, Manes, "TinyLFU", TOS '17). A tie is for the resident, which saves a write.
//!
//! Not to be used by owners that report no hits: entries hit all the time then seem never used. Nor
//! where no victim is named ([`Eviction::victim`](crate::Eviction::victim), or
//! [`PendingVictims`](crate::PendingVictims) over policies that do not): everything is admitted
//! then.

use super::{Admission, Needs, RegisteredAdmission, Room, Verdict, Victim};
use crate::index::Tag;
use crate::sketch::Sketch;
use crate::{Access, Parameters, PolicyInfo};

/// Admits what is used more than the victim.
#[derive(Debug, Clone)]
pub struct Duel {
    uses: Sketch,
}

impl RegisteredAdmission for Duel {
    const INFO: PolicyInfo = PolicyInfo::new(
        "duel",
        "a candidate enters if a sketch counts more requests for it than for the victim",
        "TinyLFU: Einziger et al., TOS '17",
    );

    fn with(_: &Parameters) -> Self {
        Self { uses: Sketch::default() }
    }
}

impl Admission for Duel {
    fn needs(&self) -> Needs {
        Needs { victims: true, ..Needs::default() }
    }

    fn reserve(&mut self, room: &Room) {
        self.uses.reserve(room.entries);
    }

    fn used(&mut self, access: &Access) {
        self.uses.add(Tag::of(access.hash).bits());
    }

    fn judge(&mut self, offer: &Access, victim: Option<&Victim>) -> Verdict {
        let key = Tag::of(offer.hash).bits();
        self.uses.add(key);
        match victim {
            None => Verdict::Admit,
            Some(victim)
                if self.uses.estimate(key) > self.uses.estimate(Tag::of(victim.hash).bits()) =>
            {
                Verdict::Replace(victim.slot)
            }
            Some(_) => Verdict::Bypass,
        }
    }

    fn memory_bytes(&self) -> usize {
        self.uses.memory_bytes()
    }
}
