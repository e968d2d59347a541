//! `loop`: keys in order, over and over. LRU and FIFO hit nothing until the cache holds all of it.

use super::parameter::KEYS;
use super::{Access, Entry, Generate, Made};

pub(super) static LOOP: Entry = Entry {
    name: "loop",
    about: "keys in order, over and over",
    parameters: &[KEYS],
    chooses_ops: false,
    make: |spec, _| {
        let keys = spec.whole("keys");
        Ok(Made { span: keys, generator: Box::new(Cycle::new(keys)) })
    },
};

/// 0, 1, … and again from 0.
pub(super) struct Cycle {
    next: u64,
    keys: u64,
}

impl Cycle {
    pub(super) fn new(keys: u64) -> Self {
        Self { next: 0, keys }
    }

    #[inline]
    pub(super) fn step(&mut self) -> u64 {
        let key = self.next;
        self.next = if key + 1 == self.keys { 0 } else { key + 1 };
        key
    }
}

impl Generate for Cycle {
    #[inline]
    fn next(&mut self) -> Access {
        Access::to(self.step())
    }
}
