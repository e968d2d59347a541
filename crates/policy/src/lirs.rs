//! LIRS: keeps entries that return after few other keys, however long ago they were last used.
//!
//! Entries with a low inter-reference recency (LIR) own nearly the whole cache; the others (HIR)
//! pass through a small queue. A stack in order of recency, which includes keys that have left,
//! distinguishes the two. A HIR key hit while still in the stack has a shorter reuse distance than
//! the LIR entry at its bottom, and they change roles (Jiang and Zhang, "LIRS: An Efficient Low
//! Inter-reference Recency Set Replacement Policy", SIGMETRICS '02).
//!
//! The stack and the queues are lists over *nodes*: node 2s is the entry in slot s, node 2g+1 is
//! ghost g, so both can grow in number. The number of ghosts is bounded; the oldest makes room.
//!
//! Do not use LIRS with many cores: a hit moves entries in two lists and may prune the stack.

use crate::count::looked_up_ghost;
use crate::ghosts::{Index, Tag};
use crate::{
    Access, AlwaysPromote, Cursor, Eviction, Lists, Parameter, Parameters, Policy, PolicyInfo, Slot,
};

/// List of the resident HIR entries, in the order in which they leave.
const QUEUE: usize = 0;
/// List of the keys that have left the cache and are still in the stack.
const GHOSTS: usize = 1;
/// List of the resident LIR entries.
const LOW: usize = 2;
const STACK: usize = 0;

fn node(slot: Slot) -> Slot {
    Slot(slot.0 * 2)
}

fn is_ghost(node: Slot) -> bool {
    node.0 % 2 == 1
}

/// LIRS (`lirs`): keeps entries that returned after few other keys. LRU-like.
#[derive(Debug, Clone)]
pub struct Lirs {
    stack: Lists<1>,
    roles: Lists<3>,
    /// Tag of each node's key.
    tags: Vec<Tag>,
    ghosts: Index,
    free_ghosts: Vec<u32>,
    ghost_count: usize,
    high_share: f64,
    low_target: u64,
}

impl Lirs {
    fn resize(&mut self) {
        let capacity = self.roles.capacity();
        let high = ((capacity as f64 * self.high_share) as u64).max(1);
        self.low_target = capacity.saturating_sub(high);
    }

    /// Makes a node LIR.
    fn make_low(&mut self, node: Slot) {
        self.roles.move_to_head(LOW, node);
        self.stack.move_to_head(STACK, node);
        self.limit_low();
    }

    /// Demotes LIR entries at the bottom of the stack to HIR while they exceed their share.
    fn limit_low(&mut self) {
        while self.roles.size(LOW) > self.low_target {
            self.prune();
            let Some(bottom) = self.stack.tail(STACK) else { break };
            self.roles.move_to_head(QUEUE, bottom);
            self.stack.delink(bottom);
        }
        self.prune();
    }

    /// Removes nodes from the bottom of the stack until a LIR entry is at the bottom.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.tail(STACK) {
            if self.roles.list_of(bottom) == Some(LOW) {
                break;
            }
            if is_ghost(bottom) {
                self.forget(bottom);
            } else {
                self.stack.delink(bottom);
            }
        }
    }

    fn forget(&mut self, ghost: Slot) {
        self.ghosts.remove(self.tags[ghost.index()]);
        self.stack.delink(ghost);
        self.roles.delink(ghost);
        self.free_ghosts.push(ghost.0);
        self.ghost_count -= 1;
    }

    /// Replaces an entry in the stack by a ghost of its key.
    fn leave_ghost(&mut self, node: Slot) {
        if self.free_ghosts.is_empty()
            && let Some(oldest) = self.roles.tail(GHOSTS)
        {
            self.forget(oldest);
        }
        let tag = self.tags[node.index()];
        match self.free_ghosts.pop().map(Slot) {
            Some(ghost) if self.ghosts.find(tag).is_none() => {
                self.stack.transfer(node, ghost);
                self.roles.push_head(GHOSTS, ghost);
                self.tags[ghost.index()] = tag;
                self.ghosts.insert(tag, ghost.0);
                self.ghost_count += 1;
            }
            unused => {
                self.free_ghosts.extend(unused.map(|ghost| ghost.0));
                self.stack.delink(node);
            }
        }
    }
}

impl Policy for Lirs {
    const INFO: PolicyInfo = PolicyInfo::new(
        "lirs",
        "keeps entries that returned after few other keys, by a stack with ghosts",
        "Jiang & Zhang, SIGMETRICS '02",
    )
    .with(&[Parameter::share("hir", 0.01, "share of the queue of HIR entries")]);

    fn new(parameters: &Parameters) -> Self {
        Self {
            stack: Lists::named(["stack"]),
            roles: Lists::named(["HIR queue", "ghosts", "LIR list"]),
            tags: Vec::new(),
            ghosts: Index::default(),
            free_ghosts: Vec::new(),
            ghost_count: 0,
            high_share: parameters.get("hir"),
            low_target: 0,
        }
    }
}

impl Eviction for Lirs {
    type Marks = AlwaysPromote;

    fn marks(&self) -> &AlwaysPromote {
        &AlwaysPromote
    }

    fn reserve(&mut self, slots: usize) {
        let known = self.tags.len() / 2;
        if slots > known {
            self.stack.reserve(slots * 2);
            self.roles.reserve(slots * 2);
            self.tags.resize(slots * 2, Tag::default());
            self.ghosts.reserve(slots);
            self.free_ghosts.reserve(slots);
            self.free_ghosts.extend((known..slots).rev().map(|ghost| ghost as u32 * 2 + 1));
            self.roles.assume_slots(slots);
            self.resize();
        }
    }

    fn set_capacity(&mut self, weight: u64) {
        self.roles.set_capacity(weight);
        self.resize();
    }

    fn len(&self) -> usize {
        self.roles.len() - self.ghost_count
    }

    fn promote(&mut self, slot: Slot) {
        let node = node(slot);
        match self.roles.list_of(node) {
            Some(QUEUE) if self.stack.contains(node) => self.make_low(node),
            Some(QUEUE) => {
                self.roles.move_to_head(QUEUE, node);
                self.stack.push_head(STACK, node);
            }
            Some(LOW) => {
                self.roles.move_to_head(LOW, node);
                self.stack.move_to_head(STACK, node);
                self.prune();
            }
            _ => {}
        }
    }

    fn insert(&mut self, slot: Slot, access: &Access) {
        let (node, tag) = (node(slot), Tag::of(access.hash));
        let known = self.ghosts.find(tag).map(Slot);
        looked_up_ghost(known.is_some());
        if let Some(ghost) = known {
            self.forget(ghost);
        }
        self.tags[node.index()] = tag;
        self.roles.set_weight(node, access.weight);
        self.stack.push_head(STACK, node);
        self.roles.push_head(QUEUE, node);
        let warming_up = self.roles.size(LOW) + u64::from(access.weight) <= self.low_target;
        if known.is_some() || warming_up {
            self.make_low(node);
        }
    }

    fn evict(&mut self, _: Option<&Access>) -> Option<Slot> {
        let victim = self.roles.pop_tail(QUEUE).or_else(|| self.roles.pop_tail(LOW))?;
        if self.stack.contains(victim) {
            self.leave_ghost(victim);
        }
        self.prune();
        Some(Slot(victim.0 / 2))
    }

    fn remove(&mut self, slot: Slot) {
        self.roles.delink(node(slot));
        self.stack.delink(node(slot));
        self.prune();
    }

    fn reweigh(&mut self, slot: Slot, weight: u32) {
        if self.roles.reweigh(node(slot), weight) {
            self.limit_low();
        }
    }

    fn transfer(&mut self, from: Slot, to: Slot) {
        self.roles.transfer(node(from), node(to));
        self.stack.transfer(node(from), node(to));
        self.tags[node(to).index()] = self.tags[node(from).index()];
    }

    fn rank(&self, from: Cursor, out: &mut Vec<Slot>) -> Cursor {
        let start = out.len();
        let next = self.roles.rank(&[LOW, QUEUE], from, out);
        for node in &mut out[start..] {
            *node = Slot(node.0 / 2);
        }
        next
    }

    fn freeze(&mut self, slots: &[Slot]) {
        for &slot in slots {
            self.roles.freeze(&[node(slot)]);
            self.stack.freeze(&[node(slot)]);
        }
        self.prune();
    }

    fn thaw(&mut self) {
        self.roles.thaw();
        self.stack.thaw();
        self.prune();
    }

    fn memory_bytes(&self) -> usize {
        self.stack.memory_bytes()
            + self.roles.memory_bytes()
            + self.tags.capacity() * size_of::<Tag>()
            + self.free_ghosts.capacity() * size_of::<u32>()
            + self.ghosts.memory_bytes()
    }
}
