//! The smallest simulator there is: dense keys, a slot per resident key, one policy.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use floe_policy::{Access, Replacement, Slot, mix};
use floe_trace::{OpenOptions, Trace};

const NOWHERE: u32 = u32::MAX;

/// A trace whose keys are numbered in order of appearance.
pub struct Dense {
    pub keys: Vec<u32>,
    pub distinct: usize,
}

impl Dense {
    /// Reads one of the ARC traces from the folder that FLOE_TRACES names; `None`, with a word on
    /// stderr, without.
    pub fn arc(name: &str) -> Option<Self> {
        let Some(folder) = std::env::var_os("FLOE_TRACES") else {
            // Straight to stderr: what `eprintln!` prints is hidden while a test passes.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: FLOE_TRACES does not name a folder with traces"
            );
            return None;
        };
        let path = PathBuf::from(folder).join(format!("arc_{name}.lis.zst"));
        let trace = Trace::open(&path, &OpenOptions::default()).expect("the trace opens");
        Some(Self::number(trace.map(|request| request.expect("the trace is well formed").key)))
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
    pub order: E,
    slot_of: Vec<u32>,
    key_of: Vec<u32>,
    used: usize,
}

impl<E: Replacement> Cache<E> {
    pub fn new(mut order: E, size: usize, trace: &Dense) -> Self {
        order.reserve(size);
        order.set_capacity(size as u64);
        Self { order, slot_of: vec![NOWHERE; trace.distinct], key_of: vec![0; size], used: 0 }
    }

    /// Asks for a key and says whether it was there.
    #[inline(always)]
    pub fn request(&mut self, key: u32, next_use: u64) -> bool {
        let slot = self.slot_of[key as usize];
        if slot != NOWHERE {
            let about = self.order.about();
            if about.next_uses {
                self.order.hit(Slot(slot), &self.access(key, next_use));
            } else {
                self.order.access(Slot(slot));
            }
            return true;
        }
        self.miss(key, next_use);
        false
    }

    /// What the policy is told, as far as it looks at it: reading the rest would cost a cache miss.
    #[inline]
    fn access(&self, key: u32, next_use: u64) -> Access {
        Access { next_use, ..Access::new(mix(u64::from(key))) }
    }

    #[inline]
    fn miss(&mut self, key: u32, next_use: u64) {
        let access = self.access(key, next_use);
        let slot = if self.used < self.key_of.len() {
            self.used += 1;
            Slot(self.used as u32 - 1)
        } else {
            let victim = self.order.evict(Some(&access)).expect("a full cache has a victim");
            self.slot_of[self.key_of[victim.index()] as usize] = NOWHERE;
            victim
        };
        self.order.insert(slot, &access);
        self.slot_of[key as usize] = slot.0;
        self.key_of[slot.index()] = key;
    }
}
