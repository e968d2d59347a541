//! Popular keys, and now and then a scan over many others: a backup, a table read from end to end.
//!
//! Tests whether a policy lets keys that come once push out those that come often. Keys `0..keys`
//! follow Zipf's law; after every `every` such requests come `length` keys in order from the range
//! above them, which starts again when all `scanned` have been read.

use super::cycle::Cycle;
use super::parameter::{KEYS, Parameter, THETA, Type};
use super::rng::Rng;
use super::zipf::Ranks;
use super::{Access, Entry, Generate, Made};

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

struct Scan {
    rng: Rng,
    ranks: Ranks,
    keys: u64,
    every: u64,
    length: u64,
    scanned: Cycle,
    /// Place in the period of `every` popular keys and a scan.
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
