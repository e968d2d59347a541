//! What becomes of operations that had not been made to survive when the power failed, or were
//! under way.
//!
//! Some happen wholly, some not at all, some unit by unit; how many of each differs from one outage
//! to the next. It is a function of operation and unit, so that nothing has to be kept.

use rand::Rng;

use crate::machine::Machine;

/// Which operations a power cut spares: some wholly, some unit by unit.
pub struct Outage {
    seed: u64,
    whole: f64,
    torn: f64,
}

impl Outage {
    pub fn draw(machine: &Machine) -> Outage {
        const SHARES: [(f64, f64); 8] = [
            (0.0, 0.0),
            (1.0, 0.0),
            (0.0, 1.0),
            (0.5, 0.0),
            (0.9, 0.05),
            (0.1, 0.05),
            (0.5, 0.25),
            (0.8, 0.2),
        ];
        machine.draw(|rng| {
            let (whole, torn) = SHARES[rng.random_range(0..SHARES.len())];
            Outage { seed: rng.random(), whole, torn }
        })
    }

    pub fn spares(&self, operation: u32, unit: u32) -> bool {
        let of_operation = mix(self.seed ^ u64::from(operation));
        let share = (of_operation >> 11) as f64 / (1u64 << 53) as f64;
        share < self.whole
            || share < self.whole + self.torn
                && mix(of_operation ^ u64::from(unit)).is_multiple_of(2)
    }
}

/// Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
