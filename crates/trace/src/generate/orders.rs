//! Generators of keys in order: loops, scans between popular keys, and mixes of other generators.

use super::spec::{KEYS, Parameter, THETA, Type};
use super::zipf::{Ranks, Rng, derived, threshold};
use super::{Access, Entry, Generate, Made, Plan, SpecError, spec};

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

/// Loop (`loop`): keys 0, 1, … in order, over and over. LRU and FIFO have no hits until the cache
/// holds all keys.
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

pub(super) static SCAN: Entry = Entry {
    name: "scan",
    about: "Zipf's law, interrupted by scans over other keys",
    parameters: &[
        KEYS,
        THETA,
        Parameter {
            name: "every",
            of: Type::Count,
            default: "100000",
            about: "requests between two scans",
        },
        Parameter { name: "length", of: Type::Count, default: "10000", about: "keys in a scan" },
        Parameter {
            name: "scanned",
            of: Type::Count,
            default: "1000000",
            about: "keys that scans go through, in addition",
        },
    ],
    chooses_ops: false,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        let generator = Scan {
            rng: Rng::new(plan.seed),
            ranks: Ranks::new(keys, spec.real("theta")),
            keys,
            every: spec.whole("every"),
            length: spec.whole("length"),
            scanned: Cycle::new(spec.whole("scanned")),
            at: 0,
        };
        Ok(Made { span: keys + spec.whole("scanned"), generator: Box::new(generator) })
    },
};

/// Popular keys with occasional scans over many others: a backup, or a table read from end to end.
///
/// It tests whether a policy lets keys that are used once evict popular keys. Keys `0..keys` follow
/// Zipf's law; after every `every` such requests come `length` keys in order from the range above
/// them, which starts again when all `scanned` have been read.
struct Scan {
    rng: Rng,
    ranks: Ranks,
    keys: u64,
    every: u64,
    length: u64,
    scanned: Cycle,
    /// Position in the period of `every` popular keys and a scan.
    at: u64,
}

impl Generate for Scan {
    #[inline]
    fn next(&mut self) -> Access {
        let at = self.at;
        self.at = if at + 1 == self.every + self.length { 0 } else { at + 1 };
        if at < self.every {
            Access::to(self.ranks.draw(&mut self.rng))
        } else {
            Access::to(self.keys + self.scanned.step())
        }
    }
}

pub(super) static MIX: Entry = Entry {
    name: spec::MIX,
    about: "parts that take turns, as in mix:requests=9000+zipf:keys=100,weight=2+loop:keys=50",
    parameters: &[],
    chooses_ops: false,
    make: |spec, plan| {
        if spec.parts().is_empty() {
            return Err(SpecError::NoParts);
        }
        let whole: f64 = spec.parts().iter().map(|part| part.real("weight")).sum();
        let (mut span, mut weight, mut parts) = (0, 0.0, Vec::new());
        for (part, index) in spec.parts().iter().zip(1..) {
            let made = part.make(Plan { seed: derived(plan.seed, index), ..plan })?;
            weight += part.real("weight");
            parts.push(Part {
                until: threshold(weight / whole),
                first: span,
                generator: made.generator,
            });
            span += made.span;
        }
        Ok(Made { span, generator: Box::new(Mix { rng: Rng::new(plan.seed), parts }) })
    },
};

/// Several generators in one trace, each with its own range of keys, interleaved at random by
/// weight.
struct Mix {
    rng: Rng,
    parts: Vec<Part>,
}

struct Part {
    /// Upper limit of the random draws that choose this part; the lower one is the limit of the
    /// part before.
    until: u64,
    /// First key of the part's range.
    first: u64,
    generator: Box<dyn Generate>,
}

impl Generate for Mix {
    #[inline]
    fn next(&mut self) -> Access {
        let draw = self.rng.next();
        let last = self.parts.len() - 1;
        let turn = self.parts[..last].iter().position(|part| draw < part.until).unwrap_or(last);
        let part = &mut self.parts[turn];
        let access = part.generator.next();
        Access { key: part.first + access.key, ..access }
    }
}
