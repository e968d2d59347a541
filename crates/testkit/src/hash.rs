//! A hasher that tests can compute in their heads.

use std::hash::Hasher;

/// Leaves the last number as it is. Panics where a key is not a number of 64 bits.
#[derive(Debug, Clone, Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}
