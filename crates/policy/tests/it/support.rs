//! The smallest simulator there is: dense keys, a slot per resident key, one policy.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;

use floe_policy::owner::{DenseIndex, SlotOwner};
use floe_policy::{Access, Replacement, mix};
use floe_testkit::traces_folder;
use floe_trace::{OpenOptions, Trace};

/// A trace whose keys are numbered in order of appearance.
pub struct Dense {
    pub keys: Vec<u32>,
    pub distinct: usize,
}

impl Dense {
    /// Reads one of the ARC traces from the folder that FLOE_TRACES names; `None`, with a word on
    /// stderr, without.
    pub fn arc(name: &str) -> Option<Self> {
        Self::read(&format!("arc_{name}.lis.zst")).map(|keys| Self::number(keys.into_iter()))
    }

    /// Reads one of the LIRS traces likewise. Requests for one key in a row are one.
    pub fn lirs_without_repeats(name: &str) -> Option<Self> {
        let mut keys = Self::read(&format!("lirs_{name}.trace.gz"))?;
        keys.dedup();
        Some(Self::number(keys.into_iter()))
    }

    fn read(file: &str) -> Option<Vec<u64>> {
        let trace = Trace::open(traces_folder()?.join(file), &OpenOptions::default());
        let trace = trace.expect("the trace opens");
        Some(trace.map(|request| request.expect("the trace is well formed").key).collect())
    }

    pub fn number(keys: impl Iterator<Item = u64>) -> Self {
        let mut numbers = HashMap::new();
        let mut number = |key| {
            let next = numbers.len() as u32;
            *numbers.entry(key).or_insert(next)
        };
        let keys = keys.map(&mut number).collect();
        Self { keys, distinct: numbers.len() }
    }

    /// For each request, the position of the next one for the same key.
    pub fn next_uses(&self) -> Vec<u64> {
        let mut seen = vec![Access::NEVER; self.distinct];
        let mut next = vec![0; self.keys.len()];
        for (at, &key) in self.keys.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut seen[key as usize], at as u64);
        }
        next
    }
}

/// A cache of `size` entries of weight 1 over dense keys.
pub struct Cache<E> {
    pub owner: SlotOwner<E, DenseIndex>,
}

impl<E: Replacement> Cache<E> {
    pub fn new(order: E, size: usize, trace: &Dense) -> Self {
        let index = DenseIndex::new(trace.distinct);
        Self { owner: SlotOwner::new(order, index, size as u64, size) }
    }

    /// Asks for a key and says whether it was there.
    #[inline(always)]
    pub fn request(&mut self, key: u32, next_use: u64) -> bool {
        let access = Access { next_use, ..Access::new(mix(u64::from(key))) };
        let found = self.owner.find(key);
        match found {
            Some(slot) if self.owner.policy().info().next_uses => self.owner.hit(slot, &access),
            Some(slot) => self.owner.access(slot),
            None => {
                let slot = self.owner.insert(key, &access, |_, _, _| ());
                assert!(slot.is_some(), "a full cache has a victim");
            }
        }
        found.is_some()
    }
}
