//! Generators that imitate programs: YCSB, file servers under SPEC SFS, and a copy-on-write storage
//! engine.

use std::collections::HashMap;

use super::spec::{KEYS, Parameter, READ, THETA, Type};
use super::zipf::{Ranks, Rng, Scatter, threshold};
use super::{Access, Entry, Generate, Made, spec};
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

/// The part of the current operation that is still to be generated.
enum Rest {
    Nothing,
    Write(u64),
    /// Reads of keys from the first number up to, but not including, the second.
    Scan(u64, u64),
}

/// The core workloads of the Yahoo! Cloud Serving Benchmark (Cooper et al., SoCC '10, table 2).
///
/// | | operations | keys |
/// |---|---|---|
/// | A | 50 % read, 50 % update | zipfian |
/// | B | 95 % read, 5 % update | zipfian |
/// | C | read | zipfian |
/// | D | 95 % read, 5 % insert | latest: Zipf's law over how lately keys were inserted |
/// | E | 95 % scan of 1 to `length` keys, 5 % insert | zipfian |
/// | F | 50 % read, 50 % read, modify, write | zipfian |
///
/// An update or insert is a write; a scan is a read of each of its keys; read-modify-write is a
/// read and a write of one key. Zipfian keys are scattered as in the paper, but one to one, where
/// its generator hashes and lets keys collide. While keys are added, ranks are drawn over all keys
/// that may ever exist, and drawn again until the key exists. The result is Zipf's law over the
/// existing keys.
struct Ycsb {
    rng: Rng,
    ranks: Ranks,
    scatter: Scatter,
    /// Number of keys at the start; keys added later are not scattered.
    loaded: u64,
    /// Number of keys that exist now.
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

/// Zipf exponent of the popularity of places in `dbtable`; the next constant is that of `swbuild`.
const DBTABLE_THETA: f64 = 0.6;
const SWBUILD_THETA: f64 = 0.99;
/// Share of the requests that go to popular places: one place in `HOT_PLACES` is popular.
const HOT_REQUESTS: f64 = 0.9;
const HOT_PLACES: u64 = 100;
/// Share of VDA's requests that begin at the start of the last one.
const VDA_AGAIN: f64 = 0.5;

pub(super) static SFS: Entry = Entry {
    name: spec::SFS,
    about: "a file server as under SPEC SFS 2014, in blocks of 4 KiB (its sizes show with \
            block=4KiB)",
    parameters: &[
        Parameter {
            name: "workload",
            of: Type::FileServer,
            default: "dbtable",
            about: "dbtable, dblog, swbuild, vda or websearch",
        },
        KEYS,
    ],
    chooses_ops: true,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        let mut rng = Rng::new(plan.seed);
        let workload = spec.word("workload");
        // Twice the length drawn is uniform, so that its mean in quarters of a block is the paper's
        // in KiB.
        let (read_share, half_blocks) = match workload {
            "dbtable" => (0.8, 16),
            "dblog" => (0.0, 16),
            "swbuild" => (0.2, 21),
            "vda" => (0.0, 455),
            _ => (1.0, 6),
        };
        let extent = u64::div_ceil(half_blocks, 2).min(keys);
        let places = keys / extent;
        let popular = |theta| Place::Popular(Ranks::new(places, theta), Scatter::new(places));
        let place = match workload {
            "dbtable" => popular(DBTABLE_THETA),
            "swbuild" => popular(SWBUILD_THETA),
            "vda" => Place::Next { start: 0, end: 0 },
            _ => Place::Few { first: rng.below(places), count: (places / HOT_PLACES).max(1) },
        };
        let read_until = if read_share < 1.0 { threshold(read_share) } else { u64::MAX };
        let (hot_until, again_until) = (threshold(HOT_REQUESTS), threshold(VDA_AGAIN));
        let generator = Sfs {
            rng,
            place,
            keys,
            extent,
            places,
            half_blocks,
            read_until,
            hot_until,
            again_until,
        };
        Ok(Made { span: keys, generator: Box::new(generator) })
    },
};

/// The rule by which the next place is chosen.
enum Place {
    Popular(Ranks, Scatter),
    /// The next of a few adjacent places, in a circle, and sometimes a random place.
    Few {
        first: u64,
        count: u64,
    },
    /// The start of the last request, or its end.
    Next {
        start: u64,
        end: u64,
    },
}

/// File servers under the loads of SPEC SFS 2014, and a web search, as in the measurements of
/// FussyCache (table I and figures 3 to 6).
///
/// | | reads | mean request | where |
/// |---|---|---|---|
/// | dbtable | 4 of 5 | 18 KiB | scattered widely, some places more popular |
/// | dblog | none | 18 KiB | a few places again and again, now and then any |
/// | swbuild | 1 of 5 | 23 KiB | scattered, some places much more popular |
/// | vda | none | 457 KiB | from the last start again, or one behind the other |
/// | websearch | all | 8 KiB | as dblog |
///
/// Shares and sizes are the paper's. The popularity of places is only drawn there, and the paper
/// only says that VDA tends to begin at the same block again with another size. Three choices are
/// made here: a hundredth of the places takes nine requests of ten, every other request of VDA
/// begins where the last one did, and the exponents. A key is a block of 4 KiB: `block=4KiB` makes
/// disk I/O with those sizes. Places are extents as long as the longest request; requests begin at
/// the start of an extent.
struct Sfs {
    rng: Rng,
    place: Place,
    keys: u64,
    /// Number of keys in a place; `places` is the number of places.
    extent: u64,
    places: u64,
    half_blocks: u64,
    read_until: u64,
    hot_until: u64,
    again_until: u64,
}

impl Generate for Sfs {
    #[inline]
    fn next(&mut self) -> Access {
        let is_read = self.read_until == u64::MAX || self.rng.next() < self.read_until;
        let op = Some(if is_read { Op::Read } else { Op::Write });
        let count = (self.rng.below(self.half_blocks) / 2 + 1).min(self.extent);
        let key = match &mut self.place {
            Place::Popular(ranks, scatter) => scatter.key(ranks.draw(&mut self.rng)) * self.extent,
            Place::Few { first, count } => {
                let is_hot = self.rng.next() < self.hot_until;
                let place = if is_hot {
                    *first + self.rng.below(*count)
                } else {
                    self.rng.below(self.places)
                };
                place % self.places * self.extent
            }
            Place::Next { start, end } => {
                let again = self.rng.next() < self.again_until;
                let next = if again { *start } else { *end };
                let key = if next + count > self.keys { 0 } else { next };
                (*start, *end) = (key, (*end).max(key + count));
                if key == 0 {
                    *end = count;
                }
                key
            }
        };
        Access { key, count, op }
    }
}

pub(super) static CHURN: Entry = Entry {
    name: "churn",
    about: "a copy-on-write store under Zipf's law: updates go to free blocks, left blocks are \
            trimmed and used again",
    parameters: &[
        KEYS,
        THETA,
        Parameter {
            name: "spare",
            of: Type::Share,
            default: "10%",
            about: "free blocks at the start, as a share of the keys; at least one",
        },
        Parameter {
            name: "trim",
            of: Type::Flag,
            default: "yes",
            about: "whether blocks are trimmed before they are used again",
        },
        READ,
    ],
    chooses_ops: true,
    make: |spec, plan| {
        let keys = spec.whole("keys");
        let span = keys + ((keys as f64 * spec.real("spare")) as u64).max(1);
        let read = spec.real("read");
        let generator = Churn {
            rng: Rng::new(plan.seed),
            ranks: Ranks::new(keys, spec.real("theta")),
            scatter: Scatter::new(keys),
            read_until: (read < 1.0).then(|| threshold(read)),
            trims: spec.flag("trim"),
            moved: HashMap::new(),
            fresh: keys,
            span,
            free: Vec::new(),
            left: Vec::new(),
            to_trim: Vec::new(),
        };
        Ok(Made { span, generator: Box::new(generator) })
    },
};

/// Copy-on-write churn: updated pages move to free blocks, and the blocks that they leave are
/// trimmed and reused.
///
/// Storage engines that never overwrite a live block, such as WiredTiger, behave like this. Pages
/// follow Zipf's law, and keys are blocks. A read requests the block of its page; an update writes
/// the page to the lowest free block. When no block is free, a checkpoint frees all blocks left
/// since the last one. Each is trimmed (`trim=yes`), or just reused (`trim=no`), so that its next
/// write overwrites data that no page needs.
struct Churn {
    rng: Rng,
    ranks: Ranks,
    scatter: Scatter,
    /// Threshold of random draws below which a request is a read; `None` when all are reads.
    read_until: Option<u64>,
    trims: bool,
    /// Block of each page that is not in the block of its own number.
    moved: HashMap<u64, u64>,
    /// First block that was never used; `span` is the number of all blocks.
    fresh: u64,
    span: u64,
    /// Free blocks that were used before, the lowest last.
    free: Vec<u64>,
    /// Blocks left since the last checkpoint.
    left: Vec<u64>,
    /// Blocks freed by the last checkpoint and not trimmed yet, the lowest last.
    to_trim: Vec<u64>,
}

impl Churn {
    /// Frees the blocks that were left since the last checkpoint.
    fn checkpoint(&mut self) {
        self.left.sort_unstable_by(|a, b| b.cmp(a));
        self.free.append(&mut self.left);
        if self.trims {
            self.to_trim.extend(&self.free);
        }
    }

    /// Removes the lowest free block and returns it. One must be free.
    fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }
}

impl Generate for Churn {
    #[inline]
    fn next(&mut self) -> Access {
        if let Some(block) = self.to_trim.pop() {
            return Access { op: Some(Op::Delete), ..Access::to(block) };
        }
        let page = self.scatter.key(self.ranks.draw(&mut self.rng));
        let reads = self.read_until.is_none_or(|until| self.rng.next() < until);
        if reads {
            let block = self.moved.get(&page).copied().unwrap_or(page);
            return Access { op: Some(Op::Read), ..Access::to(block) };
        }
        let block = self.take();
        self.left.push(self.moved.insert(page, block).unwrap_or(page));
        if self.free.is_empty() && self.fresh == self.span {
            self.checkpoint();
        }
        Access { op: Some(Op::Write), ..Access::to(block) }
    }
}
