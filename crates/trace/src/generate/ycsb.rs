//! The core workloads of the Yahoo! Cloud Serving Benchmark (Cooper et al., SoCC '10, table 2).
//!
//! | | operations | keys |
//! |---|---|---|
//! | A | 50 % read, 50 % update | zipfian |
//! | B | 95 % read, 5 % update | zipfian |
//! | C | read | zipfian |
//! | D | 95 % read, 5 % insert | latest: Zipf's law over how lately keys were inserted |
//! | E | 95 % scan of 1 to `length` keys, 5 % insert | zipfian |
//! | F | 50 % read, 50 % read, modify, write | zipfian |
//!
//! An update or insert is a write; a scan is a read of each of its keys; read-modify-write is a
//! read and a write of one key. Zipfian keys are scattered as in the paper, but one to one, where
//! its generator hashes and lets keys collide. While keys are added, ranks are drawn from the law
//! over all that could ever be and drawn again until the key exists, which is the law over those
//! that do.

use super::parameter::{KEYS, Parameter, THETA, Type};
use super::rng::{Rng, threshold};
use super::zipf::{Ranks, Scatter};
use super::{Access, Entry, Generate, Made};
use crate::request::Op;

pub(super) static YCSB: Entry = Entry {
    name: "ycsb",
    about: "a core workload of the Yahoo! Cloud Serving Benchmark",
    parameters: &[
        Parameter { name: "workload", of: Type::Workload, default: "A", about: "A to F" },
        KEYS,
        THETA,
        Parameter { name: "length", of: Type::Count, default: "100", about: "longest scan" },
    ],
    chooses_ops: true,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        let (share, other) = match spec.letter("workload") {
            'A' => (0.5, Operation::Update),
            'B' => (0.95, Operation::Update),
            'C' => (1.0, Operation::Update),
            'D' | 'E' => (0.95, Operation::Insert),
            _ => (0.5, Operation::ReadModifyWrite),
        };
        let inserts = if other == Operation::Insert { plan.requests } else { 0 };
        let generator = Ycsb {
            rng: Rng::new(plan.seed),
            ranks: Ranks::new(keys + inserts, spec.real("theta")),
            scatter: Scatter::new(keys),
            loaded: keys,
            keys,
            main: if spec.letter("workload") == 'E' { Operation::Scan } else { Operation::Read },
            other,
            // Beyond the end, so that all draws fall below it.
            main_until: if share < 1.0 { threshold(share) } else { u64::MAX },
            latest: spec.letter("workload") == 'D',
            length: spec.whole("length"),
            rest: Rest::Nothing,
        };
        Ok(Made { span: keys + inserts, generator: Box::new(generator) })
    },
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

/// The rest of the current operation.
enum Rest {
    Nothing,
    Write(u64),
    /// Reads of keys from one up to another.
    Scan(u64, u64),
}

struct Ycsb {
    rng: Rng,
    ranks: Ranks,
    scatter: Scatter,
    /// Keys at the start; those added later are not scattered.
    loaded: u64,
    /// Keys now.
    keys: u64,
    main: Operation,
    other: Operation,
    main_until: u64,
    latest: bool,
    length: u64,
    rest: Rest,
}

impl Ycsb {
    #[inline]
    fn draw(&mut self) -> u64 {
        let rank = loop {
            let rank = self.ranks.draw(&mut self.rng);
            if rank < self.keys {
                break rank;
            }
        };
        match self.latest {
            true => self.keys - 1 - rank,
            false if rank < self.loaded => self.scatter.key(rank),
            false => rank,
        }
    }

    fn begin(&mut self) -> Access {
        let is_main = self.main_until == u64::MAX || self.rng.next() < self.main_until;
        let read = |key| Access { key, count: 1, op: Some(Op::Read) };
        let write = |key| Access { key, count: 1, op: Some(Op::Write) };
        match if is_main { self.main } else { self.other } {
            Operation::Read => read(self.draw()),
            Operation::Update => write(self.draw()),
            Operation::Insert => {
                self.keys += 1;
                write(self.keys - 1)
            }
            Operation::Scan => {
                let first = self.draw();
                let length = 1 + self.rng.below(self.length);
                self.rest = Rest::Scan(first + 1, (first + length).min(self.keys));
                read(first)
            }
            Operation::ReadModifyWrite => {
                let key = self.draw();
                self.rest = Rest::Write(key);
                read(key)
            }
        }
    }
}

impl Generate for Ycsb {
    #[inline]
    fn next(&mut self) -> Access {
        match self.rest {
            Rest::Scan(key, end) if key < end => {
                self.rest = Rest::Scan(key + 1, end);
                Access { key, count: 1, op: Some(Op::Read) }
            }
            Rest::Write(key) => {
                self.rest = Rest::Nothing;
                Access { key, count: 1, op: Some(Op::Write) }
            }
            Rest::Nothing | Rest::Scan(..) => self.begin(),
        }
    }
}
