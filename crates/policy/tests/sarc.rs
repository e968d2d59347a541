//! SARC's orders, carried out.

use std::collections::HashMap;

use floe_policy::registry::{Choice, Visitor};
use floe_policy::{Access, Eviction, Policy, Slot, Tick, mix, with};

const SIZE: usize = 64;

/// A cache that reads positions in turn and fetches ahead what the policy orders; says how many reads hit.
struct ReadsInTurn {
    positions: u64,
    carries_out: bool,
}

fn insert(order: &mut impl Eviction, slot_of: &mut HashMap<u64, Slot>, position: u64) {
    let access = Access { position, ..Access::new(mix(position)) };
    let slot = if slot_of.len() < SIZE {
        Slot(slot_of.len() as u32)
    } else {
        let victim = order.evict(Some(&access)).expect("a full cache has a victim");
        slot_of.retain(|_, slot| *slot != victim);
        victim
    };
    order.insert(slot, &access);
    slot_of.insert(position, slot);
}

impl Visitor for ReadsInTurn {
    type Out = u64;

    fn visit<P: Policy>(self, make: impl Fn() -> P) -> u64 {
        let (mut order, mut slot_of, mut hits) = (make(), HashMap::new(), 0);
        order.reserve(SIZE);
        for position in 0..self.positions {
            let access = Access { position, ..Access::new(mix(position)) };
            match slot_of.get(&position) {
                Some(&slot) => {
                    hits += 1;
                    order.hit(slot, &access);
                }
                None => insert(&mut order, &mut slot_of, position),
            }
            if self.carries_out {
                for ahead in order.tick(Tick(position)).prefetch.into_iter().flatten() {
                    if !slot_of.contains_key(&ahead) {
                        insert(&mut order, &mut slot_of, ahead);
                    }
                }
            }
        }
        hits
    }
}

fn sarc() -> Choice {
    "sarc".parse().expect("sarc is registered")
}

#[test]
fn a_sequential_read_hits_once_it_is_recognised() {
    let hits = with(&sarc(), ReadsInTurn { positions: 1000, carries_out: true });
    assert!(hits >= 990, "{hits} of 1000 reads hit");
}

#[test]
fn without_prefetching_a_sequential_read_never_hits() {
    assert_eq!(with(&sarc(), ReadsInTurn { positions: 1000, carries_out: false }), 0);
}
