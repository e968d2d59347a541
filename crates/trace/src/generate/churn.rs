//! Copy-on-write churn: updated pages move to free blocks, and the blocks that they leave are
//! trimmed and used again.
//!
//! The habit of storage engines that never overwrite a live block, such as WiredTiger. Pages follow
//! Zipf's law, and keys are blocks. A read asks for the block of its page, an update writes the
//! page to the lowest free block. When no block is free, a checkpoint frees all that were left
//! since the last one: each is trimmed (`trim=yes`), or just used again (`trim=no`), so that its
//! next write overwrites data that no page needs.

use std::collections::HashMap;

use super::parameter::{KEYS, Parameter, READ, THETA, Type};
use super::rng::{Rng, threshold};
use super::zipf::{Ranks, Scatter};
use super::{Access, Entry, Generate, Made};
use crate::request::Op;

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

struct Churn {
    rng: Rng,
    ranks: Ranks,
    scatter: Scatter,
    /// Draws below it read; `None` when all do.
    read_until: Option<u64>,
    trims: bool,
    /// The block of each page that is not in the block of its own number.
    moved: HashMap<u64, u64>,
    /// The first block that was never used, and the end of all.
    fresh: u64,
    span: u64,
    /// Blocks to be used again, the lowest last.
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

    /// Takes the lowest free block, of which there is one.
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
