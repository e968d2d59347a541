//! The experts: settings of the queues of quick demotion that [`Auto`](super::Auto) chooses from.

use crate::quick_demotion::{DemotionRules, QuickDemotion};

/// Highest hit count. Experts that tell fewer hits apart ignore the rest.
const HITS_MAX: u8 = 7;

/// A setting of the queues, under which they are a known policy or near to one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Expert {
    /// The policy that this setting is, as one chooses it.
    pub(crate) name: &'static str,
    /// Share of the cache that the small queue has.
    small: f64,
    /// Ghosts for each entry.
    ghosts: f64,
    /// Hits in the small queue that earn a place in the main one.
    hits_to_stay: u8,
    /// Number of rounds through the main queue that hits can earn.
    rounds_max: u8,
}

impl Expert {
    /// Creates an expert with the rules of QD-CLOCK.
    const fn of_qd_clock(name: &'static str, small: f64, ghosts: f64) -> Self {
        Self { name, small, ghosts, hits_to_stay: 1, rounds_max: HITS_MAX }
    }

    /// Creates an expert with the rules of S3-FIFO.
    const fn of_s3_fifo(name: &'static str, small: f64) -> Self {
        Self { name, small, ghosts: 1.0 - small, hits_to_stay: 2, rounds_max: 3 }
    }
}

/// The experts. The first is the baseline, QD-CLOCK, which runs until another proves better.
///
/// A small queue of 1 % is for loops and scans; half or more of the cache, where only recency
/// counts.
pub(crate) const EXPERTS: [Expert; 8] = [
    Expert::of_qd_clock("qd-clock", 0.05, 0.4),
    Expert::of_qd_clock("qd-clock:small=0.01", 0.01, 0.4),
    Expert::of_qd_clock("qd-clock:small=0.2:ghosts=1", 0.2, 1.0),
    Expert::of_qd_clock("qd-clock:small=0.5", 0.5, 0.4),
    Expert::of_qd_clock("qd-clock:small=0.8", 0.8, 0.4),
    Expert::of_s3_fifo("s3-fifo:small=0.01:fill=main", 0.01),
    Expert::of_s3_fifo("s3-fifo:fill=main", 0.1),
    Expert::of_s3_fifo("s3-fifo:small=0.3:fill=main", 0.3),
];

impl DemotionRules for Expert {
    #[inline(always)]
    fn hits_to_stay(&self) -> u8 {
        self.hits_to_stay
    }

    /// QD-CLOCK fills its main queue first, and S3-FIFO by its author's code the rest of it after
    /// the small one's share.
    #[inline(always)]
    fn fills_main_first(&self) -> bool {
        self.hits_to_stay == 1
    }

    #[inline(always)]
    fn rounds_max(&self) -> u8 {
        self.rounds_max
    }
}

impl Expert {
    /// Creates the empty order of this expert.
    pub(crate) fn order(self) -> QuickDemotion<Self> {
        QuickDemotion::with(self, self.small, self.ghosts, HITS_MAX).overflowing(true)
    }

    /// Changes an order to that of this expert. Entries stay where they are.
    pub(crate) fn take_over(self, order: &mut QuickDemotion<Self>) {
        order.adjust(self, self.small, self.ghosts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Choice;
    use crate::{Access, Eviction, Policy, QdClock, S3Fifo, Slot, mix};

    /// Victims of an order of 50 entries.
    fn victims(mut order: impl Eviction) -> Vec<u64> {
        order.reserve(50);
        order.set_capacity(50);
        let (mut held, mut victims) = (Vec::new(), Vec::new());
        for request in 0..20_000 {
            let key = mix(request) % 400 * (mix(request) >> 32) % 400;
            let access = Access::new(mix(key));
            match held.iter().position(|&known| known == key) {
                Some(slot) => order.access(Slot(slot as u32)),
                None if held.len() < 50 => {
                    order.insert(Slot(held.len() as u32), &access);
                    held.push(key);
                }
                None => {
                    let slot = order.evict(Some(&access)).expect("the order is full");
                    victims.push(std::mem::replace(&mut held[slot.index()], key));
                    order.insert(slot, &access);
                }
            }
        }
        victims
    }

    #[test]
    fn experts_are_the_policies_that_their_names_say() {
        for expert in EXPERTS {
            let ours = victims(expert.order());
            assert!(ours.len() > 1000, "{}", expert.name);
            let theirs = if expert.name.starts_with("s3-fifo") {
                victims(S3Fifo::new(expert.name.parse::<Choice>().unwrap().parameters()))
            } else {
                victims(QdClock::new(expert.name.parse::<Choice>().unwrap().parameters()))
            };
            assert!(ours == theirs, "{}", expert.name);
        }
    }
}
