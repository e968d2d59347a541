//! The plan of a fault device: the operations that fail, and their faults.
//!
//! A plan is a list of named operations ("the third write") or draws from a seed, or both.
//! Operations count from zero, each kind by itself, in the order they are submitted, so the same
//! seed and the same operations give the same faults.

use std::collections::HashMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The longest delay a seeded plan draws, in polls.
const DELAY_POLLS_MAX: u32 = 8;

/// Kinds of operations, as plans count them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes, durable or not.
    Write,
    /// Zeroings and discards.
    Zero,
    /// Flushes.
    Flush,
}

/// A fault, applied to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fail with EIO, without effect.
    Fail,
    /// Take effect, but complete only after `polls` further polls.
    Delay {
        /// The number of polls by which it is later than usual.
        polls: u32,
    },
    /// Store only the first units of a write, then fail. Any other operation just fails.
    Tear {
        /// The number of units of 512 bytes that are stored.
        units: u64,
        /// The consequence of the tear.
        then: AfterTear,
    },
    /// Report success without effect: a write is lost, a read leaves its slice as it was, a flush
    /// keeps nothing.
    Drop,
}

/// The consequence of a torn write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterTear {
    /// The write fails with EIO.
    Error,
    /// The power fails: the torn part is on the medium, everything else unflushed is lost.
    PowerCut,
}

/// Probabilities of faults, each between 0 and 1, for every operation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rates {
    /// Of failing.
    pub fail: f64,
    /// Of completing late, and so out of order.
    pub delay: f64,
    /// Of being torn (writes only).
    pub tear: f64,
    /// Of being lost without a word (writes only).
    pub drop: f64,
}

/// A list of the operations that fail, with their faults.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    named: HashMap<(Kind, u64), Fault>,
    seeded: Option<(SmallRng, Rates)>,
}

impl FaultPlan {
    /// Nothing fails by itself.
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// Faults drawn from a seed.
    pub fn seeded(seed: u64, rates: Rates) -> FaultPlan {
        FaultPlan { named: HashMap::new(), seeded: Some((SmallRng::seed_from_u64(seed), rates)) }
    }

    /// Also does `fault` to the `nth` operation of its kind, counted from zero.
    pub fn on(mut self, kind: Kind, nth: u64, fault: Fault) -> FaultPlan {
        self.set(kind, nth, fault);
        self
    }

    pub(super) fn set(&mut self, kind: Kind, nth: u64, fault: Fault) {
        self.named.insert((kind, nth), fault);
    }

    /// Chooses the fault of this operation of `units` units. Draws the same amount of randomness
    /// for every operation, so that one more read does not change the fate of a later write beyond
    /// shifting it.
    pub(super) fn decide(&mut self, kind: Kind, nth: u64, units: u64) -> Option<Fault> {
        let drawn = self.seeded.as_mut().and_then(|(random, rates)| {
            let (which, how): (f64, f64) = (random.random(), random.random());
            draw(kind, units, which, how, rates)
        });
        self.named.remove(&(kind, nth)).or(drawn)
    }
}

fn draw(kind: Kind, units: u64, which: f64, how: f64, rates: &Rates) -> Option<Fault> {
    let write = kind == Kind::Write;
    let faults = [
        (rates.fail, Fault::Fail),
        (rates.delay, Fault::Delay { polls: 1 + (how * f64::from(DELAY_POLLS_MAX)) as u32 }),
        (
            if write { rates.tear } else { 0.0 },
            Fault::Tear { units: (how * units as f64) as u64, then: AfterTear::Error },
        ),
        (if write { rates.drop } else { 0.0 }, Fault::Drop),
    ];
    let mut reach = 0.0;
    faults.into_iter().find_map(|(rate, fault)| {
        reach += rate;
        (which < reach).then_some(fault)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(seed: u64) -> Vec<Option<Fault>> {
        let rates = Rates { fail: 0.1, delay: 0.1, tear: 0.1, drop: 0.1 };
        let mut plan = FaultPlan::seeded(seed, rates);
        (0..1000).map(|nth| plan.decide(Kind::Write, nth, 64)).collect()
    }

    #[test]
    fn a_seed_always_gives_the_same_faults_and_another_seed_others() {
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
    }

    #[test]
    fn faults_come_as_often_as_their_rates_say() {
        let fates = fates(1);
        let count =
            |is: fn(&Fault) -> bool| fates.iter().flatten().filter(|fault| is(fault)).count();
        for found in [
            count(|fault| *fault == Fault::Fail),
            count(|fault| matches!(fault, Fault::Delay { polls: 1..=8 })),
            count(|fault| matches!(fault, Fault::Tear { units: 0..64, .. })),
            count(|fault| *fault == Fault::Drop),
        ] {
            assert!((60..140).contains(&found), "{found} of about 100");
        }
    }

    #[test]
    fn a_named_operation_fails_once() {
        let mut plan = FaultPlan::none().on(Kind::Flush, 1, Fault::Fail);
        assert_eq!(plan.decide(Kind::Flush, 0, 0), None);
        assert_eq!(plan.decide(Kind::Write, 1, 8), None);
        assert_eq!(plan.decide(Kind::Flush, 1, 0), Some(Fault::Fail));
        assert_eq!(plan.decide(Kind::Flush, 2, 0), None);
    }
}
