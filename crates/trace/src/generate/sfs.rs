//! File servers under the loads that SPEC SFS 2014 gives them, and a web search, as FussyCache
//! measured with them (table I and figures 3 to 6).
//!
//! | | reads | mean request | where |
//! |---|---|---|---|
//! | dbtable | 4 of 5 | 18 KiB | scattered widely, some places more popular |
//! | dblog | none | 18 KiB | a few places again and again, now and then any |
//! | swbuild | 1 of 5 | 23 KiB | scattered, some places much more popular |
//! | vda | none | 457 KiB | from the last start again, or one behind the other |
//! | websearch | all | 8 KiB | as dblog |
//!
//! Shares and sizes are the paper's. How popular places are it only draws, and that VDA is inclined
//! to begin at the same block again with another size it only says; that a hundredth of the places
//! takes nine requests of ten, that every other request of VDA begins where the last one did, and
//! the exponents are chosen here. A key is a block of 4 KiB:
//! `block=4KiB` makes disk I/O with those sizes. Places are extents as long as the longest request;
//! requests begin where extents do.

use super::parameter::{KEYS, Parameter, Type};
use super::rng::{Rng, threshold};
use super::zipf::{Ranks, Scatter};
use super::{Access, Entry, Generate, Made};
use crate::request::Op;

/// The size of the block that a key names.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Exponents of the popularity of places.
const DBTABLE_THETA: f64 = 0.6;
const SWBUILD_THETA: f64 = 0.99;
/// Share of the requests that go to the few popular places, and one place in how many these are.
const HOT_REQUESTS: f64 = 0.9;
const HOT_PLACES: u64 = 100;
/// Share of VDA's requests that begin where the last one did.
const VDA_AGAIN: f64 = 0.5;

pub(super) static SFS: Entry = Entry {
    name: "sfs",
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

/// Where the next request goes.
enum Place {
    Popular(Ranks, Scatter),
    /// So many from the first on, which wraps around, and sometimes any.
    Few {
        first: u64,
        count: u64,
    },
    /// The start of the last request again, or its end.
    Next {
        start: u64,
        end: u64,
    },
}

struct Sfs {
    rng: Rng,
    place: Place,
    keys: u64,
    /// Keys of a place, and how many places there are.
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
