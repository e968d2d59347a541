//! Each order against a model of itself that is too simple to be wrong.

use floe_policy::{Access, Fifo, Lru, Ranked, Slot};
use proptest::prelude::*;

const SLOTS: u32 = 12;

#[derive(Debug, Clone)]
enum Step {
    Insert(u32),
    Access(u32),
    Remove(u32),
    Evict,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..SLOTS;
    let step = prop_oneof![
        slot.clone().prop_map(Step::Insert),
        slot.clone().prop_map(Step::Access),
        slot.prop_map(Step::Remove),
        Just(Step::Evict),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Runs `steps` on an order and on a plain vector (coldest first) whose hits are told apart by `moves_on_hit`.
fn agrees_with_a_vector(mut order: impl Ranked, moves_on_hit: bool, steps: &[Step]) {
    let mut model: Vec<u32> = Vec::new();
    order.reserve(SLOTS as usize / 2);
    order.reserve(SLOTS as usize);
    for step in steps {
        match *step {
            Step::Insert(slot) if !model.contains(&slot) => {
                order.insert(Slot(slot), &Access::default());
                model.push(slot);
            }
            Step::Insert(slot) | Step::Access(slot) => {
                order.access(Slot(slot));
                if let (true, Some(at)) = (moves_on_hit, model.iter().position(|&s| s == slot)) {
                    model.remove(at);
                    model.push(slot);
                }
            }
            Step::Remove(slot) => {
                order.remove(Slot(slot));
                model.retain(|&s| s != slot);
            }
            Step::Evict => {
                let expected = (!model.is_empty()).then(|| Slot(model.remove(0)));
                assert_eq!(order.evict(None), expected);
            }
        }
        assert_eq!(order.len(), model.len());
        assert_eq!(order.coldest_first().map(|slot| slot.0).collect::<Vec<_>>(), model);
    }
}

proptest! {
    #[test]
    fn fifo_is_a_queue(steps in steps()) {
        agrees_with_a_vector(Fifo::default(), false, &steps);
    }

    #[test]
    fn lru_is_a_vector_whose_hits_move_to_the_end(steps in steps()) {
        agrees_with_a_vector(Lru::default(), true, &steps);
    }
}
