//! Zipf's law over a moving crowd: every so many requests, each key takes over the rank of a key
//! further down.
//!
//! Tests how fast a policy forgets: counts of the past mislead it, recency does not.

use super::parameter::{KEYS, Parameter, THETA, Type};
use super::rng::Rng;
use super::zipf::Ranks;
use super::{Access, Entry, Generate, Made};

pub(super) static DRIFT: Entry = Entry {
    name: "drift",
    about: "Zipf's law whose ranks move on to other keys",
    parameters: &[
        KEYS,
        THETA,
        Parameter {
            name: "shift",
            of: Type::Count,
            default: "1",
            about: "by how many keys ranks move",
        },
        Parameter {
            name: "every",
            of: Type::Count,
            default: "1000",
            about: "requests between two moves",
        },
    ],
    chooses_ops: false,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        let generator = Drift {
            rng: Rng::new(plan.seed),
            ranks: Ranks::new(keys, spec.real("theta")),
            keys,
            shift: spec.whole("shift") % keys,
            every: spec.whole("every"),
            start: 0,
            left: spec.whole("every"),
        };
        Ok(Made { span: keys, generator: Box::new(generator) })
    },
};

struct Drift {
    rng: Rng,
    ranks: Ranks,
    keys: u64,
    shift: u64,
    every: u64,
    /// The key of the first rank.
    start: u64,
    /// Requests until the next move.
    left: u64,
}

impl Generate for Drift {
    #[inline]
    fn next(&mut self) -> Access {
        if self.left == 0 {
            self.start = (self.start + self.shift) % self.keys;
            self.left = self.every;
        }
        self.left -= 1;
        let key = self.start + self.ranks.draw(&mut self.rng);
        Access::to(if key < self.keys { key } else { key - self.keys })
    }
}
